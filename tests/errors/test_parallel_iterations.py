# SPDX-License-Identifier: Apache-2.0
"""Iterations that run at once and must not: a race is refused where it is, and a schedule that would make one, too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from tests.conftest import Command

RACY = """func.func @main(%x: memref<4xf32> {graph.name = "x"}, %y: memref<4xf32> {graph.output = "y"}) {
  %zero = arith.constant 0 : index
  scf.forall (%i) in (4) {
    %v = memref.load %x[%i] : memref<4xf32>
    memref.store %v, %y[%zero] : memref<4xf32>
  }
  func.return
}
"""
DIVERGENT = """func.func @main(%x: memref<4xf32> {graph.name = "x"}, %y: memref<4xf32> {graph.output = "y"}) {
  %two = arith.constant 2 : index
  scf.forall (%i) in (4) {
    %p = arith.cmpi ult, %i, %two : index
    scf.if %p {
      gpu.barrier
    }
  }
  func.return
}
"""


@pytest.mark.parametrize("order", ["asap", "alap", "7"])
def test_a_race_names_both_ops_and_the_buffer(order: str, tmp_path: Path, penstock: Command) -> None:
    path, data = tmp_path / "racy.mlir", tmp_path / "x.npy"
    path.write_text(RACY, encoding="utf-8")
    np.save(data, np.zeros(4, np.float32))
    finished = penstock("run", path, "--input", data, "--interleaving", order, "--output-dir", tmp_path)
    assert finished.status == 1
    assert "racy.mlir:5:5: error: data race: memref.store in iteration (" in finished.err
    assert "writes %y, which memref.store in iteration (" in finished.err
    assert (
        "note: iterations of scf.forall run at once: let a barrier be between this and the memref.store" in finished.err
    )
    assert "Traceback" not in finished.err


def test_a_barrier_that_some_iterations_pass_by_is_refused_in_the_interpreter_and_in_c(
    tmp_path: Path, penstock: Command
) -> None:
    path, data = tmp_path / "divergent.mlir", tmp_path / "x.npy"
    path.write_text(DIVERGENT, encoding="utf-8")
    np.save(data, np.zeros(4, np.float32))
    ran = penstock("run", path, "--input", data, "--interleaving", "1", "--output-dir", tmp_path)
    assert ran.status == 1
    assert "divergent.mlir:6:7: error: iteration (0) waits at this gpu.barrier for ever" in ran.err
    emitted = penstock("compile", path, "--emit", "c", "-o", tmp_path / "c", "-q")
    assert emitted.status == 3
    assert "divergent.mlir:6:7: error: this barrier is in scf.if, which cannot be split there" in emitted.err
    assert not (tmp_path / "c").exists()


GRAPH = """func.func @main(%x: tensor<64x64xf32> {graph.name = "x"}, %w: tensor<64x64xf32> {graph.name = "w"})
    -> tensor<64x64xf32> {
  %y = graph.matmul %x, %w : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  func.return %y : tensor<64x64xf32>
}
"""


# The reduction is cut, and its tiles, of which each adds to what the one before it has left, are to run at once.
SCHEDULE = """builtin.module attributes {transform.with_named_sequence} {
  transform.named_sequence @fused_0(%kernel: !transform.any_op {transform.readonly}) {
    %0 = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
    %fill, %product = transform.split_handle %0 : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    %tile, %k = schedule.tile %product sizes [0, 0, 16]
    %below = transform.apply_registered_pass "tensor-to-loop" to %kernel : (!transform.any_op) -> !transform.any_op
    %loop = transform.structured.match ops{["scf.for"]} in %below : (!transform.any_op) -> !transform.any_op
    %threads = schedule.parallel %loop
    transform.yield
  }
}
"""


def test_a_schedule_with_an_illegal_parallel_loop_names_the_dependence(tmp_path: Path, penstock: Command) -> None:
    program, schedule = tmp_path / "product.mlir", tmp_path / "schedule.mlir"
    program.write_text(GRAPH, encoding="utf-8")
    schedule.write_text(SCHEDULE, encoding="utf-8")
    made = tmp_path / "o.mlir"
    finished = penstock(
        "compile", program, "--machine", "gemmini-fp32", "--schedule", schedule, "--emit", "loop", "-o", made
    )
    assert finished.status == 1
    assert "schedule.mlir:8:5: error: iterations of " in finished.err
    assert "cannot run at once: one depends on another" in finished.err
    assert "adds to %" in finished.err
    assert not made.exists()
