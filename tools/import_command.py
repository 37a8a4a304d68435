"""`penstock import`: an ONNX model becomes graph-level text with its weights beside it."""

from __future__ import annotations

import argparse
from pathlib import Path

from penstock.tools.arguments import add_common, add_model, add_weights, read_dims, say


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the command to the parser of `penstock`."""
    parser = subparsers.add_parser(
        "import",
        description="Write the graph-level IR of a model, and its weights beside it as a .safetensors file.",
        allow_abbrev=False,
    )
    add_model(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="where the IR goes; default: MODEL with .mlir")
    add_weights(parser)
    add_common(parser)
    parser.set_defaults(run=execute)


def execute(args: argparse.Namespace) -> int:
    from penstock.runtime.compiler import load_input
    from penstock.tools.programs import write_program
    from penstock.tools.text import require_distinct

    program = load_input(args.model, dims=read_dims(args.dim), allow_nan=args.allow_nan)
    output = Path(args.output or program.path.with_suffix(".mlir").name)
    require_distinct({"-o": output, "--weights": args.weights}, args.model)
    file = write_program(program, output, weights=args.weights, locations=True)
    count = sum(1 for op in program.module.walk() if op.name.startswith("graph."))
    weights = f", {len(program.ctx.weights)} weights in {file}" if file is not None else ""
    say(args, f"{output}: {count} operations{weights}")
    return 0
