# SPDX-License-Identifier: Apache-2.0
"""
Families of parts in a machine file: `template`, what parts have in common, and `each`, one table for several parts.

`[template.NAME]` has keys of the parts that say `template = "NAME"`; it may have a template itself. A table with
`each`, a list of tables, stands for as many parts, in its place: the table with the keys of one of them. Its own keys
stand in front of those of its template, and a `source` or `assumed` covers the numbers beside it.

```toml
[[intrinsic]]
template = "lanes"
behaviour = "y[n] = x[n] $op z[n]"
each = [{ name = "add", op = "+" }, { name = "sub", op = "-" }]
```

In such a part `$key` in a string is what the part has for the key, `${key}` where a letter or digit follows, and `$$`
is `$`. A string that is nothing else may become a number or a list. A key that only strings ask for is not of the part.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from penstock.dialects.diagnostics import UserError, nearest_or_all
from penstock.lowering.toml_positions import Path, Position, Positions

TEMPLATE = "template"
EACH = "each"
_FIELD = re.compile(r"\$(?:(?P<escape>\$)|(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*)\})")

Table = Mapping[str, object]


@dataclass(frozen=True)
class _Layer:
    """Keys of a part, and where they stand."""

    keys: Table
    positions: Positions
    path: Path

    def place(self, *steps: str | int) -> str:
        return str(self.positions.value((*self.path, *steps)))


def with_families(
    document: Mapping[str, object],
    positions: Positions,
    kinds: Mapping[str, Collection[str]],
    base: Mapping[str, object],
    base_positions: Positions,
) -> dict[str, object]:
    """
    The document in which each part is a table of its own, its places brought up to date. `kinds` are those of which
    there may be several, with the keys of each; templates may be of the `base` that the document extends.

    Raises UserError for a template that is unknown or its own, and for a `$key` that a part does not have.
    """
    templates: dict[str, _Layer] = {}
    for source, places in ((base, base_positions), (document, positions)):
        found = source.get(TEMPLATE, {})
        if not isinstance(found, Mapping):
            raise UserError("templates are tables [template.NAME]", loc=str(places.key((TEMPLATE,))))
        for name, keys in cast(Table, found).items():
            if not isinstance(keys, Mapping):
                raise UserError("a template is a table [template.NAME]", loc=str(places.key((TEMPLATE, name))))
            templates[name] = _Layer(cast(Table, keys), places, (TEMPLATE, name))
    expanded = dict(document)
    for kind, known in kinds.items():
        listed = document.get(kind)
        if not isinstance(listed, list):
            continue
        tables = cast(list[object], listed)
        if not any(isinstance(table, Mapping) and (TEMPLATE in table or EACH in table) for table in tables):
            continue
        parts: list[object] = []
        moved: list[tuple[tuple[_Layer, ...], Path]] = []
        for number, table in enumerate(tables):
            if not isinstance(table, Mapping):
                moved.append(((_Layer({}, positions, (kind, number)),), (kind, len(parts))))
                parts.append(table)
                continue
            for layers in _parts(_Layer(cast(Table, table), positions, (kind, number)), templates):
                moved.append((layers, (kind, len(parts))))
                parts.append(_filled(layers, known))
        expanded[kind] = parts
        _move(positions, kind, moved)
    return expanded


def _parts(table: _Layer, templates: Mapping[str, _Layer]) -> Iterator[tuple[_Layer, ...]]:
    """For each part that a table stands for, its keys and those of its templates, the first in front."""
    entries: object = table.keys.get(EACH, list[Table]([{}]))
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in cast(list[object], entries)):
        raise UserError("each must be a list of tables", loc=table.place(EACH))
    if not entries:
        raise UserError("each has no table, so that there is no such part", loc=table.place(EACH))
    for number, entry in enumerate(cast(list[Table], entries)):
        own = _Layer(table.keys, table.positions, table.path)
        layers = [_Layer(entry, table.positions, (*table.path, EACH, number)), own] if EACH in table.keys else [own]
        asking, seen = layers[0] if TEMPLATE in layers[0].keys else layers[-1], list[object]()
        while TEMPLATE in asking.keys:
            name = asking.keys[TEMPLATE]
            if not isinstance(name, str) or name not in templates:
                note = nearest_or_all(str(name), templates, "templates")
                raise UserError(f'unknown template "{name}"', loc=asking.place(TEMPLATE), notes=[note])
            if name in seen:
                raise UserError(f'the template "{name}" leads back to itself', loc=asking.place(TEMPLATE))
            seen.append(name)
            asking = templates[name]
            layers.append(asking)
        yield tuple(layers)


def _filled(layers: tuple[_Layer, ...], known: Collection[str]) -> Table:
    """The part that layers are, its strings filled in."""
    values = ChainMap(*({**layer.keys} for layer in layers))
    if len(layers) == 1 and not {TEMPLATE, EACH} & {*values}:
        return layers[0].keys
    used: set[str] = set()

    def fill(value: object, layer: _Layer, steps: Path) -> object:
        match value:
            case str():
                whole = _FIELD.fullmatch(value)
                if whole is not None and not whole["escape"]:
                    return look_up(whole, layer, steps)
                return _FIELD.sub(lambda field: "$" if field["escape"] else str(look_up(field, layer, steps)), value)
            case list():
                return [fill(each, layer, (*steps, at)) for at, each in enumerate(cast(list[object], value))]
            case Mapping():
                return {key: fill(each, layer, (*steps, key)) for key, each in cast(Table, value).items()}
            case _:
                return value

    def look_up(field: re.Match[str], layer: _Layer, steps: Path) -> object:
        name = field["name"] or field["braced"]
        if name not in values:
            note = nearest_or_all(name, [key for key in values if key not in (EACH, TEMPLATE)], "keys")
            raise UserError(f'the part has no "{name}"', loc=layer.place(*steps), notes=[note])
        used.add(name)
        return values[name]

    filled = [
        {key: fill(value, layer, (key,)) for key, value in layer.keys.items() if key not in (EACH, TEMPLATE)}
        for layer in layers
    ]
    parameters = used.difference(known)
    maps = [{key: value for key, value in each.items() if key not in parameters} for each in filled]
    # What stands beside `each` is of the same table as its entries.
    if EACH in values:
        maps[:2] = [{**maps[1], **maps[0]}]
    return ChainMap(*maps) if len(maps) > 1 else maps[0]


def _move(positions: Positions, kind: str, moved: list[tuple[tuple[_Layer, ...], Path]]) -> None:
    """Bring the places of the parts of a kind up to date: those of its layers, the first in front."""
    new: list[dict[Path, Position]] = []
    for places in ("keys", "values"):
        found: dict[Path, Position] = {}
        for layers, path in moved:
            for layer in reversed(layers):
                size = len(layer.path)
                for old, position in getattr(layer.positions, places).items():
                    if old[:size] == layer.path and old[size : size + 1] != (EACH,):
                        found[(*path, *old[size:])] = position
        new.append(found)
    for places, found in zip((positions.keys, positions.values), new, strict=True):
        for old in [path for path in places if path[:1] == (kind,) and len(path) > 1]:
            del places[old]
        places.update(found)
