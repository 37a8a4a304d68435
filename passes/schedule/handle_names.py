# SPDX-License-Identifier: Apache-2.0
"""What the handles of a schedule are called, so that a person knows which operation is meant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects import memref, scf, tensor
from xdsl.dialects.builtin import DYNAMIC_INDEX
from xdsl.ir import Operation, SSAValue

from penstock.dialects.accel import ExecOp
from penstock.dialects.mem import CopyOp, WindowedTransfer
from penstock.passes.analysis.index import is_index_arithmetic
from penstock.passes.analysis.memory.storage import storage_of, uses_through


def name_of(op: Operation) -> str:
    """
    The name of a handle of `op`: that of what it computes, or else its own.

    A loop is called by what it moves along: an array that it writes, or else reads, and the dim of that.
    """
    if isinstance(op, scf.ForOp):
        values: Sequence[SSAValue] = op.body.block.args[:1]
    elif isinstance(op, CopyOp):
        values = [op.dest, op.source]
    else:
        # Ops on memrefs are called by what they write.
        values = op.results or op.operands[-1:]
    named = next((value.name_hint for value in values if value.name_hint), None)
    if named is not None:
        return named
    if not isinstance(op, scf.ForOp):
        return op.name.rpartition(".")[2]
    # Uses are in no order that text has: the first by name is taken.
    _, array, dim = min(_arrays(op.body.block.args[0]), default=(False, "", 0))
    return f"loop_{array}_d{dim}" if array else "loop"


def _arrays(counter: SSAValue) -> Iterator[tuple[bool, str, int]]:
    """The arrays that a counter moves along, those written first: whether it is read alone, its name, and the dim."""
    values = {counter: None}
    pending = [counter]
    while pending:
        value = pending.pop()
        for op in {use.operation: None for use in value.uses}:
            if is_index_arithmetic(op) and op.results[0] not in values:
                values[op.results[0]] = None
                pending.append(op.results[0])
            for array, dim, is_read in _indexed(op, value):
                if name := storage_of(array).name_hint:
                    yield is_read, name.removesuffix("_ring"), dim


def _indexed(op: Operation, value: SSAValue) -> Iterator[tuple[SSAValue, int, bool]]:
    """The arrays that an op indexes by `value`, the dims, and whether it only reads there."""
    match op:
        case memref.SubviewOp():
            windows = [(op.source, op.offsets, op.static_offsets, not _is_written(op.result))]
        case tensor.ExtractSliceOp():
            windows = [(op.source, op.offsets, op.static_offsets, True)]
        case tensor.InsertSliceOp():
            windows = [(op.dest, op.offsets, op.static_offsets, False)]
        case WindowedTransfer():
            windows = [
                (op.source, op.source_offsets, op.static_source_offsets, True),
                (op.dest, op.dest_offsets, op.static_dest_offsets, False),
            ]
        case _:
            return
    for array, dynamic, static, is_read in windows:
        dims = [dim for dim, offset in enumerate(static.get_values() if static else ()) if offset == DYNAMIC_INDEX]
        yield from ((array, dim, is_read) for dim, offset in zip(dims, dynamic, strict=True) if offset is value)


def _is_written(view: SSAValue) -> bool:
    """Whether something is stored through a view. What an op computes on memrefs goes to its last one."""
    for use in uses_through(view):
        op = use.operation
        buffers = op.buffers if isinstance(op, ExecOp) else op.operands
        if use.index == (1 if isinstance(op, WindowedTransfer) else len(buffers) - 1):
            return True
    return False
