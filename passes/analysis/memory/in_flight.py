# SPDX-License-Identifier: Apache-2.0
"""
What commands in flight keep alive.

A command (`accel.dma`, `accel.exec`) accesses its memrefs from its issue until it is complete. Its buffer A is kept
alive until every later op X for which it may not be complete, if X accesses bytes that may be A's and belong to another
buffer, and one of both writes. Bytes may be A's where the other buffer is in the same scope, and one of the two has no
offset yet or their addresses overlap. So a plan in which tokens order what shares bytes is valid as it is.

Unlike `commands/happens_before`, which orders the commands of an unrolled kernel, this is a data flow over all paths of
a function: loops without a known number of iterations, branches, and what the host does between commands. The events
are the present, the tokens, and what happens in a unit. For each event the state holds the commands that may not be
complete though it has happened; a command waits for its tokens, and for what its unit does before it starts. The order
of units is known where the machine is in the module; order by queues is not seen.

A command stands for all times that it has been issued so far. The last and those before it are distinguished, for each
loop around it also since that loop began: a token from an earlier iteration says nothing about the command of this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xdsl.dialects import func, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from penstock.dialects.accel import BarrierOp, DmaOp, ExecOp, ReadyOp, TokenType, WaitOp
from penstock.dialects.machine import find_target
from penstock.dialects.mem import ScopedAllocation, scope_of
from penstock.passes.analysis.memory.aliases import Aliases, bits
from penstock.passes.analysis.memory.dataflow import DataFlow, TransferFunction, solve
from penstock.passes.analysis.memory.effects import Effect
from penstock.passes.analysis.memory.graph import BasicBlock, FlowGraph
from penstock.passes.analysis.units import performer

Command = DmaOp | ExecOp
AnyLoop = scf.ForOp | scf.WhileOp

Event = SSAValue | tuple[str, str] | None
"""A token, what happens in a unit, or the present (None): what has happened for the host."""
FlightState = dict[Event, int]
"""The commands that may not be complete though an event has happened; see `Generations` for the sets."""

STARTED, ALL, EXECUTED = "started", "all", "executed"
"""What happens in a unit: its last command starts; all commands are complete; all that execute are complete."""


def kept_alive(flow: DataFlow) -> dict[Operation, int]:
    """For each node of a function the roots that commands in flight keep alive there."""
    commands = [op for op in flow.graph.nodes() if isinstance(op, Command)]
    if not commands:
        return {}
    found = InFlight(flow.graph, flow.aliases, flow.effects, commands)
    if not found.needed:
        return {}
    kept: dict[Operation, int] = {}
    for op, after in solve(flow.graph, {op: TransferFunction(0, roots) for op, roots in found.needed.items()}).items():
        kept[op] = (after | found.needed.get(op, 0)) & found.before[op] | after & found.after[op]
    return kept


def _tokens_of(op: Operation) -> Sequence[SSAValue]:
    """The tokens that an op waits for."""
    if isinstance(op, Command | ReadyOp):
        return tuple(op.dependencies)
    return tuple(op.tokens) if isinstance(op, WaitOp) else ()


def _incomplete(state: FlightState, events: Iterable[Event]) -> int:
    """The commands that may not be complete for what comes after all of these events."""
    found = state[None]
    for event in events:
        found &= state.get(event, found)
    return found


class InFlight:
    """
    What the commands of a function keep alive.

    `needed` holds, for each node that may run beside a command in flight, the roots that this command accesses; of
    these, `before` and `after` hold for each node those that commands in flight access then.
    """

    def __init__(
        self, graph: FlowGraph, aliases: Aliases, effects: Mapping[Operation, Effect], commands: Sequence[Command]
    ):
        self._graph = graph
        self._effects = effects
        self._number = {op: number for number, op in enumerate(commands)}
        self._times = Generations(commands)
        self._units = _units(commands)
        count = len(aliases.roots)
        self._access, self._write = [0] * count, [0] * count
        for op, number in self._number.items():
            for root in bits(effects[op].touches):
                self._access[root] |= self._times.every[number]
            for root in bits(effects[op].writes):
                self._write[root] |= self._times.every[number]
        self._sharing = _sharing(aliases)
        self.needed: dict[Operation, int] = {}
        self.before: dict[Operation, int] = {}
        self.after: dict[Operation, int] = {}
        if not any(others for others, commands_of in zip(self._sharing, self._access, strict=True) if commands_of):
            # Nothing can be in the way of a command.
            return
        self._find_token_uses()
        pending: dict[Operation, tuple[int, int]] = {}
        anywhere = 0
        for block, start in zip(graph.blocks, self._solve(), strict=True):
            state = dict(start)
            for op in block.nodes:
                if found := self._beside(op, state):
                    self.needed[op] = found
                    anywhere |= found
                before = state[None]
                self._step(op, state)
                pending[op] = before, state[None]
        if anywhere:
            self.before = {op: self._accessed(anywhere, before) for op, (before, _) in pending.items()}
            self.after = {op: self._accessed(anywhere, after) for op, (_, after) in pending.items()}

    def _accessed(self, roots: int, commands: int) -> int:
        return sum(1 << root for root in bits(roots) if self._access[root] & commands)

    def _beside(self, op: Operation, state: FlightState) -> int:
        """The roots whose bytes `op` may touch by another name while a command that accesses them is in flight."""
        effect = self._effects[op]
        if not effect.touches or not state[None]:
            return 0
        written = read = 0
        for root in bits(effect.writes):
            written |= self._sharing[root]
        for root in bits(effect.reads):
            read |= self._sharing[root]
        if not written | read:
            return 0
        left = _incomplete(state, self._waited_for(op))
        found = 0
        for root in bits(written | read):
            commands = self._access[root] if written >> root & 1 else self._write[root]
            if commands & left:
                found |= 1 << root
        return found

    def _waited_for(self, op: Operation) -> Sequence[Event]:
        """What has happened when an op starts."""
        if op not in self._units:
            return _tokens_of(op)
        unit, alone, _ = self._units[op]
        return *_tokens_of(op), (unit, STARTED), (unit, ALL if alone else EXECUTED)

    # the state from point to point

    def _find_token_uses(self) -> None:
        """Find the tokens that are used in other basic blocks than their own, and of the others the last use."""
        block_of = {op: block for block in self._graph.blocks for op in block.nodes}
        self._crossing: set[Event] = {value for edge in self._graph.edges() for value, _ in edge.handed}
        self._last_use: dict[SSAValue, Operation] = {}
        for op, block in block_of.items():
            for token in _tokens_of(op):
                if not isinstance(token.owner, Operation) or block_of.get(token.owner) is not block:
                    self._crossing.add(token)
                self._last_use[token] = op

    def _solve(self) -> list[FlightState]:
        """The state at the start of each block."""
        into: list[FlightState] = [{None: 0} for _ in self._graph.blocks]
        out: list[FlightState | None] = [None] * len(into)
        units = {unit for unit, _, _ in self._units.values()}
        into[self._graph.entry.number].update({(unit, kind): 0 for unit in units for kind in (STARTED, ALL, EXECUTED)})
        waiting = [self._graph.entry]
        while waiting:
            block = waiting.pop()
            self._enter(block, into[block.number], out)
            state = dict(into[block.number])
            for op in block.nodes:
                self._step(op, state)
            # What no other block needs is forgotten.
            needed = (event for event in state if not isinstance(event, SSAValue) or event in self._crossing)
            state = {event: state[event] for event in needed}
            if state != out[block.number]:
                out[block.number] = state
                waiting += [edge.target for edge in block.edges if edge.target not in waiting]
        return into

    def _enter(self, block: BasicBlock, state: FlightState, out: Sequence[FlightState | None]) -> None:
        for edge in block.entering:
            source = out[edge.source.number]
            if source is None:
                continue
            renamed = {name for _, name in edge.handed}
            here = {event: found for event, found in source.items() if event not in renamed}
            tokens = [(value, name) for value, name in edge.handed if isinstance(name.type, TokenType)]
            here.update({name: source.get(value, source[None]) for value, name in tokens})
            for event, found in here.items():
                state[event] = state.get(event, 0) | found

    def _step(self, op: Operation, state: FlightState) -> None:
        tokens = _tokens_of(op)
        match op:
            case BarrierOp():
                state.update(dict.fromkeys(state, 0))
            case WaitOp():
                left = _incomplete(state, tokens)
                state.update({event: found & left for event, found in state.items()})
            case ReadyOp():
                state[op.token] = _incomplete(state, tokens)
            case DmaOp() | ExecOp():
                self._issue(op, state)
            case scf.ForOp() | scf.WhileOp():
                state.update({event: self._times.entered(found, op) for event, found in state.items()})
            case _:
                return
        for token in tokens:
            if self._last_use[token] is op and token not in self._crossing:
                state.pop(token, None)

    def _issue(self, op: Command, state: FlightState) -> None:
        times, number = self._times, self._number[op]
        left, now = _incomplete(state, self._waited_for(op)), times.now[number]
        ended: FlightState = {op.token: left}
        if op in self._units:
            unit, _, executes = self._units[op]
            ended[unit, ALL] = _incomplete(state, [(unit, ALL)]) & left
            if executes:
                ended[unit, EXECUTED] = _incomplete(state, [(unit, EXECUTED)]) & left
        state.update({event: times.aged(found, number) | now for event, found in state.items()})
        state.update({event: times.aged(found, number) for event, found in ended.items()})
        if op in self._units:
            state[self._units[op][0], STARTED] = times.aged(left, number) | now


def _units(commands: Sequence[Command]) -> dict[Operation, tuple[str, bool, bool]]:
    """
    The unit of each command, as far as the machine is known; whether the command starts only when all earlier ones of
    the unit are complete; and whether no later one of the unit starts before it is complete.
    """
    module = commands[0].get_toplevel_object()
    target = find_target(module) if isinstance(module, ModuleOp) else None
    units: dict[Operation, tuple[str, bool, bool]] = {}
    if target is None:
        return units
    for op in commands:
        unit, engine = performer(op, target)
        assert unit is not None
        units[op] = unit, engine is None or engine.outstanding_limit == 1, engine is None
    return units


def _sharing(aliases: Aliases) -> list[int]:
    """For each root the others whose bytes may be its own."""
    ranges: list[tuple[int, str | None, int | None, int]] = []
    for number, op in enumerate(aliases.allocations):
        if isinstance(op, ScopedAllocation):
            ranges.append((number, op.scope, op.byte_offset, op.size_in_bytes))
        else:
            ranges.append((number, scope_of(op.memref.type), None, 0))
    found = [0] * len(aliases.roots)
    for number, scope, offset, size in ranges:
        for other, other_scope, other_offset, other_size in ranges:
            apart = (
                offset is not None
                and other_offset is not None
                and (offset + size <= other_offset or other_offset + other_size <= offset)
            )
            if other != number and other_scope == scope and not apart:
                found[number] |= 1 << other
    return found


class Generations:
    """Sets of times of commands, as masks: of a command two bits for each loop around it, and two for none."""

    def __init__(self, commands: Sequence[Operation]):
        self.every: list[int] = []
        """By the number of a command: all times that it was issued."""
        self.now: list[int] = []
        """The time that it has just been issued."""
        self._last: list[int] = []
        self._entered: dict[AnyLoop, dict[int, int]] = {}
        base = 0
        for command in commands:
            loops = _loops_around(command)
            levels = len(loops) + 1
            self.every.append(((1 << 2 * levels) - 1) << base)
            self._last.append(sum(1 << (base + 2 * level) for level in range(levels)))
            self.now.append(1 << (base + 2 * len(loops)))
            for outer, loop in enumerate(loops):
                moves = self._entered.setdefault(loop, {})
                for level in range(outer + 1, levels):
                    shift = 2 * (level - outer)
                    moves[shift] = moves.get(shift, 0) | 0b11 << (base + 2 * level)
            base += 2 * levels

    def aged(self, times: int, number: int) -> int:
        """The set once a command is issued again: what was its last time is one before that."""
        last = times & self._last[number]
        return (times ^ last) | (last << 1)

    def entered(self, times: int, loop: AnyLoop) -> int:
        """The set once a loop begins: what was since it had begun is before that."""
        for shift, mask in sorted(self._entered.get(loop, {}).items()):
            moved = times & mask
            times = (times ^ moved) | (moved >> shift)
        return times


def _loops_around(op: Operation) -> list[AnyLoop]:
    """The loops around an op of a function, from the outermost."""
    loops: list[AnyLoop] = []
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, func.FuncOp):
        if isinstance(parent, AnyLoop):
            loops.insert(0, parent)
        parent = parent.parent_op()
    return loops
