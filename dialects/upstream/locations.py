"""
Locations in text: what xDSL 0.74 does not read, attached to its parser when this module is imported: the metadata of
`loc(fused<"m">[...])`. See https://mlir.llvm.org/docs/Dialects/Builtin/#fusedloc
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from xdsl.dialects.builtin import FusedLoc, LocationAttr
from xdsl.parser import AttrParser

_Parse = Callable[[AttrParser], LocationAttr]
_parse_location = cast(_Parse, AttrParser._parse_location)  # pyright: ignore[reportPrivateUsage]


def _parse(self: AttrParser) -> LocationAttr:
    start = self.pos
    if self.parse_optional_keyword("fused") is None or self.parse_optional_punctuation("<") is None:
        self._resume_from(start)  # pyright: ignore[reportPrivateUsage]
        return _parse_location(self)
    metadata = self.parse_attribute()
    self.parse_punctuation(">")
    locations = self.parse_comma_separated_list(self.Delimiter.SQUARE, lambda: _parse(self))
    return FusedLoc(tuple(locations), metadata)


setattr(AttrParser, "_parse_location", _parse)
