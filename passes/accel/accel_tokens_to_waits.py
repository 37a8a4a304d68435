# SPDX-License-Identifier: Apache-2.0
"""Waits of the processor in place of tokens, for machines whose commands are known by numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from xdsl.context import Context
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.accel import ReadyOp, WaitOp
from penstock.dialects.functions import body_block
from penstock.dialects.machine import TargetOp
from penstock.passes.accel.accel_check_hazards import check_hazards
from penstock.passes.accel.waiting import Completion, Pending, Waiting
from penstock.passes.analysis.commands.program import CommandOp, runs_on, unit_of
from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.schedule.ordering.tokens import is_completed, set_dependencies, tidy


def _complete(completion: Completion, token: SSAValue, pending: Pending) -> list[SSAValue]:
    """A token that is waited for, and those beside it that are complete then."""
    if isinstance(token, BlockArgument):
        beside: Sequence[SSAValue] = token.owner.args
    elif isinstance(last := token.owner, CommandOp) and last.parent is not None:
        beside = [op.token for op in last.parent.ops if isinstance(op, CommandOp)]
    else:
        beside = token.owner.results if isinstance(token.owner, Operation) else ()
    found: list[SSAValue] = [each for each in beside if each in pending and completion.implies(token, each)]
    return found if token in found else [*found, token]


def _begin_with(function: func.FuncOp) -> None:
    """
    A token from before a loop is waited for in its first iteration, and complete in the others: a token that the loop
    carries, and that begins complete, begins with it.
    """
    for op in function.walk():
        loop = op.parent_op()
        if not isinstance(op, CommandOp) or not isinstance(loop, scf.ForOp):
            continue
        waits = list(op.dependencies)
        free = [
            number
            for number, arg in enumerate(loop.body.block.args[1:])
            if arg in waits and is_completed(loop.iter_args[number])
        ]
        for token in [each for each in waits if _is_outside(each, loop)][: len(free)]:
            loop.operands[3 + free.pop(0)] = token
            waits.remove(token)
        set_dependencies(op, waits)


def _is_outside(token: SSAValue, loop: scf.ForOp) -> bool:
    block = token.owner if isinstance(token.owner, Block) else token.owner.parent
    return block is not None and not loop.is_ancestor(block)


@dataclass(frozen=True)
class AccelTokensToWaitsPass(ModulePass):
    """
    Order the commands of a machine by waits of the processor, in place of tokens.

    Requires the accel level, and a machine whose commands run on where they name `{id}`, and are complete when their
    code has been executed where they do not. Guaranteed: no command comes `after` a token. Before one that did, the
    processor waits for those tokens that it has not waited for; after a command that does not run on, for its own. A
    wait names the commands before, too, of the unit that it waits for: the last is enough for all of them, as the
    machine completes them in their order. The kernels are checked for hazards as they are then. Raises UserError
    for one.

    Before:
    ```mlir
    func.func private @k(%x: memref<4x4xf32>, %y: memref<4x4xf32>) attributes {device = @snitch_cluster} {
      %a = mem.buffer at 0 : memref<4x4xf32, "tcdm">
      %b = mem.buffer at 64 : memref<4x4xf32, "tcdm">
      %t = accel.dma %x to %a on "dma_in" : memref<4x4xf32> to memref<4x4xf32, "tcdm">
      %u = accel.dma %y to %b on "dma_in" : memref<4x4xf32> to memref<4x4xf32, "tcdm">
      %v = accel.exec @add extents [4, 4] maps [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>] (%a, %b)
        after (%t, %u) : memref<4x4xf32, "tcdm">, memref<4x4xf32, "tcdm">
      %w = accel.dma %b to %y on "dma_out" after (%v) : memref<4x4xf32, "tcdm"> to memref<4x4xf32>
      accel.barrier
      func.return
    }
    ```
    After (`accel-tokens-to-waits` on `snitch-cluster`):
    ```mlir
    func.func private @k(%x: memref<4x4xf32>, %y: memref<4x4xf32>) attributes {device = @snitch_cluster} {
      %a = mem.buffer at 0 : memref<4x4xf32, "tcdm">
      %b = mem.buffer at 64 : memref<4x4xf32, "tcdm">
      %t = accel.dma %x to %a on "dma_in" : memref<4x4xf32> to memref<4x4xf32, "tcdm">
      %u = accel.dma %y to %b on "dma_in" : memref<4x4xf32> to memref<4x4xf32, "tcdm">
      accel.wait %t, %u
      %v = accel.exec @add extents [4, 4] maps [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>] (%a, %b)
        : memref<4x4xf32, "tcdm">, memref<4x4xf32, "tcdm">
      accel.wait %v
      %w = accel.dma %b to %y on "dma_out" : memref<4x4xf32, "tcdm"> to memref<4x4xf32>
      accel.barrier
      func.return
    }
    ```
    """

    name = "accel-tokens-to-waits"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target, functions = machine_kernels(op)
        if target is None:
            return
        for function in functions:
            self._kernel(function, target)
        check_hazards(op)

    def _kernel(self, function: func.FuncOp, target: TargetOp) -> None:
        block = body_block(function, "ordered by waits")
        completed = ReadyOp()
        Rewriter.insert_op(completed, InsertPoint.at_start(block))
        own = [each for each in function.walk() if isinstance(each, CommandOp) and not runs_on(each, target)]
        for command in own:
            command.token.replace_all_uses_with(completed.token)
        tidy(function, completed.token)
        _begin_with(function)
        waits = Waiting(partial(_complete, completion_of(target)), early=False)
        waits.block(block, frozenset())
        for command in [each for each in function.walk() if isinstance(each, CommandOp)]:
            set_dependencies(command, ())
        for before, tokens in waits.before.items():
            _insert(before, tokens, InsertPoint.before(before))
        for command in own:
            _insert(command, [command.token], InsertPoint.after(command))
        tidy(function, completed.token)
        if not completed.token.uses:
            Rewriter.erase_op(completed)


def completion_of(target: TargetOp) -> Completion:
    """What is complete when tokens of commands are."""

    def issued(token: SSAValue) -> tuple[str, Operation] | None:
        return (unit_of(token.owner, target), token.owner) if isinstance(token.owner, CommandOp) else None

    return Completion(issued, is_completed)


def _insert(op: Operation, tokens: Sequence[SSAValue], place: InsertPoint) -> None:
    wait = WaitOp(tokens)
    wait.location = op.location
    Rewriter.insert_op(wait, place)
