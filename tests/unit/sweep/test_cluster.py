# SPDX-License-Identifier: Apache-2.0
"""Sweeps on a Dask cluster: the same table, also where a worker is killed in the middle, and each run once."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.sweep.sweeps import TWO_LAYERS, Watched, csv_of, study, swept

from penstock.dialects.diagnostics import UserError
from penstock.tools.sweep import steps
from penstock.tools.sweep.grid import runs_of
from penstock.tools.sweep.steps import Step
from penstock.tools.sweep.workers import workers

if TYPE_CHECKING:
    from tests.conftest import Command

distributed: Any = pytest.importorskip("distributed")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    """Two workers, which share no cache with this process."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "theirs"))
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, local_directory=str(tmp_path)
    ) as made:
        monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "ours"))
        steps._states.cache_clear()  # pyright: ignore[reportPrivateUsage]
        yield made


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_nothing_and_nothing_is_there_twice(tmp_path: Path, cluster: Any) -> None:
    plan = study(tmp_path, program=TWO_LAYERS)
    killed: list[int] = []

    class Killing(Watched):
        def begun(self, step: Step) -> None:
            super().begun(step)
            if len(self.steps) < 6 or killed:
                return
            # The process that works, in the middle of a step; where none does, the next step is waited for.
            with distributed.Client(cluster, set_as_default=False) as client:
                if busy := [address for address, tasks in client.processing().items() if tasks]:
                    killed.extend(client.run(os.getpid, nanny=False, workers=busy[:1]).values())
                    os.kill(killed[0], signal.SIGKILL)

    watched = Killing()
    with workers(1, cluster.scheduler_address) as where:
        swept(plan, where, watched)
    assert len(killed) == 1
    assert Counter(watched.endings) == Counter(run.key for run in runs_of(plan))
    assert {result.status for result in watched.results.values()} == {"ok"}
    assert csv_of(plan, watched.results) == csv_of(plan, swept(plan).results)


def test_where_there_is_no_cluster_it_is_said(
    tmp_path: Path, penstock: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    study(tmp_path)
    done = penstock("sweep", tmp_path / "study.toml", "--scheduler", "no such place")
    assert done.status == 1
    assert "there is no scheduler at no such place" in done.err
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UserError, match="a cluster needs the package distributed"), workers(1, "tcp://127.0.0.1:1"):
        pass
