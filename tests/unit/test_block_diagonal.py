# SPDX-License-Identifier: Apache-2.0
"""Groups of channels joined into blocks that fill a matrix unit: the same values, in fewer cycles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples, sweep
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.context import make_context, store_of
from penstock.dialects.graph import ConvOp
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.graph.block_diagonal import BlockDiagonalPass
from penstock.runtime.compiler import compile_module
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline
from penstock.runtime.simulator.run import run_program


def convolution(groups: int, inputs: int, outputs: int, size: int, element: str = "f32", fill: str = "1.0") -> str:
    """3x3 filters on groups of so many input and output channels; `fill` is what all of them are."""
    total = "f32" if element == "f32" else "i32"
    how = "" if element == "f32" else " accumulate i32"
    x = f"tensor<1x{groups * inputs}x{size}x{size}x{element}>"
    w = f"tensor<{groups * outputs}x{inputs}x3x3x{element}>"
    y = f"tensor<1x{groups * outputs}x{size}x{size}x{total}>"
    return f"""func.func @main(%x: {x} {{graph.name = "x"}}) -> ({y} {{graph.name = "y"}}) {{
      %w = graph.constant dense<{fill}> : {w}
      %y = graph.conv %x, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] group {groups}{how} : ({x}, {w}) -> {y}
      func.return %y : {y}
    }}"""


def groups_of(module: ModuleOp) -> list[int]:
    return [op.group.value.data for op in module.walk() if isinstance(op, ConvOp)]


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 5), st.booleans(), st.integers(0, 1 << 30))
@examples(40)
def test_the_values_are_those_of_the_groups(groups: int, inputs: int, outputs: int, floats: bool, seed: int) -> None:
    ctx = make_context()
    text = convolution(groups, inputs, outputs, 4, *(("f32", "1.0") if floats else ("i8", "1")))
    module = parse_text(ctx, SourceText("conv.mlir", text)).module
    random = np.random.default_rng(seed)
    kind = np.float32 if floats else np.int8
    weights = random.integers(-9, 9, (groups * outputs, inputs, 3, 3)).astype(kind)
    store = store_of(ctx)
    (conv,) = [op for op in module.walk() if isinstance(op, ConvOp)]
    from penstock.passes.graph.values import constant_of

    constant = constant_of(weights, "w", store, conv.location)
    conv.parent_block().insert_op_before(constant, conv)  # pyright: ignore[reportOptionalMemberAccess]
    conv.operands[1] = constant.result
    image = random.integers(-9, 9, (1, groups * inputs, 4, 4)).astype(kind)
    before = run_module(module, [image], store)
    attach_machine(module, "gemmini-fp32" if floats else "gemmini")
    run_passes(ctx, module, [BlockDiagonalPass()])
    module.verify()
    (after,) = groups_of(module)
    assert groups % after == 0
    np.testing.assert_array_equal(run_module(module, [image], store)[0], before[0])


@pytest.mark.parametrize(
    ("machine", "text", "left"),
    [
        ("gemmini", convolution(32, 1, 1, 4, "i8", "1"), 2),
        ("gemmini-fp32", convolution(32, 1, 1, 4), 8),
        ("gemmini-fp32", convolution(6, 2, 2, 4), 3),
        ("gemmini", convolution(24, 1, 1, 4, "i8", "1"), 2),
        ("tpu-v1-like", convolution(512, 1, 1, 4, "i8", "1"), 8),
        ("rapid-core-like", convolution(32, 1, 1, 4), 32),
        ("gap8-like", convolution(32, 1, 1, 4, "i8", "1"), 32),
        ("vta-pynq", convolution(32, 1, 1, 4, "i8", "1"), 32),
        ("host-avx512", convolution(32, 1, 1, 4), 32),
    ],
)
def test_so_many_groups_are_left_as_take_the_least_time(machine: str, text: str, left: int) -> None:
    ctx = make_context()
    module = parse_text(ctx, SourceText("conv.mlir", text)).module
    attach_machine(module, machine)
    run_passes(ctx, module, [BlockDiagonalPass()])
    assert groups_of(module) == [left]


def test_filters_that_are_not_finite_keep_to_their_channels() -> None:
    ctx = make_context()
    module = parse_text(ctx, SourceText("conv.mlir", convolution(8, 1, 1, 4, fill="0x7F800000"))).module
    attach_machine(module, "gemmini-fp32")
    run_passes(ctx, module, [BlockDiagonalPass()])
    assert groups_of(module) == [8]


def cycles(machine: str, text: str, *, joined: bool) -> int:
    ctx = make_context()
    module = parse_text(ctx, SourceText("conv.mlir", text)).module
    if joined:
        compile_module(module, ctx, machine, "accel")
    else:
        attach_machine(module, machine)
        specs = [spec for spec in pipeline("accel", machine) if spec != "block-diagonal"]
        run_passes(ctx, module, read_pipeline(",".join(specs)))
    return run_program(module).cycles


@pytest.mark.parametrize(
    ("machine", "channels", "element", "least"),
    sweep(
        [
            ("gemmini", 32, "i8", 12),
            ("gemmini-fp32", 32, "f32", 3.5),  # its mesh is four wide
            ("snax-opengemm", 64, "i8", 10),
            ("snitch-cluster", 32, "f32", 10),
            ("tpu-v1-like", 64, "i8", 40),
        ],
        lambda value: value[0] in ("gemmini", "gemmini-fp32"),
    ),
)
def test_a_depthwise_convolution_takes_a_fraction_of_its_cycles(
    machine: str, channels: int, element: str, least: float
) -> None:
    text = convolution(channels, 1, 1, 14, element, "1.0" if element == "f32" else "1")
    assert cycles(machine, text, joined=False) >= least * cycles(machine, text, joined=True)
