# SPDX-License-Identifier: Apache-2.0
"""A program that a pass breaks is cut down as long as the pass breaks it in the same way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.passes import ModulePass

from penstock.dialects.context import make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.tools.reduce import Reducer

if TYPE_CHECKING:
    from tests.conftest import Command

GRAPH = """
func.func @main(%x: tensor<4x6xf32>, %w: tensor<6x5xf32>) -> (tensor<4x5xf32>, tensor<4x6xf32>) {
  %a = graph.relu %x : tensor<4x6xf32>
  %b = graph.add %a, %x : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
  %c = graph.matmul %b, %w : (tensor<4x6xf32>, tensor<6x5xf32>) -> tensor<4x5xf32>
  %d = graph.tanh %c : tensor<4x5xf32>
  %e = graph.sub %d, %c : (tensor<4x5xf32>, tensor<4x5xf32>) -> tensor<4x5xf32>
  %f = graph.mul %e, %d : (tensor<4x5xf32>, tensor<4x5xf32>) -> tensor<4x5xf32>
  %g = graph.relu %b : tensor<4x6xf32>
  func.return %f, %g : tensor<4x5xf32>, tensor<4x6xf32>
}
"""
LEVELS = {
    "tensor": "graph-fuse,graph-to-tensor",
    "loop": "graph-fuse,graph-to-tensor,tile,tensor-to-loop",
}


def bodies(module: ModuleOp) -> Iterator[GenericOp]:
    for function in module.ops:
        if isinstance(function, FuncOp):
            yield from (op for op in function.walk() if isinstance(op, GenericOp))


@dataclass(frozen=True)
class SwapsOperands(ModulePass):
    """A pass that is wrong about subtraction."""

    name = "swaps-operands"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for generic in bodies(op):
            for each in generic.body.walk():
                if isinstance(each, arith.SubfOp):
                    each.operands = list(reversed(each.operands))


@dataclass(frozen=True)
class Crashes(ModulePass):
    """A pass that does not think of products."""

    name = "crashes"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for generic in bodies(op):
            names = {each.name for each in generic.body.walk()}
            if {"arith.mulf", "arith.addf"} <= names:
                raise IndexError(f"list index {len(names)} out of range")


def names_in(module: ModuleOp) -> list[str]:
    return [
        op.name
        for each in bodies(module)
        for op in each.body.walk()
        if op.name in ("arith.subf", "arith.addf", "arith.mulf")
    ]


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_left_is_what_the_wrong_pass_is_about(level: str) -> None:
    ctx = make_context()
    module = parse_text(ctx, SourceText("in.mlir", GRAPH)).module
    wrong = SwapsOperands()
    found = Reducer(ctx).reduce(module, [*read_pipeline(LEVELS[level]), wrong, *read_pipeline("cse")])
    assert found is not None
    assert found.passes == (wrong,)
    assert (found.failure.pass_name, found.failure.kind) == ("swaps-operands", "str: changed")
    assert names_in(found.module) == ["arith.subf"]
    assert sum(1 for _ in found.module.walk()) <= 12
    assert "func.call" not in str(found.module)


def test_a_crash_stays_the_same_crash() -> None:
    ctx = make_context()
    module = parse_text(ctx, SourceText("in.mlir", GRAPH.replace("graph.tanh", "graph.relu"))).module
    run_passes(ctx, module, read_pipeline(LEVELS["tensor"]))
    before = str(module)
    found = Reducer(ctx).reduce(module, [Crashes()])
    assert found is not None
    assert found.failure.kind == "IndexError: list index # out of range"
    assert names_in(found.module) == ["arith.mulf", "arith.addf"]
    assert str(module) == before


def test_a_sound_pass_leaves_nothing_to_reduce() -> None:
    ctx = make_context()
    module = parse_text(ctx, SourceText("in.mlir", GRAPH)).module
    assert Reducer(ctx).reduce(module, read_pipeline(LEVELS["loop"])) is None


def test_check_writes_what_is_left_and_the_command_that_shows_it(
    penstock: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xdsl.transforms.dead_code_elimination import DeadCodeElimination

    sound = DeadCodeElimination.apply
    monkeypatch.setattr(DeadCodeElimination, "apply", SwapsOperands.apply)
    Path("in.mlir").write_text(GRAPH)
    finished = penstock("check", "in.mlir", "-p", f"{LEVELS['tensor']},dce", "--seed", "3", "--reduce", "small.mlir")
    assert finished.status == 1
    said = re.search(r"reduced from (\d+) to (\d+) operations by \d+ tries: (.*)\n", finished.out + finished.err)
    assert said is not None
    assert int(said[2]) < int(said[1])
    assert said[3] == "penstock check small.mlir -p dce --seed 3"
    assert Path("small.mlir").read_text().startswith(f"// {said[3]}\n// dce: str: changed\n")
    again = penstock(*said[3].split()[1:])
    assert again.status == 1
    assert 'the pass "dce" changed a value' in again.err
    monkeypatch.setattr(DeadCodeElimination, "apply", sound)
    assert penstock(*said[3].split()[1:]).status == 0
