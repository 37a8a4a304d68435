# SPDX-License-Identifier: Apache-2.0
"""Tables of instruments, as text in MLIR's manner and as JSON: the times of passes, and what they did to operations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from xdsl.ir import Operation
from xdsl.passes import ModulePass

from penstock.runtime.instrumentation import Instrumentation, Span

SCHEMA = 1
"""The version of the layout of the JSON."""
_RULE = f"===-{'-' * 73}-==="


def titled(title: str) -> list[str]:
    """The head of a table."""
    return [_RULE, f"... {title} ...".center(len(_RULE)).rstrip(), _RULE]


def timing_text(total: Span, display: str) -> str:
    """A table of times, with the share of each in the total, as a tree or by name with the longest first."""
    lines = [*titled("Execution time report"), f"  Total Execution Time: {total.wall:.4f} seconds", ""]
    lines.append("  ----User Time----  ----Wall Time----  ----Name----")
    rows = list(_rows(total)) if display == "tree" else _by_name(total)
    for depth, span in [*rows, (0, Span("total", total.wall, total.user))]:
        user, wall = (_share(*each) for each in ((span.user, total.user), (span.wall, total.wall)))
        lines.append(f"  {user}  {wall}  {'  ' * depth}{span.name}")
    return "\n".join(lines)


def timing_json(total: Span, display: str) -> str:
    """The same as JSON: seconds, and the parts of each below it."""
    if display == "list":
        total = Span(total.name, total.wall, total.user, [span for _, span in _by_name(total)])
    return json.dumps({"schema": SCHEMA, "timing": _span_json(total)}, indent=1)


def _span_json(span: Span) -> dict[str, Any]:
    parts = [_span_json(each) for each in span.parts]
    return {"name": span.name, "wall": round(span.wall, 6), "user": round(span.user, 6), "parts": parts}


def _rows(total: Span, depth: int = 0) -> Iterator[tuple[int, Span]]:
    for part in total.parts:
        yield depth, part
        yield from _rows(part, depth + 1)


def _by_name(total: Span) -> list[tuple[int, Span]]:
    """What has no parts, and of the others what is in none, by name."""
    found: dict[str, Span] = {}
    for _, span in _rows(total):
        own = found.setdefault(span.name, Span(span.name))
        own.wall += span.wall - sum(each.wall for each in span.parts)
        own.user += span.user - sum(each.user for each in span.parts)
    return [(0, each) for each in sorted(found.values(), key=lambda each: (-each.wall, each.name))]


def _share(seconds: float, total: float) -> str:
    return f"{max(seconds, 0.0):8.4f} ({max(seconds, 0.0) / total if total else 0.0:6.1%})"


@dataclass
class PassStatistics(Instrumentation):
    """How many operations each pass added and removed, by their names."""

    runs: list[tuple[int, str, ModulePass, Counter[str]]] = field(
        default_factory=list[tuple[int, str, ModulePass, Counter[str]]]
    )
    """Depth, name and difference of what ran, in the order in which it began."""
    _before: list[tuple[int, Counter[str]]] = field(default_factory=list[tuple[int, Counter[str]]], init=False)

    def before(self, module_pass: ModulePass, module: Operation) -> None:
        self._begin(module_pass, module)

    def after(self, module_pass: ModulePass, module: Operation) -> None:
        self._end(module)

    def before_nested(self, module_pass: ModulePass, op: Operation) -> None:
        self._begin(module_pass, op)

    def after_nested(self, module_pass: ModulePass, op: Operation) -> None:
        self._end(op)

    def failed(self, module_pass: ModulePass, op: Operation) -> None:
        self._before.pop()

    def _begin(self, module_pass: ModulePass, op: Operation) -> None:
        depth = len(self._before)
        known = [
            index
            for index, (_, _, each, _) in enumerate(self.runs)
            if depth > 0 and each is module_pass and index > self._before[-1][0]
        ]
        if not known:
            known = [len(self.runs)]
            self.runs.append((depth, module_pass.name, module_pass, Counter()))
        self._before.append((known[0], _count(op)))

    def _end(self, op: Operation) -> None:
        index, before = self._before.pop()
        difference, after = self.runs[index][3], _count(op)
        for name in before | after:
            difference[name] += after[name] - before[name]

    def rows(self, display: str) -> list[tuple[int, str, Counter[str]]]:
        """What ran, in order as a tree, or merged by name without nested pipelines."""
        if display == "pipeline":
            return [(depth, name, difference) for depth, name, _, difference in self.runs]
        merged: dict[str, Counter[str]] = {}
        for _, name, _, difference in self.runs:
            if "pipeline" not in name:
                found = merged.setdefault(name, Counter())
                for each, count in difference.items():
                    found[each] += count
        return [(0, name, merged[name]) for name in sorted(merged)]

    def text(self, display: str) -> str:
        """The table for people."""
        lines = titled("Pass statistics report")
        for depth, name, difference in self.rows(display):
            indent = "  " * depth
            lines.append(f"{indent}{name}")
            counts = (("operations added", _added(difference)), ("operations removed", _added(_negative(difference))))
            for what, found in counts:
                kinds = ", ".join(f"{count} {op}" for op, count in sorted(found.items()))
                lines.append(f"{indent}  (S) {sum(found.values()):6} {what}{f': {kinds}' if kinds else ''}")
        return "\n".join(lines)

    def json(self, display: str) -> str:
        """The same as JSON."""
        rows = [
            {"depth": depth, "pass": name, "added": _added(found), "removed": _added(_negative(found))}
            for depth, name, found in self.rows(display)
        ]
        return json.dumps({"schema": SCHEMA, "statistics": rows}, indent=1, sort_keys=True)


def _count(op: Operation) -> Counter[str]:
    return Counter(each.name for each in op.walk())


def _added(difference: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in difference.items() if count > 0}


def _negative(difference: Counter[str]) -> Counter[str]:
    return Counter({name: -count for name, count in difference.items()})
