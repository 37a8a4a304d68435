# SPDX-License-Identifier: Apache-2.0
"""The pass `graph-to-tensor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeGuard

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.functions import body_block
from penstock.lowering.graph_to_tensor.function import FunctionLowering, Kernels, is_graph_op
from penstock.passes.graph.values import require_static


@dataclass(frozen=True)
class GraphToTensorPass(ModulePass):
    """
    Lower functions of graph ops to tensors: `linalg.generic` and no other structured op.

    Requires graph level: each function with graph ops is one block and is not called. A `graph.fused` is a
    kernel; so is an op outside groups that is no view.

    Guarantees: a function that held graph ops holds `func.call`s of kernels, reshapes and slices as views, and
    concatenations as chains of `tensor.insert_slice`; weights are arguments after its own, one a name,
    with the argument attribute `graph.weight`. A kernel is a private function `@fused_N` of `tensor.empty`,
    static `tensor.pad` and `linalg.generic`; kernels of the same structure are one function. Numbers of
    inline constants stand in the bodies. Integers are signless, and ops carry the signedness. An op of a
    kernel has the location of its graph op, a call that of the op that computes its result.

    Raises UserError: for sizes that are not known, for an op without a lowering (status 3), for graph ops inside
    other regions, and for a function with graph ops that is called.

    Before:
    ```mlir
    func.func @main(%x: tensor<4x8xf32>) -> tensor<4x3xf32> {
      %w = graph.constant #graph.weight<"w"> : tensor<8x3xf32>
      %y = graph.fused(%x, %w) pattern complex_out_fusable {
      ^bb0(%a: tensor<4x8xf32>, %b: tensor<8x3xf32>):
        %c = graph.matmul %a, %b : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xf32>
        %d = graph.relu %c : tensor<4x3xf32>
        graph.yield %d : tensor<4x3xf32>
      } : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xf32>
      func.return %y : tensor<4x3xf32>
    }
    ```
    After (`graph-to-tensor`):
    ```mlir
    func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x3xf32> {graph.weight = "w"}) -> tensor<4x3xf32> {
      %y = func.call @fused_0(%x, %w) : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xf32>
      func.return %y : tensor<4x3xf32>
    }
    func.func private @fused_0(%a: tensor<4x8xf32>, %b: tensor<8x3xf32>) -> tensor<4x3xf32> {
      %matmul = tensor.empty() : tensor<4x3xf32>
      %matmul_1 = linalg.generic {indexing_maps = [
          affine_map<(d0, d1) -> (d0, d1)>],
          iterator_types = ["parallel", "parallel"]}
          outs(%matmul : tensor<4x3xf32>) {
      ^bb0(%0: f32):
        %1 = arith.constant 0.000000e+00 : f32
        linalg.yield %1 : f32
      } -> tensor<4x3xf32>
      %matmul_2 = linalg.generic {indexing_maps = [
          affine_map<(d0, d1, d2) -> (d0, d2)>,
          affine_map<(d0, d1, d2) -> (d2, d1)>,
          affine_map<(d0, d1, d2) -> (d0, d1)>],
          iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%a, %b : tensor<4x8xf32>, tensor<8x3xf32>) outs(%matmul_1 : tensor<4x3xf32>) {
      ^bb0(%2: f32, %3: f32, %4: f32):
        %5 = arith.mulf %2, %3 : f32
        %6 = arith.addf %4, %5 : f32
        linalg.yield %6 : f32
      } -> tensor<4x3xf32>
      %relu = tensor.empty() : tensor<4x3xf32>
      %relu_1 = linalg.generic {indexing_maps = [
          affine_map<(d0, d1) -> (d0, d1)>,
          affine_map<(d0, d1) -> (d0, d1)>],
          iterator_types = ["parallel", "parallel"]}
          ins(%matmul_2 : tensor<4x3xf32>) outs(%relu : tensor<4x3xf32>) {
      ^bb0(%7: f32, %8: f32):
        %9 = arith.constant 0.000000e+00 : f32
        %10 = arith.maximumf %7, %9 : f32
        linalg.yield %10 : f32
      } -> tensor<4x3xf32>
      func.return %relu_1 : tensor<4x3xf32>
    }
    ```
    """

    name = "graph-to-tensor"

    reassociates: ClassVar[bool] = True
    """Sums run in the order of the loops, and not in that of the graph level's matrix products."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        lowered = [func for func in op.body.block.ops if _is_graph(func)]
        for func in lowered:
            require_static(func)
        names = {func.sym_name.data for func in lowered}
        for call in op.walk():
            if isinstance(call, CallOp) and call.callee.string_value() in names:
                raise UserError(
                    f"@{call.callee.string_value()} holds graph ops and is called: inline it first",
                    loc=location_of(call),
                )
        kernels = Kernels({name for each in op.body.block.ops if (name := _symbol(each))})
        for func in lowered:
            body_block(func, "lowered to tensors")
            FunctionLowering(func, kernels).run()
        for kernel in kernels.functions:
            op.body.block.add_op(kernel)


def _is_graph(op: Operation) -> TypeGuard[FuncOp]:
    return isinstance(op, FuncOp) and any(is_graph_op(inner) for inner in op.body.walk())


def _symbol(op: Operation) -> str | None:
    name = op.get_attr_or_prop("sym_name")
    return name.data if isinstance(name, StringAttr) else None
