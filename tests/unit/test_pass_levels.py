# SPDX-License-Identifier: Apache-2.0
"""Every pass on a program of every level: it works, says that it finds nothing, or refuses; it never crashes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from sampling import sweep
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.passes import ModulePass

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.runtime.levels import LEVELS, has_level, level_of, level_of_pass
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import load_pass, read_pipeline, run_passes
from penstock.tools.universe import PASSES

PROGRAM = """
func.func @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %y = graph.relu %x : tensor<4x4xf32>
  %z = graph.matmul %y, %x : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  func.return %z : tensor<4x4xf32>
}
"""
STEPS = {
    "graph": "",
    "fused": "graph-fuse",
    "tensor": "graph-to-tensor,canonicalize,cse",
    "assigned": "assign-devices",
    "loop": "tile,insert-copies,tensor-to-loop",
    "accel": "promote,tensorize,mem-plan,loop-to-accel",
}


@pytest.fixture(scope="module")
def stages() -> Mapping[str, tuple[Context, ModuleOp]]:
    """A program on its way down: after each of the steps."""
    ctx = make_context()
    module = Parser(ctx, PROGRAM).parse_module()
    attach_machine(module, "gemmini-fp32")
    found: dict[str, tuple[Context, ModuleOp]] = {}
    for stage, pipeline in STEPS.items():
        run_passes(ctx, module, read_pipeline(pipeline))
        found[stage] = ctx, module.clone()
    return found


def test_the_level_of_a_pass_is_that_of_its_folder() -> None:
    expected = {"tile": "tensor", "graph-to-tensor": "graph", "loop-to-accel": "loop", "mem-plan": "loop", "cse": None}
    assert {name: level_of_pass(load_pass(name)()) for name in expected} == expected
    without = [name for name in PASSES if level_of_pass(load_pass(name).__new__(load_pass(name))) is None]
    assert without == ["attach-machine", "lift-cf-to-scf", "value-cse", "value-dce"]


@dataclass(frozen=True)
class Foreign(ModulePass):
    """A pass of a package from outside."""

    name = "foreign"
    level = "accel"

    def apply(self, ctx: Context, op: ModuleOp) -> None: ...


def test_a_pass_from_outside_says_its_level(
    stages: Mapping[str, tuple[Context, ModuleOp]], capsys: pytest.CaptureFixture[str]
) -> None:
    for stage, (ctx, module) in stages.items():
        run_passes(ctx, module.clone(), [Foreign()], remark_levels=True)
        levels = f"works at the accel level, and the program is at the {level_of(module)} level"
        expected = f'remark: the pass "foreign" {levels}: it finds nothing to do\n' if stage != "accel" else ""
        assert capsys.readouterr().err == expected


@pytest.mark.parametrize("step", sweep([1, 5], quick=[5]))
def test_every_pass_meets_every_level(
    stages: Mapping[str, tuple[Context, ModuleOp]], capsys: pytest.CaptureFixture[str], step: int
) -> None:
    """At `step` 1; else every pass meets one level in so many."""
    remarks = refusals = 0
    for number, name in enumerate(PASSES):
        try:
            (module_pass,) = read_pipeline(name)
        except UserError:
            continue  # it needs an option
        level = level_of_pass(module_pass)
        for ctx, stage in list(stages.values())[number % step :: step]:
            module = stage.clone()
            said = ""
            try:
                run_passes(ctx, module, [module_pass], remark_levels=True)
            except UserError as error:
                said = error.message
                refusals += 1
            assert level in (None, *LEVELS)
            err = capsys.readouterr().err
            if level is None or has_level(stage, level):
                assert "it finds nothing to do" not in err
                assert "requires the" not in said
            elif not said:
                assert f"works at the {level} level" in err
                assert module.is_structurally_equivalent(stage)
                remarks += 1
    assert remarks > 80 // step
    assert refusals > 10 // step


@pytest.mark.parametrize(("pipeline", "stage"), [("promote", "assigned")])
def test_a_pass_that_takes_a_program_for_what_it_is_not_is_refused(
    stages: Mapping[str, tuple[Context, ModuleOp]], pipeline: str, stage: str
) -> None:
    ctx, module = stages[stage]
    with pytest.raises(UserError, match=r"requires the .* level, and the program is at the tensor level") as refusal:
        run_passes(ctx, module.clone(), read_pipeline(pipeline), remark_levels=True)
    assert refusal.value.notes[0].startswith("lower it first: tensor-to-loop")
    assert refusal.value.loc


@pytest.mark.parametrize("constant", ["", "%c = arith.constant dense<[1.0, 2.0]> : tensor<2xf32>"])
def test_what_has_no_level_goes_through_every_lowering_without_a_remark(
    constant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ctx, value = make_context(), "%c" if constant else "%x"
    text = (
        f"func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {{\n{constant}\nfunc.return {value} : tensor<2xf32>\n}}"
    )
    module = Parser(ctx, text).parse_module()
    run_passes(ctx, module, read_pipeline("graph-to-tensor,tensor-to-loop,mem-plan"), remark_levels=True)
    assert level_of(module) == "loop"
    assert capsys.readouterr().err == ""
