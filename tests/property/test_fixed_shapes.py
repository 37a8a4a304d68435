# SPDX-License-Identifier: Apache-2.0
"""
Random extents on machines whose intrinsics have random fixed shapes: tensor, loop, accelerator and C agree bitwise.

Inputs are small integers, so sums are exact in any order. Whatever the extents, the product runs on the machine:
a tile is a multiple of the block, the last one overlaps, or reads zeros, and what is shorter than a block is padded.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from graph_kernels import Program, integers, matmul, tensor
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sampling import examples
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import WeightStore
from penstock.passes.analysis.kernels import HOST, device_of, kernels, partition, share_on_machine
from penstock.passes.toolchain import find_compiler
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline

Array = NDArray[Any]
BLOCKS = Path(__file__).parents[1] / "machines" / "blocks.toml"


@dataclass(frozen=True)
class Machine:
    """The machine of the tests with other numbers."""

    block: tuple[int, int, int]
    lanes: str = "[1, 16]"
    granule: int = 16
    size: int = 65536

    def attach(self, module: ModuleOp) -> None:
        text = BLOCKS.read_text()
        m, n, k = self.block
        for old, new in (
            ("{ m = 4, n = 4, k = 4 }", f"{{ m = {m}, n = {n}, k = {k} }}"),
            ("{ n = [1, 16] }", f"{{ n = {self.lanes} }}"),
            ("granule = 16", f"granule = {self.granule}"),
            ("size = 65536", f"size = {self.size}"),
        ):
            assert old in text
            text = text.replace(old, new)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "blocks.toml"
            path.write_text(text)
            attach_machine(module, str(path))


def convolution(h: int, w: int, ic: int, oc: int, k: int, stride: int, pad: int) -> Program:
    rng = np.random.default_rng(h * 1009 + w * 31 + ic * 7 + oc)
    x, weight, bias = integers(rng, 1, h, w, ic), integers(rng, k, k, ic, oc), integers(rng, oc)
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (k, k), (1, 2))[:, ::stride, ::stride]
    expected = np.einsum("nhwcij,ijco->nhwo", windows, weight) + bias
    other = integers(rng, *expected.shape)
    result, types = tensor(*expected.shape), f"({tensor(*x.shape)}, {tensor(*weight.shape)}, {tensor(oc)})"
    arguments = f"%x: {tensor(*x.shape)}, %w: {tensor(*weight.shape)}, %b: {tensor(oc)}, %o: {result}"
    text = f"""func.func @main({arguments}) -> {result} {{
      %c = graph.conv %x, %w, %b strides [{stride}, {stride}] pads [{pad}, {pad}, {pad}, {pad}] dilations [1, 1]
          layout "NHWC" : {types} -> {result}
      %s = graph.add %c, %o : ({result}, {result}) -> {result}
      %r = graph.relu %s : {result}
      func.return %r : {result}
    }}"""
    return Program(text, [x, weight, bias, other], np.maximum(expected + other, 0).astype(np.float32))


def check(program: Program, machine: Machine, *, everything: bool = True) -> ModuleOp:
    """Every level computes the same bits; returns the module at accelerator level."""
    ctx = make_context()
    module = Parser(ctx, program.text).parse_module()
    machine.attach(module)
    done = 0
    for until in ("tensor", "loop", "accel"):
        specs = pipeline(until, "blocks")
        run_passes(ctx, module, read_pipeline(",".join(specs[done:])))
        done = len(specs)
        got = run_module(module, program.inputs, WeightStore())[0]
        np.testing.assert_array_equal(got, program.expected, err_msg=f"at {until} level")
    for seed in range(2):
        got = run_module(module, program.inputs, WeightStore(), seed=seed)[0]
        np.testing.assert_array_equal(got, program.expected, err_msg=f"commands in the order of seed {seed}")
    if has_compiler():
        np.testing.assert_array_equal(Engine(module, ctx)(*program.inputs)[0], program.expected, err_msg="in C")
    assert share_on_machine(partition(module)) == 1.0
    if everything:
        assert [p.remark for p in partition(module) if p.device == HOST] == []
    return module


def has_compiler() -> bool:
    try:
        find_compiler()
    except UserError:
        return False
    return True


BLOCK = st.tuples(*[st.sampled_from([1, 2, 3, 4, 8, 16])] * 3)


@examples(10)
@given(
    st.tuples(*[st.integers(1, 40)] * 3),
    BLOCK,
    st.sampled_from(["[1, 16]", "4", "16", "[3, 5]"]),
    st.sampled_from([4, 16, 64]),
    st.booleans(),
    st.booleans(),
)
def test_a_matmul_of_any_extents_runs_on_blocks_of_any_shape(
    extents: tuple[int, int, int], block: tuple[int, int, int], lanes: str, granule: int, bias: bool, relu: bool
) -> None:
    check(matmul(*extents, bias, relu), Machine(block, lanes, granule))


@examples(5)
@given(st.tuples(*[st.integers(10, 40)] * 3), BLOCK, st.integers(3000, 6000))
def test_a_matmul_in_a_small_scratchpad_runs_in_tiles_of_whole_blocks(
    extents: tuple[int, int, int], block: tuple[int, int, int], size: int
) -> None:
    module = check(matmul(*extents, True, True), Machine(block, "[1, 16]", 4, size // 4 * 4))
    assert next(device_of(kernel) for kernel in kernels(module)) != HOST


@examples(7)
@given(
    st.integers(3, 12),
    st.integers(3, 12),
    st.sampled_from([1, 3, 8, 10]),
    st.sampled_from([1, 6, 16]),
    st.sampled_from([(1, 0), (3, 0), (3, 1)]),
    st.sampled_from([1, 2]),
    BLOCK,
)
def test_a_convolution_of_any_extents_runs_on_blocks_of_any_shape(
    h: int, w: int, ic: int, oc: int, window: tuple[int, int], stride: int, block: tuple[int, int, int]
) -> None:
    check(convolution(h, w, ic, oc, window[0], stride, window[1]), Machine(block))
