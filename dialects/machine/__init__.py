# SPDX-License-Identifier: Apache-2.0
"""
The machine dialect: the target, in the module, so that a module is self-contained.

A machine is a tree of scopes, DMA engines between them, units with intrinsics, and queues between the units.
People write it as TOML (`machines/*.toml`), which `penstock.lowering.from_machine_toml` expands to these
operations; passes read them through the accessors here.

The keys of an operation are those of its table in a machine file, so nothing is lost on the way into the IR. What a
part demands of its own properties is said once, in `faults`, and what parts demand of each other in those of the
target; the verifier raises the first of them, and the reader of machine files reports all of them.
"""

from __future__ import annotations

from xdsl.ir import Dialect

from penstock.dialects.machine.code import CodeOp, StateOp
from penstock.dialects.machine.command import CommandForm, CommandOperand
from penstock.dialects.machine.energy import Activity, EnergyOp
from penstock.dialects.machine.intrinsic import IntrinsicOp, OperandSpec, layout_of
from penstock.dialects.machine.part import (
    DRAM,
    HOST,
    IMMEDIATE,
    REGISTERS,
    STRIDES,
    MachinePart,
    PartFault,
    ints_of,
    numbers_of,
)
from penstock.dialects.machine.parts import FORK, BusOp, DmaOp, MemoryOp, ProcessorOp, QueueOp, ScopeOp, UnitOp
from penstock.dialects.machine.spelling import SpelledPart, Template
from penstock.dialects.machine.target import TargetOp, find_target

__all__ = [
    "DRAM",
    "FORK",
    "HOST",
    "IMMEDIATE",
    "REGISTERS",
    "STRIDES",
    "Activity",
    "BusOp",
    "CodeOp",
    "CommandForm",
    "CommandOperand",
    "DmaOp",
    "EnergyOp",
    "IntrinsicOp",
    "Machine",
    "MachinePart",
    "MemoryOp",
    "OperandSpec",
    "PartFault",
    "ProcessorOp",
    "QueueOp",
    "ScopeOp",
    "SpelledPart",
    "StateOp",
    "TargetOp",
    "Template",
    "UnitOp",
    "find_target",
    "ints_of",
    "layout_of",
    "numbers_of",
]

Machine = Dialect(
    "machine",
    [TargetOp, ScopeOp, BusOp, MemoryOp, UnitOp, ProcessorOp, DmaOp, QueueOp, IntrinsicOp, StateOp, EnergyOp, CodeOp],
    [],
)
