# SPDX-License-Identifier: Apache-2.0
"""What benchmarks/accel.py runs: ResNet-18's convolutions as kernels at tensor level, and matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BLOCK = 16
"""Channels of a block, on VTA."""


@dataclass(frozen=True)
class Layer:
    """A square convolution of 8-bit integers with bias, shift by 6 and bounds 0 and 127; images in NCHW16c."""

    size: int
    channels: int
    outputs: int
    kernel: int = 3
    stride: int = 1
    times: int = 1
    """How often ResNet-18 has it."""
    published_bytes: int = 0
    """Bytes off chip of the best single-level tiling that a search over divisors found elsewhere."""

    @property
    def pad(self) -> int:
        return self.kernel // 2

    @property
    def out(self) -> int:
        return (self.size + 2 * self.pad - self.kernel) // self.stride + 1

    @property
    def macs(self) -> int:
        return self.out**2 * self.channels * self.outputs * self.kernel**2

    @property
    def text(self) -> str:
        """The kernel, and @main that calls it."""
        ib, ob, h, p, k = (
            self.channels // BLOCK,
            self.outputs // BLOCK,
            self.size,
            self.size + 2 * self.pad,
            self.kernel,
        )
        x, padded = f"tensor<1x{ib}x{h}x{h}x16xi8>", f"tensor<1x{ib}x{p}x{p}x16xi8>"
        w, b, y = (
            f"tensor<{k}x{k}x{ob}x{ib}x16x16xi8>",
            f"tensor<{ob}x16xi32>",
            f"tensor<1x{ob}x{self.out}x{self.out}x16xi8>",
        )
        sums, parallel = y.replace("i8", "i32"), ", ".join(['"parallel"'] * 5)
        reduction, edge, step = ", ".join(['"reduction"'] * 4), f"[0, 0, {self.pad}, {self.pad}, 0]", f"* {self.stride}"
        return f"""
#x = affine_map<(n, ob, h, w, o, ib, kh, kw, i) -> (n, ib, h {step} + kh, w {step} + kw, i)>
#w = affine_map<(n, ob, h, w, o, ib, kh, kw, i) -> (kh, kw, ob, ib, o, i)>
#y = affine_map<(n, ob, h, w, o, ib, kh, kw, i) -> (n, ob, h, w, o)>
#id = affine_map<(n, ob, h, w, o) -> (n, ob, h, w, o)>
#b = affine_map<(n, ob, h, w, o) -> (ob, o)>
func.func @main(%x: {x} {{graph.name = "x"}}, %w: {w} {{graph.name = "w"}}, %b: {b} {{graph.name = "b"}})
    -> ({y} {{graph.name = "y"}}) {{
  %y = func.call @conv(%x, %w, %b) : ({x}, {w}, {b}) -> {y}
  func.return %y : {y}
}}
func.func private @conv(%x: {x}, %w: {w}, %b: {b}) -> {y} {{
  %zero8 = arith.constant 0 : i8
  %p = tensor.pad %x low{edge} high{edge} {{
  ^bb0(%q0: index, %q1: index, %q2: index, %q3: index, %q4: index):
    tensor.yield %zero8 : i8
  }} : {x} to {padded}
  %e = tensor.empty() : {sums}
  %zero = arith.constant 0 : i32
  %f = linalg.generic {{indexing_maps = [#id], iterator_types = [{parallel}]}} outs(%e : {sums}) {{
  ^bb0(%out: i32):
    linalg.yield %zero : i32
  }} -> {sums}
  %c = linalg.generic {{indexing_maps = [#x, #w, #y], iterator_types = [{parallel}, {reduction}]}}
      ins(%p, %w : {padded}, {w}) outs(%f : {sums}) {{
  ^bb0(%a: i8, %v: i8, %acc: i32):
    %a1 = arith.extsi %a : i8 to i32
    %v1 = arith.extsi %v : i8 to i32
    %m = arith.muli %a1, %v1 : i32
    %s = arith.addi %acc, %m : i32
    linalg.yield %s : i32
  }} -> {sums}
  %e2 = tensor.empty() : {y}
  %six = arith.constant 6 : i32
  %most = arith.constant 127 : i32
  %y = linalg.generic {{indexing_maps = [#id, #b, #id], iterator_types = [{parallel}]}}
      ins(%c, %b : {sums}, {b}) outs(%e2 : {y}) {{
  ^bb0(%in: i32, %bias: i32, %o: i8):
    %1 = arith.addi %in, %bias : i32
    %2 = arith.shrsi %1, %six : i32
    %3 = arith.maxsi %2, %zero : i32
    %4 = arith.minsi %3, %most : i32
    %5 = arith.trunci %4 : i32 to i8
    linalg.yield %5 : i8
  }} -> {y}
  func.return %y : {y}
}}
"""

    def channels_last(self, element: str, sums: str) -> str:
        """The same convolution of floats, images in NHWC, with bias and relu in the type of the sums; as `text`."""
        h, p, k, edge = self.size, self.size + 2 * self.pad, self.kernel, f"[0, {self.pad}, {self.pad}, 0]"
        x, padded = f"tensor<1x{h}x{h}x{self.channels}x{element}>", f"tensor<1x{p}x{p}x{self.channels}x{element}>"
        w, b = f"tensor<{k}x{k}x{self.channels}x{self.outputs}x{element}>", f"tensor<{self.outputs}x{sums}>"
        c = f"tensor<1x{self.out}x{self.out}x{self.outputs}x{sums}>"
        y = c.replace(sums, element)
        parallel, reduction = ", ".join(['"parallel"'] * 4), ", ".join(['"reduction"'] * 3)
        widened = (
            ""
            if element == sums
            else f"""
    %a1 = arith.extf %a : {element} to {sums}
    %v1 = arith.extf %v : {element} to {sums}"""
        )
        one, other = ("%a", "%v") if element == sums else ("%a1", "%v1")
        narrow = (
            ""
            if element == sums
            else f"""
    %2 = arith.truncf %1 : {sums} to {element}"""
        )
        result = "%1" if element == sums else "%2"
        return f"""
#x = affine_map<(n, h, w, o, kh, kw, i) -> (n, h * {self.stride} + kh, w * {self.stride} + kw, i)>
#w = affine_map<(n, h, w, o, kh, kw, i) -> (kh, kw, i, o)>
#y = affine_map<(n, h, w, o, kh, kw, i) -> (n, h, w, o)>
#id = affine_map<(n, h, w, o) -> (n, h, w, o)>
#b = affine_map<(n, h, w, o) -> (o)>
func.func @main(%x: {x} {{graph.name = "x"}}, %w: {w} {{graph.name = "w"}}, %b: {b} {{graph.name = "b"}})
    -> ({y} {{graph.name = "y"}}) {{
  %y = func.call @conv(%x, %w, %b) : ({x}, {w}, {b}) -> {y}
  func.return %y : {y}
}}
func.func private @conv(%x: {x}, %w: {w}, %b: {b}) -> {y} {{
  %nil = arith.constant 0.0 : {element}
  %p = tensor.pad %x low{edge} high{edge} {{
  ^bb0(%q0: index, %q1: index, %q2: index, %q3: index):
    tensor.yield %nil : {element}
  }} : {x} to {padded}
  %e = tensor.empty() : {c}
  %zero = arith.constant 0.0 : {sums}
  %f = linalg.generic {{indexing_maps = [#id], iterator_types = [{parallel}]}} outs(%e : {c}) {{
  ^bb0(%out: {sums}):
    linalg.yield %zero : {sums}
  }} -> {c}
  %c = linalg.generic {{indexing_maps = [#x, #w, #y], iterator_types = [{parallel}, {reduction}]}}
      ins(%p, %w : {padded}, {w}) outs(%f : {c}) {{
  ^bb0(%a: {element}, %v: {element}, %acc: {sums}):{widened}
    %m = arith.mulf {one}, {other} : {sums}
    %s = arith.addf %acc, %m : {sums}
    linalg.yield %s : {sums}
  }} -> {c}
  %e2 = tensor.empty() : {c}
  %d = linalg.generic {{indexing_maps = [#id, #b, #id], iterator_types = [{parallel}]}}
      ins(%c, %b : {c}, {b}) outs(%e2 : {c}) {{
  ^bb0(%in: {sums}, %bias: {sums}, %o: {sums}):
    %1 = arith.addf %in, %bias : {sums}
    linalg.yield %1 : {sums}
  }} -> {c}
  %e3 = tensor.empty() : {y}
  %y = linalg.generic {{indexing_maps = [#id, #id], iterator_types = [{parallel}]}}
      ins(%d : {c}) outs(%e3 : {y}) {{
  ^bb0(%in: {sums}, %o: {element}):
    %1 = arith.maximumf %in, %zero : {sums}{narrow}
    linalg.yield {result} : {element}
  }} -> {y}
  func.return %y : {y}
}}
"""

    def draw(self, rng: np.random.Generator) -> list[Array]:
        """Inputs."""
        blocks = self.channels // BLOCK, self.outputs // BLOCK
        x = rng.integers(-8, 8, (1, blocks[0], self.size, self.size, BLOCK), np.int8)
        w = rng.integers(-8, 8, (self.kernel, self.kernel, blocks[1], blocks[0], BLOCK, BLOCK), np.int8)
        return [x, w, rng.integers(-999, 999, (blocks[1], BLOCK), np.int32)]

    def evaluate(self, x: Array, w: Array, b: Array) -> Array:
        """The result by NumPy, in doubles, which hold every sum."""
        edge = (self.pad, self.pad)
        padded = np.pad(x, ((0, 0), (0, 0), edge, edge, (0, 0))).astype(np.float64)
        sums = np.zeros((1, self.outputs // BLOCK, self.out, self.out, BLOCK))
        reach = self.stride * (self.out - 1) + 1
        for row in range(self.kernel):
            for column in range(self.kernel):
                window = padded[:, :, row : row + reach : self.stride, column : column + reach : self.stride]
                sums += np.einsum("nchwi,bcoi->nbhwo", window, w[row, column].astype(np.float64), optimize=True)
        biased = sums.astype(np.int64) + b[None, :, None, None]
        return np.clip(biased >> 6, 0, 127).astype(np.int8)


KB = 1024
LAYERS = {
    "C2": Layer(56, 64, 64, 3, 1, 4, 488 * KB),
    "C4": Layer(56, 64, 128, 3, 2, 1, 395 * KB),
    "C5": Layer(56, 64, 128, 1, 2, 1, 155 * KB),
    "C6": Layer(28, 128, 128, 3, 1, 3, 566 * KB),
    "C7": Layer(28, 128, 256, 3, 2, 1, 758 * KB),
    "C8": Layer(28, 128, 256, 1, 2, 1, 106 * KB),
    "C9": Layer(14, 256, 256, 3, 1, 3, 881 * KB),
    "C10": Layer(14, 256, 512, 3, 2, 1, 1289 * KB),
    "C11": Layer(14, 256, 512, 1, 2, 1, 165 * KB),
    "C12": Layer(7, 512, 512, 3, 1, 3, 2410 * KB),
}
"""C1 has 3 channels and runs on the host in the publication; C3 does not occur in ResNet-18 version 1."""

BOTTLENECKS = {
    f"{size}: {channels} -> {outputs}, {kernel}x{kernel}/{stride}": Layer(size, channels, outputs, kernel, stride)
    for size, channels, outputs, kernel, stride in (
        (56, 64, 64, 1, 1), (56, 64, 256, 1, 1), (56, 256, 64, 1, 1),
        (56, 256, 128, 1, 1), (56, 128, 128, 3, 2), (28, 128, 512, 1, 1), (56, 256, 512, 1, 2), (28, 512, 128, 1, 1),
        (28, 512, 256, 1, 1), (28, 256, 256, 3, 2), (14, 256, 1024, 1, 1), (28, 512, 1024, 1, 2), (14, 1024, 256, 1, 1),
        (14, 1024, 512, 1, 1), (14, 512, 512, 3, 2), (7, 512, 2048, 1, 1), (14, 1024, 2048, 1, 2), (7, 2048, 512, 1, 1),
    )
}  # fmt: skip
"""What ResNet-50 and ResNet-101 have beside the layers of ResNet-18: their blocks end in convolutions of 1x1."""


def _bottleneck_counts(third: int) -> dict[str, int]:
    """How often each layer occurs in a network of bottlenecks that has 3, 4, `third` and 3 blocks in its stages."""
    found = {"C2": 3, "C6": 3, "C9": third - 1, "C12": 2}
    for size, width, blocks in ((56, 64, 3), (28, 128, 4), (14, 256, third), (7, 512, 3)):
        before, step = (size, 1) if size == 56 else (2 * size, 2)
        narrow = 64 if size == 56 else 2 * width
        found[f"{before}: {narrow} -> {width}, 1x1/1"] = 1
        if step == 2:
            found[f"{before}: {width} -> {width}, 3x3/2"] = 1
        found[f"{size}: {4 * width} -> {width}, 1x1/1"] = blocks - 1
        found[f"{size}: {width} -> {4 * width}, 1x1/1"] = blocks
        shortcut = f"{before}: {narrow} -> {4 * width}, 1x1/{step}"
        found[shortcut] = found.get(shortcut, 0) + 1
    return found


RESNETS: dict[str, dict[str, int]] = {
    "ResNet-18": {name: layer.times for name, layer in LAYERS.items()},
    "ResNet-34": {**{name: layer.times for name, layer in LAYERS.items()}, "C2": 6, "C6": 7, "C9": 11, "C12": 5},
    "ResNet-50 v2": _bottleneck_counts(6),
    "ResNet-101 v2": _bottleneck_counts(23),
}
"""How often the convolutions behind the first one occur in each network."""


def product(size: int, element: str, *, narrowed: bool = False) -> str:
    """
    A square matrix product at graph level; integers are summed in 32 bits and, `narrowed`, shifted, cut off and stored
    in 8 again, for a machine that stores no more.
    """
    of_sums = {"i8": "i32", "f16": "f32"}.get(element, element)
    accumulate = f" accumulate {of_sums}" if of_sums != element else ""
    matrix, sums = f"tensor<{size}x{size}x{element}>", f"tensor<{size}x{size}x{of_sums}>"
    result = matrix if narrowed else sums
    epilogue = f"""%s = graph.constant dense<10> : tensor<i32>
  %1 = graph.shift_right %0, %s : ({sums}, tensor<i32>) -> {sums}
  %2 = graph.clip %1 min -128 max 127 : {sums}
  %3 = graph.cast %2 : {sums} -> {result}
  func.return %3 : {result}"""
    return f"""
func.func @main(%a: {matrix} {{graph.name = "a"}}, %b: {matrix} {{graph.name = "b"}})
    -> ({result} {{graph.name = "c"}}) {{
  %0 = graph.matmul %a, %b{accumulate} : ({matrix}, {matrix}) -> {sums}
  {epilogue if narrowed else f"func.return %0 : {result}"}
}}
"""


FUSED = (
    ("rapid-core-like", 512, 14, 512),
    ("rapid-core-like", 128, 28, 128),
    ("rapid-core-like", 128, 28, 1),
    ("gemmini-fp32", 64, 14, 64),
    ("gemmini-fp32", 64, 14, 1),
)
"""Machine, channels, size and groups of convolutions with an epilogue."""
FOLDS_SCALES = ("simplify", "fold-batch-norm", "fold-scale")
"""The passes without which a scale stays an op."""


def scaled_convolution(channels: int, size: int, groups: int) -> str:
    """A 3x3 convolution at graph level, its channels scaled and shifted, and cut at 0."""
    x, c, w = (
        f"tensor<1x{channels}x{size}x{size}xf32>",
        f"tensor<{channels}x1x1xf32>",
        (channels, channels // groups, 3, 3),
    )
    k = f"tensor<{'x'.join(map(str, w))}xf32>"
    return f"""
func.func @main(%x: {x}, %w: {k}, %s: {c}, %b: {c}) -> {x} {{
  %0 = graph.conv %x, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] group {groups} : ({x}, {k}) -> {x}
  %1 = graph.mul %0, %s : ({x}, {c}) -> {x}
  %2 = graph.add %1, %b : ({x}, {c}) -> {x}
  %y = graph.relu %2 : {x}
  func.return %y : {x}
}}
"""


DEPTHWISE = (
    ("gemmini", 512, "i8"),
    ("gemmini-fp32", 512, "f32"),
    ("tpu-v1-like", 512, "i8"),
    ("snax-opengemm", 64, "i8"),
    ("snitch-cluster", 64, "f32"),
    ("smaug-smv", 64, "f32"),
)
"""Machines with products of matrices only, with the channels of an image and their type."""


def depthwise_convolution(channels: int, size: int, element: str) -> str:
    """A 3x3 convolution of each channel at graph level, with weights."""
    total, one, how = ("f32", "1.0", "") if element == "f32" else ("i32", "1", " accumulate i32")
    x, y = (f"tensor<1x{channels}x{size}x{size}x{each}>" for each in (element, total))
    w = f"tensor<{channels}x1x3x3x{element}>"
    return f"""
func.func @main(%x: {x}) -> {y} {{
  %w = graph.constant dense<{one}> : {w}
  %y = graph.conv %x, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] group {channels}{how} : ({x}, {w}) -> {y}
  func.return %y : {y}
}}
"""


STEMS = {
    "7x7 / 2, 64": (64, 7, 2, 3),
    "3x3 / 2, 32": (32, 3, 2, 1),
    "16x16 / 16, 192": (192, 16, 16, 0),
}
"""First convolutions of an image of three channels: channels of the result, kernel, stride and pad."""
FIRST = (
    ("vta-pynq", "i8"),
    ("gemmini", "i8"),
    ("tpu-v1-like", "i8"),
    ("snax-opengemm", "i8"),
    ("gemmini-fp32", "f32"),
    ("rapid-core-like", "f32"),
    ("smaug-smv", "f32"),
    ("snitch-cluster", "f32"),
)
"""Machines that compute them, and their type."""


def first_convolution(stem: tuple[int, int, int, int], size: int, element: str) -> str:
    """The first convolution of an image of three channels at graph level, with weights."""
    outputs, kernel, stride, pad = stem
    rows = (size + 2 * pad - kernel) // stride + 1
    total, one, how = ("f32", "1.0", "") if element == "f32" else ("i32", "1", " accumulate i32")
    x, w = f"tensor<1x3x{size}x{size}x{element}>", f"tensor<{outputs}x3x{kernel}x{kernel}x{element}>"
    sums, y = (f"tensor<1x{outputs}x{rows}x{rows}x{each}>" for each in (total, element))
    last, result = "", "%sums"
    if element != "f32":
        last = f"""
  %by = graph.constant dense<6> : tensor<i32>
  %shifted = graph.shift_right %sums, %by : ({sums}, tensor<i32>) -> {sums}
  %within = graph.clip %shifted min 0.0 max 127.0 : {sums}
  %y = graph.cast %within : {sums} -> {y}"""
        result = "%y"
    return f"""
func.func @main(%x: {x}) -> {y} {{
  %w = graph.constant dense<{one}> : {w}
  %sums = graph.conv %x, %w strides [{stride}, {stride}] pads [{pad}, {pad}, {pad}, {pad}] dilations [1, 1]{how}
      : ({x}, {w}) -> {sums}{last}
  func.return {result} : {y}
}}
"""
