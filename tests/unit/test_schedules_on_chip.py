# SPDX-License-Identifier: Apache-2.0
"""Schedules of what `mem-promote` makes of kernels, and of what is no longer there when it decides otherwise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock as package
from penstock.dialects.diagnostics import UserError

if TYPE_CHECKING:
    from tests.conftest import Command

LAYER = """func.func @main(%x: tensor<64x128xf32>, %w: tensor<128x64xf32>, %b: tensor<64xf32>) -> tensor<64x64xf32> {
  %0 = graph.matmul %x, %w : (tensor<64x128xf32>, tensor<128x64xf32>) -> tensor<64x64xf32>
  %1 = graph.add %0, %b : (tensor<64x64xf32>, tensor<64xf32>) -> tensor<64x64xf32>
  %2 = graph.relu %1 : tensor<64x64xf32>
  func.return %2 : tensor<64x64xf32>
}
"""
TYPE = "tensor<64x64xf32>"
CHAIN = f"""func.func @main(%x: {TYPE}, %w: {TYPE}, %v: {TYPE}) -> {TYPE} {{
  %0 = graph.matmul %x, %w : ({TYPE}, {TYPE}) -> {TYPE}
  %1 = graph.matmul %0, %v : ({TYPE}, {TYPE}) -> {TYPE}
  %2 = graph.matmul %1, %w : ({TYPE}, {TYPE}) -> {TYPE}
  func.return %2 : {TYPE}
}}
"""
"""Three calls of one kernel, of which `mem-promote` makes several."""
VERSIONS = """#id = affine_map<(i, j) -> (i, j)>
func.func @main(%x: tensor<64x128xf32>, %y: tensor<64x256xf32>) -> (tensor<64x128xf32>, tensor<64x128xf32>) {
  %a = func.call @relu(%x) : (tensor<64x128xf32>) -> tensor<64x128xf32>
  %right = tensor.extract_slice %y[0, 128] [64, 128] [1, 1] : tensor<64x256xf32> to tensor<64x128xf32>
  %b = func.call @relu(%right) : (tensor<64x128xf32>) -> tensor<64x128xf32>
  func.return %a, %b : tensor<64x128xf32>, tensor<64x128xf32>
}
func.func private @relu(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64x128xf32>
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<64x128xf32>) outs(%e : tensor<64x128xf32>) {
  ^bb0(%a: f32, %o: f32):
    %1 = arith.maximumf %a, %zero : f32
    linalg.yield %1 : f32
  } -> tensor<64x128xf32>
  func.return %r : tensor<64x128xf32>
}
"""
"""A kernel of which `tensor-to-loop` makes another version, for rows that are not contiguous."""
MACHINE = "gemmini-fp32"


def emitted(penstock: Command, *words: str) -> str:
    """The program at accel level."""
    done = penstock("compile", "in.mlir", "--machine", MACHINE, "--emit=accel", *words, "-o", "out.mlir", "-q")
    assert done.status == 0, done.err
    Path("err.txt").write_text(done.err)
    return Path("out.mlir").read_text()


def test_python_goes_on_with_what_the_kernel_has_become(penstock: Command) -> None:
    Path("in.mlir").write_text(LAYER)
    schedule = package.schedule("in.mlir", "fused_0", machine=MACHINE, check=True)
    zero, product, bias, relu = schedule.match("linalg.generic")
    schedule.tile(product, [8, 0, 32], fusing=[zero, bias, relu])
    schedule.lower("mem-promote")
    assert schedule.state.kernel.sym_name.data == "fused_0_on_chip"
    schedule.multi_buffer(schedule.match("mem.buffer")[0], 3)
    schedule.lower("loop-to-accel")
    schedule.pipeline()
    schedule.save("own.mlir")
    assert re.findall("sequence @([a-z0-9_]+)", str(schedule)) == ["fused_0", "fused_0_on_chip"]
    assert "mem.ring 3" in emitted(penstock, "--schedule", "own.mlir")


def test_versions_of_a_kernel_are_awaited_where_they_are_made(penstock: Command) -> None:
    Path("in.mlir").write_text(VERSIONS)
    done = penstock("compile", "in.mlir", "--machine", "rapid-core-like", "--emit=schedule", "-o", "own.mlir", "-q")
    assert done.status == 0, done.err
    assert re.findall("sequence @([a-z0-9_]+)", Path("own.mlir").read_text())[:2] == ["relu", "relu_1"]
    programs: list[str] = []
    for words in ((), ("--schedule", "own.mlir")):
        given = ["compile", "in.mlir", "--machine", "rapid-core-like", "--emit=accel", *words, "-o", "out.mlir", "-q"]
        done = penstock(*given)
        assert done.status == 0, done.err
        programs.append(Path("out.mlir").read_text())
    assert programs[0] == programs[1]


@pytest.mark.parametrize("name", ["fused_0_on_chip", "fill"])
def test_python_begins_with_what_the_compiler_has_made(name: str, penstock: Command) -> None:
    Path("in.mlir").write_text(LAYER)
    schedule = package.schedule("in.mlir", name, machine=MACHINE)
    schedule.lower("loop-to-accel")
    schedule.pipeline()
    schedule.save("own.mlir")
    assert 'apply_registered_pass "mem-promote" to %kernel ' in str(schedule)
    emitted(penstock, "--schedule", "own.mlir")


def test_python_asks_which_of_several_kernels_is_meant(penstock: Command) -> None:
    Path("in.mlir").write_text(CHAIN)
    schedule = package.schedule("in.mlir", "fused_0", machine=MACHINE)
    with pytest.raises(UserError, match="has made several kernels of @fused_0: @fused_0_on_chip, @fused_0_on_chip_1"):
        schedule.lower("mem-promote")
    schedule.lower("mem-promote", kernel="fused_0_on_chip_1")
    schedule.lower("loop-to-accel")
    schedule.pipeline()
    schedule.save("own.mlir")
    assert "sequence @fused_0_on_chip_1" in str(schedule)
    emitted(penstock, "--schedule", "own.mlir")


PIPELINE = """transform.named_sequence @NAME(%kernel: !transform.any_op {transform.readonly}) {
  %commands = transform.apply_registered_pass "loop-to-accel" to %kernel : (!transform.any_op) -> !transform.any_op
  schedule.pipeline %commands {remark = "of NAME"}
  transform.yield
}
"""


def remarks(penstock: Command, *schedules: str) -> dict[str, str]:
    """What is said of the commands of each kernel, under these schedules."""
    Path("in.mlir").write_text(CHAIN)
    Path("own.mlir").write_text("".join(PIPELINE.replace("NAME", name) for name in schedules))
    words = ("compile", "in.mlir", "--machine", MACHINE, "--schedule", "own.mlir", "--emit=schedule", "-o", "all.mlir")
    done = penstock(*words, "-q")
    assert done.status == 0, done.err
    _, *sequences = Path("all.mlir").read_text().split("named_sequence @")
    found = ((text.partition("(")[0], re.search(r'schedule.pipeline .*remark = "([^"]*)', text)) for text in sequences)
    return {name: remark[1] for name, remark in found if remark is not None}


def test_the_schedule_of_a_kernel_is_that_of_all_that_is_made_of_it(penstock: Command) -> None:
    found = remarks(penstock, "fused_0")
    assert [name for name, remark in found.items() if remark == "of fused_0"] == [
        "fused_0_on_chip",
        "fused_0_on_chip_1",
    ]


def test_a_schedule_of_its_own_name_comes_first(penstock: Command) -> None:
    found = remarks(penstock, "fused_0", "fused_0_on_chip_1")
    assert (found["fused_0_on_chip"], found["fused_0_on_chip_1"]) == ("of fused_0", "of fused_0_on_chip_1")


def test_an_edit_that_changes_what_stays_on_chip_leaves_what_follows_to_the_compiler(penstock: Command) -> None:
    Path("in.mlir").write_text(LAYER)
    assert penstock("compile", "in.mlir", "--machine", MACHINE, "--emit=schedule", "-o", "own.mlir", "-q").status == 0
    own = Path("own.mlir").read_text()
    assert "sequence @fused_0_on_chip(" in own
    # With all rows in a tile the weights are read once, and stay nowhere.
    edited, count = re.subn(r"sizes \[32, 0, 8\]", "sizes [64, 0, 8]", own)
    assert count == 1
    Path("edited.mlir").write_text(edited)
    assert "@fused_0_on_chip" not in emitted(penstock, "--schedule", "edited.mlir")
    err = Path("err.txt").read_text()
    for name in ("fused_0_on_chip", "fill"):
        said = f'warning: what the schedule of @{name} says after "mem-promote" is left to the compiler'
        assert re.search(rf"edited.mlir:\d+:3: {re.escape(said)}", err)
