# SPDX-License-Identifier: Apache-2.0
"""
Quantise a model after training: run it on calibration inputs, choose scales from the ranges that its values take, and
write the graph-level IR on 8-bit integers with its weights beside it. What was chosen, and what it lost, is told on
stderr.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from penstock.dialects.diagnostics import USAGE, UserError
from penstock.tools.arguments import add_common, add_kernel, add_model, add_weights, say

SCHEMES = ("qdq", "symmetric", "power-of-two")
METHODS = ("min-max", "percentile", "mse")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_kernel(parser)
    parser.add_argument(
        "--calibration",
        nargs="+",
        action="extend",
        default=[],
        metavar="[NAME=]FILE",
        help="inputs, samples along the first dimension: .npy or .pb, or .npz with an entry for each input",
    )
    parser.add_argument("--ranges", metavar="FILE", help="take the ranges of an earlier calibration from a JSON file")
    parser.add_argument("--save-ranges", metavar="FILE", help="write the ranges as JSON")
    parser.add_argument("--scheme", choices=SCHEMES, default="qdq", help="default: qdq")
    parser.add_argument("--method", choices=METHODS, default="min-max", help="how ranges are chosen; default: min-max")
    parser.add_argument(
        "--percentile", type=float, default=99.99, metavar="P", help="what --method percentile keeps; default: 99.99"
    )
    parser.add_argument(
        "--per-channel",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="a scale for each output channel of weights (default; not with power-of-two)",
    )
    parser.add_argument(
        "--integer",
        action="store_true",
        help="write products of integers in place of quantisation around ops in float",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="where the IR goes; default: MODEL_int8.mlir")
    add_weights(parser)
    add_common(parser)


def execute(args: argparse.Namespace) -> int:
    from penstock.passes.graph.quantization.ranges import ranges_text, read_ranges
    from penstock.runtime.pass_manager import read_pipeline, run_passes
    from penstock.runtime.quantization import quantize
    from penstock.tools.programs import load_given, write_program
    from penstock.tools.text import require_distinct, write_output

    if not args.calibration and args.ranges is None:
        raise UserError(
            "there is nothing to calibrate with",
            notes=["give inputs, --calibration FILE, or a table of ranges, --ranges FILE"],
            status=USAGE,
        )
    output = Path(args.output or f"{Path(args.model).stem}_int8.mlir")
    outputs = {"-o": output, "--weights": args.weights, "--save-ranges": args.save_ranges}
    require_distinct(outputs, args.model, rewrite="-o")
    ranges = None if args.ranges is None else read_ranges(args.ranges)
    calibration = read_calibration(args.calibration) or None
    program = load_given(args, args.kernel)
    done = quantize(
        program,
        calibration,
        scheme=args.scheme,
        per_channel=args.per_channel,
        method=args.method,
        percentile=args.percentile,
        ranges=ranges,
    )
    if args.integer:
        run_passes(program.ctx, program.module, read_pipeline("integer-arithmetic,fold-constants"))
    if args.save_ranges is not None:
        write_output(args.save_ranges, ranges_text(done.ranges))
        say(args, f"{args.save_ranges}: the ranges of {len(done.ranges)} values")
    for line in done.lines():
        say(args, line)
    write_program(done.program, output, weights=args.weights, locations=True)
    say(args, f"{output}: {len(done.layers)} values in 8-bit integers, {len(done.remarks)} operations left in float")
    return 0


def read_calibration(words: list[str]) -> list[Any]:
    """
    The calibration inputs of `FILE` and `NAME=FILE` words: those with names belong together, and so do the entries of
    each archive; each other file stands alone.

    Raises UserError for a file that cannot be read and for a name that is given twice.
    """
    from penstock.tools.tensors import read_archive, read_given

    parts: list[Any] = []
    named: list[str] = []
    for word in words:
        if Path(word).suffix == ".npz" and (Path(word).exists() or "=" not in word):
            archive = read_archive(word)
            parts.append(archive if len(archive) != 1 else _only(archive))
        elif Path(word).exists() or "=" not in word:
            parts += read_given([word]).ordered
        else:
            named.append(word)
    if named:
        parts.append(read_given(named).named)
    return parts


def _only(archive: dict[str, Any]) -> Any:
    """The one array of an archive, by whatever name: `arr_0`, or that of the input."""
    return next(iter(archive.values()))
