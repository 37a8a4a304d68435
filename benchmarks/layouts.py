# SPDX-License-Identifier: Apache-2.0
"""
What the layout pass leaves of changes of layout: how many there are, and the bytes that they read and write.

A row a network; in each column the changes of layout that the pass leaves beyond the transposes that the model has
itself, of values that are not known before the program runs and in which elements move; their mebibytes, those of
the model's own transposes included; and the CPU time of the pass. Columns: what is chosen for the host, for
gemmini-fp32 and for vta-pynq, whose unit computes no floats, so that these networks keep the host's layout there; and
the blocks that vta-pynq would have them in once they are quantised.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from xdsl.dialects.builtin import ModuleOp

from benchmarks.measure import say
from benchmarks.networks import network

NETWORKS = (
    *("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet"),
    *("vgg19", "zfnet512", "bert_layer"),
)
COLUMNS: tuple[tuple[str | None, str], ...] = (
    (None, "layout"),
    ("gemmini-fp32", "layout"),
    ("vta-pynq", "layout"),
    ("vta-pynq", 'layout{layout="NHWC16c"}'),
)


def changes_of_layout(module: ModuleOp) -> list[int]:
    """The bytes read and written by each change of layout or transpose in which elements of no constant move."""
    from penstock.dialects.graph import GraphOp, LayoutTransformOp, TransposeOp
    from penstock.passes.graph.layouts.forms import bytes_of, moves_units_only, shape_of
    from penstock.passes.graph.values import is_constant

    def moves(op: GraphOp) -> bool:
        if isinstance(op, LayoutTransformOp):
            return not op.is_view
        return isinstance(op, TransposeOp) and not moves_units_only(shape_of(op.x), op.perm.get_values())

    return [
        bytes_of(op.operands[0]) + bytes_of(op.result)
        for op in module.walk()
        if isinstance(op, GraphOp) and moves(op) and not is_constant(op.result)
    ]


def measure(name: str, machine: str | None, spec: str, *, small: bool) -> str:
    """One cell: changes of layout, mebibytes, and seconds."""
    from penstock.runtime.compiler import import_program
    from penstock.runtime.machines import attach_machine
    from penstock.runtime.pass_manager import read_pipeline, run_passes

    model, _ = network(name, small=small)
    program = import_program(model, {}, name=name)
    if machine is not None:
        attach_machine(program.module, machine)
    run_passes(program.ctx, program.module, read_pipeline("fold-batch-norm,transpose-operands"))
    before = len(changes_of_layout(program.module))
    started = time.process_time()
    run_passes(program.ctx, program.module, read_pipeline(spec))
    seconds = time.process_time() - started
    found = changes_of_layout(program.module)
    moved = sum(found) / 2**20
    return f"{len(found) - before:3} {moved:9.3f} MiB {seconds:6.2f} s"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", default=NETWORKS)
    parser.add_argument("--small", action="store_true", help="the networks at the size for tests")
    arguments = parser.parse_args()
    for name in arguments.names:
        cells = " | ".join(measure(name, *column, small=arguments.small) for column in COLUMNS)
        say(f"{name:14} | {cells}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
