# SPDX-License-Identifier: Apache-2.0
"""
What an op does besides its results: nothing, or perhaps something.

xDSL's own answer leaves out structured ops and calls, which declare no effects: dead and duplicated contractions would
stay, and all loops around them. Here a `linalg` op whose operands are all values is one more function of its operands,
and so is a call of a function that only has such ops.
"""

from __future__ import annotations

from xdsl.dialects import func, scf, tensor
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.dialects.linalg.abstract_ops import LinalgStructuredOperation
from xdsl.ir import Operation
from xdsl.traits import IsTerminator, RecursiveMemoryEffect, SymbolOpInterface, is_side_effect_free

from penstock.dialects.mem import EXPLICIT
from penstock.dialects.upstream.scf import ForallOp
from penstock.passes.analysis.index import is_index_arithmetic


def _touches_memory(op: Operation) -> bool:
    return any(isinstance(value.type, MemRefType) for value in (*op.operands, *op.results))


class Effects:
    """The effects of the ops of a module, found out once each; functions must stay what they are meanwhile."""

    def __init__(self, module: ModuleOp):
        self._functions = {op.sym_name.data: op for op in module.ops if isinstance(op, func.FuncOp)}
        self._known: dict[Operation, bool] = {}
        self._bodies: dict[func.FuncOp, bool] = {}

    def is_pure(self, op: Operation) -> bool:
        """
        Whether an op only computes its results: it may be left out, moved, or done once instead of twice.

        Structured ops and calls with memory among their operands never are, nor ops that end a block or define a
        symbol, nor loops that may not end, nor explicit copies. What makes a buffer is not, but a view
        of one is, and `tensor.empty`, which has no contents.
        """
        found = self._known.get(op)
        if found is None:
            found = self._known[op] = self._find(op)
        return found

    def _find(self, op: Operation) -> bool:
        if op.has_trait(IsTerminator) or op.has_trait(SymbolOpInterface) or not op.results or EXPLICIT in op.attributes:
            return False
        if isinstance(op, func.CallOp):
            callee = self._functions.get(op.callee.string_value())
            return callee is not None and not _touches_memory(op) and self._is_pure_function(callee)
        if isinstance(op, LinalgStructuredOperation):
            return not _touches_memory(op) and self._has_pure_body(op)
        if op.has_trait(RecursiveMemoryEffect):
            return not isinstance(op, scf.WhileOp) and self._has_pure_body(op)
        return is_side_effect_free(op) and self._has_pure_body(op)

    def _is_pure_function(self, function: func.FuncOp) -> bool:
        if function not in self._bodies:
            # One that calls itself may not end.
            self._bodies[function] = False
            self._bodies[function] = bool(function.body.blocks) and self._has_pure_body(function)
        return self._bodies[function]

    def _has_pure_body(self, op: Operation) -> bool:
        inner = (each for region in op.regions for block in region.blocks for each in block.ops)
        return all(self.is_pure(each) or (each.has_trait(IsTerminator) and not each.successors) for each in inner)


def is_computed(op: Operation) -> bool:
    """Whether an op without regions only computes its results, which are the same wherever its operands are."""
    # xDSL does not say it of all arithmetic.
    is_arithmetic = is_index_arithmetic(op) or op.dialect_name() == "arith"
    return not op.regions and (is_arithmetic or is_side_effect_free(op))


def is_destination(op: Operation, index: int) -> bool:
    """Whether an op on tensors overwrites the elements of operand number `index`: such a value has one writer."""
    if isinstance(op, LinalgStructuredOperation):
        return index >= len(op.inputs)
    if isinstance(op, tensor.InsertSliceOp | tensor.InsertOp):
        return index == 1
    if isinstance(op, ForallOp):
        return index >= op.first_output
    return isinstance(op, scf.ForOp) and index >= 3
