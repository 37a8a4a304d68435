# SPDX-License-Identifier: Apache-2.0
"""The benchmark of generated C beside other libraries: what it chooses, measures and refuses to measure."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from in_c import needs_compiler

from penstock.lowering.from_machine_toml import load_machine

pytest.importorskip("onnxruntime")


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = importlib.import_module("benchmarks.native")
    # Before each turn it would look through all that other tests have left in this process.
    monkeypatch.setattr(module, "gc", SimpleNamespace(collect=lambda: None))
    return module


def rows_of(native: Any, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    file = folder / "rows.json"
    native.main(["--quick", "--repetitions", "2", "--json", str(file), *arguments])
    return json.loads(file.read_text())


def test_rows_stand_beside_the_fastest_peer(native: Any, tmp_path: Path) -> None:
    needs_compiler()
    found = rows_of(native, tmp_path, "--only", "softmax,D1", "--machine", "host")
    alone, inside, softmax, mean = found
    names = ["D1 8x8 16 3x3/1", "D1 8x8 16 3x3/1, inside", "softmax 24x40", "depthwise, geometric mean of 1"]
    assert [row["what"] for row in found] == names
    assert all(row["ours"] > 0 and row["theirs"] > 0 and row["ratio"] > 0 for row in (alone, inside, softmax))
    assert softmax["target"] == "<= 0.8"
    assert "of the peak" in alone["remark"]
    assert mean["ratio"] == pytest.approx(alone["ratio"])
    assert mean["met"] is None  # one is not the group


def test_threads_have_rows_of_their_own(native: Any, tmp_path: Path) -> None:
    needs_compiler()
    beside, speed_up = rows_of(native, tmp_path, "--only", "softmax", "--machine", "host", "--threads", "2")
    assert beside["what"] == "softmax 24x40, 2 threads"
    assert speed_up["what"] == "softmax 24x40, 2 threads: speed-up"
    assert speed_up["ours"] == beside["ours"]
    assert (speed_up["reference"], speed_up["target"]) == ("one thread", ">= 1.85")
    assert speed_up["met"] == (speed_up["ratio"] >= 1.85)


def test_the_peak_is_that_of_the_vectors_of_this_cpu() -> None:
    needs_compiler()
    peers = importlib.import_module("benchmarks.peers")
    processor = load_machine("native").processor()
    lanes = 4 if processor is None or processor.vector is None else processor.vector_bytes // 4
    run, flops = peers.multiply_adds()
    run()
    assert flops == 2 * 40_000 * peers.CHAINS * lanes


def test_models_of_files_are_rows(native: Any, tmp_path: Path) -> None:
    needs_compiler()
    model, _ = next(work for work in native.all_work(quick=True) if work.group == "gelu").build()
    (tmp_path / "mine.onnx").write_bytes(model.SerializeToString())
    (row,) = rows_of(native, tmp_path, "--machine", "host", str(tmp_path / "mine.onnx"))
    assert row["what"] == "mine"
    assert row["ratio"] > 0


def test_wrong_outputs_are_not_timed(native: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unchanged(model: Any, feeds: dict[str, Any], machine: str, threads: int) -> Callable[[], list[Any]]:
        return lambda: [feeds["x"]]

    monkeypatch.setattr(native, "ours", unchanged)
    (row,) = rows_of(native, tmp_path, "--only", "softmax")
    assert row["ours"] is None
    assert row["met"] is False
    assert "differ" in row["remark"]


def test_what_is_asked_for_must_be_there(native: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        native.main(["--only", "gems"])
    assert 'no group or row is called "gems"' in capsys.readouterr().err


def test_names_are_unique(native: Any) -> None:
    names = [work.name for work in native.all_work()]
    assert len(set(names)) == len(names)
