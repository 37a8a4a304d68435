"""Inline pointwise ops into the ops that read them, in kernels of the host."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.passes.analysis.kernels import HOST, device_of, kernels, machine_of
from penstock.passes.tensor.inline_pointwise import merged


def _inline(producer: GenericOp, consumer: GenericOp) -> GenericOp | None:
    """Put both together; None, and nothing is changed, where they must stay apart."""
    together = merged(producer, consumer)
    if together is None:
        return None
    Rewriter.insert_op(together, InsertPoint.before(consumer))
    together.results[0].name_hint = consumer.results[0].name_hint
    consumer.results[0].replace_all_uses_with(together.results[0])
    destination = producer.outputs[0].owner
    for op in (consumer, producer):
        Rewriter.erase_op(op)
    if isinstance(destination, tensor.EmptyOp) and not destination.tensor.uses:
        Rewriter.erase_op(destination)
    return together


def _fuse(consumer: GenericOp) -> None:
    """Inline into a generic all that can be; its producers have been through this."""
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
