# SPDX-License-Identifier: Apache-2.0
"""
The way out of the IR as C: a program at loop or accel level as readable C11 that any C compiler builds.

`emit_c` is the door. A plug-in that brings an op adds its C to `EMITTERS`, or, for a pure scalar op, to `RULES`; what
is the same in every language, to `EMITTERS` of `penstock.lowering.codegen`.
"""

from __future__ import annotations

from penstock.lowering.codegen.program import CParameter
from penstock.lowering.to_c.module import EMITTERS, GENERATED, CFunction, CSource, CTarget, emit_c
from penstock.lowering.to_c.scalar import RULES

__all__ = ["EMITTERS", "GENERATED", "RULES", "CFunction", "CParameter", "CSource", "CTarget", "emit_c"]
