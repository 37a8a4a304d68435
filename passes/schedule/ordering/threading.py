# SPDX-License-Identifier: Apache-2.0
"""Inserting tokens: variables that hold the tokens of sources, carried through the loops of a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xdsl.dialects import func, scf
from xdsl.ir import Block, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.accel import BarrierOp, ReadyOp, TokenType
from penstock.dialects.mem import RingOp
from penstock.passes.analysis.commands.program import CommandOp
from penstock.passes.schedule.ordering.accesses import CommandInfo, trips_of
from penstock.passes.schedule.ordering.conflicts import Dependence
from penstock.passes.schedule.ordering.reduction import Findings, Source
from penstock.passes.schedule.ordering.tokens import set_dependencies

Values = tuple[SSAValue, ...]


@dataclass(frozen=True)
class Variable:
    """
    The token of the command of `sources`, all of one unit, that was issued last; where they do not end in order, of
    all iterations of the one source that were issued since it was renewed, or its last where only that counts.

    With a ring there is one for each slot, in the IR rotated: value i is that of the slot (c + i) mod size, where c is
    the number that the loops around have counted up to.
    """

    sources: tuple[Source, ...]
    ring: RingOp | None

    @property
    def size(self) -> int:
        return self.ring.slot_count if self.ring is not None else 1


@dataclass
class Threading:
    """The tokens of one kernel, for the dependences that need one."""

    function: func.FuncOp
    commands: Sequence[CommandInfo]
    findings: Findings
    in_order: frozenset[str]
    waits: dict[CommandInfo, list[tuple[Variable, Dependence]]] = field(
        default_factory=dict[CommandInfo, list[tuple[Variable, Dependence]]]
    )
    at_start: dict[Block, dict[Variable, Values]] = field(default_factory=dict[Block, dict[Variable, Values]])
    """The values of variables at the start of an iteration of a loop."""

    def run(self) -> SSAValue:
        """Insert them; returns the completed token."""
        infos = {info.op: info for info in self.commands}
        self._infos: Mapping[CommandOp, CommandInfo] = infos
        self._group()
        variables = dict.fromkeys(variable for waits in self.waits.values() for variable, _ in waits)
        self._of: dict[CommandInfo, list[tuple[Variable, Source]]] = {}
        for variable in variables:
            for source in variable.sources:
                self._of.setdefault(source.command, []).append((variable, source))
        completed = ReadyOp()
        Rewriter.insert_op(completed, InsertPoint.at_start(self.function.body.block))
        self._completed = completed.token
        values: dict[Variable, Values] = {variable: (self._completed,) * variable.size for variable in variables}
        self._block(self.function.body.block, values)
        return self._completed

    def _group(self) -> None:
        """One variable for all sources of a unit that a command waits for in the same way, if the last is enough."""
        groups: dict[tuple[CommandInfo, str | Source, Block | None, RingOp | None, int], list[Dependence]] = {}
        for each in _aligned(self.findings.needed):
            of = each.source.unit if each.source.unit in self.in_order else Source.of(each)
            groups.setdefault((each.sink, of, each.since, each.ring, each.sink_turn), []).append(each)
        for (sink, _, _, ring, _), members in groups.items():
            sources = sorted({Source.of(each) for each in members}, key=lambda it: (it.command.number, it.turn))
            self.waits.setdefault(sink, []).append((Variable(tuple(sources), ring), members[0]))

    def _block(self, block: Block, values: dict[Variable, Values]) -> None:
        for op in list(block.ops):
            if isinstance(op, scf.ForOp):
                self._for(op, values)
            elif isinstance(op, CommandOp):
                self._command(self._infos[op], values)
            elif isinstance(op, BarrierOp):
                for variable in values:
                    values[variable] = (self._completed,) * variable.size

    def _command(self, info: CommandInfo, values: dict[Variable, Values]) -> None:
        tokens: dict[SSAValue, None] = {}
        for variable, each in self.waits.get(info, ()):
            now = self.at_start[each.since] if each.since is not None else values
            tokens[now[variable][each.sink_turn]] = None
        set_dependencies(info.op, list(tokens))
        for variable, source in self._of.get(info, ()):
            token, before = info.op.token, values[variable][source.turn]
            replaced = info.unit in self.in_order or source.only_last or self._is_renewed(variable, info.op)
            if not replaced and before is not self._completed:
                joined = ReadyOp([before, token])
                Rewriter.insert_op(joined, InsertPoint.after(info.op))
                token = joined.token
            values[variable] = _replaced(values[variable], source.turn, token)

    def _is_renewed(self, variable: Variable, scope: Block | CommandOp) -> bool:
        return self.findings.renewed.get(variable.sources[0]) is scope

    def _for(self, loop: scf.ForOp, values: dict[Variable, Values]) -> None:
        body = loop.body.block
        inside = {info for info in self.commands if body in info.loops}
        carried = [
            each
            for each in values
            if self._step(each, body) % each.size or any(source.command in inside for source in each.sources)
        ]
        around = loop.parent
        for variable in carried:
            if around is not None and self._is_renewed(variable, around) and self._collects(variable, body, inside):
                values[variable] = _replaced(values[variable], variable.sources[0].turn, self._completed)
        inits = [value for variable in carried for value in values[variable]]
        within = dict(values)
        for variable in carried:
            args = [body.insert_arg(TokenType(), len(body.args)) for _ in range(variable.size)]
            within[variable] = tuple(args)
        self.at_start[body] = dict(within)
        self._block(body, within)
        terminator = body.last_op
        assert isinstance(terminator, scf.YieldOp)
        yields = [value for each in carried for value in _rotated(within[each], self._step(each, body))]
        Rewriter.replace_op(terminator, scf.YieldOp(*terminator.operands, *yields))
        new = scf.ForOp(loop.lb, loop.ub, loop.step, [*loop.iter_args, *inits], loop.detach_region(loop.body))
        new.location = loop.location
        new.attributes = dict(loop.attributes)
        kept = len(loop.results)
        for old, result in zip(loop.results, new.results, strict=False):
            result.name_hint = old.name_hint
        Rewriter.replace_op(loop, new, new.results[:kept])
        position = kept
        for variable in carried:
            results = tuple(new.results[position : position + variable.size])
            position += variable.size
            trips = trips_of(body) or 0
            values[variable] = _rotated(results, -trips * self._step(variable, body))

    def _collects(self, variable: Variable, body: Block, inside: set[CommandInfo]) -> bool:
        """Whether the source is in a loop, and none of its commands wait for what was issued before the loop."""
        if variable.sources[0].command not in inside:
            return False
        for info in inside:
            around = info.loops[: info.loops.index(body)]
            for waited, each in self.waits.get(info, ()):
                if waited == variable and each.since not in around:
                    return False
        return True

    def _step(self, variable: Variable, body: Block) -> int:
        return self.findings.steps[variable.ring].get(body, 0) if variable.ring is not None else 0


def _aligned(needed: Iterable[Dependence]) -> list[Dependence]:
    """
    The dependences, of which those that count what was issued so far count from the current iteration of a loop instead
    where others of the sink do, and the source is not in that loop: it is the same, and one token may serve.
    """
    loops_of: dict[CommandInfo, list[Block]] = {}
    for each in needed:
        if each.since is not None:
            loops_of.setdefault(each.sink, []).append(each.since)
    found: list[Dependence] = []
    for each in needed:
        loops = loops_of.get(each.sink, []) if each.since is None and each.ring is None else []
        loop = next((loop for loop in loops if loop not in each.source.loops), None)
        found.append(each if loop is None else replace(each, since=loop))
    return found


def _replaced(values: Values, number: int, token: SSAValue) -> Values:
    return (*values[:number], token, *values[number + 1 :])


def _rotated(values: Values, steps: int) -> Values:
    """The values after the number that the loops count has grown by `steps`."""
    return tuple(values[(number + steps) % len(values)] for number in range(len(values)))
