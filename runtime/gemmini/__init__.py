# SPDX-License-Identifier: Apache-2.0
"""
Instructions of Gemmini executed from their bits: a second opinion on machines/code/gemmini/model.h, kept on purpose.

`read_log` reads what the model has logged, `replay` decodes and executes it again.
"""

from __future__ import annotations

from penstock.runtime.gemmini.executor import Counts, Executor
from penstock.runtime.gemmini.log import Instruction, Log, read_log
from penstock.runtime.gemmini.replay import replay

__all__ = ["Counts", "Executor", "Instruction", "Log", "read_log", "replay"]
