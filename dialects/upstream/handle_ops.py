# SPDX-License-Identifier: Apache-2.0
"""What ops on the handles of MLIR's `transform` dialect have in common, upstream's and those of `schedule`."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from operator import index
from typing import SupportsIndex

from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseArrayBase, DictionaryAttr, IntegerAttr, StringAttr, UnitAttr, i64
from xdsl.dialects.transform import AnyOpType, AnyParamType
from xdsl.dialects.utils import split_dynamic_index_list
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import IRDLOperation, ParsePropInAttrDict, VarResultDef

ANY_OP = AnyOpType()
ANY_PARAM = AnyParamType()
I64 = IntegerAttr.constr(i64)
I64_ARRAY = DenseArrayBase.constr(i64)

FUNCTIONAL = "$target attr-dict `:` functional-type(operands, results)"
"""The text of most of upstream's ops: a target, options, and the types of the handles."""

Value = Attribute | int | str | Sequence[int] | Mapping[str, int] | None
"""A property as Python says it."""


def split_sizes(sizes: Sequence[int | SSAValue]) -> tuple[list[int], list[SSAValue]]:
    """Sizes as an op stores them, and those that are parameters. Raises TypeError for one that is no whole number."""
    whole = [size if isinstance(size, SSAValue) else index(size) for size in sizes]
    return split_dynamic_index_list(whole, DYNAMIC_INDEX)


class HandleOp(IRDLOperation, ABC):
    """
    An op that takes handles, and returns handles of type `!transform.any_op`.

    A subclass declares its fields and its `assembly_format`, and has this constructor: operands by position, an
    optional one that is left out is absent; properties by name. The properties that the format does not name are
    part of the attribute dictionary.
    """

    irdl_options = (ParsePropInAttrDict(),)

    def __init__(self, *operands: SSAValue | Sequence[SSAValue] | None, handles: int = 0, **properties: Value):
        """
        A property is a number (i64), a string, a list of numbers (array<i64>), numbers by name, any attribute, or
        whether a unit attribute is there; `None` where it is absent. `handles` is how many handles a variadic result
        has.
        """
        definition = self.get_irdl_definition()
        absent = [None] * (len(definition.operands) - len(operands))
        super().__init__(
            operands=[*operands, *absent],
            properties={name: _attribute(value) for name, value in properties.items()},
            result_types=[
                [ANY_OP] * handles if isinstance(result, VarResultDef) else ANY_OP for _, result in definition.results
            ],
        )
        for (name, kind), result in zip(definition.results, self.results, strict=False):
            if not isinstance(kind, VarResultDef):
                result.name_hint = name


def _attribute(value: Value) -> Attribute | None:
    if value is None or isinstance(value, Attribute):
        return value
    if isinstance(value, bool):
        return UnitAttr() if value else None
    if isinstance(value, str):
        return StringAttr(value)
    if isinstance(value, SupportsIndex):  # an int, or one of NumPy's
        return IntegerAttr(index(value), i64)
    if isinstance(value, Mapping):
        return DictionaryAttr({name: IntegerAttr(index(number), i64) for name, number in value.items()})
    return DenseArrayBase.from_list(i64, [index(number) for number in value])
