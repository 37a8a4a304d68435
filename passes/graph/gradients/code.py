"""
The adjoint code under construction, the arithmetic that rules write it in, and the registry of rules.

A rule belongs to a class of ops. It is called with the op and the code so far, in which `code.seed` is the adjoint of
the op's result, and adds to the adjoints of those operands that the code `wants`:

```python
@gradient(graph.MulOp)
def mul(code: AdjointCode, op: graph.MulOp) -> None:
    code.add(op.a, lambda: code.seed * code.term(op.b))
    code.add(op.b, lambda: code.seed * code.term(op.a))
```

A package that brings an op of its own registers a rule for it in the same way, beside the op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np
from xdsl.dialects.builtin import LocationAttr, UnknownLoc
from xdsl.ir import Attribute, Block, Operation, SSAValue

from penstock.dialects import graph
from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import GraphOp, tensor_of
from penstock.dialects.registry import Registry
from penstock.dialects.weights import Array, WeightStore
from penstock.passes.graph.values import constant_of, derived

Rule: TypeAlias = Callable[["AdjointCode", Any], None]

RULES: Registry[Rule] = Registry()

gradient = RULES.register
"""Register the decorated function as the rule for classes of ops and those derived from them."""


@dataclass(frozen=True)
class Term:
    """A value in the adjoint code. Python numbers in its arithmetic become scalars of its element type."""

    value: SSAValue
    code: AdjointCode

    @property
    def shape(self) -> tuple[int, ...]:
        return tensor_of(self.value).get_shape()

    @property
    def element_type(self) -> Attribute:
        return tensor_of(self.value).element_type

    def __add__(self, other: Operand) -> Term:
        return self.with_(graph.AddOp, other)

    def __sub__(self, other: Operand) -> Term:
        return self.with_(graph.SubOp, other)

    def __mul__(self, other: Operand) -> Term:
        return self.with_(graph.MulOp, other)

    def __truediv__(self, other: Operand) -> Term:
        return self.with_(graph.DivOp, other)

    def __radd__(self, other: float) -> Term:
        return self._number(other) + self

    def __rsub__(self, other: float) -> Term:
        return self._number(other) - self

    def __rmul__(self, other: float) -> Term:
        return self._number(other) * self

    def __rtruediv__(self, other: float) -> Term:
        return self._number(other) / self

    def __neg__(self) -> Term:
        return self.apply(graph.NegOp)

    def apply(self, op_class: Callable[[SSAValue], GraphOp]) -> Term:
        """`op_class` of this value."""
        return self.code.emit(op_class(self.value))

    def with_(self, op_class: Callable[[SSAValue, SSAValue], GraphOp], other: Operand) -> Term:
        """`op_class` of this value and another."""
        return self.code.emit(op_class(self.value, self._number(other).value))

    def where(self, then: Operand, otherwise: Operand, like: Term) -> Term:
        """Where this, a truth value, holds `then`, else `otherwise`; numbers are of the element type of `like`."""
        values = [like._number(each).value for each in (then, otherwise)]
        return self.code.emit(graph.WhereOp(self.value, *values))

    def as_number(self, like: Term) -> Term:
        """A truth value as 0 or 1 in the element type of `like`."""
        return self.code.emit(graph.CastOp(self.value, like.element_type))

    def reshape(self, shape: Sequence[int]) -> Term:
        """The same elements in another shape; this very value if it has it."""
        return self if tuple(shape) == self.shape else self.code.emit(graph.ReshapeOp(self.value, shape))

    def transpose(self, perm: Sequence[int]) -> Term:
        """The dimensions in another order; this very value if they are in it."""
        if list(perm) == list(range(len(perm))):
            return self
        return self.code.emit(graph.TransposeOp(self.value, perm=perm))

    def expand(self, shape: Sequence[int]) -> Term:
        """Repeated to a shape; this very value if it has it."""
        return self if tuple(shape) == self.shape else self.code.emit(graph.ExpandOp(self.value, shape))

    def sum(self, axes: Sequence[int], *, keepdims: bool = True) -> Term:
        """The sum along axes; this very value if there are none."""
        if not axes:
            return self
        return self.code.emit(graph.ReduceSumOp(self.value, axes=axes, keepdims=keepdims))

    def fit(self, shape: Sequence[int]) -> Term:
        """The adjoint of a value of `shape` that was broadcast to that of this term: sums along what was repeated."""
        leading = len(self.shape) - len(shape)
        assert leading >= 0
        if self.shape[leading:] == tuple(shape):
            return self.sum(range(leading), keepdims=False)
        repeated = [dim for dim, size in enumerate(shape, leading) if size == 1 and self.shape[dim] != 1]
        summed = self.sum([*range(leading), *repeated])
        return summed.reshape(summed.shape[leading:]).expand(shape)

    def _number(self, other: Operand) -> Term:
        return other if isinstance(other, Term) else self.code.number(other, self.element_type)


Operand: TypeAlias = Term | float


class AdjointCode:
    """
    Adjoint code at the end of a block, and the adjoints of values so far.

    Contributions to one adjoint are summed in the order in which they come: the ops of the block from the last to the
    first, and the operands of each as its rule has them.
    """

    def __init__(self, block: Block, active: set[SSAValue], store: WeightStore):
        self._block = block
        self._active = active
        self._store = store
        self._location: LocationAttr = UnknownLoc()
        self._numbers: dict[tuple[float, Attribute], Term] = {}
        self._adjoints: dict[SSAValue, Term] = {}
        self._seed: Term | None = None

    @property
    def seed(self) -> Term:
        """The adjoint of the result of the op whose rule is being applied."""
        assert self._seed is not None
        return self._seed

    def wants(self, value: SSAValue | None) -> bool:
        """Whether the adjoint of `value` plays a part in what is asked for."""
        return value in self._active

    def adjoint_of(self, value: SSAValue) -> Term | None:
        """The adjoint of `value` so far; None if nothing has come back to it."""
        return self._adjoints.get(value)

    def term(self, value: SSAValue) -> Term:
        """A value of the program."""
        return Term(value, self)

    def emit(self, op: GraphOp) -> Term:
        """Append an op to the code."""
        op.location = self._location
        self._block.add_op(op)
        return Term(op.result, self)

    def number(self, number: float, element: Attribute) -> Term:
        """A scalar."""
        key = (number, element)
        if key not in self._numbers:
            array = np.asarray(number, numpy_dtype(element))
            self._numbers[key] = self.array(array, "number")
        return self._numbers[key]

    def array(self, array: Array, name: str) -> Term:
        """A constant; `name` is for a weight of its own, if it does not fit into the text."""
        return self.emit(constant_of(array, f"gradient/{name}", self._store, self._location))

    def zeros(self, like: SSAValue) -> Term:
        """Zeros of the type of a value."""
        tensor = tensor_of(like)
        return self.number(0.0, tensor.element_type).expand(tensor.get_shape())

    def add(self, value: SSAValue | None, contribution: Callable[[], Term]) -> None:
        """
        Add to the adjoint of `value`, if it is wanted; else the contribution is not even made.

        It has the shape of `value`, or one that this was broadcast to.
        """
        if value is None or not self.wants(value):
            return
        found = contribution().fit(tensor_of(value).get_shape())
        before = self._adjoints.get(value)
        total = found if before is None else before + found
        if total.value.name_hint is None and value.name_hint is not None:
            total.value.name_hint = f"{value.name_hint}_adjoint"
        self._adjoints[value] = total

    def add_seed(self, value: SSAValue, seed: SSAValue) -> None:
        """Add to the adjoint of a result of the function."""
        self.add(value, lambda: self.term(seed))

    def differentiate(self, op: Operation) -> None:
        """
        Apply the rule of an op, if its result has an adjoint that plays a part.

        Raises UserError (unsupported, located at the op) if it has none.
        """
        result = op.results[0] if op.results else None
        if result is None or not any(self.wants(operand) for operand in op.operands):
            return
        self._seed = self._adjoints.get(result)
        if self._seed is None:
            return
        self._location = derived(op.location, "gradient")
        if (rule := RULES.find(type(op))) is None:
            refuse(op)
        rule(self, op)


BEFORE: dict[type[Operation], str] = {graph.FusedOp: "graph-fuse", graph.AttentionOp: "fuse-attention"}
"""Ops without a rule because those that a pass made them of have rules."""


def refuse(op: Operation, why: str = "", note: str = "") -> NoReturn:
    """Raise UserError: there is no derivative of `op`, or none `why` (as in "with batch_dims 2")."""
    if (maker := BEFORE.get(type(op))) is not None:
        note = f"differentiate before the pass {maker}: the ops that it has joined have derivatives"
    words = f" {why}" if why else ""
    notes = [note] if note else []
    raise UserError(f"{op.name}{words} has no derivative", loc=location_of(op), notes=notes, status=UNSUPPORTED)


def refuse_other_layouts(op: Operation, layout: str) -> None:
    """Raise UserError for images whose channels are neither before the spatial dimensions nor behind them."""
    if layout not in (graph.NCHW, graph.NHWC):
        refuse(op, f'in the layout "{layout}"', "differentiate before the pass layout")
