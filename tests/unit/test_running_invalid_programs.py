# SPDX-License-Identifier: Apache-2.0
"""Programs that do not verify: running them is a located error, never one of Python's."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from control_flow import LEVELS, program
from xdsl.ir import Operation, SSAValue

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import TargetOp
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime.interpreter import run_function, run_module
from penstock.runtime.signature import signature_of
from penstock.tools.lockstep import default_inputs

BRANCH = """func.func @main(%c: i1, %x: index) -> index {
  %y = scf.if %c -> (index) {
    %a = arith.addi %x, %x : index
    scf.yield %a : index
  } else {
    scf.yield %x : index
  }
  func.return %y : index
}
"""


@pytest.mark.parametrize("taken", [False, True])
def test_a_value_of_a_branch_that_is_used_behind_it_is_an_error_whichever_way_it_goes(taken: bool) -> None:
    ctx = make_context()
    module = parse_text(ctx, SourceText("in.mlir", BRANCH)).module
    ops = {op.name: op for op in module.walk()}
    ops["func.return"].operands[0] = ops["arith.addi"].results[0]
    with pytest.raises(UserError, match="uses %a, whose definition does not dominate this use") as refusal:
        run_function(module, "main", [taken, 1])
    assert refusal.value.loc == "in.mlir:8:3"


def mutate(random: Random, ops: list[Operation], values: list[SSAValue]) -> None:
    """Break a program as a faulty pass does: an operand becomes another value, or an op moves, or ends its block."""
    op = random.choice([each for each in ops if each.operands])
    if random.random() < 0.7:
        number = random.randrange(len(op.operands))
        op.operands[number] = random.choice(values)
        return
    block = op.parent
    assert block is not None
    op.detach()
    others = list(block.ops)
    if others and random.random() < 0.7:
        block.insert_op_before(op, random.choice(others))
    else:
        block.add_op(op)


def run_broken(level: str, seed: int) -> bool:
    """Run a broken program; whether that is an error. Raises what is no error of the user."""
    random = Random(seed)
    module = parse_text(make_context(), SourceText("in.mlir", program(level, seed))).module
    functions = [op for op in module.ops if not isinstance(op, TargetOp)]
    ops = [op for function in functions for op in function.walk() if op is not function]
    values: list[SSAValue] = [result for op in ops for result in op.results]
    inputs = default_inputs(signature_of(module))
    for _ in range(random.randint(1, 3)):
        mutate(random, ops, values)
    try:
        with np.errstate(all="ignore"):
            run_module(module, inputs, WeightStore())
    except UserError:
        return True
    return False


def test_what_a_broken_program_runs_into_is_no_error_of_python() -> None:
    assert sum(run_broken(level, seed) for level in LEVELS for seed in range(8)) >= 16


@pytest.mark.slow
def test_what_many_broken_programs_run_into_is_no_error_of_python() -> None:
    assert sum(run_broken(level, seed) for level in LEVELS for seed in range(400)) >= 800
