# SPDX-License-Identifier: Apache-2.0
"""
Write the graph-level IR of an ONNX model, or of a function as StableHLO or TOSA, or the tensor-level IR of linalg, and
its weights beside it as a .safetensors file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from penstock.tools.arguments import add_common, add_kernel, add_model, add_weights, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_kernel(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="where the IR goes; default: MODEL.mlir or MODEL.graph.mlir"
    )
    add_weights(parser)
    add_common(parser)


def execute(args: argparse.Namespace) -> int:
    from penstock.tools.programs import load_given, write_program
    from penstock.tools.text import require_distinct

    program = load_given(args, args.kernel)
    suffix = ".graph.mlir" if program.path.suffix == ".mlir" else ".mlir"
    output = Path(args.output or program.path.with_suffix(suffix).name)
    require_distinct({"-o": output, "--weights": args.weights}, args.model, rewrite="-o")
    file = write_program(program, output, weights=args.weights, locations=True)
    count = sum(1 for op in program.module.walk() if op.name.startswith("graph."))
    weights = f", {len(program.ctx.weights)} weights in {file}" if file is not None else ""
    say(args, f"{output}: {count} operations{weights}")
    return 0
