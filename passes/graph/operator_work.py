# SPDX-License-Identifier: Apache-2.0
"""The work of ops of the graph level, in multiply-accumulates."""

from __future__ import annotations

from math import prod

from xdsl.ir import Operation

from penstock.dialects.graph import ConvOp, GemmOp, MatmulOp, tensor_of


def macs_of(op: Operation) -> int:
    """Multiply-accumulates of one op, with the ops inside it."""
    return sum(map(_own_macs, op.walk()))


def _own_macs(op: Operation) -> int:
    if isinstance(op, ConvOp):
        sizes = op.filter_layout.extents(tensor_of(op.w).get_shape())
        pixels = prod(tensor_of(op.result).get_shape()) // sizes["O"]
        return pixels * prod(sizes.values())
    if isinstance(op, GemmOp | MatmulOp):
        shape = tensor_of(op.a).get_shape()
        inner = shape[0] if isinstance(op, GemmOp) and op.trans_a.value.data else shape[-1]
        return inner * prod(tensor_of(op.result).get_shape())
    return 0
