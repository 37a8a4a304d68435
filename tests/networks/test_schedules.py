# SPDX-License-Identifier: Apache-2.0
"""The schedules that the compiler writes, printed and applied again, give the same program, byte for byte."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from network import FLOAT_NETWORKS, Network
from sampling import sweep

from penstock.lowering.from_machine_toml import load_machine
from penstock.lowering.machine_names import shipped_machines
from penstock.lowering.to_text import module_text
from penstock.runtime.compiler import compile_module, import_program
from penstock.runtime.schedules import read_schedules, schedules_text

LATER = re.compile(r"%\w+ = transform.apply_registered_pass \"mem-promote\".*?transform.yield", re.DOTALL)
"""What is decided once kernels have been promoted."""

MACHINES = [name for name in shipped_machines() if not load_machine(name).is_host]
QUICK = [("digits", machine, "loop") for machine in ("gemmini-fp32", "neural-cluster")]
CASES = [
    *QUICK,
    *(("digits", machine, "accel") for machine in MACHINES),
    *((name, machine, "accel") for name in FLOAT_NETWORKS for machine in ("gemmini-fp32", "rapid-core-like")),
    ("inception_v1", "host-avx2", "loop"),
    *(("int8_cnn", machine, "accel") for machine in ("vta-pynq", "gemmini")),
]


@cache
def network(name: str) -> Network:
    return Network(name, small=True)


def compiled(name: str, machine: str, until: str, schedules: Path | None) -> tuple[str, str]:
    """The text of a program, and that of the schedules that were applied to it."""
    program = import_program(network(name).model, {}, name=name)
    if schedules is not None:
        program.ctx.schedules.given = read_schedules(schedules)
    compile_module(program.module, program.ctx, machine, until)
    return module_text(program.ctx, program.module), schedules_text(program.ctx, program.ctx.schedules.applied)


@cache
def decided(name: str, machine: str, until: str) -> tuple[str, str]:
    """The same, where nothing is given."""
    return compiled(name, machine, until, None)


@pytest.mark.parametrize(("name", "machine", "until"), sweep(CASES, QUICK))
def test_a_schedule_applied_again_gives_the_same_program(name: str, machine: str, until: str, tmp_path: Path) -> None:
    program, schedules = decided(name, machine, until)
    path = tmp_path / "schedules.mlir"
    path.write_text(schedules)
    assert compiled(name, machine, until, path) == (program, schedules)


def test_an_edited_schedule_is_another_program(tmp_path: Path) -> None:
    program, schedules = decided("digits", "gemmini-fp32", "loop")
    lines = LATER.sub("transform.yield", schedules).splitlines(keepends=True)
    edited = next(number for number, line in enumerate(lines) if "schedule.stage_in" in line and "[1]" in line)
    handle = lines[edited].split("=")[1].split("[")[0].split()[-1]
    # The weights are fetched before the loop, instead of where their slice is defined.
    lines[edited] = f"{lines[edited].rstrip()} at %around\n"
    around = f'transform.get_parent_op {handle} {{op_name = "scf.for"}} : (!transform.any_op) -> !transform.any_op'
    lines.insert(edited, f"%around = {around}\n")
    path = tmp_path / "schedules.mlir"
    path.write_text("".join(lines))
    other, applied = compiled("digits", "gemmini-fp32", "loop", path)
    assert other != program
    assert "schedule.stage_in %conv" in applied
    assert "at %around" in applied
