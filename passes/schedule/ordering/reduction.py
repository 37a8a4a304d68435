# SPDX-License-Identifier: Apache-2.0
"""
Which tokens are needed: two transitive reductions on a bounded unrolling of the kernel.

All paths between two commands lie between them in program order, and loops do the same in every iteration, so a few
iterations of each loop show all there is: at least two more than a ring has slots, and as many beyond whole turns of it
as there really are. Kernels whose unrolling is too long keep what they have.

1. `reduce`: of the dependences, those that no other path of happens-before implies, every time, need a token.
2. `leave_out`, once the tokens are in: a token that one command needs may be carried to others, or further, for
   nothing: an outer loop or another path has seen to their order. By path, each command keeps the operands by which
   tokens reach it that nothing else implies; all other operands are left out. No order changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import lcm, prod

from xdsl.dialects import func, scf
from xdsl.ir import Block, Operation, SSAValue

from penstock.dialects.accel import BarrierOp, ReadyOp, TokenType
from penstock.dialects.mem import RingOp
from penstock.passes.analysis.commands.happens_before import Clock, HappensBefore
from penstock.passes.analysis.commands.program import CommandOp
from penstock.passes.schedule.ordering.accesses import CommandInfo, trips_of
from penstock.passes.schedule.ordering.conflicts import Dependence, ring_steps

MIN_ITERATIONS = 3
"""The first iteration, one that follows another, and one that has both before it."""
MAX_COMMANDS = 40_000
"""Commands in an unrolling; a kernel that needs more keeps all its dependences."""

Steps = Mapping[RingOp, Mapping[Block, int]]
"""By how many slots of a ring each loop moves on in an iteration."""


@dataclass(frozen=True)
class Source:
    """
    What tokens are kept of: a command (all its iterations, or its last), or a command for each slot of a ring, which it
    accesses at this turn.
    """

    command: CommandInfo
    ring: RingOp | None = None
    turn: int = 0
    only_last: bool = False

    @staticmethod
    def of(dependence: Dependence) -> Source:
        return Source(dependence.source, dependence.ring, dependence.source_turn, dependence.only_last)


@dataclass
class Findings:
    """What the unrolling has shown."""

    needed: dict[Dependence, None]
    """The dependences that need a token, in order."""
    renewed: dict[Source, Block | CommandOp | None]
    """
    Of sources that may be in flight more than once: where their earlier iterations are certainly complete, so that
    tokens are collected anew. In each iteration of the loop with this body, at the command itself, or nowhere (None).
    """
    steps: Steps


class _Unrolling:
    """Commands of a kernel in program order, some iterations of each loop, and what happens before them."""

    def __init__(self, commands: Sequence[CommandInfo], iterations: Mapping[Block, int]):
        self.infos: Mapping[Operation, CommandInfo] = {info.op: info for info in commands}
        self.iterations = iterations
        self.relation = HappensBefore(dict.fromkeys(info.unit for info in commands))
        self._count = 0
        self._steps: dict[Block, list[Callable[[], None]]] = {}
        """Of each block what its ops do."""

    def run(self, block: Block) -> None:
        """Execute the ops of a block."""
        if block not in self._steps:
            self._steps[block] = [step for op in block.ops if (step := self._step(op)) is not None]
        for step in self._steps[block]:
            step()

    def _step(self, op: Operation) -> Callable[[], None] | None:
        match op:
            case scf.ForOp():
                return partial(self.loop, op)
            case BarrierOp():
                return self.relation.barrier
            case ReadyOp():
                return partial(self.ready, op)
            case _:
                return partial(self.command, self.infos[op]) if isinstance(op, CommandOp) else None

    def loop(self, loop: scf.ForOp) -> None:
        """Execute a loop."""
        raise NotImplementedError

    def ready(self, op: ReadyOp) -> None:
        """Execute a join of tokens."""

    def command(self, info: CommandInfo) -> None:
        """Issue a command."""
        raise NotImplementedError

    def issue(self, info: CommandInfo, candidates: Iterable[int]) -> tuple[int, list[int], Clock]:
        """A command that waits for `candidates`: its number, those of them that are essential, what is complete."""
        clock = self.relation.before(info.unit, alone=info.alone)
        essential, clock = self.relation.essential(clock, candidates)
        number = self._count
        self._count += 1
        self.relation.start(number, info.unit, clock, executes=not info.transfers)
        return number, essential, clock


class _DependenceUnrolling(_Unrolling):
    """Every dependence is waited for."""

    def __init__(
        self,
        commands: Sequence[CommandInfo],
        dependences: Sequence[Dependence],
        in_order: frozenset[str],
        steps: Steps,
        iterations: Mapping[Block, int],
    ):
        super().__init__(commands, iterations)
        self.in_order, self.steps = in_order, steps
        self.counters: dict[Block, int] = {}
        self.issued: dict[Source, list[tuple[int, ...]]] = {}
        """The commands issued of each source, in each slot; without those that happen before a later one of it."""
        self.at_start: dict[Block, dict[Source, list[tuple[int, ...]]]] = {}
        """The same at the start of the current iteration, of the sources in the loop."""
        self.essential: dict[tuple[Dependence, ...], None] = {}
        """The dependences of which one must have a token."""
        self.incomplete: dict[Source, set[Block | CommandOp]] = {}
        """Where, at least once, an earlier iteration was not certainly complete."""
        self.into: dict[CommandInfo, list[Dependence]] = {}
        for each in dependences:
            self.into.setdefault(each.sink, []).append(each)
            self.issued[Source.of(each)] = [()] * (each.ring.slot_count if each.ring is not None else 1)
        self.of: dict[CommandInfo, list[Source]] = {}
        self.inside: dict[Block, list[Source]] = {}
        for source in self.issued:
            self.of.setdefault(source.command, []).append(source)
            for loop in source.command.loops:
                self.inside.setdefault(loop, []).append(source)

    def loop(self, loop: scf.ForOp) -> None:
        body = loop.body.block
        for number in range(self.iterations[body]):
            self.counters[body] = number
            self.at_start[body] = {source: list(self.issued[source]) for source in self.inside.get(body, ())}
            self.run(body)

    def command(self, info: CommandInfo) -> None:
        waits = [(each, self._sources(each)) for each in self.into.get(info, ())]
        issued, essential, clock = self.issue(info, [number for _, numbers in waits for number in numbers])
        for number in essential:
            self.essential[tuple(each for each, numbers in waits if number in numbers)] = None
        for source in self.of.get(info, ()):
            slots, slot = self.issued[source], self._slot(info, source.ring, source.turn)
            if info.unit in self.in_order or source.only_last:
                slots[slot] = (issued,)
                continue
            late = self.incomplete.setdefault(source, set())
            left = self._incomplete(slots[slot], clock)
            if left:
                late.add(info.op)
            late.update(loop for loop in info.loops if self._incomplete(self.at_start[loop][source][slot], clock))
            slots[slot] = (*left, issued)

    def _incomplete(self, numbers: Iterable[int], clock: Clock) -> list[int]:
        return [number for number in numbers if not self.relation.is_complete(number, clock)]

    def _sources(self, each: Dependence) -> tuple[int, ...]:
        slot = self._slot(each.sink, each.ring, each.sink_turn)
        return (self.at_start[each.since] if each.since is not None else self.issued)[Source.of(each)][slot]

    def _slot(self, info: CommandInfo, ring: RingOp | None, turn: int) -> int:
        if ring is None:
            return 0
        steps = self.steps[ring]
        return (turn + sum(steps[loop] * self.counters[loop] for loop in info.loops)) % ring.slot_count


def reduce(
    function: func.FuncOp,
    commands: Sequence[CommandInfo],
    dependences: Sequence[Dependence],
    in_order: frozenset[str],
) -> Findings:
    """Leave out the dependences that others imply."""
    steps: dict[RingOp, Mapping[Block, int]] = {}
    for ring in dict.fromkeys(each.ring for each in dependences if each.ring is not None):
        found = ring_steps(ring, commands)
        assert found is not None
        steps[ring] = found
    iterations = _iterations(function, commands, steps)
    if iterations is None:
        return Findings(dict.fromkeys(dependences), {}, steps)
    unrolling = _DependenceUnrolling(commands, dependences, in_order, steps, iterations)
    unrolling.run(function.body.block)
    renewed: dict[Source, Block | CommandOp | None] = {}
    for source, late in unrolling.incomplete.items():
        renewed[source] = next((scope for scope in _scopes(source, steps) if scope not in late), None)
    return Findings(_choose(unrolling.essential, dependences), renewed, steps)


def _choose(
    essential: Mapping[tuple[Dependence, ...], None], dependences: Sequence[Dependence]
) -> dict[Dependence, None]:
    """Few dependences of which one is in each of the tuples."""
    chosen: set[Dependence] = set()
    for ways in sorted(essential, key=len):
        if not chosen.intersection(ways):
            chosen.add(ways[0])
    return {each: None for each in dependences if each in chosen}


def _scopes(source: Source, steps: Steps) -> Iterator[Block | CommandOp]:
    yield source.command.op
    inner: list[Block] = []
    for loop in reversed(source.command.loops):
        # One slot is collected anew: all iterations within must access the same.
        if source.ring is None or not any(steps[source.ring][each] for each in inner):
            yield loop
        inner.append(loop)


def _iterations(function: func.FuncOp, commands: Sequence[CommandInfo], steps: Steps) -> dict[Block, int] | None:
    """How many iterations of each loop are unrolled; None where a trip count is not known, or that is too long."""
    depths: dict[Block, int] = {}
    for ring, loops in steps.items():
        for loop, step in loops.items():
            if step:
                depths[loop] = lcm(depths.get(loop, 1), ring.slot_count)
    found: dict[Block, int] = {}
    for op in function.walk():
        if isinstance(op, scf.ForOp):
            body = op.body.block
            trips = trips_of(body)
            if trips is None:
                return None
            turn = depths.get(body, 1)
            least = turn + 2 if turn > 1 else MIN_ITERATIONS
            found[body] = trips if trips <= least else least + (trips - least) % turn
    return None if sum(prod(found[loop] for loop in info.loops) for info in commands) > MAX_COMMANDS else found


TokenOperand = tuple[Operation, int]
"""An operand of an op by its number."""


@dataclass(frozen=True, eq=False)
class _Reaching:
    """What one token stands for when it is executed."""

    commands: tuple[int, ...]
    """Without those that others imply."""
    parts: tuple[tuple[TokenOperand, _Reaching], ...] = ()
    """What it was made of, each by the operand that it came by; nothing for that of a command."""


def leave_out(function: func.FuncOp, commands: Sequence[CommandInfo], steps: Steps, completed: SSAValue) -> None:
    """Put `completed`, the completed token, in the place of each token operand of a kernel that implies nothing."""
    iterations = _iterations(function, commands, steps)
    if iterations is None:
        return
    unrolling = _TokenUnrolling(commands, iterations)
    unrolling.run(function.body.block)
    needed = _operands_needed(unrolling.needs)
    for op in function.walk():
        for number, value in enumerate(op.operands):
            if isinstance(value.type, TokenType) and (op, number) not in needed:
                op.operands[number] = completed


class _TokenUnrolling(_Unrolling):
    """Tokens are waited for, and traced to the operands by which they came."""

    def __init__(self, commands: Sequence[CommandInfo], iterations: Mapping[Block, int]):
        super().__init__(commands, iterations)
        self.values: dict[SSAValue, _Reaching] = {}
        self.needs: list[tuple[_Reaching, int]] = []
        """What a command waits for, and the number of a command that only this implies."""

    def loop(self, loop: scf.ForOp) -> None:
        body = loop.body.block
        carried = [n for n, value in enumerate(loop.iter_args) if isinstance(value.type, TokenType)]
        now = [self._by(loop, 3 + number) for number in carried]
        terminator = body.last_op
        assert terminator is not None
        for _ in range(self.iterations[body]):
            for number, token in zip(carried, now, strict=True):
                self.values[body.args[1 + number]] = token
            self.run(body)
            now = [self._by(terminator, number) for number in carried]
        for number, token in zip(carried, now, strict=True):
            self.values[loop.results[number]] = token

    def ready(self, op: ReadyOp) -> None:
        self.values[op.token] = self._all(op)

    def command(self, info: CommandInfo) -> None:
        token = self._all(info.op)
        number, essential, _ = self.issue(info, token.commands)
        self.needs += [(token, each) for each in essential]
        self.values[info.op.token] = _Reaching((number,))

    def _by(self, op: Operation, number: int) -> _Reaching:
        token = self.values[op.operands[number]]
        return _Reaching(token.commands, (((op, number), token),))

    def _all(self, op: Operation) -> _Reaching:
        parts = tuple(
            ((op, number), self.values[value])
            for number, value in enumerate(op.operands)
            if isinstance(value.type, TokenType)
        )
        commands = parts[0][1].commands if parts else ()
        if len(parts) > 1:
            union = [number for _, token in parts for number in token.commands]
            commands = tuple(self.relation.essential(self.relation.nothing, union)[0])
        return _Reaching(commands, parts)


def _operands_needed(needs: Sequence[tuple[_Reaching, int]]) -> set[TokenOperand]:
    """The operands by which commands got there that a command needs; of several ways those that serve others, too."""
    needed: set[TokenOperand] = set()
    seen: set[tuple[_Reaching, int]] = set()
    pending = list(needs)
    open: list[tuple[int, list[tuple[TokenOperand, _Reaching]]]] = []
    while pending or open:
        if pending:
            token, command = pending.pop()
            if (token, command) in seen:
                continue
            seen.add((token, command))
            ways = [part for part in token.parts if command in part[1].commands]
            if len(ways) > 1:
                open.append((command, ways))
                continue
        else:
            command, ways = open.pop(0)
        if ways:
            operand, part = next((way for way in ways if way[0] in needed), ways[0])
            needed.add(operand)
            pending.append((part, command))
    return needed
