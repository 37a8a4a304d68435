# SPDX-License-Identifier: Apache-2.0
"""
How a program fits a memory: a search over what its passes may decide, by the bytes that its plan then takes.

No second planner: the passes of the pipeline run with one limit and another, and what is compared is what came out, the
arena as it is placed and what generated C repacks operands to. The images of a chain that is computed in patches are
modelled before fusion, without what kernels need inside, so the limit of `patch` is bisected until the arena fits; so
is that of `graph-remat`, and of both. Among what fits, that of fewest modelled cycles is taken where the machine's file
says how fast it is, else that which has least to compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import find_target
from penstock.dialects.machine.parts import DATA
from penstock.lowering.to_c import emit_c
from penstock.passes.analysis.memory.memory_problems import ARENA, ScopePlan, plan_report
from penstock.passes.graph.patch import PatchPass
from penstock.passes.graph.patching.images import ImageSteps
from penstock.passes.graph.remat import GraphRematPass, limits
from penstock.passes.graph.values import graph_blocks
from penstock.passes.planning.patches import pareto
from penstock.passes.planning.problem import Problem, alive_at, peak
from penstock.runtime.compiler import LoadedProgram
from penstock.runtime.levels import level_of
from penstock.runtime.modelled import modelled_cycles
from penstock.runtime.pass_manager import run_passes
from penstock.runtime.pipeline import passes_for
from penstock.runtime.report import report_on

BEFORE = "graph-fuse"
"""Where chains are cut into patches; after it, what is computed again is chosen."""
_COPIES = "-copy-parts, -overwrite-operands"
IN_ORDER = f"default, {_COPIES}"
"""Without a choice of what is copied and what is written in place."""
AS_WRITTEN = f"default, -topological-sort, -order-ops, {_COPIES}"
"""Without a search of orders, either."""
_TRIES = 4
"""Limits of values that are tried."""
_TRIES_IN_PATCHES = 1
"""The same of a program in patches, which takes long to lower."""
_MOST_NAMED = 4
"""Buffers that are named of those alive at the peak."""


@dataclass(frozen=True)
class Fit:
    """A program as one pipeline lowers it."""

    pipeline: str | None
    """What makes it of the compiler's pipeline, as `-p` takes it; None for that as it is."""
    bytes: int
    """What it takes: the arena, and what operands are repacked to."""
    macs: int
    """Multiply-accumulates."""
    alive: tuple[str, ...]
    """The largest buffers of those that are alive at the peak of the arena, and what operands are repacked to."""
    cycles: int | None = None
    """Of one run, as modelled; None where that is not known."""

    def cost(self, *, timed: bool) -> int:
        """The cycles, or the multiply-accumulates beside ways that are not timed."""
        return self.cycles if timed and self.cycles is not None else self.macs

    def effort(self) -> str:
        """What a run computes, in words."""
        cycles = "" if self.cycles is None else f", {self.cycles:,} modelled cycles"
        return f"{self.macs:,} multiply-accumulates{cycles}"


def are_timed(fits: Iterable[Fit]) -> bool:
    """Whether the cycles of all are known, so that they are compared by them."""
    return all(each.cycles is not None for each in fits)


@dataclass(frozen=True)
class Technique:
    """What a program takes with all techniques up to one of them."""

    what: str
    fit: Fit


class Fitting:
    """
    The search for one program and a machine; the program stays as it is.

    Raises UserError as compiling does, and for a program that is not at the graph level.
    """

    def __init__(
        self, program: LoadedProgram, machine: str | None, machine_options: Mapping[str, object] | None = None
    ) -> None:
        if (level := level_of(program.module)) != "graph":
            notes = ["what may change is decided on the way from there: give the model"]
            raise UserError(f"a program at the {level} level does not fit otherwise", notes=notes)
        self._program, self._machine, self._options = program, machine, machine_options
        self._found: dict[int | None, Fit] = {}
        self._again: dict[tuple[int, int | None], Fit] = {}

    # what is searched

    def techniques(self) -> Iterator[Technique]:
        """Each technique with those before it, the last in its least memory, for as little work as that takes."""
        yield Technique("order of the model", self._finished(self._prepare(AS_WRITTEN), [], AS_WRITTEN))
        yield Technique("order of least peak", self._finished(self._prepare(IN_ORDER), [], IN_ORDER))
        yield Technique("places of copies", self.whole)
        if len(self._limits) > 1:
            yield Technique("patches", self._least())
        if (again := self._least_again(None)) is not None:
            yield Technique("or values computed again", again)
        if (images := self._best_limit()) is not None and (both := self._least_again(images)) is not None:
            yield Technique("patches and values computed again", both)

    @property
    def whole(self) -> Fit:
        """Without patches."""
        return self.within_limit(None)

    def within(self, size: int) -> Fit:
        """
        The program in at most `size` bytes that takes fewest cycles, or computes least where they are not known.

        Raises UserError where none is found, with the least that was, and what is alive at its peak.
        """
        if self.whole.bytes <= size:
            return self.whole
        # Fewest patches first: what needs many is a long program. Images alone take the limit, so that begins there.
        first = next((at for at, limit in enumerate(self._limits) if limit is not None and limit <= size), 0)
        step, at = 1, first
        while at and self.within_limit(self._limits[at]).bytes > size and at + 1 < len(self._limits):
            at = min(at + step, len(self._limits) - 1)
            step *= 2
        self._bisect(size, at)
        self._bisect_values(size, None)
        if not self._fitting(size):
            self._least()
            if (images := self._best_limit()) is not None:
                self._bisect_values(size, images)
        if fitting := self._fitting(size):
            return min(fitting, key=lambda each: (self._cost(each), each.bytes))
        least = min(self._tried(), key=self._least_first)
        raise UserError(
            f"the program does not fit {size:,} bytes",
            loc=str(self._program.path),
            notes=[
                f"the least that was found is {least.bytes:,} bytes, for {least.effort()}"
                f" ({self.whole.bytes:,} bytes for {self.whole.effort()} without patches)",
                f"alive at its peak: {'; '.join(least.alive)}",
            ],
        )

    def room(self) -> tuple[str, int] | None:
        """The memory of the machine that holds data, and its bytes; None where its file says nothing of memories."""
        target = find_target(self._prepared.module)
        memories = () if target is None else target.memories()
        found = [each for each in memories if any(held.data == DATA for held in each.holds)]
        return (found[0].sym_name.data, found[0].bytes) if found else None

    # how it is searched

    def _least(self) -> Fit:
        """The least memory that patches reach, for as little work as that takes."""
        last = len(self._limits) - 1
        self.within_limit(self._limits[last])
        self._bisect(min(each.bytes for each in self._found.values()), last)
        return min(self._found.values(), key=self._least_first)

    def _fitting(self, size: int) -> list[Fit]:
        """What was tried and fits."""
        return [each for each in self._tried() if each.bytes <= size]

    def _tried(self) -> list[Fit]:
        return [*self._found.values(), *self._again.values()]

    def _cost(self, fit: Fit) -> int:
        """What is to be least, in one unit for all that were tried."""
        return fit.cost(timed=are_timed(self._tried()))

    def _least_first(self, fit: Fit) -> tuple[int, int]:
        return fit.bytes, self._cost(fit)

    def _best_limit(self) -> int | None:
        """The limit of images, of those tried, that takes least; None without patches."""
        return min(self._found, key=lambda limit: self._least_first(self._found[limit]))

    def _least_again(self, images: int | None) -> Fit | None:
        """The least memory of values that are computed again; None where none are, or no limit lowers them."""
        limits = self._limits_of_values(images)
        if limits is None:
            return None
        self._bisect_values(self.within_values(limits[0], images).bytes, images)
        return min((each for (_, at), each in self._again.items() if at == images), key=self._least_first)

    def _bisect_values(self, size: int, images: int | None) -> None:
        """Raise the limit of values as long as the program fits, if it does with the least."""
        limits = self._limits_of_values(images)
        if limits is None:
            return
        low, high = limits
        if self.within_values(low, images).bytes > size:
            return
        for _ in range(_TRIES if images is None else _TRIES_IN_PATCHES):
            middle = (low + high) // 2
            if self.within_values(middle, images).bytes <= size:
                low = middle
            else:
                high = middle

    def _bisect(self, size: int, high: int) -> None:
        """Lower, of the limits up to number `high`, the first with which the program fits, if none beyond fails."""
        low = 0
        while low < high:
            middle = (low + high) // 2
            if self.within_limit(self._limits[middle]).bytes <= size:
                high = middle
            else:
                low = middle + 1
        self.within_limit(self._limits[high])

    @cached_property
    def _limits(self) -> Sequence[int | None]:
        """The limits of images at which other patches are chosen; the first is none, and has no patches."""
        peaks, least = set[int](), 0
        for block in graph_blocks(self._prepared.module):
            problem = ImageSteps.of(block).problem()
            if problem.steps:
                plans = list(pareto(problem))
                peaks.update(plan.peak for plan in plans if any(chain.is_patched for chain in plan.chains))
                least = max(least, plans[-1].peak)  # a limit is one of every block
        return [None, *sorted((each for each in peaks if each >= least), reverse=True)]

    def within_limit(self, limit: int | None) -> Fit:
        """With patches whose images take at most `limit` bytes, or without patches."""
        if limit not in self._found:
            edits = None if limit is None else _edits(limit)
            self._found[limit] = self._finished(self._prepared, _patches(limit), edits)
        return self._found[limit]

    def _limits_of_values(self, images: int | None) -> tuple[int, int] | None:
        """
        The least limit of values that computing again meets, and the most that has an effect, of a program whose images
        are in patches of at most so many bytes, or whole; None without any.
        """
        module = self._prepared.module.clone()
        passes = [*_patches(images), self._prepared.rest[0]]
        run_passes(self._program.ctx, module, passes, verify_first=False, verify_each=False)
        found = [limits(block) for block in graph_blocks(module)]
        least, most = (max((each[place] for each in found), default=0) for place in (1, 0))
        return (least, most) if least < most else None

    def within_values(self, values: int, images: int | None = None) -> Fit:
        """With values that take at most `values` bytes, some computed again, of a program in patches or whole."""
        if (values, images) not in self._again:
            fused, *rest = self._prepared.rest
            prepared = _Prepared(self._prepared.module, [fused, GraphRematPass(limit=values), *rest])
            edits = f"{_edits(images)}, +{GraphRematPass.name}{{limit={values}}} after {BEFORE}"
            self._again[values, images] = self._finished(prepared, _patches(images), edits)
        return self._again[values, images]

    @cached_property
    def _prepared(self) -> _Prepared:
        return self._prepare(None)

    def _prepare(self, pipeline: str | None) -> _Prepared:
        module = self._program.module.clone()
        passes = passes_for(module, "loop", self._machine, pipeline, machine_options=self._options)
        at = [each.name for each in passes].index(BEFORE)
        run_passes(self._program.ctx, module, passes[:at], verify_each=False)
        return _Prepared(module, passes[at:])

    def _finished(self, prepared: _Prepared, before: Sequence[ModulePass], pipeline: str | None) -> Fit:
        module = prepared.module.clone()
        passes = (*before, *prepared.rest)
        run_passes(self._program.ctx, module, passes, verify_first=False, verify_each=False)
        source = emit_c(module)
        arena = next((plan for plan in plan_report(module) if plan.scope == ARENA), None)
        macs = report_on(module).macs or 0
        alive = () if arena is None else _alive(arena)
        if source.scratch_bytes:
            alive = (*alive, f"repacked operands {source.scratch_bytes:,}")
        return Fit(pipeline, source.arena_bytes + source.scratch_bytes, macs, alive, modelled_cycles(module))


@dataclass(frozen=True)
class _Prepared:
    """A program before chains are cut into patches, and the passes from there on."""

    module: ModuleOp
    rest: Sequence[ModulePass]


def _patches(limit: int | None) -> list[ModulePass]:
    """What computes images in patches that take at most so many bytes."""
    return [] if limit is None else [PatchPass(limit=limit)]


def _edits(limit: int | None) -> str:
    """The pipeline with it."""
    return "default" if limit is None else f"default, +{PatchPass.name}{{limit={limit}}} before {BEFORE}"


def _alive(plan: ScopePlan) -> tuple[str, ...]:
    """The largest buffers at the peak of a plan, in words."""
    problem = Problem(tuple(each.as_buffer for each in plan.buffers))
    found = sorted(alive_at(problem, peak(problem)[0]), key=lambda each: (-each.size, each.id))
    named = [f"{each.id} {each.size:,}" for each in found[:_MOST_NAMED]]
    return (*named, f"{len(found) - len(named)} more") if len(found) > len(named) else tuple(named)
