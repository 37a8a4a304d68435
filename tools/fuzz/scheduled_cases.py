# SPDX-License-Identifier: Apache-2.0
"""
Random kernels under random schedules, through all levels: what is legal keeps every bit, and what is refused changes
nothing.

A case is a kernel and the primitives that `schedule_moves` proposes for it in each section: on the host (tensors,
memrefs, planned memrefs, C), a nest of loops alone, or on a machine (down to its commands). At the end of each section
the program runs on the interpreter and equals the one before; commands also run in other orders of their units and are
proved free of hazards, and the cycle model gets through them. The schedule, printed and parsed again, makes the same
program.

Integers and sums of small integers in floats are compared bit for bit; floats that are not exact and were reassociated
within `TOLERANCE` of the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.transform import NamedSequenceOp

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.schedule.schedule import Schedule
from penstock.passes.schedule.sections import LOOPS, START
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.schedules import schedules_text
from penstock.tools.fuzz import schedule_moves
from penstock.tools.fuzz.loop_programs import loop_program
from penstock.tools.fuzz.schedule_moves import apply_moves
from penstock.tools.fuzz.scheduled_on_machines import machine_case, shipped_program, toy_program
from penstock.tools.fuzz.scheduled_programs import (
    Case,
    Program,
    Tally,
    WrongError,
    function_of,
    kind_of,
    parsed,
    program_of,
    require_equal,
)
from penstock.tools.fuzz.tensor_programs import tensor_program


def host_program(seed: int) -> Program:
    """A chain of structured ops on tensors."""
    return program_of(parsed(tensor_program(seed, "f32" if seed % 5 == 0 else "i32")), seed)


def host_case(case: Case) -> None:
    """The tensor section, the loop section, planned memrefs."""
    schedule = case.proposed(function_of(case.module, "kernel"), None, None)
    apply_moves(schedule, schedule_moves.TENSOR, case.random.randint(2, 6), case.random)
    case.compare("tensors")
    _lower(case.module)
    schedule = case.proposed(function_of(case.module, "kernel"), None, schedule.sequence)
    schedule.enter(LOOPS)
    apply_moves(schedule, schedule_moves.LOOPS, case.random.randint(1, 5), case.random)
    case.compare("loops")
    _require_round_trip(case, schedule.sequence, "kernel", (START, LOOPS))
    _finish(case)


def loops_program(seed: int) -> Program:
    """A nest of loops around copies, structured ops, loads and stores."""
    return program_of(parsed(loop_program(seed, "f32" if seed % 4 == 0 else "i32")), seed)


def loops_case(case: Case) -> None:
    """Primitives on loops and memrefs."""
    schedule = case.proposed(function_of(case.module, "main"), None, None)
    apply_moves(schedule, schedule_moves.LOOPS, case.random.randint(2, 6), case.random)
    case.compare("loops")
    _require_round_trip(case, schedule.sequence, "main", (START,))
    _finish(case)


def _lower(module: ModuleOp) -> None:
    run_passes(make_context(), module, read_pipeline(LOOPS), verify_each=False)


def _finish(case: Case) -> None:
    """All buffers at their places, where reading what nothing has written is an error; and some cases in C."""
    try:
        run_passes(make_context(), case.module, read_pipeline("forall-to-for,mem-plan"))
    except UserError as error:
        case.refusal = f"not planned: {kind_of(error.message)}"
        return
    case.compare("planned")
    case.compare_compiled()


def _require_round_trip(case: Case, sequence: NamedSequenceOp, name: str, sections: Sequence[str]) -> None:
    """Raise WrongError where the text of a schedule, parsed and applied, makes another program, or other text."""
    ctx = make_context()
    text = schedules_text(ctx, {name: sequence})
    (given,) = parse_text(make_context(), SourceText("schedule.mlir", text)).module.ops
    assert isinstance(given, NamedSequenceOp)
    replayed, again = case.program.module.clone(), None
    for section in sections:
        if section == LOOPS:
            _lower(replayed)
        schedule = Schedule(function_of(replayed, name), None, again)
        if section != START:
            schedule.enter(section)
        schedule.replay(given, section)
        again = schedule.sequence
    require_equal(case, replayed, ctx)
    if again is None or schedules_text(ctx, {name: again}) != text:
        raise WrongError("the schedule, applied again, is another text")


KINDS: dict[str, tuple[int, Callable[[int], Program], Callable[[Case], None]]] = {
    "host": (14, host_program, host_case),
    "loops": (16, loops_program, loops_case),
    "small machine": (2, toy_program, machine_case),
    "shipped machine": (1, shipped_program, machine_case),
}
"""Of programs: so many of each in turn."""
SCHEDULES = 4
"""Of each program."""


@lru_cache(1)
def _program(number: int) -> tuple[str, Program, Callable[[Case], None]]:
    """A program, its kind, and what is done with it."""
    left = number % sum(share for share, _, _ in KINDS.values())
    for name, (share, make, run) in KINDS.items():
        if left < share:
            return name, make(number), run
        left -= share
    raise AssertionError


def case_of(
    seed: int,
    tally: Tally,
    *,
    backend: str | None = None,
    is_watched: bool = False,
    left_out: Collection[int] = (),
) -> tuple[Case, Callable[[Case], None]]:
    """A random schedule before it is run, and what runs it."""
    name, program, run = _program(seed // SCHEDULES)
    tally.cases[name] += 1
    return Case(seed, program, tally, backend, is_watched, left_out), run


def run_case(seed: int, tally: Tally, *, backend: str | None = None) -> Case:
    """Raise WrongError where a random schedule is not what it should be."""
    case, run = case_of(seed, tally, backend=backend)
    run(case)
    if case.refusal is not None:
        tally.cases[case.refusal] += 1
    return case
