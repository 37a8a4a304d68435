# SPDX-License-Identifier: Apache-2.0
"""How a faulty run of `penstock` is repeated: a file of IR with the passes up to the faulty one, else the command."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from xdsl.ir import Operation
from xdsl.passes import ModulePass

from penstock import __version__
from penstock.dialects.context import PenstockContext
from penstock.dialects.files import keep, temporary_folder, write_whole
from penstock.lowering.printing import TextStyle, op_text
from penstock.runtime.instrumentation import Instrumentation
from penstock.runtime.pass_manager import PassFault, pipeline_text

NAME = "reproducer.mlir"
RESOURCE, PIPELINE = "mlir_reproducer", "pipeline"
"""Where a text names the passes that are to run on it: in the external resources at its end, as MLIR has it."""


@dataclass
class LastInput(Instrumentation):
    """Keeps the passes of the pipeline up to the one that runs and, as text, what that one was given."""

    ctx: PenstockContext
    keeps_text: bool = False
    """Whether to keep that text, which takes as long as printing it."""
    text: str = field(default="", init=False)
    done: list[ModulePass] = field(default_factory=list[ModulePass], init=False)

    def before(self, module_pass: ModulePass, module: Operation) -> None:
        self.done.append(module_pass)
        if self.keeps_text:
            self.text = op_text(self.ctx, module, TextStyle(print_debuginfo=True)).replace(" loc(unknown)", "")


def reproducer_section(passes: Sequence[ModulePass]) -> str:
    """The end of a text that names the passes that are to run on it."""
    pipeline = json.dumps(f"builtin.module({pipeline_text(passes)})", ensure_ascii=False)
    return (
        f"\n{{-#\n  external_resources: {{\n    {RESOURCE}: {{\n      {PIPELINE}: {pipeline},\n"
        "      disable_threading: true,\n      verify_each: true\n    }\n  }\n#-}\n"
    )


def reproducer_folder() -> Path:
    """A new folder of the user alone, among the temporary files of the system; it stays."""
    with temporary_folder(prefix="penstock-reproducer-") as folder:
        keep(folder)
    return folder


def write_reproducer(path: Path, text: str, flags: Sequence[str], passes: Sequence[ModulePass], what: str) -> str:
    """
    Write the input of a faulty run with its passes to a file, headed by the command that repeats it, which is returned.

    `flags` are what the command has beside that. Raises UserError where the file cannot be written.
    """
    line = shlex.join(["penstock-opt", *flags, "--run-reproducer", str(path)])
    write_headed(path, line, what, f"{text.rstrip()}\n{reproducer_section(passes)}")
    return line


def write_headed(path: Path, line: str, what: str, text: str) -> None:
    """
    Write a text to a file, headed by the command line that shows `what` is wrong with it, and by the versions of
    what found it. Raises UserError where it cannot be written.
    """
    versions = f"penstock {__version__}, xdsl {version('xdsl')}, Python {sys.version.split()[0]}"
    write_whole(path, f"// {line}\n// {what}\n// {versions}\n{text}")


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
    path = reproducer_folder() / NAME
    if any(True for _ in weight_uses(program.module)):
        save_weights(program.ctx.weights, program.module, path.with_suffix(".safetensors"))
    text = module_text(program.ctx, program.module)
    return write_reproducer(path, text, chosen_flags(args), error.pipeline, str(error).split("\n")[0])
