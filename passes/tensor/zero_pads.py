"""
Running a reduction past its end, into zeros.

A tile that does not divide a reduction reads a window that hangs over the end of its operands. Where every point of
the domain adds a product, zeros there change nothing; so the operands are padded up to whole tiles. As with every
pad, only slices of it are ever made: windows that read zero outside.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.builder import Builder
from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import FloatAttr, IndexType, TensorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Block, BlockArgument, Region, SSAValue
from xdsl.ir.affine import AffineDimExpr
from xdsl.utils.hints import isa

from penstock.passes.kernels import is_contraction


def may_run_past_its_end(generic: GenericOp, dim: int) -> bool:
    """Whether zeros behind the end of reduction `dim` change nothing, and its operands can be given them."""
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
    if not isa(value.type, TensorType) or not isinstance(_zero(value.type), FloatAttr):
        return False
    if not isinstance(value.owner, tensor.PadOp):
        return isinstance(value, BlockArgument)
    yielded = value.owner.region.block.last_op
    if not isinstance(yielded, tensor.YieldOp) or not isinstance(
        constant := yielded.operands[0].owner, arith.ConstantOp
    ):
        return False
    return constant.value == _zero(value.type) and isinstance(value.owner.source, BlockArgument)


def _zero(type: TensorType[Attribute]) -> Attribute | None:
    try:
        return FloatAttr(0.0, type.element_type)  # pyright: ignore
    except (TypeError, ValueError):
        return None


def pad_with_zeros(builder: Builder, generic: GenericOp, number: int, more: Mapping[int, int]) -> SSAValue:
    """Operand `number` of `generic` with zeros behind the end of dims, as many as `more` says; its own pad grows."""
    value = generic.inputs[number]
    type = value.type
    assert isa(type, TensorType)
    source, low, high = value, [0] * type.get_num_dims(), [0] * type.get_num_dims()
    if isinstance(value.owner, tensor.PadOp):
        source = value.owner.source
        low, high = list(value.owner.static_low.get_values()), list(value.owner.static_high.get_values())
    shape = list(type.get_shape())
    for dim, zeros in more.items():
        at = _position(generic, number, dim)
        assert at is not None
        high[at] += zeros
        shape[at] += zeros
    zero = builder.insert(arith.ConstantOp(_zero(type)))  # pyright: ignore[reportArgumentType]
    block = Block([tensor.YieldOp(zero)], arg_types=[IndexType()] * len(shape))
    result = TensorType(type.element_type, shape)
    pad = builder.insert(tensor.PadOp(source, [], [], Region(block), low, high, result))
    pad.location = generic.location
    pad.result.name_hint = value.name_hint
    return pad.result
