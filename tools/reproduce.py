"""How a faulty run of `penstock` is repeated: a file of IR with the passes up to the faulty one, else the command."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from penstock.runtime.pass_manager import PassFault, pipeline_text
from penstock.tools.errors import write_reproducer


def reproduce_command(error: Exception, args: argparse.Namespace, words: Sequence[str]) -> str | None:
    """
    The command line that repeats a fault of ours.

    A fault in a pass is repeated by penstock-opt on the program as it was before the first pass, which is loaded once
    more: the one in memory is half lowered. Any other fault is repeated by the same command.
    """
    same = shlex.join(["penstock", *words])
    model = getattr(args, "model", None)
    if not isinstance(error, PassFault) or model is None:
        return same
    from penstock.lowering.to_text import module_text
    from penstock.runtime.compiler import load_input
    from penstock.runtime.weights import save_weights, weight_uses
    from penstock.tools.arguments import read_dims

    program = load_input(model, dims=read_dims(args.dim), allow_nan=args.allow_nan)
    flags = ["penstock-opt"]
    if args.machine is not None:
        flags += ["--machine", args.machine]

    def command(path: str) -> str:
        return shlex.join([*flags, "-p", pipeline_text(error.pipeline), path])

    if any(True for _ in weight_uses(program.module)):
        save_weights(program.ctx.weights, program.module, Path("penstock-reproducer.safetensors"))
    text = module_text(program.ctx, program.module)
    path = write_reproducer(text, command, str(error).split("\n")[0])
    return command(str(path)) if path else same
