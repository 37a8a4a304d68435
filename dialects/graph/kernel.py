# SPDX-License-Identifier: Apache-2.0
"""Kernels that are written below graph level, as operators of a graph."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntegerType, ModuleOp, SymbolRefAttr, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    prop_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import Pure, SymbolTable, SymbolUserOpInterface
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from penstock.dialects.graph.base import TENSOR, Value, is_unsigned, require

__all__ = ["KernelOp", "called_kernels"]


def _stored_type(type: Attribute) -> Attribute:
    """The type of a tensor below graph level, where integers are signless."""
    if not isa(type, TensorType):
        return type
    element = type.element_type
    if not isa(element, IntegerType) or not is_unsigned(element):
        return type
    return TensorType(IntegerType(element.width.data), type.get_shape())


class _CallsKernel(SymbolUserOpInterface):
    """Verifies that the kernel is there and is of the types of its operands and results."""

    def verify(self, op: Operation) -> None:
        assert isinstance(op, KernelOp)
        kernel = SymbolTable.lookup_symbol(op, op.callee)
        name = op.callee.string_value()
        if not isinstance(kernel, FuncOp):
            raise VerifyException(f"{op.name}: the module has no kernel @{name}; --kernels FILE.pk gives some")
        for what, given, taken in (
            ("operands", op.operand_types, kernel.function_type.inputs),
            ("results", op.result_types, kernel.function_type.outputs),
        ):
            found, wanted = ([str(_stored_type(each)) for each in types] for types in (given, taken))
            require(
                found == wanted, f"{op.name} has ({', '.join(found)}) as {what}, and @{name} has ({', '.join(wanted)})"
            )


@irdl_op_definition
class KernelOp(IRDLOperation):
    """
    A kernel that stands in the module as a function at tensor level, such as one of the kernel language.

    Its types are those of the function, but for the sign of integers, which are signless there. It is opaque: nothing
    is fused with it.
    """

    name = "graph.kernel"

    callee = prop_def(SymbolRefAttr)
    """The function."""
    inputs = var_operand_def(TENSOR)
    """What the kernel reads."""
    outputs = var_result_def(TENSOR)
    """Its results."""

    traits = traits_def(Pure(), _CallsKernel())
    assembly_format = "$callee `(` $inputs `)` attr-dict `:` functional-type($inputs, $outputs)"

    def __init__(self, callee: str, inputs: Sequence[Value], result_types: Sequence[Attribute]):
        super().__init__(operands=[inputs], result_types=[result_types], properties={"callee": SymbolRefAttr(callee)})


def called_kernels(module: ModuleOp) -> set[str]:
    """The names of the functions that a graph has as operators: they are at tensor level from the start."""
    return {op.callee.string_value() for op in module.walk() if isinstance(op, KernelOp)}
