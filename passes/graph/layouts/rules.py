"""The forms in which each graph op can be computed, given one in which an operand may be stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from xdsl.ir import Attribute, Operation, SSAValue

from penstock.dialects import graph
from penstock.dialects.graph.base import KeepsFinite, integer, ints
from penstock.dialects.registry import Registry
from penstock.passes.graph.layouts.forms import Order, plain, rank_of, shape_of
from penstock.passes.graph.layouts.reshape import regrouped, reshaped, reshaped_blocks


class Need(NamedTuple):
    """The form that an op needs an operand in."""

    order: Order
    """That of the operand or, if it is to broadcast, that of what it broadcasts to."""
    sizes: tuple[int, ...] | None = None
    """The shape that it broadcasts to, as it was; None where it is taken as it is."""
    letters: str = ""
    """How its dimensions are called, if it is no image."""


class Choice(NamedTuple):
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


Rule = Callable[[Any, Order], "Choice | None"]
RULES: Registry[Rule] = Registry()
"""How ops are computed where an operand, or the result, is stored in a given order; None where they are not."""

rule = RULES.register


def unchanged(op: Operation) -> Choice:
    """The op as it is, on operands as they were."""
    needs = tuple(Need(plain(rank_of(value))) for value in op.operands)
    return Choice(needs, plain(rank_of(op.results[0]) if op.results else 0))


def beside(order: Order, rest: Sequence[SSAValue]) -> tuple[Need, ...]:
    """The first operand stored so, and the others as they were."""
    return (Need(order), *(Need(plain(rank_of(value))) for value in rest))


@rule(graph.PointwiseOp)
def pointwise(op: graph.PointwiseOp, order: Order) -> Choice | None:
    """
    Elementwise ops are computed in any order. What blocks hold beyond the end must stay finite, as a product with the
    zeros of the filters takes away nothing else.
    """
    sizes = shape_of(op.result)
    if len(order.perm) != len(sizes) or (order.is_padded(sizes) and not op.has_trait(KeepsFinite)):
        return None
    needs = tuple(Need(order) if shape_of(value) == sizes else Need(order, sizes) for value in op.operands)
    return Choice(needs, order)


@rule(graph.BatchNormalizationOp)
def batch_normalization(op: graph.BatchNormalizationOp, order: Order) -> Choice | None:
    """The axis moves."""
    if order.blocks:
        return None
    axis = integer(order.places(op.axis.value.data)[0])
    return Choice(beside(order, op.operands[1:]), order, {"axis": axis})


@rule(graph.LinearOp)
def quantization(op: graph.LinearOp, order: Order) -> Choice | None:
    """The axis moves, and is in no blocks; one scale for all has none."""
    if op.along is None:
        return Choice(beside(order, op.operands[1:]), order)
    if order.blocks:
        return None
    axis = integer(order.places(op.along)[0])
    return Choice(beside(order, op.operands[1:]), order, {"axis": axis})


@rule(graph.ConcatOp)
def concat(op: graph.ConcatOp, order: Order) -> Choice | None:
    """All operands are stored alike; of those in blocks along the axis only the last may have one that hangs over."""
    axis = op.axis.value.data
    if any(order.is_padded(shape_of(value)) for value in op.inputs[:-1]) and order.block(axis) > 1:
        return None
    return Choice((Need(order),) * len(op.inputs), order, {"axis": integer(order.places(axis)[0])})


@rule(graph.SoftmaxOp, graph.LogSoftmaxOp)
def softmax(op: graph.SoftmaxOp | graph.LogSoftmaxOp, order: Order) -> Choice | None:
    """The axis moves, and is in no blocks."""
    axis = op.axis.value.data
    if order.block(axis) > 1:
        return None
    return Choice((Need(order),), order, {"axis": integer(order.places(axis)[0])})


@rule(graph.PadOp)
def pad(op: graph.PadOp, order: Order) -> Choice | None:
    """What stands before and after each dimension is permuted; nothing does where it has blocks."""
    rank = len(order.perm)
    given = op.pads.get_values()
    if any(given[dim] or given[dim + rank] for dim, _ in order.blocks):
        return None
    units, blocks = [0] * order.units, [0] * len(order.blocks)
    pads = [value for at in (0, rank) for value in (*units, *(given[at + dim] for dim in order.perm), *blocks)]
    return Choice((Need(order),), order, {"pads": ints(pads)})


@rule(graph.SliceOp)
def slice_(op: graph.SliceOp, order: Order) -> Choice | None:
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
    return Choice((Need(order),), order, {name: ints(values) for name, values in lists.items()})


@rule(graph.ReductionOp)
def reduction(op: graph.ReductionOp, order: Order) -> Choice | None:
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
    return Choice((Need(order),), result, {"axes": ints(places)})


@rule(graph.TransposeOp)
def transpose(op: graph.TransposeOp, order: Order) -> Choice | None:
    """It only gives the dimensions other names."""
    perm = op.perm.get_values()
    return Choice((Need(order),), order.relabelled([perm.index(dim) for dim in range(len(perm))]))


@rule(graph.ReshapeOp)
def reshape(op: graph.ReshapeOp, order: Order) -> Choice | None:
    """Done in the store, where the dimensions that are split or joined must lie together."""
    source, target = shape_of(op.x), shape_of(op.result)
    if order.blocks:
        found = reshaped_blocks(order, source, target)
        return None if found is None else Choice((Need(order),), found)
    perm = reshaped(order.perm, source, target)
    if perm is None and (grouped := regrouped(order.perm, source, target)) is not None:
        order = Order(grouped)
        perm = reshaped(grouped, source, target)
    return None if perm is None else Choice((Need(order),), Order(perm))


def choice_of(op: Operation, order: Order) -> Choice | None:
    """How `op` is computed where what it reads is stored in `order`; None where it is not."""
    found = RULES.find(type(op))
    return None if found is None or order.is_plain else found(op, order)
