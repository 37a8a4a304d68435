# SPDX-License-Identifier: Apache-2.0
"""
ONNX's own backend cases: what is on record as passing passes, nothing else is wrong, and the tables are the record's.

At graph level every case is run, at loop level and in C a sample: `onnx_report.py` beside this file runs them all,
and writes the record and the tables of docs/onnx.md.
"""

from __future__ import annotations

import unittest
from collections import Counter
from collections.abc import Sequence
from typing import Any

import onnx
import onnx_report
import pytest
from onnx.backend.test import BackendTest
from onnx_cases import BY_LLVM, LEVELS, cases, outcome, read_record, tiers
from sampling import sweep

from penstock.dialects.diagnostics import UserError
from penstock.passes.toolchain import find_compiler
from penstock.runtime import onnx_backend

CHUNKS = {"graph": 32, "loop": 48, "c": 16}
SAMPLE = {"graph": 1, "loop": 2, "c": 10}
"""One case in so many is run."""
QUICK = {"graph": 2, "loop": 1, "c": 1}
"""The chunks of the quick suite."""


@pytest.mark.parametrize(
    ("level", "chunk"),
    sweep(
        [(level, chunk) for level in LEVELS for chunk in range(CHUNKS[level])], lambda case: case[1] < QUICK[case[0]]
    ),
)
def test_cases_that_pass_still_pass_and_no_other_fails(level: str, chunk: int, record_property: Any) -> None:
    if level == "c":
        _require_compiler()
    record = read_record()
    counts: Counter[str] = Counter()
    faults: list[str] = []
    for case in cases()[:: SAMPLE[level]][chunk :: CHUNKS[level]]:
        found, kept = outcome(case, level), record.word(case.name, level)
        counts[found.word] += 1
        if (found.failed and found.word != kept) or (kept == "passed" and found.word != "passed"):
            faults.append(f"{case.name}: on record as {kept}, {found.word}: {found.detail}")
    for word, count in sorted(counts.items()):
        record_property(word, count)
    assert not faults, "\n\n".join(faults)


BY_LLVM_CHUNKS = 160


@pytest.mark.parametrize("chunk", sweep(list(range(BY_LLVM_CHUNKS)), lambda chunk: chunk == 0))
def test_cases_that_pass_in_c_pass_by_llvm(chunk: int) -> None:
    """All of them: LLVM takes less long than the C compiler."""
    pytest.importorskip("llvmlite")
    record = read_record()
    passing = [case for case in cases() if record.word(case.name, "c") == "passed"]
    for case in passing[chunk::BY_LLVM_CHUNKS]:
        found = outcome(case, BY_LLVM)
        assert found.word == "passed", f"{case.name}: {found.word}: {found.detail}"


def test_all_of_tier_1_is_on_record_as_passing_at_every_level() -> None:
    names = {name for cases in tiers()["T1"].values() for name in cases}
    assert len(names) == 995
    assert names - read_record().passes == set()


def test_what_is_wrong_on_record_has_a_reason() -> None:
    record = read_record()
    failed = {name for name, kept in record.rest.items() if not set(kept.words.values()) <= {"passed", "unsupported"}}
    assert failed == record.reasons.keys()


def test_what_tier_3_asks_for_is_refused_by_the_name_of_the_operator() -> None:
    operators = {name: operator for operator, names in tiers()["T3"].items() for name in names}
    refused = 0
    for case in cases():
        if (operator := operators.get(case.name)) is None:
            continue
        found = outcome(case, "graph")
        assert found.word in ("passed", "unsupported"), f"{case.name}: {found.word}: {found.detail}"
        if found.word == "unsupported":
            refused += 1
            assert found.detail.startswith(f"{case.name}: error: "), "it is located at the model"
            # A branch is refused for what stands in it.
            named = "SequenceConstruct" if operator == "If" else operator
            assert named in found.detail.replace(case.name, ""), found.detail
    assert refused > 100


def test_the_record_is_of_cases_that_exist() -> None:
    record = read_record()
    if record.onnx != onnx.__version__:
        pytest.skip(f"the record is of the cases of onnx {record.onnx}")
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names)
    assert record.names == set(names)
    assert {name for operators in tiers().values() for each in operators.values() for name in each} <= record.names


def test_the_tables_of_the_documentation_are_those_of_the_record() -> None:
    page = onnx_report.PAGE.read_text(encoding="utf-8")
    _, _, rest = page.partition(onnx_report.BEGIN + "\n")
    counted, end, _ = rest.partition(onnx_report.END)
    assert end
    assert counted == onnx_report.tables(read_record()), "run: python tests/conformance/onnx_report.py --tables"


@pytest.mark.parametrize("backend", ["native", "interpreter"])
def test_the_runner_of_onnx_drives_the_backend(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend == "native":
        _require_compiler()
    monkeypatch.setattr(onnx_backend.PenstockBackend, "target", onnx_backend.Target(backend))  # pyright: ignore[reportArgumentType]
    runner = BackendTest(onnx_backend, __name__)  # pyright: ignore[reportArgumentType]
    for pattern in (
        "test_(relu|matmul_2d|reshape_negative_dim|slice|softmax_axis_1)_c",
        "test_Linear_c",
        "test_resnet50_c",
    ):
        runner.include(pattern)
    runner.exclude("test_resnet50")
    result = unittest.TestResult()
    _without_skipped(runner.test_suite).run(result)
    assert result.testsRun == 12, "six on the CPU, six that ask for a GPU"
    assert not result.failures
    assert not result.errors
    assert len(result.skipped) == 6
    assert all("CUDA" in reason for _, reason in result.skipped)


def _without_skipped(suite: unittest.TestSuite) -> unittest.TestSuite:
    """The tests of a suite that are not excluded by a pattern."""
    chosen = unittest.TestSuite()
    for each in _flat(suite):
        method = getattr(each, each._testMethodName)  # pyright: ignore[reportPrivateUsage]
        if "pattern" not in getattr(method, "__unittest_skip_why__", ""):
            chosen.addTest(each)
    return chosen


def _flat(suite: unittest.TestSuite) -> Sequence[unittest.TestCase]:
    found: list[unittest.TestCase] = []
    for each in suite:
        found.extend(_flat(each) if isinstance(each, unittest.TestSuite) else [each])
    return found


def _require_compiler() -> None:
    try:
        find_compiler()
    except UserError:
        pytest.skip("there is no C compiler")
