# SPDX-License-Identifier: Apache-2.0
"""Index arithmetic, with enumeration of all values of the loop counters as the witness."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import gcd, trunc

import numpy as np
import pytest
from sampling import sweep
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.passes.analysis.commands.loop_domain import evaluate
from penstock.passes.analysis.index import AffineIndex, apply
from penstock.passes.index_builder import erase_unused

CONTEXT = make_context()
Bounds = tuple[int, int, int]
LOOPS: tuple[Bounds, ...] = ((0, 12, 1), (0, 32, 8), (3, 20, 5), (-6, 7, 1), (4, 8, 1), (-9, -1, 2), (5, 6, 1))
TWO_LOOPS = pytest.mark.parametrize(
    ("first", "second"),
    sweep(product(LOOPS, LOOPS), lambda pair: (LOOPS.index(pair[0]) + LOOPS.index(pair[1])) % 3 == 0),
)

BINARY: dict[str, Callable[[int, int], int]] = {
    "addi": lambda a, b: a + b,
    "subi": lambda a, b: a - b,
    "muli": lambda a, b: a * b,
    "minsi": min,
    "maxsi": max,
    "minui": min,
    "maxui": max,
    "divui": lambda a, b: a // b,
    "remui": lambda a, b: a % b,
    "ceildivui": lambda a, b: -(-a // b),
    "divsi": lambda a, b: trunc(a / b),
    "remsi": lambda a, b: a - b * trunc(a / b),
    "floordivsi": lambda a, b: a // b,
    "ceildivsi": lambda a, b: -(-a // b),
}
DIVISIONS = {name for name in BINARY if "div" in name or "rem" in name}
UNSIGNED = {name for name in BINARY if name.endswith("ui")}

AFFINE: dict[str, Callable[[int, int], int]] = {
    "apply affine_map<(d)[s] -> (d * 3 + s - 2)>": lambda i, j: i * 3 + j - 2,
    "apply affine_map<(d)[s] -> (d floordiv 4 + s mod 3)>": lambda i, j: i // 4 + j % 3,
    "apply affine_map<(d)[s] -> ((d * 4 + s) floordiv 4)>": lambda i, j: (i * 4 + j) // 4,
    "apply affine_map<(d)[s] -> ((d * 8 + s * 4) ceildiv 4 - 3)>": lambda i, j: 2 * i + j - 3,
    "apply affine_map<(d)[s] -> ((d * 8 + s) mod 8)>": lambda i, j: j % 8,
    "min affine_map<(d)[s] -> (d * 2, 8 - s, 7)>": lambda i, j: min(i * 2, 8 - j, 7),
    "min affine_map<(d)[s] -> (d + s, d + 3)>": lambda i, j: i + min(j, 3),
    "min affine_map<(d)[s] -> (5, 7, d + s)>": lambda i, j: min(5, i + j),
}


def nest(body: str, first: Bounds, second: Bounds) -> tuple[SSAValue, list[scf.ForOp]]:
    """The value %x of a body in two loops with counters %i and %j, and the loops."""
    constants = "\n".join(
        f"%{name}{part} = arith.constant {number} : index"
        for name, bounds in (("a", first), ("b", second))
        for part, number in zip(("l", "u", "s"), bounds, strict=True)
    )
    text = f"""func.func @f(%unknown: index) {{
      {constants}
      scf.for %i = %al to %au step %as {{
        scf.for %j = %bl to %bu step %bs {{
          {body}
        }}
      }}
      func.return
    }}"""
    module = Parser(CONTEXT, text).parse_module()
    (value,) = [result for op in module.walk() for result in op.results if result.name_hint == "x"]
    return value, [op for op in module.walk() if isinstance(op, scf.ForOp)]


def check(body: str, expected: Callable[[int, int], int], first: Bounds, second: Bounds) -> AffineIndex:
    """What is known of %x holds for every iteration, and its value is computed right; returned is what is known."""
    value, loops = nest(body, first, second)
    index = AffineIndex.of(value)
    pairs = list(product(range(*first), range(*second)))
    values = [expected(i, j) for i, j in pairs]
    lo, hi = index.range
    assert lo is None or lo <= min(values), (index.range, values)
    assert hi is None or max(values) <= hi, (index.range, values)
    assert all(number == 0 if index.divisor == 0 else number % index.divisor == 0 for number in values)
    counters: list[SSAValue] = [loop.body.block.args[0] for loop in loops]
    assert index.rest is None
    if set(index.terms) <= set(counters):
        for (i, j), number in zip(pairs, values, strict=True):
            found = dict(zip(counters, (i, j), strict=True))
            assert number == index.base + sum(c * found[symbol] for symbol, c in index.terms.items())
    arrays = {counter: np.array([pair[n] for pair in pairs]) for n, counter in enumerate(counters)}
    assert np.broadcast_to(evaluate(value, arrays), len(pairs)).tolist() == values
    return index


@pytest.mark.parametrize("first", LOOPS)
@pytest.mark.parametrize("name", BINARY)
def test_an_operation_with_a_constant(name: str, first: Bounds) -> None:
    if name in UNSIGNED and first[0] < 0:
        pytest.skip("unsigned ops of negative numbers")
    for constant in (1, 2, 3, 4, 7, 8, 16):
        body = f"%c = arith.constant {constant} : index\n%x = arith.{name} %i, %c : index"
        index = check(body, lambda i, _, c=constant: BINARY[name](i, c), first, (0, 1, 1))
        values = [BINARY[name](i, constant) for i in range(*first)]
        assert index.bounds is not None
        if first[2] == 1:
            least, largest = index.bounds
            assert (least, largest) == (min(values), max(values)) or "rem" in name
            assert max(values) - min(values) <= largest - least < max(constant, largest - least + 1)


@TWO_LOOPS
@pytest.mark.parametrize("name", [name for name in BINARY if name not in DIVISIONS])
def test_an_operation_on_two_counters(name: str, first: Bounds, second: Bounds) -> None:
    if name in UNSIGNED and min(first[0], second[0]) < 0:
        pytest.skip("unsigned ops of negative numbers")
    index = check(f"%x = arith.{name} %i, %j : index", BINARY[name], first, second)
    values = [BINARY[name](i, j) for i, j in product(range(*first), range(*second))]
    assert index.bounds == (min(values), max(values))


@TWO_LOOPS
@pytest.mark.parametrize("text", AFFINE)
def test_affine_maps(text: str, first: Bounds, second: Bounds) -> None:
    index = check(f"%x = affine.{text} (%i)[%j]", AFFINE[text], first, second)
    assert index.bounds is not None


@pytest.mark.parametrize("name", sorted(DIVISIONS))
def test_a_sum_is_divided_term_by_term(name: str) -> None:
    """What the divisor divides needs no symbol: (12 i + j) / 12 is i for j below 12."""
    body = f"""%c = arith.constant 12 : index
    %m = arith.muli %i, %c : index
    %s = arith.addi %m, %j : index
    %x = arith.{name} %s, %c : index"""
    index = check(body, lambda i, j: BINARY[name](12 * i + j, 12), (0, 5, 1), (0, 12, 1))
    if not name.startswith("ceil"):
        assert [(index.base, list(index.terms.values()))] == [(0, [1])]
    else:
        assert index.bounds == (0, 5)


def test_a_remainder_of_steps_is_known() -> None:
    """Counters 3, 11, 19 all leave 3 of 8."""
    body = "%c = arith.constant 8 : index\n%y = arith.remui %i, %c : index\n%x = arith.remsi %y, %c : index"
    assert check(body, lambda i, j: i % 8, (3, 27, 8), (0, 1, 1)).range in ((3, 3), (0, 7))


def test_nested_operations() -> None:
    body = """%two = arith.constant 2 : index
    %five = arith.constant 5 : index
    %r = arith.remui %i, %five : index
    %q = arith.divui %r, %two : index
    %s = arith.muli %q, %j : index
    %m = arith.minsi %s, %five : index
    %p = arith.addi %m, %i : index
    %x = arith.subi %p, %i : index"""
    index = check(body, lambda i, j: min(i % 5 // 2 * j, 5), (0, 12, 1), (0, 32, 8))
    assert index.bounds == (0, 5)


def test_deep_chains_are_read_once() -> None:
    lines = ["%c = arith.constant 4 : index", "%v0 = arith.remui %i, %c : index"]
    lines += [f"%v{n + 1} = arith.addi %v{n}, %v{n} : index" for n in range(40)]
    value, _ = nest("\n".join([*lines, "%x = arith.remui %v40, %c : index"]), (0, 12, 1), (0, 1, 1))
    assert AffineIndex.of(value).constant == 0


def test_casts_keep_what_fits() -> None:
    for width, known in ((32, (0, 11)), (4, None)):
        body = f"%n = arith.index_cast %i : index to i{width}\n%x = arith.index_cast %n : i{width} to index"
        assert AffineIndex.of(nest(body, (0, 12, 1), (0, 1, 1))[0]).bounds == known


def test_half_a_range_is_kept() -> None:
    body = "%c = arith.constant 12 : index\n%x = arith.minsi %unknown, %c : index"
    assert AffineIndex.of(nest(body, (0, 1, 1), (0, 1, 1))[0]).range == (None, 12)


def test_a_loop_inside_bounds_of_another() -> None:
    """A triangle: the inner loop ends at the counter of the outer one."""
    text = """func.func @f() {
      %0 = arith.constant 0 : index
      %1 = arith.constant 1 : index
      %9 = arith.constant 9 : index
      scf.for %i = %1 to %9 step %1 {
        scf.for %j = %0 to %i step %1 { %x = arith.addi %j, %1 : index }
      }
      func.return
    }"""
    module = Parser(CONTEXT, text).parse_module()
    (op,) = [op for op in module.walk() if isinstance(op, arith.AddiOp)]
    assert AffineIndex.of(op.result).bounds == (1, 8)


def test_what_is_no_index_arithmetic_is_a_symbol() -> None:
    body = "%b = arith.constant true\n%x = arith.select %b, %i, %j : index"
    value, _ = nest(body, (0, 12, 1), (0, 1, 1))
    assert AffineIndex.of(value) == AffineIndex(0, {value: 1})
    assert isinstance(value.owner, Operation)
    assert gcd(AffineIndex.of(value).divisor, 6) == 1


@pytest.mark.parametrize("name", sorted(UNSIGNED))
def test_unsigned_operations_see_the_bits_of_negative_numbers(name: str) -> None:
    value, _ = nest(f"%x = arith.{name} %i, %j : index", (0, 1, 1), (0, 1, 1))
    op = value.owner
    assert isinstance(op, Operation)
    for left, right in ((-7, 3), (7, -3), (-7, -3), (7, 3)):
        bits = BINARY[name](left % 2**64, right % 2**64)
        expected = bits - 2**64 if bits >= 2**63 else bits
        assert apply(op, [left, right]) == expected
        assert apply(op, [np.array([left, 5]), np.array([right, 5])])[0] == expected
        assert apply(op, [np.asarray(left), np.array([right, 5])])[0] == expected
        assert apply(op, [np.array([left, 5]), np.asarray(right)])[0] == expected


def test_nothing_is_known_of_an_unsigned_maximum_with_what_may_be_negative() -> None:
    # As an unsigned number a negative one is the larger.
    value, _ = nest("%x = arith.maxui %i, %unknown : index", (0, 4, 1), (0, 1, 1))
    assert AffineIndex.of(value).range == (None, None)


def test_what_only_an_unused_index_used_goes_with_it_also_where_it_is_used_twice() -> None:
    block = Block(arg_types=[IndexType()])
    block.add_ops([two := arith.MuliOp(block.args[0], block.args[0]), four := arith.AddiOp(two, two)])
    erase_unused(two.result)
    assert [*block.ops] == [two, four]
    erase_unused(four.result)
    assert not [*block.ops]
