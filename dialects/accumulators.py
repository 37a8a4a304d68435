# SPDX-License-Identifier: Apache-2.0
"""The types in which sums and products are kept."""

from __future__ import annotations

from xdsl.dialects.builtin import AnyFloat, f32
from xdsl.ir import Attribute


def accumulator_of(element: Attribute) -> Attribute:
    """
    The type in which elements are summed, or multiplied up: f32 for floats of fewer bits, else their own.

    In f16 a running sum of ones ends at 2048, since 2049 is no number of it, and in bf16 at 256. Every level and
    every lowering asks here; see docs/correctness.md.
    """
    return f32 if isinstance(element, AnyFloat) and element.bitwidth < f32.bitwidth else element
