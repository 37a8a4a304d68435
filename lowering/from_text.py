# SPDX-License-Identifier: Apache-2.0
"""The way into the IR from text: xDSL's parser, made to remember and to report where things stand.

xDSL's parser records a location only where the text says `loc(...)`, reports an undefined value at the end
of the file, and lets verification errors of attributes escape without a place. Here every operation and
every block argument without a `loc` gets the line and column it starts at, and so does a name, `loc("conv1")`;
what the text implies has the location of what implies it. An undefined value is reported at its first use,
and every fault of the text is one `UserError` with a place.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from xdsl.context import Context
from xdsl.dialect_interfaces.op_asm import OpAsmDialectInterface
from xdsl.dialects.builtin import UNKNOWN_LOC, FileLineColLoc, IntAttr, ModuleOp, NameLoc, NoneAttr, StringAttr
from xdsl.ir import Attribute, AttributeInvT, BlockArgument, Operation, SSAValue
from xdsl.parser import Parser, ParserState, UnresolvedOperand
from xdsl.parser.core import ForwardDeclaredValue
from xdsl.utils.exceptions import MultipleSpansParseError, ParseError, VerifyException
from xdsl.utils.lexer import Input, Position, Span

from penstock.dialects.diagnostics import UserError, did_you_mean, location_of, render_location
from penstock.dialects.locations import inherit_locations
from penstock.lowering.lexer import SourceLexer

_REFUSALS = (VerifyException, ValueError, ArithmeticError, NotImplementedError, RecursionError)
"""What an attribute, a type or a builder raises that refuses its parameters: none knows a place."""
_MALFORMED = (AssertionError, AttributeError, LookupError, TypeError)
"""What xDSL's parsers and builders run into that take for granted what the text has to be; a message would not help."""
_NO_OWNER = "Forward declared values do not have an owner"


@dataclass
class SourceText:
    """A piece of text with its name; `first_line` is the number of its first line in the file it is cut from."""

    name: str
    """The file, as messages name it."""
    text: str
    """The text itself."""
    first_line: int = 1
    """Its first line, as messages count."""
    _starts: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._starts = [0]
        for line in self.text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def line_column(self, position: int) -> tuple[int, int]:
        """The line in the file and the column, both from 1, of an offset into the text."""
        index = max(bisect_right(self._starts, position) - 1, 0)
        return self.first_line + index, position - self._starts[index] + 1

    def place(self, position: int) -> str:
        """`file:line:col` of an offset into the text."""
        line, column = self.line_column(position)
        return f"{self.name}:{line}:{column}"


@dataclass(frozen=True)
class ParsedText:
    """A module and the place in its text where each of its operations started."""

    module: ModuleOp
    """What the text says."""
    places: dict[Operation, str]
    """Only operations whose own location does not say it."""
    resources: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """What the text holds beside the module, the external resources of MLIR: by their owner and their name."""

    def place_of(self, op: Operation) -> str:
        """`file:line:col` of an operation of the text; of one that came later, what its location says."""
        return self.places.get(op) or location_of(op)


@dataclass(frozen=True)
class ForwardUse:
    """The use of a value that the text has not defined before it, and the names that it has."""

    span: Span
    value: SSAValue
    visible: tuple[str, ...]


_OTHER_RESULTS = re.compile(r"Operation has (\d+) results, but was given (\d+) to bind\.")
_SAID_OF_RESULTS = re.compile(r"\bReturns ([^.]*)\.")


class SourceParser(Parser):
    """A parser that gives operations the location they are written at; see the module's docstring."""

    def __init__(
        self, ctx: Context, source: SourceText, positions: bool = True, lexer: SourceLexer | None = None
    ) -> None:
        super().__init__(ctx, "", source.name)
        self._resume_from(ParserState(lexer or SourceLexer(Input(source.text, source.name))))
        self.source = source
        self.positions = positions
        self.places: dict[Operation, str] = {}
        self.resources: dict[str, dict[str, str]] = {}
        self._file = StringAttr(source.name)
        self._numbers: dict[int, IntAttr] = {}
        self._resource_names: dict[tuple[str, str], str] = {}
        self._op_start = 0
        self._forward_uses: list[ForwardUse] = []

    def parse_operation(self) -> Operation:
        start = self._op_start = self.pos
        try:
            op = super().parse_operation()
        except (*_REFUSALS, *_MALFORMED) as error:
            self._refuse(error, start)
        except ParseError as error:
            if (counts := _OTHER_RESULTS.fullmatch(error.msg)) and error.span.start == start:
                self._refuse_names(start, int(counts[1]), int(counts[2]))
            raise
        if not self.positions:
            return op
        if op.location is UNKNOWN_LOC:
            op.location = self._location(*self.source.line_column(start))
        elif isinstance(op.location, NameLoc) and isinstance(op.location.location, NoneAttr):
            op.location = NameLoc(op.location.desc, self._location(*self.source.line_column(start)))
        else:
            self.places[op] = self.source.place(start)
        return op

    def _register_ssa_definition(self, name: str, values: Sequence[SSAValue], span: Span) -> None:
        super()._register_ssa_definition(name, values, span)
        for value in values if self.positions else ():
            if isinstance(value, BlockArgument) and value.location is UNKNOWN_LOC:
                value.location = self._location(*self.source.line_column(span.start))

    def _location(self, line: int, column: int) -> FileLineColLoc:
        """A location in the file; what is equal in several of them is one object, and nothing is verified."""
        found: FileLineColLoc = object.__new__(FileLineColLoc)
        for name, number in (("line", line), ("column", column)):
            if (known := self._numbers.get(number)) is None:
                known = self._numbers[number] = IntAttr(number)
            object.__setattr__(found, name, known)
        object.__setattr__(found, "filename", self._file)
        return found

    def _refuse_names(self, start: Position, results: int, names: int) -> NoReturn:
        """Report that the number of names before an operation, which starts there, is not that of its results."""
        name = re.split(r"[\s(\"]", self.source.text[start:].partition("=")[2].lstrip(' \n\t"'), maxsplit=1)[0]
        error = ParseError(self._spot(start), f"{name} returns {results} values, and {names} are named")
        kind = self.ctx.get_optional_op(name)
        if kind is not None and (said := _SAID_OF_RESULTS.search(kind.__doc__ or "")) is not None:
            error.add_note(f"it returns {' '.join(said[1].split()).replace('those of', 'handles of', 1)}")
        raise error

    def resolve_operand(self, operand: UnresolvedOperand, type: AttributeInvT) -> SSAValue[AttributeInvT]:
        value = super().resolve_operand(operand, type)
        if isinstance(value, ForwardDeclaredValue):
            self._forward_uses.append(ForwardUse(operand.span, value, tuple(self.ssa_values)))
        return value

    def _get_op_by_name(self, name: str) -> type[Operation]:
        found = self.ctx.get_optional_op(name, dialect_stack=self._parser_state.dialect_stack)
        if found is not None:
            return found
        prefixes = [name[: dot.start()] for dot in reversed(list(re.finditer(r"\.", name)))]
        known = [prefix for prefix in prefixes if self.ctx.get_optional_dialect(prefix) is not None]
        dialect_name = known[0] if known else prefixes[-1] if prefixes else ""
        error = ParseError(self._spot(self._op_start), f'the operation "{name}" is not registered')
        if dialect_name and (dialect := self.ctx.get_optional_dialect(dialect_name)) is not None:
            near = did_you_mean(name, [op.name for op in dialect.operations])
        elif dialect_name:
            near = did_you_mean(dialect_name, self.ctx.registered_dialect_names)
        else:
            near = None
        if near:
            error.add_note(near)
        raise error

    def parse_module(self, allow_implicit_module: bool = True) -> ModuleOp:
        try:
            module = super().parse_module(allow_implicit_module)
        except ParseError as error:
            # At the end of the text xDSL lists the names that never were defined: report the first use instead.
            if self.forward_ssa_references and error.msg.startswith("values used but not defined"):
                pending = {id(value) for uses in self.forward_ssa_references.values() for value in uses.values()}
                uses = [use for use in self._forward_uses if id(use.value) in pending]
                raise self._undefined_value(uses) from None
            raise
        except (*_REFUSALS, *_MALFORMED) as error:
            self._refuse(error, self.pos)
        # A block argument of the same name takes a forward reference for its own use, though the operation around it
        # is yet to get it as an operand: an outer value that is missing is then found nowhere else.
        if missing := [use for use in self._forward_uses if use.value.first_use is not None]:
            raise self._undefined_value(missing)
        if module.location is UNKNOWN_LOC and self.positions:
            # The module that the text is without: MLIR too gives it the line 0 of the file.
            module.location = self._location(0, 0)
        inherit_locations(module)
        return module

    def _parse_dialect_resource_handle(self, dialect_name: str, interface: OpAsmDialectInterface) -> str:
        # xDSL calls a resource otherwise where another text has had its name, and then does not know it any more.
        key = self.parse_identifier(" for resource handle")
        if (name := self._resource_names.get((dialect_name, key))) is None:
            name = self._resource_names[dialect_name, key] = interface.declare_resource(key)
        return name

    def _parse_external_resources(self) -> None:
        self.parse_comma_separated_list(self.Delimiter.BRACES, self._parse_owned_resources)

    def _parse_owned_resources(self) -> None:
        owned = self.resources.setdefault(self.parse_identifier(), {})
        self.parse_punctuation(":")

        def parse_resource() -> None:
            name = self.parse_identifier()
            self.parse_punctuation(":")
            value = self.parse_optional_str_literal()
            owned[name] = self.parse_identifier() if value is None else value

        self.parse_comma_separated_list(self.Delimiter.BRACES, parse_resource)

    def _refuse(self, error: Exception, start: Position) -> NoReturn:
        """Give a place to a fault that knows none: where the nearest operation starts."""
        if str(error) == _NO_OWNER and (here := [use for use in self._forward_uses if use.span.start >= start]):
            raise ParseError(here[0].span, f"{here[0].span.text} is used before it is defined") from error
        message = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        if isinstance(error, _MALFORMED) or not message:
            message = "this operation is malformed" + (
                f": {message}" if isinstance(error, AssertionError) and message else ""
            )
        raise ParseError(self._spot(start), message) from error

    def _undefined_value(self, uses: Sequence[ForwardUse]) -> ParseError:
        first = min(uses, key=lambda use: use.span.start)
        error = ParseError(first.span, f"use of the undefined value {first.span.text}")
        if near := did_you_mean(first.span.text, [f"%{name}" for name in first.visible]):
            error.add_note(near)
        return error

    def _spot(self, position: int) -> Span:
        return Span(position, position + 1, self.lexer.input)


def parse_text(ctx: Context, source: SourceText, *, implicit_module: bool = True, positions: bool = True) -> ParsedText:
    """
    Parse the text of a module, with the enclosing `builtin.module`, or, unless there must be one, without it. Where
    positions in the text mean nothing to anybody, what it says of locations is all that there is.

    Raises UserError with `file:line:col` for every fault of the text.
    """
    try:
        parser = SourceParser(ctx, source, positions)
        module = parser.parse_module(implicit_module)
    except ParseError as error:
        if not re.sub(r"//[^\n]*", "", source.text).strip():
            raise UserError("the text holds no operation", loc=source.place(0)) from None
        raise _located(source, error) from error
    except RecursionError:
        raise UserError("the text is nested too deeply", loc=source.name) from None
    return ParsedText(module, parser.places, parser.resources)


def read_text(path: str | Path) -> SourceText:
    """The text of a file; raises UserError if it cannot be read or is not UTF-8."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the file: {error.strerror}", loc=str(path)) from None
    return decode_text(str(path), data)


def decode_text(name: str, data: bytes) -> SourceText:
    """The text in `data`; raises UserError, with the offset, if it is not UTF-8."""
    try:
        return SourceText(name, data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(
            f"not a text file: byte {error.start} is not UTF-8",
            loc=name,
            notes=["an ONNX model is read by `penstock import`"] if name.endswith(".onnx") else (),
        ) from None


def split_text(source: SourceText, mark: str = "// -----") -> Sequence[SourceText]:
    """The pieces of `source` between lines that begin with `mark`, each knowing its place in the file."""
    pieces: list[SourceText] = []
    lines = source.text.splitlines(keepends=True)
    start = 0
    for index, line in enumerate([*lines, mark]):
        if line.startswith(mark):
            text = "".join(lines[start:index])
            pieces.append(replace(source, text=text, first_line=source.first_line + start))
            start = index + 1
    return pieces


def _located(source: SourceText, error: ParseError) -> UserError:
    notes: list[str] = list(getattr(error, "__notes__", ()))
    if isinstance(error, MultipleSpansParseError):
        for span, text in error.refs:
            reason = text or (error.ref_text or "see").removesuffix(":")
            notes.append(f"{source.place(span.start)}: {reason}")
    message = error.msg.strip().rstrip("!")
    return UserError(message, loc=source.place(error.span.start), notes=notes)


def place_in(parsed: ParsedText | None, op: Operation | None) -> str | Attribute | None:
    """Where to report a fault of `op`: its place in the text it was parsed from, else its location."""
    if op is None:
        return None
    if parsed is not None and op in parsed.places:
        return parsed.places[op]
    return render_location(op.location) or location_of(op)
