# SPDX-License-Identifier: Apache-2.0
"""Loop code, views, copies and tensors: what runs as compiled Python and as calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Operation
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import WeightStore
from penstock.runtime.interpreter import (
    Execution,
    array_of,
    interprets,
    readable,
    run_function,
    run_module,
    written,
)
from penstock.runtime.interpreter.arithmetic import ARITHMETIC
from penstock.runtime.interpreter.registry import INTERPRETERS

CONTEXT = make_context()


def module_of(text: str, *, verified: bool = True) -> ModuleOp:
    module = Parser(CONTEXT, text).parse_module()
    if verified:
        module.verify()
    return module


def run(text: str, *args: Any, **options: Any) -> list[Any]:
    return run_function(module_of(text), "f", args, **options)


# scalars

FLOATS = ("f16", "bf16", "f32", "f64")
INTEGERS = ("i8", "i32", "i64")
TERNARY = ("math.fma",)
UNARY_ARITH = ("arith.negf",)


def _spellings() -> list[tuple[str, str, str, str]]:
    """Every elementwise op as (title, text, type of operands, type of the result)."""
    found: list[tuple[str, str, str, str]] = []
    for op in ARITHMETIC:
        name = op.name
        if name in ("arith.cmpi", "arith.cmpf"):
            count, types = (10, ("i1", "i8", "i64", "index")) if name == "arith.cmpi" else (16, ("f32", "bf16"))
            for predicate in range(count):
                text = f'"{name}"(%x, %y) <{{predicate = {predicate} : i64}}> : ($, $) -> i1'
                found += [(f"{name}.{predicate}", text, type, "i1") for type in types]
        elif name in CASTS:
            for source, target in CASTS[name]:
                found.append((name, f"%x : {source} to {target}", source, target))
        elif name == "arith.select":
            found += [(name, "SELECT", type, type) for type in ("f32", "i8")]
        elif name == "math.fpowi":
            continue  # operands of two types: tested by itself
        elif name == "math.fma":
            found += [(name, "%x, %y, %y : $", type, type) for type in ("f16", "f32", "f64")]
        elif name in ("math.atan2", "math.copysign", "math.powf"):
            found += [(name, "%x, %y : $", type, type) for type in ("f32", "f64")]
        elif name == "math.ipowi":
            found += [(name, "%x, %y : $", type, type) for type in ("i32",)]
        elif name.startswith("math."):
            integer = name in ("math.absi", "math.ctlz", "math.cttz", "math.ctpop")
            types = ("i8", "i32") if integer else ("f32", "f64", "f16")
            found += [(name, "%x : $", type, type) for type in types]
        elif name in UNARY_ARITH:
            found += [(name, "%x : $", type, type) for type in FLOATS]
        elif name.endswith("f"):
            found += [(name, "%x, %y : $", type, type) for type in FLOATS]
        else:
            found += [(name, "%x, %y : $", type, type) for type in (*INTEGERS, "i5", "i1", "index")]
    return found


CASTS: dict[str, list[tuple[str, str]]] = {
    "arith.bitcast": [("f32", "i32"), ("i32", "f32"), ("f64", "i64"), ("i8", "i8")],
    "arith.index_cast": [("index", "i8"), ("i32", "index"), ("i1", "index")],
    "arith.extsi": [("i8", "i32"), ("i1", "i8")],
    "arith.extui": [("i8", "i32"), ("i1", "i8")],
    "arith.trunci": [("i64", "i8"), ("i32", "i1"), ("i32", "i5")],
    "arith.sitofp": [("i8", "f32"), ("i64", "f32"), ("i1", "f32"), ("i32", "f16")],
    "arith.uitofp": [("i8", "f32"), ("i64", "f32"), ("i1", "f32")],
    "arith.fptosi": [("f32", "i8"), ("f32", "i32"), ("f16", "i8")],
    "arith.fptoui": [("f32", "i8"), ("f64", "i32")],
    "arith.extf": [("f16", "f32"), ("bf16", "f32"), ("f32", "f64")],
    "arith.truncf": [("f32", "f16"), ("f64", "f32"), ("f32", "bf16")],
}
SPELLINGS = _spellings()


def _numpy_type(name: str) -> Any:
    import ml_dtypes

    names: dict[str, Any] = {"i1": np.bool_, "i5": np.int8, "index": np.int64, "bf16": ml_dtypes.bfloat16}
    spelled = {"f16": "float16", "f32": "float32", "f64": "float64", "i8": "int8", "i32": "int32", "i64": "int64"}
    return names.get(name) or np.dtype(spelled[name])


def _operands(title: str, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Pairs of operands, the awkward ones among them."""
    dtype = _numpy_type(name)
    if name == "i1":
        values: list[Any] = [False, True]
    elif name in ("f16", "bf16", "f32", "f64"):
        values = [0.0, -0.0, 1.0, -1.0, 0.1, 3.5, -2.5, 1e-3, 300.0]
        if "fpto" not in title:
            values += [np.inf, -np.inf, np.nan, 65504.0]
    else:
        width = {"i8": 8, "i5": 5, "i32": 32}.get(name, 64)
        values = [0, 1, -1, 2, 5, -7, 11, 2 ** (width - 1) - 1, -(2 ** (width - 1))]
        if name == "index":
            values = [0, 1, -1, 2, 5, -7, 11, 1 << 30]
    pairs = [(a, b) for a in values for b in values]
    if "div" in title or "rem" in title:
        if "f" not in name:
            pairs = [(a, b) for a, b in pairs if b != 0 and (a, b) != (min(values), -1)]
    if title == "math.ipowi":
        pairs = [(a, b) for a, b in pairs if abs(b) < 12 and (a != 0 or b >= 0)]
    return np.array([a for a, _ in pairs], dtype), np.array([b for _, b in pairs], dtype)


@pytest.mark.parametrize(
    ("title", "text", "type", "result"), SPELLINGS, ids=[f"{s[0]}-{s[2]}-{s[3]}" for s in SPELLINGS]
)
def test_a_scalar_op_gives_the_same_bits_as_on_arrays(title: str, text: str, type: str, result: str) -> None:
    spelled = text.replace("$", type)
    line = spelled if spelled.startswith('"') else f"{title} {spelled}"
    if text == "SELECT":
        compare = "arith.cmpf ogt" if type == "f32" else "arith.cmpi sgt"
        line = f"arith.select %c, %x, %y : {type}"
        prefix = f"%c = {compare}, %x, %y : {type}\n"
    else:
        prefix = ""
    a, b = _operands(title, type)
    n = len(a)
    source, target = f"memref<{n}x{type}>", f"memref<{n}x{result}>"
    scalar, whole = np.zeros(n, _numpy_type(result)), np.zeros(n, _numpy_type(result))
    run(
        f"""func.func @f(%a: {source}, %b: {source}, %r: {target}) {{
          %zero = arith.constant 0 : index
          %one = arith.constant 1 : index
          %n = arith.constant {n} : index
          scf.for %i = %zero to %n step %one {{
            %x = memref.load %a[%i] : {source}
            %y = memref.load %b[%i] : {source}
            {prefix}%v = {line}
            memref.store %v, %r[%i] : {target}
          }}
          func.return
        }}""",
        a,
        b,
        scalar,
    )
    run(
        f"""func.func @f(%a: {source}, %b: {source}, %r: {target}) {{
          linalg.generic {{indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
                           iterator_types = ["parallel"]}}
              ins(%a, %b : {source}, {source}) outs(%r : {target}) {{
          ^bb0(%x: {type}, %y: {type}, %z: {result}):
            {prefix}%v = {line}
            linalg.yield %v : {result}
          }}
          func.return
        }}""",
        a,
        b,
        whole,
    )
    if whole.dtype.kind in "fV":
        # one NaN is as good as another
        assert np.array_equal(np.isnan(scalar), np.isnan(whole))
        numbers = ~np.isnan(whole)
        assert scalar[numbers].tobytes() == whole[numbers].tobytes()
    else:
        assert scalar.tolist() == whole.tolist()


def test_every_elementwise_op_is_compared() -> None:
    compared = {title.split(".")[0] + "." + title.split(".")[1] for title, *_ in SPELLINGS}
    assert compared == {op.name for op in ARITHMETIC} - {"math.fpowi"}


def test_f32_arithmetic_rounds_after_every_operation() -> None:
    text = """func.func @f(%a: f32, %b: f32, %c: f32) -> f32 {
      %p = arith.mulf %a, %b : f32
      %s = arith.subf %p, %c : f32
      func.return %s : f32
    }"""
    a, c = float(np.float32(1 + 2**-12)), float(np.float32((1 + 2**-12) ** 2))
    assert run(text, a, a, c) == [0.0]


def test_a_constant_is_rounded_to_its_type() -> None:
    text = "func.func @f() -> f32 {\n%c = arith.constant 0.1 : f32\nfunc.return %c : f32\n}"
    assert run(text) == [float(np.float32(0.1))]


# control


def test_a_loop_carries_values_and_may_swap_them() -> None:
    text = """func.func @f(%n: index) -> (i64, i64) {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %a = arith.constant 0 : i64
      %b = arith.constant 1 : i64
      %r:2 = scf.for %i = %zero to %n step %one iter_args(%x = %a, %y = %b) -> (i64, i64) {
        %s = arith.addi %x, %y : i64
        scf.yield %y, %s : i64, i64
      }
      func.return %r#0, %r#1 : i64, i64
    }"""
    assert run(text, 10) == [55, 89]
    assert run(text, 0) == [0, 1]


def test_while_if_switch_and_parallel_do_what_they_say() -> None:
    collatz = """func.func @f(%n: i64) -> i64 {
      %one = arith.constant 1 : i64
      %two = arith.constant 2 : i64
      %three = arith.constant 3 : i64
      %zero = arith.constant 0 : i64
      %r:2 = scf.while (%x = %n, %c = %zero) : (i64, i64) -> (i64, i64) {
        %go = arith.cmpi ne, %x, %one : i64
        scf.condition(%go) %x, %c : i64, i64
      } do {
      ^bb0(%x: i64, %c: i64):
        %m = arith.remsi %x, %two : i64
        %even = arith.cmpi eq, %m, %zero : i64
        %next = scf.if %even -> (i64) {
          %h = arith.divsi %x, %two : i64
          scf.yield %h : i64
        } else {
          %t = arith.muli %x, %three : i64
          %u = arith.addi %t, %one : i64
          scf.yield %u : i64
        }
        %d = arith.addi %c, %one : i64
        scf.yield %next, %d : i64, i64
      }
      func.return %r#1 : i64
    }"""
    assert run(collatz, 27) == [111]
    switch = """func.func @f(%n: index) -> i64 {
      %r = scf.index_switch %n -> i64
      case 2 { %a = arith.constant 20 : i64 scf.yield %a : i64 }
      case 5 { %b = arith.constant 50 : i64 scf.yield %b : i64 }
      default { %c = arith.constant 7 : i64 scf.yield %c : i64 }
      func.return %r : i64
    }"""
    assert [run(switch, n)[0] for n in (2, 5, 6)] == [20, 50, 7]
    total = """func.func @f(%n: index) -> f32 {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %start = arith.constant 0.5 : f32
      %r = "scf.parallel"(%zero, %zero, %n, %n, %one, %one, %start) <{operandSegmentSizes = array<i32: 2, 2, 2, 1>}> ({
      ^bb0(%i: index, %j: index):
        %k = arith.index_cast %i : index to i32
        %x = arith.sitofp %k : i32 to f32
        scf.reduce(%x : f32) {
        ^bb0(%a: f32, %b: f32):
          %s = arith.addf %a, %b : f32
          scf.reduce.return %s : f32
        }
      }) : (index, index, index, index, index, index, f32) -> f32
      func.return %r : f32
    }"""
    assert run(total, 3) == [9.5]


def test_a_step_that_is_not_positive_is_refused() -> None:
    text = """func.func @f(%s: index) {
      %zero = arith.constant 0 : index
      scf.for %i = %zero to %zero step %s { }
      func.return
    }"""
    with pytest.raises(UserError, match="the step of a loop is 0"):
        run(text, 0)


# memory

ACCESS = """func.func @f(%a: memref<4xf32>, %i: index) {
  %x = memref.load %a[%i] : memref<4xf32> loc("kernel.py":7:3)
  memref.store %x, %a[%i] : memref<4xf32>
  func.return
}"""


@pytest.mark.parametrize("index", [-1, 4])
def test_an_index_outside_is_located(index: int) -> None:
    with pytest.raises(UserError, match=r"memref\.load: .*index.*") as caught:
        run(ACCESS, np.zeros(4, np.float32), index)
    assert caught.value.loc == "kernel.py:7:3"


def test_a_store_through_a_bfloat16_memref_rounds() -> None:
    import ml_dtypes

    text = ACCESS.replace("f32", "bf16").replace("memref.store %x", "%y = arith.addf %x, %x : bf16\nmemref.store %y")
    a = np.array([1.0078125], ml_dtypes.bfloat16).repeat(4)
    run(text, a, 2)
    assert a.astype(np.float32).tolist() == [1.0078125, 1.0078125, 2.015625, 1.0078125]


def test_views_share_the_memory_they_show() -> None:
    text = """func.func @f(%a: memref<4x6xf32>) {
      %zero = arith.constant 0 : index
      %v = arith.constant 9.0 : f32
      %s = memref.subview %a[1, 2] [1, 4] [1, 1] : memref<4x6xf32> to memref<4xf32, strided<[1], offset: 8>>
      memref.store %v, %s[%zero] : memref<4xf32, strided<[1], offset: 8>>
      %c = memref.collapse_shape %a [[0, 1]] : memref<4x6xf32> into memref<24xf32>
      memref.store %v, %c[%zero] : memref<24xf32>
      %e = memref.expand_shape %c [[0, 1, 2]] output_shape [2, 2, 6] : memref<24xf32> into memref<2x2x6xf32>
      %one = arith.constant 1 : index
      memref.store %v, %e[%one, %one, %zero] : memref<2x2x6xf32>
      %r = memref.reinterpret_cast %a to offset: [3], sizes: [2], strides: [6]
        : memref<4x6xf32> to memref<2xf32, strided<[6], offset: 3>>
      memref.store %v, %r[%one] : memref<2xf32, strided<[6], offset: 3>>
      func.return
    }"""
    a = np.zeros((4, 6), np.float32)
    run(text, a)
    assert np.argwhere(a).tolist() == [[0, 0], [1, 2], [1, 3], [3, 0]]


def test_a_subview_that_leaves_its_source_is_located() -> None:
    text = """func.func @f(%a: memref<4xf32>, %i: index) {
      %s = memref.subview %a[%i] [3] [1] : memref<4xf32> to memref<3xf32, strided<[1], offset: ?>>
      func.return
    }"""
    run(text, np.zeros(4, np.float32), 1)
    with pytest.raises(UserError, match="takes 3 elements from 2 on"):
        run(text, np.zeros(4, np.float32), 2)


WINDOW = """func.func @f(%a: memref<4x4xf32>, %b: memref<3x3xf32>, %i: index, %j: index) {
  %c = arith.constant 7.0 : f32
  mem.copy %a[%i, %j] to %b ELSE : memref<4x4xf32> to memref<3x3xf32>
  func.return
}"""


@pytest.mark.parametrize("at", [(0, 0), (-1, -2), (2, 3), (1, -1), (-3, 0), (5, 5), (-9, 20)])
def test_a_window_reads_the_padding_outside_its_source(at: tuple[int, int]) -> None:
    a, b = np.arange(16, dtype=np.float32).reshape(4, 4), np.zeros((3, 3), np.float32)
    run(WINDOW.replace("ELSE", "else %c"), a, b, *at)
    padded = np.full((64, 64), 7, np.float32)
    padded[30:34, 30:34] = a
    assert np.array_equal(b, padded[30 + at[0] : 33 + at[0], 30 + at[1] : 33 + at[1]])


def test_a_window_without_padding_must_lie_inside() -> None:
    a, b = np.zeros((4, 4), np.float32), np.zeros((3, 3), np.float32)
    with pytest.raises(UserError, match="reads elements 2 to 5 in dim 1 of its source, which has 4"):
        run(WINDOW.replace("ELSE", ""), a, b, 0, 2)


@pytest.mark.parametrize("at", [(0, 0), (-1, 2), (3, 3), (-5, 0), (4, 9)])
def test_a_window_of_the_destination_is_clipped(at: tuple[int, int]) -> None:
    text = """func.func @f(%a: memref<3x3xf32>, %b: memref<4x4xf32>, %i: index, %j: index) {
      mem.copy %a to %b[%i, %j] : memref<3x3xf32> to memref<4x4xf32>
      func.return
    }"""
    a, b = np.arange(1, 10, dtype=np.float32).reshape(3, 3), np.zeros((4, 4), np.float32)
    run(text, a, b, *at)
    whole = np.zeros((64, 64), np.float32)
    whole[30 + at[0] : 33 + at[0], 30 + at[1] : 33 + at[1]] = a
    assert np.array_equal(b, whole[30:34, 30:34])


def test_fresh_memory_says_so_when_it_is_read() -> None:
    text = """func.func @f(%b: memref<4xf32>) {
      %a = memref.alloc() : memref<4xf32>
      mem.copy %a to %b : memref<4xf32> to memref<4xf32>
      func.return
    }"""
    b = np.zeros(4, np.float32)
    run(text, b)
    assert np.isnan(b).all()


def test_reading_an_unwritten_buffer_of_a_scope_is_located() -> None:
    text = """func.func @f(%b: memref<4xi8>) {
      %a = mem.buffer : memref<4xi8, "spad">
      mem.copy %a to %b : memref<4xi8, "spad"> to memref<4xi8> loc("kernel.py":4:1)
      func.return
    }"""
    with pytest.raises(UserError, match=r'of %a at byte 0 of scope "spad", which was never written') as caught:
        run(text, np.zeros(4, np.int8))
    assert caught.value.loc == "kernel.py:4:1"


def test_copying_undefined_elements_leaves_undefined_ones() -> None:
    text = """func.func @f(%x: memref<2xf32>, %y: memref<3xf32>) {
      %a = mem.buffer at 0 : memref<4xf32>
      mem.copy %x to %a[1] : memref<2xf32> to memref<4xf32>
      %b = mem.buffer at 16 : memref<4xf32>
      COPY %a TO %b : memref<4xf32> to memref<4xf32>
      mem.copy %x to %b[2] : memref<2xf32> to memref<4xf32>
      %c = memref.subview %b[FIRST] [3] [1] : memref<4xf32> to memref<3xf32, strided<[1], offset: FIRST>>
      mem.copy %c to %y : memref<3xf32, strided<[1], offset: FIRST>> to memref<3xf32>
      func.return
    }"""
    for copy in ("mem.copy %a to", '"memref.copy"(%a, %b) : (memref<4xf32>, memref<4xf32>) -> () //'):
        x, y = np.array([3, 4], np.float32), np.zeros(3, np.float32)
        run(text.replace("COPY %a TO", copy).replace("FIRST", "1"), x, y)
        assert y.tolist() == [3, 3, 4]
        with pytest.raises(UserError, match=r"element \[0\] of %b .* at byte 16 .* which was never written"):
            run(text.replace("COPY %a TO", copy).replace("FIRST", "0"), x, y)


ARENA = """func.func @f(%x: memref<4xf32>, %y: memref<4xf32>) {
  %a = mem.buffer at 0 : memref<4xf32>
  %b = mem.buffer at OFFSET : memref<4xf32>
  mem.copy %x to %a : memref<4xf32> to memref<4xf32>
  mem.copy %x to %b : memref<4xf32> to memref<4xf32>
  linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
                  iterator_types = ["parallel"]}
      ins(%a, %b : memref<4xf32>, memref<4xf32>) outs(%y : memref<4xf32>) {
  ^bb0(%s: f32, %t: f32, %u: f32):
    %r = arith.addf %s, %t : f32
    linalg.yield %r : f32
  }
  func.return
}"""


def test_buffers_that_share_bytes_while_both_are_needed_are_found() -> None:
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    run(ARENA.replace("OFFSET", "16"), x, y)
    assert y.tolist() == [0, 2, 4, 6]
    with pytest.raises(UserError, match=r"%a \(mem.buffer at 0\) at byte 12 of the arena.*%b \(mem.buffer at 12\)"):
        run(ARENA.replace("OFFSET", "12"), x, y)


def test_a_scalar_load_checks_the_tags_too() -> None:
    text = """func.func @f(%i: index) -> f32 {
      %a = mem.buffer : memref<4xf32, "spad">
      %zero = arith.constant 0 : index
      %c = arith.constant 2.0 : f32
      memref.store %c, %a[%zero] : memref<4xf32, "spad">
      %x = memref.load %a[%i] : memref<4xf32, "spad">
      func.return %x : f32
    }"""
    assert run(text, 0) == [2.0]
    with pytest.raises(UserError, match=r"memref\.load: reads an element of %a, which was never written"):
        run(text, 1)


def test_a_buffer_is_undefined_again_each_time_it_is_executed() -> None:
    text = """func.func @f(%x: memref<4xf32>, %y: memref<4xf32>) {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %two = arith.constant 2 : index
      scf.for %i = %zero to %two step %one {
        %a = mem.buffer at 0 : memref<4xf32, "spad">
        %first = arith.cmpi eq, %i, %zero : index
        scf.if %first {
          mem.copy %x to %a : memref<4xf32> to memref<4xf32, "spad">
        }
        mem.copy %a to %y : memref<4xf32, "spad"> to memref<4xf32>
      }
      func.return
    }"""
    with pytest.raises(UserError, match="last written through an earlier execution of the same buffer"):
        run(text, np.zeros(4, np.float32), np.zeros(4, np.float32))


# tensors

TILED = """func.func @f(%x: tensor<4x6xf32>, %y: tensor<4x6xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %four = arith.constant 4 : index
  %half = arith.constant 0.5 : f32
  %r = scf.for %i = %zero to %four step %one iter_args(%acc = %y) -> (tensor<4x6xf32>) {
    %row = tensor.extract_slice %x[%i, 0] [1, 6] [1, 1] : tensor<4x6xf32> to tensor<6xf32>
    %old = tensor.extract_slice %acc[%i, 0] [1, 6] [1, 1] : tensor<4x6xf32> to tensor<6xf32>
    %sum = linalg.generic {indexing_maps = [affine_map<(j) -> (j)>, affine_map<(j) -> (j)>],
                           iterator_types = ["parallel"]}
        ins(%row : tensor<6xf32>) outs(%old : tensor<6xf32>) {
    ^bb0(%a: f32, %b: f32):
      %p = arith.mulf %a, %half : f32
      %s = arith.addf %b, %p : f32
      linalg.yield %s : f32
    } -> tensor<6xf32>
    %new = tensor.insert_slice %sum into %acc[%i, 0] [1, 6] [1, 1] : tensor<6xf32> into tensor<4x6xf32>
    scf.yield %new : tensor<4x6xf32>
  }
  func.return %r, %y : tensor<4x6xf32>, tensor<4x6xf32>
}"""


def test_a_tiled_loop_updates_a_tensor_and_leaves_the_one_it_began_with() -> None:
    x, y = np.arange(24, dtype=np.float32).reshape(4, 6), np.ones((4, 6), np.float32)
    result, before = run(TILED, x, y)
    assert np.array_equal(result, 1 + x / 2)
    assert np.array_equal(before, np.ones((4, 6)))


ALIASES = """func.func @f(%x: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %two = arith.constant 2 : index
  %v = arith.constant 5.0 : f32
  %w = arith.constant 6.0 : f32
  %yes = arith.constant true
  %a = tensor.insert %v into %x[%zero] : tensor<3xf32>
  %part = tensor.extract_slice %a[0] [3] [1] : tensor<3xf32> to tensor<3xf32>
  %same = tensor.cast %a : tensor<3xf32> to tensor<?xf32>
  %kept = tensor.cast %same : tensor<?xf32> to tensor<3xf32>
  %if = scf.if %yes -> (tensor<3xf32>) { scf.yield %a : tensor<3xf32> } else { scf.yield %x : tensor<3xf32> }
  %r:2 = scf.for %i = %zero to %two step %one iter_args(%p = %kept, %q = %kept) -> (tensor<3xf32>, tensor<3xf32>) {
    %n = tensor.insert %w into %p[%i] : tensor<3xf32>
    scf.yield %q, %n : tensor<3xf32>, tensor<3xf32>
  }
  func.return %part, %if, %r#0, %r#1 : tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>
}"""


def test_what_loops_carry_and_swap_stays_apart() -> None:
    x = np.zeros(3, np.float32)
    found = [array.tolist() for array in run(ALIASES, x)]
    assert found == [[5, 0, 0], [5, 0, 0], [6, 0, 0], [5, 6, 0]]
    assert x.tolist() == [0, 0, 0]


ANOTHER_NAME = {
    "slice": "%o = tensor.extract_slice %a[0] [3] [1] : tensor<3xf32> to tensor<3xf32>",
    "cast": """%c = tensor.cast %a : tensor<3xf32> to tensor<?xf32>
               %o = tensor.cast %c : tensor<?xf32> to tensor<3xf32>""",
    "if": """%o = scf.if %yes -> (tensor<3xf32>) {
               scf.yield %a : tensor<3xf32>
             } else {
               scf.yield %x : tensor<3xf32>
             }""",
    "select": "%o = arith.select %yes, %a, %x : tensor<3xf32>",
    "call": "%o = func.call @same(%a) : (tensor<3xf32>) -> tensor<3xf32>",
    "loop": """%o = scf.for %i = %zero to %one step %one iter_args(%p = %a) -> (tensor<3xf32>) {
                 scf.yield %p : tensor<3xf32>
               }""",
    "outer": """%o = scf.for %i = %zero to %one step %one iter_args(%p = %x) -> (tensor<3xf32>) {
                 scf.yield %a : tensor<3xf32>
               }""",
}


@pytest.mark.parametrize("how", ANOTHER_NAME)
def test_updating_a_tensor_in_place_is_not_seen_under_another_name(how: str) -> None:
    text = f"""
    func.func private @same(%x: tensor<3xf32>) -> tensor<3xf32> {{
      func.return %x : tensor<3xf32>
    }}
    func.func @f(%x: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {{
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %v = arith.constant 5.0 : f32
      %w = arith.constant 6.0 : f32
      %yes = arith.constant true
      %a = tensor.insert %v into %x[%zero] : tensor<3xf32>
      {ANOTHER_NAME[how]}
      %n = tensor.insert %w into %a[%zero] : tensor<3xf32>
      func.return %o, %n : tensor<3xf32>, tensor<3xf32>
    }}"""
    x = np.zeros(3, np.float32)
    other, new = run(text, x)
    assert (other.tolist(), new.tolist(), x.tolist()) == ([5, 0, 0], [6, 0, 0], [0, 0, 0])


def test_inserting_tiles_does_not_copy_the_whole_tensor() -> None:
    text = """func.func @f() -> tensor<512x4096xf32> {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %n = arith.constant 512 : index
      %e = tensor.empty() : tensor<512x4096xf32>
      %c = arith.constant 1.0 : f32
      %r = scf.for %i = %zero to %n step %one iter_args(%acc = %e) -> (tensor<512x4096xf32>) {
        %t = tensor.splat %c : tensor<1x4096xf32>
        %x = tensor.insert_slice %t into %acc[%i, 0] [1, 4096] [1, 1] : tensor<1x4096xf32> into tensor<512x4096xf32>
        scf.yield %x : tensor<512x4096xf32>
      }
      func.return %r : tensor<512x4096xf32>
    }"""
    arrays: set[int] = set()

    def note(op: Operation, results: Any, _: Any) -> None:
        if op.name == "tensor.insert_slice":
            arrays.add(results[0].__array_interface__["data"][0])

    (result,) = run(text, listener=note)
    assert (result == 1).all()
    assert len(arrays) == 1


def test_pads_concatenations_and_shapes() -> None:
    text = """func.func @f(%x: tensor<2x3xf32>)
        -> (tensor<4x4xf32>, tensor<2x6xf32>, tensor<3x2xf32>, tensor<2xf32>, index) {
      %c = arith.constant 7.0 : f32
      %one = arith.constant 1 : index
      %p = tensor.pad %x low[1, 2] high[1, -1] {
      ^bb0(%i: index, %j: index):
        tensor.yield %c : f32
      } : tensor<2x3xf32> to tensor<4x4xf32>
      %k = tensor.concat dim(1) %x, %x : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x6xf32>
      %s = arith.constant dense<[3, 2]> : tensor<2xi64>
      %r = tensor.reshape %x(%s) : (tensor<2x3xf32>, tensor<2xi64>) -> tensor<3x2xf32>
      %e = tensor.extract %x[%one, %one] : tensor<2x3xf32>
      %f = tensor.from_elements %e, %c : tensor<2xf32>
      %d = tensor.dim %x, %one : tensor<2x3xf32>
      func.return %p, %k, %r, %f, %d : tensor<4x4xf32>, tensor<2x6xf32>, tensor<3x2xf32>, tensor<2xf32>, index
    }"""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    padded, twice, shaped, pair, size = run(text, x)
    assert np.array_equal(padded, np.pad(x, ((1, 1), (2, 0)), constant_values=7)[:, :4])
    assert np.array_equal(twice, np.concatenate([x, x], 1))
    assert np.array_equal(shaped, x.reshape(3, 2))
    assert pair.tolist() == [4, 7]
    assert size == 3


def test_an_empty_tensor_is_undefined() -> None:
    text = "func.func @f() -> tensor<3xf32> {\n%e = tensor.empty() : tensor<3xf32>\nfunc.return %e : tensor<3xf32>\n}"
    assert np.isnan(run(text)[0]).all()


# modules

MAIN = """
func.func private @scale(%x: memref<3xi8>, %w: memref<3xi8>, %y: memref<3xi8>) {
  linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
                  iterator_types = ["parallel"]}
      ins(%x, %w : memref<3xi8>, memref<3xi8>) outs(%y : memref<3xi8>) {
  ^bb0(%a: i8, %b: i8, %c: i8):
    %r = arith.muli %a, %b : i8
    linalg.yield %r : i8
  }
  func.return
}
func.func @main(%x: memref<3xi8> {graph.name = "x"}, %w: memref<3xi8> {graph.weight = "scale"},
                %y: memref<3xi8> {graph.output = "y"}) {
  func.call @scale(%x, %w, %y) : (memref<3xi8>, memref<3xi8>, memref<3xi8>) -> ()
  func.return
}"""


def store_with(array: NDArray[Any]) -> WeightStore:
    store = WeightStore()
    store.add("scale", array)
    return store


def test_main_takes_inputs_and_weights_and_returns_its_outputs() -> None:
    store = store_with(np.array([1, 2, 3], np.int8))
    (found,) = run_module(module_of(MAIN), [np.array([1, 2, 200], np.uint8)], store)
    assert found.dtype == np.int8
    assert found.tolist() == [1, 4, 88]  # 200 is -56, and -168 wraps


@pytest.mark.parametrize(
    ("x", "w", "message"),
    [
        (np.zeros(4, np.int8), np.zeros(3, np.int8), r'input "x" is 4 of int8, @main takes 3 of int8'),
        (np.zeros(3, np.float32), np.zeros(3, np.int8), r'input "x" is 3 of float32'),
        (np.zeros(3, np.int8), np.zeros(2, np.int8), r'weight "scale" is 2 of int8'),
    ],
)
def test_arguments_of_other_types_are_named(x: NDArray[Any], w: NDArray[Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run_module(module_of(MAIN), [x], store_with(w))


def test_a_kernel_that_writes_to_an_input_is_found() -> None:
    text = MAIN.replace("@scale(%x, %w, %y) :", "@scale(%y, %w, %x) :")
    with pytest.raises(UserError, match=r"linalg\.generic: writes to an input"):
        run_module(module_of(text), [np.zeros(3, np.int8)], store_with(np.zeros(3, np.int8)))


def test_an_op_that_nothing_interprets_is_unsupported() -> None:
    text = """func.func @f(%a: memref<4xf32>) {
      %s = arith.constant 0 : index
      %v = vector.load %a[%s] : memref<4xf32>, vector<4xf32>
      func.return
    }"""
    with pytest.raises(UserError, match=r"vector\.load is not interpreted") as caught:
        run(text, np.zeros(4, np.float32))
    assert caught.value.status == 3


def test_loops_nested_beyond_what_python_allows_are_unsupported() -> None:
    depth = 25
    opening = "\n".join(f"scf.for %i{level} = %zero to %one step %one {{" for level in range(depth))
    text = f"""func.func @f() {{
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      {opening}
      {"}" * depth}
      func.return
    }}"""
    with pytest.raises(UserError, match="nests its loops too deeply") as caught:
        run(text)
    assert caught.value.status == 3


@irdl_op_definition
class TwiceOp(IRDLOperation):
    """What a plug-in may bring."""

    name = "plugin.twice"

    source = operand_def(MemRefType)
    dest = operand_def(MemRefType)

    assembly_format = "$source `to` $dest attr-dict `:` type($source) `,` type($dest)"


def test_a_plug_in_says_what_its_op_does_and_has_its_reads_checked() -> None:
    @interprets(TwiceOp)
    def twice(execution: Execution, op: TwiceOp, args: Sequence[Any]) -> Sequence[Any]:
        array_of(args[1])[...] = 2 * readable(args[0], op)
        written(args[1])
        return ()

    context = make_context()
    context.load_op(TwiceOp)
    text = """func.func @f(%x: memref<3xf32>, %y: memref<3xf32>) {
      %b = mem.buffer : memref<3xf32, "spad">
      FILL
      plugin.twice %b to %y : memref<3xf32, "spad">, memref<3xf32>
      func.return
    }"""
    fill = 'plugin.twice %x to %b : memref<3xf32>, memref<3xf32, "spad">'
    x, y = np.arange(3, dtype=np.float32), np.zeros(3, np.float32)
    try:
        run_function(Parser(context, text.replace("FILL", fill)).parse_module(), "f", [x, y])
        assert y.tolist() == [0, 4, 8]
        with pytest.raises(UserError, match=r"plugin.twice reads element \[0\] of %b"):
            run_function(Parser(context, text.replace("FILL", "")).parse_module(), "f", [x, y])
    finally:
        del INTERPRETERS[TwiceOp]


def test_a_listener_hears_every_op_with_its_results_and_operands() -> None:
    heard: list[tuple[str, tuple[Any, ...], tuple[Any, ...]]] = []
    text = """func.func @f(%a: i32) -> i32 {
      %c = arith.constant 3 : i32
      %r = arith.muli %a, %c : i32
      func.return %r : i32
    }"""

    def note(op: Operation, results: Any, operands: Any) -> None:
        heard.append((op.name, tuple(results), tuple(operands)))

    run(text, 5, listener=note)
    assert heard == [("arith.constant", (3,), ()), ("arith.muli", (15,), (5, 3))]


def test_functions_are_compiled_once_and_called_by_name() -> None:
    text = """
    func.func private @twice(%x: i32) -> i32 {
      %r = arith.addi %x, %x : i32
      func.return %r : i32
    }
    func.func @f(%x: i32) -> i32 {
      %a = func.call @twice(%x) : (i32) -> i32
      %b = func.call @twice(%a) : (i32) -> i32
      func.return %b : i32
    }"""
    execution = Execution(module_of(text))
    assert execution.run("f", [3]) == (12,)
    assert execution.run("f", [4]) == (16,)
    with pytest.raises(UserError, match=r"no func\.func @twise") as caught:
        execution.call("twise", [])
    assert caught.value.notes == ('did you mean "twice"?',)
