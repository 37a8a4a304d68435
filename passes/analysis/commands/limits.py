# SPDX-License-Identifier: Apache-2.0
"""
The limits of a machine, checked on the commands of a kernel: what a descriptor holds, what a command iterates, what an
intrinsic takes, what fits a scope, and that the kernel ends when all is done.

`align` is where a buffer off chip has to begin: a descriptor names the buffer, and a window of it by indices. Arguments
are taken to begin where every engine needs them to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from xdsl.dialects import func
from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, MemRefType
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.ir import Operation

from penstock.dialects.accel import BarrierOp, ExecOp
from penstock.dialects.accel import DmaOp as TransferOp
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import DRAM, IMMEDIATE, DmaOp, IntrinsicOp, ScopeOp, TargetOp
from penstock.dialects.mem import ScopedAllocation, memref_of, scope_of
from penstock.passes.analysis.access import Access, Expression, Hole, Leaf, Node, Operand, steps_of
from penstock.passes.analysis.commands.command_loops import counted_dims, iterations_of, long_dims
from penstock.passes.analysis.commands.descriptor import Descriptor, describe, entry_elements
from penstock.passes.analysis.commands.program import Command, Kind, Program, View
from penstock.passes.analysis.intrinsics import Failure, Match, match_intrinsic, pattern_of
from penstock.passes.analysis.memory.storage import storage_of


@dataclass(frozen=True)
class LimitFault:
    """A limit that an op breaks."""

    op: Operation
    message: str
    notes: tuple[str, ...] = ()

    def error(self) -> UserError:
        """The fault as what is raised of it."""
        return UserError(self.message, loc=location_of(self.op), notes=self.notes)


def limit_faults(program: Program, target: TargetOp) -> Iterator[LimitFault]:
    """
    Every limit of the machine that commands of `program` break, the first time that each op breaks it, in program
    order. The notes say in which iteration of its loops that is.
    """
    said: set[tuple[Operation, str]] = set()
    checks = _Checks(target)
    function: Operation | None = None
    for command in program.commands:
        op = command.op
        if op is None:
            continue
        function = op
        for limit, message in checks.of(command):
            if (op, limit) not in said:
                said.add((op, limit))
                yield LimitFault(op, message, _iteration(command))
    while function is not None and not isinstance(function, func.FuncOp):
        function = function.parent_op()
    if isinstance(function, func.FuncOp):
        yield from _ending(function)


def _iteration(command: Command) -> tuple[str, ...]:
    if not any(command.counters):
        return ()
    numbers = ", ".join(str(counter) for counter in command.counters)
    return (f"first in iteration {numbers} of the loops around it, counted from 0",)


def _ending(function: func.FuncOp) -> Iterator[LimitFault]:
    """A kernel that returns while its commands may still run."""
    terminator = function.body.block.last_op
    last = terminator.prev_op if terminator is not None else None
    if not isinstance(last, BarrierOp):
        yield LimitFault(
            function,
            f"@{function.sym_name.data} returns while its commands may still run",
            ("end it in accel.barrier, after all stores",),
        )


Broken = tuple[str, str]
"""The limit, for telling two of them apart, and the message."""


class _Checks:
    """The checks of commands; what depends on the op alone is done once."""

    def __init__(self, target: TargetOp):
        self._target = target
        self._engines = target.dmas()
        self._intrinsics = target.intrinsics()
        self._scopes = target.scopes()
        self._once: dict[object, list[Broken]] = {}

    def of(self, command: Command) -> Iterator[Broken]:
        """What a command breaks."""
        if command.kind is Kind.TRANSFER:
            key = (command.op, command.padding, *(view.shape for view in command.operands))
            if (found := self._once.get(key)) is None:
                found = self._once[key] = list(self._transfer(command))
            yield from found
        if isinstance(command.op, ExecOp):
            if (found := self._once.get(command.op)) is None:
                found = self._once[command.op] = list(self._exec(command.op))
            yield from found
        for region in (*command.reads, *command.writes):
            scope = self._scopes.get(region.space)
            if scope is not None and region.storage == 0 and (region.end > scope.size_bytes or region.start < 0):
                yield "scope", _outside(scope, region.start, region.end)

    # transfers

    def _transfer(self, command: Command) -> Iterator[Broken]:
        if command.engine is None or not command.operands or 0 in command.operands[-1].shape:
            return
        engine = self._engines[command.engine]
        yield from _conversion(command, engine)
        yield from _alignment(command.op, engine)
        scopes = [view.space for view in command.operands]
        entry = entry_elements(self._target, scopes, [view.element_bytes for view in command.operands])
        ways = [
            describe(command.operands, command.padding, engine=engine, entry=entry, at_any_padding=each)
            for each in (False, True)
        ]
        # What breaks least says most.
        yield from min((list(descriptor_faults(way, engine, command.operands)) for way in ways), key=len)

    # commands of units

    def _exec(self, op: ExecOp) -> Iterator[Broken]:
        intrinsic = self._intrinsics[op.intrinsic_name]
        title = f"@{op.intrinsic_name}"
        match = match_command(op, intrinsic, self._target)
        if isinstance(match, Failure):
            yield "shape", f"{title} does not take these operands: {match.reason}"
        elif intrinsic.dma_name is None:
            yield from _iterations(match, op.extents.get_values(), title)


def _title(engine: DmaOp) -> str:
    return f"@{engine.sym_name.data}"


def _outside(scope: ScopeOp, start: int, end: int) -> str:
    return f"@{scope.sym_name.data} has {scope.size_bytes} bytes, and this reaches from byte {start} to {end}"


def _alignment(op: Operation | None, engine: DmaOp) -> Iterator[Broken]:
    """A buffer off chip that does not begin where the engine needs it to."""
    for value in () if op is None else op.operands:
        buffer = storage_of(value).owner if isinstance(value.type, MemRefType) else None
        if not isinstance(buffer, ScopedAllocation) or buffer.scope is not None or buffer.byte_offset is None:
            continue
        if buffer.byte_offset % engine.alignment:
            yield (
                "align",
                f"{_title(engine)} needs buffers off chip to begin at multiples of {engine.alignment} bytes, "
                f"and this begins at {buffer.byte_offset}",
            )


def _conversion(command: Command, engine: DmaOp) -> Iterator[Broken]:
    """An engine that converts on the way moves nothing as it is."""
    if engine.converts is None or not isinstance(command.op, ExecOp | TransferOp):
        return
    source, dest, rule = engine.converts
    values = command.op.buffers if isinstance(command.op, ExecOp) else (command.op.source, command.op.dest)
    types = [memref_of(value).element_type for value in values]
    if types != [source, dest]:
        what = " and ".join(dict.fromkeys(str(each) for each in types))
        yield "convert", f"{_title(engine)} makes {dest} of {source} ({rule}), and this moves {what}"


def descriptor_faults(descriptor: Descriptor, engine: DmaOp, sides: Sequence[View]) -> Iterator[Broken]:
    """What is more than a descriptor of `engine` holds."""
    title = _title(engine)
    counts = descriptor.entry_counts
    if len(counts) > engine.dim_count:
        dims = "one dim" if engine.dim_count == 1 else f"{engine.dim_count} dims"
        yield "dims", f"{title} has descriptors of {dims}, and this needs {len(counts)}"
    for number, (count, limit) in enumerate(zip(reversed(counts), reversed(engine.max_counts), strict=False)):
        if count > limit:
            yield "max_count", f"{title} counts at most {limit} {_units(number)} in a dim, and this needs {count}"
    if (longest := engine.stride_limit) is not None:
        steps = [
            -(-step // (descriptor.entry * view.element_bytes))
            for view, strides in zip(sides, descriptor.strides, strict=True)
            if view.space == DRAM
            for step in strides[:-1]
        ]
        if steps and max(steps) > longest:
            yield "max_stride", f"{title} steps at most {longest} entries from row to row, and this needs {max(steps)}"
    for number, pads in enumerate(reversed(descriptor.entry_padding)):
        if max(pads) > engine.pad_limit:
            units = _units(number)
            most = f"pads at most {engine.pad_limit} {units} on a side" if engine.pad_limit else f"pads no {units}"
            yield "pad_max", f"{title} {most}, and this needs {max(pads)}"


def _units(number: int) -> str:
    return "entries" if number == 0 else "rows"


def _iterations(match: Match, extents: Sequence[int], title: str) -> Iterator[Broken]:
    """What is more than the loops of a command, and its list of micro-operations, hold."""
    limits = match.intrinsic.max_iterations
    if not limits:
        return
    iterations = iterations_of(match, long_dims(extents), extents)
    counted = counted_dims(iterations, len(limits))
    listed = prod(count for dim, count in iterations.items() if dim not in counted)
    most = match.intrinsic.micro_ops
    if len(iterations) > len(limits) and not most:
        loops = "one loop" if len(limits) == 1 else f"{len(limits)} loops"
        yield "max_iterations", f"a command of {title} has {loops}, and this needs {len(iterations)}"
    elif listed > max(most, 1):
        yield "micro_ops", f"a command of {title} lists at most {most} micro-operations, and this needs {listed}"
    for dim, limit in zip(reversed(counted), reversed(limits), strict=False):
        if iterations[dim] > limit:
            times = "one iteration" if limit == 1 else f"{limit} iterations"
            yield "max_iterations", f"a loop of {title} has at most {times}, and this needs {iterations[dim]}"


def match_command(op: ExecOp, intrinsic: IntrinsicOp, target: TargetOp) -> Match | Failure:
    """How a command is an application of its intrinsic: which of its dims play those of the intrinsic's blocks."""
    pattern = pattern_of(intrinsic)
    buffers = [number for number, spec in enumerate(pattern.specs) if spec.role != IMMEDIATE]
    values = dict(zip((n for n in range(len(pattern.specs)) if n not in buffers), op.immediate_values, strict=True))

    operands: list[Operand] = []
    moved: set[int] = set()
    for value, map_attr in zip(op.buffers, op.maps, strict=True):
        type = memref_of(value)
        steps = steps_of(map_attr.data, value)
        moved = {dim for dim, step in enumerate(steps) if step}
        operands.append(
            Operand(value, scope_of(type) or DRAM, type.element_type, steps, map_attr.data, type.get_shape())
        )
    access = Access(
        tuple(op.extents.get_values()),
        # A dim that does not move what is written sums up, or writes the same again.
        tuple(IteratorType.PARALLEL if dim in moved else IteratorType.REDUCTION for dim in range(len(op.extents))),
        tuple(operands),
        _bound(pattern.access.yielded, {number: buffers.index(number) for number in buffers}, values),
    )
    found = match_intrinsic(access, intrinsic, target)
    if isinstance(found, Match) and list(found.buffers) != list(range(len(operands))):
        return Failure(intrinsic.sym_name.data, 6, "they are interchanged")
    return found


def _bound(expression: Expression, places: dict[int, int], values: dict[int, IntegerAttr | FloatAttr]) -> Expression:
    """The body of an intrinsic with the operands and immediates of a command."""
    match expression:
        case Leaf():
            return Leaf(places[expression.operand])
        case Hole():
            value = values[expression.operand]
            return Node(ConstantOp.name, (("value", value),), value.type, ())
        case Node():
            operands = tuple(_bound(each, places, values) for each in expression.operands)
            return replace(expression, operands=operands)
