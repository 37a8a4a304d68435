# SPDX-License-Identifier: Apache-2.0
"""Derivatives of kernels that stand at tensor level: a kernel of their adjoints is made, and called."""

from __future__ import annotations

from penstock.dialects.graph.kernel import KernelOp
from penstock.passes.graph.gradients.code import AdjointCode, gradient
from penstock.passes.graph.gradients.kernels.function import kernel_gradient


@gradient(KernelOp)
def kernel(code: AdjointCode, op: KernelOp) -> None:
    """A call of the kernel that computes the adjoints of the operands anew from operands and adjoints of results."""
    wanted = [number for number, value in enumerate(op.inputs) if code.wants(value)]
    seeds = {number: found for number, value in enumerate(op.outputs) if (found := code.adjoint_of(value)) is not None}
    called = op.callee.string_value()
    name = code.kernel(called, tuple(wanted), tuple(seeds), kernel_gradient)
    operands = [*op.inputs, *(seed.value for seed in seeds.values())]
    call = code.call(name, operands, [op.inputs[number].type for number in wanted])
    for number, adjoint in zip(wanted, call, strict=True):
        code.add(op.inputs[number], lambda adjoint=adjoint: adjoint)
