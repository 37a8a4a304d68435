# SPDX-License-Identifier: Apache-2.0
"""Computing an op on padded operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.builder import Builder
from xdsl.dialects import tensor
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, TensorType
from xdsl.dialects.linalg.ops import GenericOp, YieldOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr
from xdsl.rewriter import InsertPoint
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.upstream.transform import sizes_of
from penstock.dialects.upstream.transform_structured import PadStructuredOp
from penstock.passes.analysis.kernels import is_contraction
from penstock.passes.analysis.loop_dependences import combiners
from penstock.passes.generics import first_of, structured
from penstock.passes.planning.tile_problem import TileDim
from penstock.passes.schedule.primitives.compute_at import erase_with_slices
from penstock.passes.schedule.primitives.rfactor import neutral_of
from penstock.passes.schedule.primitives.tile import dims_of, given_sizes
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState
from penstock.passes.schedule.tile_nest import DimRange, result_dims, slice_of, tile_of
from penstock.passes.schedule.zero_pads import is_read, region_of, require_defined_on_padding
from penstock.passes.shapes import loops, shape_of

_Constant = FloatAttr | IntegerAttr


@PRIMITIVES.register(PadStructuredOp)
def pad(state: TransformState, op: PadStructuredOp) -> Sequence[Payload]:
    """
    Compute an op on operands that are padded at their ends up to multiples, and keep the part that was meant.

    Returns the op, the pads, and the copy of the result, if `copy_back_op = "linalg.copy"`. An operand that is empty is
    a larger empty one. Legal for parallel dims, of which what is beyond the end is left out again; and for a reduction
    where the padding changes nothing that it adds up: zeros for both factors of a product, or the neutral element.
    Raises UserError elsewhere, for a dim that indexes an operand together with others, and for options that have no
    meaning on tensors of values.
    See https://mlir.llvm.org/docs/Dialects/Transform/#transformstructuredpad

    Before:
    ```mlir
    #id = affine_map<(d0) -> (d0)>
    func.func private @f(%x: tensor<6xi32>) -> tensor<6xi32> {
      %e = tensor.empty() : tensor<6xi32>
      %y = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
          ins(%x : tensor<6xi32>) outs(%e : tensor<6xi32>) {
      ^bb0(%a: i32, %out: i32):
        %s = arith.addi %a, %a : i32
        linalg.yield %s : i32
      } -> tensor<6xi32>
      func.return %y : tensor<6xi32>
    }
    ```
    After (`%padded, %pads, %copy = transform.structured.pad %y pad_to_multiple_of [4]
        {copy_back_op = "none", padding_dimensions = [0], padding_values = [0 : i32, 0 : i32]}
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op)`):
    ```mlir
    #id = affine_map<(d0) -> (d0)>
    func.func private @f(%x: tensor<6xi32>) -> tensor<6xi32> {
      %0 = arith.constant 0 : i32
      %x_1 = tensor.pad %x low[0] high[2] {
      ^bb0(%1: index):
        tensor.yield %0 : i32
      } : tensor<6xi32> to tensor<8xi32>
      %e = tensor.empty() : tensor<8xi32>
      %y = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
          ins(%x_1 : tensor<8xi32>) outs(%e : tensor<8xi32>) {
      ^bb0(%a: i32, %out: i32):
        %s = arith.addi %a, %a : i32
        linalg.yield %s : i32
      } -> tensor<8xi32>
      %y_1 = tensor.extract_slice %y[0] [6] [1] : tensor<8xi32> to tensor<6xi32>
      func.return %y_1 : tensor<6xi32>
    }
    ```
    """
    target = state.one(op.target, GenericOp)
    dims = dims_of(target)
    _require_options(op)
    more = _excess(state, op, dims)
    added = [_added(target, number, more) for number in range(len(target.operands))]
    values = _paddings(target, list(op.padding_values or ()), added)
    for dim in more:
        if not dims[dim].parallel:
            _require_neutral(target, dim, values)
    if more:
        require_defined_on_padding(target)
    padded, pads, result = _rewrite(target, dims, more, added, values)
    copies: list[Operation] = []
    if op.copy_back_op.data == "linalg.copy":
        copies = [_copied(result, target)]
        result = copies[0].results[0]
    target.results[0].replace_all_uses_with(result)
    erase_with_slices(target)
    return [(padded,), tuple(pads), tuple(copies)]


def _require_options(op: PadStructuredOp) -> None:
    """Raise UserError for options that say how buffers are made, and for a result that is stored in one."""
    if any(sizes_of(op.pack_paddings)):
        raise UserError("pack_paddings keeps pads that add nothing, as copies: stage an operand for one instead")
    if op.transpose_paddings is not None and op.transpose_paddings.data:
        raise UserError("transpose_paddings are not done: the layout of a buffer is said where it is staged")
    if (how := op.copy_back_op.data) not in ("none", "linalg.copy"):
        raise UserError(
            f"the result is a value, which {how} does not store",
            notes=['copy_back_op = "none" leaves it as it is, and copy_back_op = "linalg.copy" copies it'],
        )


def _excess(state: TransformState, op: PadStructuredOp, dims: Sequence[TileDim]) -> dict[int, int]:
    """How far each dim is to run past its end."""
    chosen = sizes_of(op.padding_dimensions)
    if wrong := [dim for dim in chosen if dim >= len(dims)]:
        raise UserError(f"the op has {len(dims)} dims: there is no dim {wrong[0]}")
    multiples = given_sizes(state, op.static_pad_to_multiple_of, op.pad_to_multiple_of) or [1] * len(chosen)
    if wrong := [each for each in multiples if each < 1]:
        raise UserError(f"a dim is padded to a multiple of 1 or more, not of {wrong[0]}")
    found = {dim: -dims[dim].extent % multiple for dim, multiple in zip(chosen, multiples, strict=True)}
    return {dim: count for dim, count in found.items() if count}


def _added(target: GenericOp, number: int, more: Mapping[int, int]) -> list[int]:
    """How many elements each dim of an operand gets; raises UserError where a dim is only a part of an index."""
    results = list(target.indexing_maps)[number].data.results
    for expr in results:
        if not isinstance(expr, AffineDimExpr) and (mixed := sorted(expr.used_dims() & more.keys())):
            raise UserError(
                f"dim {mixed[0]} indexes operand {number} together with others: past its end nothing is padded",
                loc=location_of(target),
            )
    return [more.get(expr.position, 0) if isinstance(expr, AffineDimExpr) else 0 for expr in results]


def _paddings(target: GenericOp, given: Sequence[Attribute], added: Sequence[Sequence[int]]) -> dict[int, _Constant]:
    """What each operand that is padded is padded with."""
    found: dict[int, _Constant] = {}
    for number, (value, counts) in enumerate(zip(target.operands, added, strict=True)):
        if not any(counts):
            continue
        element = value.type.element_type if isa(value.type, TensorType[Attribute]) else None
        if number >= len(given):
            raise UserError(f"operand {number} is padded, and there are {len(given)} padding_values")
        constant = given[number]
        if not isa(constant, FloatAttr | IntegerAttr) or constant.type != element:
            raise UserError(f"operand {number} is padded with a value of type {element}, not with {constant}")
        found[number] = constant
    return found


def _require_neutral(target: GenericOp, dim: int, values: Mapping[int, _Constant]) -> None:
    """Raise UserError where what a reduction reads past its end changes what it computes."""
    inputs = range(len(target.inputs))
    reads = [number for number in inputs if number in values and _reads(target, number, dim)]
    if is_contraction(target) and all(number in reads and values[number].value.data == 0 for number in inputs):
        return
    yielded = target.body.block.last_op
    assert isinstance(yielded, YieldOp)
    if len(inputs) in combiners(target) and isinstance(combining := yielded.operands[0].owner, Operation):
        neutral = neutral_of(combining.name, combining.results[0].type)
        for number in reads:
            is_term = target.body.block.args[number] in combining.operands
            if is_term and neutral is not None and values[number].value.data == neutral.value.data:
                return
        hint = [f"{combining.name} leaves what it has as it is for {neutral}"] if neutral is not None else []
    else:
        hint = []
    raise UserError(
        f"dim {dim} is a reduction, which the padding would change",
        loc=location_of(target),
        notes=[*hint, "zeros for both factors of a product change no sum"],
    )


def _reads(target: GenericOp, number: int, dim: int) -> bool:
    return any(dim in expr.used_dims() for expr in list(target.indexing_maps)[number].data.results)


def _rewrite(
    target: GenericOp,
    dims: Sequence[TileDim],
    more: Mapping[int, int],
    added: Sequence[Sequence[int]],
    values: Mapping[int, _Constant],
) -> tuple[GenericOp, list[Operation], SSAValue]:
    """Compute the op on padded operands, before it: the new op, the pads, and the part of the result that was meant."""
    builder = Builder(InsertPoint.before(target))
    pads: list[Operation] = []
    operands: list[SSAValue] = []
    for number, value in enumerate(target.operands):
        type = value.type
        if number not in values or not isa(type, TensorType[Attribute]):
            operands.append(value)
            continue
        counts = added[number]
        shape = [size + count for size, count in zip(type.get_shape(), counts, strict=True)]
        wider = TensorType(type.element_type, shape)
        made: tensor.EmptyOp | tensor.PadOp = tensor.EmptyOp([], wider)
        if is_read(target, number):
            region = region_of(builder, type, values[number])
            made = tensor.PadOp(value, [], [], region, [0] * len(counts), list(counts), wider)
            pads.append(made)
        made.location = target.location
        made.results[0].name_hint = value.name_hint
        operands.append(builder.insert(made).results[0])
    box = [DimRange(0, dim.extent + more.get(number, 0)) for number, dim in enumerate(dims)]
    padded = tile_of(builder, target, box, operands)
    padded.results[0].name_hint = target.results[0].name_hint
    kept = [DimRange(0, dims[dim].extent) for dim in result_dims(target)]
    return padded, pads, slice_of(builder, padded.results[0], kept)


def _copied(value: SSAValue, target: GenericOp) -> GenericOp:
    """Copy a value into what the result of `target` was written over."""
    dest = target.outputs[0]
    along = loops(len(shape_of(dest)))
    copy = structured([(value, along)], (dest, along), first_of, target.location)
    return Builder(InsertPoint.before(target)).insert(copy)
