"""Reshapes of values that are stored in another order: which dimensions they split and join, and where those lie."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.passes.graph.layouts.forms import Order, Permutation, identity


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
