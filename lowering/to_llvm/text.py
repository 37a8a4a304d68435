# SPDX-License-Identifier: Apache-2.0
"""Writing LLVM IR: instructions in blocks, loops with phis, and what the functions of a module share."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

import numpy as np
from xdsl.dialects import memref

from penstock.lowering.codegen.memory import global_values
from penstock.lowering.codegen.text import Names, Size
from penstock.lowering.codegen.views import Captured


@dataclass
class ModuleText:
    """What the functions of one module share: declarations, helper functions and metadata, in order of first use."""

    declarations: dict[str, str] = field(default_factory=dict[str, str])
    """By symbol."""
    helpers: dict[str, str] = field(default_factory=dict[str, str])
    """The definitions of helper functions and tables, by symbol."""
    metadata: list[str] = field(default_factory=lambda: ["distinct !{!0}", "distinct !{!1, !0}", "!{!1}"])
    """The nodes: number n is `!n`. The last of the first three is the scope of counters and faults."""

    def node(self, text: str) -> str:
        """A new node of metadata; `SELF` in it stands for itself."""
        name = f"!{len(self.metadata)}"
        self.metadata.append(text.replace("SELF", name))
        return name

    def text(self) -> str:
        """Everything, each part on its own lines."""
        nodes = [f"!{number} = {text}" for number, text in enumerate(self.metadata)]
        groups = [*self.helpers.values(), "\n".join(self.declarations.values()), "\n".join(nodes)]
        return "\n\n".join(group.rstrip("\n") for group in groups if group) + "\n"


class Instructions:
    """The instructions of one function, block by block."""

    def __init__(self, module: ModuleText, names: Names):
        self.module = module
        """What it shares with the other functions."""
        self.names = names
        """The names that the function has taken."""
        self._lines: list[str] = []
        self._allocas: list[str] = []
        self.block = "entry"
        """The label of the current block."""
        self._access_group = ""

    def body(self) -> str:
        """All of it, with the local variables at the start of the first block, where LLVM makes registers of them."""
        return "\n".join(["entry:", *self._allocas, *self._lines])

    # instructions

    def line(self, text: str) -> None:
        """An instruction without a result."""
        self._lines.append(f"  {text}")

    def value(self, text: str) -> str:
        """An instruction with a result, and the name of that."""
        name = f"%{self.names.fresh('v')}"
        self._lines.append(f"  {name} = {text}")
        return name

    def comment(self, text: str) -> None:
        """What follows, for a reader."""
        self._lines.append(f"  ; {text}")

    def local(self, type: str, count: int = 1, align: int = 64) -> str:
        """A local variable of the function."""
        name = f"%{self.names.fresh('v')}"
        array = f"[{count} x {type}]" if count != 1 else type
        self._allocas.append(f"  {name} = alloca {array}, align {align}")
        return name

    def load(self, type: str, pointer: str, align: int, *, is_of_context: bool = False) -> str:
        """The value at a pointer: an element, or a counter or a fault, which share no memory with elements."""
        return self.value(f"load {type}, ptr {pointer}, align {align}{self._access(is_of_context)}")

    def store(self, type: str, value: str, pointer: str, align: int, *, is_of_context: bool = False) -> None:
        """Write a value to a pointer, as `load` reads it."""
        self.line(f"store {type} {value}, ptr {pointer}, align {align}{self._access(is_of_context)}")

    def _access(self, is_of_context: bool) -> str:
        return ", !alias.scope !2" if is_of_context else f", !noalias !2{self._access_group}"

    def at(self, pointer: str, type: str, offset: Size) -> str:
        """The pointer `offset` elements of `type` further on."""
        return pointer if offset == 0 else self.value(f"getelementptr inbounds {type}, ptr {pointer}, i64 {offset}")

    def copy_bytes(self, to: str, start: str, count: Size, align: int) -> None:
        """Copy bytes between arrays that do not overlap."""
        symbol = "@llvm.memcpy.p0.p0.i64"
        self.module.declarations.setdefault(symbol, f"declare void {symbol}(ptr, ptr, i64, i1)")
        ends = f"ptr align {align} {to}, ptr align {align} {start}"
        self.line(f"call void {symbol}({ends}, i64 {count}, i1 false){self._access(False)}")

    # sizes

    def add(self, left: Size, right: Size) -> Size:
        """A sum of sizes."""
        if isinstance(left, int) and isinstance(right, int):
            return left + right
        if 0 in (left, right):
            return right if left == 0 else left
        return self.value(f"add nsw i64 {left}, {right}")

    def times(self, left: Size, right: Size) -> Size:
        """A product of sizes."""
        if isinstance(left, int) and isinstance(right, int):
            return left * right
        if 0 in (left, right):
            return 0
        if 1 in (left, right):
            return right if left == 1 else left
        return self.value(f"mul nsw i64 {left}, {right}")

    def sum_of(self, terms: Sequence[tuple[Size, Size]], constant: int = 0) -> Size:
        """The sum of the products `terms`, plus a constant."""
        total: Size = 0
        for left, right in terms:
            product = self.times(left, right)
            if isinstance(product, int):
                constant += product
            else:
                total = self.add(total, product)
        return self.add(total, constant)

    # blocks

    def new_label(self) -> str:
        """The name of a block to come."""
        return self.names.fresh("b")

    def start(self, label: str) -> None:
        """Begin a block; the one before has ended."""
        self._lines.append(f"{label}:")
        self.block = label

    def branch(self, condition: str, then: str, otherwise: str) -> None:
        """End the block by a branch."""
        self.line(f"br i1 {condition}, label %{then}, label %{otherwise}")

    def jump(self, label: str) -> None:
        """End the block, and go on in another one."""
        self.line(f"br label %{label}")

    def jump_into(self, label: str) -> None:
        """End the block, and begin the one that follows it."""
        self.jump(label)
        self.start(label)

    @contextmanager
    def loop(
        self,
        start: Size,
        stop: Size,
        step: Size = 1,
        *,
        type: str = "i64",
        is_independent: bool = False,
        may_unroll: bool = True,
    ) -> Generator[str]:
        """
        A counted loop around what is written inside, given its counter.

        Iterations of an independent one do not depend on each other through memory, so it may become vectors. Unless
        it `may_unroll`, LLVM must not unroll it.
        """
        before, head, body, after = self.block, self.new_label(), self.new_label(), self.new_label()
        self.jump_into(head)
        place, counter = len(self._lines), self.value(f"phi {type}")
        self.branch(self.value(f"icmp slt {type} {counter}, {stop}"), body, after)
        self.start(body)
        group, hints = self._access_group, list[str]()
        if is_independent:
            node = self.module.node("distinct !{}")
            self._access_group = f", !access.group {node}"
            hints.append(self.module.node(f'!{{!"llvm.loop.parallel_accesses", {node}}}'))
        if not may_unroll:
            hints.append(self.module.node('!{!"llvm.loop.unroll.disable"}'))
        loop_node = self.module.node(f"distinct !{{{', '.join(['SELF', *hints])}}}") if hints else ""
        metadata = f", !llvm.loop {loop_node}" if hints else ""
        yield counter
        self._access_group = group
        after_step = self.value(f"add nsw {type} {counter}, {step}")
        self._lines[place] += f" [ {start}, %{before} ], [ {after_step}, %{self.block} ]"
        self.line(f"br label %{head}{metadata}")
        self.start(after)


def part_text(name: str, given: Sequence[tuple[str, Captured]], body: str) -> str:
    """The function that runs some iterations, and the one that the threads call, which unpacks what it is given."""
    common, limits = ["ptr %ctx", "ptr %own"], ["i64 %first", "i64 %last"]
    parameters = [f"{type}{' noalias' if each.is_restricted else ''} {each.name}" for type, each in given]
    lines = [f"define internal void @{name}({', '.join([*common, *parameters, *limits])}) #1 {{", body, "  ret void\n}"]
    lines += ["", f"define internal void @{name}_part({', '.join([*common, 'ptr %given', *limits])}) #0 {{", "entry:"]
    for number, (type, _) in enumerate(given):
        lines.append(f"  %at.{number} = getelementptr i64, ptr %given, i64 {number}")
        lines.append(f"  %given.{number} = load {type}, ptr %at.{number}, align 8")
    passed = [f"{type} %given.{number}" for number, (type, _) in enumerate(given)]
    return "\n".join([*lines, f"  call void @{name}({', '.join([*common, *passed, *limits])})", "  ret void\n}"])


def constant_text(op: memref.GlobalOp, symbol: str) -> str:
    """The definition of a constant array, as its bytes."""
    ctype, values = global_values(op)
    data = np.asarray(values).astype(ctype.dtype()).tobytes()
    data = data * prod(op.type.get_shape()) if len(values) == 1 else data
    text = "".join(f"\\{byte:02X}" for byte in data or b"\0")
    return f'{symbol} = internal unnamed_addr constant [{max(1, len(data))} x i8] c"{text}", align 64'
