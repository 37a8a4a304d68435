# SPDX-License-Identifier: Apache-2.0
"""
Programs for VTA outside of Penstock: folders of instructions, and an executor of them that knows no compiler.

`emit` writes a folder, `replay` runs one.
"""

from __future__ import annotations

from penstock.runtime.vta.emit import Emission, emit, launch_cycles
from penstock.runtime.vta.executor import Counts, Executor
from penstock.runtime.vta.replay import Replay, expected_outputs, replay

__all__ = ["Counts", "Emission", "Executor", "Replay", "emit", "expected_outputs", "launch_cycles", "replay"]
