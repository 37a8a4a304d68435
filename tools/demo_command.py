# SPDX-License-Identifier: Apache-2.0
"""
Compile a small network for a machine with scratchpads, run it at every level, and show what was decided. The network
recognises handwritten digits; it comes with Penstock, as do the images, which it was not trained on. What is printed:
whether all levels agree; what runs where, and why; the peak of each scratchpad against its lower bound; what was moved
against what must be; and what lies where in the scratchpads, over the cycles of a run. The text of each level, the C,
the model and the images are written to a folder. Exit status 1 if a level disagrees, or recognises less than 97 %.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from penstock import __version__
from penstock.dialects.diagnostics import UserError, render_location
from penstock.dialects.files import write_whole
from penstock.lowering.from_machine_toml import load_machine
from penstock.lowering.to_c import emit_c
from penstock.passes.analysis.commands.traffic import compulsory_bytes
from penstock.passes.analysis.kernels import kernels, partition, share_on_machine
from penstock.passes.analysis.memory.memory_problems import ARENA, plan_report
from penstock.passes.planning.map_text import legend, text_map
from penstock.passes.planning.problem import height
from penstock.passes.toolchain import find_compiler
from penstock.runtime.compiler import LoadedProgram, compile_module, load_input
from penstock.runtime.device import MANIFEST
from penstock.runtime.engine import Engine
from penstock.runtime.folders import FILES, write_folder
from penstock.runtime.interpreter import Counters, run_module
from penstock.runtime.levels import LEVELS
from penstock.runtime.occupancy import occupancy
from penstock.runtime.provenance import Provenance
from penstock.runtime.simulator.run import run_program
from penstock.tools.arguments import add_common, positive, say
from penstock.tools.programs import warn_unused, write_c, write_program
from penstock.tools.text import aligned

Array = NDArray[Any]
Run = Callable[[Array], Array]

DATA = Path(__file__).parent / "demo"
MODEL, IMAGES = "digits.onnx", "test_images.npz"
WANTED_ACCURACY = 0.97
TOLERANCE = 1e-4
"""How far a score may be from that of the graph level: sums of 512 products in f32, in another order."""
MAP_COLUMNS, MAP_ROWS, LEGEND_LINES = 88, 12, 8
"""The size of a map of a scratchpad, and of what its letters stand for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--machine", metavar="NAME", default="gemmini-fp32", help="default: gemmini-fp32")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        default=Path("penstock-demo"),
        help="where the files go; default: penstock-demo",
    )
    parser.add_argument("--images", type=positive, metavar="N", help="how many of the 360 images; default: all")
    parser.add_argument(
        "--interpret",
        type=positive,
        metavar="N",
        default=60,
        help="how many of them the interpreter runs below graph level; default: 60",
    )
    add_common(parser)


def execute(args: argparse.Namespace) -> int:
    is_host = load_machine(args.machine).is_host
    if args.output.exists() and not args.output.is_dir():
        raise UserError("expected a folder, and found a file", loc=str(args.output))
    model = DATA / MODEL
    with np.load(DATA / IMAGES) as file:
        images, labels = file["images"][: args.images], file["labels"][: args.images]
    programs = {level: compiled(args, model, level) for level in LEVELS}
    files = write_files(programs, args.output)
    counters = Counters()
    results = run_levels(args, programs, counters, images)
    results += onnxruntime_result(model, images)
    print(f"{MODEL}, compiled for {args.machine}")
    is_well = print_agreement(results, labels)
    accel = programs["accel"].module
    warn_unused(accel, model.name)
    print_partition(accel)
    if not is_host:
        print_plans(accel)
        print_transfers(accel, counters, len(images[: args.interpret]))
    print_files(args.output, files)
    if not is_host:
        print_maps(accel)
    say(args, f"\nmore on it: penstock simulate {args.output / MODEL} --machine {args.machine}")
    return 0 if is_well else 1


@dataclass(frozen=True)
class Result:
    """The scores of all images at one level, and the seconds they took."""

    level: str
    how: str
    scores: Array
    seconds: float


def title(text: str) -> None:
    """A heading on stdout."""
    print(f"\n{text}\n{'=' * len(text)}")


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> None:
    """Print columns of text, those in `left` aligned at their start."""
    lines = aligned([head, *rows], left)
    print("\n".join(f"  {line}" for line in [lines[0], "-" * max(map(len, lines)), *lines[1:]]))


def compiled(args: argparse.Namespace, model: Path, level: str) -> LoadedProgram:
    """The model lowered to the end of a level."""
    say(args, f"{MODEL}: lowered to the {level} level")
    program = load_input(model)
    compile_module(program.module, program.ctx, args.machine, level)
    return program


def interpreted(program: LoadedProgram, counters: Counters | None = None) -> Run:
    """Runs a program on the interpreter, sums in the order of the loops."""
    module, weights = program.module, program.ctx.weights
    return lambda image: run_module(module, [image], weights, counters=counters, ordered=True)[0]


def native(program: LoadedProgram) -> Run:
    """Runs a program as C; raises UserError if it cannot be built."""
    engine = Engine(program.module, program.ctx, backend="native")
    return lambda image: engine(image)[0]


def run_levels(
    args: argparse.Namespace, programs: Mapping[str, LoadedProgram], counters: Counters, images: Array
) -> list[Result]:
    """
    The results of all levels; `counters` count at the last one. Without a C compiler there are those of the interpreter
    alone, and the reason is said.
    """
    few = images[: args.interpret]
    has_compiler = True
    try:
        find_compiler()
    except UserError as error:
        has_compiler = False
        print(f"the loop and the accel level are not run as C: {error}", file=sys.stderr)
    results: list[Result] = []
    for level, program in programs.items():
        some = images if level == "graph" else few
        say(args, f"{len(some)} images: {level} level, interpreted")
        run = interpreted(program, counters if level == "accel" else None)
        results.append(run_all(level, "interpreted", run, some))
        if has_compiler and level in ("loop", "accel"):
            say(args, f"{len(images)} images: {level} level, as C")
            results.append(run_all(level, "as C", native(program), images))
    return results


def run_all(level: str, how: str, run: Run, images: Array) -> Result:
    """The scores of all images, one after the other."""
    start = time.perf_counter()
    scores = np.concatenate([run(image[None]) for image in images])
    return Result(level, how, scores, time.perf_counter() - start)


def onnxruntime_result(model: Path, images: Array) -> list[Result]:
    """The scores of the outside witness, where it is installed."""
    try:
        import onnxruntime
    except ImportError:
        return []
    session: Any = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return [run_all("model", "onnxruntime", lambda image: session.run(None, {"image": image})[0], images)]


# agreement


def print_agreement(results: Sequence[Result], labels: Array) -> bool:
    """Print how far each level is from the first and what it recognises; return whether all is well."""
    title("Every level runs: held-out images, and scores against the graph level and the row above")
    reference = results[0].scores
    rows: list[list[str]] = []
    agreed = True
    for result, above in zip(results, (results[0], *results), strict=False):
        count = len(result.scores)
        both = min(count, len(above.scores))
        difference = float(np.abs(result.scores - reference[:count]).max())
        equal = int((result.scores[:both] == above.scores[:both]).all(axis=1).sum())
        accuracy = float((result.scores.argmax(1) == labels[:count]).mean())
        agreed &= bool(difference <= TOLERANCE) and accuracy >= WANTED_ACCURACY
        rows.append(
            [
                f"{result.level}, {result.how}",
                str(count),
                f"{accuracy:.2%}",
                f"{difference:.2e}",
                f"{equal} of {both}" if rows else "-",
                f"{1e3 * result.seconds / count:.2f} ms",
            ]
        )
    print_table(["level", "images", "accuracy", "largest difference", "bitwise as above", "an image"], rows)
    print(
        f"\n  scores reach {np.abs(reference).max():.1f}; the graph level and onnxruntime sum in an order of their own,"
    )
    print("  hence the rounding there")
    print("\n  all levels agree" if agreed else "\n  a level disagrees, or recognises too few digits")
    return agreed


# scratchpads


def print_plans(module: ModuleOp) -> None:
    """Print the plan of every scope of every kernel, as read back from the text of the accel level."""
    plans = plan_report(module)
    title("The scratchpads: peak, capacity and lower bound in bytes")
    names = kernel_names(module)
    rows = [
        [
            f"{names.get(plan.function, 'whole program')}",
            plan.scope,
            str(len(plan.buffers)),
            f"{plan.peak:,}",
            "-" if plan.capacity is None else f"{plan.capacity:,}",
            f"{plan.lower_bound:,}",
            "optimal" if plan.is_optimal else f"+{plan.peak / max(plan.lower_bound, 1) - 1:.0%}",
        ]
        for plan in plans
    ]
    print_table(["kernel", "scope", "buffers", "peak", "capacity", "lower bound", "verdict"], rows, (0, 1))


def kernel_names(module: ModuleOp) -> dict[str, str]:
    """Return for each function a name that says what it computes: the location that it has from the model."""
    return {
        function.sym_name.data: f"@{function.sym_name.data} {render_location(function.location)}".strip()
        for function in kernels(module)
    }


# transfers


def print_partition(module: ModuleOp) -> None:
    """Print where each kernel runs and, on the host, which op no intrinsic covers."""
    title("What runs where")
    placements = partition(module)
    rows = [
        [f"@{each.kernel} {each.location}", f"{each.macs:,}", each.device, each.remark or ""] for each in placements
    ]
    print_table(["kernel", "multiply-accumulates", "device", "why not the machine"], rows, (0, 2, 3))
    total = sum(each.macs for each in placements)
    print(f"\n  {share_on_machine(placements):.1%} of {total:,} multiply-accumulates run on the machine")


def print_transfers(module: ModuleOp, counters: Counters, images: int) -> None:
    """Print what the machine did for one image."""
    title("What the machine does for one image")
    rows = [
        [name, f"{count.commands // images:,}", f"{count.bytes_in // images:,}", f"{count.bytes_out // images:,}"]
        for name, count in counters.dma.items()
    ]
    into, out = counters.bytes_in // images, counters.bytes_out // images
    compulsory_in, compulsory_out = compulsory_bytes(module)
    rows.append(["all", "", f"{into:,}", f"{out:,}"])
    rows.append(["compulsory", "", f"{compulsory_in:,}", f"{compulsory_out:,}"])
    rows.append(["ratio", "", f"{into / max(compulsory_in, 1):.2f}", f"{out / max(compulsory_out, 1):.2f}"])
    print_table(["DMA engine", "commands", "bytes in", "bytes out"], rows)
    print()
    rows = [
        [name, f"{count.commands // images:,}", f"{count.issues // images:,}", f"{count.macs // images:,}"]
        for name, count in counters.intrinsics.items()
    ]
    print_table(["intrinsic", "commands", "issues", "multiply-accumulates"], rows)


# files


def write_files(programs: Mapping[str, LoadedProgram], folder: Path) -> list[str]:
    """
    Write the model, the images, the text of each level with its weights, and the C of the loop and accel level; return
    the names of the files. Raises UserError for a folder of other files.
    """
    names: list[str] = []

    def fill(fresh: Path) -> None:
        for name in (MODEL, IMAGES):
            write_whole(fresh / name, (DATA / name).read_bytes())
        for level, program in programs.items():
            write_program(program, fresh / f"{level}.mlir")
        names.extend([*(each.name for each in fresh.iterdir()), MANIFEST])
        manifest = {"penstock": __version__, "kind": "demo", FILES: sorted(names)}
        write_whole(fresh / MANIFEST, json.dumps(manifest, indent=2) + "\n")

    write_folder(folder, "folder of penstock demo", fill, marker=MANIFEST)
    for level in ("loop", "accel"):
        program = programs[level]
        written = write_c(folder / f"{level}_c", program, emit_c(program.module))
        names += [f"{level}_c/{name}" for name in written]
    return sorted(names)


def print_files(folder: Path, names: Sequence[str]) -> None:
    """Print the files that were written, with their sizes."""
    title(f"The files, in {folder}")
    for name in names:
        print(f"  {name:<28} {(folder / name).stat().st_size:>9,} bytes")


# maps


def print_maps(module: ModuleOp) -> None:
    """Print what lies where in each scratchpad over the cycles of a run."""
    run = run_program(module, verify=False)  # compiling has proved it
    provenance = Provenance(module, run)
    scopes = dict.fromkeys(life.scope for life in provenance.lives if life.scope != ARENA)
    for scope in scopes if run.kernels else ():
        try:
            problem, plan = occupancy(provenance, scope)
        except UserError:  # the run puts nothing there
            continue
        title(f"{scope}: {height(problem, plan):,} bytes upwards, {run.cycles:,} cycles to the right")
        print("\n".join([*text_map(problem, plan, MAP_COLUMNS, MAP_ROWS).lines(), ""]))
        print("\n".join(legend(problem, MAP_COLUMNS + 8, LEGEND_LINES)))
