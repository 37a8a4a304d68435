# SPDX-License-Identifier: Apache-2.0
"""Matching generics against what a machine says its intrinsics do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.machine import TargetOp
from penstock.lowering.from_machine_toml import load_machine
from penstock.passes.analysis.access import access_of, in_place_variants
from penstock.passes.analysis.intrinsics import candidates, match_intrinsic


@pytest.fixture(scope="module")
def gemmini() -> TargetOp:
    return load_machine("gemmini-fp32")


MATMUL_BODY = """%p = arith.mulf %a, %b : f32
    %s = arith.addf %c, %p : f32
    linalg.yield %s : f32"""


def generic(maps: Sequence[str], kinds: str, types: Sequence[str], body: str, constants: str = "") -> GenericOp:
    """A generic with inputs %a, %b, ... and the output %c, on values of the given types."""
    inputs = [f"%{name}0" for name in "abde"[: len(types) - 1]]
    names = [f"%{name}" for name in "abde"[: len(types) - 1]] + ["%c"]
    arguments = ", ".join(f"{value}: {type}" for value, type in zip([*inputs, "%c0"], types, strict=True))
    iterators = ", ".join('"parallel"' if kind == "p" else '"reduction"' for kind in kinds)
    block = ", ".join(
        f"{name}: {type.rsplit('x', 1)[-1].split(',')[0].rstrip('>')}" for name, type in zip(names, types, strict=True)
    )
    ins = f"ins({', '.join(inputs)} : {', '.join(types[:-1])})" if inputs else ""
    result = f"-> {types[-1]}" if types[-1].startswith("tensor") else ""
    yielded = "%r = " if result else ""
    text = f"""func.func @f({arguments}) {{
      {constants}
      {yielded}linalg.generic {{indexing_maps = [{", ".join(f"affine_map<{m}>" for m in maps)}],
          iterator_types = [{iterators}]}} {ins} outs(%c0 : {types[-1]}) {{
      ^bb0({block}):
        {body}
      }} {result}
      func.return
    }}"""
    module = Parser(make_context(), text).parse_module()
    module.verify()
    return next(op for op in module.walk() if isinstance(op, GenericOp))


MATMUL = ["(m, n, k) -> (m, k)", "(m, n, k) -> (k, n)", "(m, n, k) -> (m, n)"]


def matmul(a: str, b: str, c: str, body: str = MATMUL_BODY) -> GenericOp:
    return generic(MATMUL, "ppr", [a, b, c], body)


def reason(op: GenericOp, name: str, target: TargetOp) -> str:
    access = access_of(op)
    assert access is not None
    outcome = match_intrinsic(access, target.intrinsics()[name], target)
    return getattr(outcome, "reason", "matches")


PROMOTED = ('memref<16x32xf32, "spad">', 'memref<32x8xf32, "spad">', 'memref<16x8xf32, "acc">')


def test_a_promoted_matmul_is_the_gemm_of_the_machine(gemmini: TargetOp) -> None:
    access = access_of(matmul(*PROMOTED))
    assert access is not None
    matches, failures = candidates(access, gemmini)
    assert [match.intrinsic.sym_name.data for match in matches] == ["gemm"]
    assert matches[0].dims == (0, 1, 2)
    assert matches[0].operands == (0, 1, 2)
    assert {failure.intrinsic for failure in failures} == set(gemmini.intrinsics()) - {"gemm"}


def test_the_factors_of_a_product_and_the_terms_of_a_sum_may_be_swapped(gemmini: TargetOp) -> None:
    swapped = "%p = arith.mulf %b, %a : f32\n %s = arith.addf %p, %c : f32\n linalg.yield %s : f32"
    assert reason(matmul(*PROMOTED, body=swapped), "gemm", gemmini) == "matches"


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (('memref<16x32xf32, "acc">', *PROMOTED[1:]), 'operand a is to be in "spad", and is in "acc"'),
        ((PROMOTED[0], PROMOTED[1], "memref<16x8xf32>"), 'operand acc is to be in "acc", and is in "dram"'),
        (('memref<16x32xf32, strided<[33, 1]>, "spad">', *PROMOTED[1:]), "by 132 bytes, not a multiple of 16"),
        (('memref<16x32xf32, strided<[64, 2]>, "spad">', *PROMOTED[1:]), "d2 does not move operand a by one element"),
    ],
)
def test_scopes_and_strides_must_be_those_of_the_intrinsic(
    types: tuple[str, str, str], message: str, gemmini: TargetOp
) -> None:
    assert message in reason(matmul(*types), "gemm", gemmini)


def test_a_body_that_computes_something_else_is_refused(gemmini: TargetOp) -> None:
    difference = MATMUL_BODY.replace("addf", "subf")
    assert reason(matmul(*PROMOTED, body=difference), "gemm", gemmini) == "its body computes something else"


def test_another_element_type_is_refused(gemmini: TargetOp) -> None:
    types = tuple(type.replace("f32", "f64") for type in PROMOTED)
    op = matmul(*types, body=MATMUL_BODY.replace("f32", "f64"))
    assert reason(op, "gemm", gemmini) == "its body computes f32, not f64"


CONV = [
    "(n, h, w, f, kh, kw, c) -> (n, h * 2 + kh, w * 2 + kw, c)",
    "(n, h, w, f, kh, kw, c) -> (kh, kw, c, f)",
    "(n, h, w, f, kh, kw, c) -> (n, h, w, f)",
]


def test_a_strided_convolution_is_a_gemm_over_rows_with_its_window_outside(gemmini: TargetOp) -> None:
    types = [
        'memref<1x9x17x10xf32, strided<[1836, 204, 12, 1]>, "spad">',
        'memref<3x3x10x24xf32, "spad">',
        'memref<1x4x8x24xf32, "acc">',
    ]
    access = access_of(generic(CONV, "pppprrr", types, MATMUL_BODY))
    assert access is not None
    matches, _ = candidates(access, gemmini)
    # m is the longer of rows and columns; n the output channels; k the input channels.
    assert [match.dims for match in matches] == [(2, 3, 6)]


def test_channels_first_is_no_gemm_and_the_reason_names_the_dim(gemmini: TargetOp) -> None:
    maps = [
        "(n, f, h, w, c, kh, kw) -> (n, c, h + kh, w + kw)",
        "(n, f, h, w, c, kh, kw) -> (f, c, kh, kw)",
        "(n, f, h, w, c, kh, kw) -> (n, f, h, w)",
    ]
    types = ["tensor<1x8x6x6xf32>", "tensor<16x8x3x3xf32>", "tensor<1x16x4x4xf32>"]
    op = generic(maps, "pppprrr", types, MATMUL_BODY)
    assert "nothing can play its dim" in reason(op, "gemm", gemmini) or "moves operand" in reason(op, "gemm", gemmini)


def test_on_tensors_rows_are_taken_to_become_whole_granules(gemmini: TargetOp) -> None:
    types = ["tensor<16x33xf32>", "tensor<33x7xf32>", "tensor<16x7xf32>"]
    assert reason(matmul(*types), "gemm", gemmini) == "matches"


ADD = ["(m, n) -> (m, n)", "(m, n) -> (n)", "(m, n) -> (m, n)"]


def test_adding_a_bias_matches_once_it_starts_from_the_accumulator(gemmini: TargetOp) -> None:
    body = "%s = arith.addf %a, %b : f32\n linalg.yield %s : f32"
    op = generic(ADD, "pp", ["tensor<16x8xf32>", "tensor<8xf32>", "tensor<16x8xf32>"], body)
    access = access_of(op)
    assert access is not None
    assert candidates(access, gemmini)[0] == []
    found = {
        number: [match.intrinsic.sym_name.data for match in candidates(variant, gemmini)[0]]
        for number, variant in in_place_variants(access)
    }
    # Input 1 has another shape than the output, so it cannot be its initial value.
    assert found == {0: ["mvin_add"]}


def test_a_broadcast_row_stands_still_and_that_is_a_multiple_of_the_granule(gemmini: TargetOp) -> None:
    body = "%s = arith.addf %c, %a : f32\n linalg.yield %s : f32"
    op = generic(ADD[1:], "pp", ["memref<8xf32>", 'memref<16x8xf32, "acc">'], body)
    assert reason(op, "mvin_add", gemmini) == "matches"


def test_a_constant_must_have_the_value_of_the_behaviour(gemmini: TargetOp) -> None:
    body = "%s = arith.maximumf %a, %k : f32\n linalg.yield %s : f32"
    types = ['memref<16x8xf32, "acc">', "memref<16x8xf32>"]
    for value, expected in (("0.000000e+00", "matches"), ("1.000000e+00", "its body computes something else")):
        op = generic([ADD[0], ADD[0]], "pp", types, body, f"%k = arith.constant {value} : f32")
        assert reason(op, "mvout_relu", gemmini) == expected


def test_a_fill_of_zeros_matches_in_each_scope_its_own_intrinsic(gemmini: TargetOp) -> None:
    for scope in ("acc", "spad"):
        op = generic(
            [ADD[0]],
            "pp",
            [f'memref<16x8xf32, "{scope}">'],
            "linalg.yield %k : f32",
            "%k = arith.constant 0.000000e+00 : f32",
        )
        access = access_of(op)
        assert access is not None
        assert [m.intrinsic.sym_name.data for m in candidates(access, gemmini)[0]] == [f"zero_{scope}"]
