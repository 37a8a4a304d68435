"""Dialects and passes: what their classes declare."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from pkgutil import resolve_name
from typing import Any, cast

from docs.generator.api import fields_table
from docs.generator.markdown import anchor, block, code, in_one_line, reflowed, summary, table
from docs.generator.source import PACKAGE, Field, Module, fields, module_called
from xdsl.dialects.builtin import (
    ArrayOfConstraint,
    DenseArrayBase,
    FloatAttr,
    IntegerAttr,
    SymbolNameConstraint,
)
from xdsl.ir import Attribute, Dialect, Operation, ParametrizedAttribute, TypeAttribute
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
from xdsl.traits import OpTrait

from penstock.dialects.mem import RingType
from penstock.runtime.levels import LEVELS

_SEGMENTS = ("operandSegmentSizes", "resultSegmentSizes")
"""Properties that only say which operands belong to what."""
_NAMES = {"integer_type": "integer", "dense": "dense elements", "array": "array", "f64": "f64"}
"""Names of xDSL's classes as the text of IR has them, where the two differ."""

# dialects


def dialect_parts(dialect: Dialect, module: Module) -> Iterator[list[str]]:
    """The parts of a page on a dialect, which `module` defines: its types and attributes, and its ops by name."""
    yield [f"# The dialect {code(dialect.name)}"]
    yield reflowed(module.docstring)
    ops = sorted(dialect.operations, key=lambda op: op.name)
    rows = [(f"[{code(op.name)}](#{anchor(op.name)})", summary(_docstring(op))) for op in ops]
    yield table(("op", "what it is"), rows)
    for attribute in sorted(dialect.attributes, key=lambda each: each.name):
        yield from _attribute_section(attribute)
    for op in ops:
        yield from _op_section(op)
    if bases := list(dict.fromkeys(base for op in ops for base in _bases(op))):
        yield ["## Classes that ops share"]
    for base in sorted(bases, key=lambda base: base.__name__):
        yield [f"### {code(base.__name__)}"]
        yield _place(base)
        yield reflowed(_docstring(base))


def _attribute_section(attribute: type[Attribute]) -> Iterator[list[str]]:
    kind, sigil = ("type", "!") if issubclass(attribute, TypeAttribute) else ("attribute", "#")
    # An op may have the same name, and its heading is what links lead to.
    yield [f"## The {kind} {code(f'{sigil}{attribute.name}')}"]
    yield _place(attribute)
    yield reflowed(_docstring(attribute))
    source = _source(attribute)
    if source is not None and issubclass(attribute, ParametrizedAttribute):
        meanings = {field.name: field.docstring for field in fields(*source)}
        parameters = attribute.get_irdl_definition().parameters
        rows = [(code(name), _type(each.constr), in_one_line(meanings.get(name, ""))) for name, each in parameters]
        yield table(("parameter", "type", "meaning"), rows)


def _op_section(op: type[Operation]) -> Iterator[list[str]]:
    assert issubclass(op, IRDLOperation)
    definition = op.get_irdl_definition()
    yield [f"## {code(op.name)}"]
    yield _place(op)
    yield reflowed(_docstring(op))
    if definition.assembly_format is not None:
        yield block(f"{op.name} {definition.assembly_format}", "text")
    yield op_table(op)
    if traits := sorted({_trait(each) for each in definition.traits.traits}):
        yield [f"Traits: {', '.join(map(code, traits))}."]


def _bases(op: type) -> list[type[Operation]]:
    """The classes of ours that a class of ops is derived from, the nearest first."""
    found = [base for base in op.__mro__[1:] if _source(base) is not None and issubclass(base, Operation)]
    return [base for base in found if "name" not in vars(base)]


def _place(of: type) -> list[str]:
    module = module_called(of.__module__)
    file = "" if module is None else f" of {code(module.path.as_posix())}"
    near = [base for base in of.__bases__ if base in _bases(of)]
    links = ", ".join(f"[{code(base.__name__)}](#{anchor(base.__name__)})" for base in near)
    return [f"*{code(of.__name__)}{file}{f', derived from {links}' if links else ''}*"]


def op_table(op: type[IRDLOperation]) -> list[str]:
    """What an op takes and gives: a row for each operand, property, region, successor and result."""
    definition: OpDef = op.get_irdl_definition()
    accessors = {name: accessor for accessor, (name, _) in definition.accessor_names.items()}
    meanings = op_meanings(op)
    rows: list[tuple[str, ...]] = []

    def add(kind: str, name: str, each: object, type: str, default: str = "") -> None:
        number = "optional " if isinstance(each, OptionalDef) else "variadic " if isinstance(each, VariadicDef) else ""
        meaning = in_one_line(meanings.get(accessors.get(name, name), ""))
        rows.append((code(name), f"{number}{kind}", type, default, meaning))

    for name, each in definition.operands:
        add("operand", name, each, _type(each.constr))
    for kind, defined in (("property", definition.properties), ("attribute", definition.attributes)):
        for name, each in defined.items():
            if name not in _SEGMENTS:
                default = "" if each.default_value is None else code(str(each.default_value))
                add(kind, name, each, _type(each.constr), default)
    for name, each in definition.regions:
        add("region", name, each, "")
    for name, each in definition.successors:
        add("successor", name, each, "")
    for name, each in definition.results:
        add("result", name, each, _type(each.constr))
    return table(("name", "kind", "type", "default", "meaning"), rows)


def op_meanings(op: type[IRDLOperation]) -> dict[str, str]:
    """The strings under the fields of an op and of the classes that it is derived from."""
    found: dict[str, str] = {}
    for base in reversed(op.__mro__):
        source = _source(base)
        if source is not None:
            found |= {field.name: field.docstring for field in fields(*source) if field.docstring}
    return found


def undescribed(op: type[IRDLOperation]) -> list[str]:
    """The operands, properties and regions of an op with no string under them, and with no word in a docstring."""
    definition, meanings = op.get_irdl_definition(), op_meanings(op)
    accessors = {name: accessor for accessor, (name, _) in definition.accessor_names.items()}
    names = [name for name, _ in (*definition.operands, *definition.regions)]
    names += [name for name in (*definition.properties, *definition.attributes) if name not in _SEGMENTS]
    words = set(re.findall(r"\w+", " ".join(_docstring(each) for each in (op, *_bases(op)))))
    return [name for name in names if name not in words and not meanings.get(accessors.get(name, name))]


def _source(of: type) -> tuple[Module, ast.ClassDef] | None:
    """The class as its module has it; None for a class of others."""
    module = module_called(of.__module__) if of.__module__.startswith(f"{PACKAGE}.") else None
    found = None if module is None else module.defined.get(of.__name__)
    return None if found is None or not isinstance(found.node, ast.ClassDef) else (found.module, found.node)


def _docstring(of: type) -> str:
    return vars(of).get("__doc__") or ""


def _trait(trait: OpTrait) -> str:
    """A trait, with what it is told, as its class prints it."""
    told = [str(value.value if isinstance(value, Enum) else value) for value in vars(trait).values()]
    told = [word for word in told if word and "object at" not in word and "<" not in word]
    return type(trait).__name__ + (f"({', '.join(told)})" if told else "")


def _type(constraint: AttrConstraint | RangeConstraint) -> str:
    """What a constraint permits, as the text of IR names it where it can."""
    match constraint:
        case RangeLengthConstraint():
            return _type(constraint.constraint)
        case RangeOf():
            return _type(constraint.constr)
        case MessageConstraint():
            return _type(constraint.constr)
        case VarConstraint():
            return f"{_type(constraint.constraint)} {code(constraint.name)}"
        case AnyOf():
            return " or ".join(_type(each) for each in constraint.attr_constrs)
        case AllOf():
            return _type(constraint.attr_constrs[-1])
        case ArrayOfConstraint():
            return f"array of {_type(constraint.elem_range_constraint)}"
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
    given = [_type(each) for each in constraint.param_constrs]
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


# passes


def pass_section(name: str, place: str) -> Iterator[list[str]]:
    """The parts of a page on a pass, which is at `module:class`: its docstring and its options."""
    module, node = pass_source(place)
    yield [f"## {code(name)}"]
    yield [f"*{code(node.name)} of {code(module.path.as_posix())}*"]
    yield reflowed(ast.get_docstring(node) or "")
    for each in fields(module, node):
        if each.type.startswith("ClassVar"):
            yield [f"{code(each.name)}: {in_one_line(each.docstring)}"]
    yield fields_table(options(place), "option")


def pass_row(name: str, place: str, page: str) -> tuple[str, str, str]:
    """A pass in a table: its name with a link to its section, the first paragraph of its docstring, its options."""
    _, node = pass_source(place)
    defaults = [f"{each.name}={each.default}" if each.default else each.name for each in options(place)]
    return (
        f"[{code(name)}]({page}#{anchor(name)})",
        summary(ast.get_docstring(node) or ""),
        ", ".join(map(code, defaults)),
    )


def pass_level(place: str) -> str:
    """The folder of the level at which a pass works; empty for one that works at several."""
    module, _ = pass_source(place)
    floor, folder = module.path.parts[:2]
    return folder.partition("_to_")[0] if floor == "lowering" else folder if folder in LEVELS else ""


def pass_source(place: str) -> tuple[Module, ast.ClassDef]:
    """The source of a pass that is at `module:class`."""
    path, _, name = place.partition(":")
    module = module_called(path)
    found = None if module is None else module.find(name)
    assert found is not None, f"there is no pass at {place}"
    assert isinstance(found.node, ast.ClassDef), f"{place} is no class"
    return found.module, found.node


def options(place: str) -> list[Field]:
    """The options of a pass: the fields of its class, by the names and the defaults that a pipeline has for them."""
    module, node = pass_source(place)
    defaults = {each.name: each.default for each in dataclasses.fields(resolve_name(place))}
    return [
        replace(each, name=each.name.replace("_", "-"), default=spelled(defaults[each.name]))
        for each in fields(module, node)
        if each.name in defaults
    ]


def spelled(default: object) -> str:
    """A default as a pipeline has it; empty where there is none."""
    match default:
        case dataclasses.MISSING:
            return ""
        case None | bool():
            return str(default).lower()
        case str():
            return f'"{default}"'
        case tuple():
            return ",".join(map(spelled, cast(tuple[object, ...], default)))
        case _:
            return str(default)
