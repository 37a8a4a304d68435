# SPDX-License-Identifier: Apache-2.0
"""
Random kernels go down the whole spine for gemmini-fp32, and every level computes what NumPy does.

Inputs are small integers, so sums are exact in any order and the comparison is bitwise. At the accelerator
level the commands also run in pseudo-random legal orders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from graph_kernels import Program, integers, matmul, tensor
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sampling import examples
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import WeightStore
from penstock.passes.analysis.kernels import partition
from penstock.runtime.compiler import compile_module
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline

Array = NDArray[Any]


def convolution(h: int, w: int, ic: int, oc: int, k: int, stride: int, pad: int, residual: bool) -> Program:
    rng = np.random.default_rng(h * 1009 + w * 31 + ic * 7 + oc)
    x, weight, bias = integers(rng, 1, ic, h, w), integers(rng, oc, ic, k, k), integers(rng, oc)
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    oh, ow = (h + 2 * pad - k) // stride + 1, (w + 2 * pad - k) // stride + 1
    windows = np.lib.stride_tricks.sliding_window_view(padded, (k, k), (2, 3))[:, :, ::stride, ::stride]
    expected = np.einsum("nchwij,ocij->nohw", windows, weight) + bias[:, None, None]
    other = integers(rng, 1, oc, oh, ow)
    result, types = tensor(1, oc, oh, ow), f"({tensor(*x.shape)}, {tensor(*weight.shape)}, {tensor(oc)})"
    body = (
        f"%c = graph.conv %x, %w, %b strides [{stride}, {stride}] pads [{pad}, {pad}, {pad}, {pad}] "
        f"dilations [1, 1] : {types} -> {result}\n"
    )
    value = "%c"
    if residual:
        body += f"%s = graph.add %c, %o : ({result}, {result}) -> {result}\n"
        value, expected = "%s", expected + other
    body += f"%r = graph.relu {value} : {result}\n"
    arguments = f"%x: {tensor(*x.shape)}, %w: {tensor(*weight.shape)}, %b: {tensor(oc)}, %o: {result}"
    text = f"""func.func @main({arguments}) -> {result} {{
      {body} func.return %r : {result}
    }}"""
    return Program(text, [x, weight, bias, other], np.maximum(expected, 0).astype(np.float32))


@dataclass
class Comparer:
    """After every pass, the program still computes the same bits."""

    program: Program
    ran: list[str]

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None: ...

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        got = run_module(module, self.program.inputs, WeightStore())[0]
        np.testing.assert_array_equal(got, self.program.expected, err_msg=f"after {module_pass.name}")
        self.ran.append(module_pass.name)


def check(program: Program, tile: str | None = None) -> ModuleOp:
    module, ctx = program.parse()
    attach_machine(module, "gemmini-fp32")
    specs = [tile if tile and spec == "tile" else spec for spec in pipeline("accel", "gemmini-fp32")]
    comparer = Comparer(program, [])
    run_passes(ctx, module, read_pipeline(",".join(specs)), observers=[comparer])
    assert "loop-to-accel" in comparer.ran
    assert any(isinstance(op, ExecOp) for op in module.walk()), "nothing ran on the machine"
    for seed in range(3):
        got = run_module(module, program.inputs, WeightStore(), seed=seed)[0]
        np.testing.assert_array_equal(got, program.expected, err_msg=f"commands in the order of seed {seed}")
    return module


@examples(12)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.booleans(), st.booleans())
def test_a_matmul_with_its_epilogues_is_the_same_at_every_level(m: int, n: int, k: int, bias: bool, relu: bool) -> None:
    check(matmul(m, n, k, bias, relu))


@examples(10)
@given(st.tuples(st.integers(1, 9), st.integers(1, 9)), st.data())
def test_a_matmul_in_tiles_that_do_not_divide_is_the_same_at_every_level(
    tile: tuple[int, int], data: st.DataObject
) -> None:
    k = data.draw(st.sampled_from([6, 12]))
    cut = data.draw(st.sampled_from([1, 2, 3, 6]))
    m, n = data.draw(st.integers(tile[0], 23)), data.draw(st.integers(tile[1], 23))
    check(matmul(m, n, k, True, True), f"tile{{sizes={tile[0]},{tile[1]},{cut}}}")


@examples(12)
@given(
    st.integers(5, 12),
    st.integers(5, 12),
    st.sampled_from([1, 3, 10]),
    st.sampled_from([1, 6, 16]),
    st.sampled_from([(1, 0), (3, 0), (3, 1), (5, 2)]),
    st.sampled_from([1, 2]),
    st.booleans(),
)
def test_a_convolution_is_the_same_at_every_level(
    h: int, w: int, ic: int, oc: int, window: tuple[int, int], stride: int, residual: bool
) -> None:
    check(convolution(h, w, ic, oc, window[0], stride, window[1], residual))


@examples(8)
@given(st.integers(3, 4), st.integers(3, 6), st.sampled_from([4, 8]), st.sampled_from([1, 2, 4]), st.booleans())
@example(3, 3, 4, 1, False)
def test_a_convolution_in_tiles_is_the_same_at_every_level(
    th: int, tw: int, toc: int, tic: int, residual: bool
) -> None:
    check(convolution(7, 6, 4, 8, 3, 1, 1, residual), f"tile{{sizes=1,{th},{tw},{toc},3,3,{tic}}}")


def test_every_token_is_needed() -> None:
    """Delete one dependency at a time: some order of the commands must show it."""
    program = convolution(9, 8, 4, 8, 3, 1, 1, True)
    reference = check(program, "tile{sizes=1,4,4,8,3,3,2}")
    commands = [op for op in reference.walk() if isinstance(op, DmaOp | ExecOp) and op.dependencies]
    survived: list[str] = []
    for number in range(len(commands)):
        mutant = reference.clone()
        command = [op for op in mutant.walk() if isinstance(op, DmaOp | ExecOp) and op.dependencies][number]
        Rewriter.replace_op(command, without_dependencies(command))
        if not _is_noticed(mutant, program):
            survived.append(str(command))
    summary = f"{len(survived)} of {len(commands)} mutants pass:\n" + "\n".join(survived)
    # One token says what is so anyway: the load unit starts its transfers in order, and the one in front of this one
    # waits for the same command.
    assert len(survived) <= 1, summary


def without_dependencies(op: DmaOp | ExecOp) -> DmaOp | ExecOp:
    if isinstance(op, ExecOp):
        return ExecOp(op.intrinsic_name, op.extents.get_values(), list(op.maps), list(op.buffers))
    return DmaOp(
        op.source,
        op.dest,
        op.engine.data,
        source_offsets=op.mixed_source_offsets() if op.window_side == "source" else (),
        dest_offsets=op.mixed_dest_offsets() if op.window_side == "dest" else (),
        padding=op.padding,
        clipped=op.clipped is not None,
    )


def _is_noticed(mutant: ModuleOp, program: Program) -> bool:
    for seed in range(12):
        try:
            got = run_module(mutant, program.inputs, WeightStore(), seed=seed)[0]
        except UserError:
            return True
        if not np.array_equal(got, program.expected):
            return True
    return False


def test_what_no_intrinsic_covers_stays_on_the_host_and_still_runs() -> None:
    program = matmul(8, 8, 8, True, False)
    text = program.text.replace("func.return %s", "%t = graph.tanh %s : tensor<8x8xf32>\nfunc.return %t")
    module, ctx = Program(text, [], program.expected).parse()
    compile_module(module, ctx, "gemmini-fp32", "accel")
    got = run_module(module, program.inputs, WeightStore())[0]
    assert got == pytest.approx(np.tanh(program.expected), abs=1e-6)
    assert any(isinstance(op, ExecOp) for op in module.walk())


@examples(8)
@given(st.integers(5, 23), st.integers(2, 7), st.integers(3, 12))
def test_a_reduction_may_run_past_its_end_into_zeros(k: int, cut: int, n: int) -> None:
    check(matmul(7, n, k, True, True), f"tile{{sizes=4,{n},{cut}}}")


@pytest.mark.parametrize("tic", [3, 4, 7])
def test_the_channels_of_a_padded_convolution_may_run_past_their_end(tic: int) -> None:
    module = check(convolution(6, 5, 10, 8, 3, 1, 1, False), f"tile{{sizes=1,3,5,8,3,3,{tic}}}")
    tilings = [placement.tiling for placement in partition(module) if placement.tiling]
    assert any("reads zeros" in tiling for tiling in tilings)
