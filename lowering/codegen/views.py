# SPDX-License-Identifier: Apache-2.0
"""Memrefs in code: a pointer to the first element, and how the others lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import DYNAMIC_INDEX, MemRefType, NoneAttr, StridedLayoutAttr
from xdsl.ir import Attribute, Operation, SSAValue

from penstock.dialects.accel import TokenType
from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.mem import RingType, memref_of, scope_of
from penstock.lowering.codegen.text import Size
from penstock.lowering.codegen.types import CType, c_type

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


def open_numbers(type: MemRefType[Attribute]) -> int:
    """How many numbers a memref has that its type does not tell: sizes, and strides of a layout that lists them."""
    strides = type.layout.strides.data if isinstance(type.layout, StridedLayoutAttr) else ()
    return list(type.get_shape()).count(DYNAMIC_INDEX) + sum(isinstance(stride, NoneAttr) for stride in strides)


def numbers_of(type: MemRefType[Attribute], view: View) -> list[Size]:
    """These numbers of a view, in order."""
    strides = type.layout.strides.data if isinstance(type.layout, StridedLayoutAttr) else ()
    return [
        *(size for size, known in zip(view.shape, type.get_shape(), strict=True) if known == DYNAMIC_INDEX),
        *(step for step, known in zip(view.strides, strides, strict=False) if isinstance(known, NoneAttr)),
    ]


def view_of_numbers(
    value: SSAValue, pointer: str, numbers: Sequence[Size], times: Callable[[Size, Size], Size], *, is_const: bool
) -> View:
    """The view of a memref whose type leaves open what `numbers` tells."""
    if not numbers:
        return view_of_type(value, pointer, is_const=is_const)
    type, op = memref_of(value), owner_of(value)
    given = iter(numbers)
    shape = tuple(next(given) if size == DYNAMIC_INDEX else size for size in type.get_shape())
    if isinstance(type.layout, StridedLayoutAttr):
        strides = [next(given) if isinstance(step, NoneAttr) else step.data for step in type.layout.strides.data]
    else:
        strides = dense_strides(shape, times)
    return View(pointer, c_type(type.element_type, op), shape, tuple(strides), scope_of(type), pointer, is_const)


def dense_strides(shape: Sequence[Size], times: Callable[[Size, Size], Size]) -> list[Size]:
    """The strides of what is dense, in row-major order."""
    strides: list[Size] = [1] if shape else []
    for size in reversed(shape[1:]):
        strides.insert(0, times(strides[0], size))
    return strides
