# SPDX-License-Identifier: Apache-2.0
"""`graph.attention`: its types, what it computes at every level, and that its scores are never stored as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from programs import parsed_in_context
from xdsl.dialects.builtin import MemRefType, ModuleOp, f32, f64
from xdsl.ir import Attribute
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.graph import AttentionOp
from penstock.dialects.graph.base import tensor_type
from penstock.dialects.mem import BufferOp
from penstock.lowering.to_text import module_text
from penstock.passes.planning.attention_blocks import (
    BlockScope,
    Widths,
    blocks_in,
    bytes_held,
    even_blocks,
)
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter.graph import evaluate_op
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline
from penstock.runtime.signature import signature_of

Array = NDArray[Any]


def type_text(array: Array) -> str:
    element = {"float32": "f32", "float16": "f16", "float64": "f64"}[str(array.dtype)]
    return f"tensor<{'x'.join(map(str, array.shape))}x{element}>"


@dataclass
class Case:
    """An attention on arrays; `properties` are as the text spells them."""

    arrays: tuple[Array, ...]
    result: Array
    properties: str = ""

    @property
    def text(self) -> str:
        names = ["%q", "%k", "%v", "%mask"][: len(self.arrays)]
        types = [type_text(array) for array in self.arrays]
        arguments = ", ".join(f"{name}: {type}" for name, type in zip(names, types, strict=True))
        result = type_text(self.result)
        return (
            f"func.func @main({arguments}) -> {result} {{\n"
            f"  %y = graph.attention {', '.join(names)} {self.properties} : ({', '.join(types)}) -> {result}\n"
            f"  func.return %y : {result}\n}}\n"
        )


def softmax(scores: Array) -> Array:
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return powers / powers.sum(axis=-1, keepdims=True)


def attend(q: Array, k: Array, v: Array, mask: Array | float = 0.0, scale: float = 1.0) -> Array:
    """The textbook's formula, in f64."""
    wide = [each.astype(np.float64) for each in (q, k, v)]
    return softmax(wide[0] @ np.swapaxes(wide[1], -1, -2) * scale + mask) @ wide[2]


def numbers(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def case(
    queries: int,
    keys: int,
    properties: str = "",
    *,
    mask: Array | None = None,
    scale: float = 1.0,
) -> Case:
    q, k, v = (
        numbers(2, queries, 8),
        numbers(2, keys, 8, seed=1),
        numbers(2, keys, 5, seed=2),
    )
    arrays = (q, k, v) if mask is None else (q, k, v, mask)
    result = attend(q, k, v, 0 if mask is None else mask, scale).astype(np.float32)
    spelled = f"scale {scale} {properties}" if scale != 1 else properties
    return Case(arrays, result, spelled)


def lowered(text: str, until: str = "loop") -> tuple[PenstockContext, ModuleOp]:
    ctx, module = parsed_in_context(text)
    run_passes(ctx, module, read_pipeline(",".join(pipeline(until, None))))
    return ctx, module


def run(text: str, arrays: tuple[Array, ...], backend: Any = "native") -> Array:
    ctx, module = parsed_in_context(text)
    signature = signature_of(module)
    run_passes(ctx, module, read_pipeline(",".join(pipeline("loop", None))))
    (result,) = Engine(module, ctx, signature, backend).run(arrays)
    return result


def masked(queries: int, keys: int) -> Array:
    """A mask with infinities: whole blocks at the beginning, at the end, single keys, and everything in row 3."""
    mask = np.where(np.random.default_rng(5).random((queries, keys)) < 0.4, -np.inf, 0).astype(np.float32)
    mask[0, : keys // 2], mask[1, keys // 2 :], mask[:, keys // 3] = (
        -np.inf,
        -np.inf,
        1.5,
    )
    mask[3, :] = -np.inf
    return mask


CASES = {
    "one block": case(5, 7),
    "blocks that divide": case(128, 192),
    "blocks that divide neither": case(100, 75, "blocks [32, 16]"),
    "a block for each query and key": case(3, 4, "blocks [1, 1]"),
    "one query": case(1, 70),
    "one key": case(70, 1),
    "a prime of each": case(97, 131),
    "a scale": case(33, 65, scale=0.35),
    "infinite masks": case(100, 75, "blocks [32, 16]", mask=masked(100, 75)),
    "a mask of keys": case(20, 70, mask=numbers(1, 70)),
    "a mask of queries": case(70, 70, mask=numbers(70, 1), scale=0.25),
    "a mask of each batch": case(9, 70, mask=numbers(2, 9, 70)),
    "a mask of the lowest number": case(9, 70, mask=np.full((9, 70), np.finfo(np.float32).min, np.float32)),
    "large scores": case(65, 65, scale=300.0),
}


@pytest.mark.parametrize("name", CASES)
def test_blocks_compute_the_textbook_s_formula(name: str) -> None:
    chosen = CASES[name]
    result = run(chosen.text, chosen.arrays, "interpreter")
    np.testing.assert_allclose(result, chosen.result, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    "name",
    ["blocks that divide", "a prime of each", "infinite masks", "a mask of queries"],
)
def test_blocks_compute_the_textbook_s_formula_in_c(name: str) -> None:
    chosen = CASES[name]
    np.testing.assert_allclose(run(chosen.text, chosen.arrays), chosen.result, rtol=2e-4, atol=2e-5)


def test_the_graph_interpreter_computes_the_textbook_s_formula() -> None:
    for chosen in CASES.values():
        _, module = parsed_in_context(chosen.text)
        op = next(op for op in module.walk() if isinstance(op, AttentionOp))
        (result,) = evaluate_op(op, list(chosen.arrays), make_context().weights)
        np.testing.assert_allclose(result, chosen.result, rtol=2e-4, atol=2e-5)


def test_a_row_that_is_masked_as_a_whole_is_no_number_or_zero() -> None:
    chosen = CASES["infinite masks"]
    assert np.isnan(run(chosen.text, chosen.arrays)[:, 3]).all()
    assert not np.isnan(np.delete(run(chosen.text, chosen.arrays), 3, axis=1)).any()
    zero = Case(chosen.arrays, chosen.result, "zero_masked true blocks [32, 16]")
    result = run(zero.text, zero.arrays)
    assert (result[:, 3] == 0).all()
    np.testing.assert_allclose(np.delete(result, 3, 1), np.delete(chosen.result, 3, 1), rtol=2e-4, atol=2e-5)


def test_a_score_that_is_no_number_spoils_its_row_only() -> None:
    chosen = case(40, 70, "blocks [16, 16]")
    chosen.arrays[0][0, 5, 2] = np.nan
    result = run(chosen.text, chosen.arrays)
    assert np.isnan(result[0, 5]).all()
    assert np.isnan(result).sum() == result.shape[-1]


def test_operands_and_result_may_be_stored_in_any_order() -> None:
    q, k, v = (
        numbers(2, 30, 3, 8),
        numbers(2, 8, 3, 50, seed=1),
        numbers(50, 5, 2, 3, seed=2),
    )
    logical = q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1), v.transpose(2, 3, 0, 1)
    expected = attend(*logical).transpose(3, 0, 2, 1).astype(np.float32)
    chosen = Case(
        (q, k, v),
        expected,
        "q_perm [0, 2, 1, 3] k_perm [0, 2, 3, 1] v_perm [2, 3, 0, 1] result_perm [3, 0, 2, 1] blocks [16, 16]",
    )
    np.testing.assert_allclose(run(chosen.text, chosen.arrays), expected, rtol=2e-4, atol=2e-5)
    queries_innermost = Case(
        (np.ascontiguousarray(q.transpose(0, 2, 3, 1)), k, v),
        attend(*logical).astype(np.float32),
        "scale 1.0 q_perm [0, 1, 3, 2] k_perm [0, 2, 3, 1] v_perm [2, 3, 0, 1]",
    )
    result = run(queries_innermost.text, queries_innermost.arrays)
    np.testing.assert_allclose(result, queries_innermost.result, rtol=2e-4, atol=2e-5)


def test_matrices_without_a_batch_are_multiplied_too() -> None:
    q, k, v = numbers(70, 8), numbers(90, 8, seed=1), numbers(90, 5, seed=2)
    chosen = Case((q, k, v), attend(q, k, v).astype(np.float32))
    np.testing.assert_allclose(run(chosen.text, chosen.arrays), chosen.result, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("dtype", "properties", "tolerance"),
    [(np.float16, "accumulate f32", 2e-3), (np.float64, "", 1e-12)],
)
def test_other_floats_are_summed_in_their_accumulator(dtype: Any, properties: str, tolerance: float) -> None:
    q, k, v = (numbers(1, 90, 8, seed=seed, dtype=dtype) for seed in range(3))
    chosen = Case((q, k, v), attend(q, k, v).astype(dtype), properties)
    result = run(chosen.text, chosen.arrays)
    assert result.dtype == dtype
    np.testing.assert_allclose(result, chosen.result, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(
        run(chosen.text, chosen.arrays, "interpreter"),
        chosen.result,
        rtol=tolerance,
        atol=tolerance,
    )


def largest_memref(module: ModuleOp, inside: str) -> int:
    """The elements of the largest buffer that a kernel or @main allocates."""
    sizes = [
        prod(result.type.get_shape())
        for op in module.walk()
        for result in op.results
        if op.name == inside and isa(result.type, MemRefType[Attribute])
    ]
    return max(sizes, default=0)


def test_no_buffer_holds_all_scores() -> None:
    length = 320
    q = numbers(1, 4, length, 16)
    chosen = Case((q, q, q), q)
    _, module = lowered(chosen.text)
    assert 0 < largest_memref(module, "mem.buffer") <= 64 * 64
    assert f"{length}x{length}" not in module_text(make_context(), module)


def test_the_arena_does_not_grow_with_the_sequence() -> None:
    peaks: list[int] = []
    for length in (256, 1024):
        q = np.zeros((1, 2, length, 64), np.float32)
        _, module = lowered(Case((q, q, q), q).text)
        peaks.append(max(_ends(module)))
    assert peaks[0] == peaks[1] <= 64 * 1024


def _ends(module: ModuleOp) -> list[int]:
    """Where the buffers of the arena end, in bytes."""
    ends = [0]
    for op in module.walk():
        if isinstance(op, BufferOp):
            assert op.offset is not None
            type = op.memref.type
            assert isa(type, MemRefType[Attribute])
            ends.append(op.offset.value.data + 4 * prod(type.get_shape()))
    return ends


def test_running_values_are_updated_in_place() -> None:
    q = numbers(1, 256, 16)
    _, module = lowered(Case((q, q, q), q).text)
    assert not [op for op in module.walk() if op.name == "mem.copy"]


WRONG: dict[str, tuple[tuple[tuple[int, ...], ...], tuple[int, ...] | None]] = {
    "operands of one rank": (((2, 4, 8), (4, 8), (2, 4, 8)), None),
    "have the batch": (((2, 4, 8), (3, 4, 8), (2, 4, 8)), None),
    "queries have 8 elements, keys 7": (((2, 4, 8), (2, 4, 7), (2, 4, 8)), None),
    "4 keys and 5 values": (((2, 4, 8), (2, 4, 8), (2, 5, 8)), None),
    "does not broadcast": (((2, 4, 8), (2, 6, 8), (2, 6, 8)), (4, 5)),
    "needs matrices": (((4,), (4,), (4,)), None),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_shapes_are_refused(message: str) -> None:
    shapes, mask = WRONG[message]
    q, k, v = (tensor_type(f32, shape) for shape in shapes)
    with pytest.raises(VerifyException, match=message):
        AttentionOp.infer(q, k, v, mask=None if mask is None else tensor_type(f32, mask))


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ("q_perm [0, 1, 1]", "no permutation"),
        ("blocks [4]", "a number of queries and one of keys"),
        ("blocks [0, 4]", "blocks"),
    ],
)
def test_wrong_properties_are_refused(properties: str, message: str) -> None:
    chosen = case(8, 8, properties)
    with pytest.raises(Exception, match=message):
        parsed_in_context(chosen.text)[1].verify()


def test_the_text_is_a_fixed_point() -> None:
    q = numbers(2, 8, 8)
    chosen = Case((q, q, q), q, "scale 0.5 result_perm [0, 2, 1] zero_masked true blocks [4, 8]")
    ctx, module = parsed_in_context(chosen.text)
    module.verify()
    once = module_text(ctx, module)
    assert chosen.properties in once
    assert module_text(*parsed_in_context(once)) == once


# blocks


@pytest.mark.parametrize("extent", [1, 2, 7, 63, 64, 65, 97, 100, 128, 1000, 1031])
def test_blocks_are_even(extent: int) -> None:
    size = even_blocks(extent, 64)
    assert 1 <= size <= 64
    assert size == extent or size > 32
    assert extent % size == 0 or size % 8 == 0


def test_the_largest_blocks_that_fit_are_chosen() -> None:
    widths = Widths(64, 64, 2, 4)
    choices = (256, 128, 64, 32)
    small, large = (blocks_in(1024, 1024, widths, BlockScope(size, 128), choices) for size in (1 << 18, 1 << 21))
    assert small is not None
    assert large is not None
    assert large == (256, 256)
    assert small < large
    assert bytes_held(*small, widths, 128) <= 1 << 18
    assert blocks_in(1024, 1024, widths, BlockScope(1 << 12, 128), choices) is None


def test_element_types_must_agree() -> None:
    q, k = tensor_type(f32, (2, 4, 8)), tensor_type(f64, (2, 4, 8))
    with pytest.raises(VerifyException, match="one element type"):
        AttentionOp.infer(q, q, k)
