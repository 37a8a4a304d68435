# SPDX-License-Identifier: Apache-2.0
"""`value-cse` and `value-dce`: what has no effects is computed once, or not at all; all else stays as it is."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from programs import parsed_in_context

from penstock.runtime.interpreter import run_module
from penstock.runtime.pass_manager import read_pipeline, run_passes

T = "tensor<4xf32>"


def generic(result: str, x: str, out: str, body: str = "arith.mulf %a, %a : f32", memory: bool = False) -> str:
    type, arrow = ("memref<4xf32>", "") if memory else (T, f" -> {T}")
    return f"""{"" if memory else f"%{result} = "}linalg.generic {{
        indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]
      }} ins(%{x} : {type}) outs(%{out} : {type}) {{
      ^bb0(%a: f32, %b: f32):
        %c = {body}
        linalg.yield %c : f32
      }}{arrow}
    """


def after(text: str, pipeline: str) -> Counter[str]:
    """How many ops of each name are left."""
    ctx, module = parsed_in_context(text)
    run_passes(ctx, module, read_pipeline(pipeline))
    once = str(module)
    run_passes(ctx, module, read_pipeline(pipeline))
    assert str(module) == once
    return Counter(op.name for op in module.walk())


def two(first: str, second: str, out: str = "e", other: str = "f") -> str:
    return f"""func.func @main(%x: {T}) -> ({T}, {T}) {{
      %e = tensor.empty() : {T}
      %f = tensor.empty() : {T}
      {generic("p", "x", out, first)} {generic("q", "x", other, second)}
      func.return %p, %q : {T}, {T}
    }}"""


def test_equal_generics_on_tensors_are_one_and_their_destinations_stay_two() -> None:
    left = after(two("arith.mulf %a, %a : f32", "arith.mulf %a, %a : f32"), "value-cse")
    assert (left["linalg.generic"], left["tensor.empty"]) == (1, 2)


def test_generics_with_other_bodies_stay_two() -> None:
    assert after(two("arith.mulf %a, %a : f32", "arith.addf %a, %a : f32"), "value-cse")["linalg.generic"] == 2


def test_generics_that_read_different_destinations_stay_two() -> None:
    body = "arith.addf %a, %b : f32"
    text = two(body, body, "x", "e").replace("outs(%e", "outs(%f")
    assert after(text, "value-cse")["linalg.generic"] == 2


def test_what_is_overwritten_later_keeps_one_writer_each() -> None:
    zero, add = "arith.subf %a, %a : f32", "arith.addf %a, %b : f32"
    text = f"""func.func @main(%x: {T}, %y: {T}) -> ({T}, {T}) {{
      %e = tensor.empty() : {T}
      %f = tensor.empty() : {T}
      {generic("p", "x", "e", zero)} {generic("q", "x", "f", zero)}
      {generic("r", "x", "p", add)} {generic("s", "y", "q", add)}
      func.return %r, %s : {T}, {T}
    }}"""
    assert after(text, "value-cse")["linalg.generic"] == 4


@pytest.mark.parametrize("pipeline", ["value-cse", "value-dce"])
def test_generics_on_memory_are_never_touched(pipeline: str) -> None:
    text = f"""func.func @main(%x: memref<4xf32>, %y: memref<4xf32>) {{
      {generic("", "x", "y", memory=True)} {generic("", "x", "y", memory=True)}
      func.return
    }}"""
    assert after(text, pipeline)["linalg.generic"] == 2


def test_dead_generics_go_with_what_fed_them_and_with_the_loop_around_them() -> None:
    text = f"""func.func @main(%x: {T}) -> {T} {{
      %0 = arith.constant 0 : index
      %1 = arith.constant 1 : index
      %e = tensor.empty() : {T}
      %l = scf.for %i = %0 to %1 step %1 iter_args(%it = %e) -> ({T}) {{
        {generic("p", "x", "it")}
        scf.yield %p : {T}
      }}
      {generic("q", "l", "e")}
      func.return %x : {T}
    }}"""
    assert after(text, "value-dce") == {"builtin.module": 1, "func.func": 1, "func.return": 1}


CALLEE = f"""func.func private @square(%x: {T}) -> {T} {{
  %e = tensor.empty() : {T}
  {generic("p", "x", "e")}
  func.return %p : {T}
}}
func.func private @outside(%x: {T}) -> {T}
"""


@pytest.mark.parametrize(("callee", "calls", "functions"), [("square", 1, 2), ("outside", 2, 2)])
def test_equal_calls_are_one_if_the_function_is_known_to_do_nothing_else(
    callee: str, calls: int, functions: int
) -> None:
    text = f"""{CALLEE} func.func @main(%x: {T}) -> ({T}, {T}) {{
      %p = func.call @{callee}(%x) : ({T}) -> {T}
      %q = func.call @{callee}(%x) : ({T}) -> {T}
      func.return %p, %q : {T}, {T}
    }}"""
    left = after(text, "value-cse,value-dce")
    assert (left["func.call"], left["func.func"]) == (calls, functions)


@pytest.mark.parametrize(("callee", "calls"), [("square", 0), ("outside", 1)])
def test_dead_calls_go_and_the_function_with_them(callee: str, calls: int) -> None:
    text = f"""{CALLEE} func.func @main(%x: {T}) -> {T} {{
      %p = func.call @{callee}(%x) : ({T}) -> {T}
      func.return %x : {T}
    }}"""
    left = after(text, "value-dce")
    assert (left["func.call"], left["func.func"]) == (calls, 1 + calls)


def test_a_function_that_calls_itself_is_not_taken_for_pure() -> None:
    text = f"""func.func private @loop(%x: {T}) -> {T} {{
      %p = func.call @loop(%x) : ({T}) -> {T}
      func.return %p : {T}
    }}
    func.func @main(%x: {T}) -> {T} {{
      %p = func.call @loop(%x) : ({T}) -> {T}
      func.return %x : {T}
    }}"""
    assert after(text, "value-dce")["func.call"] == 2


GRAPH = """func.func @main(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %v = graph.constant #graph.weight<"v"> : tensor<3xf32>
  %w = graph.constant #graph.weight<"w"> : tensor<3xf32>
  %u = graph.constant #graph.weight<"u"> : tensor<3xf32>
  %a = graph.add %x, %v : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  %b = graph.add %w, %x : (tensor<3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %c = graph.add %x, %u : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  %d = graph.sub %a, %b : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %e = graph.sub %b, %a : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %f = graph.max %d, %e : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %y = graph.mul %f, %c : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  func.return %y : tensor<2x3xf32>
}"""


def test_weights_of_equal_bytes_are_one_under_the_first_name() -> None:
    ctx, module = parsed_in_context(GRAPH)
    for name, array in {"v": [1, 2, 3], "w": [1, 2, 3], "u": [1, 2, 4]}.items():
        ctx.weights.add(name, np.asarray(array, np.float32))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (before,) = run_module(module, [x], ctx.weights)
    run_passes(ctx, module, read_pipeline("value-cse,value-dce"))
    (result,) = run_module(module, [x], ctx.weights)
    np.testing.assert_array_equal(result, before)
    text = str(module)
    assert '"v"' in text
    assert '"u"' in text
    assert '"w"' not in text
    assert text.count("graph.add") == 2
    assert text.count("graph.sub") == 1


def test_weights_that_differ_where_no_sample_looks_stay_apart() -> None:
    shape = 1000
    arrays = [np.zeros(shape, np.float32) for _ in range(4)]
    arrays[1][17], arrays[3][17] = 1, 1
    lines = [f'%w{i} = graph.constant #graph.weight<"w{i}"> : tensor<{shape}xf32>' for i in range(4)]
    type = f"tensor<{shape}xf32>"
    ctx, module = parsed_in_context(
        f"func.func @main() -> ({', '.join([type] * 4)}) {{ {' '.join(lines)}"
        f" func.return %w0, %w1, %w2, %w3 : {', '.join([type] * 4)} }}"
    )
    for i, array in enumerate(arrays):
        ctx.weights.add(f"w{i}", array)
    run_passes(ctx, module, read_pipeline("value-cse"))
    assert str(module).count("graph.constant") == 2
    for result, array in zip(run_module(module, [], ctx.weights), arrays, strict=True):
        np.testing.assert_array_equal(result, array)


def test_zeros_of_either_sign_are_different_weights() -> None:
    ctx, module = parsed_in_context(GRAPH)
    for name, array in {"v": [0.0], "w": [-0.0], "u": [0.0]}.items():
        ctx.weights.add(name, np.asarray(array * 3, np.float32))
    run_passes(ctx, module, read_pipeline("value-cse"))
    assert [name in str(module) for name in ('"v"', '"w"', '"u"')] == [True, True, False]


def test_equal_groups_are_one() -> None:
    group = """= graph.fused(%x) pattern elementwise {
      ^bb0(%a: tensor<4xf32>):
        %b = graph.relu %a : tensor<4xf32>
        graph.yield %b : tensor<4xf32>
      } : (tensor<4xf32>) -> tensor<4xf32>"""
    text = f"""func.func @main(%x: {T}) -> {T} {{
      %p {group} %q {group}
      %y = graph.add %p, %q : ({T}, {T}) -> {T}
      func.return %y : {T}
    }}"""
    assert after(text, "value-cse")["graph.fused"] == 1


def test_what_is_known_inside_a_loop_is_not_known_behind_it() -> None:
    text = f"""func.func @main(%x: {T}) -> ({T}, {T}) {{
      %0 = arith.constant 0 : index
      %1 = arith.constant 1 : index
      %e = tensor.empty() : {T}
      %l = scf.for %i = %0 to %1 step %1 iter_args(%it = %x) -> ({T}) {{
        {generic("p", "x", "e")}
        {generic("r", "p", "it")}
        scf.yield %r : {T}
      }}
      {generic("q", "x", "e")}
      func.return %l, %q : {T}, {T}
    }}"""
    assert after(text, "value-cse")["linalg.generic"] == 3


def test_a_weight_that_nothing_reads_is_no_argument_any_more() -> None:
    w = 'tensor<4xf32> {graph.weight = "w"}'
    text = f"""func.func @main(%x: {T}, %w: {w}, %v: {w.replace('"w"', '"v"')}) -> {T} {{
      %y = func.call @id(%v) : ({T}) -> {T}
      func.return %y : {T}
    }}
    func.func private @id(%x: {T}) -> {T}"""
    ctx, module = parsed_in_context(text)
    run_passes(ctx, module, read_pipeline("value-dce"))
    assert '(%x: tensor<4xf32>, %v: tensor<4xf32> {graph.weight = "v"})' in str(module)


def test_equal_views_of_memory_are_one_and_what_goes_through_them_stays() -> None:
    view = "memref.subview %x[0] [2] [1] : memref<4xf32> to memref<2xf32>"
    text = f"""func.func @main(%x: memref<4xf32>, %i: index, %v: f32) {{
      %a = {view}
      %b = {view}
      memref.store %v, %a[%i] : memref<2xf32>
      %c = memref.load %b[%i] : memref<2xf32>
      memref.store %v, %b[%i] : memref<2xf32>
      %d = memref.load %b[%i] : memref<2xf32>
      memref.store %c, %a[%i] : memref<2xf32>
      memref.store %d, %a[%i] : memref<2xf32>
      %e = memref.alloc() : memref<4xf32>
      %f = memref.alloc() : memref<4xf32>
      linalg.generic {{
        indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]
      }} ins(%e : memref<4xf32>) outs(%f : memref<4xf32>) {{
      ^bb0(%p: f32, %q: f32):
        linalg.yield %p : f32
      }}
      func.return
    }}"""
    left = after(text, "value-cse,value-dce")
    assert (left["memref.subview"], left["memref.load"], left["memref.store"], left["memref.alloc"]) == (1, 2, 4, 2)


def test_a_number_that_a_loop_begins_with_is_no_destination() -> None:
    text = """func.func @main(%n: index) -> (index, index) {
      %a = arith.constant 7 : index
      %b = arith.constant 7 : index
      %p = scf.for %i = %n to %a step %n iter_args(%s = %a) -> (index) { scf.yield %i : index }
      %q = scf.for %i = %n to %n step %a iter_args(%s = %b) -> (index) { scf.yield %i : index }
      func.return %p, %q : index, index
    }"""
    assert after(text, "value-cse")["arith.constant"] == 1


@pytest.mark.parametrize(("factor", "device", "kernels"), [(2.0, "@host", 1), (3.0, "@host", 2), (2.0, "@vta", 2)])
def test_functions_that_do_the_same_on_one_device_are_called_once(factor: float, device: str, kernels: int) -> None:
    def kernel(name: str, number: float, where: str) -> str:
        return f"""func.func private @{name}(%{name}_x: {T}) -> {T} attributes {{device = {where}}} {{
          %e = tensor.empty() : {T}
          %n = arith.constant {number:e} : f32
          {generic("r", f"{name}_x", "e", "arith.mulf %a, %n : f32")}
          func.return %r : {T}
        }}"""

    text = f"""func.func @main(%x: {T}) -> ({T}, {T}) {{
      %a = func.call @one(%x) : ({T}) -> {T}
      %b = func.call @other(%x) : ({T}) -> {T}
      func.return %a, %b : {T}, {T}
    }}
    {kernel("one", 2.0, "@host")}
    {kernel("other", factor, device)}"""
    left = after(text, "value-cse")
    assert left["func.call"] == kernels
    assert left["func.func"] == 1 + kernels
