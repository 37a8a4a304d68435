# SPDX-License-Identifier: Apache-2.0
"""Random models with an open first dimension: one program computes, at every size up to the bound, what it should."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_node import onnxruntime_of
from onnx import ModelProto
from sampling import examples, sweep

import penstock
from penstock.dialects.diagnostics import UserError
from penstock.dialects.graph.dims import AtMost
from penstock.runtime.compiler import load_input
from penstock.runtime.engine import Engine, compile_program
from penstock.tools.fuzz.bounded_models import OTHER, SYMBOL, random_bounded_model

BOUND = 6


def compiled(model: ModelProto, backend: str) -> Engine:
    program = load_input(model, dims={SYMBOL: AtMost(BOUND)})
    engine = compile_program(program, until="loop", backend="native" if backend == "native" else "interpreter")
    assert isinstance(engine, Engine)
    return engine


def check(seed: int, backend: str) -> None:
    model = random_bounded_model(seed)
    check_engine(compiled(model, backend), model, seed)


def check_doubtful(seed: int, backend: str) -> bool:
    """Whether it is not refused."""
    model = random_bounded_model(seed, doubtful=True)
    try:
        engine = compiled(model, backend)
    except UserError as refusal:
        if refusal.loc is None:
            raise
        return False
    check_engine(engine, model, seed)
    return True


def check_engine(engine: Engine, model: ModelProto, seed: int) -> None:
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim][1:]
    for size in range(1, BOUND + 1):
        x = np.random.default_rng(seed).integers(-3, 4, [size, *shape]).astype(np.float32)
        (found,) = engine(x)
        (expected,) = onnxruntime_of(model, {"x": x})
        assert found.shape == expected.shape, f"seed {seed}, size {size}"
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        np.testing.assert_allclose(found, expected, 1e-4, 1e-4 * scale, err_msg=f"seed {seed}, size {size}")


def check_several(seed: int, backend: str) -> bool:
    """Whether a model of two open sizes is not refused; it is then right at all of them."""
    model = random_bounded_model(seed, several=True)
    dims = {SYMBOL: AtMost(BOUND), OTHER: AtMost(BOUND)}
    try:
        engine = compile_program(load_input(model, dims=dims), until="loop", backend=backend)  # pyright: ignore[reportArgumentType]
    except UserError as refusal:
        if refusal.loc is None:
            raise
        return False
    assert isinstance(engine, Engine)
    rest = [[dim.dim_value for dim in each.type.tensor_type.shape.dim][1:] for each in model.graph.input]
    rng = np.random.default_rng(seed)
    for sizes in ((1, 1), (1, BOUND), (BOUND, 1), (2, 3), (5, 4), (BOUND, BOUND)):
        x, z = (rng.integers(-2, 3, [size, *each]).astype(np.float32) for size, each in zip(sizes, rest, strict=True))
        (found,) = engine(x, z)
        (expected,) = onnxruntime_of(model, {"x": x, "z": z})
        assert found.shape == expected.shape, f"seed {seed}, sizes {sizes}"
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        np.testing.assert_allclose(found, expected, 1e-4, 1e-4 * scale, err_msg=f"seed {seed}, sizes {sizes}")
    return True


@pytest.mark.parametrize("seed", sweep(range(60), {0, 3}))
def test_models_of_several_open_sizes_are_refused_or_right_at_all_of_them(seed: int) -> None:
    taken = check_several(seed, "native" if seed % 10 == 0 else "interpreter")
    assert taken or seed not in (0, 3)


@examples(48)
@given(st.integers(0, 1 << 20))
def test_the_interpreter_agrees_with_onnxruntime(seed: int) -> None:
    check(seed, "interpreter")


@examples(16)
@given(st.integers(0, 1 << 20))
def test_c_agrees_with_onnxruntime(seed: int) -> None:
    check(seed, "native")


@examples(48)
@given(st.integers(0, 1 << 20))
def test_what_divides_or_cuts_a_size_is_refused_or_right_at_every_size(seed: int) -> None:
    check_doubtful(seed, "interpreter")


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_program_that_is_bound_at_the_size(seed: int) -> None:
    model = random_bounded_model(seed)
    engine = penstock.compile(model, dims={SYMBOL: AtMost(BOUND)}, backend="interpreter")
    assert isinstance(engine, Engine)
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim][1:]
    for size in (1, BOUND):
        x = np.random.default_rng(seed).integers(-3, 4, [size, *shape]).astype(np.float32)
        bound = penstock.compile(model, dims={SYMBOL: size}, backend="interpreter")
        assert isinstance(bound, Engine)
        np.testing.assert_allclose(engine(x)[0], bound(x)[0], 1e-5, 1e-5)
