"""Lockstep names the pass that changed a value, and only that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from penstock.dialects.context import make_context
from penstock.dialects.graph import AddOp, SubOp
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime.compiler import attach_machine
from penstock.runtime.pass_manager import read_pipeline
from penstock.runtime.signature import signature_of
from penstock.tools.lockstep import default_inputs, lockstep, summed_terms

if TYPE_CHECKING:
    from tests.conftest import Command

PROGRAM = """\
func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x3xf32>) -> tensor<4x3xf32> {
  %p = graph.matmul %x, %w : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xf32> loc("product")
  %s = graph.add %p, %p : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32> loc("twice")
  %y = graph.relu %s : tensor<4x3xf32> loc("clamp")
  func.return %y : tensor<4x3xf32>
}
"""


@dataclass(frozen=True)
class Subtracts(ModulePass):
    """Turns additions into subtractions."""

    name = "subtracts"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for found in list(op.walk()):
            if isinstance(found, AddOp):
                difference = SubOp(found.operands[0], found.operands[1])
                difference.location = found.location
                Rewriter.replace_op(found, difference)


@dataclass(frozen=True)
class AllowedToRound(Subtracts):
    """The same, under the cover of another order of sums."""

    name = "allowed-to-round"
    reassociates: ClassVar[bool] = True


def run(*passes: ModulePass, text: str = PROGRAM):
    ctx = make_context()
    module = parse_text(ctx, SourceText("in.mlir", text)).module
    return lockstep(module, ctx, passes)


def test_passes_that_keep_every_value_are_equal_bit_for_bit() -> None:
    report = run(*read_pipeline("canonicalize,dce"))
    assert [found.verdict for found in report.comparisons] == ["equal", "equal"]
    assert report.culprit is None


def test_the_first_pass_that_changed_a_value_is_named_with_the_operation_and_the_error() -> None:
    report = run(*read_pipeline("canonicalize"), Subtracts(), *read_pipeline("dce"))
    culprit = report.culprit
    assert culprit is not None
    assert culprit.pass_name == "subtracts"
    assert culprit.operation == '"twice"'
    assert culprit.largest_error >= 1
    assert 'output_0"[' in culprit.where
    assert len(report.comparisons) == 2, "nothing runs after the fault"


def test_rounding_does_not_excuse_a_change_of_integers() -> None:
    culprit = run(AllowedToRound()).culprit
    assert culprit is not None
    assert culprit.pass_name == "allowed-to-round"


def test_the_bound_of_a_pass_that_reassociates_is_far_below_a_real_fault() -> None:
    ctx = make_context()
    module = parse_text(ctx, SourceText("in.mlir", PROGRAM)).module
    inputs = default_inputs(signature_of(module), real=True)
    culprit = lockstep(module, ctx, [AllowedToRound()], inputs).culprit
    assert culprit is not None
    assert 0 < culprit.bound < culprit.largest_error / 1000


def test_the_intrinsics_of_a_machine_do_not_count_as_sums_of_the_program() -> None:
    ctx = make_context()
    module = parse_text(ctx, SourceText("in.mlir", PROGRAM)).module
    terms = summed_terms(module)
    attach_machine(module, "gemmini-fp32")
    assert summed_terms(module) == terms > 8


def test_default_inputs_are_small_integers_and_the_same_every_time() -> None:
    ctx = make_context()
    signature = signature_of(parse_text(ctx, SourceText("in.mlir", PROGRAM)).module)
    first, second = default_inputs(signature), default_inputs(signature)
    for left, right in zip(first, second, strict=True):
        np.testing.assert_array_equal(left, right)
        np.testing.assert_array_equal(left, np.rint(left))
        assert np.abs(left).max() <= 4
        assert left.dtype == np.float32
    assert any(np.any(left != right) for left, right in zip(first, default_inputs(signature, seed=1), strict=True))


def test_penstock_opt_reports_lockstep_on_stderr(penstock_opt: Command) -> None:
    finished = penstock_opt("--lockstep", "-p", "canonicalize,dce", stdin=PROGRAM)
    assert finished.status == 0
    assert finished.out.startswith("builtin.module {")
    assert finished.err == "canonicalize: equal, bit for bit\ndce: equal, bit for bit\n"


def test_penstock_opt_fails_at_the_pass_that_changed_a_value(
    penstock_opt: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xdsl.transforms.dead_code_elimination import DeadCodeElimination

    monkeypatch.setattr(DeadCodeElimination, "apply", Subtracts.apply)
    finished = penstock_opt("--lockstep", "-p", "canonicalize,dce", stdin=PROGRAM)
    assert finished.status == 1
    assert finished.out == ""
    assert 'error: the pass "dce" changed a value' in finished.err
    assert 'note: the first operation with another value is "twice"' in finished.err


@dataclass(frozen=True)
class TakesTheLess(ModulePass):
    name = "takes-the-less"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for found in [inner for inner in op.walk() if isinstance(inner, arith.MaximumfOp)]:
            Rewriter.replace_op(found, arith.MinimumfOp(found.lhs, found.rhs))


def test_the_operation_is_named_below_graph_level_too() -> None:
    """An empty tensor stands at the location of its operation; it must not be taken for it."""
    ctx = make_context()
    text = """func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
      %y = graph.relu %x : tensor<8x8xf32> loc("rectified")
      func.return %y : tensor<8x8xf32>
    }"""
    module = parse_text(ctx, SourceText("in.mlir", text)).module
    culprit = lockstep(module, ctx, [*read_pipeline("graph-fuse,graph-to-tensor"), TakesTheLess()]).culprit
    assert culprit is not None
    assert (culprit.pass_name, culprit.operation) == ("takes-the-less", '"rectified"')
