# SPDX-License-Identifier: Apache-2.0
"""Lockstep names the pass that changed a value, and only that."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, UnknownLoc
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from penstock.dialects.accel import DmaOp
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.graph import AddOp, SubOp
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline
from penstock.runtime.signature import signature_of
from penstock.tools.lockstep import Lockstep, default_inputs, lockstep
from penstock.tools.rounding import summed_terms

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
    assert culprit.operation == 'in.mlir:3:3 ("twice")'
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
    assert 'note: the first operation with another value is <stdin>:3:3 ("twice")' in finished.err


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
    assert (culprit.pass_name, culprit.operation) == ("takes-the-less", 'in.mlir:2:7 ("rectified")')


@dataclass(frozen=True)
class Raises(ModulePass):
    name = "raises"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        raise UserError("this program is too odd", loc="in.mlir:1:1")


KERNEL = """
func.func @main(%x: memref<16xf32> {graph.name = "x"}, %y: memref<16xf32> {graph.output = "y"}) {
  func.call @k(%x, %y) : (memref<16xf32>, memref<16xf32>) -> ()
  func.return
}
func.func private @k(%x: memref<16xf32>, %y: memref<16xf32>) attributes {device = @gemmini_fp32} {
  %a = mem.buffer at 0 : memref<16xf32, "spad">
  %t = accel.dma %x to %a on "mvin" : memref<16xf32> to memref<16xf32, "spad"> loc("load")
  %u = accel.dma %a to %y on "mvout" after (%t) : memref<16xf32, "spad"> to memref<16xf32> loc("store")
  accel.barrier
  func.return
}
"""


@dataclass(frozen=True)
class Drops(ModulePass):
    """Takes out the operand or the op that a bug leaves out."""

    name = "drops"
    what: str = "token"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        load, store = [each for each in op.walk() if isinstance(each, DmaOp) and each.location != UnknownLoc()]
        store.operands = [store.source, store.dest]
        store.properties["operandSegmentSizes"] = load.properties["operandSegmentSizes"]
        if self.what == "load":
            Rewriter.erase_op(load)


def watched(*passes: ModulePass) -> UserError:
    """What lockstep raises on the kernel."""
    ctx = make_context()
    module = parse_text(ctx, SourceText("in.mlir", KERNEL)).module
    attach_machine(module, "gemmini-fp32")
    with pytest.raises(UserError) as raised:
        Lockstep(ctx, default_inputs(signature_of(module))).run(module, passes)
    return raised.value


def test_a_missing_token_is_blamed_on_the_pass_that_left_it_out_although_a_later_one_would_hide_it() -> None:
    error = watched(*read_pipeline("cse"), Drops("token"), *read_pipeline("accel-pipeline"))
    assert error.message.startswith('the pass "drops" broke the program: data race: accel.dma "mvout" on store')
    assert error.loc == 'in.mlir:9:3 ("store")'
    assert error.notes[-1] == "every value was kept by cse"


def test_a_fault_of_the_interpreter_is_blamed_on_the_pass_after_which_it_shows() -> None:
    error = watched(*read_pipeline("cse,dce"), Drops("load"))
    assert error.message.startswith('the pass "drops" broke the program: accel.dma reads element [0] of %a')
    assert error.loc == 'in.mlir:9:3 ("store")'
    assert error.notes[-1] == "every value was kept by cse, dce"


def test_a_refusal_names_the_pass_and_those_that_kept_every_value() -> None:
    error = watched(*read_pipeline("cse"), Raises())
    assert (error.message, error.loc) == ("this program is too odd", "in.mlir:1:1")
    assert error.notes == ('the pass "raises" refuses the program', "every value was kept by cse")


@pytest.mark.parametrize("quiet", [False, True])
def test_check_lists_the_passes_up_to_a_refusal(
    penstock: Command, monkeypatch: pytest.MonkeyPatch, *, quiet: bool
) -> None:
    from xdsl.transforms.dead_code_elimination import DeadCodeElimination

    monkeypatch.setattr(DeadCodeElimination, "apply", Raises.apply)
    Path("in.mlir").write_text(PROGRAM)
    finished = penstock("check", "in.mlir", "-p", "canonicalize,dce", *(["-q"] if quiet else []))
    assert finished.status == 1
    assert finished.out == ("" if quiet else "canonicalize: equal, bit for bit\n")
    assert 'note: the pass "dce" refuses the program\nnote: every value was kept by canonicalize\n' in finished.err


def test_check_against_a_source_names_the_operation_that_differs(penstock: Command) -> None:
    Path("source.mlir").write_text(PROGRAM)
    Path("edited.mlir").write_text(PROGRAM.replace("graph.add %p, %p", "graph.mul %p, %p"))
    finished = penstock("check", "edited.mlir", "--against", "source.mlir", "-p", "dce")
    assert (finished.status, finished.out.split(" changed")[0]) == (1, "as given:")
    assert 'note: the first operation with another value is source.mlir:3:3 ("twice")' in finished.err
    Path("other.mlir").write_text(PROGRAM.replace("8", "7"))
    finished = penstock("check", "other.mlir", "--against", "source.mlir")
    assert (finished.status, finished.out) == (1, "")
    assert "error: the program has other inputs or outputs than its source" in finished.err
    finished = penstock("check", "source.mlir", "--against", "source.mlir", "-p", "dce")
    assert finished.out == "as given: equal, bit for bit\ndce: equal, bit for bit\n"
