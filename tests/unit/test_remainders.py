# SPDX-License-Identifier: Apache-2.0
"""Remainders of floats, ONNX's Mod: exact, with the sign that the attribute asks for, at every level."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper
from xdsl.dialects.arith import Arith
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.upstream.arith import RemFOp
from penstock.passes.toolchain import find_compiler
from penstock.runtime import onnx_backend

LEVELS: dict[str, dict[str, Any]] = {
    "graph": {"backend": "interpreter", "level": "graph"},
    "loop": {"backend": "interpreter", "level": "loop"},
    "c": {"backend": "native"},
}
NUMBERS = [0.0, 0.5, 1.0, 3.0, 4.25, 2.0**-14, 1000.0, 60000.0, np.inf]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("fmod", [0, 1])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_a_remainder_is_that_of_numpy_to_the_sign_of_zero(dtype: Any, fmod: int, level: str) -> None:
    if level == "c":
        try:
            find_compiler()
        except UserError:
            pytest.skip("there is no C compiler")
    signed = np.array([*NUMBERS, *(-number for number in NUMBERS), np.nan])
    a, b = np.repeat(signed, len(signed)).astype(dtype), np.tile(signed, len(signed)).astype(dtype)
    node = helper.make_node("Mod", ["a", "b"], ["y"], fmod=fmod)
    (found,) = onnx_backend.run_node(node, [a, b], **LEVELS[level])
    with np.errstate(invalid="ignore"):
        wanted = (np.fmod if fmod else np.mod)(a, b)
    assert found.dtype == wanted.dtype
    number = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(found), ~number)
    np.testing.assert_array_equal(found[number].astype(np.float64), wanted[number].astype(np.float64))
    np.testing.assert_array_equal(np.signbit(found[number]), np.signbit(wanted[number]))


def test_the_remainder_of_very_different_numbers_is_exact() -> None:
    node = helper.make_node("Mod", ["a", "b"], ["y"], fmod=1)
    a, b = np.array([3e38], np.float32), np.array([1e-38], np.float32)
    for options in (LEVELS["graph"], LEVELS["loop"]):
        (found,) = onnx_backend.run_node(node, [a, b], **options)
        assert found == np.fmod(a, b) != 0


def test_arith_has_a_remainder_in_our_contexts_alone() -> None:
    text = '%a = "test.op"() : () -> f32\n%b = arith.remf %a, %a fastmath<nnan> : f32'
    module = Parser(make_context(allow_unregistered=True), text).parse_module()
    remainder = list(module.ops)[-1]
    assert isinstance(remainder, RemFOp)
    assert str(remainder) == "%b = arith.remf %a, %a fastmath<nnan> : f32"
    assert RemFOp not in set(Arith.operations)
