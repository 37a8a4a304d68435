# SPDX-License-Identifier: Apache-2.0
"""Element types of a byte and less: conversions, bits, constants and weights, at every level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from one_node import LEVELS, comparable, model_of, run_at
from onnx import ModelProto, TensorProto, helper, numpy_helper
from xdsl.dialects.builtin import Signedness
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

import penstock
from penstock.dialects import graph
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.element_bits import is_narrow_integer, same_bits, stored
from penstock.dialects.element_types import element_type, numpy_dtype
from penstock.dialects.weights import Array
from penstock.runtime.compiler import import_program
from penstock.runtime.interpreter import run_module

FLOATS = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn")
INTEGERS = ("int4", "uint4", "int2", "uint2")


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)


def onnx_type(name: str) -> int:
    return helper.np_dtype_to_tensor_dtype(dtype_of(name))


def casts(source: Array, target: str, levels: Sequence[str] = LEVELS, **attributes: Any) -> Iterator[tuple[str, Array]]:
    """The levels, and what a conversion gives there."""
    model = model_of("Cast", [source], opset=25, to=onnx_type(target), **attributes)
    for level, (found,) in run_at(model, [source], levels):
        yield level, found


def every_number(name: str) -> Array:
    """All numbers of a type, NaN left out."""
    dtype = dtype_of(name)
    if name in INTEGERS:
        info = ml_dtypes.iinfo(dtype)
        return np.arange(info.min, info.max + 1).astype(dtype)
    found = np.arange(1 << (4 if "float4" in name else 8), dtype=np.uint8).view(dtype)
    return found[~np.isnan(found.astype(np.float32))]


def same(left: Array, right: Array) -> None:
    assert left.dtype == right.dtype
    np.testing.assert_array_equal(comparable(left), comparable(right))


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_a_type_and_its_numpy_type_are_inverse(name: str) -> None:
    element = element_type(dtype_of(name))
    assert numpy_dtype(element) == dtype_of(name)
    assert is_narrow_integer(dtype_of(name)) == (name in INTEGERS)


def test_integers_below_a_byte_are_stored_in_their_signed_range() -> None:
    for name in INTEGERS:
        kept = stored(every_number(name))
        half = len(kept) // 2
        assert kept.dtype == np.int8
        assert sorted(kept.tolist()) == list(range(-half, half))
        same(kept.astype(dtype_of(name)), every_number(name))
    assert same_bits(dtype_of("uint4"), dtype_of("int4"))
    assert not same_bits(dtype_of("int2"), dtype_of("int4"))


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_every_number_survives_the_way_through_a_wider_type(name: str) -> None:
    numbers = every_number(name)
    wide = "float32" if name in FLOATS else "int8"
    there = numbers.astype(dtype_of(wide))
    for _, found in casts(numbers, wide):
        same(found, there)
    for _, found in casts(there, name, saturate=0, round_mode="nearest"):
        same(found, numbers)


def probes() -> Array:
    """Numbers of every size, ties, infinities and NaN."""
    rng = np.random.default_rng(3)
    sizes = (rng.standard_normal(400) * np.exp2(rng.integers(-22, 20, 400))).astype(np.float32)
    ties = (np.arange(-40, 41) / 16).astype(np.float32)
    return np.concatenate([sizes, ties, np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e9, -1e9], np.float32)])


@pytest.mark.parametrize("name", [each for each in FLOATS if each != "float8_e8m0fnu"])
@pytest.mark.parametrize("source", ["float32", "float16", "float64", "bfloat16"])
def test_floats_are_rounded_as_ml_dtypes_does_it(name: str, source: str) -> None:
    exact = np.sort(every_number(name).astype(np.float64))
    between = (exact[1:] / 2 + exact[:-1] / 2)[np.isfinite(exact[1:]) & np.isfinite(exact[:-1])]
    with np.errstate(all="ignore"):
        numbers = np.concatenate([probes(), between]).astype(dtype_of(source))
        expected = numbers.astype(dtype_of(name))
    levels = LEVELS if source in ("float32", "float64") else ("graph", "loop")
    for _, found in casts(numbers, name, levels, saturate=0):
        same(found, expected)


@pytest.mark.parametrize("name", [each for each in FLOATS if each.startswith("float8") and "e8" not in each])
def test_what_is_too_large_becomes_the_largest_number_unless_told_otherwise(name: str) -> None:
    numbers = every_number(name).astype(np.float32)
    largest = numbers[np.isfinite(numbers)].max()
    numbers = np.array([1e6, -1e6, np.inf, 1.0], np.float32)
    for _, found in casts(numbers, name):
        np.testing.assert_array_equal(found.astype(np.float32), [largest, -largest, largest, 1.0])
    for _, found in casts(numbers, name, saturate=0):
        assert not np.isfinite(found.astype(np.float32)[:3]).any()


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_an_exponent_alone_is_rounded_as_asked(mode: str, saturate: int) -> None:
    tiny = np.float32(2.0**-149)
    edges = [np.float32(2.0**-126), np.float32(2.0**-127), tiny, 3 * tiny, 3.4e38, 1.5, 3.0, 5.0, 0.0, np.inf, np.nan]
    numbers = np.concatenate([np.abs(probes()), np.array(edges, np.float32)])
    from onnx.numpy_helper import to_float8e8m0

    expected = to_float8e8m0(numbers, bool(saturate), mode)
    for _, found in casts(numbers, "float8_e8m0fnu", saturate=saturate, round_mode=mode):
        np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))


def test_another_round_mode_is_an_error_at_the_node() -> None:
    with pytest.raises(UserError, match=r'node "node" \(Cast\): round_mode is one of up, down, nearest, not "odd"'):
        next(casts(np.ones(2, np.float32), "float8_e8m0fnu", round_mode="odd"))


@pytest.mark.parametrize(
    ("source", "target"),
    [("int4", "uint4"), ("uint4", "int2"), ("float8_e8m0fnu", "float4_e2m1fn"), ("float8_e5m2", "float8_e4m3fnuz")],
)
def test_types_that_do_not_know_each_other_are_converted(source: str, target: str) -> None:
    numbers = every_number(source)
    wide = numbers.astype(np.int8 if source in INTEGERS else np.float32)
    for _, found in casts(numbers, target, saturate=0):
        same(found, wide.astype(dtype_of(target)))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("float32", "uint32"),
        ("int64", "float64"),
        ("bfloat16", "int16"),
        ("uint8", "float8_e4m3fn"),
        ("float8_e5m2", "int8"),
        ("float16", "bfloat16"),
        ("bool", "int8"),
        ("uint8", "bool"),
    ],
)
def test_bits_are_read_as_another_type(source: str, target: str) -> None:
    numbers = (
        np.random.default_rng(1).integers(0, 2 if "bool" in (source, target) else 100, 24).astype(dtype_of(source))
    )
    model = model_of("BitCast", [numbers.reshape(4, 6)], opset=26, to=onnx_type(target))
    for _, (found,) in run_at(model, [numbers.reshape(4, 6)]):
        same(found, numbers.view(dtype_of(target)).reshape(4, 6))


@pytest.mark.parametrize(("source", "target"), [("float32", "int64"), ("int8", "int4"), ("float4_e2m1fn", "uint4")])
def test_bits_of_another_number_are_refused(source: str, target: str) -> None:
    model = model_of("BitCast", [np.ones(2).astype(dtype_of(source))], opset=26, to=onnx_type(target))
    with pytest.raises(UserError, match=r'node "node" \(BitCast\): graph.bitcast reads whole bytes'):
        import_program(model, {}, name="test")


@pytest.mark.parametrize("text", ["add %x, %x : (tensor<2xi4>, tensor<2xi4>) -> tensor<2xi4>", "abs %x : tensor<2xi4>"])
def test_integers_below_a_byte_are_not_computed_with(text: str) -> None:
    program = f"func.func @main(%x: tensor<2xi4>) {{ %0 = graph.{text}\n func.return }}"
    with pytest.raises(VerifyException, match="not on i4"):
        Parser(make_context(), program).parse_module().verify()


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_constants_and_weights_of_narrow_types_stay_what_they_are(name: str, tmp_path: Path) -> None:
    numbers = every_number(name)
    short = numbers[:3]
    for values in (short, np.tile(numbers, 20)):
        nodes = [helper.make_node("Identity", ["w"], ["y"])]
        proto = helper.make_graph(
            nodes,
            "test",
            [],
            [helper.make_tensor_value_info("y", onnx_type(name), values.shape)],
            [numpy_helper.from_array(values, "w")],
        )
        model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
        program = import_program(model, {}, name="test")
        found = [op for op in program.module.walk() if isinstance(op, graph.ConstantOp)]
        assert len(found) == 1
        same(run_module(program.module, [], program.ctx.weights)[0], values)
        text = str(program.module)
        again = Parser(make_context(), text).parse_module()
        same(run_module(again, [], program.ctx.weights)[0], values)


def test_elements_that_share_a_byte_are_read_from_a_file_of_their_own(tmp_path: Path) -> None:
    values = np.arange(-8, 7).reshape(3, 5).astype(ml_dtypes.int4)
    tensor = numpy_helper.from_array(values, "w")
    (tmp_path / "data.bin").write_bytes(b"\xff" * 3 + tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "data.bin"), ("offset", "3"), ("length", "8")):
        tensor.external_data.add(key=key, value=value)
    proto = helper.make_graph(
        [helper.make_node("Cast", ["w"], ["y"], to=TensorProto.INT8)],
        "test",
        [],
        [helper.make_tensor_value_info("y", TensorProto.INT8, (3, 5))],
        [tensor],
    )
    model: ModelProto = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    same(penstock.compile(path)()[0], values.astype(np.int8))
    (tmp_path / "data.bin").write_bytes(b"\xff" * 10)
    with pytest.raises(UserError, match=r'initializer "w" takes bytes 3 to 11 of "data\.bin", which has 10'):
        penstock.compile(path)


def test_unsigned_integers_below_a_byte_are_written_with_their_sign() -> None:
    element = element_type(dtype_of("uint2"))
    assert str(element) == "ui2"
    assert getattr(element, "signedness").data == Signedness.UNSIGNED
