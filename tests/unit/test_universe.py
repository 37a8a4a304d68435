# SPDX-License-Identifier: Apache-2.0
"""What Penstock registers with xDSL is there, under the name it registers."""

from __future__ import annotations

from xdsl.universe import Universe

from penstock.tools.universe import PENSTOCK


def test_every_factory_makes_what_its_name_says() -> None:
    assert {name: factory().name for name, factory in PENSTOCK.all_dialects.items()} == {
        name: name for name in ("accel", "graph", "machine", "mem", "schedule")
    }
    assert {name: factory().name for name, factory in PENSTOCK.all_passes.items()} == {
        name: name for name in PENSTOCK.all_passes
    }
    assert {name: factory().name for name, factory in PENSTOCK.all_targets.items()} == {
        name: name for name in ("c", "llvm-ir")
    }


def test_xdsl_finds_all_of_it_through_the_entry_point() -> None:
    multiverse = Universe.get_multiverse()
    assert set(PENSTOCK.all_dialects) <= set(multiverse.all_dialects)
    assert set(PENSTOCK.all_passes) <= set(multiverse.all_passes)
    assert set(PENSTOCK.all_targets) <= set(multiverse.all_targets)
