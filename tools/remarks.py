# SPDX-License-Identifier: Apache-2.0
"""Remarks of passes, as lines for people and as JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from xdsl.ir import Operation
from xdsl.passes import ModulePass

from penstock.dialects.diagnostics import USAGE, UserError
from penstock.dialects.remarks import Remark, listening
from penstock.runtime.instrumentation import Instrumentation
from penstock.tools.tables import SCHEMA


@dataclass
class RemarkCollector(Instrumentation):
    """What passes remark, with the pass that does; the driver listens for it while they run."""

    pattern: re.Pattern[str]
    """A regular expression that is searched in `kind pass: message`."""
    found: list[tuple[str, Remark]] = field(default_factory=list[tuple[str, Remark]])
    """The name of the pass, and the remark."""
    _running: list[str] = field(default_factory=list[str], init=False)

    def before(self, module_pass: ModulePass, module: Operation) -> None:
        self._running.append(module_pass.name)

    def after(self, module_pass: ModulePass, module: Operation) -> None:
        self._running.pop()

    def before_nested(self, module_pass: ModulePass, op: Operation) -> None:
        self._running.append(module_pass.name)

    def after_nested(self, module_pass: ModulePass, op: Operation) -> None:
        self._running.pop()

    def failed(self, module_pass: ModulePass, op: Operation) -> None:
        self._running.pop()

    def listen(self, remark: Remark) -> None:
        """Keep a remark if it is asked for."""
        name = self._running[-1] if self._running else ""
        if self.pattern.search(f"{remark.kind} {name}: {remark.message}"):
            self.found.append((name, remark))

    def lines(self) -> Sequence[str]:
        """A line each: the place, the kind, the pass and the message."""
        return [f"{each.location}: remark: [{each.kind} {name}] {each.message}" for name, each in self.found]

    def json(self) -> str:
        """The same as JSON."""
        rows = [
            {
                "kind": each.kind,
                "pass": name,
                "function": each.function,
                "location": each.location,
                "message": each.message,
            }
            for name, each in self.found
        ]
        return json.dumps({"schema": SCHEMA, "remarks": rows}, indent=1)


def collector_of(pattern: str) -> RemarkCollector:
    """The collector of the remarks that `--remarks` asks for; raises UserError for what is no regular expression."""
    try:
        return RemarkCollector(re.compile(pattern))
    except re.error as error:
        raise UserError(f"--remarks: not a regular expression: {error}", status=USAGE) from None


@contextmanager
def printed_remarks(pattern: str | None) -> Generator[list[Instrumentation]]:
    """Yield what collects the remarks of passes, to be printed to stderr at the end, if there is a pattern."""
    if pattern is None:
        yield []
        return
    collector = collector_of(pattern)
    try:
        with listening(collector.listen):
            yield [collector]
    finally:
        for line in collector.lines():
            print(line, file=sys.stderr)
