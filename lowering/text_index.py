# SPDX-License-Identifier: Apache-2.0
"""A text of IR as an editor sees it: read to its end whatever is wrong with it, with the place of every name."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Attribute, Operation
from xdsl.traits import SymbolTable

from penstock.lowering.from_text import ParsedText, SourceText
from penstock.lowering.recovering_parser import RecoveringParser
from penstock.lowering.text_places import Extent, Named, NamedPlace, OpPlace, TextFault


@dataclass
class TextIndex:
    """What a text holds, and where."""

    source: SourceText
    parsed: ParsedText
    """What could be read; it need not verify."""
    faults: list[TextFault]
    """Of the text alone; nothing has been verified."""
    names: list[NamedPlace]
    """In the order of the text; only where a name is known to stand for something."""
    ops: list[OpPlace]
    """Those that could be read, each behind what it holds."""
    op_names: dict[Extent, type[Operation]]
    """Where kinds of operations are named."""
    aliases: dict[str, Attribute]
    _by_named: dict[int, list[NamedPlace]] = field(init=False, repr=False)
    _starts: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._by_named = {}
        self._starts = [each.extent.start for each in self.names]
        for each in self.names:
            self._by_named.setdefault(_key(each.named), []).append(each)

    def at(self, position: int) -> NamedPlace | None:
        """The name at a position."""
        for place in self.names[max(bisect_right(self._starts, position) - 1, 0) :: -1][:2]:
            if place.extent.holds(position):
                return place
        return None

    def places(self, named: Named) -> list[NamedPlace]:
        """Every occurrence of a name of what it stands for."""
        return self._by_named.get(_key(named), [])

    def op_at(self, position: int) -> OpPlace | None:
        """The innermost operation around a position."""
        around = [each for each in self.ops if each.extent.holds(position)]
        return min(around, key=lambda each: each.extent.end - each.extent.start, default=None)

    def place_of(self, op: Operation) -> OpPlace | None:
        """Where an operation stands."""
        return next((each for each in self.ops if each.op is op), None)


def _key(named: Named) -> int:
    return hash(named) if isinstance(named, str) else id(named)


def index_text(ctx: Context, source: SourceText) -> TextIndex:
    """Read a text to its end; nothing that is wrong with it raises."""
    parser = RecoveringParser(ctx, source)
    module = parser.read()
    names = {each.extent: each for each in (*parser.names(), *parser.alias_places())}
    for each in _symbol_places(parser, source, module):
        # What defines a symbol may have no other name in the text than that of its operation.
        if each.is_definition or each.extent not in names:
            names[each.extent] = each
    return TextIndex(
        source,
        ParsedText(module, parser.places, parser.resources),
        sorted(parser.faults, key=lambda fault: fault.extent),
        sorted(names.values(), key=lambda each: each.extent),
        parser.ops,
        parser.op_names,
        parser.attribute_aliases,
    )


def _symbol_places(parser: RecoveringParser, source: SourceText, module: ModuleOp) -> Iterator[NamedPlace]:
    """Where symbols are defined and named."""
    tables = _SymbolTables(module)
    heads = {each.op: each.extent.start for each in parser.ops}
    named = set[Operation]()
    for op, references in parser.symbol_references:
        for extents in references:
            path = [_symbol(source.text[extent.start : extent.end]) for extent in extents]
            if op not in named and _defines(op) == path[0] and len(path) == 1:
                named.add(op)
                yield NamedPlace(extents[0], op, True)
                continue
            for extent, found in zip(extents, tables.resolve(op, path), strict=False):
                yield NamedPlace(extent, found)
    kinds = {extent.start: extent for extent in parser.op_names}
    starts = sorted(kinds)
    for op, start in heads.items():
        if op not in named and _defines(op) is not None:
            at = bisect_right(starts, start - 1)
            if at < len(starts):
                yield NamedPlace(kinds[starts[at]], op, True)


class _SymbolTables:
    """The symbols of a module, table by table."""

    def __init__(self, module: ModuleOp):
        self._module = module
        self._tables: dict[Operation, dict[str, Operation]] = {}

    def resolve(self, op: Operation, path: Sequence[str]) -> list[Operation]:
        """The operations that a reference in `op` names, from its root on, as far as they are there."""
        around = op.parent_op()
        first: Operation | None = None
        while around is not None and first is None:
            first = self._symbols(around).get(path[0])
            around = around.parent_op()
        first = first or self._symbols(self._module).get(path[0])
        found = [] if first is None else [first]
        for name in path[1:]:
            inner = self._symbols(found[-1]).get(name) if found else None
            if inner is None:
                break
            found.append(inner)
        return found

    def _symbols(self, table: Operation) -> dict[str, Operation]:
        if table not in self._tables:
            ops = [op for region in table.regions for block in region.blocks for op in block.ops]
            named = {name: op for op in reversed(ops) if (name := _defines(op)) is not None}
            self._tables[table] = named if table is self._module or table.has_trait(SymbolTable) else {}
        return self._tables[table]


def _defines(op: Operation) -> str | None:
    """The symbol that an operation defines."""
    name = op.properties.get("sym_name") or op.attributes.get("sym_name")
    return name.data if isinstance(name, StringAttr) else None


def _symbol(text: str) -> str:
    """The name that a reference is, without what begins it."""
    return text[1:].strip('"')
