# SPDX-License-Identifier: Apache-2.0
"""Contractions on narrow operands with a wide accumulator: what the text says, and what every level computes."""

from __future__ import annotations

import re
from io import StringIO
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from programs import verified
from sampling import every_other, examples
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.lowering.tensor_expression import OperandDecl, build_behaviour, scalar_type
from penstock.passes.analysis.access import access_of, unify
from penstock.passes.analysis.kernels import is_contraction, kernels, multiply_accumulates
from penstock.passes.toolchain import find_compiler
from penstock.runtime.interpreter import run_module
from penstock.runtime.native import load_native
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.signature import signature_of

Array = NDArray[Any]

MATMUL = """func.func @main(%a: tensor<4x6x{a}>, %b: tensor<6x5x{b}>) -> tensor<4x5x{y}> {{
  %y = graph.matmul %a, %b accumulate {y} : (tensor<4x6x{a}>, tensor<6x5x{b}>) -> tensor<4x5x{y}>
  func.return %y : tensor<4x5x{y}>
}}"""
GEMM = """func.func @main(%a: tensor<6x4x{a}>, %b: tensor<5x6x{b}>, %c: tensor<5x{y}>) -> tensor<4x5x{y}> {{
  %y = graph.gemm %a, %b, %c alpha 2.0 trans_a true trans_b true accumulate {y}
      : (tensor<6x4x{a}>, tensor<5x6x{b}>, tensor<5x{y}>) -> tensor<4x5x{y}>
  func.return %y : tensor<4x5x{y}>
}}"""
CONV = """func.func @main(%x: tensor<1x5x5x4x{a}>, %w: tensor<3x3x2x6x{b}>, %b: tensor<6x{y}>) -> tensor<1x3x3x6x{y}> {{
  %y = graph.conv %x, %w, %b strides [2, 2] pads [1, 1, 1, 1] dilations [1, 1] group 2 layout "NHWC" accumulate {y}
      : (tensor<1x5x5x4x{a}>, tensor<3x3x2x6x{b}>, tensor<6x{y}>) -> tensor<1x3x3x6x{y}>
  func.return %y : tensor<1x3x3x6x{y}>
}}"""
PROGRAMS = {"matmul": MATMUL, "gemm": GEMM, "conv": CONV}
DTYPES: dict[str, Any] = {
    "f16": np.float16, "f32": np.float32, "i8": np.int8, "ui8": np.uint8, "i16": np.int16, "i32": np.int32,
}  # fmt: skip
TYPES = [("f16", "f16", "f32"), ("i8", "i8", "i32"), ("ui8", "i8", "i32"), ("i8", "ui8", "i32"), ("i8", "i16", "i32")]

try:
    HAS_COMPILER = bool(find_compiler())
except UserError:
    HAS_COMPILER = False  # pyright: ignore[reportConstantRedefinition]


def lower(module: ModuleOp, pipeline: str) -> ModuleOp:
    run_passes(make_context(), module, read_pipeline(pipeline))
    return module


def run(module: ModuleOp, inputs: list[Array]) -> Array:
    return run_module(module, inputs, make_context().weights)[0]


def drawn(module: ModuleOp, rng: np.random.Generator, *types: str) -> list[Array]:
    """Arguments for @main that use the whole range of the integers, and little of that of the floats."""
    arrays: list[Array] = []
    for spec, type in zip(signature_of(module).inputs, types, strict=False):
        low, high = (-9, 9) if type.startswith("f") else (np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max)
        arrays.append(rng.integers(low, high, spec.shape, np.int64, endpoint=True).astype(spec.dtype))
    return arrays


def expected(kind: str, inputs: list[Array], dtype: Any) -> Array:
    """The same in NumPy: every operand in the accumulator's type before anything is computed."""
    with np.errstate(over="ignore"):
        a, b, *rest = (array.astype(dtype) for array in inputs)
        if kind == "matmul":
            return a @ b
        if kind == "gemm":
            return (a.T @ b.T) * dtype(2) + rest[0]
        padded = np.pad(a, ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2]
        halves = [
            np.einsum("nhwcij,ijco->nhwo", windows[:, :, :, 2 * g : 2 * g + 2], b[..., 3 * g : 3 * g + 3])
            for g in range(2)
        ]
        return np.concatenate(halves, axis=-1).astype(dtype) + rest[0]


@pytest.mark.parametrize(("kind", "types"), every_other(product(PROGRAMS, TYPES)))
def test_every_level_widens_first_and_then_computes_in_the_accumulator(kind: str, types: tuple[str, str, str]) -> None:
    a, b, y = types
    module = verified(PROGRAMS[kind].format(a=a, b=b, y=y))
    inputs = drawn(module, np.random.default_rng(1), a, b, y)
    wanted = expected(kind, inputs, DTYPES[y])
    assert wanted.dtype == DTYPES[y]
    np.testing.assert_array_equal(run(module, inputs), wanted, strict=True)
    np.testing.assert_array_equal(run(lower(module, "graph-fuse,graph-to-tensor"), inputs), wanted, strict=True)
    np.testing.assert_array_equal(run(lower(module, "tensor-to-loop,mem-plan"), inputs), wanted, strict=True)
    if HAS_COMPILER:
        np.testing.assert_array_equal(load_native(module).run(inputs)[0], wanted, strict=True)


def test_a_sum_of_integers_wraps_as_in_numpy() -> None:
    text = MATMUL.format(a="i16", b="i16", y="i32").replace("4x6x", "4x4096x").replace("6x5x", "4096x5x")
    module = verified(text)
    inputs = [np.full((4, 4096), -32768, np.int16), np.full((4096, 5), 32767, np.int16)]
    wanted = inputs[0].astype(np.int32) @ inputs[1].astype(np.int32)
    assert int(wanted[0, 0]) != -32768 * 32767 * 4096
    np.testing.assert_array_equal(run(module, inputs), wanted, strict=True)
    lower(module, "graph-fuse,graph-to-tensor")
    np.testing.assert_array_equal(run(module, inputs), wanted, strict=True)


def test_a_sum_that_overflows_f16_fits_the_f32_accumulator() -> None:
    module = verified(MATMUL.format(a="f16", b="f16", y="f32"))
    a, b = np.full((4, 6), 300, np.float16), np.full((6, 5), 300, np.float16)
    np.testing.assert_array_equal(run(module, [a, b]), np.full((4, 5), 540000, np.float32), strict=True)


@pytest.mark.parametrize("kind", PROGRAMS)
def test_the_property_survives_both_forms_of_the_text(kind: str) -> None:
    module = verified(PROGRAMS[kind].format(a="ui8", b="i8", y="i32"))
    assert "accumulate i32" in str(module)
    generic = StringIO()
    Printer(generic, print_generic_format=True).print_op(module)
    assert "accumulator = i32" in generic.getvalue()
    assert str(verified(str(module))) == str(verified(generic.getvalue())) == str(module)


REFUSED = [
    ("f32", "f32", "f16", "graph.matmul cannot accumulate f32 in f16, which does not hold every f32"),
    ("f16", "f16", "bf16", "cannot accumulate f16 in bf16, which does not hold every f16"),
    ("f16", "f32", "f32", "graph.matmul needs one element type, found f16 and f32"),
    ("i8", "i8", "f32", "cannot accumulate i8 in f32: floats are summed in floats, and integers in integers"),
    ("f16", "f16", "i32", "cannot accumulate f16 in i32: floats are summed in floats, and integers in integers"),
    ("i8", "ui8", "i8", "cannot accumulate ui8 in i8, which does not hold every ui8"),
    ("i8", "ui8", "ui32", "cannot accumulate i8 in ui32, which does not hold every i8"),
    ("i8", "f16", "f32", "cannot accumulate i8 in f32"),
]


@pytest.mark.parametrize(("a", "b", "y", "message"), REFUSED)
def test_accumulators_that_lose_numbers_are_refused(a: str, b: str, y: str, message: str) -> None:
    with pytest.raises(VerifyException, match=message):
        verified(MATMUL.format(a=a, b=b, y=y))


def test_a_bias_that_is_not_of_the_accumulators_type_is_refused() -> None:
    text = GEMM.format(a="f16", b="f16", y="f32").replace("tensor<5xf32>", "tensor<5xf16>")
    with pytest.raises(VerifyException, match="accumulates in f32 and adds a tensor<5xf16>"):
        verified(text)


def test_a_result_that_is_not_of_the_accumulators_type_is_refused() -> None:
    with pytest.raises(VerifyException, match="operands and properties give tensor<4x5xf32>"):
        verified(MATMUL.format(a="f16", b="f16", y="f32").replace("tensor<4x5xf32>", "tensor<4x5xf16>"))


def test_the_lowered_body_is_the_behaviour_of_a_mixed_precision_intrinsic() -> None:
    module = lower(verified(MATMUL.format(a="f16", b="f16", y="f32")), "graph-fuse,graph-to-tensor")
    (kernel,) = kernels(module)
    assert multiply_accumulates(kernel) == 4 * 5 * 6
    half, single = scalar_type("f16"), scalar_type("f32")
    assert half is not None
    assert single is not None
    operands = [OperandDecl("a", "spm", half, "row"), OperandDecl("b", "spm", half, "row")]
    operands.append(OperandDecl("c", "spm", single, "row"))
    behaviour = build_behaviour("c[m,n] += cast(f32, a[m,k]) * cast(f32, b[k,n])", operands)
    intrinsic = next(op for op in behaviour.region.block.ops if isinstance(op, GenericOp))
    wanted = access_of_body(intrinsic)
    (found,) = [op for op in kernel.walk() if isinstance(op, GenericOp) and is_contraction(op)]
    access = access_of(found)
    assert access is not None
    assert list(unify(wanted, access.yielded, {}))


def access_of_body(generic: GenericOp) -> Any:
    from penstock.passes.analysis.access import expression_of

    terminator = generic.body.block.last_op
    assert terminator is not None
    return expression_of(terminator.operands[0], generic.body.block)


LAYOUT = """func.func @main(%x: tensor<1x4x5x5xf16>, %b: tensor<3xf32>) -> tensor<1x3x5x5xf32> {
  %w = graph.constant #graph.weight<"w"> : tensor<3x4x1x1xf16>
  %y = graph.conv %x, %w, %b strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] accumulate f32
      : (tensor<1x4x5x5xf16>, tensor<3x4x1x1xf16>, tensor<3xf32>) -> tensor<1x3x5x5xf32>
  func.return %y : tensor<1x3x5x5xf32>
}"""


@pytest.mark.parametrize(
    ("pipeline", "text"),
    [("layout", LAYOUT), ("transpose-operands", GEMM.format(a="f16", b="f16", y="f32"))],
)
def test_passes_that_rebuild_a_contraction_keep_its_accumulator(pipeline: str, text: str) -> None:
    module = verified(text)
    before = str(module)
    lower(module, pipeline)
    assert str(module) != before
    assert str(module).count("accumulate f32") == 1


def test_batch_normalisation_is_not_folded_into_narrow_weights() -> None:
    text = LAYOUT.replace("  func.return %y", BATCH_NORM).replace("return %y", "return %z")
    module = lower(verified(text), "fold-batch-norm")
    assert "graph.conv %x, %w, %b" in str(module)


BATCH_NORM = """  %s = graph.constant dense<2.0> : tensor<3xf32>
  %z = graph.batch_normalization %y, %s, %s, %s, %s
      : (tensor<1x3x5x5xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> tensor<1x3x5x5xf32>
  func.return %z"""


@examples(25)
@given(
    seed=st.integers(0, 1 << 16),
    sizes=st.tuples(*[st.integers(1, 40)] * 3),
    types=st.sampled_from([("i8", "i8"), ("ui8", "i8"), ("i8", "ui8"), ("ui8", "ui8")]),
)
def test_products_of_bytes_are_exact_at_every_level(
    seed: int, sizes: tuple[int, int, int], types: tuple[str, str]
) -> None:
    m, n, k = sizes
    text = MATMUL.format(a=types[0], b=types[1], y="i32")
    extents = {"4x6x": f"{m}x{k}x", "6x5x": f"{k}x{n}x", "4x5x": f"{m}x{n}x"}
    text = re.sub("|".join(extents), lambda found: extents[found[0]], text)
    module = verified(text)
    a, b = drawn(module, np.random.default_rng(seed), *types)
    wanted = a.astype(np.int32) @ b.astype(np.int32)
    np.testing.assert_array_equal(run(module, [a, b]), wanted, strict=True)
    lower(module, "graph-fuse,graph-to-tensor,tensor-to-loop,mem-plan")
    np.testing.assert_array_equal(run(module, [a, b]), wanted, strict=True)


CAST = """func.func @main(%a: tensor<4x6xf16>, %b: tensor<6x5xf32>) -> tensor<4x5xf32> {
  %y = graph.fused(%a, %b) pattern complex_out_fusable {
  ^bb0(%c: tensor<4x6xf16>, %d: tensor<6x5xf32>):
    %e = graph.cast %c : tensor<4x6xf16> -> tensor<4x6xf32>
    %f = graph.matmul %e, %d : (tensor<4x6xf32>, tensor<6x5xf32>) -> tensor<4x5xf32>
    USE
    graph.yield %f : tensor<4x5xf32>
  } : (tensor<4x6xf16>, tensor<6x5xf32>) -> tensor<4x5xf32>
  func.return %y : tensor<4x5xf32>
}"""


def test_a_cast_that_only_widens_a_factor_goes_into_the_body() -> None:
    module = verified(CAST.replace("USE", ""))
    rng = np.random.default_rng(2)
    inputs = [rng.integers(-9, 9, (4, 6)).astype(np.float16), rng.integers(-9, 9, (6, 5)).astype(np.float32)]
    wanted = run(module, inputs)
    lower(module, "graph-to-tensor")
    generics = [op for op in module.walk() if isinstance(op, GenericOp)]
    assert [len(op.inputs) for op in generics] == [0, 2]
    assert is_contraction(generics[-1])
    np.testing.assert_array_equal(run(module, inputs), wanted, strict=True)


def test_a_cast_that_narrows_or_is_used_otherwise_stays_an_op() -> None:
    used = """%g = graph.reduce_sum %e axes [1] : tensor<4x6xf32> -> tensor<4x1xf32>
    %h = graph.add %f, %g : (tensor<4x5xf32>, tensor<4x1xf32>) -> tensor<4x5xf32>"""
    text = CAST.replace("USE", used).replace("graph.yield %f", "graph.yield %h")
    generics = [op for op in lower(verified(text), "graph-to-tensor").walk()]
    assert sum(isinstance(op, GenericOp) and len(op.inputs) == 1 for op in generics) == 2
    narrowed = CAST.replace("USE", "").replace("f16", "f64")
    generics = [op for op in lower(verified(narrowed), "graph-to-tensor").walk()]
    assert sum(isinstance(op, GenericOp) and len(op.inputs) == 1 for op in generics) == 1


def test_a_cast_outside_a_group_is_a_kernel_of_its_own() -> None:
    text = (
        CAST.split("{", 1)[0]
        + """{
      %e = graph.cast %a : tensor<4x6xf16> -> tensor<4x6xf32>
      %f = graph.matmul %e, %b : (tensor<4x6xf32>, tensor<6x5xf32>) -> tensor<4x5xf32>
      func.return %f : tensor<4x5xf32>
    }"""
    )
    module = verified(text)
    inputs = [np.ones((4, 6), np.float16), np.ones((6, 5), np.float32)]
    lower(module, "graph-to-tensor")
    assert len(list(kernels(module))) == 2
    np.testing.assert_array_equal(run(module, inputs), np.full((4, 5), 6, np.float32), strict=True)
