# SPDX-License-Identifier: Apache-2.0
"""Micro-operations of VTA as bytes, from the tables of `hw_spec.h`: dst 11 bits, src 11, wgt 10."""

from __future__ import annotations

from collections.abc import Sequence


def micro_op_bytes(*micro_ops: Sequence[int]) -> bytes:
    """The words of `(dst, src, wgt)` tuples."""
    return b"".join((dst | src << 11 | wgt << 22).to_bytes(4, "little") for dst, src, wgt in micro_ops)
