# SPDX-License-Identifier: Apache-2.0
"""Nodes of the domain `penstock`, whose operators are kernels of the kernel language."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

import onnx
from onnx import ModelProto, NodeProto, inliner
from xdsl.ir import SSAValue
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.diagnostics import UserError
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import require
from penstock.dialects.graph.kernel import KernelOp
from penstock.dialects.graph.sizes import Dim, UnknownSize
from penstock.lowering.from_kernel.calls import CalledKernels, called_kernels_of
from penstock.lowering.from_onnx.node import Held, OnnxNode, called
from penstock.lowering.from_onnx.structure import inner_graphs
from penstock.lowering.from_text import SourceText

if TYPE_CHECKING:
    from penstock.lowering.from_kernel.lower import KernelFile

DOMAIN = "penstock"
"""Of nodes whose operator is the name of a kernel."""
METADATA = "penstock_kernels"
"""Under this key a model may carry a text of kernels of its own."""


def call_kernel(kernels: CalledKernels, node: OnnxNode) -> Sequence[Held | None]:
    """
    The results of a node. Its attributes are constants of the kernel, and its operands say the sizes.

    Raises UserError, at the token of the text, for operands that do not fit each other, and VerifyException for what is
    wrong with the node.
    """
    name = node.proto.op_type
    if name not in kernels.by_name:
        error = VerifyException(f'there is no kernel "{name}"')
        error.add_note(kernels.unknown(name))
        raise error
    _, kernel = kernels.by_name[name]
    operands, results = node.values(), len(node.proto.output)
    count = len(kernel.parameters)
    require(len(operands) == count, f"it has {len(operands)} operands, and the kernel {count}")
    require(results <= len(kernel.results), f"it has {results} results, and the kernel {len(kernel.results)}")
    shapes = [_known_shape(value) for value in operands]
    function = kernels.function(name, shapes, _constants(node), called(node.proto))
    inputs, outputs = kernels.types(name, function)
    for value, wanted, parameter in zip(operands, inputs, kernel.parameters, strict=True):
        require(value.type == wanted, f'"{parameter.name}" is {wanted}, and the operand {value.type}')
    call = KernelOp(function.sym_name.data, operands, outputs)
    node.builder.append(call, node.name)
    return list(call.outputs)


def kernels_of(model: ModelProto, given: Sequence[KernelFile], place: str) -> CalledKernels:
    """
    The kernels of the files `given`, and those of a text that the model carries under `penstock_kernels`.

    Raises UserError, at its token, for a text that is wrong, and for a kernel that two of them have.
    """
    texts = [each.value for each in model.metadata_props if each.key == METADATA]
    files = list(given)
    if texts:
        from penstock.lowering.from_kernel.lower import KernelFile

        files += (KernelFile(SourceText(f"{place}[{METADATA}]", text)) for text in texts)
    return called_kernels_of(files)


def nodes_in(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Nodes and all that stand in graphs inside them."""
    for node in nodes:
        yield node
        for graph in inner_graphs(node):
            yield from nodes_in(graph.node)


def without_functions(model: ModelProto, kernels: CalledKernels, place: str) -> ModelProto:
    """
    The model with its functions written into their callers, but for those in whose place there are kernels.

    Raises UserError, located at `place`, for functions that call each other in a circle.
    """
    if not model.functions:
        return model
    calls = {
        (each.domain, each.name): [(node.domain, node.op_type) for node in nodes_in(each.node)]
        for each in model.functions
    }
    known = {name: [each for each in called if each in calls] for name, called in calls.items()}
    try:
        TopologicalSorter(known).prepare()
    except CycleError as error:
        circle = " -> ".join(name for _, name in reversed(error.args[1]))
        raise UserError(f"functions of the model call each other in a circle: {circle}", loc=place) from None
    return inliner.inline_selected_functions(model, [(DOMAIN, name) for name in kernels.by_name], exclude=True)


def _known_shape(value: SSAValue) -> tuple[int, ...]:
    shape = tensor_of(value).get_shape()
    for size in shape:
        if isinstance(size, Dim):
            raise UnknownSize(size, "is a size of the kernel, which must be known")
    return shape


def _constants(node: OnnxNode) -> dict[str, int]:
    """The attributes of a node."""
    found: dict[str, int] = {}
    for attribute in node.proto.attribute:
        value: Any = onnx.helper.get_attribute_value(attribute)
        require(isinstance(value, int), f'its attribute "{attribute.name}" is no integer, as constants of kernels are')
        found[attribute.name] = value
    return found
