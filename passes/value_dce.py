# SPDX-License-Identifier: Apache-2.0
"""Remove what computes an unused value, at every level above memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp, SymbolRefAttr
from xdsl.ir import Attribute, Operation, Region
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from penstock.dialects.functions import WEIGHT
from penstock.passes.analysis.effects import Effects


def _sweep(region: Region, effects: Effects) -> None:
    """Erase the dead ops of a region, users before what they use."""
    for block in region.blocks:
        op = block.last_op
        while op is not None:
            before = op.prev_op
            if effects.is_pure(op) and not any(result.uses for result in op.results):
                Rewriter.erase_op(op)
            else:
                for inner in op.regions:
                    _sweep(inner, effects)
            op = before


def _symbols(op: Operation) -> set[str]:
    """The names of the symbols that an op, or one inside it, refers to."""
    found: set[str] = set()
    pending: list[Attribute] = [
        held for each in op.walk() for held in (*each.properties.values(), *each.attributes.values())
    ]
    while pending:
        held = pending.pop()
        if isinstance(held, SymbolRefAttr):
            found.add(held.root_reference.data)
        elif isinstance(held, ArrayAttr):
            pending += cast(ArrayAttr[Attribute], held).data
        elif isinstance(held, DictionaryAttr):
            pending += held.data.values()
    return found


def _remove_uncalled(module: ModuleOp, referred: Mapping[Operation, set[str]]) -> None:
    """Erase the private functions that nothing refers to, but for such functions."""
    private = {
        op.sym_name.data: op
        for op in module.ops
        if isinstance(op, func.FuncOp) and op.sym_visibility is not None and op.sym_visibility.data == "private"
    }
    pending = [op for op in module.ops if op not in private.values()]
    while pending:
        for name in referred[pending.pop()]:
            if (function := private.pop(name, None)) is not None:
                pending.append(function)
    for function in private.values():
        Rewriter.erase_op(function)


def _remove_unused_weights(function: func.FuncOp) -> None:
    """Erase the arguments that are weights and that the body of a function does not use."""
    if function.arg_attrs is None or function.is_declaration:
        return
    block, attributes = function.body.block, list(function.arg_attrs.data)
    for argument, held in reversed(list(zip(block.args, attributes, strict=True))):
        if WEIGHT in held.data and not argument.uses:
            del attributes[argument.index]
            block.erase_arg(argument)
    function.arg_attrs = ArrayAttr(attributes)
    function.function_type = FunctionType.from_lists(
        [arg.type for arg in block.args], list(function.function_type.outputs)
    )


@dataclass(frozen=True)
class ValueDcePass(ModulePass):
    """
    Remove ops without a use and without effects, functions that are not called, and weights that are not read.

    As `dce`, and beyond it: dead `linalg` ops, loops and calls on tensors go (see `Effects`), and so do private
    functions without a caller and the arguments of @main that are weights without a use. What has effects, or works on
    memory, stays. One sweep from the end to the beginning, in linear time. Guarantees the level that it was given.

    Before:
    ```mlir
    func.func private @square(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = tensor.empty() : tensor<4xf32>
      %1 = linalg.generic {
        indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]
      } ins(%x : tensor<4xf32>) outs(%0 : tensor<4xf32>) {
      ^bb0(%a: f32, %b: f32):
        %c = arith.mulf %a, %a : f32
        linalg.yield %c : f32
      } -> tensor<4xf32>
      func.return %1 : tensor<4xf32>
    }
    func.func @main(%x: tensor<4xf32>, %w: tensor<4xf32> {graph.weight = "w"}) -> tensor<4xf32> {
      %0 = func.call @square(%w) : (tensor<4xf32>) -> tensor<4xf32>
      func.return %x : tensor<4xf32>
    }
    ```
    After (`value-dce`):
    ```mlir
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      func.return %x : tensor<4xf32>
    }
    ```
    """

    name = "value-dce"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        _sweep(op.body, Effects(op))
        referred = {each: _symbols(each) for each in op.ops}
        _remove_uncalled(op, referred)
        called = {name for each in op.ops for name in referred[each]}
        for function in op.ops:
            if isinstance(function, func.FuncOp) and function.sym_name.data not in called:
                _remove_unused_weights(function)
