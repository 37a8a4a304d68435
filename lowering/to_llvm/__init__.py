# SPDX-License-Identifier: Apache-2.0
"""
The way out of the IR as LLVM IR: a program at loop or accel level, for LLVM to compile, in this process or elsewhere.

`emit_llvm` is the door. A plug-in that brings an op adds what writes it to `EMITTERS`, or, for a pure scalar op, to
`RULES`.
"""

from __future__ import annotations

from penstock.lowering.to_llvm.module import EMITTERS, LlvmSource, LlvmTarget, emit_llvm
from penstock.lowering.to_llvm.scalar import RULES

__all__ = ["EMITTERS", "RULES", "LlvmSource", "LlvmTarget", "emit_llvm"]
