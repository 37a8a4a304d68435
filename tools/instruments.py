"""What penstock-opt can show of a pipeline while it runs: dumps of the IR and a table of times, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.targets.mlir import MLIRTarget

from penstock.lowering.to_text import module_text
from penstock.runtime.pass_manager import Progress

ALL = "*"
"""In a set of pass names: every pass."""


@dataclass
class IrDumper:
    """Prints the IR before or after the chosen passes, headed as MLIR heads its dumps."""

    ctx: Context
    style: MLIRTarget
    before_passes: frozenset[str] = frozenset()
    after_passes: frozenset[str] = frozenset()
    after_change: bool = False
    after_failure: bool = False
    _previous: str = field(default="", init=False)

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        if self.before_passes & {ALL, module_pass.name}:
            self._dump(f"Before {module_pass.name}", self._text(module))
        if self.after_change:
            self._previous = self._text(module)

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        asked = bool(self.after_passes & {ALL, module_pass.name})
        if not asked and not self.after_change:
            return
        text = self._text(module)
        if asked or text != self._previous:
            self._dump(f"After {module_pass.name}", text)

    def failed(self, module: ModuleOp) -> None:
        """Called by the driver with what a failing pass has left behind."""
        if self.after_failure:
            self._dump("After Failure", self._text(module))

    def _text(self, module: ModuleOp) -> str:
        return module_text(self.ctx, module, self.style)

    def _dump(self, title: str, text: str) -> None:
        print(f"// -----// IR Dump {title} //----- //\n{text}", end="", file=sys.stderr)


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
        with _bar() as update:
            yield update


def _print_line(index: int, total: int, module_pass: ModulePass) -> None:
    print(f"[{index + 1}/{total}] {module_pass.name}", file=sys.stderr)


@contextmanager
def _bar() -> Generator[Progress, None, None]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def update(index: int, total: int, module_pass: ModulePass) -> None:
            bar.update(task, completed=index, total=total, description=module_pass.name)

        yield update
