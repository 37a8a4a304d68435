# SPDX-License-Identifier: Apache-2.0
"""`fuse-elementwise`: which ops of the host are inlined into which, and that every bit stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp

from penstock.dialects.context import PenstockContext, make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.analysis.kernels import is_contraction
from penstock.runtime.compiler import compile_module
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes

Array = NDArray[Any]

M, C, R = "tensor<4x6xf32>", "tensor<4x1xf32>", "tensor<6x4xf32>"


def parsed(body: str, arguments: str = f"%x: {M}, %z: {M}", result: str = M) -> tuple[PenstockContext, ModuleOp]:
    text = f"func.func @main({arguments}) -> {result} {{\n{body}\nfunc.return %y : {result}\n}}"
    ctx = make_context()
    return ctx, parse_text(ctx, SourceText("elementwise.mlir", text)).module


def bodies(module: ModuleOp) -> list[list[str]]:
    """What each generic computes that is no fill, in order."""
    found = [
        [op.name.split(".")[1] for op in generic.body.block.ops if op.name not in ("arith.constant", "linalg.yield")]
        for generic in module.walk()
        if isinstance(generic, GenericOp) and generic.inputs
    ]
    return found


def random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def fused(body: str, arguments: str = f"%x: {M}, %z: {M}", result: str = M, inputs: list[Array] | None = None) -> Any:
    """What each generic computes after the pass, which changes no bit of real inputs, in the interpreter and in C."""
    ctx, module = parsed(body, arguments, result)
    given = inputs or [random(4, 6), random(4, 6)[::-1].copy()]
    run_passes(ctx, module, read_pipeline("graph-fuse,graph-to-tensor"))
    before = run_module(module, given, ctx.weights)
    run_passes(ctx, module, read_pipeline("fuse-elementwise"))
    found = bodies(module)
    np.testing.assert_array_equal(run_module(module, given, ctx.weights), before)
    other, unfused = parsed(body, arguments, result)
    compile_module(unfused, other, None, "loop")
    compile_module(module, ctx, None, "loop")
    for ours, theirs in zip(Engine(module, ctx).run(given), Engine(unfused, other).run(given), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    return found


def binary(name: str, op: str, left: str, right: str, types: tuple[str, str] = (M, M)) -> str:
    return f"%{name} = graph.{op} %{left}, %{right} : ({types[0]}, {types[1]}) -> {M}\n"


def test_a_chain_becomes_one_loop() -> None:
    body = f"%a = graph.abs %x : {M}\n" + binary("b", "mul", "a", "z") + f"%y = graph.neg %b : {M}"
    assert fused(body) == [["absf", "mulf", "negf"]]


def test_a_diamond_becomes_one_loop_that_reads_its_input_once() -> None:
    body = f"%a = graph.abs %x : {M}\n" + binary("y", "mul", "a", "x")
    assert fused(body) == [["absf", "mulf"]]
    ctx, module = parsed(body)
    run_passes(ctx, module, read_pipeline("graph-fuse,graph-to-tensor,fuse-elementwise"))
    (generic,) = (op for op in module.walk() if isinstance(op, GenericOp))
    assert len(generic.inputs) == 1


def test_the_arms_of_a_diamond_meet_before_what_both_read() -> None:
    body = f"%a = graph.abs %x : {M}\n%b = graph.relu %a : {M}\n%c = graph.neg %a : {M}\n"
    assert fused(body + binary("y", "add", "b", "c")) == [["absf", "negf", "maximumf", "addf"]]


def test_what_two_ops_read_stays() -> None:
    # The powers of a softmax, which are summed and divided.
    found = fused(f"%y = graph.softmax %x axis 1 : {M} -> {M}")
    assert found == [["maximumf"], ["subf", "exp"], ["addf"], ["divf"], ["mulf"]]


def test_a_reduction_takes_what_is_before_it_and_nothing_after_it() -> None:
    body = f"%a = graph.abs %x : {M}\n%y = graph.reduce_sum %a axes [1] : {M} -> {C}"
    assert fused(body, result=C) == [["absf", "addf"]]
    body = f"%y = graph.reduce_mean %x axes [1] : {M} -> {C}"
    assert fused(body, result=C) == [["addf"], ["divf"]]


def test_a_sum_of_squares_does_not_become_a_contraction() -> None:
    body = binary("a", "mul", "x", "x") + f"%y = graph.reduce_sum %a axes [1] : {M} -> {C}"
    assert fused(body, result=C) == [["mulf"], ["addf"]]


def test_what_is_repeated_is_computed_once() -> None:
    column = f"%r = graph.sqrt %c : {C}\n"
    body = column + binary("y", "div", "x", "r", (M, C))
    given = [random(4, 6), np.abs(random(4, 1))]
    assert fused(body, f"%x: {M}, %c: {C}", inputs=given) == [["sqrt"], ["divf"]]
    # Something that is only moved costs nothing again.
    body = f"%r = graph.expand %c : {C} -> {M}\n" + binary("y", "div", "x", "r")
    assert fused(body, f"%x: {M}, %c: {C}", inputs=given) == [["divf"]]


def test_an_expansion_stays_where_it_alone_tells_how_often_a_reduction_runs() -> None:
    column = f"%x: {C}, %z: {M}", C, [random(4, 1), random(4, 6)]
    expand = f"%a = graph.expand %x : {C} -> {M}\n"
    assert fused(expand + f"%y = graph.reduce_sum %a axes [1] : {M} -> {C}", *column) == [[], ["addf"]]
    # Something else that is read has the size too, and the dim that is not repeated has it in any case.
    body = expand + binary("b", "sub", "a", "z") + f"%y = graph.reduce_max %b axes [1] : {M} -> {C}"
    assert fused(body, *column) == [["subf", "maximumf"]]
    row = "tensor<1x6xf32>"
    body = expand + f"%y = graph.reduce_sum %a axes [0] : {M} -> {row}"
    assert fused(body, f"%x: {C}", row, [random(4, 1)]) == [["addf"]]


def test_calls_of_the_mathematical_library_stay_among_themselves() -> None:
    body = f"%a = graph.neg %x : {M}\n%b = graph.sin %a : {M}\n%c = graph.cos %b : {M}\n%d = graph.relu %c : {M}\n"
    assert fused(body + binary("y", "add", "d", "z")) == [["negf"], ["sin", "cos"], ["maximumf", "addf"]]


def test_what_becomes_a_polynomial_joins_arithmetic_but_no_reduction() -> None:
    body = f"%a = graph.neg %x : {M}\n%b = graph.exp %a : {M}\n%c = graph.erf %b : {M}\n"
    assert fused(body + binary("y", "add", "c", "z")) == [["negf", "exp", "erf", "addf"]]
    reduced = body + f"%y = graph.reduce_sum %c axes [1] : {M} -> {C}"
    assert fused(reduced, f"%x: {M}", C, [random(4, 6)]) == [["negf", "exp", "erf"], ["addf"]]


def test_moves_become_maps() -> None:
    body = f"%t = graph.transpose %w perm [1, 0] : {R} -> {M}\n" + binary("y", "add", "x", "t")
    assert fused(body, f"%x: {M}, %w: {R}", inputs=[random(4, 6), random(6, 4)]) == [["addf"]]
    backwards = f"%t = graph.slice %z starts [3, 5] sizes [4, 6] steps [-1, -1] : {M} -> {M}\n"
    assert fused(backwards + binary("y", "sub", "x", "t")) == [["subf"]]


def test_a_contraction_keeps_its_operands_and_its_body() -> None:
    body = f"%p = graph.matmul %x, %w : ({M}, {R}) -> tensor<4x4xf32>\n%a = graph.relu %p : tensor<4x4xf32>\n"
    body += "%y = graph.abs %a : tensor<4x4xf32>"
    given = [random(4, 6), random(6, 4)]
    found = fused(body, f"%x: {M}, %w: {R}", "tensor<4x4xf32>", given)
    assert found == [["mulf", "addf"], ["maximumf", "absf"]]


FACTORS = """
#id = affine_map<(d0, d1) -> (d0, d1)>
func.func private @f(%x: tensor<4x6xf32>, %w: tensor<6x4xf32>, %zero: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %e = tensor.empty() : tensor<4x6xf32>
  %a = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<4x6xf32>) outs(%e : tensor<4x6xf32>) {
  ^bb0(%in: f32, %out: f32):
    %m = math.absf %in : f32
    linalg.yield %m : f32
  } -> tensor<4x6xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>,
      affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %w : tensor<4x6xf32>, tensor<6x4xf32>) outs(%zero : tensor<4x4xf32>) {
  ^bb0(%l: f32, %r: f32, %acc: f32):
    %p = arith.mulf %l, %r : f32
    %s = arith.addf %acc, %p : f32
    linalg.yield %s : f32
  } -> tensor<4x4xf32>
  func.return %y : tensor<4x4xf32>
}
"""


def test_nothing_is_inlined_into_a_factor() -> None:
    ctx = make_context()
    module = parse_text(ctx, SourceText("factors.mlir", FACTORS)).module
    run_passes(ctx, module, read_pipeline("fuse-elementwise"))
    assert bodies(module) == [["absf"], ["mulf", "addf"]]


@pytest.mark.parametrize(("placed", "expected"), [(False, [["mulf"], ["addf"]]), (True, [["mulf"], ["addf"]])])
def test_a_machine_keeps_the_bodies_that_its_intrinsics_have(placed: bool, expected: list[list[str]]) -> None:
    ctx, module = parsed(binary("a", "mul", "x", "z") + binary("y", "add", "a", "z"))
    attach_machine(module, "neural-accelerator")
    steps = ["graph-fuse", "graph-to-tensor", *(["assign-devices"] if placed else []), "fuse-elementwise"]
    run_passes(ctx, module, read_pipeline(",".join(steps)))
    kernels = ModuleOp([op.clone() for op in module.ops if op.name == "func.func"])
    assert bodies(kernels) == expected


def test_kernels_of_the_host_are_fused_beside_a_machine() -> None:
    ctx, module = parsed(f"%a = graph.abs %x : {M}\n" + binary("y", "div", "a", "z"))
    attach_machine(module, "gemmini-fp32")
    run_passes(ctx, module, read_pipeline("graph-fuse,graph-to-tensor,assign-devices,fuse-elementwise"))
    kernels = ModuleOp([op.clone() for op in module.ops if op.name == "func.func"])
    assert bodies(kernels) == [["absf", "divf"]]
    assert not any(isinstance(op, GenericOp) and is_contraction(op) for op in kernels.walk())
