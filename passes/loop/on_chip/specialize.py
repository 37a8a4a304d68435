# SPDX-License-Identifier: Apache-2.0
"""
A kernel made for arguments that are on chip: `specialize` makes it, or says why an argument cannot be.

Where an engine leads between the scope of the resident and that of a tile, the copies between them stay, and begin or
end on chip. Where the tile is in the scope of the resident, it becomes a part of the resident, and the copy goes. That
holds what the kernel does: a tile that is read is written by nothing but its copy; one that is written lives for one
iteration, and is copied out when nothing uses it any more. Its rows must lie as intrinsics need them: every op that
finds another layout is proved again to be an intrinsic.

A window that reaches out of bounds, so that padding is read there, lies inside where the resident has a *halo*: a
border that holds the padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

from xdsl.builder import Builder
from xdsl.dialects import arith, func, memref
from xdsl.dialects.builtin import DYNAMIC_INDEX, FloatAttr, FunctionType, IntegerAttr, MemRefType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import DRAM, DmaOp, TargetOp
from penstock.dialects.mem import BufferOp, CopyOp, element_bytes, memref_of, scope_of, static_strides
from penstock.passes.analysis.access import fill_access
from penstock.passes.analysis.index import AffineIndex
from penstock.passes.analysis.intrinsics import candidates
from penstock.passes.analysis.memory.stated_scopes import is_explicit
from penstock.passes.analysis.memory.storage import (
    accesses_of,
    reads_and_writes,
    slice_of,
    storage_of,
    subview_type,
    uses_through,
)
from penstock.passes.index_builder import add
from penstock.passes.loop.tensorize import prove

Halo = tuple[tuple[int, int], ...]
"""For each dim the elements before the first and after the last that hold padding."""


class CannotReside(Exception):
    """Why an argument of a kernel is not taken from on chip, in words."""


@dataclass(frozen=True)
class Resident:
    """What an argument is when it is on chip."""

    type: MemRefType[Attribute]
    """Of the argument: the scope, the strides, and the shape, with the border if there is one."""
    halo: Halo = ()
    """The border, which the kernel gets too; none where this is empty."""

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the elements inside of the border."""
        halo = self.halo or [(0, 0)] * self.type.get_num_dims()
        return tuple(size - low - high for size, (low, high) in zip(self.type.get_shape(), halo, strict=True))

    @property
    def scope(self) -> str:
        """Where it is."""
        scope = scope_of(self.type)
        assert scope is not None
        return scope


def specialize(kernel: func.FuncOp, residents: Mapping[int, Resident], target: TargetOp) -> func.FuncOp:
    """
    A copy of `kernel` whose arguments `residents` are on chip; the kernel itself stays as it is.

    Raises CannotReside where one of them cannot be.
    """
    clone = kernel.clone()
    block = clone.body.block
    for number, resident in sorted(residents.items()):
        _Argument(clone, block.args[number], resident, target).run()
    clone.properties["function_type"] = FunctionType.from_lists([arg.type for arg in block.args], [])
    return clone


def overhang(kernel: func.FuncOp, number: int, scope: str) -> tuple[Halo, Number] | None:
    """
    The border of padding that the windows of tiles in `scope` reach over the edges of an argument, and what is read
    there; None if they stay inside.

    Raises CannotReside where that is not known, and for windows that read different paddings.
    """
    halo: list[tuple[int, int]] | None = None
    value: Number | None = None
    argument = kernel.body.block.args[number]
    for op in kernel.walk():
        if not isinstance(op, CopyOp) or storage_of(op.source) is not argument or scope_of(op.dest_type) != scope:
            continue
        reach = _reach(op)
        if not any(low or high for low, high in reach):
            continue
        if op.source is not argument:
            raise CannotReside("a window of a part of it reaches out of bounds")
        found = _number(op.padding)
        if value is not None and found != value:
            raise CannotReside("its windows read different paddings")
        value = found
        halo = reach if halo is None else [(max(a, c), max(b, d)) for (a, b), (c, d) in zip(halo, reach, strict=True)]
    return None if halo is None or value is None else (tuple(halo), value)


def _number(padding: SSAValue | None) -> Number:
    constant = None if padding is None else padding.owner
    if not isinstance(constant, arith.ConstantOp) or not isinstance(constant.value, Number):
        raise CannotReside("its windows read a padding that is not constant")
    return constant.value


def _reach(op: CopyOp) -> list[tuple[int, int]]:
    """How far the window of a copy reaches out of bounds in each dim, at the low and at the high end."""
    if op.window_side is None:
        return [(0, 0)] * len(op.box)
    is_source = op.window_side == "source"
    at = op.mixed_source_offsets() if is_source else op.mixed_dest_offsets()
    bounds = (op.source_type if is_source else op.dest_type).get_shape()
    reach: list[tuple[int, int]] = []
    for offset, size, bound in zip(at, op.box, bounds, strict=True):
        limits = AffineIndex.of(offset).bounds
        if limits is None:
            raise CannotReside("how far a window of it reaches is not known")
        reach.append((max(0, -limits[0]), max(0, limits[1] + size - bound)))
    return reach


@dataclass
class _Argument:
    """One argument on its way on chip."""

    kernel: func.FuncOp
    argument: SSAValue
    resident: Resident
    target: TargetOp
    moved: dict[GenericOp, None] = field(default_factory=dict[GenericOp, None])
    """Ops that find an operand in another place or layout than before."""

    def run(self) -> None:
        self._check_uses()
        accesses = accesses_of(self.kernel, self.argument)
        old = self.argument
        self.argument = Rewriter.replace_value_with_new_type(old, self.resident.type)
        if self.resident.halo:
            self._separate_inside([op for op in accesses if isinstance(op, CopyOp) and self._leaves_bounds(op)])
        self._follow(self.argument)
        for op in accesses:
            if isinstance(op, CopyOp):
                self._copy(op)
        for op in self.moved:
            self._prove(op)

    def _check_uses(self) -> None:
        """Every use can be followed, and what the kernel reads of it it does not write."""
        reads = writes = False
        for use in uses_through(self.argument, (memref.SubviewOp,)):
            if not isinstance(use.operation, CopyOp | GenericOp):
                raise CannotReside(f"the kernel accesses it by {use.operation.name}")
            is_write = reads_and_writes(use)[1]
            reads, writes = reads or not is_write, writes or is_write
        if reads and writes:
            raise CannotReside("the kernel reads and writes it")

    def _leaves_bounds(self, op: CopyOp) -> bool:
        if op.source is not self.argument or scope_of(op.dest_type) != self.resident.scope:
            return False
        return any(low or high for low, high in _reach(op))

    def _separate_inside(self, leaving: Sequence[CopyOp]) -> None:
        """What does not reach over the edges uses the elements inside of the border."""
        lows = [low for low, _ in self.resident.halo]
        start = Builder(InsertPoint.at_start(self.kernel.body.block))
        inside = slice_of(start, self.argument, lows, self.resident.shape)
        for use in list(self.argument.uses):
            if use.operation not in leaving and use.operation is not inside.owner:
                use.operation.operands[use.index] = inside
        if not inside.uses:
            assert isinstance(inside.owner, Operation)
            Rewriter.erase_op(inside.owner)

    def _follow(self, value: SSAValue) -> None:
        """The views of a value whose type is new get theirs."""
        for use in list(value.uses):
            op = use.operation
            if isinstance(op, memref.SubviewOp):
                if memref_of(op.result).get_num_dims() != memref_of(value).get_num_dims():
                    raise CannotReside("the kernel sees it with fewer dims")
                self._follow(Rewriter.replace_value_with_new_type(op.result, subview_type(op, memref_of(value))))
            elif isinstance(op, GenericOp):
                self.moved[op] = None

    def _copy(self, op: CopyOp) -> None:
        """A copy between the argument and a tile."""
        is_read = storage_of(op.source) is self.argument
        tile = op.dest if is_read else op.source
        scope = scope_of(memref_of(tile)) or DRAM
        if scope == self.resident.scope:
            if is_explicit(op):
                raise CannotReside("the kernel asks for its copies")
            if is_read:
                self._read(op)
            else:
                self._write(op)
            return
        ends = (self.resident.scope, scope) if is_read else (scope, self.resident.scope)
        engine = self.target.dma_between(*ends)
        if engine is None:
            raise CannotReside(f'no engine leads from "{ends[0]}" to "{ends[1]}"')
        if op.padding is not None:
            self._check_padding(op, engine)

    def _check_padding(self, op: CopyOp, engine: DmaOp) -> None:
        """The engine pads, or an intrinsic fills the tile first."""
        needed = max((max(reach) for reach in _reach(op)), default=0)
        if needed > engine.pad_limit and not can_fill(op.dest_type, _number(op.padding), self.target):
            raise CannotReside(f"@{engine.sym_name.data} does not pad so far, and nothing fills the tile")

    # tiles in the scope of the resident

    def _read(self, op: CopyOp) -> None:
        tile, block = op.dest, op.parent
        assert block is not None
        if op.window_side == "dest" or not isinstance(tile.owner, BufferOp):
            raise CannotReside("it fills a part of a tile")
        for use in uses_through(tile, (memref.SubviewOp,)):
            if use.operation is op:
                continue
            if reads_and_writes(use)[1]:
                raise CannotReside("what is read of it is changed on chip")
            ancestor = block.find_ancestor_op_in_block(use.operation)
            if ancestor is None or not op.is_before_in_block(ancestor):
                raise CannotReside("a tile of it is read again after the next one is there")
        offsets = op.mixed_source_offsets()
        if op.source is self.argument and self.resident.halo:
            builder = Builder(InsertPoint.before(op))
            halo = self.resident.halo
            offsets = [add(builder, offset, low) for offset, (low, _) in zip(offsets, halo, strict=True)]
        elif any(low or high for low, high in _reach(op)):
            raise CannotReside("a window of it reaches out of bounds")
        part = slice_of(Builder(InsertPoint.before(op)), op.source, offsets, op.box)
        self._replace(tile.owner, part, op)

    def _write(self, op: CopyOp) -> None:
        tile, block = op.source, op.parent
        assert block is not None
        if op.window_side == "source" or not isinstance(tile.owner, BufferOp) or tile.owner.parent is not block:
            raise CannotReside("it is written from a part of a tile, or from one that lives longer than an iteration")
        if any(low or high for low, high in _reach(op)):
            raise CannotReside("what is written reaches out of bounds")
        first: Operation = op
        for use in uses_through(tile, (memref.SubviewOp,)):
            ancestor = block.find_ancestor_op_in_block(use.operation)
            if ancestor is None or (use.operation is not op and not ancestor.is_before_in_block(op)):
                raise CannotReside("the tile is used after it is copied out")
            if ancestor.is_before_in_block(first):
                first = ancestor
        offsets = op.mixed_dest_offsets()
        needed = [op.dest, *(offset for offset in offsets if isinstance(offset, SSAValue))]
        if not all(_is_known_before(value, first) for value in needed):
            raise CannotReside("where a tile goes is known only after it has been computed")
        part = slice_of(Builder(InsertPoint.before(first)), op.dest, offsets, op.box)
        self._replace(tile.owner, part, op)

    def _replace(self, buffer: BufferOp, part: SSAValue, copy: CopyOp) -> None:
        Rewriter.erase_op(copy)
        if part.name_hint is None and not isinstance(part, BlockArgument):
            part.name_hint = buffer.memref.name_hint
        buffer.memref.replace_all_uses_with(part)
        Rewriter.erase_op(buffer)
        self._follow(part)

    def _prove(self, op: GenericOp) -> None:
        try:
            op.library_call = prove(op, self.target).intrinsic.sym_name
        except UserError as error:
            raise CannotReside("; ".join([error.message, *error.notes[:1]])) from None
        granule = self.target.scope(self.resident.scope).granule_bytes
        for value in op.operands:
            while isinstance(value.owner, memref.SubviewOp):
                view, source = value.owner, memref_of(value.owner.source)
                if scope_of(source) == self.resident.scope and not begins_aligned(view, source, granule):
                    raise CannotReside(f"a tile of it begins within a granule of {granule} bytes")
                value = value.owner.source


def _is_known_before(value: SSAValue, op: Operation) -> bool:
    """Whether a value that is known at the end of the block of `op` is known before `op`."""
    owner = value.owner
    return isinstance(owner, Block) or owner.parent is not op.parent or owner.is_before_in_block(op)


def begins_aligned(op: memref.SubviewOp, source: MemRefType[Attribute], granule: int) -> bool:
    """Whether a view of a memref of this type begins at a multiple of the granule, if the memref does."""
    offsets = get_dynamic_index_list(op.static_offsets.get_values(), op.offsets, DYNAMIC_INDEX)
    strides = static_strides(source)
    return all(
        AffineIndex.of(offset).is_multiple_of(granule // gcd(granule, stride * element_bytes(source)))
        for offset, stride in zip(offsets, strides, strict=True)
    )


Number = IntegerAttr | FloatAttr
"""The value of an `arith.constant`."""


def can_fill(type: MemRefType[Attribute], value: Attribute, target: TargetOp) -> bool:
    """Whether some intrinsic of the machine fills a buffer of this type with `value`."""
    return bool(candidates(fill_access(type, value), target)[0])
