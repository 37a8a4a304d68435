"""
The text of `linalg.generic`: what xDSL 0.74 lacks, attached to its class when this module is imported.

xDSL prints the types of several results in parentheses, as MLIR does, and reads them without; it asserts what
attributes are, and drops those of the first dictionary that it does not know. Here what is printed is read, types with
or without parentheses, and every fault has a place. See https://mlir.llvm.org/docs/Dialects/Linalg/#linalggeneric
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, StringAttr
from xdsl.dialects.linalg import Linalg
from xdsl.dialects.linalg.attrs import IteratorType, IteratorTypeAttr
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, SSAValue
from xdsl.parser import Parser
from xdsl.utils.hints import isa


def _iterator(parser: Parser, attribute: Attribute, start: int) -> IteratorTypeAttr:
    if isinstance(attribute, IteratorTypeAttr):
        return attribute
    kinds = {str(kind): kind for kind in IteratorType}
    if isinstance(attribute, StringAttr) and attribute.data in kinds:
        return IteratorTypeAttr(kinds[attribute.data])
    parser.raise_error(f"an iterator type is one of {', '.join(kinds)}, not {attribute}", start, start + 1)


def _operands(parser: Parser, keyword: str) -> Sequence[SSAValue]:
    """The operands `keyword(%a, %b : t, t)`, if the keyword is there."""
    if parser.parse_optional_keyword(keyword) is None:
        return ()
    with parser.in_parens():
        if parser.parse_optional_punctuation(":") is not None:
            return ()
        names = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        parser.parse_punctuation(":")
        start = parser.pos
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    return parser.resolve_operands(names, types, start)


def _results(parser: Parser) -> Sequence[Attribute]:
    if parser.parse_optional_punctuation("->") is None:
        return ()
    listed = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
    if listed is not None:
        return listed
    return parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)


def _parse(cls: type[GenericOp], parser: Parser) -> GenericOp:
    start = parser.pos
    traits = parser.parse_optional_attr_dict()
    maps, iterators = traits.pop("indexing_maps", None), traits.pop("iterator_types", None)
    doc, library_call = traits.pop("doc", None), traits.pop("library_call", None)
    if not isa(maps, ArrayAttr[AffineMapAttr]):
        parser.raise_error("expected indexing_maps, a list of affine maps", start, parser.pos)
    if not isa(iterators, ArrayAttr):
        parser.raise_error("expected iterator_types, a list of strings", start, parser.pos)
    if not isinstance(doc, StringAttr | None) or not isinstance(library_call, StringAttr | None):
        parser.raise_error("doc and library_call are strings", start, parser.pos)
    kinds = [_iterator(parser, iterator, start) for iterator in iterators]
    inputs, outputs = _operands(parser, "ins"), _operands(parser, "outs")
    if parser.parse_optional_keyword("attrs") is not None:
        parser.parse_punctuation("=")
        traits |= parser.parse_optional_attr_dict()
    body = parser.parse_region()
    op = cls(inputs, outputs, body, maps, kinds, _results(parser), doc, library_call)
    op.attributes |= traits
    return op


setattr(GenericOp, "parse", classmethod(_parse))

DIALECT = Linalg
