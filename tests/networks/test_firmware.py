# SPDX-License-Identifier: Apache-2.0
"""
Networks for microcontrollers in 8-bit integers: built, run on QEMU, and the same bits as at the graph level; in the
memory and on the stack that were promised, and without floats but at the borders.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from benchmarks.firmware import BOARDS, FLOAT, Firmware, networks, quantised
from benchmarks.networks import inputs_of
from in_c import needs_compiler
from sampling import sweep

from penstock.runtime.fit import Fitting

LITTLE = ("autoencoder", "fe310-like")
"""What 16 KiB hold."""
CASES = [*((name, machine) for name in networks() for machine in ("cortex-m55-like", "cortex-m7-like")), LITTLE]
QUICK = (("ds_cnn", "cortex-m55-like"), LITTLE)
BORDERS = re.compile("input_integers|(classifier|layer9)_Gemm")
"""The kernels that make integers of floats, and floats of integers."""
LIBRARY = 64
"""Bytes of the stack for what copies and clears memory."""


def written(name: str, machine: str, folder: Path) -> Firmware:
    model = networks()[name](0)
    return Firmware.write(quantised(model, "power-of-two"), machine, folder, name, [*inputs_of(model).values()])


@pytest.mark.parametrize(("name", "machine"), sweep(CASES, QUICK))
def test_it_runs_as_the_graph_level_does(name: str, machine: str, tmp_path: Path) -> None:
    board = BOARDS[machine]
    for tool in ("make", f"{board.cross}gcc", board.qemu):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not there")
    made = written(name, machine, tmp_path / "out")
    made.build()
    stack, millions = made.measured()  # compares all bits of the outputs
    assert 0 < stack <= made.stack_bound() + LIBRARY
    assert millions > 1
    assert all(BORDERS.match(function) for function in made.functions_in_float())
    called = {line.split()[-1] for line in made.run(f"{board.cross}nm", "-u", f"{name}.o").splitlines()}
    assert {each for each in called if not FLOAT.search(each)} <= {"memcpy", "memset", "memmove", "rintf"}
    size = made.run(f"{board.cross}nm", "-S", f"{name}.elf")
    context = next(line.split() for line in size.splitlines() if line.endswith(" context"))
    assert made.arena <= int(context[1], 16) <= made.arena + 2 * 64


@pytest.mark.slow
def test_patches_run_in_the_memory_that_they_are_chosen_for(tmp_path: Path) -> None:
    name, machine, size = "mobilenet_v2_80", "cortex-m55-like", 80_000
    for tool in ("make", f"{BOARDS[machine].cross}gcc", BOARDS[machine].qemu):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not there")
    model = networks()[name](0)
    program, inputs = quantised(model, "power-of-two"), [*inputs_of(model).values()]
    fit = Fitting(program, machine).within(size)
    made = Firmware.write(program, machine, tmp_path / "out", name, inputs, pipeline=fit.pipeline)
    made.build()
    made.measured()  # compares all bits of the outputs
    assert made.arena == fit.bytes <= size


@pytest.mark.parametrize(("name", "compiler"), sweep([(n, c) for n in networks() for c in ("gcc", "clang")], ()))
def test_the_host_gives_the_same_bits_under_sanitizers(name: str, compiler: str, tmp_path: Path) -> None:
    needs_compiler()
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not there")
    made = written(name, "cortex-m55-like", tmp_path / "out")
    flags = "-fsanitize=address,undefined -fno-sanitize-recover -fno-sanitize=alignment -DPENSTOCK_EXACT"
    assert made.run("make", "-B", "-s", "check", f"CC={compiler} {flags}") == "PASS\n"
