# SPDX-License-Identifier: Apache-2.0
"""
`mem`: placed buffers and window copies.

A scope is a string in a memref's type, `memref<16x32xf32, "spad">`, that names a `machine.scope`; a memref
without one lives off chip. Deciding what lives where is writing `mem.buffer`; deciding when it gets there
is writing `mem.copy`.

Before that is decided, what brings a tensor into being may say in the attribute `mem.scope` where it is to live, and
`mem.explicit` marks a copy that the program states and no pass drops, an explicit copy. `mem.off_chip` says why an
allocation is not on chip, where it could be.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, cast

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    CompileTimeFixedBitwidthType,
    IndexType,
    IntegerAttr,
    MemRefType,
    NoneAttr,
    StringAttr,
    TensorType,
    i64,
)
from xdsl.ir import Attribute, Dialect, Operation, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    AttrSizedOperandSegments,
    BaseAttr,
    IRDLOperation,
    ParamAttrConstraint,
    ParsePropInAttrDict,
    VarConstraint,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import MemoryAllocEffect, MemoryReadEffect, MemoryWriteEffect, NoMemoryEffect
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.window import Window, WindowedTransfer

SCOPE = "mem.scope"
"""The attribute of what brings a tensor into being, and of the `memref.alloc` that it becomes: where it is to live."""
EXPLICIT = "mem.explicit"
"""The attribute of an explicit copy on tensors, which becomes a `mem.copy`, and of what is recomputed on purpose."""
OFF_CHIP = "mem.off_chip"
"""The attribute of an allocation of a kernel on the machine that says, for people, why it is not on chip."""


def memref_of(value: SSAValue) -> MemRefType[Attribute]:
    """The type of a value that is a memref."""
    type = value.type
    assert isinstance(type, MemRefType)
    return cast(MemRefType[Attribute], type)


def scope_of(type: Attribute) -> str | None:
    """The scope that a memref type names; None off chip. Raises ValueError for a space that is no string."""
    assert isinstance(type, MemRefType)
    space = cast(MemRefType[Attribute], type).memory_space
    if isinstance(space, StringAttr):
        return space.data
    if isinstance(space, NoneAttr):
        return None
    raise ValueError(f"the memory space {space} is no scope: a scope is a string")


def static_strides(type: MemRefType[Attribute]) -> tuple[int, ...]:
    """The strides of a memref in elements. Raises ValueError where the layout is not strided or not static."""
    strides = type.get_strides()
    if strides is None or any(stride is None for stride in strides):
        raise ValueError(f"{type} has no static strides")
    return tuple(stride for stride in strides if stride is not None)


def element_bytes(type: MemRefType[Attribute] | TensorType[Attribute]) -> int:
    """The bytes of one element. Raises ValueError for an element type that has no fixed size."""
    element = type.element_type
    if not isinstance(element, CompileTimeFixedBitwidthType):
        raise ValueError(f"{element} has no size in bytes")
    return element.compile_time_size


def span_in_bytes(type: MemRefType[Attribute]) -> int:
    """The bytes from the first element of a memref of this type to the end of its last, row pitch included."""
    shape, strides = type.get_shape(), static_strides(type)
    if 0 in shape:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return (last + 1) * element_bytes(type)


def _verify_buffer(type: MemRefType[Attribute], byte_offset: int | None) -> None:
    if not type.has_static_shape():
        raise VerifyException(f"a buffer is static, {type} is not")
    try:
        scope_of(type)
        static_strides(type)
    except ValueError as error:
        raise VerifyException(str(error)) from None
    if byte_offset is not None and byte_offset < 0:
        raise VerifyException(f"a buffer cannot lie at byte {byte_offset}")


class ScopedAllocation(IRDLOperation, ABC):
    """Bytes of a scope, or of the arena off chip, at an offset that a planner decides."""

    offset = opt_prop_def(IntegerAttr.constr(i64))
    """Bytes from the start of the scope; absent until a planner has run."""

    @property
    @abstractmethod
    def storage(self) -> SSAValue:
        """The value that stands for the bytes."""

    @property
    @abstractmethod
    def size_in_bytes(self) -> int:
        """How many bytes there are."""

    @property
    def scope(self) -> str | None:
        """The scope that the bytes are in; None off chip."""
        type = self.storage.type
        return scope_of(type.slot if isinstance(type, RingType) else type)

    @property
    def byte_offset(self) -> int | None:
        """Bytes from the start of the scope; None until a planner has run."""
        return None if self.offset is None else self.offset.value.data

    @property
    def byte_range(self) -> tuple[int, int] | None:
        """The bytes of the scope that it occupies, from and to; None until a planner has run."""
        offset = self.byte_offset
        return None if offset is None else (offset, offset + self.size_in_bytes)

    def overlaps(self, other: ScopedAllocation) -> bool | None:
        """Whether both have bytes in common; None where that is not known before a planner has run."""
        mine, theirs = self.byte_range, other.byte_range
        if self.scope != other.scope or mine is None or theirs is None:
            return False if self.scope != other.scope else None
        return mine[0] < theirs[1] and theirs[0] < mine[1]

    def planned_offset(self) -> int:
        """Bytes from the start of the scope; raises UserError, located, until a planner has run."""
        if self.byte_offset is None:
            raise UserError(
                f'this buffer in "{self.scope or "dram"}" has no offset',
                loc=location_of(self),
                notes=["run `mem-plan` first, or write it `at N`"],
            )
        return self.byte_offset


@irdl_op_definition
class BufferOp(ScopedAllocation):
    """
    A buffer in a scope, or off chip; `at` gives its byte offset in that scope (or in the arena).

    Executing it yields undefined contents: it is an allocation, so two of them are never merged and none is
    hoisted. The offset is a plan in text: edit it and run again.

    ```mlir
    %b = mem.buffer at 2048 : memref<16x32xf32, "spad">
    ```
    """

    name = "mem.buffer"

    memref = result_def(MemRefType)

    traits = traits_def(MemoryAllocEffect())
    irdl_options = (ParsePropInAttrDict(),)

    assembly_format = "(`at` $offset^)? attr-dict `:` type($memref)"

    def __init__(self, type: MemRefType[Attribute], offset: int | None = None):
        super().__init__(
            properties={"offset": None if offset is None else IntegerAttr(offset, i64)},
            result_types=[type],
        )

    @property
    def type(self) -> MemRefType[Attribute]:
        return memref_of(self.memref)

    @property
    def storage(self) -> SSAValue:
        """The value that stands for the bytes."""
        return self.memref

    @property
    def size_in_bytes(self) -> int:
        return span_in_bytes(self.type)

    def verify_(self) -> None:
        _verify_buffer(self.type, self.byte_offset)


@irdl_attr_definition
class RingType(ParametrizedAttribute, TypeAttribute):
    """A ring of buffers of one memref type: `!mem.ring<memref<16x32xf32, "spad">>`."""

    name = "mem.ring"

    slot: MemRefType
    """The type of each buffer."""


@irdl_op_definition
class RingOp(ScopedAllocation):
    """
    `depth` buffers of one type in a row, to be filled and emptied in turn: multi-buffering as a value.

    Slot n lies n mod `depth` times the pitch after the start; the pitch is the bytes of one buffer, unless
    `pitch` says more, for slots that begin at whole granules. Like `mem.buffer` it is an allocation, and its
    contents are undefined when it is executed; a slot keeps what was written to it until it is written again.

    ```mlir
    %r = mem.ring 2 at 2048 : !mem.ring<memref<16x32xf32, "spad">>
    %s = mem.ring 3 pitch 128 at 0 : !mem.ring<memref<8x3xf32, strided<[4, 1]>, "spad">>
    ```
    """

    name = "mem.ring"

    depth = prop_def(IntegerAttr.constr(i64))
    """How many slots it has."""
    pitch = opt_prop_def(IntegerAttr.constr(i64))
    """Bytes from the start of one slot to that of the next; those of one buffer where it is absent."""
    ring = result_def(RingType)

    traits = traits_def(MemoryAllocEffect())
    irdl_options = (ParsePropInAttrDict(),)

    assembly_format = "$depth (`pitch` $pitch^)? (`at` $offset^)? attr-dict `:` type($ring)"

    def __init__(self, depth: int, slot: MemRefType[Attribute], offset: int | None = None, *, pitch: int | None = None):
        super().__init__(
            properties={
                "depth": IntegerAttr(depth, i64),
                "pitch": None if pitch is None else IntegerAttr(pitch, i64),
                "offset": None if offset is None else IntegerAttr(offset, i64),
            },
            result_types=[RingType(slot)],
        )

    @property
    def slot_type(self) -> MemRefType[Attribute]:
        """The type of every slot."""
        assert isinstance(self.ring.type, RingType)
        return self.ring.type.slot

    @property
    def slot_count(self) -> int:
        return self.depth.value.data

    @property
    def storage(self) -> SSAValue:
        """The value that stands for the bytes of all slots."""
        return self.ring

    @property
    def pitch_in_bytes(self) -> int:
        """Bytes from the start of one slot to that of the next."""
        return span_in_bytes(self.slot_type) if self.pitch is None else self.pitch.value.data

    @property
    def size_in_bytes(self) -> int:
        return (self.slot_count - 1) * self.pitch_in_bytes + span_in_bytes(self.slot_type)

    def slot_offsets(self) -> list[int]:
        """The byte offset of every slot; the ring must have an offset."""
        assert self.byte_offset is not None
        return [self.byte_offset + number * self.pitch_in_bytes for number in range(self.slot_count)]

    def verify_(self) -> None:
        if self.slot_count < 1:
            raise VerifyException(f"a ring has at least one slot, not {self.slot_count}")
        _verify_buffer(self.slot_type, self.byte_offset)
        if self.pitch is None:
            return
        span, element = span_in_bytes(self.slot_type), element_bytes(self.slot_type)
        if self.pitch_in_bytes < span:
            raise VerifyException(f"slots of {span} bytes overlap at a pitch of {self.pitch_in_bytes}")
        if self.pitch_in_bytes % element:
            raise VerifyException(f"a pitch of {self.pitch_in_bytes} bytes is no whole number of {element}")


@irdl_op_definition
class SlotOp(IRDLOperation):
    """
    The buffer of a ring whose turn it is at `index`, which counts up without end.

    ```mlir
    %s = mem.slot %r[%n] : !mem.ring<memref<16x32xf32, "spad">>
    ```
    """

    name = "mem.slot"

    T: ClassVar = VarConstraint("T", BaseAttr(MemRefType))

    ring = operand_def(ParamAttrConstraint(RingType, (T,)))
    """The ring that the slot is of."""
    index = operand_def(IndexType)
    """The number of the turn: slot `index` mod the depth of the ring."""
    memref = result_def(T)
    """The slot."""

    traits = traits_def(NoMemoryEffect())
    assembly_format = "$ring `[` $index `]` attr-dict `:` type($ring)"

    def __init__(self, ring: SSAValue, index: SSAValue):
        assert isinstance(ring.type, RingType)
        super().__init__(operands=[ring, index], result_types=[ring.type.slot])


@irdl_op_definition
class CopyOp(WindowedTransfer):
    """
    Copy a box between two memrefs; when it ends, the data is there. Its sizes are static, but for those of memrefs off
    chip, which may be known only in a run: what is a dim of both then has one size.

    A window of the source may be out of bounds if `else` names the scalar that is read outside. A window
    of the destination is clipped: what falls outside is not stored. Source and destination must not overlap.

    ```mlir
    mem.copy %image[%i, -1] to %tile else %zero : memref<64x64xf32> to memref<10x66xf32, "spad">
    mem.copy %tile to %image[%i, 0] : memref<10x66xf32, "spad"> to memref<64x64xf32>
    ```
    """

    name = "mem.copy"

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())

    assembly_format = (
        "$source `` custom<Window>($source_offsets, $static_source_offsets)"
        " `to` $dest `` custom<Window>($dest_offsets, $static_dest_offsets)"
        " (`else` $padding^)? attr-dict `:` type($source) `to` type($dest)"
    )
    custom_directives = (Window,)

    def __init__(
        self,
        source: SSAValue | Operation,
        dest: SSAValue | Operation,
        *,
        source_offsets: Sequence[int | SSAValue] = (),
        dest_offsets: Sequence[int | SSAValue] = (),
        padding: SSAValue | None = None,
    ):
        dynamic, static = self.split_offsets(source_offsets, dest_offsets)
        super().__init__(operands=[source, dest, *dynamic, padding], properties={**static})

    def may_be_open(self) -> bool:
        return scope_of(self.source_type) is None and scope_of(self.dest_type) is None

    def verify_(self) -> None:
        self.verify_window(may_be_out_of_bounds=self.padding is not None)


@irdl_op_definition
class PrefetchOp(IRDLOperation):
    """
    A hint that all of `source` is read soon: caches may load it, by every `step`th element of its innermost dim.

    It reads and writes nothing: programs compute the same without it. MLIR's `memref.prefetch` is this of one element.

    ```mlir
    mem.prefetch %next step 16 : memref<4x1024xf32>
    ```
    """

    name = "mem.prefetch"

    source = operand_def(MemRefType)
    step = prop_def(IntegerAttr.constr(i64))
    """The elements of a line of the caches."""

    traits = traits_def(NoMemoryEffect())
    irdl_options = (ParsePropInAttrDict(),)

    assembly_format = "$source `step` $step attr-dict `:` type($source)"

    def __init__(self, source: SSAValue | Operation, step: int):
        super().__init__(operands=[source], properties={"step": IntegerAttr(step, i64)})

    def verify_(self) -> None:
        if DYNAMIC_INDEX in memref_of(self.source).get_shape():
            raise VerifyException(f"the shape of what is prefetched must be static, but it is a {self.source.type}")
        if self.step.value.data < 1:
            raise VerifyException(f"the step must be positive, but is {self.step.value.data}")


Mem = Dialect("mem", [BufferOp, RingOp, SlotOp, CopyOp, PrefetchOp], [RingType])
