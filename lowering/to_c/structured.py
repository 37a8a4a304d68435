"""
Structured ops as loop nests: `linalg.generic`, and `accel.exec`, whose meaning is the generic of its intrinsic.

The loops are those that `nest` plans. Where operands are not walked with constant strides, or two points of parallel
dims meet in one output, they are those of the op, in their order.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import prod

from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.linalg.ops import GenericOp, IndexOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap
from xdsl.utils.hints import isa

from penstock.dialects.accel import ExecOp
from penstock.dialects.affine_maps import linear_form
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import REGISTERS, IntrinsicOp
from penstock.dialects.products import added_product
from penstock.lowering.to_c.emitter import CView, FunctionEmitter, Values, refuse
from penstock.lowering.to_c.nest import LoopNest, NestLoop, Strip, plan_nest
from penstock.lowering.to_c.scalar import affine_expression, emit_scalar
from penstock.lowering.to_c.text import Expr, Size, for_loop, sum_of
from penstock.lowering.to_c.vectors import VectorType, is_vectorizable, product_name, vector_type
from penstock.passes.analysis.vector_products import VectorProduct, vector_products
from penstock.passes.planning.register_blocks import Domain
from penstock.passes.schedule.primitives.tensorize import match_named


@dataclass(frozen=True)
class BodyOperand:
    """One operand of a structured op."""

    source: CView | Expr
    """An expression stands for a scalar operand."""
    index_map: AffineMap
    is_read: bool

    @property
    def is_in_memory(self) -> bool:
        """Whether its elements are loaded."""
        return self.is_read and isinstance(self.source, CView)

    @property
    def is_in_registers(self) -> bool:
        """Whether its elements lie in the scope of the vector registers."""
        return isinstance(self.source, CView) and self.source.scope == REGISTERS

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
    operands: tuple[BodyOperand, ...]
    outputs: int
    extents: tuple[Size, ...]
    product: tuple[VectorProduct, int] | None = None
    """The intrinsic of the host that it is, and the dim of the products that this adds at once."""

    @property
    def inputs(self) -> int:
        return len(self.operands) - self.outputs

    def index_dims(self) -> frozenset[int]:
        """The dims whose index the body reads."""
        return frozenset(op.dim.value.data for op in self.body.ops if isinstance(op, IndexOp))


def _emit_structured(emitter: FunctionEmitter, structured: Structured) -> None:
    """Write the loop nest."""
    if 0 in structured.extents:
        return
    if structured.product is not None:
        if (planned := _plan_product(structured, *structured.product)) is not None:
            _Blocks(emitter, structured, *planned).emit()
            return
        structured = replace(structured, product=None)
    planned = plan_structured(structured)
    if planned is None:
        _InOrder(emitter, structured).emit()
    else:
        _Blocks(emitter, structured, *planned).emit()


def _plan_product(structured: Structured, product: VectorProduct, grouped: int) -> tuple[LoopNest, list[int]] | None:
    """The loops around an intrinsic of the host, which has the dim `grouped`; None where they have no lanes for it."""
    extents = tuple(1 if dim == grouped else extent for dim, extent in enumerate(structured.extents))
    planned = plan_structured(replace(structured, extents=extents))
    if planned is None or (lanes := planned[0].lanes) is None or not planned[0].sequential:
        return None
    fits = lanes.loop.strides == (0, product.group, 1) and not lanes.size % product.lanes and not lanes.tail
    return planned if fits and structured.operands[-1].is_in_registers else None


def plan_structured(structured: Structured, *, with_registers_apart: bool = False) -> tuple[LoopNest, list[int]] | None:
    """
    The loops, and the offset of every operand in elements; None where only the order of the op's own loops is right.

    `with_registers_apart` keeps the dims of operands in registers apart from each other.
    """
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
    in_place = [operand.is_in_registers for operand in structured.operands]
    apart = structured.index_dims()
    if with_registers_apart:
        held = [each for each, is_held in zip(strides, in_place, strict=True) if is_held]
        apart |= {dim for each in held for dim, stride in enumerate(each) if stride}
    domain = Domain(tuple(extents), tuple(strides), structured.outputs, apart)
    in_registers = all(in_place[structured.inputs :])
    planned = plan_nest(domain, in_registers=in_registers)
    return None if planned is None else (planned, offsets)


class _NestEmitter:
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
            if len(list(arg.uses)) > 1 and isinstance(operand.source, CView):
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

    def view(self, number: int) -> CView:
        """An operand in memory."""
        source = self.structured.operands[number].source
        assert isinstance(source, CView)
        return source


class _InOrder(_NestEmitter):
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


Position = tuple[Size, ...]
"""The index of a loop: the sum of these."""


class _Blocks(_NestEmitter):
    """The loops that `nest` planned."""

    def __init__(self, emitter: FunctionEmitter, structured: Structured, loops: LoopNest, offsets: Sequence[int]):
        super().__init__(emitter, structured)
        self._plan = loops
        self._offsets = offsets
        self._positions: dict[NestLoop, Position] = {}
        self._sizes: dict[NestLoop, int] = {}
        """How large the current step of a loop is, for those in steps."""
        self._element: str | None = None
        """The brackets of an accumulator, while the outputs are in registers."""
        self._block_loops = [step.loop for step in (loops.rows, loops.lanes) if step is not None]
        self._vector = self._vector_type()
        """What the outputs are kept in where they are local variables; None for scalars."""
        self._pointers: dict[int, str] = {}
        """Pointers to inputs at the first row and lane, while those of a block are enumerated."""
        self._fixed: dict[int, Expr] = {}
        """Inputs that are the same for all lanes, which are loaded before their loop."""

    def emit(self) -> None:
        steps = (*self._plan.outer, *self._plan.inner)
        if steps:
            needs_scope = steps[0].size == steps[0].loop.extent
        else:
            needs_scope = bool(self._plan.sequential) or self._plan.lanes is None
        with self.emitter.writer.block() if needs_scope else nullcontext():
            self._outer(steps)

    def _outer(self, steps: Sequence[Strip]) -> None:
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
            # With a tail after it, the block needs a scope of its own.
            with self.emitter.writer.block() if step.tail else nullcontext():
                self._at(step.loop, 0, step.size, rest)
        elif whole:
            name = f"d{step.loop.suffix}"
            with self.emitter.writer.block(for_loop(name, whole, step=step.size)):
                self._at(step.loop, name, step.size, rest)
        if step.tail:
            with self.emitter.writer.block():
                self._at(step.loop, whole, step.tail, rest)

    def _at(self, loop: NestLoop, position: Size, size: int, rest: Sequence[Strip]) -> None:
        self._positions[loop], self._sizes[loop] = (position,), size
        self._outer(rest)

    @contextmanager
    def _counted(self, loop: NestLoop) -> Generator[None]:
        """A loop over all of `loop`, or over the current step of it."""
        position, size = self._positions.get(loop, ()), self._sizes.get(loop)
        name = f"d{loop.suffix}" if size is None else f"k{loop.suffix}"
        with self.emitter.writer.block(for_loop(name, loop.extent if size is None else size)):
            self._positions[loop] = (name,) if size is None else (*position, name)
            yield
        self._positions[loop] = position

    @contextmanager
    def _nested(self, loops: Sequence[NestLoop]) -> Generator[None]:
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
        if self._vector is not None:
            lanes = self._plan.lanes
            self.emitter.program.helpers.add(self._vector.helper)
            self.emitter.writer.line("PENSTOCK_UNROLL")
            with self.emitter.writer.block(for_loop("j0", lanes.size, step=self._vector.lanes)):
                self._positions[lanes.loop] = ("j0",)
                self._store_vectors(self.results())
            del self._positions[lanes.loop]
            return
        # Loaded in the loop, GCC 12 may take them for what the loop writes, and not vectorise it.
        for number in range(self.structured.inputs):
            if self.structured.operands[number].is_in_memory and not self._plan.lanes.loop.strides[number]:
                name, ctype = self.emitter.names.fresh("s"), self.view(number).ctype
                self.emitter.writer.line(f"const {ctype.value} {name} = {self.value(number).text};")
                self._fixed[number] = Expr(name, is_atom=True)
        self.emitter.writer.line("PENSTOCK_INDEPENDENT")
        with self._counted(self._plan.lanes.loop):
            self.store(self.results())
        self._fixed = {}

    def _vector_type(self) -> VectorType | None:
        """The vectors of the machine, where tiles in its registers are made of them whole."""
        lanes, structured = self._plan.lanes, self.structured
        if structured.product is not None:
            return VectorType(self.view(structured.inputs).ctype, structured.product[0].lanes)
        outputs = range(structured.inputs, len(structured.operands))
        if lanes is None or not any(operand.is_in_registers for operand in structured.operands):
            return None
        if self._plan.sequential and any(self.view(number).scope != REGISTERS for number in outputs):
            return None
        types = [self.view(number).ctype for number, each in enumerate(structured.operands) if each.is_in_registers]
        vector = vector_type(self.emitter.program.target, types[-1])
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
            a, b = (self.lvalue(number) for number in range(2))
            return [Expr(f"{name}({self._vector_value(2).text}, &{a}, &{b})", is_atom=True)]
        self.emitter.program.helpers.update(vector.helper for vector in self._vector.used_in(self.structured.body))
        args = [(number, arg) for number, arg in enumerate(self.structured.body.args) if arg.uses]
        values: dict[SSAValue, Expr] = {arg: self._vector_value(number) for number, arg in args}
        return self._vector.results(self.structured.body, values, self.emitter.scalar)

    def _vector_value(self, number: int) -> Expr:
        """The vector of an operand that begins at the current point."""
        assert self._vector is not None
        assert self._plan.lanes is not None
        scalar = self.value(number)
        is_kept = self._element is not None and number >= self.structured.inputs
        if is_kept:
            return scalar
        source, vector = self.structured.operands[number].source, self._vector
        if isinstance(source, CView):
            vector = vector.of(source.ctype)
            match self._plan.lanes.loop.strides[number]:
                case 1:
                    return Expr(vector.load(scalar.text))
                case 2:
                    return Expr(vector.every_second(scalar.text), is_atom=True)
                case _:
                    pass
        return Expr(vector.splat(scalar), is_atom=True)

    def _store_vectors(self, results: Sequence[Expr]) -> None:
        assert self._vector is not None
        for number, result in enumerate(results, self.structured.inputs):
            vector = self._vector.of(self.view(number).ctype)
            self.emitter.writer.line(f"{vector.at(self.lvalue(number))} = {result.text};")

    def _pack(self, number: int) -> None:
        """Copy the part of an operand that the blocks to come share to where its elements are adjacent."""
        assert self._plan.lanes is not None
        lanes, ctype = self._plan.lanes.loop, self.view(number).ctype
        rows = prod(self._sizes.get(loop, loop.extent) for loop in self._plan.sequential)
        self.emitter.program.reserve_scratch(rows * self._sizes[lanes] * ctype.value_size)
        # In the context, and not a local array: GCC 12 then keeps the accumulators in registers.
        self.emitter.writer.line(f"{ctype.value} *const panel0 = ({ctype.value} *){self.emitter.own}->scratch;")
        with self._nested(self._plan.sequential), self._lane(lanes):
            self.emitter.writer.line(f"{self._panel()} = {super().value(number).text};")

    @contextmanager
    def _lane(self, lanes: NestLoop) -> Generator[None]:
        position = self._positions[lanes]
        with self.emitter.writer.block(for_loop("j0", self._sizes[lanes])):
            self._positions[lanes] = (*position, "j0")
            yield
        self._positions[lanes] = position

    def _panel(self) -> str:
        """The element of the panel at the current point."""
        assert self._plan.lanes is not None
        terms: list[tuple[Size, Size]] = [("j0", 1)]
        scale = self._sizes[self._plan.lanes.loop]
        for loop in reversed(self._plan.sequential):
            terms.insert(0, (self._positions[loop][-1], scale))
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
        vector, step = self._vector, 1
        if vector is not None:
            step = vector.lanes
            # The rows of a block may be its vectors, too: a block has at least one vector of lanes.
            brackets = brackets.removesuffix(f"[{shape[-1][1]}]") + f"[{shape[-1][1] // step}]"
            element = element.removesuffix("[j0]") + f"[j0 / {step}]"
            self.emitter.program.helpers.add(vector.helper)
        headers = [for_loop(letter, size, step=step if letter == "j0" else 1) for _, size, letter in shape]
        started = dict(self._positions)
        if vector is None and all(self._is_in_registers(number) for number in range(len(outputs))):
            for loop, _, letter in shape:
                self._positions[loop] = (*started[loop], letter)
            with self._nested(self._plan.sequential), self._registers(headers):
                self.store(self.results())
            self._positions.update(started)
            return
        for number in range(len(outputs)):
            value = self.view(structured.inputs + number).ctype.value if vector is None else vector.name
            writer.line(f"{value} acc{number}{brackets};")
        for loop, _, letter in shape:
            self._positions[loop] = (*started[loop], letter)
        read = [number for number, operand in enumerate(outputs) if operand.is_read]
        if read:
            with self._rows(headers):
                for number in read:
                    value = self.value if vector is None else self._vector_value
                    writer.line(f"acc{number}{element} = {value(structured.inputs + number).text};")
        with self._nested(self._plan.sequential), self._registers(headers):
            self._element = element
            for number, result in enumerate(self.results()):
                writer.line(f"acc{number}{element} = {result.text};")
            self._element = None
        with self._rows(headers):
            kept = [Expr(f"acc{number}{element}", is_atom=True) for number in range(len(outputs))]
            self.store(kept) if vector is None else self._store_vectors(kept)
        self._positions.update(started)

    def _is_in_registers(self, number: int) -> bool:
        return self.view(self.structured.inputs + number).scope == REGISTERS

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
                if number != self._plan.packed and self.structured.operands[number].is_in_memory
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
            (part, loop.strides[number])
            for loop, position in self._positions.items()
            for part in (position[:-1] if loop in self._block_loops else position)
            if loop.strides[number]
        ]
        start = sum_of(terms, self._offsets[number])
        self.emitter.writer.line(f"{view.pointer_type}const {name} = {view.pointer} + {start};")
        return name

    def value(self, number: int) -> Expr:
        if number in self._fixed:
            return self._fixed[number]
        if self._element is not None and number >= self.structured.inputs:
            return Expr(f"acc{number - self.structured.inputs}{self._element}", is_atom=True)
        if self._element is not None and number == self._plan.packed:
            return Expr(self._panel(), is_atom=True)
        return super().value(number)

    def index(self, dim: int) -> Expr:
        position = next((position for loop, position in self._positions.items() if loop.dims == (dim,)), (0,))
        text = sum_of([(part, 1) for part in position])
        return Expr(text, is_atom=" " not in text)

    def lvalue(self, number: int) -> str:
        if number in self._pointers:
            inside = [(self._positions[loop][-1], loop.strides[number]) for loop in self._block_loops]
            return f"{self._pointers[number]}[{sum_of([term for term in inside if term[1]])}]"
        terms = [
            (part, loop.strides[number])
            for loop, position in self._positions.items()
            for part in position
            if loop.strides[number]
        ]
        return self.view(number).element(terms, self._offsets[number])


# ops


def emit_generic(emitter: FunctionEmitter, op: GenericOp) -> None:
    """The loop nest of a `linalg.generic` on memrefs."""
    _emit_structured(emitter, generic_of(emitter, op))


def generic_of(emitter: Values, op: GenericOp) -> Structured:
    """A `linalg.generic` on memrefs, described and counted."""
    if op.results:
        raise refuse(op, "a linalg.generic on tensors has no C", "run `tensor-to-loop` first")
    maps = [attr.data for attr in op.indexing_maps]
    structured = _structured(emitter, op.body.block, op.operands, maps, len(op.outputs), None, op)
    structured = replace(structured, product=_product_of(emitter, op))
    extents = " x ".join(str(extent) for extent in structured.extents) or "one point"
    intrinsic = f" ({op.library_call.data})" if op.library_call is not None else ""
    emitter.describe(op, f"linalg.generic{intrinsic} over {extents}")
    _count_work(emitter, structured, "macs" if op.library_call is not None else "host_macs")
    return structured


def _product_of(emitter: Values, op: GenericOp) -> tuple[VectorProduct, int] | None:
    """The intrinsic of the host that an op says it is, proved again, and the dim of what it adds at once."""
    target = emitter.program.target
    if target is None or not target.is_host or op.library_call is None:
        return None
    match = match_named(op, op.library_call.data, target)
    found = next((each for each in vector_products(target) if each.intrinsic is match.intrinsic), None)
    grouped = match.dims[-1]
    return None if found is None or grouped is None else (found, grouped)


def emit_exec(emitter: FunctionEmitter, op: ExecOp) -> None:
    """The loop nest of an intrinsic over the extents of a command."""
    _emit_structured(emitter, exec_of(emitter, op))


def exec_of(emitter: Values, op: ExecOp) -> Structured:
    """An intrinsic over the extents of a command, described and counted."""
    intrinsic = _intrinsic(emitter, op)
    generic = intrinsic.generic
    body = intrinsic.body_with(op.immediate_values).block
    maps = [attr.data for attr in op.maps]
    extents = op.extents.get_values()
    outputs = len(generic.outputs)
    structured = _structured(emitter, body, op.buffers, maps, outputs, extents, op)
    emitter.describe(op, f"accel.exec @{op.intrinsic_name} over {' x '.join(map(str, extents))}")
    emitter.count("commands", 1)
    _count_work(emitter, structured, "macs")
    if intrinsic.dma_name is not None:
        _count_transfer(emitter, structured, extents)
    return structured


def _intrinsic(emitter: Values, op: ExecOp) -> IntrinsicOp:
    target = emitter.program.target
    if target is None:
        raise UserError(
            "accel.exec needs a machine, and the module holds none",
            loc=location_of(op),
            notes=["a module for an accelerator begins with its machine.target"],
        )
    return target.intrinsics()[op.intrinsic_name]


def _structured(
    emitter: Values,
    body: Block,
    values: Sequence[SSAValue],
    maps: Sequence[AffineMap],
    outputs: int,
    extents: Sequence[int] | None,
    op: Operation,
) -> Structured:
    operands: list[BodyOperand] = []
    for value, index_map, arg in zip(values, maps, body.args, strict=True):
        source = emitter.view(value) if isa(value.type, MemRefType) else emitter.scalar(value)
        operands.append(BodyOperand(source, index_map, bool(arg.uses)))
    found = tuple(extents) if extents is not None else _extents(operands, op)
    return Structured(body, tuple(operands), outputs, found)


def _extents(operands: Sequence[BodyOperand], op: Operation) -> tuple[Size, ...]:
    """The extents of a generic's loops, read off the shapes of its operands."""
    dims = operands[0].index_map.num_dims if operands else 0
    found: list[Size | None] = [None] * dims
    for operand in operands:
        if isinstance(operand.source, Expr):
            continue
        for result, size in zip(operand.index_map.results, operand.source.shape, strict=True):
            if isinstance(result, AffineDimExpr) and not isinstance(found[result.position], int):
                found[result.position] = size
    if None in found:
        raise UserError(f"no operand says how far loop {found.index(None)} runs", loc=location_of(op))
    return tuple(extent for extent in found if extent is not None)


# counters


def _count_work(emitter: Values, structured: Structured, counter: str) -> None:
    if added_product(structured.body) is None:
        return
    emitter.count(counter, emitter.product(structured.extents))


def _count_transfer(emitter: Values, structured: Structured, extents: Sequence[int]) -> None:
    """The bytes that an intrinsic of a DMA engine moves: what it writes off chip, or else what it reads elsewhere."""
    emitter.count("transfers", 1)
    views = [(number, operand.source) for number, operand in enumerate(structured.operands)]
    placed = [(number, view) for number, view in views if not isinstance(view, Expr)]
    end = placed[-1][1].scope
    for number, view in placed:
        is_output = number >= structured.inputs
        if is_output != (end is None) or (not is_output and view.scope == end):
            continue
        used = {dim for result in structured.operands[number].index_map.results for dim in result.used_dims()}
        elements = prod(extents[dim] for dim in used)
        counter = "bytes_out" if is_output else "bytes_in" if view.scope is None else "bytes_on_chip"
        emitter.count(counter, elements * view.ctype.size)
