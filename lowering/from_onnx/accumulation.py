# SPDX-License-Identifier: Apache-2.0
"""
Operators that become several ops with sums or products among them: of narrow floats, all in f32 and rounded once.

An op that sums does so in f32 by itself (`element_types.accumulator_of`), but what is before it, such as a square,
and what goes on from one sum to the next would be rounded on the way. f16 ends at 65504: 256 squared is beyond it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import Attribute, SSAValue

from penstock.dialects.accumulators import accumulator_of
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import is_integer
from penstock.lowering.from_onnx.node import Held, Importer, OnnxNode, Outputs, TensorSequence


def in_accumulator(
    importer: Importer, when: Callable[[OnnxNode], bool] = lambda node: True, *, integers: Attribute | None = None
) -> Importer:
    """
    `importer` on operands and results in the type in which the elements of the first operand are summed.

    `when` says of a node whether it sums at all; one that only selects elements is imported as it is. `integers` are
    computed in a type of floats, where the operator is defined on floats only below the importer.
    """

    def build(node: OnnxNode) -> Outputs:
        element = node.type(0).element_type
        wide = integers if integers is not None and is_integer(element) else accumulator_of(element)
        if wide == element or not when(node):
            return importer(node)
        inputs = [_widened(node, index, element, wide) for index in range(len(node.inputs))]
        outputs = importer(OnnxNode(node.proto, node.opset, inputs, node.used_outputs, node.builder))
        held = outputs if isinstance(outputs, Sequence) else [outputs]
        return [_rounded(node, each, element, wide) for each in held]

    return build


def _widened(node: OnnxNode, index: int, element: Attribute, wide: Attribute) -> Held | None:
    held = node.inputs[index]
    if held is None or (index > 0 and is_integer(element)):
        return held  # of integers only the first operand is data: axes may have its type
    if not isinstance(held, SSAValue) and held.dtype != numpy_dtype(element):
        return held  # axes or sizes, which may be of unknown size
    value = node.code.input(index)
    return value.cast(wide).value if value.element_type == element else held


def _rounded(
    node: OnnxNode, held: Held | TensorSequence | None, element: Attribute, wide: Attribute
) -> Held | TensorSequence | None:
    if not isinstance(held, SSAValue) or tensor_of(held).element_type != wide:
        return held
    return node.code.term(held).cast(element).value
