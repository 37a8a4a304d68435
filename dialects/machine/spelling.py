# SPDX-License-Identifier: Apache-2.0
"""
How the commands of a machine are written for the real one: templates of code, and what must hold where one is used.

A template is text of C in which `{...}` stands for what is known of a command. `{{` and `}}` are braces. A field with
`:N` must fit into N bits, which is checked here as far as the machine says, and of each command when it is written. Of
an operand `a` and a dim `i` of the command,

| field | what it stands for |
|---|---|
| `{a}` | its address: of a scope as `address` of the scope spells it, off chip a pointer, of registers their vector |
| `{a.offset}`, `{a.row}` | where it begins in its scope, in bytes and in granules |
| `{a.column}` | granules from one granule of a row to the next |
| `{a.size}` | the bytes of an element |
| `{a.bytes.i}` | bytes from one index of `i` to the next |
| `{a.rows.i}`, `{a.elements.i}` | the same in granules, and in elements |
| `{i}` | how many indices of `i` the command covers |
| `{imm}` | its immediate |
| `{earlier}` | of one that adds to sums: 0 where it begins them, and overwrites what is there; else not 0 |
| `{s}` | which copy of the state `s` it uses |
| `{id}` | of one that runs on: a variable, which it sets to the number that a wait for it names |
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, StringAttr
from xdsl.ir import Attribute
from xdsl.irdl import opt_prop_def

from penstock.dialects.cpu import FEATURES
from penstock.dialects.diagnostics import did_you_mean, nearest_or_all
from penstock.dialects.machine.part import NamedPart, PartFault

_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_REQUIREMENT = re.compile(r"(\w+\.\w+\.\w+) (?:= (\d+)|>= ([A-Za-z_]\w*))")
_NAME = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)(?::(\d+))?")

STEPS = ("bytes", "rows", "elements")
"""What a step of an operand along a dim is measured in."""
PLACES = ("offset", "row", "column")
"""What there is to say of where an operand is in its scope."""
SIZE = "size"
"""What there is to say of the elements of an operand."""
EARLIER = "earlier"
"""The field of a command that adds to sums which says whether there were additions before."""
ID = "id"
"""The field of a command that runs on, and of a wait for it: the number that it is known by."""
NO_ID = -1
"""The number that no command has, and that is waited for at once."""
COPY = "copy"
"""The field of a state that says which of its copies is set."""
ROWS, COLUMNS = "rows", "columns"
LAYOUTS = (ROWS, COLUMNS)
"""How the granules of a buffer lie in a scope: row by row, or column by column."""
SIDES = ("src", "dst")
"""The operands of a transfer."""
TRANSFER_DIMS = ("rows", "columns")
"""The dims of a transfer: its rows, and the elements of a row."""
ANY = "any"
"""What a field of a state is where a command does not depend on it."""
UNITS = ("bytes", "granules")
"""What the extent of a block may be measured in, besides elements."""


class TemplateFault(Exception):
    """What is wrong with a template, and at which column, from the quote before its text."""

    def __init__(self, message: str, column: int):
        super().__init__(message)
        self.message = message
        self.column = column


@dataclass(frozen=True)
class Field:
    """A place in a template."""

    name: str
    """As it is written, with dots."""
    bits: int | None
    """It must be less than 2 to so many."""
    column: int
    """Where it begins, from the quote before the text; 0 in a text of several lines."""


@dataclass(frozen=True)
class Template:
    """A text with fields in it."""

    parts: tuple[str | Field, ...]

    @staticmethod
    @lru_cache(maxsize=256)
    def of(text: str) -> Template:
        """Read a template; raises TemplateFault."""
        parts: list[str | Field] = []
        end, quote = 0, 0 if "\n" in text else 1
        for match in _FIELD.finditer(text):
            parts.append(text[end : match.start()])
            end = match.end()
            if match[0] in ("{{", "}}"):
                parts.append(match[0][0])
                continue
            named = None if match[1] is None else _NAME.fullmatch(match[1].strip())
            if named is None:
                what = "a brace that is none of a field is written twice" if match[1] is None else "a field is a name"
                raise TemplateFault(f"{what}: {match[0]}", quote and quote + match.start())
            parts.append(Field(named[1], int(named[2]) if named[2] else None, quote and quote + match.start()))
        return Template((*parts, text[end:]))

    @property
    def fields(self) -> tuple[Field, ...]:
        """Its fields, in order."""
        return tuple(part for part in self.parts if isinstance(part, Field))

    @property
    def names(self) -> frozenset[str]:
        """What its fields are called."""
        return frozenset(field.name for field in self.fields)

    def fill(self, values: Mapping[str, str]) -> str:
        """The text with these in place of the fields."""
        return "".join(part if isinstance(part, str) else values[part.name] for part in self.parts)


def template_faults(key: str, attr: StringAttr | None, *inside: str) -> Iterator[PartFault]:
    """What is wrong with the text of a template."""
    if attr is None:
        return
    try:
        Template.of(attr.data)
    except TemplateFault as fault:
        yield PartFault(key, f"{key}: {fault.message}", (), inside, fault.column)


def template_of(attr: StringAttr | None) -> Template | None:
    """The template in a property; None where there is none, or a faulty one."""
    try:
        return None if attr is None else Template.of(attr.data)
    except TemplateFault:
        return None


def unknown_fields(key: str, template: Template | None, known: Collection[str]) -> Iterator[PartFault]:
    """The fields of a template that are none of those it may have."""
    for field in template.fields if template is not None else ():
        if field.name not in known:
            note = nearest_or_all(field.name, known, "its fields") if known else "it has no fields"
            yield PartFault(key, f'{key}: unknown field "{field.name}"', (note,), (), field.column)


@dataclass(frozen=True)
class BlockLimit:
    """The most that a command covers of a dim."""

    count: int
    unit: str | None = None
    """`bytes` or `granules` of the operand in a scope; None for indices."""

    @staticmethod
    def of(attr: Attribute) -> BlockLimit | None:
        """Read a limit: a number, or one with a unit; None for what is none."""
        if isinstance(attr, IntegerAttr):
            return BlockLimit(attr.value.data) if attr.value.data > 0 else None
        found = re.fullmatch(r"(\d+) (\w+)", attr.data) if isinstance(attr, StringAttr) else None
        if found is None or found[2] not in UNITS or int(found[1]) < 1:
            return None
        return BlockLimit(int(found[1]), found[2])

    def elements(self, element_bytes: int, granule: int) -> int:
        """The limit in elements of an operand."""
        size = {None: element_bytes, "bytes": 1, "granules": granule}[self.unit]
        return self.count * size // element_bytes


SPELLING = "(`emit` $emit^)? (`block` $block^)? (`requires` $requires^)? (`settings` $settings^)?"
"""The spelling in the assembly format of a part."""


class SpelledPart(NamedPart):
    """A part that performs commands, and says how they are written."""

    emit = opt_prop_def(StringAttr)
    """A command of it in C: a template, over its operands (of an engine `src` and `dst`), its dims (of an engine `rows`
    and `columns`) and the states that it uses."""
    block = opt_prop_def(DictionaryAttr)
    """The most of a dim that a command covers: `{ rows = 16, columns = "64 bytes" }`, in indices, or in bytes or
    granules of the operand in a scope. What is larger takes a loop of commands."""
    requires = opt_prop_def(ArrayAttr[StringAttr])
    """What steps must be: `["dst.rows.i = 1"]`. A dim whose step is another is taken one index a command. A step that
    must not be less than an extent, `["a.elements.m >= k"]`, is that where a command takes one index of its dim. Of a
    host also the features of the CPU that it is of, as `/proc/cpuinfo` of Linux calls them: `["avx512_vnni"]`."""
    settings = opt_prop_def(DictionaryAttr)
    """The states that a command depends on, with what their fields must be: numbers, or names of fields that are the
    same for all of a command: `{ load = { stride = "src.bytes.rows" } }`."""

    @property
    def template(self) -> Template | None:
        """How a command is written."""
        return template_of(self.emit)

    @property
    def runs_on(self) -> bool:
        """Whether a command may not be complete when its code has been executed, and has a number to wait for."""
        template = self.template
        return template is not None and ID in template.names

    @property
    def block_limits(self) -> dict[str, BlockLimit]:
        """The most of each dim that a command covers, where it is said."""
        pairs = () if self.block is None else self.block.data.items()
        return {dim: limit for dim, attr in pairs if (limit := BlockLimit.of(attr)) is not None}

    @property
    def required(self) -> dict[str, int | str]:
        """What steps must be, by the names of their fields: a number, or at least the extent of a dim."""
        texts = () if self.requires is None else self.requires.data
        found = (_REQUIREMENT.fullmatch(each.data) for each in texts)
        return {match[1]: match[3] or int(match[2]) for match in found if match is not None}

    @property
    def features(self) -> tuple[str, ...]:
        """The features of the CPU that it needs."""
        return tuple(each.data for each in self.requires or () if each.data in FEATURES.values())

    @property
    def needed(self) -> dict[str, dict[str, int | str]]:
        """The states that a command depends on: of each field the number, or the name of a field of the command."""
        found: dict[str, dict[str, int | str]] = {}
        for state, table in () if self.settings is None else self.settings.data.items():
            fields = found.setdefault(state, {})
            for name, attr in table.data.items() if isinstance(table, DictionaryAttr) else ():
                match attr:
                    case IntegerAttr():
                        fields[name] = attr.value.data
                    case StringAttr():
                        fields[name] = attr.data
                    case _:
                        pass
        return found

    @property
    def fields_used(self) -> frozenset[str]:
        """The fields of a command that something depends on."""
        template = self.template
        named = {value for table in self.needed.values() for value in table.values() if isinstance(value, str)}
        return frozenset({*named, *self.required, *(template.names if template is not None else ())})

    def spelling_faults(self) -> Iterator[PartFault]:
        """What is wrong with the spelling, taken alone."""
        yield from template_faults("emit", self.emit)
        for key in ("block", "requires", "settings"):
            if self.emit is None and key in self.properties:
                yield PartFault(key, f"{key} has no meaning without emit")
        for place, attr in enumerate(() if self.requires is None else self.requires):
            if _REQUIREMENT.fullmatch(attr.data) is None and attr.data not in FEATURES.values():
                message = f'a requirement reads like "dst.rows.i = 1", or is a feature of a CPU, not "{attr.data}"'
                near = did_you_mean(attr.data, FEATURES.values())
                yield PartFault("requires", message, (near,) if near else (), (place,))
        for dim, attr in () if self.block is None else self.block.data.items():
            if BlockLimit.of(attr) is None:
                message = f'the block of "{dim}" is a number, or one in bytes or granules, as "64 bytes"'
                yield PartFault("block", message, (), (dim,))
