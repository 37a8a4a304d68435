# SPDX-License-Identifier: Apache-2.0
"""Which unit of the machine performs an op, and by which of its DMA engines."""

from __future__ import annotations

from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation, SSAValue

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.machine import DmaOp as EngineOp
from penstock.dialects.mem import CopyOp, memref_of, scope_of


def scope_or_dram(value: SSAValue) -> str:
    """The scope of a memref, or that off chip."""
    return scope_of(memref_of(value)) or DRAM


def performer(op: Operation, target: TargetOp) -> tuple[str | None, EngineOp | None]:
    """
    The unit that performs a copy, a command or an op that names an intrinsic, and the engine if one does: of a copy
    the first that goes the way. None where the machine performs nothing of the kind.
    """
    engine: EngineOp | None = None
    match op:
        case CopyOp():
            engine = target.dma_between(scope_or_dram(op.source), scope_or_dram(op.dest))
        case DmaOp():
            engine = target.dmas()[op.engine.data]
        case ExecOp() | GenericOp():
            name = op.intrinsic_name if isinstance(op, ExecOp) else op.library_call and op.library_call.data
            intrinsic = target.intrinsics().get(name or "")
            if intrinsic is not None and intrinsic.dma_name is None:
                return intrinsic.unit_name, None
            engine = None if intrinsic is None else target.dmas()[intrinsic.dma_name or ""]
        case _:
            pass
    return (None, None) if engine is None else (engine.unit_name, engine)
