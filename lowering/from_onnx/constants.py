# SPDX-License-Identifier: Apache-2.0
"""
Evaluation of nodes whose inputs are all known at import: shape arithmetic and rearranged weights.

ONNX's own reference evaluator computes them, so an operator means what its operator set says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from onnx import NodeProto, TypeProto, helper
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.element_bits import is_narrow_integer
from penstock.dialects.weights import Array
from penstock.lowering.from_onnx.node import DOMAINS, to_array

SMALL = 4096
"""Floats are computed at import up to this many elements; more is for the pass that folds constants."""

MISJUDGED = frozenset({"GRU", "LRN", "LSTM", "LogSoftmax", "RNN", "Softmax"})
"""What the reference evaluator computes otherwise than older operator sets say, wrongly, or only in part."""

MOVES = frozenset(
    {
        "Cast",
        "CastLike",
        "Concat",
        "ConstantOfShape",
        "Flatten",
        "Gather",
        "Identity",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)
"""Operators that compute nothing: they are evaluated whatever the size."""

FROM_CONSTANTS = frozenset({"MelWeightMatrix", "NonZero", "Range"})
"""Operators whose result has a shape that depends on values, and tables: they can only be evaluated at import."""

_NOT_A_FUNCTION = ("Random", "Bernoulli", "Multinomial", "Dropout")


def is_foldable(proto: NodeProto, inputs: Sequence[Array | None], importable: bool) -> bool:
    """
    Whether a node, whose inputs are all arrays, is evaluated at import.

    What is not `importable` is evaluated whatever it is, since there is no other way.
    """
    if proto.domain not in DOMAINS or proto.op_type.startswith(_NOT_A_FUNCTION):
        return False
    if any(attribute.HasField("g") for attribute in proto.attribute):
        return False
    if proto.op_type in ("Constant", *MOVES):
        return True
    if proto.op_type == "Expand" and importable and inputs[0] is not None and inputs[0].dtype.kind not in "iub":
        # Whether its size is known must not decide what it becomes; the pass that folds constants computes it.
        return False
    if not inputs or not importable:
        return bool(inputs)
    given = [array for array in inputs if array is not None]
    if any(is_narrow_integer(array.dtype) for array in given):
        # Weights of less than a byte stay what they are, and are unpacked when the program runs.
        return False
    if all(array.dtype.kind in "iub" for array in given):
        return True
    return proto.op_type not in MISJUDGED and all(array.size <= SMALL for array in given)


def constant_node(proto: NodeProto) -> Array | None:
    """
    The array of a Constant node, or None for the forms that are left to the reference evaluator.

    Raises VerifyException unless it has exactly one value.
    """
    if len(proto.attribute) != 1:
        names = " and ".join(attribute.name for attribute in proto.attribute) or "none"
        raise VerifyException(f"it takes one attribute, its value, and has {names}")
    (attribute,) = proto.attribute
    return to_array(attribute.t) if attribute.name == "value" else None


def evaluate(proto: NodeProto, opset: int, inputs: Sequence[Array | None]) -> Sequence[Array] | None:
    """The outputs of a node, or None if the reference evaluator does not compute it."""
    if proto.op_type == "Constant" and (array := constant_node(proto)) is not None:
        return [array]
    # Imported here, because it takes longer to load than most models to import.
    from onnx.reference import ReferenceEvaluator

    given = {name: array for name, array in zip(proto.input, inputs, strict=True) if array is not None}
    outputs = [name for name in proto.output if name]
    graph = helper.make_graph(
        [proto],
        "constant",
        [helper.make_value_info(name, TypeProto()) for name in given],
        [helper.make_value_info(name, TypeProto()) for name in outputs],
    )
    try:
        with np.errstate(all="ignore"):
            evaluator = ReferenceEvaluator(graph, opsets={"": opset})
            run = cast(Callable[[None, dict[str, Array]], list[Any]], cast(Any, evaluator).run)
            results = run(None, given)
    except Exception:
        # Whatever it stumbles over, the importer of the operator has the better message.
        return None
    if not all(isinstance(result, np.ndarray | np.generic) for result in results):
        return None
    computed = dict(zip(outputs, (np.asarray(result) for result in results), strict=True))
    return [computed[name] if name else np.empty(0) for name in proto.output]
