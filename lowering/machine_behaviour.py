"""The keys of an `[[intrinsic]]` that say what it does: `behaviour`, `operands` and `shape`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, StringAttr, f32, i64
from xdsl.ir import Attribute, Region

from penstock.dialects.diagnostics import did_you_mean
from penstock.dialects.machine import DRAM, IMMEDIATE, STRIDES, OperandSpec
from penstock.lowering.machine_schema import (
    OPERAND_KEYS,
    ValueFault,
    read_integer,
    read_list,
    read_name,
    read_string,
    read_type,
    word_for,
)
from penstock.lowering.machine_table import Table
from penstock.lowering.scalar_expression import ExpressionFault
from penstock.lowering.tensor_expression import Behaviour, OperandDecl, build_behaviour
from penstock.lowering.toml_positions import Path

ROLES = ("in", "out", "inout")


@dataclass(frozen=True)
class BehaviourProperties:
    """What the three keys give to a `machine.intrinsic`."""

    properties: Mapping[str, Attribute]
    region: Region
    roles: Mapping[str, str]
    """The role that the file declares for each operand."""


def read_behaviour(table: Table) -> BehaviourProperties:
    """
    Read the behaviour of the intrinsic in `table`.

    Faults are logged; a behaviour with one is replaced by a stand-in, so that the rest can be checked.
    """
    operands, roles = _read_operands(table)
    behaviour = _build(table, operands)
    shape = _read_shape(table, behaviour)
    if behaviour is None:
        behaviour = build_behaviour("_[i] = 0", [OperandDecl("_", DRAM, f32, STRIDES[0])])
        shape = dict[str, list[int]]()
    strides = {decl.name: decl.strides for decl in operands or ()}
    properties = {
        "operand_names": ArrayAttr(StringAttr(name) for name in behaviour.operands),
        "strides": ArrayAttr(StringAttr(strides.get(name, STRIDES[0])) for name in behaviour.operands),
        "dims": ArrayAttr(StringAttr(dim) for dim in behaviour.dims),
        "shape": ArrayAttr(DenseArrayBase.from_list(i64, shape.get(dim, [])) for dim in behaviour.dims),
    }
    return BehaviourProperties(properties, behaviour.region, roles)


def check_roles(table: Table, declared: Mapping[str, str], specs: tuple[OperandSpec, ...]) -> None:
    """Log every operand whose declared role is not what the behaviour does with it."""
    words = {"in": "reads it", "out": "writes it without reading", "inout": "reads and writes it"}
    for place, (name, role) in enumerate(declared.items()):
        for spec in specs:
            if spec.name == name and spec.role != role:
                table.log.at_value(
                    (*table.path, "operands", place, "role"),
                    f'operand "{name}" has role "{role}", but the behaviour {words[spec.role]}',
                    [f'its role is "{spec.role}"'],
                )


def _build(table: Table, operands: list[OperandDecl] | None) -> Behaviour | None:
    text = table.get("behaviour")
    path = (*table.path, "behaviour")
    if text is None:
        return None
    if not isinstance(text, str):
        table.log.at_value(path, f"behaviour must be a string, but is {word_for(text)}")
        return None
    if operands is None:
        return None
    try:
        return build_behaviour(text, operands)
    except ExpressionFault as fault:
        # The text begins after the quote; where it has line breaks the fault is shown at its beginning.
        offset = 0 if "\n" in text else 1 + fault.column
        table.log.at_value(path, f"behaviour: {fault.message}", fault.notes, offset=offset)
        return None


def _read_operands(table: Table) -> tuple[list[OperandDecl] | None, dict[str, str]]:
    """The declared operands, or None if a fault was logged, and the role of each by name."""
    listed = table.get("operands")
    path = (*table.path, "operands")
    if listed is None:
        return None, {}
    try:
        entries = read_list(listed)
    except ValueFault as fault:
        table.log.at_value(path, f"operands {fault}")
        return None, {}
    if not entries:
        table.log.at_value(path, "operands must list at least one operand")
    operands: list[OperandDecl] = []
    roles: dict[str, str] = {}
    for place, entry in enumerate(entries):
        if not isinstance(entry, dict):
            table.log.at_value((*path, place), f"an operand must be a table, but is {word_for(entry)}")
            continue
        decl = _read_operand(table, (*path, place), cast(dict[str, object], entry), roles)
        if decl is not None:
            operands.append(decl)
    return (None if table.log.has_fault_in(path) else operands), roles


def _read_operand(table: Table, path: Path, entry: dict[str, object], roles: dict[str, str]) -> OperandDecl | None:
    log = table.log
    for key in entry:
        if key not in OPERAND_KEYS:
            log.at_key((*path, key), f'unknown key "{key}" in an operand', [did_you_mean(key, OPERAND_KEYS)])
    missing = [key for key in OPERAND_KEYS[:-1] if key not in entry]
    for key in missing:
        log.at_key((*path, key), f'missing key "{key}" in an operand')
    if missing:
        return None
    key = "name"
    try:
        name = read_name(entry[key])
        if name in roles or name == IMMEDIATE:
            raise ValueFault(f'"{name}" is taken')
        key = "scope"
        scope = read_name(entry[key])
        key = "dtype"
        dtype = read_type(entry[key])
        key = "role"
        role = _choice(entry[key], ROLES)
        key = "strides"
        strides = _choice(entry.get(key, STRIDES[0]), STRIDES)
    except ValueFault as fault:
        log.at_value((*path, key), f"{key} {fault}")
        return None
    roles[name] = role
    return OperandDecl(name, scope, dtype, strides)


def _choice(value: object, choices: tuple[str, ...]) -> str:
    text = read_string(value)
    if text not in choices:
        raise ValueFault(f'must be one of {", ".join(choices)}, but is "{text}"')
    return text


def _read_shape(table: Table, behaviour: Behaviour | None) -> dict[str, list[int]]:
    """The extents of each dim, as written: one, or a range of two. `dma` intrinsics may leave dims open."""
    if "shape" not in table.content:
        if "dma" not in table.content:
            table.get("shape")
        return {}
    path = (*table.path, "shape")
    value = table.content["shape"]
    if not isinstance(value, dict):
        table.log.at_value(path, f"shape must be a table, but is {word_for(value)}")
        return {}
    shape: dict[str, list[int]] = {}
    for dim, extent in cast(dict[str, object], value).items():
        try:
            shape[dim] = _read_extent(table.number(("shape", dim), extent))
        except ValueFault as fault:
            table.log.at_value((*path, dim), f'dim "{dim}" {fault}')
    if behaviour is None:
        return shape
    for dim in shape:
        if dim not in behaviour.dims:
            near = did_you_mean(dim, behaviour.dims)
            note = near or f"its dims are {', '.join(behaviour.dims)}"
            table.log.at_key((*path, dim), f'the behaviour has no dim "{dim}"', [note])
    return shape


def _read_extent(value: object) -> list[int]:
    if not isinstance(value, list):
        return [read_integer(value)]
    extents = [read_integer(each) for each in read_list(cast(list[object], value))]
    if len(extents) != 2:
        raise ValueFault(f"must be an extent or a range of two, but has {len(extents)} numbers")
    return extents
