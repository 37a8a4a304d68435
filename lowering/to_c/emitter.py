# SPDX-License-Identifier: Apache-2.0
"""Functions in C: how C writes what the walk of the loop level asks for."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineBinaryOpKind
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import location_of
from penstock.dialects.machine import REGISTERS
from penstock.dialects.mem import RingOp, RingType, ScopedAllocation, memref_of
from penstock.lowering.codegen.emitter import Emitter, Language
from penstock.lowering.codegen.program import ENTRY, Program
from penstock.lowering.codegen.text import Expr, Names, Size, comment_text, identifier
from penstock.lowering.codegen.types import CType, c_type
from penstock.lowering.codegen.views import Captured, Terms, View, numbers_of, owner_of
from penstock.lowering.to_c.prelude import helper_name
from penstock.lowering.to_c.text import CWriter, for_loop, sum_of, times
from penstock.lowering.to_c.threads import part_text
from penstock.lowering.to_c.vectors import VectorType, vector_type

INLINE_LENGTH = 72
"""An expression with one use becomes a variable of its own when it is longer."""


@dataclass
class FunctionEmitter(Emitter):
    """The state of emitting one function."""

    program: Program
    """What it shares with the other functions."""
    language: Language
    """What it is written in."""
    writer: CWriter
    """Where its lines go."""
    names: Names
    """The names that it has taken."""
    prefix: str
    """What the names of the program begin with."""
    symbol: str
    """The function, as the module calls it."""
    values: dict[SSAValue, Expr | View] = field(default_factory=dict[SSAValue, "Expr | View"])
    """The C of every SSA value so far."""
    outline: list[str] = field(default_factory=list[str])
    """What the function does: a line for each of its loops, and for each description."""
    own: str = "ctx"
    """The pointer to what a thread has to itself: counters, fault and scratch memory."""
    parts: list[str] = field(default_factory=list[str])
    """The functions that run iterations of its parallel loops."""
    depth: int = 0
    """How many loops are around what is written next."""

    # values

    def keep(self, op: Operation, expr: Expr) -> None:
        """Give the result of a pure op its expression, by way of a variable unless it is short and used once."""
        result = op.results[0]
        uses = list(result.uses)
        used_here = len(uses) <= 1 and all(use.operation.parent is op.parent for use in uses)
        if isinstance(op, arith.ConstantOp) or (expr.is_atom and expr.text.isidentifier()):
            self.values[result] = expr
        elif used_here and len(expr.text) <= INLINE_LENGTH:
            self.values[result] = expr
        else:
            self.declare(result, expr)

    def declare(self, value: SSAValue, expr: Expr) -> None:
        name = self.name(value)
        self.writer.line(f"const {self.ctype(value).value} {name} = {expr.text};")
        self.values[value] = Expr(name, is_atom=True)

    def held(self, ctype: CType, expr: Expr) -> Expr:
        return self.hold(ctype.value, expr, "s")

    def hold(self, type: str, expr: Expr, letter: str) -> Expr:
        """A variable of a type of C that holds an expression."""
        name = self.names.fresh(letter)
        self.writer.line(f"const {type} {name} = {expr.text};")
        return Expr(name, is_atom=True)

    def yielded(self, values: Sequence[SSAValue]) -> list[Expr]:
        found = [self.scalar(value) for value in values]
        if len(found) == 1:
            return found
        return [self.hold(self.ctype(value).value, expr, "v") for value, expr in zip(values, found, strict=True)]

    # types

    def helper(self, what: str, ctype: CType) -> str:
        """The name of the helper that does `what` on a type."""
        # 16-bit floats are floats in expressions.
        key = helper_name(what, "f32" if ctype.is_small else ctype.name)
        self.program.helpers.add(key)
        return f"pen_{key}"

    def rounded(self, ctype: CType, text: str) -> Expr:
        """The result of an operation on floats."""
        self.program.helpers.update(ctype.helpers)
        return ctype.rounded(text)

    # sizes

    def times(self, left: Size, right: Size) -> Size:
        return times(left, right)

    def product(self, sizes: Sequence[Size]) -> Size:
        if all(isinstance(size, int) for size in sizes):
            return prod(size for size in sizes if isinstance(size, int))
        return " * ".join(map(str, sizes))

    def sum_of(self, terms: Terms, constant: int = 0) -> Size:
        return Expr(sum_of(terms, constant), is_atom=True).size

    def named(self, size: Size) -> Size:
        if isinstance(size, int) or size.isidentifier():
            return size
        name = self.names.fresh("at")
        self.writer.line(f"const int64_t {name} = {size};")
        return name

    def multiple(self, size: Size, of: int) -> Size:
        return self.named(f"{size} - {size} % {of}")

    def slot_offset(self, turn: Size, slots: int, pitch: int) -> Size:
        number = str(turn % slots) if isinstance(turn, int) else f"{turn} % {slots}"
        return f"{number} * {pitch}"

    def inside(self, offset: Size, extent: Size, span: int) -> Size:
        positions = self.sum_of([(extent, 1)], 1 - span)
        self.program.helpers.add(key := helper_name("inside", "index"))
        return f"pen_{key}({offset}, {positions}, &{self.own}->fault)"

    def clipped(
        self, start: Size, size: Size, bound: Size, *, may_begin_before: bool, may_end_after: bool
    ) -> list[Size]:
        if isinstance(start, int):
            start = f"({start})"
        low, high = self.names.fresh("lo"), self.names.fresh("hi")
        if may_begin_before:
            self.writer.line(f"const int64_t {low} = {start} < 0 ? -{start} : 0;")
        if may_end_after:
            self.writer.line(f"const int64_t {high} = {bound} - {start} < {size} ? {bound} - {start} : {size};")
        return [low if may_begin_before else 0, high if may_end_after else size]

    def extent(self, low: Size, high: Size) -> Size:
        return f"({high} > {low} ? {high} - {low} : 0)"

    def affine_binary(self, kind: AffineBinaryOpKind, left: Expr, right: Expr, *, may_wrap: bool) -> Expr:
        a, b = left.atom, right.atom
        if may_wrap:
            match kind:
                case AffineBinaryOpKind.Add | AffineBinaryOpKind.Mul:
                    symbol = "+" if kind is AffineBinaryOpKind.Add else "*"
                    return Expr(f"(int64_t)((uint64_t){a} {symbol} (uint64_t){b})")
                case AffineBinaryOpKind.Mod:
                    return Expr(f"{a} % {b} + ({a} % {b} < 0 ? {b} : 0)")
                case AffineBinaryOpKind.FloorDiv:
                    return Expr(f"{a} / {b} - ({a} % {b} < 0)")
                case AffineBinaryOpKind.CeilDiv:
                    return Expr(f"{a} / {b} + ({a} % {b} > 0)")
        match kind:
            case AffineBinaryOpKind.Add:
                return Expr(f"{a} - {-right.number}" if right.number is not None and right.number < 0 else f"{a} + {b}")
            case AffineBinaryOpKind.Mul:
                return Expr(f"{a} * {b}")
            case AffineBinaryOpKind.Mod:
                return Expr(f"(({a} % {b}) + {b}) % {b}")
            case AffineBinaryOpKind.FloorDiv:
                return Expr(f"({a} - (({a} % {b}) + {b}) % {b}) / {b}")
            case AffineBinaryOpKind.CeilDiv:
                return Expr(f"({a} + ((-{a} % {b}) + {b}) % {b}) / {b}")

    def minimum(self, left: Expr, right: Expr) -> Expr:
        self.program.helpers.add(key := helper_name("mins", "index"))
        return Expr(f"pen_{key}({left.text}, {right.text})", is_atom=True)

    def equal(self, value: Size, number: int) -> Expr:
        return Expr(f"{value} == {number}")

    def any_empty(self, ranges: Sequence[tuple[Size, Size]]) -> Expr:
        return Expr(" || ".join(f"{low} >= {high}" for low, high in ranges))

    # memory

    def allocate(self, op: ScopedAllocation) -> str:
        type = op.slot_type if isinstance(op, RingOp) else memref_of(op.storage)
        scope, offset, ctype = op.scope, op.planned_offset(), c_type(type.element_type, op)
        name = self.name(op.storage)
        if scope == REGISTERS:
            self.writer.line(f"{ctype.storage} {name}[{op.size_in_bytes // ctype.size}];")
            return name
        array = f"ctx->{scope_field(scope)}"
        start = array if offset == 0 else f"({array} + {offset})"
        self.writer.line(f"{ctype.storage} *const {name} = ({ctype.storage} *){start};")
        return name

    def global_pointer(self, symbol: str) -> str:
        return self.program.symbols[symbol]

    def point(self, value: SSAValue, view: View, offset: Size) -> View:
        return self._pointer(
            value, view, view.pointer if offset in ("0", 0) else f"{view.pointer} + {offset}", "const "
        )

    def _pointer(self, value: SSAValue, view: View, start: str, const: str = "") -> View:
        name = self.name(value)
        self.writer.line(f"{view.pointer_type}{const}{name} = {start};")
        found = replace(view, pointer=name)
        self.values[value] = found
        return found

    def element(self, view: View, terms: Terms, constant: int = 0) -> str:
        return f"{view.pointer}[{sum_of(terms, constant)}]"

    def load(self, ctype: CType, element: str) -> Expr:
        self.program.helpers.update(ctype.helpers)
        return ctype.load(element)

    def store(self, ctype: CType, element: str, value: Expr) -> None:
        self.program.helpers.update(ctype.helpers)
        self.writer.line(f"{element} = {ctype.store(value.text)};")

    def copy_element(self, ctype: CType, dest: str, source: str) -> None:
        self.writer.line(f"{dest} = {source};")

    def prefetch(self, element: str) -> None:
        self.writer.line(f"PENSTOCK_PREFETCH(&{element});")

    def copy_run(self, dest: View, to: Size, source: View, start: Size, low: Size, high: Size) -> None:
        size, guard = dest.ctype.size, ""
        if isinstance(low, int) and isinstance(high, int):
            length = str((high - low) * size)
        else:
            length = f"(size_t){high if low == 0 else f'({high} - {low})'} * {size}"
            guard = f"if ({high} > {low}) "
        ends = ", ".join(
            view.pointer if offset == "0" else f"{view.pointer} + {offset}"
            for view, offset in ((dest, to), (source, start))
        )
        self.writer.line(f"{guard}memcpy({ends}, {length});")

    def lanes_of(self, ctype: CType) -> int:
        vector = vector_type(self.program.target, ctype)
        return 0 if vector is None else vector.lanes

    def copy_lanes(self, dest: View, to: Terms, source: View, start: Terms) -> None:
        vector = VectorType(source.ctype, self.lanes_of(source.ctype))
        self.program.helpers.add(vector.helper)
        self.writer.line(f"{vector.at(self.element(dest, to))} = {vector.load(self.element(source, start))};")

    # control

    def loop(
        self,
        name: str,
        stop: Size,
        body: Callable[[Size], None],
        *,
        start: Size = 0,
        step: Size = 1,
        is_independent: bool = False,
        is_unrolled: bool = False,
        may_unroll: bool = True,
    ) -> None:
        if is_independent or is_unrolled:
            self.writer.line("PENSTOCK_INDEPENDENT" if is_independent else "PENSTOCK_UNROLL")
        with self.writer.block(for_loop(name, stop, step=step, start=start)):
            body(name)

    def counted(
        self, counter: SSAValue, bounds: Sequence[Size], body: Callable[[], None], *, is_independent: bool = False
    ) -> None:
        name, (start, stop, step) = self.name(counter), bounds
        self.values[counter] = Expr(name, is_atom=True)
        if is_independent:
            self.writer.line("PENSTOCK_INDEPENDENT")
        with self.nest(for_loop(name, stop, step=step, start=start, type=self.ctype(counter).value)):
            body()

    @contextmanager
    def nest(self, header: str) -> Generator[None]:
        """A loop of the program, around what is written inside."""
        self.outline.append("  " * self.depth + header)
        self.depth += 1
        with self.writer.block(header):
            yield
        self.depth -= 1

    def endless(self, body: Callable[[], None]) -> None:
        with self.nest("for (;;)"):
            body()

    def leave_unless(self, condition: Expr, last: Callable[[], None]) -> None:
        held = self.names.fresh("v")
        self.writer.line(f"const int {held} = {condition.text};")
        last()
        self.writer.line(f"if (!{held}) break;")

    def expect(self, condition: Expr, fault: int) -> None:
        self.writer.line(f"if (!({condition.text})) {self.own}->fault = {fault};")

    def leave_if(self, condition: Expr, fault: int) -> None:
        with self.writer.block(f"if ({condition.text})"):
            self.writer.line(f"{self.own}->fault = {fault};")
            self.writer.line("return ctx->fault;" if self.symbol == ENTRY and self.own == "ctx" else "return;")

    def branch(self, condition: Expr, then: Callable[[], None], otherwise: Callable[[], None] | None) -> None:
        with self.writer.block(f"if ({condition.text})"):
            then()
        if otherwise is not None:
            with self.writer.block("else"):
                otherwise()

    @contextmanager
    def block(self) -> Generator[None]:
        with self.writer.block():
            yield

    def variable(self, value: SSAValue, view: View | None, start: str | None) -> None:
        if view is not None:
            self._pointer(value, view, view.pointer)
            return
        name = self.name(value)
        self.writer.line(f"{self.ctype(value).value} {name}{'' if start is None else f' = {start}'};")
        self.values[value] = Expr(name, is_atom=True)

    def assign(self, variables: Sequence[SSAValue], values: Sequence[SSAValue]) -> None:
        texts = [self.text(value) for value in values]
        if len(texts) > 1:
            for number, variable in enumerate(variables):
                name = self.names.fresh("v")
                self.writer.line(f"{self._type(variable)}{name} = {texts[number]};")
                texts[number] = name
        for variable, text in zip(variables, texts, strict=True):
            if (name := self.text(variable)) != text:
                self.writer.line(f"{name} = {text};")

    def _type(self, value: SSAValue) -> str:
        found = self.values[value]
        return f"{found.pointer_type}const " if isinstance(found, View) else f"const {self.ctype(value).value} "

    def read(self, variables: Sequence[SSAValue], values: Sequence[SSAValue]) -> None:
        # A variable is an expression that is read wherever it stands.
        for variable, value in zip(variables, values, strict=True):
            self.values[value] = self.values[variable]

    def call(self, symbol: str, operands: Sequence[SSAValue]) -> None:
        given: list[str] = ["ctx"]
        for operand in operands:
            given.append(self.text(operand))
            if isa(operand.type, MemRefType):
                given += map(str, numbers_of(operand.type, self.view(operand)))
        self.writer.line(f"{symbol}({', '.join(given)});")

    # parallel loops

    def part(self, name: str) -> FunctionEmitter:
        taken = [*self.program.symbols.values(), name, "own", "given", "all", "first", "last", "n"]
        return FunctionEmitter(
            self.program,
            self.language,
            CWriter(1),
            Names(taken),
            self.prefix,
            self.symbol,
            outline=self.outline,
            own="own",
            depth=self.depth,
        )

    def iterations(self, body: Callable[[Size], None]) -> None:
        with self.nest(for_loop("n", "last", start="first")):
            body("n")

    def written(self) -> str:
        return self.writer.text()

    def digit(self, number: Size, inner: int, base: int | None) -> Size:
        digit = str(number) if inner == 1 else f"{number} / {inner}"
        if base is not None:
            digit = f"({digit}) % {base}" if inner > 1 else f"{number} % {base}"
        return digit if digit == number else f"({digit})"

    def restricted_arguments(self) -> frozenset[int]:
        return self.program.restricted[self.symbol] if self.own == "ctx" else frozenset()

    def run_parallel(self, part: Emitter, name: str, given: Sequence[Captured], count: int) -> None:
        prefix = self.prefix
        self.parts.append(part_text(prefix, name, [(self._declaration(each), each) for each in given], part.written()))
        with self.writer.block():
            if given:
                values = ", ".join(each.text for each in given)
                self.writer.line(f"const struct {name}_given given = {{{values}}};")
            self.writer.line(f"{prefix}_parallel(ctx, {name}_part, {'&given' if given else 'NULL'}, {count});")

    def _declaration(self, given: Captured) -> str:
        """The type of a member or a parameter, with what separates it from the name."""
        if given.view is not None:
            return given.view.pointer_type
        if isinstance(type := given.value.type, RingType):
            return f"{c_type(type.slot.element_type, owner_of(given.value)).storage} *"
        return f"{self.ctype(given.value).value} "

    # comments and counters

    def describe(self, op: Operation, text: str) -> None:
        where = location_of(op)
        line = text if where in ("", op.name) else f"{where}: {text}"
        self.writer.comment(line)
        self.outline.append("  " * self.depth + comment_text(line))

    def count(self, counter: str, amount: Size) -> None:
        if amount != 0:
            self.writer.line(f"{self.own}->counters.{counter} += {amount};")


def scope_field(scope: str | None) -> str:
    """The member of the context that holds a scope, or the arena."""
    return "arena" if scope is None else f"scope_{identifier(scope)}"
