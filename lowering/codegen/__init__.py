# SPDX-License-Identifier: Apache-2.0
"""
The walk over the loop and the accel level that writes code: once, whatever the language.

`emitter` says what a language has to write; `to_c` and `to_llvm` are such languages. A plug-in that brings an op adds
what writes it in every language to `EMITTERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.dialects import cf, func, memref, scf
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation

from penstock.dialects import accel, mem
from penstock.dialects.upstream.scf import ForallOp
from penstock.lowering.codegen import control, copies, forall, memory, structured
from penstock.lowering.codegen.emitter import Emitter


def _nothing(emitter: Emitter, op: Operation) -> None:
    """Commands run when they are issued: waiting is done."""


EMITTERS: dict[type[Operation], Callable[[Emitter, Any], None]] = {
    GenericOp: structured.emit_generic,
    accel.ExecOp: structured.emit_exec,
    accel.DmaOp: copies.emit_transfer,
    **dict.fromkeys((accel.ReadyOp, accel.WaitOp, accel.BarrierOp, accel.PushOp, accel.PopOp), _nothing),
    mem.BufferOp: memory.emit_buffer,
    mem.RingOp: memory.emit_ring,
    mem.SlotOp: memory.emit_slot,
    mem.CopyOp: copies.emit_transfer,
    mem.PrefetchOp: memory.emit_prefetch,
    **dict.fromkeys((memref.AllocOp, memref.AllocaOp, memref.DeallocOp), memory.refuse_alloc),
    memref.CopyOp: copies.emit_memref_copy,
    memref.SubviewOp: memory.emit_subview,
    memref.ExpandShapeOp: memory.emit_retyped,
    memref.CollapseShapeOp: memory.emit_retyped,
    memref.CastOp: memory.emit_cast,
    memref.MemorySpaceCastOp: memory.emit_cast,
    memref.ReinterpretCastOp: memory.emit_reinterpret_cast,
    memref.DimOp: memory.emit_dim,
    memref.RankOp: memory.emit_rank,
    memref.LoadOp: memory.emit_load,
    memref.StoreOp: memory.emit_store,
    memref.GetGlobalOp: memory.emit_get_global,
    scf.ForOp: control.emit_for,
    scf.ParallelOp: control.emit_parallel,
    ForallOp: forall.emit_forall,
    scf.IfOp: control.emit_if,
    scf.IndexSwitchOp: control.emit_index_switch,
    scf.ExecuteRegionOp: control.emit_execute_region,
    scf.WhileOp: control.emit_while,
    cf.AssertOp: control.emit_assert,
    func.CallOp: control.emit_call,
}
"""Class of an op -> what writes it, in every language."""

__all__ = ["EMITTERS"]
