# SPDX-License-Identifier: Apache-2.0
"""How a sweep goes on, on stderr: a bar on a terminal, and lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.tools.sweep.grid import Run
from penstock.tools.sweep.steps import Step
from penstock.tools.sweep.store import Result

_LINES = 10
"""Of a sweep where nobody sees a bar, beside those of runs that fail."""


class SweepProgress:
    """Counts the runs that have ended."""

    def __init__(self, total: int, show: Callable[[SweepProgress, str], None], tell: Callable[[str], None], most: int):
        self.total = total
        self.done = 0
        self.failed = 0
        self.most = most
        """Lines on runs that fail."""
        self._show = show
        self._tell = tell
        self._started = time.monotonic()

    def begun(self, step: Step) -> None:
        """A step has been given out."""
        passes = step.segments[-1].passes if step.segments else ()
        names = [each.partition("{")[0] for each in passes]
        what = f"{names[0]} to {names[-1]}" if len(names) > 1 else "".join(names) or "load"
        machine = f" on {step.source.machine}" if step.source.machine else ""
        self._show(self, f"{Path(step.source.path).name}{machine}: {what}")

    def ended(self, runs: Sequence[Run], result: Result) -> None:
        """Runs have ended."""
        self.done += len(runs)
        if not result.is_ok and runs:
            self.failed += len(runs)
            if self.failed - len(runs) < self.most:
                more = f" and {len(runs) - 1} more like it" if len(runs) > 1 else ""
                self._tell(f"{result.status}: {', '.join(runs[0].labels.values())}{more}: {result.reason}")
        self._show(self, "")

    @property
    def left(self) -> str:
        """The time that the rest takes if it takes as long as what is done did."""
        if not self.done:
            return "?"
        seconds = (time.monotonic() - self._started) / self.done * (self.total - self.done)
        return f"{int(seconds // 60)}:{int(seconds % 60):02}"

    def __str__(self) -> str:
        return f"{self.done} of {self.total} runs, {self.failed} failed, {self.left} left"


@contextmanager
def sweep_progress(total: int, *, quiet: bool, verbose: bool) -> Generator[SweepProgress]:
    """What counts the runs of a sweep, and shows it."""
    most = total if verbose else _LINES
    if quiet:
        yield SweepProgress(total, lambda progress, what: None, lambda line: None, 0)
    elif sys.stderr.isatty():
        with _bar(total) as (show, tell):
            yield SweepProgress(total, show, tell, most)
    else:
        yield SweepProgress(total, _lines(verbose), lambda line: print(line, file=sys.stderr), most)


def _lines(verbose: bool) -> Callable[[SweepProgress, str], None]:
    shown = 0

    def show(progress: SweepProgress, what: str) -> None:
        nonlocal shown
        if what and verbose:
            print(what, file=sys.stderr)
        if not what and (tenth := progress.done * _LINES // progress.total) > shown:
            shown = tenth
            print(progress, file=sys.stderr)

    return show


@contextmanager
def _bar(total: int) -> Generator[tuple[Callable[[SweepProgress, str], None], Callable[[str], None]]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    columns = (BarColumn(), TextColumn("{task.fields[counts]}"), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total, counts="")

        def show(progress: SweepProgress, what: str) -> None:
            with suppress(BrokenPipeError):
                bar.update(task, completed=progress.done, counts=str(progress), description=what or None)

        yield show, lambda line: console.print(line, markup=False)
