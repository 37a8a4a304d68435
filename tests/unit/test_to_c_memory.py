# SPDX-License-Identifier: Apache-2.0
"""C for copies, views and control flow: run, and compared with the interpreter bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from in_c import FILL, agree, floats, generic, main, memref, needs_compiler
from numpy.typing import NDArray
from programs import verified

from penstock.runtime.native import load_native

Array = NDArray[Any]


# copies


def copying(copies: str, x: Sequence[int], o: Sequence[int], type: str = "f32") -> str:
    start = generic(
        ", ".join(f"d{n}" for n in range(len(o))),
        [", ".join(f"d{n}" for n in range(len(o)))],
        "p" * len(o),
        [("o", memref(o, type))],
        FILL.replace("f32", type),
    )
    zero = f"%pad = arith.constant -1.5 : {type}\n%c0 = arith.constant 0 : index\n%c1 = arith.constant 1 : index"
    return main([("x", memref(x, type)), ("o", memref(o, type))], f"{start}\n{zero}\n{copies}")


@pytest.mark.parametrize("at", ["0, 0", "-1, -2", "3, 4", "-9, 0", "0, 50", "2, -30"])
def test_a_window_that_hangs_over_reads_the_padding_outside(at: str) -> None:
    copy = f"mem.copy %x[{at}] to %o else %pad : {memref((7, 9))} to {memref((5, 6))}"
    agree(verified(copying(copy, (7, 9), (5, 6))), [floats(7, 9)])


@pytest.mark.parametrize("at", ["0, 0", "-1, -2", "3, 4", "-9, 0", "0, 50"])
def test_a_window_of_the_destination_is_clipped(at: str) -> None:
    copy = f"mem.copy %x to %o[{at}] : {memref((5, 6))} to {memref((7, 9))}"
    agree(verified(copying(copy, (5, 6), (7, 9))), [floats(5, 6)])


@pytest.mark.parametrize("type", ["f32", "f16"])
def test_windows_at_dynamic_places_are_clipped_at_run_time(type: str) -> None:
    small, large = memref((3, 4, 2), type), memref((6, 9, 2), type)
    copy = f"""%c9 = arith.constant 9 : index
    %c4 = arith.constant 4 : index
    %b = mem.buffer at 0 : {small}
    scf.for %i = %c0 to %c9 step %c4 {{
      %at = arith.subi %i, %c4 : index
      mem.copy %x[%at, %i, 0] to %b else %pad : {large} to {small}
      mem.copy %b to %o[%i, %at, 0] : {small} to {large}
    }}"""
    agree(
        verified(copying(copy, (6, 9, 2), (6, 9, 2), type)), [floats(6, 9, 2).astype({"f32": "f4", "f16": "f2"}[type])]
    )


def test_copies_between_strided_views_move_what_the_views_show() -> None:
    view = "memref<3x4xf32, strided<[20, 2], offset: 11>>"
    copies = f"""%v = memref.subview %x[1, 1] [3, 4] [2, 2] : {memref((7, 10))} to {view}
    mem.copy %v to %o : {view} to {memref((3, 4))}"""
    x = floats(7, 10)
    (out,) = agree(verified(copying(copies, (7, 10), (3, 4))), [x])
    np.testing.assert_array_equal(out, x[1:6:2, 1:8:2])


# control flow and views


def test_loops_carry_scalars_that_change_at_once() -> None:
    text = main(
        [("x", memref((1,), "i64")), ("o", memref((2,), "i64"))],
        f"""%c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %c7 = arith.constant 7 : index
        %start = memref.load %x[%c0] : {memref((1,), "i64")}
        %one = arith.constant 1 : i64
        %a, %b = scf.for %i = %c0 to %c7 step %c1 iter_args(%p = %start, %q = %one) -> (i64, i64) {{
          %s = arith.addi %p, %q : i64
          scf.yield %q, %s : i64, i64
        }}
        memref.store %a, %o[%c0] : {memref((2,), "i64")}
        memref.store %b, %o[%c1] : {memref((2,), "i64")}""",
    )
    (out,) = agree(verified(text), [np.array([1], np.int64)])
    np.testing.assert_array_equal(out, [21, 34])


def test_branches_and_loops_with_a_condition_yield_values() -> None:
    text = main(
        [("x", memref((1,), "i64")), ("o", memref((2,), "i64"))],
        f"""%c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %one = arith.constant 1 : i64
        %two = arith.constant 2 : i64
        %three = arith.constant 3 : i64
        %start = memref.load %x[%c0] : {memref((1,), "i64")}
        %n, %steps = scf.while (%v = %start, %count = %one) : (i64, i64) -> (i64, i64) {{
          %go = arith.cmpi sgt, %v, %one : i64
          scf.condition(%go) %v, %count : i64, i64
        }} do {{
        ^bb0(%v: i64, %count: i64):
          %odd = arith.remsi %v, %two : i64
          %is = arith.cmpi eq, %odd, %one : i64
          %next = scf.if %is -> (i64) {{
            %t = arith.muli %v, %three : i64
            %u = arith.addi %t, %one : i64
            scf.yield %u : i64
          }} else {{
            %h = arith.divsi %v, %two : i64
            scf.yield %h : i64
          }}
          %more = arith.addi %count, %one : i64
          scf.yield %next, %more : i64, i64
        }}
        memref.store %n, %o[%c0] : {memref((2,), "i64")}
        memref.store %steps, %o[%c1] : {memref((2,), "i64")}""",
    )
    (out,) = agree(verified(text), [np.array([27], np.int64)])
    np.testing.assert_array_equal(out, [1, 112])


def test_two_buffers_change_places_from_one_iteration_to_the_next() -> None:
    buffer = memref((4,))
    double = """^bb0(%a: f32, %old: f32):
      %d = arith.addf %a, %a : f32
      linalg.yield %d : f32"""
    step = generic("i", ["i", "i"], "p", [("p", buffer), ("q", buffer)], double)
    text = main(
        [("x", buffer), ("o", buffer)],
        f"""%c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %c3 = arith.constant 3 : index
        %b0 = mem.buffer at 0 : {buffer}
        %b1 = mem.buffer at 16 : {buffer}
        mem.copy %x to %b0 : {buffer} to {buffer}
        %r, %s = scf.for %i = %c0 to %c3 step %c1 iter_args(%p = %b0, %q = %b1) -> ({buffer}, {buffer}) {{
          {step}
          scf.yield %q, %p : {buffer}, {buffer}
        }}
        mem.copy %r to %o : {buffer} to {buffer}""",
    )
    needs_compiler()
    x = floats(4)
    np.testing.assert_array_equal(load_native(verified(text)).run([x])[0], 8 * x)


def test_views_of_views_are_pointers_and_strides() -> None:
    part = "memref<4x6xf32, strided<[24, 1], offset: 49>>"
    row = "memref<6xf32, strided<[1], offset: ?>>"
    text = main(
        [("x", memref((10, 2, 12))), ("o", memref((4, 6)))],
        f"""%c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %c4 = arith.constant 4 : index
        %flat = memref.collapse_shape %x [[0], [1, 2]] : {memref((10, 2, 12))} into {memref((10, 24))}
        %v = memref.subview %flat[2, 1] [4, 6] [1, 1] : {memref((10, 24))} to {part}
        scf.for %i = %c0 to %c4 step %c1 {{
          %a = memref.subview %v[%i, 0] [1, 6] [1, 1] : {part} to {row}
          %b = memref.subview %o[%i, 0] [1, 6] [1, 1] : {memref((4, 6))} to {row}
          mem.copy %a to %b : {row} to {row}
        }}""",
    )
    x = floats(10, 2, 12)
    needs_compiler()
    np.testing.assert_array_equal(load_native(verified(text)).run([x])[0], x.reshape(10, 24)[2:6, 1:7])


def test_a_constant_global_is_read() -> None:
    text = f"""
    "memref.global"() <{{sym_name = "table", sym_visibility = "private", type = {memref((2, 3), "i32")}, constant,
      initial_value = dense<[[1, -2, 3], [4, 5, 6]]> : tensor<2x3xi32>}}> : () -> ()
    """ + main(
        [("o", memref((2, 3), "i32"))],
        f"""%t = memref.get_global @table : {memref((2, 3), "i32")}
        mem.copy %t to %o : {memref((2, 3), "i32")} to {memref((2, 3), "i32")}""",
    )
    needs_compiler()
    (out,) = load_native(verified(text)).run([])
    np.testing.assert_array_equal(out, [[1, -2, 3], [4, 5, 6]])
