# SPDX-License-Identifier: Apache-2.0
"""
What looks on while passes run: the base of every instrument, and the one that takes the times.

An instrument is told of each pass of a pipeline and, of those that run on one function at a time, of each function; of
each failure; and of the phases of a tool: parsing, verifying, printing. MLIR's instrumentation of passes is the model.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from xdsl.ir import Operation
from xdsl.passes import ModulePass


class Instrumentation:
    """An instrument that does nothing: what it is told is for subclasses."""

    def before(self, module_pass: ModulePass, module: Operation) -> None:
        """A pass of the pipeline is about to run; a nested pipeline is one."""

    def after(self, module_pass: ModulePass, module: Operation) -> None:
        """It has run, and what it left has been verified."""

    def before_nested(self, module_pass: ModulePass, op: Operation) -> None:
        """A pass of a nested pipeline is about to run on one operation, by itself."""

    def after_nested(self, module_pass: ModulePass, op: Operation) -> None:
        """It has run, and what it left has been verified."""

    def failed(self, module_pass: ModulePass, op: Operation) -> None:
        """What was about to run refused its input, crashed, or left what does not verify; the innermost comes first."""

    def begin(self, phase: str) -> None:
        """Something other than a pass begins: `parse`, `verify` or `print`."""

    def end(self) -> None:
        """What began last is over."""


@contextmanager
def phase(name: str, instruments: Sequence[Instrumentation]) -> Generator[None]:
    """Tell the instruments when something begins and when it ends, come what may."""
    for each in instruments:
        each.begin(name)
    try:
        yield
    finally:
        for each in reversed(instruments):
            each.end()


@dataclass
class Span:
    """What took time, and what of it is known apart; seconds of the clock, and of this process in user mode."""

    name: str
    wall: float = 0.0
    user: float = 0.0
    parts: list[Span] = field(default_factory=list["Span"])

    key: object = None
    """What runs again and again, and is counted together."""

    def part(self, name: str, key: object) -> Span:
        """The part that has this key, or a new one."""
        found = next((each for each in self.parts if each.key is key), None) if key is not None else None
        if found is None:
            found = Span(name, key=key)
            self.parts.append(found)
        return found


@dataclass
class PassTimer(Instrumentation):
    """
    The time of every pass, in the order in which they ran, verification of what it left included, as a tree: below a
    nested pipeline its passes, each over all operations, and below each pass its verification.
    """

    root: Span = field(default_factory=lambda: Span("total"))
    _open: list[tuple[Span, float, float]] = field(default_factory=list[tuple[Span, float, float]], init=False)

    def __post_init__(self) -> None:
        self._begun = _clocks()

    @property
    def seconds(self) -> list[tuple[str, float]]:
        """Name and seconds of every pass of the pipeline."""
        return [(each.name, each.wall) for each in self.root.parts if each.key is None]

    def before(self, module_pass: ModulePass, module: Operation) -> None:
        self._start(module_pass.name, None)

    def after(self, module_pass: ModulePass, module: Operation) -> None:
        self.end()

    def before_nested(self, module_pass: ModulePass, op: Operation) -> None:
        self._start(module_pass.name, module_pass)

    def after_nested(self, module_pass: ModulePass, op: Operation) -> None:
        self.end()

    def failed(self, module_pass: ModulePass, op: Operation) -> None:
        self.end()

    def begin(self, phase: str) -> None:
        self._start(phase, _PHASES[phase])

    def end(self) -> None:
        span, wall, user = self._open.pop()
        now = _clocks()
        span.wall += now[0] - wall
        span.user += now[1] - user

    def finish(self) -> Span:
        """The tree, with the time since the timer was made as its root and what is in no part as the part `rest`."""
        wall, user = (now - begun for now, begun in zip(_clocks(), self._begun, strict=True))
        known = [each for each in self.root.parts if each.key != _REST]
        rest = Span(_REST, wall - sum(each.wall for each in known), user - sum(each.user for each in known), key=_REST)
        self.root.wall, self.root.user, self.root.parts = wall, user, [*known, rest]
        return self.root

    def _start(self, name: str, key: object) -> None:
        above = self._open[-1][0] if self._open else self.root
        self._open.append((above.part(name, key), *_clocks()))


_PHASES = {name: name for name in ("parse", "verify", "print")}
_REST = "rest"


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
