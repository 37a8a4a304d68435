# SPDX-License-Identifier: Apache-2.0
"""
Importers of the operators into which onnxruntime fuses what is elementwise around a product or a normalisation.

They are taken apart again: what belongs together on a machine is for the passes to say. See
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

import math
from typing import Any

from xdsl.dialects.builtin import f32, i32, i64
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph.base import normalized_axis, require
from penstock.lowering.from_onnx.accumulation import in_accumulator
from penstock.lowering.from_onnx.forms import formed
from penstock.lowering.from_onnx.node import Held, OnnxNode, Unsupported
from penstock.lowering.from_onnx.nodes_quantization import dequantize_linear, quantize_linear
from penstock.lowering.from_onnx.nodes_reduction import centred, mean_over
from penstock.lowering.from_onnx.nodes_window import convolution
from penstock.passes.graph.terms import Term

# Elementwise.


def _gelu(x: Term, approximate: str = "none") -> SSAValue:
    return x.emit(graph.GeluOp(x.value, approximate=approximate)).value


@formed("Gelu", "x")
@in_accumulator
def gelu(node: OnnxNode) -> SSAValue:
    return _gelu(node.code.input(0))


@formed("BiasGelu", "a b")
@in_accumulator
def bias_gelu(node: OnnxNode) -> SSAValue:
    return _gelu(node.code.input(0) + node.code.input(1))


@formed("FastGelu", "x bias?")
@in_accumulator
def fast_gelu(node: OnnxNode) -> SSAValue:
    """With the hyperbolic tangent in place of the normal distribution."""
    x = node.code.input(0)
    return _gelu(x + node.code.input(1) if node.has(1) else x, "tanh")


@formed("QuickGelu", "x", attributes="alpha")
@in_accumulator
def quick_gelu(node: OnnxNode) -> SSAValue:
    """x * sigmoid(alpha * x)."""
    x = node.code.input(0)
    return (x * (x * node.float("alpha", 1.702)).apply("sigmoid")).value


ACTIVATIONS = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "LeakyRelu": ("alpha",),
    "Clip": ("min", "max"),
    "HardSigmoid": ("alpha", "beta"),
    "Softplus": (),
    "Softsign": (),
    "Elu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
}
"""What products are fused with, and what their numbers are called."""


def activated(node: OnnxNode, y: Term, numbers: dict[str, float] | list[float]) -> Term:
    """`y` behind the activation that an attribute names; its numbers are in order, or by name."""
    word = node.string("activation", "")
    if not word:
        return y
    if word not in ACTIVATIONS:
        raise Unsupported(f"the activation {word}")
    names = ACTIVATIONS[word]
    if isinstance(numbers, list):
        require(len(numbers) in (0, len(names)), f"{len(numbers)} activation_params for {word}")
        numbers = dict(zip(names, numbers, strict=False))
    if word == "Clip":
        return y.clip(numbers.get("min"), numbers.get("max"))
    given: dict[str, Any] = {name: numbers[name] for name in names if name in numbers}
    return node.code.onnx(word, [y], **given)[0]


# Products.


@formed("FusedMatMul", "a b", attributes="alpha transA transB transBatchA transBatchB")
@formed("TransposeMatMul", "a b", attributes="alpha transA transB")
def fused_matmul(node: OnnxNode) -> SSAValue:
    """alpha * A' B': each with its first dimension moved behind the batch, then its matrices transposed, or not."""
    operands = [_oriented(node, index, letter) for index, letter in enumerate("AB")]
    product, alpha = operands[0] @ operands[1], node.float("alpha", 1.0)
    return (product if alpha == 1.0 else product * alpha).value


def _oriented(node: OnnxNode, index: int, letter: str) -> Term:
    x, rank = node.code.input(index), len(node.shape(index))
    perm = list(range(rank))
    if node.flag(f"transBatch{letter}", False) and rank > 2:
        perm = [*perm[1:-1], perm[0], perm[-1]]
    if node.flag(f"trans{letter}", False) and rank > 1:
        perm[-2:] = perm[:-3:-1]
    return x.transpose(perm)


@formed(
    "FusedGemm",
    "a b c?",
    attributes="alpha beta transA transB activation activation_alpha activation_beta activation_gamma",
)
def fused_gemm(node: OnnxNode) -> SSAValue:
    product = node.code.emit(
        graph.GemmOp(
            *(node.value(index) for index in (0, 1)),
            node.optional(2),
            alpha=node.float("alpha", 1.0),
            beta=node.float("beta", 1.0),
            trans_a=node.flag("transA", False),
            trans_b=node.flag("transB", False),
        )
    )
    numbers = {name: node.float(f"activation_{name}", math.nan) for name in ("alpha", "beta")}
    return activated(node, product, {name: each for name, each in numbers.items() if not math.isnan(each)}).value


_WINDOW = "auto_pad dilations group kernel_shape pads strides"


@formed("FusedConv", "x w b? z?", attributes=f"{_WINDOW} activation activation_params")
def fused_conv(node: OnnxNode) -> SSAValue:
    """A convolution, plus z, behind an activation."""
    y = node.code.term(convolution(node, node.value(0), node.value(1), node.optional(2)))
    if node.has(3):
        y = y + node.code.input(3)
    return activated(node, y, node.floats("activation_params")).value


# Normalisations.


def _only_outputs(node: OnnxNode, *numbers: int) -> None:
    """Raise Unsupported for an output that is used and is not among these."""
    for number, used in enumerate(node.used_outputs):
        if used and number not in numbers:
            raise Unsupported(f'its output "{node.proto.output[number]}"')


def _with_skip(node: OnnxNode, bias: int) -> Term:
    """The sum of the input, of what skips the layer before, and of a bias; the second may lack the batch."""
    x, skip = node.code.input(0), node.code.input(1)
    total = x + skip
    require(total.shape == x.shape, f"a skip of shape {list(skip.shape)} for {list(x.shape)}")
    return total + node.code.input(bias) if node.has(bias) else total


def _root_mean_square(x: Term, axis: int, epsilon: float) -> Term:
    return (mean_over(x * x, range(axis, len(x.shape))) + epsilon).apply("sqrt")


@formed(
    "SkipLayerNormalization",
    "input skip gamma beta? bias?",
    "output mean inv_std_var input_skip_bias_sum",
    "epsilon",
)
@in_accumulator
def skip_layer_normalization(node: OnnxNode) -> list[SSAValue | None]:
    """A layer normalisation over the last dimension of a sum, which is the fourth result."""
    _only_outputs(node, 0, 3)
    total = _with_skip(node, 4)
    _, rest, deviation = centred(total, [len(total.shape) - 1], node.float("epsilon", 1e-12))
    result = rest / deviation * node.code.input(2)
    return [(result + node.code.input(3) if node.has(3) else result).value, None, None, total.value]


@formed(
    "SkipSimplifiedLayerNormalization",
    "input skip gamma bias?",
    "output mean inv_std_var input_skip_bias_sum",
    "epsilon",
)
@in_accumulator
def skip_simplified_layer_normalization(node: OnnxNode) -> list[SSAValue | None]:
    """The same, with the root of the mean square in place of the deviation, and the mean left in."""
    _only_outputs(node, 0, 3)
    total = _with_skip(node, 3)
    root = _root_mean_square(total, len(total.shape) - 1, node.float("epsilon", 1e-12))
    return [(total / root * node.code.input(2)).value, None, None, total.value]


@formed("SimplifiedLayerNormalization", "x scale", "y inv_std_var", "axis epsilon stash_type", domain="")
def simplified_layer_normalization(node: OnnxNode) -> list[SSAValue]:
    """Over all dimensions from `axis` on, in f32; the reciprocal of the root is f32 too."""
    if node.int("stash_type", 1) != 1:
        raise Unsupported(f"stash_type {node.int('stash_type', 1)}")
    scale, rank = node.code.input(1), len(node.shape(0))
    axis = normalized_axis(node.int("axis", -1), rank)
    x = node.code.input(0, f32)
    root = _root_mean_square(x, axis, node.float("epsilon", 1e-5))
    normal = (x / root).cast(scale.element_type) * scale
    outputs = [normal]
    if any(node.used_outputs[1:]):
        outputs.append(root.apply("reciprocal"))
    return [each.value for each in outputs]


@formed(
    "EmbedLayerNormalization",
    "input_ids segment_ids? word_embedding position_embedding segment_embedding? gamma beta mask? position_ids?",
    "output mask_index embedding_sum",
    "epsilon mask_index_type",
)
def embed_layer_normalization(node: OnnxNode) -> list[Held | None]:
    """The sum of the embeddings of words, of their positions and of their segments, normalised over each."""
    code = node.code
    ids = code.input(0, i64)
    batch, length = ids.shape
    words = code.emit(graph.GatherOp(node.value(2), ids.value, axis=0))
    positions = code.input(3)
    if node.has(8):
        place = code.input(8, i64).expand([batch, length])
        at = code.emit(graph.GatherOp(positions.value, place.value, axis=0))
    else:
        require(positions.shape[0] >= length, f"{positions.shape[0]} positions for {length} words")
        at = positions.cut(0, 0, length)
    total = words + at
    if node.has(1) and node.has(4):
        total = total + code.emit(graph.GatherOp(node.value(4), code.input(1, i64).value, axis=0))
    element = total.element_type
    _, rest, deviation = centred(total.cast(f32), [2], node.float("epsilon", 1e-12))
    normal = (rest / deviation).cast(element) * code.input(5) + code.input(6)
    counted = code.number(0, i32).expand([batch])
    if node.has(7):
        counted = code.input(7, i32).equal(1).cast(i32).sum([1], keepdims=False)
    return [normal.value, counted.value, total.value]


# Of other names than ONNX has for them, and with element types of which its own had less once.


@formed("QuantizeLinear", "x y_scale y_zero_point?", attributes="axis block_size output_dtype saturate precision")
def _quantize(node: OnnxNode) -> SSAValue:
    return quantize_linear(node)


@formed("DequantizeLinear", "x x_scale x_zero_point?", attributes="axis block_size output_dtype")
def _dequantize(node: OnnxNode) -> SSAValue:
    return dequantize_linear(node)
