# SPDX-License-Identifier: Apache-2.0
"""
Scopes as real bytes.

A scope is one array of bytes, and beside each byte lies a tag: the number of the buffer instance that last wrote
it. Executing `mem.buffer` makes a new instance, whose bytes are undefined until they are written through it, so
reading a byte that another instance wrote, or none did, is an error that names buffer, scope and offset. Off chip
the same holds for the arena, the scope of placed buffers that name none.

A byte that a transfer in flight is writing has the tag `IN_FLIGHT`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided
from xdsl.dialects import memref as memref_dialect
from xdsl.dialects.builtin import MemRefType, ModuleOp, ShapedType
from xdsl.ir import Attribute, Operation, SSAValue

from penstock.dialects import mem
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import TargetOp, find_target
from penstock.dialects.weights import Array
from penstock.runtime.interpreter.domain import Box
from penstock.runtime.interpreter.values import dtype_of, poison, undefined

ARENA = "the arena"
"""What the scope of placed buffers off chip is called in messages."""

UNWRITTEN = 0
IN_FLIGHT = -1

Region = Box | Array | None
"""Some elements of a memref: a box, a mask of its shape, or all."""


@dataclass
class ScopeBytes:
    """The bytes of a scope and their tags, of which one is for `unit` bytes."""

    title: str
    data: Array
    unit: int
    tags: Array
    owners: list[SSAValue | None]
    """The buffer of each instance, by its tag; shared by all scopes; `UNWRITTEN` has none."""


class TaggedBuffer:
    """A memref whose bytes are tagged: an instance of a `mem.buffer`, or a view of one."""

    __slots__ = ("array", "scope", "tag", "tags")

    def __init__(self, array: Array, tags: Array, tag: int, scope: ScopeBytes):
        self.array = array
        self.tags = tags
        """The tags of its elements: shape of `array`, and one more dim, of tags an element."""
        self.tag = tag
        self.scope = scope

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def sliced(self, index: Any) -> TaggedBuffer:
        """The view of some of its elements."""
        return TaggedBuffer(self.array[index], self.tags[index], self.tag, self.scope)

    def viewed(self, shape: Sequence[int], strides: Sequence[int], offset: int) -> TaggedBuffer:
        """The view of that shape, with strides and an offset in elements."""
        each = self.tags.shape[-1]
        tags = strided(self.tags, (*shape, each), [*(stride * each for stride in strides), 1], offset * each)
        return TaggedBuffer(strided(self.array, shape, strides, offset), tags, self.tag, self.scope)


MemRef = Array | TaggedBuffer


def strided(base: Array, shape: Sequence[int], strides: Sequence[int], offset: int) -> Array:
    """A view that begins `offset` elements after the first of `base`, with strides in elements."""
    if offset:
        base = as_strided(base, (offset + 1,), (base.itemsize,))[offset:]
    return as_strided(base, shape, [stride * base.itemsize for stride in strides])


def array_of(memref: MemRef) -> Array:
    """The elements of a memref, unchecked."""
    return memref.array if type(memref) is TaggedBuffer else memref  # pyright: ignore


def readable(memref: MemRef, op: Operation, region: Region = None) -> Array:
    """
    The elements of a memref, of which `op` reads those in `region`.

    Raises UserError if a byte of them was not last written through this instance of the buffer.
    """
    if type(memref) is not TaggedBuffer:
        return memref  # pyright: ignore
    tags = memref.tags if region is None else memref.tags[region]
    if (tags != memref.tag).any():
        raise _undefined_read(memref, op, region)
    return memref.array


def copied(memref: MemRef, op: Operation, region: Region, dest: MemRef) -> Array | None:
    """
    Which of the elements in `region` are undefined, where `op` copies them to `dest`; None if none is.

    Copying an undefined element is no read: it makes an undefined one. Raises UserError if a command in flight is
    writing the elements, and where `dest` has no tags: it could not tell what is undefined.
    """
    if type(memref) is not TaggedBuffer:
        return None
    tags = memref.tags[... if region is None else region]
    wrong = tags != memref.tag
    if not wrong.any():
        return None
    if type(dest) is not TaggedBuffer or (tags == IN_FLIGHT).any():
        raise _undefined_read(memref, op, region)
    return wrong.any(axis=-1)


def leave_undefined(memref: MemRef, region: Region, undefined: Array | None) -> None:
    """Note that of the elements of `region`, just written, some are `undefined`."""
    if undefined is not None and type(memref) is TaggedBuffer:
        memref.tags[... if region is None else region][undefined] = UNWRITTEN


def written(memref: MemRef, region: Region = None) -> None:
    """Note that the elements of `region` have been written through this memref."""
    mark(memref, memref.tag if type(memref) is TaggedBuffer else UNWRITTEN, region)


def mark(memref: MemRef, tag: int, region: Region = None) -> None:
    """Give the elements of `region` a tag."""
    if type(memref) is TaggedBuffer:
        memref.tags[... if region is None else region] = tag


def _undefined_read(buffer: TaggedBuffer, op: Operation, region: Region) -> UserError:
    scope = buffer.scope
    wrong = np.zeros(buffer.tags.shape, np.bool_)
    chosen = ... if region is None else region
    wrong[chosen] = buffer.tags[chosen] != buffer.tag
    first = tuple(int(index) for index in np.argwhere(wrong)[0])
    start = buffer.tags.__array_interface__["data"][0] - scope.tags.__array_interface__["data"][0]
    position = start + sum(index * stride for index, stride in zip(first, buffer.tags.strides, strict=True))
    offset = position // scope.tags.itemsize * scope.unit
    why = why_undefined(buffer, int(buffer.tags[first]))
    element = ", ".join(str(index) for index in first[:-1])
    return UserError(
        f"{op.name} reads element [{element}] of {describe(scope.owners[buffer.tag])} at byte {offset} of "
        f"{scope.title}, {why}",
        loc=location_of(op),
        notes=["contents are undefined until written through the same mem.buffer, and the write waited for"],
    )


def why_undefined(buffer: TaggedBuffer, tag: int) -> str:
    """What is wrong with a byte of `buffer` that has another tag than its own."""
    owners = buffer.scope.owners
    if tag == UNWRITTEN:
        return "which was never written"
    if tag == IN_FLIGHT:
        return "which a command in flight is writing"
    if owners[tag] is owners[buffer.tag]:
        return "which was last written through an earlier execution of the same buffer"
    return f"which was last written through {describe(owners[tag])}"


def describe(value: SSAValue | None) -> str:
    """A buffer in a message: its name, and where it lies."""
    if value is None:
        return "no buffer"
    while value.name_hint is None and isinstance(value.owner, memref_dialect.SubviewOp):
        value = value.owner.source
    name = f"%{value.name_hint}" if value.name_hint else "a buffer"
    owner = value.owner
    if isinstance(owner, mem.BufferOp) and owner.byte_offset is not None:
        return f"{name} (mem.buffer at {owner.byte_offset})"
    if isinstance(owner, mem.RingOp) and owner.byte_offset is not None:
        return f"a slot of {name} (mem.ring {owner.slot_count} at {owner.byte_offset})"
    return name


class ScopeMemory:
    """The scopes of a machine, and the arena, for one execution of a module."""

    def __init__(self, module: ModuleOp):
        self._target: TargetOp | None = find_target(module)
        self._units: dict[str | None, int] = {}
        self._ends: dict[str | None, int] = {}
        self._scopes: dict[str | None, ScopeBytes] = {}
        self._placed: dict[tuple[mem.BufferOp | mem.RingOp, int], TaggedBuffer] = {}
        self._owners: list[SSAValue | None] = [None]
        for op in module.walk():
            if isinstance(op, mem.BufferOp) and op.byte_offset is not None:
                self._measure(op, op.type, op.byte_offset)
            elif isinstance(op, mem.RingOp) and op.byte_offset is not None:
                for offset in op.slot_offsets():
                    self._measure(op, op.slot_type, offset)

    @property
    def instances(self) -> int:
        """How many instances of buffers have been made, which is the tag of the next one."""
        return len(self._owners)

    def _measure(self, op: Operation, type: MemRefType[Attribute], offset: int) -> None:
        scope = mem.scope_of(type)
        size = dtype_of(type.element_type, op).itemsize
        self._units[scope] = gcd(self._units.get(scope, 0), size, offset)
        self._ends[scope] = max(self._ends.get(scope, 0), offset + span(type, op))

    def buffers(
        self, op: mem.BufferOp | mem.RingOp, type: MemRefType[Attribute], value: SSAValue, offsets: Sequence[int | None]
    ) -> tuple[MemRef, ...]:
        """
        New instances of a buffer, or of the slots of a ring, at byte offsets or, where those are None, in bytes of
        their own; their contents are undefined.

        Raises UserError if one leaves its scope, or the machine has no such scope.
        """
        return tuple(
            self.unplaced(type, value, op)
            if offset is None
            else self._instance(self._placed_bytes(op, type, value, offset), value)
            for offset in offsets
        )

    def _placed_bytes(
        self, op: mem.BufferOp | mem.RingOp, type: MemRefType[Attribute], value: SSAValue, offset: int
    ) -> TaggedBuffer:
        """The bytes of a placed buffer or slot, which all its instances share."""
        if (found := self._placed.get((op, offset))) is not None:
            return found
        scope = self._scope(op, type)
        size = span(type, op)
        if offset + size > len(scope.data):
            raise UserError(
                f"{describe(value)} takes bytes {offset} to {offset + size} of {scope.title}, "
                f"which has {len(scope.data)}",
                loc=location_of(op),
            )
        found = self._placed[(op, offset)] = _bytes_of(scope, offset, type, op)
        return found

    def _instance(self, bytes: TaggedBuffer, value: SSAValue) -> TaggedBuffer:
        tag = len(self._owners)
        self._owners.append(value)
        return TaggedBuffer(bytes.array, bytes.tags, tag, bytes.scope)

    def unplaced(self, type: MemRefType[Attribute], value: SSAValue, op: Operation) -> TaggedBuffer | Array:
        """A buffer without an offset, in bytes of its own; tagged if it names a scope."""
        dtype = dtype_of(type.element_type, op)
        name = mem.scope_of(type)
        if name is None:
            return undefined_memref(type, dtype)
        size = span(type, op)
        tags = np.zeros(size // dtype.itemsize, np.int32)
        scope = ScopeBytes(f'scope "{name}"', np.empty(size, np.uint8), dtype.itemsize, tags, self._owners)
        buffer = self._instance(_bytes_of(scope, 0, type, op), value)
        poison(buffer.array)
        return buffer

    def _scope(self, op: Operation, type: MemRefType[Attribute]) -> ScopeBytes:
        name = mem.scope_of(type)
        found = self._scopes.get(name)
        if found is None:
            found = self._scopes[name] = self._new_scope(name, op)
        return found

    def _new_scope(self, name: str | None, op: Operation) -> ScopeBytes:
        size = self._ends[name]
        if name is not None and self._target is not None:
            try:
                size = self._target.scope(name).size_bytes
            except UserError as error:
                raise UserError(error.message, loc=location_of(op), notes=error.notes) from None
        unit = self._units[name]
        title = ARENA if name is None else f'scope "{name}"'
        tags = np.zeros(-(-size // unit), np.int32)
        return ScopeBytes(title, np.zeros(size, np.uint8), unit, tags, self._owners)


def _bytes_of(scope: ScopeBytes, offset: int, type: MemRefType[Attribute], op: Operation) -> TaggedBuffer:
    """The bytes of a memref in a scope, before they belong to an instance."""
    dtype = dtype_of(type.element_type, op)
    each, size = dtype.itemsize // scope.unit, span(type, op)
    data = scope.data[offset : offset + size].view(dtype)
    tags = scope.tags[offset // scope.unit : (offset + size) // scope.unit].reshape(-1, each)
    shape, strides = type.get_shape(), mem.static_strides(type)
    if strides == ShapedType.strides_for_shape(shape):
        return TaggedBuffer(data.reshape(shape), tags.reshape(*shape, each), UNWRITTEN, scope)
    return TaggedBuffer(data, tags, UNWRITTEN, scope).viewed(shape, strides, 0)


def span(type: MemRefType[Attribute], op: Operation) -> int:
    """The bytes from the first element to the end of the last, in the type that NumPy computes in."""
    shape = type.get_shape()
    if 0 in shape:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(shape, mem.static_strides(type), strict=True))
    return (last + 1) * dtype_of(type.element_type, op).itemsize


def undefined_memref(type: MemRefType[Attribute], dtype: np.dtype[Any]) -> Array:
    """A memref off chip of its own, its contents undefined, with the layout of its type."""
    shape, strides = type.get_shape(), mem.static_strides(type)
    if strides == ShapedType.strides_for_shape(shape):
        return undefined(shape, dtype)
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if 0 not in shape else -1
    return as_strided(undefined([last + 1], dtype), shape, [stride * dtype.itemsize for stride in strides])


# scalars

_BUFFER_FORMATS = "fdbhilq?"


class ScalarView(Protocol):
    """Element access by a tuple of indices (one index where there is one dim); IndexError outside."""

    def __getitem__(self, index: Any, /) -> Any: ...

    def __setitem__(self, index: Any, value: Any, /) -> None: ...


class UndefinedRead(Exception):
    """A scalar was read that was never written; the op that did so is known to the caller."""


def scalar_view(memref: MemRef) -> ScalarView:
    """The scalars of a memref."""
    if type(memref) is TaggedBuffer:
        return _TaggedView(memref)
    return _plain_view(memref)  # pyright: ignore


def _plain_view(array: Array) -> ScalarView:
    # A memoryview reads and writes Python numbers, three times as quickly as an ndarray, and rounds on the way.
    if array.dtype.char in _BUFFER_FORMATS:
        return memoryview(array)  # pyright: ignore[reportArgumentType]  (an ndarray is a buffer)
    return _FloatView(array)


class _FloatView:
    """The elements of a type that Python's buffers do not know, such as float16 and bfloat16, as floats."""

    def __init__(self, array: Array):
        self._array = array

    def __getitem__(self, index: Any) -> float:
        return float(self._array[index])

    def __setitem__(self, index: Any, value: float) -> None:
        self._array[index] = value


class _TaggedView:
    """The elements of a buffer, each access checked against the tags of its bytes."""

    def __init__(self, buffer: TaggedBuffer):
        self._buffer = buffer
        self._scalars = _plain_view(buffer.array)

    def __getitem__(self, index: Any) -> Any:
        buffer = self._buffer
        tags = buffer.tags[index]
        if (tags != buffer.tag).any():
            why = why_undefined(buffer, int(tags[tags != buffer.tag][0]))
            raise UndefinedRead(f"reads an element of {describe(buffer.scope.owners[buffer.tag])}, {why}")
        return self._scalars[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._scalars[index] = value
        self._buffer.tags[index] = self._buffer.tag
