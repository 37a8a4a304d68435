# SPDX-License-Identifier: Apache-2.0
"""What an op takes and gives, and what the keys of machine files mean, as Markdown: from the classes of ops."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import (
    ArrayOfConstraint,
    DenseArrayBase,
    FloatAttr,
    IntegerAttr,
    SymbolNameConstraint,
)
from xdsl.ir import Attribute, TypeAttribute
from xdsl.irdl import (
    AllOf,
    AnyOf,
    AttrConstraint,
    BaseAttr,
    EqAttrConstraint,
    IRDLOperation,
    MessageConstraint,
    OpDef,
    OptionalDef,
    ParamAttrConstraint,
    RangeConstraint,
    RangeLengthConstraint,
    RangeOf,
    VarConstraint,
    VariadicDef,
)

from penstock.dialects.docstrings import strings_under_fields
from penstock.dialects.machine import MachinePart
from penstock.dialects.mem import RingType
from penstock.lowering.machine_keys import Key, part_keys
from penstock.tools.markdown import code, in_one_line, table

PACKAGE = "penstock"
SEGMENTS = ("operandSegmentSizes", "resultSegmentSizes")
"""Properties that only say which operands belong to what."""
_NAMES = {"integer_type": "integer", "dense": "dense elements", "array": "array", "f64": "f64"}
"""Names of xDSL's classes as the text of IR has them, where the two differ."""


def op_strings(op: type[IRDLOperation]) -> dict[str, str]:
    """The strings under the fields of an op and of the classes that it is derived from."""
    return strings_under_fields(op, IRDLOperation)


def op_table(op: type[IRDLOperation]) -> list[str]:
    """What an op takes and gives: a row for each operand, property, region, successor and result."""
    definition: OpDef = op.get_irdl_definition()
    accessors = {name: accessor for accessor, (name, _) in definition.accessor_names.items()}
    meanings = op_strings(op)
    rows: list[tuple[str, ...]] = []

    def add(kind: str, name: str, each: object, type: str, default: str = "") -> None:
        number = "optional " if isinstance(each, OptionalDef) else "variadic " if isinstance(each, VariadicDef) else ""
        meaning = in_one_line(meanings.get(accessors.get(name, name), ""))
        rows.append((code(name), f"{number}{kind}", type, default, meaning))

    for name, each in definition.operands:
        add("operand", name, each, type_text(each.constr))
    for kind, defined in (("property", definition.properties), ("attribute", definition.attributes)):
        for name, each in defined.items():
            if name not in SEGMENTS:
                default = "" if each.default_value is None else code(str(each.default_value))
                add(kind, name, each, type_text(each.constr), default)
    for name, each in definition.regions:
        add("region", name, each, "")
    for name, each in definition.successors:
        add("successor", name, each, "")
    for name, each in definition.results:
        add("result", name, each, type_text(each.constr))
    return table(("name", "kind", "type", "default", "meaning"), rows)


def key_meanings(kind: type[MachinePart]) -> dict[str, tuple[Key, str]]:
    """The keys of a table of machine files, each with what it means."""
    strings = op_strings(kind)
    accessors = {name: accessor for accessor, (name, _) in kind.get_irdl_definition().accessor_names.items()}
    return {
        key: (each, each.meaning or strings.get(accessors.get(key, key), "")) for key, each in part_keys(kind).items()
    }


def type_text(constraint: AttrConstraint | RangeConstraint) -> str:
    """What a constraint permits, as the text of IR names it where it can."""
    match constraint:
        case RangeLengthConstraint():
            return type_text(constraint.constraint)
        case RangeOf():
            return type_text(constraint.constr)
        case MessageConstraint():
            return type_text(constraint.constr)
        case VarConstraint():
            return f"{type_text(constraint.constraint)} {code(constraint.name)}"
        case AnyOf():
            return " or ".join(type_text(each) for each in constraint.attr_constrs)
        case AllOf():
            return type_text(constraint.attr_constrs[-1])
        case ArrayOfConstraint():
            return f"array of {type_text(constraint.elem_range_constraint)}"
        case SymbolNameConstraint():
            return "symbol name"
        case EqAttrConstraint():
            return code(str(constraint.attr))
        case BaseAttr():
            return _class(constraint.attr)
        case ParamAttrConstraint():
            return _parametrized(constraint)
        case _:
            return "any"


def _parametrized(constraint: ParamAttrConstraint[Any]) -> str:
    given = [type_text(each) for each in constraint.param_constrs]
    if constraint.base_attr in (IntegerAttr, FloatAttr):
        return "number" if given[1] == "any" else given[1]
    if constraint.base_attr is DenseArrayBase:
        return f"list of {given[0]}"
    return _class(constraint.base_attr) + (f" of {given[0]}" if constraint.base_attr is RingType else "")


def _class(of: type[Attribute]) -> str:
    """A class of types or attributes by the name that it has in IR; the name of the class where it is abstract."""
    name = str(getattr(of, "name", of.__name__))
    sigil = "!" if issubclass(of, TypeAttribute) else "#"
    return code(f"{sigil}{name}" if of.__module__.startswith(f"{PACKAGE}.") else _NAMES.get(name, name))
