# SPDX-License-Identifier: Apache-2.0
"""Merging two structured ops: the body of a pointwise one before that of one that reads it."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import AffineMapAttr
from xdsl.dialects.linalg.ops import GenericOp, IndexOp, YieldOp
from xdsl.ir import Block, Region, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap

from penstock.passes.analysis.kernels import has_reduction


def loops_of_elements(generic: GenericOp) -> list[int] | None:
    """Of a pointwise op, which loop indexes each dim of the result; None for any other op."""
    block = generic.body.block
    if has_reduction(generic) or len(generic.outputs) != 1 or len(generic.results) != 1 or block.args[-1].uses:
        return None
    if any(isinstance(op, IndexOp) for op in block.ops):
        return None
    exprs = list(generic.indexing_maps)[-1].data.results
    loops = [expr.position for expr in exprs if isinstance(expr, AffineDimExpr)]
    return loops if len(loops) == len(exprs) and sorted(loops) == list(range(generic.get_num_loops())) else None


def bounds_every_loop(generic: GenericOp) -> bool:
    """
    Whether the operands tell how often each loop runs: each is the index of a dim of one of them.

    A producer that repeats its operand, as an expansion does, has the sizes of what it repeats in its result only.
    """
    return generic.get_loops_to_shapes_map().inverse_permutation() is not None


def merged(consumer: GenericOp, producer: GenericOp, inlined: Sequence[int]) -> GenericOp:
    """
    A generic, not inserted, that takes the place of two: `producer`, which is pointwise, and `consumer`.

    `inlined` are the inputs of the consumer that are the producer's result, all with one map. The merged op reads the
    producer's operands, indexed by the composition of the maps.
    """
    return _Merged(consumer).build(producer, inlined)


class _Merged:
    """A generic under construction that takes the place of two."""

    def __init__(self, consumer: GenericOp):
        self._consumer = consumer
        self._operands: dict[tuple[SSAValue, AffineMapAttr], SSAValue] = {}
        self._block = Block()

    def _argument(self, value: SSAValue, indexing: AffineMapAttr, like: SSAValue) -> SSAValue:
        """The scalar of an operand; the same element of the same tensor is read once."""
        key = value, indexing
        if key not in self._operands:
            self._operands[key] = self._new(like)
        return self._operands[key]

    def _new(self, like: SSAValue) -> SSAValue:
        made = self._block.insert_arg(like.type, len(self._block.args))
        made.name_hint = like.name_hint
        return made

    def build(self, producer: GenericOp, inlined: Sequence[int]) -> GenericOp:
        """The consumer with the body of the producer before its own, and the producer's operands."""
        consumer = self._consumer
        maps = list(consumer.indexing_maps)
        loops = loops_of_elements(producer)
        assert loops is not None
        place: dict[int, AffineExpr] = dict(zip(loops, maps[inlined[0]].data.results, strict=True))
        through = AffineMap(consumer.get_num_loops(), 0, tuple(place[loop] for loop in range(len(place))))
        scalars: dict[SSAValue, SSAValue] = {}
        before: dict[SSAValue, SSAValue] = {}
        for number, (value, argument) in enumerate(zip(consumer.inputs, consumer.body.block.args, strict=False)):
            if number not in inlined:
                scalars[argument] = self._argument(value, maps[number], argument)
            elif not before:
                for read, own, its in zip(
                    producer.inputs, producer.indexing_maps, producer.body.block.args, strict=False
                ):
                    before[its] = self._argument(read, AffineMapAttr(own.data.compose(through)), its)
        last = consumer.body.block.args[-1]
        scalars[last] = self._new(last)
        result = self._append(producer.body.block, before)
        scalars |= {consumer.body.block.args[number]: result for number in inlined}
        self._block.add_op(YieldOp(self._append(consumer.body.block, scalars)))
        merged = GenericOp(
            [value for value, _ in self._operands],
            consumer.outputs,
            Region(self._block),
            [*(indexing for _, indexing in self._operands), maps[-1]],
            consumer.iterator_types,
            consumer.result_types,
        )
        merged.location = consumer.location
        return merged

    def _append(self, body: Block, scalars: dict[SSAValue, SSAValue]) -> SSAValue:
        """Clone the ops of a body but for its end, and return what it yields."""
        for op in body.ops:
            if isinstance(op, YieldOp):
                return scalars.get(op.operands[0], op.operands[0])
            copy = op.clone(scalars)
            scalars.update(zip(op.results, copy.results, strict=True))
            self._block.add_op(copy)
        raise AssertionError("a body ends in linalg.yield")
