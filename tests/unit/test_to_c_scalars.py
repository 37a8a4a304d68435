# SPDX-License-Identifier: Apache-2.0
"""Every scalar op in C computes what the interpreter computes, on all element types and at the edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from in_c import agrees_by_llvm
from numpy.typing import NDArray
from xdsl.dialects import arith, math
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.upstream.arith import RemFOp
from penstock.dialects.weights import WeightStore
from penstock.lowering.to_c import RULES, emit_c
from penstock.passes.toolchain import find_compiler
from penstock.runtime.interpreter import run_module
from penstock.runtime.native import load_native

Array = NDArray[Any]

try:
    find_compiler()
except UserError:
    pytest.skip("no C compiler", allow_module_level=True)


DTYPES: dict[str, Any] = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i1": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "index": np.int64,
}


def numbers(type: str) -> Array:
    """Numbers of a type with its edges among them."""
    rng = np.random.default_rng(7)
    dtype = np.dtype(DTYPES[type])
    if dtype.kind == "b":
        return np.array([False, True, True, False])
    if dtype.kind == "i":
        info = np.iinfo(dtype)
        edges = [0, 1, -1, 2, 3, 5, 7, -8, info.min, info.max, info.min + 1, info.max - 1]
        return np.concatenate([np.array(edges, dtype), rng.integers(info.min, info.max, 12, dtype=dtype)])
    edges = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e-8, 6e4]
    return np.concatenate([np.array(edges), rng.standard_normal(16), 30 * rng.standard_normal(8)]).astype(dtype)


def module_text(operands: Sequence[str], operations: Sequence[tuple[str, str]], size: int) -> str:
    """
    A program with one generic for each operation on the same operands.

    An operation is what follows `%r = `, and its result type; it may define a `%q` on the way, which is the result.
    """
    names = [f"x{number}" for number in range(len(operands))]
    arguments = [f"%{n}: memref<{size}x{t}> {{graph.name = '{n}'}}" for n, t in zip(names, operands, strict=True)]
    generics: list[str] = []
    for number, (text, result) in enumerate(operations):
        arguments.append(f"%o{number}: memref<{size}x{result}> {{graph.output = 'o{number}'}}")
        maps = ", ".join(["affine_map<(i) -> (i)>"] * (len(operands) + 1))
        ins = f"{', '.join('%' + n for n in names)} : {', '.join(f'memref<{size}x{t}>' for t in operands)}"
        scalars = ", ".join(f"%s{n}: {t}" for n, t in enumerate(operands))
        generics.append(f"""linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}
            ins({ins}) outs(%o{number} : memref<{size}x{result}>) {{
        ^bb0({scalars}, %out: {result}):
          %r = {text}
          linalg.yield {"%q" if "%q" in text else "%r"} : {result}
        }}""")
    joined = "\n".join(generics)
    return f"func.func @main({', '.join(arguments)}) {{\n{joined}\nfunc.return\n}}".replace("'", '"')


def both(text: str, inputs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """The outputs of a program in C, which LLVM has too, and in the interpreter."""
    module = Parser(make_context(), text).parse_module()
    module.verify()
    ours = load_native(module).run(inputs)
    agrees_by_llvm(module, inputs, ours)
    return ours, run_module(module, inputs, WeightStore(), ordered=True)


def pairs(type: str) -> tuple[Array, Array]:
    """Every number of a type with every other."""
    values = numbers(type)
    return np.repeat(values, len(values)), np.tile(values, len(values))


def assert_same_bits(operations: Sequence[tuple[str, str]], ours: Sequence[Array], theirs: Sequence[Array]) -> None:
    for (text, _), left, right in zip(operations, ours, theirs, strict=True):
        assert left.dtype == right.dtype, text
        if left.dtype.kind in "fV":
            both_nan = np.isnan(left) & np.isnan(right)
            same = left == right
            if "num" not in text:  # of two zeros, these may return either
                same &= np.signbit(left) == np.signbit(right)
            assert np.all(same | both_nan), text
        else:
            np.testing.assert_array_equal(left, right, err_msg=text)


BINARY_FLOAT = [op.name for op in (
    arith.AddfOp, arith.SubfOp, arith.MulfOp, arith.DivfOp,
    arith.MaximumfOp, arith.MinimumfOp, arith.MaxnumfOp, arith.MinnumfOp, math.CopySignOp,
    RemFOp,
)]  # fmt: skip
EXACT_UNARY_FLOAT = [op.name for op in (
    math.AbsFOp, math.CeilOp, math.FloorOp, math.TruncOp, math.RoundOp, math.RoundEvenOp, math.SqrtOp, arith.NegfOp,
)]  # fmt: skip
LIBRARY_UNARY_FLOAT = [op.name for op in (
    math.ExpOp, math.Exp2Op, math.ExpM1Op, math.LogOp, math.Log2Op, math.Log10Op, math.Log1pOp, math.RsqrtOp,
    math.SinOp, math.CosOp, math.TanOp, math.AsinOp, math.AcosOp, math.AtanOp, math.SinhOp, math.CoshOp, math.TanhOp,
    math.AsinhOp, math.AcoshOp, math.AtanhOp, math.ErfOp, math.CbrtOp,
)]  # fmt: skip
BINARY_INTEGER = [op.name for op in (
    arith.AddiOp, arith.SubiOp, arith.MuliOp, arith.AndIOp, arith.OrIOp, arith.XOrIOp,
    arith.MinSIOp, arith.MaxSIOp, arith.MinUIOp, arith.MaxUIOp, arith.ShLIOp, arith.ShRSIOp, arith.ShRUIOp,
)]  # fmt: skip
DIVISIONS = [op.name for op in (
    arith.DivSIOp, arith.DivUIOp, arith.RemSIOp, arith.RemUIOp,
    arith.FloorDivSIOp, arith.CeilDivSIOp, arith.CeilDivUIOp,
)]  # fmt: skip
UNARY_INTEGER = [op.name for op in (
    math.AbsIOp, math.CountLeadingZerosOp, math.CountTrailingZerosOp, math.CtPopOp,
)]  # fmt: skip
TESTED_ELSEWHERE = ["arith.cmpf", "arith.cmpi", "arith.select", "math.atan2", "math.powf", "math.fpowi", "math.ipowi",
                    "math.fma", "arith.constant", "affine.apply", "affine.min",
                    "arith.fptosi", "arith.fptoui"]  # fmt: skip
FLOATS = ("f16", "bf16", "f32", "f64")
INTEGERS = ("i8", "i16", "i32", "i64")


def test_every_rule_is_tested() -> None:
    tested = {*BINARY_FLOAT, *EXACT_UNARY_FLOAT, *LIBRARY_UNARY_FLOAT, *BINARY_INTEGER, *DIVISIONS, *UNARY_INTEGER}
    tested |= {*TESTED_ELSEWHERE, *(name for name, _, _ in CASTS)}
    assert {op.name for op in RULES} - tested == set()


@pytest.mark.parametrize("type", FLOATS)
def test_float_operations_have_the_bits_of_the_interpreter(type: str) -> None:
    x, y = pairs(type)
    operations = [(f"{name} %s0, %s1 : {type}", type) for name in BINARY_FLOAT]
    operations += [(f"{name} %s0 : {type}", type) for name in EXACT_UNARY_FLOAT]
    operations += [(f"arith.cmpf olt, %s0, %s1 : {type}\n %q = arith.select %r, %s1, %s0 : {type}", type)]
    text = module_text([type, type], operations, len(x))
    ours, theirs = both(text, [x, y])
    assert_same_bits(operations, ours, theirs)


@pytest.mark.parametrize("type", FLOATS)
def test_float_comparisons_order_nan_as_the_predicate_says(type: str) -> None:
    x, y = pairs(type)
    operations = [
        (f'"arith.cmpf"(%s0, %s1) <{{predicate = {number} : i64}}> : ({type}, {type}) -> i1', "i1")
        for number in range(16)
    ]
    ours, theirs = both(module_text([type, type], operations, len(x)), [x, y])
    assert_same_bits(operations, ours, theirs)
    assert ours[1].any()
    assert not ours[1].all()


@pytest.mark.parametrize("type", FLOATS)
def test_functions_of_the_c_library_agree_to_a_few_units_in_the_last_place(type: str) -> None:
    x = numbers(type)
    operations = [(f"{name} %s0 : {type}", type) for name in LIBRARY_UNARY_FLOAT]
    operations += [(f"{name} %s0, %s1 : {type}", type) for name in ("math.powf", "math.atan2")]
    y = np.roll(x, 5)
    ours, theirs = both(module_text([type, type], operations, len(x)), [x, y])
    tolerance = {"f16": 2e-3, "bf16": 2e-2, "f32": 2e-6, "f64": 1e-14}[type]
    for (text, _), left, right in zip(operations, ours, theirs, strict=True):
        np.testing.assert_allclose(
            left.astype(np.float64), right.astype(np.float64), rtol=tolerance, atol=tolerance, err_msg=text
        )


@pytest.mark.parametrize("type", ["f16", "f32"])
def test_fused_multiply_add_rounds_once(type: str) -> None:
    x, y = pairs(type)
    operations = [(f"math.fma %s0, %s1, %s0 : {type}", type)]
    ours, theirs = both(module_text([type, type], operations, len(x)), [x, y])
    assert_same_bits(operations, ours, theirs)
    with np.errstate(all="ignore"):
        assert not np.array_equal(ours[0], x * y + x, equal_nan=True)


@pytest.mark.parametrize("type", INTEGERS)
def test_integer_operations_wrap_as_in_the_interpreter(type: str) -> None:
    x, y = pairs(type)
    operations = [(f"{name} %s0, %s1 : {type}", type) for name in BINARY_INTEGER]
    operations += [(f"{name} %s0 : {type}", type) for name in UNARY_INTEGER]
    operations += [
        (f'"arith.cmpi"(%s0, %s1) <{{predicate = {number} : i64}}> : ({type}, {type}) -> i1', "i1")
        for number in range(10)
    ]
    ours, theirs = both(module_text([type, type], operations, len(x)), [x, y])
    assert_same_bits(operations, ours, theirs)


@pytest.mark.parametrize("type", INTEGERS)
def test_integer_divisions_round_as_in_the_interpreter(type: str) -> None:
    x, y = pairs(type)
    # NumPy has no quotient of the least number by -1.
    kept = (y != 0) & ~((y == -1) & (x == np.iinfo(x.dtype).min))
    x, y = x[kept], y[kept]
    operations = [(f"{name} %s0, %s1 : {type}", type) for name in DIVISIONS]
    operations += [(f"math.ipowi %s0, %s0 : {type}", type)]
    ours, theirs = both(module_text([type, type], operations, len(x)), [x, y])
    assert_same_bits(operations[:-1], ours[:-1], theirs[:-1])
    small = np.abs(x.astype(np.float64)) < 8
    np.testing.assert_array_equal(ours[-1][small & (x > 0)], theirs[-1][small & (x > 0)])


def test_operations_on_i1_are_logic() -> None:
    x, y = pairs("i1")
    names = ["addi", "subi", "muli", "andi", "ori", "xori", "minsi", "maxsi", "minui", "maxui"]
    operations = [(f"arith.{name} %s0, %s1 : i1", "i1") for name in names]
    operations += [
        (f'"arith.cmpi"(%s0, %s1) <{{predicate = {number} : i64}}> : (i1, i1) -> i1', "i1") for number in range(10)
    ]
    ours, theirs = both(module_text(["i1", "i1"], operations, len(x)), [x, y])
    assert_same_bits(operations, ours, theirs)


CASTS = [
    *(("arith.extsi", a, b) for a, b in (("i1", "i8"), ("i1", "i64"), ("i8", "i32"), ("i16", "i64"), ("i32", "i64"))),
    *(("arith.extui", a, b) for a, b in (("i1", "i32"), ("i8", "i16"), ("i8", "i64"), ("i32", "i64"))),
    *(("arith.trunci", a, b) for a, b in (("i64", "i32"), ("i32", "i8"), ("i32", "i1"), ("i64", "i16"))),
    *(("arith.sitofp", a, b) for a, b in (("i8", "f16"), ("i32", "f32"), ("i64", "f64"), ("i8", "bf16"))),
    *(("arith.uitofp", a, b) for a, b in (("i1", "f32"), ("i8", "f32"), ("i32", "f64"), ("i64", "f64"))),
    *(("arith.extf", a, b) for a, b in (("f16", "f32"), ("bf16", "f32"), ("f32", "f64"), ("f16", "f64"))),
    *(("arith.truncf", a, b) for a, b in (("f64", "f32"), ("f32", "f16"), ("f64", "f16"))),
    *(("arith.truncf", a, b) for a, b in (("f32", "bf16"), ("f64", "bf16"))),
    *(("arith.bitcast", a, b) for a, b in (("f32", "i32"), ("i32", "f32"), ("f64", "i64"), ("i64", "f64"))),
    *(("arith.bitcast", a, b) for a, b in (("f16", "i16"), ("i16", "bf16"))),
    ("arith.index_cast", "index", "i32"),
    ("arith.index_cast", "i8", "index"),
]  # fmt: skip


@pytest.mark.parametrize("source", sorted({source for _, source, _ in CASTS}))
def test_conversions_have_the_bits_of_the_interpreter(source: str) -> None:
    x = numbers(source)
    if source == "f64":
        # Half way between two f16 in f32, but not in f64.
        x = np.append(x, [1 + 2.0**-11 + 2.0**-40, 1e-41, 65519.99])
    operations = [(f"{name} %s0 : {source} to {target}", target) for name, s, target in CASTS if s == source]
    ours, theirs = both(module_text([source], operations, len(x)), [x])
    assert_same_bits(operations, ours, theirs)


def test_every_f16_is_loaded_and_what_lies_between_two_is_rounded_as_in_the_interpreter() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    wide = [("arith.extf %s0 : f16 to f32", "f32")]
    ours, theirs = both(module_text(["f16"], wide, halves.size), [halves])
    assert_same_bits(wide, ours, theirs)
    bits = theirs[0].view(np.uint32)
    between = np.concatenate([bits + np.uint32(step) for step in (1, 0xFFF, 0x1000, 0x1001, 0x1FFF)]).view(np.float32)
    narrow = [("arith.truncf %s0 : f32 to f16", "f16")]
    assert_same_bits(narrow, *both(module_text(["f32"], narrow, between.size), [between]))


@pytest.mark.parametrize("source", FLOATS)
def test_floats_are_cut_to_integers_towards_zero(source: str) -> None:
    x = np.array([0.0, -0.0, 1.9, -1.9, 100.5, -100.5, 127.0, 3e4]).astype(DTYPES[source])
    signed = [(f"arith.fptosi %s0 : {source} to {target}", target) for target in ("i16", "i32", "i64")]
    ours, theirs = both(module_text([source], signed, len(x)), [x])
    assert_same_bits(signed, ours, theirs)
    unsigned = [(f"arith.fptoui %s0 : {source} to {target}", target) for target in ("i16", "i64")]
    ours, theirs = both(module_text([source], unsigned, len(x)), [np.abs(x)])
    assert_same_bits(unsigned, ours, theirs)


def test_a_true_i1_is_minus_one_as_a_signed_number() -> None:
    operations = [("arith.sitofp %s0 : i1 to f32", "f32"), ("arith.uitofp %s0 : i1 to f32", "f32")]
    module = Parser(make_context(), module_text(["i1"], operations, 2)).parse_module()
    signed, unsigned = load_native(module).run([np.array([False, True])])
    np.testing.assert_array_equal(signed, [0, -1])
    np.testing.assert_array_equal(unsigned, [0, 1])


@pytest.mark.parametrize("type", FLOATS)
def test_constants_are_exact(type: str) -> None:
    values = ["0.1", "-0.0", "3.0e-5", "6.0e4", "1.0e-7", *(["1234567.0"] if type != "f16" else [])]
    patterns = {"f16": ("0x7C00", "0xFC00"), "bf16": ("0x7F80", "0xFF80"), "f32": ("0x7F800000", "0xFF800000"),
                "f64": ("0x7FF0000000000000", "0xFFF0000000000000")}[type]  # fmt: skip
    operations = [(f"arith.constant {value} : {type}", type) for value in (*values, *patterns)]
    ours, theirs = both(module_text([type], operations, 2), [np.zeros(2, DTYPES[type])])
    assert_same_bits(operations, ours, theirs)
    assert np.isposinf(ours[-2]).all()


@pytest.mark.parametrize("type", INTEGERS)
def test_the_least_integer_is_a_constant(type: str) -> None:
    least = int(np.iinfo(DTYPES[type]).min)
    operations = [(f"arith.constant {least} : {type}", type), (f"arith.constant {-least - 1} : {type}", type)]
    ours, _ = both(module_text([type], operations, 2), [np.zeros(2, DTYPES[type])])
    assert [int(array[0]) for array in ours] == [least, -least - 1]


@pytest.mark.parametrize("constant", ["0.0", "-0.0", "1.5", "0x7FC00000"])
def test_an_extremum_next_to_a_constant_orders_zeros_and_nan(constant: str) -> None:
    x = numbers("f32")
    operations = [
        (f"arith.constant {constant} : f32\n %q = arith.{name} {operands} : f32", "f32")
        for name in ("maximumf", "minimumf")
        for operands in ("%s0, %r", "%r, %s0")
    ]
    ours, theirs = both(module_text(["f32"], operations, len(x)), [x])
    assert_same_bits(operations, ours, theirs)


def test_a_division_by_zero_stops_the_program() -> None:
    text = module_text(["i32", "i32"], [("arith.divsi %s0, %s1 : i32", "i32")], 4)
    module = load_native(Parser(make_context(), text).parse_module())
    four, some = np.full(4, 4, np.int32), np.array([1, 2, 4, -1], np.int32)
    np.testing.assert_array_equal(module.run([four, some])[0], [4, 2, 1, -4])
    with pytest.raises(UserError, match="division by zero"):
        module.run([four, np.array([1, 0, 1, 1], np.int32)])
    # A fault is that of its run.
    np.testing.assert_array_equal(module.run([four, some])[0], [4, 2, 1, -4])


def test_an_op_without_a_rule_is_refused_with_its_name() -> None:
    text = module_text(["i32", "i32"], [("arith.addui_extended %s0, %s1 : i32, i1", "i32")], 4)
    text = text.replace("%r = arith.addui_extended", "%r, %carry = arith.addui_extended")
    with pytest.raises(UserError, match=r"arith\.addui_extended cannot be lowered to C") as refusal:
        emit_c(Parser(make_context(), text).parse_module())
    assert refusal.value.status == 3


def test_an_element_type_that_c_lacks_is_refused() -> None:
    text = module_text(["i3"], [("arith.extsi %s0 : i3 to i8", "i8")], 4)
    with pytest.raises(UserError, match="elements of type i3"):
        emit_c(Parser(make_context(), text).parse_module())


def test_arithmetic_on_less_than_a_byte_is_refused() -> None:
    text = module_text(["i4"], [("arith.addi %s0, %s0 : i4", "i4")], 4)
    with pytest.raises(UserError, match="integers of less than a byte"):
        emit_c(Parser(make_context(), text).parse_module())


def test_a_load_stands_before_the_selection_between_two() -> None:
    """GCC 12 compiles a load in a branch wrongly: it masks it by the elements of another row."""
    matrix, same = "memref<4x5xf32>", "affine_map<(d0, d1) -> (d0, d1)>"
    text = f"""func.func @main(%a: {matrix} {{graph.name = "a"}}, %b: {matrix} {{graph.name = "b"}},
        %c: {matrix} {{graph.name = "c"}}, %y: {matrix} {{graph.output = "y"}}) {{
      %three = arith.constant 3.0 : f32
      mem.copy %b[0, -2] to %y else %three : {matrix} to {matrix}
      linalg.generic {{indexing_maps = [{", ".join([same] * 5)}], iterator_types = ["parallel", "parallel"]}}
          ins(%a, %b, %c, %y : {matrix}, {matrix}, {matrix}, {matrix}) outs(%y : {matrix}) {{
      ^bb0(%0: f32, %1: f32, %2: f32, %3: f32, %old: f32):
        %row = linalg.index 0 : index
        %one = arith.constant 1 : index
        %late = arith.cmpi sgt, %row, %one : index
        %s = arith.addf %0, %1 : f32
        %chosen = arith.select %late, %2, %0 : f32
        %t = arith.addf %s, %chosen : f32
        %r = arith.addf %t, %old : f32
        linalg.yield %r : f32
      }}
      func.return
    }}"""
    module = Parser(make_context(), text).parse_module()
    assert " ? c[" not in emit_c(module).source
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-4, 5, (4, 5)).astype(np.float32) for _ in range(3)]
    (expected,) = run_module(module, inputs, WeightStore(), ordered=True)
    (found,) = load_native(module).run(inputs)
    np.testing.assert_array_equal(found, expected)
