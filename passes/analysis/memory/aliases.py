# SPDX-License-Identifier: Apache-2.0
"""
Which bytes a memref may be, and which it certainly is.

The bytes of a function are those of its allocations (`memref.alloc`, `memref.alloca`, `mem.buffer`, `mem.ring`) and
of its arguments, its *roots*; a set of roots is an integer, one bit a root. A view is its base; a value that control
flow hands on may be any of those that it is handed from, and so is the result of `arith.select`, of a call and of
every other op that takes memrefs and yields some.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from xdsl.dialects import arith, builtin, func, memref
from xdsl.dialects.builtin import DYNAMIC_INDEX, MemRefType, UnrankedMemRefType
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.mem import RingOp, RingType, ScopedAllocation, SlotOp, static_strides
from penstock.passes.analysis.index import AffineIndex
from penstock.passes.analysis.memory.graph import CONTROL, FlowGraph

Allocation = memref.AllocOp | memref.AllocaOp | ScopedAllocation
"""The ops whose results are roots."""

_RETYPING = (memref.CastOp, memref.MemorySpaceCastOp, memref.AssumeAlignmentOp)
_RESHAPING = (memref.ExpandShapeOp, memref.CollapseShapeOp)
_EXACT_VIEWS = (*_RETYPING, *_RESHAPING, memref.SubviewOp, SlotOp, arith.SelectOp)


IndexBox = tuple[tuple[int, int], ...]
"""In each dim the first index and the one after the last."""


def is_memory(type: Attribute) -> bool:
    """Whether values of this type stand for bytes."""
    return isinstance(type, MemRefType | UnrankedMemRefType | RingType)


def bits(mask: int) -> Iterator[int]:
    """The numbers in a set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@dataclass(frozen=True)
class RootBox:
    """A box of the elements of a root, which a memref certainly is."""

    root: int
    shape: tuple[int, ...]
    """Of the root; of a slot, for a ring."""
    offsets: tuple[AffineIndex, ...]
    sizes: tuple[int, ...]
    dims: tuple[int, ...] | None
    """For each dim of the memref the dim of the root that it runs along; None where it is reshaped."""

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the root."""
        return self.sizes == self.shape and all(at.constant == 0 for at in self.offsets)

    def window(self, begin: Sequence[int | SSAValue], sizes: Sequence[int]) -> RootBox | None:
        """The box of that size that begins at `begin`, both by the dims of the memref; None where it is reshaped."""
        if self.dims is None:
            return None
        offsets, extents = list(self.offsets), list(self.sizes)
        for dim, start, size in zip(self.dims, begin, sizes, strict=True):
            offsets[dim] = offsets[dim] + AffineIndex.of(start)
            extents[dim] = size
        return replace(self, offsets=tuple(offsets), sizes=tuple(extents))


class Aliases:
    """The roots of a function, and the roots of each of its memrefs."""

    def __init__(self, graph: FlowGraph):
        function = graph.function
        self.allocations: list[Allocation] = [op for op in function.walk() if isinstance(op, Allocation)]
        """The ops that make the first roots, in textual order; then follow the arguments."""
        arguments = [arg for arg in function.body.blocks[0].args if is_memory(arg.type)]
        self.roots: list[SSAValue] = [*(op.results[0] for op in self.allocations), *arguments]
        self.number = {root: number for number, root in enumerate(self.roots)}
        self.arguments = ((1 << len(arguments)) - 1) << len(self.allocations)
        """The roots that are arguments."""
        self.escaped = 0
        """The roots that something may keep which is no memref, or that memory keeps."""
        self.returned: dict[int, func.ReturnOp] = {}
        """The roots that the function returns, and where."""
        self.handed: list[SSAValue] = []
        """The values that control flow hands on, and views of them."""
        self.irregular = 0
        """The roots of which something makes a memref that is no view known here, and may reach beyond its operand."""
        self._sources: dict[SSAValue, list[SSAValue]] = {}
        self._roots_of: dict[SSAValue, int] = {root: 1 << number for number, root in enumerate(self.roots)}
        self._parts: dict[SSAValue, RootBox | None] = {}
        self._spread(graph)
        self._note_escapes(function)
        self.certain = sum(1 << number for number in range(len(self.roots)) if self._keeps_all(number))
        """The roots of which writing all elements leaves no byte that is read."""

    def of(self, value: SSAValue) -> int:
        """The roots that a value may be, or may view."""
        return self._roots_of.get(value, 0)

    def of_all(self, values: Iterable[SSAValue]) -> int:
        """The roots that any of several values may be."""
        found = 0
        for value in values:
            found |= self._roots_of.get(value, 0)
        return found

    def touched(self, part: RootBox) -> int:
        """The root of a box, as a set."""
        return 1 << part.root

    # what may be

    def _spread(self, graph: FlowGraph) -> None:
        flows: dict[SSAValue, list[SSAValue]] = {}

        def flow(source: SSAValue, dest: SSAValue) -> None:
            if is_memory(source.type) and is_memory(dest.type):
                flows.setdefault(source, []).append(dest)
                self._sources.setdefault(dest, []).append(source)

        for edge in graph.edges():
            for source, dest in edge.handed:
                flow(source, dest)
        for op in graph.function.walk():
            if isinstance(op, CONTROL) or not op.results:
                continue
            for source in op.operands:
                for dest in op.results:
                    flow(source, dest)
        waiting = list(self.roots)
        while waiting:
            value = waiting.pop()
            for dest in flows.get(value, ()):
                known = self._roots_of.get(dest, 0)
                if known | self._roots_of[value] != known:
                    self._roots_of[dest] = known | self._roots_of[value]
                    waiting.append(dest)
        self.handed = [value for value in self._roots_of if _is_chosen(value) and value not in self.number]
        late = set(self.handed)
        for value in self.handed:
            for dest in flows.get(value, ()):
                if dest not in late:
                    late.add(dest)
                    self.handed.append(dest)

    def _note_escapes(self, function: func.FuncOp) -> None:
        for op in function.walk():
            found = self.of_all(op.operands)
            if not found:
                continue
            if isinstance(op, func.ReturnOp):
                for number in bits(found):
                    self.returned.setdefault(number, op)
            if isinstance(op, memref.StoreOp):
                self.escaped |= self.of(op.value)
            if isinstance(op, memref.ExtractAlignedPointerAsIndexOp | memref.DmaStartOp):
                self.escaped |= found
            if isinstance(op, builtin.UnrealizedConversionCastOp) and not all(is_memory(r.type) for r in op.results):
                self.escaped |= found
            if any(is_memory(result.type) for result in op.results) and not isinstance(op, (*_EXACT_VIEWS, *CONTROL)):
                self.irregular |= found

    def _keeps_all(self, number: int) -> bool:
        """Gaps between rows are bytes too, for other views of the memory."""
        if self.escaped >> number & 1:
            return False
        if not self.irregular >> number & 1:
            return True
        type = self.roots[number].type
        return isa(type, MemRefType) and _is_packed(type)

    # what is certain

    def part(self, value: SSAValue) -> RootBox | None:
        """The box of a root that `value` is, whichever way it came; None where that is not known."""
        if value not in self._parts:
            # What is made of itself, iteration by iteration, is not looked through.
            self._parts[value] = None
            self._parts[value] = self._find_part(value)
        return self._parts[value]

    def _find_part(self, value: SSAValue) -> RootBox | None:
        if (number := self.number.get(value)) is not None:
            return _whole(number, value.type)
        op = value.owner
        match op:
            case SlotOp():
                ring = self._sole(op.ring)
                made_by = None if ring is None else self.roots[ring].owner
                if ring is None or not isinstance(made_by, RingOp) or made_by.slot_count != 1:
                    return None
                return _whole(ring, made_by.slot_type)
            case memref.SubviewOp():
                return self._subview(op)
            case _ if isinstance(op, _RETYPING):
                return self.part(op.operands[0])
            case _ if isinstance(op, _RESHAPING):
                part = self.part(op.operands[0])
                return None if part is None else replace(part, dims=None)
            case _ if _is_chosen(value):
                return self._joined(value)
            case _:
                return None

    def _sole(self, value: SSAValue) -> int | None:
        """The root of a value that can only be one."""
        mask = self.of(value)
        return mask.bit_length() - 1 if mask and mask & (mask - 1) == 0 else None

    def _joined(self, value: SSAValue) -> RootBox | None:
        """A value that is all of one root by whichever way it came, looking through its sources."""
        number = self._sole(value)
        if number is None or not isa(value.type, MemRefType) or not value.type.has_static_shape():
            return None
        seen = {value}
        waiting = [value]
        whole: RootBox | None = None
        while waiting:
            for source in self._sources.get(waiting.pop(), ()):
                if source in seen:
                    continue
                seen.add(source)
                if _is_chosen(source) and source not in self.number:
                    waiting.append(source)
                    continue
                part = self.part(source)
                if part is None or not part.is_whole:
                    return None
                whole = part if whole is None or whole.dims == part.dims else replace(part, dims=None)
        if whole is None or prod(value.type.get_shape()) != prod(whole.shape):
            return None
        return whole if value.type.get_shape() == whole.shape else replace(whole, dims=None)

    def _subview(self, op: memref.SubviewOp) -> RootBox | None:
        part = self.part(op.source)
        sizes, steps = op.static_sizes.get_values(), op.static_strides.get_values()
        if part is None or DYNAMIC_INDEX in sizes or set(steps) - {1}:
            return None
        begin = get_dynamic_index_list(op.static_offsets.get_values(), op.offsets, DYNAMIC_INDEX)
        window = part.window(list(begin), list(sizes))
        if window is None or window.dims is None:
            return None
        type = op.result.type
        assert isa(type, MemRefType)
        kept: list[int] = []
        shape = type.get_shape()
        # Which of several dims of size 1 is dropped makes no difference: no window can move in it.
        for dim, size in zip(window.dims, sizes, strict=True):
            if len(kept) < len(shape) and size == shape[len(kept)]:
                kept.append(dim)
        return replace(window, dims=tuple(kept)) if len(kept) == len(shape) else None


def _is_chosen(value: SSAValue) -> bool:
    """Whether a value is one of several, as control goes."""
    return not isinstance(value.owner, Operation) or isinstance(value.owner, (*CONTROL, arith.SelectOp))


def _whole(number: int, type: Attribute) -> RootBox | None:
    if not isa(type, MemRefType) or not type.has_static_shape():
        return None
    shape = tuple(type.get_shape())
    return RootBox(number, shape, (AffineIndex(),) * len(shape), shape, tuple(range(len(shape))))


def _is_packed(type: MemRefType[Attribute]) -> bool:
    try:
        strides = static_strides(type)
    except ValueError:
        return False
    expected = 1
    for size, stride in zip(reversed(type.get_shape()), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
