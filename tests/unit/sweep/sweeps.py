# SPDX-License-Identifier: Apache-2.0
"""What tests of sweeps share: a small study, and the runs of one, watched."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.tools.sweep.grid import Run, runs_of
from penstock.tools.sweep.plan import PlanText, SweepPlan, read_plan
from penstock.tools.sweep.runner import Sweep
from penstock.tools.sweep.steps import Outcome, Step, run_step
from penstock.tools.sweep.store import Result, open_store
from penstock.tools.sweep.tables import ALL, Table
from penstock.tools.sweep.workers import ThisProcess, Workers

LAYER = """
func.func @main(%x: tensor<32x48xf32>, %w: tensor<48x40xf32>) -> tensor<32x40xf32> {
  %xw = graph.matmul %x, %w : (tensor<32x48xf32>, tensor<48x40xf32>) -> tensor<32x40xf32>
  %y = graph.relu %xw : tensor<32x40xf32>
  func.return %y : tensor<32x40xf32>
}
"""

TWO_LAYERS = """
func.func @main(%x: tensor<48x64xf32>, %w: tensor<64x80xf32>, %v: tensor<80x32xf32>) -> tensor<48x32xf32> {
  %xw = graph.matmul %x, %w : (tensor<48x64xf32>, tensor<64x80xf32>) -> tensor<48x80xf32>
  %h = graph.relu %xw : tensor<48x80xf32>
  %y = graph.matmul %h, %v : (tensor<48x80xf32>, tensor<80x32xf32>) -> tensor<48x32xf32>
  func.return %y : tensor<48x32xf32>
}
"""

STUDY = """
inputs = ["layer.mlir"]
machines = ["gemmini-fp32"]
planner = ["default", "exact"]
depth = ["auto", 1]

[set]
scope.spad.size = ["8K", "32K"]
"""
"""Of 8 runs."""


def study(folder: Path, text: str = STUDY, program: str = LAYER) -> SweepPlan:
    """The plan `text`, beside its input in a folder."""
    (folder / "layer.mlir").write_text(program)
    (folder / "study.toml").write_text(text)
    return read_plan(PlanText.read(folder / "study.toml"))


@dataclass
class Watched:
    """A listener that keeps what it is told."""

    steps: list[Step] = field(default_factory=list[Step])
    results: dict[str, Result] = field(default_factory=dict[str, Result])
    endings: list[str] = field(default_factory=list[str])
    """The keys of runs as they end: one that ends twice is in it twice."""

    def begun(self, step: Step) -> None:
        self.steps.append(step)

    def ended(self, runs: Sequence[Run], result: Result) -> None:
        for run in runs:
            self.endings.append(run.key)
            self.results[run.key] = result


def swept(plan: SweepPlan, workers: Workers | None = None, watched: Watched | None = None) -> Watched:
    """All runs of a plan, wherever they run."""
    watched = watched or Watched()
    Sweep(plan, runs_of(plan), workers or ThisProcess(), watched).run()
    return watched


def run_unless_exact(step: Step) -> Outcome:
    """Run a step, or end this process where it plans with a certain planner."""
    if step.segments and 'mem-plan{planner="exact"}' in step.segments[-1].passes:
        os.abort()
    return run_step(step)


def run_and_log(step: Step) -> Outcome:
    """Run a step, and note its file and this process in a file of its folder."""
    with Path(step.source.path).with_name("log").open("a") as log:
        log.write(f"{Path(step.source.path).name} {os.getpid()}\n")
    return run_step(step)


def csv_of(plan: SweepPlan, results: dict[str, Result]) -> str:
    """The table of results, with all figures but those that are measured."""
    table = Table.of(plan, runs_of(plan), results)
    return table.csv([name for name in table.metrics(ALL) if name != "cpu_s"])


def stored(plan: SweepPlan, path: Path) -> dict[str, Result]:
    """What a store has of the runs of a plan."""
    with open_store(path) as store:
        return store.results(run.key for run in runs_of(plan))
