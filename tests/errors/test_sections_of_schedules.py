# SPDX-License-Identifier: Apache-2.0
"""Schedules that are wrong as text, or say too little or too much: each is refused at its line, and says why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.dialects.diagnostics import UserError
from penstock.runtime.kernel_schedule import schedule as schedule_of

if TYPE_CHECKING:
    from tests.conftest import Command

PROGRAM = """func.func @main(%x: tensor<16x8xf32>, %w: tensor<8x4xf32>) -> tensor<16x4xf32> {
  %0 = graph.matmul %x, %w : (tensor<16x8xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
  func.return %0 : tensor<16x4xf32>
}
"""
LAYER = """func.func @main(%x: tensor<64x128xf32>, %w: tensor<128x64xf32>, %b: tensor<64xf32>) -> tensor<64x64xf32> {
  %0 = graph.matmul %x, %w : (tensor<64x128xf32>, tensor<128x64xf32>) -> tensor<64x64xf32>
  %1 = graph.add %0, %b : (tensor<64x64xf32>, tensor<64xf32>) -> tensor<64x64xf32>
  %2 = graph.relu %1 : tensor<64x64xf32>
  func.return %2 : tensor<64x64xf32>
}
"""
BEGIN = """module attributes {transform.with_named_sequence} {
transform.named_sequence @fused_0(%kernel: !transform.any_op {transform.readonly}) {
%ops = transform.structured.match ops{["linalg.generic"]} in %kernel : (!transform.any_op) -> !transform.any_op
%zero, %product = transform.split_handle %ops : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
"""
END = "transform.yield\n}\n}\n"
TILE = "%tile, %zeros, %rows = schedule.tile %product fusing(%zero) sizes [4, 0, 0]"
MARK = '= transform.apply_registered_pass "{}" to %{} : (!transform.any_op) -> !transform.any_op'
BUFFERS = (
    '%buffers = transform.structured.match ops{["mem.buffer"]} in %chip : (!transform.any_op) -> !transform.any_op'
)
LOOPS = f"%loops {MARK.format('tensor-to-loop', 'kernel')}"
TWO = "%two = transform.param.constant 2 : i64 -> !transform.any_param"

REFUSED = {
    TILE.replace("%zero)", "%product)"): ("an op is listed twice", ""),
    f"{TILE} {{slots = {{akk = 2 : i64}}}}": ('has no scope "akk"', "its scopes: spad, acc"),
    f"{TILE} {{slots = {{acc = 0 : i64}}}}": ('the slots of "acc" are a number from 1', ""),
    f'{TILE} {{edges = ["overlap", "whole", "whole"]}}': (
        'schedule.tile takes no attribute "edges" in braces',
        "it is written before the braces",
    ),
    f"{TILE} {{slot = {{acc = 2 : i64}}}}": (
        'schedule.tile takes no attribute "slot" in braces',
        'did you mean "slots"?',
    ),
    "schedule.tensorize %product @gemm": ("this op is on tensors", 'the pass "tensor-to-loop"'),
    "schedule.pipeline %kernel": ("the kernel has no commands yet, but linalg.generic", '"loop-to-accel"'),
    f"%later {MARK.format('tensor-to-loops', 'kernel')}": (
        'a schedule does not go on after "tensor-to-loops"',
        'did you mean "tensor-to-loop"?',
    ),
    f"{LOOPS}\n%again {MARK.format('tensor-to-loop', 'loops')}": (
        'a section after "tensor-to-loop" cannot follow one after "tensor-to-loop"',
        "in this order, each once",
    ),
    f"%accel {MARK.format('loop-to-accel', 'kernel')}\n%loops {MARK.format('tensor-to-loop', 'accel')}": (
        'a section after "tensor-to-loop" cannot follow one after "loop-to-accel"',
        "tensor-to-loop, mem-promote, loop-to-accel",
    ),
    f"{LOOPS}\n%accel {MARK.format('loop-to-accel', 'kernel')}": ("a section begins with the handle of the kernel", ""),
    "%tile, %rows = transform.structured.tile_using_for %product tile_sizes [%ops, 0, 0] :"
    " (!transform.any_op, !transform.any_op) -> (!transform.any_op, !transform.any_op)": (
        "%ops stands for operations, and a number is meant",
        "return numbers",
    ),
    f"{TWO}\n{TILE}\n{LOOPS}\n"
    '%loop = transform.structured.match ops{["scf.for"]} in %loops : (!transform.any_op) -> !transform.any_op\n'
    "%outer, %inner, %tail = schedule.split %loop by_param %two": ("%two is a parameter of an earlier section", ""),
}
"""What is refused at its last line, and the words that say so and that help."""


def attempt(penstock: Command, schedule: str, program: str = PROGRAM) -> str:
    """What is said of a schedule that is refused."""
    Path("program.mlir").write_text(program)
    Path("s.mlir").write_text(schedule)
    Path("out.mlir").write_text("untouched")
    finished = penstock(
        *("compile", "program.mlir", "--machine", "gemmini-fp32"),
        *("--schedule", "s.mlir", "--emit", "accel", "-o", "out.mlir", "-q"),
    )
    assert (finished.status, finished.out) == (1, "")
    assert Path("out.mlir").read_text() == "untouched"
    return finished.err


@pytest.mark.parametrize("ops", REFUSED)
def test_what_a_schedule_cannot_say_is_refused_at_its_line(ops: str, penstock: Command) -> None:
    message, help = REFUSED[ops]
    err = attempt(penstock, f"{BEGIN}{ops}\n{END}")
    assert err.startswith(f"s.mlir:{BEGIN.count(chr(10)) + 1 + ops.count(chr(10))}:1: error: ")
    assert message in err
    assert help in err


@pytest.mark.parametrize("text", ["", "\n", "// rows\n// columns"])
def test_a_file_without_operations_is_no_schedule(text: str, penstock: Command) -> None:
    assert attempt(penstock, text).startswith("s.mlir:1:1: error: the text holds no operation\n")


def test_an_op_is_looked_for_in_the_dialect_that_its_name_begins_with(penstock: Command) -> None:
    err = attempt(penstock, BEGIN.replace("structured.match", "structured.mach") + END)
    assert err.startswith('s.mlir:3:1: error: the operation "transform.structured.mach" is not registered')
    assert 'note: did you mean "transform.structured.match"?' in err


def test_the_host_has_no_section_after_what_stays_on_chip(penstock: Command) -> None:
    ring = f"{BUFFERS}\n%ring = schedule.multi_buffer %buffers slots 2"
    text = f"{BEGIN}%chip {MARK.format('mem-promote', 'kernel')}\n{ring}\n{END}"
    Path("program.mlir").write_text(PROGRAM)
    Path("s.mlir").write_text(text)
    refused = penstock("compile", "program.mlir", "--schedule", "s.mlir", "--emit", "loop", "-o", "out.mlir", "-q")
    assert refused.status == 1
    assert refused.err.startswith("s.mlir:2:1: error: kernel @fused_0 runs on the host, which has no scopes")


def test_a_pipeline_without_the_pass_of_a_section_does_not_apply_it(penstock: Command) -> None:
    Path("program.mlir").write_text(PROGRAM)
    Path("s.mlir").write_text(f"{BEGIN}{TILE}\n{END}")
    words = ("compile", "program.mlir", "--schedule", "s.mlir", "--emit", "loop", "-o", "out.mlir", "-q")
    refused = penstock(*words, "-p", "default, -tile")
    assert refused.err.startswith("s.mlir:2:1: error: the schedule of @fused_0 is not applied")
    assert "note: the passes tile, promote, multi-buffer and accel-pipeline apply sections" in refused.err


def test_a_kernel_has_one_schedule(penstock: Command) -> None:
    one = BEGIN.partition("\n")[2] + "transform.yield\n}\n"
    err = attempt(penstock, one + one)
    assert err.startswith("s.mlir:6:1: error: kernel @fused_0 has two schedules")
    assert "the other is at s.mlir:1:1" in err


def test_what_the_compiler_cannot_decide_after_a_schedule_names_the_schedule(penstock: Command) -> None:
    begin = BEGIN.replace("%zero, %product =", "%zero, %product, %bias, %relu =").replace(
        "(!transform.any_op, !transform.any_op)", f"({', '.join(['!transform.any_op'] * 4)})"
    )
    alone = "%tile, %tiles:2, %rows = schedule.tile %product fusing(%bias, %relu) sizes [32, 0, 0]\n"
    # What is set to zero before the tiles is all of the sums.
    large = LAYER.replace("64x128", "512x128").replace("tensor<64x64", "tensor<512x64")
    err = attempt(penstock, begin + alone + END, large)
    assert err.startswith('s.mlir:2:1: error: a buffer of 131,072 bytes is larger than "acc", which has 65,536')
    assert "note: the schedule at s.mlir:2:1 leaves the section after tensor-to-loop to the compiler" in err


def test_a_section_of_a_kernel_that_keeps_nothing_on_chip_is_left_to_the_compiler(penstock: Command) -> None:
    head = BEGIN.partition("%ops")[0].replace("@fused_0", "@fused_0_on_chip")
    Path("program.mlir").write_text(PROGRAM)
    Path("s.mlir").write_text(f"{head}%accel {MARK.format('loop-to-accel', 'kernel')}\nschedule.pipeline %accel\n{END}")
    words = ("compile", "program.mlir", "--machine", "gemmini-fp32", "--emit", "accel", "-q", "-o")
    warned = penstock(*words, "given.mlir", "--schedule", "s.mlir")
    assert warned.status == 0
    assert warned.err.startswith(
        's.mlir:2:1: warning: what the schedule of @fused_0_on_chip says after "mem-promote" is left to the compiler'
    )
    assert "note: there is @fused_0\n" in warned.err
    assert penstock(*words, "usual.mlir").err == ""
    assert Path("given.mlir").read_text() == Path("usual.mlir").read_text()


def test_what_stays_on_chip_is_not_known_before_it_is_decided(penstock: Command) -> None:
    err = attempt(penstock, f"{BEGIN.replace('@fused_0', '@fused_0_on_chip')}{TILE}\n{END}")
    assert err.startswith("s.mlir:2:1: error: the program has no kernel @fused_0_on_chip")
    assert 'note: "mem-promote" makes it, and a schedule of it begins after that' in err


def test_the_schedule_of_another_program_is_no_misspelling(penstock: Command) -> None:
    known = f"{BEGIN}{TILE}\n{END}"
    other = known.partition("\n")[2].replace("@fused_0", "@fused_1")
    err = attempt(penstock, known.removesuffix("}\n") + other)
    assert "error: the program has no kernel @fused_1" in err
    assert "note: kernels: fused_0; is this the schedule of another program, or for another machine?" in err


def test_the_names_before_an_op_are_as_many_as_its_results(penstock: Command) -> None:
    err = attempt(penstock, f"{BEGIN}{TILE.replace('4, 0, 0', '4, 0, 2')}\n{END}")
    assert err.startswith("s.mlir:5:1: error: schedule.tile returns 4 values, and 3 are named")
    assert "note: it returns handles of the tiled target, of the tile of each fused op, and of the loops" in err


def test_a_step_from_python_that_does_not_verify_leaves_the_schedule_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("program.mlir").write_text(PROGRAM)
    schedule = schedule_of("program.mlir", "fused_0", machine="gemmini-fp32", check=True)
    zero, product = schedule.match("linalg.generic")
    before = str(schedule)
    wrong = (([-4, 0, 0], None, "a size is negative"), ([4, 0, 0], ["overlap"], "1 edges for 3 sizes"))
    for sizes, edges, message in wrong:
        with pytest.raises(UserError, match=message):
            schedule.tile(product, sizes, fusing=[zero], edges=edges)
    with pytest.raises(UserError, match='there is no edge "overlp"') as refused:
        schedule.tile(product, [5, 0, 0], fusing=[zero], edges=["overlp", "whole", "whole"])
    assert refused.value.notes == ('did you mean "overlap"?',)
    assert str(schedule) == before
    schedule.tile(product, [5, 0, 0], fusing=[zero], edges=["overlap", "whole", "whole"])
    schedule.lower("tensor-to-loop")
    assert len(schedule.match("scf.for")) == 1


def test_a_section_from_python_is_begun_once_and_where_the_kernel_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("program.mlir").write_text(LAYER)
    schedule = schedule_of("program.mlir", "fused_0", machine="gemmini-fp32", check=True)
    zero, product, bias, relu = schedule.match("linalg.generic")
    schedule.tile(product, [8, 0, 32], fusing=[zero, bias, relu])
    schedule.lower("tensor-to-loop")
    before = str(schedule)
    with pytest.raises(UserError, match='the schedule goes on after "tensor-to-loop" already'):
        schedule.lower("tensor-to-loop")
    with pytest.raises(UserError, match="the program has no kernel @fused_0_on_chop") as refused:
        schedule.lower("mem-promote", kernel="fused_0_on_chop")
    assert refused.value.notes == ('did you mean "fused_0_on_chip"?',)
    assert str(schedule) == before
    assert len(schedule.match("scf.for")) == 2
