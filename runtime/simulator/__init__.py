# SPDX-License-Identifier: Apache-2.0
"""
Cycles: what a kernel's commands take on a machine, counted twice by ways that share no code.

`simulate` plays the units, buses and queues event by event; `longest_path` solves the same rules as equations in
max and plus, where no bus is shared by two units. docs/simulation.md states the rules.
"""

from penstock.runtime.simulator.events import simulate
from penstock.runtime.simulator.max_plus import longest_path
from penstock.runtime.simulator.timeline import Simulation

__all__ = ["Simulation", "longest_path", "simulate"]
