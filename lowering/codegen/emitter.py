"""
What the emission of one function knows, whatever the language: the text of every SSA value so far, and what the
language writes for a loop, a branch, an element, a call.

The walk over the ops, in the files beside this one, decides what is written, and calls the methods of `Emitter`; a
language is a subclass that says how. Sizes and offsets that are known stay numbers until they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar

from xdsl.dialects import func, scf
from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseArrayBase, IntegerType
from xdsl.dialects.memref import GlobalOp
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineBinaryOpKind

from penstock.dialects.accel import TokenType
from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.machine import REGISTERS, TargetOp
from penstock.dialects.mem import RingType, ScopedAllocation, memref_of, scope_of
from penstock.dialects.upstream.scf import InParallelOp
from penstock.lowering.codegen.text import Expr, Names, Size
from penstock.lowering.codegen.types import CType, c_type

_TERMINATORS = (scf.YieldOp, scf.ConditionOp, scf.ReduceOp, InParallelOp, func.ReturnOp)
"""What ends a block: the op around it knows what to do with its operands."""

VECTOR_BYTES, VECTOR_REGISTERS = 32, 16
"""Of the CPU where no machine says it; CPUs with shorter vectors take several."""

COUNTERS = {
    "transfers": "commands of DMA engines",
    "bytes_in": "moved from off chip, inside the windows",
    "bytes_out": "moved off chip, inside the windows",
    "bytes_on_chip": "moved between scopes",
    "commands": "commands of intrinsics",
    "macs": "multiply-accumulates of intrinsics",
    "host_macs": "multiply-accumulates of structured ops on the host",
}
"""The counters of a context, which it begins with, 8 bytes each, and what they count."""

Terms = Sequence[tuple[Size, Size]]
"""Products, of which an offset is the sum."""


@dataclass(frozen=True)
class View:
    """A memref: a pointer to its first element, and how the others lie."""

    pointer: str
    """The name of a variable, or a parenthesised expression."""
    ctype: CType
    """The type of its elements."""
    shape: tuple[Size, ...]
    """Its extents."""
    strides: tuple[Size, ...]
    """In elements."""
    scope: str | None
    """None off chip."""
    base: str
    """The pointer to the start of the allocation, from which `memref.reinterpret_cast` counts."""
    is_const: bool = False
    """Whether nothing is written through it."""

    @property
    def pointer_type(self) -> str:
        """Of C."""
        return f"{'const ' if self.is_const else ''}{self.ctype.storage} *"

    @property
    def static_strides(self) -> tuple[int, ...] | None:
        """The strides, if all are known."""
        known = tuple(stride for stride in self.strides if isinstance(stride, int))
        return known if len(known) == len(self.strides) else None


@dataclass
class Program:
    """What the functions of one program share."""

    target: TargetOp | None
    """The machine; None for the host alone."""
    functions: dict[str, func.FuncOp]
    """`@main` and what it calls, by symbol."""
    names: Names
    """The names that its text has for functions and globals."""
    symbols: dict[str, str]
    """The name of each function and each global."""
    globals: dict[str, GlobalOp]
    """The constants of the module, by symbol."""
    written: dict[str, frozenset[int]]
    """For each function the numbers of the arguments that it writes through."""
    restricted: dict[str, frozenset[int]]
    """For each function the arguments whose memory no other argument reaches."""
    helpers: set[str] = field(default_factory=set[str])
    """The helper functions that the text so far calls."""
    scope_ends: dict[str, int] = field(default_factory=dict[str, int])
    """For each scope, and for the arena under "", the bytes that its buffers reach to."""
    scratch: int = 0
    """Bytes that a nest may use while it runs."""
    threads: int = 1
    """How many threads run the iterations of its parallel loops."""

    @property
    def vector_bytes(self) -> int:
        """Bytes of the vectors of the processor that it is made for."""
        processor = self.target.processor() if self.target is not None else None
        return (processor.vector_bytes if processor is not None else None) or VECTOR_BYTES

    @property
    def vector_registers(self) -> int:
        """How many of them the processor has."""
        registers = None if self.target is None else self.target.scopes().get(REGISTERS)
        return VECTOR_REGISTERS if registers is None else registers.size_bytes // self.vector_bytes

    def reserve_scratch(self, size: int) -> None:
        """Make the scratch memory at least `size` bytes."""
        self.scratch = max(self.scratch, size)


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


@dataclass(frozen=True)
class Captured:
    """A value from outside of a parallel loop, handed to the function that runs its iterations."""

    value: SSAValue
    """In the function around the loop."""
    name: str
    """In the function that runs iterations."""
    text: str
    """In the function around the loop."""
    view: View | None
    """Of a memref."""
    is_restricted: bool = False
    """Whether no other memory that the iterations access overlaps it."""

    @property
    def is_pointer(self) -> bool:
        """Whether it is a memref, or the bytes of a ring."""
        return self.view is not None or isinstance(self.value.type, RingType)


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

    def slot_offset(self, turn: Size, slots: int, pitch: int) -> Size:
        """`turn` modulo `slots`, times `pitch`."""
        raise NotImplementedError

    def inside(self, value: SSAValue, offset: Size, extent: Size, size: Size) -> Size:
        """The offset `value` if `size` elements at it are among `extent`, else 0, and a fault."""
        raise NotImplementedError

    def clipped(self, start: Size, size: int, bound: int, *, may_begin_before: bool, may_end_after: bool) -> list[Size]:
        """From where to where `size` elements at `start`, which is not known, are among `bound`; may be crossed."""
        raise NotImplementedError

    def extent(self, low: Size, high: Size) -> Size:
        """How many there are from `low` to below `high`; none if they are crossed."""
        raise NotImplementedError

    def affine_binary(self, kind: AffineBinaryOpKind, left: Expr, right: Expr) -> Expr:
        """An operation of an affine expression, one of whose operands is not known."""
        raise NotImplementedError

    def minimum(self, left: Expr, right: Expr) -> Expr:
        """The smaller of two indices."""
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


def unsupported(op: Operation, message: str, *notes: str) -> UserError:
    """The error for an op that generated code cannot hold."""
    return UserError(message, loc=location_of(op), notes=notes, status=UNSUPPORTED)


def owner_of(value: SSAValue) -> Operation:
    """The op that a value is a result of, or an argument in."""
    op = value.owner if isinstance(value.owner, Operation) else value.owner.parent_op()
    assert op is not None
    return op


def is_token(value: SSAValue) -> bool:
    """Whether a value is a token: code runs every command at once, so they vanish."""
    return isinstance(value.type, TokenType)


def static_product(sizes: Sequence[Size]) -> tuple[int, list[Size]]:
    """The product of the sizes that are known, and the others."""
    return prod(size for size in sizes if isinstance(size, int)), [size for size in sizes if isinstance(size, str)]


def view_of_type(value: SSAValue, pointer: str, *, is_const: bool = False) -> View:
    """
    The view of a memref whose shape and strides its type tells, `pointer` being its first element.

    Raises UserError where the type leaves one of them open.
    """
    type = memref_of(value)
    op = owner_of(value)
    strides = type.get_strides()
    if strides is None or None in strides or not type.has_static_shape():
        raise unsupported(
            op,
            f"{type} has a shape or strides that are not known here",
            "C takes the shapes and strides of arguments from their types; only offsets may be dynamic",
        )
    shape = tuple(type.get_shape())
    known = tuple(stride for stride in strides if stride is not None)
    return View(pointer, c_type(type.element_type, op), shape, known, scope_of(type), pointer, is_const)
