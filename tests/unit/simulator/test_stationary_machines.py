# SPDX-License-Identifier: Apache-2.0
"""Machines whose cycles depend on extents, and on what stays in a unit: both clocks on a network, and what is told."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.passes.analysis.commands.program import Kind, Program
from penstock.passes.analysis.commands.trace import trace_calls
from penstock.runtime.compiler import compile_module, import_program
from penstock.runtime.simulator import longest_path, simulate

if TYPE_CHECKING:
    from tests.conftest import Command

DIGITS = Path(__file__).parents[3] / "examples" / "digits" / "digits.onnx"
BUSES = {
    "eyeriss-like": ("store", "link", "[12, 5]"),
    "onsram-study": ("store_spm", "ext", "[64, 3]"),
}
"""The engine that leads off chip, its bus, and the rate of one of its own: the equations need one for each unit."""


@cache
def programs(machine: str, folder: Path) -> tuple[Program, ...]:
    engine, bus, rate = BUSES[machine]
    path = folder / f"own_{machine}.toml"
    energies = "".join(f"{name} = {{ value = [1, 1], assumed = true }}\n" for name in (bus, "back"))
    path.write_text(
        f'[machine]\nname = "own"\nextends = "{machine}"\n'
        f'[[bus]]\nname = "back"\nrate = {rate}\nassumed = true\n'
        f'[[dma]]\nname = "{engine}"\nbus = "back"\n[energy.transfer]\n{energies}'
    )
    program = import_program(DIGITS, {})
    compile_module(program.module, program.ctx, str(path), "accel")
    return tuple(call.trace() for call in trace_calls(program.module) if call.trace is not None)


@pytest.mark.parametrize("machine", BUSES)
def test_both_clocks_agree_on_a_network(machine: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    found = programs(machine, tmp_path_factory.getbasetemp())
    assert found
    for program in found:
        times = longest_path(program)
        assert times is not None
        assert simulate(program).cycles == times.cycles


def test_what_stays_is_loaded_less_often_than_it_is_used(tmp_path_factory: pytest.TempPathFactory) -> None:
    found = programs("eyeriss-like", tmp_path_factory.getbasetemp())
    commands = [each for program in found for each in program.commands]
    passes = [each for each in commands if each.name == "row_stationary"]
    assert all(each.kind is Kind.EXEC and each.cycles > each.loading for each in passes)
    assert 0 < sum(each.loads for each in passes) < sum(each.iterations for each in passes)


def test_the_table_tells_what_loads_take(penstock: Command) -> None:
    finished = penstock("simulate", DIGITS, "--machine", "eyeriss-like")
    assert finished.status == 0, finished.err
    assert "operand that stays" in finished.out
