"""Ways to move elements that several derivatives need: zeros between elements and around them, parts, and reversal."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.dialects import graph
from penstock.passes.graph.gradients.code import Term


def cut(x: Term, axis: int, start: int, size: int) -> Term:
    """`size` elements along `axis` from `start` on; `x` itself if these are all."""
    if size == x.shape[axis]:
        return x
    starts = [start if dim == axis else 0 for dim in range(len(x.shape))]
    sizes = [size if dim == axis else extent for dim, extent in enumerate(x.shape)]
    return x.code.emit(graph.SliceOp(x.value, starts=starts, sizes=sizes))


def padded(x: Term, before: Sequence[int], after: Sequence[int], value: float = 0.0) -> Term:
    """`x` with so many elements of `value` around it; what is negative is cut off instead."""
    starts = [max(-each, 0) for each in before]
    sizes = [size - low - max(-high, 0) for size, low, high in zip(x.shape, starts, after, strict=True)]
    if min(sizes, default=1) <= 0:
        final = [size + low + high for size, low, high in zip(x.shape, before, after, strict=True)]
        return x.code.number(value, x.element_type).expand(final)
    if sizes != list(x.shape):
        x = x.code.emit(graph.SliceOp(x.value, starts=starts, sizes=sizes))
    pads = [max(each, 0) for each in (*before, *after)]
    return x.code.emit(graph.PadOp(x.value, pads=pads, value=value)) if any(pads) else x


def spread(x: Term, steps: Sequence[int]) -> Term:
    """`x` with `step - 1` zeros between the elements of each dimension."""
    apart = [dim for dim, step in enumerate(steps) if step > 1 and x.shape[dim] > 1]
    if not apart:
        return x
    sizes, pads, joined, final = list[int](), list[int](), list[int](), list[int]()
    for dim, (size, step) in enumerate(zip(x.shape, steps, strict=True)):
        factor = step if dim in apart else 1
        sizes += [size, 1] if dim in apart else [size]
        pads += [0, factor - 1] if dim in apart else [0]
        joined.append(size * factor)
        final.append((size - 1) * factor + 1)
    grown = padded(x.reshape(sizes), [0] * len(sizes), pads).reshape(joined)
    return x.code.emit(graph.SliceOp(grown.value, starts=[0] * len(final), sizes=final))


def reversed_along(x: Term, axes: Sequence[int]) -> Term:
    """`x` backwards along some dimensions."""
    turned = [axis for axis in axes if x.shape[axis] > 1]
    if not turned:
        return x
    starts = [size - 1 if dim in turned else 0 for dim, size in enumerate(x.shape)]
    steps = [-1 if dim in turned else 1 for dim in range(len(x.shape))]
    return x.code.emit(graph.SliceOp(x.value, starts=starts, sizes=x.shape, steps=steps))
