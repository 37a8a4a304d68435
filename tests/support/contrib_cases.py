# SPDX-License-Identifier: Apache-2.0
"""
Random nodes of the operators that onnxruntime defines beside ONNX's: attributes, shapes, inputs left out.

A case has one node. Those that are run together are put side by side into one model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from byte_products import byte_factors
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

Array = NDArray[Any]


Reference = Callable[[Mapping[str, Array]], Sequence[Array]]


@dataclass
class Case:
    """A node, the values of its inputs, and what its results may differ by."""

    node: NodeProto
    inputs: dict[str, Array]
    weights: dict[str, Array]
    rtol: float = 1e-4
    atol: float = 1e-5
    units: int = 0
    """By how many units a result that is an integer may differ, where runtimes round on the way in other places."""
    compared: Callable[[int, Array], Array] = lambda number, result: result
    """What of a result is defined."""
    version: int = 3
    """Of the domain of classical machine learning."""
    reference: Reference | None = None
    """What computes the results, where onnxruntime does not on the CPU."""

    def agree(self, number: int, ours: Array, theirs: Array, where: str) -> None:
        """Raise AssertionError where a result is not the expected one."""
        name = f"{where}: {self.node.op_type} {number} {[str(each) for each in self.node.attribute]}"
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), name
        ours, theirs = self.compared(number, ours), self.compared(number, theirs)
        if ours.dtype.kind in "iub":
            difference = np.abs(ours.astype(np.int64) - theirs.astype(np.int64))
            assert difference.max(initial=0) <= self.units, name
            assert np.count_nonzero(difference) <= max(1, difference.size // 50) or self.units == 0, name
            return
        np.testing.assert_allclose(
            ours.astype(np.float64), theirs.astype(np.float64), rtol=self.rtol, atol=self.atol, err_msg=name
        )


@dataclass
class Draw:
    """Where the numbers of a case come from."""

    rng: np.random.Generator
    operands: dict[str, Array | None] = field(default_factory=dict[str, "Array | None"])

    def size(self, low: int, high: int) -> int:
        """A number from `low` to `high`."""
        return int(self.rng.integers(low, high + 1))

    def flip(self, share: float = 0.5) -> bool:
        """Whether something is so."""
        return bool(self.rng.random() < share)

    def one_of(self, *choices: Any) -> Any:
        """One of several."""
        return choices[self.size(0, len(choices) - 1)]

    def floats(self, *shape: int, low: float = -2, high: float = 2, dtype: Any = np.float32) -> Array:
        """Numbers of a range."""
        return self.rng.uniform(low, high, shape).astype(dtype)

    def integers(self, low: int, high: int, *shape: int, dtype: Any = np.int64) -> Array:
        """Integers from `low` to `high`."""
        return self.rng.integers(low, high + 1, shape).astype(dtype)

    def bytes(self, *shape: int, dtype: Any) -> Array:
        """Any integers of a type."""
        info = np.iinfo(dtype)
        return self.integers(info.min, info.max, *shape, dtype=dtype)

    def factors(self, *shape: int, dtype: Any) -> Array:
        """Right factors of products of bytes."""
        return byte_factors(self.rng, dtype, shape)

    def case(
        self,
        operator: str,
        operands: Sequence[Array | None],
        outputs: int | Sequence[bool] = 1,
        *,
        known: Sequence[int] = (),
        domain: str = "com.microsoft",
        attributes: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Case:
        """A case of an operator: operands at the places `known` are initializers, None is left out."""
        used = [True] * outputs if isinstance(outputs, int) else outputs
        names = ["" if each is None else f"x{index}" for index, each in enumerate(operands)]
        while names and not names[-1]:
            names.pop()
        given = {f"x{index}": each for index, each in enumerate(operands) if each is not None}
        results = [f"y{index}" if each else "" for index, each in enumerate(used)]
        node = helper.make_node(operator, names, results, operator, domain=domain, **dict(attributes or {}))
        weights = {f"x{index}": given.pop(f"x{index}") for index in known if f"x{index}" in given}
        return Case(node, given, weights, **more)


def model_of(cases: Sequence[Case]) -> tuple[ModelProto, dict[str, Array]]:
    """The nodes of several cases side by side in one model, and its inputs."""
    nodes: list[NodeProto] = []
    infos: list[ValueInfoProto] = []
    inputs: dict[str, Array] = {}
    weights: dict[str, Array] = {}
    for number, case in enumerate(cases):
        node = NodeProto()
        node.CopyFrom(case.node)
        node.name = f"{case.node.op_type}.{number}"
        for names in (node.input, node.output):
            names[:] = [f"c{number}.{name}" if name else "" for name in names]
        nodes.append(node)
        inputs |= {f"c{number}.{name}": array for name, array in case.inputs.items()}
        weights |= {f"c{number}.{name}": array for name, array in case.weights.items()}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    graph = helper.make_graph(
        nodes,
        "cases",
        infos,
        [helper.make_empty_tensor_value_info(name) for node in nodes for name in node.output if name],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = {"": 21, "com.microsoft": 1, "ai.onnx.ml": max(case.version for case in cases)}
    versions = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=versions, ir_version=10), inputs


# Elementwise.


def gelu(draw: Draw) -> Case:
    return draw.case("Gelu", [draw.floats(draw.size(1, 3), draw.size(1, 9))])


def bias_gelu(draw: Draw) -> Case:
    columns = draw.size(1, 9)
    return draw.case("BiasGelu", [draw.floats(2, draw.size(1, 3), columns), draw.floats(columns)])


def fast_gelu(draw: Draw) -> Case:
    columns = draw.size(1, 9)
    bias = draw.floats(columns) if draw.flip() else None
    return draw.case("FastGelu", [draw.floats(2, draw.size(1, 3), columns), bias])


def quick_gelu(draw: Draw) -> Case:
    attributes = {"alpha": draw.one_of(1.0, 0.5, 1.702)} if draw.flip() else {}
    return draw.case("QuickGelu", [draw.floats(draw.size(1, 5), draw.size(1, 5))], attributes=attributes)


# Products.


def fused_matmul(draw: Draw) -> Case:
    batch, m, k, n = (draw.size(1, 3) for _ in range(4))
    rank = draw.size(2, 4)
    transposed = [draw.flip(), draw.flip()]
    batched = [draw.flip(0.3), draw.flip(0.3)] if rank > 2 else [False, False]
    operands: list[Array] = []
    for (rows, columns), moved, swapped in zip(((m, k), (k, n)), batched, transposed, strict=True):
        if swapped:
            rows, columns = columns, rows
        whole = [batch, 2][: rank - 2]
        # The first dimension is moved behind the batch.
        shape = [rows, *whole, columns] if moved else [*whole, rows, columns]
        operands.append(draw.floats(*shape))
    attributes = {"transA": int(transposed[0]), "transB": int(transposed[1])}
    if rank > 2:
        attributes |= {"transBatchA": int(batched[0]), "transBatchB": int(batched[1])}
    if draw.flip():
        attributes["alpha"] = draw.one_of(0.5, 2.0, 0.125)
    old = not any(batched) and draw.flip(0.3)
    attributes = {name: value for name, value in attributes.items() if not (old and "Batch" in name)}
    operator = "TransposeMatMul" if old else "FusedMatMul"
    return draw.case(operator, operands, known=[1] if draw.flip() else [], attributes=attributes)


ACTIVATIONS: dict[str, Sequence[float]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "LeakyRelu": (0.1,),
    "Clip": (-0.5, 0.75),
    "HardSigmoid": (0.2, 0.5),
}


def fused_gemm(draw: Draw) -> Case:
    m, k, n = (draw.size(1, 4) for _ in range(3))
    turned = [draw.flip(), draw.flip()]
    a, b = draw.floats(*((k, m) if turned[0] else (m, k))), draw.floats(*((n, k) if turned[1] else (k, n)))
    c = draw.one_of(None, draw.floats(n), draw.floats(m, 1), draw.floats(m, n))
    word = draw.one_of("Relu", "Tanh", "Sigmoid", "LeakyRelu")
    attributes: dict[str, Any] = {"activation": word, "transA": int(turned[0]), "transB": int(turned[1])}
    if word == "LeakyRelu":
        attributes["activation_alpha"] = 0.2
    if draw.flip():
        attributes |= {"alpha": 0.5, "beta": 0.25 if c is not None else 1.0}
    return draw.case("FusedGemm", [a, b, c], attributes=attributes)


def fused_conv(draw: Draw) -> Case:
    channels, outputs, size, kernel = 2 * draw.size(1, 2), 2 * draw.size(1, 2), draw.size(4, 7), draw.size(1, 3)
    group = draw.one_of(1, 2)
    x, w = draw.floats(1, channels, size, size), draw.floats(outputs, channels // group, kernel, kernel)
    attributes: dict[str, Any] = {"group": group}
    if draw.flip():
        attributes["strides"] = [draw.size(1, 2), draw.size(1, 2)]
    if draw.flip():
        attributes["pads"] = [draw.size(0, 1) for _ in range(4)]
    word = draw.one_of(*ACTIVATIONS)
    attributes["activation"] = word
    if ACTIVATIONS[word]:
        attributes["activation_params"] = list(ACTIVATIONS[word])
    pads, strides = attributes.get("pads", [0] * 4), attributes.get("strides", [1, 1])
    spatial = [(size + pads[dim] + pads[dim + 2] - kernel) // strides[dim] + 1 for dim in range(2)]
    z = draw.floats(1, outputs, *spatial) if draw.flip() else None
    b = draw.floats(outputs) if z is not None or draw.flip() else None
    return draw.case("FusedConv", [x, w, b, z], known=[1, 2], attributes=attributes)


# Normalisations.


def _width(draw: Draw) -> tuple[int, int, int]:
    return draw.size(1, 2), draw.size(1, 4), draw.size(2, 8)


def skip_layer_normalization(draw: Draw) -> Case:
    batch, length, width = _width(draw)
    skip = draw.one_of(draw.floats(batch, length, width), draw.floats(1, length, width), draw.floats(length, width))
    beta, bias = (draw.floats(width) if draw.flip() else None for _ in range(2))
    operands = [draw.floats(batch, length, width), skip, draw.floats(width), beta, bias]
    outputs = [True, False, False, True] if draw.flip() else [True]
    attributes = {"epsilon": draw.one_of(1e-5, 1e-12)}
    return draw.case("SkipLayerNormalization", operands, outputs, attributes=attributes)


def skip_simplified_layer_normalization(draw: Draw) -> Case:
    batch, length, width = _width(draw)
    bias = draw.floats(width) if draw.flip() else None
    operands = [draw.floats(batch, length, width), draw.floats(batch, length, width), draw.floats(width), bias]
    outputs = [True, False, False, True] if draw.flip() else [True]
    attributes = {"epsilon": draw.one_of(1e-5, 1e-6)}
    return draw.case("SkipSimplifiedLayerNormalization", operands, outputs, attributes=attributes)


def simplified_layer_normalization(draw: Draw) -> Case:
    batch, length, width = _width(draw)
    axis = draw.one_of(-1, 2, 1)
    scale = draw.floats(*((length, width) if axis == 1 else (width,)))
    attributes: dict[str, Any] = {"axis": axis} if axis != -1 else {}
    if draw.flip():
        attributes["epsilon"] = 1e-6
    outputs = draw.one_of(1, 2)
    x = draw.floats(batch, length, width)
    return draw.case("SimplifiedLayerNormalization", [x, scale], outputs, domain="", attributes=attributes)


def embed_layer_normalization(draw: Draw) -> Case:
    batch, length, width = _width(draw)
    ids, words = draw.integers(0, 6, batch, length, dtype=np.int32), draw.floats(7, width)
    segments = draw.integers(0, 1, batch, length, dtype=np.int32) if draw.flip() else None
    table = None if segments is None else draw.floats(2, width)
    mask = draw.integers(0, 1, batch, length, dtype=np.int32) if draw.flip() else None
    places = draw.integers(0, 3, batch, length, dtype=np.int32) if draw.flip(0.3) else None
    operands = [
        ids,
        segments,
        words,
        draw.floats(5, width),
        table,
        draw.floats(width),
        draw.floats(width),
        mask,
        places,
    ]
    outputs = [True, mask is not None, draw.flip()]
    return draw.case("EmbedLayerNormalization", operands, outputs, known=[2, 3, 4, 5, 6])


ELEMENTWISE = (gelu, bias_gelu, fast_gelu, quick_gelu)
PRODUCTS = (fused_matmul, fused_gemm, fused_conv)
NORMALISATIONS = (
    skip_layer_normalization,
    skip_simplified_layer_normalization,
    simplified_layer_normalization,
    embed_layer_normalization,
)


# On integers that stand for numbers.


def _single(number: float) -> Array:
    return np.array(number, np.float32)


def _encoding(draw: Draw, dtype: Any) -> tuple[Array, Array]:
    """A scale and a zero point."""
    info = np.iinfo(dtype)
    return _single(draw.rng.uniform(0.01, 0.05)), draw.integers(info.min // 2, info.max // 2, dtype=dtype)


def _byte(draw: Draw) -> Any:
    return draw.one_of(np.int8, np.uint8)


def _qlinear_pair(operator: str) -> Callable[[Draw], Case]:
    def build(draw: Draw) -> Case:
        dtype, shape = _byte(draw), [draw.size(1, 4), draw.size(1, 9)]
        other = draw.one_of(shape, [1, shape[1]], [shape[0], 1], [])
        operands: list[Array | None] = []
        for each in (shape, other):
            operands += [draw.bytes(*each, dtype=dtype), *_encoding(draw, dtype)]
        operands += _encoding(draw, dtype)
        known = [1, 2, 4, 5, 6, 7] + ([3] if draw.flip() else [])
        return draw.case(operator, operands, known=known, units=1)

    build.__name__ = operator
    return build


def _qlinear_one(operator: str, attributes: Callable[[Draw], Mapping[str, Any]]) -> Callable[[Draw], Case]:
    def build(draw: Draw) -> Case:
        dtype = _byte(draw)
        x = draw.bytes(draw.size(1, 4), draw.size(2, 9), dtype=dtype)
        scale, zero = _encoding(draw, dtype)
        result = (_single(1 / 256), np.array(0 if dtype == np.uint8 else -128, dtype))
        operands = [x, scale, zero, *(result if operator != "QLinearLeakyRelu" else _encoding(draw, dtype))]
        return draw.case(operator, operands, known=[1, 2, 3, 4], units=1, attributes=attributes(draw))

    build.__name__ = operator
    return build


def qlinear_softmax(draw: Draw) -> Case:
    dtype, version = _byte(draw), draw.one_of(12, 13)
    # Of one element, which is 1, onnxruntime makes 0: 256 does not saturate.
    x = draw.bytes(draw.size(1, 3), draw.size(2, 3), draw.size(2, 9), dtype=dtype)
    operands = [x, *_encoding(draw, dtype), _single(1 / 256), np.array(0 if dtype == np.uint8 else -128, dtype)]
    attributes = {"axis": draw.one_of(-1, 1), "opset": version}
    return draw.case("QLinearSoftmax", operands, known=[1, 2, 3, 4], units=1, attributes=attributes)


def qlinear_average_pool(draw: Draw) -> Case:
    dtype, size, last = _byte(draw), draw.size(4, 7), draw.flip()
    shape = [1, size, size, draw.size(1, 4)] if last else [1, draw.size(1, 4), size, size]
    attributes: dict[str, Any] = {"kernel_shape": [draw.size(2, 3), draw.size(2, 3)], "channels_last": int(last)}
    if draw.flip():
        attributes["strides"] = [draw.size(1, 2), draw.size(1, 2)]
    if draw.flip():
        attributes |= {"pads": [draw.size(0, 1) for _ in range(4)], "count_include_pad": draw.size(0, 1)}
    operands = [draw.bytes(*shape, dtype=dtype), *_encoding(draw, dtype), *_encoding(draw, dtype)]
    return draw.case("QLinearAveragePool", operands, known=[1, 2, 3, 4], units=1, attributes=attributes)


def qlinear_global_average_pool(draw: Draw) -> Case:
    dtype, last = _byte(draw), draw.flip()
    spatial, channels = [draw.size(1, 5), draw.size(1, 5)], draw.size(1, 4)
    shape = [2, *spatial, channels] if last else [2, channels, *spatial]
    operands = [draw.bytes(*shape, dtype=dtype), *_encoding(draw, dtype), *_encoding(draw, dtype)]
    attributes = {"channels_last": int(last)}
    return draw.case("QLinearGlobalAveragePool", operands, known=[1, 2, 3, 4], units=1, attributes=attributes)


def qlinear_concat(draw: Draw) -> Case:
    dtype, rows = _byte(draw), draw.size(1, 3)
    encoding = _encoding(draw, dtype)
    operands: list[Array] = list(encoding)
    for _ in range(draw.size(1, 3)):
        x = draw.bytes(rows, draw.size(1, 4), dtype=dtype)
        operands += [x, *(encoding if draw.flip(0.3) else _encoding(draw, dtype))]
    known = [index for index in range(len(operands)) if index < 2 or (index - 2) % 3]
    return draw.case("QLinearConcat", operands, known=known, units=1, attributes={"axis": 1})


def qlinear_where(draw: Draw) -> Case:
    dtype, shape = _byte(draw), [draw.size(1, 3), draw.size(1, 5)]
    operands: list[Array] = [draw.rng.random(shape) < 0.5]
    for _ in range(2):
        operands += [draw.bytes(*shape, dtype=dtype), *_encoding(draw, dtype)]
    operands += _encoding(draw, dtype)
    return draw.case("QLinearWhere", operands, known=[2, 3, 5, 6, 7, 8], units=1)


def _columns(draw: Draw, dtype: Any, count: int) -> tuple[Array, Array]:
    """Scales and zero points of the columns of a matrix, or one of each."""
    if draw.flip():
        return _encoding(draw, dtype)
    info = np.iinfo(dtype)
    return draw.floats(count, low=0.01, high=0.05), draw.integers(info.min // 4, info.max // 4, count, dtype=dtype)


def quantize_linear(draw: Draw) -> Case:
    dtype, columns = draw.one_of(np.int8, np.uint8, np.int16, np.uint16), draw.size(1, 5)
    scale, zero = _encoding(draw, dtype)
    if draw.flip():
        scale, zero = draw.floats(columns, low=0.01, high=0.1), draw.integers(0, 9, columns, dtype=dtype)
    x = draw.floats(draw.size(1, 4), columns, low=-9, high=9)
    return draw.case("QuantizeLinear", [x, scale, zero], known=[1, 2], attributes={"axis": 1})


def dequantize_linear(draw: Draw) -> Case:
    dtype = draw.one_of(np.int8, np.uint8, np.int16, np.uint16)
    x = draw.bytes(draw.size(1, 4), draw.size(1, 5), dtype=dtype)
    return draw.case("DequantizeLinear", [x, *_encoding(draw, dtype)], known=[1, 2])


def qlinear_conv(draw: Draw) -> Case:
    size, channels, outputs = draw.size(3, 6), draw.size(1, 3), draw.size(1, 4)
    last, right = draw.flip(), draw.one_of(np.int8, np.uint8)
    shape = [1, size, size, channels] if last else [1, channels, size, size]
    x = draw.bytes(*shape, dtype=np.uint8)
    w = draw.factors(outputs, channels, 3, 3, dtype=right)
    bias = draw.integers(-999, 999, outputs, dtype=np.int32) if draw.flip() else None
    operands = [x, *_encoding(draw, np.uint8), w, *_encoding(draw, right), _single(0.5), np.array(128, np.uint8), bias]
    attributes: dict[str, Any] = {"channels_last": int(last)}
    if draw.flip():
        attributes |= {"pads": [1, 1, 1, 1], "strides": [2, 1]}
    return draw.case("QLinearConv", operands, known=list(range(1, 9)), units=1, attributes=attributes)


def qgemm(draw: Draw) -> Case:
    m, k, n = (draw.size(1, 9) for _ in range(3))
    left = _byte(draw)
    right = np.int8 if left == np.int8 else _byte(draw)
    turned = [draw.flip(), draw.flip()]
    a = draw.bytes(*((k, m) if turned[0] else (m, k)), dtype=left)
    b = draw.factors(*((n, k) if turned[1] else (k, n)), dtype=right)
    c = draw.integers(-9999, 9999, n, dtype=np.int32) if draw.flip() else None
    operands = [a, *_encoding(draw, left), b, *_columns(draw, right, n), c]
    if draw.flip():
        operands += [_single(draw.rng.uniform(0.05, 0.5)), draw.integers(0, 50, dtype=left)]
    attributes: dict[str, Any] = {"transA": int(turned[0]), "transB": int(turned[1])}
    if draw.flip():
        attributes["alpha"] = 0.5
    known = [1, 2, 3, 4, 5, 6, 7, 8]
    return draw.case("QGemm", operands, known=known, units=1, atol=1e-3, attributes=attributes)


def matmul_integer_to_float(draw: Draw) -> Case:
    m, k, n = (draw.size(1, 9) for _ in range(3))
    left, right = np.uint8, _byte(draw)
    scale, zero = _columns(draw, right, n)
    own = _encoding(draw, left)
    bias = draw.floats(n) if draw.flip() else None
    a = draw.bytes(*draw.one_of([m, k], [2, m, k]), dtype=left)
    operands = [a, draw.factors(k, n, dtype=right), own[0], scale, own[1], zero, bias]
    if draw.flip(0.3):
        operands[4:6] = [None, None]
    return draw.case("MatMulIntegerToFloat", operands, known=[1, 2, 3, 4, 5, 6], atol=1e-3)


def dynamic_quantize_matmul(draw: Draw) -> Case:
    m, k, n = (draw.size(1, 9) for _ in range(3))
    right = _byte(draw)
    scale, zero = _columns(draw, right, n)
    bias = draw.floats(n) if draw.flip() else None
    a = draw.floats(*draw.one_of([m, k], [2, m, k]), low=draw.one_of(-2, 0), high=draw.one_of(3, 0.5))
    operands = [a, draw.factors(k, n, dtype=right), scale, zero if draw.flip(0.7) else None, bias]
    return draw.case("DynamicQuantizeMatMul", operands, known=[1, 2, 3, 4], rtol=1e-3, atol=1e-3)


def matmul_nbits(draw: Draw) -> Case:
    bits, block = draw.one_of(4, 4, 4, 8, 2), draw.one_of(16, 32)
    m, columns, inner = draw.size(1, 4), draw.size(1, 9), draw.one_of(16, 32, 64, 48, 40)
    blocks = -(-inner // block)
    zeros = None
    if draw.flip():
        zeros = draw.bytes(columns * -(-blocks * bits // 8), dtype=np.uint8)
    bias = draw.floats(columns) if draw.flip(0.3) else None
    operands = [
        draw.floats(*draw.one_of([m, inner], [2, m, inner])),
        draw.bytes(columns, blocks, block * bits // 8, dtype=np.uint8),
        draw.floats(columns * blocks, low=0.01, high=0.1),
        zeros,
        None,
        bias,
    ]
    attributes = {"K": inner, "N": columns, "bits": bits, "block_size": block}
    known = [1, 2, 3, 5] if draw.flip(0.8) else [2, 5]
    return draw.case("MatMulNBits", operands, known=known, rtol=1e-3, atol=1e-3, attributes=attributes)


def dynamic_quantize_lstm(draw: Draw) -> Case:
    steps, batch, inputs, hidden = draw.size(1, 4), draw.size(1, 2), draw.size(1, 5), draw.size(1, 4)
    direction = draw.one_of("forward", "reverse", "bidirectional")
    count = 2 if direction == "bidirectional" else 1
    dtype = _byte(draw)

    def weights(rows: int) -> tuple[Array, Array, Array]:
        shape = [count] if draw.flip() else [count, 4 * hidden]
        zeros = np.zeros(shape, dtype) if dtype == np.int8 else np.full(shape, 128, dtype)
        return draw.factors(count, rows, 4 * hidden, dtype=dtype), draw.floats(*shape, low=0.001, high=0.01), zeros

    (w, *of_w), (r, *of_r) = weights(inputs), weights(hidden)
    b = draw.floats(count, 8 * hidden, low=-0.5, high=0.5) if draw.flip() else None
    states = [draw.floats(count, batch, hidden) if draw.flip() else None for _ in range(2)]
    operands = [draw.floats(steps, batch, inputs), w, r, b, None, *states, None, *of_w, *of_r]
    attributes = {"direction": direction, "hidden_size": hidden}
    known = [1, 2, 3, 8, 9, 10, 11]
    # The inputs of onnxruntime's products are bytes.
    return draw.case("DynamicQuantizeLSTM", operands, 3, known=known, rtol=0.02, atol=0.03, attributes=attributes)


QUANTISED = (
    _qlinear_pair("QLinearAdd"),
    _qlinear_pair("QLinearMul"),
    _qlinear_one("QLinearSigmoid", lambda draw: {}),
    _qlinear_one("QLinearLeakyRelu", lambda draw: {"alpha": 0.1} if draw.flip() else {}),
    qlinear_softmax,
    qlinear_average_pool,
    qlinear_global_average_pool,
    qlinear_concat,
    qlinear_where,
    quantize_linear,
    dequantize_linear,
    qlinear_conv,
    qgemm,
    matmul_integer_to_float,
    dynamic_quantize_matmul,
    matmul_nbits,
    dynamic_quantize_lstm,
)


# Attention.


def _tables(draw: Draw, rows: int, half: int) -> list[Array]:
    angles = draw.floats(rows, half, low=-3, high=3)
    return [np.cos(angles), np.sin(angles)]


def rotary_embedding(draw: Draw) -> Case:
    batch, length, heads, half = draw.size(1, 2), draw.size(1, 4), draw.size(1, 3), draw.size(1, 4)
    attributes: dict[str, Any] = {"interleaved": draw.size(0, 1)}
    size = 2 * half
    if draw.flip(0.4):
        size += 2 * draw.size(1, 3)
        attributes |= {"num_heads": heads, "rotary_embedding_dim": 2 * half}
    x = draw.floats(*draw.one_of([batch, length, heads * size], [batch, heads, length, size]))
    positions = draw.one_of(draw.integers(0, 3, 1), draw.integers(0, 7, batch, length))
    operands = [x, positions, *_tables(draw, 8, half)]
    return draw.case("RotaryEmbedding", operands, known=[2, 3], attributes=attributes)


def _masks(draw: Draw, batch: int, queries: int, keys: int) -> Array | None:
    """A mask of keys of any form, each batch with at least one."""
    if draw.flip(0.3):
        return None
    each = draw.integers(0, 1, batch, keys, dtype=np.int32)
    each[:, 0] = 1
    whole = np.repeat(each[:, np.newaxis], queries, 1)
    return draw.one_of(draw.integers(1, keys, batch, dtype=np.int32), each, whole)


def multi_head_attention(draw: Draw) -> Case:
    batch, queries, heads, size = draw.size(1, 2), draw.size(1, 4), draw.size(1, 3), draw.size(1, 5)
    is_self, past, split = draw.flip(), draw.size(1, 3) if draw.flip() else 0, draw.flip(0.2)
    wide = size if past or split else draw.one_of(size, size + 2)
    new = queries if is_self or past else draw.size(1, 5)
    keys = new + past
    operands: list[Array | None] = [draw.floats(batch, queries, heads * size)]
    if not past and split:
        operands += [draw.floats(batch, heads, new, size), draw.floats(batch, heads, new, wide), None]
    else:
        operands += [draw.floats(batch, new, heads * size), draw.floats(batch, new, heads * wide)]
        operands.append(draw.floats(heads * (2 * size + wide)) if draw.flip() else None)
    mask = _masks(draw, batch, queries, keys)
    bias = draw.floats(draw.one_of(1, batch), draw.one_of(1, heads), queries, keys) if draw.flip(0.4) else None
    operands += [mask, bias]
    if past:
        operands += [draw.floats(batch, heads, past, size), draw.floats(batch, heads, past, wide)]
    attributes: dict[str, Any] = {"num_heads": heads}
    if new == queries and draw.flip(0.4):
        attributes["unidirectional"] = 1
    if draw.flip(0.3):
        attributes["scale"] = 0.3
    if mask is not None and draw.flip(0.3):
        attributes["mask_filter_value"] = -500.0
    return draw.case("MultiHeadAttention", operands, 3 if past else 1, known=[3], attributes=attributes)


def attention(draw: Draw) -> Case:
    batch, queries, heads, size = draw.size(1, 2), draw.size(1, 4), draw.size(1, 3), draw.size(1, 4)
    inputs, past = draw.size(1, 5), draw.size(1, 3) if draw.flip() else 0
    wide = size if past or draw.flip() else size + 1
    total, keys = heads * (2 * size + wide), queries + past
    mask = _masks(draw, batch, queries, keys)
    if mask is not None and draw.flip(0.2):
        ends = draw.integers(1, keys, batch, dtype=np.int32)
        mask = np.concatenate([ends, ends - 1])
    bias = (
        draw.floats(draw.one_of(1, batch), draw.one_of(1, heads), queries, keys) if not past and draw.flip() else None
    )
    history = draw.floats(2, batch, heads, past, size) if past else None
    operands = [
        draw.floats(batch, queries, inputs),
        draw.floats(inputs, total),
        draw.floats(total),
        mask,
        history,
        bias,
    ]
    attributes: dict[str, Any] = {"num_heads": heads, "unidirectional": draw.size(0, 1)}
    if wide != size:
        attributes["qkv_hidden_sizes"] = [heads * size, heads * size, heads * wide]
    if draw.flip(0.3):
        attributes["scale"] = 0.3
    return draw.case("Attention", operands, 2 if past else 1, known=[1, 2], attributes=attributes)


def group_query_attention(draw: Draw) -> Case:
    batch, groups, each, size = draw.size(1, 2), draw.size(1, 2), draw.size(1, 3), draw.one_of(8, 16, 32)
    heads, prompt, rotary = groups * each, draw.flip(), draw.flip()
    if rotary:
        size = 16
    queries = draw.size(1, 4) if prompt else draw.one_of(1, 1, 2)
    total = queries if prompt else queries + draw.size(1, 4)
    if not prompt and queries > 1:
        batch = 1
    lengths = np.full(batch, total - 1, np.int32)
    if batch > 1 and not prompt:
        lengths[0] = draw.size(queries - 1, total - 1)
    # A history that grows by what is new, or one that has room for it.
    past = draw.one_of(total - queries, total + draw.size(0, 3))
    if batch > 1:
        past = max(past, total)
    if draw.flip():
        operands: list[Array | None] = [
            draw.floats(batch, queries, heads * size),
            draw.floats(batch, queries, groups * size),
            draw.floats(batch, queries, groups * size),
        ]
    else:
        operands = [draw.floats(batch, queries, (heads + 2 * groups) * size), None, None]
    operands += [draw.floats(batch, groups, past, size) if past else None for _ in range(2)]
    operands += [lengths, np.array([total], np.int32)]
    operands += _tables(draw, 16, size // 2) if rotary else [None, None]
    operands.append(None)
    bias = draw.floats(draw.one_of(1, batch), draw.one_of(1, heads), queries, total) if draw.flip(0.3) else None
    operands += [bias, draw.floats(heads) if draw.flip(0.3) else None]
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": groups, "do_rotary": int(rotary)}
    if rotary:
        attributes["rotary_interleaved"] = draw.size(0, 1)
    for name, value in (("softcap", 1.5), ("scale", 0.3), ("local_window_size", draw.size(1, 4))):
        if draw.flip(0.3):
            attributes[name] = value
    if operands[11] is None and draw.flip(0.3):
        attributes["smooth_softmax"] = 1
    known = [6, 7, 8] + ([5] if draw.flip() else [])

    def compared(number: int, result: Array) -> Array:
        # What a history holds behind its end is left as it was found, or not.
        return result if number == 0 else np.concatenate([result[b, :, : lengths[b] + 1].ravel() for b in range(batch)])

    return draw.case(
        "GroupQueryAttention", operands, 3, known=known, attributes=attributes, compared=compared, rtol=1e-3, atol=1e-4
    )


ATTENTION = (rotary_embedding, multi_head_attention, attention, group_query_attention)


# Classical machine learning.


def _ml(draw: Draw, operator: str, operands: Sequence[Array], outputs: int = 1, **more: Any) -> Case:
    return draw.case(operator, operands, outputs, domain="ai.onnx.ml", **more)


def scaler(draw: Draw) -> Case:
    width = draw.size(1, 5)
    counts = [draw.one_of(1, width)] * 2
    attributes = {name: draw.floats(count).tolist() for name, count in zip(("offset", "scale"), counts, strict=True)}
    dtype = draw.one_of(np.float32, np.float64, np.int64, np.int32)
    return _ml(
        draw, "Scaler", [draw.floats(draw.size(1, 4), width, low=-9, high=9).astype(dtype)], attributes=attributes
    )


def normalizer(draw: Draw) -> Case:
    x = draw.floats(draw.size(1, 4), draw.size(1, 6), low=draw.one_of(-3, 0), high=3)
    if draw.flip(0.3):
        x[0] = 0
    return _ml(draw, "Normalizer", [x], attributes={"norm": draw.one_of("MAX", "L1", "L2")})


def binarizer(draw: Draw) -> Case:
    return _ml(draw, "Binarizer", [draw.floats(3, draw.size(1, 5))], attributes={"threshold": draw.one_of(0.0, 0.5)})


def imputer(draw: Draw) -> Case:
    width = draw.size(1, 5)
    x = draw.floats(draw.size(1, 4), width)
    x[draw.rng.random(x.shape) < 0.3] = np.nan
    attributes: dict[str, Any] = {
        "imputed_value_floats": draw.floats(draw.one_of(1, width)).tolist(),
        "replaced_value_float": float("nan"),
    }
    if draw.flip(0.3):
        x = draw.integers(-2, 2, 3, width)
        attributes = {"imputed_value_int64s": [7] * width, "replaced_value_int64": 1}
    return _ml(draw, "Imputer", [x], attributes=attributes)


def feature_vectorizer(draw: Draw) -> Case:
    widths = [draw.size(1, 3) for _ in range(draw.size(1, 3))]
    rows, dtype = draw.size(1, 3), draw.one_of(np.float32, np.int64)
    operands = [draw.floats(rows, width, low=-9, high=9).astype(dtype) for width in widths]
    return _ml(draw, "FeatureVectorizer", operands, attributes={"inputdimensions": widths})


def array_feature_extractor(draw: Draw) -> Case:
    width = draw.size(1, 5)
    x = draw.one_of(draw.floats(draw.size(1, 3), width), draw.integers(0, 9, 2, width), draw.floats(width))
    return _ml(draw, "ArrayFeatureExtractor", [x, draw.integers(0, width - 1, draw.size(1, 4))])


def one_hot_encoder(draw: Draw) -> Case:
    dtype = draw.one_of(np.float32, np.int64)
    x = draw.integers(0, 6, draw.size(1, 4), draw.size(1, 3)).astype(dtype)
    return _ml(draw, "OneHotEncoder", [x], attributes={"cats_int64s": [5, 0, 3], "zeros": 1})


def label_encoder(draw: Draw) -> Case:
    real, to_real = draw.flip(), draw.flip()
    keys, values = [3, 1, 4, 7], [10, 20, 30, 40]
    attributes: dict[str, Any] = {}
    if real:
        numbers = [float(key) for key in keys] + [float("nan")]
        values = [*values, 50]
        attributes["keys_floats"] = numbers
        # No NaN is looked up: onnxruntime does not find every one.
        x = draw.one_of(*[np.array([[3, 2, 5, 7]], np.float32), np.array([[1, 4], [9, 3]], np.float32)])
    else:
        attributes["keys_int64s"] = keys
        x = draw.integers(0, 8, 2, draw.size(1, 4))
    if to_real:
        attributes |= {"values_floats": [float(value) for value in values], "default_float": -1.5}
    else:
        attributes |= {"values_int64s": values, "default_int64": -7}
    return _ml(draw, "LabelEncoder", [x], attributes=attributes)


TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")


def linear_regressor(draw: Draw) -> Case:
    width, targets = draw.size(1, 5), draw.size(1, 3)
    attributes: dict[str, Any] = {"targets": targets, "coefficients": draw.floats(targets * width).tolist()}
    if draw.flip():
        attributes["intercepts"] = draw.floats(targets).tolist()
    if targets > 1 and draw.flip():
        attributes["post_transform"] = draw.one_of(*TRANSFORMS)
    return _ml(draw, "LinearRegressor", [draw.floats(draw.size(1, 4), width)], attributes=attributes)


def linear_classifier(draw: Draw) -> Case:
    width, classes = draw.size(1, 5), draw.size(2, 4)
    scores = draw.one_of(1, 2) if classes == 2 else classes
    attributes: dict[str, Any] = {
        "coefficients": draw.floats(scores * width).tolist(),
        "intercepts": draw.floats(scores).tolist(),
        "classlabels_ints": draw.one_of(list(range(classes)), list(range(10, 10 + classes))),
        "post_transform": draw.one_of(*TRANSFORMS),
    }
    dtype = draw.one_of(np.float32, np.float32, np.float64, np.int64)
    x = draw.floats(draw.size(1, 5), width).astype(dtype)
    return _ml(draw, "LinearClassifier", [x], 2, attributes=attributes)


CLASSICAL = (
    scaler,
    normalizer,
    binarizer,
    imputer,
    feature_vectorizer,
    array_feature_extractor,
    one_hot_encoder,
    label_encoder,
    linear_regressor,
    linear_classifier,
)


# Ensembles of trees.

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


@dataclass
class Tree:
    """A question, or a leaf where there is no branch."""

    mode: str = "LEAF"
    feature: int = 0
    split: float = 0.0
    branches: Sequence[Tree] = ()
    missing: bool = False


def _tree(draw: Draw, features: int, depth: int, modes: Sequence[str], missing: bool) -> Tree:
    if depth == 0 or draw.flip(0.2):
        return Tree()
    branches = [_tree(draw, features, depth - 1, modes, missing) for _ in range(2)]
    # On a grid, so that features are often equal to it.
    split = draw.size(-4, 4) / 2
    return Tree(draw.one_of(*modes), draw.size(0, features - 1), split, branches, missing and draw.flip())


def _listed(tree: Tree) -> list[Tree]:
    found = [tree]
    for node in found:
        found.extend(node.branches)
    return found


def _grown(draw: Draw) -> tuple[Array, list[Tree]]:
    """Rows of features and trees."""
    features, missing = draw.size(1, 5), draw.flip(0.4)
    modes = draw.one_of(MODES, MODES[:1], [draw.one_of(*MODES)])
    trees = [_tree(draw, features, draw.size(1, 4), modes, missing) for _ in range(draw.size(1, 5))]
    x = draw.integers(-5, 5, draw.size(1, 7), features) / 2
    if missing:
        x[draw.rng.random(x.shape) < 0.2] = np.nan
    dtype = draw.one_of(np.float32, np.float32, np.float64)
    return x.astype(dtype), trees


def _attributes_of(trees: Sequence[Tree]) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """The attributes of the nodes, and the tree and the number of each leaf."""
    columns: dict[str, list[Any]] = {}
    leaves: list[tuple[int, int]] = []
    for number, tree in enumerate(trees):
        nodes = _listed(tree)
        place = {id(node): index for index, node in enumerate(nodes)}
        for index, node in enumerate(nodes):
            true, false = (place[id(each)] for each in node.branches) if node.branches else (0, 0)
            row = {
                "treeids": number,
                "nodeids": index,
                "featureids": node.feature,
                "modes": node.mode,
                "values": node.split,
                "truenodeids": true,
                "falsenodeids": false,
                "missing_value_tracks_true": int(node.missing),
            }
            for name, value in row.items():
                columns.setdefault(f"nodes_{name}", []).append(value)
            if not node.branches:
                leaves.append((number, index))
    return columns, leaves


def tree_ensemble_regressor(draw: Draw) -> Case:
    x, trees = _grown(draw)
    attributes, leaves = _attributes_of(trees)
    targets = draw.size(1, 3)
    entries = [(tree, leaf, target) for tree, leaf in leaves for target in range(targets) if draw.flip(0.8)]
    entries = entries or [(*leaves[0], 0)]
    attributes |= {
        f"target_{name}": list(each)
        for name, each in zip(("treeids", "nodeids", "ids"), zip(*entries, strict=True), strict=True)
    }
    attributes |= {"target_weights": draw.floats(len(entries)).tolist(), "n_targets": targets}
    attributes["aggregate_function"] = draw.one_of("SUM", "SUM", "AVERAGE", "MIN", "MAX")
    attributes["post_transform"] = draw.one_of("NONE", *TRANSFORMS)
    if draw.flip():
        attributes["base_values"] = draw.floats(targets).tolist()
    return _ml(draw, "TreeEnsembleRegressor", [x], attributes=attributes)


def tree_ensemble_classifier(draw: Draw) -> Case:
    x, trees = _grown(draw)
    attributes, leaves = _attributes_of(trees)
    classes = draw.size(2, 4)
    kinds = [draw.one_of(0, 0, 1)] if classes == 2 else list(range(classes))
    entries = [(tree, leaf, each) for tree, leaf in leaves for each in kinds if classes == 2 or draw.flip(0.8)]
    entries += [(*leaves[0], each) for each in kinds if each not in {kind for *_, kind in entries}]
    attributes |= {
        f"class_{name}": list(each)
        for name, each in zip(("treeids", "nodeids", "ids"), zip(*entries, strict=True), strict=True)
    }
    attributes |= {
        "class_weights": draw.floats(len(entries), low=draw.one_of(-1, 0), high=1 / len(trees)).tolist(),
        "classlabels_int64s": draw.one_of(list(range(classes)), list(range(10, 10 + classes))),
        "post_transform": draw.one_of("NONE", *TRANSFORMS),
    }
    if draw.flip(0.4) and kinds != [1]:
        attributes["base_values"] = draw.floats(len(kinds)).tolist()
    return _ml(draw, "TreeEnsembleClassifier", [x], 2, attributes=attributes)


def tree_ensemble(draw: Draw) -> Case:
    x, trees = _grown(draw)
    trees = [tree if tree.branches else Tree("BRANCH_LEQ", 0, 0.0, [leaf := Tree(), leaf]) for tree in trees]
    nodes = [node for tree in trees for node in _listed(tree)]
    questions = list({id(node): node for node in nodes if node.branches}.values())
    leaves = list({id(node): node for node in nodes if not node.branches}.values())
    place = {id(node): index for each in (questions, leaves) for index, node in enumerate(each)}
    targets, dtype = draw.size(1, 3), x.dtype
    attributes: dict[str, Any] = {
        "n_targets": targets,
        "aggregate_function": draw.one_of(1, 1, 0, 2, 3),
        # onnxruntime takes the numbers of softmax and logistic for each other's.
        "post_transform": draw.one_of(0, 3),
        "tree_roots": [place[id(tree)] for tree in trees],
        "nodes_featureids": [node.feature for node in questions],
        "nodes_splits": numpy_helper.from_array(np.array([node.split for node in questions], dtype)),
        "nodes_modes": numpy_helper.from_array(np.array([MODES.index(node.mode) for node in questions], np.uint8)),
        "nodes_missing_value_tracks_true": [int(node.missing) for node in questions],
        "leaf_targetids": [draw.size(0, targets - 1) for _ in leaves],
        "leaf_weights": numpy_helper.from_array(draw.floats(len(leaves), dtype=dtype)),
    }
    for number, word in enumerate(("true", "false")):
        attributes[f"nodes_{word}nodeids"] = [place[id(node.branches[number])] for node in questions]
        attributes[f"nodes_{word}leafs"] = [int(not node.branches[number].branches) for node in questions]
    return _ml(draw, "TreeEnsemble", [x], attributes=attributes, version=5)


TREES = (tree_ensemble_regressor, tree_ensemble_classifier)
