# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a random schedule: the step that is to blame, the steps that it takes, and files that show it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.files import write_whole
from penstock.lowering.to_text import module_text
from penstock.runtime.schedules import schedules_text
from penstock.tools.fuzz.scheduled_cases import case_of
from penstock.tools.fuzz.scheduled_programs import Case, Tally, kind_of
from penstock.tools.reproduce import write_headed


@dataclass(frozen=True)
class Fault:
    """A case that is not what it should be, and how."""

    case: Case
    message: str

    @property
    def kind(self) -> tuple[str, str | None]:
        """What stays the same when other steps are left out: the message, and the op that is blamed."""
        return kind_of(self.message), self.case.steps[-1][1] if self.case.steps else None


def fault_of_schedule(
    seed: int, *, backend: str | None, is_watched: bool, left_out: Collection[int] = ()
) -> Fault | None:
    """What is wrong with a case, if anything is; `is_watched` compares after each step, and ends at the first fault."""
    case, run = case_of(seed, Tally(), backend=backend, is_watched=is_watched, left_out=left_out)
    try:
        run(case)
    except Exception as error:  # a primitive must raise nothing but UserError
        words = error.message if isinstance(error, UserError) else str(error)
        return Fault(case, f"{type(error).__name__}: {words}")
    return None


def reduced(seed: int, *, backend: str | None = None) -> Fault | None:
    """
    The fault of a case with as few steps as it takes, of which the last is to blame where the program is wrong at once.

    Each step is left out in turn, the last first, and stays away as long as the fault is of the same kind.
    """
    fault = fault_of_schedule(seed, backend=backend, is_watched=True)
    is_watched = fault is not None
    fault = fault or fault_of_schedule(seed, backend=backend, is_watched=False)
    if fault is None:
        return None
    # What comes after a step that is wrong at once is not tried.
    left_out: set[int] = set()
    for number, _ in reversed(fault.case.steps):
        other = fault_of_schedule(seed, backend=backend, is_watched=is_watched, left_out=left_out | {number})
        if other is not None and other.kind == fault.kind:
            left_out.add(number)
            fault = other
    return fault


def save_schedule(fault: Fault, folder: Path) -> str:
    """Write the program and the schedules of a fault, and return a line about them."""
    folder.mkdir(parents=True, exist_ok=True)
    ctx, seed = make_context(), fault.case.seed
    program, schedule = folder / f"schedule_{seed}_program.mlir", folder / f"schedule_{seed}.mlir"
    write_whole(program, module_text(ctx, fault.case.program.module))
    command = f"penstock fuzz --level schedule --seed {seed} --count 1"
    text = schedules_text(ctx, fault.case.schedules)
    write_headed(schedule, command, fault.message.partition("\n")[0], text)
    steps = ", ".join(name for _, name in fault.case.steps)
    return f"schedule {seed}: reduced to {len(fault.case.steps)} steps ({steps}): {schedule}, of the program {program}"
