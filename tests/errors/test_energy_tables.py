# SPDX-License-Identifier: Apache-2.0
"""A table of energies that lacks something, or says what cannot be."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.lowering.from_machine_toml import read_machine
from penstock.lowering.machine_names import machine_text

GEMMINI = machine_text("gemmini")[1]


def faults(text: str, options: Mapping[str, object] | None = None) -> list[str]:
    """The faults of a machine file, each as it is printed, without the path."""
    return [str(fault).partition("\n")[0] for fault in read_machine("m.toml", text, options)[1]]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("acc = { value = [27, 8]", "oder = { value = [27, 8]", 'read has no entry for "acc"'),
        ("acc = { value = [27, 8]", "oder = { value = [27, 8]", 'unknown scope "oder"'),
        ("\nsys = { value = [1, 1]", "\nbus = { value = [1, 1]", 'transfer has no entry for "sys"'),
        ("\ni8 = [2, 10]", "\ni8 = [-2, 10]", "multiply.i8 must be no less than 0 pJ in at least 1, but is [-2, 10]"),
        ("\ni8 = [2, 10]", "\ni8 = [2, 0]", "multiply.i8 must be no less than 0 pJ in at least 1, but is [2, 0]"),
        ("\ni8 = [2, 10]", "\ni8 = [2]", "multiply.i8 must be [pJ, operations], two whole numbers"),
        ("\ni8 = [2, 10]", "\ni8 = 2.5", "multiply.i8 must be a list, but is a fraction"),
        ("\ni8 = [2, 10]", "\ni32 = [31, 10]", 'multiply has no entry for "i8"'),
        ("\ndram = [1300, 8] ", "\ndram = { value = [1300, 8], source = 'nobody' } ", 'unknown source "nobody"'),
        ("[energy.special]", "[energy.speical]", 'unknown key "speical" in [[energy]]'),
        ("leakage = {", "leakages = {", 'missing key "leakage" in [[energy]]'),
    ],
)
def test_what_is_wrong_with_a_table_is_told_at_its_place(old: str, new: str, expected: str) -> None:
    assert old in GEMMINI
    found = faults(GEMMINI.replace(old, new, 1))
    assert any(expected in fault and fault.startswith("m.toml:") for fault in found), found


def test_a_number_without_a_source_is_a_fault() -> None:
    text = GEMMINI.replace('source = "horowitz"\n\n[energy.read]', "[energy.read]")
    assert "m.toml" in faults(text)[0]
    assert "dram has neither a source nor assumed = true" in faults(text)[0]


def test_numbers_are_set_for_a_run_and_must_fit() -> None:
    target, found = read_machine("m.toml", GEMMINI, {"energy.read.dram": [2600, 8], "energy.leakage": [0, 1]})
    assert not found
    energy = target.energy() if target is not None else None
    assert energy is not None
    assert (energy.picojoules("read", "dram"), energy.picojoules("leakage")) == (325, 0)
    assert faults(GEMMINI, {"energy.read.dram": [-1, 8]})[0].startswith("--set:1:18: error: read.dram must be")
    assert 'unknown scope "ram"' in faults(GEMMINI, {"energy.read.ram": [1, 8]})[0]


def test_a_host_has_no_energy() -> None:
    energy = GEMMINI[GEMMINI.index("[energy]") :].replace("sys =", "#").replace("spad =", "#").replace("acc =", "#")
    text = f"{machine_text('host-avx2')[1]}\n{energy.replace('horowitz', 'x')}"
    text = text.replace("[sources]", '[sources]\nx = "x"')
    assert any("the time of a host is not simulated" in fault for fault in faults(text))
