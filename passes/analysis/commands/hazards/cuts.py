"""Loops that are gone through in part, and the commands of a program by the rounds that issued them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from xdsl.dialects import func, scf
from xdsl.ir import Operation

from penstock.passes.analysis.commands.hazards.far import UndecidedError
from penstock.passes.analysis.commands.hazards.steady import Steady
from penstock.passes.analysis.commands.program import Program
from penstock.passes.analysis.commands.trace import Rounds
from penstock.passes.analysis.loops import loops_around, trip_count


@dataclass(frozen=True)
class Cut:
    """Which rounds of a loop are gone through: the first `head` and the last `tail`."""

    steady: Steady
    head: int
    tail: int

    @staticmethod
    def of(steady: Steady, more: int) -> Cut | None:
        """A loop with rounds left out; `more` are kept beyond what is needed at least. None if none can be."""
        period, tail = steady.period, max(steady.last, steady.period)
        alike = max(steady.first, steady.depth + 1)
        head = alike + 2 * period + max(steady.depth + 2, period) + more
        head += (steady.trips - head - tail) % period
        return Cut(steady, head, tail) if steady.trips - head - tail >= period else None

    @property
    def alike(self) -> int:
        """The first round from which on rounds lie alike, in addresses and tokens."""
        return max(self.steady.first, self.steady.depth + 1)

    @property
    def settled(self) -> int:
        """The rounds from `alike` to before this one stand for all later ones, but for those near the end."""
        return self.alike + self.steady.period

    @property
    def far(self) -> int:
        """The rounds from this one to before `head` stand for all later ones, seen from what was long before."""
        return self.head - self.steady.period

    @property
    def periods(self) -> int:
        """How many periods are left out."""
        return (self.steady.trips - self.head - self.tail) // self.steady.period

    def position(self, round: int) -> int:
        """Which of the rounds that are gone through it is."""
        return round if round < self.head else round - (self.steady.trips - self.head - self.tail)


Cuts = Mapping[Operation, Cut]


def commands_of(function: func.FuncOp, cuts: Cuts | None = None) -> int:
    """How many ops of the accelerator level a kernel goes through, if loops are cut; those not static count once."""
    total = 0
    for op in function.walk():
        if op.name.startswith("accel."):
            count = 1
            for loop in loops_around(op):
                cut = None if cuts is None else cuts.get(loop)
                count *= (trip_count(loop) or 1) if cut is None else cut.head + cut.tail
            total += count
    return total


def rounds_of(cuts: Cuts) -> Rounds:
    """What `trace` asks for."""

    def rounds(loop: scf.ForOp, count: int, counters: tuple[int, ...]) -> Iterator[int]:
        cut = cuts.get(loop)
        if cut is None:
            yield from range(count)
        else:
            yield from range(cut.head)
            yield from range(count - cut.tail, count)

    return rounds


@dataclass
class Passage:
    """One time that a cut loop is gone through: the first command of each round, and the first one behind it."""

    cut: Cut
    starts: list[int]
    end: int = 0


@dataclass
class _Open:
    loop: scf.ForOp
    counters: tuple[int, ...]
    passage: Passage | None


def passages(program: Program, cuts: Cuts) -> Iterator[Passage]:
    """Each time that a cut loop is gone through."""
    around: dict[Operation, tuple[scf.ForOp, ...]] = {}
    stack: list[_Open] = []

    def close(depth: int, number: int) -> Iterator[Passage]:
        for each in reversed(stack[depth:]):
            if each.passage is not None:
                each.passage.end = number
                yield each.passage
        del stack[depth:]

    for number, command in enumerate(program.commands):
        if command.op is None:
            raise UndecidedError
        loops = around.get(command.op)
        if loops is None:
            loops = around[command.op] = loops_around(command.op)
        same = 0
        for depth, (each, loop) in enumerate(zip(stack, loops, strict=False)):
            if each.loop is not loop or each.counters[:depth] != command.counters[:depth]:
                break
            same = depth + 1
        yield from close(same, number)
        for depth, loop in enumerate(loops):
            if depth == len(stack):
                cut = cuts.get(loop)
                stack.append(_Open(loop, (), None if cut is None else Passage(cut, [])))
            each = stack[depth]
            if each.counters != command.counters[: depth + 1]:
                each.counters = command.counters[: depth + 1]
                if each.passage is not None:
                    each.passage.starts.append(number)
    yield from close(0, len(program.commands))
