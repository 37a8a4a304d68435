# SPDX-License-Identifier: Apache-2.0
"""
What the emission of one function knows, whatever the language: the text of every SSA value so far, and what the
language writes for a loop, a branch, an element, a call.

The walk over the ops, in the files beside this one, decides what is written, and calls the methods of `Emitter`; a
language is a subclass that says how. Sizes and offsets that are known stay numbers until they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from xdsl.dialects import func, scf
from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseArrayBase, IntegerType
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineBinaryOpKind

from penstock.dialects.diagnostics import UserError
from penstock.dialects.mem import ScopedAllocation
from penstock.dialects.upstream.scf import InParallelOp
from penstock.lowering.codegen.program import Program
from penstock.lowering.codegen.text import Expr, Names, Size
from penstock.lowering.codegen.types import CType, c_type
from penstock.lowering.codegen.views import Captured, Terms, View, owner_of, unsupported

_TERMINATORS = (scf.YieldOp, scf.ConditionOp, scf.ReduceOp, InParallelOp, func.ReturnOp)
"""What ends a block: the op around it knows what to do with its operands."""


@dataclass(frozen=True)
class Language:
    """What functions are written in."""

    name: str
    """For messages."""
    emitters: Mapping[type[Operation], Callable[[Any, Any], None]]
    """Class of an op -> what writes it."""
    rules: Mapping[type[Operation], Callable[[Any, Any], Any]]
    """Class of a pure op with one result -> its text."""
    pure: Callable[[Any, Operation], None]
    """Binds the result of a pure op; raises UserError (unsupported) for one without a rule."""
    structured: Callable[[Any, Any], None]
    """Writes the loops of a structured op, which is not empty."""


class Emitter:
    """The state of emitting one function, and what its language writes."""

    needs_constant_offsets: ClassVar[bool] = False
    """Whether local variables become registers only where the offsets in them are constants of the text."""
    program: Program
    """What it shares with the other functions."""
    language: Language
    """What it is written in."""
    names: Names
    """The names that the function has taken."""
    symbol: str
    """The function, as the module calls it."""
    values: dict[SSAValue, Expr | View]
    """What every SSA value is so far."""
    parts: list[str]
    """The functions that run iterations of its parallel loops."""

    # values

    def scalar(self, value: SSAValue) -> Expr:
        """The expression of a scalar."""
        found = self.values[value]
        assert isinstance(found, Expr), f"{value} is no scalar"
        return found

    def view(self, value: SSAValue) -> View:
        """The view of a memref."""
        found = self.values[value]
        assert isinstance(found, View), f"{value} is no memref"
        return found

    def text(self, value: SSAValue) -> str:
        """A scalar, or the pointer of a memref."""
        found = self.values[value]
        return found.pointer if isinstance(found, View) else found.text

    def size(self, value: SSAValue | int) -> Size:
        """An index, known or as an atom."""
        if isinstance(value, int):
            return value
        return self.scalar(value).size

    def sizes(self, static: DenseArrayBase[IntegerType], dynamic: Sequence[SSAValue]) -> list[Size]:
        """A list of indices of which some are known."""
        return [self.size(value) for value in get_dynamic_index_list(static.get_values(), dynamic, DYNAMIC_INDEX)]

    def ctype(self, value: SSAValue) -> CType:
        """The element type of a scalar."""
        return c_type(value.type, owner_of(value))

    def result_type(self, op: Operation) -> CType:
        """The element type of the only result of an op."""
        return c_type(op.results[0].type, op)

    def operands(self, op: Operation) -> list[Expr]:
        """The expressions of the operands of a pure op."""
        return [self.scalar(operand) for operand in op.operands]

    def name(self, value: SSAValue) -> str:
        """A new name for a value."""
        return self.names.hinted(value.name_hint) if value.name_hint else self.names.fresh("v")

    def refuse(self, op: Operation, what: str, *notes: str) -> UserError:
        """The error for an op that the language cannot hold."""
        return unsupported(op, f"{what} cannot be lowered to {self.language.name}", *notes)

    def bind(self, value: SSAValue, expr: Expr) -> None:
        """Give a scalar its expression, which does not change while the value is in use."""
        self.values[value] = expr

    def declare(self, value: SSAValue, expr: Expr) -> None:
        """Give a scalar its expression, which is computed here: what comes later may change what it reads."""
        raise NotImplementedError

    def held(self, ctype: CType, expr: Expr) -> Expr:
        """The expression, computed here, where no value of the IR has it."""
        raise NotImplementedError

    def yielded(self, values: Sequence[SSAValue]) -> list[Expr]:
        """What a body yields, all computed before the first output changes."""
        raise NotImplementedError

    def emit_block(self, block: Block) -> None:
        """All ops of a block but a terminator that yields; raises UserError for one that nothing writes."""
        for op in block.ops:
            if isinstance(op, _TERMINATORS):
                continue
            if (emit := self.language.emitters.get(type(op))) is not None:
                emit(self, op)
            elif type(op) in self.language.rules:
                self.language.pure(self, op)
            else:
                is_above = op.name.split(".")[0] in ("graph", "tensor", "bufferization")
                hint = f"{self.language.name} comes from the loop or the accel level: lower the module first"
                raise self.refuse(op, op.name, *([hint] if is_above else []))

    # sizes

    def times(self, left: Size, right: Size) -> Size:
        """A product of sizes, an atom."""
        raise NotImplementedError

    def product(self, sizes: Sequence[Size]) -> Size:
        """The product of sizes."""
        raise NotImplementedError

    def sum_of(self, terms: Terms, constant: int = 0) -> Size:
        """The sum of the products `terms`, plus a constant; no atom."""
        raise NotImplementedError

    def named(self, size: Size) -> Size:
        """A size that is used several times."""
        return size

    def multiple(self, size: Size, of: int) -> Size:
        """The largest multiple of a number that is no larger than a size; of a size that is not known."""
        raise NotImplementedError

    def slot_offset(self, turn: Size, slots: int, pitch: int) -> Size:
        """`turn` modulo `slots`, times `pitch`."""
        raise NotImplementedError

    def inside(self, offset: Size, extent: Size, span: int) -> Size:
        """The offset if `span` elements from it on are among `extent`, else 0, and a fault."""
        raise NotImplementedError

    def clipped(
        self, start: Size, size: Size, bound: Size, *, may_begin_before: bool, may_end_after: bool
    ) -> list[Size]:
        """From where to where `size` elements at `start`, which is not known, are among `bound`; may be crossed."""
        raise NotImplementedError

    def extent(self, low: Size, high: Size) -> Size:
        """How many there are from `low` to below `high`; none if they are crossed."""
        raise NotImplementedError

    def affine_binary(self, kind: AffineBinaryOpKind, left: Expr, right: Expr, *, may_wrap: bool) -> Expr:
        """
        An operation of an affine expression, one of whose operands is not known; divisors are positive numbers. With
        `may_wrap` operands may be any numbers of 64 bits, and sums and products wrap around.
        """
        raise NotImplementedError

    def minimum(self, left: Expr, right: Expr) -> Expr:
        """The smaller of two indices."""
        raise NotImplementedError

    def equal(self, value: Size, number: int) -> Expr:
        """Whether an index is a number."""
        raise NotImplementedError

    def any_empty(self, ranges: Sequence[tuple[Size, Size]]) -> Expr:
        """Whether one of several ranges, from low to below high, is empty."""
        raise NotImplementedError

    # memory

    def allocate(self, op: ScopedAllocation) -> str:
        """A pointer to the bytes of a buffer or a ring."""
        raise NotImplementedError

    def global_pointer(self, symbol: str) -> str:
        """A pointer to a constant of the module."""
        raise NotImplementedError

    def point(self, value: SSAValue, view: View, offset: Size) -> View:
        """Bind to `value` a view like `view` whose first element is `offset` elements further on."""
        raise NotImplementedError

    def element(self, view: View, terms: Terms, constant: int = 0) -> str:
        """The element that is the sum of the products `terms` plus `constant` elements away."""
        raise NotImplementedError

    def at(self, view: View, indices: Sequence[Size]) -> str:
        """The element at `indices`."""
        return self.element(view, list(zip(indices, view.strides, strict=True)))

    def load(self, ctype: CType, element: str) -> Expr:
        """The value of an element."""
        raise NotImplementedError

    def store(self, ctype: CType, element: str, value: Expr) -> None:
        """Write an element."""
        raise NotImplementedError

    def copy_element(self, ctype: CType, dest: str, source: str) -> None:
        """Copy an element as it is."""
        raise NotImplementedError

    def prefetch(self, element: str) -> None:
        """Ask the caches for the line of an element."""
        raise NotImplementedError

    def copy_run(self, dest: View, to: Size, source: View, start: Size, low: Size, high: Size) -> None:
        """Copy as many adjacent elements as there are from `low` to below `high`."""
        raise NotImplementedError

    def copy_lanes(self, dest: View, to: Terms, source: View, start: Terms) -> None:
        """Copy a vector between memory and the vector registers."""
        raise NotImplementedError

    def lanes_of(self, ctype: CType) -> int:
        """The lanes of a vector of the machine that is copied at once; 0 where it has none."""
        return 0

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
        """
        A counted loop around what `body` writes, given the counter, of that name where the language has names.

        Iterations of an independent loop may become vectors. One that is unrolled moves registers.
        """
        raise NotImplementedError

    def counted(
        self, counter: SSAValue, bounds: Sequence[Size], body: Callable[[], None], *, is_independent: bool = False
    ) -> None:
        """A loop of the program: its counter is a value, which goes from a bound to below another by steps."""
        raise NotImplementedError

    def endless(self, body: Callable[[], None]) -> None:
        """A loop of the program that `leave_unless` leaves."""
        raise NotImplementedError

    def leave_unless(self, condition: Expr, last: Callable[[], None]) -> None:
        """Leave the endless loop unless the condition, as it is before `last`, holds; `last` is done either way."""
        raise NotImplementedError

    def expect(self, condition: Expr, fault: int) -> None:
        """Note a fault unless a condition holds."""
        raise NotImplementedError

    def leave_if(self, condition: Expr, fault: int) -> None:
        """Return from the function, with a fault, if a condition holds."""
        raise NotImplementedError

    def branch(self, condition: Expr, then: Callable[[], None], otherwise: Callable[[], None] | None) -> None:
        """One of two texts, by a condition."""
        raise NotImplementedError

    def block(self) -> AbstractContextManager[None]:
        """A block of its own for the names of what is written inside, where the language has such."""
        return nullcontext()

    def variable(self, value: SSAValue, view: View | None, start: str | None) -> None:
        """A variable for a scalar, or for a memref that lies as `view` does, with its first value."""
        raise NotImplementedError

    def assign(self, variables: Sequence[SSAValue], values: Sequence[SSAValue]) -> None:
        """Assign all at once: none reads a variable that has changed already."""
        raise NotImplementedError

    def read(self, variables: Sequence[SSAValue], values: Sequence[SSAValue]) -> None:
        """Bind to `values` what the variables hold now."""
        raise NotImplementedError

    def call(self, symbol: str, operands: Sequence[SSAValue]) -> None:
        """Call a function of the program, memrefs as pointers to their first elements."""
        raise NotImplementedError

    # parallel loops

    def part(self, name: str) -> Emitter:
        """What emits the function of that name, which runs iterations of a parallel loop of this one."""
        raise NotImplementedError

    def iterations(self, body: Callable[[Size], None]) -> None:
        """In such a function, the loop over the iterations that it runs, given their number."""
        raise NotImplementedError

    def written(self) -> str:
        """What has been written of the function."""
        raise NotImplementedError

    def run_parallel(self, part: Emitter, name: str, given: Sequence[Captured], count: int) -> None:
        """Let the threads call the function of a name, with what it is given, until `count` iterations have run."""
        raise NotImplementedError

    def restricted_arguments(self) -> frozenset[int]:
        """The arguments of the function whose memory no other one reaches; none in one that runs iterations."""
        raise NotImplementedError

    def new_name(self, letter: str) -> str:
        """A name that no value of the IR has."""
        return self.names.fresh(letter)

    def digit(self, number: Size, inner: int, base: int | None) -> Size:
        """`number` divided by `inner`, and modulo a base, if there is one: an atom."""
        raise NotImplementedError

    # comments and counters

    def describe(self, op: Operation, text: str) -> None:
        """A comment that says what follows, and where it comes from."""
        raise NotImplementedError

    def count(self, counter: str, amount: Size) -> None:
        """Add to a counter of the context."""
        raise NotImplementedError
