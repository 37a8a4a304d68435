# SPDX-License-Identifier: Apache-2.0
"""
Numbers of a machine that are set for one run: `scope.spad.size=64K` stands in front of what the machine's file says.

A path follows the tables of the file: the kind of a part, its name (of a queue the two units: `queue.load.compute`), a
key, and where the value of that is a table again, a key of it: `intrinsic.gemm.shape.m`. `machine.freq_mhz` is of the
machine itself. A value is as TOML has it, a number of bytes such as `64K`, or a word, which is a string. It is checked
as if it stood in the file.
"""

from __future__ import annotations

import re
import tomllib
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from penstock.dialects.byte_sizes import read_byte_size
from penstock.dialects.diagnostics import UserError, nearest_or_all
from penstock.lowering.machine_keys import ASSUMED, COVERS, PART_KINDS, is_number
from penstock.lowering.toml_positions import Position, Positions

OPTION = "--set"
"""The file name under which places in options are reported; the line is the number of the option."""

_FIXED = ("name", "remove", *COVERS)
"""The keys of a part that say which it is, and where its numbers come from."""
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")

Table = Mapping[str, object]


@dataclass(frozen=True)
class _Step:
    """A word of a path."""

    word: str
    place: Position


def with_options(document: Table, positions: Positions, options: Mapping[str, object]) -> dict[str, object]:
    """
    The document of a machine file with what `options` sets, by path; a string is read as a value is written.

    The places of what is set are brought into `positions`. Raises UserError for a table, a part or a value that does
    not exist; whether the keys exist and the values fit is checked with the document.
    """
    changed: dict[str, object] = dict(document)
    for line, (text, given) in enumerate(options.items(), start=1):
        steps = list(_steps(text, line))
        place = Position(-1, OPTION, line, len(text) + 2)
        value = _read_value(given, place) if isinstance(given, str) else given
        kind = steps[0].word
        if kind not in changed or kind not in ("machine", *PART_KINDS):
            known = [name for name in ("machine", *PART_KINDS) if name in changed]
            raise UserError(
                f'there is no table "{kind}"', loc=str(steps[0].place), notes=[nearest_or_all(kind, known, "tables")]
            )
        if len(steps) == 1:
            path_to_key = "machine.KEY" if kind == "machine" else f"{kind}.NAME.KEY"
            raise UserError(f"a whole {kind} cannot be set", loc=str(place), notes=[f"write {path_to_key}=VALUE"])
        path: list[str | int] = [kind]
        changed[kind] = _set(changed[kind], steps, 1, path, value)
        for places in (positions.keys, positions.values):
            for inside in [each for each in places if each[: len(path)] == tuple(path)]:
                del places[inside]
        positions.keys[tuple(path)] = steps[-1].place
        positions.values[tuple(path)] = place
    return changed


def _steps(text: str, line: int) -> Iterator[_Step]:
    column = 1
    for word in text.split("."):
        place = Position(-1, OPTION, line, column + len(word) - len(word.lstrip()))
        if not word.strip():
            raise UserError(
                "a name is missing here", loc=str(place), notes=["write KIND.NAME.KEY=VALUE, as scope.spad.size=64K"]
            )
        yield _Step(word.strip(), place)
        column += len(word) + 1


def _read_value(text: str, place: Position) -> object:
    """The value that a text is; raises UserError for what is none."""
    text = text.strip()
    if (size := read_byte_size(text)) is not None:
        return size
    if _WORD.fullmatch(text) and text not in ("true", "false", "inf", "nan"):
        return text
    try:
        (value,) = tomllib.loads(f"value = {text}").values()
    except (ValueError, RecursionError):
        notes = ["a value is a number, as 65536 or 64K, a word, or what TOML has"]
        raise UserError(f'"{text}" is no value', loc=str(place), notes=notes) from None
    return value


def _set(old: object, steps: Sequence[_Step], at: int, path: list[str | int], value: object) -> object:
    """`old`, which the first `at` steps lead to, with the value set at the end of the path, which is completed."""
    if at == len(steps):
        return _with_origin(value, path)
    step = steps[at]
    if isinstance(old, list) and all(isinstance(each, Mapping | None) for each in cast(list[object], old)):
        tables = cast(list[object], old)
        index, used = _named(tables, steps, at)
        path.append(index)
        if at + used == len(steps):
            end = steps[-1].place._replace(column=steps[-1].place.column + len(steps[-1].word))
            message = f'which key of the {steps[0].word} "{step.word}" is set?'
            keys = [key for key in cast(Table, tables[index]) if key not in ("name", *COVERS)]
            raise UserError(message, loc=str(end), notes=[f"keys: {', '.join(keys)}"])
        return [
            _set(each, steps, at + used, path, value) if number == index else each for number, each in enumerate(tables)
        ]
    if not isinstance(old, Mapping) or "value" in old:
        raise UserError(f'"{steps[at - 1].word}" is no table', loc=str(step.place))
    table = cast(Table, old)
    if step.word in _FIXED and at == len(steps) - 1 and steps[0].word != "machine":
        raise UserError(f'"{step.word}" cannot be set: it is no property of a part', loc=str(step.place))
    path.append(step.word)
    new = _set(table.get(step.word, {}), steps, at + 1, path, value)
    # In a table over that of a base, each keeps where its numbers come from.
    maps = table.maps if isinstance(table, ChainMap) else [table]
    holder = next((number for number, each in enumerate(maps) if step.word in each), len(maps) - 1)
    changed = [{**each, step.word: new} if number == holder else {**each} for number, each in enumerate(maps)]
    return ChainMap(*changed) if len(changed) > 1 else changed[0]


def _named(tables: Sequence[object], steps: Sequence[_Step], at: int) -> tuple[int, int]:
    """The table that the next steps name, by its index, and how many they are."""
    kind, step = steps[0].word, steps[at]
    names: list[tuple[object, ...]] = []
    for table in tables:
        entries = cast(Table, table or {})  # a part of the base may be removed
        names.append((entries["name"],) if "name" in entries else (entries.get("from"), entries.get("to")))
    for index, name in enumerate(names):
        if name == tuple(each.word for each in steps[at : at + len(name)]):
            return index, len(name)
    known = [".".join(str(word) for word in name) for name in names if None not in name]
    given = ".".join(each.word for each in steps[at:-1] or steps[at:]) if kind == "queue" else step.word
    message = f'there is no {kind} "{given}"' if at == 1 else f'there is no "{given}" in {steps[at - 1].word}'
    raise UserError(message, loc=str(step.place), notes=[nearest_or_all(given, known, "there are")])


def _with_origin(value: object, path: Sequence[str | int]) -> object:
    """The value, with what says that it has no source where it is a number, which needs one."""
    if not is_number(str(path[0]), [str(step) for step in path if isinstance(step, str)][1:]):
        return value
    if isinstance(value, Mapping):
        entries = cast(Table, value)
        if "value" in entries:
            return entries if any(key in entries for key in COVERS) else {**entries, ASSUMED: True}
        return {key: _with_origin(each, [*path, key]) for key, each in entries.items()}
    return {"value": value, ASSUMED: True, "derived": OPTION}
