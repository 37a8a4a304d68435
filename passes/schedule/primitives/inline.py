# SPDX-License-Identifier: Apache-2.0
"""Inlining a pointwise op into the ops that read it."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.linalg.ops import GenericOp
from xdsl.rewriter import Rewriter

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.schedule_tensor import InlineOp
from penstock.passes.schedule.inlining import bounds_every_loop, loops_of_elements, merged
from penstock.passes.schedule.primitives.compute_at import erase_with_slices
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState


@PRIMITIVES.register(InlineOp)
def inline(state: TransformState, op: InlineOp) -> Sequence[Payload]:
    """
    Put the body of a pointwise op before that of each op that reads it, as the pass `fuse-elementwise` does.

    Every element is computed where it is read, as often as it is read. Where a reader is a product of what it reads, or
    becomes one, sums of floats may be rounded otherwise. Raises UserError for a producer that is not pointwise, whose
    result is read by anything but structured ops as an input, and where its result alone gives the size of a loop.

    Before:
    ```mlir
    #id = affine_map<(d0, d1) -> (d0, d1)>
    func.func private @f(%x: tensor<4x8xi32>, %zero: tensor<4xi32>) -> tensor<4xi32> {
      %e = tensor.empty() : tensor<4x8xi32>
      %a = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
          ins(%x : tensor<4x8xi32>) outs(%e : tensor<4x8xi32>) {
      ^bb0(%in: i32, %out: i32):
        %m = arith.muli %in, %in : i32
        linalg.yield %m : i32
      } -> tensor<4x8xi32>
      %y = linalg.generic {indexing_maps = [#id, affine_map<(d0, d1) -> (d0)>],
          iterator_types = ["parallel", "reduction"]}
          ins(%a : tensor<4x8xi32>) outs(%zero : tensor<4xi32>) {
      ^bb0(%in: i32, %total: i32):
        %s = arith.addi %total, %in : i32
        linalg.yield %s : i32
      } -> tensor<4xi32>
      func.return %y : tensor<4xi32>
    }
    ```
    After (`%merged = schedule.inline %a`):
    ```mlir
    #id = affine_map<(d0, d1) -> (d0, d1)>
    func.func private @f(%x: tensor<4x8xi32>, %zero: tensor<4xi32>) -> tensor<4xi32> {
      %y = linalg.generic {indexing_maps = [#id, affine_map<(d0, d1) -> (d0)>],
          iterator_types = ["parallel", "reduction"]}
          ins(%x : tensor<4x8xi32>) outs(%zero : tensor<4xi32>) {
      ^bb0(%in: i32, %total: i32):
        %m = arith.muli %in, %in : i32
        %s = arith.addi %total, %m : i32
        linalg.yield %s : i32
      } -> tensor<4xi32>
      func.return %y : tensor<4xi32>
    }
    ```
    """
    producer = state.one(op.producer, GenericOp)
    if loops_of_elements(producer) is None:
        raise UserError(
            "the op is not pointwise: it has a reduction or asks for its index, or some loop does not index its result",
            loc=location_of(producer),
        )
    readers: dict[GenericOp, None] = {}
    for use in producer.results[0].uses:
        reader = use.operation
        if not isinstance(reader, GenericOp) or use.index >= len(reader.inputs) or len(reader.outputs) != 1:
            is_start = isinstance(reader, GenericOp) and use.index >= len(reader.inputs)
            raise UserError(
                f"{reader.name} starts from what the op computes"
                if is_start
                else f"{reader.name} reads what the op computes, and has no body to put it into",
                loc=location_of(reader),
                notes=["schedule.compute_at computes it in a loop"] * (reader.name == "tensor.extract_slice"),
            )
        readers[reader] = None
    if not readers:
        raise UserError("nothing reads what the op computes", loc=location_of(producer))
    order = {each: number for number, each in enumerate(state.kernel.walk())}
    made = {reader: _merged_into(producer, reader) for reader in sorted(readers, key=order.__getitem__)}
    for reader, together in made.items():
        if together is None:
            for other in made.values():
                if other is not None:
                    other.erase()
            raise UserError(
                "the op repeats elements, and only its result says how often",
                loc=location_of(producer),
                notes=[f"so the loops of what is at {location_of(reader)} would have no bounds"],
            )
    found: list[GenericOp] = []
    for reader, together in made.items():
        assert together is not None
        Rewriter.replace_op(reader, together)
        found.append(together)
    erase_with_slices(producer)
    return (tuple(found),)


def _merged_into(producer: GenericOp, reader: GenericOp) -> GenericOp | None:
    """The reader with the body of the producer in it, not inserted; None if a loop would have no bounds."""
    together: GenericOp | None = None
    while True:
        current = together or reader
        inputs = [number for number, value in enumerate(current.inputs) if value is producer.results[0]]
        if not inputs:
            break
        # Elements that are read at several places are computed at each.
        maps = list(current.indexing_maps)
        alike = [number for number in inputs if maps[number] == maps[inputs[0]]]
        further = merged(current, producer, alike)
        if together is not None:
            together.erase()
        together = further
    assert together is not None
    if not bounds_every_loop(together):
        together.erase()
        return None
    return together
