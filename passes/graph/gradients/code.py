# SPDX-License-Identifier: Apache-2.0
"""
The adjoint code under construction, and the registry of rules.

A rule belongs to a class of ops. It is called with the op and the code so far, in which `code.seed` is the adjoint of
the op's result, and adds to the adjoints of those operands that the code `wants`:

```python
@gradient(graph.MulOp)
def mul(code: AdjointCode, op: graph.MulOp) -> None:
    code.add(op.a, lambda: code.seed * code.term(op.b))
    code.add(op.b, lambda: code.seed * code.term(op.a))
```

Where only the first operand has an adjoint, a function with `@derivative` returns the contribution to it.
A package that brings an op of its own registers a rule for it in the same way, beside the op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NoReturn, TypeAlias

from xdsl.dialects.builtin import UNKNOWN_LOC, LocationAttr, ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import SymbolTable

from penstock.dialects import graph
from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.graph import GraphOp, tensor_of
from penstock.dialects.graph.base import IsConstantAlmostEverywhere, is_float
from penstock.dialects.graph.kernel import KernelOp
from penstock.dialects.registry import Registry
from penstock.dialects.weights import Array, WeightStore
from penstock.passes.graph.terms import Term, TermBuilder
from penstock.passes.graph.values import constant_of, derived

Rule: TypeAlias = Callable[["AdjointCode", Any], None]
"""From the code so far and the op: it adds to the adjoints of the operands."""
Contribution: TypeAlias = Callable[["AdjointCode", Any], Term]
"""From the code so far and the op to what is added to the adjoint of its first operand."""

MakeKernelGradient: TypeAlias = Callable[[FuncOp, str, Sequence[int], Sequence[int]], FuncOp]
"""From a kernel, a name, the arguments whose adjoints are wanted and the results that have one to a kernel."""

RULES: Registry[Rule] = Registry()
"""Class of ops -> the rule for its derivatives."""

gradient = RULES.register
"""Register the decorated function as the rule for classes of ops and those derived from them."""


def derivative(*classes: type[Operation]) -> Callable[[Contribution], Contribution]:
    """Register the decorated function for classes of ops: what it returns is added to the adjoint of operand 0."""

    def register(contribution: Contribution) -> Contribution:
        def rule(code: AdjointCode, op: Operation) -> None:
            code.add(op.operands[0], lambda: contribution(code, op))

        gradient(*classes)(rule)
        return contribution

    return register


def is_differentiable(value: SSAValue) -> bool:
    """Whether a value has floats, and so may have an adjoint."""
    return isinstance(value.type, TensorType) and is_float(tensor_of(value).element_type)


def active_values(
    forward: Sequence[Operation], varied: Sequence[SSAValue], results: Sequence[SSAValue]
) -> set[SSAValue]:
    """The values that depend on `varied` and influence a result, by ways on which there can be a derivative."""
    found = set(varied)
    for op in forward:
        if not op.has_trait(IsConstantAlmostEverywhere) and any(operand in found for operand in op.operands):
            found.update(result for result in op.results if is_differentiable(result))
    useful = set(results)
    for op in reversed(forward):
        if not op.has_trait(IsConstantAlmostEverywhere) and any(result in useful for result in op.results):
            useful.update(operand for operand in op.operands if is_differentiable(operand))
    return found & useful


class AdjointCode(TermBuilder):
    """
    Adjoint code at the end of a block, and the adjoints of values so far.

    Contributions to one adjoint are summed in the order in which they come: the ops of the block from the last to the
    first, and the operands of each as its rule has them.
    """

    def __init__(self, block: Block, active: set[SSAValue], store: WeightStore, module: ModuleOp | None = None):
        super().__init__()
        self._module = module
        self._kernels: dict[tuple[str, tuple[int, ...], tuple[int, ...]], str] = {}
        self._block = block
        self._active = active
        self._store = store
        self._location: LocationAttr = UNKNOWN_LOC
        self._adjoints: dict[SSAValue, Term] = {}
        self._seed: Term | None = None

    @property
    def seed(self) -> Term:
        """The adjoint of the first result of the op whose rule is being applied."""
        assert self._seed is not None
        return self._seed

    def wants(self, value: SSAValue | None) -> bool:
        """Whether the adjoint of `value` plays a part in what is asked for."""
        return value in self._active

    def adjoint_of(self, value: SSAValue) -> Term | None:
        """The adjoint of `value` so far; None if nothing has come back to it."""
        return self._adjoints.get(value)

    def emit(self, op: GraphOp) -> Term:
        op.location = self._location
        self._block.add_op(op)
        return self.term(op.result)

    def call(self, kernel: str, operands: Sequence[SSAValue], types: Sequence[Attribute]) -> list[Term]:
        """Call a kernel of the module, for its results."""
        op = KernelOp(kernel, operands, types)
        op.location = self._location
        self._block.add_op(op)
        return [self.term(result) for result in op.outputs]

    def kernel(self, called: str, wanted: tuple[int, ...], seeded: tuple[int, ...], make: MakeKernelGradient) -> str:
        """
        The name of the kernel that computes the adjoints of the arguments `wanted` of a kernel from those of its
        results `seeded`. It is made, and put behind the other one, where the module has none yet.
        """
        key = called, wanted, seeded
        if key not in self._kernels:
            assert self._module is not None
            kernel = SymbolTable.lookup_symbol(self._module, called)
            assert isinstance(kernel, FuncOp)
            names = (f"{called}_gradient{f'_{number}' if number else ''}" for number in count())
            name = next(each for each in names if SymbolTable.lookup_symbol(self._module, each) is None)
            Rewriter.insert_op(make(kernel, name, wanted, seeded), InsertPoint.after(kernel))
            self._kernels[key] = name
        return self._kernels[key]

    def append(self, op: graph.IfOp | graph.LoopOp) -> list[Term]:
        """Append an op with regions, for its results."""
        op.location = self._location
        self._block.add_op(op)
        return [self.term(result) for result in op.outputs]

    def inside(self, block: Block, active: set[SSAValue]) -> AdjointCode:
        """Code in a region, with values that are `active` there."""
        found = AdjointCode(block, active, self._store, self._module)
        found._location, found._kernels = self._location, self._kernels
        return found

    def array(self, array: Array, name: str) -> Term:
        return self.emit(constant_of(array, f"gradient/{name}", self._store, self._location))

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
        Apply the rule of an op, if one of its results has an adjoint that plays a part.

        Raises UserError (unsupported, located at the op) if it has none.
        """
        if not any(self.wants(operand) for operand in op.operands):
            return
        if not any(result in self._adjoints for result in op.results):
            return
        self._seed = self._adjoints.get(op.results[0])
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
    """Raise UserError for images whose channels are neither before the spatial dimensions nor after them."""
    if layout not in (graph.NCHW, graph.NHWC):
        refuse(op, f'in the layout "{layout}"', "differentiate before the pass layout")
