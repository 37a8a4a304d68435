# SPDX-License-Identifier: Apache-2.0
"""`penstock fuzz`: random inputs are right or refused, and what a pass breaks is found, blamed, reduced and saved."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from penstock.passes.schedule.primitives import reorder
from penstock.passes.value_cse import ValueCsePass
from penstock.tools.fuzz.corrupt import KINDS, Originals, fault_of
from penstock.tools.fuzz.run import Fuzzer

if TYPE_CHECKING:
    from tests.conftest import Command

SEEDS = {"graph": 1, "kernel": 5, "tensor": 4, "loop": 6, "accel": 3, "machine": 4, "schedule": 7}


@pytest.mark.parametrize("level", SEEDS)
def test_inputs_of_every_level_are_right(penstock: Command, level: str) -> None:
    finished = penstock("fuzz", "--level", level, "--seed", str(SEEDS[level]), "--count", "1")
    assert finished.status == 0, finished.err
    assert re.search(rf"^{level}: [12] inputs, [12] right, 0 refused,.* 0 wrong$", finished.out + finished.err, re.M)
    assert not Path("fuzz").exists()


@pytest.mark.slow
@pytest.mark.parametrize("level", SEEDS)
@pytest.mark.parametrize("first", range(1000, 1200, 25))
def test_more_inputs_of_every_level_are_right(tmp_path: Path, level: str, first: int) -> None:
    fuzzer = Fuzzer(level, tmp_path / "wrong", tmp_path)
    for seed in range(first, first + 25):
        fuzzer.run(seed)
    assert fuzzer.tally.wrong == []


def swap_operands(self: ValueCsePass, ctx: Context, op: ModuleOp) -> None:
    """A bug: what is subtracted from what."""
    for function in op.ops:
        if isinstance(function, FuncOp):
            for each in function.walk():
                if isinstance(each, arith.SubiOp | arith.SubfOp):
                    each.operands = list(reversed(each.operands))


def test_a_wrong_pass_is_found_and_what_shows_it_is_saved(penstock: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = ValueCsePass.apply
    monkeypatch.setattr(ValueCsePass, "apply", swap_operands)
    finished = penstock("fuzz", "--level", "tensor", "--count", "4", "-o", "wrong")
    assert finished.status == 1
    saved = sorted(Path("wrong").glob("*.mlir"))
    assert saved
    assert finished.err.count('the pass "value-cse" changed a value') == len(saved)
    for path in saved:
        text = path.read_text()
        command = text.partition("\n")[0].removeprefix("// ")
        assert command == f"penstock check {path} -p value-cse"
        assert text.count("linalg.generic") == 1
        assert penstock(*command.split()[1:]).status == 1
    monkeypatch.setattr(ValueCsePass, "apply", sound)
    assert penstock("check", str(saved[0]), "-p", "value-cse").status == 0


def refuse_nothing(*_: object, **__: object) -> None:
    """A bug: every order is legal."""


def test_a_wrong_primitive_is_blamed_and_the_schedule_is_reduced_to_it(
    penstock: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("fuzz", "--level", "schedule", "--seed", "95", "--count", "1", "-o", "wrong")
    with monkeypatch.context() as planted:
        planted.setattr(reorder, "_check", refuse_nothing)
        finished = penstock(*words)
        assert finished.status == 1
        assert "error: schedule 95: WrongError: step 3, schedule.reorder" in finished.err
        assert "reduced to 1 steps (schedule.reorder)" in finished.out + finished.err
        text = Path("wrong/schedule_95.mlir").read_text()
        assert text.startswith("// penstock fuzz --level schedule --seed 95 --count 1\n")
        assert text.count("    schedule.") == 1
        assert "func.func @main" in Path("wrong/schedule_95_program.mlir").read_text()
    assert penstock(*words).status == 0


def test_corrupt_files_are_read_or_refused(tmp_path: Path) -> None:
    originals = Originals(tmp_path)
    statuses = {kind: set[int]() for kind in KINDS}
    for seed in range(5 * len(KINDS)):
        case = originals.corrupted(seed)
        fault, status = fault_of(case)
        assert fault is None, f"{seed}, {case.kind}: {fault}"
        statuses[case.kind].add(status)
    assert all(1 in found for found in statuses.values()), "each kind is refused at least once"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 4400, 220))
def test_many_corrupt_files_are_read_or_refused(tmp_path: Path, first: int) -> None:
    originals = Originals(tmp_path)
    for seed in range(first, first + 220):
        fault, _ = fault_of(originals.corrupted(seed))
        assert fault is None, f"{seed}: {fault}"


def test_a_crash_on_a_corrupt_file_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise IndexError("planted")

    monkeypatch.setattr("penstock.tools.plan_command.execute", crash)
    fuzzer = Fuzzer("corrupt", tmp_path / "wrong", tmp_path)
    number = list(KINDS).index("problem")
    fuzzer.run(number)
    (line,) = fuzzer.tally.wrong
    assert "planted" in line
    assert (tmp_path / "wrong" / f"corrupt_{number}.csv").exists()
