# SPDX-License-Identifier: Apache-2.0
"""
The sections of a schedule's text: what it says at each level that the kernel goes through.

`transform.apply_registered_pass "tensor-to-loop"` is where a sequence goes on after the compiler has run that pass on
the whole program: what is before it is one section, what is after it another. A section that changes nothing is the
compiler's to decide.
"""

from __future__ import annotations

from xdsl.dialects import transform
from xdsl.dialects.builtin import DictionaryAttr, UnitAttr
from xdsl.ir import Block, Operation, Region, SSAValue

from penstock.dialects.upstream.handle_ops import ANY_OP
from penstock.dialects.upstream.transform import (
    CastHandleOp,
    GetConsumersOfResultOp,
    GetDefiningOp,
    GetOperandOp,
    GetParentOp,
    GetProducerOfOperandOp,
    GetResultOp,
    MergeHandlesOp,
    ParamConstantOp,
    SplitHandleOp,
)
from penstock.dialects.upstream.transform_tune import KnobOp

START = ""
"""The section of the tensor level, with which a schedule begins."""
LOOPS, ON_CHIP, COMMANDS = "tensor-to-loop", "mem-promote", "loop-to-accel"
"""
The sections of the loop level, after what stays on chip between kernels has been decided, and after copies and ops
became commands.
"""
SECTIONS = (LOOPS, ON_CHIP, COMMANDS)
"""The passes after which another section of a schedule begins, in the order of the pipeline."""

NAVIGATION = (
    transform.MatchOp,
    transform.SelectOp,
    SplitHandleOp,
    MergeHandlesOp,
    GetParentOp,
    GetProducerOfOperandOp,
    GetConsumersOfResultOp,
    GetOperandOp,
    GetResultOp,
    GetDefiningOp,
    CastHandleOp,
    ParamConstantOp,
    KnobOp,
)
"""Ops that find operations, or numbers, and change nothing, as upstream's traits of that name say."""


def changes(op: Operation) -> bool:
    """Whether an op of a schedule may change the kernel."""
    return not isinstance(op, (*NAVIGATION, transform.ApplyRegisteredPassOp, transform.YieldOp))


def new_sequence(name: str) -> transform.NamedSequenceOp:
    """An empty schedule for the kernel `name`."""
    block = Block(arg_types=[ANY_OP])
    block.args[0].name_hint = "kernel"
    read_only = DictionaryAttr({"transform.readonly": UnitAttr()})
    return transform.NamedSequenceOp(name, ([ANY_OP], []), Region(block), arg_attrs=[read_only])


def section_begun_by(op: Operation) -> str | None:
    """The section that begins with an op of a schedule."""
    if isinstance(op, transform.ApplyRegisteredPassOp) and op.pass_name.data in SECTIONS:
        return op.pass_name.data
    return None


def kernel_in(sequence: transform.NamedSequenceOp, section: str) -> SSAValue:
    """The handle of the kernel in a section of a schedule; the first one if it has no such section."""
    ops = sequence.body.block.ops
    return next((op.results[0] for op in ops if section_begun_by(op) == section), sequence.body.block.args[0])


def last_kernel(sequence: transform.NamedSequenceOp) -> SSAValue:
    """The handle of the kernel in the last section of a schedule."""
    marks = [op for op in sequence.body.block.ops if section_begun_by(op) is not None]
    return marks[-1].results[0] if marks else sequence.body.block.args[0]


def section_of(sequence: transform.NamedSequenceOp, section: str) -> list[Operation]:
    """The ops of a section of a schedule."""
    current, found = START, list[Operation]()
    for op in sequence.body.block.ops:
        if (begun := section_begun_by(op)) is not None:
            current = begun
        elif current == section and not isinstance(op, transform.YieldOp):
            found.append(op)
    return found


def decides(sequence: transform.NamedSequenceOp, section: str) -> bool:
    """Whether a section of a schedule says what to do, and does not leave it to the compiler."""
    return any(map(changes, section_of(sequence, section)))
