# SPDX-License-Identifier: Apache-2.0
"""
Bufferization: what runs on tensors gives the same on memrefs, whatever is overwritten when, and in place where it can.

Every program is run on tensors, on memrefs, and with its buffers placed in an arena, where buffers that are not
alive together share bytes.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from programs import checked
from xdsl.dialects import func, memref
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.upstream.scf import forall_around
from penstock.dialects.weights import Array, WeightStore
from penstock.runtime.interpreter import run_module
from penstock.runtime.pass_manager import read_pipeline, run_passes

ELEMENTWISE = 'iterator_types = ["parallel", "parallel"]'
ROW_MAJOR = "affine_map<(i, j) -> (i, j)>"

OPS = """
func.func private @double(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %e = tensor.empty() : tensor<4x6xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
    iterator_types = ["parallel", "parallel"]} ins(%x : tensor<4x6xf32>) outs(%e : tensor<4x6xf32>) {
  ^bb0(%a: f32, %o: f32):
    %s = arith.addf %a, %a : f32
    linalg.yield %s : f32
  } -> tensor<4x6xf32>
  func.return %y : tensor<4x6xf32>
}
"""
"""A kernel that tests call."""


def add_to(result: str, dest: str, *sources: str, type: str = "tensor<4x6xf32>") -> str:
    """`result = dest + sources`, over `dest`."""
    maps = ", ".join([ROW_MAJOR] * (1 + len(sources)))
    ins = f"ins({', '.join(sources)} : {', '.join([type] * len(sources))})" if sources else ""
    arguments = ", ".join(f"%in_{result[1:]}_{i}: f32" for i in range(len(sources)))
    added = f"%in_{result[1:]}_0" if sources else f"%old_{result[1:]}"
    return f"""
      {result} = linalg.generic {{indexing_maps = [{maps}], {ELEMENTWISE}}} {ins} outs({dest} : {type}) {{
      ^bb0({arguments}{", " if arguments else ""}%old_{result[1:]}: f32):
        %sum_{result[1:]} = arith.addf %old_{result[1:]}, {added} : f32
        linalg.yield %sum_{result[1:]} : f32
      }} -> {type}"""


def fill(result: str, dest: str, value: float, type: str = "tensor<4x6xf32>") -> str:
    """`result` is `value` everywhere, over `dest`."""
    return f"""
      {result} = linalg.generic {{indexing_maps = [{ROW_MAJOR}], {ELEMENTWISE}}} outs({dest} : {type}) {{
      ^bb0(%old_{result[1:]}: f32):
        %c_{result[1:]} = arith.constant {value:e} : f32
        linalg.yield %c_{result[1:]} : f32
      }} -> {type}"""


def after(text: str, pipeline: str) -> ModuleOp:
    module = checked(text)
    run_passes(make_context(), module, read_pipeline(pipeline))
    return module


def inputs_of(module: ModuleOp) -> list[Array]:
    """Small integers, all different, for each argument of @main."""
    [main] = [op for op in module.ops if isinstance(op, func.FuncOp) and op.sym_name.data == "main"]
    shapes = [re.findall(r"(\d+)x", str(type)) for type in main.function_type.inputs]
    arrays: list[Array] = []
    for number, shape in enumerate(shapes):
        sizes = [int(size) for size in shape]
        arrays.append(np.arange(1 + 100 * number, 1 + 100 * number + np.prod(sizes), dtype=np.float32).reshape(sizes))
    return arrays


def lower_and_compare(text: str, before: str = "") -> ModuleOp:
    """The module on memrefs, which computes what the module on tensors does; `before` are passes on tensors."""
    module = checked(text)
    inputs = inputs_of(module)
    wanted = run_module(module, inputs, WeightStore())
    for pipeline in ("insert-copies", "tensor-to-loop", "tensor-to-loop,mem-plan"):
        lowered = after(text, before + pipeline)
        given = [array.copy() for array in inputs]
        found = run_module(lowered, given, WeightStore())
        for left, right in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(left, right, err_msg=pipeline)
        for left, right in zip(inputs, given, strict=True):
            np.testing.assert_array_equal(left, right, err_msg=f"{pipeline} overwrites an argument")
    return after(text, before + "tensor-to-loop")


def count(module: ModuleOp, *names: str) -> int:
    return sum(op.name in names for op in module.walk())


def main(body: str, arguments: str = "%x: tensor<4x6xf32>", results: str = "tensor<4x6xf32>") -> str:
    return f"func.func @main({arguments}) -> ({results}) {{{body}\n}}\n"


# overwriting


def test_a_value_read_after_it_was_overwritten_is_copied() -> None:
    text = main(
        f"""
      %e = tensor.empty() : tensor<4x6xf32>
      {fill("%f", "%e", 3)}
      {add_to("%g", "%f", "%x")}
      {add_to("%h", "%g", "%f")}
      func.return %h : tensor<4x6xf32>"""
    )
    assert count(lower_and_compare(text), "mem.copy") == 1


def test_a_chain_of_updates_is_done_in_the_out_argument() -> None:
    text = main(
        f"""
      %e = tensor.empty() : tensor<4x6xf32>
      {fill("%f", "%e", 3)}
      {add_to("%g", "%f", "%x")}
      {add_to("%h", "%g", "%x")}
      func.return %h : tensor<4x6xf32>"""
    )
    assert count(lower_and_compare(text), "mem.copy", "memref.alloc") == 0


def test_an_argument_is_not_overwritten() -> None:
    text = main(f"{add_to('%y', '%x')}\n func.return %y : tensor<4x6xf32>")
    assert count(lower_and_compare(text), "mem.copy") == 1


def test_writers_that_share_an_empty_tensor_get_a_buffer_each() -> None:
    text = main(
        f"""
      %e = tensor.empty() : tensor<4x6xf32>
      {fill("%f", "%e", 3)}
      {fill("%g", "%e", 5)}
      {add_to("%h", "%f", "%x")}
      {add_to("%k", "%g", "%h")}
      func.return %k : tensor<4x6xf32>"""
    )
    module = lower_and_compare(text)
    assert count(module, "mem.copy") == 0
    assert count(module, "memref.alloc") == 1


def test_an_elementwise_op_may_read_what_it_overwrites() -> None:
    text = main(
        f"""
      %e = tensor.empty() : tensor<4x6xf32>
      {fill("%f", "%e", 3)}
      {add_to("%g", "%f", "%x")}
      {add_to("%h", "%g", "%g")}
      func.return %h : tensor<4x6xf32>"""
    )
    assert count(lower_and_compare(text), "mem.copy") == 0


def test_an_op_that_reads_other_elements_than_it_overwrites_works_on_a_copy() -> None:
    text = main(
        f"""
      %e = tensor.empty() : tensor<4x4xf32>
      {fill("%f", "%e", 3, "tensor<4x4xf32>")}
      {add_to("%g", "%f", "%x", type="tensor<4x4xf32>")}
      %t = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (j, i)>, {ROW_MAJOR}], {ELEMENTWISE}}}
          ins(%g : tensor<4x4xf32>) outs(%g : tensor<4x4xf32>) {{
      ^bb0(%a: f32, %b: f32):
        %s = arith.addf %a, %b : f32
        linalg.yield %s : f32
      }} -> tensor<4x4xf32>
      func.return %t : tensor<4x4xf32>""",
        "%x: tensor<4x4xf32>",
        "tensor<4x4xf32>",
    )
    assert count(lower_and_compare(text), "mem.copy") == 1


def test_a_constant_is_not_overwritten() -> None:
    text = main(
        f"""
      %c = arith.constant dense<2.0> : tensor<4x6xf32>
      {add_to("%f", "%c", "%x")}
      {add_to("%g", "%f", "%c")}
      func.return %g : tensor<4x6xf32>"""
    )
    module = after(text, "tensor-to-loop")
    assert count(module, "memref.global") == 1
    [copy] = [op for op in module.walk() if op.name == "mem.copy"]
    assert isinstance(copy.operands[0].owner, memref.GetGlobalOp)


# insertions


def insert(result: str, source: str, dest: str, at: str, size: str = "[2, 6]", type: str = "tensor<2x6xf32>") -> str:
    return f"{result} = tensor.insert_slice {source} into {dest}{at} {size} [1, 1] : {type} into tensor<4x6xf32>"


def extract(result: str, source: str, at: str, size: str = "[2, 6]", type: str = "tensor<2x6xf32>") -> str:
    return f"{result} = tensor.extract_slice {source}{at} {size} [1, 1] : tensor<4x6xf32> to {type}"


def test_a_slice_put_back_where_it_was_taken_from_is_not_moved() -> None:
    text = main(
        f"""
      %e = tensor.empty() : tensor<4x6xf32>
      {fill("%f", "%e", 3)}
      {extract("%s", "%f", "[2, 0]")}
      {add_to("%t", "%s", type="tensor<2x6xf32>")}
      {insert("%g", "%t", "%f", "[2, 0]")}
      func.return %g : tensor<4x6xf32>"""
    )
    assert count(lower_and_compare(text), "mem.copy") == 0


def test_a_slice_of_a_slice_is_where_the_same_slice_of_the_whole_is() -> None:
    text = main(
        f"""
      %e = tensor.empty() : tensor<4x6xf32>
      {fill("%f", "%e", 3)}
      {extract("%s", "%f", "[2, 0]")}
      %t = tensor.extract_slice %s[1, 0] [1, 6] [1, 1] : tensor<2x6xf32> to tensor<1x6xf32>
      {add_to("%u", "%t", type="tensor<1x6xf32>")}
      {insert("%g", "%u", "%f", "[3, 0]", "[1, 6]", "tensor<1x6xf32>")}
      func.return %g : tensor<4x6xf32>"""
    )
    assert count(lower_and_compare(text), "mem.copy") == 0


def test_a_slice_that_is_read_after_it_was_put_back_changed_keeps_its_old_elements() -> None:
    text = main(
        f"""
      %e = tensor.empty() : tensor<4x6xf32>
      {fill("%f", "%e", 3)}
      {extract("%s", "%f", "[2, 0]")}
      {add_to("%t", "%s", type="tensor<2x6xf32>")}
      {insert("%g", "%t", "%f", "[2, 0]")}
      {insert("%h", "%s", "%g", "[0, 0]")}
      {add_to("%k", "%h", "%x")}
      func.return %k : tensor<4x6xf32>"""
    )
    lower_and_compare(text)


def test_an_insertion_keeps_the_rest_of_what_its_destination_was() -> None:
    text = main(
        f"""
      %e = tensor.empty() : tensor<4x6xf32>
      {fill("%f", "%e", 3)}
      {add_to("%g", "%f", "%x")}
      {extract("%s", "%g", "[0, 0]")}
      {insert("%h", "%s", "%f", "[0, 0]")}
      func.return %g, %h : tensor<4x6xf32>, tensor<4x6xf32>""",
        results="tensor<4x6xf32>, tensor<4x6xf32>",
    )
    lower_and_compare(text)


def test_a_slice_changed_twice_keeps_both_outcomes() -> None:
    text = main(
        f"""
      %e = tensor.empty() : tensor<4x6xf32>
      {fill("%f", "%e", 3)}
      {extract("%s", "%f", "[2, 0]")}
      {add_to("%t", "%s", type="tensor<2x6xf32>")}
      {insert("%g", "%t", "%f", "[2, 0]")}
      {add_to("%u", "%t", type="tensor<2x6xf32>")}
      {insert("%h", "%u", "%g", "[0, 0]")}
      func.return %g, %h : tensor<4x6xf32>, tensor<4x6xf32>""",
        results="tensor<4x6xf32>, tensor<4x6xf32>",
    )
    lower_and_compare(text)


def test_one_value_inserted_twice_is_in_both_places() -> None:
    text = main(
        f"""
      {extract("%s", "%x", "[1, 0]")}
      %e = tensor.empty() : tensor<4x6xf32>
      %d = tensor.empty() : tensor<2x6xf32>
      {add_to("%t", "%s", type="tensor<2x6xf32>")}
      {insert("%f", "%t", "%e", "[0, 0]")}
      {insert("%g", "%t", "%f", "[2, 0]")}
      func.return %g : tensor<4x6xf32>"""
    )
    assert count(lower_and_compare(text), "memref.alloc") == 0


def test_a_slice_inserted_over_itself_one_row_on_is_copied_first() -> None:
    text = main(
        f"""
      %e = tensor.empty() : tensor<4x6xf32>
      {fill("%f", "%e", 3)}
      {add_to("%g", "%f", "%x")}
      {extract("%s", "%g", "[0, 0]", "[3, 6]", "tensor<3x6xf32>")}
      {insert("%h", "%s", "%g", "[1, 0]", "[3, 6]", "tensor<3x6xf32>")}
      func.return %h : tensor<4x6xf32>"""
    )
    assert count(lower_and_compare(text), "mem.copy") == 2


def test_two_values_inserted_at_one_place_leave_the_second() -> None:
    text = OPS + main(
        """
      %a = func.call @double(%x) : (tensor<4x6xf32>) -> tensor<4x6xf32>
      %b = func.call @double(%a) : (tensor<4x6xf32>) -> tensor<4x6xf32>
      %e = tensor.empty() : tensor<8x6xf32>
      %i = tensor.insert_slice %b into %e[0, 0] [4, 6] [1, 1] : tensor<4x6xf32> into tensor<8x6xf32>
      %j = tensor.insert_slice %a into %i[0, 0] [4, 6] [1, 1] : tensor<4x6xf32> into tensor<8x6xf32>
      %k = tensor.insert_slice %b into %j[4, 0] [4, 6] [1, 1] : tensor<4x6xf32> into tensor<8x6xf32>
      func.return %k : tensor<8x6xf32>""",
        results="tensor<8x6xf32>",
    )
    lower_and_compare(text)


def test_updating_a_row_of_an_argument_copies_the_argument_once() -> None:
    text = main(
        f"""
      {extract("%s", "%x", "[2, 0]")}
      {add_to("%t", "%s", type="tensor<2x6xf32>")}
      {insert("%g", "%t", "%x", "[2, 0]")}
      func.return %g : tensor<4x6xf32>"""
    )
    module = lower_and_compare(text)
    assert count(module, "mem.copy") == 1
    assert count(module, "memref.alloc") == 0


def test_a_slice_that_drops_a_dim_and_one_with_steps_are_views() -> None:
    text = main(
        """
      %e = tensor.empty() : tensor<2x3xf32>
      %s = tensor.extract_slice %x[1, 1] [2, 3] [2, 2] : tensor<4x6xf32> to tensor<2x3xf32>
      %r = tensor.extract_slice %x[3, 0] [1, 3] [1, 2] : tensor<4x6xf32> to tensor<3xf32>
      %y = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>,
          affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
          ins(%s, %r : tensor<2x3xf32>, tensor<3xf32>) outs(%e : tensor<2x3xf32>) {
      ^bb0(%a: f32, %b: f32, %o: f32):
        %m = arith.subf %a, %b : f32
        linalg.yield %m : f32
      } -> tensor<2x3xf32>
      %z = tensor.insert_slice %r into %y[1, 0] [1, 3] [1, 1] : tensor<3xf32> into tensor<2x3xf32>
      func.return %z : tensor<2x3xf32>""",
        results="tensor<2x3xf32>",
    )
    assert count(lower_and_compare(text), "memref.alloc") == 0


# loops


def loop(body: str, carried: str, results: str, of: str, bounds: str = "%c0 to %c2 step %c1") -> str:
    return f"{results} = scf.for %i = {bounds} iter_args({carried}) -> ({of}) {{\n{body}\n}}"


INDICES = "\n".join(f"%c{n} = arith.constant {n} : index" for n in range(5))


def test_a_tiled_nest_is_lowered_without_a_copy_also_after_licm_and_cse() -> None:
    text = """
func.func private @kernel(%a: tensor<8x12xf32>, %b: tensor<12x10xf32>, %c: tensor<10xf32>) -> tensor<8x10xf32> {
  %e = tensor.empty() : tensor<8x10xf32>
  %f = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      outs(%e : tensor<8x10xf32>) {
  ^bb0(%o: f32):
    %z = arith.constant 0.0 : f32
    linalg.yield %z : f32
  } -> tensor<8x10xf32>
  %p = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>,
      affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<8x12xf32>, tensor<12x10xf32>) outs(%f : tensor<8x10xf32>) {
  ^bb0(%x: f32, %y: f32, %acc: f32):
    %m = arith.mulf %x, %y : f32
    %s = arith.addf %acc, %m : f32
    linalg.yield %s : f32
  } -> tensor<8x10xf32>
  %g = tensor.empty() : tensor<8x10xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (n)>,
      affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%p, %c : tensor<8x10xf32>, tensor<10xf32>) outs(%g : tensor<8x10xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %s = arith.addf %x, %y : f32
    linalg.yield %s : f32
  } -> tensor<8x10xf32>
  func.return %r : tensor<8x10xf32>
}
func.func @main(%a: tensor<8x12xf32>, %b: tensor<12x10xf32>, %c: tensor<10xf32>) -> tensor<8x10xf32> {
  %y = func.call @kernel(%a, %b, %c) : (tensor<8x12xf32>, tensor<12x10xf32>, tensor<10xf32>) -> tensor<8x10xf32>
  func.return %y : tensor<8x10xf32>
}
"""
    assert count(lower_and_compare(text, "tile{sizes=4,3,6},licm,cse,dce,"), "mem.copy") == 0
    assert count(lower_and_compare(text, "tile{sizes=3,4,2},"), "mem.copy") == 0


def test_swapped_loop_arguments_are_swapped() -> None:
    text = main(
        INDICES
        + loop(
            "scf.yield %b, %a : tensor<4x6xf32>, tensor<4x6xf32>",
            "%a = %x, %b = %z",
            "%r, %s",
            "tensor<4x6xf32>, tensor<4x6xf32>",
            "%c0 to %c3 step %c1",
        )
        + "\nfunc.return %r, %s : tensor<4x6xf32>, tensor<4x6xf32>",
        "%x: tensor<4x6xf32>, %z: tensor<4x6xf32>",
        "tensor<4x6xf32>, tensor<4x6xf32>",
    )
    lower_and_compare(text)


def test_two_loop_arguments_that_start_from_one_value_part() -> None:
    text = main(
        INDICES
        + "%e = tensor.empty() : tensor<4x6xf32>"
        + fill("%f", "%e", 3)
        + "\n"
        + loop(
            add_to("%p", "%a", "%x") + "\nscf.yield %p, %b : tensor<4x6xf32>, tensor<4x6xf32>",
            "%a = %f, %b = %f",
            "%r, %s",
            "tensor<4x6xf32>, tensor<4x6xf32>",
        )
        + "\nfunc.return %r, %s : tensor<4x6xf32>, tensor<4x6xf32>",
        results="tensor<4x6xf32>, tensor<4x6xf32>",
    )
    lower_and_compare(text)


def test_a_value_from_outside_that_a_loop_changes_without_carrying_it_starts_anew_in_every_round() -> None:
    text = main(
        INDICES
        + "%e = tensor.empty() : tensor<4x6xf32>"
        + fill("%f", "%e", 3)
        + fill("%g", "%e", 0)
        + "\n"
        + loop(
            add_to("%p", "%f") + add_to("%q", "%a", "%p") + "\nscf.yield %q : tensor<4x6xf32>",
            "%a = %g",
            "%r",
            "tensor<4x6xf32>",
        )
        + "\nfunc.return %r : tensor<4x6xf32>"
    )
    assert count(lower_and_compare(text), "mem.copy") == 1


def test_a_loop_that_reads_outer_rows_which_it_overwrote_in_an_earlier_round_keeps_them() -> None:
    text = main(
        INDICES
        + "%e = tensor.empty() : tensor<4x6xf32>"
        + fill("%f", "%e", 3)
        + "\n"
        + loop(
            f"""
      %j = arith.addi %i, %c1 : index
      %s = tensor.extract_slice %f[%i, 0] [1, 6] [1, 1] : tensor<4x6xf32> to tensor<1x6xf32>
      %t = tensor.extract_slice %a[%j, 0] [1, 6] [1, 1] : tensor<4x6xf32> to tensor<1x6xf32>
      {add_to("%u", "%t", "%s", type="tensor<1x6xf32>")}
      %n = tensor.insert_slice %u into %a[%j, 0] [1, 6] [1, 1] : tensor<1x6xf32> into tensor<4x6xf32>
      scf.yield %n : tensor<4x6xf32>""",
            "%a = %f",
            "%r",
            "tensor<4x6xf32>",
            "%c0 to %c3 step %c1",
        )
        + "\nfunc.return %r : tensor<4x6xf32>"
    )
    assert count(lower_and_compare(text), "mem.copy") == 1


def test_a_recurrence_that_makes_a_new_value_each_round_copies_it_to_the_next() -> None:
    text = main(
        INDICES
        + loop(
            f"""
      %e = tensor.empty() : tensor<4x6xf32>
      {fill("%f", "%e", 1)}
      {add_to("%p", "%f", "%a")}
      scf.yield %p : tensor<4x6xf32>""",
            "%a = %x",
            "%r",
            "tensor<4x6xf32>",
        )
        + "\nfunc.return %r : tensor<4x6xf32>"
    )
    lower_and_compare(text)


def test_an_inner_loop_that_starts_from_an_outer_value_starts_there_in_every_round() -> None:
    text = main(
        INDICES
        + "%e = tensor.empty() : tensor<4x6xf32>"
        + fill("%f", "%e", 1)
        + fill("%g", "%e", 0)
        + "\n"
        + f"""
      %r = scf.for %i = %c0 to %c3 step %c1 iter_args(%a = %g) -> (tensor<4x6xf32>) {{
        %s = scf.for %j = %c0 to %c2 step %c1 iter_args(%b = %f) -> (tensor<4x6xf32>) {{
          {add_to("%p", "%b", "%x")}
          scf.yield %p : tensor<4x6xf32>
        }}
        {add_to("%q", "%a", "%s")}
        scf.yield %q : tensor<4x6xf32>
      }}
      func.return %r : tensor<4x6xf32>"""
    )
    lower_and_compare(text)


def test_a_loop_that_makes_no_round_returns_what_it_started_from() -> None:
    text = main(
        INDICES
        + loop(
            add_to("%p", "%a") + "\nscf.yield %p : tensor<4x6xf32>",
            "%a = %x",
            "%r",
            "tensor<4x6xf32>",
            "%c2 to %c2 step %c1",
        )
        + "\nfunc.return %r : tensor<4x6xf32>"
    )
    lower_and_compare(text)


def test_numbers_are_carried_beside_tensors() -> None:
    text = main(
        INDICES
        + f"""
      %k = arith.constant 1.0 : f32
      %e = tensor.empty() : tensor<4x6xf32>
      {fill("%f", "%e", 0)}
      %r:3 = scf.for %i = %c0 to %c3 step %c1 iter_args(%m = %k, %a = %f, %n = %c0) -> (f32, tensor<4x6xf32>, index) {{
        %m2 = arith.addf %m, %m : f32
        %n2 = arith.addi %n, %c1 : index
        %a2 = tensor.insert %m into %a[%n, %i] : tensor<4x6xf32>
        scf.yield %m2, %a2, %n2 : f32, tensor<4x6xf32>, index
      }}
      %t = tensor.insert %r#0 into %r#1[%r#2, %c0] : tensor<4x6xf32>
      func.return %t : tensor<4x6xf32>"""
    )
    assert count(lower_and_compare(text), "mem.copy") == 0


# results


def test_an_argument_that_is_returned_is_copied_to_every_result() -> None:
    text = main("func.return %x, %x : tensor<4x6xf32>, tensor<4x6xf32>", results="tensor<4x6xf32>, tensor<4x6xf32>")
    assert count(lower_and_compare(text), "mem.copy") == 2


def test_a_value_returned_twice_is_computed_in_the_first_result() -> None:
    text = OPS + main(
        """
      %y = func.call @double(%x) : (tensor<4x6xf32>) -> tensor<4x6xf32>
      func.return %y, %y : tensor<4x6xf32>, tensor<4x6xf32>""",
        results="tensor<4x6xf32>, tensor<4x6xf32>",
    )
    module = lower_and_compare(text)
    assert (count(module, "mem.copy"), count(module, "memref.alloc")) == (1, 0)


def test_a_returned_reshape_is_computed_in_the_out_argument() -> None:
    text = OPS + main(
        """
      %y = func.call @double(%x) : (tensor<4x6xf32>) -> tensor<4x6xf32>
      %c = tensor.collapse_shape %y [[0, 1]] : tensor<4x6xf32> into tensor<24xf32>
      %z = tensor.expand_shape %c [[0, 1, 2]] output_shape [2, 3, 4] : tensor<24xf32> into tensor<2x3x4xf32>
      func.return %z : tensor<2x3x4xf32>""",
        results="tensor<2x3x4xf32>",
    )
    assert count(lower_and_compare(text), "mem.copy", "memref.alloc") == 0


def test_a_general_reshape_needs_no_memory_for_its_shape() -> None:
    text = main(
        """
      %shape = arith.constant dense<[3, 8]> : tensor<2xi64>
      %y = tensor.reshape %x(%shape) : (tensor<4x6xf32>, tensor<2xi64>) -> tensor<3x8xf32>
      func.return %y : tensor<3x8xf32>""",
        results="tensor<3x8xf32>",
    )
    assert count(lower_and_compare(text), "memref.global", "memref.alloc") == 0


def test_a_reshape_of_strided_elements_is_taken_of_a_copy() -> None:
    text = main(
        """
      %s = tensor.extract_slice %x[0, 1] [4, 3] [1, 1] : tensor<4x6xf32> to tensor<4x3xf32>
      %y = tensor.collapse_shape %s [[0, 1]] : tensor<4x3xf32> into tensor<12xf32>
      func.return %y : tensor<12xf32>""",
        results="tensor<12xf32>",
    )
    assert count(lower_and_compare(text), "mem.copy") == 1


def test_out_arguments_carry_the_names_of_the_results() -> None:
    text = """
func.func @main(%x: tensor<4x6xf32> {graph.name = "in"}) -> (tensor<4x6xf32> {graph.name = "out"}) {
  func.return %x : tensor<4x6xf32>
}
func.func @unnamed(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
  func.return %x : tensor<4x6xf32>
}
"""
    named, unnamed = [op for op in after(text, "tensor-to-loop").ops if isinstance(op, func.FuncOp)]
    assert named.arg_attrs is not None
    assert [str(attributes) for attributes in named.arg_attrs] == [
        '{graph.name = "in"}',
        '{graph.output = "out"}',
    ]
    assert unnamed.arg_attrs is not None
    assert str(unnamed.arg_attrs.data[1]) == '{graph.output = "output_0"}'


# concatenation and calls


CONCATENATION = """
      %e = tensor.empty() : tensor<4x12xf32>
      %i = tensor.insert_slice %a into %e[0, 0] [4, 6] [1, 1] : tensor<4x6xf32> into tensor<4x12xf32>
      %j = tensor.insert_slice %b into %i[0, 6] [4, 6] [1, 1] : tensor<4x6xf32> into tensor<4x12xf32>
"""


def test_the_parts_of_a_concatenation_are_computed_in_it() -> None:
    text = OPS + main(
        f"""
      %a = func.call @double(%x) : (tensor<4x6xf32>) -> tensor<4x6xf32>
      %b = func.call @double(%a) : (tensor<4x6xf32>) -> tensor<4x6xf32>
      {CONCATENATION}
      func.return %j : tensor<4x12xf32>""",
        results="tensor<4x12xf32>",
    )
    module = lower_and_compare(text)
    assert count(module, "mem.copy", "memref.alloc") == 0


def test_concatenations_of_concatenations_are_computed_in_the_last() -> None:
    text = OPS + main(
        f"""
      %a = func.call @double(%x) : (tensor<4x6xf32>) -> tensor<4x6xf32>
      %b = func.call @double(%a) : (tensor<4x6xf32>) -> tensor<4x6xf32>
      {CONCATENATION}
      %s = tensor.extract_slice %j[0, 3] [4, 6] [1, 1] : tensor<4x12xf32> to tensor<4x6xf32>
      %c = func.call @double(%s) : (tensor<4x6xf32>) -> tensor<4x6xf32>
      %k = tensor.concat dim(1) %j, %c : (tensor<4x12xf32>, tensor<4x6xf32>) -> tensor<4x18xf32>
      func.return %k : tensor<4x18xf32>""",
        results="tensor<4x18xf32>",
    )
    assert count(lower_and_compare(text), "mem.copy", "memref.alloc") == 0


def test_a_concatenation_of_one_value_with_itself_copies_it_once() -> None:
    text = OPS + main(
        """
      %a = func.call @double(%x) : (tensor<4x6xf32>) -> tensor<4x6xf32>
      %k = tensor.concat dim(0) %a, %a : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
      func.return %k : tensor<8x6xf32>""",
        results="tensor<8x6xf32>",
    )
    module = lower_and_compare(text)
    assert (count(module, "mem.copy"), count(module, "memref.alloc")) == (1, 0)


def test_a_part_that_is_changed_after_the_concatenation_is_changed_elsewhere() -> None:
    text = OPS + main(
        f"""
      %a = func.call @double(%x) : (tensor<4x6xf32>) -> tensor<4x6xf32>
      %b = func.call @double(%a) : (tensor<4x6xf32>) -> tensor<4x6xf32>
      {CONCATENATION}
      {add_to("%d", "%a", "%x")}
      func.return %j, %d : tensor<4x12xf32>, tensor<4x6xf32>""",
        results="tensor<4x12xf32>, tensor<4x6xf32>",
    )
    lower_and_compare(text)


def test_on_a_machine_a_tile_is_not_computed_in_its_destination() -> None:
    kernel = f"""
func.func private @kernel(%x: tensor<2x6xf32>) -> tensor<4x6xf32> attributes {{device = @DEVICE}} {{
  %e = tensor.empty() : tensor<2x6xf32>
  %d = tensor.empty() : tensor<4x6xf32>
  {fill("%t", "%e", 2, "tensor<2x6xf32>")}
  {insert("%y", "%t", "%d", "[0, 0]")}
  {insert("%z", "%x", "%y", "[2, 0]")}
  func.return %z : tensor<4x6xf32>
}}
"""
    assert count(after(kernel.replace("DEVICE", "host"), "tensor-to-loop"), "memref.alloc") == 0
    assert count(after(kernel.replace("DEVICE", "machine"), "tensor-to-loop"), "memref.alloc") == 1


def test_callers_with_other_strides_share_a_version_of_their_own() -> None:
    text = OPS + main(
        f"""
      %a = func.call @double(%x) : (tensor<4x6xf32>) -> tensor<4x6xf32>
      %b = func.call @double(%x) : (tensor<4x6xf32>) -> tensor<4x6xf32>
      {CONCATENATION}
      %c = func.call @double(%x) : (tensor<4x6xf32>) -> tensor<4x6xf32>
      func.return %j, %c : tensor<4x12xf32>, tensor<4x6xf32>""",
        results="tensor<4x12xf32>, tensor<4x6xf32>",
    )
    module = lower_and_compare(text)
    types = {op.sym_name.data: op.function_type.inputs.data for op in module.ops if isinstance(op, func.FuncOp)}
    assert [str(type) for type in types["double"]] == [
        "memref<4x6xf32>",
        "memref<4x6xf32, strided<[12, 1], offset: ?>>",
    ]
    assert [str(type) for type in types["double_1"]] == ["memref<4x6xf32>", "memref<4x6xf32>"]
    assert len(types) == 3


def test_contiguous_parts_of_a_larger_buffer_need_no_version_of_their_own() -> None:
    text = OPS + main(
        """
      %a = func.call @double(%x) : (tensor<4x6xf32>) -> tensor<4x6xf32>
      %b = func.call @double(%a) : (tensor<4x6xf32>) -> tensor<4x6xf32>
      %p = tensor.expand_shape %a [[0, 1], [2]] output_shape [1, 4, 6] : tensor<4x6xf32> into tensor<1x4x6xf32>
      %q = tensor.expand_shape %b [[0, 1], [2]] output_shape [1, 4, 6] : tensor<4x6xf32> into tensor<1x4x6xf32>
      %c = tensor.concat dim(1) %p, %q : (tensor<1x4x6xf32>, tensor<1x4x6xf32>) -> tensor<1x8x6xf32>
      func.return %c : tensor<1x8x6xf32>""",
        results="tensor<1x8x6xf32>",
    )
    module = lower_and_compare(text)
    assert count(module, "func.func") == 2
    assert count(module, "mem.copy", "memref.alloc") == 0


def test_a_kernel_on_tensors_without_elements_is_called() -> None:
    text = """
    func.func private @sum(%x: tensor<2x0x4xf32>) -> tensor<2x4xf32> {
      %e = tensor.empty() : tensor<2x4xf32>
      %zero = arith.constant 0.0 : f32
      %f = linalg.generic {
        indexing_maps = [affine_map<(a, b) -> ()>, affine_map<(a, b) -> (a, b)>],
        iterator_types = ["parallel", "parallel"]
      } ins(%zero : f32) outs(%e : tensor<2x4xf32>) {
      ^bb0(%z: f32, %old: f32):
        linalg.yield %z : f32
      } -> tensor<2x4xf32>
      %s = linalg.generic {
        indexing_maps = [affine_map<(a, b, c) -> (a, c, b)>, affine_map<(a, b, c) -> (a, b)>],
        iterator_types = ["parallel", "parallel", "reduction"]
      } ins(%x : tensor<2x0x4xf32>) outs(%f : tensor<2x4xf32>) {
      ^bb0(%v: f32, %total: f32):
        %t = arith.addf %total, %v : f32
        linalg.yield %t : f32
      } -> tensor<2x4xf32>
      func.return %s : tensor<2x4xf32>
    }
    func.func @main(%x: tensor<2x0x4xf32>) -> tensor<2x4xf32> {
      %y = func.call @sum(%x) : (tensor<2x0x4xf32>) -> tensor<2x4xf32>
      func.return %y : tensor<2x4xf32>
    }"""
    assert count(lower_and_compare(text), "func.call") == 1


def test_a_kernel_whose_reshape_needs_contiguous_elements_copies_only_where_they_are_not() -> None:
    kernel = """
func.func private @flat(%x: tensor<4x6xf32>) -> tensor<24xf32> {
  %c = tensor.collapse_shape %x [[0, 1]] : tensor<4x6xf32> into tensor<24xf32>
  func.return %c : tensor<24xf32>
}
"""
    text = kernel + main(
        """
      %s = tensor.extract_slice %z[0, 3] [4, 6] [1, 1] : tensor<4x12xf32> to tensor<4x6xf32>
      %a = func.call @flat(%s) : (tensor<4x6xf32>) -> tensor<24xf32>
      %b = func.call @flat(%x) : (tensor<4x6xf32>) -> tensor<24xf32>
      func.return %a, %b : tensor<24xf32>, tensor<24xf32>""",
        "%x: tensor<4x6xf32>, %z: tensor<4x12xf32>",
        "tensor<24xf32>, tensor<24xf32>",
    )
    module = lower_and_compare(text)
    copies = {
        op.sym_name.data: sum(inner.name == "mem.copy" for inner in op.walk())
        for op in module.ops
        if isinstance(op, func.FuncOp)
    }
    assert copies == {"flat": 1, "flat_1": 1, "main": 0}


def test_a_function_returns_numbers_beside_tensors() -> None:
    text = """
func.func private @both(%x: tensor<4x6xf32>) -> (f32, tensor<4x6xf32>, f32) {
  %c1 = arith.constant 1 : index
  %a = tensor.extract %x[%c1, %c1] : tensor<4x6xf32>
  %b = arith.addf %a, %a : f32
  func.return %a, %x, %b : f32, tensor<4x6xf32>, f32
}
""" + main(
        """
      %c0 = arith.constant 0 : index
      %r:3 = func.call @both(%x) : (tensor<4x6xf32>) -> (f32, tensor<4x6xf32>, f32)
      %t = tensor.insert %r#0 into %r#1[%c0, %c0] : tensor<4x6xf32>
      %size = tensor.dim %x, %c0 : tensor<4x6xf32>
      %last = arith.subi %size, %size : index
      %u = tensor.insert %r#2 into %t[%last, %size] : tensor<4x6xf32>
      func.return %u : tensor<4x6xf32>"""
    )
    lower_and_compare(text)


def test_elements_and_one_number_make_tensors() -> None:
    text = main(
        f"""
      %a = arith.constant 1.0 : f32
      %b = arith.constant 2.0 : f32
      %c0 = arith.constant 0 : index
      %k = tensor.extract %x[%c0, %c0] : tensor<4x6xf32>
      %f = tensor.from_elements %a, %b, %b, %k, %a, %b, %a, %a, %b, %b, %k, %k : tensor<2x6xf32>
      %s = tensor.splat %k : tensor<4x6xf32>
      {insert("%y", "%f", "%s", "[1, 0]")}
      func.return %y : tensor<4x6xf32>"""
    )
    lower_and_compare(text)


# pads and windows


def pad(result: str, source: str, low: str, high: str, types: str) -> str:
    return f"""
      {result} = tensor.pad {source} low{low} high{high} {{
      ^bb0(%p0{result[1:]}: index, %p1{result[1:]}: index):
        %v{result[1:]} = arith.constant -7.0 : f32
        tensor.yield %v{result[1:]} : f32
      }} : {types}"""


def test_boxes_of_a_pad_are_windows_and_the_pad_itself_is_never_made() -> None:
    text = main(
        INDICES
        + pad("%p", "%x", "[1, 1]", "[1, 1]", "tensor<4x6xf32> to tensor<6x8xf32>")
        + "\n%e = tensor.empty() : tensor<4x8xf32>\n"
        + """
      %r = scf.for %i = %c0 to %c4 step %c2 iter_args(%a = %e) -> (tensor<4x8xf32>) {
        %j = arith.addi %i, %i : index
        %k = arith.divui %j, %c2 : index
        %s = tensor.extract_slice %p[%k, 0] [2, 8] [1, 1] : tensor<6x8xf32> to tensor<2x8xf32>
        %n = tensor.insert_slice %s into %a[%i, 0] [2, 8] [1, 1] : tensor<2x8xf32> into tensor<4x8xf32>
        scf.yield %n : tensor<4x8xf32>
      }
      func.return %r : tensor<4x8xf32>""",
        results="tensor<4x8xf32>",
    )
    module = lower_and_compare(text)
    assert not any("6x8" in str(result.type) for op in module.walk() for result in op.results)
    assert "else" in str(module)


def test_a_pad_that_is_used_whole_is_made_in_its_destination() -> None:
    text = main(
        pad("%p", "%x", "[1, 0]", "[2, 3]", "tensor<4x6xf32> to tensor<7x9xf32>")
        + """
      %s = tensor.extract_slice %p[0, 4] [3, 5] [1, 1] : tensor<7x9xf32> to tensor<3x5xf32>
      func.return %p, %s : tensor<7x9xf32>, tensor<3x5xf32>""",
        results="tensor<7x9xf32>, tensor<3x5xf32>",
    )
    module = lower_and_compare(text)
    assert (count(module, "mem.copy"), count(module, "memref.alloc")) == (2, 0)


def test_a_box_of_a_pad_may_drop_a_dim() -> None:
    text = main(
        pad("%p", "%x", "[1, 1]", "[0, 0]", "tensor<4x6xf32> to tensor<5x7xf32>")
        + """
      %s = tensor.extract_slice %p[1, 0] [1, 7] [1, 1] : tensor<5x7xf32> to tensor<7xf32>
      func.return %s : tensor<7xf32>""",
        results="tensor<7xf32>",
    )
    lower_and_compare(text)


def test_a_pad_by_nothing_is_no_copy() -> None:
    text = main(
        pad("%p", "%x", "[0, 0]", "[0, 0]", "tensor<4x6xf32> to tensor<4x6xf32>")
        + f"""
      %e = tensor.empty() : tensor<4x6xf32>
      {fill("%f", "%e", 1)}
      {add_to("%y", "%f", "%p")}
      func.return %y : tensor<4x6xf32>"""
    )
    assert count(lower_and_compare(text), "mem.copy") == 0


def pooling(window: str = "%w", strides: str = "") -> str:
    return f"""
      %e = tensor.empty() : tensor<3x5xf32>
      %w = tensor.empty() : tensor<2x2xf32>
      %f = linalg.generic {{indexing_maps = [{ROW_MAJOR}], {ELEMENTWISE}}} outs(%e : tensor<3x5xf32>) {{
      ^bb0(%o: f32):
        %c = arith.constant -1.0 : f32
        linalg.yield %c : f32
      }} -> tensor<3x5xf32>
      %y = linalg.generic {{indexing_maps = [affine_map<(i, j, p, q) -> (i + p, j + q)>,
          affine_map<(i, j, p, q) -> (p, q)>, affine_map<(i, j, p, q) -> (i, j)>],
          iterator_types = ["parallel", "parallel", "reduction", "reduction"]}}
          ins(%x, {window} : tensor<4x6xf32>, tensor<2x2xf32>) outs(%f : tensor<3x5xf32>) {{
      ^bb0(%a: f32, %k: f32, %acc: f32):
        %m = arith.maximumf %acc, %a : f32
        linalg.yield %m : f32
      }} -> tensor<3x5xf32>{strides}
      func.return %y : tensor<3x5xf32>"""


def test_the_window_of_a_pooling_takes_no_memory() -> None:
    module = lower_and_compare(main(pooling(), results="tensor<3x5xf32>"))
    assert count(module, "memref.alloc") == 0
    [view] = [op for op in module.walk() if isinstance(op, memref.ReinterpretCastOp)]
    assert str(view.result.type) == "memref<2x2xf32, strided<[?, ?]>>"


def test_an_empty_tensor_that_is_window_and_destination_is_two() -> None:
    text = main(
        pooling()
        .replace("%e = tensor.empty() : tensor<3x5xf32>", "%e = tensor.empty() : tensor<2x2xf32>")
        .replace("outs(%e : tensor<3x5xf32>)", "outs(%e : tensor<2x2xf32>)")
        .replace("tensor<3x5xf32>", "tensor<2x2xf32>")
        .replace("ins(%x, %w : tensor<4x6xf32>", "ins(%x, %e : tensor<3x3xf32>"),
        "%x: tensor<3x3xf32>",
        "tensor<2x2xf32>",
    )
    assert count(lower_and_compare(text), "memref.alloc") == 0


# refusals


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "%y = graph.relu %x : tensor<4x6xf32>\n func.return %y : tensor<4x6xf32>",
            '"graph.relu" with tensors has no form at the loop level',
        ),
        (
            "%y = tensor.cast %x : tensor<4x6xf32> to tensor<?x6xf32>\n func.return %x : tensor<4x6xf32>",
            "the shape of tensor<?x6xf32> is not static",
        ),
        (
            """%y = tensor.pad %x low[0, 0] high[1, 0] {
      ^bb0(%i: index, %j: index):
        %v = arith.index_cast %i : index to i32
        %f = arith.sitofp %v : i32 to f32
        tensor.yield %f : f32
      } : tensor<4x6xf32> to tensor<5x6xf32>
      func.return %x : tensor<4x6xf32>""",
            "a pad must be filled with one value",
        ),
        (
            "%y = func.call @main(%x) : (tensor<4x6xf32>) -> tensor<4x6xf32>\n func.return %y : tensor<4x6xf32>",
            "@main calls itself: its buffers cannot be planned",
        ),
        (
            "cf.br ^end(%x : tensor<4x6xf32>)\n ^end(%y: tensor<4x6xf32>):\n func.return %y : tensor<4x6xf32>",
            "@main has branches between blocks, which tensors cannot cross",
        ),
    ],
)
def test_what_has_no_form_on_memrefs_is_refused(body: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        after(main(body), "tensor-to-loop")
    assert caught.value.message == message


def test_a_function_on_tensors_that_is_only_declared_is_refused() -> None:
    with pytest.raises(UserError, match="@f is only declared"):
        after("func.func private @f(tensor<4xf32>) -> tensor<4xf32>", "tensor-to-loop")


def test_functions_without_tensors_are_left_as_they_are() -> None:
    text = """
func.func @copy(%x: memref<4xf32>, %y: memref<4xf32>) {
  mem.copy %x to %y : memref<4xf32> to memref<4xf32>
  func.return
}
"""
    assert str(after(text, "tensor-to-loop")) == str(checked(text))


ROWS_AT_ONCE = """
func.func @main(%x: tensor<4x6xf32>, %y: tensor<4x6xf32>) -> tensor<4x6xf32> {{
  %e = tensor.empty() : tensor<4x6xf32>
  {fill}
  %r = scf.forall (%i) in (4) shared_outs(%all = {start}) -> (tensor<4x6xf32>) {{
    %own = tensor.extract_slice %all[%i, 0] [1, 6] [1, 1] : tensor<4x6xf32> to tensor<1x6xf32>
    %other = tensor.extract_slice {read} [1, 6] [1, 1] : tensor<4x6xf32> to tensor<1x6xf32>
    {add}
    scf.forall.in_parallel {{
      tensor.parallel_insert_slice {row} into %all[%i, 0] [1, 6] [1, 1] : tensor<1x6xf32> into tensor<4x6xf32>
    }}
  }} {{mapping = [#gpu.thread<x>]}}
  {end}
}}
"""
"""Each iteration makes a row of a tensor that they share."""


@pytest.mark.parametrize(
    ("start", "read", "row", "after_it", "copies"),
    [
        pytest.param("%f", "%x[%i, 0]", "%sum", "", 0, id="in place"),
        pytest.param("%y", "%x[%i, 0]", "%sum", "", 1, id="of an argument"),
        pytest.param("%f", "%all[%i, 0]", "%sum", "", 0, id="its own row"),
        pytest.param("%f", "%all[0, 0]", "%sum", "", 1, id="the first row as it was"),
        pytest.param("%f", "%x[%i, 0]", "%other", "", 4, id="a row of another tensor"),
        pytest.param("%f", "%all[3, 0]", "%other", "", 5, id="the last row as it was"),
        pytest.param("%f", "%x[%i, 0]", "%sum", "%f", 1, id="read afterwards"),
    ],
)
def test_iterations_that_run_at_once_write_their_parts_where_they_are(
    start: str, read: str, row: str, after_it: str, copies: int
) -> None:
    add = add_to("%sum", "%own", "%other", type="tensor<1x6xf32>")
    end = add_to("%more", "%r", after_it) + "\nfunc.return %more" if after_it else "func.return %r"
    text = ROWS_AT_ONCE.format(
        fill=fill("%f", "%e", 2.0), start=start, read=read, row=row, add=add, end=f"{end} : tensor<4x6xf32>"
    )
    lowered = lower_and_compare(text)
    assert run_copies(lowered) == copies


def run_copies(module: ModuleOp) -> int:
    """How often a program copies: one in the loop of four iterations counts four times."""
    ops = [op for op in module.walk() if op.name == "mem.copy"]
    return sum(4 if forall_around(op) is not None else 1 for op in ops)
