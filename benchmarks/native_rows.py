# SPDX-License-Identifier: Apache-2.0
"""What `benchmarks.native` measures: models of one operator or of whole networks, and the ratios that are aimed at."""

from __future__ import annotations

import importlib
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.networks import Feeds, inputs_of, network, new_model

Model = tuple[Any, Feeds]
"""An ONNX model, and its inputs by name."""


class Target(NamedTuple):
    """Ratios to the fastest of the others: the one that has to be reached, and the one that would be remarkable."""

    must: float
    beyond: float | None = None


@dataclass(frozen=True)
class Work:
    """A row of the table."""

    group: str
    """What `--only` calls it by."""
    name: str
    build: Callable[[], Model]
    target: Target | None = None
    """None for a row that counts in the geometric mean of its group only."""
    flops: float | None = None
    """Additions and multiplications, where they are what takes the time."""
    is_product: bool = False
    """A product of its input, or of both inputs, and the weight that it may have: BLAS has a routine for it."""
    tolerance: float = 1e-3
    """Of the largest output."""


MEANS = {
    "conv": Target(1.0, 0.9),
    "conv-inside": Target(1.0, 0.9),
    "depthwise": Target(0.7, 0.4),
}
"""The groups of which the geometric mean has a target, and it."""


class Convolution(NamedTuple):
    """A square image of `size` pixels, channels before and after, and a square kernel; edges are padded."""

    size: int
    channels: int
    filters: int
    kernel: int
    stride: int
    groups: int = 1

    @property
    def out(self) -> int:
        return -(-self.size // self.stride)

    @property
    def flops(self) -> float:
        return 2.0 * self.out**2 * self.filters * self.channels // self.groups * self.kernel**2

    @property
    def shape(self) -> str:
        channels = str(self.channels) if self.groups > 1 else f"{self.channels}->{self.filters}"
        return f"{self.size}x{self.size} {channels} {self.kernel}x{self.kernel}/{self.stride}"


def _depthwise(size: int, channels: int, stride: int) -> Convolution:
    return Convolution(size, channels, channels, 3, stride, channels)


CONVOLUTIONS = {
    "C1": Convolution(224, 3, 64, 7, 2),
    "C2": Convolution(56, 64, 64, 3, 1),
    "C3": Convolution(56, 64, 64, 1, 1),
    "C4": Convolution(56, 64, 128, 3, 2),
    "C5": Convolution(56, 64, 128, 1, 2),
    "C6": Convolution(28, 128, 128, 3, 1),
    "C7": Convolution(28, 128, 256, 3, 2),
    "C8": Convolution(28, 128, 256, 1, 2),
    "C9": Convolution(14, 256, 256, 3, 1),
    "C10": Convolution(14, 256, 512, 3, 2),
    "C11": Convolution(14, 256, 512, 1, 2),
    "C12": Convolution(7, 512, 512, 3, 1),
}
DEPTHWISE = {
    "D1": _depthwise(112, 32, 1),
    "D2": _depthwise(112, 64, 2),
    "D3": _depthwise(56, 128, 1),
    "D4": _depthwise(56, 128, 2),
    "D5": _depthwise(28, 256, 1),
    "D6": _depthwise(28, 256, 2),
    "D7": _depthwise(14, 512, 1),
    "D8": _depthwise(14, 512, 2),
    "D9": _depthwise(7, 1024, 1),
}
"""
Those of ResNet-18 and of MobileNet, named as in table 2 of Chen et al., "TVM: An Automated End-to-End Optimizing
Compiler for Deep Learning", OSDI 2018.
"""

NETWORKS = {
    "resnet50": Target(1.0, 0.95),
    "densenet121": Target(0.85, 0.75),
    "squeezenet": Target(1.0, 0.9),
    "mobilenet_v2": Target(0.9, 0.7),
    "inception_v1": Target(0.8),
    "shufflenet": Target(0.9),
    "bvlc_alexnet": Target(1.0),
    "zfnet512": Target(0.95),
}


def all_work(*, quick: bool = False) -> Iterator[Work]:
    """Every row, in the order of the table; with `quick`, with small extents, for tests."""
    for size in (512, 1024, 2048):
        yield from _products("gemm", (min(size, 48),) * 3 if quick else (size,) * 3, Target(1.0), str(size))
    small = (4, 40, 24) if quick else (16, 3072, 768)
    yield from _products("gemm", small, Target(1.05, 0.9), "16x3072x768")
    for size in (1024, 4096):
        yield from _products("gemv", (1, 48, 48) if quick else (1, size, size), Target(1.05, 0.9), str(size))
    for name, each in CONVOLUTIONS.items():
        yield _convolution("conv", name, _shrunk(each) if quick else each, inside=False)
    for name, each in CONVOLUTIONS.items():
        yield _convolution("conv-inside", name, _shrunk(each) if quick else each, inside=True)
    for name, each in DEPTHWISE.items():
        yield _convolution("depthwise", name, _shrunk(each) if quick else each, inside=False)
    for name, each in DEPTHWISE.items():
        yield _convolution("depthwise-inside", name, _shrunk(each) if quick else each, inside=True)
    for name, target in NETWORKS.items():
        yield Work("networks", name, partial(network, name, small=quick), target)
    yield Work("bert", "layer of BERT-base", partial(network, "bert_layer", small=quick), Target(1.0, 0.9))
    yield Work("lstm", "two LSTMs", partial(network, "lstm", small=quick), Target(1.1, 0.8))
    rows, columns = (24, 40) if quick else (4096, 1024)
    yield Work("softmax", f"softmax {rows}x{columns}", partial(_softmax, rows, columns), Target(0.8))
    yield Work("layer-norm", f"layer-norm {rows}x{columns}", partial(_layer_norm, rows, columns), Target(0.8))
    side = 40 if quick else 4096
    yield Work("gelu", f"gelu(a x + b) {side}x{side}", partial(_gelu, side), Target(0.5))
    for name in ("resnet50", "mobilenet_v2"):
        build = partial(quantized, name, small=quick)
        yield Work("int8", f"{name}, QDQ", build, Target(1.2, 1.0), tolerance=0.05)


def work_of_file(path: Path) -> Work:
    """The row of a model in a file, without a target."""
    return Work("files", path.stem, partial(_read, path))


def _read(path: Path) -> Model:
    onnx: Any = importlib.import_module("onnx")  # its types are partly unknown
    model = onnx.load(path)
    return model, inputs_of(model)


def _shrunk(shape: Convolution) -> Convolution:
    if shape.groups > 1:
        return shape._replace(size=8, channels=16, filters=16, groups=16)
    return shape._replace(size=8, channels=min(shape.channels, 16), filters=16)


def _products(group: str, shape: Sequence[int], target: Target, name: str) -> Iterator[Work]:
    rows, inner, columns = shape
    for kind in ("constant", "variable"):
        build = partial(_product, rows, inner, columns, constant=kind == "constant")
        yield Work(group, f"{group} {name}, {kind} B", build, target, 2.0 * rows * inner * columns, is_product=True)


def _product(rows: int, inner: int, columns: int, *, constant: bool) -> Model:
    model = new_model("product")
    a = model.input("a", [rows, inner])
    b = model.weight("b", model.normal((inner, columns), 1.0)) if constant else model.input("b", [inner, columns])
    return _finished(model, model.node("MatMul", [a, b]), [rows, columns])


def _convolution(group: str, name: str, shape: Convolution, *, inside: bool) -> Work:
    build, flops = (_inside, 4 * shape.flops) if inside else (_alone, shape.flops)
    return Work(group, f"{name} {shape.shape}{', inside' if inside else ''}", partial(build, shape), None, flops)


def _alone(shape: Convolution) -> Model:
    """A convolution of an image as ONNX has it, NCHW, to another."""
    model = new_model("convolution")
    x = model.input("x", [1, shape.channels, shape.size, shape.size])
    return _finished(model, _conv(model, x, shape, "conv"), [1, shape.filters, shape.out, shape.out])


def _inside(shape: Convolution) -> Model:
    """
    A convolution in the middle of a graph: four of it with rectifiers, one after the other where it keeps the shape and
    else side by side and added, between what costs little and leaves the compiler free to choose the layout: one of 1x1
    that makes the channels, where there are many, and the mean of each channel.
    """
    model = new_model("inside")
    few = min(shape.channels, 8)
    x = model.input("x", [1, few, shape.size, shape.size])
    if few < shape.channels:
        x = model.node("Relu", [_conv(model, x, Convolution(shape.size, few, shape.channels, 1, 1), "first")])
    if shape.stride == 1 and shape.channels == shape.filters:
        for number in range(4):
            x = model.node("Relu", [_conv(model, x, shape, f"conv{number}")])
    else:
        parts = [model.node("Relu", [_conv(model, x, shape, f"conv{number}")]) for number in range(4)]
        x = parts[0]
        for part in parts[1:]:
            x = model.node("Add", [x, part])
    return _finished(model, model.node("GlobalAveragePool", [x]), [1, shape.filters, 1, 1])


def _conv(model: Any, x: str, shape: Convolution, name: str) -> str:
    channels = shape.channels // shape.groups
    kernel = [shape.kernel] * 2
    weight = model.he_normal((shape.filters, channels, *kernel), channels * shape.kernel**2)
    given = [x, model.weight(f"{name}.weight", weight), model.weight(f"{name}.bias", model.near(shape.filters, 0, 0.1))]
    pads = [shape.kernel // 2] * 4
    strides = [shape.stride] * 2
    return model.node("Conv", given, name, kernel_shape=kernel, pads=pads, strides=strides, group=shape.groups)


def _softmax(rows: int, columns: int) -> Model:
    model = new_model("softmax")
    return _finished(model, model.node("Softmax", [model.input("x", [rows, columns])], axis=-1), [rows, columns])


def _layer_norm(rows: int, columns: int) -> Model:
    model = new_model("layer_norm")
    x = model.input("x", [rows, columns])
    scale = model.weight("scale", model.near(columns, 1.0, 0.1))
    bias = model.weight("bias", model.near(columns, 0.0, 0.1))
    return _finished(model, model.node("LayerNormalization", [x, scale, bias], axis=-1), [rows, columns])


def _gelu(side: int) -> Model:
    """Of a x + b, with one a and one b for each column."""
    model = new_model("gelu")
    x = model.input("x", [side, side])
    scaled = model.node("Mul", [x, model.weight("a", model.near(side, 1.0, 0.1))])
    moved = model.node("Add", [scaled, model.weight("b", model.near(side, 0.0, 0.1))])
    return _finished(model, model.node("Gelu", [moved]), [side, side])


def _finished(model: Any, value: str, shape: Sequence[int]) -> Model:
    model.output(value, shape)
    built = model.finish()
    return built, inputs_of(built)


def quantized(name: str, *, small: bool) -> Model:
    """
    A network as onnxruntime's own tool quantises it, with QuantizeLinear and DequantizeLinear around each operator:
    weights of a channel in 7 bits, so that no sum of products saturates in 16, and activations in 8 bits without sign.
    """
    import onnx
    from onnx import version_converter

    tool: Any = importlib.import_module("onnxruntime.quantization")  # has no types
    model, feeds = network(name, small=small)
    given = iter([feeds])

    class Calibration(tool.CalibrationDataReader):
        def get_next(self) -> Feeds | None:
            return next(given, None)

    with tempfile.TemporaryDirectory() as folder:
        before, folded, after = (str(Path(folder, f"{stage}.onnx")) for stage in ("before", "folded", "after"))
        # From operator set 13 on, scales are those of channels.
        Path(before).write_bytes(version_converter.convert_version(model, 13).SerializeToString())
        # Folds batch normalisations, among others.
        tool.quant_pre_process(before, folded, skip_symbolic_shape=True)
        tool.quantize_static(
            folded,
            after,
            Calibration(),
            quant_format=tool.QuantFormat.QDQ,
            per_channel=True,
            reduce_range=True,
            activation_type=tool.QuantType.QUInt8,
            weight_type=tool.QuantType.QInt8,
        )
        return onnx.load_from_string(Path(after).read_bytes()), feeds


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of ratios, which are positive."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))
