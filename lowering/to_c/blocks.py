# SPDX-License-Identifier: Apache-2.0
"""
Structured ops as loop nests in C: a block of outputs is local variables, whose loops the C compiler unrolls.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from xdsl.ir import SSAValue

from penstock.dialects.machine import REGISTERS
from penstock.lowering.codegen.nest import LoopNest
from penstock.lowering.codegen.nests import Blocks, InOrder
from penstock.lowering.codegen.structured import Structured, plan_structured
from penstock.lowering.codegen.text import Expr, Size
from penstock.lowering.codegen.views import View
from penstock.lowering.to_c.emitter import FunctionEmitter
from penstock.lowering.to_c.text import for_loop, sum_of
from penstock.lowering.to_c.transposes import Transpose, transpose_of
from penstock.lowering.to_c.vectors import VectorType, is_vectorizable, product_name, vector_type
from penstock.passes.analysis.vector_products import VectorProduct


def emit_structured(emitter: FunctionEmitter, structured: Structured) -> None:
    """Write the loop nest."""
    if structured.product is not None:
        if (planned := _plan_product(structured, *structured.product)) is not None:
            _CBlocks(emitter, structured, *planned).emit()
            return
        structured = replace(structured, product=None)
    planned = plan_structured(structured)
    if planned is None:
        InOrder(emitter, structured).emit()
    elif (transpose := transpose_of(structured, planned[0], emitter.program.target)) is not None:
        _CBlocks(emitter, structured, *planned).emit_squares(transpose)
    else:
        _CBlocks(emitter, structured, *planned).emit()


def _plan_product(structured: Structured, product: VectorProduct, grouped: int) -> tuple[LoopNest, list[int]] | None:
    """The loops around an intrinsic of the host, which has the dim `grouped`; None where they have no lanes for it."""
    extents = tuple(1 if dim == grouped else extent for dim, extent in enumerate(structured.extents))
    planned = plan_structured(replace(structured, extents=extents))
    if planned is None or (lanes := planned[0].lanes) is None or not planned[0].sequential:
        return None
    fits = lanes.loop.strides == (0, product.group, 1) and not lanes.size % product.lanes and not lanes.tail
    return planned if fits and structured.operands[-1].is_in_registers else None


class _CBlocks(Blocks[FunctionEmitter]):
    """The loops that were planned."""

    packs_independently = False

    def __init__(self, emitter: FunctionEmitter, structured: Structured, plan: LoopNest, offsets: Sequence[int]):
        super().__init__(emitter, structured, plan, offsets)
        self._element: str | None = None
        """The brackets of an accumulator, while the outputs are in registers."""
        self._block_loops = [step.loop for step in (plan.rows, plan.lanes) if step is not None]
        self._vector = self._vector_type()
        """What the outputs are kept in where they are local variables; None for scalars."""
        self._pointers: dict[int, str] = {}
        """Pointers to inputs at the first row and lane, while those of a block are enumerated."""

    # vectors

    def _vector_type(self) -> VectorType | None:
        """The vectors of the machine, where tiles in its registers are made of them whole."""
        lanes, structured = self.plan.lanes, self.structured
        outputs = range(structured.inputs, len(structured.operands))
        if structured.product is not None:
            return VectorType(self.view(structured.inputs).ctype, structured.product[0].lanes)
        held = [number for number, operand in enumerate(structured.operands) if operand.is_in_registers]
        if lanes is None or not held:
            return None
        if self.plan.sequential and any(self.view(number).scope != REGISTERS for number in outputs):
            return None
        vector = vector_type(self.emitter.program.target, self.view(held[-1]).ctype, lanes.size)
        if vector is None:
            return None
        read = [number for number in range(structured.inputs) if structured.operands[number].is_read]
        if lanes.size % vector.lanes or lanes.tail or any(lanes.loop.strides[number] != 1 for number in outputs):
            return None
        if not {lanes.loop.strides[number] for number in read} <= {0, 1, 2}:
            return None
        return vector if is_vectorizable(structured.body) else None

    def results(self) -> list[Expr]:
        """The body at the current point, or at a vector of them."""
        if self._vector is None:
            return super().results()
        if self.structured.product is not None:
            name = product_name(self.structured.product[0])
            self.emitter.program.products[name] = self.structured.product[0]
            a, b = (self.element(number) for number in range(2))
            return [Expr(f"{name}({self._vector_value(2).text}, &{a}, &{b})", is_atom=True)]
        self.emitter.program.helpers.update(vector.helper for vector in self._vector.used_in(self.structured.body))
        args = [(number, arg) for number, arg in enumerate(self.structured.body.args) if arg.uses]
        values: dict[SSAValue, Expr] = {arg: self._vector_value(number) for number, arg in args}
        found = self._vector.results(self.structured.body, values, self.emitter.scalar)
        return found if len(found) == 1 else [self.emitter.hold(self._vector.name, each, "v") for each in found]

    def _vector_value(self, number: int) -> Expr:
        """The vector of an operand that begins at the current point."""
        assert self._vector is not None
        assert self.plan.lanes is not None
        scalar = self.value(number)
        is_kept = self._element is not None and number >= self.structured.inputs
        if is_kept:
            return scalar
        source, vector = self.structured.operands[number].source, self._vector
        if isinstance(source, View):
            vector = vector.of(source.ctype)
            match self.plan.lanes.loop.strides[number]:
                case 1:
                    return Expr(vector.load(scalar.text))
                case 2:
                    return Expr(vector.every_second(scalar.text), is_atom=True)
                case _:
                    pass
        return Expr(vector.splat(scalar), is_atom=True)

    def store(self, results: Sequence[Expr]) -> None:
        if self._vector is None:
            super().store(results)
            return
        for number, result in enumerate(results, self.structured.inputs):
            vector = self._vector.of(self.view(number).ctype)
            self.emitter.writer.line(f"{vector.at(self.element(number))} = {result.text};")

    def vector_points(self) -> bool:
        if self._vector is None:
            return False
        lanes = self.plan.lanes
        assert lanes is not None
        self.emitter.program.helpers.add(self._vector.helper)

        def body(counter: Size) -> None:
            self.positions[lanes.loop] = (counter,)
            self.store(self.results())

        self.emitter.loop("j0", lanes.size, body, step=self._vector.lanes, is_unrolled=True)
        del self.positions[lanes.loop]
        return True

    def emit_squares(self, transpose: Transpose) -> None:
        """Write the loops of an op that only transposes; the last squares of a dim overlap those before."""
        loops, lanes = (transpose.read, transpose.written), transpose.vector.lanes
        self.emitter.program.helpers |= {transpose.helper, transpose.vector.helper}

        def square(*starts: Size) -> None:
            if len(starts) == len(loops):
                self.emitter.writer.line(transpose.statement(self.element(0), self.element(1)))
                return
            loop = loops[len(starts)]

            def at(start: Size) -> None:
                self.positions[loop] = (start,)
                square(*starts, start)

            whole = loop.extent - loop.extent % lanes
            if whole == lanes:
                at(0)
            else:
                self.emitter.loop(f"d{loop.suffix}", whole, at, step=lanes)
            if whole < loop.extent:
                at(loop.extent - lanes)

        self.each(transpose.around, square)

    # packing

    def begin_panel(self) -> None:
        assert self.plan.packed is not None
        value = self.view(self.plan.packed).ctype.value
        # In the context, and not a local array: GCC 12 then keeps the accumulators in registers.
        self.emitter.writer.line(f"{value} *const panel0 = ({value} *){self.emitter.own}->scratch;")

    def store_in_panel(self, value: Expr) -> None:
        self.emitter.writer.line(f"{self._panel()} = {value.text};")

    def _panel(self) -> str:
        """The element of the panel at the current point."""
        return f"panel0[{sum_of([*self.panel_terms(), ('j0', 1)])}]"

    # blocks

    def block(self) -> None:
        vector, structured, step = self._vector, self.structured, 1
        shape = [
            (step.loop, self.sizes[step.loop], letter)
            for step, letter in ((self.plan.rows, "i0"), (self.plan.lanes, "j0"))
            if step is not None
        ]
        outputs = structured.operands[structured.inputs :]
        brackets = "".join(f"[{size}]" for _, size, _ in shape)
        element = "".join(f"[{letter}]" for _, _, letter in shape)
        if vector is not None:
            step = vector.lanes
            # The rows of a block may be its vectors, too: a block has at least one vector of lanes.
            brackets = brackets.removesuffix(f"[{shape[-1][1]}]") + f"[{shape[-1][1] // step}]"
            element = element.removesuffix("[j0]") + f"[j0 / {step}]"
            self.emitter.program.helpers.add(vector.helper)
        headers = [for_loop(letter, size, step=step if letter == "j0" else 1) for _, size, letter in shape]
        started = dict(self.positions)
        is_kept = vector is not None or not all(operand.is_in_registers for operand in outputs)
        for number in range(len(outputs) if is_kept else 0):
            value = self.view(structured.inputs + number).ctype.value if vector is None else vector.name
            self.emitter.writer.line(f"{value} acc{number}{brackets};")
        for loop, _, letter in shape:
            self.positions[loop] = (*started[loop], letter)
        if is_kept:
            self._begin(headers, element)

        def add() -> None:
            with self._registers(headers):
                self._element = element if is_kept else None
                results = self.results()
                if not is_kept:
                    self.store(results)
                for number, result in enumerate(results if is_kept else ()):
                    self.emitter.writer.line(f"acc{number}{element} = {result.text};")
                self._element = None

        self.each(self.plan.sequential, add)
        if is_kept:
            with self._rows(headers):
                self.store([Expr(f"acc{number}{element}", is_atom=True) for number in range(len(outputs))])
        self.positions.update(started)

    def _begin(self, headers: Sequence[str], element: str) -> None:
        """Give the accumulators their first values."""
        inputs, operands = self.structured.inputs, self.structured.operands
        read = [number for number in range(inputs, len(operands)) if operands[number].is_read]
        if not read:
            return
        value: Callable[[int], Expr] = self.value if self._vector is None else self._vector_value
        with self._rows(headers):
            for number in read:
                self.emitter.writer.line(f"acc{number - inputs}{element} = {value(number).text};")

    @contextmanager
    def _rows(self, headers: Sequence[str]) -> Generator[None]:
        """The loops over a block; over vectors they are unrolled, so that these are registers."""
        with ExitStack() as stack:
            for header in headers:
                if self._vector is not None:
                    self.emitter.writer.line("PENSTOCK_UNROLL")
                stack.enter_context(self.emitter.writer.block(header))
            yield

    @contextmanager
    def _registers(self, headers: Sequence[str]) -> Generator[None]:
        """The loops over the rows and lanes of a block; unrolled, the rows become registers."""
        if len(headers) > 1 or self._vector is not None:
            # With pointers to the first row and lane, those of the others are constant offsets in addresses.
            self._pointers = {
                number: self._pointer_to_block(number)
                for number in range(self.structured.inputs)
                if number != self.plan.packed and self.structured.operands[number].is_in_memory
            }
            if self._vector is None:
                self.emitter.writer.line("PENSTOCK_UNROLL")
        with self._rows(headers):
            yield
        self._pointers = {}

    def _pointer_to_block(self, number: int) -> str:
        """Declare a pointer to the element of an input at the first row and lane of the block."""
        view, name = self.view(number), self.emitter.names.fresh("p")
        terms = [
            term
            for loop, position in self.positions.items()
            for term in self.moves(position[:-1] if loop in self._block_loops else position, loop, number)
        ]
        start = sum_of(terms, self.offsets[number])
        self.emitter.writer.line(f"{view.pointer_type}const {name} = {view.pointer} + {start};")
        return name

    # elements

    def value(self, number: int) -> Expr:
        if self._element is not None and number >= self.structured.inputs:
            return Expr(f"acc{number - self.structured.inputs}{self._element}", is_atom=True)
        if self._element is not None and number == self.plan.packed:
            return Expr(self._panel(), is_atom=True)
        return super().value(number)

    def element(self, number: int) -> str:
        if number not in self._pointers:
            return super().element(number)
        inside = [term for loop in self._block_loops for term in self.moves(self.positions[loop][-1:], loop, number)]
        return f"{self._pointers[number]}[{sum_of(inside)}]"
