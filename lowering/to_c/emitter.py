"""What the emission of one C function knows: the C of every SSA value so far, and where the next line goes."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseArrayBase, IntegerType
from xdsl.dialects.func import FuncOp
from xdsl.dialects.memref import GlobalOp
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Attribute, Block, Operation, SSAValue

from penstock.dialects.accel import TokenType
from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import memref_of, scope_of
from penstock.lowering.to_c.prelude import helper_name
from penstock.lowering.to_c.text import CWriter, Expr, Names, Size, comment_text, sum_of
from penstock.lowering.to_c.types import CType, c_type
from penstock.passes.analysis.vector_products import VectorProduct

VECTOR_BYTES = 32
"""Of the CPU where no machine says it; CPUs with shorter vectors take several."""

INLINE_LENGTH = 72
"""An expression with one use becomes a variable of its own when it is longer."""


@dataclass(frozen=True)
class CView:
    """A memref in C: a pointer to its first element, and how the others lie."""

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
        return f"{'const ' if self.is_const else ''}{self.ctype.storage} *"

    def element(self, terms: Sequence[tuple[Size, Size]], constant: int = 0) -> str:
        """The element that is the sum of the products `terms` plus `constant` elements away: an lvalue."""
        return f"{self.pointer}[{sum_of(terms, constant)}]"

    def at(self, indices: Sequence[Size]) -> str:
        """The element at `indices`: an lvalue."""
        return self.element(list(zip(indices, self.strides, strict=True)))

    @property
    def static_strides(self) -> tuple[int, ...] | None:
        """The strides, if all are known."""
        known = tuple(stride for stride in self.strides if isinstance(stride, int))
        return known if len(known) == len(self.strides) else None


@dataclass
class CProgram:
    """What the functions of one C program share."""

    target: TargetOp | None
    """The machine; None for the host alone."""
    functions: dict[str, FuncOp]
    """`@main` and what it calls, by symbol."""
    symbols: dict[str, str]
    """The C name of each function and each global."""
    globals: dict[str, GlobalOp]
    """The constants of the module, by symbol."""
    written: dict[str, frozenset[int]]
    """For each function the numbers of the arguments that it writes through."""
    restricted: dict[str, frozenset[int]]
    """For each function the arguments whose memory no other argument reaches."""
    helpers: set[str] = field(default_factory=set[str])
    """The helper functions that the text so far calls."""
    products: dict[str, VectorProduct] = field(default_factory=dict[str, VectorProduct])
    """The intrinsics of the host that the text so far calls, by the names of their functions."""
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

    def reserve_scratch(self, size: int) -> None:
        """Make the scratch memory at least `size` bytes."""
        self.scratch = max(self.scratch, size)


class Values:
    """The values of one function so far, in the language that it is written in."""

    program: CProgram
    """What it shares with the other functions."""
    values: dict[SSAValue, Expr | CView]
    """What every SSA value is so far."""

    def scalar(self, value: SSAValue) -> Expr:
        """The expression of a scalar."""
        found = self.values[value]
        assert isinstance(found, Expr), f"{value} is no scalar"
        return found

    def view(self, value: SSAValue) -> CView:
        """The view of a memref."""
        found = self.values[value]
        assert isinstance(found, CView), f"{value} is no memref"
        return found

    def size(self, value: SSAValue | int) -> Size:
        """An index, known or as an atom."""
        if isinstance(value, int):
            return value
        expr = self.scalar(value)
        known = expr.number
        return expr.atom if known is None else known

    def sizes(self, static: DenseArrayBase[IntegerType], dynamic: Sequence[SSAValue]) -> list[Size]:
        """A list of indices of which some are known."""
        return [self.size(value) for value in get_dynamic_index_list(static.get_values(), dynamic, DYNAMIC_INDEX)]

    def product(self, sizes: Sequence[Size]) -> Size:
        """The product of sizes."""
        raise NotImplementedError

    def describe(self, op: Operation, text: str) -> None:
        """A comment that says what follows, and where it comes from."""
        raise NotImplementedError

    def count(self, counter: str, amount: Size) -> None:
        """Add to a counter of the context."""
        raise NotImplementedError

    def ctype(self, type: Attribute, where: Operation | Block) -> CType:
        """The C type of a scalar or of an element."""
        op = where if isinstance(where, Operation) else where.parent_op()
        assert op is not None
        return c_type(type, op)


@dataclass
class FunctionEmitter(Values):
    """The state of emitting one function."""

    program: CProgram
    """What it shares with the other functions."""
    writer: CWriter
    """Where its lines go."""
    names: Names
    """The names that it has taken."""
    prefix: str
    """What the names of the program begin with."""
    symbol: str
    """The function, as the module calls it."""
    values: dict[SSAValue, Expr | CView] = field(default_factory=dict[SSAValue, "Expr | CView"])
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

    def bind(self, op: Operation, expr: Expr) -> None:
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

    def declare(self, value: SSAValue, expr: Expr, *, mutable: bool = False) -> str:
        """Declare a variable that holds a scalar, and return its name."""
        ctype = self.ctype(value.type, value.owner)
        name = self.name(value)
        self.writer.line(f"{'' if mutable else 'const '}{ctype.value} {name} = {expr.text};")
        self.values[value] = Expr(name, is_atom=True)
        return name

    def declare_pointer(self, value: SSAValue, view: CView, offset: str, *, mutable: bool = False) -> CView:
        """Declare the pointer of a view, `offset` elements after that of `view`, and bind the view to `value`."""
        name = self.name(value)
        start = view.pointer if offset == "0" else f"{view.pointer} + {offset}"
        self.writer.line(f"{view.pointer_type}{'' if mutable else 'const '}{name} = {start};")
        found = replace(view, pointer=name)
        self.values[value] = found
        return found

    def name(self, value: SSAValue) -> str:
        """A new name for a value."""
        return self.names.hinted(value.name_hint) if value.name_hint else self.names.fresh("v")

    # types

    def helper(self, what: str, ctype: CType) -> str:
        """The name of the helper that does `what` on a type."""
        # 16-bit floats are floats in expressions.
        key = helper_name(what, "f32" if ctype.is_small else ctype.name)
        self.program.helpers.add(key)
        return f"pen_{key}"

    def load(self, ctype: CType, lvalue: str) -> Expr:
        """The value of an element in memory."""
        self.program.helpers.update(ctype.helpers)
        return ctype.load(lvalue)

    def store(self, ctype: CType, lvalue: str, value: Expr) -> None:
        """Write the assignment of an element in memory."""
        self.program.helpers.update(ctype.helpers)
        self.writer.line(f"{lvalue} = {ctype.store(value.text)};")

    def rounded(self, ctype: CType, text: str) -> Expr:
        """The result of an operation on floats."""
        self.program.helpers.update(ctype.helpers)
        return ctype.rounded(text)

    # comments and counters

    def product(self, sizes: Sequence[Size]) -> Size:
        known, others = (
            [each for each in sizes if isinstance(each, int)],
            [each for each in sizes if isinstance(each, str)],
        )
        return " * ".join([str(prod(known)), *others]) if others else prod(known)

    def describe(self, op: Operation, text: str) -> None:
        where = location_of(op)
        line = text if where in ("", op.name) else f"{where}: {text}"
        self.writer.comment(line)
        self.outline.append("  " * self.depth + comment_text(line))

    @contextmanager
    def nest(self, header: str) -> Generator[None]:
        """A loop of the program, around what is written inside."""
        self.outline.append("  " * self.depth + header)
        self.depth += 1
        with self.writer.block(header):
            yield
        self.depth -= 1

    def count(self, counter: str, amount: Size) -> None:
        if amount != 0:
            self.writer.line(f"{self.own}->counters.{counter} += {amount};")


def refuse(op: Operation, message: str, *notes: str) -> UserError:
    """The error for an op that generated C cannot hold."""
    return UserError(message, loc=location_of(op), notes=notes, status=UNSUPPORTED)


def is_token(value: SSAValue) -> bool:
    """Whether a value is a token: C runs every command at once, so they vanish."""
    return isinstance(value.type, TokenType)


def view_of_type(emitter: Values, value: SSAValue, pointer: str, *, is_const: bool = False) -> CView:
    """
    The view of a memref whose shape and strides its type tells, `pointer` being its first element.

    Raises UserError where the type leaves one of them open.
    """
    type = memref_of(value)
    op = value.owner if isinstance(value.owner, Operation) else value.owner.parent_op()
    assert op is not None
    strides = type.get_strides()
    if strides is None or None in strides or not type.has_static_shape():
        raise refuse(
            op,
            f"{type} has a shape or strides that are not known here",
            "C takes the shapes and strides of arguments from their types; only offsets may be dynamic",
        )
    shape = tuple(type.get_shape())
    known = tuple(stride for stride in strides if stride is not None)
    ctype = c_type(type.element_type, op)
    return CView(pointer, ctype, shape, known, scope_of(type), pointer, is_const)
