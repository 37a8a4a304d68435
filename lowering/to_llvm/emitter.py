"""What the emission of one LLVM function knows: the text of every value, and how elements are read and written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from xdsl.ir import Operation, SSAValue

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.lowering.to_c.emitter import CProgram, CView, Values
from penstock.lowering.to_c.text import Expr, Size, comment_text
from penstock.lowering.to_c.types import CType
from penstock.lowering.to_llvm.lanes import Lanes
from penstock.lowering.to_llvm.small_floats import from_storage, to_storage
from penstock.lowering.to_llvm.text import Instructions
from penstock.lowering.to_llvm.types import memory_type, splat, value_type

COUNTERS = ("transfers", "bytes_in", "bytes_out", "bytes_on_chip", "commands", "macs", "host_macs")
"""The counters of a context, 8 bytes each, at its start."""
FAULT_AT = 8 * len(COUNTERS)
"""Where the fault is in a context."""
DIVIDED_BY_ZERO, OUTSIDE = 1, 2
"""The faults, as generated C counts them."""


@dataclass(frozen=True)
class ContextLayout:
    """Where everything is in a context, which is laid out as that of generated C."""

    offsets: Mapping[str | None, int]
    """Of the scopes, and of the arena under None."""
    scratch: int
    """Where the scratch memory begins, which is the last."""


@dataclass
class LlvmEmitter(Lanes, Values):
    """The state of emitting one function."""

    program: CProgram
    """What it shares with the other functions."""
    layout: ContextLayout
    """Where everything is in a context."""
    asm: Instructions
    """Where its instructions go."""
    values: dict[SSAValue, Expr | CView] = field(default_factory=dict[SSAValue, "Expr | CView"])
    """The text of every scalar so far, and the view of every memref."""
    lanes: int = 0
    """Of the vectors that ops compute now; 0 while they compute scalars."""
    vectors: set[SSAValue] = field(default_factory=set[SSAValue])
    """The values that are vectors now."""
    splats: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    """Scalars, and numbers of lanes, that are in all lanes of a vector already."""

    # values

    def bind(self, value: SSAValue, text: str, *, is_vector: bool = False) -> None:
        """Give a scalar its text; as a vector, if the ops around it compute vectors."""
        self.values[value] = Expr(text, is_atom=True)
        (self.vectors.add if is_vector and self.lanes else self.vectors.discard)(value)

    def operand(self, value: SSAValue) -> str:
        """A value as the operand of an op: in all lanes, while ops compute vectors."""
        text = self.scalar(value).text
        if not self.lanes or value in self.vectors:
            return text
        return self.in_all_lanes(value_type(self.ctype(value.type, value.owner)), text)

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

    # elements

    def load(self, ctype: CType, pointer: str) -> str:
        """The value of an element, or of `lanes` adjacent ones."""
        memory = memory_type(ctype)
        found = self.asm.load(self.type(memory), pointer, ctype.size)
        if ctype.is_small:
            return from_storage(self, ctype, found)
        if ctype.is_bool:
            return self.inst("icmp ne", memory, found, self.constant(memory, 0))
        return self.cast("trunc", memory, found, ctype) if ctype.bits < 8 else found

    def store(self, ctype: CType, pointer: str, value: str) -> None:
        """Write an element, or `lanes` adjacent ones."""
        memory = memory_type(ctype)
        if ctype.is_small:
            value = to_storage(self, ctype, value)
        elif ctype.bits < 8:
            value = self.cast("zext" if ctype.is_bool else "sext", ctype, value, memory)
        self.asm.store(self.type(memory), value, pointer, ctype.size)

    def rounded(self, ctype: CType, value: str) -> str:
        """The result of an operation on floats, as a number of the type."""
        return from_storage(self, ctype, to_storage(self, ctype, value)) if ctype.is_small else value

    def pointer_at(self, view: CView, indices: Sequence[Size]) -> str:
        """A pointer to an element."""
        offset = self.asm.sum_of(list(zip(indices, view.strides, strict=True)))
        return self.asm.at(view.pointer, memory_type(view.ctype), offset)

    def moved(self, view: CView, offset: Size) -> CView:
        """A view from another element on."""
        return replace(view, pointer=self.asm.at(view.pointer, memory_type(view.ctype), offset))

    def product(self, sizes: Sequence[Size]) -> Size:
        total: Size = 1
        for size in sizes:
            total = self.asm.times(total, size)
        return total

    # the context

    def describe(self, op: Operation, text: str) -> None:
        where = location_of(op)
        self.asm.comment(comment_text(text if where in ("", op.name) else f"{where}: {text}"))

    def count(self, counter: str, amount: Size) -> None:
        if amount != 0:
            place = self.asm.at("%ctx", "i64", COUNTERS.index(counter))
            held = self.asm.load("i64", place, 8, is_of_context=True)
            self.asm.store("i64", self.asm.value(f"add i64 {held}, {amount}"), place, 8, is_of_context=True)

    def fault_if(self, condition: str, fault: int) -> None:
        """Note a fault in the context, if there is one; scalars alone fault."""
        place = self.asm.at("%ctx", "i8", FAULT_AT)
        held = self.asm.load("i32", place, 4, is_of_context=True)
        chosen = self.asm.value(f"select i1 {condition}, i32 {fault}, i32 {held}")
        self.asm.store("i32", chosen, place, 4, is_of_context=True)


Rule = Callable[[LlvmEmitter, Any], str]
"""Writes a pure op with one result, and returns the text of that."""


def refuse(op: Operation, message: str, *notes: str) -> UserError:
    """The error for an op that LLVM IR is not written of."""
    return UserError(message, loc=location_of(op), notes=notes, status=UNSUPPORTED)
