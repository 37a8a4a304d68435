# SPDX-License-Identifier: Apache-2.0
"""In which forms each graph op can be computed, given one in which an operand may be stored; and computing it so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, Operation, SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import Tensor, tensor_of
from penstock.dialects.graph.base import KeepsFinite, integer, ints
from penstock.dialects.registry import Registry
from penstock.passes.graph.layouts.forms import (
    Forms,
    Order,
    Permutation,
    identity,
    image_name,
    plain,
    rank_of,
)
from penstock.passes.graph.values import LAYOUT_ATTRIBUTE, derived
from penstock.passes.shapes import shape_of
from penstock.runtime.interpreter.body import captured_values


class Need(NamedTuple):
    """The form that an op needs an operand in."""

    order: Order
    """That of the operand or, if it is to broadcast, that of what it broadcasts to."""
    sizes: tuple[int, ...] | None = None
    """The shape that it broadcasts to, as it was; None where it is taken as it is."""
    letters: str = ""
    """How its dimensions are called, if it is no image."""


class OpForm(NamedTuple):
    """One way to compute an op."""

    needs: tuple[Need, ...]
    """For each operand."""
    result: Order
    """How the result is stored."""
    properties: Mapping[str, Attribute] = {}
    """What replaces properties of the op."""
    is_product: bool = False
    """Whether a matrix product is computed as a convolution, whose layouts are among the `properties`."""
    keeps_layout: bool = False
    """Whether the op shall say that it keeps the layout that it has."""


Rule = Callable[[Any, Order], "OpForm | None"]
"""From the op and the order that is asked for to how it is computed then."""
RULES: Registry[Rule] = Registry()
"""How ops are computed where an operand, or the result, is stored in a given order; None where they are not."""

rule = RULES.register
"""Register the decorated function as the rule for classes of ops and those derived from them."""


def unchanged(op: Operation) -> OpForm:
    """The op as it is, on operands as they were."""
    needs = tuple(Need(plain(rank_of(value))) for value in op.operands)
    return OpForm(needs, plain(rank_of(op.results[0]) if op.results else 0))


def beside(order: Order, rest: Sequence[SSAValue]) -> tuple[Need, ...]:
    """The first operand stored so, and the others as they were."""
    return (Need(order), *(Need(plain(rank_of(value))) for value in rest))


@rule(graph.PointwiseOp)
def pointwise(op: graph.PointwiseOp, order: Order) -> OpForm | None:
    """
    Elementwise ops are computed in any order. What blocks hold beyond the end must stay finite, as a product with the
    zeros of the filters takes away nothing else.
    """
    sizes = shape_of(op.result)
    if len(order.perm) != len(sizes) or (order.is_padded(sizes) and not op.has_trait(KeepsFinite)):
        return None
    needs = tuple(Need(order) if shape_of(value) == sizes else Need(order, sizes) for value in op.operands)
    return OpForm(needs, order)


@rule(graph.BatchNormalizationOp)
def batch_normalization(op: graph.BatchNormalizationOp, order: Order) -> OpForm | None:
    """The axis moves."""
    if order.blocks:
        return None
    axis = integer(order.places(op.axis.value.data)[0])
    return OpForm(beside(order, op.operands[1:]), order, {"axis": axis})


@rule(graph.LinearOp)
def quantization(op: graph.LinearOp, order: Order) -> OpForm | None:
    """The axis moves, and is in no blocks; one scale for all has none."""
    if op.along is None:
        return OpForm(beside(order, op.operands[1:]), order)
    if order.blocks:
        return None
    axis = integer(order.places(op.along)[0])
    return OpForm(beside(order, op.operands[1:]), order, {"axis": axis})


@rule(graph.ConcatOp)
def concat(op: graph.ConcatOp, order: Order) -> OpForm | None:
    """All operands are stored in one order; of those in blocks along the axis only the last may have a padded one."""
    axis = op.axis.value.data
    if any(order.is_padded(shape_of(value)) for value in op.inputs[:-1]) and order.block(axis) > 1:
        return None
    return OpForm((Need(order),) * len(op.inputs), order, {"axis": integer(order.places(axis)[0])})


@rule(graph.SoftmaxOp, graph.LogSoftmaxOp)
def softmax(op: graph.SoftmaxOp | graph.LogSoftmaxOp, order: Order) -> OpForm | None:
    """The axis moves, and is in no blocks."""
    axis = op.axis.value.data
    if order.block(axis) > 1:
        return None
    return OpForm((Need(order),), order, {"axis": integer(order.places(axis)[0])})


@rule(graph.PadOp)
def pad(op: graph.PadOp, order: Order) -> OpForm | None:
    """What stands before and after each dimension is permuted; nothing does where it has blocks."""
    rank = len(order.perm)
    given = op.pads.get_values()
    if any(given[dim] or given[dim + rank] for dim, _ in order.blocks):
        return None
    units, blocks = [0] * order.units, [0] * len(order.blocks)
    pads = [value for at in (0, rank) for value in (*units, *(given[at + dim] for dim in order.perm), *blocks)]
    return OpForm((Need(order),), order, {"pads": ints(pads)})


@rule(graph.SliceOp)
def slice_(op: graph.SliceOp, order: Order) -> OpForm | None:
    """The entries for each dimension are permuted; whole blocks are taken, or all there are from a first one on."""
    extents = shape_of(op.x)
    starts, sizes, steps = (list(each.get_values()) for each in (op.starts, op.sizes, op.steps))
    for dim, block in order.blocks:
        to_end = starts[dim] + sizes[dim] == extents[dim]
        if steps[dim] != 1 or starts[dim] % block or not (to_end or sizes[dim] % block == 0):
            return None
        starts[dim] //= block
    lists = {
        "starts": [*[0] * order.units, *(starts[dim] for dim in order.perm), *(0 for _ in order.blocks)],
        "sizes": order.shape(sizes),
        "steps": [*[1] * order.units, *(steps[dim] for dim in order.perm), *(1 for _ in order.blocks)],
    }
    return OpForm((Need(order),), order, {name: ints(values) for name, values in lists.items()})


@rule(graph.ReductionOp)
def reduction(op: graph.ReductionOp, order: Order) -> OpForm | None:
    """
    The axes move, and are in no blocks; without `keepdims`, the dimensions that are left keep their order in the store.
    """
    axes = op.axes.get_values()
    if any(dim in axes for dim, _ in order.blocks):
        return None
    result = order
    if not op.keepdims:
        left = [dim for dim in range(len(order.perm)) if dim not in axes]
        names = [left.index(dim) if dim in left else -1 for dim in range(len(order.perm))]
        kept = tuple(dim for dim in order.perm if dim in left)
        result = Order(kept, order.blocks, order.units).relabelled(names)
    places = sorted(order.places(axis)[0] for axis in axes)
    return OpForm((Need(order),), result, {"axes": ints(places)})


@rule(graph.TransposeOp)
def transpose(op: graph.TransposeOp, order: Order) -> OpForm | None:
    """It only gives the dimensions other names."""
    perm = op.perm.get_values()
    return OpForm((Need(order),), order.relabelled([perm.index(dim) for dim in range(len(perm))]))


@rule(graph.ReshapeOp)
def reshape(op: graph.ReshapeOp, order: Order) -> OpForm | None:
    """Done in the store, where the dimensions that are split or joined must lie together."""
    source, target = shape_of(op.x), shape_of(op.result)
    if order.blocks:
        found = reshaped_blocks(order, source, target)
        return None if found is None else OpForm((Need(order),), found)
    perm = reshaped(order.perm, source, target)
    if perm is None and (grouped := regrouped(order.perm, source, target)) is not None:
        order = Order(grouped)
        perm = reshaped(grouped, source, target)
    return None if perm is None else OpForm((Need(order),), Order(perm))


def op_form(op: Operation, order: Order) -> OpForm | None:
    """How `op` is computed where what it reads is stored in `order`; None where it is not."""
    found = RULES.find(type(op))
    if found is None or (order.is_plain and not isinstance(op, graph.TransposeOp)):
        return None
    form = found(op, order)
    # What is stored as it is read has a layout where its channels were innermost.
    return form if form is None or not order.is_plain or image_name(form.result) not in (None, graph.NCHW) else None


# reshapes of what is stored in another order


def reshaped(perm: Permutation, source: Sequence[int], target: Sequence[int]) -> Permutation | None:
    """
    The form that a reshape of the plain value from `source` to `target` has, if it is done on a tensor stored
    in the form `perm` without moving elements; None if that is not possible.

    It is if every run of dimensions that the reshape splits or joins lies together, in order, in the store.
    """
    if 0 in source:
        return None
    runs = _runs(source, target)
    if runs is None:
        return None
    stored = [dim for dim in perm if source[dim] != 1]
    order: list[int] = []
    at = 0
    while at < len(stored):
        run = next(((left, right) for left, right in runs if left[0] == stored[at]), None)
        if run is None or stored[at : at + len(run[0])] != run[0]:
            return None
        order += run[1]
        at += len(run[0])
    # Dimensions of size 1 may stand anywhere: in their place if nothing else moves, else after their neighbour.
    if order == sorted(order):
        return identity(len(target))
    for dim, size in enumerate(target):
        if size == 1:
            order.insert(order.index(dim - 1) + 1 if dim > 0 else 0, dim)
    return tuple(order)


def regrouped(perm: Permutation, source: Sequence[int], target: Sequence[int]) -> Permutation | None:
    """
    The form nearest to `perm` in which the reshape from `source` to `target` moves no element: every run of
    dimensions that it splits or joins is brought together, where the first of them is stored.
    """
    runs = None if 0 in source else _runs(source, target)
    if runs is None:
        return None
    joined = {dim: left for left, _ in runs for dim in left}
    order: list[int] = []
    for dim in perm:
        order += [each for each in joined.get(dim, [dim]) if each not in order]
    return tuple(order)


def _runs(source: Sequence[int], target: Sequence[int]) -> list[tuple[list[int], list[int]]] | None:
    """The finest pairs of runs of dims with equally many elements, dims of size 1 left out; None if there is none."""
    left = [dim for dim, size in enumerate(source) if size != 1]
    right = [dim for dim, size in enumerate(target) if size != 1]
    runs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        first, second = [left[i]], [right[j]]
        held, wanted = source[left[i]], target[right[j]]
        i, j = i + 1, j + 1
        while held != wanted:
            if held < wanted and i < len(left):
                first.append(left[i])
                held *= source[left[i]]
                i += 1
            elif held > wanted and j < len(right):
                second.append(right[j])
                wanted *= target[right[j]]
                j += 1
            else:
                return None
        runs.append((first, second))
    return runs if i == len(left) and j == len(right) else None


def carried(source: Sequence[int], target: Sequence[int], dim: int) -> int | None:
    """The dimension that a reshape makes of dimension `dim` alone; None if it splits it or joins others to it."""
    runs = None if 0 in source else _runs(source, target)
    for left, right in runs or []:
        if dim in left:
            return right[0] if (left, len(right)) == ([dim], 1) else None
    return None


def reshaped_blocks(order: Order, source: Sequence[int], target: Sequence[int]) -> Order | None:
    """As `reshaped`, for an order with blocks: their dimensions must be carried as they are."""
    perm = reshaped(order.perm, source, target)
    if perm is None:
        return None
    blocks: list[tuple[int, int]] = []
    for dim, size in order.blocks:
        if (place := carried(source, target, dim)) is None:
            return None
        blocks.append((place, size))
    return Order(perm, tuple(blocks))


# ops in the forms that were chosen


def emit(forms: Forms, op: Operation, choice: OpForm) -> None:
    """Append `op`, computed as `choice` says, to the block of the `forms`."""
    operands = [
        forms.get(value, need.order, need.letters)
        if need.sizes is None
        else forms.broadcast(value, need.order, need.sizes)
        for value, need in zip(op.operands, choice.needs, strict=True)
    ]
    if choice._replace(keeps_layout=False) == unchanged(op):
        # What the regions of an op read is not among its operands, and they read it as it was.
        values = {value: forms.get(value) for value in captured_values(op)}
        new = op.clone({**values, **dict(zip(op.operands, operands, strict=True))})
        if choice.keeps_layout:
            new.attributes[LAYOUT_ATTRIBUTE] = StringAttr(graph.NCHW)
        forms.block.add_op(new)
        for before, after in zip(op.results, new.results, strict=True):
            forms.define(before, after, plain(rank_of(before)))
    elif choice.is_product:
        assert isinstance(op, graph.GemmOp | graph.MatmulOp)
        _emit_product(forms, op, choice, operands)
    elif isinstance(op, graph.MatmulOp) and "trans_b" in choice.properties:
        _emit_gemm(forms, op, choice, operands)
    elif isinstance(op, graph.TransposeOp):
        # What is stored in another order only gives its dimensions other names.
        forms.define(op.result, operands[0], choice.result)
    else:
        _emit_in_order(forms, op, choice, operands)


def _emit_in_order(forms: Forms, op: Operation, choice: OpForm, operands: list[SSAValue]) -> None:
    old = op.results[0]
    type = Tensor(tensor_of(old).element_type, choice.result.shape(shape_of(old)))
    new = op.__class__.create(
        operands=operands,
        result_types=[type],
        properties={**op.properties, **choice.properties},
        attributes=op.attributes.copy(),
    )
    location = op.location
    if choice.result.is_plain:
        pass
    elif (name := image_name(choice.result)) is None:
        location = derived(location, "permuted")
    elif "layout" not in new.properties:
        new.attributes[LAYOUT_ATTRIBUTE] = StringAttr(name)
    forms.define(old, forms.emit(new, location, old.name_hint), choice.result)


def _emit_gemm(forms: Forms, op: graph.MatmulOp, choice: OpForm, operands: list[SSAValue]) -> None:
    """The rows of all matrices of `a` are those of one."""
    a, b = operands
    shape, result = shape_of(op.a), shape_of(op.result)
    trans_a, trans_b = (bool(choice.properties[key]) for key in ("trans_a", "trans_b"))
    if len(shape) > 2:
        rows = graph.ReshapeOp(a, [prod(shape[:-1]), shape[-1]])
        a = forms.emit(rows, derived(op.location, "rows"))
        if trans_a:
            a = forms.emit(graph.TransposeOp(a, perm=[1, 0]), derived(op.location, "columns"))
    gemm = graph.GemmOp(a, b, trans_a=trans_a, trans_b=trans_b, accumulator=op.accumulator)
    value = forms.emit(gemm, op.location, op.result.name_hint)
    if len(shape) > 2:
        value = forms.emit(graph.ReshapeOp(value, result), derived(op.location, "matrices"), op.result.name_hint)
    forms.define(op.result, value, choice.result)


def _emit_product(forms: Forms, op: graph.GemmOp | graph.MatmulOp, choice: OpForm, operands: list[SSAValue]) -> None:
    """Rows are an image of one row, or of as many as the product has: the convolution has filters of one element."""
    x, w, *bias = operands
    layouts: dict[str, Any] = {**choice.properties}
    place = layouts["filters"].data.index("HW")
    sizes = shape_of(w)
    filters = forms.emit(graph.ReshapeOp(w, [*sizes[:place], 1, 1, *sizes[place:]]), derived(op.location, "filters"))
    conv = graph.ConvOp(x, filters, *bias, accumulator=op.accumulator, **layouts)
    forms.define(op.result, forms.emit(conv, op.location, op.result.name_hint), choice.result)
