# SPDX-License-Identifier: Apache-2.0
"""Keep weights of less than a byte packed in memory, and unpack them where they are read."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32, i32
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from penstock.dialects.context import store_of
from penstock.dialects.element_bits import bits_of, packed_bytes
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import ConstantOp, DequantizeLinearOp, GraphOp, ReshapeOp, tensor_of
from penstock.dialects.graph.elementwise import PointwiseOp
from penstock.dialects.weights import WeightStore
from penstock.passes.graph.packing import InPlace, is_narrow, unpacked
from penstock.passes.graph.terms import Term
from penstock.passes.graph.values import INLINE_LIMIT, erase_dead, graph_blocks, rebuilt
from penstock.runtime.interpreter.graph import evaluate_op


def _unpacked(op: ConstantOp, code: InPlace, store: WeightStore) -> Term | None:
    """A weight of less than a byte an element as one of bytes."""
    tensor = tensor_of(op.result)
    element, shape = tensor.element_type, tensor.get_shape()
    if not is_narrow(op.result) or prod(shape) <= INLINE_LIMIT:
        return None
    bits = bits_of(numpy_dtype(element))
    if shape[-1] % (8 // bits):
        return None
    # In a byte are elements that are far apart, so that neighbours are unpacked by the same shift.
    *rows, width = shape
    each = 8 // bits
    (integers,) = evaluate_op(op, [], store)
    data = packed_bytes(integers.reshape(*rows, each, width // each), axis=len(rows))
    packed = code.packed(op, data).reshape([*rows, 1, width // each])
    return code.spread(unpacked(packed, bits, axis=len(rows)).cast(element), shape)


def _dequantized(op: DequantizeLinearOp, code: InPlace) -> Term:
    """What the op means in ops that are elementwise whatever the shape."""
    x, scale = code.term(op.x), code.term(op.scale)
    sizes = [size if dim == op.along else 1 for dim, size in enumerate(x.shape)] if op.along is not None else []
    number = x.cast(i32)
    if op.zero_point is not None:
        number = number - code.term(op.zero_point).cast(i32).reshape(sizes)
    product = number.cast(f32) * scale.cast(f32).reshape(sizes)
    return product.cast(scale.element_type)


def _rewritten(op: Operation, code: InPlace, store: WeightStore, spread: set[SSAValue]) -> Term | None:
    """What takes the place of an op; None if it stays."""
    if isinstance(op, ConstantOp):
        return _unpacked(op, code, store)
    if not isinstance(op, GraphOp) or not any(operand in spread for operand in op.operands):
        return None
    if isinstance(op, ReshapeOp):
        return code.spread(code.term(op.x), tensor_of(op.result).get_shape())
    if isinstance(op, DequantizeLinearOp):
        return _dequantized(op, code)
    return code.emit(rebuilt(op, list(op.operands))) if isinstance(op, PointwiseOp) else None


@dataclass(frozen=True)
class PackWeightsPass(ModulePass):
    """
    Replace every weight whose elements have 2 or 4 bits by one of bytes, each with several of them, and by what
    unpacks it. That is elementwise, and so is what reads the numbers one by one, which is computed before they have
    their shape: shifts, conversions and scales become one loop over the bytes.

    So plans, C and the memory of a run hold packed weights. A row is cut in as many parts as a byte holds elements:
    the first elements of all parts are in the first byte, that of the first part in the lowest bits. Rows whose length
    is no multiple of that stay as they are, an element a byte, and so do constants of few elements. Requires and
    guarantees the graph level.

    Raises UserError if a weight is missing or has another type than the text says.

    Before:
    ```mlir
    func.func @main(%x: tensor<2x2xf32>) -> tensor<2x16xf32> {
      %w = graph.constant dense<
        [[0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1], [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4]]
      > : tensor<2x16xi4>
      %s = graph.constant dense<5.000000e-01> : tensor<f32>
      %r = graph.dequantize_linear %w, %s : (tensor<2x16xi4>, tensor<f32>) -> tensor<2x16xf32>
      %y = graph.matmul %x, %r : (tensor<2x2xf32>, tensor<2x16xf32>) -> tensor<2x16xf32>
      func.return %y : tensor<2x16xf32>
    }
    ```
    After (`pack-weights`):
    ```mlir
    func.func @main(%x: tensor<2x2xf32>) -> tensor<2x16xf32> {
      %packed = graph.constant dense<
        [[-128, -111, -94, -77, -60, -43, -26, -9], [49, 49, 49, 49, 66, 66, 66, 66]]> : tensor<2x8xi8>
      %unpacked = graph.reshape %packed : tensor<2x8xi8> -> tensor<2x1x8xi8>
      %shifts = graph.constant dense<[[[4], [0]]]> : tensor<1x2x1xi8>
      %unpacked_1 = graph.shift_left %unpacked, %shifts : (tensor<2x1x8xi8>, tensor<1x2x1xi8>) -> tensor<2x2x8xi8>
      %number = graph.constant dense<4> : tensor<i8>
      %unpacked_2 = graph.shift_right %unpacked_1, %number : (tensor<2x2x8xi8>, tensor<i8>) -> tensor<2x2x8xi8>
      %s = graph.constant dense<5.000000e-01> : tensor<f32>
      %unpacked_3 = graph.cast %unpacked_2 : tensor<2x2x8xi8> -> tensor<2x2x8xi32>
      %unpacked_4 = graph.cast %unpacked_3 : tensor<2x2x8xi32> -> tensor<2x2x8xf32>
      %unpacked_5 = graph.mul %unpacked_4, %s : (tensor<2x2x8xf32>, tensor<f32>) -> tensor<2x2x8xf32>
      %r = graph.reshape %unpacked_5 : tensor<2x2x8xf32> -> tensor<2x16xf32>
      %y = graph.matmul %x, %r : (tensor<2x2xf32>, tensor<2x16xf32>) -> tensor<2x16xf32>
      func.return %y : tensor<2x16xf32>
    }
    ```
    """

    name = "pack-weights"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        store = store_of(ctx)
        for block in graph_blocks(op):
            spread = set[SSAValue]()
            for each in list(block.ops):
                code = InPlace(each, store, spread)
                if (found := _rewritten(each, code, store, spread)) is None:
                    continue
                (result,) = each.results
                found.value.name_hint = result.name_hint
                result.replace_all_uses_with(found.value)
                Rewriter.erase_op(each)
            erase_dead(block, ConstantOp | ReshapeOp | PointwiseOp)
