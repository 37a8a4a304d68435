# SPDX-License-Identifier: Apache-2.0
"""Convolutions of 8-bit integers in 16-blocks of channels as kernels at tensor level, and what they compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Layer:
    """A square convolution, bias, shift by 6, perhaps a shortcut, and bounds 0 and 127."""

    size: int
    channels: int
    outputs: int
    kernel: int = 3
    stride: int = 1
    planes: bool = True
    """Whether images are in NCHW16c; else in NHWC16c."""
    shortcut: bool = False
    """Whether 8-bit integers are added before the bounds."""

    @property
    def pad(self) -> int:
        return self.kernel // 2

    @property
    def out(self) -> int:
        return (self.size + 2 * self.pad - self.kernel) // self.stride + 1

    def image(self, blocks: int, size: int) -> tuple[int, ...]:
        return (1, blocks, size, size, 16) if self.planes else (1, size, size, blocks, 16)

    def text(self) -> str:
        ib, ob, k = self.channels // 16, self.outputs // 16, self.kernel

        def image(blocks: int, size: int, element: str) -> str:
            return f"tensor<{'x'.join(map(str, self.image(blocks, size)))}x{element}>"

        def indices(c: str, h: str, w: str) -> str:
            return f"n, {c}, {h}, {w}" if self.planes else f"n, {h}, {w}, {c}"

        x, padded = image(ib, self.size, "i8"), image(ib, self.size + 2 * self.pad, "i8")
        w, b = f"tensor<{k}x{k}x{ob}x{ib}x16x16xi8>", f"tensor<{ob}x16xi32>"
        y, sums = image(ob, self.out, "i8"), image(ob, self.out, "i32")
        dims, inner = f"{indices('ob', 'h', 'w')}, o", "ib, kh, kw, i"
        edge = [0, 0, self.pad, self.pad, 0] if self.planes else [0, self.pad, self.pad, 0, 0]
        parallel, reduction = ", ".join(['"parallel"'] * 5), ", ".join(['"reduction"'] * 4)
        source = f"{indices('ib', f'h * {self.stride} + kh', f'w * {self.stride} + kw')}, i"
        args = [("x", x), ("w", w), ("b", b), *([("r", y)] if self.shortcut else [])]
        heads = ", ".join(f'%{name}: {type} {{graph.name = "{name}"}}' for name, type in args)
        plain = ", ".join(f"%{name}: {type}" for name, type in args)
        names, types = ", ".join(f"%{name}" for name, _ in args), ", ".join(type for _, type in args)
        more = (", #id", ", %r", f", {y}", ", %skip: i8") if self.shortcut else ("",) * 4
        added = "%4 = arith.extsi %skip : i8 to i32\n    %5 = arith.addi %2, %4 : i32"
        return f"""
#x = affine_map<({dims}, {inner}) -> ({source})>
#w = affine_map<({dims}, {inner}) -> (kh, kw, ob, ib, o, i)>
#y = affine_map<({dims}, {inner}) -> ({dims})>
#id = affine_map<({dims}) -> ({dims})>
#b = affine_map<({dims}) -> (ob, o)>
func.func @main({heads}) -> ({y} {{graph.name = "y"}}) {{
  %y = func.call @conv({names}) : ({types}) -> {y}
  func.return %y : {y}
}}
func.func private @conv({plain}) -> {y} {{
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
  %y = linalg.generic {{indexing_maps = [#id, #b{more[0]}, #id], iterator_types = [{parallel}]}}
      ins(%c, %b{more[1]} : {sums}, {b}{more[2]}) outs(%e2 : {y}) {{
  ^bb0(%in: i32, %bias: i32{more[3]}, %o: i8):
    %1 = arith.addi %in, %bias : i32
    %2 = arith.shrsi %1, %six : i32
    {added if self.shortcut else ""}
    %6 = arith.maxsi {"%5" if self.shortcut else "%2"}, %zero : i32
    %7 = arith.minsi %6, %most : i32
    %8 = arith.trunci %7 : i32 to i8
    linalg.yield %8 : i8
  }} -> {y}
  func.return %y : {y}
}}
"""

    def draw(self, rng: np.random.Generator) -> list[Array]:
        ib, ob, k = self.channels // 16, self.outputs // 16, self.kernel
        x = rng.integers(-8, 8, self.image(ib, self.size), np.int8)
        w = rng.integers(-8, 8, (k, k, ob, ib, 16, 16), np.int8)
        b = rng.integers(-999, 999, (ob, 16), np.int32)
        return [x, w, b, *([rng.integers(-128, 128, self.image(ob, self.out), np.int8)] if self.shortcut else [])]

    def evaluate(self, x: Array, w: Array, b: Array, r: Array | None = None) -> Array:
        """In 64-bit integers."""
        planes = x if self.planes else np.moveaxis(x, 3, 1)
        edge = (self.pad, self.pad)
        padded = np.pad(planes.astype(np.int64), ((0, 0), (0, 0), edge, edge, (0, 0)))
        sums = np.zeros((1, self.outputs // 16, self.out, self.out, 16), np.int64)
        reach = self.stride * (self.out - 1) + 1
        for row in range(self.kernel):
            for column in range(self.kernel):
                window = padded[:, :, row : row + reach : self.stride, column : column + reach : self.stride]
                sums += np.einsum("nchwi,bcoi->nbhwo", window, w[row, column].astype(np.int64))
        shifted = (sums + b[None, :, None, None]) >> 6
        if not self.planes:
            shifted = np.moveaxis(shifted, 1, 3)
        return np.clip(shifted if r is None else shifted + r, 0, 127).astype(np.int8)
