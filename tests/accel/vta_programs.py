# SPDX-License-Identifier: Apache-2.0
"""Integer kernels at tensor level, in the blocked layouts of VTA, with what they compute in 64-bit integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Kernel:
    """A module with one kernel, and what it computes."""

    text: str
    shapes: tuple[tuple[tuple[int, ...], str], ...]
    """Shape and element type of each input."""
    evaluate: Callable[..., Array]

    def draw(self, seed: int) -> list[Array]:
        """Inputs: small 8-bit integers, so that results are seldom clipped; and biases."""
        rng = np.random.default_rng(seed)
        ranges = {"i1": (-8, 9), "i4": (-999, 1000)}
        return [rng.integers(*ranges[kind], shape).astype(kind) for shape, kind in self.shapes]

    def expected(self, inputs: Sequence[Array]) -> Array:
        """The 8-bit result."""
        return self.evaluate(*(each.astype(np.int64) for each in inputs)).astype(np.int8)


def _typed(shape: Sequence[int], element: str) -> str:
    return f"tensor<{'x'.join(map(str, shape))}x{element}>"


def _module(inputs: Sequence[tuple[str, str]], result: str, maps: Sequence[str], body: str) -> str:
    named = ", ".join(f'%{name}: {type} {{graph.name = "{name}"}}' for name, type in inputs)
    plain = ", ".join(f"%{name}: {type}" for name, type in inputs)
    operands, types = ", ".join(f"%{name}" for name, _ in inputs), ", ".join(type for _, type in inputs)
    header = "\n".join(maps)
    return f"""
{header}
func.func @main({named}) -> ({result} {{graph.name = "y"}}) {{
  %y = func.call @kernel({operands}) : ({types}) -> {result}
  func.return %y : {result}
}}
func.func private @kernel({plain}) -> {result} {{
  %zero = arith.constant 0 : i32
  %amount = arith.constant 6 : i32
  %least = arith.constant -100 : i32
  %most = arith.constant 100 : i32
{body}
  func.return %out : {result}
}}
"""


_NARROW = """
    %n1 = arith.shrsi %n0, %amount : i32
    %n2 = arith.maxsi %n1, %least : i32
    %n3 = arith.minsi %n2, %most : i32
    %n4 = arith.trunci %n3 : i32 to i8
    linalg.yield %n4 : i8"""


def _contraction(x: str, w: str, bias: str, y: str, dims: int, reduction: int) -> str:
    """A sum of products of %x and %w, a bias, a shift and a clip."""
    sums = y.replace("i8", "i32")
    parallel = ", ".join(['"parallel"'] * dims)
    reduced = ", ".join(['"reduction"'] * reduction)
    return f"""
  %e = tensor.empty() : {sums}
  %f = linalg.generic {{indexing_maps = [#id], iterator_types = [{parallel}]}} outs(%e : {sums}) {{
  ^bb0(%old: i32):
    linalg.yield %zero : i32
  }} -> {sums}
  %c = linalg.generic {{indexing_maps = [#x, #w, #y], iterator_types = [{parallel}, {reduced}]}}
      ins(%p, %w : {x}, {w}) outs(%f : {sums}) {{
  ^bb0(%a: i8, %v: i8, %acc: i32):
    %a1 = arith.extsi %a : i8 to i32
    %v1 = arith.extsi %v : i8 to i32
    %m = arith.muli %a1, %v1 : i32
    %s = arith.addi %acc, %m : i32
    linalg.yield %s : i32
  }} -> {sums}
  %e2 = tensor.empty() : {y}
  %out = linalg.generic {{indexing_maps = [#id, #b, #id], iterator_types = [{parallel}]}}
      ins(%c, %b : {sums}, {bias}) outs(%e2 : {y}) {{
  ^bb0(%in: i32, %bias: i32, %old: i8):
    %n0 = arith.addi %in, %bias : i32{_NARROW}
  }} -> {y}"""


def narrowed(sums: Array) -> Array:
    """The shift and the clip of all kernels here."""
    return np.clip(sums >> 6, -100, 100)


def convolution(
    size: tuple[int, int], inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1, pad: int = 1, batch: int = 1
) -> Kernel:
    """A convolution of `inputs` to `outputs` blocks of 16 channels."""
    (h, w), k = size, kernel
    out = [(each + 2 * pad - k) // stride + 1 for each in size]
    x, padded = (batch, h, w, inputs, 16), (batch, h + 2 * pad, w + 2 * pad, inputs, 16)
    filters, bias, y = (k, k, outputs, inputs, 16, 16), (outputs, 16), (batch, *out, outputs, 16)
    loops = "n, h, w, ob, o"
    maps = [
        f"#x = affine_map<({loops}, kh, kw, ib, i) -> (n, h * {stride} + kh, w * {stride} + kw, ib, i)>",
        f"#w = affine_map<({loops}, kh, kw, ib, i) -> (kh, kw, ob, ib, o, i)>",
        f"#y = affine_map<({loops}, kh, kw, ib, i) -> ({loops})>",
        f"#id = affine_map<({loops}) -> ({loops})>",
        f"#b = affine_map<({loops}) -> (ob, o)>",
    ]
    types = [_typed(x, "i8"), _typed(filters, "i8"), _typed(bias, "i32")]
    body = f"  %p = tensor.extract_slice %x[0, 0, 0, 0, 0] {list(x)} [1, 1, 1, 1, 1] : {types[0]} to {types[0]}"
    if pad:
        body = f"""  %zero8 = arith.constant 0 : i8
  %p = tensor.pad %x low[0, {pad}, {pad}, 0, 0] high[0, {pad}, {pad}, 0, 0] {{
  ^bb0(%q0: index, %q1: index, %q2: index, %q3: index, %q4: index):
    tensor.yield %zero8 : i8
  }} : {types[0]} to {_typed(padded, "i8")}"""
    body += _contraction(_typed(padded, "i8"), types[1], types[2], _typed(y, "i8"), 5, 4)
    if not pad:
        body = body.split("\n", 1)[1].replace("%p,", "%x,")

    def evaluate(image: Array, weights: Array, biases: Array) -> Array:
        edge = np.pad(image, ((0, 0), (pad, pad), (pad, pad), (0, 0), (0, 0)))
        sums = np.zeros(y, np.int64)
        for row in range(k):
            for column in range(k):
                rows = slice(row, row + stride * (out[0] - 1) + 1, stride)
                columns = slice(column, column + stride * (out[1] - 1) + 1, stride)
                sums += np.einsum("nhwci,bcoi->nhwbo", edge[:, rows, columns], weights[row, column])
        return narrowed(sums + biases)

    text = _module(list(zip("xwb", types, strict=True)), _typed(y, "i8"), maps, body)
    return Kernel(text, ((x, "i1"), (filters, "i1"), (bias, "i4")), evaluate)


def matmul(m: int, n: int, k: int) -> Kernel:
    """A product of m rows of `k` blocks with weights of `n` by `k` blocks."""
    x, weights, bias, y = (m, k, 16), (n, k, 16, 16), (n, 16), (m, n, 16)
    maps = [
        "#x = affine_map<(m, nb, n, kb, k) -> (m, kb, k)>",
        "#w = affine_map<(m, nb, n, kb, k) -> (nb, kb, n, k)>",
        "#y = affine_map<(m, nb, n, kb, k) -> (m, nb, n)>",
        "#id = affine_map<(m, nb, n) -> (m, nb, n)>",
        "#b = affine_map<(m, nb, n) -> (nb, n)>",
    ]
    types = [_typed(x, "i8"), _typed(weights, "i8"), _typed(bias, "i32")]
    body = _contraction(types[0], types[1], types[2], _typed(y, "i8"), 3, 2).replace("%p,", "%x,")
    text = _module(list(zip("xwb", types, strict=True)), _typed(y, "i8"), maps, body)

    def evaluate(left: Array, right: Array, biases: Array) -> Array:
        return narrowed(np.einsum("mcl,nckl->mnk", left, right) + biases)

    return Kernel(text, ((x, "i1"), (weights, "i1"), (bias, "i4")), evaluate)


def residual_add(shape: tuple[int, ...]) -> Kernel:
    """The sum of two images of blocks of 16 channels."""
    full = (*shape, 16)
    dims = ", ".join(f"d{dim}" for dim in range(len(full)))
    type, parallel = _typed(full, "i8"), ", ".join(['"parallel"'] * len(full))
    body = f"""
  %e = tensor.empty() : {type}
  %out = linalg.generic {{indexing_maps = [#id, #id, #id], iterator_types = [{parallel}]}}
      ins(%x, %r : {type}, {type}) outs(%e : {type}) {{
  ^bb0(%a: i8, %b: i8, %old: i8):
    %a1 = arith.extsi %a : i8 to i32
    %b1 = arith.extsi %b : i8 to i32
    %n0 = arith.addi %a1, %b1 : i32{_NARROW.replace("%amount", "%one")}
  }} -> {type}""".replace("  %e =", "  %one = arith.constant 1 : i32\n  %e =", 1)
    text = _module([("x", type), ("r", type)], type, [f"#id = affine_map<({dims}) -> ({dims})>"], body)

    def evaluate(left: Array, right: Array) -> Array:
        return np.clip((left + right) >> 1, -100, 100)

    return Kernel(text, ((full, "i1"), (full, "i1")), evaluate)
