# SPDX-License-Identifier: Apache-2.0
"""Handles of a schedule: found once, valid from pass to pass of a section, and with names that say what is meant."""

from __future__ import annotations

import re

import pytest
from tests.support.programs import parsed_in_context
from xdsl.dialects.func import FuncOp
from xdsl.dialects.scf import ForOp

from penstock.dialects.mem import BufferOp, CopyOp
from penstock.passes.schedule.schedule import Schedule
from penstock.passes.schedule.sections import SECTIONS, START, decides
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import passes_for
from penstock.runtime.schedules import schedules_text

LAYER = """
func.func @main(%x: tensor<64x128xf32>, %w: tensor<128x64xf32>, %b: tensor<64xf32>) -> tensor<64x64xf32> {
  %0 = graph.matmul %x, %w : (tensor<64x128xf32>, tensor<128x64xf32>) -> tensor<64x64xf32>
  %1 = graph.add %0, %b : (tensor<64x64xf32>, tensor<64xf32>) -> tensor<64x64xf32>
  func.return %1 : tensor<64x64xf32>
}
"""
COPIES = """
func.func @k(%x: memref<8x4xf32>, %y: memref<8x4xf32>) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %two = arith.constant 2 : index
  %rows = arith.constant 8 : index
  %columns = arith.constant 4 : index
  scf.for %0 = %zero to %rows step %two {
    scf.for %1 = %zero to %columns step %one {
      %next = arith.addi %1, %zero : index
      %tile = mem.buffer : memref<2x1xf32, "spad">
      mem.copy %x[%0, %next] to %tile : memref<8x4xf32> to memref<2x1xf32, "spad">
      %part = memref.subview %y[%0, 0] [2, 1] [1, 1]
        : memref<8x4xf32> to memref<2x1xf32, strided<[4, 1], offset: ?>>
      mem.copy %tile to %part : memref<2x1xf32, "spad"> to memref<2x1xf32, strided<[4, 1], offset: ?>>
    }
  }
  func.return
}
"""


def _copies() -> Schedule:
    _, module = parsed_in_context(COPIES)
    (kernel,) = (op for op in module.ops if isinstance(op, FuncOp))
    return Schedule(kernel)


def _written(pipeline: str) -> str:
    """The schedules of the layer after passes that follow bufferization."""
    ctx, module = parsed_in_context(LAYER)
    attach_machine(module, "gemmini-fp32")
    passes = list(passes_for(module, "accel", None))
    head = passes[: [each.name for each in passes].index("tensor-to-loop") + 1]
    run_passes(ctx, module, [*head, *read_pipeline(pipeline)])
    return schedules_text(ctx, ctx.schedules.applied)


def test_an_op_has_one_handle() -> None:
    schedule = _copies()
    (buffer,) = schedule.match(BufferOp.name)
    copies = schedule.match(CopyOp.name)
    count = len(schedule.sequence.body.block.ops)
    assert schedule.match(BufferOp.name) == (buffer,)
    assert schedule.match(CopyOp.name) == copies
    assert schedule.match(CopyOp.name, within=schedule.kernel) == copies
    assert schedule.handles([schedule.op(copies[1]), schedule.op(buffer)]) == [copies[1], buffer]
    assert len(schedule.sequence.body.block.ops) == count
    inner = schedule.parent(copies[0], ForOp.name)
    assert schedule.parent(copies[1], ForOp.name) is inner
    assert schedule.parent(copies[1], ForOp.name, 2) is not inner


def test_a_match_that_finds_more_has_a_handle_for_each() -> None:
    schedule = _copies()
    (first, second), all = schedule.match(CopyOp.name), schedule.match(CopyOp.name, BufferOp.name)
    assert len({*all}) == 3
    assert [schedule.op(each).name for each in all] == ["mem.buffer", "mem.copy", "mem.copy"]
    assert [schedule.op(each) for each in all[1:]] == [schedule.op(first), schedule.op(second)]


def test_a_handle_that_is_not_valid_any_more_is_not_used_again() -> None:
    schedule = _copies()
    inner, outer = schedule.match(ForOp.name)
    split = schedule.split(inner, 2)
    again = schedule.match(ForOp.name)
    assert inner not in again
    assert {split.outer, split.inner, outer} <= {*again}


def test_a_loop_is_called_by_what_it_moves_along() -> None:
    schedule = _copies()
    inner, outer = schedule.match(ForOp.name)
    assert (inner.name_hint, outer.name_hint) == ("loop_x_d1", "loop_y_d0"), "what is written goes before what is read"
    split = schedule.split(inner, 2)
    assert [handle.name_hint for handle in (split.outer, split.inner)] == ["loop_x_d1_outer", "loop_x_d1_inner"]


def test_the_loops_of_a_tile_are_called_by_the_dims_that_they_cut() -> None:
    text = _written("promote")
    tile = next(line for line in text.splitlines() if "schedule.tile" in line)
    sizes = re.search(r"sizes \[(.*?)\]", tile)
    assert sizes is not None
    cut = {f"%loop_d{dim}" for dim, size in enumerate(sizes[1].split(", ")) if size != "0"}
    assert {*re.findall(r"%loop_d\d", tile)} == cut != set()


def test_matches_that_nothing_uses_are_taken_away() -> None:
    schedule = _copies()
    schedule.match(ForOp.name)
    (buffer,) = schedule.match(BufferOp.name)
    schedule.storage_align(buffer, 0, 8)
    schedule.drop_unused()
    assert [op.name for op in schedule.sequence.body.block.ops] == [
        "transform.structured.match",
        "schedule.storage_align",
    ]
    assert len(schedule.match(ForOp.name)) == 2, "their handles are forgotten"


def test_the_passes_of_a_section_share_its_handles() -> None:
    text = _written("promote,promote-levels,tensorize")
    loops = text.split('"tensor-to-loop"')[1]
    assert loops.count('ops{["linalg.generic"]}') == 1
    assert loops.count("schedule.tensorize") == 3


@pytest.mark.parametrize("between", ["canonicalize", "cse"])
def test_other_passes_may_run_in_between(between: str) -> None:
    usual, other = (_written(f"promote,{each}tensorize") for each in ("", f"{between},"))
    assert usual.count("schedule.tensorize") == other.count("schedule.tensorize") == 3


def test_what_only_matches_decides_nothing() -> None:
    schedule = _copies()
    schedule.match(CopyOp.name)
    assert not decides(schedule.sequence, START)
    assert not any(decides(schedule.sequence, section) for section in SECTIONS)
    (buffer,) = schedule.match(BufferOp.name)
    schedule.storage_align(buffer, 0, 8)
    assert decides(schedule.sequence, START)
