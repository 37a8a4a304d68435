"""
Forms: the values of a graph, each stored with its dimensions in an order of its own.

The layout pass rebuilds a block op by op. Every value of the old block has a *native* form in the new one, a
tensor and the permutation that says which original dimension each of its dimensions is. Other forms of it are
made when an op asks for them, once each: by a transpose, or by a reshape where only dimensions of size 1 move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xdsl.dialects.builtin import LocationAttr, NameLoc, NoneAttr, StringAttr, UnknownLoc
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from penstock.dialects.graph import NCHW, NHWC, GraphOp, ReshapeOp, TransposeOp, tensor_of
from penstock.passes.graph.values import LAYOUT_ATTRIBUTE, derived

Permutation = tuple[int, ...]
"""Dimension i of the stored tensor is dimension `perm[i]` of the original value."""


def identity(rank: int) -> Permutation:
    """The form of the original."""
    return tuple(range(rank))


def channels_last(rank: int) -> Permutation:
    """The form with dimension 1 innermost: NHWC from NCHW."""
    return (0, *range(2, rank), 1)


def filters_last(rank: int) -> Permutation:
    """The form of filters for channels-last data: HWIO from OIHW."""
    return (*range(2, rank), 1, 0)


class Form(NamedTuple):
    """A stored tensor, and the original dimension that each of its dimensions is."""

    value: SSAValue
    perm: Permutation

    @property
    def is_plain(self) -> bool:
        """Whether the tensor is stored as the original."""
        return self.perm == identity(len(self.perm))


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """The shape of a tensor."""
    return tensor_of(value).get_shape()


def moves_units_only(shape: Sequence[int], order: Sequence[int]) -> bool:
    """Whether permuting a tensor of `shape` moves no element: all dimensions that move have size 1."""
    kept = [dim for dim in order if shape[dim] != 1]
    return kept == sorted(kept)


class Forms:
    """The forms of all values so far, and the block in which they are made."""

    def __init__(self, block: Block):
        self.block = block
        self._native: dict[SSAValue, Form] = {}
        self._made: dict[tuple[SSAValue, Permutation], SSAValue] = {}

    def define(self, old: SSAValue, value: SSAValue, perm: Permutation | None = None) -> None:
        """Say that `value` holds the old value, permuted; as it was by default."""
        if perm is None:
            perm = identity(len(shape_of(old)))
        self._native[old] = Form(value, perm)
        self._made[old, perm] = value

    def native(self, old: SSAValue) -> Form:
        """The form in which the old value was computed."""
        return self._native[old]

    def get(self, old: SSAValue, perm: Permutation) -> SSAValue:
        """The old value in the form `perm`, which is made if it does not exist."""
        if (made := self._made.get((old, perm))) is not None:
            return made
        value, native = self._native[old]
        order = [native.index(dim) for dim in perm]
        shape = shape_of(value)
        if moves_units_only(shape, order):
            op: GraphOp = ReshapeOp(value, [shape[dim] for dim in order])
        else:
            op = TransposeOp(value, perm=order)
        part = "permuted"
        if perm == identity(len(perm)):
            part = NCHW
        elif perm == channels_last(len(perm)):
            part = NHWC
            op.attributes[LAYOUT_ATTRIBUTE] = StringAttr(NHWC)
        made = self.emit(op, derived(location_of_value(old), part), f"{old.name_hint or 'value'}_{part}")
        self._made[old, perm] = made
        return made

    def plain(self, old: SSAValue) -> SSAValue:
        """The old value as it was."""
        return self.get(old, identity(len(shape_of(old))))

    def broadcast(self, old: SSAValue, perm: Permutation) -> SSAValue:
        """The old value in a shape that broadcasts to tensors of the form `perm` as it did to plain ones."""
        rank = len(perm)
        shape = shape_of(old)
        if len(shape) == rank:
            return self.get(old, perm)
        extended = [1] * (rank - len(shape)) + list(shape)
        value = self.plain(old)
        location, hint = derived(location_of_value(old), "broadcast"), f"{old.name_hint or 'value'}_broadcast"
        if not moves_units_only(extended, perm):
            whole = self.emit(ReshapeOp(value, extended), location, hint)
            return self.emit(TransposeOp(whole, perm=perm), location, hint)
        target = [extended[dim] for dim in perm]
        while target and target[0] == 1:
            del target[0]
        if shape in (tuple(target), (1,), ()):
            return value
        return self.emit(ReshapeOp(value, target), location, hint)

    def emit(self, op: Operation, location: LocationAttr, hint: str | None = None) -> SSAValue:
        """Append `op` and return its result."""
        op.location = location
        op.results[0].name_hint = hint
        self.block.add_op(op)
        return op.results[0]


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


def location_of_value(value: SSAValue) -> LocationAttr:
    """Where `value` is computed; for an argument, the name that it has outside."""
    if isinstance(value.owner, Operation):
        return value.owner.location
    func = value.owner.parent_op()
    if isinstance(value, BlockArgument) and isinstance(func, FuncOp) and func.arg_attrs:
        name = func.arg_attrs.data[value.index].data.get("graph.name")
        if isinstance(name, StringAttr):
            return NameLoc(name, NoneAttr())
    return UnknownLoc()
