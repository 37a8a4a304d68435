# SPDX-License-Identifier: Apache-2.0
"""Machines as tables: what each has in numbers, one with the origin of each, and what it computes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    IntegerAttr,
    StringAttr,
    SymbolRefAttr,
)
from xdsl.ir import Attribute

from penstock.dialects.machine import IntrinsicOp, MachinePart, TargetOp, numbers_of
from penstock.lowering.from_machine_toml import load_machine
from penstock.lowering.machine_keys import ASSUMED
from penstock.lowering.machine_names import shipped_machines
from penstock.tools.text import aligned

_NAMING = ("sym_name", "origin")
_BEHAVIOUR = ("operand_names", "strides", "dims", "shape")
"""The properties that the first lines about an intrinsic tell."""
_SPELLING = ("address", "layout", "emit", "block", "requires", "settings")
"""The properties that say how commands are written."""
_UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"))


def machine_table() -> list[str]:
    """One line for each shipped machine, below a heading."""
    rows = [("name", "frequency", "MAC/cycle", "numbers", "sourced", "scopes")]
    for name in shipped_machines():
        target = load_machine(name)
        scopes = [f"{scope} {size_text(op.size_bytes)}" for scope, op in target.scopes().items()]
        sourced, total = provenance(target)
        rows.append(
            (
                name,
                f"{target.frequency_mhz} MHz",
                str(target.peak_macs_per_cycle()),
                number_formats(target) or "-",
                f"{sourced} of {total}",
                ", ".join(scopes) or "-",
            )
        )
    return aligned(rows)


def number_formats(target: TargetOp) -> str:
    """Return what the intrinsics that multiply and add read and sum in: `i8 to i32`, or `f32` where it is the same."""
    found: dict[str, None] = {}
    for intrinsic in target.intrinsics().values():
        if intrinsic.macs_per_issue():
            *factors, total = (str(spec.dtype) for spec in intrinsic.operand_specs())
            read = " x ".join(dict.fromkeys(factors))
            found[read if read == total else f"{read} to {total}"] = None
    return ", ".join(found)


def provenance(target: TargetOp) -> tuple[int, int]:
    """Return how many properties of numbers name a source, as a table shows them, and how many there are."""
    rows = _rows({"frequency": target.frequency}, target.origin)
    for part in target.parts(MachinePart):
        rows += _part_rows(part)
    origins = [origin for _, _, origin in rows if origin]
    return sum(not origin.startswith(ASSUMED) for origin in origins), len(origins)


def size_text(size: int) -> str:
    """A size in the largest unit that it is a whole number of."""
    for unit, name in _UNITS:
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def describe(target: TargetOp) -> Iterator[str]:
    """The machine as a table: each number of each part with its origin, and what the sources are."""
    yield f"machine {target.machine_name}"
    yield from aligned(_rows({"frequency": target.frequency}, target.origin))
    yield f"  peak {target.peak_macs_per_cycle()} MAC/cycle"
    yield ""
    yield from computed(target)
    for part in target.parts(MachinePart):
        yield ""
        yield part.title
        if isinstance(part, IntrinsicOp):
            yield from _behaviour(part)
        rows = _part_rows(part)
        spelling = [row for row in rows if row[0].strip() in _SPELLING]
        yield from aligned([row for row in rows if row not in spelling])
        yield from aligned([(key, " ".join(text.split()), origin) for key, text, origin in spelling])
    if target.sources is not None:
        yield ""
        yield "sources"
        yield from (f"  {key}: {text_of(text)}" for key, text in target.sources.data.items())


def computed(target: TargetOp) -> list[str]:
    """Return what a machine computes: a line for each intrinsic, its behaviour as index notation, extents and types."""
    rows = [
        (
            f"  {name}",
            f"on {part.unit_name or part.dma_name}",
            behaviour_text(part),
            extents_text(part) or "any extents",
            operands_text(part),
        )
        for name, part in target.intrinsics().items()
    ]
    if rows:
        return ["computes", *aligned(rows)]
    has_processor = target.is_host or target.processor() is not None
    how = "all of it on its processor" if has_processor else "nothing"
    return [f"computes {how}: it declares no intrinsics"]


def behaviour_text(part: IntrinsicOp) -> str:
    """Return what an intrinsic computes as index notation: `c[i, j] += a[i, k] * b[k, j]`."""
    text = "" if part.generic.doc is None else " ".join(part.generic.doc.data.split())
    return re.sub(r",(?=\S)", ", ", text)


def extents_text(part: IntrinsicOp) -> str:
    """The extents of one application: `m 1 to 16, n 16`; without those that may be any."""
    return ", ".join(f"{dim} {text}" for dim, text in _extents(part))


def operands_text(part: IntrinsicOp) -> str:
    """The operands with their element types and where each lies: `a i8 in spad`."""
    return ", ".join(
        f"{spec.name} {spec.dtype}" + (f" in {spec.scope}" if spec.scope else "") for spec in part.operand_specs()
    )


def _extents(part: IntrinsicOp) -> Iterator[tuple[str, str]]:
    for dim, extent in zip(part.dims, part.shape, strict=True):
        if extent is not None:
            least, most = extent
            yield dim, str(most) if least == most else f"{least} to {most}"


def _behaviour(part: IntrinsicOp) -> Iterator[str]:
    if part.generic.doc is not None:
        yield f"  {part.generic.doc.data}"
    for spec in part.operand_specs():
        place = f"in {spec.scope}, {spec.strides}" if spec.scope else "in the instruction"
        yield f"  {spec.role} {spec.name}: {spec.dtype} {place}"


def _part_rows(part: MachinePart) -> list[tuple[str, str, str]]:
    """A row for each property of a part that its first lines do not tell."""
    rows: list[tuple[str, str, str]] = []
    apart = _NAMING
    if isinstance(part, IntrinsicOp):
        rows += _shape_rows(part)
        apart += _BEHAVIOUR
    return rows + _rows({key: attr for key, attr in part.properties.items() if key not in apart}, part.origin)


def _shape_rows(part: IntrinsicOp) -> Iterator[tuple[str, str, str]]:
    for dim, text in _extents(part):
        yield f"  {dim}", text, _origin_of(f"shape.{dim}", part.origin)


def _rows(properties: Mapping[str, Attribute], origin: DictionaryAttr | None) -> list[tuple[str, str, str]]:
    """A row for each property, with where it comes from if it is a number."""
    return [
        (f"  {name}", text_of(each), _origin_of(name, origin) if numbers_of(each) or name in IntrinsicOp.CYCLES else "")
        for key, attr in properties.items()
        for name, each in _entries(key, attr)
    ]


def _entries(key: str, attr: Attribute) -> list[tuple[str, Attribute]]:
    """A property, or the entries of a table of numbers."""
    if isinstance(attr, DictionaryAttr) and all(isinstance(each, DenseArrayBase) for each in attr.data.values()):
        return [(f"{key}.{name}", each) for name, each in attr.data.items()]
    return [(key, attr)]


def _origin_of(key: str, origin: DictionaryAttr | None) -> str:
    if origin is None:
        return ""
    source = origin.data.get(key) or origin.data.get("all")
    return "" if source is None else text_of(source)


def text_of(attr: Attribute) -> str:
    """A property as a person would write it."""
    match attr:
        case StringAttr():
            return attr.data
        case SymbolRefAttr():
            return attr.string_value()
        case IntegerAttr():
            return str(attr.value.data)
        case DenseArrayBase():
            return ", ".join(str(value) for value in numbers_of(attr))
        case ArrayAttr():
            return ", ".join(text_of(each) for each in attr)
        case DictionaryAttr():
            return ", ".join(f"{key} {text_of(each)}" for key, each in attr.data.items())
        case _:
            return str(attr)
