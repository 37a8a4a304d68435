# SPDX-License-Identifier: Apache-2.0
"""Sweeps: what runs share is computed once, and the table is the same however the sweep came to its end."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sampling import sweep
from tests.unit.sweep.sweeps import (
    STUDY,
    TWO_LAYERS,
    Watched,
    csv_of,
    run_and_log,
    run_unless_exact,
    stored,
    study,
    swept,
)
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.diagnostics import UserError
from penstock.dialects.remembered import Remembered
from penstock.passes import code_cache
from penstock.passes.analysis.commands.trace import Call
from penstock.runtime.compiler import compile_module, load_input
from penstock.runtime.pass_manager import run_passes
from penstock.runtime.pipeline import passes_for
from penstock.runtime.simulator import figures as simulator_figures
from penstock.runtime.simulator.figures import simulated_total, total_of
from penstock.runtime.simulator.run import KernelRun, run_call, run_program
from penstock.runtime.simulator.workloads import Workloads
from penstock.tools.sweep import states, steps
from penstock.tools.sweep.figures import CPU, figures_of
from penstock.tools.sweep.grid import runs_of
from penstock.tools.sweep.plan import PlanText, read_plan
from penstock.tools.sweep.steps import Step, cuts
from penstock.tools.sweep.store import open_store
from penstock.tools.sweep.workers import Processes

if TYPE_CHECKING:
    from tests.conftest import Command

DIGITS = Path(__file__).parents[3] / "examples" / "digits" / "digits.onnx"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    steps._states.cache_clear()  # pyright: ignore[reportPrivateUsage]
    return tmp_path / "cache" / states.PART


@pytest.fixture
def passes_run(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """How often each pass ran on each text."""
    from penstock.dialects.context import make_context
    from penstock.lowering.to_text import module_text

    context = make_context()
    found = Counter[tuple[str, str]]()

    class Counting(steps._CpuTimer):  # pyright: ignore[reportPrivateUsage]
        def before(self, module_pass: object, module: ModuleOp) -> None:
            super().before(module_pass, module)  # pyright: ignore
            from penstock.runtime.pass_manager import pipeline_text

            found[pipeline_text([module_pass]), module_text(context, module)] += 1  # pyright: ignore

    monkeypatch.setattr(steps, "_CpuTimer", Counting)
    return found


def direct(path: Path, machine: str, options: dict[str, str], pipeline: str) -> dict[str, object]:
    """The figures of a run that is compiled as a whole."""
    program, workloads = load_input(path), Workloads()
    compile_module(
        program.module, program.ctx, machine, pipeline=pipeline, machine_options=options, observers=[workloads]
    )
    return dict(figures_of(program.module, workloads, Remembered()))


def test_every_figure_is_that_of_a_compilation_as_a_whole(tmp_path: Path) -> None:
    plan = study(tmp_path, program=TWO_LAYERS)
    results = swept(plan).results
    assert all("peak.arena" in dict(result.figures) for result in results.values()), "what is between two kernels"
    for run in runs_of(plan)[::3]:
        point = run.point
        whole = direct(tmp_path / "layer.mlir", "gemmini-fp32", point.options, point.pipeline)
        figures = dict(results[run.key].figures)
        assert figures.pop(CPU) is not None
        assert figures == whole, point


def test_kernels_that_are_alike_are_simulated_once_wherever_their_arguments_lie_off_chip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = "graph.matmul %{0}, %w : (tensor<32x48xf32>, tensor<48x48xf32>) -> tensor<32x48xf32>\n  %{1} = graph.relu"
    text = f"""
func.func @main(%x: tensor<32x48xf32>, %w: tensor<48x48xf32>) -> tensor<32x48xf32> {{
  %a = {layer.format("x", "h")} %a : tensor<32x48xf32>
  %b = {layer.format("h", "i")} %b : tensor<32x48xf32>
  %c = {layer.format("i", "y")} %c : tensor<32x48xf32>
  func.return %y : tensor<32x48xf32>
}}"""
    (tmp_path / "layers.mlir").write_text(text)
    loaded = load_input(str(tmp_path / "layers.mlir"))
    workloads = Workloads()
    passes = passes_for(loaded.module, "accel", "gemmini-fp32", "default, -mem-promote")
    run_passes(loaded.ctx, loaded.module, passes, observers=[workloads])
    whole = total_of(run_program(loaded.module, workloads))
    simulated: list[Call] = []

    def watched(call: Call, *args: Any) -> KernelRun:
        simulated.append(call)
        return run_call(call, *args)

    monkeypatch.setattr(simulator_figures, "run_call", watched)
    assert simulated_total(loaded.module, workloads, Remembered()) == whole
    assert whole.runs == 3
    assert len(simulated) == 1


@pytest.mark.parametrize(
    ("network", "machine"),
    sweep(
        [(n, m) for n in ("squeezenet", "mobilenet_v2", "int8_cnn") for m in ("gemmini-fp32", "vta-pynq", "host-avx2")],
        quick=lambda pair: False,
    ),
)
def test_a_network_goes_on_from_its_text_at_every_pass_as_if_it_had_not_stopped(
    tmp_path: Path, network: str, machine: str
) -> None:
    import zoo

    (tmp_path / "network.onnx").write_bytes(zoo.NETWORKS[network](seed=0, small=True).SerializeToString())
    names = ["simplify", "layout", "graph-fuse", "assign-devices", "tile", "promote", "mem-plan"]
    edits = "".join(f'[edits."{name}"]\nrun = ""\nagain = "+value-dce after {name}"\n' for name in names[:3])
    text = f'inputs = ["network.onnx"]\nmachines = ["{machine}"]\n{edits}'
    (tmp_path / "study.toml").write_text(text)
    plan = read_plan(PlanText.read(tmp_path / "study.toml"))
    results = swept(plan).results
    run = runs_of(plan)[0]
    figures = dict(results[run.key].figures)
    del figures[CPU]
    assert figures == direct(tmp_path / "network.onnx", machine, {}, "default")


def test_no_pass_runs_twice_on_one_text(tmp_path: Path, passes_run: Counter[tuple[str, str]]) -> None:
    plan = study(tmp_path)
    assert len(swept(plan).results) == 8
    once = ("assign-devices", "tile", "promote", "multi-buffer", "mem-plan", "loop-to-accel", "accel-pipeline")
    assert {count for (spec, _), count in passes_run.items() if spec.partition("{")[0] in once} == {1}
    # Where two planners find the same offsets, what is behind them is done once.
    assert sum(spec == "accel-pipeline" for spec, _ in passes_run) < 8
    planned = [spec for spec, _ in passes_run if spec.startswith("mem-plan")]
    assert Counter(planned) == {"mem-plan": 4, 'mem-plan{planner="exact"}': 4}


def test_a_larger_plan_goes_on_where_the_smaller_one_was_cut(
    tmp_path: Path, passes_run: Counter[tuple[str, str]]
) -> None:
    swept(study(tmp_path, STUDY.replace(', "exact"', "")))
    passes_run.clear()
    swept(study(tmp_path))
    names = {spec.partition("{")[0] for spec, _ in passes_run}
    assert "mem-plan" in names
    assert "tile" not in names


def test_states_that_are_truncated_or_gone_are_computed_anew(tmp_path: Path, cache: Path) -> None:
    plan = study(tmp_path)
    before = csv_of(plan, swept(plan).results)
    draw = random.Random(1)
    for _ in range(2):
        steps._states.cache_clear()  # pyright: ignore[reportPrivateUsage]
        for path in sorted(cache.iterdir()):
            kind = draw.randrange(4) if path.suffix != ".step" else 1 + draw.randrange(3)
            if kind == 1:
                os.truncate(path, path.stat().st_size // 2)
            elif kind == 2:
                path.unlink()
        assert csv_of(plan, swept(plan).results) == before


def test_the_cache_is_pruned(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = study(tmp_path)
    swept(plan)
    monkeypatch.setattr(states, "MAX_BYTES", 0)
    monkeypatch.setattr(code_cache, "IN_USE_SECONDS", -1)
    states.StateCache().prune()
    assert not list(cache.glob("*.state"))


# ends


def test_failures_are_rows_with_their_reason(tmp_path: Path, penstock: Command) -> None:
    (tmp_path / "open.mlir").write_text(
        "func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {func.return %x : tensor<?xf32>}"
    )
    study(tmp_path)
    plan = tmp_path / "failing.toml"
    plan.write_text(
        'inputs = ["layer.mlir", "open.mlir"]\nmachines = ["gemmini-fp32"]\npasses = ["promote"]\n'
        '[set]\nscope.spad.size = ["8K", "32K"]\n'
    )
    done = penstock("sweep", plan, "--jobs", "1", "--metrics", "cycles")
    assert done.status == 0
    rows = [line.split(",", 6) for line in done.out.splitlines()]
    status = {tuple(row[:4]): row[4] for row in rows[1:]}
    assert status["layer.mlir", "gemmini-fp32", "8K", "on"] == "ok"
    assert Counter(status.values()) == {"ok": 2, "refused": 6}
    assert "this op runs on @gemmini_fp32, but is none of its intrinsics" in done.out
    assert "the symbolic dimension is not bound" in done.out
    again = penstock("sweep", plan, "--jobs", "1", "--metrics", "cycles", "--retry")
    assert again.out == done.out


def test_a_pass_that_crashes_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.passes.loop.multi_buffer import MultiBufferPass

    def crash(self: object, ctx: object, op: object) -> None:
        raise KeyError("slots")

    monkeypatch.setattr(MultiBufferPass, "apply", crash)
    plan = study(tmp_path)
    results = list(swept(plan).results.values())
    assert {result.status for result in results} == {"crashed"}
    assert {result.reason for result in results} == {"the pass \"multi-buffer\" crashed: KeyError: 'slots'"}


@pytest.mark.parametrize("at", sweep(range(1, 8, 2), quick=lambda at: at == 3))
def test_a_sweep_that_is_killed_goes_on_and_ends_with_the_same_table(tmp_path: Path, at: int) -> None:
    plan = study(tmp_path)
    run = "from penstock.tools.main import main; main()"
    command = [sys.executable, "-c", run, "sweep", "study.toml", "--jobs", "2", "-o", "table.csv", "-q"]
    killed = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
    store = tmp_path / "study.sqlite"
    while killed.poll() is None and _rows(store) < at:
        time.sleep(0.02)
    # The process alone: its workers notice.
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    left = _rows(store)
    assert at <= left <= 8
    assert not (tmp_path / "table.csv").exists() or left == 8
    deadline = time.monotonic() + 60
    while _is_running(killed.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_running(killed.pid), "no worker is left behind"
    # Two at once go on, and neither does what the other has done.
    again = [*command[: command.index("--jobs")], "--jobs", "1", "-q", "-o"]
    both = [subprocess.Popen([*again, f"{n}.csv"], cwd=tmp_path) for n in range(2)]
    assert [process.wait(timeout=300) for process in both] == [0, 0]
    assert (tmp_path / "0.csv").read_text() == (tmp_path / "1.csv").read_text()
    assert csv_of(plan, stored(plan, store)) == csv_of(plan, swept(plan).results)
    with sqlite3.connect(store) as connection:
        assert connection.execute("SELECT count(*), count(DISTINCT key) FROM runs").fetchone() == (8, 8)


def _rows(store: Path) -> int:
    try:
        with sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=10) as connection:
            return connection.execute("SELECT count(*) FROM runs").fetchone()[0]
    except sqlite3.OperationalError:
        return 0  # not made yet


def _is_running(session: int) -> bool:
    """Whether a process of a session is left."""
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            try:
                words = (each / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(words[3]) == session and words[0] != "Z":
                return True
    return False


def test_a_process_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    plan = study(tmp_path)
    pool = Processes(2)

    class Killing(Watched):
        kills = 0

        def begun(self, step: Step) -> None:
            super().begun(step)
            if len(self.steps) in (4, 7):
                self.kills += 1
                pool.kill()

    try:
        watched = Killing()
        swept(plan, pool, watched)
    finally:
        pool.close()
    assert watched.kills == 2
    assert Counter(watched.endings) == Counter(run.key for run in runs_of(plan))
    assert csv_of(plan, watched.results) == csv_of(plan, swept(plan).results)


@pytest.mark.parametrize("slots", sweep([1, 2, 3], quick=[2]))
def test_a_step_that_ends_its_process_is_a_row_and_those_beside_it_are_not(slots: int, tmp_path: Path) -> None:
    plan = study(tmp_path, STUDY.replace('depth = ["auto", 1]\n', "").replace('"8K", "32K"', '"32K"'))
    pool = Processes(slots, run_unless_exact)
    try:
        results = swept(plan, pool).results
    finally:
        pool.close()
    found = {(run.labels["planner"], results[run.key].status) for run in runs_of(plan)}
    assert found == {("default", "ok"), ("exact", "lost")}


def test_a_process_stays_with_its_file_while_it_has_steps(tmp_path: Path) -> None:
    """What it remembers of kernels is of use again: a file's first steps, as many as the other file has, are in one."""
    study(tmp_path)
    (tmp_path / "other.mlir").write_text((tmp_path / "layer.mlir").read_text().replace("relu", "sigmoid"))
    plan = study(tmp_path, STUDY.replace('["layer.mlir"]', '["layer.mlir", "other.mlir"]'))
    pool = Processes(2, run_and_log)
    try:
        swept(plan, pool)
    finally:
        pool.close()
    order = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    counts = Counter(name for name, _ in order)
    both = 0
    for number, (name, _) in enumerate(order):
        counts[name] -= 1
        if not counts[name]:
            both = number
            break
    processes = {name: {process for each, process in order[:both] if each == name} for name, _ in order}
    assert [len(found) for found in processes.values()] == [1, 1]
    assert len({process for found in processes.values() for process in found}) == 2


# what results depend on


def test_results_are_of_contents_and_not_of_names(tmp_path: Path) -> None:
    first = [run.key for run in runs_of(study(tmp_path))]
    layer = tmp_path / "layer.mlir"
    os.utime(layer, (0, 0))
    assert [run.key for run in runs_of(read_plan(PlanText.read(tmp_path / "study.toml")))] == first
    layer.write_text(layer.read_text().replace("relu", "sigmoid"))
    assert set(first).isdisjoint(run.key for run in runs_of(read_plan(PlanText.read(tmp_path / "study.toml"))))


def test_a_worker_with_other_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step("other", runs_of(study(tmp_path))[0].source)
    with pytest.raises(UserError, match="this worker has another version"):
        steps.run_step(step)


def test_pipelines_are_cut_where_they_part() -> None:
    one, other, third = ["a", "b", "c{x=1}", "d"], ["a", "b", "c{x=2}", "d"], ["a", "b", "d"]
    assert cuts([one, other, third], frozenset()) == [[2, 3], [2, 3], [2]]
    assert cuts([one, one], frozenset()) == [[], []]
    assert cuts([one], frozenset({"c"})) == [[2, 3]]
    assert cuts([one, one[:2]], frozenset()) == [[2, 3], []]


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    path.write_text("no store" * 1000)
    with (
        pytest.raises(UserError, match="the store of results cannot be used: file is not a database"),
        open_store(path),
    ):
        pass
    with sqlite3.connect(tmp_path / "other.sqlite") as connection:
        connection.execute("CREATE TABLE mine (x)")
    with pytest.raises(UserError, match="no store of sweeps"), open_store(tmp_path / "other.sqlite"):
        pass


# tables


def test_a_table_is_the_same_in_every_form(tmp_path: Path, penstock: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    study(tmp_path)
    monkeypatch.chdir(tmp_path)
    outputs = ["-o", "t.csv", "-o", "t.md", "-o", "t.tex"]
    done = penstock("sweep", "study.toml", "--jobs", "1", *outputs, "--metrics", "cycles,peak.")
    assert (done.status, done.out) == (0, "")
    head, *rows = [line.split(",") for line in Path("t.csv").read_text().splitlines()]
    assert head == "input machine scope.spad.size planner depth status reason cycles peak.spad peak.acc".split()
    assert len(rows) == 8
    markdown = [line.strip("| ").split(" | ") for line in Path("t.md").read_text().splitlines()]
    latex = Path("t.tex").read_text().splitlines()
    for row, marked, tex in zip(rows, markdown[2:], latex[4:-2], strict=True):
        labels, figures = row[:5], [f"{int(cell):,}" for cell in row[7:]]
        assert marked == [*labels, *figures]
        assert tex == " & ".join([*labels, *figures]) + r" \\"
    assert latex[0] == r"\begin{tabular}{lllllrrr}"
    refused = penstock("sweep", "study.toml", "--metrics", "cycle")
    assert refused.status == 1
    assert 'did you mean "cycles"?' in refused.err


def test_parquet_holds_what_csv_holds(tmp_path: Path, penstock: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    study(tmp_path, STUDY.replace(', "32K"', ""))
    monkeypatch.chdir(tmp_path)
    penstock("sweep", "study.toml", "--jobs", "1", "-o", "t.parquet", "-o", "t.csv")
    table = parquet.read_table("t.parquet").to_pydict()
    rows = [line.split(",") for line in Path("t.csv").read_text().splitlines()]
    for number, name in enumerate(rows[0]):
        assert ["" if value is None else str(value) for value in table[name]] == [row[number] for row in rows[1:]]
