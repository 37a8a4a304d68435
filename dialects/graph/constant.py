# SPDX-License-Identifier: Apache-2.0
"""Constants: weights in the store beside the text, and small tensors in the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

from xdsl.dialects.builtin import AnyFloat, BytesAttr, DenseIntOrFPElementsAttr, TensorType
from xdsl.ir import Attribute
from xdsl.irdl import AnyOf, BaseAttr, irdl_op_definition, prop_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.graph.base import (
    GraphOp,
    HasPatternKind,
    PatternKind,
    Tensor,
    WeightAttr,
    require,
)

if TYPE_CHECKING:
    from penstock.dialects.weights import Array

Dense: TypeAlias = DenseIntOrFPElementsAttr


def dense_of(array: Array) -> Dense | None:
    """
    `array` as it may stand in the text, or None if it belongs into the weight store, as different floats do: the text
    is to stay small.

    Raises ValueError for elements that no element type holds.
    """
    from penstock.dialects.element_types import element_type

    element = element_type(array.dtype)
    tensor = TensorType(element, array.shape)
    if isinstance(element, AnyFloat):
        value = cast(Dense, DenseIntOrFPElementsAttr(cast(Any, tensor), BytesAttr(array.tobytes())))
        return value if value.is_splat() else None
    numbers = [int(number) for number in array.ravel().tolist()]
    return cast(Dense, Dense.from_list(tensor, numbers))  # pyright: ignore


@irdl_op_definition
class ConstantOp(GraphOp):
    """
    A constant: an entry of the weight store, or a small tensor in the text.

    Its syntax is `graph.constant attr-dict $value : type($result)`.
    """

    name = "graph.constant"

    value = prop_def(AnyOf((BaseAttr(WeightAttr), BaseAttr(Dense))))
    """The entry, or the elements."""

    traits = traits_def(HasPatternKind(PatternKind.OPAQUE))

    def __init__(self, value: WeightAttr | Dense, result_type: Tensor | None = None):
        super().__init__(value=value, result_type=result_type)

    @classmethod
    def infer(cls, value: WeightAttr | Dense) -> Tensor:
        """The type of a dense value; that of a weight is known to the store only."""
        if isinstance(value, WeightAttr):
            raise VerifyException("the constant of a weight needs an explicit result type")
        held = cast(Attribute, value.type)
        require(isinstance(held, TensorType), lambda: f"a constant is a tensor, not a {held}")
        return cast(Tensor, held)

    @property
    def weight(self) -> str | None:
        """The name of the weight, or None for a constant in the text."""
        return self.value.key.data if isinstance(self.value, WeightAttr) else None

    @property
    def dense(self) -> Dense:
        """The value in the text; raises VerifyException for a weight."""
        if isinstance(self.value, WeightAttr):  # every verification comes here: the message is written only if needed
            raise VerifyException(f"this constant is the weight {self.value}")
        return self.value

    def infer_type(self) -> Tensor:
        return self.result_type if self.weight is not None else self.infer(self.dense)

    @classmethod
    def parse(cls, parser: Parser) -> ConstantOp:
        attributes = parser.parse_optional_attr_dict()
        value = parser.parse_attribute()
        if isinstance(value, WeightAttr):
            parser.parse_punctuation(":")
            result_type = parser.parse_type()
        elif isinstance(value, DenseIntOrFPElementsAttr):
            result_type = cast(Attribute, cast(Dense, value).type)
        else:
            parser.raise_error("expected #graph.weight<...> or dense<...>")
        properties = {"value": cast(Attribute, value)}
        return cls.build(result_types=[result_type], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_op_attributes(self.attributes)
        printer.print_string(" ")
        printer.print_attribute(self.value)
        if isinstance(self.value, WeightAttr):
            printer.print_string(" : ")
            printer.print_attribute(self.result.type)
