# SPDX-License-Identifier: Apache-2.0
"""Structured operations by name become `linalg.generic`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import AffineMapAttr, MemRefType, ModuleOp, ShapedType, TensorType
from xdsl.dialects.linalg.abstract_ops import LinalgStructuredOperation
from xdsl.dialects.linalg.attrs import IteratorTypeAttr
from xdsl.dialects.linalg.ops import BroadcastOp, GenericOp
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.upstream.linalg import MapOp, ReduceOp, SoftmaxOp
from penstock.dialects.upstream.tensor import EmptyOp
from penstock.passes.generics import first_of, structured
from penstock.passes.scalar_body import Body, Compute, lowest
from penstock.passes.shapes import Dims, element_of, loops, shape_of, tensor_type


def _results(outputs: Sequence[SSAValue]) -> list[Attribute]:
    return [type for type in (value.type for value in outputs) if isa(type, TensorType)]


def _generic(
    inputs: Sequence[SSAValue],
    outputs: Sequence[SSAValue],
    body: Region,
    maps: Sequence[AffineMap],
    kinds: Sequence[IteratorTypeAttr],
) -> GenericOp:
    return GenericOp(inputs, outputs, body, [AffineMapAttr(each) for each in maps], kinds, _results(outputs))


def _structured(op: LinalgStructuredOperation) -> GenericOp:
    """The same operation, with its maps and its body in the text; scalars are read where they are."""
    body, maps = op.body.clone(), [each.data for each in op.get_indexing_maps()]
    block, inputs, kept = body.block, list[SSAValue](), list[AffineMap]()
    for index, value in reversed(list(enumerate(op.inputs))):
        if isinstance(value.type, ShapedType):
            inputs[:0], kept[:0] = [value], [maps[index]]
        else:
            block.args[index].replace_all_uses_with(value)
            block.erase_arg(block.args[index])
    return _generic(inputs, list(op.outputs), body, [*kept, *maps[len(op.inputs) :]], list(op.get_iterator_types()))


def _broadcast(op: BroadcastOp) -> GenericOp:
    added = set(op.dimensions.get_values())
    kept = [dim for dim in range(len(shape_of(op.init))) if dim not in added]
    return structured(
        [(op.input, [AffineExpr.dimension(dim) for dim in kept])], (op.init, _every(op.init)), first_of, op.location
    )


def _every(value: SSAValue) -> Dims:
    return loops(len(cast(ShapedType, value.type).get_shape()))


def _map(op: MapOp) -> GenericOp:
    body = op.mapper.clone()
    if len(body.block.args) == len(op.inputs):
        body.block.insert_arg(cast("TensorType | MemRefType", op.init.type).element_type, len(op.inputs))
    rank = len(cast(ShapedType, op.init.type).get_shape())
    maps = [AffineMap.identity(rank)] * (len(op.inputs) + 1)
    return _generic(list(op.inputs), [op.init], body, maps, [IteratorTypeAttr.parallel()] * rank)


def _reduce(op: ReduceOp) -> GenericOp:
    rank = len(cast(ShapedType, op.inputs[0].type).get_shape())
    summed = set(op.dimensions.get_values())
    kept = AffineMap(rank, 0, tuple(AffineExpr.dimension(dim) for dim in range(rank) if dim not in summed))
    kinds = [IteratorTypeAttr.reduction() if dim in summed else IteratorTypeAttr.parallel() for dim in range(rank)]
    maps = [AffineMap.identity(rank)] * len(op.inputs) + [kept] * len(op.inits)
    return _generic(list(op.inputs), list(op.inits), op.combiner.clone(), maps, kinds)


def _softmax(op: SoftmaxOp) -> list[Operation]:
    """exp(x - max), over its sum."""
    element, shape, axis = element_of(op.output), shape_of(op.output), op.dimension.value.data
    every = loops(len(shape))
    # Reductions are the last loops.
    others = [dim for dim in range(len(shape)) if dim != axis]
    moved: list[AffineExpr] = [every[0]] * len(shape)
    for loop, dim in enumerate([*others, axis]):
        moved[dim] = AffineExpr.dimension(loop)
    small, made = tuple(shape[dim] for dim in others), list[Operation]()

    def add(op: Operation) -> SSAValue:
        made.append(op)
        return op.results[0]

    def reduced(value: SSAValue, start: float, combine: Compute) -> SSAValue:
        empty = add(EmptyOp((), tensor_type(small, element)))
        place = empty, loops(len(small))
        begun = add(structured([], place, lambda body, xs: body.constant(start, element), op.location))
        return add(structured([(value, moved)], (begun, loops(len(small))), combine, op.location, reductions=1))

    def divided(body: Body, xs: Sequence[SSAValue]) -> SSAValue:
        return body.div(xs[0], xs[1])

    def powers(body: Body, xs: Sequence[SSAValue]) -> SSAValue:
        return body.apply("exp", body.sub(xs[0], xs[1]))

    kept = [every[dim] for dim in others]
    most = reduced(op.input, lowest(element, False), lambda body, xs: body.max(xs[0], xs[1]))
    apart = add(EmptyOp((), op.output.type))
    above = add(structured([(op.input, every), (most, kept)], (apart, every), powers, op.location))
    total = reduced(above, 0, lambda body, xs: body.add(xs[0], xs[1]))
    add(structured([(above, every), (total, kept)], (op.output, every), divided, op.location))
    return made


_FORMS: dict[type[Operation], Callable[..., Operation | list[Operation]]] = {
    BroadcastOp: _broadcast,
    MapOp: _map,
    ReduceOp: _reduce,
    SoftmaxOp: _softmax,
}


def generalize(op: Operation) -> bool:
    """Replace a structured operation by one, or several, `linalg.generic`; returns whether it was one by name."""
    if isinstance(op, GenericOp):
        return False
    special = _FORMS.get(type(op))
    if special is None and not isinstance(op, LinalgStructuredOperation):
        return False
    if isinstance(op, SoftmaxOp) and not isinstance(op.output.type, TensorType):
        raise UserError("linalg.softmax of memrefs is not supported", loc=location_of(op), status=UNSUPPORTED)
    made = special(op) if special is not None else _structured(cast(LinalgStructuredOperation, op))
    ops = made if isinstance(made, list) else [made]
    for each in ops:
        each.location = op.location
    for old, new in zip(op.results, ops[-1].results, strict=True):
        new.name_hint = old.name_hint
    Rewriter.replace_op(op, ops, ops[-1].results)
    return True


def take_constants(generic: GenericOp) -> None:
    """Let the body of a generic have the numbers itself that it reads from outside."""
    block, copies = generic.body.block, dict[SSAValue, SSAValue]()
    for op in list(block.walk()):
        for index, value in enumerate(op.operands):
            owner = value.owner
            if not isinstance(owner, arith.ConstantOp) or generic.is_ancestor(owner):
                continue
            if isinstance(value.type, ShapedType):
                continue
            if value not in copies:
                copy = owner.clone()
                copy.location = owner.location
                Rewriter.insert_op(copy, InsertPoint.at_start(block))
                copies[value] = copy.result
            op.operands[index] = copies[value]


def _divide(empty: tensor.EmptyOp) -> None:
    """Give each user of a `tensor.empty` one of its own: users of one that is shared would write to the same bytes."""
    for use in list(empty.tensor.uses)[1:]:
        copy = empty.clone()
        copy.location = empty.location
        Rewriter.insert_op(copy, InsertPoint.after(empty))
        use.operation.operands[use.index] = copy.tensor


@dataclass(frozen=True)
class GeneralizeNamedOpsPass(ModulePass):
    """
    Rewrite every structured operation of linalg that has a name into `linalg.generic`.

    Requires named operations on tensors or memrefs: contractions, convolutions, poolings, elementwise functions,
    `fill`, `copy`, `transpose`, `broadcast`, `map`, `reduce` and `softmax`, which becomes four generics. Guarantees:
    every structured op is a generic, reads no constant from outside of its body, and has a `tensor.empty` of its own
    where it begins with one. The values are the same, bit for bit.

    Before:
    ```mlir
    func.func @main(%a: tensor<4x8xf32>, %b: tensor<8x6xf32>, %c: tensor<4x6xf32>) -> tensor<4x6xf32> {
      %y = linalg.matmul ins(%a, %b : tensor<4x8xf32>, tensor<8x6xf32>) outs(%c : tensor<4x6xf32>) -> tensor<4x6xf32>
      func.return %y : tensor<4x6xf32>
    }
    ```
    After (`generalize-named-ops`):
    ```mlir
    func.func @main(%a: tensor<4x8xf32>, %b: tensor<8x6xf32>, %c: tensor<4x6xf32>) -> tensor<4x6xf32> {
      %y = linalg.generic {indexing_maps = [
          affine_map<(d0, d1, d2) -> (d0, d2)>,
          affine_map<(d0, d1, d2) -> (d2, d1)>,
          affine_map<(d0, d1, d2) -> (d0, d1)>],
          iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%a, %b : tensor<4x8xf32>, tensor<8x6xf32>) outs(%c : tensor<4x6xf32>) {
      ^bb0(%0: f32, %1: f32, %2: f32):
        %3 = arith.mulf %0, %1 : f32
        %4 = arith.addf %2, %3 : f32
        linalg.yield %4 : f32
      } -> tensor<4x6xf32>
      func.return %y : tensor<4x6xf32>
    }
    ```
    """

    name = "generalize-named-ops"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for each in list(op.walk()):
            if each.name.startswith("linalg."):
                generalize(each)
        for each in list(op.walk()):
            if isinstance(each, GenericOp):
                take_constants(each)
        for each in list(op.walk()):
            if isinstance(each, tensor.EmptyOp):
                _divide(each)
