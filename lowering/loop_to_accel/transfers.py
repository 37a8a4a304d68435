# SPDX-License-Identifier: Apache-2.0
"""Copies become transfers of a DMA engine, each within what one of its descriptors holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from xdsl.builder import Builder
from xdsl.dialects import arith
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Attribute, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.accel import DmaOp
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.machine import DmaOp as EngineOp
from penstock.dialects.mem import CopyOp, element_bytes, scope_of, static_strides
from penstock.lowering.loop_to_accel.execs import in_pieces, lower_access, slice_of
from penstock.passes.analysis.access import fill_access
from penstock.passes.analysis.commands.command_loops import next_cut
from penstock.passes.analysis.commands.descriptor import descriptor_dims, entry_elements
from penstock.passes.analysis.index import AffineIndex
from penstock.passes.analysis.intrinsics import candidates
from penstock.passes.index_builder import Index, add

UNKNOWN = 1 << 62


@dataclass(frozen=True)
class _CopyPiece:
    """A copy, or a piece of one."""

    copy: CopyOp
    engine: EngineOp
    entry: int
    """The elements of one entry of the scope on chip."""
    sides: tuple[SSAValue, SSAValue]
    offsets: tuple[Sequence[Index], Sequence[Index]]
    box: tuple[int, ...]
    out_of_bounds: Mapping[int, int]
    """The dims in which the window is out of bounds, and by how many elements on a side at most."""
    padding: SSAValue | None
    clipped: bool = False

    @property
    def strides(self) -> list[tuple[int, ...]]:
        return [_strides(side.type) for side in self.sides]

    @property
    def pad_max(self) -> int | None:
        return None if self.padding is None else self.engine.pad_limit

    @property
    def is_padded(self) -> bool:
        """Whether a descriptor writes all padding that there is; an engine that writes none leaves none out either."""
        if self.engine.pad_limit == 0:
            return not self.out_of_bounds
        spelled = descriptor_dims(
            self.box,
            self.strides,
            max_counts=self.engine.max_counts,
            out_of_bounds={dim: pad for dim, pad in self.out_of_bounds.items() if self.box[dim] > 1},
            entry=self.entry,
            pad_max=self.pad_max,
        )
        for number, dims in enumerate(spelled[: self.engine.dim_count]):
            inside = prod(self.box[dim] for dim in dims[:-1])
            pad = self.out_of_bounds.get(dims[-1], 0) * inside if dims else 0
            if (-(-pad // self.entry) if number == 0 else pad) > self.engine.pad_limit:
                return False
        return True

    def issue(self, builder: Builder) -> None:
        """One transfer, or a loop of them where the box has more dims, or a longer one, than a descriptor."""
        cut = next_cut(self.engine, self.box, self.strides, self.entry, self.out_of_bounds, self.pad_max)
        if cut is not None:
            dim, size = cut
            in_pieces(
                builder, self.box[dim], size, lambda at, start, piece: self._piece(at, dim, start, piece).issue(at)
            )
            return
        op = DmaOp(
            *self.sides,
            self.engine.sym_name.data,
            source_offsets=self.offsets[0] if self.copy.window_side == "source" else (),
            dest_offsets=self.offsets[1] if self.copy.window_side == "dest" else (),
            padding=self.padding,
            clipped=self.clipped,
        )
        op.location = self.copy.location
        builder.insert(op)

    def _piece(self, builder: Builder, dim: int, start: Index, size: int) -> _CopyPiece:
        """What begins at `start` of dim `dim`: a window moves, a whole side is sliced."""
        box = (*self.box[:dim], size, *self.box[dim + 1 :])
        moved: list[Sequence[Index]] = []
        parts: list[SSAValue] = []
        for name, side, at in zip(("source", "dest"), self.sides, self.offsets, strict=True):
            if self.copy.window_side == name:
                parts.append(side)
                moved.append([add(builder, o, start) if number == dim else o for number, o in enumerate(at)])
            else:
                begin: list[Index] = [start if number == dim else 0 for number in range(len(box))]
                parts.append(slice_of(builder, side, begin, box))
                moved.append(at)
        return replace(self, sides=(parts[0], parts[1]), offsets=(moved[0], moved[1]), box=box)


def lower_copy(builder: Builder, copy: CopyOp, target: TargetOp) -> None:
    """Issue the transfers that do `copy`, without tokens."""
    start, end = scope_of(copy.source_type) or DRAM, scope_of(copy.dest_type) or DRAM
    engine = target.dma_between(start, end)
    if engine is None:
        raise UserError(f'no DMA of @{target.sym_name.data} goes from "{start}" to "{end}"', loc=location_of(copy))
    size = element_bytes(copy.source_type)
    transfer = _CopyPiece(
        copy,
        engine,
        entry_elements(target, (start, end), (size, size)),
        (copy.source, copy.dest),
        (copy.mixed_source_offsets(), copy.mixed_dest_offsets()),
        copy.box,
        _out_of_bounds(copy),
        copy.padding,
    )
    if copy.padding is not None and not transfer.out_of_bounds:
        transfer = replace(transfer, padding=None)
    elif copy.padding is not None and not transfer.is_padded:
        _fill(builder, copy, target)
        transfer = replace(transfer, padding=None, clipped=True)
    transfer.issue(builder)


def _out_of_bounds(copy: CopyOp) -> dict[int, int]:
    """The dims in which the window is out of bounds of its side, and by how many elements at most."""
    if copy.window_side is None:
        return {}
    of_source = copy.window_side == "source"
    offsets = copy.mixed_source_offsets() if of_source else copy.mixed_dest_offsets()
    bounds = (copy.source_type if of_source else copy.dest_type).get_shape()
    found: dict[int, int] = {}
    for dim, (offset, size, bound) in enumerate(zip(offsets, copy.box, bounds, strict=True)):
        reach = AffineIndex.of(offset).bounds
        if reach is not None:
            over = max(0, -reach[0], reach[1] + size - bound)
        else:
            # Nothing of a source may be missing that is not padded; what a destination lacks is not stored.
            over = UNKNOWN if copy.padding is not None or not of_source else 0
        if over:
            found[dim] = over
    return found


def _strides(type: Attribute) -> tuple[int, ...]:
    assert isa(type, MemRefType)
    return static_strides(type)


def _fill(builder: Builder, copy: CopyOp, target: TargetOp) -> None:
    """Fill the destination with the padding, for an engine that cannot; the transfer then leaves it there."""
    assert copy.padding is not None
    constant = copy.padding.owner
    type = copy.dest_type
    if isinstance(constant, arith.ConstantOp):
        access = fill_access(type, constant.value)
        matches, _ = candidates(access, target)
        if matches:
            lower_access(builder, matches[0], access, [copy.dest], target, copy)
            return
    raise UserError(
        f"the window is out of bounds, no DMA of @{target.sym_name.data} pads that far, and no intrinsic fills "
        f'"{scope_of(type)}" with the padding',
        loc=location_of(copy),
        notes=["declare an intrinsic `dst[i,j] = 0` for the scope, or an engine with a larger pad_max"],
    )
