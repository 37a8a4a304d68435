# SPDX-License-Identifier: Apache-2.0
"""The verifiers of the graph dialect refuse what is wrong, with messages that name the numbers."""

from __future__ import annotations

import pytest
from programs import parsed
from xdsl.utils.exceptions import ParseError, VerifyException

PLAIN = "strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1]"
REFUSED = [
    ("graph.exp %i : !i", "graph.exp works on floats, not on i32"),
    ("graph.not %x : !x", "graph.not works on i1, not on f32"),
    ("graph.neg %u : !u", "works on floats and signed integers, not on ui8"),
    ("graph.relu %s : !s", "works on floats, integers and i1, not on si32"),
    ("graph.add %d, %x : (!d, !x) -> !d", "but its operands and properties give tensor<2x3xf32>"),
    ("graph.relu %e : !e", "no encoding at graph level"),
    ('graph.gelu %x approximate "erf" : !x', 'approximate is "none" or "tanh", not "erf"'),
    ("graph.add %x, %v : (!x, !v) -> !x", "2x3 and 4 do not broadcast: 3 against 4 in dimension 1 of 2"),
    ("graph.add %x, %h : (!x, !h) -> !x", "needs one element type, found f32 and f16"),
    (
        "graph.add %x, %x : (!x, !x) -> tensor<3x2xf32>",
        "has the result type tensor<3x2xf32>, but its operands and properties give tensor<2x3xf32>",
    ),
    ("graph.equal %x, %x : (!x, !x) -> !x", "give tensor<2x3xi1>"),
    ("graph.prelu %v, %x : (!v, !x) -> !x", "do not broadcast"),
    ("graph.prelu %r, %x : (!r, !x) -> !x", "slope tensor<2x3xf32> does not broadcast to tensor<3xf32>"),
    ("graph.where %x, %x, %x : (!x, !x, !x) -> !x", "the condition of graph.where works on i1, not on f32"),
    (
        "graph.conv %g, %w strides [1] pads [0, 0, 0, 0] dilations [1, 1] : (!g, !w) -> !y",
        r"strides \[1\] must have 2 entries for 2 spatial dimensions",
    ),
    (
        "graph.conv %g, %w strides [1, 1] pads [0, 0] dilations [1, 1] : (!g, !w) -> !y",
        r"pads \[0, 0\] must have 4 entries",
    ),
    (
        "graph.conv %g, %w strides [1, 0] pads [0, 0, 0, 0] dilations [1, 1] : (!g, !w) -> !y",
        r"strides \[1, 0\] must be at least 1",
    ),
    (
        "graph.conv %g, %w strides [1, 1] pads [0, -1, 0, 0] dilations [1, 1] : (!g, !w) -> !y",
        r"pads \[0, -1, 0, 0\] must be at least 0",
    ),
    (
        "graph.conv %g, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 3] : (!g, !w) -> !y",
        "a window of 7 does not fit spatial dimension 1, which has 5 elements",
    ),
    (
        f"graph.conv %g, %w {PLAIN} group 2 : (!g, !w) -> !y",
        r"4 input channels do not match 4 in the filters times 2 group\(s\)",
    ),
    (
        f"graph.conv %g, %z {PLAIN} group 2 : (!g, !z) -> tensor<1x5x5x5xf32>",
        "5 output channels do not divide into 2 groups",
    ),
    (
        f'graph.conv %n, %k {PLAIN} group 2 layout "NHWC4c" filters "HWOI4i4o" : (!n, !k) -> !n',
        "groups of 4 and 6 channels do not divide into blocks of 4",
    ),
    (
        f'graph.conv %g, %w {PLAIN} group 2 layout "NHWC" filters "HWOI" : (!g, !w) -> !y',
        "the filters of 2 groups of channels are in a layout of their own only where channels have blocks",
    ),
    (f"graph.conv %g, %w {PLAIN} group 0 : (!g, !w) -> !y", "group is 0, must be at least 1"),
    (f"graph.conv %g, %w, %v {PLAIN} : (!g, !w, !v) -> !y", "the bias must have the shape 6, found tensor<4xf32>"),
    (f"graph.conv %g, %x {PLAIN} : (!g, !x) -> !y", "filters tensor<2x3xf32> of rank 2 do not match"),
    (
        f'graph.conv %g, %w {PLAIN} layout "NCWH" : (!g, !w) -> !y',
        'the layout of images is "NCHW", "NHWC", or one of these with blocks of channels, not "NCWH"',
    ),
    (
        "graph.max_pool %x kernel_shape [] strides [] pads [] dilations [] : !x -> !x",
        "has 0 spatial dimensions, supported are 1 to 3",
    ),
    (f"graph.max_pool %g kernel_shape [0, 1] {PLAIN} : !g -> !g", r"kernel_shape \[0, 1\] must be at least 1"),
    ("graph.gemm %x, %x : (!x, !x) -> !x", "the inner sizes 3 of tensor<2x3xf32> and 2 of tensor<2x3xf32> differ"),
    ("graph.gemm %v, %x : (!v, !x) -> !x", "multiplies matrices, found tensor<4xf32>"),
    ("graph.gemm %x, %x, %v trans_b true : (!x, !x, !v) -> tensor<2x2xf32>", "do not broadcast"),
    ("graph.gemm %x, %x, %g trans_b true : (!x, !x, !g) -> tensor<2x2xf32>", "do not broadcast"),
    (
        "graph.matmul %x, %v : (!x, !v) -> tensor<2xf32>",
        "the inner sizes 3 of tensor<2x3xf32> and 4 of tensor<4xf32> differ",
    ),
    ("graph.matmul %c, %v : (!c, !v) -> !c", "multiplies no scalars, found tensor<f32>"),
    (
        "graph.batch_normalization %g, %v, %v, %r, %v : (!g, !v, !v, !r, !v) -> !g",
        "mean must have the shape 4 of dimension 1 of tensor<1x4x5x5xf32>, found tensor<3xf32>",
    ),
    (
        "graph.quantize_linear %x, %v axis 1 : (!x, !v) -> tensor<2x3xi8>",
        "the scale must be a scalar, or have the shape 3 of dimension 1 of tensor<2x3xf32>, found tensor<4xf32>",
    ),
    (
        "graph.quantize_linear %x, %c, %i : (!x, !c, !i) -> tensor<2x3xi8>",
        "the zero point must be of i8 and have the shape of the scale tensor<f32>, found tensor<4xi32>",
    ),
    ("graph.quantize_linear %x, %c : (!x, !c) -> tensor<2x3xi32>", "gives integers of 2 to 16 bits, but"),
    ("graph.quantize_linear %u, %c : (!u, !c) -> tensor<4xi8>", "works on floats and i32, not on ui8"),
    ("graph.dequantize_linear %x, %c : (!x, !c) -> !x", "works on integers of 2 to 16 bits and i32, not on f32"),
    ("graph.dequantize_linear %i, %i : (!i, !i) -> !v", "works on floats, not on i32"),
    ("graph.dequantize_linear %i, %v axis 1 : (!i, !v) -> !v", r"axis 1 is outside 0 to 0 \(rank 1\)"),
    ("graph.softmax %x axis 2 : !x -> !x", r"axis 2 is outside 0 to 1 \(rank 2\)"),
    ("graph.softmax %x axis -1 : !x -> !x", "axis -1 is outside 0 to 1"),
    ("graph.lrn %x size 0 : !x -> !x", "size is 0, must be at least 1"),
    ("graph.reduce_sum %x axes [1, 0] : !x -> tensor<1x1xf32>", r"axes \[1, 0\] must ascend"),
    ("graph.reduce_sum %x axes [2] : !x -> tensor<1x1xf32>", "axis 2 is outside 0 to 1"),
    ("graph.reduce_sum %m axes [0] : !m -> tensor<1xi1>", "works on floats and integers, not on i1"),
    ("graph.reshape %x : !x -> !v", "6 elements of tensor<2x3xf32> do not fit the shape 4"),
    ("graph.reshape %x : !x -> tensor<6xf16>", "result type tensor<6xf16>"),
    ("graph.expand %x : !x -> tensor<4x3xf32>", "2x3 and 4x3 do not broadcast"),
    ("graph.expand %x : !x -> tensor<1x3xf32>", "give tensor<2x3xf32>"),
    ("graph.transpose %x perm [0, 0] : !x -> tensor<2x2xf32>", r"perm \[0, 0\] is no permutation of the 2 dimensions"),
    ("graph.concat %x, %v axis 0 : (!x, !v) -> !x", "differ in more than axis 0"),
    ("graph.concat axis 0 : () -> !x", "needs at least one operand"),
    ("graph.pad %x pads [1, 1] : !x -> tensor<4x3xf32>", r"pads \[1, 1\] must have 4 entries"),
    ("graph.pad %x pads [-1, 0, 0, 0] : !x -> tensor<1x3xf32>", r"must not be negative"),
    ("graph.pad %u pads [1, 1] value 256.0 : !u -> tensor<6xui8>", "the padding value 256.0 is no ui8"),
    ("graph.pad %i pads [1, 1] value 0.5 : !i -> tensor<6xi32>", "the padding value 0.5 is no i32"),
    ("graph.pad %i pads [1, 1] value nan : !i -> tensor<6xi32>", "the padding value nan is no i32"),
    ("graph.slice %x starts [0] sizes [1] steps [1] : !x -> tensor<1xf32>", "must have 2 entries each"),
    (
        "graph.slice %x starts [0, 2] sizes [2, 2] steps [1, 1] : !x -> tensor<2x2xf32>",
        "dimension 1 reads from 2 to 3, outside its 3 elements",
    ),
    ("graph.slice %x starts [0, 2] sizes [2, 2] steps [1, 0] : !x -> tensor<2x2xf32>", "the step of dimension 1 is 0"),
    (
        "graph.slice %x starts [0, 0] sizes [2, -1] steps [1, 1] : !x -> tensor<2x2xf32>",
        "the size of dimension 1 is -1",
    ),
    (
        '"graph.constant"() <{value = dense<1> : vector<2xi64>}> : () -> !i',
        "a constant is a tensor, not a vector<2xi64>",
    ),
]  # fmt: skip
ALIASES = {
    "x": "tensor<2x3xf32>",
    "v": "tensor<4xf32>",
    "r": "tensor<3xf32>",
    "h": "tensor<3xf16>",
    "i": "tensor<4xi32>",
    "u": "tensor<4xui8>",
    "s": "tensor<4xsi32>",
    "m": "tensor<5xi1>",
    "c": "tensor<f32>",
    "d": "tensor<?x3xf32>",
    "e": "tensor<4xf32, 5 : i64>",
    "g": "tensor<1x4x5x5xf32>",
    "w": "tensor<6x4x3x3xf32>",
    "z": "tensor<5x2x1x1xf32>",
    "y": "tensor<1x6x3x3xf32>",
    "n": "tensor<1x5x5x2x4xf32>",
    "k": "tensor<3x3x3x1x4x4xf32>",
}
PRELUDE = "".join(f"!{name} = {text}\n" for name, text in ALIASES.items())
ARGUMENTS = ", ".join(f"%{name}: !{name}" for name in ALIASES)


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_the_verifier_names_what_is_wrong(text: str, message: str) -> None:
    module = parsed(f"{PRELUDE}func.func @f({ARGUMENTS}) {{ %q = {text} func.return }}")
    with pytest.raises(VerifyException, match=message):
        module.verify()


@pytest.mark.parametrize(
    ("body", "types", "message"),
    [
        ("^bb0(%a: tensor<4xf32>): graph.yield %a : tensor<4xf32>", "(tensor<2x3xf32>) -> tensor<4xf32>",
         r"\(tensor<2x3xf32>\) as operands and \(tensor<4xf32>\) as block arguments"),
        ("^bb0(%a: tensor<2x3xf32>): graph.yield %a : tensor<2x3xf32>", "(tensor<2x3xf32>) -> tensor<4xf32>",
         r"yields \(tensor<2x3xf32>\) and has \(tensor<4xf32>\) as results"),
        ("^bb0(%a: tensor<2x3xf32>): graph.yield %x : tensor<2x3xf32>", "(tensor<2x3xf32>) -> tensor<2x3xf32>",
         "defined out of its IsolatedFromAbove parent"),
        ("^bb0(%a: tensor<2x3xf32>): %b = graph.relu %a : tensor<2x3xf32>", "(tensor<2x3xf32>) -> tensor<2x3xf32>",
         "terminates block in single-block region but is not a terminator"),
        ("", "(tensor<2x3xf32>) -> tensor<2x3xf32>", "single block|empty|block"),
    ],
)  # fmt: skip
def test_a_group_must_agree_with_its_region(body: str, types: str, message: str) -> None:
    module = parsed(
        "func.func @f(%x: tensor<2x3xf32>) {"
        f" %y = graph.fused(%x) pattern opaque {{ {body} }} : {types} func.return }}"
    )
    with pytest.raises(VerifyException, match=message):
        module.verify()


def test_a_yield_outside_a_group_is_refused() -> None:
    with pytest.raises(
        VerifyException, match=r"expects parent op to be one of 'graph.fused', 'graph.if', 'graph.loop'"
    ):
        parsed("func.func @f() { graph.yield }").verify()


def test_an_unknown_pattern_kind_is_a_parse_error() -> None:
    with pytest.raises(ParseError):
        parsed("func.func @f() { graph.fused() pattern easy { graph.yield } : () -> () func.return }")


def test_a_constant_of_neither_weight_nor_dense_is_a_parse_error() -> None:
    with pytest.raises(ParseError, match=r"expected #graph.weight<...> or dense<...>"):
        parsed('func.func @f() { %0 = graph.constant "w" : tensor<4xf32> func.return }')
