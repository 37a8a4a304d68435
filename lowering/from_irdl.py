# SPDX-License-Identifier: Apache-2.0
"""
The way into the IR for a dialect that is text: a file of MLIR's IRDL dialect (https://mlir.llvm.org/docs/Dialects/IRDL/)
becomes dialects whose types and operations parse, verify and print, as mlir-opt's `--irdl-file` makes them.

Operations have the generic form, types and attributes the form `!dialect.name<parameters>`. As in MLIR, a constraint
stands for one type or attribute wherever its definition uses it, and for all that is variadic. Operations mean nothing
yet: what one computes, and how it is lowered, a package says of its class, as of any other.
"""

from __future__ import annotations

import keyword
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast

from xdsl.context import Context
from xdsl.dialects import builtin
from xdsl.dialects.builtin import ArrayAttr, StringAttr, SymbolRefAttr
from xdsl.dialects.irdl import irdl
from xdsl.ir import Attribute, Block, Dialect, Operation, ParametrizedAttribute, Region, SSAValue, TypeAttribute
from xdsl.irdl import (
    AllOf,
    AnyAttr,
    AttrConstraint,
    AttributeDef,
    BaseAttr,
    EqAttrConstraint,
    IRDLOperation,
    OpDef,
    OperandDef,
    OptOperandDef,
    OptResultDef,
    ParamAttrConstraint,
    ParamAttrDef,
    ParamDef,
    RangeConstraint,
    RangeOf,
    RegionDef,
    ResultDef,
    VarOperandDef,
    VarResultDef,
    get_accessors_from_op_def,
    irdl_attr_definition,
)
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError, nearest_or_all
from penstock.dialects.verification import find_invalid
from penstock.lowering.from_text import ParsedText, parse_text, read_text
from penstock.lowering.irdl_constraints import Each, OneOf, OperandSizes, ResultSizes, Same

BUILTIN: Mapping[str, type[Attribute]] = {
    **{
        f"!builtin.{each.name}": each
        for each in builtin.Builtin.attributes
        if issubclass(each, TypeAttribute) and each.name not in ("fun", "integer_type", "none_type")
    },
    "!builtin.function": builtin.FunctionType,
    "!builtin.integer": builtin.IntegerType,
    "!builtin.none": builtin.NoneType,
    "#builtin.affine_map": builtin.AffineMapAttr,
    "#builtin.array": builtin.ArrayAttr,
    "#builtin.dense_array": builtin.DenseArrayBase,
    "#builtin.dense_intorfp_elements": builtin.DenseIntOrFPElementsAttr,
    "#builtin.dictionary": builtin.DictionaryAttr,
    "#builtin.float": builtin.FloatAttr,
    "#builtin.integer": builtin.IntegerAttr,
    "#builtin.string": builtin.StringAttr,
    "#builtin.symbol_ref": builtin.SymbolRefAttr,
    "#builtin.unit": builtin.UnitAttr,
}
"""MLIR's names of builtin types and attributes, which are not those of xDSL."""


def load_irdl(path: str | Path, taken: Collection[str] = ()) -> list[Dialect]:
    """
    The dialects that a file of IRDL defines; none may have a name that is `taken`.

    Raises UserError, with the place, for a file that is not valid, constraints that are known in C++ alone, and names
    that nothing has.
    """
    source = read_text(path)
    ctx = make_context()
    parsed = parse_text(ctx, source)
    if (found := find_invalid(parsed.module)) is not None:
        op, message, notes = found
        raise UserError(message, loc=source.name if op is None else parsed.place_of(op), notes=notes)
    file = _File(parsed, ctx)
    for op in parsed.module.body.ops:
        if not isinstance(op, irdl.DialectOp):
            file.refuse(op, f"a file of IRDL holds dialects, and '{op.name}' is none")
    if not file.dialects:
        raise UserError("the file defines no dialect", loc=source.name)
    for name, op in file.dialects.items():
        if name in taken:
            file.refuse(op, f'there is a dialect "{name}" already')
    return file.define()


def register_irdl(ctx: Context, path: str | Path) -> None:
    """Add the dialects of a file of IRDL to a context; raises UserError as `load_irdl` does, and for names it has."""
    for dialect in load_irdl(path, set(ctx.registered_dialect_names)):
        ctx.load_dialect(dialect)


@dataclass(frozen=True)
class _RegionForm:
    """What is known of a region: its arguments, and how many blocks it has."""

    arguments: RangeConstraint
    blocks: int | None


@dataclass
class _File:
    """The definitions of a file, and what has been made of them."""

    parsed: ParsedText
    ctx: Context
    dialects: dict[str, irdl.DialectOp] = field(init=False)
    definitions: dict[str, Operation] = field(default_factory=dict[str, Operation])
    """Of types and attributes, by `dialect.name`."""
    classes: dict[str, type[ParametrizedAttribute]] = field(default_factory=dict[str, type[ParametrizedAttribute]])
    """What became of them."""

    def __post_init__(self) -> None:
        found = [op for op in self.parsed.module.body.ops if isinstance(op, irdl.DialectOp)]
        self.dialects = {op.sym_name.data: op for op in found}  # verified: a name is defined once

    def refuse(self, op: Operation, message: str, *notes: str) -> NoReturn:
        raise UserError(message, loc=self.parsed.place_of(op), notes=notes)

    def define(self) -> list[Dialect]:
        operations: dict[str, list[irdl.OperationOp]] = {}
        for name, dialect in self.dialects.items():
            members: list[irdl.TypeOp | irdl.AttributeOp | irdl.OperationOp] = []
            for op in dialect.body.block.ops:
                if not isinstance(op, irdl.TypeOp | irdl.AttributeOp | irdl.OperationOp):
                    self.refuse(op, f"a dialect holds types, attributes and operations, and '{op.name}' is none")
                members.append(op)
            operations[name] = [op for op in members if isinstance(op, irdl.OperationOp)]
            self.definitions |= {op.qualified_name: op for op in members if not isinstance(op, irdl.OperationOp)}
        # The classes are there before what their parameters must be, so that they may name each other.
        for name, op in self.definitions.items():
            self.classes[name] = self.attribute_class(name, op)
        for name, op in self.definitions.items():
            self.constrain_parameters(name, op)
        return [
            Dialect(
                name,
                [self.operation_class(op) for op in operations[name]],
                [each for key, each in self.classes.items() if key.partition(".")[0] == name],
            )
            for name in self.dialects
        ]

    # types and attributes

    def attribute_class(self, name: str, op: Operation) -> type[ParametrizedAttribute]:
        bases = (ParametrizedAttribute, TypeAttribute) if isinstance(op, irdl.TypeOp) else (ParametrizedAttribute,)
        fields = [_free(each, ParametrizedAttribute) for each in self.parameter_names(op)]
        members = {"name": name, "__annotations__": dict.fromkeys(fields, Attribute), "__doc__": ""}
        return irdl_attr_definition(type(_class_name(name, ""), bases, members))

    def parameters(self, op: Operation) -> irdl.ParametersOp | None:
        return self.only(op, irdl.ParametersOp)

    def parameter_names(self, op: Operation) -> list[str]:
        found = self.parameters(op)
        return [] if found is None else self.names_of(found, found.names, found.args)

    def constrain_parameters(self, name: str, op: Operation) -> None:
        constraints = self.constraints(op)
        definition = ParamAttrDef(name, [])
        if (found := self.parameters(op)) is not None:
            for each, value in zip(self.parameter_names(op), found.args, strict=True):
                definition.parameters.append((_free(each, ParametrizedAttribute), ParamDef(constraints[value])))
        setattr(self.classes[name], "get_irdl_definition", classmethod(lambda _: definition))

    # operations

    def operation_class(self, op: irdl.OperationOp) -> type[IRDLOperation]:
        constraints = self.constraints(op)
        name = op.qualified_name
        definition = OpDef(name)
        if (found := self.only(op, irdl.OperandsOp)) is not None:
            kinds = {"single": OperandDef, "optional": OptOperandDef, "variadic": VarOperandDef}
            for each, variadicity, value in self.operands_of(found):
                definition.operands.append((each, kinds[variadicity](constraints[value])))
            if sum(variadicity != "single" for _, variadicity, _ in self.operands_of(found)) > 1:
                definition.options.append(OperandSizes())
        if (found := self.only(op, irdl.ResultsOp)) is not None:
            kinds = {"single": ResultDef, "optional": OptResultDef, "variadic": VarResultDef}
            for each, variadicity, value in self.operands_of(found):
                definition.results.append((each, kinds[variadicity](constraints[value])))
            if sum(variadicity != "single" for _, variadicity, _ in self.operands_of(found)) > 1:
                definition.options.append(ResultSizes())
        if (found := self.only(op, irdl.AttributesOp)) is not None:
            for each, value in zip(
                self.names_of(found, found.attribute_value_names, found.attribute_values), found.attribute_values
            ):
                definition.attributes[each] = AttributeDef(constraints[value])
                definition.accessor_names[_free(each, IRDLOperation)] = (each, "attribute")
        blocks: list[int | None] = []
        if (found := self.only(op, irdl.RegionsOp)) is not None:
            forms = self.region_forms(op, constraints)
            for each, value in zip(self.names_of(found, found.names, found.args), found.args):
                definition.regions.append((_free(each, IRDLOperation), RegionDef(forms[value].arguments)))
                blocks.append(forms[value].blocks)
        names = [name for name, _ in (*definition.operands, *definition.results, *definition.regions)]
        for each in [*names, *definition.accessor_names]:
            if [*names, *definition.accessor_names].count(each) > 1:
                self.refuse(op, f'"{each}" is the name of two parts of "{name}"')

        def verify(self: IRDLOperation) -> None:
            for (region_name, _), region, expected in zip(definition.regions, self.regions, blocks, strict=True):
                if expected is not None and len(region.blocks) != expected:
                    raise VerifyException(f"region '{region_name}' has {len(region.blocks)} blocks, not {expected}")

        made = type(_class_name(op.sym_name.data, "Op"), (IRDLOperation,), {"name": name, "__doc__": ""})
        for member, value in get_accessors_from_op_def(definition, verify).items():
            setattr(made, member, value)
        return made

    def operands_of(self, op: irdl.OperandsOp | irdl.ResultsOp) -> list[tuple[str, str, SSAValue]]:
        names = [_free(each, IRDLOperation) for each in self.names_of(op, op.names, op.args)]
        kinds = [each.data.value for each in op.variadicity.value]
        if len(kinds) != len(names):
            self.refuse(op, f"there are {len(names)} names, and {len(kinds)} variadicities")
        return list(zip(names, kinds, op.args, strict=True))

    def region_forms(
        self, op: irdl.OperationOp, constraints: Mapping[SSAValue, AttrConstraint]
    ) -> dict[SSAValue, _RegionForm]:
        found: dict[SSAValue, _RegionForm] = {}
        for each in op.body.block.ops:
            if isinstance(each, irdl.RegionOp):
                arguments = Each(tuple(constraints[value] for value in each.entry_block_args))
                count = each.number_of_blocks
                found[each.output] = _RegionForm(
                    RangeOf(AnyAttr()) if each.constrained_arguments is None else arguments,
                    None if count is None else count.value.data,
                )
        return found

    # what definitions are made of

    def only(self, op: Operation, kind: type[Any]) -> Any:
        """The one op of a kind in a definition, or None."""
        found = [each for each in _body(op).ops if isinstance(each, kind)]
        if len(found) > 1:
            self.refuse(found[1], f"'{found[1].name}' is given twice", f"{self.parsed.place_of(found[0])}: before")
        return found[0] if found else None

    def names_of(self, op: Operation, names: ArrayAttr[StringAttr], values: Sequence[SSAValue]) -> list[str]:
        if len(names) != len(values):
            self.refuse(op, f"there are {len(names)} names, and {len(values)} constraints")
        found = [name.data for name in names]
        for name in found:
            if found.count(name) > 1:
                self.refuse(op, f'there are two of the name "{name}"')
            if not name.isidentifier() and not isinstance(op, irdl.AttributesOp):
                self.refuse(op, f'"{name}" is no name', "letters, digits and _, beginning with a letter")
        return found

    def constraints(self, definition: Operation) -> dict[SSAValue, AttrConstraint]:
        """What each value of a definition stands for."""
        found: dict[SSAValue, AttrConstraint] = {}
        for op in _body(definition).ops:
            for operand in op.operands:
                if not isinstance(operand.type, irdl.RegionType) and operand not in found:
                    self.refuse(op, "a constraint is used before it is defined, or in another definition")
            made = self.constraint(op, found)
            if made is not None:
                (value,) = op.results
                found[value] = made if isinstance(op, irdl.IsOp) else Same(f"{len(found)}", made)
        return found

    def constraint(self, op: Operation, known: Mapping[SSAValue, AttrConstraint]) -> AttrConstraint | None:
        match op:
            case irdl.AnyOp():
                return AnyAttr()
            case irdl.IsOp():
                return EqAttrConstraint(op.expected)
            case irdl.AnyOfOp():
                return OneOf(tuple(known[value] for value in op.args))
            case irdl.AllOfOp():
                return AllOf(tuple(known[value] for value in op.args))
            case irdl.BaseOp():
                return BaseAttr(self.base(op))
            case irdl.ParametricOp():
                base = self.defined(op, op.base_type)
                count = len(base.get_irdl_definition().parameters)
                if count != len(op.args):
                    self.refuse(op, f'"{base.name}" has {count} parameters, and {len(op.args)} are constrained')
                return ParamAttrConstraint(base, tuple(known[value] for value in op.args))
            case irdl.CPredOp():
                self.refuse(op, "a predicate in C++ cannot be checked here", "irdl.any takes its place")
            case irdl.ParametersOp() if isinstance(op.parent_op(), irdl.TypeOp | irdl.AttributeOp):
                return None
            case irdl.OperandsOp() | irdl.ResultsOp() | irdl.AttributesOp() | irdl.RegionsOp() | irdl.RegionOp() if (
                isinstance(op.parent_op(), irdl.OperationOp)
            ):
                return None
            case _:
                parent = cast(Operation, op.parent_op())
                self.refuse(op, f"'{op.name}' has no meaning in '{parent.name}'")

    def base(self, op: irdl.BaseOp) -> type[Attribute]:
        if op.base_ref is not None:
            return self.defined(op, op.base_ref)
        name = cast(StringAttr, op.base_name).data
        kind, rest = name[:1], name[1:]
        known: type[Attribute] | None = BUILTIN.get(name) or self.classes.get(rest)
        if known is None and "." in rest and not rest.startswith("builtin."):
            known = self.ctx.get_optional_type(rest) if kind == "!" else self.ctx.get_optional_attr(rest)
        if known is None or (kind == "!") != issubclass(known, TypeAttribute):
            every = [*BUILTIN, *(_sigil(each) + key for key, each in self.classes.items())]
            note = nearest_or_all(name, every, "those of this file and of MLIR")
            self.refuse(op, f'there is no type or attribute "{name}"', note)
        return known

    def defined(self, op: Operation, symbol: SymbolRefAttr) -> type[ParametrizedAttribute]:
        parts = [symbol.root_reference.data, *(part.data for part in symbol.nested_references)]
        if len(parts) == 1:
            parts.insert(0, cast(irdl.DialectOp, cast(Operation, op.parent_op()).parent_op()).sym_name.data)
        name = ".".join(parts)
        if name not in self.classes:
            note = nearest_or_all(name, list(self.classes), "the types and attributes of this file")
            self.refuse(op, f'there is no type or attribute "{name}"', note)
        return self.classes[name]


def _body(definition: Operation) -> Block:
    region: Region = definition.regions[0]
    return region.block


def _sigil(kind: type[Attribute]) -> str:
    return "!" if issubclass(kind, TypeAttribute) else "#"


def _class_name(name: str, suffix: str) -> str:
    words = name.replace(".", "_").split("_")
    return "".join(word[:1].upper() + word[1:] for word in words) + suffix


def _free(name: str, base: type[Any]) -> str:
    """A name for a member: one that Python, or the base class, has for something else gets an underscore."""
    return f"{name}_" if keyword.iskeyword(name) or hasattr(base, name) else name
