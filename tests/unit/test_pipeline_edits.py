# SPDX-License-Identifier: Apache-2.0
"""The pipeline as a person edits it: what runs, how it is printed, and what is proved of what it leaves."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import parsed
from sampling import examples
from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

import penstock as package
from penstock.dialects.accel import DmaOp, ExecOp, ReadyOp, TokenType
from penstock.dialects.diagnostics import UserError
from penstock.dialects.mem import ScopedAllocation
from penstock.passes.graph.bind_dims import BindDimsPass
from penstock.passes.loop.mem_plan import MemPlanPass
from penstock.passes.loop.mem_verify import MemVerifyPass
from penstock.runtime import pass_manager, pipeline_edits
from penstock.runtime.dynamic_engine import DynamicEngine
from penstock.runtime.pass_manager import pipeline_text, read_pipeline
from penstock.runtime.pipeline import passes_for

if TYPE_CHECKING:
    from tests.conftest import Command

MACHINE = ("--machine", "gemmini-fp32")
PRODUCT = """func.func @main(%x: tensor<16x16xf32> {graph.name = "x"}) -> (tensor<16x16xf32> {graph.name = "y"}) {
  %y = graph.matmul %x, %x : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  func.return %y : tensor<16x16xf32>
}
"""
X = np.arange(256, dtype=np.float32).reshape(16, 16) % 7


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.mlir").write_text(PRODUCT)
    np.save(tmp_path / "x.npy", X)


def passes_of(text: str | None, until: str = "accel", machine: str | None = None) -> list[str]:
    return pipeline_text(passes_for(parsed(PRODUCT), until, machine, text)).split(",")


# the text


def test_what_is_inserted_may_be_nested_passes() -> None:
    edited = pipeline_text(passes_for(parsed(PRODUCT), "tensor", None, "default, +func.func(cse,dce) after tile"))
    assert edited.endswith(",tile,func.func(cse,dce),copy-parts")


def test_blanks_and_a_last_comma_are_nothing() -> None:
    tidy = pipeline_text(read_pipeline("tile{sizes=1,2},cse,dce"))
    assert pipeline_text(read_pipeline("  tile{sizes=1,2} ,\n\tcse, dce , ")) == tidy
    assert pipeline_text(read_pipeline(f"builtin.module( {tidy} )")) == tidy
    assert read_pipeline(" ") == ()


@given(
    st.text(st.characters(codec="ascii", exclude_categories=["Cc"]) | st.sampled_from('\n\t"\\{}[],= é')),
    st.none() | st.integers(0) | st.floats(0, allow_nan=False, allow_infinity=False),
)
@examples(100)
def test_what_is_printed_is_read_back(word: str, limit: float | None) -> None:
    passes = (BindDimsPass(names=(word,), sizes=(1,)), MemPlanPass(time_limit=limit, seed=-3), MemVerifyPass())
    assert read_pipeline(pipeline_text(passes)) == passes
    assert "\n" not in pipeline_text(passes)


@pytest.mark.parametrize(
    ("text", "column"),
    [("cse, csee", 6), ("builtin.module(cse,csee)", 20), ('bind-dims{names="a,b" sizes=1},csee', 32), ("cse,,dce", 5)],
)
def test_a_fault_is_placed_where_it_is(text: str, column: int) -> None:
    with pytest.raises(UserError) as caught:
        read_pipeline(text)
    assert caught.value.loc == f"pass-pipeline:1:{column}"


def test_a_fault_on_another_line_is_placed_there() -> None:
    for text, place in (
        ("cse,\n  dce,\n  csee", "3:3"),
        ("cse,\nmem-plan{seed=1\n  planer=x}", "2:1"),
        ("cse,\nmem-plan{seed=1\n  steps=}", "3:9"),
        ("builtin.module(\n  csee)", "2:3"),
        ("default,\n+ csee\n after layout", "2:3"),
        ("default,\nlayout\n= csee", "3:3"),
    ):
        with pytest.raises(UserError) as caught:
            passes_of(text)
        assert caught.value.loc == f"pass-pipeline:{place}"


# edits

USUAL = passes_of(None)


def instead(old: str, *new: str) -> list[str]:
    """The usual pipeline of the host with every occurrence of a pass replaced."""
    return [each for name in USUAL for each in (new if name == old else (name,))]


EDITS: dict[str, list[str]] = {
    "default": USUAL,
    " default ,": USUAL,
    "default, -layout": instead("layout"),
    "default,-simplify": instead("simplify"),
    "default, -simplify#2, -simplify": instead("simplify"),
    "default, layout=cse": instead("layout", "cse"),
    "default, simplify=cse": instead("simplify", "cse"),
    "default, mem-plan = mem-plan{planner=exact}": instead("mem-plan", 'mem-plan{planner="exact"}'),
    "default, mem-plan{planner=exact}": instead("mem-plan", 'mem-plan{planner="exact"}'),
    "default, mem-plan{planner=exact}, mem-plan{seed=3}": instead("mem-plan", 'mem-plan{planner="exact" seed=3}'),
    "default, +cse after layout": instead("layout", "layout", "cse"),
    "default, +cse before layout, +dce before cse": instead("layout", "dce", "cse", "layout"),
    "default, +cse after simplify": instead("simplify", "simplify", "cse"),
    "default, + mem-plan{planner=exact}  after  mem-plan": instead("mem-plan", "mem-plan", 'mem-plan{planner="exact"}'),
    "default, layout=cse, cse=dce": instead("layout", "dce"),
    "cse,dce": ["cse", "dce"],
}


@pytest.mark.parametrize("text", EDITS)
def test_an_edit_says_what_runs(text: str) -> None:
    assert passes_of(text) == EDITS[text]


def test_a_number_picks_one_occurrence() -> None:
    first, second = (index for index, name in enumerate(USUAL) if name == "simplify")
    found = passes_of("default, simplify#2=cse")
    assert (found[first], found[second]) == ("simplify", "cse")
    found = passes_of("default, +cse before simplify#1")
    assert (found[first], found.count("cse")) == ("cse", 1)


def test_options_of_the_pipeline_stay() -> None:
    assert 'multi-buffer{depth="auto"}' in passes_of(None, machine="gemmini-fp32")
    found = passes_of("default, multi-buffer{fit=true}, -tile", machine="gemmini-fp32")
    assert 'multi-buffer{depth="auto" fit=true}' in found
    assert "tile" not in found


def test_an_option_is_named_with_hyphens_or_underscores() -> None:
    assert passes_of("default, mem-plan{time-limit=1}, mem-plan{time_limit=2}") == instead(
        "mem-plan", "mem-plan{time_limit=2}"
    )


def test_a_pipeline_that_ends_early_is_edited_as_far() -> None:
    usual = passes_of(None, until="graph")
    assert passes_of("default, -layout", until="graph") == [each for each in usual if each != "layout"]
    with pytest.raises(UserError, match="ends at graph level"):
        passes_of("default, -fuse-elementwise", until="graph")


# commands


def test_the_printed_pipeline_is_the_one_that_runs(penstock: Command, penstock_opt: Command) -> None:
    edits = "default, -fuse-attention, mem-plan{planner=first-fit-by-size}, +value-cse before mem-plan"
    words = ("in.mlir", *MACHINE, "-p", edits)
    done = penstock("compile", *words, "--print-pipeline")
    assert (done.status, done.err, done.out.count("\n")) == (0, "", 1)
    assert not Path("in.plan").exists()
    assert penstock("compile", *words, "--emit=accel", "-o", "accel.mlir", "-q").status == 0
    assert penstock_opt("in.mlir", *MACHINE, "-p", done.out.strip()).out == Path("accel.mlir").read_text()
    for command in ("run", "check", "simulate"):
        assert penstock(command, *words, "--print-pipeline").out == done.out, command


def test_unedited_the_program_is_the_same(penstock: Command) -> None:
    assert penstock("compile", "in.mlir", *MACHINE, "--emit=accel", "-o", "usual.mlir", "-q").status == 0
    for text in ("default", penstock("compile", "in.mlir", *MACHINE, "--print-pipeline").out):
        assert penstock("compile", "in.mlir", *MACHINE, "-p", text, "--emit=accel", "-o", "own.mlir", "-q").status == 0
        assert Path("own.mlir").read_text() == Path("usual.mlir").read_text()


def test_what_stands_is_run_by_no_passes(penstock: Command) -> None:
    assert penstock("run", "in.mlir", "--input", "x.npy", "--print-pipeline").out == "\n"
    assert penstock("compile", "in.mlir", *MACHINE, "--emit=accel", "-o", "accel.mlir", "-q").status == 0
    assert penstock("simulate", "accel.mlir", "--print-pipeline").out == "\n"
    remaining = penstock("simulate", "accel.mlir", "-p", "default", "--print-pipeline").out
    assert remaining == "accel-pipeline,cse,mem-verify,accel-check-hazards\n"


def test_from_a_lower_level_what_remains_is_edited(penstock: Command) -> None:
    assert penstock("compile", "in.mlir", *MACHINE, "--emit=tensor", "-o", "tensor.mlir", "-q").status == 0
    words = ("tensor.mlir", "-p", "default, mem-plan{planner=exact}", "--print-pipeline")
    found = penstock("compile", *words).out.strip().split(",")
    assert found[:3] == ["outline-kernels", "assign-devices", "collapse-dims"]
    assert 'mem-plan{planner="exact"}' in found


def test_a_program_is_run_and_checked_by_edited_passes(penstock: Command) -> None:
    words = ("in.mlir", *MACHINE, "-p", "default, -mem-promote, accel-pipeline{depth=1}")
    for level in ("accel", "c"):
        assert penstock("run", *words, "--input", "x.npy", "--level", level, "-q").status == 0
        assert np.array_equal(np.load("output_0.npy"), X @ X)
    done = penstock("check", *words)
    assert (done.status, "mem-promote" in done.out, "accel-pipeline: equal" in done.out) == (0, False, True)
    usual, own = penstock("simulate", "in.mlir", *MACHINE).out, penstock("simulate", *words).out
    assert usual.splitlines()[0] != own.splitlines()[0]


def test_a_fault_in_a_pass_is_repeated_for_the_same_machine(
    penstock: Command, penstock_opt: Command, own_pass: Callable[[Callable[[ModuleOp], None]], None]
) -> None:
    def crash(module: ModuleOp) -> None:
        raise AssertionError("a fault of this test")

    own_pass(crash)
    options = ("--set", "scope.spad.size=64K")
    done = penstock("compile", "in.mlir", *MACHINE, *options, "-p", "default, +own after layout", "-q")
    assert done.status == 70
    (line,) = [line for line in done.err.splitlines() if line.startswith("note: repeat it with: ")]
    words = shlex.split(line.removeprefix("note: repeat it with: "))
    assert "--set=scope.spad.size=64K" in words
    assert "a fault of this test" in penstock_opt(*words[1:]).err


# what is proved


@pytest.fixture
def own_pass(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[ModuleOp], None]], None]:
    """Makes a function of a module the pass `own`."""
    usual = pass_manager.available_passes()

    def add(change: Callable[[ModuleOp], None]) -> None:
        class OwnPass(ModulePass):
            name = "own"

            def apply(self, ctx: Context, op: ModuleOp) -> None:
                change(op)

        monkeypatch.setattr(pass_manager, "available_passes", lambda: {**usual, "own": lambda: OwnPass})
        monkeypatch.setattr(pipeline_edits, "available_passes", pass_manager.available_passes)

    return add


def drop_tokens(module: ModuleOp) -> None:
    for op in list(module.walk()):
        if isinstance(op, DmaOp | ExecOp):
            for index, value in enumerate(op.operands):
                if isinstance(value.type, TokenType):
                    Rewriter.insert_op(ready := ReadyOp(), InsertPoint.before(op))
                    op.operands[index] = ready.results[0]


def stack_up(module: ModuleOp) -> None:
    for op in module.walk():
        if isinstance(op, ScopedAllocation) and op.offset is not None:
            op.offset = IntegerAttr(0, i64)


BREAKS = {
    "tokens": (drop_tokens, "default, -accel-check-hazards, +own after mem-verify#2", "happens-before"),
    "plan": (stack_up, "default, -mem-promote, -mem-verify, accel-check-hazards=own", "share bytes"),
    "plan, the other proof kept": (stack_up, "default, -mem-promote, +own after mem-verify#2", "data race"),
}
COMMANDS = {
    "tokens": ("run", "in.mlir", "--level", "accel", "--input", "x.npy"),
    "plan": ("simulate", "in.mlir"),
    "plan, the other proof kept": ("compile", "in.mlir", "-o", "out.plan"),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_what_the_pipeline_does_not_verify_is_proved_all_the_same(
    broken: str, penstock: Command, own_pass: Callable[[Callable[[ModuleOp], None]], None]
) -> None:
    change, pipeline, message = BREAKS[broken]
    own_pass(change)
    done = penstock(*COMMANDS[broken], *MACHINE, "-p", pipeline, "-q")
    assert (done.status, message in done.err) == (1, True), done.err
    assert not Path("out.plan").exists()


def test_from_python_it_is_proved_as_well(own_pass: Callable[[Callable[[ModuleOp], None]], None]) -> None:
    own_pass(stack_up)
    with pytest.raises(UserError, match="share bytes"):
        package.compile("in.mlir", "gemmini-fp32", "interpreter", pipeline=BREAKS["plan"][1])


# Python


def test_from_python() -> None:
    engine = package.compile("in.mlir", "gemmini-fp32", "interpreter", pipeline="default, -fuse-attention")
    assert np.array_equal(engine(X)[0], X @ X)
    assert isinstance(engine, package.Engine)
    assert "fuse-attention" not in [name for name, _ in engine.seconds]
    whole = package.compile("in.mlir", backend="interpreter", pipeline="graph-fuse, graph-to-tensor")
    assert isinstance(whole, package.Engine)
    assert [name for name, _ in whole.seconds] == ["graph-fuse", "graph-to-tensor"]
    assert np.array_equal(whole(X)[0], X @ X)
    with pytest.raises(UserError, match="these passes leave the program at the tensor level"):
        package.compile("in.mlir", pipeline="graph-fuse, graph-to-tensor")


def test_symbolic_dims_are_compiled_by_the_same_passes(tmp_path: Path) -> None:
    text = """func.func @main(%x: tensor<?x4xf32> {graph.name = "x", graph.dims = ["N", ""]})
        -> (tensor<?x4xf32> {graph.name = "y", graph.dims = ["N", ""]}) {
      %y = graph.relu %x : tensor<?x4xf32>
      func.return %y : tensor<?x4xf32>
    }
    """
    (tmp_path / "open.mlir").write_text(text)
    arguments: dict[str, Any] = {"machine": "gemmini-fp32", "machine_options": {"scope.spad.size": "64K"}}
    engine = package.compile("open.mlir", backend="interpreter", pipeline="default, -layout", **arguments)
    assert isinstance(engine, DynamicEngine)
    bound = engine.bind(N=3)
    assert "layout" not in [name for name, _ in bound.seconds]
    assert "size 65536" in str(bound.module)
    with pytest.raises(UserError, match='has no pass "layuot"'):
        package.compile("open.mlir", pipeline="default, -layuot")
    with pytest.raises(UserError, match='there is no scope "spd"'):
        package.compile("open.mlir", machine="gemmini-fp32", machine_options={"scope.spd.size": 1})
