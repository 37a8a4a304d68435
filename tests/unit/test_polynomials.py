# SPDX-License-Identifier: Apache-2.0
"""The polynomials of elementary functions: their errors, their limits, and that interpreter and C agree on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from in_c import agree
from numpy.typing import NDArray
from sampling import sweep
from xdsl.dialects.builtin import bf16, f16

from penstock.dialects.context import make_context
from penstock.dialects.element_types import numpy_dtype
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime.interpreter import run_module
from penstock.runtime.pass_manager import read_pipeline, run_passes

Array = NDArray[Any]

REFERENCES: dict[str, Callable[[Array], Array]] = {
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
}
"""In f64."""
LIMIT = 2.0
"""Units in the last place."""
SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1.1754942e-38, 1.17549435e-38, 3.4028235e38)
BOUNDS = (1.0, -1.0, 88.72283, 88.722839, 89.0, -103.972, -103.973, -87.33655, 127.99999, 128.0, -149.5, -150.0, 0.625)


POLYNOMIALS = "math-polynomial-approximation"
FORMS = (POLYNOMIALS, f"{POLYNOMIALS}{{fma=true}}", f"{POLYNOMIALS},contract")
"""As products and sums; of fused multiply-adds; and with those that `contract` makes, as on hosts that have them."""


def program(
    function: str, count: int, form: str = POLYNOMIALS, element: str = "f32", power: float | None = None
) -> Any:
    """The function of `count` elements, expanded; its second operand is `power`, if it has two."""
    exponent = "" if power is None else ", %p"
    constant = "" if power is None else f"%p = arith.constant {power:e} : {element}"
    memref, identity = f"memref<{count}x{element}>", "affine_map<(d0) -> (d0)>"
    text = f"""func.func @main(%x: {memref} {{graph.input = "x"}}, %y: {memref} {{graph.output = "y"}}) {{
      linalg.generic {{indexing_maps = [{identity}, {identity}], iterator_types = ["parallel"]}}
          ins(%x : {memref}) outs(%y : {memref}) {{
      ^bb0(%in: {element}, %old: {element}):
        {constant}
        %r = math.{function} %in{exponent} : {element}
        linalg.yield %r : {element}
      }}
      func.return
    }}"""
    ctx = make_context()
    module = parse_text(ctx, SourceText("function.mlir", text)).module
    run_passes(ctx, module, read_pipeline(form))
    assert element == "f64" or f"math.{function} " not in str(module)
    assert ("math.fma" in str(module)) == (form != POLYNOMIALS)
    return module


def numbers(step: int) -> Array:
    """Every `step`th f32 of all, and those at which something happens."""
    bits = np.arange(0, 1 << 32, step, dtype=np.uint64).astype(np.uint32)
    special = np.array([*SPECIAL, *BOUNDS], np.float32)
    near = special.view(np.int32)[:, None] + np.arange(-2, 3, dtype=np.int32)
    return np.concatenate([bits.view(np.float32), special, near.ravel().view(np.float32)])


def errors(found: Array, exact: Array) -> Array:
    """How far `found` is from `exact`, in units in the last place; infinity is the number after the largest."""
    exact = np.clip(exact, -(2.0**128), 2.0**128)
    found = np.clip(found.astype(np.float64), -(2.0**128), 2.0**128)
    exponent = np.frexp(np.clip(np.abs(exact), 2.0**-126, 2.0**127))[1] - 1
    return np.abs(found - exact) / np.exp2(exponent - 23.0)


@pytest.mark.parametrize(("function", "form", "step"), sweep(
    [(function, form, step) for function in REFERENCES for form in FORMS for step in (40_009, 2_003)],
    # `contract` makes what `fma` makes of all but tanh.
    quick=[(function, form, 40_009) for function in REFERENCES for form in FORMS[: 3 if function == "tanh" else 2]],
))  # fmt: skip
def test_a_function_is_within_two_units_of_the_last_place_and_the_same_in_c(
    function: str, form: str, step: int
) -> None:
    x = numbers(step)
    (found,) = agree(program(function, x.size, form), [x])
    with np.errstate(all="ignore"):
        exact = REFERENCES[function](x.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
    known = ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(exact[known]))
    assert errors(found[known], exact[known]).max() <= LIMIT


@pytest.mark.parametrize("power", [0.25, 0.5, 0.75])
def test_powers_of_quarters_are_roots_with_the_limits_of_the_library(power: float) -> None:
    x = numbers(40_009)
    (found,) = agree(program("powf", x.size, power=power), [x])
    exact = np.array([math.pow(each, power) if each >= 0 else math.nan for each in x.tolist()])
    exact[np.isneginf(x)] = math.inf
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
    known = ~np.isnan(exact)
    assert not np.signbit(found[known]).any()
    assert errors(found[known], exact[known]).max() <= LIMIT


def test_other_powers_are_calls_of_the_library() -> None:
    assert "math.powf" in str(program("powf", 8, power=0.75, element="f64"))


@pytest.mark.parametrize("function", REFERENCES)
def test_fused_polynomials_are_what_contract_makes_of_the_others(function: str) -> None:
    fused, contracted = (str(program(function, 8, form)) for form in FORMS[1:])
    # The denominator of tanh is a sum as well, of a product that no polynomial has.
    assert fused.count("math.fma") + (function == "tanh") == contracted.count("math.fma")
    assert (fused.count("arith.mulf") == contracted.count("arith.mulf")) == (function != "tanh")


@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_narrow_floats_are_computed_in_f32(element: str) -> None:
    dtype = numpy_dtype(f16 if element == "f16" else bf16)
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    x = x[~np.isnan(x.astype(np.float32))]
    (found,) = agree(program("exp", x.size, element=element), [x])
    with np.errstate(over="ignore", under="ignore"):
        exact = np.exp(x.astype(np.float64)).astype(np.float32).astype(dtype)
    # The next number at most, and seldom: two roundings.
    distance = found.view(np.int16).astype(np.int32) - exact.view(np.int16)
    assert np.abs(distance).max() <= 1
    assert np.count_nonzero(distance) < 64


def test_what_has_no_polynomial_stays() -> None:
    text = """
    func.func @main(%x: memref<f64> {graph.input = "x"}, %y: memref<f64> {graph.output = "y"}) {
      %a = memref.load %x[] : memref<f64>
      %b = math.exp %a : f64
      %c = math.sin %b : f64
      memref.store %c, %y[] : memref<f64>
      func.return
    }"""
    ctx = make_context()
    module = parse_text(ctx, SourceText("double.mlir", text)).module
    run_passes(ctx, module, read_pipeline("math-polynomial-approximation"))
    assert "math.exp" in str(module)
    assert "math.sin" in str(module)
    (y,) = run_module(module, [np.array(0.5)], ctx.weights)
    assert y == np.sin(np.exp(0.5))
