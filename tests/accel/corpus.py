# SPDX-License-Identifier: Apache-2.0
"""Small layers on the machines, at the accelerator level: kernels whose commands are enumerated one by one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from penstock.dialects.context import PenstockContext, make_context
from penstock.runtime.levels import level_of
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline


def layer(m: int, n: int, k: int, *, narrow: str, wide: str) -> str:
    """A matrix product of narrow elements in wide ones, with a bias and a clamp where elements are floats."""
    a, b, c, y = f"{m}x{k}x{narrow}", f"{k}x{n}x{narrow}", f"{n}x{wide}", f"{m}x{n}x{wide}"
    sums = f" accumulate {wide}" if narrow != wide else ""
    if narrow == "i8":
        return f"""func.func @main(%a: tensor<{a}>, %b: tensor<{b}>) -> tensor<{y}> {{
  %y = graph.matmul %a, %b{sums} : (tensor<{a}>, tensor<{b}>) -> tensor<{y}>
  func.return %y : tensor<{y}>
}}"""
    return f"""func.func @main(%a: tensor<{a}>, %b: tensor<{b}>, %c: tensor<{c}>) -> tensor<{y}> {{
  %p = graph.matmul %a, %b{sums} : (tensor<{a}>, tensor<{b}>) -> tensor<{y}>
  %s = graph.add %p, %c : (tensor<{y}>, tensor<{c}>) -> tensor<{y}>
  %r = graph.relu %s : tensor<{y}>
  func.return %r : tensor<{y}>
}}"""


def convolution(size: int, channels: int, filters: int, *, narrow: str, wide: str) -> str:
    """A convolution of 3 x 3 with padding."""
    x, w, y = (
        f"1x{channels}x{size}x{size}x{narrow}",
        f"{filters}x{channels}x3x3x{narrow}",
        f"1x{filters}x{size}x{size}x{wide}",
    )
    sums = f" accumulate {wide}" if narrow != wide else ""
    attributes = 'strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] group 1 layout "NCHW"' + sums
    return f"""func.func @main(%x: tensor<{x}>, %w: tensor<{w}>) -> tensor<{y}> {{
  %y = graph.conv %x, %w {attributes} : (tensor<{x}>, tensor<{w}>) -> tensor<{y}>
  func.return %y : tensor<{y}>
}}"""


def blocked_convolution(size: int, inputs: int, outputs: int) -> str:
    """A convolution of 3 x 3 of blocks of 16 channels, one kernel at tensor level: bias, shift and clip to 8 bits."""
    padded = size + 2
    x, p = f"1x{size}x{size}x{inputs}x16xi8", f"1x{padded}x{padded}x{inputs}x16xi8"
    w, b, y = f"3x3x{outputs}x{inputs}x16x16xi8", f"{outputs}x16xi32", f"1x{size}x{size}x{outputs}x16x"
    parallel, reduction = ", ".join(['"parallel"'] * 5), ", ".join(['"reduction"'] * 4)
    types = f"(tensor<{x}>, tensor<{w}>, tensor<{b}>) -> tensor<{y}i8>"
    return f"""
#x = affine_map<(n, h, w, ob, o, kh, kw, ib, i) -> (n, h + kh, w + kw, ib, i)>
#w = affine_map<(n, h, w, ob, o, kh, kw, ib, i) -> (kh, kw, ob, ib, o, i)>
#y = affine_map<(n, h, w, ob, o, kh, kw, ib, i) -> (n, h, w, ob, o)>
#id = affine_map<(n, h, w, ob, o) -> (n, h, w, ob, o)>
#b = affine_map<(n, h, w, ob, o) -> (ob, o)>
func.func @main(%x: tensor<{x}>, %w: tensor<{w}>, %b: tensor<{b}>) -> tensor<{y}i8> {{
  %y = func.call @conv(%x, %w, %b) : {types}
  func.return %y : tensor<{y}i8>
}}
func.func private @conv(%x: tensor<{x}>, %w: tensor<{w}>, %b: tensor<{b}>) -> tensor<{y}i8> {{
  %zero8 = arith.constant 0 : i8
  %p = tensor.pad %x low[0, 1, 1, 0, 0] high[0, 1, 1, 0, 0] {{
  ^bb0(%q0: index, %q1: index, %q2: index, %q3: index, %q4: index):
    tensor.yield %zero8 : i8
  }} : tensor<{x}> to tensor<{p}>
  %e = tensor.empty() : tensor<{y}i32>
  %zero = arith.constant 0 : i32
  %f = linalg.generic {{indexing_maps = [#id], iterator_types = [{parallel}]}} outs(%e : tensor<{y}i32>) {{
  ^bb0(%out: i32):
    linalg.yield %zero : i32
  }} -> tensor<{y}i32>
  %c = linalg.generic {{indexing_maps = [#x, #w, #y], iterator_types = [{parallel}, {reduction}]}}
      ins(%p, %w : tensor<{p}>, tensor<{w}>) outs(%f : tensor<{y}i32>) {{
  ^bb0(%a: i8, %v: i8, %acc: i32):
    %a1 = arith.extsi %a : i8 to i32
    %v1 = arith.extsi %v : i8 to i32
    %m = arith.muli %a1, %v1 : i32
    %s = arith.addi %acc, %m : i32
    linalg.yield %s : i32
  }} -> tensor<{y}i32>
  %e2 = tensor.empty() : tensor<{y}i8>
  %shift = arith.constant 6 : i32
  %most = arith.constant 127 : i32
  %y = linalg.generic {{indexing_maps = [#id, #b, #id], iterator_types = [{parallel}]}}
      ins(%c, %b : tensor<{y}i32>, tensor<{b}>) outs(%e2 : tensor<{y}i8>) {{
  ^bb0(%in: i32, %bias: i32, %o: i8):
    %1 = arith.addi %in, %bias : i32
    %2 = arith.shrsi %1, %shift : i32
    %3 = arith.maxsi %2, %zero : i32
    %4 = arith.minsi %3, %most : i32
    %5 = arith.trunci %4 : i32 to i8
    linalg.yield %5 : i8
  }} -> tensor<{y}i8>
  func.return %y : tensor<{y}i8>
}}
"""


F32 = {"narrow": "f32", "wide": "f32"}
F16 = {"narrow": "f16", "wide": "f32"}
I8 = {"narrow": "i8", "wide": "i32"}

CORPUS = {
    "gemmini-fp32 matmul": ("gemmini-fp32", layer(37, 50, 29, **F32)),
    "gemmini-fp32 long matmul": ("gemmini-fp32", layer(16, 16, 3000, **F32)),
    "gemmini matmul": ("gemmini", layer(37, 50, 29, **I8)),
    "snax-opengemm matmul": ("snax-opengemm", layer(40, 48, 200, **I8)),
    "rapid-core-like matmul": ("rapid-core-like", layer(37, 50, 29, **F16)),
    "smaug-smv matmul": ("smaug-smv", layer(64, 96, 300, **F16)),
    "neural-accelerator matmul": ("neural-accelerator", layer(37, 50, 29, **F16)),
    "neural-cluster matmul": ("neural-cluster", layer(37, 50, 29, **F16)),
    "gemmini-fp32 convolution": ("gemmini-fp32", convolution(12, 8, 16, **F32)),
    "vta-pynq convolution": ("vta-pynq", blocked_convolution(14, 2, 4)),
    "h100-sm matmul": ("h100-sm", layer(64, 64, 64, **F16)),
}


@cache
def compiled(name: str, extra: tuple[tuple[str, str], ...] = ()) -> tuple[ModuleOp, PenstockContext]:
    """A module of the corpus at the accelerator level; `extra` are passes, in front of which others they run."""
    machine, text = CORPUS[name]
    return compile_text(text, machine, extra)


def compile_text(text: str, machine: str, extra: Sequence[tuple[str, str]] = ()) -> tuple[ModuleOp, PenstockContext]:
    """A module at the accelerator level."""
    context = make_context()
    module = Parser(context, text, "layer.mlir").parse_module()
    attach_machine(module, machine)
    usual = pipeline("accel", machine, start=level_of(module))
    specs: list[str] = []
    for spec in usual:
        name = spec.split("{")[0]
        if not any(added.split("{")[0] == name for added, _ in extra):
            specs += [added for added, before in extra if before == name]
            specs.append(spec)
    run_passes(context, module, read_pipeline(",".join(specs)))
    return module, context
