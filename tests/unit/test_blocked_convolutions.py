# SPDX-License-Identifier: Apache-2.0
"""Convolutions of 16-blocks of 8-bit channels on VTA: a dense block of weights, an integer epilogue, a narrow store."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray
from sampling import sweep
from xdsl.parser import Parser

from penstock.dialects.accel import ExecOp
from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.mem import RingOp
from penstock.passes.analysis.kernels import HOST, partition
from penstock.runtime.compiler import LoadedProgram, compile_module
from penstock.runtime.engine import Backend, Engine
from penstock.runtime.signature import signature_of

Integers = NDArray[np.int64]

EPILOGUE = ("alu_add", "alu_shr_imm", "alu_max_imm", "alu_min_imm", "store_narrow")


@dataclass(frozen=True)
class Convolution:
    """A square one; channels count blocks of 16."""

    size: int
    inputs: int
    outputs: int
    kernel: int = 3
    stride: int = 1
    pad: int = 1
    batch: int = 1

    @property
    def out(self) -> int:
        return (self.size + 2 * self.pad - self.kernel) // self.stride + 1

    @property
    def text(self) -> str:
        """Convolution, bias, shift by 6, and clip to 0..127, as one kernel at tensor level."""
        n, h, p, k = self.batch, self.size, self.size + 2 * self.pad, self.kernel
        x, padded = f"tensor<{n}x{h}x{h}x{self.inputs}x16xi8>", f"tensor<{n}x{p}x{p}x{self.inputs}x16xi8>"
        w = f"tensor<{k}x{k}x{self.outputs}x{self.inputs}x16x16xi8>"
        b, y = f"tensor<{self.outputs}x16xi32>", f"tensor<{n}x{self.out}x{self.out}x{self.outputs}x16xi8>"
        sums, parallel = y.replace("i8", "i32"), ", ".join(['"parallel"'] * 5)
        reduction = ", ".join(['"reduction"'] * 4)
        step = f"* {self.stride}"
        edge = f"[0, {self.pad}, {self.pad}, 0, 0]"
        return f"""
#x = affine_map<(n, h, w, ob, o, kh, kw, ib, i) -> (n, h {step} + kh, w {step} + kw, ib, i)>
#w = affine_map<(n, h, w, ob, o, kh, kw, ib, i) -> (kh, kw, ob, ib, o, i)>
#y = affine_map<(n, h, w, ob, o, kh, kw, ib, i) -> (n, h, w, ob, o)>
#id = affine_map<(n, h, w, ob, o) -> (n, h, w, ob, o)>
#b = affine_map<(n, h, w, ob, o) -> (ob, o)>
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

    def draw(self, rng: np.random.Generator) -> list[Integers]:
        image = (self.batch, self.size, self.size, self.inputs, 16)
        filters = (self.kernel, self.kernel, self.outputs, self.inputs, 16, 16)
        return [rng.integers(-8, 8, image), rng.integers(-8, 8, filters), rng.integers(-999, 999, (self.outputs, 16))]

    def evaluate(self, x: Integers, w: Integers, b: Integers) -> Integers:
        """In 64-bit integers."""
        edge = (self.pad, self.pad)
        padded = np.pad(x, ((0, 0), edge, edge, (0, 0), (0, 0)))
        sums = np.zeros((self.batch, self.out, self.out, self.outputs, 16), np.int64)
        for row in range(self.kernel):
            for column in range(self.kernel):
                reach = self.stride * (self.out - 1) + 1
                window = padded[:, row : row + reach : self.stride, column : column + reach : self.stride]
                sums += np.einsum("nhwci,bcoi->nhwbo", window, w[row, column])
        return np.clip((sums + b) >> 6, 0, 127)


CASES = {
    "blocks": Convolution(8, 2, 3),
    "strided": Convolution(9, 2, 1, stride=2),
    "pointwise, batched": Convolution(5, 3, 2, kernel=1, pad=0, batch=2),
    "larger than the scopes": Convolution(28, 4, 8),
    "channels of a prime number of blocks, deep": Convolution(7, 37, 5),
}


def program(case: Convolution) -> LoadedProgram:
    ctx: PenstockContext = make_context()
    module = Parser(ctx, case.text).parse_module()
    return LoadedProgram(module, ctx, Path("conv.mlir"))


@pytest.mark.parametrize(
    ("name", "backend"),
    sweep(
        product(CASES, get_args(Backend)),
        quick=[("blocks", "native"), ("strided", "interpreter"), ("pointwise, batched", "native")],
    ),
)
def test_a_blocked_convolution_runs_on_vta_bit_for_bit(name: str, backend: Backend) -> None:
    case = CASES[name]
    made = program(case)
    signature = signature_of(made.module)
    compile_module(made.module, made.ctx, "vta-pynq", "accel")
    assert [placement.device for placement in partition(made.module)] == ["vta_pynq"]
    x, w, b = case.draw(np.random.default_rng(1))
    engine = Engine(made.module, made.ctx, signature, backend)
    (y,) = engine.run([x.astype(np.int8), w.astype(np.int8), b.astype(np.int32)], {})
    expected = case.evaluate(x, w, b)
    assert 0 < np.count_nonzero(expected) < expected.size
    np.testing.assert_array_equal(y, expected)


def test_the_whole_kernel_is_commands_of_the_machine() -> None:
    made = program(CASES["blocks"])
    compile_module(made.module, made.ctx, "vta-pynq", "accel")
    issued = [op.intrinsic.string_value() for op in made.module.walk() if isinstance(op, ExecOp)]
    assert list(dict.fromkeys(issued)) == ["gemm_reset", "gemm", *EPILOGUE]
    (weights,) = [op for op in made.module.walk() if isinstance(op, RingOp) and op.scope == "wgt"]
    # 16 rows of 16 adjoin, though a row is less than the scope's granule of 256 bytes.
    assert weights.pitch_in_bytes == prod(weights.slot_type.get_shape())
    assert weights.slot_type.get_shape()[-2:] == (16, 16)


def test_weights_that_are_not_blocked_stay_on_the_host_and_the_reason_says_so() -> None:
    case = CASES["blocks"]
    text = case.text.replace("(kh, kw, ob, ib, o, i)", "(kh, kw, o, ob, ib, i)")
    text = text.replace("3x3x3x2x16x16xi8", "3x3x16x3x2x16xi8")
    ctx = make_context()
    module = Parser(ctx, text).parse_module()
    compile_module(module, ctx, "vta-pynq", "tensor")
    (placement,) = [each for each in partition(module) if each.macs]
    assert placement.device == HOST
    assert placement.remark == (
        "@gemm: nothing can play its dim n: operand wgt is dense: its rows of 16 adjoin, and those of d4 do not"
    )
