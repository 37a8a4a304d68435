# SPDX-License-Identifier: Apache-2.0
"""
The arith dialect with what xDSL 0.74 lacks of MLIR's: `arith.remf`; comparisons, selections and casts of vectors and
tensors; the fast-math flags and the rounding mode of casts. See https://mlir.llvm.org/docs/Dialects/ArithOps
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import arith
from xdsl.dialects.arith import (
    CMPF_COMPARISON_OPERATIONS,
    CMPI_COMPARISON_OPERATIONS,
    Arith,
    CmpfOp,
    CmpiOp,
    FastMathFlagsAttr,
    FloatingPointLikeBinaryOperation,
    SelectOp,
    floatingPointLike,
    signlessIntegerLike,
)
from xdsl.dialects.builtin import IntegerAttr, IntegerType, TensorType, VectorType, container_of, i1, i32, i64
from xdsl.ir import Attribute, Dialect, Operation
from xdsl.irdl import BaseAttr, irdl_op_definition, traits_def
from xdsl.parser import Parser
from xdsl.pattern_rewriter import PatternRewriter
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.transforms.canonicalization_patterns.arith import ApplyCmpiPredicateToEqualOperands
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa
from xdsl.utils.type import get_element_type_or_self, have_compatible_shape

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.upstream import amend


@irdl_op_definition
class RemFOp(FloatingPointLikeBinaryOperation):
    """The remainder of two floats, exact, with the sign of the dividend: C's `fmod`."""

    name = "arith.remf"

    traits = traits_def(Pure())


ROUNDING_MODES = ("to_nearest_even", "downward", "upward", "toward_zero", "to_nearest_away")
"""How `arith.truncf` rounds, by the numbers that its property has; without one it is to nearest even."""


def _with_element(type: Attribute, element: Attribute) -> Attribute:
    """`element`, or the vector or tensor of it that is shaped as `type`."""
    if isa(type, VectorType):
        return VectorType(element, type.shape, type.scalable_dims)
    return TensorType(element, type.shape, type.encoding) if isa(type, TensorType) else element


# Comparisons and selections


def _check_comparison(op: CmpiOp | CmpfOp) -> None:
    if op.lhs.type != op.rhs.type:
        raise VerifyException(f"compares {op.lhs.type} with {op.rhs.type}")
    if op.result.type != (wanted := _with_element(op.lhs.type, i1)):
        raise VerifyException(f"results in {op.result.type}, and not in {wanted}")


def _comparing(names: Sequence[str]) -> Callable[[type[Operation], Parser], Operation]:
    def parse(cls: type[Operation], parser: Parser) -> Operation:
        start = parser.pos
        if (name := parser.parse_identifier()) not in names:
            parser.raise_error(f"a predicate is one of {', '.join(names)}", start, parser.pos)
        properties: dict[str, Attribute] = {"predicate": IntegerAttr(names.index(name), i64)}
        parser.parse_punctuation(",")
        operands = [parser.parse_unresolved_operand()]
        parser.parse_punctuation(",")
        operands.append(parser.parse_unresolved_operand())
        if cls is CmpfOp:
            flags = FastMathFlagsAttr("none")
            if parser.parse_optional_keyword("fastmath") is not None:
                flags = FastMathFlagsAttr(FastMathFlagsAttr.parse_parameter(parser))
            properties["fastmath"] = flags
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type = parser.parse_type()
        values = parser.resolve_operands(operands, [type, type], start)
        return cls.create(
            operands=values, result_types=[_with_element(type, i1)], properties=properties, attributes=attributes
        )

    return parse


def _printing(names: Sequence[str]) -> Callable[[CmpiOp | CmpfOp, Printer], None]:
    def print_(self: CmpiOp | CmpfOp, printer: Printer) -> None:
        printer.print_string(f" {names[self.predicate.value.data]}, ")
        printer.print_list(self.operands, printer.print_operand)
        if isinstance(self, CmpfOp) and self.fastmath != FastMathFlagsAttr("none"):
            printer.print_string(" fastmath")
            self.fastmath.print_parameter(printer)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.lhs.type)

    return print_


for _op, _element, _names in (
    (CmpiOp, signlessIntegerLike, CMPI_COMPARISON_OPERATIONS),
    (CmpfOp, floatingPointLike, CMPF_COMPARISON_OPERATIONS),
):
    amend.values(_op, lhs=_element, rhs=_element, result=container_of(i1))
    amend.check(_op, _check_comparison)
    setattr(_op, "parse", classmethod(_comparing(_names)))
    setattr(_op, "print", _printing(_names))


def _check_select(op: SelectOp) -> None:
    if op.cond.type != i1 and op.cond.type != (wanted := _with_element(op.result.type, i1)):
        raise VerifyException(f"selects by {op.cond.type}, and not by {wanted}")


def _parse_select(cls: type[SelectOp], parser: Parser) -> SelectOp:
    start = parser.pos
    operands = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
    if len(operands) != 3:
        parser.raise_error(f"it has 3 operands, not {len(operands)}", start, parser.pos)
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    condition, type = i1, parser.parse_type()
    if parser.parse_optional_punctuation(",") is not None:
        condition, type = type, parser.parse_type()
    values = parser.resolve_operands(operands, [condition, type, type], start)
    return cls.create(operands=values, result_types=[type], attributes=attributes)


def _print_select(self: SelectOp, printer: Printer) -> None:
    printer.print_string(" ")
    printer.print_list(self.operands, printer.print_operand)
    printer.print_op_attributes(self.attributes)
    printer.print_string(" : ")
    if self.cond.type != i1:
        printer.print_attribute(self.cond.type)
        printer.print_string(", ")
    printer.print_attribute(self.result.type)


amend.values(SelectOp, cond=container_of(i1))
amend.check(SelectOp, _check_select)
setattr(SelectOp, "parse", classmethod(_parse_select))
setattr(SelectOp, "print", _print_select)

_fold_comparison = ApplyCmpiPredicateToEqualOperands.match_and_rewrite


def _fold_scalar_comparison(self: ApplyCmpiPredicateToEqualOperands, op: Operation, rewriter: PatternRewriter) -> None:
    """Of scalars only: the constant that xDSL puts in its place is one."""
    if op.results and op.results[0].type == i1:
        _fold_comparison(self, op, rewriter)  # pyright: ignore[reportArgumentType]


setattr(ApplyCmpiPredicateToEqualOperands, "match_and_rewrite", _fold_scalar_comparison)


# Casts

_INTEGER = container_of(BaseAttr(IntegerType))


def _check_shapes(op: arith.IndexCastOp | arith.ExtFOp) -> None:
    if not have_compatible_shape(op.input.type, op.result.type):
        raise VerifyException(f"casts {op.input.type} to the other shape of {op.result.type}")


def _bits(type: Attribute) -> int:
    found = get_element_type_or_self(type)
    return found.width.data if isa(found, IntegerType) else 0


def _check_wider(op: arith.ExtSIOp | arith.ExtUIOp) -> None:
    if _bits(op.result.type) <= _bits(op.input.type):
        raise VerifyException("Destination bit-width must be larger than the input bit-width")


def _check_narrower(op: arith.TruncIOp) -> None:
    if _bits(op.result.type) >= _bits(op.input.type):
        raise VerifyException("Destination bit-width must be smaller than the input bit-width")


def _check_index(op: arith.IndexCastOp) -> None:
    kinds = [isinstance(get_element_type_or_self(value.type), IntegerType) for value in (op.input, op.result)]
    if kinds[0] == kinds[1]:
        raise VerifyException(f"casts {op.input.type} to {op.result.type}, of which one has to be of index")


for _cast, _from, _to, _check in (
    (arith.IndexCastOp, signlessIntegerLike, signlessIntegerLike, (_check_shapes, _check_index)),
    (arith.ExtSIOp, _INTEGER, _INTEGER, (_check_shapes, _check_wider)),
    (arith.ExtUIOp, _INTEGER, _INTEGER, (_check_shapes, _check_wider)),
    (arith.TruncIOp, _INTEGER, _INTEGER, (_check_shapes, _check_narrower)),
    (arith.FPToSIOp, floatingPointLike, _INTEGER, (_check_shapes,)),
    (arith.FPToUIOp, floatingPointLike, _INTEGER, (_check_shapes,)),
    (arith.SIToFPOp, _INTEGER, floatingPointLike, (_check_shapes,)),
    (arith.UIToFPOp, _INTEGER, floatingPointLike, (_check_shapes,)),
):
    amend.values(_cast, input=_from, result=_to)
    amend.check(_cast, *_check)


def _check_mode(op: Operation) -> None:
    mode = op.properties.get("roundingmode")
    if mode is not None and mode not in [IntegerAttr(number, i32) for number in range(len(ROUNDING_MODES))]:
        raise VerifyException(f"the rounding mode {mode} is not a number of {', '.join(ROUNDING_MODES)}")


def refuse_rounding_mode(op: Operation) -> None:
    """Raise UserError for a cast that says how it rounds, if that is not to nearest even: nothing here does it."""
    mode = op.properties.get("roundingmode")
    if isa(mode, IntegerAttr) and mode.value.data != 0:
        raise UserError(
            f"{op.name} that rounds {ROUNDING_MODES[mode.value.data]} is not supported",
            loc=location_of(op),
            status=UNSUPPORTED,
            notes=["without a mode it rounds to nearest even"],
        )


def _parse_cast(cls: type[arith.ExtFOp | arith.TruncFOp], parser: Parser) -> arith.ExtFOp | arith.TruncFOp:
    operand = parser.parse_unresolved_operand()
    properties: dict[str, Attribute] = {}
    for number, mode in enumerate(ROUNDING_MODES if cls is arith.TruncFOp else ()):
        if parser.parse_optional_keyword(mode) is not None:
            properties["roundingmode"] = IntegerAttr(number, i32)
    if parser.parse_optional_keyword("fastmath") is not None:
        properties["fastmath"] = FastMathFlagsAttr(FastMathFlagsAttr.parse_parameter(parser))
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    value = parser.resolve_operand(operand, parser.parse_type())
    parser.parse_keyword("to")
    return cls.create(
        operands=[value], result_types=[parser.parse_type()], properties=properties, attributes=attributes
    )


def _print_cast(self: arith.ExtFOp | arith.TruncFOp, printer: Printer) -> None:
    printer.print_string(" ")
    printer.print_operand(self.input)
    if isa(mode := self.properties.get("roundingmode"), IntegerAttr):
        printer.print_string(f" {ROUNDING_MODES[mode.value.data]}")
    if isinstance(flags := self.properties.get("fastmath"), FastMathFlagsAttr):
        printer.print_string(" fastmath")
        flags.print_parameter(printer)
    printer.print_op_attributes(self.attributes)
    printer.print_string(" : ")
    printer.print_attribute(self.input.type)
    printer.print_string(" to ")
    printer.print_attribute(self.result.type)


amend.optional_property(arith.TruncFOp, "roundingmode", BaseAttr(IntegerAttr))
for _cast in (arith.ExtFOp, arith.TruncFOp):
    amend.optional_property(_cast, "fastmath", BaseAttr(FastMathFlagsAttr))
    amend.check(_cast, _check_shapes, _check_mode)
    setattr(_cast, "parse", classmethod(_parse_cast))
    setattr(_cast, "print", _print_cast)

DIALECT = Dialect("arith", [*Arith.operations, RemFOp], list(Arith.attributes))
"""xDSL's arith dialect with `arith.remf`."""
