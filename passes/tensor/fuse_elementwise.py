# SPDX-License-Identifier: Apache-2.0
"""Inline pointwise ops into the ops that read them, in kernels of the host."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects import arith, math, tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp, YieldOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from penstock.passes.analysis.kernels import (
    HOST,
    device_of,
    has_reduction,
    is_contraction,
    kernels,
    machine_of,
)
from penstock.passes.analysis.memory.stated_scopes import is_explicit
from penstock.passes.polynomials import polynomial_of
from penstock.passes.schedule.inlining import bounds_every_loop, loops_of_elements, merged

INSTRUCTIONS = (
    *(math.AbsFOp, math.AbsIOp, math.CeilOp, math.CopySignOp, math.FloorOp, math.FmaOp),
    *(math.RoundEvenOp, math.RsqrtOp, math.SqrtOp, math.TruncOp),
)
"""The ops of `math` that processors have; the others are polynomials or calls of a library."""


def _computes(generic: GenericOp) -> bool:
    """Whether the body does more than to hand on an element or a number."""
    return any(not isinstance(op, arith.ConstantOp | YieldOp) for op in generic.body.block.ops)


def _calls(generic: GenericOp) -> bool:
    """Whether a point of the op takes a call of the mathematical library."""
    return any(
        op.name.startswith("math.") and not isinstance(op, INSTRUCTIONS) and polynomial_of(op) is None
        for op in generic.body.block.ops
    )


def _takes_polynomials(generic: GenericOp) -> bool:
    """Whether a point of the op takes a function that becomes a polynomial."""
    return any(polynomial_of(op) is not None for op in generic.body.block.ops)


def _inlinable_inputs(producer: GenericOp, consumer: GenericOp) -> list[int] | None:
    """The inputs of `consumer` that may be replaced by the body of `producer`; None where they may not."""
    loops = loops_of_elements(producer)
    if loops is None or producer.parent is not consumer.parent or is_contraction(consumer):
        return None
    if is_explicit(producer) or is_explicit(consumer):
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
    # Nor is a sum in its order, and a polynomial would be evaluated for one element after the other.
    if _takes_polynomials(producer) and has_reduction(consumer):
        return None
    # Each element is computed once.
    if prod(consumer.get_static_loop_ranges()) > prod(producer.get_static_loop_ranges()):
        return None
    return inputs


def _inline(producer: GenericOp, consumer: GenericOp) -> GenericOp | None:
    """
    Put the body of `producer` before that of `consumer`; None, and nothing is changed, where they must stay apart.

    The producer is pointwise: parallel loops only, each of which indexes its result, and no index in its body. Where
    its result alone gives the size of a loop of the consumer, as that of an expansion which is then reduced, it stays.
    """
    inlined = _inlinable_inputs(producer, consumer)
    if inlined is None or len(consumer.outputs) != 1:
        return None
    together = merged(consumer, producer, inlined)
    # What multiplies and adds is summed in another order.
    if not bounds_every_loop(together) or is_contraction(together):
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
    an element (a transposition, an expansion) or a number. Ops that call the mathematical library (sin, pow) are
    kept apart from those that do not: a loop with a call is not vectorised, and a BERT layer lost a tenth of its
    speed when the arithmetic around erf was put into one that called it. What becomes a polynomial (see
    `math-polynomial-approximation`) is no call, but stays out of reductions. A contraction keeps its body and its
    operands, and no reduction becomes one: sums of products are computed in an order of their own. So results keep
    every bit.

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
