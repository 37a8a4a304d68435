# SPDX-License-Identifier: Apache-2.0
"""What one op does to memory: which roots it may read, which it may write, and what it certainly writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects import func, memref
from xdsl.dialects.builtin import DYNAMIC_INDEX, MemRefType
from xdsl.dialects.linalg.abstract_ops import LinalgStructuredOperation
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.traits import IsTerminator, NoMemoryEffect, is_side_effect_free
from xdsl.utils.hints import isa

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.accel_issue import IssueOp
from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import IMMEDIATE, CommandForm, TargetOp
from penstock.dialects.mem import CopyOp
from penstock.passes.analysis.memory.aliases import Aliases, Allocation, RootBox, is_memory
from penstock.passes.analysis.memory.graph import CONTROL
from penstock.passes.analysis.memory.strips import Strips
from penstock.runtime.interpreter.domain import OperandAccess


@dataclass(frozen=True)
class Effect:
    """What an op does to the roots of its function, or to their strips."""

    reads: int = 0
    """Those of which it may read some byte, written before it."""
    writes: int = 0
    """Those of which it may write some byte."""
    fills: tuple[RootBox, ...] = ()
    """What it writes in any case, all elements of it, without reading one of them first."""

    @property
    def touches(self) -> int:
        """Those that it may access."""
        return self.reads | self.writes


NOTHING = Effect()


@dataclass(frozen=True)
class CallSummary:
    """What a function does to the memory in its arguments, by their numbers."""

    reads: frozenset[int]
    """Read before they are wholly written."""
    writes: frozenset[int]
    fills: frozenset[int]
    """Wholly written, whichever way control takes, and not read before."""
    beyond: frozenset[int]
    """Of which bytes outside of the memref that is handed over may be accessed."""


Summarize = Callable[[func.CallOp], CallSummary | None]
"""What a callee does; None where it is not known."""


class MemoryEffects:
    """The effects of the ops of one function, as sets of roots or of strips."""

    def __init__(self, aliases: Aliases | Strips, target: TargetOp | None, summarize: Summarize):
        self._aliases = aliases
        self._target = target
        self._summarize = summarize
        self._bodies: dict[str, tuple[bool, ...] | None] = {}

    def of(self, op: Operation) -> Effect:
        """The effect of an op, with all that is inside; of the header of a loop or branch, that of the header."""
        if isinstance(op, CONTROL):
            return NOTHING
        own = self._own(op)
        if not op.regions:
            return own
        reads, writes = own.reads, own.writes
        for region in op.regions:
            for inner in region.walk():
                effect = NOTHING if isinstance(inner, CONTROL) else self._own(inner)
                reads, writes = reads | effect.reads, writes | effect.writes
        return Effect(reads, writes, own.fills)

    def beyond(self, op: Operation) -> int:
        """Those of which an op may access bytes outside of the memrefs that it is given; all of a root, if any."""
        match op:
            case func.CallOp():
                summary = self._summarize(op)
                return self._aliases.of_all(
                    value for number, value in enumerate(op.arguments) if summary is None or number in summary.beyond
                )
            case memref.LoadOp() | memref.StoreOp() | memref.CopyOp() | CopyOp() | DmaOp() | ExecOp():
                return 0
            case LinalgStructuredOperation():
                return 0
            case _ if isinstance(op, CONTROL):
                return 0
            case _:
                touched = self._aliases.of_all(op.operands)
                return touched if touched and self._own(op).touches else 0

    def _own(self, op: Operation) -> Effect:
        of, touched = self._aliases.of, self._aliases.of_all(op.operands)
        if not touched:
            return NOTHING
        match op:
            case memref.LoadOp():
                return Effect(of(op.memref))
            case memref.StoreOp():
                return Effect(0, of(op.memref), self._fills(self._element(op)))
            case memref.CopyOp():
                return Effect(of(op.source), of(op.destination), self._fills(self._part(op.destination)))
            case CopyOp() | DmaOp():
                return self._transfer(op)
            case GenericOp():
                return self._generic(op)
            case ExecOp():
                return self._exec(op)
            case LinalgStructuredOperation(name="linalg.fill"):
                return Effect(0, self._aliases.of_all(op.outputs), self._fills(*map(self._part, op.outputs)))
            case func.CallOp():
                return self._call(op)
            case IssueOp():
                return Effect(touched, self._written_by_issue(op))
            case _:
                return self._other(op, touched)

    def _other(self, op: Operation, touched: int) -> Effect:
        if isinstance(op, Allocation | memref.DeallocOp | memref.DimOp | memref.RankOp) or op.has_trait(IsTerminator):
            return NOTHING
        if op.has_trait(NoMemoryEffect) or (not op.regions and is_side_effect_free(op)):
            return NOTHING
        if isinstance(op, LinalgStructuredOperation):
            return Effect(touched, self._aliases.of_all(op.outputs))
        return Effect(touched, touched)

    def _part(self, value: SSAValue) -> RootBox | None:
        return self._aliases.part(value)

    def _written_by_issue(self, op: IssueOp) -> int:
        """Of a command of the real machine: the operand that its part writes, which may be on chip."""
        parts = {} if self._target is None else {**self._target.dmas(), **self._target.intrinsics()}
        part = parts.get(op.part_name)
        form = None if part is None else CommandForm.of(part)
        return self._aliases.of_all(
            value for name, value in op.field_values().items() if form is None or name == form.operands[-1].name
        )

    def _fills(self, *parts: RootBox | None) -> tuple[RootBox, ...]:
        return tuple(part for part in parts if part is not None and self._aliases.certain >> part.root & 1)

    def _element(self, op: memref.StoreOp) -> RootBox | None:
        part = self._part(op.memref)
        return None if part is None else part.window(list(op.indices), [1] * len(op.indices))

    def _transfer(self, op: CopyOp | DmaOp) -> Effect:
        reads, writes = self._aliases.of(op.source), self._aliases.of(op.dest)
        if (window := self.window(op)) is not None:
            inside = self._aliases.touched(window)
            reads, writes = (reads & inside, writes) if op.window_side == "source" else (reads, writes & inside)
        return Effect(reads, writes, self._fills(self._moved(op)))

    def window(self, op: CopyOp | DmaOp) -> RootBox | None:
        """The box of its source or dest that a transfer accesses at most; None where it is not known."""
        at_source = op.window_side == "source"
        part = self._part(op.source if at_source else op.dest)
        if part is None or op.window_side is None or DYNAMIC_INDEX in op.box:
            return None
        return part.window(op.mixed_source_offsets() if at_source else op.mixed_dest_offsets(), op.box)

    def _moved(self, op: CopyOp | DmaOp) -> RootBox | None:
        """What a transfer writes whatever its windows are."""
        part = self._part(op.dest)
        if part is None:
            return None
        if op.window_side == "dest":
            at = op.mixed_dest_offsets()
            # What is out of bounds of the destination is not stored. Of a root that is its own loss.
            inside = op.window_lies_inside(at, op.dest_type.get_shape())
            if DYNAMIC_INDEX in op.box:
                return None
            return part.window(at, op.box) if inside or part.is_whole else None
        if isinstance(op, DmaOp) and op.clipped is not None:
            inside = op.window_lies_inside(op.mixed_source_offsets(), op.source_type.get_shape())
            return part if inside else None
        return part

    def _generic(self, op: GenericOp) -> Effect:
        args = op.body.block.args
        maps = [map_attr.data for map_attr in op.indexing_maps]
        extents: Sequence[int] | None = None
        if all(not isa(v.type, MemRefType) or v.type.has_static_shape() for v in op.operands):
            extents = op.get_static_loop_ranges()
        return self._structured(
            list(op.operands), maps, extents, [bool(arg.uses) for arg in args], range(len(op.inputs), len(args))
        )

    def _exec(self, op: ExecOp) -> Effect:
        buffers = list(op.buffers)
        reads = self._read_by(op)
        maps = [map_attr.data for map_attr in op.maps]
        if reads is None or len(reads) != len(buffers):
            return Effect(self._aliases.of_all(buffers), self._aliases.of(buffers[-1]))
        return self._structured(buffers, maps, op.extents.get_values(), reads, [len(buffers) - 1])

    def _read_by(self, op: ExecOp) -> tuple[bool, ...] | None:
        """For each buffer of a command whether the intrinsic reads it; None if the machine is not known."""
        name = op.intrinsic_name
        if name not in self._bodies:
            self._bodies[name] = self._find_read(name)
        return self._bodies[name]

    def _find_read(self, name: str) -> tuple[bool, ...] | None:
        intrinsic = None if self._target is None else self._target.intrinsics().get(name)
        if intrinsic is None:
            return None
        try:
            specs = intrinsic.operand_specs()
        except UserError:
            return None
        args = intrinsic.generic.body.block.args
        return tuple(bool(arg.uses) for spec, arg in zip(specs, args, strict=True) if spec.role != IMMEDIATE)

    def _structured(
        self,
        operands: Sequence[SSAValue],
        maps: Sequence[AffineMap],
        extents: Sequence[int] | None,
        read: Sequence[bool],
        outputs: Sequence[int],
    ) -> Effect:
        reads = self._aliases.of_all(operand for operand, is_read in zip(operands, read, strict=True) if is_read)
        writes = self._aliases.of_all(operands[number] for number in outputs)
        if extents is None or any(extent < 1 for extent in extents):
            return Effect(reads, writes)
        parts: list[RootBox | None] = []
        for number in outputs:
            part = self._part(operands[number])
            parts.append(part if part is not None and _covers(maps[number], extents, operands[number]) else None)
        return Effect(reads, writes, self._fills(*parts))

    def _call(self, op: func.CallOp) -> Effect:
        memory = [(number, value) for number, value in enumerate(op.arguments) if is_memory(value.type)]
        summary = self._summarize(op) if memory else None
        if summary is None:
            touched = self._aliases.of_all(value for _, value in memory)
            return Effect(touched, touched)
        return Effect(
            self._aliases.of_all(value for number, value in memory if number in summary.reads),
            self._aliases.of_all(value for number, value in memory if number in summary.writes),
            self._fills(*(self._part(value) for number, value in memory if number in summary.fills)),
        )


def _covers(index_map: AffineMap, extents: Sequence[int], operand: SSAValue) -> bool:
    """Whether a map over a domain reaches every element of an operand."""
    assert isa(operand.type, MemRefType)
    box = OperandAccess.of(index_map).box(extents)
    return box is not None and all(
        len(range(*part.indices(size))) == size for part, size in zip(box, operand.type.get_shape(), strict=True)
    )
