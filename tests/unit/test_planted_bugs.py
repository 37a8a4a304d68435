# SPDX-License-Identifier: Apache-2.0
"""Lockstep blames bugs that are planted in passes on the right pass, and names the operation."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from planted import Bug, Found, look_for
from planted_above import GRAPH, TENSOR
from planted_below import ACCEL, LOOP, SLOW
from planted_programs import PROGRAMS

from penstock.dialects.context import make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline
from penstock.tools.lockstep import lockstep

BUGS = GRAPH + TENSOR + LOOP + ACCEL


def score(bugs: Sequence[Bug], capsys: pytest.CaptureFixture[str]) -> list[Found]:
    """Look for every bug, and print for how many the pass and the operation are right."""
    found = [look_for(bug) for bug in bugs]
    passes, ops = sum(each.is_right_pass for each in found), sum(each.is_right_op for each in found)
    with capsys.disabled():
        print(
            f"\nplanted bugs: the right pass in {passes} of {len(found)}, the right operation in {ops} of {len(found)}"
        )
        for each in found:
            if not each.is_right_op:
                print(f"  {each.bug}: expected {each.bug.op}: {each.message.splitlines()[0] if each.message else '-'}")
    return found


@pytest.mark.parametrize("bugs", [BUGS[::7], pytest.param(BUGS, marks=pytest.mark.slow)], ids=["some", "every"])
def test_every_planted_bug_is_blamed_on_its_pass_and_most_on_the_operation(
    bugs: Sequence[Bug], capsys: pytest.CaptureFixture[str]
) -> None:
    found = score(bugs, capsys)
    assert [str(each.bug) for each in found if not each.is_right_pass] == []
    assert 4 * sum(each.is_right_op for each in found) >= 3 * len(found)


def test_bugs_are_planted_in_every_kind_of_pass() -> None:
    planted = {bug.pass_name for bug in (*BUGS, *SLOW)}
    run = {each.name for _, _, pipeline in PROGRAMS.values() for each in read_pipeline(pipeline)}
    assert len(BUGS) >= 40
    assert run - planted == {"value-dce"}, "it only removes what has no use"


@pytest.mark.slow
def test_more_planted_bugs_are_blamed_on_their_pass_and_operation(capsys: pytest.CaptureFixture[str]) -> None:
    assert all(each.is_right_op for each in score(SLOW, capsys))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_without_a_bug_no_pass_is_blamed(name: str) -> None:
    text, machine, pipeline = PROGRAMS[name]
    ctx = make_context()
    module = parse_text(ctx, SourceText("in.mlir", text)).module
    if machine is not None:
        attach_machine(module, machine)
    assert lockstep(module, ctx, read_pipeline(pipeline)).culprit is None
