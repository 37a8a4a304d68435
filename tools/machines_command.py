"""List the machines that come with Penstock, show one as IR or as a table, or validate machine files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    IntegerAttr,
    StringAttr,
    SymbolRefAttr,
)
from xdsl.ir import Attribute

from penstock.dialects.diagnostics import USER_FAULT, UserError
from penstock.dialects.machine import IntrinsicOp, MachinePart, TargetOp, numbers_of
from penstock.lowering.from_machine_toml import (
    load_machine,
    machine_text,
    read_machine,
    shipped_machines,
)
from penstock.lowering.machine_keys import ASSUMED
from penstock.runtime.device_check import code_faults
from penstock.tools.arguments import add_machine_options, machine_options
from penstock.tools.errors import render
from penstock.tools.text import aligned

_NAMING = ("sym_name", "origin")
_BEHAVIOUR = ("operand_names", "strides", "dims", "shape")
"""The properties that the first lines about an intrinsic tell."""
_SPELLING = ("address", "layout", "emit", "block", "requires", "settings")
"""The properties that say how commands are written."""
_UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="the machines that come with Penstock")
    show = actions.add_parser("show", help="a machine as IR, or as a table")
    show.add_argument("machine", help="a name, or the path of a machine file")
    add_machine_options(show)
    show.add_argument("--table", action="store_true", help="a table, with the origin of each number")
    validate = actions.add_parser("validate", help="check machine files")
    validate.add_argument("files", nargs="+", metavar="FILE", help="a machine file, or a name")
    validate.add_argument("--code", action="store_true", help="compile each command that it spells, once")


def execute(args: argparse.Namespace) -> int:
    match args.action:
        case "list":
            print("\n".join(machine_table()))
            return 0
        case "show":
            target = load_machine(args.machine, machine_options(args))
            print("\n".join(describe(target)) if args.table else target)
            return 0
        case _:
            return validate_files(args.files, code=args.code)


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
    """What the intrinsics that multiply and accumulate read and sum in: `i8 to i32`, or `f32` where it is the same."""
    found: dict[str, None] = {}
    for intrinsic in target.intrinsics().values():
        if intrinsic.macs_per_issue():
            *factors, total = (str(spec.dtype) for spec in intrinsic.operand_specs())
            read = " x ".join(dict.fromkeys(factors))
            found[read if read == total else f"{read} to {total}"] = None
    return ", ".join(found)


def provenance(target: TargetOp) -> tuple[int, int]:
    """How many properties of numbers name a source, as a table shows them, and how many there are."""
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
    for dim, extent in zip(part.dims, part.shape, strict=True):
        if extent is not None:
            least, most = extent
            text = str(most) if least == most else f"{least} to {most}"
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


def validate_files(names: Sequence[str], *, code: bool = False) -> int:
    """
    Print every fault of every file to stderr, with the line it is in; the status is 1 if there is one. With `code`,
    what the C compiler refuses of how commands are spelled is one.
    """
    status = 0
    for name in names:
        file, text = name, ""
        try:
            file, text = machine_text(name)
            target, faults = read_machine(file, text)
            if code and not faults and target is not None:
                faults = code_faults(target)
        except UserError as fault:
            faults = (fault,)
        for fault in faults:
            print(render(fault, {file: text}), file=sys.stderr)
        if faults:
            status = USER_FAULT
        else:
            print(f"{name}: valid")
    return status
