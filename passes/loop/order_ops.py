# SPDX-License-Identifier: Apache-2.0
"""`order-ops`: the order of the calls of a program that needs the least memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from penstock.dialects.diagnostics import UserError
from penstock.dialects.remarks import is_listened, remark
from penstock.passes.analysis.memory.op_orders import BlockOrder, BlockOrders
from penstock.passes.planning.op_order import DEFAULT_STEPS, OrderOutcome, order_ops
from penstock.passes.planning.order_problem import peak_of


def _needed_first(order: BlockOrder, numbers: Sequence[int]) -> Iterator[Operation]:
    """The ops of the block with those that are ordered in a new order, each preceded by what only follows it."""
    placed: set[Operation] = set(order.ops)
    waiting = [order.ops[number] for number in numbers]
    last = order.block.last_op

    def before(op: Operation) -> Iterator[Operation]:
        for inner in op.walk():
            for value in inner.operands:
                owner = value.owner
                if isinstance(owner, Operation) and owner.parent is order.block and owner not in placed:
                    placed.add(owner)
                    yield from before(owner)
                    yield owner

    for op in waiting:
        yield from before(op)
        yield op
    for op in order.block.ops:
        if op not in placed and op is not last:
            placed.add(op)
            yield from before(op)
            yield op


def rearrange(order: BlockOrder, numbers: Sequence[int]) -> None:
    """Put the ops of a block into another order, which its problem allows."""
    ops = list(_needed_first(order, numbers))
    last = order.block.last_op
    assert last is not None
    for op in ops:
        op.detach()
    order.block.insert_ops_before(ops, last)


def _in_words(order: BlockOrder, outcome: OrderOutcome) -> str:
    before = peak_of(order.problem, order.given)
    certainty = "none is lower" if outcome.is_optimal else f"lower bound {outcome.bound:,}"
    change = f"{before:,} -> {outcome.peak:,}" if outcome.peak < before else f"{before:,}"
    return f"order of {len(order.ops)} ops: peak {change} bytes of the arena, {certainty}"


@dataclass(frozen=True)
class OrderOpsPass(ModulePass):
    """
    Put the ops of each function, above all the calls of @main, into the order in which least of the arena is alive.

    What an op computes, or writes, still comes before what uses it; views, constants and allocations stand before the
    first op that needs them. The order is proved to be of least peak, or the best within `steps`; where the given one
    is as good it stays, and nothing changes. A remark says the peak before and after, and a bound that no order falls
    below. It is the peak of lifetimes, which `mem-plan` may then reach or not.

    Required: the loop level, no plan yet. Guaranteed: the same results bit for bit, and no higher peak. Functions of
    several blocks, those whose ops have effects that are not known, and those with asynchronous commands stay as they
    are. Raises UserError for a negative number of steps. See `op_order` for the search.

    Before:
    ```mlir
    func.func private @double(memref<16xf32>, memref<64xf32>)
    func.func private @sum(memref<64xf32>, memref<16xf32>)
    func.func @main(%x: memref<16xf32>, %y: memref<16xf32>, %z: memref<16xf32>) {
      %a = memref.alloc() : memref<64xf32>
      func.call @double(%x, %a) : (memref<16xf32>, memref<64xf32>) -> ()
      %b = memref.alloc() : memref<64xf32>
      func.call @double(%y, %b) : (memref<16xf32>, memref<64xf32>) -> ()
      func.call @sum(%a, %x) : (memref<64xf32>, memref<16xf32>) -> ()
      func.call @sum(%b, %z) : (memref<64xf32>, memref<16xf32>) -> ()
      func.return
    }
    ```
    After (`order-ops`):
    ```mlir
    func.func private @double(memref<16xf32>, memref<64xf32>)
    func.func private @sum(memref<64xf32>, memref<16xf32>)
    func.func @main(%x: memref<16xf32>, %y: memref<16xf32>, %z: memref<16xf32>) {
      %a = memref.alloc() : memref<64xf32>
      func.call @double(%x, %a) : (memref<16xf32>, memref<64xf32>) -> ()
      func.call @sum(%a, %x) : (memref<64xf32>, memref<16xf32>) -> ()
      %b = memref.alloc() : memref<64xf32>
      func.call @double(%y, %b) : (memref<16xf32>, memref<64xf32>) -> ()
      func.call @sum(%b, %z) : (memref<64xf32>, memref<16xf32>) -> ()
      func.return
    }
    ```
    """

    name = "order-ops"

    steps: int = DEFAULT_STEPS
    """Ops that the search looks at or executes, each after a set of others, for each function."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.steps < 0:
            raise UserError("a limit of order-ops is negative")
        functions = [each for each in op.ops if isinstance(each, func.FuncOp) and not each.is_declaration]
        orders = BlockOrders(op)
        # What a function needs inside is counted as the functions that it calls stand: they change afterwards.
        found = [(function, order) for function in functions if (order := orders.of(function)) is not None]
        for function, order in found:
            outcome = order_ops(order.problem, self.steps)
            if is_listened():
                remark(function, "passed" if outcome.order != order.given else "analysis", _in_words(order, outcome))
            if outcome.order != order.given:
                rearrange(order, outcome.order)
