# SPDX-License-Identifier: Apache-2.0
"""A text of IR in an editor: what is wrong with it, what its names are, and what is known of buffers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import prod

from xdsl.dialects.builtin import MemRefType, ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, BlockArgument, Dialect, Operation, OpResult, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.traits import IsolatedFromAbove, SymbolUserOpInterface
from xdsl.utils.hints import isa

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import ScopeOp, find_target
from penstock.dialects.mem import RingOp, RingType, ScopedAllocation, element_bytes, span_in_bytes
from penstock.dialects.verification import find_invalid
from penstock.lowering.from_text import SourceText
from penstock.lowering.text_index import index_text
from penstock.lowering.text_places import Extent, NamedPlace
from penstock.passes.analysis.memory.liveness import Allocation, Liveness
from penstock.runtime.pass_manager import fewer_collections, verify
from penstock.runtime.weights import open_weights
from penstock.tools.lsp.documents import Completion, Faults, Hover, Kind, Lines, Location, Problem, Symbol
from penstock.tools.markdown import block, code, page, reflowed, summary
from penstock.tools.op_documentation import op_strings, op_table

_STRING = re.compile(r'"([^"\n]*)"')
_BEGINNING = re.compile(r'(?:^|=)\s*"?$')
"""What stands on a line before the name of an operation."""
_OP_NAME = re.compile(r'(?:^|=)\s*"?([a-z_]\w*(?:\.[\w$]+)+)', re.MULTILINE)
_KEYWORD = re.compile(r"`([a-z_]\w+)`")


class IrText:
    """A text of IR, read to its end and verified as far as it could be read."""

    def __init__(self, path: str, text: str):
        self.text = text
        self._path = path
        self._lines = Lines(text)
        self._ctx = make_context()
        with fewer_collections():
            self._index = index_text(self._ctx, SourceText(path, text))
            self.problems: Sequence[Problem] = (*self._faults(), *self._invalid())
        self._liveness: dict[FuncOp, Liveness] = {}

    @property
    def _module(self) -> ModuleOp:
        return self._index.parsed.module

    def _faults(self) -> Iterator[Problem]:
        for fault in self._index.faults:
            related = tuple((Location(extent), message) for extent, message in fault.related)
            yield Problem(fault.extent, "\n".join([fault.message, *(f"note: {each}" for each in fault.notes)]), related)

    def _invalid(self) -> Iterator[Problem]:
        """What does not verify: of a text with faults, in the functions that have none."""
        index = self._index
        heads = {index.source.place(each.extent.start): self._lines.head(each.extent) for each in index.ops}
        faults = Faults(index.source.name, self._lines, heads)
        if index.faults:
            places = {each.op: each.extent for each in index.ops}
            for op in self._module.ops:
                extent = places[op]
                if not op.has_trait(IsolatedFromAbove) or any(extent.holds(each.extent.start) for each in index.faults):
                    continue
                found = find_invalid(op)
                # What it refers to may be among what could not be read.
                if found is not None and (found[0] is None or not found[0].has_trait(SymbolUserOpInterface)):
                    culprit, message, notes = found
                    loc = index.parsed.place_of(culprit or op)
                    yield faults.problem(UserError(message, loc=loc, notes=notes))
            return
        try:
            verify(self._module, index.parsed)
            open_weights(self._ctx, index.parsed, self._path)
        except UserError as error:
            for each in (error, *error.others):
                yield faults.problem(each)

    # names

    def hover(self, position: int) -> Hover | None:
        index = self._index
        if (place := index.at(position)) is not None:
            match place.named:
                case SSAValue():
                    return Hover(place.extent, self._of_value(place))
                case Block():
                    return Hover(place.extent, self._of_block(place.named))
                case Operation():
                    found = index.place_of(place.named)
                    head = "" if found is None else self._text_of(self._lines.head(found.extent))
                    return Hover(place.extent, page(block(head, "mlir"), [_first_words(type(place.named))]))
                case _:
                    value = f"{place.named} = {index.aliases.get(place.named)}"
                    return Hover(place.extent, page(block(value, "mlir")))
        for extent, kind in index.op_names.items():
            if extent.holds(position):
                return Hover(extent, op_page(kind))
        if (scope := self._scope_at(position)) is not None:
            extent, op = scope
            size = f"{op.size_bytes:,} bytes, granule {op.granule_bytes}"
            found = index.place_of(op)
            head = str(op.sym_name.data) if found is None else self._text_of(self._lines.head(found.extent))
            return Hover(extent, page(block(head, "mlir"), [f"A scope of the machine: {size}."]))
        return None

    def definitions(self, position: int) -> Sequence[Location]:
        if (place := self._index.at(position)) is not None:
            return [Location(each.extent) for each in self._index.places(place.named) if each.is_definition]
        if (scope := self._scope_at(position)) is not None:
            return [Location(each.extent) for each in self._index.places(scope[1]) if each.is_definition]
        return []

    def occurrences(self, position: int) -> Sequence[tuple[Extent, bool]]:
        place = self._index.at(position)
        found = [] if place is None else self._index.places(place.named)
        return [(each.extent, each.is_definition) for each in found]

    def symbols(self) -> Sequence[Symbol]:
        named = {each.named: each.extent for each in self._index.names if each.is_definition}
        found: list[tuple[Operation, Symbol]] = []
        # What an operation holds stands before it.
        for place in self._index.ops:
            if (name := named.get(place.op)) is None:
                continue
            children = [each for op, each in found if place.op.is_ancestor(op)]
            found = [(op, each) for op, each in found if not place.op.is_ancestor(op)]
            kind = Kind.FUNCTION if isinstance(place.op, FuncOp) else Kind.PART
            detail = str(place.op.function_type) if isinstance(place.op, FuncOp) else place.op.name
            text = self._text_of(name)
            symbol = Symbol(text.lstrip("@").strip('"'), kind, place.extent, name, detail, tuple(children))
            found.append((place.op, symbol))
        return sorted((each for _, each in found), key=lambda each: each.extent)

    def names_before(self, position: int, sign: str) -> Iterator[Completion]:
        """The names that begin with a sign: values that are defined before a position, and all others."""
        seen = set[str]()
        for each in self._index.names:
            text = self._text_of(each.extent)
            if not each.is_definition or not text.startswith(sign) or text in seen:
                continue
            if isinstance(each.named, SSAValue) and each.extent.start >= position:
                continue
            seen.add(text)
            detail = str(each.named.type) if isinstance(each.named, SSAValue) else ""
            kind = Kind.VARIABLE if sign == "%" else Kind.FUNCTION if sign == "@" else Kind.CONSTANT
            yield Completion(text, kind, detail)

    def _text_of(self, extent: Extent) -> str:
        return self.text[extent.start : extent.end]

    # values

    def _of_value(self, place: NamedPlace) -> str:
        value = place.named
        assert isinstance(value, SSAValue)
        if place.index and isinstance(value, OpResult):
            value = value.op.results[place.index]
        places = self._index.places(place.named)
        uses = [each for each in places if not each.is_definition and each.index == place.index]
        lines: list[str] = [self._origin(value)]
        if (size := bytes_of(value.type)) is not None:
            lines.append(f"- {size:,} bytes")
        lines += self._of_buffer(value)
        if uses:
            numbers = [self._lines.line_of(each.extent.start) + 1 for each in uses]
            span = f"line {numbers[0]}" if numbers[0] == numbers[-1] else f"lines {numbers[0]} to {numbers[-1]}"
            lines.append(f"- used {len(uses)} time{'s' if len(uses) > 1 else ''}, {span}")
        else:
            lines.append("- not used")
        name = self._text_of(place.extent) + (f"#{place.index}" if place.index else "")
        return page(block(f"{name} : {value.type}", "mlir"), lines)

    def _origin(self, value: SSAValue) -> str:
        if isinstance(value, BlockArgument):
            around = value.block.parent_op()
            of = "a block" if around is None else code(around.name)
            return f"- argument {value.index} of {of}"
        assert isinstance(value, OpResult)
        number = f"result {value.index} of " if len(value.op.results) > 1 else "result of "
        return f"- {number}{code(value.op.name)}"

    def _of_buffer(self, value: SSAValue) -> Iterator[str]:
        op = value.owner
        if not isinstance(op, Allocation):
            return
        if isinstance(op, ScopedAllocation):
            scope = op.scope or "off chip"
            # An op that does not verify may have no size.
            with suppress(ValueError):
                offset = "no offset yet" if op.byte_range is None else "bytes {} to {}".format(*op.byte_range)
                yield f"- in `{scope}`: {offset}" if op.scope else f"- {scope}: {offset}"
        if isinstance(op, RingOp):
            yield f"- {op.slot_count} slots"
        if self.problems:
            return
        function: Operation | None = op
        while function is not None and not isinstance(function, FuncOp):
            function = function.parent_op()
        if function is None:
            return
        liveness = self._liveness.get(function)
        if liveness is None:
            liveness = self._liveness[function] = Liveness(function)
        try:
            intervals = liveness.lifetime(value)
        except UserError as error:
            yield f"- {error.message}"
            return
        for first, last in intervals:
            ends = [self._step(liveness.op_at(step)) for step in (first, last - 1)]
            yield f"- alive in steps {first} to {last - 1}: from {ends[0]} to {ends[1]}"

    def _step(self, op: Operation) -> str:
        place = self._index.place_of(op)
        line = "" if place is None else f" of line {self._lines.line_of(place.extent.start) + 1}"
        return f"{code(op.name)}{line}"

    def _of_block(self, found: Block) -> str:
        arguments = ", ".join(str(each.type) for each in found.args)
        places = self._index.places(found)
        comes = sum(not each.is_definition for each in places)
        name = self._text_of(places[0].extent)
        text = f"{name}({arguments})" if arguments else name
        return page(block(f"{text}:", "mlir"), [f"A block, which {comes} operations lead to."])

    def _scope_at(self, position: int) -> tuple[Extent, ScopeOp] | None:
        """The scope of the machine that a string in a type names."""
        line = self._lines.line_of(position)
        start, end = self._lines.start_of(line), self._lines.end_of(line)
        for found in _STRING.finditer(self.text, start, end):
            if not Extent(*found.span()).holds(position) or not self.text[start : found.start()].rstrip().endswith(","):
                continue
            target = find_target(self._module)
            scope = None if target is None else target.scopes().get(found[1])
            return None if scope is None else (Extent(*found.span()), scope)
        return None


def bytes_of(type: Attribute) -> int | None:
    """The bytes of a static value; None where they are not known."""
    try:
        if isinstance(type, RingType):
            return None
        if isa(type, MemRefType):
            return span_in_bytes(type) if type.has_static_shape() else None
        if isa(type, TensorType) and type.has_static_shape():
            return prod(type.get_shape()) * element_bytes(type)
    except ValueError:
        pass
    return None


# the documentation of operations


def op_page(kind: type[Operation]) -> str:
    """What an operation is, as Markdown: its docstring, its form, and its operands, properties and results."""
    form: list[str] = []
    rows: list[str] = []
    if issubclass(kind, IRDLOperation):
        definition = kind.get_irdl_definition()
        if definition.assembly_format is not None:
            form = block(f"{kind.name} {definition.assembly_format}", "text")
        rows = op_table(kind)
    return page([f"**{code(kind.name)}**"], reflowed(_docstring(kind)), form, rows)


def _first_words(kind: type[Operation]) -> str:
    words = summary(_docstring(kind))
    return f"{code(kind.name)}{': ' + words if words else ''}"


def _docstring(kind: type[Operation]) -> str:
    return vars(kind).get("__doc__") or ""


def complete_ir(text: str, position: int, latest: IrText | None) -> Sequence[Completion]:
    """What may stand where a word ends; names are those of the text as it was read last."""
    start = text.rfind("\n", 0, position) + 1
    line = text[start:position]
    found = re.search(r"[%@#!^]?[\w$.-]*$", line)
    word = "" if found is None else found[0]
    if word[:1] in tuple("%@#^"):
        return [] if latest is None else list(latest.names_before(position, word[0]))
    before = line[: len(line) - len(word)]
    if word.startswith("!"):
        return list(_types())
    if _BEGINNING.search(before):
        return list(_operations(word))
    names = list(_OP_NAME.finditer(text, text.rfind("\n\n", 0, start) + 1, position))
    return list(_words(names[-1][1])) if names else []


def _operations(word: str) -> Iterator[Completion]:
    ctx = make_context()
    name, dot, _ = word.partition(".")
    if not dot:
        yield from (Completion(each, Kind.MODULE, "dialect") for each in sorted(ctx.registered_dialect_names))
        return
    dialect = _dialect(name)
    for op in sorted(() if dialect is None else dialect.operations, key=lambda op: op.name):
        yield Completion(op.name, Kind.OPERATION, summary(_docstring(op)), op_page(op))


def _dialect(name: str) -> Dialect | None:
    # A dialect of an installed package may not load.
    with suppress(Exception):
        return make_context().get_optional_dialect(name)
    return None


def _types() -> Iterator[Completion]:
    for name in ("accel", "mem"):
        dialect = _dialect(name)
        for each in () if dialect is None else dialect.attributes:
            yield Completion(f"!{each.name}", Kind.TYPE, summary(each.__doc__ or ""))


def _words(name: str) -> Iterator[Completion]:
    """The properties and attributes of an operation, and the words of its form."""
    kind = make_context().get_optional_op(name) if _dialect(name.partition(".")[0]) is not None else None
    if kind is None or not issubclass(kind, IRDLOperation):
        return
    definition, strings = kind.get_irdl_definition(), op_strings(kind)
    accessors = {stored: accessor for accessor, (stored, _) in definition.accessor_names.items()}
    for each in (*definition.properties, *definition.attributes):
        yield Completion(each, Kind.PROPERTY, strings.get(accessors.get(each, each), ""))
    form = definition.assembly_format
    for word in dict.fromkeys(_KEYWORD.findall(str(form or ""))):
        yield Completion(word, Kind.KEYWORD)
