# SPDX-License-Identifier: Apache-2.0
"""Threads that a program cannot have: each is refused, with what helps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from tests.conftest import Command

GRAPH = """func.func @main(%x: tensor<4x4xf32> {graph.name = "x"}) -> (tensor<4x4xf32> {graph.name = "y"}) {
  %y = graph.relu %x : tensor<4x4xf32>
  func.return %y : tensor<4x4xf32>
}
"""
RACY = """func.func @main(%x: memref<4xf32> {graph.name = "x"}, %y: memref<4xf32> {graph.output = "y"}) {
  %zero = arith.constant 0 : index
  scf.forall (%i) in (4) {
    %v = memref.load %x[%i] : memref<4xf32>
    memref.store %v, %y[%zero] : memref<4xf32>
  } {threads = 2 : i64}
  func.return
}
"""
REFUSED: dict[str, tuple[str, tuple[str, ...], str]] = {
    "none": (GRAPH, ("--threads", "0"), "error: a program has from 1 to 1024 threads, not 0\n"),
    "negative": (GRAPH, ("--threads", "-2"), "error: a program has from 1 to 1024 threads, not -2\n"),
    "too many": (GRAPH, ("--threads", "1025"), "error: a program has from 1 to 1024 threads, not 1025\n"),
    "an accelerator": (
        GRAPH,
        ("--threads", "2", "--machine", "gemmini-fp32"),
        'error: threads are for programs of the host, and this one is for "gemmini-fp32"\n'
        "note: a machine that is a CPU, such as host-avx2, is the host\n",
    ),
    "other passes": (
        GRAPH,
        ("--threads", "2", "-p", "graph-to-tensor,tensor-to-loop,mem-plan"),
        "error: passes that are named in place of the compiler's make no threads\n"
        "note: name it among them, before mem-plan: parallelize{threads=2}\n",
    ),
    "the loop level": (
        RACY,
        ("--threads", "2"),
        "error: a program that is at the loop level already gets no threads\n"
        "note: the pass that does is parallelize{threads=2}\n",
    ),
    "a race": (
        RACY,
        ("-p", ""),
        "program.mlir:3:3: error: iterations of scf.forall cannot run in several threads: one depends on another\n",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_threads_are_refused(case: str, tmp_path: Path, penstock: Command) -> None:
    text, words, message = REFUSED[case]
    path = tmp_path / "program.mlir"
    path.write_text(text, encoding="utf-8")
    finished = penstock("compile", path, "-q", "-o", tmp_path / "out.plan", *words)
    assert finished.status == 1
    assert message in finished.err
    assert "Traceback" not in finished.err
    assert not (tmp_path / "out.plan").exists()


def test_a_plan_has_no_more_threads_than_it_was_compiled_for(tmp_path: Path, penstock: Command) -> None:
    path, plan = tmp_path / "program.mlir", tmp_path / "program.plan"
    path.write_text(GRAPH, encoding="utf-8")
    assert penstock("compile", path, "-q", "-o", plan).status == 0
    finished = penstock("run", plan, "--threads", "2")
    assert finished.status == 1
    assert (
        "error: the program was compiled for 1 thread, not for 2\nnote: compile it again: --threads 2" in finished.err
    )


def test_the_interpreter_says_that_it_has_one_thread(tmp_path: Path, penstock: Command) -> None:
    path, plan, x = tmp_path / "program.mlir", tmp_path / "program.plan", tmp_path / "x.npy"
    path.write_text(GRAPH, encoding="utf-8")
    np.save(x, np.ones((4, 4), np.float32))
    words = ["--input", x, "--output-dir", tmp_path, "--level", "loop", "--threads", "2"]
    finished = penstock("run", path, *words)
    assert finished.status == 0, finished.err
    assert "warning: the interpreter has one thread, not 2" in finished.err
    assert penstock("compile", path, "-q", "-o", plan, "--threads", "2").status == 0
    finished = penstock("run", plan, *words)
    assert finished.status == 1
    assert "error: the interpreter has one thread, not 2" in finished.err
