# SPDX-License-Identifier: Apache-2.0
"""Functions in LLVM IR: how it writes what the walk of the loop level asks for, on scalars or on vectors of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineBinaryOpKind

from penstock.dialects.diagnostics import location_of
from penstock.dialects.machine import REGISTERS
from penstock.dialects.mem import RingType, ScopedAllocation
from penstock.lowering.codegen.bounds import OUTSIDE
from penstock.lowering.codegen.emitter import Emitter, Language
from penstock.lowering.codegen.program import COUNTERS, ENTRY, Program
from penstock.lowering.codegen.text import Expr, Names, Size, comment_text
from penstock.lowering.codegen.types import CType
from penstock.lowering.codegen.views import Captured, Terms, View
from penstock.lowering.to_llvm.lanes import Lanes
from penstock.lowering.to_llvm.small_floats import from_storage, to_storage
from penstock.lowering.to_llvm.text import Instructions, constant_text, part_text
from penstock.lowering.to_llvm.threads import OWN_BYTES
from penstock.lowering.to_llvm.types import memory_type, splat, value_type, vector_of

FAULT_AT = 8 * len(COUNTERS)
"""Where the fault is in a context."""
TAKEN = ("ctx", "weights", "inputs", "outputs", "entry")
"""Names of parameters and blocks, which no value gets."""
DIVIDED_BY_ZERO = 1
"""The fault of a division by zero, as generated C counts it."""


@dataclass(frozen=True)
class ContextLayout:
    """Where everything is in a context, which is laid out as that of generated C."""

    offsets: Mapping[str | None, int]
    """Of the scopes, and of the arena under None."""
    scratch: int
    """Where the scratch memory begins, which is the last."""


class Vector(Expr):
    """A value of as many lanes as ops compute where it is."""


@dataclass(frozen=True)
class _Variable:
    """A local variable, of which LLVM makes a register."""

    slot: str
    type: str
    view: View | None
    """Of a memref."""


@dataclass
class LlvmEmitter(Lanes, Emitter):
    """The state of emitting one function."""

    needs_constant_offsets = True
    """LLVM makes registers of local variables before it unrolls loops."""
    program: Program
    """What it shares with the other functions."""
    language: Language
    """What it is written in."""
    layout: ContextLayout
    """Where everything is in a context."""
    asm: Instructions
    """Where its instructions go."""
    prefix: str
    """What the names of the program begin with."""
    symbol: str
    """The function, as the module calls it."""
    values: dict[SSAValue, Expr | View] = field(default_factory=dict[SSAValue, "Expr | View"])
    """The text of every scalar so far, and the view of every memref."""
    lanes: int = 0
    """Of the vectors that ops compute now; 0 while they compute scalars."""
    splats: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    """Scalars, and numbers of lanes, that are in all lanes of a vector already."""
    variables: dict[SSAValue, _Variable] = field(default_factory=dict[SSAValue, _Variable])
    """What loops and branches carry."""
    ends: list[str] = field(default_factory=list[str])
    """The labels after the endless loops around."""
    parts: list[str] = field(default_factory=list[str])
    """The functions that run iterations of its parallel loops."""
    own: str = "%ctx"
    """The pointer to what a thread has to itself: counters and fault at its start, and scratch memory."""

    def __post_init__(self) -> None:
        self.names = self.asm.names

    # values

    def name(self, value: SSAValue) -> str:
        return f"%{super().name(value)}"

    def declare(self, value: SSAValue, expr: Expr) -> None:
        # Every instruction has a name.
        self.bind(value, replace(expr, is_atom=True))

    def held(self, ctype: CType, expr: Expr) -> Expr:
        return expr

    def yielded(self, values: Sequence[SSAValue]) -> list[Expr]:
        return [self.value_of(self.operand(value)) for value in values]

    def value_of(self, text: str) -> Expr:
        """What ops compute now: a vector, or a scalar."""
        return Vector(text, is_atom=True) if self.lanes else Expr(text, is_atom=True)

    def operand(self, value: SSAValue) -> str:
        """A value as the operand of an op: in all lanes, while ops compute vectors."""
        expr = self.scalar(value)
        if not self.lanes or isinstance(expr, Vector):
            return expr.text
        return self.in_all_lanes(value_type(self.ctype(value)), expr.text)

    def texts(self, op: Operation) -> list[str]:
        """The operands of an op."""
        return [self.operand(operand) for operand in op.operands]

    def in_all_lanes(self, type: str, text: str) -> str:
        """A scalar as a vector."""
        if not text.startswith("%"):
            return splat(type, text)
        key = (text, self.lanes)
        if key not in self.splats:
            vector = self.type(type)
            first = self.asm.value(f"insertelement {vector} poison, {type} {text}, i64 0")
            mask = f"<{self.lanes} x i32> zeroinitializer"
            self.splats[key] = self.asm.value(f"shufflevector {vector} {first}, {vector} poison, {mask}")
        return self.splats[key]

    def rounded(self, ctype: CType, value: str) -> str:
        """The result of an operation on floats, as a number of the type."""
        return from_storage(self, ctype, to_storage(self, ctype, value)) if ctype.is_small else value

    # sizes

    def times(self, left: Size, right: Size) -> Size:
        return self.asm.times(left, right)

    def product(self, sizes: Sequence[Size]) -> Size:
        total: Size = 1
        for size in sizes:
            total = self.asm.times(total, size)
        return total

    def sum_of(self, terms: Terms, constant: int = 0) -> Size:
        return self.asm.sum_of(terms, constant)

    def multiple(self, size: Size, of: int) -> Size:
        return self.asm.add(size, self.asm.times(-1, self.asm.value(f"srem i64 {size}, {of}")))

    def slot_offset(self, turn: Size, slots: int, pitch: int) -> Size:
        number: Size = turn % slots if isinstance(turn, int) else self.asm.value(f"srem i64 {turn}, {slots}")
        return self.asm.times(number, pitch)

    def inside(self, offset: Size, extent: Size, span: int) -> Size:
        is_outside = self.any_empty([(-1, offset), (offset, self.asm.add(extent, 1 - span))]).text
        self.fault_if(is_outside, OUTSIDE)
        return self.asm.value(f"select i1 {is_outside}, i64 0, i64 {offset}")

    def clipped(
        self, start: Size, size: Size, bound: Size, *, may_begin_before: bool, may_end_after: bool
    ) -> list[Size]:
        low: Size = 0
        high: Size = size
        if may_begin_before:
            low = self.intrinsic("smax", "i64", self.asm.value(f"sub nsw i64 0, {start}"), "0")
        if may_end_after:
            high = self.intrinsic("smin", "i64", self.asm.value(f"sub nsw i64 {bound}, {start}"), str(size))
        return [low, high]

    def extent(self, low: Size, high: Size) -> Size:
        return self.intrinsic("smax", "i64", self.asm.value(f"sub nsw i64 {high}, {low}"), "0")

    def equal(self, value: Size, number: int) -> Expr:
        return Expr(self.asm.value(f"icmp eq i64 {value}, {number}"), is_atom=True)

    def any_empty(self, ranges: Sequence[tuple[Size, Size]]) -> Expr:
        # What overflowed is no poison here: where it did, another of the ranges is empty as well.
        compared = [self.asm.value(f"icmp sge i64 {low}, {high}") for low, high in ranges]
        first, *others = [self.asm.value(f"freeze i1 {each}") for each in compared]
        for other in others:
            first = self.asm.value(f"or i1 {first}, {other}")
        return Expr(first, is_atom=True)

    def affine_binary(self, kind: AffineBinaryOpKind, left: Expr, right: Expr, *, may_wrap: bool) -> Expr:
        asm, a, b = self.asm, left.size, right.size
        match kind:
            case AffineBinaryOpKind.Add:
                found = asm.value(f"add i64 {a}, {b}") if may_wrap else asm.add(a, b)
            case AffineBinaryOpKind.Mul:
                found = asm.value(f"mul i64 {a}, {b}") if may_wrap else asm.times(a, b)
            case AffineBinaryOpKind.Mod:
                found = self._modulo(a, b)
            case AffineBinaryOpKind.FloorDiv:
                found = self._quotient(a, b, "sub", "slt")
            case AffineBinaryOpKind.CeilDiv:
                found = self._quotient(a, b, "add", "sgt")
        return Expr(str(found), is_atom=True)

    def _quotient(self, left: Size, right: Size, change: str, sign: str) -> str:
        """The quotient towards zero, changed by one where the rest has a sign."""
        quotient, rest = (self.asm.value(f"{each} i64 {left}, {right}") for each in ("sdiv", "srem"))
        is_changed = self.asm.value(f"zext i1 {self.asm.value(f'icmp {sign} i64 {rest}, 0')} to i64")
        return self.asm.value(f"{change} i64 {quotient}, {is_changed}")

    def _modulo(self, left: Size, right: Size) -> str:
        rest = self.asm.value(f"srem i64 {left}, {right}")
        is_negative = self.asm.value(f"icmp slt i64 {rest}, 0")
        added = self.asm.value(f"add i64 {rest}, {right}")
        return self.asm.value(f"select i1 {is_negative}, i64 {added}, i64 {rest}")

    def minimum(self, left: Expr, right: Expr) -> Expr:
        return Expr(self.intrinsic("smin", "i64", left.text, right.text), is_atom=True)

    # memory

    def allocate(self, op: ScopedAllocation) -> str:
        if op.scope == REGISTERS:
            return self.asm.local("i8", op.size_in_bytes)
        return self.asm.at("%ctx", "i8", self.layout.offsets[op.scope] + op.planned_offset())

    def global_pointer(self, symbol: str) -> str:
        name = f"@{self.program.symbols[symbol]}"
        self.asm.module.helpers.setdefault(name, constant_text(self.program.globals[symbol], name))
        return name

    def point(self, value: SSAValue, view: View, offset: Size) -> View:
        found = replace(view, pointer=self.asm.at(view.pointer, memory_type(view.ctype), offset))
        self.values[value] = found
        return found

    def element(self, view: View, terms: Terms, constant: int = 0) -> str:
        return self.asm.at(view.pointer, memory_type(view.ctype), self.asm.sum_of(terms, constant))

    def load(self, ctype: CType, element: str) -> Expr:
        """The value of an element, or of `lanes` adjacent ones."""
        memory = memory_type(ctype)
        found = self.asm.load(self.type(memory), element, ctype.size)
        if ctype.is_small:
            found = from_storage(self, ctype, found)
        elif ctype.is_bool:
            found = self.inst("icmp ne", memory, found, self.constant(memory, 0))
        elif ctype.bits < 8:
            found = self.cast("trunc", memory, found, ctype)
        return self.value_of(found)

    def store(self, ctype: CType, element: str, value: Expr) -> None:
        """Write an element, or `lanes` adjacent ones."""
        memory, text = memory_type(ctype), value.text
        if ctype.is_small:
            text = to_storage(self, ctype, text)
        elif ctype.bits < 8:
            text = self.cast("zext" if ctype.is_bool else "sext", ctype, text, memory)
        self.asm.store(self.type(memory), text, element, ctype.size)

    def copy_element(self, ctype: CType, dest: str, source: str) -> None:
        type = memory_type(ctype)
        self.asm.store(type, self.asm.load(type, source, ctype.size), dest, ctype.size)

    def prefetch(self, element: str) -> None:
        self.asm.module.declarations.setdefault(
            "@llvm.prefetch.p0", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
        )
        self.asm.line(f"call void @llvm.prefetch.p0(ptr {element}, i32 0, i32 3, i32 1)")

    def copy_run(self, dest: View, to: Size, source: View, start: Size, low: Size, high: Size) -> None:
        count = high - low if isinstance(low, int) and isinstance(high, int) else self.extent(low, high)
        size, type = dest.ctype.size, memory_type(dest.ctype)
        left, right = self.asm.at(dest.pointer, type, to), self.asm.at(source.pointer, type, start)
        self.asm.copy_bytes(left, right, self.asm.times(count, size), size)

    def lanes_of(self, ctype: CType) -> int:
        return self.program.vector_bytes // ctype.size

    def copy_lanes(self, dest: View, to: Terms, source: View, start: Terms) -> None:
        size, type = dest.ctype.size, vector_of(memory_type(dest.ctype), self.lanes_of(dest.ctype))
        held = self.asm.load(type, self.element(source, start), size)
        self.asm.store(type, held, self.element(dest, to), size)

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
        if is_unrolled and isinstance(start, int) and isinstance(stop, int) and isinstance(step, int):
            for number in range(start, stop, step):
                body(number)
            return
        with self.asm.loop(start, stop, step, is_independent=is_independent, may_unroll=may_unroll) as counter:
            body(counter)

    def counted(
        self, counter: SSAValue, bounds: Sequence[Size], body: Callable[[], None], *, is_independent: bool = False
    ) -> None:
        type = value_type(self.ctype(counter))
        with self.asm.loop(*bounds, type=type, is_independent=is_independent) as text:
            self.bind(counter, Expr(text, is_atom=True))
            body()

    def endless(self, body: Callable[[], None]) -> None:
        head, end = self.asm.new_label(), self.asm.new_label()
        self.asm.jump_into(head)
        self.ends.append(end)
        body()
        self.asm.jump(head)
        self.asm.start(self.ends.pop())

    def leave_unless(self, condition: Expr, last: Callable[[], None]) -> None:
        last()
        further = self.asm.new_label()
        self.asm.branch(condition.text, further, self.ends[-1])
        self.asm.start(further)

    def expect(self, condition: Expr, fault: int) -> None:
        self.fault_if(self.asm.value(f"xor i1 {condition.text}, true"), fault)

    def leave_if(self, condition: Expr, fault: int) -> None:
        self.fault_if(condition.text, fault)
        leaving, further = self.asm.new_label(), self.asm.new_label()
        self.asm.branch(condition.text, leaving, further)
        self.asm.start(leaving)
        self.asm.line(f"ret i32 {fault}" if self.symbol == ENTRY and self.own == "%ctx" else "ret void")
        self.asm.start(further)

    def branch(self, condition: Expr, then: Callable[[], None], otherwise: Callable[[], None] | None) -> None:
        first, second, after = self.asm.new_label(), self.asm.new_label(), self.asm.new_label()
        self.asm.branch(condition.text, first, second)
        self.asm.start(first)
        then()
        self.asm.jump(after)
        self.asm.start(second)
        if otherwise is not None:
            otherwise()
        self.asm.jump_into(after)

    def variable(self, value: SSAValue, view: View | None, start: str | None) -> None:
        type = "ptr" if view is not None else value_type(self.ctype(value))
        slot = self.asm.local(type, align=8)
        self.variables[value] = _Variable(slot, type, view)
        if start is not None:
            self.asm.line(f"store {type} {start}, ptr {slot}")

    def assign(self, variables: Sequence[SSAValue], values: Sequence[SSAValue]) -> None:
        for variable, value in zip(variables, values, strict=True):
            kept = self.variables[variable]
            self.asm.line(f"store {kept.type} {self.text(value)}, ptr {kept.slot}")

    def read(self, variables: Sequence[SSAValue], values: Sequence[SSAValue]) -> None:
        for variable, value in zip(variables, values, strict=True):
            kept = self.variables[variable]
            text = self.asm.value(f"load {kept.type}, ptr {kept.slot}")
            self.values[value] = Expr(text, is_atom=True) if kept.view is None else replace(kept.view, pointer=text)

    def call(self, symbol: str, operands: Sequence[SSAValue]) -> None:
        given = [f"{self._type(operand)} {self.text(operand)}" for operand in operands]
        self.asm.line(f"call void @{symbol}({', '.join(['ptr %ctx', *given])})")

    # parallel loops

    def part(self, name: str) -> LlvmEmitter:
        asm = Instructions(self.asm.module, Names((*TAKEN, "own", "given", "first", "last")))
        return LlvmEmitter(self.program, self.language, self.layout, asm, self.prefix, self.symbol, own="%own")

    def iterations(self, body: Callable[[Size], None]) -> None:
        self.loop("n", "%last", body, start="%first")

    def written(self) -> str:
        return self.asm.body()

    def restricted_arguments(self) -> frozenset[int]:
        return self.program.restricted[self.symbol] if self.own == "%ctx" else frozenset()

    def new_name(self, letter: str) -> str:
        return f"%{super().new_name(letter)}"

    def digit(self, number: Size, inner: int, base: int | None) -> Size:
        digit = number if inner == 1 else self.asm.value(f"sdiv i64 {number}, {inner}")
        return digit if base is None else self.asm.value(f"srem i64 {digit}, {base}")

    def run_parallel(self, part: Emitter, name: str, given: Sequence[Captured], count: int) -> None:
        types = [self._type(each.value) for each in given]
        self.parts.append(part_text(name, list(zip(types, given, strict=True)), part.written()))
        held = self.asm.local("i64", max(1, len(given)), align=8)
        for number, (type, each) in enumerate(zip(types, given, strict=True)):
            self.asm.line(f"store {type} {each.text}, ptr {self.asm.at(held, 'i64', number)}")
        parallel = f"@{self.prefix}_parallel"
        self.asm.line(f"call void {parallel}(ptr %ctx, ptr @{name}_part, ptr {held}, i64 {count})")

    def _type(self, value: SSAValue) -> str:
        """The type of a value: a memref, and the bytes of a ring, are pointers."""
        is_pointer = isinstance(self.values[value], View) or isinstance(value.type, RingType)
        return "ptr" if is_pointer else value_type(self.ctype(value))

    # the context

    def describe(self, op: Operation, text: str) -> None:
        where = location_of(op)
        self.asm.comment(comment_text(text if where in ("", op.name) else f"{where}: {text}"))

    def count(self, counter: str, amount: Size) -> None:
        if amount != 0:
            place = self.asm.at(self.own, "i64", list(COUNTERS).index(counter))
            held = self.asm.load("i64", place, 8, is_of_context=True)
            self.asm.store("i64", self.asm.value(f"add i64 {held}, {amount}"), place, 8, is_of_context=True)

    def scratch(self) -> str:
        """A pointer to the scratch memory."""
        return self.asm.at(self.own, "i8", self.layout.scratch if self.own == "%ctx" else OWN_BYTES)

    def fault_if(self, condition: str, fault: int) -> None:
        """Note a fault in the context, if there is one; scalars alone fault."""
        place = self.asm.at(self.own, "i8", FAULT_AT)
        held = self.asm.load("i32", place, 4, is_of_context=True)
        chosen = self.asm.value(f"select i1 {condition}, i32 {fault}, i32 {held}")
        self.asm.store("i32", chosen, place, 4, is_of_context=True)


Rule = Callable[[LlvmEmitter, Any], str]
"""Writes a pure op with one result, and returns the text of that."""
