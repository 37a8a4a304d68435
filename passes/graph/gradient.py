"""Reverse-mode differentiation: from a function, one that computes its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.context import store_of
from penstock.dialects.diagnostics import UserError, did_you_mean, location_of
from penstock.dialects.functions import body_block
from penstock.passes.graph.gradients.function import Request, make_gradient
from penstock.passes.graph.values import require_static


@dataclass(frozen=True)
class GraphGradientPass(ModulePass):
    """
    Make, for the function `of`, a function that computes its derivatives: reverse mode, by adjoint code generation.

    The new function follows `of` and is called `to`, by default `<of>_gradient`; with `replace` it takes the
    place and the name of `of`, so that the gradient of `@main` is what is compiled (and lockstep finds another program
    in its place). It takes the arguments of `of` and
    then the adjoint, or seed, of each result of floats (of those in `results`). It returns one gradient for each entry
    of `wrt`, after the results of `of` if `primal`. An entry is the number of an argument, its `graph.name`, or
    the name of a weight; without any, all arguments of floats are meant. With `seed=one` a result has one element, the
    loss, and 1 as its adjoint, which is then no argument.

    The function consists of graph ops like any other: the values of `of` that are needed, in their order, and the
    adjoint code after them. Only values that depend on what is in `wrt` and that influence a result have adjoints;
    contributions to one are summed from the last op to the first. Common subexpressions are left to `cse`. An adjoint
    has the location of the op that it comes back through, with `/gradient`. At a kink of a function the derivative is
    one of its subgradients: see `docs/differentiation.md`. Ops that are constant almost everywhere, such as `floor`,
    comparisons and casts to integers, let nothing through.

    Requires graph level, before `graph-fuse`, static shapes, one block. Raises UserError: for a function, argument or
    weight that is not there, for integers in `wrt`, and, located at the op, for one that has no derivative (status 3).

    See Wei, Schwartz and Adve, "DLVM: A modern compiler infrastructure for deep learning systems", arXiv:1711.03016,
    section 4.

    Before:
    ```mlir
    func.func @main(%x: tensor<4x8xf32> {graph.name = "x"}) -> tensor<4x3xf32> {
      %w = graph.constant #graph.weight<"w"> : tensor<8x3xf32>
      %z = graph.matmul %x, %w : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xf32>
      %y = graph.tanh %z : tensor<4x3xf32>
      func.return %y : tensor<4x3xf32>
    }
    ```
    After (`graph-gradient{wrt="w" replace=true}`):
    ```mlir
    func.func @main(%x: tensor<4x8xf32> {graph.name = "x"}, %y_seed: tensor<4x3xf32>)
        -> (tensor<8x3xf32> {graph.name = "w/gradient"}) {
      %w = graph.constant #graph.weight<"w"> : tensor<8x3xf32>
      %z = graph.matmul %x, %w : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xf32>
      %y = graph.tanh %z : tensor<4x3xf32>
      %0 = graph.mul %y, %y : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
      %1 = graph.constant dense<1.000000e+00> : tensor<f32>
      %2 = graph.sub %1, %0 : (tensor<f32>, tensor<4x3xf32>) -> tensor<4x3xf32>
      %z_adjoint = graph.mul %y_seed, %2 : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
      %3 = graph.transpose %x perm [1, 0] : tensor<4x8xf32> -> tensor<8x4xf32>
      %w_adjoint = graph.matmul %3, %z_adjoint : (tensor<8x4xf32>, tensor<4x3xf32>) -> tensor<8x3xf32>
      func.return %w_adjoint : tensor<8x3xf32>
    }
    ```
    """

    name = "graph-gradient"

    of: str = "main"
    wrt: tuple[str | int, ...] = ()
    results: tuple[int, ...] = ()
    seed: Literal["argument", "one"] = "argument"
    primal: bool = False
    to: str | None = None
    replace: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        func = self._function(op)
        name = self.of if self.replace else self.to or f"{self.of}_gradient"
        if not self.replace and any(_symbol(other) == name for other in op.body.block.ops):
            raise UserError(
                f"there is a @{name} already", loc=location_of(func), notes=["give it another name: to=..."]
            )
        request = Request(self.wrt, self.results, self.seed, self.primal)
        Rewriter.insert_op(make_gradient(func, name, request, store_of(ctx)), InsertPoint.after(func))
        if self.replace:
            func.detach()
            func.erase()

    def _function(self, module: ModuleOp) -> FuncOp:
        if self.replace and self.to is not None:
            raise UserError("the gradient is either to be called @" + self.to + ", or to replace @" + self.of)
        functions = [op for op in module.body.block.ops if isinstance(op, FuncOp)]
        names = [func.sym_name.data for func in functions]
        if self.of not in names:
            near = did_you_mean(self.of, names)
            raise UserError(f"there is no function @{self.of} to differentiate", notes=[near or f"functions: {names}"])
        func = functions[names.index(self.of)]
        if not isinstance(body_block(func, "differentiated").last_op, ReturnOp):
            raise UserError(f"@{self.of} is no graph: it does not end in func.return", loc=location_of(func))
        require_static(func)
        return func


def _symbol(op: Operation) -> str | None:
    name = op.get_attr_or_prop("sym_name")
    return name.data if isinstance(name, StringAttr) else None
