"""
Structured ops as loop nests, planned as those of generated C are: `linalg.generic`, and `accel.exec`.

A block of sums is written out: its rows one after the other, its lanes as vectors, so that they are in registers
whatever LLVM's vectoriser makes of it. So is all that is done to buffers in the scope of the vector registers. Other
innermost loops are said to be independent, and LLVM makes vectors of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from math import ceil

from xdsl.dialects.linalg.ops import GenericOp, IndexOp

from penstock.dialects.accel import ExecOp
from penstock.lowering.to_c.emitter import CView
from penstock.lowering.to_c.nest import LoopNest, NestLoop, Strip
from penstock.lowering.to_c.structured import Structured, exec_of, generic_of, plan_structured
from penstock.lowering.to_c.text import Expr, Size
from penstock.lowering.to_c.types import CType
from penstock.lowering.to_llvm.emitter import LlvmEmitter
from penstock.lowering.to_llvm.scalar import affine_size, emit_scalar, is_vectorizable
from penstock.lowering.to_llvm.small_floats import is_byte_float
from penstock.lowering.to_llvm.types import memory_type, value_type

VECTOR_REGISTERS = 16
"""Of the CPU where no machine says it."""


def emit_structured(emitter: LlvmEmitter, structured: Structured) -> None:
    """Write the loop nest."""
    if 0 in structured.extents:
        return
    planned = plan_structured(structured, with_registers_apart=True)
    nest = _InOrder(emitter, structured) if planned is None else _Blocks(emitter, structured, *planned)
    nest.emit()


class _NestEmitter:
    """What both kinds of nests do at a point: run the body on the operands' elements."""

    def __init__(self, emitter: LlvmEmitter, structured: Structured):
        self.emitter = emitter
        self.asm = emitter.asm
        self.structured = structured

    def emit(self) -> None:
        raise NotImplementedError

    def pointer(self, number: int) -> str:
        """To the element of an operand at the current point."""
        raise NotImplementedError

    def index(self, dim: int) -> tuple[str, bool]:
        """The index of a dim at the current point, and whether it is a vector."""
        raise NotImplementedError

    def lane_stride(self, number: int) -> int:
        """How far an operand moves from one lane to the next."""
        return 0

    def value(self, number: int) -> tuple[str, bool]:
        """The value of an operand at the current point, and whether it is a vector."""
        source = self.structured.operands[number].source
        if isinstance(source, Expr):
            return source.text, False
        stride, width = self.lane_stride(number), self.emitter.lanes
        if not width or stride == 1:
            return self.emitter.load(source.ctype, self.pointer(number)), True
        with self._scalars():
            first = self.pointer(number)
            if stride == 0:
                return self.emitter.load(source.ctype, first), False
            lanes = [self.emitter.load(source.ctype, each) for each in self._along(first, source, stride, width)]
        type, found = value_type(source.ctype), "poison"
        for lane, text in enumerate(lanes):
            found = self.asm.value(f"insertelement {self.emitter.type(type)} {found}, {type} {text}, i64 {lane}")
        return found, True

    def _along(self, first: str, view: CView, stride: int, count: int) -> list[str]:
        """Pointers to elements that lie `stride` apart."""
        return [self.asm.at(first, memory_type(view.ctype), lane * stride) for lane in range(count)]

    @contextmanager
    def _scalars(self) -> Generator[None]:
        """What is written inside computes scalars."""
        width, self.emitter.lanes = self.emitter.lanes, 0
        yield
        self.emitter.lanes = width

    def results(self) -> list[str]:
        """Write the body at the current point; returns what it yields."""
        emitter, structured = self.emitter, self.structured
        for number, (operand, arg) in enumerate(zip(structured.operands, structured.body.args, strict=True)):
            if operand.is_read:
                text, is_vector = self.value(number)
                emitter.bind(arg, text, is_vector=is_vector)
        terminator = structured.body.last_op
        assert terminator is not None
        for op in structured.body.ops:
            if isinstance(op, IndexOp):
                text, is_vector = self.index(op.dim.value.data)
                emitter.bind(op.result, text, is_vector=is_vector)
            elif op is not terminator:
                emit_scalar(emitter, op)
        return [emitter.operand(operand) for operand in terminator.operands]

    def store(self, results: Sequence[str]) -> None:
        """Write the outputs at the current point to memory."""
        for number, result in enumerate(results, self.structured.inputs):
            self.store_one(number, result)

    def store_one(self, number: int, result: str) -> None:
        """Write an output at the current point."""
        view, stride, width = self.view(number), self.lane_stride(number), self.emitter.lanes
        if not width or stride == 1:
            self.emitter.store(view.ctype, self.pointer(number), result)
            return
        full = self.emitter.type(view.ctype)
        lanes = [self.asm.value(f"extractelement {full} {result}, i64 {lane}") for lane in range(width)]
        with self._scalars():
            for pointer, lane in zip(self._along(self.pointer(number), view, stride, width), lanes, strict=True):
                self.emitter.store(view.ctype, pointer, lane)

    def view(self, number: int) -> CView:
        """An operand in memory."""
        source = self.structured.operands[number].source
        assert isinstance(source, CView)
        return source


class _InOrder(_NestEmitter):
    """The loops of the op itself, in their order, on elements in memory."""

    def emit(self) -> None:
        self._counters: list[Size] = []
        with ExitStack() as nest:
            for extent in self.structured.extents:
                counter = 0 if extent == 1 else nest.enter_context(self.asm.loop(0, extent)).counter
                self._counters.append(counter)
            self.store(self.results())

    def index(self, dim: int) -> tuple[str, bool]:
        return str(self._counters[dim]), False

    def pointer(self, number: int) -> str:
        results = self.structured.operands[number].index_map.results
        indices = [affine_size(self.asm, result, self._counters) for result in results]
        return self.emitter.pointer_at(self.view(number), indices)


Position = tuple[Size, int]
"""The index of a loop: the sum of a counter, or 0, and a constant."""
Unit = tuple[int, int, int]
"""A part of a block that is computed at once: its row, its first lane, and its lanes; 0 for a scalar."""


class _Blocks(_NestEmitter):
    """The loops that were planned."""

    def __init__(self, emitter: LlvmEmitter, structured: Structured, loops: LoopNest, offsets: Sequence[int]):
        super().__init__(emitter, structured)
        self._plan = loops
        self._offsets = offsets
        self._positions: dict[NestLoop, Position] = {}
        self._sizes: dict[NestLoop, int] = {}
        """How large the current step of a loop is, for those in steps."""
        self._counters: dict[NestLoop, Size] = {}
        """Of the innermost loop over a loop, or over a step of it."""
        self._sums: dict[int, str] = {}
        """The variables of the outputs, while they are summed."""
        self._width = self._vector_width()
        self._is_packed = False
        """Whether the packed operand is read from where it was packed."""
        self._lane = 0
        """The first lane of the unit that is written."""
        self._bases: dict[int, str] = {}
        self._values: dict[tuple[int, int, int], tuple[str, bool]] = {}

    def _vector_width(self) -> int:
        """The lanes of a vector; 0 where the op computes scalars."""
        structured = self.structured
        views = [operand.source for operand in structured.operands if isinstance(operand.source, CView)]
        ops = [op for op in structured.body.ops if not isinstance(op, IndexOp) and op is not structured.body.last_op]
        if any(is_byte_float(view.ctype) for view in views) or not all(is_vectorizable(self.emitter, op) for op in ops):
            return 0
        return self.emitter.program.vector_bytes // max(view.ctype.value_size for view in views[-structured.outputs :])

    def emit(self) -> None:
        self._outer((*self._plan.outer, *self._plan.inner))
        self._forget()

    # loops

    def _outer(self, steps: Sequence[Strip]) -> None:
        """The loops `steps`, and in them the block."""
        if self._plan.packed is not None and self._width and len(steps) == len(self._plan.inner):
            self._pack(self._plan.packed)
        if not steps:
            self._block() if self._plan.sequential else self._points()
            return
        step, rest = steps[0], steps[1:]
        if step.size == 1:
            self._each([step.loop], lambda: self._outer(rest))
            return
        whole = step.loop.extent - step.tail
        if whole == step.size:
            self._at(step.loop, (0, 0), step.size, rest)
        elif whole:
            with self.asm.loop(0, whole, step.size) as loop:
                self._at(step.loop, (loop.counter, 0), step.size, rest)
        if step.tail:
            self._at(step.loop, (0, whole), step.tail, rest)

    def _at(self, loop: NestLoop, position: Position, size: int, rest: Sequence[Strip]) -> None:
        self._positions[loop], self._sizes[loop] = position, size
        self._forget()
        self._outer(rest)

    def _each(
        self,
        loops: Sequence[NestLoop],
        write: Callable[[], None],
        *,
        is_independent: bool = False,
        is_unrolled: bool = True,
    ) -> None:
        """Nested loops over all of `loops`, or over the current steps of them; those over registers are written out."""
        if not loops:
            write()
            return
        loop, rest = loops[0], loops[1:]
        position = start, constant = self._positions.get(loop, (0, 0))
        extent = self._sizes.get(loop, loop.extent)
        if self._moves_registers(loop):
            for number in range(extent):
                self._positions[loop], self._counters[loop] = (start, constant + number), number
                self._each(rest, write)
        else:
            independent = is_independent and not rest
            with self.asm.loop(0, extent, is_independent=independent, is_unrolled=is_unrolled) as counted:
                self._positions[loop] = (self.asm.add(start, counted.counter), constant)
                self._counters[loop] = counted.counter
                self._forget()
                self._each(rest, write, is_independent=is_independent, is_unrolled=is_unrolled)
            self._forget()
        self._positions[loop] = position

    def _moves_registers(self, loop: NestLoop) -> bool:
        operands = enumerate(self.structured.operands)
        return any(operand.is_in_registers and loop.strides[number] for number, operand in operands)

    def _forget(self) -> None:
        """What was computed is of other iterations."""
        self._bases, self._values = {}, {}
        self.emitter.splats.clear()

    # blocks

    def _points(self) -> None:
        """Without a reduction: every point by itself."""
        lanes = self._plan.lanes
        if lanes is None:
            self.store(self.results())
        elif self._moves_registers(lanes.loop):
            self._written_out(self._units(None, lanes.loop.extent), lambda _: self.store(self.results()))
        else:
            self._each([lanes.loop], lambda: self.store(self.results()), is_independent=True)

    def _block(self) -> None:
        """A block of outputs, which stays in registers over the whole reduction, or a piece of it."""
        rows, lanes = self._plan.rows, self._plan.lanes
        if lanes is not None and self._width:
            units = self._units(None if rows is None else self._sizes[rows.loop], self._sizes[lanes.loop])
            outputs = self.structured.operands[self.structured.inputs :]
            is_in_registers = all(operand.is_in_registers for operand in outputs)
            for group in [units] if is_in_registers else self._groups(units):
                self._sum(group)
        else:
            loops = [step.loop for step in (rows, lanes) if step is not None]
            self._each(loops, lambda: self._sum([(0, 0, 0)]))

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
            high = min(rows, max(1, (VECTOR_REGISTERS - wide - 2) // (wide * outputs)))
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
        is_unrolled = 2 * len(units) <= VECTOR_REGISTERS

        def reduce(write: Callable[[Unit], None]) -> None:
            self._each(self._plan.sequential, lambda: self._written_out(units, write), is_unrolled=is_unrolled)

        if all(operands[number].is_in_registers for number in outputs):
            reduce(lambda _: self.store(self.results()))
            return
        variables: list[dict[int, str]] = []

        def start(_: Unit) -> None:
            types = {number: self.emitter.type(self.view(number).ctype) for number in outputs}
            variables.append({number: self.asm.local(type) for number, type in types.items()})
            for number in outputs:
                if operands[number].is_read:
                    self._set(variables[-1][number], number, self.value(number)[0])

        def add(unit: Unit) -> None:
            self._sums = variables[units.index(unit)]
            for number, result in enumerate(self.results(), inputs):
                self._set(self._sums[number], number, result)
            self._sums = {}

        def end(unit: Unit) -> None:
            for number, variable in variables[units.index(unit)].items():
                self.store_one(number, self._get(variable, number))

        self._written_out(units, start)
        self._is_packed = self._plan.packed is not None and self._width > 0
        reduce(add)
        self._is_packed = False
        self._written_out(units, end)

    def _get(self, variable: str, number: int) -> str:
        ctype = self.view(number).ctype
        return self.asm.value(f"load {self.emitter.type(ctype)}, ptr {variable}")

    def _set(self, variable: str, number: int, value: str) -> None:
        self.asm.line(f"store {self.emitter.type(self.view(number).ctype)} {value}, ptr {variable}")

    def _written_out(self, units: Sequence[Unit], write: Callable[[Unit], None]) -> None:
        """Every part of a block, one after the other."""
        started, loops = dict(self._positions), (self._plan.rows, self._plan.lanes)
        for unit in units:
            for step, shift in zip(loops, unit[:2], strict=True):
                if step is not None:
                    start, constant = started.get(step.loop, (0, 0))
                    self._positions[step.loop] = (start, constant + shift)
            _, self._lane, self.emitter.lanes = unit
            write(unit)
            self.emitter.lanes = 0
        self._positions = started

    # packing

    def _pack(self, number: int) -> None:
        """Copy the part of an operand that the blocks to come share to where its elements are adjacent."""
        assert self._plan.lanes is not None
        lanes, ctype = self._plan.lanes.loop, self.view(number).ctype
        rows = 1
        for loop in self._plan.sequential:
            rows *= self._sizes.get(loop, loop.extent)
        self.emitter.program.reserve_scratch(rows * self._sizes[lanes] * ctype.value_size)

        def write() -> None:
            pointer = self.asm.at(self._panel(ctype), value_type(ctype), self._counters[lanes])
            self.asm.store(value_type(ctype), self.value(number)[0], pointer, ctype.value_size)

        self._each([*self._plan.sequential, lanes], write, is_independent=True)

    def _panel(self, ctype: CType) -> str:
        """A pointer to the first lane of the panel at the current point of the reduction."""
        assert self._plan.lanes is not None
        terms: list[tuple[Size, Size]] = []
        scale = self._sizes[self._plan.lanes.loop]
        for loop in reversed(self._plan.sequential):
            terms.append((self._counters[loop], scale))
            scale *= self._sizes.get(loop, loop.extent)
        panel = self.asm.at("%ctx", "i8", self.emitter.layout.scratch)
        return self.asm.at(panel, value_type(ctype), self.asm.sum_of(terms))

    # elements

    def value(self, number: int) -> tuple[str, bool]:
        if number in self._sums:
            return self._get(self._sums[number], number), True
        if number >= self.structured.inputs or isinstance(self.structured.operands[number].source, Expr):
            return super().value(number)
        # The lanes of a block that an operand does not move along share its value; so do the rows.
        is_shared = self.lane_stride(number) == 0
        key = (number, self._constant(number), 0 if is_shared else self.emitter.lanes)
        if key not in self._values:
            self._values[key] = self._from_panel(number) if self._is_from_panel(number) else super().value(number)
        return self._values[key]

    def _is_from_panel(self, number: int) -> bool:
        return self._is_packed and number == self._plan.packed

    def _from_panel(self, number: int) -> tuple[str, bool]:
        ctype = self.view(number).ctype
        if number not in self._bases:
            self._bases[number] = self._panel(ctype)
        pointer = self.asm.at(self._bases[number], value_type(ctype), self._lane)
        return self.asm.load(self.emitter.type(ctype), pointer, ctype.value_size), True

    def lane_stride(self, number: int) -> int:
        return 0 if self._plan.lanes is None else self._plan.lanes.loop.strides[number]

    def index(self, dim: int) -> tuple[str, bool]:
        loop = next((loop for loop in self._positions if loop.dims == (dim,)), None)
        if loop is None:
            return "0", False
        position = str(self.asm.add(*self._positions[loop]))
        lanes = self.emitter.lanes
        if not lanes or self._plan.lanes is None or loop is not self._plan.lanes.loop:
            return position, False
        steps = ", ".join(f"i64 {lane}" for lane in range(lanes))
        return self.emitter.inst("add", "i64", self.emitter.in_all_lanes("i64", position), f"<{steps}>"), True

    def _constant(self, number: int) -> int:
        """The part of an element's offset that is known."""
        moved = sum(constant * loop.strides[number] for loop, (_, constant) in self._positions.items())
        return self._offsets[number] + moved

    def pointer(self, number: int) -> str:
        view = self.view(number)
        type = memory_type(view.ctype)
        if number not in self._bases:
            terms = [(counter, loop.strides[number]) for loop, (counter, _) in self._positions.items()]
            self._bases[number] = self.asm.at(view.pointer, type, self.asm.sum_of(terms))
        return self.asm.at(self._bases[number], type, self._constant(number))


# ops


def emit_generic(emitter: LlvmEmitter, op: GenericOp) -> None:
    """The loop nest of a `linalg.generic` on memrefs."""
    emit_structured(emitter, generic_of(emitter, op))


def emit_exec(emitter: LlvmEmitter, op: ExecOp) -> None:
    """The loop nest of an intrinsic over the extents of a command."""
    emit_structured(emitter, exec_of(emitter, op))
