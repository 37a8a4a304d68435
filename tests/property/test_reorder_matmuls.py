# SPDX-License-Identifier: Apache-2.0
"""`reorder-matmuls` against all orders there are, and against NumPy in double precision."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples
from tests.support.tensors import tensor_type_of
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from penstock.dialects import graph
from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.graph import WeightAttr, tensor_of
from penstock.dialects.weights import Array
from penstock.passes.graph.reorder_matmuls import best_splits
from penstock.passes.graph.values import is_constant
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.pass_manager import read_pipeline, run_passes


def least(sizes: tuple[int, ...], known: tuple[bool, ...]) -> int:
    """The fewest multiplications over all ways to set parentheses, one after the other."""

    @cache
    def costs(i: int, j: int) -> frozenset[int]:
        if i == j:
            return frozenset([0])
        found: set[int] = set()
        for s in range(i, j):
            own = 0 if all(known[i : j + 1]) else sizes[i] * sizes[s + 1] * sizes[j + 1]
            found |= {left + right + own for left in costs(i, s) for right in costs(s + 1, j)}
        return frozenset(found)

    return min(costs(0, len(sizes) - 2))


SIZES = st.lists(st.integers(1, 9), min_size=4, max_size=8)


@examples(100)
@given(sizes=SIZES, data=st.data())
def test_no_order_is_cheaper_than_the_one_found(sizes: list[int], data: st.DataObject) -> None:
    known = data.draw(st.lists(st.booleans(), min_size=len(sizes) - 1, max_size=len(sizes) - 1))
    cost, _ = best_splits(sizes, known)
    assert cost == least(tuple(sizes), tuple(known))


def multiplications(module: ModuleOp) -> int:
    """Those of all products that do not consist of constants."""
    total = 0
    for op in module.walk():
        if isinstance(op, graph.MatmulOp | graph.GemmOp) and not is_constant(op.result):
            total += prod(tensor_of(op.result).get_shape()) * tensor_of(op.a).get_shape()[-1]
    return total


def chained(data: st.DataObject, values: list[SSAValue], block: Block) -> SSAValue:
    """The product of `values` in a random order."""
    if len(values) == 1:
        return values[0]
    cut = data.draw(st.integers(1, len(values) - 1))
    left, right = chained(data, values[:cut], block), chained(data, values[cut:], block)
    ranks = {tensor_of(left).get_num_dims(), tensor_of(right).get_num_dims()}
    gemm = ranks == {2} and data.draw(st.booleans())
    op = graph.GemmOp(left, right) if gemm else graph.MatmulOp(left, right)
    block.add_op(op)
    return op.result


@examples(60)
@given(sizes=SIZES, batch=st.sampled_from([(), (2,), (2, 1)]), data=st.data())
def test_the_product_is_the_same_with_the_fewest_multiplications(
    sizes: list[int], batch: tuple[int, ...], data: st.DataObject
) -> None:
    shapes: list[tuple[int, ...]] = [(*batch, *pair) for pair in pairwise(sizes)]
    if not batch and data.draw(st.booleans()):
        shapes[0] = shapes[0][1:]
        sizes = [1, *sizes[1:]]
    if not batch and data.draw(st.booleans()):
        shapes[-1] = shapes[-1][:-1]
        sizes = [*sizes[:-1], 1]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    ctx: PenstockContext = make_context()
    block, inputs, values, known = Block(), list[Array](), list[SSAValue](), list[bool]()
    for number, array in enumerate(arrays):
        known.append(data.draw(st.integers(0, 2)) == 0)
        if known[-1]:
            weight = WeightAttr(ctx.weights.add(f"w{number}", array))
            op = graph.ConstantOp(weight, tensor_type_of(array))
            block.add_op(op)
            values.append(op.result)
        else:
            values.append(block.insert_arg(tensor_type_of(array), len(block.args)))
            inputs.append(array)
    result = chained(data, values, block)
    block.add_op(ReturnOp(result))
    module = ModuleOp([FuncOp("main", ([arg.type for arg in block.args], [result.type]), Region(block))])
    before = multiplications(module)
    run_passes(ctx, module, read_pipeline("reorder-matmuls"))
    after = multiplications(module)
    assert after == least(tuple(sizes), tuple(known)) * prod(batch)
    assert after <= before
    (found,) = run_graph(module, inputs, ctx.weights)
    exact, bound = arrays[0].astype(np.float64), np.abs(arrays[0]).astype(np.float64)
    for array in arrays[1:]:
        exact, bound = np.matmul(exact, array.astype(np.float64)), np.matmul(bound, np.abs(array))
    assert np.all(np.abs(found - exact) <= sum(sizes) * np.finfo(np.float32).eps * bound)
    text = str(module)
    run_passes(ctx, module, read_pipeline("reorder-matmuls"))
    assert str(module) == text


def after(text: str) -> str:
    from penstock.lowering.from_text import SourceText, parse_text

    ctx = make_context()
    module = parse_text(ctx, SourceText("test.mlir", text)).module
    run_passes(ctx, module, read_pipeline("reorder-matmuls"))
    return str(module)


A, B, C = "tensor<64x4xf32>", "tensor<4x64xf32>", "tensor<64x1xf32>"


def program(middle: str, type: str = C, a: str = A) -> str:
    return (
        f"""func.func @main(%a: {a}, %b: {B}, %c: {C}, %d: {type}) -> {type} {{ {middle} func.return %y : {type} }}"""
    )


WIDE = f"%ab = graph.matmul %a, %b : ({A}, {B}) -> tensor<64x64xf32>"
LAST = f"%y = graph.matmul %ab, %c : (tensor<64x64xf32>, {C}) -> {C}"


@pytest.mark.parametrize(
    ("middle", "a"),
    [
        (f"{WIDE} {LAST.replace('%y', '%z')} %r = graph.relu %ab : tensor<64x64xf32>"
         f" %y = graph.matmul %r, %z : (tensor<64x64xf32>, {C}) -> {C}", A),
        (f"%ab = graph.gemm %a, %b alpha 2.0 : ({A}, {B}) -> tensor<64x64xf32> {LAST}", A),
        (f"%ab = graph.gemm %b, %a trans_a true trans_b true : ({B}, {A}) -> tensor<64x64xf32> {LAST}", A),
        (f"%ab = graph.matmul %a, %b accumulate f64 : ({A}, {B}) -> tensor<64x64xf64>"
         f" %e = graph.cast %ab : tensor<64x64xf64> -> tensor<64x64xf32> {LAST.replace('%ab', '%e')}", A),
    ],
    ids=["used twice", "scaled", "transposed", "accumulator"],
)  # fmt: skip
def test_what_is_more_than_a_product_for_one_user_is_a_factor(middle: str, a: str) -> None:
    text = program(middle, a=a)
    assert after(text) == str(_parsed(text))


def _parsed(text: str) -> ModuleOp:
    from penstock.lowering.from_text import SourceText, parse_text

    return parse_text(make_context(), SourceText("test.mlir", text)).module


def test_matrices_of_different_batches_stay_in_their_order() -> None:
    text = """
    func.func @main(%a: tensor<64x4xf32>, %b: tensor<2x4x64xf32>, %c: tensor<2x64x1xf32>) -> tensor<2x64x1xf32> {
      %ab = graph.matmul %a, %b : (tensor<64x4xf32>, tensor<2x4x64xf32>) -> tensor<2x64x64xf32>
      %y = graph.matmul %ab, %c : (tensor<2x64x64xf32>, tensor<2x64x1xf32>) -> tensor<2x64x1xf32>
      func.return %y : tensor<2x64x1xf32>
    }"""
    assert after(text) == str(_parsed(text))


def test_the_last_gemm_keeps_what_it_adds() -> None:
    text = program(f"{WIDE} %y = graph.gemm %ab, %c, %d alpha 2.0 beta 3.0 : (tensor<64x64xf32>, {C}, {C}) -> {C}")
    left = after(text)
    assert "graph.gemm %a, %0, %d alpha 2.0 beta 3.0" in left
    assert "graph.matmul %b, %c" in left


def test_a_column_on_the_left_is_no_part_of_the_chain() -> None:
    text = """func.func @main(%a: tensor<4x64xf32>, %v: tensor<64xf32>, %b: tensor<4x1xf32>) -> tensor<1xf32> {
      %av = graph.matmul %a, %v : (tensor<4x64xf32>, tensor<64xf32>) -> tensor<4xf32>
      %y = graph.matmul %av, %b : (tensor<4xf32>, tensor<4x1xf32>) -> tensor<1xf32>
      func.return %y : tensor<1xf32>
    }"""
    assert after(text) == str(_parsed(text))


def test_equally_cheap_orders_begin_on_the_left() -> None:
    _, splits = best_splits([4, 4, 4, 4, 4], [False] * 4)
    assert splits[0, 3] == 2
    assert splits[0, 2] == 1
