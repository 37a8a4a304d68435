# SPDX-License-Identifier: Apache-2.0
"""Write an ONNX model of what graph level holds, such as a quantised or differentiated graph, for other tools."""

from __future__ import annotations

import argparse
from pathlib import Path

from penstock.tools.arguments import add_common, add_kernel, add_model, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_kernel(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="where the model goes; default: MODEL with .onnx")
    add_common(parser)


def execute(args: argparse.Namespace) -> int:
    from penstock.lowering.to_onnx import export_model, save_model
    from penstock.runtime.pass_manager import verify
    from penstock.runtime.signature import main_function
    from penstock.tools.programs import load_given
    from penstock.tools.text import require_distinct

    program = load_given(args, args.kernel)
    verify(program.module, program.parsed)
    output = Path(args.output or program.path.with_suffix(".onnx").name)
    require_distinct({"-o": output}, args.model)
    model = export_model(main_function(program.module), program.ctx.weights)
    save_model(model, output)
    say(args, f"{output}: {len(model.graph.node)} nodes, {len(model.graph.initializer)} initializers")
    return 0
