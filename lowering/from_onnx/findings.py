# SPDX-License-Identifier: Apache-2.0
"""What the import of a model comes across and tells all of at its end, not one thing a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, some_of, warn_of
from penstock.dialects.graph.sizes import UnknownSize


@dataclass(frozen=True)
class Gap:
    """A node that is not supported."""

    operator: str
    node: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operator} ({self.reason})" if self.reason else self.operator


@dataclass(frozen=True)
class OpenSize:
    """What cannot be imported before a size is known: a node or an output, in words, and the size."""

    where: str
    error: UnknownSize

    def __str__(self) -> str:
        return f"{self.where}: {self.error}"


@dataclass
class ImportFindings:
    """All of it, for the model in the file `place`."""

    place: str
    gaps: list[Gap] = field(default_factory=list[Gap])
    open: list[OpenSize] = field(default_factory=list[OpenSize])
    misfits: list[str] = field(default_factory=list[str])
    """Values that have another shape than is declared for them."""

    def warn(self) -> None:
        """Issue the InputWarning for the values of another shape than is declared."""
        warn_of([f"{each}; the inferred shape is taken" for each in self.misfits], self.place)

    def refuse(self, dims: Sequence[str]) -> None:
        """
        Raise the one UserError for all that is not supported, or else for all that needs to know a size.

        `dims` are the symbolic dimensions of the inputs; either error says which of them to bind.
        """
        if self.gaps:
            operators = list(dict.fromkeys(gap.operator for gap in self.gaps))
            plural = "operators" if len(operators) > 1 else "operator"
            raise UserError(
                f"the model uses {len(operators)} {plural} not supported: {', '.join(operators)}",
                loc=self.place,
                notes=[*self._gap_notes(), *self._repairs(dims)],
                status=UNSUPPORTED,
            )
        if self.open:
            others = some_of([str(each) for each in self.open[1:]])
            raise UserError(str(self.open[0]), loc=self.place, notes=[*others, *self._repairs(dims)])

    def _gap_notes(self) -> list[str]:
        groups: dict[tuple[str, str], list[str]] = {}
        # The iterations of a loop may have come across one gap several times.
        for gap in dict.fromkeys(self.gaps):
            groups.setdefault((gap.operator, gap.reason), []).append(gap.node)
        return [
            f"{operator}{': ' + reason if reason else ''},"
            f" in {len(nodes)} node{'s' if len(nodes) > 1 else ''}: " + ", ".join(f'"{node}"' for node in nodes)
            for (operator, reason), nodes in groups.items()
        ]

    def _repairs(self, dims: Sequence[str]) -> list[str]:
        """The dimensions to bind: those that something here needs to know, then those that only stay open."""
        needed = {name for each in self.open for name in each.error.names}
        # A size that cannot be traced to a name may depend on any of them.
        untraced = any(not each.error.names for each in self.open)
        groups = (
            ("bind it", [name for name in dims if untraced or name in needed]),
            ("bind these too before it is compiled", [name for name in dims if not untraced and name not in needed]),
        )
        return [f"{words}: " + " ".join(f"--dim {name}=SIZE" for name in names) for words, names in groups if names]
