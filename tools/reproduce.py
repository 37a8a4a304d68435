"""How a faulty run of `penstock` is repeated: a file of IR with the passes up to the faulty one, else the command."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from penstock.dialects.files import keep, temporary_folder, write_whole
from penstock.runtime.pass_manager import PassFault, pipeline_text

NAME = "reproducer.mlir"


def reproducer_folder() -> Path:
    """A new folder of the user alone, among the temporary files of the system; it stays."""
    with temporary_folder(prefix="penstock-reproducer-") as folder:
        keep(folder)
    return folder


def write_reproducer(path: Path, text: str, command: Callable[[str], str], what: str) -> str:
    """
    Write the input of a faulty run to a file, headed by the command that repeats it, which is returned.

    `command` makes it from the name of the file. Raises UserError where that cannot be written.
    """
    line = command(str(path))
    versions = f"penstock {version('penstock')}, xdsl {version('xdsl')}, Python {sys.version.split()[0]}"
    write_whole(path, f"// {line}\n// {what}\n// {versions}\n{text}")
    return line


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
    from penstock.runtime.weights import save_weights, weight_uses
    from penstock.tools.arguments import chosen_flags
    from penstock.tools.programs import load_given

    program = load_given(args, args.kernel if str(model).endswith(".pk") else None)
    flags = ["penstock-opt", *chosen_flags(args)]

    def command(path: str) -> str:
        return shlex.join([*flags, "-p", pipeline_text(error.pipeline), path])

    path = reproducer_folder() / NAME
    if any(True for _ in weight_uses(program.module)):
        save_weights(program.ctx.weights, program.module, path.with_suffix(".safetensors"))
    return write_reproducer(path, module_text(program.ctx, program.module), command, str(error).split("\n")[0])
