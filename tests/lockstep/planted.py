# SPDX-License-Identifier: Apache-2.0
"""
Bugs planted in passes, and what lockstep says of them.

A bug is a small change of the text that a pass leaves behind: a wrong number, a dropped token, a swapped operand. The
program is lowered once to where the pass runs; from there lockstep runs the pass with the bug. It must blame that pass,
and should name the operation that the bug is in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from planted_programs import PROGRAMS
from xdsl.context import Context
from xdsl.dialects.builtin import FileLineColLoc, ModuleOp, UnknownLoc
from xdsl.passes import ModulePass

from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.to_text import located_text
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.signature import signature_of
from penstock.tools.lockstep import Lockstep, ProgramBroken, default_inputs


@dataclass(frozen=True)
class Bug:
    """A bug in the first pass of a program's pipeline that has this name."""

    program: str
    pass_name: str
    name: str
    op: str
    """The place that the message must name."""
    pattern: str
    """What is replaced in the text, a regular expression."""
    replacement: str
    number: int = 0
    """Which match of the pattern is replaced."""

    def __str__(self) -> str:
        return f"{self.program}: {self.pass_name}: {self.name}"

    def plant(self, module: ModuleOp) -> None:
        """Put the bug into what the pass left."""
        text = located_text(make_context(), module)
        # A machine comes first, and has operations of its own.
        start = text.index("func.func")
        found = list(re.compile(self.pattern).finditer(text, start))
        assert len(found) > self.number, f"{self}: there are {len(found)} matches"
        match = found[self.number]
        changed = text[: match.start()] + match.expand(self.replacement) + text[match.end() :]
        assert changed != text, f"{self}: nothing is changed"
        other = parse_text(make_context(), SourceText(PLANTED, changed)).module
        for op in other.walk():
            if isinstance(op.location, FileLineColLoc) and op.location.filename.data == PLANTED:
                op.location = UnknownLoc()
        region = other.detach_region(0)
        module.detach_region(0)
        module.add_region(region)


PLANTED = "planted"
"""The file that the changed text says it is."""


@dataclass(frozen=True)
class Planted(ModulePass):
    """A pass with a bug."""

    sound: ModulePass
    bug: Bug

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        self.sound.apply(ctx, op)
        self.bug.plant(op)


def with_bug(sound: ModulePass, bug: Bug) -> ModulePass:
    """The pass with the bug, under its own name and with what it declares."""
    declared = {name: getattr(sound, name) for name in ("name", "reassociates", "narrows_to") if hasattr(sound, name)}
    return type("Planted", (Planted,), declared)(sound, bug)


@dataclass(frozen=True)
class Found:
    """What lockstep said of a bug."""

    bug: Bug
    blamed: str | None
    """The pass; None where nothing was found."""
    message: str

    @property
    def is_right_pass(self) -> bool:
        return self.blamed == self.bug.pass_name

    @property
    def is_right_op(self) -> bool:
        return self.is_right_pass and f'"{self.bug.op}"' in self.message


@cache
def lowered(program: str, pass_name: str) -> tuple[ModuleOp, PenstockContext, ModulePass, tuple[ModulePass, ...]]:
    """The program before the pass, the pass itself, and those after it."""
    text, machine, pipeline = PROGRAMS[program]
    ctx = make_context()
    module = parse_text(ctx, SourceText("in.mlir", text)).module
    if machine is not None:
        attach_machine(module, machine)
    passes = read_pipeline(pipeline)
    number = next(number for number, each in enumerate(passes) if each.name == pass_name)
    earlier = next((n for n in range(number - 1, -1, -1) if (program, passes[n].name) in _STAGES), None)
    if earlier is not None:
        start, ctx = _STAGES[program, passes[earlier].name]
        module = start.clone()
    run_passes(ctx, module, passes[earlier or 0 : number])
    _STAGES[program, pass_name] = module, ctx
    return module, ctx, passes[number], passes[number + 1 :]


_STAGES: dict[tuple[str, str], tuple[ModuleOp, PenstockContext]] = {}


def look_for(bug: Bug) -> Found:
    """Run lockstep over the pass with the bug, and over all passes after it as long as nothing is found."""
    stage, ctx, sound, later = lowered(bug.program, bug.pass_name)
    module = stage.clone()
    watch = Lockstep(ctx, default_inputs(signature_of(module)))
    try:
        watch.run(module, [with_bug(sound, bug), *later])
    except ProgramBroken as error:
        assert watch.report.culprit is not None
        return Found(bug, watch.report.culprit.pass_name, str(error))
    except UserError as error:
        return Found(bug, f"refused after {len(watch.report.comparisons)} passes", str(error))
    return Found(bug, None, "")
