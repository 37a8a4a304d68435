"""Why a group of ops is not larger, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import NameLoc
from xdsl.ir import Operation

from penstock.dialects.graph import ConcatOp, PadOp, PatternKind, pattern_kind
from penstock.passes.graph.fusion.groups import Rule
from penstock.passes.graph.fusion.nodes import FusionGraph, PlannedGroup

WORDS = {
    PatternKind.ELEMENTWISE: "elementwise",
    PatternKind.BROADCAST: "broadcasting",
    PatternKind.INJECTIVE: "injective",
    PatternKind.REDUCTION: "a reduction",
    PatternKind.COMPLEX_OUT_FUSABLE: "a contraction or a pool",
    PatternKind.OPAQUE: "opaque",
}


def called(op: Operation) -> str:
    """What the model calls an op, or else what it is."""
    what = op.name.rpartition(".")[-1]
    return f"{op.location.desc.data} ({what})" if isinstance(op.location, NameLoc) else what


def _readers(op: Operation) -> list[Operation]:
    return list(dict.fromkeys(use.operation for use in op.results[0].uses))


def _reading(blocker: Operation) -> str:
    """Why an op that reads the result of a group does not take it."""
    kind = pattern_kind(blocker)
    if isinstance(blocker, ConcatOp):
        return f"{called(blocker)} joins it to the results of other kernels"
    if isinstance(blocker, PadOp):
        return f"{called(blocker)} pads it, which takes all of it first"
    if kind in (PatternKind.COMPLEX_OUT_FUSABLE, PatternKind.OPAQUE):
        return f"{called(blocker)} takes nothing before it"
    return f"{called(blocker)} is {WORDS[kind]}, and what follows a contraction or a pool is elementwise"


@dataclass
class Remarks:
    """The groups of a block, and for each a sentence that names the op at which it ends, and the rule."""

    graph: FusionGraph
    groups: Sequence[PlannedGroup]

    def __post_init__(self) -> None:
        self._group_of = {op: group for group in self.groups for op in group.members}

    def of(self, group: PlannedGroup) -> str:
        """Why a group is not larger."""
        stop, end, ops = group.stop, group.end, self.graph.ops
        toward = "" if stop.toward is None else called(ops[stop.toward])
        blocker = end if stop.blocker is None else ops[stop.blocker]
        match stop.rule:
            case Rule.ESCAPES:
                outside = [op for op in _readers(end) if op not in ops]
                return "the function returns it" if outside[0].name == "func.return" else f"{outside[0].name} reads it"
            case Rule.UNUSED:
                return "nothing reads it"
            case Rule.OPAQUE:
                return f"{called(end)} is opaque"
            case Rule.NO_JOIN:
                return f"{' and '.join(called(op) for op in _readers(end)[:2])} read it and do not meet again"
            case Rule.REDUCTION:
                return f"{toward} follows a reduction"
            case Rule.EDGE:
                return _reading(blocker)
            case Rule.ANCHORS | Rule.PATH:
                way = "" if stop.blocker == stop.toward else f", on the way to {toward},"
                return f"{called(blocker)}{way} {self._obstacle(blocker)}"
            case Rule.TUPLE:
                return f"{toward} joins it to the results of other kernels"
            case Rule.TOO_MANY_OPS:
                return f"with {toward} it would have too many ops"
            case Rule.TOO_MANY_ARGUMENTS:
                return f"with {toward} it would read too many values"
            case Rule.VETO:
                return f"not with {toward}: {stop.words}"

    def _obstacle(self, blocker: Operation) -> str:
        """Why an op, or the kernel that it is in, takes no part."""
        group = self._group_of.get(blocker)
        hardest = max(group.members, key=lambda op: pattern_kind(op).level) if group is not None else blocker
        if hardest is not blocker:
            return f"is in the kernel of {called(hardest)}"
        kind = pattern_kind(blocker)
        if kind == PatternKind.REDUCTION:
            return "is a reduction, which takes only elementwise and broadcasting ops"
        return f"is {WORDS[kind]} and takes nothing before it"
