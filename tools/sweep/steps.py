# SPDX-License-Identifier: Apache-2.0
"""
The steps of a run, each from a kept state to the next: what a process, here or on another machine, is given to do.

The first step loads a program and attaches the machine; the last one ends in the figures. What a step needs and what it
gives are plain data. Where the state that it starts from is not kept, as on a machine that shares no folder with the
one that made it, it is computed again from the last one that is, or from the file.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from penstock.dialects.diagnostics import UserError

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.passes import ModulePass

    from penstock.runtime.pipeline import Start
    from penstock.tools.sweep.figures import Figure
    from penstock.tools.sweep.states import Program, StateCache

OK, REFUSED, CRASHED, LOST = "ok", "refused", "crashed", "lost"
"""How a run ends: with figures; at a fault of the input or of a choice; at one of the code; with its process."""


_PROOFS = ("mem-verify", "accel-check-hazards")
"""
What a run need not end in: the plan is proved when it is reported on, and kernels are proved free of hazards when they
are simulated, where they lie in the run.
"""


@dataclass(frozen=True)
class Source:
    """A program on a machine, before any pass."""

    path: str
    machine: str | None
    options: tuple[tuple[str, str], ...]
    dims: tuple[tuple[str, int], ...]
    kernel: str | None
    kernels: tuple[str, ...]
    key: str
    """A digest of the contents of all these."""


@dataclass(frozen=True)
class Segment:
    """Passes that run without a stop, as their texts."""

    passes: tuple[str, ...]
    schedule: tuple[str, str] | None = None
    """The file of the schedules that are given, and the digest of its contents."""
    is_last: bool = False
    """Whether the figures follow."""

    @property
    def key(self) -> object:
        """What it does, whatever the files are called."""
        return (self.passes, self.schedule and self.schedule[1], self.is_last)


@dataclass(frozen=True)
class Outcome:
    """What became of a step."""

    state: str | None = None
    """The digest of what it leaves; None after the last, and after a fault."""
    start: Start | None = None
    """Of the first step: what the passes depend on."""
    figures: dict[str, Figure] = field(default_factory=dict[str, "Figure"])
    """Of the last step."""
    cpu: float = 0.0
    """CPU seconds of the passes."""
    status: str = OK
    reason: str = ""


@dataclass(frozen=True)
class Step:
    """The last of `segments`, after the others; the first step, if there are none."""

    code: str
    """The digest of the code that the figures are to be computed by."""
    source: Source
    segments: tuple[Segment, ...] = ()
    before: str | None = None
    """The digest of the state that it starts from."""

    @property
    def key(self) -> str:
        from penstock.tools.sweep.digests import digest_of

        if not self.segments:
            return digest_of([self.code, self.source.key])
        return digest_of([self.code, self.before, self.segments[-1].key])


def run_step(step: Step) -> Outcome:
    """
    The outcome of a step: the kept one, or a new one, which is kept.

    Raises UserError where this process has other code than the one that asks.
    """
    from penstock.tools.sweep.digests import code_digest

    if code_digest() != step.code:
        raise UserError("this worker has another version of Penstock, or of a plug-in, than the sweep")
    states = _states()
    outcome = states.step(step.key)
    if not isinstance(outcome, Outcome):
        outcome = _outcome(step)
        if outcome.status in (OK, REFUSED):
            states.keep_step(step.key, outcome)
    return outcome


@cache
def _states() -> StateCache:
    from penstock.tools.sweep.states import StateCache

    return StateCache()


def _outcome(step: Step) -> Outcome:
    from penstock.runtime.pass_manager import PassFault, fewer_collections

    try:
        with fewer_collections():
            return _advance(step)
    except UserError as error:
        return Outcome(status=REFUSED, reason=_one_line(str(error).replace("error: ", "", 1)))
    except PassFault as fault:
        cause = f": {type(fault.__cause__).__name__}: {fault.__cause__}" if fault.__cause__ else ""
        return Outcome(status=CRASHED, reason=_one_line(f"{fault}{cause}"))
    except Exception as error:
        return Outcome(status=CRASHED, reason=_one_line(f"{type(error).__name__}: {error}"))


def _one_line(text: str) -> str:
    return text.partition("\n")[0].strip()


def _advance(step: Step) -> Outcome:
    from penstock.runtime.pipeline import Start

    if not step.segments:
        program = _loaded(step.source)
        return Outcome(_states().keep(program), Start.of(program.module))
    program = _program(step)
    segment = step.segments[-1]
    timer = _CpuTimer()
    _run(program, segment, timer)
    if not segment.is_last:
        return Outcome(_states().keep(program), cpu=timer.seconds)
    from penstock.runtime.proofs import prove
    from penstock.runtime.schedules import require_applied
    from penstock.tools.sweep.figures import figures_of

    require_applied(program.ctx, program.module)
    # The figures prove the plan, and that the kernels that are simulated are free of hazards.
    prove(program.module, plan=False, hazards=False)
    return Outcome(figures=figures_of(program.module, program.workloads, _states().remembered), cpu=timer.seconds)


def _program(step: Step) -> Program:
    """The program that a step starts from."""
    if step.before is not None and (kept := _states().load(step.before)) is not None:
        return kept
    # It was pruned, or made on another machine.
    program = _loaded(step.source)
    for segment in step.segments[:-1]:
        _run(program, segment, _CpuTimer())
    return program


def _loaded(source: Source) -> Program:
    from penstock.runtime.compiler import load_input
    from penstock.runtime.levels import level_of
    from penstock.runtime.machines import attach_machine
    from penstock.runtime.pass_manager import verify
    from penstock.runtime.proofs import prove
    from penstock.runtime.symbolic_dims import require_bound
    from penstock.tools.sweep.states import Program

    loaded = load_input(source.path, dims=dict(source.dims), kernel=source.kernel, kernels=source.kernels)
    require_bound(loaded.module, source.path)
    attach_machine(loaded.module, source.machine, dict(source.options))
    if level_of(loaded.module) in ("loop", "accel"):
        verify(loaded.module, loaded.parsed)
        prove(loaded.module)
    loaded.ctx.remembered = _states().remembered
    return Program(loaded.module, loaded.ctx)


def _run(program: Program, segment: Segment, timer: _CpuTimer) -> None:
    from penstock.runtime.pass_manager import read_pipeline, run_passes

    if segment.schedule is not None:
        from penstock.runtime.schedules import read_schedules

        program.ctx.schedules.given = read_schedules(segment.schedule[0])
    texts = segment.passes
    while segment.is_last and texts and texts[-1] in _PROOFS:
        texts = texts[:-1]
    passes = read_pipeline(",".join(texts))
    program.ctx.verifier = program.verifier
    run_passes(program.ctx, program.module, passes, observers=[program.workloads, timer])


class _CpuTimer:
    """An observer of passes: the CPU seconds of this thread in them, verification included."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started = 0.0

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self._started = time.thread_time()

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self.seconds += time.thread_time() - self._started


def cuts(pipelines: Sequence[Sequence[str]], named: frozenset[str]) -> list[list[int]]:
    """
    Where each of the pipelines that start from one state is cut: where it parts from another one, or runs a pass that
    the plan varies, and after that pass; from where two make the same again, they are one.

    A pipeline is its passes as texts; `named` are the names of passes that the plan varies.
    """
    after: dict[tuple[str, ...], set[str]] = {}
    for passes in pipelines:
        for index, each in enumerate(passes):
            after.setdefault(tuple(passes[:index]), set()).add(each)
        after.setdefault(tuple(passes), set()).add("")
    found: list[list[int]] = []
    for passes in pipelines:
        at: set[int] = set()
        for index, each in enumerate(passes):
            if len(after[tuple(passes[:index])]) > 1 or each.partition("{")[0] in named:
                at |= {index, index + 1}
        found.append(sorted(at - {0, len(passes)}))
    return found
