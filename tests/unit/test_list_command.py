# SPDX-License-Identifier: Apache-2.0
"""`penstock list`: every name of a kind, each with what it is."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest

from penstock.dialects import plugins
from penstock.lowering import machine_names
from penstock.lowering.machine_names import shipped_machines
from penstock.passes.planning.on_chip.registry import strategy_names
from penstock.passes.planning.registry import GROUP, planner_names
from penstock.passes.planning.tilers.registry import tiler_names
from penstock.tools.compile_command import EMITTERS
from penstock.tools.listed import failure, first_sentence
from penstock.tools.lists import KINDS
from penstock.tools.pass_help import listed_passes
from penstock.tools.universe import PASSES

if TYPE_CHECKING:
    from tests.conftest import Command

NAMES = {
    "planners": planner_names(),
    "tilers": tiler_names(),
    "strategies": strategy_names(),
    "machines": tuple(shipped_machines()),
    "emitters": tuple(EMITTERS),
}


@pytest.mark.parametrize("kind", NAMES)
def test_a_list_has_each_name_with_what_it_is(penstock: Command, kind: str) -> None:
    lines = penstock("list", kind).out.splitlines()
    named = [line.split(maxsplit=1) for line in lines]
    assert {name for name, _ in named} >= set(NAMES[kind])
    assert not [name for name, what in named if "cannot be loaded" in what]
    assert max(map(len, lines)) <= 120
    found = json.loads(penstock("list", kind, "--json").out)
    assert [each["name"] for each in found] == [name for name, _ in named]
    assert all(each["what"].endswith(".") and each["where"] for each in found)
    assert sum(each["is_default"] for each in found) == (kind != "machines")


def test_ops_and_passes_are_listed_with_what_they_are(penstock: Command) -> None:
    ops = {each["name"]: each for each in json.loads(penstock("list", "ops", "--json").out)}
    assert {"graph.conv", "mem.copy", "accel.dma", "machine.target", "schedule.split", "scf.forall"} <= set(ops)
    assert "arith.addf" not in ops, "it is xDSL's"
    assert not [name for name, each in ops.items() if each.get("what", "").strip("`.") == name]
    ours = {each.name: each for each in listed_passes() if each.name in PASSES}
    assert set(ours) == set(PASSES)
    assert not [each.name for each in ours.values() if not each.what]
    assert ours["tile"].group == "passes of the tensor level"


def test_the_machines_are_one_list(penstock: Command) -> None:
    assert penstock("machines", "list").out == penstock("list", "machines").out
    assert "gemmini-fp32        Gemmini with its 4x4 mesh of 32-bit floats" in penstock("list", "machines").out


def test_a_wrong_kind_is_told_the_nearest(penstock: Command) -> None:
    finished = penstock("list", "planer")
    assert finished.status == 2
    assert finished.err == 'error: there is no list of "planer"\nnote: did you mean "planners"?\n'
    assert [line.split()[0] for line in penstock("list").out.splitlines()] == list(KINDS)


def test_a_plug_in_that_does_not_load_hides_no_other(penstock: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("broken", "no_such_module:plan", GROUP)
    installed = plugins.installed
    monkeypatch.setattr(plugins, "installed", lambda group: (*installed(group), broken))  # pyright: ignore
    out = penstock("list", "planners").out
    assert "broken                  (cannot be loaded: ModuleNotFoundError: No module named 'no_such_module')" in out
    assert "first-fit-by-size " in out
    assert failure(AssertionError()) == "(cannot be loaded: AssertionError)"


def test_a_first_sentence_ends_where_it_does() -> None:
    assert first_sentence("Does it, e.g. so. And more.\n\nOther.") == "Does it, e.g. so."
    assert first_sentence("Counts 0.5 of\nit:\n\nx") == "Counts 0.5 of it."
    assert first_sentence("") == ""


def test_a_machine_is_what_its_comment_says_below_the_licence(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "# SPDX-License-Identifier: MIT\n#\n# A machine\n# of two. More.\n\n[machine]\n"
    monkeypatch.setattr(machine_names, "machine_text", lambda name: (name, text))  # pyright: ignore
    assert {each.what for each in KINDS["machines"].entries()} == {"A machine of two."}
