# SPDX-License-Identifier: Apache-2.0
"""
The loops of structured ops, and at their points the body on the operands' elements, whatever the language.

They are those that `nest` plans; where operands are not walked with constant strides, or two points of parallel dims
meet in one output, those of the op, in their order. What a language makes of a block of outputs is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from math import prod
from typing import Generic, TypeVar

from xdsl.dialects.linalg.ops import IndexOp

from penstock.lowering.codegen.affine import affine_expression
from penstock.lowering.codegen.emitter import Emitter
from penstock.lowering.codegen.nest import LoopNest, NestLoop, Strip
from penstock.lowering.codegen.structured import Structured
from penstock.lowering.codegen.text import Expr, Size
from penstock.lowering.codegen.views import View

E = TypeVar("E", bound=Emitter)


class Points(Generic[E]):
    """What all nests do at a point: run the body on the operands' elements."""

    def __init__(self, emitter: E, structured: Structured):
        self.emitter = emitter
        self.structured = structured

    def element(self, number: int) -> str:
        """The element of an operand at the current point."""
        raise NotImplementedError

    def index(self, dim: int) -> Expr:
        """The index of a dim at the current point."""
        raise NotImplementedError

    def value(self, number: int) -> Expr:
        """The value of an operand at the current point."""
        source = self.structured.operands[number].source
        if isinstance(source, Expr):
            return source
        return self.emitter.load(source.ctype, self.element(number))

    def results(self) -> list[Expr]:
        """Write the body at the current point; returns what it yields."""
        emitter, structured = self.emitter, self.structured
        for number, (operand, arg) in enumerate(zip(structured.operands, structured.body.args, strict=True)):
            if not operand.is_read:
                continue
            value = self.value(number)
            if len(list(arg.uses)) > 1 and isinstance(operand.source, View):
                emitter.declare(arg, value)
            else:
                emitter.bind(arg, value)
        terminator = structured.body.last_op
        assert terminator is not None
        for op in structured.body.ops:
            if isinstance(op, IndexOp):
                emitter.bind(op.result, self.index(op.dim.value.data))
            elif op is not terminator:
                emitter.language.pure(emitter, op)
        return emitter.yielded(terminator.operands)

    def store(self, results: Sequence[Expr]) -> None:
        """Write the outputs at the current point to memory."""
        for number, result in enumerate(results, self.structured.inputs):
            self.store_one(number, result)

    def store_one(self, number: int, result: Expr) -> None:
        """Write an output at the current point to memory."""
        self.emitter.store(self.view(number).ctype, self.element(number), result)

    def view(self, number: int) -> View:
        """An operand in memory."""
        source = self.structured.operands[number].source
        assert isinstance(source, View)
        return source


class InOrder(Points[Emitter]):
    """The loops of the op itself, in their order, on elements in memory."""

    def emit(self) -> None:
        """Write the nest."""
        self._counters: list[Size] = [0] * len(self.structured.extents)
        self._nest([dim for dim, extent in enumerate(self.structured.extents) if extent != 1])

    def _nest(self, dims: Sequence[int]) -> None:
        if not dims:
            is_whole = all(extent == 1 for extent in self.structured.extents)
            with self.emitter.block() if is_whole else nullcontext():
                self.store(self.results())
            return

        def body(counter: Size) -> None:
            self._counters[dims[0]] = counter
            self._nest(dims[1:])

        self.emitter.loop(f"d{dims[0]}", self.structured.extents[dims[0]], body)

    def index(self, dim: int) -> Expr:
        return Expr(str(self._counters[dim]), is_atom=True)

    def element(self, number: int) -> str:
        dims = [self.index(dim) for dim in range(len(self.structured.extents))]
        results = self.structured.operands[number].index_map.results
        found = [affine_expression(self.emitter, result, dims) for result in results]
        return self.emitter.at(self.view(number), [each.size for each in found])


class Blocks(Points[E]):
    """The loops that were planned."""

    packs_independently = True
    """Whether the loop that packs is marked as independent."""

    def __init__(self, emitter: E, structured: Structured, plan: LoopNest, offsets: Sequence[int]):
        super().__init__(emitter, structured)
        self.plan = plan
        self.offsets = offsets
        """Of each operand, in elements."""
        self.positions: dict[NestLoop, tuple[Size, ...]] = {}
        """The index of a loop: the sum of these."""
        self.sizes: dict[NestLoop, int] = {}
        """How large the current step of a loop is, for those in steps."""
        self.fixed: dict[int, Expr] = {}
        """Inputs that are the same for all lanes, which are loaded before their loop."""
        count = len(structured.extents)
        self._open_strides = [operand.open_strides(count) for operand in structured.operands]

    # what a language makes of it

    def block(self) -> None:
        """A block of outputs, which stays in registers over the whole reduction, or a piece of it."""
        raise NotImplementedError

    def vector_points(self) -> bool:
        """Write the points of the innermost loop as vectors of registers, if that is how they are kept."""
        raise NotImplementedError

    def begin_panel(self) -> None:
        """What comes before an operand is packed."""

    def store_in_panel(self, value: Expr) -> None:
        """Write an element of the panel at the current point."""
        raise NotImplementedError

    def can_pack(self) -> bool:
        """Whether an operand that the plan packs is packed."""
        return True

    def is_written_out(self, loop: NestLoop) -> bool:
        """Whether a loop is not written as one: its iterations move registers."""
        return False

    def moved(self) -> None:
        """Called where what was computed at a point is not what it is at the next ones."""

    # sizes that only a run knows

    def extent(self, loop: NestLoop) -> Size:
        """How far a loop runs."""
        found: Size = 1
        for dim in loop.dims:
            found = self.emitter.times(found, self.structured.extents[dim])
        return found

    def moves(self, position: Sequence[Size], loop: NestLoop, number: int) -> list[tuple[Size, Size]]:
        """The products that an operand is away because of where a loop is."""
        if not loop.strides[number]:
            return []
        terms = self._open_strides[number].get(loop.dims[-1])
        strides = [loop.strides[number]] if terms is None else [self.emitter.times(*term) for term in terms]
        return [(part, stride) for part in position for stride in strides]

    # loops

    def emit(self) -> None:
        """Write the nest."""
        steps = (*self.plan.outer, *self.plan.inner)
        if steps:
            needs_scope = steps[0].size == steps[0].loop.extent
        else:
            needs_scope = bool(self.plan.sequential) or self.plan.lanes is None
        with self.emitter.block() if needs_scope else nullcontext():
            self._outer(steps)
        self.moved()

    def _outer(self, steps: Sequence[Strip]) -> None:
        """The loops `steps`, and in them the block."""
        if self.plan.packed is not None and self.can_pack() and len(steps) == len(self.plan.inner):
            self._pack(self.plan.packed)
        if not steps:
            self.block() if self.plan.sequential else self._points()
            return
        step, rest = steps[0], steps[1:]
        if step.size == 1:
            self.each([step.loop], lambda: self._outer(rest))
            return

        def at(position: Size, size: int) -> None:
            self.positions[step.loop], self.sizes[step.loop] = (position,), size
            self.moved()
            self._outer(rest)

        extent = self.extent(step.loop)
        if not isinstance(extent, int):
            self._open_steps(step, extent, at)
            return
        whole = step.loop.extent - step.tail
        if whole == step.size:
            # With a tail after it, the block needs a scope of its own.
            with self.emitter.block() if step.tail else nullcontext():
                at(0, step.size)
        elif whole:
            self.emitter.loop(f"d{step.loop.suffix}", whole, lambda counter: at(counter, step.size), step=step.size)
        if step.tail:
            with self.emitter.block():
                at(whole, step.tail)

    def _open_steps(self, step: Strip, extent: Size, at: Callable[[Size, int], None]) -> None:
        """A loop in steps over an extent that only a run knows, and after it one by one."""
        name = f"d{step.loop.suffix}"
        with self.emitter.block():
            whole = self.emitter.multiple(extent, step.size)
            self.emitter.loop(name, whole, lambda counter: at(counter, step.size), step=step.size)
            self.emitter.loop(name, extent, lambda counter: at(counter, 1), start=whole)

    def each(
        self,
        loops: Sequence[NestLoop],
        write: Callable[[], None],
        *,
        name: str = "",
        is_independent: bool = False,
        may_unroll: bool = True,
    ) -> None:
        """Nested loops over all of `loops`, or over the current steps of them; `is_independent` is of the last."""
        if not loops:
            write()
            return
        loop, rest = loops[0], loops[1:]
        position, size = self.positions.get(loop, ()), self.sizes.get(loop)
        extent = self.extent(loop) if size is None else size

        def further() -> None:
            self.each(rest, write, is_independent=is_independent, may_unroll=may_unroll)

        def body(counter: Size) -> None:
            self.positions[loop] = (*position, counter)
            self.moved()
            further()

        if self.is_written_out(loop):
            for number in range(int(extent)):
                self.positions[loop] = (*position, number)
                further()
        else:
            name = name or f"{'d' if size is None else 'k'}{loop.suffix}"
            hints = {"is_independent": is_independent and not rest, "may_unroll": may_unroll}
            self.emitter.loop(name, extent, body, **hints)
            self.moved()
        self.positions[loop] = position

    def _points(self) -> None:
        """Without a reduction: every point by itself, innermost the loop that becomes vectors."""
        lanes = self.plan.lanes
        if lanes is None:
            self.store(self.results())
            return
        if self.vector_points():
            return
        # Loaded in the loop, they would be taken for what the loop writes, and GCC 12 may not vectorise it.
        for number in range(self.structured.inputs):
            if self.structured.operands[number].is_in_memory and not lanes.loop.strides[number]:
                self.fixed[number] = self.emitter.held(self.view(number).ctype, self.value(number))
        self.each([lanes.loop], lambda: self.store(self.results()), is_independent=True)
        self.fixed = {}

    def _pack(self, number: int) -> None:
        """Copy the part of an operand that the blocks to come share to where its elements are adjacent."""
        assert self.plan.lanes is not None
        lanes = self.plan.lanes.loop
        rows = prod(self.sizes.get(loop, loop.extent) for loop in self.plan.sequential)
        self.emitter.program.reserve_scratch(rows * self.sizes[lanes] * self.view(number).ctype.value_size)
        self.begin_panel()

        def lane() -> None:
            self.each(
                [lanes],
                lambda: self.store_in_panel(super(Blocks, self).value(number)),
                name="j0",
                is_independent=self.packs_independently,
            )

        self.each(self.plan.sequential, lane)

    def panel_terms(self) -> list[tuple[Size, Size]]:
        """Where the lanes of the panel at the current point of the reduction begin."""
        assert self.plan.lanes is not None
        terms: list[tuple[Size, Size]] = []
        scale = self.sizes[self.plan.lanes.loop]
        for loop in reversed(self.plan.sequential):
            terms.insert(0, (self.positions[loop][-1], scale))
            scale *= self.sizes.get(loop, loop.extent)
        return terms

    # elements

    def value(self, number: int) -> Expr:
        return self.fixed[number] if number in self.fixed else super().value(number)

    def terms(self, number: int) -> list[tuple[Size, Size]]:
        """What the current point adds to the offset of an operand."""
        return [term for loop, position in self.positions.items() for term in self.moves(position, loop, number)]

    def index(self, dim: int) -> Expr:
        position = next((position for loop, position in self.positions.items() if loop.dims == (dim,)), (0,))
        text = str(self.emitter.sum_of([(part, 1) for part in position]))
        return Expr(text, is_atom=" " not in text)

    def element(self, number: int) -> str:
        return self.emitter.element(self.view(number), self.terms(number), self.offsets[number])
