# SPDX-License-Identifier: Apache-2.0
"""OnSRAM's eager strategy: hold or discard each output as the program runs, by what became of those like it before."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from penstock.passes.planning.on_chip.problem import OnChipAllocation, OnChipProblem, ResidentRun, Tensor, counted
from penstock.passes.planning.on_chip.registry import Options
from penstock.passes.planning.on_chip.selection import forced, saved, stretches, unconstrained_bytes
from penstock.passes.planning.problem import PlanError, first_gap

OutputKind = tuple[str, tuple[str, ...]]
"""What made an output and its shape, and the same of the outputs before it."""

REMEMBERED = 3
"""Outputs before one that belong to its key."""


@dataclass(frozen=True)
class Experience:
    """What became of an output."""

    reads: int
    distance: int
    """Steps from its making to its last read."""
    worth: int
    """Bytes that keeping it all that time would have saved."""


UNKNOWN = Experience(1, 1, 1)
"""What is expected of an output that is the first of its kind: that the next operator reads it."""


@dataclass
class _Held:
    """A tensor on chip."""

    offset: int
    first: int
    last: int
    """Of its accesses, the first and the latest in this run."""
    expected: Experience
    made: int
    reads: int = 0


@dataclass
class _Execution:
    """One run of the program, from its first step to its last. It knows what was, and at each step what is there."""

    problem: OnChipProblem
    table: dict[OutputKind, Experience]
    held: dict[int, _Held] = field(default_factory=dict[int, _Held])
    """By the number of the tensor."""
    runs: list[tuple[int, ResidentRun]] = field(default_factory=list[tuple[int, ResidentRun]])
    blocks: dict[int, int] = field(default_factory=dict[int, int])

    def run(self) -> OnChipAllocation:
        """Execute all steps, and remember."""
        problem = self.problem
        at: list[list[tuple[int, int]]] = [[] for _ in range(problem.steps)]
        for number, tensor in enumerate(problem.tensors):
            for index, access in enumerate(tensor.accesses):
                at[access.step].append((number, index))
        before: tuple[str, ...] = ()
        keys: dict[int, OutputKind] = {}
        for step, accesses in enumerate(at):
            for number, index in accesses:
                tensor = problem.tensors[number]
                if index == 0 and not tensor.source:
                    keys[number] = (tensor.kind, before)
                    before = (*before, tensor.kind)[-REMEMBERED:]
            self._step(step, dict(accesses), keys)
            for number, index in accesses:
                tensor = problem.tensors[number]
                if index == len(tensor.accesses) - 1:
                    # It is not used any more.
                    self._discard(number)
                    if number in keys:
                        self.table[keys[number]] = _experience(tensor)
                elif (held := self.held.get(number)) is not None:
                    if number not in keys or held.reads >= held.expected.reads:
                        self._discard(number)
        runs = tuple(run for _, run in sorted(self.runs, key=lambda each: (each[0], each[1].first)))
        return counted(problem, OnChipAllocation(runs, self.blocks, bound=unconstrained_bytes(problem)))

    def _discard(self, number: int) -> None:
        if (held := self.held.pop(number, None)) is not None:
            self.runs.append((number, ResidentRun(self.problem.tensors[number].id, held.first, held.last, held.offset)))

    def _step(self, step: int, accesses: Mapping[int, int], keys: Mapping[int, OutputKind]) -> None:
        """Decide where what a step accesses is taken from, and what makes way for it."""
        problem = self.problem
        found: set[int] = set()
        needed: set[int] = set()
        wanted: set[int] = set()
        for number, index in accesses.items():
            tensor = problem.tensors[number]
            access = tensor.accesses[index]
            if number in self.held and not access.may_reside:
                self._discard(number)
            if number in self.held:
                found.add(number)
            elif not access.may_stream:
                needed.add(number)
            elif index == 0 and number in keys and access.may_reside:
                expected = self.table.get(keys[number], UNKNOWN)
                if expected.reads and expected.worth > 0 and len(tensor.accesses) > 1:
                    wanted.add(number)
        nothing = set[int]()
        streamable = {
            number for number, index in accesses.items() if problem.tensors[number].accesses[index].may_stream
        }
        less = {number for number in streamable if self._takes_less(number, accesses[number])}
        for stay, come, hoped in (
            (found, needed, wanted),
            (found, needed, nothing),
            (found - streamable, needed, nothing),
            (found - streamable | found & less, needed | less - found, nothing),
        ):
            if self._settle(step, accesses, keys, stay, come, hoped):
                return
        raise PlanError(f"step {step}: what has to be on chip does not fit")

    def _takes_less(self, number: int, index: int) -> bool:
        """Whether a tensor may be on chip at an access and takes less there than is staged of it."""
        tensor = self.problem.tensors[number]
        return tensor.accesses[index].may_reside and tensor.size < tensor.accesses[index].staging

    def _settle(
        self,
        step: int,
        accesses: Mapping[int, int],
        keys: Mapping[int, OutputKind],
        stay: AbstractSet[int],
        needed: AbstractSet[int],
        hoped: AbstractSet[int],
    ) -> bool:
        """Let these tensors stay or come, if there is room; others make way, the least promising first."""
        problem, come = self.problem, needed | hoped
        block = problem.workspace[step] if step < len(problem.workspace) else 0
        for number, index in accesses.items():
            if number not in stay and number not in come:
                block += problem.tensors[number].accesses[index].staging
        gone = {number for number in accesses if number in self.held and number not in stay}
        promises = {number: self._promise(number, step) for number in self.held if number not in accesses}
        rivals = sorted(promises, key=lambda number: (promises[number], number))
        if hoped - needed:
            # For something that is only hoped for, nothing makes way that promises more.
            most = max(_rate(self._expected(number, keys), problem.tensors[number]) for number in come)
            rivals = [number for number in rivals if promises[number] < most]
        while (places := self._places(come, block, gone)) is None:
            if not rivals:
                return False
            gone.add(rivals.pop(0))
        for number in sorted(gone):
            self._discard(number)
        for number in stay:
            self.held[number].last = accesses[number]
            self.held[number].reads += 1
        for number, offset in zip(sorted(come), places, strict=False):
            index = accesses[number]
            self.held[number] = _Held(offset, index, index, self._expected(number, keys), step)
        if block:
            self.blocks[step] = places[-1]
        return True

    def _expected(self, number: int, keys: Mapping[int, OutputKind]) -> Experience:
        return self.table.get(keys[number], UNKNOWN) if number in keys else UNKNOWN

    def _promise(self, number: int, step: int) -> float:
        """Bytes that a tensor is still expected to save, a byte and step that it still takes."""
        held, tensor = self.held[number], self.problem.tensors[number]
        expected = held.expected
        left = max(held.made + expected.distance - step, 1)
        share = (expected.reads - held.reads) / expected.reads if expected.reads else 0.0
        return share * _worth(expected, tensor) / (max(tensor.size, 1) * left)

    def _places(self, come: AbstractSet[int], block: int, gone: AbstractSet[int]) -> list[int] | None:
        """Offsets of the new tensors, in the order of their numbers, and of the block, if there is one; or None."""
        problem = self.problem
        taken = [
            (held.offset, held.offset + problem.tensors[number].size)
            for number, held in self.held.items()
            if number not in gone
        ]
        sizes = [(problem.tensors[number].size, problem.tensors[number].alignment) for number in sorted(come)]
        if block:
            sizes.append((block, problem.workspace_alignment))
        places: list[int] = []
        for size, alignment in sizes:
            offset = first_gap(taken, size, alignment)
            if offset + size > problem.capacity:
                return None
            places.append(offset)
            taken.append((offset, offset + size))
        return places


def _experience(tensor: Tensor) -> Experience:
    """What became of an output after its last use."""
    longest = next((span for span in stretches(tensor) if span[0] == 0), None)
    worth = 0 if longest is None else saved(tensor, forced(tensor), longest)
    return Experience(len(tensor.accesses) - 1, tensor.accesses[-1].step - tensor.accesses[0].step, worth)


def _worth(expected: Experience, tensor: Tensor) -> int:
    return tensor.moved if expected is UNKNOWN else expected.worth


def _rate(expected: Experience, tensor: Tensor) -> float:
    return _worth(expected, tensor) / (max(tensor.size, 1) * max(expected.distance, 1))


def onsram_eager(problem: OnChipProblem, options: Options) -> OnChipAllocation:
    """
    Decide in the order of execution, without looking ahead, from a table of what was.

    When an operator makes an output, it is held if the table expects it to be read again and there is a place, for
    which less promising ones make way; else it goes off chip. The table knows outputs by what made them, their shape,
    and what was made before, and says how often and how long after those like it were read. What is the first of its
    kind is held for the next operator. What is discarded too early is written back and read from off chip; it is
    discarded after as many reads as expected, or after its last use. Inputs and weights are not held.

    The answer is that of run number `iterations` of the program. Ours in detail; see Pal et al., "OnSRAM", ACM TECS
    2022. The offsets are those of first fit as the program runs: no planner is used. Raises PlanError where what has
    to be on chip does not fit.
    """
    table: dict[OutputKind, Experience] = {}
    found = _Execution(problem, table).run()
    for _ in range(options.iterations - 1):
        found = _Execution(problem, table).run()
    return found
