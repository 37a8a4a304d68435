# SPDX-License-Identifier: Apache-2.0
"""The IR of a program at the end of each level, line by line, taken while it is compiled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from penstock.dialects.graph import FusedOp
from penstock.lowering.line_map import Line, function_lines, origins_of
from penstock.runtime.levels import level_of

_LOWERINGS = "penstock.lowering."


@dataclass(frozen=True)
class Snapshot:
    """The functions of a program at one moment, and for each line the names that it comes from."""

    title: str
    lines: tuple[Line, ...]
    origins: tuple[tuple[str, ...], ...]
    groups: dict[str, tuple[str, ...]]
    """By the name of a group of fused operations, which its kernel is called with, the names of what is inside."""


@dataclass
class Levels:
    """An observer of passes: the program as it came in, and before each lowering to the next level."""

    found: list[Snapshot] = field(default_factory=list[Snapshot])

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        if type(module_pass).__module__.startswith(_LOWERINGS):
            self.take(module, level_of(module))

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        pass

    def take(self, module: ModuleOp, title: str) -> None:
        """Note the program as it is; what has the text of the one before is not noted again."""
        lines = tuple(function_lines(module))
        if self.found and [line.text for line in lines] == [line.text for line in self.found[-1].lines]:
            return
        origins = tuple(() if line.op is None else origins_of(line.op) for line in lines)
        self.found.append(Snapshot(title, lines, origins, _groups(lines)))


def _groups(lines: Iterable[Line]) -> dict[str, tuple[str, ...]]:
    groups: dict[str, tuple[str, ...]] = {}
    for op in (line.op for line in lines):
        if isinstance(op, FusedOp):
            inside = dict.fromkeys(name for inner in op.body.block.ops for name in origins_of(inner))
            groups.update(dict.fromkeys(origins_of(op), tuple(inside)))
    return groups
