"""Inline pointwise ops into the ops that read them, in kernels of the host."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects import arith, math, tensor
from xdsl.dialects.builtin import AffineMapAttr, ModuleOp
from xdsl.dialects.linalg.ops import GenericOp, IndexOp, YieldOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from penstock.passes.analysis.kernels import HOST, device_of, has_reduction, is_contraction, kernels, machine_of

INSTRUCTIONS = (
    *(math.AbsFOp, math.AbsIOp, math.CeilOp, math.CopySignOp, math.FloorOp, math.FmaOp),
    *(math.RoundEvenOp, math.RsqrtOp, math.SqrtOp, math.TruncOp),
)
"""The ops of `math` that processors have; the others are calls of a library."""


def _loops_of_elements(generic: GenericOp) -> list[int] | None:
    """Of a pointwise op, which loop indexes each dim of the result; None for any other op."""
    block = generic.body.block
    if has_reduction(generic) or len(generic.outputs) != 1 or len(generic.results) != 1 or block.args[-1].uses:
        return None
    if any(isinstance(op, IndexOp) for op in block.ops):
        return None
    exprs = list(generic.indexing_maps)[-1].data.results
    loops = [expr.position for expr in exprs if isinstance(expr, AffineDimExpr)]
    return loops if len(loops) == len(exprs) and sorted(loops) == list(range(generic.get_num_loops())) else None


def _computes(generic: GenericOp) -> bool:
    """Whether the body does more than to hand on an element or a number."""
    return any(not isinstance(op, arith.ConstantOp | YieldOp) for op in generic.body.block.ops)


def _calls(generic: GenericOp) -> bool:
    """Whether a point of the op takes a call of the mathematical library."""
    return any(op.name.startswith("math.") and not isinstance(op, INSTRUCTIONS) for op in generic.body.block.ops)


def _inlinable_inputs(producer: GenericOp, consumer: GenericOp) -> list[int] | None:
    """The inputs of `consumer` that may be replaced by the body of `producer`; None where they may not."""
    loops = _loops_of_elements(producer)
    if loops is None or producer.parent is not consumer.parent or is_contraction(consumer):
        return None
    uses = list(producer.results[0].uses)
    inputs = sorted(use.index for use in uses)
    if any(use.operation is not consumer for use in uses) or inputs[-1] >= len(consumer.inputs):
        return None
    maps = list(consumer.indexing_maps)
    if any(maps[number] != maps[inputs[0]] for number in inputs):
        return None
    if not _computes(producer):
        return inputs
    # A loop with a call is not vectorised, and everything else in it would not be either.
    if _calls(producer) != _calls(consumer):
        return None
    # Each element is computed once.
    if prod(consumer.get_static_loop_ranges()) > prod(producer.get_static_loop_ranges()):
        return None
    return inputs


def _bounds_every_loop(generic: GenericOp) -> bool:
    """
    Whether the operands tell how often each loop runs: each is the index of a dim of one of them.

    A producer that repeats its operand, as an expansion does, has the sizes of what it repeats in its result only.
    """
    return generic.get_loops_to_shapes_map().inverse_permutation() is not None


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

    def build(self, producer: GenericOp, inlined: list[int]) -> GenericOp:
        """The consumer with the body of the producer before its own, and the producer's operands."""
        consumer = self._consumer
        maps = list(consumer.indexing_maps)
        loops = _loops_of_elements(producer)
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


def _inline(producer: GenericOp, consumer: GenericOp) -> GenericOp | None:
    """
    Put the body of `producer` before that of `consumer`; None, and nothing is changed, where they must stay apart.

    The producer is pointwise: parallel loops only, each of which indexes its result, and no index in its body. Where
    its result alone gives the size of a loop of the consumer, as that of an expansion which is then reduced, it stays.
    """
    inlined = _inlinable_inputs(producer, consumer)
    if inlined is None or len(consumer.outputs) != 1:
        return None
    together = _Merged(consumer).build(producer, inlined)
    # What multiplies and adds is summed in another order.
    if not _bounds_every_loop(together) or is_contraction(together):
        together.erase()
        return None
    Rewriter.replace_op(consumer, together)
    destination = producer.outputs[0].owner
    Rewriter.erase_op(producer)
    if isinstance(destination, tensor.EmptyOp) and not destination.tensor.uses:
        Rewriter.erase_op(destination)
    return together


def _fuse(consumer: GenericOp) -> None:
    """Inline into a generic all that can be; its producers have been fused themselves."""
    pending: list[Operation | Block] = [value.owner for value in consumer.inputs]
    while pending:
        owner = pending.pop(0)
        if isinstance(owner, GenericOp) and owner.parent is not None:
            together = _inline(owner, consumer)
            if together is not None:
                consumer = together
                pending = [value.owner for value in consumer.inputs]


@dataclass(frozen=True)
class FuseElementwisePass(ModulePass):
    """
    Inline every pointwise `linalg.generic` that one other reads into that one, in kernels of the host.

    Requires the tensor level, after `assign-devices` where the module holds a machine: on it, each op is a command,
    and its body stays as an intrinsic has it. The body of the producer comes before that of the consumer, and the
    consumer reads the producer's operands, indexed by the composition of the maps, as MLIR's
    `linalg-fuse-elementwise-ops` does. The producer has parallel loops only, each of which indexes its result, and
    does not know its index. A reduction takes what is before it; nothing takes what a reduction has computed. An
    expansion stays where its result alone gives the size of a loop: a reduction over what it repeats.

    No work is done twice: the consumer has at most as many points as the producer, unless the producer only hands on
    an element (a transposition, an expansion) or a number. Ops that call the mathematical library (exp, erf) are
    kept apart from those that do not: a loop with a call is not vectorised, and a BERT layer lost a tenth of its
    speed when the arithmetic around erf was put into one. A contraction keeps its body and its operands, and no
    reduction becomes one: sums of products are computed in an order of their own. So results keep every bit.

    Before:
    ```mlir
    #id = affine_map<(d0, d1) -> (d0, d1)>
    func.func private @norms(%x: tensor<4x8xf32>, %s: tensor<8x4xf32>, %zero: tensor<4xf32>) -> tensor<4xf32> {
      %e = tensor.empty() : tensor<4x8xf32>
      %a = linalg.generic {indexing_maps = [#id, affine_map<(d0, d1) -> (d1, d0)>, #id],
          iterator_types = ["parallel", "parallel"]}
          ins(%x, %s : tensor<4x8xf32>, tensor<8x4xf32>) outs(%e : tensor<4x8xf32>) {
      ^bb0(%in: f32, %scale: f32, %out: f32):
        %m = arith.mulf %in, %scale : f32
        linalg.yield %m : f32
      } -> tensor<4x8xf32>
      %y = linalg.generic {indexing_maps = [#id, affine_map<(d0, d1) -> (d0)>],
          iterator_types = ["parallel", "reduction"]}
          ins(%a : tensor<4x8xf32>) outs(%zero : tensor<4xf32>) {
      ^bb0(%in: f32, %total: f32):
        %m = arith.maximumf %total, %in : f32
        linalg.yield %m : f32
      } -> tensor<4xf32>
      func.return %y : tensor<4xf32>
    }
    ```
    After (`fuse-elementwise`):
    ```mlir
    #id = affine_map<(d0, d1) -> (d0, d1)>
    func.func private @norms(%x: tensor<4x8xf32>, %s: tensor<8x4xf32>, %zero: tensor<4xf32>) -> tensor<4xf32> {
      %y = linalg.generic {indexing_maps = [#id, affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d0)>],
          iterator_types = ["parallel", "reduction"]}
          ins(%x, %s : tensor<4x8xf32>, tensor<8x4xf32>) outs(%zero : tensor<4xf32>) {
      ^bb0(%in: f32, %scale: f32, %total: f32):
        %m = arith.mulf %in, %scale : f32
        %m_1 = arith.maximumf %total, %m : f32
        linalg.yield %m_1 : f32
      } -> tensor<4xf32>
      func.return %y : tensor<4xf32>
    }
    ```
    """

    name = "fuse-elementwise"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        devices = (HOST,) if machine_of(op) is not None else (HOST, None)
        for kernel in kernels(op):
            if device_of(kernel) in devices:
                for generic in [each for each in kernel.walk() if isinstance(each, GenericOp)]:
                    if generic.parent is not None:
                        _fuse(generic)
