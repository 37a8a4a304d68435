# SPDX-License-Identifier: Apache-2.0
"""Kernels below graph level as operators of a graph."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.element_bits import stored
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph.base import tensor_of
from penstock.dialects.graph.kernel import KernelOp
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.graph.registry import implements
from penstock.runtime.interpreter.values import dtype_of


@implements(KernelOp)
def kernel(op: KernelOp, operands: Sequence[Array]) -> tuple[Array, ...]:
    """What the function of the kernel computes, on integers of its own sign."""
    # Other operators do without the interpreter of the levels below.
    from penstock.runtime.interpreter import below_graph  # noqa: F401  # pyright: ignore[reportUnusedImport]
    from penstock.runtime.interpreter.execution import Execution

    module = op.get_toplevel_object()
    assert isinstance(module, ModuleOp)
    execution = Execution(module)
    name = op.callee.string_value()
    types = [tensor_of(argument).element_type for argument in execution.function(name, op).args]
    given = [stored(array).view(dtype_of(type, op)) for array, type in zip(operands, types, strict=True)]
    found = execution.run(name, given)
    return tuple(
        array.view(numpy_dtype(tensor_of(result).element_type)) for array, result in zip(found, op.results, strict=True)
    )
