# SPDX-License-Identifier: Apache-2.0
"""How a fault of penstock-opt is repeated: the piece of input, with the passes up to the faulty one, in a file."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from xdsl.passes import ModulePass

from penstock.dialects.context import WEIGHTS_ATTRIBUTE, PenstockContext
from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_text import SourceText
from penstock.runtime.pass_manager import pipeline_text
from penstock.tools.arguments import chosen_flags
from penstock.tools.opt_flags import is_kernels

if TYPE_CHECKING:
    from penstock.tools.reproduce import LastInput

WEIGHTS_FILE = re.compile(rf'({re.escape(WEIGHTS_ATTRIBUTE)}"?\s*=\s*")([^"]*)')
"""In a text: where it names its weights, and the name."""


@dataclass
class OptReproducer:
    """Writes down how a fault is repeated, as the command line says where."""

    args: argparse.Namespace
    last_input: LastInput | None = None
    """What the passes that run were given, if it is watched."""

    def watch(self, ctx: PenstockContext) -> LastInput:
        """Look on as the passes of a piece of input run."""
        from penstock.tools.reproduce import LastInput

        self.last_input = LastInput(ctx, keeps_text=self.args.local_reproducer)
        return self.last_input

    def of_fault(self, error: Exception, source: SourceText, done: Sequence[ModulePass]) -> str:
        """Write a piece of input with the passes up to the faulty one; returns how to repeat it."""
        from penstock.tools.reproduce import NAME, reproducer_folder

        if is_kernels(self.args, source.name) and not self.args.local_reproducer:
            flags = ["penstock-opt", *chosen_flags(self.args)]
            flags += [] if self.args.kernel is None else ["--kernel", self.args.kernel]
            flags += [f"--dim={word}" for word in self.args.dim]
            return shlex.join([*flags, "-p", pipeline_text(done), source.name])
        named = self.args.crash_reproducer
        path = reproducer_folder() / NAME if named is None else Path(named)
        return self.write(path, source, done, str(error).split("\n")[0])

    def noted(self, error: UserError, source: SourceText) -> UserError:
        """A fault with the command that repeats it, if a pass refused its input and it was said in which file to be."""
        if self.args.crash_reproducer is None or self.last_input is None or not self.last_input.done:
            return error
        done = tuple(self.last_input.done)
        command = self.write(Path(self.args.crash_reproducer), source, done, error.message)
        notes = [*error.notes, f"repeat it with: {command}"]
        return UserError(error.message, loc=error.loc, notes=notes, status=error.status)

    def write(self, path: Path, source: SourceText, passes: Sequence[ModulePass], what: str) -> str:
        """Write a piece of input with passes to a file, headed by what is wrong; returns the command that runs it."""
        from penstock.tools.reproduce import write_reproducer

        flags, text = chosen_flags(self.args), source.text
        if self.args.local_reproducer and self.last_input is not None and self.last_input.done:
            # The machine is in the module by now.
            text, passes = self.last_input.text, self.last_input.done[-1:]
            flags = [flag for flag in flags if not flag.startswith("--set")] if self.args.machine is None else []
        if self.args.allow_unregistered_dialect:
            flags.append("--allow-unregistered-dialect")
        if self.args.irdl_file is not None:
            flags.append(f"--irdl-file={Path(self.args.irdl_file).resolve()}")
        # The text may end up far from its weights.
        folder = Path(source.name).parent.resolve()
        text = WEIGHTS_FILE.sub(lambda found: found[1] + str(folder / found[2]), text)
        return write_reproducer(path, text, flags, passes, what)
