# SPDX-License-Identifier: Apache-2.0
"""Random structured ops: the evaluator agrees with a walk over the points of the domain, one scalar at a time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sampling import examples
from tests.support.generic import evaluate_generic
from xdsl.dialects import arith
from xdsl.dialects.linalg.ops import GenericOp, IndexOp
from xdsl.ir import SSAValue
from xdsl.parser import Parser

from penstock.dialects.context import make_context

CONTEXT = make_context()
DTYPES: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "i8": np.int8,
    "i32": np.int32,
}


@dataclass(frozen=True)
class Operand:
    """An operand of a random op: its index map as text, and its shape."""

    exprs: tuple[str, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A random op as text, and the seed of its data."""

    text: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    seed: int


def _value(expr: str, point: tuple[int, ...]) -> int:
    names = {f"d{dim}": index for dim, index in enumerate(point)}
    return int(eval(expr.replace("floordiv", "//").replace("mod", "%"), {"__builtins__": {}}, names))


def _operand(exprs: tuple[str, ...], extents: tuple[int, ...], slack: int) -> Operand:
    """The smallest shape that holds a map's indices, and `slack` more where the map is no plain dim."""
    points = list(product(*(range(extent) for extent in extents)))
    shape = tuple(
        max(_value(expr, point) for point in points) + 1 + (0 if expr.startswith("d") and len(expr) == 2 else slack)
        for expr in exprs
    )
    return Operand(exprs, shape)


def _exprs(rank: int) -> st.SearchStrategy[str]:
    dims = st.integers(0, rank - 1).map(lambda dim: f"d{dim}")
    return st.one_of(
        dims,
        dims,
        st.tuples(dims, st.integers(1, 3), dims, st.integers(0, 2)).map(lambda t: f"{t[0]} * {t[1]} + {t[2]} + {t[3]}"),
        dims.map(lambda dim: f"{dim} floordiv 2"),
        dims.map(lambda dim: f"{dim} mod 2"),
        st.just("0"),
    )


FLOAT_TERMS = ("mulf a, b", "addf a, b", "subf b, a", "maximumf a, b")
INTEGER_TERMS = ("muli a, b", "addi a, b", "subi b, a", "maxsi a, b")


def _body(term: str, combine: str, dtype: str, index: bool, rank: int) -> str:
    op, operands = term.split(" ", 1)
    swapped = operands.replace("a", "%x").replace("b", "%y")
    lines = [f"%t = arith.{op} {swapped} : {dtype}"]
    last = "%t"
    if index:
        cast = "sitofp" if "f" in dtype else "trunci"
        lines += [
            f"%n = linalg.index {rank - 1} : index",
            "%m = arith.index_cast %n : index to i64",
            f"%q = arith.{cast} %m : i64 to {dtype}",
            f"%u = arith.{'mulf' if 'f' in dtype else 'muli'} %t, %q : {dtype}",
        ]
        last = "%u"
    if combine:
        lines.append(f"%r = arith.{combine} %z, {last} : {dtype}")
        last = "%r"
    return "\n".join([*lines, f"linalg.yield {last} : {dtype}"])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rank = draw(st.integers(1, 4))
    extents = tuple(draw(st.integers(1, 4)) for _ in range(rank))
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    is_float = "f" in dtype
    inputs = [
        _operand(tuple(draw(st.lists(_exprs(rank), max_size=3))), extents, draw(st.integers(0, 2))) for _ in range(2)
    ]
    kept = draw(st.permutations(range(rank)))[: draw(st.integers(0, rank))]
    output = _operand(tuple(f"d{dim}" for dim in kept), extents, 0)
    # lends its shape only, so that every loop has an extent
    window = _operand(tuple(f"d{dim}" for dim in range(rank)), extents, 0)
    operands = [window, *inputs, output]
    combine = draw(st.sampled_from(("addf", "mulf", "maximumf") if is_float else ("addi", "muli", "minsi")))
    if len(kept) == rank:
        combine = draw(st.sampled_from((combine, "")))
    term = draw(st.sampled_from(FLOAT_TERMS if is_float else INTEGER_TERMS))
    dims = ", ".join(f"d{dim}" for dim in range(rank))
    maps = ", ".join(f"affine_map<({dims}) -> ({', '.join(operand.exprs)})>" for operand in operands)
    iterators = ", ".join('"parallel"' if dim in kept else '"reduction"' for dim in range(rank))
    types = [f"tensor<{''.join(f'{size}x' for size in operand.shape)}{dtype}>" for operand in operands]
    names = ["%w", "%a", "%b", "%c"]
    arguments = ", ".join(f"{name}: {type}" for name, type in zip(names, types, strict=True))
    text = f"""
    func.func @f({arguments}) -> {types[-1]} {{
      %out = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{iterators}]}}
          ins(%w, %a, %b : {", ".join(types[:3])}) outs(%c : {types[3]}) {{
      ^bb0(%v: {dtype}, %x: {dtype}, %y: {dtype}, %z: {dtype}):
        {_body(term, combine, dtype, draw(st.booleans()), rank)}
      }} -> {types[3]}
      func.return %out : {types[3]}
    }}"""
    shapes = tuple(operand.shape for operand in operands)
    return Case(text, shapes, dtype, draw(st.integers(0, 2**16)))


@st.composite
def contractions(draw: st.DrawFn) -> Case:
    """Matrix products of all kinds, windows that overlap and narrow integers included."""
    parts = draw(st.permutations(["k", *draw(st.lists(st.sampled_from("bmnk"), min_size=1, max_size=5))]))
    extents = tuple(draw(st.integers(1, 5)) for _ in parts)
    dims = {part: [f"d{dim}" for dim, each in enumerate(parts) if each == part] for part in "bmnk"}
    left = list(draw(st.permutations(dims["b"] + dims["m"] + dims["k"])))
    right = list(draw(st.permutations(dims["b"] + dims["n"] + dims["k"])))
    if dims["m"] and draw(st.booleans()):
        outer, inner = dims["m"][0], dims["k"][0]
        left.remove(inner)
        left[left.index(outer)] = f"{outer} * {draw(st.integers(1, 3))} + {inner} * {draw(st.integers(1, 2))}"
    out = draw(st.permutations(dims["b"] + dims["m"] + dims["n"]))
    maps = [tuple(f"d{dim}" for dim in range(len(parts))), tuple(left), tuple(right), tuple(out)]
    operands = [_operand(exprs, extents, 1) for exprs in maps]
    dtype = draw(st.sampled_from(("f32", "f64", "i8", "i32")))
    narrow = dtype == "i32" and draw(st.booleans())
    source = "i8" if narrow else dtype
    spelled = ", ".join(f"affine_map<({', '.join(maps[0])}) -> ({', '.join(exprs)})>" for exprs in maps)
    iterators = ", ".join('"reduction"' if part == "k" else '"parallel"' for part in parts)
    elements = [dtype, source, source, dtype]
    types = [
        f"tensor<{''.join(f'{size}x' for size in operand.shape)}{element}>"
        for operand, element in zip(operands, elements, strict=True)
    ]
    casts = "%p = arith.extsi %x : i8 to i32\n%q = arith.extsi %y : i8 to i32" if narrow else ""
    factors = "%p, %q" if narrow else "%x, %y"
    letter = "f" if "f" in dtype else "i"
    text = f"""
    func.func @f(%w: {types[0]}, %a: {types[1]}, %b: {types[2]}, %c: {types[3]}) -> {types[3]} {{
      %out = linalg.generic {{indexing_maps = [{spelled}], iterator_types = [{iterators}]}}
          ins(%w, %a, %b : {", ".join(types[:3])}) outs(%c : {types[3]}) {{
      ^bb0(%v: {dtype}, %x: {source}, %y: {source}, %z: {dtype}):
        {casts}
        %t = arith.mul{letter} {factors} : {dtype}
        %r = arith.add{letter} %z, %t : {dtype}
        linalg.yield %r : {dtype}
      }} -> {types[3]}
      func.return %out : {types[3]}
    }}"""
    return Case(text, tuple(operand.shape for operand in operands), " ".join(elements), draw(st.integers(0, 2**16)))


def _op_of(text: str) -> GenericOp:
    module = Parser(CONTEXT, text).parse_module()
    module.verify()
    return next(op for op in module.walk() if isinstance(op, GenericOp))


def _scalar(op: Any, a: Any, b: Any) -> Any:
    """What the ops of these bodies compute, said once more."""
    match op:
        case arith.AddfOp() | arith.AddiOp():
            return a + b
        case arith.SubfOp() | arith.SubiOp():
            return a - b
        case arith.MulfOp() | arith.MuliOp():
            return a * b
        case arith.MaximumfOp() if a == b == 0:
            return a + b  # +0 if one of them is
        case arith.MaximumfOp() | arith.MaxSIOp():
            return a if a > b else b
        case arith.MinSIOp():
            return a if a < b else b
        case _:
            raise NotImplementedError(op.name)


def walk_over_points(op: GenericOp, operands: list[NDArray[Any]]) -> NDArray[Any]:
    """The op as scalar loops."""
    out = operands[-1].copy()
    arrays = [*operands[:-1], out]
    maps = [attr.data for attr in op.indexing_maps]
    block = op.body.block
    for point in product(*(range(size) for size in operands[0].shape)):
        places = [index_map.eval(point, []) for index_map in maps]
        values: dict[SSAValue, Any] = {
            arg: array[place] for arg, array, place in zip(block.args, arrays, places, strict=True)
        }
        for inner in block.ops:
            match inner:
                case IndexOp():
                    values[inner.result] = np.int64(point[inner.dim.value.data])
                case arith.IndexCastOp():
                    values[inner.result] = values[inner.input]
                case arith.SIToFPOp() | arith.TruncIOp() | arith.ExtSIOp():
                    values[inner.result] = out.dtype.type(values[inner.input])
                case _ if inner is block.last_op:
                    out[places[-1]] = values[inner.operands[0]]
                case _:
                    values[inner.results[0]] = _scalar(inner, *(values[operand] for operand in inner.operands))
    return out


def _data(case: Case, *, integral: bool) -> list[NDArray[Any]]:
    rng = np.random.default_rng(case.seed)
    names = case.dtype.split(" ")
    names = names * (len(case.shapes) // len(names))
    return [_array(rng, shape, name, integral) for shape, name in zip(case.shapes, names, strict=True)]


def _array(rng: np.random.Generator, shape: tuple[int, ...], name: str, integral: bool) -> NDArray[Any]:
    dtype = DTYPES[name]
    if name.startswith("i"):
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)
    return (rng.integers(-3, 4, shape) if integral else rng.standard_normal(shape)).astype(dtype)


def _same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@examples(150)
@given(cases())
def test_in_loop_order_every_bit_is_that_of_scalar_loops(case: Case) -> None:
    op, operands = _op_of(case.text), _data(case, integral=False)
    with np.errstate(all="ignore"):
        expected = walk_over_points(op, operands)
    assert _same_bits(evaluate_generic(op, operands, ordered=True)[0], expected)


@examples(120)
@given(contractions())
def test_contractions_are_exact_on_integers_and_on_small_integral_floats(case: Case) -> None:
    op, operands = _op_of(case.text), _data(case, integral=True)
    with np.errstate(all="ignore"):
        expected = walk_over_points(op, operands)
    assert _same_bits(evaluate_generic(op, operands)[0], expected)


@examples(60)
@given(contractions())
def test_contractions_in_loop_order_round_as_scalar_loops_do(case: Case) -> None:
    op, operands = _op_of(case.text), _data(case, integral=False)
    with np.errstate(all="ignore"):
        expected = walk_over_points(op, operands)
    assert _same_bits(evaluate_generic(op, operands, ordered=True)[0], expected)


@examples(60)
@given(cases())
def test_operands_are_not_written(case: Case) -> None:
    op, operands = _op_of(case.text), _data(case, integral=False)
    before = [operand.copy() for operand in operands]
    evaluate_generic(op, operands)
    assert all(_same_bits(one, other) for one, other in zip(operands, before, strict=True))
