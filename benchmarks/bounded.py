# SPDX-License-Identifier: Apache-2.0
"""
One program for all sizes up to a bound, beside one for each size.

    python -m benchmarks.bounded [--only NAME...] [--march ISA]

A row is a network at a size. "Compile" is CPU seconds of compiling to the plan and of the C compiler, of the one
program for all sizes, and of the programs of all sizes: the mean of those that were compiled, times the bound.
"Instructions" are those that `main_run` executes at the size, counted by valgrind (`--tool=callgrind`), of both. That
both compute the same bits is a test. Code is compiled for `--march`, whose instructions valgrind must know.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import ROOT, say
from benchmarks.planning_runs import text_table
from penstock.dialects.graph.dims import AtMost, Binding
from penstock.lowering.codegen.program import CParameter
from penstock.lowering.to_c import CSource, emit_c
from penstock.passes.toolchain import NEEDED_FLAGS
from penstock.runtime.compiler import compile_module, load_input

sys.path.append(str(ROOT / "examples/networks"))

import zoo
from bert import bert
from lstm import lstm


def perceptron() -> ModelProto:
    """Three layers on a batch."""
    widths = (64, 256, 256, 10)
    nodes: list[NodeProto] = []
    weights: dict[str, NDArray[Any]] = {}
    for number, (before, after) in enumerate(pairwise(widths)):
        weights[f"w{number}"] = np.random.default_rng(number).normal(0, before**-0.5, (before, after))
        nodes.append(helper.make_node("MatMul", [f"x{number}", f"w{number}"], [f"a{number}"]))
        nodes.append(helper.make_node("Relu", [f"a{number}"], [f"x{number + 1}"]))
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x0", 1, ["N", widths[0]])],
        [helper.make_tensor_value_info("x3", 1, None)],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def batched(name: str) -> ModelProto:
    """A network of examples/networks at its small size, on a batch of any size."""
    model = zoo.NETWORKS[name](0, small=True)
    for value in (*model.graph.input[:1], *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    del model.graph.value_info[:]
    return model


NETWORKS: dict[str, tuple[Any, int, tuple[int, ...]]] = {
    "perceptron": (perceptron, 16, (1, 3, 8, 16)),
    "squeezenet": (lambda: batched("squeezenet"), 8, (1, 3, 8)),
    "mobilenet_v2": (lambda: batched("mobilenet_v2"), 8, (1, 3, 8)),
    "bert": (lambda: bert(batch="N", sequence=32, hidden=64, heads=4, feed_forward=128), 8, (1, 3, 8)),
    "lstm": (lambda: lstm(batch="N", sequence=8), 8, (1, 3, 8)),
}
"""Name -> (what builds it, the bound of its batch, the sizes that are measured)."""


def cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


class Compiled:
    """A program, its C, and the seconds that it took."""

    def __init__(self, model: ModelProto, dims: dict[str, Binding], march: str, folder: Path):
        started = cpu_seconds()
        program = load_input(model, dims=dims)
        compile_module(program.module, program.ctx, None, "loop")
        self.source = emit_c(program.module)
        self.library = folder / f"{len(list(folder.iterdir()))}.o"
        (folder / self.source.header_name).write_text(self.source.header)
        (folder / "main.c").write_text(self.source.source)
        flags = [*(flag for flag in NEEDED_FLAGS if flag != "-fPIC"), "-O3", f"-march={march}", "-fopenmp-simd"]
        command = ["cc", *flags, "-c", "main.c", "-o", str(self.library)]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        self.seconds = cpu_seconds() - started

    def instructions(self, sizes: Sequence[int], largest: CSource, march: str, folder: Path) -> int:
        """What `main_run` executes at some sizes, on zeros."""
        (folder / self.source.header_name).write_text(self.source.header)
        (folder / "run.c").write_text(_harness(self.source, sizes, largest))
        program = folder / "run"
        command = ["cc", "-O1", f"-march={march}", "run.c", str(self.library), "-lm", "-o", str(program)]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        counted = subprocess.run(
            [
                "valgrind",
                "--tool=callgrind",
                "--callgrind-out-file=/dev/null",
                "--toggle-collect=main_run",
                str(program),
            ],
            check=True,
            capture_output=True,
            text=True,
        )
        found = re.search(r"Collected : (\d+)", counted.stderr)
        assert found is not None, counted.stderr
        return int(found[1])


def _harness(source: CSource, sizes: Sequence[int], largest: CSource) -> str:
    """A program that runs another once, on arrays as large as those of the largest size."""
    lines = [f'#include "{source.header_name}"', "#include <stdlib.h>", "int main(void) {"]
    for name in ("inputs", "weights", "outputs"):
        # Of weights each program has its own; inputs and outputs of another size have other numbers of elements.
        parameters: tuple[CParameter, ...] = getattr(source if name == "weights" else largest, name)
        lines.append(f"  void *{name}[{len(parameters) + 1}] = {{0}};")
        for number, each in enumerate(parameters):
            count = int(np.prod(each.shape)) * each.ctype.size + 64
            lines.append(f"  {name}[{number}] = calloc({count}, 1);")
    given = "".join(f", (const int64_t[]){{{', '.join(map(str, sizes))}}}" for _ in source.sizes[:1])
    lines.append("  main_ctx *ctx = aligned_alloc(64, (main_context_size() + 63) / 64 * 64);")
    arrays = "(const void *const *)weights, (const void *const *)inputs, outputs"
    lines.append(f"  return main_run(ctx, {arrays}{given});")
    return "\n".join([*lines, "}", ""])


def rows(name: str, march: str) -> list[list[str]]:
    """The rows of a network."""
    build, most, sizes = NETWORKS[name]
    model = build()
    found: list[list[str]] = []
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        one = Compiled(model, {"N": AtMost(most)}, march, folder)
        each = {size: Compiled(model, {"N": size}, march, folder) for size in sizes}
        seconds = sum(own.seconds for own in each.values()) / len(sizes) * most
        for size, own in each.items():
            say(f"bounded: {name}, {size}")
            bounded = one.instructions([size], each[sizes[-1]].source, march, folder)
            specialised = own.instructions([], each[sizes[-1]].source, march, folder)
            compiled = [f"{one.seconds:.1f}", f"{seconds:.1f}"] if size == sizes[0] else ["", ""]
            ratio = f"{bounded / specialised:.2f}"
            found.append([name, f"{size} of {most}", *compiled, f"{bounded:,}", f"{specialised:,}", ratio])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS), metavar="NAME")
    parser.add_argument("--march", default="haswell", help="default: haswell")
    args = parser.parse_args()
    head = ["network", "size", "compile one (CPU s)", "all sizes", "instructions of one", "of the size's own", "ratio"]
    table: list[list[str]] = []
    for name in args.only:
        table += rows(name, args.march)
    print(text_table("One program for all sizes", head, table))


if __name__ == "__main__":
    main()
