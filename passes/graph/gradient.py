# SPDX-License-Identifier: Apache-2.0
"""Reverse-mode differentiation: from a function, one that computes its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import SymbolTable

from penstock.dialects import graph
from penstock.dialects.context import store_of
from penstock.dialects.diagnostics import UserError, did_you_mean, location_of
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.functions import NAME, attribute_text, body_block
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.kernel import KernelOp, called_kernels
from penstock.dialects.weights import WeightStore
from penstock.passes.graph.gradients import (
    rules_contraction,
    rules_control,
    rules_elementwise,
    rules_kernel,
    rules_reduction,
    rules_shape,
)
from penstock.passes.graph.gradients.code import AdjointCode, active_values, is_differentiable
from penstock.passes.graph.gradients.rules_control import lift_weights
from penstock.passes.graph.values import erase_dead, require_static

RULE_MODULES = (rules_contraction, rules_control, rules_elementwise, rules_kernel, rules_reduction, rules_shape)
"""Where our rules are: importing them registers them."""


@dataclass(frozen=True)
class Request:
    """Which derivatives of a function are wanted, and how."""

    wrt: tuple[str | int, ...] = ()
    """Arguments by number or name, and weights by name; none stands for all arguments of floats."""
    results: tuple[int, ...] = ()
    """The numbers of the results that are differentiated; none stands for all of floats."""
    seed: Literal["argument", "one"] = "argument"
    """Whether the adjoints of the results are arguments, or 1, for results of one element."""
    primal: bool = False
    """Whether the results of the function come first among those of its gradient."""


@dataclass(frozen=True)
class _Target:
    """What the function is differentiated with respect to: an argument, or the places of a weight."""

    name: str | None
    values: Sequence[SSAValue]


def _entries(attributes: ArrayAttr[DictionaryAttr] | None, count: int) -> list[DictionaryAttr]:
    """The attributes of so many arguments or results."""
    return [DictionaryAttr({})] * count if attributes is None else list(attributes)


def _named(name: str | None, part: str) -> DictionaryAttr:
    """The attributes of an argument or result that is called `<name>/<part>`."""
    return DictionaryAttr({} if name is None else {NAME: StringAttr(f"{name}/{part}")})


def _attributes(entries: Sequence[DictionaryAttr]) -> ArrayAttr[DictionaryAttr] | None:
    return ArrayAttr(entries) if any(entry.data for entry in entries) else None


def make_gradient(func: FuncOp, name: str, request: Request, store: WeightStore) -> FuncOp:
    """
    The function `name`, not yet in a module, that computes the derivatives of `func`.

    Raises UserError for what `request` names and `func` does not have, and (unsupported, located) for an op without a
    derivative between the two.
    """
    new = func.clone()
    new.sym_name = StringAttr(name)
    block = new.body.block
    lift_weights(block, request.wrt)
    last = block.last_op
    assert isinstance(last, ReturnOp)
    arguments = _entries(func.arg_attrs, len(block.args))
    targets = _targets(func, block, request.wrt)
    chosen = _results(func, request.results)
    forward = [op for op in block.ops if op is not last]
    primal = list(last.arguments)
    last.detach()

    varied = [value for target in targets for value in target.values]
    active = active_values(forward, varied, [primal[index] for index in chosen])
    module = func.parent_op()
    code = AdjointCode(block, active, store, module if isinstance(module, ModuleOp) else None)
    for index in chosen:
        value = primal[index]
        if request.seed == "one":
            seed = _one(value, func)
            if value in active:
                code.emit(seed)
                code.add_seed(value, seed.result)
            continue
        seed_argument = block.insert_arg(value.type, len(block.args))
        seed_argument.name_hint = "seed" if value.name_hint is None else f"{value.name_hint}_seed"
        arguments.append(_named(attribute_text(func, index, NAME, results=True), "seed"))
        code.add_seed(value, seed_argument)
    for op in reversed(forward):
        code.differentiate(op)

    # A rule may have put another op in the place of one.
    primal = list(last.arguments)
    last.erase()
    kept = _entries(new.res_attrs, len(primal)) if request.primal else []
    kept += [_named(target.name, "gradient") for target in targets]
    returned = [*(primal if request.primal else ()), *(_gradient(code, target) for target in targets)]
    block.add_op(ReturnOp(*returned))
    # What only the results needed, and shares of adjoints that were not.
    erase_dead(block, graph.GraphOp | graph.FusedOp | KernelOp)
    new.function_type = FunctionType.from_lists(block.arg_types, [value.type for value in returned])
    new.arg_attrs, new.res_attrs = _attributes(arguments), _attributes(kept)
    return new


def _targets(func: FuncOp, block: Block, wrt: Sequence[str | int]) -> list[_Target]:
    """What `wrt` names, as values of the `block`, a copy of that of `func`."""
    arguments = block.args
    if not wrt:
        wrt = [index for index, argument in enumerate(arguments) if is_differentiable(argument)]
        if not wrt:
            raise UserError(f"@{func.sym_name.data} has no argument of floats", loc=location_of(func))
    weights: dict[str, list[SSAValue]] = {}
    for op in block.ops:
        if isinstance(op, graph.ConstantOp) and op.weight is not None:
            weights.setdefault(op.weight, []).append(op.result)
        for inner in op.walk():
            if isinstance(inner, graph.ConstantOp) and inner.weight in wrt and inner.parent is not block:
                raise UserError(
                    f'the weight "{inner.weight}" is read in a region, where it has no derivative',
                    loc=location_of(inner),
                    notes=[f"make it one of the operands of {op.name}"],
                )
    names = [attribute_text(func, index, NAME) for index in range(len(arguments))]
    known = {name: index for index, name in enumerate(names) if name is not None}
    targets: list[_Target] = []
    for each in wrt:
        index = each if isinstance(each, int) else known.get(each)
        if index is not None and 0 <= index < len(arguments):
            target = _Target(names[index], [arguments[index]])
        elif isinstance(each, str) and each in weights:
            target = _Target(each, weights[each])
        else:
            candidates = [*known, *weights]
            near = did_you_mean(str(each), candidates)
            words = f"it has arguments 0 to {len(arguments) - 1}" if arguments else "it has no arguments"
            words += f", and by name: {', '.join(candidates)}" if candidates else ""
            raise UserError(
                f'@{func.sym_name.data} has no argument or weight "{each}"',
                loc=location_of(func),
                notes=[near or words],
            )
        if not is_differentiable(target.values[0]):
            raise UserError(
                f'"{each}" is a {target.values[0].type}: only floats have derivatives', loc=location_of(func)
            )
        targets.append(target)
    return targets


def _results(func: FuncOp, asked: Sequence[int]) -> list[int]:
    last = func.body.block.last_op
    assert last is not None
    floats = [index for index, value in enumerate(last.operands) if is_differentiable(value)]
    for index in asked:
        if index not in floats:
            raise UserError(
                f"@{func.sym_name.data} has no result {index} of floats",
                loc=location_of(func),
                notes=["results of floats: " + (", ".join(map(str, floats)) or "none")],
            )
    if not floats:
        raise UserError(f"@{func.sym_name.data} has no result of floats", loc=location_of(func))
    return list(asked or floats)


def _one(value: SSAValue, func: FuncOp) -> graph.ConstantOp:
    tensor = tensor_of(value)
    size = math.prod(tensor.get_shape())
    if size != 1:
        raise UserError(
            f"a result of {size} elements has no derivative without a seed",
            loc=location_of(func),
            notes=["seed=one needs a result of one element, a loss; seed=argument takes its adjoint as an argument"],
        )
    dense = graph.dense_of(np.ones(tensor.get_shape(), numpy_dtype(tensor.element_type)))
    assert dense is not None
    return graph.ConstantOp(dense)


def _gradient(code: AdjointCode, target: _Target) -> SSAValue:
    """The adjoint of a target, over all its places; zeros if it influences nothing."""
    found = [adjoint for value in target.values if (adjoint := code.adjoint_of(value)) is not None]
    if not found:
        return code.zeros(target.values[0]).value
    return sum(found[1:], found[0]).value


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
    """The function."""
    wrt: tuple[str | int, ...] = ()
    """What to derive by: numbers or names of arguments, or names of weights; without any, all arguments of floats."""
    results: tuple[int, ...] = ()
    """The numbers of the results that are derived; without any, all of floats."""
    seed: Literal["argument", "one"] = "argument"
    """Where the adjoints of the results come from: arguments, or 1 for a loss of one element."""
    primal: bool = False
    """Whether the results of the function come first."""
    to: str | None = None
    """What the new function is called; by default the old name and `_gradient`."""
    replace: bool = False
    """Whether it takes the place and the name of the old one."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        func = self._function(op)
        name = self.of if self.replace else self.to or f"{self.of}_gradient"
        if not self.replace and SymbolTable.lookup_symbol(op, name) is not None:
            raise UserError(
                f"there is a @{name} already", loc=location_of(func), notes=["give it another name: to=..."]
            )
        request = Request(self.wrt, self.results, self.seed, self.primal)
        Rewriter.insert_op(make_gradient(func, name, request, store_of(ctx)), InsertPoint.after(func))
        if self.replace:
            called = called_kernels(op)
            func.detach()
            func.erase()
            # What only the function called, and its gradient computes anew.
            for name in sorted(called - called_kernels(op)):
                kernel = SymbolTable.lookup_symbol(op, name)
                assert kernel is not None
                Rewriter.erase_op(kernel)

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
