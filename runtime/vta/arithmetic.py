# SPDX-License-Identifier: Apache-2.0
"""What GEMM and ALU compute, all points of their loops at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.diagnostics import UserError
from penstock.lowering.to_vta.isa import MICRO_OP, Alu, AluOpcode, Gemm, Loops, micro_op_indices
from penstock.runtime.vta.memories import Indices, Memories

AT_ONCE = 1 << 16
"""Points of a GEMM that are worked out together."""

_ALU: dict[AluOpcode, Callable[[Any, Any], Any]] = {
    AluOpcode.MIN: np.minimum,
    AluOpcode.MAX: np.maximum,
    AluOpcode.ADD: np.add,
    AluOpcode.SHR: np.right_shift,
    AluOpcode.MUL: np.multiply,
}


def _points(memories: Memories, op: Loops) -> tuple[Indices, Indices, Indices]:
    """dst, src and wgt of every point, in the order of execution: the micro-operations are innermost."""
    used = np.arange(op.uop_begin, op.uop_end)
    listed = micro_op_indices(memories.uop.read(used).tobytes())
    outer, inner = np.arange(op.iter_out)[:, None, None], np.arange(op.iter_in)[None, :, None]
    factors = map(op.factors, MICRO_OP)
    dst, src, wgt = (
        (base + outer * by_out + inner * by_in).ravel() for base, (by_out, by_in) in zip(listed, factors, strict=True)
    )
    return dst, src, wgt


def gemm(memories: Memories, op: Gemm) -> None:
    """Sums wrap at 32 bits, so their order does not show."""
    dst, src, wgt = _points(memories, op)
    acc = memories.acc
    acc.check(dst)
    if op.reset:
        acc.write(dst, np.zeros((), acc.data.dtype))
        memories.narrowed[dst] = False
        return
    acc.read(np.unique(dst))
    for start in range(0, dst.size, AT_ONCE):
        part = slice(start, start + AT_ONCE)
        _add_products(memories, dst[part], src[part], wgt[part])
    memories.narrowed[dst] = True


def _add_products(memories: Memories, dst: Indices, src: Indices, wgt: Indices) -> None:
    by_weight = np.argsort(wgt, kind="stable")
    dst, src, wgt = dst[by_weight], src[by_weight], wgt[by_weight]
    # Sums of 16 products of 8-bit integers are exact in 32-bit floats.
    vectors = memories.inp.read(src).astype(np.float32)
    products = np.empty(vectors.shape, np.float32)
    starts = np.flatnonzero(np.diff(wgt, prepend=-1))
    blocks = memories.wgt.read(wgt[starts]).astype(np.float32)
    for block, start, end in zip(blocks, starts, [*starts[1:], wgt.size], strict=True):
        np.matmul(vectors[start:end], block.T, out=products[start:end])
    by_sum = np.argsort(dst, kind="stable")
    dst = dst[by_sum]
    firsts = np.flatnonzero(np.diff(dst, prepend=-1))
    memories.acc.data[dst[firsts]] += np.add.reduceat(products[by_sum].astype(np.int32), firsts, axis=0, dtype=np.int32)


def alu(memories: Memories, op: Alu) -> None:
    """In order where one point reads or writes what another one writes."""
    if op.reset:
        raise UserError("ALU has no reset")
    dst, src, _ = _points(memories, op)
    acc, compute = memories.acc, _ALU[op.alu_opcode]
    acc.read(dst)
    if op.use_immediate:
        _check_shift(op, np.array(op.immediate))
    else:
        acc.read(src)
    alone = np.unique(dst).size == dst.size and (
        op.use_immediate or np.array_equal(dst, src) or not np.intersect1d(dst, src).size
    )
    for part in [slice(None)] if alone else [slice(each, each + 1) for each in range(dst.size)]:
        second: NDArray[Any] = np.array(op.immediate, "i4") if op.use_immediate else acc.data[src[part]]
        _check_shift(op, second)
        acc.data[dst[part]] = compute(acc.data[dst[part]], second)
    memories.narrowed[dst] = True


def _check_shift(op: Alu, amounts: NDArray[Any]) -> None:
    if op.alu_opcode is AluOpcode.SHR and amounts.size and not (amounts.min() >= 0 and amounts.max() <= 31):
        raise UserError("shifts by less than 0 or more than 31 bits, which implementations of VTA do differently")
