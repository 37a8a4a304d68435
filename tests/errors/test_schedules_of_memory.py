# SPDX-License-Identifier: Apache-2.0
"""Schedules that say what cannot be done with the memory of a machine: each is refused at its line, and says why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Command

PROGRAM = """#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>
#id = affine_map<(m, n) -> (m, n)>
func.func private @host(%x: memref<4x4xf32>) attributes {device = @host} {
  func.return
}
func.func private @product(%a: memref<64x4xf32>, %b: memref<4x4xf32>, %c: memref<64x4xf32>, %d: memref<9999x99xf32>)
    attributes {device = @gemmini_fp32} {
  %from = arith.constant 0 : index
  %step = arith.constant 4 : index
  %to = arith.constant 64 : index
  scf.for %i = %from to %to step %step {
    %x = memref.subview %a[%i, 0] [4, 4] [1, 1] : memref<64x4xf32> to memref<4x4xf32, strided<[4, 1], offset: ?>>
    %z = memref.subview %c[%i, 0] [4, 4] [1, 1] : memref<64x4xf32> to memref<4x4xf32, strided<[4, 1], offset: ?>>
    linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
        ins(%x, %b : memref<4x4xf32, strided<[4, 1], offset: ?>>, memref<4x4xf32>)
        outs(%z : memref<4x4xf32, strided<[4, 1], offset: ?>>) {
    ^bb0(%p: f32, %q: f32, %r: f32):
      %s = arith.mulf %p, %q : f32
      %t = arith.addf %r, %s : f32
      linalg.yield %t : f32
    }
  }
  linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"], doc = "large"}
      ins(%d : memref<9999x99xf32>) outs(%d : memref<9999x99xf32>) {
  ^bb0(%p: f32, %r: f32):
    linalg.yield %p : f32
  }
  func.return
}
"""

BEGIN = """module attributes {transform.with_named_sequence} {
transform.named_sequence @product(%root: !transform.any_op {transform.readonly}) {
%kernel = transform.apply_registered_pass "tensor-to-loop" to %root : (!transform.any_op) -> !transform.any_op
%ops = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
%op, %large = transform.split_handle %ops : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
"""
LINE = BEGIN.count("\n") + 1
END = "transform.yield\n}\n}\n"
AROUND = '= transform.get_parent_op {} {{op_name = "scf.for"}} : (!transform.any_op) -> !transform.any_op'
LOOP = f"%loop {AROUND.format('%op')}\n"
COPIES = '%copy = transform.structured.match ops{["mem.copy"]} in %kernel : (!transform.any_op) -> !transform.any_op'
ON_CHIP = """schedule.stage_in %op[0] in "spad"
schedule.stage_in %op[1] in "spad"
schedule.stage_out %op[2] in "acc"
"""

REFUSED = {
    '%old = transform.structured.match ops{["scf.for"]} in %root : (!transform.any_op) -> !transform.any_op': (
        "this handle is of an earlier section, whose operations are not there any more",
        "match again",
    ),
    'schedule.stage_in %op[0] in "spda"': ('has no scope "spda"', 'did you mean "spad"?'),
    'schedule.stage_in %op[2] in "acc"': ("operand 2 is written here", "schedule.stage_out is for it"),
    'schedule.stage_in %op[3] in "spad"': ("linalg.generic has 3 operands: there is no operand 3", ""),
    'schedule.stage_in %op[0] in "dram"': ('operand 0 is in "dram" already, or goes there', ""),
    'schedule.stage_in %ops[0] in "spad"': (
        "one operation is meant, and the handle stands for 2",
        "transform.split_handle makes a handle for each",
    ),
    'schedule.stage_in %kernel[0] in "spad"': ("a linalg.generic or a mem.copy, not func.func", ""),
    'schedule.stage_out %op[1] in "acc"': ("operand 1 is only read in this kernel", "schedule.stage_in is for it"),
    'schedule.stage_out %large[1] in "acc"': ('is larger than "acc"', "smaller tiles"),
    'schedule.stage_in %large[0] in "spad"': ("a buffer of 3,999,596 bytes", "memref<9999x99xf32"),
    f'{LOOP}schedule.stage_in %large[0] in "spad" at %loop': ("the loop is not around the reader", ""),
    'schedule.stage_in %op[0] in "spad" slots 17': ("has 16 iterations, which use no 17 slots", ""),
    'schedule.stage_in %op[1] in "spad" slots 2': ("cannot be a ring: it is in no loop", ""),
    'schedule.stage_out %large[1] in "spad" slots 2': ('is larger than "spad"', ""),
    'schedule.set_scope %op "spad"': ("an allocation is a memref.alloc or a mem.buffer, not linalg.generic", ""),
    "schedule.tensorize %op @gem": ("@gemmini_fp32 has no intrinsic @gem", 'did you mean "gemm"?'),
    "schedule.tensorize %op @gemm": ("this op is not @gemm: operand", 'is to be in "spad", and is in "dram"'),
    "schedule.tensorize %kernel @gemm": ("what an intrinsic computes is a linalg.generic, not func.func", ""),
    COPIES: ("the match finds nothing: there is no mem.copy here", ""),
    f"{LOOP}%outer {AROUND.format('%loop')}": ("there is no such scf.for around scf.for", ""),
    '%out = schedule.stage_out %op[2] in "acc"\nschedule.stage_in %out[0] in "spad"': (
        'no DMA of @gemmini_fp32 goes from "acc" to "spad", nor do several in turn',
        "its engines: ",
    ),
}
"""What is refused at its last line, and the words that say so and that help."""


def attempt(penstock_opt: Command, schedule: str, program: str = PROGRAM) -> str:
    """What is said of a schedule that is refused."""
    Path("program.mlir").write_text(program)
    Path("s.mlir").write_text(schedule)
    finished = penstock_opt("program.mlir", "--machine", "gemmini-fp32", "-p", "promote", "--schedule", "s.mlir")
    assert (finished.status, finished.out) == (1, "")
    assert "Traceback" not in finished.err
    return finished.err


@pytest.mark.parametrize("ops", REFUSED)
def test_a_primitive_that_is_not_legal_is_refused_at_its_line(ops: str, penstock_opt: Command) -> None:
    message, help = REFUSED[ops]
    err = attempt(penstock_opt, f"{BEGIN}{ops}\n{END}")
    assert f"s.mlir:{LINE + ops.count(chr(10))}:" in err.splitlines()[0]
    assert message in err
    assert help in err


def test_a_kernel_of_the_host_has_no_scopes(penstock_opt: Command) -> None:
    err = attempt(penstock_opt, BEGIN + ON_CHIP + END, PROGRAM.replace("@gemmini_fp32", "@host"))
    assert f"s.mlir:{LINE}:1: error: the kernel runs on the host, which has no scopes" in err
    assert "note: a schedule for a machine is applied with --machine NAME" in err


def test_a_kernel_with_other_ops_is_another_kernel(penstock_opt: Command) -> None:
    types = ", ".join(["!transform.any_op"] * 3)
    three = BEGIN.replace("%op, %large", "%op, %large, %more").replace(
        "(!transform.any_op, !transform.any_op)", f"({types})"
    )
    err = attempt(penstock_opt, three + END)
    assert f"s.mlir:{LINE - 1}:" in err
    assert "3 operations are meant, and the handle stands for 2" in err
    assert "is this the schedule of another kernel, of another version of it, or for another machine?" in err


def test_an_argument_that_is_another_one_is_not_read_before_a_loop(penstock_opt: Command) -> None:
    """The loop writes the bytes that it reads: a copy from before it would be stale."""
    types = "memref<64x4xf32>, memref<4x4xf32>, memref<64x4xf32>, memref<9999x99xf32>"
    caller = f"""func.func @main(%a: memref<64x4xf32>, %b: memref<4x4xf32>, %d: memref<9999x99xf32>) {{
  func.call @product(%a, %b, %a, %d) : ({types}) -> ()
  func.return
}}
"""
    err = attempt(
        penstock_opt, f'{BEGIN}{LOOP}%t = schedule.stage_in %op[0] in "spad" at %loop\n{END}', PROGRAM + caller
    )
    assert f"s.mlir:{LINE + 1}:" in err.splitlines()[0]
    assert "its bytes may be written by another name" in err
