# SPDX-License-Identifier: Apache-2.0
"""
Locations where xDSL 0.74 loses them, attached to its parser and rewriter when this module is imported: the metadata of
`loc(fused<"m">[...])` is read, an operation that replaces another in a pattern, and has no location, gets that of the
other, and a block argument of a new type keeps its own. See https://mlir.llvm.org/docs/Dialects/Builtin/#fusedloc
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from xdsl.dialects.builtin import UNKNOWN_LOC, FusedLoc, LocationAttr
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.parser import AttrParser
from xdsl.pattern_rewriter import PatternRewriter
from xdsl.rewriter import Rewriter

_Parse = Callable[[AttrParser], LocationAttr]
_parse_location = cast(_Parse, AttrParser._parse_location)  # pyright: ignore[reportPrivateUsage]
_replace = PatternRewriter.replace
_retype = Rewriter.replace_value_with_new_type


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


def _retype_located(val: SSAValue, new_type: Attribute) -> SSAValue:
    new = _retype(val, new_type)
    if isinstance(val, BlockArgument) and isinstance(new, BlockArgument):
        new.location = val.location
    return new


setattr(AttrParser, "_parse_location", _parse)
setattr(PatternRewriter, "replace", _replace_located)
setattr(Rewriter, "replace_value_with_new_type", staticmethod(_retype_located))
