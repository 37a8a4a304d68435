# SPDX-License-Identifier: Apache-2.0
"""accel-pipeline: which buffers become rings, how loops are skewed, and what it refuses."""

from __future__ import annotations

import re

import pytest
from random_kernels import MACHINES, closure, parsed, traced, unordered
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.accel import DmaOp
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.mem import BufferOp, RingOp
from penstock.passes.analysis.commands.program import Program
from penstock.passes.analysis.kernels import machine_kernels, partition
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.report import kernel_lines

TILE = 'memref<4xi32, "spad">'
WINDOW = "memref<64xi32>"
SAME = "affine_map<(i) -> (i)>"


def nest(trips: int, *, at: str = "at 32", shared: bool = False) -> str:
    """A loop that loads, computes and stores; with `shared` the first buffer is made before it."""
    made = f"%a = mem.buffer at 0 : {TILE}"
    return f"""func.func private @k(%x: {WINDOW}, %y: {WINDOW}) attributes {{device = @toy}} {{
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %trips = arith.constant {trips} : index
      {made if shared else ""}
      scf.for %i = %zero to %trips step %one {{
        {"" if shared else made}
        %b = mem.buffer {at} : {TILE}
        %0 = accel.dma %x[%i] to %a on "mvin" : {WINDOW} to {TILE}
        %1 = accel.exec @move extents [4] maps [{SAME}, {SAME}] (%a, %b) : {TILE}, {TILE}
        %2 = accel.dma %b to %y[%i] on "mvout" : {TILE} to {WINDOW}
      }}
      accel.barrier
      func.return
    }}"""


def pipelined(text: str, machine: str = "in order", options: str = "{depth=2}") -> ModuleOp:
    module, _, _ = parsed(MACHINES[machine] + text)
    run_passes(make_context(), module, read_pipeline(f"accel-pipeline{options},mem-verify"))
    return module


def program(module: ModuleOp) -> Program:
    target, (function,) = machine_kernels(module)
    assert target is not None
    found = traced(function, target)
    assert unordered(found) == []
    return found


def slots(module: ModuleOp) -> list[int]:
    return [op.slot_count for op in module.walk() if isinstance(op, RingOp)]


@pytest.mark.parametrize("trips", range(1, 8))
@pytest.mark.parametrize("depth", range(1, 5))
def test_a_load_follows_the_round_that_had_its_slot(trips: int, depth: int) -> None:
    module = pipelined(nest(trips), options=f"{{depth={depth}}}")
    count = min(trips, depth)
    assert slots(module) == ([count, count] if count > 1 else [])
    found = program(module)
    before = closure(found)
    loads = [number for number, command in enumerate(found.commands) if command.name == "mvin"]
    moves = [number for number, command in enumerate(found.commands) if command.name == "move"]
    for number, load in enumerate(loads):
        done = [round for round, move in enumerate(moves) if before[load] >> move & 1]
        assert done == list(range(max(0, number - count + 1)))


def test_a_unit_that_loads_and_stores_loads_the_next_round_first() -> None:
    names = [c.name for c in program(pipelined(nest(4), "one unit")).commands if c.unit == "dma"]
    assert names == ["mvin", "mvin", "mvout", "mvin", "mvout", "mvin", "mvout", "mvout"]


def test_without_rings_nothing_is_skewed() -> None:
    module = pipelined(nest(4), "one unit", "{depth=1}")
    assert [c.name for c in program(module).commands if c.unit == "dma"] == ["mvin", "mvout"] * 4


def test_units_that_run_ahead_by_themselves_need_no_prologue() -> None:
    module = pipelined(nest(4))
    loops = [op for op in module.walk() if isinstance(op, scf.ForOp)]
    assert len(loops) == 1
    assert len([op for op in module.walk() if isinstance(op, DmaOp)]) == 2


def test_a_buffer_from_outside_the_loop_is_left() -> None:
    module = pipelined(nest(4, shared=True))
    assert slots(module) == [2]
    assert len([op for op in module.walk() if isinstance(op, BufferOp)]) == 1


def test_a_scope_without_room_takes_slots_away() -> None:
    text = nest(64).replace("memref<4xi32", "memref<400xi32").replace("memref<64xi32>", "memref<800xi32>")
    text = text.replace("at 32", "at 1600").replace("extents [4]", "extents [8]")
    # 1600 bytes a slot in 4096; the second buffer is written by eight elements only, so it is no candidate.
    assert slots(pipelined(text, options="{depth=4}")) == []


def remark(module: ModuleOp) -> str:
    """What the pass says that it did; the model's figures left out."""
    (placement,) = partition(module)
    return placement.pipelining.partition("; modelled ")[0]


def test_a_kernel_says_how_far_its_rounds_overlap() -> None:
    assert remark(pipelined(nest(4))) == "a in spad: 2 slots; b in spad: 2 slots"
    assert remark(pipelined(nest(4), "one unit")) == "a in spad: 2 slots; b in spad: 2 slots; 1 loop skewed"
    assert remark(pipelined(nest(4), "one unit", "{depth=2 skew=false}")) == "a in spad: 2 slots; b in spad: 2 slots"
    assert remark(pipelined(nest(4), options="{depth=1}")) == ""


def test_a_kernel_says_what_the_model_expects() -> None:
    (placement,) = partition(pipelined(nest(64)))
    found = re.search(r"; modelled ([\d,]+) cycles, ([\d,]+) before, limit unit \w+$", placement.pipelining)
    assert found is not None
    after, before = (int(figure.replace(",", "")) for figure in found.groups())
    assert after < before


def test_a_kernel_says_where_there_was_no_room() -> None:
    text = nest(64).replace("memref<4xi32", "memref<150xi32").replace("memref<64xi32>", "memref<800xi32>")
    text = text.replace("at 32", "at 600").replace("extents [4]", "extents [150]")
    module = pipelined(text, options="{depth=4}")
    assert slots(module) == [3, 3]
    short = "3 of 4 slots, the scope is too small"
    assert remark(module) == f"a in spad: {short}; b in spad: {short}"
    text = text.replace("memref<150xi32", "memref<500xi32").replace("at 600", "at 2000").replace("[150]", "[500]")
    module = pipelined(text, options="{depth=4}")
    assert slots(module) == []
    short = "1 of 4 slots, the scope is too small"
    assert remark(module) == f"a in spad: {short}; b in spad: {short}"
    *_, kernel = module.ops
    assert "pipelining" in str(kernel)
    assert remark(pipelined(str(kernel), options="{depth=1}")) == ""


def test_a_report_has_what_a_kernel_says() -> None:
    module = pipelined(nest(4), "one unit")
    (line,) = kernel_lines(module)
    assert "; a in spad: 2 slots; b in spad: 2 slots; 1 loop skewed; modelled " in line


def test_a_depth_below_one_is_refused() -> None:
    with pytest.raises(UserError, match="at least one slot"):
        pipelined(nest(4), options="{depth=0}")


ARITHMETIC = {
    "remainder": "%o = arith.remui %i, %one : index",
    "minimum": "%o = affine.min affine_map<(d0) -> (d0, 60)>(%i)",
    "extension": """%n = arith.index_cast %i : index to i32
        %w = arith.extsi %n : i32 to i64
        %o = arith.index_cast %w : i64 to index""",
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_a_skewed_loop_keeps_all_of_its_arithmetic(name: str) -> None:
    text = nest(4).replace("%0 = accel.dma %x[%i]", f"{ARITHMETIC[name]}\n        %0 = accel.dma %x[%o]")
    module = pipelined(text, "one unit")
    assert remark(module) == "a in spad: 2 slots; b in spad: 2 slots; 1 loop skewed"
    names = [c.name for c in program(module).commands if c.unit == "dma"]
    assert names == ["mvin", "mvin", "mvout", "mvin", "mvout", "mvin", "mvout", "mvout"]


@pytest.mark.parametrize(
    "other",
    [
        "accel.barrier",
        "%n = scf.for %j = %zero to %one step %one iter_args(%m = %i) -> (index) { scf.yield %j : index }",
    ],
)
def test_a_loop_whose_body_has_other_ops_is_not_skewed(other: str) -> None:
    text = nest(4).replace("%2 = accel.dma", f"{other}\n        %2 = accel.dma")
    assert "skewed" not in remark(pipelined(text, "one unit"))


def test_commands_in_a_branch_are_refused() -> None:
    text = nest(4).replace("%1 = accel.exec", "%c = arith.cmpi ult, %i, %one : index\n scf.if %c {\n %1 = accel.exec")
    with pytest.raises(UserError, match=r"accel\.exec is in scf\.if: tokens are derived for commands in loops alone"):
        pipelined(text.replace("%2 = accel.dma", "}\n %2 = accel.dma"))
