"""How each graph op is rebuilt on operands whose dimensions are stored in another order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from xdsl.dialects.builtin import DenseArrayBase, IntegerType, StringAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects import graph
from penstock.dialects.graph import NCHW, NHWC, Tensor, tensor_of
from penstock.dialects.graph.base import integer, ints
from penstock.passes.graph.layout_forms import (
    Forms,
    Permutation,
    channels_last,
    filters_last,
    identity,
    regrouped,
    reshaped,
    shape_of,
)
from penstock.passes.graph.values import LAYOUT_ATTRIBUTE, derived

OpT = TypeVar("OpT", bound=Operation)
Rule = Callable[[Forms, Any], bool]
RULES: dict[type[Operation], Rule] = {}
"""How ops are rebuilt on operands in other forms; a rule that does not apply emits nothing and says False."""


def rule(*classes: type[OpT]) -> Callable[[Callable[[Forms, OpT], bool]], Callable[[Forms, OpT], bool]]:
    """Register the decorated function as the rule for `classes` and those derived from them."""

    def register(function: Callable[[Forms, OpT], bool]) -> Callable[[Forms, OpT], bool]:
        for op_class in classes:
            RULES[op_class] = function
        return function

    return register


def rebuild(
    forms: Forms, op: Operation, operands: Sequence[SSAValue], perm: Permutation, **properties: Attribute
) -> bool:
    """Append `op` on other operands, with its result in the form `perm`; True, as rules say."""
    old = op.results[0]
    shape, element = shape_of(old), tensor_of(old).element_type
    new = type(op).create(
        operands=operands,
        result_types=[Tensor(element, [shape[dim] for dim in perm])],
        properties={**op.properties, **properties},
        attributes=op.attributes.copy(),
    )
    location = op.location
    if perm == channels_last(len(perm)) and len(perm) > 2:
        if "layout" not in op.properties:
            new.attributes[LAYOUT_ATTRIBUTE] = StringAttr(NHWC)
    elif perm != identity(len(perm)):
        location = derived(location, "permuted")
    forms.define(old, forms.emit(new, location, old.name_hint), perm)
    return True


def permuted(values: DenseArrayBase[IntegerType], perm: Permutation) -> list[int]:
    """One integer for each dimension, or one before and one after each, in another order of dimensions."""
    given = values.get_values()
    rank = len(perm)
    return [given[start + dim] for start in range(0, len(given), rank) for dim in perm]


def moved(forms: Forms, values: Sequence[SSAValue], rank: int) -> Permutation | None:
    """The first form other than the plain one among the `values` of `rank`."""
    for value in values:
        form = forms.native(value)
        if len(form.perm) == rank and not form.is_plain:
            return form.perm
    return None


@rule(graph.ConvOp, graph.PoolOp, graph.GlobalPoolOp, graph.LrnOp)
def image_op(forms: Forms, op: graph.ConvOp | graph.PoolOp | graph.GlobalPoolOp | graph.LrnOp) -> bool:
    """What is defined on images: the channels go last, in the image and in the filters."""
    rank = len(shape_of(op.x))
    if op.layout.data != NCHW or not 3 <= rank <= 5:
        return False
    operands = [forms.get(op.x, channels_last(rank))]
    if isinstance(op, graph.ConvOp):
        operands.append(forms.get(op.w, filters_last(rank)))
        operands += [] if op.b is None else [forms.plain(op.b)]
    return rebuild(forms, op, operands, channels_last(rank), layout=StringAttr(NHWC))


@rule(graph.UnaryOp, graph.CastOp, graph.BinaryOp, graph.WhereOp)
def pointwise(forms: Forms, op: Operation) -> bool:
    """Elementwise ops take the form of their first operand of full rank that is not plain."""
    perm = moved(forms, op.operands, len(shape_of(op.results[0])))
    if perm is None:
        return False
    return rebuild(forms, op, [forms.broadcast(operand, perm) for operand in op.operands], perm)


@rule(graph.BatchNormalizationOp)
def batch_normalization(forms: Forms, op: graph.BatchNormalizationOp) -> bool:
    """The axis moves."""
    form = forms.native(op.x)
    if form.is_plain:
        return False
    operands = [form.value, *(forms.plain(vector) for vector in op.operands[1:])]
    return rebuild(forms, op, operands, form.perm, axis=integer(form.perm.index(op.axis.value.data)))


@rule(graph.LinearOp)
def quantization(forms: Forms, op: graph.LinearOp) -> bool:
    """The axis moves; one scale for all has none."""
    form = forms.native(op.x)
    if form.is_plain:
        return False
    operands = [form.value, *(forms.plain(vector) for vector in op.operands[1:])]
    axis = op.axis if op.along is None else integer(form.perm.index(op.along))
    return rebuild(forms, op, operands, form.perm, axis=axis)


@rule(graph.ConcatOp)
def concat(forms: Forms, op: graph.ConcatOp) -> bool:
    """All operands take the form of the first one that is not plain."""
    perm = moved(forms, op.inputs, len(shape_of(op.result)))
    if perm is None:
        return False
    operands = [forms.get(value, perm) for value in op.inputs]
    return rebuild(forms, op, operands, perm, axis=integer(perm.index(op.axis.value.data)))


@rule(graph.SoftmaxOp, graph.LogSoftmaxOp)
def softmax(forms: Forms, op: graph.SoftmaxOp | graph.LogSoftmaxOp) -> bool:
    """The axis moves."""
    form = forms.native(op.x)
    axis = integer(form.perm.index(op.axis.value.data))
    return not form.is_plain and rebuild(forms, op, [form.value], form.perm, axis=axis)


@rule(graph.PadOp, graph.SliceOp)
def per_dimension(forms: Forms, op: graph.PadOp | graph.SliceOp) -> bool:
    """The lists with entries for each dimension are permuted."""
    form = forms.native(op.x)
    lists = {
        name: ints(permuted(values, form.perm))
        for name in ("pads", "starts", "sizes", "steps")
        if isa(values := op.properties.get(name), DenseArrayBase[IntegerType])
    }
    return not form.is_plain and rebuild(forms, op, [form.value], form.perm, **lists)


@rule(graph.ReductionOp)
def reduction(forms: Forms, op: graph.ReductionOp) -> bool:
    """The axes move; without `keepdims`, the dimensions that are left keep their order in the store."""
    form = forms.native(op.x)
    if form.is_plain:
        return False
    axes = op.axes.get_values()
    perm = form.perm
    if not op.keepdims:
        left = [dim for dim in form.perm if dim not in axes]
        perm = tuple(sorted(left).index(dim) for dim in left)
    places = sorted(form.perm.index(axis) for axis in axes)
    return rebuild(forms, op, [form.value], perm, axes=ints(places))


@rule(graph.TransposeOp)
def transpose(forms: Forms, op: graph.TransposeOp) -> bool:
    """A transpose of what is permuted already only gives the dimensions other names."""
    form = forms.native(op.x)
    if form.is_plain:
        return False
    order = op.perm.get_values()
    forms.define(op.result, form.value, tuple(order.index(dim) for dim in form.perm))
    return True


@rule(graph.ReshapeOp)
def reshape(forms: Forms, op: graph.ReshapeOp) -> bool:
    """Done in the store, where the dimensions that are split or joined must lie together."""
    form = forms.native(op.x)
    if form.is_plain:
        return False
    source, target = shape_of(op.x), shape_of(op.result)
    x, perm = form.value, reshaped(form.perm, source, target)
    if perm is None and (grouped := regrouped(form.perm, source, target)) is not None:
        x, perm = forms.get(op.x, grouped), reshaped(grouped, source, target)
    return perm is not None and rebuild(forms, op, [x], perm)


def rule_for(op: Operation) -> Rule | None:
    """The rule of the class of `op`, or of the nearest class that it is derived from."""
    return next((RULES[base] for base in type(op).__mro__ if base in RULES), None)
