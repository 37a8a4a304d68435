# SPDX-License-Identifier: Apache-2.0
"""
Structured ops, whatever they are written as: `linalg.generic`, and `accel.exec`, whose meaning is the generic of its
intrinsic. They are described and counted here; `nests` has their loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.linalg.ops import GenericOp, IndexOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap
from xdsl.utils.hints import isa

from penstock.dialects.accel import ExecOp
from penstock.dialects.affine_maps import linear_form
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import REGISTERS, IntrinsicOp
from penstock.dialects.products import added_product
from penstock.lowering.codegen.bounds import domain, require
from penstock.lowering.codegen.emitter import Emitter
from penstock.lowering.codegen.nest import LoopNest, plan_nest
from penstock.lowering.codegen.text import Expr, Size
from penstock.lowering.codegen.views import View, static_product, unsupported
from penstock.passes.analysis.vector_products import VectorProduct, vector_products
from penstock.passes.planning.register_blocks import Domain
from penstock.passes.schedule.primitives.tensorize import match_named

_OPEN_EXTENT = 64
"""What stands for an extent that only a run knows where loops are planned."""
_OPEN_BITS = 20
"""A stride that only a run knows is planned as 2^20 of the next one."""


@dataclass(frozen=True)
class BodyOperand:
    """One operand of a structured op."""

    source: View | Expr
    """An expression stands for a scalar operand."""
    index_map: AffineMap
    is_read: bool

    @property
    def is_in_memory(self) -> bool:
        """Whether its elements are loaded."""
        return self.is_read and isinstance(self.source, View)

    @property
    def is_in_registers(self) -> bool:
        """Whether its elements lie in the scope of the vector registers."""
        return isinstance(self.source, View) and self.source.scope == REGISTERS

    def linear(self, dims: int) -> tuple[int, tuple[int, ...]] | None:
        """
        (offset, stride of each dim) in elements; None where indices are not linear. A stride that only a run knows is
        that of a dense memref, or of a part of one: here it is a number larger than all to its right.
        """
        if isinstance(self.source, Expr):
            return 0, (0,) * dims
        offset, strides = 0, [0] * dims
        last = len(self.source.strides) - 1
        for place, (result, step) in enumerate(zip(self.index_map.results, self.source.strides, strict=True)):
            form = linear_form(result, dims)
            if form is None or (form[0] and not isinstance(step, int)):
                return None
            known = step if isinstance(step, int) else 1 << _OPEN_BITS * (last - place)
            offset += form[0] * known
            strides = [total + coefficient * known for total, coefficient in zip(strides, form[1], strict=True)]
        return offset, tuple(strides)

    def open_strides(self, dims: int) -> dict[int, list[tuple[int, Size]]]:
        """For each dim along which a stride is known only in a run: the products that its stride is the sum of."""
        found: dict[int, list[tuple[int, Size]]] = {}
        if isinstance(self.source, Expr) or self.source.static_strides is not None:
            return found
        for result, step in zip(self.index_map.results, self.source.strides, strict=True):
            form = linear_form(result, dims)
            for dim, coefficient in enumerate(() if form is None else form[1]):
                if coefficient:
                    found.setdefault(dim, []).append((coefficient, step))
        return {dim: terms for dim, terms in found.items() if any(not isinstance(step, int) for _, step in terms)}


@dataclass(frozen=True)
class Structured:
    """A structured op, whatever it was written as: `body` at every point of `extents`, outputs last."""

    body: Block
    operands: tuple[BodyOperand, ...]
    outputs: int
    extents: tuple[Size, ...]
    product: tuple[VectorProduct, int] | None = None
    """The intrinsic of the host that it is, and the dim of the products that this adds at once."""

    @property
    def inputs(self) -> int:
        return len(self.operands) - self.outputs

    @property
    def is_open(self) -> bool:
        """Whether an extent or a stride is known only in a run."""
        sources = [operand.source for operand in self.operands]
        strides = [step for source in sources if isinstance(source, View) for step in source.strides]
        return not all(isinstance(number, int) for number in (*self.extents, *strides))

    def index_dims(self) -> frozenset[int]:
        """The dims whose index the body reads."""
        return frozenset(op.dim.value.data for op in self.body.ops if isinstance(op, IndexOp))


def plan_structured(structured: Structured, *, with_registers_apart: bool = False) -> tuple[LoopNest, list[int]] | None:
    """
    The loops, and the offset of every operand in elements; None where only the order of the op's own loops is right.

    `with_registers_apart` keeps the dims of operands in registers apart from each other.
    """
    extents = [extent if isinstance(extent, int) else _OPEN_EXTENT for extent in structured.extents]
    dims = len(extents)
    apart = structured.index_dims()
    is_open = {dim for dim, extent in enumerate(structured.extents) if not isinstance(extent, int)}
    offsets: list[int] = []
    strides: list[tuple[int, ...]] = []
    for number, operand in enumerate(structured.operands):
        # What is not read may lie anywhere: a window that is only a shape does not hinder.
        is_unused = number < structured.inputs and not operand.is_read
        linear = (0, (0,) * dims) if is_unused else operand.linear(dims)
        if linear is None:
            return None
        if not is_unused:
            apart |= operand.open_strides(dims).keys()
        offsets.append(linear[0])
        strides.append(linear[1])
    in_place = [operand.is_in_registers for operand in structured.operands]
    if with_registers_apart:
        held = [each for each, is_held in zip(strides, in_place, strict=True) if is_held]
        apart |= {dim for each in held for dim, stride in enumerate(each) if stride}
    domain = Domain(tuple(extents), tuple(strides), structured.outputs, apart, frozenset(is_open))
    in_registers = all(in_place[structured.inputs :])
    planned = plan_nest(domain, in_registers=in_registers)
    return None if planned is None else (planned, offsets)


def emit_generic(emitter: Emitter, op: GenericOp) -> None:
    """The loop nest of a `linalg.generic` on memrefs."""
    _emit(emitter, _generic_of(emitter, op))


def emit_exec(emitter: Emitter, op: ExecOp) -> None:
    """The loop nest of an intrinsic over the extents of a command."""
    _emit(emitter, _exec_of(emitter, op))


def _emit(emitter: Emitter, structured: Structured) -> None:
    if 0 not in structured.extents:
        emitter.language.structured(emitter, structured)


def _generic_of(emitter: Emitter, op: GenericOp) -> Structured:
    """A `linalg.generic` on memrefs, described and counted."""
    if op.results:
        raise unsupported(
            op, f"a linalg.generic on tensors has no {emitter.language.name}", "run `tensor-to-loop` first"
        )
    maps = [attr.data for attr in op.indexing_maps]
    structured = _structured(emitter, op.body.block, op.operands, maps, len(op.outputs), None, op)
    for operand in structured.operands:
        if isinstance(operand.source, View):
            require(emitter, domain(emitter, op, operand.index_map, structured.extents, operand.source.shape))
    structured = replace(structured, product=_product_of(emitter, op))
    extents = " x ".join(str(extent) for extent in structured.extents) or "one point"
    intrinsic = f" ({op.library_call.data})" if op.library_call is not None else ""
    emitter.describe(op, f"linalg.generic{intrinsic} over {extents}")
    _count_work(emitter, structured, "macs" if op.library_call is not None else "host_macs")
    return structured


def _product_of(emitter: Emitter, op: GenericOp) -> tuple[VectorProduct, int] | None:
    """The intrinsic of the host that an op says it is, proved again, and the dim of what it adds at once."""
    target = emitter.program.target
    if target is None or not target.is_host or op.library_call is None:
        return None
    match = match_named(op, op.library_call.data, target)
    found = next((each for each in vector_products(target) if each.intrinsic is match.intrinsic), None)
    grouped = match.dims[-1]
    return None if found is None or grouped is None else (found, grouped)


def _exec_of(emitter: Emitter, op: ExecOp) -> Structured:
    """An intrinsic over the extents of a command, described and counted."""
    intrinsic = _intrinsic(emitter, op)
    generic = intrinsic.generic
    body = intrinsic.body_with(op.immediate_values).block
    maps = [attr.data for attr in op.maps]
    extents = op.extents.get_values()
    outputs = len(generic.outputs)
    structured = _structured(emitter, body, op.buffers, maps, outputs, extents, op)
    emitter.describe(op, f"accel.exec @{op.intrinsic_name} over {' x '.join(map(str, extents))}")
    emitter.count("commands", 1)
    _count_work(emitter, structured, "macs")
    if intrinsic.dma_name is not None:
        _count_transfer(emitter, structured, extents)
    return structured


def _intrinsic(emitter: Emitter, op: ExecOp) -> IntrinsicOp:
    target = emitter.program.target
    if target is None:
        raise UserError(
            "accel.exec needs a machine, and the module holds none",
            loc=location_of(op),
            notes=["a module for an accelerator begins with its machine.target"],
        )
    return target.intrinsics()[op.intrinsic_name]


def _structured(
    emitter: Emitter,
    body: Block,
    values: Sequence[SSAValue],
    maps: Sequence[AffineMap],
    outputs: int,
    extents: Sequence[int] | None,
    op: Operation,
) -> Structured:
    operands: list[BodyOperand] = []
    for value, index_map, arg in zip(values, maps, body.args, strict=True):
        source = emitter.view(value) if isa(value.type, MemRefType) else emitter.scalar(value)
        operands.append(BodyOperand(source, index_map, bool(arg.uses)))
    found = tuple(extents) if extents is not None else _extents(operands, op)
    return Structured(body, tuple(operands), outputs, found)


def _extents(operands: Sequence[BodyOperand], op: Operation) -> tuple[Size, ...]:
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


def _count_work(emitter: Emitter, structured: Structured, counter: str) -> None:
    if added_product(structured.body) is None:
        return
    known, others = static_product(structured.extents)
    emitter.count(counter, emitter.product([known, *others]))


def _count_transfer(emitter: Emitter, structured: Structured, extents: Sequence[int]) -> None:
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
