# SPDX-License-Identifier: Apache-2.0
"""A bug planted in a pass of the compiler: `penstock check --reduce` finds it, blames the pass, and reduces it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sampling import sweep
from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.accel import ExecOp, ReadyOp, TokenType
from penstock.dialects.graph import SubOp
from penstock.dialects.mem import ScopedAllocation
from penstock.lowering.tensor_to_loop import TensorToLoopPass
from penstock.passes.accel.accel_pipeline import AccelPipelinePass
from penstock.passes.graph.fuse import GraphFusePass
from penstock.passes.loop.mem_plan import MemPlanPass
from penstock.passes.tensor.tile import TilePass

if TYPE_CHECKING:
    from tests.conftest import Command

LAYER = """
func.func @main(%x: tensor<40x24xf32>, %w: tensor<24x32xf32>, %b: tensor<32xf32>, %v: tensor<32x16xf32>)
    -> (tensor<40x16xf32>, tensor<40x24xf32>) {
  %a = graph.matmul %x, %w : (tensor<40x24xf32>, tensor<24x32xf32>) -> tensor<40x32xf32>
  %s = graph.sub %a, %b : (tensor<40x32xf32>, tensor<32xf32>) -> tensor<40x32xf32>
  %r = graph.relu %s : tensor<40x32xf32>
  %y = graph.matmul %r, %v : (tensor<40x32xf32>, tensor<32x16xf32>) -> tensor<40x16xf32>
  %z = graph.tanh %x : tensor<40x24xf32>
  func.return %y, %z : tensor<40x16xf32>, tensor<40x24xf32>
}
"""


def swap_operands(op: Operation) -> None:
    if isinstance(op, SubOp):
        op.operands = list(reversed(op.operands))


def clamp_from_above(op: Operation) -> None:
    if isinstance(op, arith.MaximumfOp):
        Rewriter.replace_op(op, arith.MinimumfOp(op.lhs, op.rhs))


def leave_out_the_last_iteration(op: Operation) -> None:
    if isinstance(op, scf.ForOp):
        less = arith.SubiOp(op.ub, op.step)
        Rewriter.insert_op(less, InsertPoint.before(op))
        op.operands[1] = less.result


def put_all_in_one_place(op: Operation) -> None:
    if isinstance(op, ScopedAllocation) and op.scope is not None:
        op.offset = IntegerAttr(0, i64)


def wait_for_nothing(op: Operation) -> None:
    if isinstance(op, ExecOp):
        for number, operand in enumerate(op.operands):
            if isinstance(operand.type, TokenType):
                Rewriter.insert_op(ready := ReadyOp(), InsertPoint.before(op))
                op.operands[number] = ready.results[0]


BUGS: dict[type[ModulePass], Callable[[Operation], None]] = {
    GraphFusePass: swap_operands,
    TilePass: clamp_from_above,
    TensorToLoopPass: leave_out_the_last_iteration,
    MemPlanPass: put_all_in_one_place,
    AccelPipelinePass: wait_for_nothing,
}


QUICK = (MemPlanPass,)


@pytest.mark.parametrize("pass_type", sweep(list(BUGS), QUICK), ids=lambda each: each.name)
def test_a_planted_bug_is_found_reduced_and_blamed_on_its_pass(
    pass_type: type[ModulePass], penstock: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = pass_type.apply

    def apply(self: ModulePass, ctx: Context, module: ModuleOp) -> None:
        sound(self, ctx, module)
        functions = [each for each in module.ops if each.name == "func.func"]
        for op in [op for function in functions for op in function.walk()]:
            BUGS[pass_type](op)

    Path("in.mlir").write_text(LAYER)
    monkeypatch.setattr(pass_type, "apply", apply)
    finished = penstock("check", "in.mlir", "--machine", "gemmini-fp32", "--reduce", "small.mlir")
    blame = rf'the pass "{pass_type.name}" (changed a value|broke the program)'
    assert finished.status == 1
    assert re.search(blame, finished.err)
    said = re.search(r"reduced from (\d+) to (\d+) operations by \d+ tries: (.*)\n", finished.out + finished.err)
    assert said is not None
    command = shlex.split(said[3])[1:]
    (passes,) = [word for before, word in pairwise(command) if before == "-p"]
    assert passes.partition("{")[0] == pass_type.name
    assert "," not in re.sub(r"\{.*?\}", "", passes)
    text = Path("small.mlir").read_text()
    assert "tanh" not in text, "nothing is left of what the bug does not concern"
    again = penstock(*command)
    assert again.status == 1
    assert re.search(blame, again.err)
    monkeypatch.setattr(pass_type, "apply", sound)
    assert penstock(*command).status == 0
