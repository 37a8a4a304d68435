# SPDX-License-Identifier: Apache-2.0
"""What no command of a machine can say stays on the host, with the reason, instead of being refused late."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray
from sampling import sweep
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.passes.analysis.kernels import Placement, device_of, host_reasons, joined_remarks, kernels
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline

if TYPE_CHECKING:
    from tests.conftest import Command

Array = NDArray[np.float32]
FLOAT_MACHINES = ("gemmini-fp32", "h100-sm", "neural-accelerator", "neural-cluster", "rapid-core-like", "smaug-smv")

PAD_AT_THE_END = """
func.func @main(%x: tensor<2x3xf16>) -> tensor<3x5xf32> {
  %y = graph.fused(%x) pattern injective {
  ^bb0(%x_1: tensor<2x3xf16>):
    %wide = graph.cast %x_1 : tensor<2x3xf16> -> tensor<2x3xf32>
    %y_1 = graph.pad %wide pads [1, 1, 0, 1] value 0.1 : tensor<2x3xf32> -> tensor<3x5xf32>
    graph.yield %y_1 : tensor<3x5xf32>
  } : (tensor<2x3xf16>) -> tensor<3x5xf32>
  func.return %y : tensor<3x5xf32>
}
"""
PAD_IN_FRONT = """
func.func @main(%x: tensor<2x3xf32>) -> tensor<3x5xf32> {
  %p = graph.pad %x pads [1, 1, 0, 1] value -1.0 : tensor<2x3xf32> -> tensor<3x5xf32>
  %y = graph.relu %p : tensor<3x5xf32>
  func.return %y : tensor<3x5xf32>
}
"""
PAD_OF_HALVES = """
func.func @main(%x: tensor<2x3xf16>) -> tensor<3x5xf32> {
  %p = graph.pad %x pads [1, 1, 0, 1] value -1.0 : tensor<2x3xf16> -> tensor<3x5xf16>
  %y = graph.cast %p : tensor<3x5xf16> -> tensor<3x5xf32>
  func.return %y : tensor<3x5xf32>
}
"""
SCALARS = """
func.func @main(%x: tensor<f32>, %v: tensor<8x4xf32>) -> (tensor<f32>, tensor<f32>) {
  %y = graph.relu %x : tensor<f32>
  %sum = graph.add %y, %x : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %all = graph.reduce_sum %v axes [0, 1] keepdims false : tensor<8x4xf32> -> tensor<f32>
  %z = graph.mul %sum, %all : (tensor<f32>, tensor<f32>) -> tensor<f32>
  func.return %y, %z : tensor<f32>, tensor<f32>
}
"""
NOTHING = """
func.func @main(%x: tensor<3x0xf32>, %w: tensor<0x4xf32>) -> (tensor<3x4xf32>, tensor<3x0xf32>) {
  %y = graph.matmul %x, %w : (tensor<3x0xf32>, tensor<0x4xf32>) -> tensor<3x4xf32>
  %z = graph.relu %x : tensor<3x0xf32>
  func.return %y, %z : tensor<3x4xf32>, tensor<3x0xf32>
}
"""


def run(text: str, machine: str, inputs: list[Array]) -> tuple[list[Array], list[str]]:
    """The outputs at accel level, and the remarks of the kernels on the host."""
    ctx = make_context()
    module = Parser(ctx, text).parse_module()
    attach_machine(module, machine)
    run_passes(ctx, module, read_pipeline(",".join(pipeline("accel", machine))))
    remarks = [str(k.attributes["device_remark"]) for k in kernels(module) if device_of(k) == "host"]
    return run_module(module, inputs, ctx.weights), remarks


@pytest.mark.parametrize("machine", sweep(FLOAT_MACHINES, FLOAT_MACHINES[3::4]))
def test_a_result_that_is_padded_is_the_hosts(machine: str) -> None:
    x = np.arange(6).reshape(2, 3)
    (y,), remarks = run(PAD_AT_THE_END, machine, [x.astype(np.float16).view()])  # pyright: ignore[reportArgumentType]
    np.testing.assert_array_equal(y, np.pad(x.astype(np.float32), ((1, 0), (1, 1)), constant_values=np.float32(0.1)))
    assert len(remarks) == 1


def test_the_reason_is_the_pad() -> None:
    _, remarks = run(PAD_AT_THE_END, "h100-sm", [np.zeros((2, 3), np.float16)])  # pyright: ignore[reportArgumentType]
    assert "of a pad around it" in remarks[0]


@pytest.mark.parametrize("machine", sweep(FLOAT_MACHINES, FLOAT_MACHINES[0::4]))
def test_what_no_engine_and_no_intrinsic_pads_is_the_hosts(machine: str) -> None:
    x = np.arange(-3, 3).reshape(2, 3).astype(np.float32)
    (y,), remarks = run(PAD_IN_FRONT, machine, [x])
    np.testing.assert_array_equal(y, np.pad(np.maximum(x, 0), ((1, 0), (1, 1))))
    assert bool(remarks) == (machine in ("gemmini-fp32", "smaug-smv")), "the others have an intrinsic that fills"


def test_the_engine_that_would_pad_is_named() -> None:
    # The operand comes through a scope between, and nothing fills f16 but with 0: the engine behind it must pad.
    image = np.zeros((2, 3), np.float16)
    _, remarks = run(PAD_OF_HALVES, "neural-cluster", [image])  # pyright: ignore[reportArgumentType]
    assert "@load_core pads 0" in remarks[0]


@pytest.mark.parametrize("machine", sweep(FLOAT_MACHINES, FLOAT_MACHINES[1::4]))
def test_scalars_run_wherever_they_are_put(machine: str) -> None:
    v = np.arange(32).reshape(8, 4).astype(np.float32)
    (y, z), _ = run(SCALARS, machine, [np.array(3, np.float32), v])
    assert (float(y), float(z)) == (3.0, 6.0 * float(v.sum()))


@pytest.mark.parametrize("machine", sweep(FLOAT_MACHINES, FLOAT_MACHINES[2::4]))
def test_tensors_without_elements_are_the_hosts(machine: str) -> None:
    (y, z), remarks = run(NOTHING, machine, [np.zeros((3, 0), np.float32), np.zeros((0, 4), np.float32)])
    np.testing.assert_array_equal(y, np.zeros((3, 4)))
    assert z.shape == (3, 0)
    assert any("no elements" in remark for remark in remarks)


def test_a_machine_that_cannot_reset_its_accumulator_leaves_products_to_the_host(
    repository: Path, tmp_path: Path
) -> None:
    shipped = (repository / "machines" / "gemmini-fp32.toml").read_text()
    reset = 'name = "zero_acc"\ndma = "mvin"\nbehaviour = "dst[i,j] = 0"'
    assert reset in shipped
    (tmp_path / "m.toml").write_text(shipped.replace(reset, reset.replace("= 0", "= 1")))
    text = """
    func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x4xf32>) -> tensor<4x4xf32> {
      %y = graph.matmul %x, %w : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
      func.return %y : tensor<4x4xf32>
    }
    """
    (y,), remarks = run(text, str(tmp_path / "m.toml"), [np.ones((4, 8), np.float32), np.ones((8, 4), np.float32)])
    np.testing.assert_array_equal(y, np.full((4, 4), 8))
    assert len(remarks) == 1
    assert '@gemm needs in "acc" what @zero_spad leaves in "spad"' in remarks[0].replace("\\22", '"')


SOFTMAX = """
func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %y = graph.softmax %x axis 1 : tensor<4x8xf32> -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}
"""


@pytest.mark.parametrize("words", [("check",), ("compile", "--emit", "accel"), ("report",), ("plan",), ("simulate",)])
def test_a_machine_that_computes_nothing_of_a_program_is_told_with_a_reason_for_each_kind_of_op(
    penstock: Command, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "m.mlir").write_text(SOFTMAX)
    finished = penstock(*words, "m.mlir", "--machine", "gemmini-fp32", "-q")
    is_fault = words == ("simulate",)
    assert finished.status == int(is_fault)
    heading, *notes = finished.err.splitlines()
    kind = "error" if is_fault else "warning"
    assert heading == f'm.mlir: {kind}: nothing runs on the machine "gemmini-fp32"'
    assert notes[0] == "note: the host runs fused_0"
    assert notes[1] == "note: because no intrinsic computes arith.maximumf in a reduction"
    assert any("math.exp" in note for note in notes)
    assert len(notes) == len(set(notes)) <= 7


def test_reasons_for_the_host_are_data_of_the_report(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text(SOFTMAX)
    done = penstock("compile", "m.mlir", "--machine", "gemmini-fp32", "--emit", "accel", "--report", "r.json")
    assert done.status == 0
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["machine_kernels"] == 0
    assert report["host_reasons"]["no intrinsic computes arith.maximumf in a reduction"] == 1
    assert len(report["host_reasons"]) > 2


def test_a_machine_that_computes_a_part_or_that_is_the_host_is_no_warning(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text(SOFTMAX)
    assert penstock("compile", "m.mlir", "--machine", "host-avx2", "--emit", "loop", "-q").err == ""
    part = SOFTMAX.replace("return %y", "return %z").replace(
        "  func.return",
        "  %z = graph.matmul %y, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>\n  func.return",
    )
    (tmp_path / "n.mlir").write_text(part.replace("%x: tensor<4x8xf32>)", "%x: tensor<4x8xf32>, %w: tensor<8x8xf32>)"))
    assert penstock("compile", "n.mlir", "--machine", "gemmini-fp32", "--emit", "loop", "-q").err == ""


def test_remarks_are_joined_with_each_reason_once() -> None:
    joined = joined_remarks(['"a": no exp', 'm.pk:1:2: no exp; also "c": dim i: x; dim j: y', ""])
    assert joined == '"a": no exp; also "c": dim i: x; dim j: y'
    placement = Placement("k", "", "host", 2, 1, 0, joined, 0, "", "")
    assert host_reasons([placement, replace(placement, calls=1, remark="no exp")]) == {
        "no exp": 3,
        "dim i: x; dim j: y": 2,
    }
    named = r'"a; also \"b": no exp; also "c": no log'
    assert joined_remarks([named]) == named
    assert host_reasons([replace(placement, remark=named)]) == {"no exp": 2, "no log": 2}
