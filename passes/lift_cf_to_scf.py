# SPDX-License-Identifier: Apache-2.0
"""`lift-cf-to-scf`: functions of several blocks as functions of one, with ops that have regions."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects import cf, func, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.passes.control_flow.rebuild import Rebuilder, Values
from penstock.passes.control_flow.structure import Structurer, terminator_of
from penstock.passes.control_flow.tree import Variable


def _erase_unreachable(region: Region) -> None:
    reached, pending = set[Block](), [region.blocks[0]]
    while pending:
        block = pending.pop()
        if block not in reached:
            reached.add(block)
            pending += terminator_of(block).successors
    unreached = [block for block in region.blocks if block not in reached]
    for block in unreached:
        for op in block.ops:
            op.drop_all_references()
    for block in unreached:
        region.erase_block(block, safe_erase=False)


def _leave_at_the_end(region: Region) -> None:
    """Let only the last block leave the region."""
    leaving = [terminator for block in region.blocks if not (terminator := terminator_of(block)).successors]
    if len(leaving) == 1 and leaving[0].parent is region.last_block:
        return
    if not leaving:
        return  # there is a loop that is never left, which is said where it is
    for terminator in leaving[1:]:
        if terminator.name != leaving[0].name or terminator.operand_types != leaving[0].operand_types:
            raise UserError(
                f"the function is left by {terminator.name} here, and by {leaving[0].name} elsewhere",
                loc=location_of(terminator),
                status=UNSUPPORTED,
            )
    last = Block(arg_types=leaving[0].operand_types)
    region.add_block(last)
    end = leaving[0].clone()
    end.operands = last.args
    last.add_op(end)
    for terminator in leaving:
        block = terminator.parent
        assert block is not None
        jump = cf.BranchOp(last, *terminator.operands)
        jump.location = terminator.location
        block.insert_op_before(jump, terminator)
        block.erase_op(terminator)


def _lift(region: Region) -> None:
    _erase_unreachable(region)
    _leave_at_the_end(region)
    structurer = Structurer(region)
    steps = structurer.tree()
    first, *others = region.blocks
    end = terminator_of(others[-1] if others else first)
    variables: list[Variable] = [*structurer.controls]
    for block in region.blocks:
        variables += [*block.args, *(result for op in block.ops for result in op.results)]
        terminator = terminator_of(block)
        terminator.detach()
        if terminator is not end:
            terminator.erase()
    values: Values = {argument: argument for argument in first.args}
    rebuilder = Rebuilder(variables)
    rebuilder.write(Builder(InsertPoint.at_end(first)), steps, values, set(end.operands))
    rebuilder.replace_operands(end, values)
    first.add_op(end)
    for block in others:
        region.erase_block(block)


@dataclass(frozen=True)
class LiftCfToScfPass(ModulePass):
    """
    Make `scf.if`, `scf.index_switch` and `scf.while` of branches between blocks, in functions and `scf.execute_region`.

    Works at every level, on any graph of blocks, and copies no op. A cycle becomes an `scf.while`, which is left in its
    middle where one branch alone leaves it, and at its end otherwise. Where several blocks of a cycle are entered, or
    several are left for, an `index` says which comes next. A value that is read behind the op that it is computed in
    becomes a result of that op; on the ways without it, it is a zero, or an empty tensor, which is not read. Blocks
    that nothing reaches go. Guarantees that every function, and every `scf.execute_region`, is one block.

    Raises UserError (unsupported, located) for a loop that is never left, for terminators with successors that are not
    of `cf`, and for a memref that is made on one of several ways and read where they meet.

    See Bahmann, Reissmann, Jahre and Meyer, "Perfect Reconstructability of Control Flow from Demand Dependence Graphs",
    ACM TACO 11(4), 2015, and MLIR's pass of this name.

    Before:
    ```mlir
    func.func @main(%x: memref<8xf32>, %y: memref<8xf32>) {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %end = arith.constant 8 : index
      cf.br ^head(%zero : index)
    ^head(%i: index):
      %more = arith.cmpi slt, %i, %end : index
      cf.cond_br %more, ^body, ^exit
    ^body:
      %a = memref.load %x[%i] : memref<8xf32>
      %big = arith.cmpf ogt, %a, %a : f32
      cf.cond_br %big, ^double, ^next(%a : f32)
    ^double:
      %b = arith.addf %a, %a : f32
      cf.br ^next(%b : f32)
    ^next(%c: f32):
      memref.store %c, %y[%i] : memref<8xf32>
      %j = arith.addi %i, %one : index
      cf.br ^head(%j : index)
    ^exit:
      func.return
    }
    ```
    After (`lift-cf-to-scf`):
    ```mlir
    func.func @main(%x: memref<8xf32>, %y: memref<8xf32>) {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %end = arith.constant 8 : index
      %i = scf.while (%i_1 = %zero) : (index) -> index {
        %more = arith.cmpi slt, %i_1, %end : index
        scf.condition(%more) %i_1 : index
      } do {
      ^bb0(%i_2: index):
        %a = memref.load %x[%i_2] : memref<8xf32>
        %big = arith.cmpf ogt, %a, %a : f32
        %c = scf.if %big -> (f32) {
          %b = arith.addf %a, %a : f32
          scf.yield %b : f32
        } else {
          scf.yield %a : f32
        }
        memref.store %c, %y[%i_2] : memref<8xf32>
        %j = arith.addi %i_2, %one : index
        scf.yield %j : index
      }
      func.return
    }
    ```
    """

    name = "lift-cf-to-scf"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for each in list(op.walk(region_first=True)):
            if isinstance(each, func.FuncOp | scf.ExecuteRegionOp) and len((region := each.regions[0]).blocks) > 1:
                _lift(region)
