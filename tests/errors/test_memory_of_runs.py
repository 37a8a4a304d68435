# SPDX-License-Identifier: Apache-2.0
"""Programs that take more memory than there is, and functions that call themselves: told before anything runs."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock.dialects.context import make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime import memory
from penstock.runtime.engine import Engine
from penstock.runtime.memory import in_words
from penstock.runtime.memory_of_values import interpreter_need

if TYPE_CHECKING:
    from tests.conftest import Command

HUGE = "tensor<1000000x1000000xf32>"
X = "tensor<1x1xf32>"
PROGRAMS = {
    "graph": f"""func.func @main(%x: {X}) -> {X} {{
  %e = graph.expand %x : {X} -> {HUGE}
  %n = graph.softmax %e axis 1 : {HUGE} -> {HUGE}
  %y = graph.reduce_sum %n axes [0, 1] : {HUGE} -> {X}
  func.return %y : {X}
}}""",
    "tensor": f"""func.func @main(%x: {X}) -> {HUGE} {{
  %y = tensor.empty() : {HUGE}
  func.return %y : {HUGE}
}}""",
    "loop": """func.func @main(%x: memref<1x1xf32> {graph.name = "x"}, %y: memref<1xf32> {graph.output = "y"}) {
  %a = memref.alloc() : memref<1000000x1000000xf32>
  func.return
}""",
}


@pytest.mark.parametrize("level", PROGRAMS)
def test_a_run_that_cannot_be_held_is_refused_before_it_begins(penstock: Command, tmp_path: Path, level: str) -> None:
    (tmp_path / "big.mlir").write_text(PROGRAMS[level])
    np.save(tmp_path / "x.npy", np.ones((1, 1), np.float32))
    for command in (("run", "--input", tmp_path / "x.npy"), ("check", "-p", "cse")):
        finished = penstock(command[0], tmp_path / "big.mlir", *command[1:])
        assert finished.status == 1, finished.err
        assert "error: a run takes at least 3.6 TiB of memory, and there are " in finished.err
        assert "note: inputs and outputs take " in finished.err
        assert "big.mlir:" in finished.err


def test_compiled_code_knows_what_it_takes(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "big.mlir").write_text(PROGRAMS["graph"])
    np.save(tmp_path / "x.npy", np.ones((1, 1), np.float32))
    finished = penstock("run", tmp_path / "big.mlir", "--level", "c", "--input", tmp_path / "x.npy", "-q")
    assert finished.status == 1
    assert "error: a run takes at least 7.3 TiB of memory" in finished.err


def test_memory_that_runs_out_is_no_fault_of_ours(
    penstock: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "big.mlir").write_text(PROGRAMS["tensor"])
    np.save(tmp_path / "x.npy", np.ones((1, 1), np.float32))
    monkeypatch.setattr(memory, "machine_bytes", lambda: None)
    finished = penstock("run", tmp_path / "big.mlir", "--input", tmp_path / "x.npy")
    assert finished.status == 1
    assert finished.err.startswith("error: out of memory: Unable to allocate 3.64 TiB")
    assert "Traceback" not in finished.err


def test_sizes_are_told_in_the_largest_unit() -> None:
    assert [in_words(1023), in_words(1024), in_words(4 * 10**12)] == ["1023 bytes", "1.0 KiB", "3.6 TiB"]


CHAIN = """func.func @main(%x: tensor<64x1024xf32>) -> tensor<64x1xf32> {
  %a = graph.neg %x : tensor<64x1024xf32>
  %t = graph.transpose %a perm [1, 0] : tensor<64x1024xf32> -> tensor<1024x64xf32>
  %b = graph.reshape %t : tensor<1024x64xf32> -> tensor<64x1024xf32>
  %c = graph.add %b, %a : (tensor<64x1024xf32>, tensor<64x1024xf32>) -> tensor<64x1024xf32>
  %d = graph.exp %c : tensor<64x1024xf32>
  %y = graph.reduce_sum %d axes [1] : tensor<64x1024xf32> -> tensor<64x1xf32>
  func.return %y : tensor<64x1xf32>
}"""


@pytest.mark.parametrize("level", [None, "tensor", "loop"])
def test_what_is_predicted_is_not_more_than_a_run_takes(level: str | None) -> None:
    from penstock.runtime.compiler import compile_module
    from penstock.runtime.signature import signature_of

    ctx = make_context()
    module = parse_text(ctx, SourceText("chain.mlir", CHAIN)).module
    signature = signature_of(module)
    if level is not None:
        compile_module(module, ctx, None, level)
    engine = Engine(module, ctx, signature, "interpreter")
    x = np.ones((64, 1024), np.float32)
    engine(x)
    tracemalloc.start()
    engine(x)
    taken = tracemalloc.get_traced_memory()[1] + x.nbytes
    tracemalloc.stop()
    need = interpreter_need(module, signature)
    assert x.nbytes < need.total_bytes <= taken


RECURSIVE = """func.func @f(%x: TYPE) -> TYPE {
  %a = func.call @g(%x) : (TYPE) -> TYPE
  func.return %a : TYPE
}
func.func @g(%x: TYPE) -> TYPE {
  %a = func.call @f(%x) : (TYPE) -> TYPE
  func.return %a : TYPE
}
func.func @main(%x: TYPE) -> TYPE {
  %a = func.call @f(%x) : (TYPE) -> TYPE
  func.return %a : TYPE
}
"""


@pytest.mark.parametrize("type", ["tensor<1x1xf32>", "memref<1x1xf32>"])
def test_a_function_that_calls_itself_is_refused_where_it_does(penstock: Command, tmp_path: Path, type: str) -> None:
    (tmp_path / "f.mlir").write_text(RECURSIVE.replace("TYPE", type))
    np.save(tmp_path / "x.npy", np.ones((1, 1), np.float32))
    message = "f.mlir:6:3: error: @f calls itself: its buffers cannot be planned\n"
    for words in (("run", "--input", tmp_path / "x.npy"), ("check", "-p", "cse"), ("compile",)):
        finished = penstock(words[0], tmp_path / "f.mlir", *words[1:])
        assert finished.status == 1
        assert message in finished.err, (words, finished.err)
