# SPDX-License-Identifier: Apache-2.0
"""Texts of the kernel language: a tree prints to a text that parses to it again, and no text ends in a traceback."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lowering.from_kernel.parser import SyntaxFault, parse_source
from penstock.lowering.from_kernel.printer import print_source
from penstock.lowering.from_kernel.syntax import (
    PRECEDENCE,
    Access,
    Assignment,
    Binary,
    Binding,
    Block,
    Call,
    CallStatement,
    Constant,
    Declaration,
    Declarator,
    Expression,
    Function,
    If,
    Kernel,
    Loop,
    LoopRange,
    Name,
    Number,
    Reducer,
    Slice,
    Source,
    Statement,
    Unary,
)

names = st.sampled_from(["x", "y", "row", "BM", "N", "inner", "f32", "format", "_a1"])
numbers = st.sampled_from(["0", "1", "64", "0.5", "1e-5", "2.5E+3"]).map(Number)
comments = st.lists(st.sampled_from(["# why", "#", "# a [ ( { b"]), max_size=2).map(tuple)
beside = st.sampled_from(["", "# beside"])


def _accesses(expressions: st.SearchStrategy[Expression]) -> st.SearchStrategy[Access]:
    maybe = st.none() | expressions
    slices = st.builds(Slice, maybe, maybe) | st.builds(Slice, maybe, st.none(), expressions)
    bindings = st.builds(Binding, names, expressions, expressions)
    indices = st.lists(expressions | slices | bindings, min_size=1, max_size=3).map(tuple)
    return st.builds(Access, names, indices, maybe)


def _expressions(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    arguments = st.lists(inner | st.builds(Binding, names, inner, inner), max_size=3).map(tuple)
    relations = ("==", "!=", "<", "<=", ">", ">=")
    others = [operator for operator in PRECEDENCE if operator not in relations]
    return (
        st.builds(Unary, st.sampled_from(["-", "not"]), inner)
        | st.builds(Binary, st.sampled_from(others), inner, inner)
        | st.builds(Binary, st.sampled_from(relations), inner, inner)
        | st.builds(Call, names, arguments)
        | _accesses(inner)
    )


expressions = st.recursive(numbers | names.map(Name), _expressions, max_leaves=8)
few_names = st.lists(names, min_size=1, max_size=3).map(tuple)
declarators = st.builds(Declarator, names, names, st.lists(expressions, max_size=3).map(tuple), scope=st.none() | names)
ranges = st.builds(LoopRange, names, expressions, expressions, st.none() | expressions)
simple = (
    st.builds(Declaration, declarators, st.none() | expressions, before=comments, beside=beside)
    | st.builds(
        Assignment,
        names.map(Name) | _accesses(expressions),
        st.sampled_from(["=", "+="]),
        expressions,
        before=comments,
        beside=beside,
    )
    | st.builds(CallStatement, st.builds(Call, names, st.lists(expressions, max_size=2).map(tuple)), before=comments)
)


def _blocks(statements: st.SearchStrategy[Statement]) -> st.SearchStrategy[Block]:
    return st.builds(Block, st.lists(statements, max_size=3).map(tuple), after=comments)


def _statements(inner: st.SearchStrategy[Statement]) -> st.SearchStrategy[Statement]:
    heads = st.lists(ranges, min_size=1, max_size=2).map(tuple)
    return st.builds(
        Loop, st.sampled_from(["for", "grid"]), heads, _blocks(inner), before=comments, beside=beside
    ) | st.builds(If, expressions, _blocks(inner), st.none() | _blocks(inner), before=comments, beside=beside)


kernels = st.builds(
    Kernel,
    names,
    st.lists(st.builds(Constant, names, st.none() | expressions), max_size=2).map(tuple),
    st.lists(declarators, max_size=6).map(tuple),
    st.lists(declarators, min_size=1, max_size=2).map(tuple),
    _blocks(st.recursive(simple, _statements, max_leaves=5)),
    before=comments,
)
definitions = (
    kernels
    | st.builds(Function, names, few_names, expressions, before=comments, beside=beside)
    | st.builds(Reducer, names, names, names, expressions, expressions, before=comments)
)
sources = st.builds(Source, st.lists(definitions, max_size=3).map(tuple), after=comments)


@given(sources)
def test_what_is_printed_parses_to_the_same_tree_with_the_same_comments(source: Source) -> None:
    text = print_source(source)
    parsed = parse_source(text)
    assert parsed == source
    assert print_source(parsed) == text
    assert sorted(re.findall("#.*", text)) == sorted(_comments(source))


def _comments(node: object) -> list[str]:
    """The comments of a tree, by its representation-free fields."""
    found: list[str] = []
    if isinstance(node, tuple):
        for each in node:  # pyright: ignore[reportUnknownVariableType]
            found += _comments(each)  # pyright: ignore[reportUnknownArgumentType]
    elif hasattr(node, "__dataclass_fields__"):
        for name in node.__dataclass_fields__:  # pyright: ignore
            value = getattr(node, name)  # pyright: ignore
            if name in ("before", "after"):
                found += value
            elif name == "beside":
                found += [value] if value else []
            elif name != "at":
                found += _comments(value)
    return found


TEXT = """\
# Softmax over the rows of a matrix.
function scaled(x, y) = x * y
reducer larger(a, b) from -inf = max(a, b)

kernel softmax[B = 64](f32 x[N, M], f32 scale) -> (f32 y[N, M]) {
    grid i in 0:N:B {
        neural f32 row[B, M] = load(x[i:+B, : else -inf])
        row = exp(row - max(row))  # in place
        total[r] = sum(j in 0:M, row[r, j])
        for n in 0:2 {
            row += scaled(row, scale)
        }
        if N % B == 0 and not B < 3 {
            y[i + r, j] = row[r, j] / total[r] ** 2
        } else {
            store(y[i:+B, :], -row)
        }
    }
}
"""
TOKENS = re.findall(r"\w+|\s+|[^\w\s]", TEXT)


def _mutant(rng: random.Random) -> str:
    """The text with some tokens gone, repeated, moved or replaced."""
    tokens = list(TOKENS)
    for _ in range(rng.randint(1, 4)):
        at, other = rng.randrange(len(tokens)), rng.choice(TOKENS)
        match rng.randrange(4):
            case 0:
                del tokens[at]
            case 1:
                tokens.insert(at, other)
            case 2:
                tokens[at] = other
            case _:
                tokens[at] = rng.choice(["@", "é", "\t", "\\", "0x", "1.", ":+", "**", "\0", '"', "in"])
    return "".join(tokens)


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_mutated_text_is_parsed_or_refused_at_a_place_in_it(count: int) -> None:
    rng = random.Random(0)
    refused = 0
    for _ in range(count):
        text = _mutant(rng)
        fault = _fault_of(text)
        if fault is None:
            printed = print_source(parse_source(text))
            assert print_source(parse_source(printed)) == printed
            continue
        refused += 1
        lines = text.split("\n")
        assert 1 <= fault.at.line <= len(lines)
        assert 1 <= fault.at.column <= len(lines[fault.at.line - 1]) + 1
        assert fault.message
    assert 0.3 * count < refused < count


def _fault_of(text: str) -> SyntaxFault | None:
    try:
        parse_source(text)
    except SyntaxFault as fault:
        return fault
    return None
