# SPDX-License-Identifier: Apache-2.0
"""Floats in text are their bits: every type, every special value, in every attribute that holds floats."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sampling import examples
from xdsl.dialects.builtin import (
    AnyFloat,
    ArrayAttr,
    BFloat16Type,
    BytesAttr,
    ComplexType,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    Float4E2M1FNType,
    Float6E2M3FNType,
    Float6E3M2FNType,
    Float8E3M4Type,
    Float8E4M3B11FNUZType,
    Float8E4M3FNType,
    Float8E4M3FNUZType,
    Float8E4M3Type,
    Float8E5M2FNUZType,
    Float8E5M2Type,
    Float8E8M0FNUType,
    Float16Type,
    Float32Type,
    Float64Type,
    FloatAttr,
    FloatTF32Type,
    TensorType,
)
from xdsl.ir import Attribute
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.to_text import module_text

MLIR_OPT = shutil.which("mlir-opt-19")
needs_mlir_opt = pytest.mark.skipif(MLIR_OPT is None, reason="mlir-opt-19 is not installed")

LAYOUTS: dict[AnyFloat, tuple[int, int]] = {
    Float64Type(): (11, 52),
    Float32Type(): (8, 23),
    Float16Type(): (5, 10),
    BFloat16Type(): (8, 7),
    FloatTF32Type(): (8, 10),
    Float8E5M2Type(): (5, 2),
    Float8E4M3Type(): (4, 3),
    Float8E3M4Type(): (3, 4),
    Float8E4M3FNType(): (4, 3),
    Float8E5M2FNUZType(): (5, 2),
    Float8E4M3FNUZType(): (4, 3),
    Float8E4M3B11FNUZType(): (4, 3),
    Float8E8M0FNUType(): (8, 0),
    Float6E2M3FNType(): (2, 3),
    Float6E3M2FNType(): (3, 2),
    Float4E2M1FNType(): (2, 1),
}
"""The bits of the exponent and of the mantissa."""
_NOT_OF_MLIR_19 = ("tf32", "f8E3M4", "f8E8M0FNU", "f6E2M3FN", "f6E3M2FN", "f4E2M1FN")
OF_MLIR_19 = [type for type in LAYOUTS if str(type) not in _NOT_OF_MLIR_19]
"""The types that MLIR 19 has and whose arrays it prints right."""


def special(type: AnyFloat) -> list[int]:
    """Zeros, denormals, the largest numbers, infinities and NaNs of every kind, as bits."""
    exponent, mantissa = LAYOUTS[type]
    top, fraction = ((1 << exponent) - 1) << mantissa, (1 << mantissa) - 1
    found = [0, 1, fraction, fraction + 1, top - 1, top, top + 1, top + (fraction + 1) // 2, top + fraction]
    sign = 1 << (exponent + mantissa)
    found += [bits | sign for bits in found]
    return sorted({bits for bits in found if bits < 1 << type.bitwidth})


@st.composite
def numbers(draw: st.DrawFn, size: int = 1, types: Sequence[AnyFloat] = tuple(LAYOUTS)) -> tuple[AnyFloat, list[int]]:
    type = draw(st.sampled_from(types))
    bits = st.sampled_from(special(type)) | st.integers(0, (1 << type.bitwidth) - 1)
    return type, draw(st.lists(bits, min_size=size, max_size=size))


def raw(type: AnyFloat, bits: Sequence[int]) -> bytes:
    return b"".join(number.to_bytes(type.size, "little") for number in bits)


def dense(type: Attribute, data: bytes, shape: Sequence[int]) -> Attribute:
    return cast(Attribute, DenseIntOrFPElementsAttr(cast(Any, TensorType(type, shape)), BytesAttr(data)))


def scalar(type: AnyFloat, bits: int) -> Attribute:
    return cast(Attribute, FloatAttr(next(type.iter_unpack(raw(type, [bits]))), type))


def forms(type: AnyFloat, bits: Sequence[int]) -> list[Attribute]:
    """Every attribute that holds floats: scalars, splats, lists, nested lists, strings, complex numbers, arrays."""
    data = raw(type, bits)
    first = data[: type.size]
    pairs = data[: len(data) // (2 * type.size) * 2 * type.size]
    return [
        *[scalar(type, each) for each in bits[:8]],
        dense(type, first, []),
        dense(type, first * 6, [2, 3]),
        dense(type, data, [len(bits)]),
        dense(type, data, [1, len(bits), 1]),
        dense(type, data * 30, [30, len(bits)]),
        dense(ComplexType(type), pairs, [len(pairs) // (2 * type.size)]),
        cast(Attribute, DenseArrayBase(type, BytesAttr(data))),
    ]


def text_of(attributes: Sequence[Attribute]) -> str:
    return f'"u.x"() {{a = {ArrayAttr(attributes)}}} : () -> ()\n'


def printed_again(text: str, *, ours: bool = True) -> tuple[ArrayAttr[Attribute], str]:
    """The attributes of a text, by our parser or by xDSL's, and the text that they are printed as."""
    ctx = make_context(allow_unregistered=True)
    module = parse_text(ctx, SourceText("<test>", text)).module if ours else Parser(ctx, text).parse_module()
    [op] = module.ops
    return cast(ArrayAttr[Attribute], op.attributes["a"]), module_text(ctx, module)


def bits_of(attribute: Attribute) -> bytes:
    match attribute:
        case FloatAttr():
            return attribute.type.pack((attribute.value.data,))
        case DenseIntOrFPElementsAttr() | DenseArrayBase():
            return attribute.data.data
        case _:
            raise AssertionError(attribute)


@examples(40)
@given(numbers(7), st.booleans())
@example((Float32Type(), special(Float32Type())), True)
@example((Float16Type(), special(Float16Type())), False)
@example((BFloat16Type(), special(BFloat16Type())), True)
@example((Float64Type(), special(Float64Type())), False)
def test_a_float_keeps_its_bits_through_text(drawn: tuple[AnyFloat, list[int]], ours: bool) -> None:
    type, bits = drawn
    attributes = forms(type, bits)
    again, text = printed_again(text_of(attributes), ours=ours)
    assert [bits_of(each) for each in again] == [bits_of(each) for each in attributes]
    assert printed_again(text, ours=ours)[1] == text


@pytest.mark.parametrize("type", LAYOUTS, ids=str)
def test_the_bits_of_a_number_are_read_as_they_are_written(type: AnyFloat) -> None:
    """Every value of a type of a byte, and the special ones of larger types, as bits written by hand."""
    every = range(1 << type.bitwidth) if type.bitwidth <= 8 else special(type)
    digits = -(-type.bitwidth // 4)
    scalars = ", ".join(f"0x{bits:0{digits}x} : {type}" for bits in every)
    again, text = printed_again(f'"u.x"() {{a = [{scalars}]}} : () -> ()')
    assert [bits_of(each).hex() for each in again] == [raw(type, [bits]).hex() for bits in every]
    assert printed_again(text)[0] == again


WRITTEN = {
    "dense<0xFF800000> : tensor<2xf32>": "0000 80ff 0000 80ff",
    "dense<[0xFF800000, 1.0]> : tensor<2xf32>": "0000 80ff 0000 803f",
    "dense<[1234567.0, 1.0]> : tensor<2xf32>": "38b4 9649 0000 803f",
    "dense<[0.0, -0.0]> : tensor<2xf32>": "0000 0000 0000 0080",
    "dense<[[0x7FC1], [1.5]]> : tensor<2x1xbf16>": "c17f c03f",
    "dense<(0x7C01, -2.0)> : tensor<1xcomplex<f16>>": "017c 00c0",
    'dense<"0x010080FF"> : tensor<2xf32>': "0100 80ff 0100 80ff",
    "array<f32: 0x7F800001, -0.0, 3.0>": "0100 807f 0000 0080 0000 4040",
    "array<f64: 0xFFF0000000000001>": "0100 0000 0000 f0ff",
    "array<f8E4M3FN: 0xFF, 0x01>": "ff 01",
    "0x7F800001 : f32": "0100 807f",
    "-0.0 : f16": "0080",
    "3 : f16": "0042",
    'dense<"0x05"> : tensor<3xi1>': "ff 00 ff",
    'dense<"0x0F01"> : tensor<2xi4>': "ff 01",
}


@pytest.mark.parametrize("written", WRITTEN)
def test_a_literal_is_what_mlir_says_it_is(written: str) -> None:
    again, text = printed_again(f'"u.x"() {{a = [{written}]}} : () -> ()')
    assert bits_of(again.data[0]) == bytes.fromhex(WRITTEN[written])
    assert printed_again(text)[1] == text


REFUSED = {
    "1.0e40 : f32": (15, "1.0e40 is too large for an f32"),
    "[1.0e3000]": (16, "1.0e3000 is too large for an f64"),
    "dense<[1.0, 70000.0]> : tensor<2xf16>": (27, "70000.0 is too large for an f16"),
    "7.0 : f4E2M1FN": (15, "7.0 is too large for an f4E2M1FN"),
    "-1.0 : f8E8M0FNU": (15, "f8E8M0FNU does not support signed values"),
    "-0x7F800000 : f32": (15, "the bits of a float have no sign before them"),
    "dense<-0x1> : tensor<2xf32>": (21, "the bits of a float have no sign before them"),
    "0x1FFFFFFFF : f32": (15, "0x1FFFFFFFF has more bits than an f32"),
    "array<f16: 0x10000>": (26, "0x10000 has more bits than an f16"),
    "dense<true> : tensor<2xf32>": (21, "expected a number of type f32"),
    "dense<(1.0, 2.0)> : tensor<2xf32>": (21, "expected a number of type f32"),
    "dense<1.0> : tensor<2xf80>": (28, "constants of f80 are not supported"),
    "dense<1> : tensor<2xi128>": (26, "constants of i128 are not supported"),
    "dense<1> : tensor<99999999999xi32>": (26, "this constant has 399999999996 bytes, more than the 1073741824"),
    'dense<"0x0102"> : tensor<9xi8>': (21, "2 bytes are not the 9 elements of tensor<9xi8>"),
    'dense<"0x1F"> : tensor<1xi4>': (21, "1 bytes are not the 1 elements of tensor<1xi4>"),
    "99999999999999999999 : index": (15, "99999999999999999999 does not fit into 64 bits"),
}


@pytest.mark.parametrize("written", REFUSED)
def test_a_literal_that_its_type_cannot_hold_is_refused_where_it_stands(written: str) -> None:
    column, message = REFUSED[written]
    with pytest.raises(UserError) as refusal:
        printed_again(f'"u.x"() {{a = [{written}]}} : () -> ()')
    assert str(refusal.value).startswith(f"<test>:1:{column}: error: {message}")


def mlir_opt(text: str) -> str:
    assert MLIR_OPT is not None
    command = [MLIR_OPT, "--allow-unregistered-dialect"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


@needs_mlir_opt
def test_mlir_reads_our_floats_and_we_read_its() -> None:
    attributes = [each for type in OF_MLIR_19 for each in forms(type, special(type))]
    # Of a type with one zero MLIR prints the bits of another as a number.
    text = mlir_opt(text_of(attributes))
    assert [bits_of(each) for each in printed_again(text)[0]] == [bits_of(each) for each in attributes]
    assert mlir_opt(printed_again(text)[1]) == text
