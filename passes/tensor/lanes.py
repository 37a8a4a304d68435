# SPDX-License-Identifier: Apache-2.0
"""Kernels of a machine in shapes that fill the lanes of its vector units. For their callers the new ones are views."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp

from penstock.dialects.machine import TargetOp
from penstock.passes.analysis.kernels import calls_by_callee, has_reduction
from penstock.passes.tensor.collapse_dims import collapse_dims
from penstock.passes.tensor.partition import Coverage, choose
from penstock.passes.tensor.tile_scopes import unpadded
from penstock.passes.tensor.unit_dims import drop_unit_dims

Rewrite = Callable[[func.FuncOp, ModuleOp], None]


def sums_in_lanes(kernel: func.FuncOp, target: TargetOp) -> None:
    """
    Drop the dims of size 1 of a kernel with a reduction, and of its calls, if its sums take fewer cycles then.

    So does a depthwise convolution where an intrinsic multiplies and adds in lanes: they lie along its channels.
    """
    if not target.is_host and any(isinstance(op, GenericOp) and has_reduction(op) for op in kernel.body.block.ops):
        _keep_if_faster(kernel, target, lambda each, module: drop_unit_dims(each, module, reductions=True))


def points_in_lanes(kernel: func.FuncOp, target: TargetOp) -> None:
    """
    Drop the dims of size 1 of a pointwise kernel whose results end in one, and collapse dims if it takes fewer cycles
    then: where rows do not fill the lanes, and follow each other without gaps, they are one. A host does the latter by
    `collapse-dims`. What another kernel makes or takes keeps its shape, or it would not stay on chip between the two.
    """
    module = kernel.parent_op()
    assert isinstance(module, ModuleOp)
    drop_unit_dims(kernel, module)
    calls = calls_by_callee(module).get(kernel.sym_name.data, ())
    is_pointwise = not any(isinstance(op, GenericOp) and has_reduction(op) for op in kernel.body.block.ops)
    if not target.is_host and is_pointwise and not any(map(_is_between_kernels, calls)):
        _keep_if_faster(kernel, target, _collapse)


def _is_between_kernels(call: func.CallOp) -> bool:
    users = (use.operation for value in call.results for use in value.uses)
    return any(isinstance(op, func.CallOp) for op in (*users, *(value.owner for value in call.operands)))


def _collapse(kernel: func.FuncOp, module: ModuleOp) -> None:
    collapse_dims(kernel, calls_by_callee(module).get(kernel.sym_name.data, ()))


def _keep_if_faster(kernel: func.FuncOp, target: TargetOp, rewrite: Rewrite) -> None:
    copy = kernel.clone()
    rewrite(copy, ModuleOp([copy]))
    module = kernel.parent_op()
    assert isinstance(module, ModuleOp)
    if _cycles(copy, target) < _cycles(kernel, target):
        rewrite(kernel, module)


def _cycles(kernel: func.FuncOp, target: TargetOp) -> float:
    """The cycles of what the kernel sums, or else of all that it computes; infinite if the machine lacks any of it."""
    generics = [op for op in kernel.body.block.ops if isinstance(op, GenericOp)]
    counted = [op for op in generics if has_reduction(op)] or generics
    return sum(_cycles_of(op, target) for op in counted)


def _cycles_of(generic: GenericOp, target: TargetOp) -> float:
    choice = choose(generic, target)
    if not isinstance(choice, Coverage):
        return inf
    # In place of an input the operands are others, but that one is computed: it is no window.
    windows = enumerate(generic.operands) if choice.in_place is None else ()
    if any(unpadded(value, choice.match, number, target) is not None for number, value in windows):
        return inf
    return choice.cycles
