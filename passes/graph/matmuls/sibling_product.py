"""One family of sibling products, as one product of which each takes its part."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod

from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.graph import (
    AddOp,
    ConcatOp,
    ConvOp,
    GraphOp,
    MatmulOp,
    ReshapeOp,
    SliceOp,
    Tensor,
    tensor_of,
)
from penstock.dialects.weights import WeightStore
from penstock.passes.graph.matmuls.siblings import Alike, Family, following
from penstock.passes.graph.values import NodeBuilder, is_constant


def combine(family: Family, store: WeightStore) -> None:
    """Replace the members of a family, and the elementwise ops that follow them alike."""
    _Combination(family, store).run()


class _Combination:
    """One family, combined before its first member."""

    def __init__(self, family: Family, store: WeightStore):
        self._family = family
        self._build = NodeBuilder(family.members[0].location, store)
        self._values: list[SSAValue] = [member.result for member in family.members]
        self._replaced: list[Operation] = list(family.members)
        self._result: SSAValue = self._values[0]

    def run(self) -> None:
        family, before = self._family, InsertPoint.before(self._family.members[0])
        self._result = self._product()
        rank = tensor_of(self._values[0]).get_num_dims()
        if family.biases and not isinstance(family.members[0], ConvOp):
            self._append(AddOp(self._result, self._combined(family.biases, 1, 2)), "siblings_biased")
        while (alike := following(self._values, family.widths, family.axis)) is not None:
            self._build.location = alike.ops[0].location
            self._append(self._elementwise(alike, rank), "siblings")
            self._values = [op.result for op in alike.ops]
            self._replaced += alike.ops
        parts = self._parts()
        for constant in self._constants():
            constant.detach()
            Rewriter.insert_op(constant, before)
        Rewriter.insert_op(self._build.ops, before)
        for value, part in zip(self._values, parts, strict=True):
            part.name_hint = value.name_hint
            value.replace_all_uses_with(part)
        for op in reversed(self._replaced):
            op.detach()
            op.erase()

    def _append(self, op: GraphOp, part: str) -> None:
        self._result = self._build.emit(op, part)

    def _constants(self) -> list[Operation]:
        """What computes the constants that are read, in order, and does not stand before the first member yet."""
        found: dict[Operation, None] = {}
        behind = self._extent()

        def visit(value: SSAValue) -> None:
            # Others read constants too, so that none moves down: one before the first member stays where it is.
            if isinstance(value.owner, GraphOp) and value.owner in behind and is_constant(value):
                for operand in value.owner.operands:
                    visit(operand)
                found[value.owner] = None

        for op in self._build.ops:
            for operand in op.operands:
                visit(operand)
        return list(found)

    def _extent(self) -> set[Operation]:
        """The ops from the first member to the last op that is replaced."""
        pending = set(self._replaced)
        op: Operation | None = self._family.members[0]
        found: set[Operation] = set()
        while pending and op is not None:
            found.add(op)
            pending.discard(op)
            op = op.next_op
        return found

    def _product(self) -> SSAValue:
        family, build = self._family, self._build
        first = family.members[0]
        x = first.operands[0]
        if isinstance(first, ConvOp):
            operands = [x, self._concatenated(family.factors, 0)]
            operands += [self._concatenated(family.biases, 0)] if family.biases else []
            shape = [*tensor_of(first.result).get_shape()]
            shape[1] = sum(family.widths)
            conv = ConvOp.create(
                operands=operands,
                result_types=[Tensor(tensor_of(first.result).element_type, shape)],
                properties=first.properties.copy(),
            )
            return build.emit(conv, "siblings")
        if family.is_stack:
            *rows, k = tensor_of(x).get_shape()
            if len(rows) > 1:
                x = build.emit(ReshapeOp(x, [prod(rows), k]), "rows")
            matrices = [build.emit(ReshapeOp(w, [1, *tensor_of(w).get_shape()]), "weight") for w in family.factors]
            factor = self._concatenated(matrices, 0)
        else:
            factor = self._concatenated(family.factors, 1)
        return build.emit(MatmulOp(x, factor, accumulator=first.accumulator), "siblings")

    def _concatenated(self, values: Sequence[SSAValue], axis: int) -> SSAValue:
        return self._build.emit(ConcatOp(values, axis=axis), "weights")

    def _combined(self, constants: Sequence[SSAValue], axis: int, rank: int) -> SSAValue:
        """Constants along `axis` of results of `rank` dims, for the combined result."""
        if self._family.is_stack:
            rows = [self._build.emit(ReshapeOp(c, [1, 1, -1]), "vector") for c in constants]
            return self._concatenated(rows, 0)
        ones = [1] * (rank - 1 - axis)
        return self._concatenated([self._build.emit(ReshapeOp(c, [-1, *ones]), "vector") for c in constants], 0)

    def _elementwise(self, alike: Alike, rank: int) -> GraphOp:
        operands = [self._result]
        if len(alike.constants) > 1:
            operands.insert(1 - alike.side, self._combined(alike.constants, self._family.axis, rank))
        elif alike.constants:
            operands.insert(1 - alike.side, alike.constants[0])
        first = alike.ops[0]
        type = Tensor(tensor_of(first.result).element_type, tensor_of(self._result).get_shape())
        return first.create(operands=operands, result_types=[type], properties=first.properties.copy())

    def _parts(self) -> list[SSAValue]:
        """What stands for each sibling: a slice, and where the shape is another one, a view of that."""
        family, shape = self._family, list(tensor_of(self._result).get_shape())
        axis = 0 if family.is_stack else family.axis
        sizes = [1] * len(family.widths) if family.is_stack else list(family.widths)
        found: list[SSAValue] = []
        for value, size, start in zip(self._values, sizes, accumulate([0, *sizes]), strict=False):
            starts, extents = [0] * len(shape), [*shape]
            starts[axis], extents[axis] = start, size
            part = SliceOp(self._result, starts=starts, sizes=extents)
            wanted = tensor_of(value).get_shape()
            last = part if wanted == part.result_type.get_shape() else ReshapeOp(part, wanted)
            if last is not part:
                self._build.emit(part, "part")
            self._build.finish(last)
            assert isinstance(value.owner, Operation)
            last.location = value.owner.location
            found.append(last.result)
        return found
