# SPDX-License-Identifier: Apache-2.0
"""Putting a decision into the IR: residents in `@main`, the kernels made for them, and the copies at their ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.builder import Builder
from xdsl.dialects import func, memref
from xdsl.dialects.builtin import (
    LocationAttr,
    MemRefType,
    ModuleOp,
    StringAttr,
    SymbolRefAttr,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.functions import unique_name
from penstock.dialects.mem import BufferOp, CopyOp
from penstock.passes.analysis.memory.storage import VIEWS, slice_of
from penstock.passes.loop.on_chip.decision import Decision
from penstock.passes.loop.on_chip.movers import border_filler
from penstock.passes.loop.on_chip.places import Border, OnChipLayout, Specializer, as_argument, rebuild
from penstock.passes.loop.on_chip.program import ProgramUse, Site, copier
from penstock.passes.loop.on_chip.specialize import Resident
from penstock.passes.planning.on_chip.problem import ResidentRun


@dataclass
class Rewrite:
    """The rewriting of one module."""

    module: ModuleOp
    program: ProgramUse
    made: Specializer
    _names: set[str] = field(default_factory=set[str])
    _clones: dict[tuple[str, tuple[tuple[int, Resident], ...]], str] = field(
        default_factory=dict[tuple[str, tuple[tuple[int, Resident], ...]], str]
    )
    _last: dict[str, func.FuncOp] = field(default_factory=dict[str, func.FuncOp])
    """For each kernel the last one made of it."""
    _movers: dict[tuple[Attribute, Attribute], str] = field(default_factory=dict[tuple[Attribute, Attribute], str])
    _borders: dict[MemRefType[Attribute], str] = field(default_factory=dict[MemRefType[Attribute], str])

    def run(self, decisions: Sequence[Decision]) -> None:
        """Put in all that the decisions say."""
        self._names = {op.sym_name.data for op in self.module.ops if isinstance(op, func.FuncOp)}
        at_call: dict[func.CallOp, dict[int, Resident]] = {}
        operands: dict[Site, SSAValue] = {}
        copies: dict[CopyOp, str] = {}
        for decision in decisions:
            for site, resident in decision.residents():
                if isinstance(site.op, func.CallOp):
                    at_call.setdefault(site.op, {})[site.number] = resident
                elif isinstance(site.op, CopyOp):
                    copies[site.op] = "spill" if site.number == 0 else "fill"
            for run in decision.allocation.runs:
                self._put(decision, run, operands)
        for site, value in operands.items():
            site.op.operands[site.number] = value
        for call, residents in at_call.items():
            call.callee = SymbolRefAttr(self._clone(call.callee.string_value(), residents))
        for copy, name in copies.items():
            called = self._mover(name, copy.source, copy.dest, copy.location)
            self._call(Builder(InsertPoint.before(copy)), called, copy.location, copy.source, copy.dest)
            Rewriter.erase_op(copy)
        self._clear()

    # one run

    def _put(self, decision: Decision, run: ResidentRun, operands: dict[Site, SSAValue]) -> None:
        """The buffer of a run, what its accesses get, and the copies before and after it."""
        place, accesses = decision.places[run.tensor], decision.tensor(run.tensor).accesses
        steps = [accesses[index].step for index in range(run.first, run.last + 1)]
        first = self.program.steps[steps[0]]
        start = Builder(InsertPoint.before(first))
        buffer = start.insert(BufferOp(place.type, run.offset))
        buffer.location = first.location
        buffer.memref.name_hint = place.tensor.root.name_hint
        if place.border is not None:
            self._call(start, self._fill_border(place, place.border, first.location), first.location, buffer.memref)
        moves = {
            (movement.step, movement.kind)
            for movement in decision.movements()
            if movement.tensor == run.tensor and run.first <= movement.access <= run.last
        }
        if (steps[0], "fill") in moves:
            inner = as_argument(start, self._inner(start, place, buffer.memref))
            mover = self._mover("fill", place.tensor.root, inner, first.location)
            self._call(start, mover, first.location, place.tensor.root, inner)
        for step in steps:
            for site in place.tensor.by_step()[step]:
                operands[site] = self._operand(Builder(InsertPoint.before(site.op)), place, site, buffer.memref)
            if (step, "write-back") in moves:
                loc = self.program.steps[step].location
                after = Builder(InsertPoint.after(self.program.steps[step]))
                inner = as_argument(after, self._inner(after, place, buffer.memref))
                self._call(after, self._mover("spill", inner, place.tensor.root, loc), loc, inner, place.tensor.root)

    def _inner(self, builder: Builder, place: OnChipLayout, buffer: SSAValue) -> SSAValue:
        """The tensor's own elements in its buffer."""
        if place.border is None:
            return buffer
        return slice_of(builder, buffer, [low for low, _ in place.border.halo], place.tensor.type.get_shape())

    def _operand(self, builder: Builder, place: OnChipLayout, site: Site, buffer: SSAValue) -> SSAValue:
        """What the kernel gets at an access."""
        if place.residents[site].halo:
            return buffer
        return rebuild(builder, site.views, self._inner(builder, place, buffer))

    def _call(self, builder: Builder, name: str, loc: LocationAttr, *operands: SSAValue) -> None:
        builder.insert(func.CallOp(name, list(operands), [])).location = loc

    # kernels

    def _clone(self, callee: str, residents: dict[int, Resident]) -> str:
        """The name of the kernel made for residents, which is put after the one that it is made of."""
        key = callee, tuple(sorted(residents.items()))
        if key not in self._clones:
            kernel = self.program.kernels[callee]
            clone = self.made.make(kernel, residents).clone()
            name = self._clones[key] = unique_name(f"{callee}_on_chip", self._names)
            clone.sym_name = StringAttr(name)
            Rewriter.insert_op(clone, InsertPoint.after(self._last.get(callee, kernel)))
            self._last[callee] = clone
        return self._clones[key]

    def _mover(self, name: str, source: SSAValue, dest: SSAValue, loc: LocationAttr) -> str:
        """The kernel that copies one memref to another, both whole; `loc` is that of the call it is first made for."""
        key = source.type, dest.type
        if key not in self._movers:
            name = unique_name(name, self._names)
            self._movers[key] = self._add_kernel(copier(name, *key, self.program.target), loc)
        return self._movers[key]

    def _fill_border(self, place: OnChipLayout, border: Border, loc: LocationAttr) -> str:
        """The kernel that fills a buffer with padding, of which its border stays."""
        if place.type not in self._borders:
            name = unique_name("border", self._names)
            self._borders[place.type] = self._add_kernel(border_filler(name, place, border, self.program.target), loc)
        return self._borders[place.type]

    def _add_kernel(self, kernel: func.FuncOp, loc: LocationAttr) -> str:
        kernel.location = loc
        for op in kernel.body.block.ops:
            op.location = loc
        last = self.module.body.block.last_op
        assert last is not None
        Rewriter.insert_op(kernel, InsertPoint.after(last))
        return kernel.sym_name.data

    # what is left over

    def _clear(self) -> None:
        """Take away views and allocations without uses, and kernels that are not called."""
        for op in reversed(list(self.program.main.walk())):
            is_dead = all(not result.uses for result in op.results)
            if isinstance(op, VIEWS) and is_dead:
                Rewriter.erase_op(op)
            elif isinstance(op, memref.AllocOp) and _is_unused(op):
                for use in list(op.memref.uses):
                    Rewriter.erase_op(use.operation)
                Rewriter.erase_op(op)
        called = {op.callee.string_value() for op in self.module.walk() if isinstance(op, func.CallOp)}
        for callee, _ in self._clones:
            kernel = self.program.kernels[callee]
            if callee not in called and kernel.parent is not None:
                Rewriter.erase_op(kernel)


def _is_unused(op: memref.AllocOp) -> bool:
    return all(isinstance(use.operation, memref.DeallocOp) for use in op.memref.uses)
