# SPDX-License-Identifier: Apache-2.0
"""One random input through its whole pipeline under lockstep, by the interpreter and by C."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from xdsl.passes import ModulePass

from penstock.dialects.diagnostics import UserError
from penstock.dialects.files import write_whole
from penstock.runtime.compiler import LoadedProgram
from penstock.runtime.pass_manager import PassFault
from penstock.runtime.pipeline import passes_for
from penstock.runtime.signature import signature_of
from penstock.tools.fuzz.corrupt import Originals, fault_of
from penstock.tools.fuzz.samples import LEVELS
from penstock.tools.fuzz.scheduled_cases import run_case
from penstock.tools.fuzz.scheduled_programs import Tally as ScheduleTally
from penstock.tools.fuzz.schedules import reduced, save_schedule
from penstock.tools.lockstep import INTERLEAVINGS, Lockstep, ProgramBroken, default_inputs
from penstock.tools.reduce import Reducer, reduce_to_file
from penstock.tools.run_by import BACKENDS

CORRUPT = "corrupt"
"""The level of files of every kind that went wrong."""
SCHEDULE = "schedule"
"""The level of random schedules of random kernels."""


@dataclass
class Tally:
    """What became of the inputs."""

    right: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    """How often each message, without its numbers and names, refused one."""
    invalid: int = 0
    """Machine files that are not valid."""
    wrong: list[str] = field(default_factory=list[str])
    """What went wrong with others."""
    saved: list[str] = field(default_factory=list[str])
    """What became of the programs that a pass broke when they were reduced."""

    schedules: ScheduleTally = field(default_factory=ScheduleTally)
    """What became of the primitives of random schedules."""

    @property
    def count(self) -> int:
        return self.right + self.refused.total() + self.invalid + len(self.wrong)

    def __str__(self) -> str:
        parts = [f"{self.count} inputs", f"{self.right} right", f"{self.refused.total()} refused"]
        if self.invalid:
            parts.append(f"{self.invalid} not valid")
        if steps := self.schedules.applied.total():
            parts.append(f"{steps} steps applied")
            parts.append(f"{self.schedules.refused.total()} not legal")
        return ", ".join([*parts, f"{len(self.wrong)} wrong"])


@dataclass
class Fuzzer:
    """Runs inputs of a level, and saves those that something is wrong with in a folder."""

    level: str
    folder: Path
    """Where what is wrong is saved."""
    work: Path
    """For files of inputs."""
    backends: Sequence[str] = ("native",)
    """One of them, drawn, runs each program after its last pass."""
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        self._originals = Originals(self.work)

    def run(self, seed: int) -> None:
        """Run the input with that number, and count what became of it."""
        if self.level == CORRUPT:
            self._run_corrupted(seed)
        elif self.level == SCHEDULE:
            self._run_schedule(seed)
        elif (sample := LEVELS[self.level](seed, self.work)) is None:
            self.tally.invalid += 1
        else:
            for machine in sample.machines:
                self._run_sample(seed, sample.program, machine)

    def _run_corrupted(self, seed: int) -> None:
        case = self._originals.corrupted(seed)
        fault, status = fault_of(case)
        if fault is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            saved = self.folder / f"corrupt_{seed}{case.file.suffix}"
            write_whole(saved, case.file.read_bytes())
            self.tally.wrong.append(f"corrupt {seed}, {case.kind} file saved as {saved}: {fault}")
        elif status:
            self.tally.refused[f"{case.kind} files"] += 1
        else:
            self.tally.right += 1

    def _run_schedule(self, seed: int) -> None:
        backend = Random(seed).choice(self.backends)
        try:
            case = run_case(seed, self.tally.schedules, backend=backend)
        except Exception as error:  # what a primitive must not raise is a fault as well
            fault = reduced(seed, backend=backend)
            if fault is None:
                self.tally.wrong.append(f"schedule {seed}: only once: {type(error).__name__}: {error}")
                return
            self.tally.wrong.append(f"schedule {seed}: {fault.message}")
            self.tally.saved.append(save_schedule(fault, self.folder))
        else:
            if case.refusal is None:
                self.tally.right += 1
            else:
                self.tally.refused[case.refusal] += 1

    def _run_sample(self, seed: int, program: LoadedProgram, machine: str | None) -> None:
        title = f"{self.level} {seed}" + (f" on {Path(machine).stem}" if machine else "")
        copy = LoadedProgram(program.module.clone(), program.ctx, program.path)
        try:
            refusal = self._refusal(copy, machine, title)
        except Exception as error:  # what a pass or a check must not raise is a fault as well
            self.tally.wrong.append(f"{title}: {type(error).__name__}: {error}")
            return
        if refusal is None:
            self.tally.right += 1
        elif refusal.loc is None:
            self.tally.wrong.append(f"{title}: refused without a place: {refusal.message}")
        else:
            self.tally.refused[_kind(refusal)] += 1

    def _refusal(self, program: LoadedProgram, machine: str | None, title: str) -> UserError | None:
        """Why the program is refused, if it is; raises ProgramBroken or PassFault after it has been reduced."""
        passes: Sequence[ModulePass] = ()
        given = program.module
        try:
            passes = passes_for(program.module, "accel" if machine else "loop", machine)
            passes = (*passes, BACKENDS[Random(title).choice(self.backends)]())
            given = program.module.clone()
            watch = Lockstep(program.ctx, default_inputs(signature_of(program.module)), INTERLEAVINGS)
            watch.run(program.module, passes)
        except (ProgramBroken, PassFault):
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"{title.replace(' ', '_')}.mlir"
            self.tally.saved.append(reduce_to_file(Reducer(program.ctx), given, passes, path))
            raise
        except UserError as error:
            return error
        return None


def _kind(refusal: UserError) -> str:
    return re.sub(r'"[^"]*"|[%@][\w.]+|-?\d[\d,.]*', "#", refusal.message)
