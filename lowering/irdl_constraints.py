# SPDX-License-Identifier: Apache-2.0
"""The constraints of MLIR's IRDL dialect as MLIR checks them, where those of xDSL differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from xdsl.ir import Attribute
from xdsl.irdl import (
    AttrConstraint,
    AttrSizedOperandSegments,
    AttrSizedResultSegments,
    EqAttrConstraint,
    RangeConstraint,
    VarConstraint,
    VerificationContext,
)
from xdsl.utils.exceptions import VerifyException


@dataclass(frozen=True)
class OneOf(AttrConstraint):
    """The first of several constraints that holds; xDSL's own takes none that share a class, as i32 and i64 do."""

    choices: tuple[AttrConstraint, ...]

    def verify(self, attr: Attribute, constraint_context: VerificationContext) -> None:
        for choice in self.choices:
            trial = VerificationContext()
            for name in constraint_context.attr_variables:
                trial.set_attr_variable(name, cast(Attribute, constraint_context.get_variable(name)))
            try:
                choice.verify(attr, trial)
            except VerifyException:
                continue
            for name in trial.attr_variables:
                constraint_context.set_attr_variable(name, cast(Attribute, trial.get_variable(name)))
            return
        may_be = [str(each.attr) for each in self.choices if isinstance(each, EqAttrConstraint)]
        complete = len(may_be) == len(self.choices)
        raise VerifyException(f"{attr} is none of {', '.join(may_be) if complete else 'those that it may be'}")

    def mapping_type_vars(self, type_var_mapping: Mapping[Any, Any]) -> OneOf:
        return self


@dataclass(frozen=True)
class Same(VarConstraint[Attribute]):
    """A constraint of a definition: wherever it is used, for each of a variadic operand too, it is one attribute."""

    def verify(self, attr: Attribute, constraint_context: VerificationContext) -> None:
        known = constraint_context.get_variable(self.name)
        if known is not None and known != attr:
            raise VerifyException(f"{attr} is not {known}, which the same constraint stands for elsewhere")
        super().verify(attr, constraint_context)


@dataclass(frozen=True)
class Each(RangeConstraint):
    """So many attributes, each with its constraint: the types of the arguments of a block."""

    constraints: tuple[AttrConstraint, ...]

    def verify(self, attrs: Sequence[Attribute], constraint_context: VerificationContext) -> None:
        self.verify_length(len(attrs), constraint_context)
        for constraint, attr in zip(self.constraints, attrs, strict=True):
            constraint.verify(attr, constraint_context)

    def verify_length(self, length: int, constraint_context: VerificationContext) -> None:
        if length != len(self.constraints):
            raise VerifyException(f"{len(self.constraints)} block arguments expected, but got {length}")

    def mapping_type_vars(self, type_var_mapping: Mapping[Any, Any]) -> Each:
        return self


class OperandSizes(AttrSizedOperandSegments):
    """How many operands are of which name; operations of IRDL files have the attribute by this name in MLIR."""

    attribute_name = "operand_segment_sizes"


class ResultSizes(AttrSizedResultSegments):
    """The same of results."""

    attribute_name = "result_segment_sizes"
