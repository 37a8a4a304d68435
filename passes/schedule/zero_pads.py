# SPDX-License-Identifier: Apache-2.0
"""
Running a dim beyond its end, into zeros.

A tile that does not divide a reduction reads a window that is out of bounds of its operands. Where every point of the
domain adds a product, zeros there change nothing, so the operands are padded up to whole tiles. A parallel dim shorter
than a block of the machine is padded too, and what is computed beyond its end is never stored. Only slices of pads are
ever made.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.builder import Builder
from xdsl.dialects import arith, memref, tensor
from xdsl.dialects.builtin import AnyFloat, FloatAttr, IndexType, IntegerAttr, IntegerType, TensorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue
from xdsl.ir.affine import AffineDimExpr
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, location_of
from penstock.passes.analysis.access import linear_form
from penstock.passes.analysis.kernels import is_contraction
from penstock.passes.analysis.loops import constant_of

_DIVISIONS = (
    arith.DivSIOp,
    arith.DivUIOp,
    arith.RemSIOp,
    arith.RemUIOp,
    arith.FloorDivSIOp,
    arith.CeilDivSIOp,
    arith.CeilDivUIOp,
)


def require_defined_on_padding(generic: GenericOp) -> None:
    """Raise UserError for a body that may have no value where operands are padded: it divides, or loads an element."""
    for op in generic.body.walk():
        if isinstance(op, _DIVISIONS) and not constant_of(op.rhs):
            raise UserError(
                "the body divides, and could divide by zero where there is padding", loc=location_of(generic)
            )
        if isinstance(op, tensor.ExtractOp | memref.LoadOp):
            raise UserError(
                "the body reads an element by its number, which could be none where there is padding",
                loc=location_of(generic),
            )


def may_run_past_its_end(generic: GenericOp, dim: int) -> bool:
    """Whether zeros beyond the end of reduction `dim` change nothing, and its operands can be given them."""
    # Both factors must be zero there: one that stood still could be infinite, and its product with zero no number.
    return is_contraction(generic) and all(
        _position(generic, number, dim) is not None and _is_paddable(value)
        for number, value in enumerate(generic.inputs)
    )


def _position(generic: GenericOp, number: int, dim: int) -> int | None:
    """Which dim of operand `number` is `dim` alone; None if there is none, or `dim` moves others too."""
    results = list(generic.indexing_maps)[number].data.results
    alone = [at for at, expr in enumerate(results) if isinstance(expr, AffineDimExpr) and expr.position == dim]
    moved = [at for at, expr in enumerate(results) if dim in expr.used_dims()]
    return alone[0] if len(alone) == 1 and moved == alone else None


def _is_paddable(value: SSAValue) -> bool:
    """What comes from outside, itself or padded with zeros; padding what was just computed would need it whole."""
    if not isa(value.type, TensorType) or (zero := _zero(value.type)) is None or padding_of(value) != zero:
        return False
    return isinstance(value.owner.source if isinstance(value.owner, tensor.PadOp) else value, BlockArgument)


def padding_of(value: SSAValue) -> Attribute | None:
    """What is read outside of `value`: its own padding, else zero; None if that is no constant."""
    assert isa(value.type, TensorType)
    if not isinstance(value.owner, tensor.PadOp):
        return _zero(value.type)
    yielded = value.owner.region.block.last_op
    constant = yielded.operands[0].owner if isinstance(yielded, tensor.YieldOp) else None
    return constant.value if isinstance(constant, arith.ConstantOp) else None


def _zero(type: TensorType[Attribute]) -> FloatAttr | IntegerAttr | None:
    element = type.element_type
    if isinstance(element, AnyFloat):
        return FloatAttr(0.0, element)
    return IntegerAttr(0, element) if isa(element, IntegerType) else None


def is_read(generic: GenericOp, number: int) -> bool:
    """
    Whether the body reads what is in operand `number`.

    Where it does not, that may be undefined even if the operand is no empty tensor, but a part of one that a loop
    carries: it is neither copied nor padded.
    """
    return not isinstance(generic.operands[number].owner, tensor.EmptyOp) and bool(generic.body.block.args[number].uses)


def extend(builder: Builder, generic: GenericOp, number: int, more: Mapping[int, int]) -> SSAValue:
    """
    Operand `number` of `generic`, long enough for a domain that is longer by what `more` says of its dims.

    Behind the end are zeros, or what the operand is padded with already; its own pad grows. One that is not read is an
    empty tensor.
    """
    value = generic.operands[number]
    type = value.type
    assert isa(type, TensorType)
    source, low, high = value, [0] * type.get_num_dims(), [0] * type.get_num_dims()
    pad = value.owner if isinstance(value.owner, tensor.PadOp) else None
    if pad is not None:
        source = pad.source
        low, high = list(pad.static_low.get_values()), list(pad.static_high.get_values())
    _, rows = linear_form(list(generic.indexing_maps)[number].data)
    added = [sum(row[dim] * count for dim, count in more.items()) for row in rows]
    if not any(added):
        return value
    high = [each + count for each, count in zip(high, added, strict=True)]
    result = TensorType(type.element_type, [size + count for size, count in zip(type.get_shape(), added, strict=True)])
    if is_read(generic, number):
        zero = _zero(type)
        assert zero is not None
        region = pad.region.clone() if pad is not None else region_of(builder, type, zero)
        new: Operation = tensor.PadOp(source, [], [], region, low, high, result)
    else:
        new = tensor.EmptyOp([], result)
    builder.insert(new).location = generic.location
    new.results[0].name_hint = value.name_hint
    return new.results[0]


def region_of(builder: Builder, type: TensorType[Attribute], constant: FloatAttr | IntegerAttr) -> Region:
    """The region of a pad that yields a constant."""
    value = builder.insert(arith.ConstantOp(constant))
    return Region(Block([tensor.YieldOp(value)], arg_types=[IndexType()] * type.get_num_dims()))
