# SPDX-License-Identifier: Apache-2.0
"""The time of a whole program: its host beside its machine, found twice."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import parsed_in_context
from sampling import examples

from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_machine_toml import load_machine
from penstock.passes.analysis.commands.program import View
from penstock.runtime.compiler import compile_module
from penstock.runtime.simulator.program import ProgramStep, ProgramTime
from penstock.runtime.simulator.run import ProgramRun, run_program


def view(buffer: int) -> View:
    return View("dram", 0, 64 * buffer, (16,), (4,), 4)


steps = st.builds(
    ProgramStep,
    st.just("call"),
    st.booleans(),
    st.integers(0, 50),
    st.lists(st.integers(0, 4).map(view), max_size=2).map(tuple),
    st.lists(st.integers(0, 4).map(view), max_size=2).map(tuple),
    st.integers(0, 9).map(lambda number: number == 0),
)


def played(found: list[ProgramStep]) -> int:
    """The end of the last step, cycle by cycle: each device takes its next one when nothing before it is in the way."""
    waiting = {side: deque(n for n, step in enumerate(found) if step.on_host is side) for side in (False, True)}
    left, running, now = set(range(len(found))), dict[bool, tuple[int, int]](), 0
    while left:
        progress = True
        while progress:
            progress = False
            for side, (number, end) in list(running.items()):
                if end <= now:
                    del running[side]
                    left.discard(number)
                    progress = True
            for side, line in waiting.items():
                if side in running or not line:
                    continue
                step, number = found[line[0]], line[0]
                before = [found[other] for other in left if other < number]
                if not any(_orders(step, other) for other in before):
                    running[side] = line.popleft(), now + step.cycles
                    progress = True
        now += 1
    return now - 1


def _orders(one: ProgramStep, other: ProgramStep) -> bool:
    """Whether two steps must not change places, by the buffers that they touch."""
    if one.touches_all or other.touches_all:
        return True
    mine, theirs = ({v.start for v in (*step.reads, *step.writes)} for step in (one, other))
    written = {v.start for v in (*one.writes, *other.writes)}
    return bool(mine & theirs & written)


@examples(60)
@given(st.lists(steps, min_size=1, max_size=8))
def test_side_by_side_is_what_two_devices_do(found: list[ProgramStep]) -> None:
    time = ProgramTime(tuple(found))
    assert time.side_by_side == played(found)
    assert max(time.host, time.serial - time.host) <= time.side_by_side <= time.serial


PROGRAM = """
func.func @main(%x: memref<8x8xf32>, %y: memref<8x8xf32>, %z: memref<8x8xf32>) {
  %b = memref.alloc() : memref<8x8xf32>
  func.call @move(%x, %y) : (memref<8x8xf32>, memref<8x8xf32>) -> ()
  func.call @host(%SOURCE, %b) : (memref<8x8xf32>, memref<8x8xf32>) -> ()
  func.call @move(%b, %z) : (memref<8x8xf32>, memref<8x8xf32>) -> ()
  func.return
}
func.func private @host(%x: memref<8x8xf32>, %y: memref<8x8xf32>) attributes {device = @host} {
  %one = arith.constant 1.0 : f32
  linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]} ins(%x : memref<8x8xf32>) outs(%y : memref<8x8xf32>) {
  ^bb0(%p: f32, %q: f32):
    %r = arith.divf %p, %one : f32
    linalg.yield %r : f32
  }
  func.return
}
func.func private @move(%x: memref<8x8xf32>, %y: memref<8x8xf32>) attributes {device = @gemmini_fp32} {
  %s = mem.buffer : memref<8x8xf32, "spad">
  mem.copy %x to %s : memref<8x8xf32> to memref<8x8xf32, "spad">
  mem.copy %s to %y : memref<8x8xf32, "spad"> to memref<8x8xf32>
  func.return
}
"""


def run_of(text: str, options: dict[str, object] | None = None) -> ProgramRun:
    ctx, module = parsed_in_context(text)
    compile_module(module, ctx, "gemmini-fp32", pipeline="default, -mem-promote", machine_options=options)
    return run_program(module)


def test_a_kernel_of_the_host_takes_its_operations_and_its_bytes() -> None:
    time = run_of(PROGRAM.replace("SOURCE", "x")).time
    assert time is not None
    # A division, a load and a store for each of 64 elements at one a cycle, and 512 bytes at 8 a cycle.
    assert time.host == 64 * 3 + 512 // 8
    machine = time.serial - time.host
    assert [step.on_host for step in time.steps] == [False, True, False]
    # The host works while the first kernel runs, and the second waits for it.
    assert time.side_by_side == max(machine // 2, time.host) + machine // 2 < time.serial


def test_what_depends_is_not_side_by_side() -> None:
    time = run_of(PROGRAM.replace("SOURCE", "y")).time
    assert time is not None
    assert time.side_by_side == time.serial


def test_what_main_does_itself_is_between_all_others() -> None:
    copy = "mem.copy %x to %b : memref<8x8xf32> to memref<8x8xf32>\n  func.call @move(%b"
    time = run_of(PROGRAM.replace("SOURCE", "x").replace("func.call @move(%b", copy)).time
    assert time is not None
    assert [step.name for step in time.steps] == ["move", "host", "main", "move"]
    assert time.steps[2].cycles == 2 * 64
    assert time.side_by_side == time.ends[1] + 128 + time.steps[3].cycles


def test_a_loop_whose_length_is_not_known_has_no_time() -> None:
    loop = """%zero = arith.constant 0 : index
  %step = arith.constant 1 : index
  %n = memref.load %counts[%zero] : memref<1xindex>
  scf.for %i = %zero to %n step %step {
    memref.store %one, %y[%i, %i] : memref<8x8xf32>
  }
  linalg.generic"""
    text = PROGRAM.replace("SOURCE", "x").replace("  linalg.generic", f"  {loop}", 1)
    text = text.replace("@host(%x: memref<8x8xf32>,", "@host(%counts: memref<1xindex>, %x: memref<8x8xf32>,")
    text = text.replace("@host(%x,", "@host(%counts, %x,").replace("-> ()", "-> ()")
    text = text.replace("@main(%x:", "@main(%counts: memref<1xindex>, %x:")
    text = text.replace(
        "%b) : (memref<8x8xf32>, memref<8x8xf32>)", "%b) : (memref<1xindex>, memref<8x8xf32>, memref<8x8xf32>)"
    )
    run = run_of(text)
    assert run.time is None
    assert run.host == (("host", 1),)


def test_an_op_counts_as_many_operations_as_its_table_says(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("machine") / "slow.toml"
    words = 'extends = "gemmini-fp32"\nname = "slow"\n'
    path.write_text(
        f'[machine]\n{words}\n[[processor]]\nname = "rocket"\ncosts = {{ "arith.divf" = 20 }}\nassumed = true\n'
    )
    target = load_machine(str(path))
    processor = target.processor()
    assert processor is not None
    ctx, module = parsed_in_context(PROGRAM.replace("SOURCE", "x").replace("@gemmini_fp32", "@slow"))
    compile_module(module, ctx, str(path), pipeline="default, -mem-promote")
    time = run_program(module).time
    assert time is not None
    assert time.host == 64 * 22 + 512 // 8
    path.write_text(path.read_text().replace("20", "0"))
    with pytest.raises(UserError, match="whole number of operations"):
        load_machine(str(path))
