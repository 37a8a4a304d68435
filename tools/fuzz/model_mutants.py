# SPDX-License-Identifier: Apache-2.0
"""ONNX models of which a part is taken away, doubled, exchanged or given another size."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, numpy_helper

INTEGERS = (0, 1, -1, 2, 7, 1 << 31, -(1 << 63), (1 << 63) - 1)
SHAPES = ((), (0,), (1,), (2,), (1, 1), (3, 0), (1, 2, 3, 4, 5))


def mutated_model(rng: random.Random, model: ModelProto) -> ModelProto:
    """A copy with one or two changes."""
    changed = ModelProto()
    changed.CopyFrom(model)
    for _ in range(rng.choice((1, 1, 2))):
        rng.choice(CHANGES)(rng, changed)
    return changed


def _node(rng: random.Random, model: ModelProto) -> NodeProto:
    return rng.choice(list(model.graph.node))


def _change_inputs(rng: random.Random, model: ModelProto) -> None:
    """An input or an output less, one more, or another one; or another operator."""
    node = _node(rng, model)
    names: Any = rng.choice((node.input, node.input, node.input, node.output))
    known = [name for each in model.graph.node for name in (*each.input, *each.output)]
    match rng.randrange(4):
        case 0 if names:
            del names[rng.randrange(len(names))]
        case 1:
            names.append(rng.choice(known))
        case 2 if names:
            names[rng.randrange(len(names))] = rng.choice((*known, ""))
        case _:
            node.op_type = _node(rng, model).op_type


def _change_attribute(rng: random.Random, model: ModelProto) -> None:
    """An attribute less, or with another number, another count of numbers, or another type."""
    known = [node for node in model.graph.node if node.attribute]
    if not known:
        return
    attributes: Any = rng.choice(known).attribute
    attribute: AttributeProto = rng.choice(list(attributes))
    match rng.randrange(5):
        case 0:
            attributes.remove(attribute)
        case 1:
            attribute.type = rng.choice((AttributeProto.INT, AttributeProto.INTS, AttributeProto.STRING))
        case 2 if attribute.ints:
            del attribute.ints[rng.randrange(len(attribute.ints)) :]
        case 3 if attribute.ints:
            attribute.ints.append(rng.choice(INTEGERS))
        case _ if attribute.ints:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(INTEGERS)
        case _:
            attribute.i, attribute.f = rng.choice(INTEGERS), rng.choice((0.0, -1.0, float("nan"), 1e30))


def _change_weight(rng: random.Random, model: ModelProto) -> None:
    """A weight of another shape or another type, with integers that no shape, axis or index is, or none at all."""
    weights: Any = model.graph.initializer
    if not weights:
        return
    weight: TensorProto = rng.choice(list(weights))
    array: Any = numpy_helper.to_array(weight)
    match rng.randrange(5):
        case 0:
            weights.remove(weight)
            return
        case 1:
            del weight.dims[:]
            weight.dims.extend(rng.choice(SHAPES))
            return
        case 2 if array.dtype == np.int64 and array.size:
            array = array.copy()
            array.reshape(-1)[rng.randrange(array.size)] = rng.choice(INTEGERS)
        case 3:
            array = array.astype(rng.choice((np.int64, np.float32, np.int8, np.bool_, np.float16)))
        case _:
            array = np.resize(array, rng.choice(SHAPES)) if array.size else np.zeros(rng.choice(SHAPES), array.dtype)
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))


def _change_type(rng: random.Random, model: ModelProto) -> None:
    """An input or output of the model of another rank, size or type of elements; or another operator set."""
    value: Any = rng.choice((*model.graph.input, *model.graph.output))
    type = value.type.tensor_type
    match rng.randrange(4):
        case 0:
            type.elem_type = rng.choice((TensorProto.INT64, TensorProto.FLOAT16, TensorProto.BOOL, TensorProto.STRING))
        case 1 if type.shape.dim:
            del type.shape.dim[rng.randrange(len(type.shape.dim))]
        case 2 if type.shape.dim:
            rng.choice(list(type.shape.dim)).dim_value = rng.choice((0, 1, 3, -1, 1 << 40))
        case _:
            model.opset_import[0].version = rng.choice((1, 7, 9, 10, 11, 13, 17, 18, 21, 99))


CHANGES = (_change_inputs, _change_attribute, _change_attribute, _change_weight, _change_weight, _change_type)
