"""
Locations where xDSL 0.74 loses them, attached to its parser and rewriter when this module is imported: the metadata of
`loc(fused<"m">[...])` is read, and an operation that replaces another in a pattern, and has no location, gets that of
the other. See https://mlir.llvm.org/docs/Dialects/Builtin/#fusedloc
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from xdsl.dialects.builtin import UNKNOWN_LOC, FusedLoc, LocationAttr
from xdsl.ir import Operation, SSAValue
from xdsl.parser import AttrParser
from xdsl.pattern_rewriter import PatternRewriter

_Parse = Callable[[AttrParser], LocationAttr]
_parse_location = cast(_Parse, AttrParser._parse_location)  # pyright: ignore[reportPrivateUsage]
_replace = PatternRewriter.replace


def _parse(self: AttrParser) -> LocationAttr:
    start = self.pos
    if self.parse_optional_keyword("fused") is None or self.parse_optional_punctuation("<") is None:
        self._resume_from(start)  # pyright: ignore[reportPrivateUsage]
        return _parse_location(self)
    metadata = self.parse_attribute()
    self.parse_punctuation(">")
    locations = self.parse_comma_separated_list(self.Delimiter.SQUARE, lambda: _parse(self))
    return FusedLoc(tuple(locations), metadata)


def _replace_located(
    self: PatternRewriter,
    op: Operation,
    new_ops: Operation | Sequence[Operation],
    new_results: Sequence[SSAValue | None] | None = None,
    safe_erase: bool = True,
) -> None:
    for new in (new_ops,) if isinstance(new_ops, Operation) else new_ops:
        if new.location is UNKNOWN_LOC:
            new.location = op.location
    _replace(self, op, new_ops, new_results, safe_erase)


setattr(AttrParser, "_parse_location", _parse)
setattr(PatternRewriter, "replace", _replace_located)
