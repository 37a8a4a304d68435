# SPDX-License-Identifier: Apache-2.0
"""
Builds the body of one kernel: the tensor ops that a group of graph ops becomes.

A lowering is a function `(kernel, op) -> tensor` registered by `lowers` for one class of graph op. It asks
`kernel.value` for the tensors of its operands and appends `tensor.empty`, `tensor.pad` and
`linalg.generic` ops. What comes from outside the group becomes a parameter of the kernel when it is first
asked for; small constants are never parameters, they are written where they are used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineExpr
from xdsl.irdl import IRDLOperation

from penstock.dialects import graph
from penstock.dialects.accumulators import accumulator_of
from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.dialects.graph.base import is_unsigned
from penstock.dialects.graph.elementwise import PointwiseOp
from penstock.dialects.registry import Registry
from penstock.passes.generics import first_of
from penstock.passes.scalar_body import Body, Compute
from penstock.passes.shapes import Split, broadcast_dims, element_of, loops, shape_of, signless, tensor_type
from penstock.passes.tensor.tensor_builder import TensorBuilder

Lowering: TypeAlias = Callable[["KernelBuilder", Any], SSAValue]
"""From the kernel under construction and the op to the tensor that is its result."""

_LOWERINGS: Registry[Lowering] = Registry()

lowers = _LOWERINGS.register
"""Register the decorated function as the lowering of classes of ops to the tensor level."""


def lowering_of(op_class: type[Operation]) -> Lowering | None:
    """What is registered for a class of ops, or follows from their formula."""
    found = _LOWERINGS.find(op_class)
    has_formula = issubclass(op_class, PointwiseOp) and op_class.has_formula()
    return _lower_formula if found is None and has_formula else found


def _lower_formula(kernel: KernelBuilder, op: PointwiseOp) -> SSAValue:
    def compute(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        return op.evaluate(elements, body)

    return kernel.pointwise(op.operands, op.result, compute)


class KernelParameter(NamedTuple):
    """What the caller passes: a value of the graph level, as it is or split."""

    source: SSAValue
    """The value of the graph level."""
    split: Split | None
    """How a dimension of it is split; None for the value as it is."""


class Computed(NamedTuple):
    """A tensor in the kernel that is a value of the graph level, as it is or split."""

    tensor: SSAValue
    """The value in the kernel."""
    split: Split | None
    """How a dimension of it is split; None for the value as it is."""


class _Number(NamedTuple):
    """An operand that is written into the body, against one that is an input of the generic."""

    value: float
    element: Attribute


class KernelBuilder(TensorBuilder):
    """
    The kernel under construction.

    `outside` maps each value that the ops of the group read but do not define to the value that the
    caller holds, in the order in which the parameters shall stand.
    """

    def __init__(self, outside: Mapping[SSAValue, SSAValue]):
        super().__init__()
        self.parameters: list[KernelParameter] = []
        self._member: Operation | None = None
        self._outside = outside
        self._rank = {value: index for index, value in enumerate(outside.values())}
        self._order: list[int] = []
        self._arguments: dict[KernelParameter, SSAValue] = {}
        self._computed: dict[SSAValue, Computed] = {}
        self._pending: dict[SSAValue, Operation] = {}
        """Pointwise ops on what comes from outside: lowered when they are asked for, split as they are asked for."""
        self._wanted: Split | None = None
        """How the result of the op that is lowered is split where none of its operands is."""

    def lower(self, op: Operation) -> None:
        """
        Append what `op` becomes; every op it reads from within the group has been lowered before.

        Raises UserError with status 3 for an op without a lowering.
        """
        if isinstance(op, graph.ConstantOp):
            return
        if lowering_of(type(op)) is None:
            raise UserError(
                f"{op.name} has no lowering to the tensor level",
                loc=op.location,
                notes=["a plug-in registers one with penstock.lowering.graph_to_tensor.lowers"],
                status=UNSUPPORTED,
            )
        if isinstance(op, PointwiseOp | graph.LinearOp) and all(map(self._is_pending, op.operands)):
            self._pending[op.results[0]] = op
        else:
            self._lower(op, None)

    def _is_pending(self, of: SSAValue) -> bool:
        """Whether nothing is computed yet of what a graph value is computed of."""
        return of in self._pending or of in self._outside or self._number(of) is not None

    def _lower(self, op: Operation, split: Split | None) -> None:
        self._member, self.name, self.location, self._wanted = op, op.name.rpartition(".")[-1], op.location, split
        lowering = lowering_of(type(op))
        assert lowering is not None
        lowered = lowering(self, op)
        found = self._computed.get(op.results[0])
        if found is None or found.tensor is not lowered:
            self.define(op.results[0], lowered)

    def _lower_pending(self, of: SSAValue, split: Split | None) -> None:
        """Lower what a graph value is computed by, if it waits for that, amid another op."""
        if (op := self._pending.pop(of, None)) is not None:
            before = self._member, self.name, self.location, self._wanted
            self._lower(op, split)
            self._member, self.name, self.location, self._wanted = before

    def define(self, result: SSAValue, tensor: SSAValue, split: Split | None = None) -> None:
        """Say that `tensor`, split, is the value of the graph value `result`."""
        self._computed[result] = Computed(tensor, split)

    def value(self, of: SSAValue, split: Split | None = None) -> SSAValue:
        """The tensor of a graph value, split as asked for."""
        shape = shape_of(of) if split is None else split.shape(shape_of(of))
        self._lower_pending(of, split)
        if (found := self._computed.get(of)) is not None:
            return self.reshape(found.tensor, shape)
        if (number := self._number(of)) is not None:
            return self.fill(shape, number.element, number.value)
        return self._parameter(KernelParameter(self._outside.get(of, of), split))

    def result(self, of: SSAValue) -> Computed:
        """What the kernel returns for `of`: a tensor that it computes, and no parameter of it."""
        self._lower_pending(of, None)
        found = self._computed.get(of)
        if found is None or found.tensor in self.block.args:
            self.pointwise([of], of, first_of)
        return self._computed[of]

    def pointwise(
        self,
        operands: Sequence[SSAValue],
        result: SSAValue,
        compute: Compute,
        *,
        along: Mapping[int, Sequence[int]] | None = None,
    ) -> SSAValue:
        """
        Define the graph value `result` by an elementwise generic over graph values.

        `compute(body, elements)` gives an element, which is rounded if it is a wider float. The operands broadcast to
        the shape of the result, aligned at its end, or, for the operands that `along` numbers, along the given dims of
        it. Inline constants are written into the body; a split operand splits the result.
        """
        shape = shape_of(result)
        axes = [tuple(range(len(shape) - len(shape_of(operand)), len(shape))) for operand in operands]
        for number, dims in (along or {}).items():
            axes[number] = tuple(dims)
        split = self._common_split(operands, axes, shape) or self._wanted
        whole = shape if split is None else split.shape(shape)
        inputs: dict[tuple[SSAValue, tuple[AffineExpr, ...]], int] = {}
        slots: list[_Number | int] = []
        for operand, places in zip(operands, axes, strict=True):
            if (number := self._number(operand)) is not None:
                slots.append(number)
                continue
            own, dims = broadcast_dims(shape_of(operand), places, shape, split)
            slots.append(inputs.setdefault((self.value(operand, own), tuple(dims)), len(inputs)))

        def element(body: Body, arguments: Sequence[SSAValue]) -> SSAValue:
            read = [body.constant(*slot) if isinstance(slot, _Number) else arguments[slot] for slot in slots]
            return body.cast(compute(body, read), signless(element_of(result)), False)

        output = self.empty(whole, signless(element_of(result)))
        unsigned = is_unsigned(element_of(operands[-1]))
        computed = self.generic(list(inputs), (output, loops(len(whole))), 0, element, unsigned=unsigned)
        self.define(result, computed, split)
        return computed

    def rounded(self, result: SSAValue, computed: SSAValue, split: Split | None = None) -> SSAValue:
        """Define the graph value `result` as `computed`, rounded to its element type where that is in a wider one."""
        self.define(result, computed, split)
        if element_of(computed) == signless(element_of(result)):
            return computed
        return self.pointwise([result], result, first_of)

    def widened(self, of: SSAValue) -> SSAValue:
        """The tensor of a graph value in the type in which its elements are summed."""
        value, wide = self.value(of), accumulator_of(signless(element_of(of)))
        if element_of(value) == wide:
            return value
        return self.map(lambda body, elements: body.widen(elements[0], wide), value, element=wide)

    def _number(self, of: SSAValue) -> _Number | None:
        """The number that a graph value repeats, if it is an inline constant."""
        owner = self._outside.get(of, of).owner
        if not isinstance(owner, graph.ConstantOp):
            return None
        dense = owner.value
        if not isinstance(dense, DenseIntOrFPElementsAttr) or not dense.data.data:
            return None
        if not dense.is_splat():
            return None
        value = next(iter(dense.iter_values()))
        assert isinstance(value, int | float)
        return _Number(value, signless(element_of(of)))

    def _parameter(self, parameter: KernelParameter) -> SSAValue:
        if (found := self._arguments.get(parameter)) is not None:
            return found
        rank = self._rank.get(parameter.source, len(self._rank))
        index = bisect_right(self._order, rank)
        whole = shape_of(parameter.source)
        shape = whole if parameter.split is None else parameter.split.shape(whole)
        type = tensor_type(shape, signless(element_of(parameter.source)))
        argument = self.block.insert_arg(type, index)
        self._order.insert(index, rank)
        self.parameters.insert(index, parameter)
        self._arguments[parameter] = argument
        self.names[argument] = self._role(parameter.source)
        return argument

    def _role(self, source: SSAValue) -> str:
        """The name of the operand of the member being lowered that is `source`."""
        member = self._member
        if isinstance(member, IRDLOperation):
            for name, _ in member.get_irdl_definition().operands:
                found: SSAValue | Sequence[SSAValue] | None = getattr(member, name)
                values = (found,) if isinstance(found, SSAValue) else found or ()
                if any(self._outside.get(value, value) is source for value in values):
                    return name
        return "x"

    def _common_split(
        self, operands: Sequence[SSAValue], axes: Sequence[Sequence[int]], shape: Sequence[int]
    ) -> Split | None:
        for operand, places in zip(operands, axes, strict=True):
            found = self._computed.get(operand)
            if found is None or found.split is None:
                continue
            axis = places[found.split.dim]
            if shape[axis] == shape_of(operand)[found.split.dim]:
                return Split(axis, found.split.groups)
        return None
