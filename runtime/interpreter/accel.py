# SPDX-License-Identifier: Apache-2.0
"""Commands of an accelerator: what they touch and what they do is worked out here, when is up to the `Interleaving`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from xdsl.ir import Operation, SSAValue

from penstock.dialects import accel, machine, mem
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.mem import memref_of
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.commands import (
    CommandKind,
    Copied,
    IssuedCommand,
    TokenQueue,
    Touch,
    joined,
)
from penstock.runtime.interpreter.counters import applications_of, moved_bytes, touched_bytes
from penstock.runtime.interpreter.execution import Execution
from penstock.runtime.interpreter.generic import Evaluator
from penstock.runtime.interpreter.loop import regions_of
from penstock.runtime.interpreter.registry import interprets
from penstock.runtime.interpreter.scopes import Region, array_of
from penstock.runtime.interpreter.slices import WindowMove, check_apart, move


@interprets(accel.ReadyOp)
def _ready(execution: Execution, op: accel.ReadyOp, args: Sequence[Any]) -> Sequence[Any]:
    return (joined(args),)


@interprets(accel.WaitOp)
def _wait(execution: Execution, op: accel.WaitOp, args: Sequence[Any]) -> Sequence[Any]:
    execution.interleaving.wait(args)
    return ()


@interprets(accel.BarrierOp)
def _barrier(execution: Execution, op: accel.BarrierOp, args: Sequence[Any]) -> Sequence[Any]:
    execution.interleaving.barrier()
    return ()


def _target(execution: Execution, op: Operation) -> machine.TargetOp:
    if execution.target is None:
        raise UserError(
            f"{op.name} needs a machine, and the module holds none",
            loc=location_of(op),
            notes=["a module for an accelerator begins with its machine.target"],
        )
    return execution.target


def _scope(value: SSAValue) -> str | None:
    return mem.scope_of(memref_of(value))


@interprets(accel.DmaOp)
def _dma(execution: Execution, op: accel.DmaOp, args: Sequence[Any]) -> Sequence[Any]:
    engine, transfer = execution.kept(op, lambda: (_target(execution, op).dmas()[op.engine.data], WindowMove.of(op)))
    ends = execution.kept((op, "ends"), lambda: (_scope(op.source) or machine.DRAM, _scope(op.dest) or machine.DRAM))
    source, dest, padding = args[transfer.source], args[transfer.dest], transfer.padding_of(args)
    overlap = transfer.overlap(args)
    elements, target = array_of(source), array_of(dest)
    check_apart(op, elements, target, overlap)
    execution.counters.add_bytes(engine.sym_name.data, {ends: overlap.elements * elements.itemsize})
    everything = padding is not None or (overlap.whole and transfer.side != "dest")
    read = Touch(source, overlap.source, op.source)
    command = IssuedCommand(
        op,
        engine.unit_name,
        CommandKind.TRANSFER,
        [args[number] for number in transfer.dependencies],
        engine.outstanding_limit,
        reads=[read],
        copied=Copied(read, Touch(dest, overlap.dest, op.dest)),
        writes=[Touch(dest, None if everything else overlap.dest, op.dest)],
        perform=lambda: move(elements, target, overlap, padding),
        overwrites=True,
    )
    return (execution.interleaving.issue(command),)


@dataclass(frozen=True)
class _Exec:
    """What an `accel.exec` does, apart from its operands."""

    intrinsic: str
    engine: str | None
    """The DMA engine that performs it, if one does."""
    evaluator: Evaluator
    extents: tuple[int, ...]
    unit: str
    kind: CommandKind
    outstanding: int
    issues: int
    points: int
    moved: Mapping[tuple[str, str], int]
    """The bytes that an intrinsic moves which a DMA engine performs, by where from and where to."""
    regions: tuple[Region, ...]


def _prepare(execution: Execution, op: accel.ExecOp, arrays: Sequence[Array]) -> _Exec:
    target = _target(execution, op)
    name = op.intrinsic_name
    intrinsic = target.intrinsics()[name]
    body = intrinsic.body_with(op.immediate_values)
    extents = tuple(op.extents.get_values())
    evaluator = Evaluator(op, body.block, [attr.data for attr in op.maps], len(intrinsic.generic.outputs))
    evaluator.check(arrays, extents)
    regions = tuple(regions_of(evaluator, extents, [array.shape for array in arrays]))
    engine = target.dmas()[intrinsic.dma_name] if intrinsic.dma_name is not None else None
    unit = engine.unit_name if engine is not None else intrinsic.unit_name
    assert unit is not None
    touched = [touched_bytes(array, region) for array, region in zip(arrays, regions, strict=True)]
    return _Exec(
        name,
        intrinsic.dma_name,
        evaluator,
        extents,
        unit,
        CommandKind.TRANSFER if engine is not None else CommandKind.EXEC,
        engine.outstanding_limit if engine is not None else 1,
        applications_of(op, intrinsic).count,
        prod(extents),
        moved_bytes([_scope(value) or machine.DRAM for value in op.buffers], touched),
        regions,
    )


@interprets(accel.ExecOp)
def _exec(execution: Execution, op: accel.ExecOp, args: Sequence[Any]) -> Sequence[Any]:
    buffers = execution.kept((op, "buffers"), lambda: tuple(op.buffers))
    memrefs, after = args[: len(buffers)], args[len(buffers) :]
    arrays = [array_of(value) for value in memrefs]
    shapes = tuple(array.shape for array in arrays)
    prepared = execution.kept((op, shapes), lambda: _prepare(execution, op, arrays))
    evaluator, counters = prepared.evaluator, execution.counters
    counters.add_exec(prepared.intrinsic, prepared.issues, prepared.points, evaluator.is_contraction)
    if prepared.engine is not None:
        counters.add_bytes(prepared.engine, prepared.moved)
    touches = [
        Touch(value, region, operand) for value, region, operand in zip(memrefs, prepared.regions, buffers, strict=True)
    ]
    command = IssuedCommand(
        op,
        prepared.unit,
        prepared.kind,
        after,
        prepared.outstanding,
        reads=[touch for touch, read in zip(touches, evaluator.reads, strict=True) if read],
        writes=touches[-1:],
        perform=lambda: evaluator.run(arrays, prepared.extents, ordered=execution.ordered),
        overwrites=not evaluator.reads[-1] and not any(map(touches[-1].is_in_place_of, touches[:-1])),
    )
    return (execution.interleaving.issue(command),)


def _queue(execution: Execution, op: accel.PushOp | accel.PopOp, source: str, dest: str) -> TokenQueue:
    """The queue of a push or pop; all queues of the machine are made at the first one."""

    def declare() -> None:
        for queue in _target(execution, op).queues():
            title = f"the queue from {queue.source} to {queue.destination}"
            tokens = TokenQueue(title, queue.capacity_tokens, queue.blocks, queue.initial_tokens)
            execution.interleaving.add_queue(queue.source, queue.destination, tokens)

    execution.kept("queues", declare)
    return execution.interleaving.queue(source, dest)


@interprets(accel.PushOp)
def _push(execution: Execution, op: accel.PushOp, args: Sequence[Any]) -> Sequence[Any]:
    queue = _queue(execution, op, op.unit.data, op.peer.data)
    command = IssuedCommand(op, op.unit.data, CommandKind.PUSH, queue=queue)
    queue.issued.append(command.token)
    execution.interleaving.issue(command)
    return ()


@interprets(accel.PopOp)
def _pop(execution: Execution, op: accel.PopOp, args: Sequence[Any]) -> Sequence[Any]:
    queue = _queue(execution, op, op.peer.data, op.unit.data)
    execution.interleaving.issue(IssuedCommand(op, op.unit.data, CommandKind.POP, [queue.next_push(op)], queue=queue))
    return ()
