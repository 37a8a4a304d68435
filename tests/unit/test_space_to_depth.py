# SPDX-License-Identifier: Apache-2.0
"""A first convolution with a stride as one of more channels without: the same values, in fewer cycles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sampling import examples
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.context import PenstockContext, make_context, store_of
from penstock.dialects.graph import ConvOp
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.graph.space_to_depth import SpaceToDepthPass
from penstock.passes.graph.values import constant_of
from penstock.passes.shapes import shape_of
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline
from penstock.runtime.simulator.run import run_program

CASE = st.tuples(
    st.lists(
        st.tuples(st.integers(4, 17), st.integers(1, 7), st.integers(1, 4), st.integers(0, 3), st.integers(0, 3)),
        min_size=1,
        max_size=2,
    ),
    st.integers(1, 2),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
    st.integers(0, 1 << 30),
).filter(lambda case: all(size + before + after >= kernel for size, kernel, _, before, after in case[0]))
"""Of each dim of the image its size, kernel, stride and pads; images, channels, floats, a bias, a seed."""


def convolution(
    dims: list[tuple[int, int, int, int, int]], images: int, channels: int, element: str, *, biased: bool = False
) -> str:
    """A convolution to eight channels of an argument that is rectified."""
    total, one, how = ("f32", "1.0", "") if element == "f32" else ("i32", "1", " accumulate i32")

    def sizes(values: list[int]) -> str:
        return "x".join(map(str, values))

    x = f"tensor<{images}x{channels}x{sizes([size for size, *_ in dims])}x{element}>"
    w = f"tensor<8x{channels}x{sizes([kernel for _, kernel, *_ in dims])}x{element}>"
    out = [(size + before + after - kernel) // stride + 1 for size, kernel, stride, before, after in dims]
    y = f"tensor<{images}x8x{sizes(out)}x{total}>"
    b = f"tensor<8x{total}>"
    pads = [each[3] for each in dims] + [each[4] for each in dims]
    operands, types = ("%r, %w, %b", f"{x}, {w}, {b}") if biased else ("%r, %w", f"{x}, {w}")
    return f"""func.func @main(%x: {x} {{graph.name = "x"}}) -> ({y} {{graph.name = "y"}}) {{
      %w = graph.constant dense<{one}> : {w}
      %b = graph.constant dense<{"3.0" if element == "f32" else "3"}> : {b}
      %r = graph.relu %x : {x}
      %y = graph.conv {operands} strides {[each[2] for each in dims]} pads {pads} dilations {[1] * len(dims)}{how}
          : ({types}) -> {y}
      func.return %y : {y}
    }}"""


def give_filters(ctx: PenstockContext, module: ModuleOp, make: Callable[[tuple[int, ...]], NDArray[Any]]) -> None:
    """Give the convolution the filters that `make` makes of their shape."""
    (conv,) = [op for op in module.walk() if isinstance(op, ConvOp)]
    old: Any = conv.w.owner
    constant = constant_of(make(shape_of(conv.w)), "w", store_of(ctx), conv.location)
    old.parent_block().insert_op_before(constant, old)
    conv.operands[1] = constant.result


@given(CASE)
@examples(120)
def test_the_values_are_the_same_bit_for_bit(case: Any) -> None:
    dims, images, channels, floats, biased, seed = case
    ctx, element = make_context(), "f32" if floats else "i8"
    text = convolution(dims, images, channels, element, biased=biased)
    module = parse_text(ctx, SourceText("conv.mlir", text)).module
    random, kind = np.random.default_rng(seed), np.float32 if floats else np.int8
    give_filters(ctx, module, lambda shape: random.integers(-9, 9, shape).astype(kind))
    image = random.integers(-9, 9, (images, channels, *(size for size, *_ in dims))).astype(kind)
    before = run_module(module, [image], store_of(ctx))
    attach_machine(module, "snitch-cluster" if floats else "vta-pynq")
    # Small images gain nothing, and are to be right all the same.
    with patch("penstock.passes.graph.space_to_depth._FirstConvolutions._gains", return_value=True):
        run_passes(ctx, module, [SpaceToDepthPass()])
    module.verify()
    np.testing.assert_array_equal(run_module(module, [image], store_of(ctx))[0], before[0])


@pytest.mark.parametrize(
    ("machine", "dims", "channels", "element", "filters"),
    [
        ("vta-pynq", [(224, 7, 2, 3, 3)] * 2, 3, "i8", (8, 12, 4, 4)),
        ("vta-pynq", [(224, 3, 2, 1, 1)] * 2, 3, "i8", (8, 12, 2, 2)),
        # The stride does not divide the image, which is padded.
        ("vta-pynq", [(299, 3, 2, 0, 0)] * 2, 3, "i8", (8, 12, 2, 2)),
        # Zeros before the filter would make it longer: they are put before the image.
        ("vta-pynq", [(227, 11, 4, 2, 2)] * 2, 3, "i8", (8, 48, 3, 3)),
        ("vta-pynq", [(64, 16, 16, 0, 0)] * 2, 3, "i8", (8, 768, 1, 1)),
        ("smaug-smv", [(400, 10, 5, 0, 0)], 1, "f32", (8, 5, 2)),
        # It would no longer stay on chip, and its bus is slow.
        ("rapid-core-like", [(64, 16, 16, 0, 0)] * 2, 3, "f32", None),
        # As many channels as the unit multiplies: nothing is idle.
        ("vta-pynq", [(16, 4, 2, 0, 0)] * 2, 16, "i8", None),
        ("vta-pynq", [(16, 3, 1, 1, 1)] * 2, 3, "i8", None),
        ("host-avx512", [(224, 7, 2, 3, 3)] * 2, 3, "f32", None),
    ],
)
def test_the_filters_are_those_that_take_the_least_time(
    machine: str, dims: list[tuple[int, int, int, int, int]], channels: int, element: str, filters: Any
) -> None:
    ctx = make_context()
    module = parse_text(ctx, SourceText("conv.mlir", convolution(dims, 1, channels, element))).module
    attach_machine(module, machine)
    run_passes(ctx, module, [SpaceToDepthPass()])
    (conv,) = [op for op in module.walk() if isinstance(op, ConvOp)]
    found: Any = conv.w.type
    assert found.get_shape() == (filters or (8, channels, *(kernel for _, kernel, *_ in dims)))
    assert (max(conv.strides.get_values()) == 1) == (filters is not None or all(each[2] == 1 for each in dims))


def test_images_whose_sizes_are_not_known_stay_as_they_are() -> None:
    ctx = make_context()
    text = convolution([(16, 7, 2, 3, 3)] * 2, 1, 3, "i8")
    text = text.replace('graph.name = "x"', 'graph.dims = ["N", "", "", ""]').replace("<1x", "<?x")
    module = parse_text(ctx, SourceText("conv.mlir", text)).module
    attach_machine(module, "vta-pynq")
    run_passes(ctx, module, [SpaceToDepthPass()])
    assert [tuple(op.strides.get_values()) for op in module.walk() if isinstance(op, ConvOp)] == [(2, 2)]


def test_filters_that_are_not_finite_stay_as_they_are() -> None:
    ctx = make_context()
    text = convolution([(16, 7, 2, 3, 3)] * 2, 1, 1, "f32")
    module = parse_text(ctx, SourceText("conv.mlir", text.replace("dense<1.0>", "dense<0x7F800000>"))).module
    attach_machine(module, "gemmini-fp32")
    run_passes(ctx, module, [SpaceToDepthPass()])
    assert [tuple(op.strides.get_values()) for op in module.walk() if isinstance(op, ConvOp)] == [(2, 2)]


def test_what_the_machine_computes_is_not_brought_back_to_the_host() -> None:
    ctx = make_context()
    text = convolution([(16, 7, 2, 3, 3)] * 2, 1, 3, "i8")
    pool = "graph.max_pool %x kernel_shape [1, 1] strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1]"
    image = "tensor<1x3x16x16xi8>"
    text = text.replace(f"graph.relu %x : {image}", f"{pool} : {image} -> {image}")
    module = parse_text(ctx, SourceText("conv.mlir", text)).module
    attach_machine(module, "vta-pynq")
    run_passes(ctx, module, [SpaceToDepthPass()])
    assert [tuple(op.strides.get_values()) for op in module.walk() if isinstance(op, ConvOp)] == [(2, 2)]


def test_a_first_layer_takes_a_third_of_its_cycles_on_vta() -> None:
    x, w, y = "tensor<1x3x32x32xi8>", "tensor<16x3x7x7xi8>", "tensor<1x16x16x16xi32>"
    text = f"""func.func @main(%x: {x} {{graph.name = "x"}}) -> (tensor<1x16x16x16xi8> {{graph.name = "y"}}) {{
      %w = graph.constant dense<1> : {w}
      %s = graph.conv %x, %w strides [2, 2] pads [3, 3, 3, 3] dilations [1, 1] accumulate i32 : ({x}, {w}) -> {y}
      %by = graph.constant dense<6> : tensor<i32>
      %d = graph.shift_right %s, %by : ({y}, tensor<i32>) -> {y}
      %c = graph.clip %d min 0.0 max 127.0 : {y}
      %y = graph.cast %c : {y} -> tensor<1x16x16x16xi8>
      func.return %y : tensor<1x16x16x16xi8>
    }}"""
    cycles: list[int] = []
    for left_out in ("space-to-depth", ""):
        ctx = make_context()
        module = parse_text(ctx, SourceText("conv.mlir", text)).module
        attach_machine(module, "vta-pynq")
        specs = [spec for spec in pipeline("accel", "vta-pynq") if spec != left_out]
        run_passes(ctx, module, read_pipeline(",".join(specs)))
        cycles.append(run_program(module).cycles)
    assert cycles[0] > 2.5 * cycles[1]
