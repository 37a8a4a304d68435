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

from xdsl.builder import Builder
from xdsl.dialects import arith, scf, tensor
from xdsl.dialects.builtin import (
    AffineMapAttr,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    IndexType,
    LocationAttr,
    UnknownLoc,
    i64,
)
from xdsl.dialects.linalg.attrs import IteratorTypeAttr
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap
from xdsl.irdl import IRDLOperation
from xdsl.rewriter import InsertPoint

from penstock.dialects import graph
from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.dialects.graph.base import is_unsigned
from penstock.dialects.graph.elementwise import PointwiseOp
from penstock.dialects.registry import Registry
from penstock.lowering.graph_to_tensor.shapes import (
    Dims,
    Split,
    broadcast_dims,
    element_of,
    loops,
    shape_of,
    signless,
    tensor_type,
)
from penstock.lowering.scalar_body import Body, Compute, constant_attribute
from penstock.passes.analysis.kernels import rounds_each_step
from penstock.passes.index_builder import Index, materialize
from penstock.passes.tensor.reshape import emit_reshape

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


class KernelBuilder:
    """
    The kernel under construction.

    `outside` maps each value that the ops of the group read but do not define to the value that the
    caller holds, in the order in which the parameters shall stand.
    """

    def __init__(self, outside: Mapping[SSAValue, SSAValue]):
        self.block = Block()
        self.parameters: list[KernelParameter] = []
        self.names: dict[SSAValue, str] = {}
        """What the text shall call values: parameters by their role in an op, others by the op they come from."""
        self.location: LocationAttr = UnknownLoc()
        self._member: Operation | None = None
        self._outside = outside
        self._rank = {value: index for index, value in enumerate(outside.values())}
        self._order: list[int] = []
        self._arguments: dict[KernelParameter, SSAValue] = {}
        self._computed: dict[SSAValue, Computed] = {}
        self._casts: dict[SSAValue, graph.CastOp] = {}
        """Casts of what comes from outside: lowered when they are asked for, split as they are asked for."""

    def lower(self, op: Operation) -> None:
        """
        Append what `op` becomes; every op it reads from within the group has been lowered before.

        Raises UserError with status 3 for an op without a lowering.
        """
        if isinstance(op, graph.ConstantOp):
            return
        if isinstance(op, graph.CastOp) and (op.x in self._outside or op.x in self._casts):
            self._casts[op.result] = op
            return
        lowering = lowering_of(type(op))
        if lowering is None:
            raise UserError(
                f"{op.name} has no lowering to the tensor level",
                loc=op.location,
                notes=["a plug-in registers one with penstock.lowering.graph_to_tensor.lowers"],
                status=UNSUPPORTED,
            )
        self.location = op.location
        self._member = op
        lowered = lowering(self, op)
        found = self._computed.get(op.results[0])
        if found is None or found.tensor is not lowered:
            self.define(op.results[0], lowered)

    def define(self, result: SSAValue, tensor: SSAValue, split: Split | None = None) -> None:
        """Say that `tensor`, split, is the value of the graph value `result`."""
        self._computed[result] = Computed(tensor, split)

    def value(self, of: SSAValue, split: Split | None = None) -> SSAValue:
        """The tensor of a graph value, split as asked for."""
        shape = shape_of(of) if split is None else split.shape(shape_of(of))
        if of in self._casts:
            self._cast(self._casts.pop(of), split)
        if (found := self._computed.get(of)) is not None:
            return emit_reshape(self.emit, found.tensor, shape)
        if (number := self._number(of)) is not None:
            return self.fill(shape, number.element, number.value)
        return self._parameter(KernelParameter(self._outside.get(of, of), split))

    def result(self, of: SSAValue) -> Computed:
        """What the kernel returns for `of`: a tensor that it computes, and no parameter of it."""
        if of in self._casts:
            self._cast(self._casts.pop(of), None)
        found = self._computed.get(of)
        if found is None or found.tensor in self.block.args:
            self.pointwise([of], of, lambda body, elements: elements[0])
        return self._computed[of]

    def _cast(self, op: graph.CastOp, split: Split | None) -> None:
        member, location = self._member, self.location
        self._member, self.location = op, op.location
        target = element_of(op.result)
        cast = signless(target), is_unsigned(target)
        self.pointwise([op.x], op.result, lambda body, elements: body.cast(elements[0], *cast), split=split)
        self._member, self.location = member, location

    def emit(self, op: Operation) -> SSAValue:
        """Append `op`, which has one result, at the location of the member being lowered."""
        op.location = self.location
        self.block.add_op(op)
        if self._member is not None and not isinstance(op, arith.ConstantOp):
            self.names[op.results[0]] = self._member.name.rpartition(".")[-1]
        return op.results[0]

    def builder(self) -> Builder:
        """A builder that appends ops without a name at the location of the member being lowered."""
        return Builder(InsertPoint.at_end(self.block), operation_insertion_handler=[self._locate])

    def _locate(self, op: Operation) -> None:
        op.location = self.location

    def loop(
        self,
        extent: int,
        step: int,
        initial: Sequence[SSAValue],
        body: Callable[[Index, Sequence[SSAValue]], Sequence[SSAValue]],
        *,
        always: bool = False,
    ) -> list[SSAValue]:
        """
        `body` at each iteration of a loop, on the values carried; at its end it is shifted inwards where `step` does
        not divide.

        One iteration needs no loop, but with `always` it has one, which says that the kernel is tiled as it is.
        """
        if 0 < extent <= step and not always:
            return list(body(0, initial))
        bounds = [materialize(self.builder(), bound) for bound in (0, extent, step)]
        block = Block(arg_types=[IndexType(), *(value.type for value in initial)])
        outer, self.block = self.block, block
        at: Index = block.args[0]
        if extent % step:
            last = materialize(self.builder(), extent - step)
            at = self.builder().insert(arith.MinSIOp(block.args[0], last)).result
        block.add_op(scf.YieldOp(*body(at, block.args[1:])))
        self.block = outer
        loop = scf.ForOp(bounds[0], bounds[1], bounds[2], initial, Region(block))
        loop.location = self.location
        self.block.add_op(loop)
        return list(loop.results)

    def empty(self, shape: Sequence[int], element: Attribute, *, name: str | None = None) -> SSAValue:
        """A fresh destination, or the shape of a window."""
        made = self.emit(tensor.EmptyOp((), tensor_type(tuple(shape), element)))
        if name is not None:
            self.names[made] = name
        return made

    def fill(self, shape: Sequence[int], element: Attribute, number: float, *, name: str | None = None) -> SSAValue:
        """A tensor of one number: a generic without inputs."""
        output = self.empty(shape, element, name=name), loops(len(shape))
        made = self.generic([], output, 0, lambda body, elements: body.constant(number, element))
        if name is not None:
            self.names[made] = name
        return made

    def pad(self, value: SSAValue, low: Sequence[int], high: Sequence[int], number: float) -> SSAValue:
        """`value` with `number` around it; nothing is emitted where all widths are zero."""
        if not any((*low, *high)):
            return value
        sizes = zip(low, shape_of(value), high, strict=True)
        shape = tuple(before + size + after for before, size, after in sizes)
        element = element_of(value)
        constant = self.emit(arith.ConstantOp(constant_attribute(number, element)))
        block = Block([tensor.YieldOp(constant)], arg_types=[IndexType()] * len(shape))
        padded = self.emit(
            tensor.PadOp(
                value,
                (),
                (),
                Region(block),
                DenseArrayBase.from_list(i64, list(low)),
                DenseArrayBase.from_list(i64, list(high)),
                tensor_type(shape, element),
            )
        )
        self.names[padded] = f"{self.names.get(value, 'x')}_padded"
        return padded

    def pad_spatial(
        self, value: SSAValue, first: int, low: Sequence[int], high: Sequence[int], number: float
    ) -> SSAValue:
        """`pad` of as many dims as there are widths, from dim `first` on."""
        before, after = [0] * first, [0] * (len(shape_of(value)) - first - len(low))
        return self.pad(value, [*before, *low, *after], [*before, *high, *after], number)

    def generic(
        self,
        inputs: Sequence[tuple[SSAValue, Dims]],
        output: tuple[SSAValue, Dims],
        reductions: int,
        compute: Compute,
        *,
        unsigned: bool = False,
    ) -> SSAValue:
        """
        A `linalg.generic` whose parallel loops index `output`, each one dim of it, followed by `reductions` reduction
        loops; dims of one element may be indexed by 0.

        `compute(body, elements)` gives the element to yield; the last of the elements is that of the output.

        Raises ValueError for a reduction that is rounded at every step.
        """
        operands = (*inputs, output)
        parallel = sum(isinstance(dim, AffineDimExpr) for dim in output[1])
        block = Block(arg_types=[element_of(value) for value, _ in operands])
        body = Body(block, self.location, unsigned)
        body.end(compute(body, block.args))
        kinds = [IteratorTypeAttr.parallel()] * parallel + [IteratorTypeAttr.reduction()] * reductions
        made = GenericOp(
            [value for value, _ in inputs],
            [output[0]],
            Region(block),
            [AffineMapAttr(AffineMap(len(kinds), 0, tuple(dims))) for _, dims in operands],
            kinds,
            [output[0].type],
        )
        if rounds_each_step(made):
            raise ValueError(f"a reduction carries {element_of(output[0])}: `accumulation.accumulate` chooses its type")
        return self.emit(made)

    def pointwise(
        self,
        operands: Sequence[SSAValue],
        result: SSAValue,
        compute: Compute,
        *,
        along: Mapping[int, Sequence[int]] | None = None,
        split: Split | None = None,
    ) -> SSAValue:
        """
        Define the graph value `result`, split if asked for, by an elementwise generic over graph values.

        `compute(body, elements)` gives an element, which is rounded if it is a wider float. The operands broadcast to
        the shape of the result, aligned at its end, or, for the operands that `along` numbers, along the given dims of
        it. Inline constants are written into the body; a split operand splits the result.
        """
        shape = shape_of(result)
        axes = [tuple(range(len(shape) - len(shape_of(operand)), len(shape))) for operand in operands]
        for number, dims in (along or {}).items():
            axes[number] = tuple(dims)
        split = split or self._common_split(operands, axes, shape)
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
