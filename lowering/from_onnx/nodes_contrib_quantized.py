# SPDX-License-Identifier: Apache-2.0
"""
Importers of onnxruntime's operators on integers that stand for numbers.

Those that are not products are what they mean: dequantised, computed in f32, quantised. A runtime that rounds elsewhere
on the way may give the integer next to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from xdsl.dialects.builtin import f32, i32
from xdsl.ir import Attribute, SSAValue

from penstock.dialects import graph
from penstock.dialects.element_bits import NARROW, unpacked_bytes
from penstock.dialects.element_types import element_type
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import normalized_axis, require
from penstock.dialects.weights import Array
from penstock.lowering.from_onnx.forms import formed
from penstock.lowering.from_onnx.node import Held, Importer, OnnxNode, Outputs, Unsupported
from penstock.lowering.from_onnx.nodes_quantization import centred_integers, is_zero, parameter, qlinear_conv
from penstock.lowering.from_onnx.nodes_recurrent import LstmCell, recurrent
from penstock.lowering.from_onnx.nodes_reduction import mean_over
from penstock.passes.graph.packing import unpacked
from penstock.passes.graph.terms import Term


def _real(node: OnnxNode, index: int) -> Term:
    """The numbers of an operand, whose scale and zero point are the two inputs after it."""
    scale, zero = parameter(node, index + 1), None
    if not is_zero(node, index + 2):
        zero = parameter(node, index + 2).value
    return node.code.emit(graph.DequantizeLinearOp(node.value(index), scale.value, zero))


def _encoded(node: OnnxNode, y: Term, scale: int, element: Attribute) -> SSAValue:
    """The integers for numbers, by the scale that is an input and the zero point after it."""
    zero = parameter(node, scale + 1).value if node.has(scale + 1) else None
    return node.emit(graph.QuantizeLinearOp(y.value, parameter(node, scale).value, zero, element_type=element))


def _of_real(compute: Callable[..., Term], operands: Sequence[int] = (0,)) -> Importer:
    """An operator that computes on numbers; the operands are the inputs, the scale of the result follows the last."""

    def build(node: OnnxNode) -> SSAValue:
        y = compute(node, *(_real(node, index) for index in operands))
        return _encoded(node, y, operands[-1] + 3, node.type(operands[-1]).element_type)

    return build


_PAIR = "a a_scale a_zero_point? b b_scale b_zero_point? c_scale c_zero_point?"
_ONE = "x x_scale x_zero_point? y_scale y_zero_point?"
_WINDOW = "auto_pad ceil_mode channels_last count_include_pad kernel_shape pads strides"


def _average_pool(node: OnnxNode, x: Term) -> Term:
    names = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
    given = {name: value for name in names if (value := node.raw(name)) is not None}
    return _channels_first(node, x, lambda image: node.code.onnx("AveragePool", [image], **given)[0])


def _global_average_pool(node: OnnxNode, x: Term) -> Term:
    rank = len(x.shape)
    return mean_over(x, range(1, rank - 1) if node.flag("channels_last", False) else range(2, rank))


def _channels_first(node: OnnxNode, x: Term, compute: Callable[[Term], Term]) -> Term:
    """What an operator on images gives, whose channels may be the last dimension."""
    if not node.flag("channels_last", False):
        return compute(x)
    rank = len(x.shape)
    first, last = [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]
    return compute(x.transpose(first)).transpose(last)


def _softmax(node: OnnxNode, x: Term) -> Term:
    """Before operator set 13 over all dimensions from `axis` on, which then is by default the second."""
    version = node.int("opset", 13)
    axis = normalized_axis(node.int("axis", -1 if version >= 13 else 1), len(x.shape))
    if version >= 13:
        return node.code.emit(graph.SoftmaxOp(x.value, axis=axis))
    rows = x.reshape([*x.shape[:axis], -1])
    return node.code.emit(graph.SoftmaxOp(rows.value, axis=axis)).reshape(x.shape)


def _sum(node: OnnxNode, a: Term, b: Term) -> Term:
    return a + b


def _product(node: OnnxNode, a: Term, b: Term) -> Term:
    return a * b


def _sigmoid(node: OnnxNode, x: Term) -> Term:
    return x.apply("sigmoid")


def _leaky_relu(node: OnnxNode, x: Term) -> Term:
    return node.code.emit(graph.LeakyReluOp(x.value, alpha=node.float("alpha", 0.01)))


formed("QLinearAdd", _PAIR)(_of_real(_sum, (0, 3)))
formed("QLinearMul", _PAIR)(_of_real(_product, (0, 3)))
formed("QLinearSigmoid", _ONE)(_of_real(_sigmoid))
formed("QLinearLeakyRelu", _ONE, attributes="alpha")(_of_real(_leaky_relu))
formed("QLinearSoftmax", "x x_scale x_zero_point? y_scale y_zero_point", attributes="axis opset")(_of_real(_softmax))
formed("QLinearAveragePool", _ONE, attributes=_WINDOW)(_of_real(_average_pool))
formed("QLinearGlobalAveragePool", _ONE.replace("?", ""), attributes="channels_last")(_of_real(_global_average_pool))


@formed("QLinearConcat", "y_scale y_zero_point inputs*", attributes="axis")
def qlinear_concat(node: OnnxNode) -> SSAValue:
    """Triples of integers, their scale and their zero point; those with the scale of the result stay as they are."""
    require(
        (len(node.inputs) - 2) % 3 == 0 and len(node.inputs) > 2, f"{len(node.inputs) - 2} inputs, which are triples"
    )
    element = node.type(1).element_type
    parts: list[SSAValue] = []
    for index in range(2, len(node.inputs), 3):
        is_same = all(_equal(node, index + 1 + number, number) for number in (0, 1))
        parts.append(node.value(index) if is_same else _encoded(node, _real(node, index), 0, element))
    return node.emit(graph.ConcatOp(parts, axis=normalized_axis(node.int("axis", 0), len(node.shape(2)))))


def _equal(node: OnnxNode, left: int, right: int) -> bool:
    """Whether two inputs are known to be the same."""
    a, b = node.held(left), node.held(right)
    return a is b or not (isinstance(a, SSAValue) or isinstance(b, SSAValue) or not np.array_equal(a, b))


@formed("QLinearWhere", "condition x x_scale x_zero_point y y_scale y_zero_point z_scale z_zero_point")
def qlinear_where(node: OnnxNode) -> SSAValue:
    chosen = node.code.input(0).where(_real(node, 1), _real(node, 4))
    return _encoded(node, chosen, 7, node.type(1).element_type)


# Products.


@formed(
    "QGemm",
    "a a_scale a_zero_point b b_scale b_zero_point c? y_scale? y_zero_point?",
    attributes="alpha transA transB",
)
def qgemm(node: OnnxNode) -> SSAValue:
    """alpha * A' B' + c, whose integers are in units of alpha and both scales; in f32 without a scale of the result."""
    is_row = node.flag("transB", False)
    a = node.code.term(centred_integers(node, 0, 2, trailing=0))
    b = node.code.term(centred_integers(node, 3, 5, trailing=1 if is_row else 0))
    left, right = (a.transpose([1, 0]) if node.flag("transA", False) else a), (b.transpose([1, 0]) if is_row else b)
    total = node.code.emit(graph.MatmulOp(left.value, right.value, accumulator=i32))
    if node.has(6):
        total = total + node.code.input(6)
    factor = parameter(node, 1) * parameter(node, 4) * node.float("alpha", 1.0)
    if not node.has(7):
        return (total.cast(f32) * factor).value
    scaled = total.cast(f32) * (factor / parameter(node, 7))
    zero = parameter(node, 8).value if node.has(8) else None
    element = node.type(8).element_type if node.has(8) else node.type(0).element_type
    return node.emit(graph.QuantizeLinearOp(scaled.value, node.code.number(1.0, f32).value, zero, element_type=element))


@formed("MatMulIntegerToFloat", "a b a_scale b_scale a_zero_point? b_zero_point? bias?")
def matmul_integer_to_float(node: OnnxNode) -> SSAValue:
    """The product of the numbers that integers stand for; one scale for each column of the second, or for all."""
    a, b = centred_integers(node, 0, 4, trailing=1), centred_integers(node, 1, 5, trailing=0)
    total = node.code.emit(graph.MatmulOp(a, b, accumulator=i32)).cast(f32)
    y = (total * (parameter(node, 2, f32) * parameter(node, 3, f32))).cast(node.type(2).element_type)
    return (y + node.code.input(6) if node.has(6) else y).value


@formed("DynamicQuantizeMatMul", "a b b_scale b_zero_point? bias?")
def dynamic_quantize_matmul(node: OnnxNode) -> SSAValue:
    """The same of floats, which are brought to bytes by the smallest and the largest of them first."""
    a, scale, zero = node.code.onnx("DynamicQuantizeLinear", [node.code.input(0)], 3)
    b = centred_integers(node, 1, 3, trailing=0)
    total = node.code.emit(graph.MatmulOp((a.cast(i32) - zero.cast(i32)).value, b, accumulator=i32))
    y = total.cast(f32) * (scale * parameter(node, 2))
    return (y + node.code.input(4) if node.has(4) else y).value


@formed(
    "MatMulNBits",
    "a b scales zero_points? g_idx? bias?",
    attributes="K N accuracy_level bits block_size weight_prepacked",
)
def matmul_nbits(node: OnnxNode) -> SSAValue:
    """
    A product with weights of 2, 4 or 8 bits, several to a byte: row n of B', which is [N, K], in blocks with a scale
    and a zero point each, by default the middle of the range. It is computed in the type of the first operand whatever
    `accuracy_level` says, which allows less.
    """
    bits, block, columns, inner = node.int("bits", 4), node.int("block_size", 0), node.int("N", 0), node.int("K", 0)
    if bits not in (2, 4, 8):
        raise Unsupported(f"{bits} bits")
    if node.has(4):
        raise Unsupported("with g_idx: blocks of rows that are not neighbours")
    if node.flag("weight_prepacked", False):
        raise Unsupported("weights in an order of the library's own (weight_prepacked)")
    require(block > 0 and columns > 0 and inner > 0, f"N {columns}, K {inner}, block_size {block}")
    x, blocks = node.code.input(0), -(-inner // block)
    element = x.element_type

    def by_block(index: int) -> Term:
        """A number for each block of a row, as they stand in the columns of B."""
        return node.code.input(index).reshape([columns, blocks]).transpose([1, 0]).reshape([blocks, 1, columns])

    packed = _columns(node, 1, bits, [columns, blocks * block])
    whole = packed if isinstance(packed, Term) else node.code.constant(packed, "b")
    number = whole.cast(element).reshape([blocks, block, columns])
    if not node.has(3):
        number = number - float(1 << (bits - 1))
    elif _element(node.held(3)) == element:
        number = number - by_block(3)
    else:
        packed = _columns(node, 3, bits, [columns, blocks])
        zeros = packed.cast(element) if isinstance(packed, Term) else node.code.constant(packed, "zero_points", element)
        number = number - zeros.reshape([blocks, 1, columns])
    weights = (number * by_block(2)).reshape([blocks * block, columns]).cut(0, 0, inner)
    y = x @ weights
    return (y + node.code.input(5) if node.has(5) else y).value


def _element(held: Held) -> Attribute:
    return tensor_of(held).element_type if isinstance(held, SSAValue) else element_type(held.dtype)


def _columns(node: OnnxNode, index: int, bits: int, shape: Sequence[int]) -> Term | Array:
    """The transpose of a matrix whose rows are bytes with several integers without a sign each."""
    rows, columns = shape
    each = -(-columns * bits // 8)
    held, size = node.held(index), math.prod(node.shape(index))
    require(size == rows * each, f"input {index} has {size} bytes, not {rows * each}")
    if not isinstance(held, SSAValue):
        data = held.reshape(rows, each)
        return np.ascontiguousarray((unpacked_bytes(data, NARROW[bits, True]) if bits < 8 else data)[:, :columns].T)
    flat = node.code.input(index).reshape([rows, each])
    apart = flat if bits == 8 else unpacked(flat.reshape([rows, each, 1]), bits, axis=2)
    return apart.reshape([rows, each * 8 // bits]).cut(1, 0, columns).transpose([1, 0])


# Recurrent.


@formed(
    "DynamicQuantizeLSTM",
    "x w r b? sequence_lens? initial_h? initial_c? p? w_scale w_zero_point r_scale r_zero_point",
    "y y_h y_c",
    "activation_alpha activation_beta activations clip direction hidden_size input_forget",
)
def dynamic_quantize_lstm(node: OnnxNode) -> Outputs:
    """
    An LSTM on the numbers that the integers of its weights stand for, each [directions, inputs, 4 * hidden].

    Its inputs and its state stay floats, which onnxruntime brings to bytes first: what it computes so differs from this
    by the rounding of that.
    """
    weights = [_dequantized(node, index, index + 7 + offset) for offset, index in enumerate((1, 2))]
    inputs = [node.inputs[0], *weights, *node.inputs[3:8]]
    return recurrent(LstmCell)(OnnxNode(node.proto, node.opset, inputs, node.used_outputs, node.builder))


def _dequantized(node: OnnxNode, index: int, scale: int) -> Array:
    """Weights as ONNX's LSTM has them: [directions, 4 * hidden, inputs]."""
    whole, steps, zero = (
        node.array(number, what) for number, what in ((index, "weights"), (scale, "scales"), (scale + 1, "zero points"))
    )
    columns = [each.reshape(whole.shape[0], 1, -1) for each in (steps, zero)]
    real = (whole.astype(np.int32) - columns[1].astype(np.int32)).astype(np.float32) * columns[0]
    return np.ascontiguousarray(real.transpose(0, 2, 1))


# With the channels last.


def _with_channels_last(importer: Importer) -> Importer:
    """An operator whose first operand and result have the channels last, by one that has them first."""

    def build(node: OnnxNode) -> SSAValue:
        def compute(x: Term) -> Term:
            inputs = [x.value, *node.inputs[1:]]
            found = importer(OnnxNode(node.proto, node.opset, inputs, node.used_outputs, node.builder))
            result = found[0] if isinstance(found, list) else found
            assert isinstance(result, SSAValue)
            return node.code.term(result)

        return _channels_first(node, node.code.input(0), compute).value

    return build


_FILTERS = "auto_pad channels_last dilations group kernel_shape pads strides"

formed(
    "QLinearConv",
    "x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point b?",
    attributes=_FILTERS,
)(_with_channels_last(qlinear_conv))
