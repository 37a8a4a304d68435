# SPDX-License-Identifier: Apache-2.0
"""The ops of all levels below the graph: importing this file registers what each of them does."""

from __future__ import annotations

from penstock.runtime.interpreter import accel, control, forall, loop, scalar, tensor

__all__ = ["accel", "control", "forall", "loop", "scalar", "tensor"]
