"""
The loop nests of structured ops, as `nest` plans them.

Where operands are not walked with constant strides, or two points of parallel dims meet in one output, the loops
are those of the op, in their order.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from math import prod

from xdsl.dialects.linalg.ops import IndexOp
from xdsl.ir import Block, SSAValue
from xdsl.ir.affine import AffineMap

from penstock.dialects.affine_maps import linear_form
from penstock.lowering.to_c.affine_text import affine_expression
from penstock.lowering.to_c.emitter import FunctionEmitter, View
from penstock.lowering.to_c.nest import Domain, Loop, Plan, Step, plan
from penstock.lowering.to_c.scalar import emit_scalar
from penstock.lowering.to_c.text import Expr, Size, for_loop, sum_of


@dataclass(frozen=True)
class Operand:
    """One operand of a structured op."""

    source: View | Expr
    """An expression stands for a scalar operand."""
    index_map: AffineMap
    is_read: bool

    def linear(self, dims: int) -> tuple[int, tuple[int, ...]] | None:
        """(offset, stride of each dim) in elements; None where these are no constants."""
        if isinstance(self.source, Expr):
            return 0, (0,) * dims
        steps = self.source.static_strides
        forms = [linear_form(result, dims) for result in self.index_map.results]
        if steps is None:
            return None
        offset, strides = 0, [0] * dims
        for form, step in zip(forms, steps, strict=True):
            if form is None:
                return None
            offset += form[0] * step
            strides = [total + coefficient * step for total, coefficient in zip(strides, form[1], strict=True)]
        return offset, tuple(strides)


@dataclass(frozen=True)
class Structured:
    """A structured op, whatever it was written as: `body` at every point of `extents`, outputs last."""

    body: Block
    operands: tuple[Operand, ...]
    outputs: int
    extents: tuple[Size, ...]

    @property
    def inputs(self) -> int:
        return len(self.operands) - self.outputs

    def index_dims(self) -> frozenset[int]:
        """The dims whose index the body asks for."""
        return frozenset(op.dim.value.data for op in self.body.ops if isinstance(op, IndexOp))


def emit_structured(emitter: FunctionEmitter, structured: Structured) -> None:
    """Write the loop nest."""
    if 0 in structured.extents:
        return
    planned = _plan(structured)
    if planned is None:
        _InOrder(emitter, structured).emit()
    else:
        _Blocks(emitter, structured, *planned).emit()


def _plan(structured: Structured) -> tuple[Plan, list[int]] | None:
    """The loops, and the offset of every operand in elements."""
    extents = [extent for extent in structured.extents if isinstance(extent, int)]
    if len(extents) != len(structured.extents):
        return None
    dims = len(extents)
    offsets: list[int] = []
    strides: list[tuple[int, ...]] = []
    for number, operand in enumerate(structured.operands):
        # What is not read may lie anywhere: a window that is only a shape does not hinder.
        is_unused = number < structured.inputs and not operand.is_read
        linear = (0, (0,) * dims) if is_unused else operand.linear(dims)
        if linear is None:
            return None
        offsets.append(linear[0])
        strides.append(linear[1])
    domain = Domain(tuple(extents), tuple(strides), structured.outputs, structured.index_dims())
    planned = plan(domain)
    return None if planned is None else (planned, offsets)


class _Nest:
    """What both kinds of nests do at a point: run the body on the operands' elements."""

    def __init__(self, emitter: FunctionEmitter, structured: Structured):
        self.emitter = emitter
        self.structured = structured

    def lvalue(self, number: int) -> str:
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
        return self.emitter.load(source.ctype, self.lvalue(number))

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
                emitter.values[arg] = value
        for op in structured.body.ops:
            if isinstance(op, IndexOp):
                emitter.values[op.result] = self.index(op.dim.value.data)
            elif op is not structured.body.last_op:
                emit_scalar(emitter, op)
        terminator = structured.body.last_op
        assert terminator is not None
        found = [emitter.scalar(operand) for operand in terminator.operands]
        if len(found) > 1:
            # All are computed before the first output changes.
            found = [self._held(value, expr) for value, expr in zip(terminator.operands, found, strict=True)]
        return found

    def _held(self, value: SSAValue, expr: Expr) -> Expr:
        name = self.emitter.names.fresh("v")
        ctype = self.emitter.ctype(value.type, value.owner)
        self.emitter.writer.line(f"const {ctype.value} {name} = {expr.text};")
        return Expr(name, is_atom=True)

    def store(self, results: Sequence[Expr]) -> None:
        """Write the outputs at the current point to memory."""
        for number, result in enumerate(results, self.structured.inputs):
            self.emitter.store(self.view(number).ctype, self.lvalue(number), result)

    def view(self, number: int) -> View:
        """An operand in memory."""
        source = self.structured.operands[number].source
        assert isinstance(source, View)
        return source


class _InOrder(_Nest):
    """The loops of the op itself, in their order, on elements in memory."""

    def emit(self) -> None:
        headers = [for_loop(f"d{dim}", extent) for dim, extent in enumerate(self.structured.extents) if extent != 1]
        with self.emitter.writer.loops(headers or [""]):
            self.store(self.results())

    def index(self, dim: int) -> Expr:
        return Expr("0" if self.structured.extents[dim] == 1 else f"d{dim}", is_atom=True)

    def lvalue(self, number: int) -> str:
        dims = [self.index(dim) for dim in range(len(self.structured.extents))]
        indices = [affine_expression(result, dims) for result in self.structured.operands[number].index_map.results]
        return self.view(number).at([each.atom if each.number is None else each.number for each in indices])


Place = tuple[Size, ...]
"""Where a loop stands: the sum of these."""


class _Blocks(_Nest):
    """The loops that `nest` planned."""

    def __init__(self, emitter: FunctionEmitter, structured: Structured, loops: Plan, offsets: Sequence[int]):
        super().__init__(emitter, structured)
        self._plan = loops
        self._offsets = offsets
        self._places: dict[Loop, Place] = {}
        self._sizes: dict[Loop, int] = {}
        """How large the current step of a loop is, for those in steps."""
        self._element: str | None = None
        """The brackets of an accumulator, while the outputs are in registers."""

    def emit(self) -> None:
        steps = (*self._plan.outer, *self._plan.inner)
        if steps:
            needs_scope = steps[0].size == steps[0].loop.extent
        else:
            needs_scope = bool(self._plan.sequential) or self._plan.lanes is None
        with self.emitter.writer.block() if needs_scope else nullcontext():
            self._outer(steps)

    def _outer(self, steps: Sequence[Step]) -> None:
        """The loops `steps`, and in them the block."""
        if self._plan.packed is not None and len(steps) == len(self._plan.inner):
            self._pack(self._plan.packed)
        if not steps:
            self._block() if self._plan.sequential else self._points()
            return
        step, rest = steps[0], steps[1:]
        if step.size == 1:
            with self._counted(step.loop):
                self._outer(rest)
            return
        whole = step.loop.extent - step.tail
        if whole == step.size:
            # With a tail behind it, the block needs a scope of its own.
            with self.emitter.writer.block() if step.tail else nullcontext():
                self._at(step.loop, 0, step.size, rest)
        elif whole:
            name = f"d{step.loop.suffix}"
            with self.emitter.writer.block(for_loop(name, whole, step=step.size)):
                self._at(step.loop, name, step.size, rest)
        if step.tail:
            with self.emitter.writer.block():
                self._at(step.loop, whole, step.tail, rest)

    def _at(self, loop: Loop, place: Size, size: int, rest: Sequence[Step]) -> None:
        self._places[loop], self._sizes[loop] = (place,), size
        self._outer(rest)

    @contextmanager
    def _counted(self, loop: Loop) -> Generator[None]:
        """A loop over all of `loop`, or over the current step of it."""
        place, size = self._places.get(loop, ()), self._sizes.get(loop)
        name = f"d{loop.suffix}" if size is None else f"k{loop.suffix}"
        with self.emitter.writer.block(for_loop(name, loop.extent if size is None else size)):
            self._places[loop] = (name,) if size is None else (*place, name)
            yield
        self._places[loop] = place

    @contextmanager
    def _nested(self, loops: Sequence[Loop]) -> Generator[None]:
        if not loops:
            yield
            return
        with self._counted(loops[0]), self._nested(loops[1:]):
            yield

    def _points(self) -> None:
        """Without a reduction: every point by itself, innermost the loop that the C compiler vectorises."""
        if self._plan.lanes is None:
            self.store(self.results())
            return
        self.emitter.writer.line("PENSTOCK_INDEPENDENT")
        with self._counted(self._plan.lanes.loop):
            self.store(self.results())

    def _pack(self, number: int) -> None:
        """Copy the part of an operand that the blocks to come share to where its elements are adjacent."""
        assert self._plan.lanes is not None
        lanes, ctype = self._plan.lanes.loop, self.view(number).ctype
        rows = prod(self._sizes.get(loop, loop.extent) for loop in self._plan.sequential)
        self.emitter.program.reserve_scratch(rows * self._sizes[lanes] * ctype.value_size)
        # In the context, and not a local array: GCC 12 then keeps the accumulators in registers.
        self.emitter.writer.line(f"{ctype.value} *const panel0 = ({ctype.value} *)ctx->scratch;")
        with self._nested(self._plan.sequential), self._lane(lanes):
            self.emitter.writer.line(f"{self._panel()} = {super().value(number).text};")

    @contextmanager
    def _lane(self, lanes: Loop) -> Generator[None]:
        place = self._places[lanes]
        with self.emitter.writer.block(for_loop("j0", self._sizes[lanes])):
            self._places[lanes] = (*place, "j0")
            yield
        self._places[lanes] = place

    def _panel(self) -> str:
        """The element of the panel at the current point."""
        assert self._plan.lanes is not None
        terms: list[tuple[Size, Size]] = [("j0", 1)]
        scale = self._sizes[self._plan.lanes.loop]
        for loop in reversed(self._plan.sequential):
            terms.insert(0, (self._places[loop][-1], scale))
            scale *= self._sizes.get(loop, loop.extent)
        return f"panel0[{sum_of(terms)}]"

    def _block(self) -> None:
        """A block of outputs, which stays in local variables over the whole reduction, or a piece of it."""
        shape = [
            (step.loop, self._sizes[step.loop], letter)
            for step, letter in ((self._plan.rows, "i0"), (self._plan.lanes, "j0"))
            if step is not None
        ]
        writer, structured = self.emitter.writer, self.structured
        outputs = structured.operands[structured.inputs :]
        brackets = "".join(f"[{size}]" for _, size, _ in shape)
        element = "".join(f"[{letter}]" for _, _, letter in shape)
        headers = [for_loop(letter, size) for _, size, letter in shape]
        started = dict(self._places)
        for number in range(len(outputs)):
            writer.line(f"{self.view(structured.inputs + number).ctype.value} acc{number}{brackets};")
        for loop, _, letter in shape:
            self._places[loop] = (*started[loop], letter)
        read = [number for number, operand in enumerate(outputs) if operand.is_read]
        if read:
            with writer.loops(headers):
                for number in read:
                    writer.line(f"acc{number}{element} = {self.value(structured.inputs + number).text};")
        with self._nested(self._plan.sequential), self._registers(headers):
            self._element = element
            for number, result in enumerate(self.results()):
                writer.line(f"acc{number}{element} = {result.text};")
            self._element = None
        with writer.loops(headers):
            self.store([Expr(f"acc{number}{element}", is_atom=True) for number in range(len(outputs))])
        self._places.update(started)

    @contextmanager
    def _registers(self, headers: Sequence[str]) -> Generator[None]:
        """The loops over the rows and lanes of a block; unrolled, the rows become registers."""
        if len(headers) > 1:
            self.emitter.writer.line("PENSTOCK_UNROLL")
        with self.emitter.writer.loops(headers):
            yield

    def value(self, number: int) -> Expr:
        if self._element is not None and number >= self.structured.inputs:
            return Expr(f"acc{number - self.structured.inputs}{self._element}", is_atom=True)
        if self._element is not None and number == self._plan.packed:
            return Expr(self._panel(), is_atom=True)
        return super().value(number)

    def index(self, dim: int) -> Expr:
        place = next((place for loop, place in self._places.items() if loop.dims == (dim,)), (0,))
        text = sum_of([(part, 1) for part in place])
        return Expr(text, is_atom=" " not in text)

    def lvalue(self, number: int) -> str:
        terms = [
            (part, loop.strides[number])
            for loop, place in self._places.items()
            for part in place
            if loop.strides[number]
        ]
        return self.view(number).element(terms, self._offsets[number])
