# SPDX-License-Identifier: Apache-2.0
"""
`slots` of a stage: the ring that `schedule.multi_buffer` would put there afterwards, or nothing at all. A handle of an
operand is that of the value that it was, whatever is staged.
"""

from __future__ import annotations

import pytest
from programs import parsed_in_context
from schedules import apply_schedule
from xdsl.dialects import memref
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.dialects.transform import NamedSequenceOp

from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.analysis.kernels import machine_of
from penstock.passes.schedule.schedule import Schedule
from penstock.passes.schedule.sections import START, decides
from penstock.runtime.machines import attach_machine

PROGRAM = """#id = affine_map<(m, n) -> (m, n)>
func.func private @k(%x: memref<64x16xf32>, %y: memref<64x16xf32>) attributes {device = @gemmini_fp32} {
  %from = arith.constant 0 : index
  %step = arith.constant 16 : index
  %to = arith.constant 64 : index
  scf.for %i = %from to %to step %step {
    %sum = memref.alloc() : memref<16x16xf32>
    %a = memref.subview %x[%i, 0] [16, 16] [1, 1]
        : memref<64x16xf32> to memref<16x16xf32, strided<[16, 1], offset: ?>>
    %b = memref.subview %y[%i, 0] [16, 16] [1, 1]
        : memref<64x16xf32> to memref<16x16xf32, strided<[16, 1], offset: ?>>
    mem.copy %a to %sum : memref<16x16xf32, strided<[16, 1], offset: ?>> to memref<16x16xf32>
    linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
        ins(%sum : memref<16x16xf32>) outs(%b : memref<16x16xf32, strided<[16, 1], offset: ?>>) {
    ^bb0(%p: f32, %q: f32):
      linalg.yield %p : f32
    }
  }
  func.return
}
"""

STAGES = {
    "read": '%t = schedule.stage_in %generic[0] in "spad"{}',
    "read before": '%t = schedule.stage_in %copy[0] in "spad"{}',
    "written": '%t = schedule.stage_out %generic[1] in "acc"{}',
    "allocated": 'schedule.set_scope %sum "spad"{}',
}
BUFFER = '\n%u = transform.structured.match ops{["mem.buffer"]} in %kernel : (!transform.any_op) -> !transform.any_op'


def scheduled(ops: str) -> ModuleOp:
    ctx, module = parsed_in_context(PROGRAM)
    attach_machine(module, "gemmini-fp32")
    apply_schedule(ctx, module, ops)
    return module


@pytest.mark.parametrize("stage", STAGES)
def test_slots_are_those_of_a_ring_that_is_made_afterwards(stage: str) -> None:
    at_once = scheduled(STAGES[stage].format(" slots 2"))
    later = scheduled(STAGES[stage].format("") + BUFFER + "\n%r = schedule.multi_buffer %u slots 2")
    assert str(at_once) == str(later)
    assert "mem.ring 2" in str(at_once)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_without_room_for_its_slots_changes_nothing(stage: str) -> None:
    ctx, module = parsed_in_context(PROGRAM)
    attach_machine(module, "gemmini-fp32")
    before = str(module)
    with pytest.raises(UserError, match="4 iterations, which use no 5 slots"):
        apply_schedule(ctx, module, STAGES[stage].format(" slots 5"))
    assert str(module) == before


def test_a_handle_of_an_operand_is_that_of_what_it_was_before_the_stage() -> None:
    ctx, module = parsed_in_context(PROGRAM)
    (kernel,) = (op for op in module.ops if isinstance(op, FuncOp))
    attach_machine(module, "gemmini-fp32")
    text = """transform.named_sequence @k(%kernel: !transform.any_op {transform.readonly}) {
      %0 = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
      %1 = transform.get_operand %0[0] : (!transform.any_op) -> !transform.any_value
      STAGE
      %3 = transform.get_defining_op %1 : (!transform.any_value) -> !transform.any_op
    }"""
    found: list[bool] = []
    for stage in ("", '%2 = schedule.stage_in %0[0] in "spad"'):
        (given,) = parse_text(ctx, SourceText("s.mlir", text.replace("STAGE", stage))).module.ops
        assert isinstance(given, NamedSequenceOp)
        schedule = Schedule(kernel, machine_of(module))
        schedule.replay(given, START)
        found.append(decides(schedule.sequence, START))
        last = schedule.sequence.body.block.last_op
        assert last is not None
        assert isinstance(schedule.op(last.results[0]), memref.AllocOp)
    assert found == [False, True]
