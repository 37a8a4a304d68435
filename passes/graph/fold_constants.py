# SPDX-License-Identifier: Apache-2.0
"""Evaluate what depends on constants only."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, NameLoc
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.context import store_of
from penstock.dialects.graph import ConstantOp, FusedOp, GraphOp, IdentityOp
from penstock.dialects.weights import Array, WeightStore
from penstock.passes.graph.packing import unpacks
from penstock.passes.graph.values import constant_of, erase_dead, graph_blocks
from penstock.runtime.interpreter.graph import evaluate_op, implementation_of

GROWTH_LIMIT = 1 << 20
"""A result of more bytes than this, and than the operands have, is not stored unless it comes from a weight."""


@dataclass
class _Folding:
    """The folding of one block: which values are known, and which weight each of them comes from."""

    block: Block
    store: WeightStore
    growth: int
    arrays: dict[SSAValue, Array] = field(default_factory=dict[SSAValue, Array])
    weights: dict[SSAValue, str | None] = field(default_factory=dict[SSAValue, str | None])

    def run(self) -> None:
        folded = [op for op in list(self.block.ops) if self._evaluate(op)]
        inside = set(folded)
        for op in folded:
            # What only leads to other folded values needs no entry of its own.
            if any(use.operation not in inside for use in op.results[0].uses):
                self._materialise(op)
        for op in reversed(folded):
            Rewriter.erase_op(op)
        erase_dead(self.block)

    def _evaluate(self, op: Operation) -> bool:
        """Evaluate `op` if its operands are known; whether it is to be replaced by its value."""
        if not isinstance(op, GraphOp | FusedOp) or len(op.results) != 1:
            return False
        if isinstance(op, ConstantOp):
            self.weights[op.result] = op.weight
            return False
        if not (isinstance(op, FusedOp) or implementation_of(type(op)) is not None):
            return False
        if not all(self._is_known(operand) for operand in op.operands):
            return False
        if unpacks(op) and any(self.weights[operand] is not None for operand in op.operands):
            return False
        operands = [self._array(operand) for operand in op.operands]
        (array,) = evaluate_op(op, operands, self.store)
        weight = next((name for operand in op.operands if (name := self.weights[operand]) is not None), None)
        if weight is None and array.nbytes > max(self.growth, sum(each.nbytes for each in operands)):
            return False
        result = op.results[0]
        self.arrays[result], self.weights[result] = array, weight
        return True

    def _is_known(self, value: SSAValue) -> bool:
        return value in self.arrays or isinstance(value.owner, ConstantOp)

    def _array(self, value: SSAValue) -> Array:
        if (known := self.arrays.get(value)) is not None:
            return known
        assert isinstance(value.owner, ConstantOp)
        (array,) = evaluate_op(value.owner, [], self.store)
        return array

    def _materialise(self, op: Operation) -> None:
        """Replace the result of `op` by a constant."""
        result = op.results[0]
        if isinstance(op, IdentityOp):
            result.replace_all_uses_with(op.x)
            return
        kind = op.name.split(".")[-1]
        location = op.location
        origin = self.weights[result]
        if origin is None:
            origin = location.desc.data if isinstance(location, NameLoc) else "constant"
        constant = constant_of(self.arrays[result], f"{origin}/{kind}", self.store, location)
        constant.result.name_hint = result.name_hint
        Rewriter.insert_op(constant, InsertPoint.before(op))
        result.replace_all_uses_with(constant.result)


@dataclass(frozen=True)
class FoldConstantsPass(ModulePass):
    """
    Replace every graph op whose operands are all constants by a constant.

    The reference interpreter evaluates it, so the values are those that the program would have computed,
    bit for bit. Results of up to 16 elements stay in the text where they survive it; others become new
    entries of the weight store, called `<first weight>/<op>`, and only those that something reads. What
    would grow beyond a mebibyte out of constants in the text (an expanded scalar) stays an op. Constants
    that nothing reads any more are removed. Weights of 2 or 4 bits are left to a program that unpacks them as it runs.

    Raises UserError if a weight is missing or has another type than the text says.

    Before:
    ```mlir
    func.func @main(%x: tensor<2x3xi64>) -> tensor<2x3xi64> {
      %a = graph.constant dense<[[1], [2], [3]]> : tensor<3x1xi64>
      %b = graph.constant dense<10> : tensor<i64>
      %c = graph.mul %a, %b : (tensor<3x1xi64>, tensor<i64>) -> tensor<3x1xi64>
      %d = graph.reshape %c : tensor<3x1xi64> -> tensor<3xi64>
      %y = graph.add %x, %d : (tensor<2x3xi64>, tensor<3xi64>) -> tensor<2x3xi64>
      func.return %y : tensor<2x3xi64>
    }
    ```
    After (`fold-constants`):
    ```mlir
    func.func @main(%x: tensor<2x3xi64>) -> tensor<2x3xi64> {
      %d = graph.constant dense<[10, 20, 30]> : tensor<3xi64>
      %y = graph.add %x, %d : (tensor<2x3xi64>, tensor<3xi64>) -> tensor<2x3xi64>
      func.return %y : tensor<2x3xi64>
    }
    ```
    """

    name = "fold-constants"

    growth: int = GROWTH_LIMIT
    """The bytes up to which a result that comes from no weight is stored although its operands are smaller."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        store = store_of(ctx)
        for block in graph_blocks(op):
            _Folding(block, store, self.growth).run()
