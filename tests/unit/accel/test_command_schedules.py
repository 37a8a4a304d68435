# SPDX-License-Identifier: Apache-2.0
"""What multi-buffer and accel-pipeline decide, as text: applied again it gives the same program, edited another one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.context import make_context
from penstock.dialects.mem import RingOp
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.to_text import module_text
from penstock.runtime.interpreter import run_function
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.schedules import read_schedules, schedules_text

if TYPE_CHECKING:
    from tests.conftest import Command

KERNEL = """
func.func private @NAME(%x: memref<64x4xf32>, %y: memref<64x4xf32>) attributes {device = @gemmini_fp32} {
  %zero = arith.constant 0 : index
  %tile = arith.constant 4 : index
  %end = arith.constant 64 : index
  scf.for %i = %zero to %end step %tile {
    %c = mem.buffer at 0 : memref<4x4xf32, "acc">
    %0 = accel.dma %x[%i, 0] to %c on "mvin" : memref<64x4xf32> to memref<4x4xf32, "acc">
    %1 = accel.dma %c to %y[%i, 0] on "mvout" after(%0) : memref<4x4xf32, "acc"> to memref<64x4xf32>
    accel.wait %1
  }
  accel.barrier
  func.return
}
"""
TWO = KERNEL.replace("NAME", "k") + KERNEL.replace("NAME", "l")

DECIDED = """\
    %kernel_1 = transform.apply_registered_pass "loop-to-accel" to %kernel : (!transform.any_op) -> !transform.any_op
    %c = transform.structured.match ops{["mem.buffer"]} in %kernel_1 : (!transform.any_op) -> !transform.any_op
    schedule.pipeline %kernel_1 slots(%c = 2) {remark = "modelled 1,685 cycles, 3,360 before, limit latency"}
"""


def scheduled(folder: Path, text: str, given: str = "", passes: str = "accel-pipeline") -> tuple[ModuleOp, str]:
    """The module after the passes, and its schedules; with some that are given."""
    ctx = make_context()
    module = parse_text(ctx, SourceText("k.mlir", text)).module
    attach_machine(module, "gemmini-fp32")
    if given:
        path = folder / "s.mlir"
        path.write_text(given, encoding="utf-8")
        ctx.schedules.given = read_schedules(path)
    run_passes(ctx, module, read_pipeline(passes))
    return module, schedules_text(ctx, ctx.schedules.applied)


def test_isomorphic_kernels_have_a_schedule_each_that_replays(tmp_path: Path) -> None:
    module, text = scheduled(tmp_path, TWO, passes="accel-pipeline{depth=2}")
    assert text.count(DECIDED) == 2
    again, same = scheduled(tmp_path, TWO, text)
    assert same == text
    assert module_text(make_context(), again) == module_text(make_context(), module)


def test_an_edited_schedule_of_one_of_them_changes_that_one(tmp_path: Path) -> None:
    _, text = scheduled(tmp_path, TWO, passes="accel-pipeline{depth=2}")
    at = text.index("@l(")
    module, _ = scheduled(tmp_path, TWO, text[:at] + text[at:].replace("slots(%c = 2)", "slots(%c = 3)"))
    assert [op.slot_count for op in module.walk() if isinstance(op, RingOp)] == [2, 3]
    x = np.random.default_rng(0).random((64, 4), np.float32)
    for name in ("k", "l"):
        for interleaving in ("program", "asap", "alap", 1):
            y = np.zeros_like(x)
            run_function(module, name, [x, y], interleaving=interleaving)
            assert np.array_equal(x, y)


def test_several_slots_without_a_pipeline_leave_a_kernel_that_is_ordered(tmp_path: Path) -> None:
    matched = "\n".join(DECIDED.splitlines()[:2])
    text = f"""transform.named_sequence @k(%kernel: !transform.any_op {{transform.readonly}}) {{
      {matched}
      %ring = schedule.multi_buffer %c slots 4
      transform.yield
    }}"""
    module, _ = scheduled(tmp_path, TWO, text, "accel-pipeline{depth=1 skew=false},mem-verify,accel-check-hazards")
    assert [op.slot_count for op in module.walk() if isinstance(op, RingOp)] == [4]


def test_virtual_threads_are_written_down(tmp_path: Path) -> None:
    module, text = scheduled(tmp_path, TWO, passes="accel-virtual-threads{threads=3}")
    assert text.count("schedule.virtual_thread %i threads 3") == 2
    again, same = scheduled(tmp_path, TWO, text, "accel-virtual-threads{threads=1}")
    assert same == text
    assert module_text(make_context(), again) == module_text(make_context(), module)


def test_threads_after_a_pipeline_go_on_with_its_section_in_every_kernel(tmp_path: Path) -> None:
    module, text = scheduled(tmp_path, TWO, passes="multi-buffer,accel-pipeline{depth=1},accel-virtual-threads")
    assert text.count("schedule.virtual_thread") == 2
    again, same = scheduled(tmp_path, TWO, text, "multi-buffer,accel-pipeline,accel-virtual-threads{threads=1}")
    assert same == text
    assert module_text(make_context(), again) == module_text(make_context(), module)


MACHINES = (
    *("gemmini-fp32", "rapid-core-like", "vta-pynq", "smaug-smv", "h100-sm"),
    *("snax-opengemm", "neural-cluster", "gemmini", "epiphany-iii"),
)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_the_schedules_of_a_network_give_its_program_again(
    machine: str, penstock: Command, repository: Path, tmp_path: Path
) -> None:
    model = repository / "examples/digits/digits.onnx"
    schedules = tmp_path / "s.mlir"
    programs: list[str] = []
    for folder, given in (("first", ()), ("again", ("--schedule", schedules))):
        (tmp_path / folder).mkdir()
        words = ("compile", model, "--machine", machine, "-q", *given)
        assert penstock(*words, "--emit", "accel", "-o", tmp_path / folder / "p.mlir").status == 0
        programs.append((tmp_path / folder / "p.mlir").read_text(encoding="utf-8"))
        if not given:
            assert penstock(*words, "--emit", "schedule", "-o", schedules).status == 0
    assert programs[0] == programs[1]
