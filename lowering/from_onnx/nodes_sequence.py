# SPDX-License-Identifier: Apache-2.0
"""
Importers of sequences and optionals, which are none any more when a model has been imported.

How long a sequence is, and where it is read, has to be known; then it is a list of values. What a loop appends to one
in each iteration are lines, which such a list may end in. An optional is what it holds, or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.ir import SSAValue

from penstock.dialects.graph.base import require
from penstock.lowering.from_onnx.node import Held, OnnxNode, TensorSequence, Unsupported, imports, one_of
from penstock.passes.graph.terms import Term


@imports("SequenceEmpty")
def sequence_empty(node: OnnxNode) -> list[TensorSequence]:
    return [TensorSequence((), node.origin)]


@imports("SequenceConstruct")
def sequence_construct(node: OnnxNode) -> list[TensorSequence]:
    return [TensorSequence(tuple(node.held(index) for index in range(len(node.inputs))), node.origin)]


@imports("SequenceInsert")
def sequence_insert(node: OnnxNode) -> list[TensorSequence]:
    sequence, value = node.sequence(0), node.held(1)
    if sequence.lines is not None:
        raise Unsupported("into a sequence that a loop has appended to")
    count = len(sequence.items)
    if not node.has(2):
        return [TensorSequence((*sequence.items, value), node.origin, carried=sequence.carried)]
    if sequence.grows:
        raise Unsupported("into a sequence that a loop carries, elsewhere than at its end")
    at = _place(node, 2, count, count)
    return [TensorSequence((*sequence.items[:at], value, *sequence.items[at:]), node.origin)]


@imports("SequenceErase")
def sequence_erase(node: OnnxNode) -> list[TensorSequence]:
    items = _all_items(node)
    at = _place(node, 1, len(items), len(items) - 1) if node.has(1) else len(items) - 1
    require(bool(items), "the sequence is empty")
    return [TensorSequence((*items[:at], *items[at + 1 :]), node.origin)]


@imports("SequenceAt")
def sequence_at(node: OnnxNode) -> list[Held]:
    items = _all_items(node)
    return [items[_place(node, 1, len(items), len(items) - 1)]]


@imports("SequenceLength")
def sequence_length(node: OnnxNode) -> list[Held]:
    return [np.asarray(len(_all_items(node)), np.int64)]


@imports("ConcatFromSequence")
def concat_from_sequence(node: OnnxNode) -> list[SSAValue]:
    """What a sequence holds one after the other along an axis, or along one that is made for it."""
    sequence = node.sequence(0)
    axis, stacks = node.int("axis", 0), node.flag("new_axis", False)
    if sequence.grows:
        raise Unsupported("of a sequence that a loop carries")
    parts = [node.code.held(item) for item in sequence.items]
    if sequence.lines is None:
        require(bool(parts), "the sequence is empty")
        rank = len(parts[0].shape)
    else:
        rank = len(node.code.term(sequence.lines).shape) - 1
    ranks = rank + 1 if stacks else rank
    require(-ranks <= axis < ranks, f"axis {axis} of a tensor of {ranks} dimensions")
    axis %= ranks
    if stacks:
        parts = [part.reshape([*part.shape[:axis], 1, *part.shape[axis:]]) for part in parts]
    if sequence.lines is not None:
        if sequence.lines in node.builder.counts:
            if parts or not stacks or axis:
                raise Unsupported("of as many tensors as a run decides, but for those along a new first axis")
            return [sequence.lines]
        lines = node.code.term(sequence.lines).moved(0, axis)
        if not stacks:
            sizes = lines.shape
            lines = lines.reshape([*sizes[:axis], sizes[axis] * sizes[axis + 1], *sizes[axis + 2 :]])
        parts.append(lines)
    return [parts[0].value if len(parts) == 1 else node.code.concat(parts, axis).value]


@imports("SplitToSequence")
def split_to_sequence(node: OnnxNode) -> list[TensorSequence]:
    """Parts of one size, or of sizes that are given; without any, of 1, whose dimension may be left out."""
    x, axis = node.code.input(0), node.int("axis", 0)
    require(-len(x.shape) <= axis < len(x.shape), f"axis {axis} of a tensor of {len(x.shape)} dimensions")
    axis %= len(x.shape)
    extent = x.shape[axis]
    split = node.array(1, "split") if node.has(1) else None
    if split is not None and split.ndim == 1:
        sizes = [int(size) for size in split]
        require(sum(sizes) == extent, f"parts of {sizes} of a dimension of {extent}")
    else:
        size = 1 if split is None else int(one_of(split, "split"))
        require(size > 0, f"parts of {size}")
        sizes = [min(size, extent - start) for start in range(0, extent, size)]
    if 0 in sizes:
        raise Unsupported("into parts of which some are empty")
    starts = np.cumsum([0, *sizes])
    parts = [x.cut(axis, int(start), size) for start, size in zip(starts, sizes, strict=False)]
    if split is None and not node.flag("keepdims", True):
        parts = [part.reshape([*part.shape[:axis], *part.shape[axis + 1 :]]) for part in parts]
    return [TensorSequence(tuple(part.value for part in parts), node.origin)]


@imports("SequenceMap")
def sequence_map(node: OnnxNode) -> list[TensorSequence] | None:
    """Its body for each of the tensors, written out."""
    lists = {index: _all_items(node, index) for index in sorted({0, *node.sequences})}
    length = len(lists[0])
    for index, items in lists.items():
        require(len(items) == length, f"its input {index} is a sequence of {len(items)}, the first of {length}")
    outputs: list[list[Held]] = [[] for _ in node.graph("body").output]
    for number in range(length):
        given = [lists[n][number] if n in lists else node.held(n) for n in range(len(node.inputs))]
        for held, output in zip(node.run_inner("body", given), outputs, strict=True):
            if held is None:
                return None
            if isinstance(held, TensorSequence):
                raise Unsupported("its body gives a sequence")
            output.append(held)
    return [TensorSequence(tuple(items), node.origin) for items in outputs]


@imports("Optional", "OptionalGetElement")
def optional(node: OnnxNode) -> list[Held | TensorSequence]:
    """What it holds."""
    if 0 in node.sequences:
        return [node.sequence(0)]
    if not node.has(0):
        raise Unsupported("with nothing in it")
    return [node.held(0)]


@imports("OptionalHasElement")
def optional_has_element(node: OnnxNode) -> list[Held]:
    return [np.asarray(node.has(0) or 0 in node.sequences)]


def _all_items(node: OnnxNode, index: int = 0) -> Sequence[Held]:
    """What a sequence holds whose length is known."""
    sequence = node.sequence(index)
    if sequence.grows:
        raise Unsupported("of a sequence that a loop carries")
    if sequence.lines is None:
        return sequence.items
    if sequence.lines in node.builder.counts:
        raise Unsupported("of a sequence whose length a run decides")
    lines: Term = node.code.term(sequence.lines)
    count, *shape = lines.shape
    return [*sequence.items, *(lines.cut(0, number, 1).reshape(shape).value for number in range(count))]


def _place(node: OnnxNode, index: int, length: int, most: int) -> int:
    """A place in a sequence, counted from its end if it is negative."""
    at = node.int_of(index, "position")
    require(-length <= at <= most, f"place {at} of a sequence of {length}")
    return at + length if at < 0 else at
