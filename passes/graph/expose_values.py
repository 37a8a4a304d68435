# SPDX-License-Identifier: Apache-2.0
"""Return intermediate values, so that they can be compared node by node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp, NameLoc, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from penstock.dialects import graph
from penstock.dialects.diagnostics import UserError
from penstock.dialects.functions import NAME, body_block
from penstock.dialects.graph import NCHW, GraphOp
from penstock.passes.graph.values import LAYOUT_ATTRIBUTE


def layout_of(value: SSAValue) -> StringAttr | None:
    """The layout in which `value` holds an image, where the op that computes it, or its group, says so."""
    op = value.owner
    if isinstance(op, graph.FusedOp):
        return layout_of(op.terminator.values[op.outputs.index(value)])
    if not isinstance(op, Operation):
        return None
    if isinstance(op, graph.CastOp) and LAYOUT_ATTRIBUTE not in op.attributes:
        return layout_of(op.x)
    if isinstance(op, graph.LayoutTransformOp):
        return op.target if {"N", "C"} < set(op.target.data) else None
    found = op.properties.get("layout", op.attributes.get(LAYOUT_ATTRIBUTE))
    return found if isinstance(found, StringAttr) else None


def name_of(op: Operation) -> str:
    """The name in the location of `op`; empty if it has none."""
    return op.location.desc.data if isinstance(op.location, NameLoc) else ""


def _exposed(func: FuncOp, what: str) -> Iterator[tuple[SSAValue, dict[str, Attribute]]]:
    """The values to return, and the attributes of the results."""
    taken: set[str] = set()
    for index, op in enumerate(func.body.block.ops):
        if not isinstance(op, graph.FusedOp) and (what == "groups" or not isinstance(op, GraphOp)):
            continue
        if isinstance(op, graph.ConstantOp):
            continue
        for value in op.results:
            name = name_of(op) or f"{op.name}#{index}"
            if name in taken:
                name = f"{name}#{index}"
            taken.add(name)
            attributes: dict[str, Attribute] = {NAME: StringAttr(name)}
            layout = layout_of(value)
            if layout is not None and layout.data != NCHW:
                attributes[LAYOUT_ATTRIBUTE] = layout
            yield value, attributes


def _expose(func: FuncOp, what: str) -> None:
    block = body_block(func, "a graph")
    last = block.last_op
    if not isinstance(last, ReturnOp):
        raise UserError(f"@{func.sym_name.data} is no graph: it does not end in func.return", loc=func.location)
    given = func.res_attrs.data if func.res_attrs else [DictionaryAttr({})] * len(last.operands)
    results = list(zip(last.operands, given, strict=True))
    for value, attributes in _exposed(func, what):
        result = (value, DictionaryAttr(attributes))
        if result not in results:
            results.append(result)
    values = [value for value, _ in results]
    new = ReturnOp(*values)
    new.location = last.location
    block.insert_op_before(new, last)
    Rewriter.erase_op(last)
    func.function_type = FunctionType.from_lists(list(func.function_type.inputs), [value.type for value in values])
    func.res_attrs = ArrayAttr([attributes for _, attributes in results])


@dataclass(frozen=True)
class ExposeValuesPass(ModulePass):
    """
    Append the results of groups, or of all ops, to those of @main, for a comparison node by node.

    Each new result has the attribute `graph.name`, the name in the location of the op (what op it is where it has none,
    and its number among the ops where that is not unique), and `graph.layout = "NHWC"` where the op says that its
    result is an image with the channels innermost. Constants are not exposed. Running the pass twice adds nothing.
    Requires the graph level; raises UserError if @main is no graph.

    Before:
    ```mlir
    func.func @main(%x: tensor<2xf32>) -> (tensor<2xf32> {graph.name = "y"}) {
      %a = graph.exp %x : tensor<2xf32> loc("exp_1")
      %b = graph.relu %a : tensor<2xf32> loc("relu_1")
      func.return %b : tensor<2xf32>
    }
    ```
    After (`expose-values{of="ops"}`):
    ```mlir
    func.func @main(%x: tensor<2xf32>)
        -> (tensor<2xf32> {graph.name = "y"}, tensor<2xf32> {graph.name = "exp_1"},
        tensor<2xf32> {graph.name = "relu_1"}) {
      %a = graph.exp %x : tensor<2xf32>
      %b = graph.relu %a : tensor<2xf32>
      func.return %b, %a, %b : tensor<2xf32>, tensor<2xf32>, tensor<2xf32>
    }
    ```
    """

    name = "expose-values"

    of: Literal["groups", "ops"] = "groups"
    """Every `graph.fused`, or every graph op outside of groups, and groups."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for func in list(op.ops):
            if isinstance(func, FuncOp) and func.sym_name.data == "main" and func.body.first_block is not None:
                _expose(func, self.of)
