# SPDX-License-Identifier: Apache-2.0
"""Schedules of buffers and commands that cannot be: each is an error at its line, which says why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Command

COPIES = """
func.func @main(%x: memref<64x16xf32>, %y: memref<64x16xf32> {graph.output = "y"}) {
  func.call @k(%x, %y) : (memref<64x16xf32>, memref<64x16xf32>) -> ()
  func.return
}
func.func private @k(%x: memref<64x16xf32>, %y: memref<64x16xf32>) attributes {device = @gemmini_fp32} {
  %zero = arith.constant 0 : index
  %tile = arith.constant 4 : index
  %end = arith.constant 64 : index
  scf.for %i = %zero to %end step %tile {
    BODY
  }
  BARRIERfunc.return
}
"""
COPY_IN = 'mem.copy %x[%i, 0] to %a : memref<64x16xf32> to memref<4x16xf32, "spad">'
COPY_OUT = 'mem.copy %a to %y[%i, 0] : memref<4x16xf32, "spad"> to memref<64x16xf32>'
BUFFER = '%a = mem.buffer : memref<4x16xf32, "spad">'
PLACED = '%a = mem.buffer at 0 : memref<4x16xf32, "spad">'
LOAD = '%t = accel.dma %x[%i, 0] to %a on "mvin" : memref<64x16xf32> to memref<4x16xf32, "spad">'
STORE = (
    '%u = accel.dma %a to %y[AT, 0] on "mvout" after(%t) : memref<4x16xf32, "spad"> to memref<64x16xf32>\naccel.wait %u'
)

LOOPS = COPIES.replace("BARRIER", "")
COMMANDS = COPIES.replace("BARRIER", "accel.barrier\n  ")

SCHEDULE = """
transform.named_sequence @k(%kernel: !transform.any_op {transform.readonly}) {
  %k = transform.apply_registered_pass "SECTION" to %kernel : (!transform.any_op) -> !transform.any_op
  %a = transform.structured.match ops{["OP"]} in %k : (!transform.any_op) -> !transform.any_op
  PRIMITIVE
  transform.yield
}
"""


def refused(penstock: Command, folder: Path, program: str, section: str, op: str, primitive: str) -> str:
    source, schedule = folder / "k.mlir", folder / "s.mlir"
    source.write_text(program, encoding="utf-8")
    text = SCHEDULE.replace("SECTION", section).replace("OP", op).replace("PRIMITIVE", primitive)
    schedule.write_text(text, encoding="utf-8")
    level = "accel" if section == "loop-to-accel" else "loop"
    words = ("--machine", "gemmini-fp32", "--emit", level, "--schedule", schedule, "-o", folder / "out.mlir", "-q")
    done = penstock("compile", source, *words)
    assert done.status == 1
    assert not (folder / "out.mlir").exists()
    assert f"{schedule}:5:3: error: " in done.err
    return done.err


WITHOUT_SCOPE = {
    "it has no room": (
        LOOPS.replace("BODY", f"{BUFFER}\n{COPY_IN}\n{COPY_OUT}").replace("16xf32", "8192xf32"),
        'the scope "spad" has no room for 3 slots of %a',
        "it has room for 2 of %a, 131,072 bytes each",
    ),
    "an iteration reads what another one wrote": (
        LOOPS.replace("BODY", f"{BUFFER}\n{COPY_OUT}\n{COPY_IN}"),
        "%a cannot be a ring: an iteration may read what it has not written",
        "k.mlir:11:",
    ),
    "it has an offset": (
        LOOPS.replace("BODY", f"{PLACED}\n{COPY_IN}\n{COPY_OUT}"),
        "%a cannot be a ring: it has the offset 0; rings are made before mem-plan",
        "k.mlir:11:",
    ),
    "the loop has one iteration": (
        LOOPS.replace("BODY", f"{BUFFER}\n{COPY_IN}\n{COPY_OUT}").replace("constant 64 :", "constant 4 :"),
        "%a cannot be a ring: the loops around it have one iteration",
        "k.mlir:11:",
    ),
    "it has fewer iterations": (
        LOOPS.replace("BODY", f"{BUFFER}\n{COPY_IN}\n{COPY_OUT}").replace("constant 64 :", "constant 8 :"),
        "%a has 2 iterations, which use no 3 slots",
        "k.mlir:11:",
    ),
}


@pytest.mark.parametrize("why", WITHOUT_SCOPE)
def test_a_buffer_is_no_ring_where(why: str, penstock: Command, tmp_path: Path) -> None:
    program, message, note = WITHOUT_SCOPE[why]
    primitive = "%ring = schedule.multi_buffer %a slots 3"
    printed = refused(penstock, tmp_path, program, "mem-promote", "mem.buffer", primitive)
    assert message in printed
    assert note in printed


def test_slots_of_commands_that_a_scope_has_no_room_for(penstock: Command, tmp_path: Path) -> None:
    program = COMMANDS.replace("BODY", f"{PLACED}\n{LOAD}\n{STORE}".replace("AT", "%i")).replace("16xf32", "8192xf32")
    primitive = "schedule.pipeline %k slots(%a = 5)"
    printed = refused(penstock, tmp_path, program, "loop-to-accel", "mem.buffer", primitive)
    assert 'the scope "spad" has no room for 5 slots of %a' in printed
    assert "it has room for 2 of %a, 131,072 bytes each" in printed


def test_a_buffer_of_commands_that_carries_values_between_iterations(penstock: Command, tmp_path: Path) -> None:
    body = f"{PLACED}\n{STORE.replace('AT', '%i').replace(' after(%t)', '')}\n{LOAD}\naccel.wait %t"
    primitive = "%ring = schedule.multi_buffer %a slots 2"
    printed = refused(penstock, tmp_path, COMMANDS.replace("BODY", body), "loop-to-accel", "mem.buffer", primitive)
    assert "%a cannot be a ring: an iteration may read what it has not written" in printed


def test_a_loop_that_no_unit_is_held_up_in_is_not_skewed(penstock: Command, tmp_path: Path) -> None:
    program = COMMANDS.replace("BODY", f"{PLACED}\n{LOAD}\n{STORE}".replace("AT", "%i"))
    printed = refused(penstock, tmp_path, program, "loop-to-accel", "scf.for", "schedule.pipeline %k skewing(%a)")
    assert "this loop cannot be skewed: no command of it waits for another unit" in printed


def test_virtual_threads_of_iterations_that_depend_on_each_other(penstock: Command, tmp_path: Path) -> None:
    program = COMMANDS.replace("BODY", f"{PLACED}\n{LOAD}\n{STORE}".replace("AT", "%zero"))
    primitive = "schedule.virtual_thread %a threads 2"
    printed = refused(penstock, tmp_path, program, "loop-to-accel", "scf.for", primitive)
    assert "the iterations of this loop depend on each other" in printed
    assert printed.count("note: accel.dma at ") == 2
