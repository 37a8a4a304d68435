"""
What commands in flight keep alive.

A command (`accel.dma`, `accel.exec`) accesses its memrefs from its issue until it is certainly complete. For an op X
that comes later in program order a command C is complete before X

- if an `accel.barrier` stands between them on every path, or an `accel.wait` for a token that completes after C, or
- if X is a command or `accel.ready` that comes `after` such a token, or
- if X is a command of a unit, and C was complete when an earlier one of that unit started, is one of them and X starts
  alone (it executes, or its engine has one transfer outstanding), or executes itself; or before such an earlier one.

A token completes after a command's own, and after all that its command or `accel.ready` comes after, transitively; what
control flow hands on as one value, such as the token that a loop carries, completes after C only if it does so
whichever way it came. C stands for all times that it has been issued so far, of which the last and those before it are
told apart, and those since a loop around it began: a token from an earlier iteration of a loop says nothing about the C
of this iteration, but joined to that of the C of this iteration it speaks for all. The order of units is known where
the machine is in the module; order by queues is not seen.

A buffer A that C accesses is kept alive from C to every later X for which C is not complete, if X accesses bytes
that may be A's and belong to another buffer, and one of both writes. They may be A's if the other buffer is in the
same scope and one of the two has no place yet, or their places overlap. A plan in which tokens order what shares
bytes is thus valid as it is, and one in which they do not is not; and before there is a plan, a buffer keeps off
every other that is accessed by something that nothing orders after its last access.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects import func, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from penstock.dialects.accel import BarrierOp, DmaOp, ExecOp, ReadyOp, TokenType, WaitOp
from penstock.dialects.machine import find_target
from penstock.dialects.mem import BufferOp, RingOp, scope_of
from penstock.passes.analysis.memory.aliases import Aliases, bits
from penstock.passes.analysis.memory.effects import Effect
from penstock.passes.analysis.memory.graph import BasicBlock, FlowGraph


@dataclass(frozen=True)
class _Unit:
    """A unit as a command meets it, and what its earlier commands mean to who comes later, as if they were tokens."""

    name: str
    alone: bool
    """Whether the command starts only when all earlier ones of the unit are complete."""
    executes: bool
    """Whether no later one of the unit starts before it is complete."""

    @property
    def started(self) -> str:
        """Happens when the last command starts."""
        return f"{self.name} started"

    @property
    def all(self) -> str:
        """Happens when all commands are complete."""
        return f"{self.name} all"

    @property
    def executed(self) -> str:
        """Happens when all that execute are complete."""
        return f"{self.name} executed"

    @property
    def waited_for(self) -> tuple[str, str]:
        """What has happened when the command starts."""
        return self.started, self.all if self.alone else self.executed

    @property
    def events(self) -> tuple[str, str, str]:
        return self.started, self.all, self.executed


_Event = SSAValue | str
"""A token, or what happens in a unit."""


@dataclass
class _State:
    """
    At one point the commands that may not be complete: for the host, and for who waits for a token; see `Generations`.
    """

    pending: int = 0
    beside: dict[_Event, int] = field(default_factory=dict[_Event, int])
    """For each token the commands that may not be complete though it is."""

    def left(self, tokens: tuple[_Event, ...]) -> int:
        """The commands that may not be complete for who comes after `tokens`."""
        found = self.pending
        for token in tokens:
            found &= self.beside.get(token, found)
        return found


@dataclass(frozen=True)
class Kept:
    """What is in flight around a node: roots that a later op needs to be left alone, and roots in flight at all."""

    needed: dict[Operation, int]
    """For each node that may run beside a command in flight the roots that this command accesses."""
    before: dict[Operation, int]
    """For each node the roots, of those that are needed anywhere, that commands in flight access before it."""
    after: dict[Operation, int]


def _waited_for(op: Operation) -> tuple[SSAValue, ...]:
    if isinstance(op, DmaOp | ExecOp | ReadyOp):
        return tuple(op.dependencies)
    return tuple(op.tokens) if isinstance(op, WaitOp) else ()


class InFlight:
    """The commands of a function, and what orders them."""

    def __init__(self, graph: FlowGraph, aliases: Aliases, effects: Mapping[Operation, Effect]):
        self._graph = graph
        self._effects = effects
        commands = [op for op in graph.nodes() if isinstance(op, DmaOp | ExecOp)]
        self._number = {op: number for number, op in enumerate(commands)}
        self._times = Generations(commands)
        self._units = _units(commands)
        count = len(aliases.roots)
        self._access, self._write = [0] * count, [0] * count
        for op, number in self._number.items():
            for root in bits(effects[op].touches):
                self._access[root] |= self._times.every(number)
            for root in bits(effects[op].writes):
                self._write[root] |= self._times.every(number)
        self._sharing = _sharing(aliases) if commands else []
        self._crossing, self._last_use = self._token_uses()

    def kept(self) -> Kept | None:
        """What commands in flight keep alive; None if there are none."""
        if not self._number:
            return None
        states = self._solve()
        needed: dict[Operation, int] = {}
        pending: dict[Operation, tuple[int, int]] = {}
        for block in self._graph.blocks:
            state = _copy(states[block.number])
            for op in block.nodes:
                if found := self._beside(op, state):
                    needed[op] = found
                before = state.pending
                self._step(op, state)
                pending[op] = before, state.pending
        anywhere = 0
        for found in needed.values():
            anywhere |= found
        return Kept(
            needed,
            {op: self._accessed(anywhere, before) for op, (before, _) in pending.items()},
            {op: self._accessed(anywhere, after) for op, (_, after) in pending.items()},
        )

    def _waited_for(self, op: Operation) -> tuple[_Event, ...]:
        unit = self._units.get(op)
        return _waited_for(op) if unit is None else (*_waited_for(op), *unit.waited_for)

    def _accessed(self, roots: int, commands: int) -> int:
        return sum(1 << root for root in bits(roots) if self._access[root] & commands)

    def _beside(self, op: Operation, state: _State) -> int:
        """The roots whose bytes `op` may touch by another name while a command that accesses them is in flight."""
        effect = self._effects[op]
        if not effect.touches or not state.pending:
            return 0
        written = read = 0
        for root in bits(effect.writes):
            written |= self._sharing[root]
        for root in bits(effect.reads):
            read |= self._sharing[root]
        if not written | read:
            return 0
        left = state.left(self._waited_for(op))
        found = 0
        for root in bits(written | read):
            commands = self._access[root] if written >> root & 1 else self._write[root]
            if commands & left:
                found |= 1 << root
        return found

    # the state from point to point

    def _token_uses(self) -> tuple[set[SSAValue], dict[SSAValue, Operation]]:
        """The tokens that are used in other basic blocks than their own, and of the others the last use."""
        block_of = {op: block for block in self._graph.blocks for op in block.nodes}
        crossing: set[SSAValue] = {value for edge in self._graph.edges() for value, _ in edge.handed}
        last: dict[SSAValue, Operation] = {}
        for block in self._graph.blocks:
            for op in block.nodes:
                for token in _waited_for(op):
                    if not isinstance(token.owner, Operation) or block_of.get(token.owner) is not block:
                        crossing.add(token)
                    last[token] = op
        return crossing, last

    def _solve(self) -> list[_State]:
        """The state at the start of each block."""
        blocks = self._graph.blocks
        into = [_State() for _ in blocks]
        out: list[_State | None] = [None] * len(blocks)
        into[self._graph.entry.number].beside = {event: 0 for unit in self._units.values() for event in unit.events}
        waiting, queued = [self._graph.entry], {self._graph.entry.number}
        while waiting:
            block = waiting.pop()
            queued.discard(block.number)
            self._enter(block, into, out)
            state = _copy(into[block.number])
            for op in block.nodes:
                self._step(op, state)
            # What no other block needs is forgotten.
            state.beside = {token: found for token, found in state.beside.items() if self._is_needed(token)}
            if state != out[block.number]:
                out[block.number] = state
                for edge in block.edges:
                    if edge.target.number not in queued:
                        queued.add(edge.target.number)
                        waiting.append(edge.target)
        return into

    def _is_needed(self, event: _Event) -> bool:
        return isinstance(event, str) or event in self._crossing

    def _enter(self, block: BasicBlock, into: list[_State], out: list[_State | None]) -> None:
        state = into[block.number]
        for edge in block.entering:
            source = out[edge.source.number]
            if source is None:
                continue
            state.pending |= source.pending
            renamed = {name for _, name in edge.handed}
            for token, found in source.beside.items():
                if token not in renamed:
                    state.beside[token] = state.beside.get(token, 0) | found
            for value, name in edge.handed:
                if isinstance(name.type, TokenType):
                    found = source.beside.get(value, source.pending)
                    state.beside[name] = state.beside.get(name, 0) | found

    def _ended(self, op: DmaOp | ExecOp, state: _State, left: int) -> dict[_Event, int]:
        """What is beside the events of the unit of `op` from its issue on; `left` may not be complete as it starts."""
        unit, number = self._units.get(op), self._number[op]
        if unit is None:
            return {}
        ended: dict[_Event, int] = {
            unit.started: self._times.aged(left, number) | self._times.now(number),
            unit.all: self._times.aged(state.left((unit.all,)) & left, number),
        }
        if unit.executes:
            ended[unit.executed] = self._times.aged(state.left((unit.executed,)) & left, number)
        return ended

    def _step(self, op: Operation, state: _State) -> None:
        tokens = _waited_for(op)
        match op:
            case BarrierOp():
                state.pending = 0
                state.beside = dict.fromkeys(state.beside, 0)
            case WaitOp():
                left = state.left(tokens)
                state.pending = left
                state.beside = {token: found & left for token, found in state.beside.items()}
            case ReadyOp():
                state.beside[op.token] = state.left(tokens)
            case DmaOp() | ExecOp():
                left = state.left(self._waited_for(op))
                times, number = self._times, self._number[op]
                now, ended = times.now(number), self._ended(op, state, left)
                for token, found in state.beside.items():
                    state.beside[token] = times.aged(found, number) | now
                state.pending = times.aged(state.pending, number) | now
                state.beside[op.token] = times.aged(left, number)
                state.beside.update(ended)
            case scf.ForOp() | scf.WhileOp():
                state.pending = self._times.entered(state.pending, op)
                state.beside = {token: self._times.entered(found, op) for token, found in state.beside.items()}
            case _:
                return
        for token in tokens:
            if self._last_use[token] is op and token not in self._crossing:
                state.beside.pop(token, None)


def _units(commands: list[DmaOp | ExecOp]) -> dict[Operation, _Unit]:
    """The unit of each command, as far as the machine is known."""
    module = commands[0].get_toplevel_object() if commands else None
    target = find_target(module) if isinstance(module, ModuleOp) else None
    if target is None:
        return {}
    engines, intrinsics, units = target.dmas(), target.intrinsics(), dict[Operation, _Unit]()
    for op in commands:
        if isinstance(op, DmaOp):
            name = op.engine.data
        else:
            intrinsic = intrinsics[op.intrinsic_name]
            if intrinsic.unit_name is not None:
                units[op] = _Unit(intrinsic.unit_name, alone=True, executes=True)
                continue
            name = intrinsic.dma_name
            assert name is not None
        units[op] = _Unit(engines[name].unit_name, engines[name].outstanding_limit == 1, executes=False)
    return units


def _copy(state: _State) -> _State:
    return _State(state.pending, dict(state.beside))


def _sharing(aliases: Aliases) -> list[int]:
    """For each root the others whose bytes may be its own."""
    places: list[tuple[int, str | None, int | None, int]] = []
    for number, op in enumerate(aliases.allocations):
        if isinstance(op, BufferOp | RingOp):
            places.append((number, op.scope, op.byte_offset, op.size_in_bytes))
        else:
            places.append((number, scope_of(op.memref.type), None, 0))
    found = [0] * len(aliases.roots)
    for number, scope, offset, size in places:
        for other, other_scope, other_offset, other_size in places:
            if other == number or other_scope != scope:
                continue
            if (
                offset is None
                or other_offset is None
                or (offset < other_offset + other_size and other_offset < offset + size)
            ):
                found[number] |= 1 << other
    return found


Loop = scf.ForOp | scf.WhileOp


class Generations:
    """Sets of times of commands, as masks: of a command two bits for each loop around it, and two for none."""

    def __init__(self, commands: Sequence[Operation]):
        self._every: list[int] = []
        self._last: list[int] = []
        self._now: list[int] = []
        self._entered: dict[Loop, dict[int, int]] = {}
        base = 0
        for command in commands:
            loops = _loops_around(command)
            levels = len(loops) + 1
            self._every.append(((1 << 2 * levels) - 1) << base)
            self._last.append(sum(1 << (base + 2 * level) for level in range(levels)))
            self._now.append(1 << (base + 2 * len(loops)))
            for outer, loop in enumerate(loops):
                moves = self._entered.setdefault(loop, {})
                for level in range(outer + 1, levels):
                    shift = 2 * (level - outer)
                    moves[shift] = moves.get(shift, 0) | 0b11 << (base + 2 * level)
            base += 2 * levels

    def every(self, number: int) -> int:
        """All times that a command was issued."""
        return self._every[number]

    def now(self, number: int) -> int:
        """The time that a command has just been issued."""
        return self._now[number]

    def aged(self, times: int, number: int) -> int:
        """The set once a command is issued again: what was its last time is one before that."""
        last = times & self._last[number]
        return (times ^ last) | (last << 1)

    def entered(self, times: int, loop: Loop) -> int:
        """The set once a loop begins: what was since it had begun is before that."""
        for shift, mask in sorted(self._entered.get(loop, {}).items()):
            moved = times & mask
            times = (times ^ moved) | (moved >> shift)
        return times


def _loops_around(op: Operation) -> list[Loop]:
    """The loops around an op of a function, from the outermost."""
    loops: list[Loop] = []
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, func.FuncOp):
        if isinstance(parent, Loop):
            loops.insert(0, parent)
        parent = parent.parent_op()
    return loops
