# SPDX-License-Identifier: Apache-2.0
"""Models of operator sets that are too old, brought up to date by ONNX's converter."""

from __future__ import annotations

from onnx import GraphProto, ModelProto, NodeProto, helper, shape_inference, version_converter

from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.lowering.from_onnx.model import OLDEST_OPSET
from penstock.lowering.from_onnx.node import DOMAINS

MODERN_OPSET = 13
"""What they are brought up to: the converter does not know how to go further for every operator."""


def upgraded(model: ModelProto, place: str) -> ModelProto:
    """
    The model, or one of operator set 13 that means the same, if its operator set is too old.

    Raises UserError, with status 3, for what the converter cannot convert.
    """
    if all(entry.domain not in DOMAINS or entry.version >= OLDEST_OPSET for entry in model.opset_import):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    try:
        _spread_slopes(copy)
        return version_converter.convert_version(copy, MODERN_OPSET)
    except Exception as error:
        # The converter raises what its C++ raises.
        reason = str(error).strip().splitlines()[:1]
        raise UserError(
            f"the model cannot be brought to operator set {MODERN_OPSET}", loc=place, notes=reason, status=UNSUPPORTED
        ) from None


def _spread_slopes(model: ModelProto) -> None:
    """Give each slope of PRelu, once one number a channel, the shape with which it broadcasts today."""
    graph = shape_inference.infer_shapes(model).graph
    ranks = {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.tensor_type.HasField("shape")
    }
    ranks |= {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        if node.op_type == "PRelu" and node.domain in DOMAINS and len(node.input) == 2:
            x, slope = node.input
            if ranks.get(slope) == 1 and ranks.get(x, 0) > 2:
                name = _fresh(f"{slope}.spread", model.graph, nodes)
                nodes.append(helper.make_node("Unsqueeze", [slope], [name], axes=list(range(1, ranks[x] - 1))))
                node.input[1] = name
        nodes.append(node)
    kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(kept)


def _fresh(wanted: str, graph: GraphProto, made: list[NodeProto]) -> str:
    """`wanted`, or that with a number, such that no value of the graph has the name."""
    used = {name for node in (*graph.node, *made) for name in (*node.input, *node.output)}
    used |= {each.name for each in (*graph.input, *graph.output, *graph.initializer)}
    return next(name for name in (wanted, *(f"{wanted}.{n}" for n in range(len(used)))) if name not in used)
