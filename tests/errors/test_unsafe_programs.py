# SPDX-License-Identifier: Apache-2.0
"""Text of a program that is not safe: whatever executes it refuses it, at the op, and says how to execute it anyway."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import penstock as package
from penstock.dialects.diagnostics import UserError
from penstock.runtime.compiler import load_input
from penstock.runtime.engine import Engine

if TYPE_CHECKING:
    from tests.conftest import Command

SAFE = """machine.target @small frequency 100 {
  machine.scope @spad size 4096 granule 16 dtypes [f32]
  machine.unit @load
  machine.unit @store
  machine.dma @mvin unit @load from [@dram] to [@spad] dims 2 latency 10 row_overhead 1 outstanding 4
  machine.dma @mvout unit @store from [@spad] to [@dram] dims 2 latency 10 row_overhead 1 outstanding 4
  machine.queue from @load to @store capacity 1 on_full "error"
}
func.func @main(%x: memref<32xf32> {graph.name = "x"}, %y: memref<32xf32> {graph.output = "y"}) {
  func.call @copy(%x, %y) : (memref<32xf32>, memref<32xf32>) -> ()
  func.return
}
func.func private @copy(%x: memref<32xf32>, %y: memref<32xf32>) attributes {device = @small} {
  %a = mem.buffer at 0 : memref<16xf32, "spad">
  %b = mem.buffer at 64 : memref<16xf32, "spad">
  %1 = accel.dma %x[0] to %a on "mvin" : memref<32xf32> to memref<16xf32, "spad">
  %2 = accel.dma %x[16] to %b on "mvin" : memref<32xf32> to memref<16xf32, "spad">
  accel.push "load" to "store"
  accel.pop "store" from "load"
  %3 = accel.dma %a to %y[0] on "mvout" : memref<16xf32, "spad"> to memref<32xf32>
  %4 = accel.dma %b to %y[16] on "mvout" after (%2) : memref<16xf32, "spad"> to memref<32xf32>
  accel.barrier
  func.return
}
"""
PUSH, POP = '  accel.push "load" to "store"\n', '  accel.pop "store" from "load"\n'

UNSAFE = {
    "misaligned": ("at 64", "at 72", "15:3", "72"),
    "overlapping live buffers": ("at 64", "at 48", "15:3", "share bytes [48, 64) while both are alive"),
    "out of bounds": ("at 64", "at 4080", "15:3", "4096"),
    "over capacity": (
        '%b = mem.buffer at 64 : memref<16xf32, "spad">',
        '%b = mem.buffer at 64 : memref<16xf32, "spad">\n  %c = mem.buffer at 0 : memref<2048xf32, "spad">',
        "16:3",
        "8192",
    ),
    "missing token": (PUSH + POP, "", "18:3", "no happens-before between the two"),
    "token too many": (PUSH, PUSH + PUSH, "21:3", "may push into the queue"),
    "deadlock": (PUSH, "", "19:3", "deadlock: token is never signalled"),
}
"""What is replaced in the text, by what, where that is an error, and a part of the message."""


@pytest.fixture(autouse=True)
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.arange(32, dtype=np.float32))


COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("run", "in.mlir", "--input", "x.npy"),
    "run in C": ("run", "in.mlir", "--level", "c", "--input", "x.npy"),
    "simulate": ("simulate", "in.mlir", "-q"),
    "simulate after passes": ("simulate", "in.mlir", "-p", "cse", "-q"),
    "check": ("check", "in.mlir"),
    "compile": ("compile", "in.mlir", "--emit=c", "-q"),
}


def test_the_safe_program_is_executed_by_every_command(penstock: Command) -> None:
    Path("in.mlir").write_text(SAFE)
    for name in ("run", "simulate", "simulate after passes"):
        finished = penstock(*COMMANDS[name])
        assert finished.status == 0, f"{name}: {finished.err}"
        assert "warning" not in finished.err
    for options in (["-p", "cse"], ["-p", "cse", "--interleaving", "program"]):
        assert penstock("check", "in.mlir", *options).out == "cse: equal, bit for bit\n"


@pytest.mark.parametrize("kind", UNSAFE)
def test_an_unsafe_program_is_refused_at_its_op_by_every_command(penstock: Command, kind: str) -> None:
    old, new, place, message = UNSAFE[kind]
    assert SAFE.count(old) == 1
    Path("in.mlir").write_text(SAFE.replace(old, new))
    for name, words in COMMANDS.items():
        finished = penstock(*words)
        first = finished.err.splitlines()[0]
        assert finished.status == 1, f"{name}: {finished.err}"
        assert first.startswith(f"in.mlir:{place}: error: "), f"{name}: {finished.err}"
        assert message in finished.err, f"{name}: {finished.err}"
        assert not finished.out, name
    assert {path.name for path in Path().iterdir()} == {"in.mlir", "x.npy"}


@pytest.mark.parametrize("kind", UNSAFE)
def test_an_unsafe_program_is_refused_in_python(kind: str) -> None:
    old, new, place, _ = UNSAFE[kind]
    Path("in.mlir").write_text(SAFE.replace(old, new))
    program = load_input("in.mlir")
    for backend in ("interpreter", "native"):
        with pytest.raises(UserError) as refused:
            Engine(program.module, program.ctx, backend=backend)
        assert refused.value.loc == f"in.mlir:{place}"
        with pytest.raises(UserError) as refused:
            package.compile("in.mlir", backend=backend)
        assert refused.value.loc == f"in.mlir:{place}"


def test_unverified_text_is_executed_with_a_warning(penstock: Command) -> None:
    old, new, _, _ = UNSAFE["missing token"]
    Path("in.mlir").write_text(SAFE.replace(old, new))
    warning = "in.mlir: warning: neither its memory plan nor its hazards are verified\n"
    for words in (("run", "in.mlir", "--input", "x.npy", "--no-verify", "-q"), (*COMMANDS["simulate"], "--no-verify")):
        finished = penstock(*words)
        assert (finished.status, finished.err) == (0, warning)
    assert np.array_equal(np.load("output_0.npy"), np.arange(32, dtype=np.float32))


def test_what_is_compiled_first_is_always_verified(penstock: Command) -> None:
    Path("in.mlir").write_text(
        "func.func @main(%x: tensor<32xf32>) -> tensor<32xf32> {\n  func.return %x : tensor<32xf32>\n}\n"
    )
    assert penstock("run", "in.mlir", "--level", "c", "--input", "x.npy", "--no-verify").status == 2
    assert penstock("simulate", "in.mlir", "--machine", "gemmini", "--no-verify").status == 2


def test_text_that_was_edited_is_verified_before_it_becomes_a_plan(penstock: Command) -> None:
    Path("layer.mlir").write_text("""func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
      %0 = graph.exp %x : tensor<64xf32>
      %1 = graph.softmax %0 axis 0 : tensor<64xf32> -> tensor<64xf32>
      %2 = graph.softmax %1 axis 0 : tensor<64xf32> -> tensor<64xf32>
      func.return %2 : tensor<64xf32>
    }""")
    assert penstock("compile", "layer.mlir", "-q").status == 0
    assert penstock("compile", "layer.plan", "--emit=loop", "-p", "", "-o", "loop.mlir", "-q").status == 0
    path = Path("loop.mlir")
    first, *_, last = sorted(re.findall(r"mem.buffer at \d+", path.read_text()), key=lambda each: int(each[14:]))
    assert first != last
    assert penstock("compile", "loop.mlir", "-p", "", "-o", "same.plan", "-q").status == 0
    path.write_text(path.read_text().replace(f"{last} ", f"{first} "))
    finished = penstock("compile", "loop.mlir", "-p", "", "-o", "faulty.plan", "-q")
    assert finished.status == 1
    assert "while both are alive" in finished.err
    assert not Path("faulty.plan").exists()
    np.save("x.npy", np.arange(64, dtype=np.float32))
    for name in ("same", "layer"):
        assert penstock("run", f"{name}.plan", "--input", "x.npy", "--output-dir", name, "-q").status == 0
    assert Path("same/output_0.npy").read_bytes() == Path("layer/output_0.npy").read_bytes()
    assert penstock("run", "same.plan", "--input", "x.npy", "--no-verify").status == 2
