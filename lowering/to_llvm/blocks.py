# SPDX-License-Identifier: Apache-2.0
"""
Structured ops as loop nests in LLVM IR.

A block of sums is written out: its rows one after the other, its lanes as vectors, so that they are in registers
whatever LLVM's vectoriser makes of it. So is all that is done to buffers in the scope of the vector registers. Other
innermost loops are said to be independent, and LLVM makes vectors of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from math import ceil

from xdsl.dialects.linalg.ops import IndexOp

from penstock.lowering.codegen.nest import LoopNest, NestLoop
from penstock.lowering.codegen.nests import Blocks, InOrder
from penstock.lowering.codegen.structured import Structured, plan_structured
from penstock.lowering.codegen.text import Expr
from penstock.lowering.codegen.types import CType
from penstock.lowering.codegen.views import View
from penstock.lowering.to_llvm.emitter import LlvmEmitter
from penstock.lowering.to_llvm.scalar import is_vectorizable
from penstock.lowering.to_llvm.small_floats import is_byte_float
from penstock.lowering.to_llvm.types import memory_type, value_type


def emit_structured(emitter: LlvmEmitter, structured: Structured) -> None:
    """Write the loop nest."""
    planned = plan_structured(structured, with_registers_apart=True)
    if planned is None:
        InOrder(emitter, structured).emit()
    else:
        _LlvmBlocks(emitter, structured, *planned).emit()


Unit = tuple[int, int, int]
"""A part of a block that is computed at once: its row, its first lane, and its lanes; 0 for a scalar."""


class _LlvmBlocks(Blocks[LlvmEmitter]):
    """The loops that were planned."""

    def __init__(self, emitter: LlvmEmitter, structured: Structured, plan: LoopNest, offsets: Sequence[int]):
        super().__init__(emitter, structured, plan, offsets)
        self.asm = emitter.asm
        self._sums: dict[int, str] = {}
        """The variables of the outputs, while they are summed."""
        self._width = self._vector_width()
        self._is_packed = False
        """Whether the packed operand is read from where it was packed."""
        self._lane = 0
        """The first lane of the unit that is written."""
        self._bases: dict[int, str] = {}
        """Pointers to operands, but for what is known of their offsets."""
        self._values: dict[tuple[int, int, int], Expr] = {}

    def _vector_width(self) -> int:
        """The lanes of a vector; 0 where the op computes scalars."""
        structured = self.structured
        views = [operand.source for operand in structured.operands if isinstance(operand.source, View)]
        ops = [op for op in structured.body.ops if not isinstance(op, IndexOp) and op is not structured.body.last_op]
        if any(is_byte_float(view.ctype) for view in views) or not all(is_vectorizable(self.emitter, op) for op in ops):
            return 0
        return self.emitter.program.vector_bytes // max(view.ctype.value_size for view in views[-structured.outputs :])

    def is_written_out(self, loop: NestLoop) -> bool:
        operands = enumerate(self.structured.operands)
        return any(operand.is_in_registers and loop.strides[number] for number, operand in operands)

    def moved(self) -> None:
        self._bases, self._values = {}, {}
        self.emitter.splats.clear()

    # blocks

    def vector_points(self) -> bool:
        assert self.plan.lanes is not None
        if not self.is_written_out(self.plan.lanes.loop):
            return False
        self._written_out(self._units(None, self.plan.lanes.loop.extent), lambda _: self.store(self.results()))
        return True

    def block(self) -> None:
        rows, lanes = self.plan.rows, self.plan.lanes
        if lanes is not None and self._width:
            units = self._units(None if rows is None else self.sizes[rows.loop], self.sizes[lanes.loop])
            outputs = self.structured.operands[self.structured.inputs :]
            is_in_registers = all(operand.is_in_registers for operand in outputs)
            for group in [units] if is_in_registers else self._groups(units):
                self._sum(group)
        else:
            loops = [step.loop for step in (rows, lanes) if step is not None]
            self.each(loops, lambda: self._sum([(0, 0, 0)]))

    def _units(self, rows: int | None, lanes: int) -> list[Unit]:
        width = self._width or 1
        starts = [(lane, min(width, lanes - lane)) for lane in range(0, lanes, width)]
        return [(row, lane, 0 if count == 1 else count) for row in range(rows or 1) for lane, count in starts]

    def _groups(self, units: Sequence[Unit]) -> list[list[Unit]]:
        """The parts of a block whose sums the registers hold at once, with a vector of each operand and a product."""
        rows, lanes = (len({unit[side] for unit in units}) for side in (0, 1))
        outputs = self.structured.outputs
        fitting: list[tuple[int, int, int]] = []
        for wide in range(1, lanes + 1):
            high = min(rows, max(1, (self.emitter.program.vector_registers - wide - 2) // (wide * outputs)))
            pieces, across = ceil(rows / high), ceil(lanes / wide)
            fitting.append((pieces * across * (ceil(rows / pieces) + wide), ceil(rows / pieces), wide))
        # The fewest loads.
        _, high, wide = min(fitting)
        found: dict[tuple[int, int], list[Unit]] = {}
        for number, unit in enumerate(units):
            found.setdefault((unit[0] // high, number % lanes // wide), []).append(unit)
        return list(found.values())

    def _sum(self, units: Sequence[Unit]) -> None:
        """The sums of a block, from their first values to where they are written."""
        inputs, operands = self.structured.inputs, self.structured.operands
        outputs = range(inputs, len(operands))
        # Where sums take most registers, LLVM would load operands of several steps ahead, and spill.
        may_unroll = 2 * len(units) <= self.emitter.program.vector_registers

        def reduce(write: Callable[[Unit], None]) -> None:
            self.each(self.plan.sequential, lambda: self._written_out(units, write), may_unroll=may_unroll)

        if all(operands[number].is_in_registers for number in outputs):
            reduce(lambda _: self.store(self.results()))
            return
        variables: list[dict[int, str]] = []

        def start(_: Unit) -> None:
            types = {number: self.emitter.type(self.view(number).ctype) for number in outputs}
            variables.append({number: self.asm.local(type) for number, type in types.items()})
            for number in outputs:
                if operands[number].is_read:
                    self._set(variables[-1][number], number, self.value(number))

        def add(unit: Unit) -> None:
            self._sums = variables[units.index(unit)]
            for number, result in enumerate(self.results(), inputs):
                self._set(self._sums[number], number, result)
            self._sums = {}

        def end(unit: Unit) -> None:
            for number, variable in variables[units.index(unit)].items():
                self.store_one(number, self._get(variable, number))

        self._written_out(units, start)
        self._is_packed = self.plan.packed is not None and self._width > 0
        reduce(add)
        self._is_packed = False
        self._written_out(units, end)

    def _get(self, variable: str, number: int) -> Expr:
        type = self.emitter.type(self.view(number).ctype)
        return self.emitter.value_of(self.asm.value(f"load {type}, ptr {variable}"))

    def _set(self, variable: str, number: int, value: Expr) -> None:
        self.asm.line(f"store {self.emitter.type(self.view(number).ctype)} {value.text}, ptr {variable}")

    def _written_out(self, units: Sequence[Unit], write: Callable[[Unit], None]) -> None:
        """Every part of a block, one after the other."""
        started, loops = dict(self.positions), (self.plan.rows, self.plan.lanes)
        for unit in units:
            for step, shift in zip(loops, unit[:2], strict=True):
                if step is not None:
                    self.positions[step.loop] = (*started.get(step.loop, ()), shift)
            _, self._lane, self.emitter.lanes = unit
            write(unit)
            self.emitter.lanes = 0
        self.positions = started

    # packing

    def can_pack(self) -> bool:
        return self._width > 0

    def store_in_panel(self, value: Expr) -> None:
        assert self.plan.lanes is not None
        assert self.plan.packed is not None
        ctype = self.view(self.plan.packed).ctype
        pointer = self.asm.at(self._panel(ctype), value_type(ctype), self.positions[self.plan.lanes.loop][-1])
        self.asm.store(value_type(ctype), value.text, pointer, ctype.value_size)

    def _panel(self, ctype: CType) -> str:
        """A pointer to the first lane of the panel at the current point of the reduction."""
        return self.asm.at(self.emitter.scratch(), value_type(ctype), self.asm.sum_of(self.panel_terms()))

    # elements

    def value(self, number: int) -> Expr:
        if number in self._sums:
            return self._get(self._sums[number], number)
        source = self.structured.operands[number].source
        if isinstance(source, Expr) or number in self.fixed:
            return super().value(number)
        if number >= self.structured.inputs:
            return self._loaded(number, source)
        # The lanes of a block that an operand does not move along share its value; so do the rows.
        is_shared = self._lane_stride(number) == 0
        key = (number, self._constant(number), 0 if is_shared else self.emitter.lanes)
        if key not in self._values:
            is_from_panel = self._is_packed and number == self.plan.packed
            self._values[key] = self._from_panel(number) if is_from_panel else self._loaded(number, source)
        return self._values[key]

    def _from_panel(self, number: int) -> Expr:
        ctype = self.view(number).ctype
        if number not in self._bases:
            self._bases[number] = self._panel(ctype)
        pointer = self.asm.at(self._bases[number], value_type(ctype), self._lane)
        return self.emitter.value_of(self.asm.load(self.emitter.type(ctype), pointer, ctype.value_size))

    def _loaded(self, number: int, view: View) -> Expr:
        """An element, or a vector of them: loaded as one where they are adjacent, and of all lanes where it is one."""
        stride, width = self._lane_stride(number), self.emitter.lanes
        if not width or stride == 1:
            return self.emitter.load(view.ctype, self.element(number))
        with self._scalars():
            first = self.element(number)
            if stride == 0:
                return self.emitter.load(view.ctype, first)
            lanes = [self.emitter.load(view.ctype, each) for each in self._along(first, view, stride, width)]
        type, found = value_type(view.ctype), "poison"
        for lane, each in enumerate(lanes):
            found = self.asm.value(f"insertelement {self.emitter.type(type)} {found}, {type} {each.text}, i64 {lane}")
        return self.emitter.value_of(found)

    def store_one(self, number: int, result: Expr) -> None:
        view, stride, width = self.view(number), self._lane_stride(number), self.emitter.lanes
        if not width or stride == 1:
            super().store_one(number, result)
            return
        full = self.emitter.type(view.ctype)
        lanes = [self.asm.value(f"extractelement {full} {result.text}, i64 {lane}") for lane in range(width)]
        with self._scalars():
            for pointer, lane in zip(self._along(self.element(number), view, stride, width), lanes, strict=True):
                self.emitter.store(view.ctype, pointer, Expr(lane, is_atom=True))

    def _along(self, first: str, view: View, stride: int, count: int) -> list[str]:
        """Pointers to elements that lie `stride` apart."""
        return [self.asm.at(first, memory_type(view.ctype), lane * stride) for lane in range(count)]

    @contextmanager
    def _scalars(self) -> Generator[None]:
        """What is written inside computes scalars."""
        width, self.emitter.lanes = self.emitter.lanes, 0
        yield
        self.emitter.lanes = width

    def _lane_stride(self, number: int) -> int:
        return 0 if self.plan.lanes is None else self.plan.lanes.loop.strides[number]

    def index(self, dim: int) -> Expr:
        position = super().index(dim)
        lanes = self.plan.lanes
        if not self.emitter.lanes or lanes is None or lanes.loop.dims != (dim,):
            return position
        steps = ", ".join(f"i64 {lane}" for lane in range(self.emitter.lanes))
        first = self.emitter.in_all_lanes("i64", position.text)
        return self.emitter.value_of(self.emitter.inst("add", "i64", first, f"<{steps}>"))

    def _constant(self, number: int) -> int:
        """The part of an element's offset that is known."""
        known = [
            part * stride for part, stride in self.terms(number) if isinstance(part, int) and isinstance(stride, int)
        ]
        return self.offsets[number] + sum(known)

    def element(self, number: int) -> str:
        view = self.view(number)
        if number not in self._bases:
            moving = [term for term in self.terms(number) if not isinstance(term[0], int)]
            self._bases[number] = self.emitter.element(view, moving)
        return self.asm.at(self._bases[number], memory_type(view.ctype), self._constant(number))
