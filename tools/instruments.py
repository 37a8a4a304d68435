# SPDX-License-Identifier: Apache-2.0
"""What commands of penstock show of a pipeline while it runs, and the times of its passes, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from xdsl.passes import ModulePass

from penstock.runtime.pass_manager import Progress


def timing_table(rows: Sequence[tuple[str, float]]) -> str:
    """A table of names and seconds, with each row's share and the total."""
    total = sum(seconds for _, seconds in rows)
    lines = ["  seconds  share  name"]
    for name, seconds in rows:
        share = seconds / total if total else 0.0
        lines.append(f"{seconds:9.4f}  {share:5.1%}  {name}")
    lines.append(f"{total:9.4f}         total")
    return "\n".join(lines)


@contextmanager
def pass_progress(*, quiet: bool, verbose: bool) -> Generator[Progress | None, None, None]:
    """What to call before every pass, or None if nothing is to be shown."""
    if verbose:
        yield _print_line
    elif quiet or not sys.stderr.isatty():
        yield None
    else:
        with _bar() as show:
            yield lambda index, total, module_pass: show(index, total, module_pass.name)


@contextmanager
def step_progress(*, quiet: bool = False) -> Generator[Callable[[int, int | None, str], None]]:
    """Yield what to call before each step of other work: with its number from 0, how many there are, and what it is."""
    if quiet or not sys.stderr.isatty():
        yield lambda index, total, what: None
    else:
        with _bar() as show:
            yield show


def _print_line(index: int, total: int, module_pass: ModulePass) -> None:
    print(f"[{index + 1}/{total}] {module_pass.name}", file=sys.stderr)


@contextmanager
def _bar() -> Generator[Callable[[int, int | None, str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def update(index: int, total: int | None, what: str) -> None:
            bar.update(task, completed=index, total=total, description=what)

        yield update
