# SPDX-License-Identifier: Apache-2.0
"""Setting the states that commands depend on, where they change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint

from penstock.dialects.accel_issue import WAIT, CodeOp, IssueOp, SetOp
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.functions import body_block
from penstock.dialects.machine import StateOp, TargetOp
from penstock.dialects.machine.spelling import COPY
from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.analysis.loops import constant_of, trip_count
from penstock.passes.index_builder import materialize

Fields = Mapping[str, int]
"""What fields of a state are, or must be; of those that it lacks nothing is known, or asked."""
Held = Mapping[str, tuple[Fields | None, ...]]
"""For each state what its copies hold; None where that is not known."""


def needs(op: IssueOp, target: TargetOp) -> dict[str, Fields]:
    """What a command requires of states. Raises UserError for what is no number."""
    part = target.dmas().get(op.part_name) or target.intrinsics()[op.part_name]
    found: dict[str, dict[str, int]] = {state: {} for state in part.needed}
    for name, value in op.field_values().items():
        state, _, field = name.partition(".")
        if state not in found or not field:
            continue
        number = constant_of(value)
        if number is None:
            raise UserError(f"{name} of a command is no constant", loc=location_of(op))
        found[state][field] = number
    return dict(found)


def holds(held: Fields | None, needed: Fields) -> bool:
    """Whether a copy that holds this does for a command."""
    return held is not None and all(held.get(field) == value for field, value in needed.items())


def distinct(found: Sequence[Fields]) -> list[Fields]:
    """The fewest settings that do for all of these, as far as neighbours in this order can share one."""
    settings: list[dict[str, int]] = []
    for needed in sorted(found, key=lambda each: -len(each)):
        for setting in settings:
            if all(setting.get(field, value) == value for field, value in needed.items()):
                setting.update(needed)
                break
        else:
            settings.append(dict(needed))
    return list(settings)


@dataclass(frozen=True)
class _Configuration:
    """The settings of one kernel."""

    target: TargetOp
    states: Mapping[str, StateOp]

    def run(self, function: func.FuncOp) -> None:
        self._block(body_block(function, "given its settings"), self._nothing())

    def _nothing(self) -> Held:
        return {name: (None,) * state.copy_count for name, state in self.states.items()}

    def _block(self, block: Block, held: Held) -> Held:
        """Set what the commands of a block need, which begins with `held`; what is held at its end."""
        for op in list(block.ops):
            match op:
                case IssueOp():
                    for state, needed in needs(op, self.target).items():
                        held, copy = self._ensure(op, state, [needed], held)
                        if self.states[state].copy_count > 1:
                            _use(op, state, copy[0])
                case scf.ForOp():
                    held = self._loop(op, held)
                case scf.IfOp():
                    ends = [self._block(region.block, held) for region in op.regions if region.blocks]
                    held = _meet([*ends, held] if len(ends) < 2 else ends)
                case func.CallOp():
                    held = self._nothing()
                case _:
                    pass
        return held

    def _loop(self, op: scf.ForOp, held: Held) -> Held:
        """Set before a loop what all its iterations need, of the states whose copies can hold all of it."""
        inside = dict[str, list[Fields]]()
        for inner in op.walk():
            for state, needed in needs(inner, self.target).items() if isinstance(inner, IssueOp) else ():
                inside.setdefault(state, []).append(needed)
        unknown = self._nothing()
        begin = dict(held)
        for state, found in inside.items():
            if all(any(holds(copy, needed) for copy in held[state]) for needed in found):
                # Of a loop around it: what it needs is held in these copies, none of which may change.
                continue
            settings = distinct(found)
            if len(settings) <= self.states[state].copy_count:
                held, _ = self._ensure(op, state, settings, held)
                begin[state] = held[state]
            else:
                begin[state] = unknown[state]
        end = self._block(op.body.block, begin)
        trips = trip_count(op)
        return end if trips else _meet([held, end])

    def _ensure(self, op: Operation, state: str, settings: Sequence[Fields], held: Held) -> tuple[Held, list[int]]:
        """Set copies of a state before `op` until these settings are held at once, and which copies hold them."""
        copies = list(held[state])
        used: list[int] = []
        missing: list[tuple[int, Fields]] = []
        places = [0] * len(settings)
        for number, needed in enumerate(settings):
            found = next((copy for copy, has in enumerate(copies) if copy not in used and holds(has, needed)), None)
            if found is None:
                missing.append((number, needed))
            else:
                used.append(found)
                places[number] = found
        for number, needed in missing:
            free = [copy for copy in range(len(copies)) if copy not in used]
            copy = min(free, key=lambda each: (copies[each] is not None, each))
            copies[copy] = self._set(op, state, copy, needed)
            used.append(copy)
            places[number] = copy
        # What was used last is the last to be replaced.
        return {**held, state: tuple(copies)}, places

    def _set(self, op: Operation, state: str, copy: int, needed: Fields) -> Fields:
        fields = {field: needed.get(field, 0) for field in self.states[state].fields}
        given = {**fields, COPY: copy} if self.states[state].copy_count > 1 else fields
        builder = Builder(InsertPoint.before(op))
        setting = SetOp(state, {field: materialize(builder, value) for field, value in given.items()})
        setting.location = op.location
        builder.insert(setting)
        return fields


def _meet(ends: Sequence[Held]) -> Held:
    """What is held whichever way control came."""
    first, *others = ends
    return {
        state: tuple(
            has if all(other[state][copy] == has for other in others) else None for copy, has in enumerate(copies)
        )
        for state, copies in first.items()
    }


def _use(op: IssueOp, state: str, copy: int) -> None:
    """Say which copy of a state a command uses."""
    value = materialize(Builder(InsertPoint.before(op)), copy)
    op.fields = ArrayAttr([*op.fields, StringAttr(state)])
    op.operands = [*op.operands, value]


@dataclass(frozen=True)
class IssueCounts:
    """How many commands kernels issue, each once."""

    commands: int
    settings: int
    """States that are set."""
    every_time: int
    """States that would be, were they set before each command."""
    barriers: int
    """How often the processor waits for all of them."""
    waits: int
    """How often it waits for one."""


def issue_counts(module: ModuleOp) -> IssueCounts:
    """What the kernels of a module issue, of loops with bounds that are not constants a single iteration."""
    target, functions = machine_kernels(module)
    commands = settings = every_time = barriers = waits = 0
    for function in functions:
        for op, times in _with_trips(function.body.block, 1):
            match op:
                case IssueOp():
                    commands += times
                    every_time += times * (0 if target is None else len(needs(op, target)))
                case SetOp():
                    settings += times
                case CodeOp() if op.key.data == "barrier":
                    barriers += times
                case CodeOp() if op.key.data == WAIT:
                    waits += times
                case _:
                    pass
    return IssueCounts(commands, settings, every_time, barriers, waits)


def _with_trips(block: Block, times: int) -> Iterator[tuple[Operation, int]]:
    for op in block.ops:
        yield op, times
        inside = times
        if isinstance(op, scf.ForOp):
            trips = trip_count(op)
            inside = times * (1 if trips is None else trips)
        for region in op.regions:
            for each in region.blocks:
                yield from _with_trips(each, inside)


@dataclass(frozen=True)
class AccelConfigurePass(ModulePass):
    """
    Set the states of a machine that its commands depend on, where they change.

    Requires kernels of `accel.issue`, as `accel-to-issues` leaves them. Guaranteed: before each command every state
    that it depends on has been set to what the command says, whichever way control came; a command that depends on a
    state with several copies says which one it uses. A state is set before the outermost loop in which its copies hold
    everything that is needed. What is left open by all of the commands is set to 0. See accfg in snax-mlir (KU Leuven)
    for setting and eliding as IR.

    Before:
    ```mlir
    func.func @k(%x: memref<40x16xi8>) attributes {device = @gemmini} {
      %zero = arith.constant 0 : index
      %two = arith.constant 2 : index
      %stride = arith.constant 16 : index
      %rows = arith.constant 16 : index
      scf.for %i = %zero to %two step %rows {
        accel.issue @mvin ["src", "src.offset", "dst.offset", "dst.row", "rows", "columns", "config_ld.stride"]
          (%x, %zero, %zero, %zero, %rows, %rows, %stride
           : memref<40x16xi8>, index, index, index, index, index, index) in {src = "dram", dst = "spad"}
      }
      func.return
    }
    ```
    After (`accel-configure` on `gemmini`):
    ```mlir
    func.func @k(%x: memref<40x16xi8>) attributes {device = @gemmini} {
      %zero = arith.constant 0 : index
      %two = arith.constant 2 : index
      %stride = arith.constant 16 : index
      %rows = arith.constant 16 : index
      %0 = arith.constant 16 : index
      %1 = arith.constant 0 : index
      %2 = arith.constant 0 : index
      accel.set @config_ld ["stride", "column", "copy"] (%0, %1, %2 : index, index, index)
      scf.for %i = %zero to %two step %rows {
        %3 = arith.constant 0 : index
        accel.issue @mvin
          ["src", "src.offset", "dst.offset", "dst.row", "rows", "columns", "config_ld.stride", "config_ld"]
          (%x, %zero, %zero, %zero, %rows, %rows, %stride, %3
           : memref<40x16xi8>, index, index, index, index, index, index, index) in {src = "dram", dst = "spad"}
      }
      func.return
    }
    ```
    """

    name = "accel-configure"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target, functions = machine_kernels(op)
        if target is None or not (states := target.states()):
            return
        for function in functions:
            if any(isinstance(each, SetOp) for each in function.walk()):
                message = "its states are set already"
                raise UserError(f"@{function.sym_name.data}: {message}", loc=location_of(function))
            _Configuration(target, states).run(function)
