# SPDX-License-Identifier: Apache-2.0
"""
Copies that a kernel asks for, `x = load(y[i, :])` and `store(y[i, :], x)`, and the scopes that its locals are declared
in.

A copy is a `linalg.generic` that hands on its elements, with `mem.explicit`: no pass drops it, and it becomes a
`mem.copy`. What is read past the end of a tensor, with an `else`, is such a copy already.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import tensor
from xdsl.dialects.builtin import StringAttr, TensorType, UnitAttr
from xdsl.ir import Attribute, Operation, SSAValue

from penstock.dialects.mem import EXPLICIT, SCOPE
from penstock.lowering.from_kernel.expressions import Expressions
from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.scalars import name_of
from penstock.lowering.from_kernel.symbols import NOTHING_STORED, Tensor
from penstock.lowering.from_kernel.syntax import Access, Call, Declarator, Expression, Name
from penstock.passes.generics import first_of
from penstock.passes.shapes import element_of, loops, shape_of, signless
from penstock.passes.tensor.bufferization.assignment import origin_of, window_of
from penstock.passes.tensor.tensor_builder import TensorBuilder


def loaded(value: Expression) -> Expression | None:
    """What `load(x[i, :])` reads; None for another expression. Raises Fault."""
    if not isinstance(value, Call) or value.function != "load":
        return None
    if len(value.arguments) != 1 or not isinstance(value.arguments[0], Access | Name):
        raise Fault("load takes a tensor, or a slice of one", value)
    return value.arguments[0]


def stored(call: Call) -> tuple[Access | Name, Expression]:
    """Where and what `store(y[i, :], x)` stores. Raises Fault."""
    if call.function == "store" and len(call.arguments) == 2:
        target, value = call.arguments
        if isinstance(target, Access | Name) and isinstance(value, Expression):
            return target, value
    raise Fault("a call for its effect must be store(tensor[...], value)", call)


def require_local(declared: Declarator, kind: str) -> None:
    """Raise Fault for a scope of what is handed over."""
    if declared.scope is not None and kind != "local":
        notes = ["a local can be there: x = load(...) copies it"]
        raise Fault(f'the {kind} "{declared.name}" is handed over off chip, and cannot be in a scope', declared, notes)


def keep_in_scope(tensor: Tensor, expressions: Expressions) -> None:
    """Let what brings the value of a tensor into being say where it is declared to live."""
    if tensor.scope is None or tensor.value is None:
        return
    origin = origin_of(tensor.value)
    if isinstance(owner := origin.owner, Operation):
        expressions.builder.names[origin] = tensor.name
        owner.attributes[SCOPE] = StringAttr(tensor.scope)
        owner.location = expressions.location(tensor.declared.at)


def tensor_for_parts(tensor: Tensor, expressions: Expressions) -> None:
    """Let a tensor be one that holds nothing yet, and that parts are stored to."""
    tensor.value = expressions.builder.empty(tensor.shape, signless(tensor.element), name=tensor.name)
    tensor.missing = NOTHING_STORED
    assert isinstance(tensor.value.owner, Operation)
    tensor.value.owner.location = expressions.location(tensor.declared.at)
    keep_in_scope(tensor, expressions)


class Copies:
    """Emits the explicit copies of one kernel."""

    def __init__(self, expressions: Expressions):
        self._expressions = expressions
        self._builder: TensorBuilder = expressions.builder

    def source(self, value: Expression, shape: Sequence[int], element: Attribute | None) -> tuple[SSAValue, Attribute]:
        """What is copied, a tile of this shape, and its type, which is `element` if one is given. Raises Fault."""
        space, location = Expressions.tile_space(shape), self._builder.location
        if not isinstance(value, Access | Name) or self._expressions.tile_shape(value) != tuple(shape):
            fresh = self._expressions.fresh
            tile = self._expressions.elementwise(value, space, element, lambda found, _: fresh(space, found))
            self._builder.location = location
            return tile
        name = value.name if isinstance(value, Name) else value.tensor
        found = self._expressions.symbols.stored(name, value).element
        if element not in (None, found):
            message = f"a copy of {name_of(found)} to {name_of(element)}"
            raise Fault(message, value, [f"cast({name_of(element)}, ...) converts"])
        read, _ = self._expressions.accesses.read(value, space, list(space))
        return self.without_units(read, shape), found

    def without_units(self, value: SSAValue, shape: Sequence[int]) -> SSAValue:
        """A slice of all of a tensor, without the dims of one element that `shape` does not have."""
        sizes = shape_of(value)
        if sizes == tuple(shape):
            return value
        type = TensorType(element_of(value), shape)
        ones = [1] * len(sizes)
        slice = self._builder.builder().insert(tensor.ExtractSliceOp(value, [0] * len(sizes), sizes, ones, type))
        return slice.result

    def is_window(self, value: SSAValue) -> bool:
        """Whether a value is copied where it is read: it has what lies past the end of a tensor."""
        owner = origin_of(value).owner
        return isinstance(owner, Operation) and window_of(owner.results[0]) is not None

    def mark(self, value: SSAValue) -> None:
        """Let the op that brings a value into being be a copy that stays one."""
        owner = origin_of(value).owner
        assert isinstance(owner, Operation)
        owner.attributes[EXPLICIT] = UnitAttr()

    def copy(self, source: SSAValue, dest: SSAValue) -> SSAValue:
        """A copy of a tile to a tensor of its shape, which is overwritten."""
        dims = loops(len(shape_of(source)))
        made = self._builder.generic([(source, dims)], (dest, dims), 0, first_of)
        assert isinstance(made.owner, Operation)
        made.owner.attributes[EXPLICIT] = UnitAttr()
        return made
