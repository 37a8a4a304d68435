"""
Structured ops as loop nests: `linalg.generic`, and `accel.exec`, whose meaning is the generic of its intrinsic.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap
from xdsl.utils.hints import isa

from penstock.dialects.accel import ExecOp
from penstock.dialects.diagnostics import UserError, did_you_mean, location_of
from penstock.dialects.machine import IntrinsicOp
from penstock.lowering.to_c.blocks import Operand, Structured, emit_structured
from penstock.lowering.to_c.emitter import FunctionEmitter, refuse
from penstock.lowering.to_c.text import Expr, Size


def emit_generic(emitter: FunctionEmitter, op: GenericOp) -> None:
    """The loop nest of a `linalg.generic` on memrefs."""
    if op.results:
        raise refuse(op, "a linalg.generic on tensors has no C", "run `tensor-to-loop` first")
    maps = [attr.data for attr in op.indexing_maps]
    structured = _structured(emitter, op.body.block, op.operands, maps, len(op.outputs), None, op)
    extents = " x ".join(str(extent) for extent in structured.extents) or "one point"
    intrinsic = f" ({op.library_call.data})" if op.library_call is not None else ""
    emitter.describe(op, f"linalg.generic{intrinsic} over {extents}")
    _count_work(emitter, structured, "macs" if op.library_call is not None else "host_macs")
    emit_structured(emitter, structured)


def emit_exec(emitter: FunctionEmitter, op: ExecOp) -> None:
    """The loop nest of an intrinsic over the extents of a command."""
    intrinsic = _intrinsic(emitter, op)
    generic = intrinsic.generic
    body = intrinsic.body_with(op.immediate_values).block
    if len(body.args) != len(op.buffers):
        raise UserError(
            f'intrinsic "{op.intrinsic_name}" takes {len(body.args)} operands, {len(op.buffers)} are given',
            loc=location_of(op),
        )
    maps = [attr.data for attr in op.maps]
    extents = op.extents.get_values()
    outputs = len(generic.outputs)
    structured = _structured(emitter, body, op.buffers, maps, outputs, extents, op)
    emitter.describe(op, f"accel.exec @{op.intrinsic_name} over {' x '.join(map(str, extents))}")
    emitter.count("commands", 1)
    _count_work(emitter, structured, "macs")
    if intrinsic.dma_name is not None:
        _count_transfer(emitter, structured, extents)
    emit_structured(emitter, structured)


def _intrinsic(emitter: FunctionEmitter, op: ExecOp) -> IntrinsicOp:
    target = emitter.program.target
    if target is None:
        raise UserError(
            "accel.exec needs a machine, and the module holds none",
            loc=location_of(op),
            notes=["a module for an accelerator begins with its machine.target"],
        )
    intrinsics = target.intrinsics()
    if op.intrinsic_name not in intrinsics:
        near = did_you_mean(op.intrinsic_name, intrinsics)
        raise UserError(
            f'the machine has no intrinsic "{op.intrinsic_name}"', loc=location_of(op), notes=[near] if near else []
        )
    return intrinsics[op.intrinsic_name]


def _structured(
    emitter: FunctionEmitter,
    body: Block,
    values: Sequence[SSAValue],
    maps: Sequence[AffineMap],
    outputs: int,
    extents: Sequence[int] | None,
    op: Operation,
) -> Structured:
    operands: list[Operand] = []
    for value, index_map, arg in zip(values, maps, body.args, strict=True):
        source = emitter.view(value) if isa(value.type, MemRefType) else emitter.scalar(value)
        operands.append(Operand(source, index_map, bool(arg.uses)))
    found = tuple(extents) if extents is not None else _extents(operands, op)
    return Structured(body, tuple(operands), outputs, found)


def _extents(operands: Sequence[Operand], op: Operation) -> tuple[Size, ...]:
    """The extents of a generic's loops, read off the shapes of its operands."""
    dims = operands[0].index_map.num_dims if operands else 0
    found: list[Size | None] = [None] * dims
    for operand in operands:
        if isinstance(operand.source, Expr):
            continue
        for result, size in zip(operand.index_map.results, operand.source.shape, strict=True):
            if isinstance(result, AffineDimExpr) and not isinstance(found[result.position], int):
                found[result.position] = size
    if None in found:
        raise UserError(f"no operand says how far loop {found.index(None)} runs", loc=location_of(op))
    return tuple(extent for extent in found if extent is not None)


# counters


def multiplies_and_adds(body: Block, inputs: int) -> bool:
    """Whether a body adds a product to its output."""
    terminator = body.last_op
    assert terminator is not None
    total = terminator.operands[0].owner
    if len(terminator.operands) != 1 or not isinstance(total, arith.AddfOp | arith.AddiOp):
        return False
    accumulator = body.args[inputs]
    return accumulator in total.operands and any(
        isinstance(operand.owner, arith.MulfOp | arith.MuliOp) for operand in total.operands
    )


def _count_work(emitter: FunctionEmitter, structured: Structured, counter: str) -> None:
    if not multiplies_and_adds(structured.body, structured.inputs):
        return
    known = [extent for extent in structured.extents if isinstance(extent, int)]
    others = [extent for extent in structured.extents if not isinstance(extent, int)]
    emitter.count(counter, " * ".join([str(prod(known)), *map(str, others)]) if others else prod(known))


def _count_transfer(emitter: FunctionEmitter, structured: Structured, extents: Sequence[int]) -> None:
    """The bytes that an intrinsic of a DMA engine moves: what it writes off chip, or else what it reads elsewhere."""
    emitter.count("transfers", 1)
    views = [(number, operand.source) for number, operand in enumerate(structured.operands)]
    placed = [(number, view) for number, view in views if not isinstance(view, Expr)]
    end = placed[-1][1].scope
    for number, view in placed:
        is_output = number >= structured.inputs
        if is_output != (end is None) or (not is_output and view.scope == end):
            continue
        used = {dim for result in structured.operands[number].index_map.results for dim in result.used_dims()}
        elements = prod(extents[dim] for dim in used)
        counter = "bytes_out" if is_output else "bytes_in" if view.scope is None else "bytes_on_chip"
        emitter.count(counter, elements * view.ctype.size)
