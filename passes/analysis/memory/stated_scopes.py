# SPDX-License-Identifier: Apache-2.0
"""
What a kernel itself says of where its data is: the scopes that its locals are declared in, and its explicit copies.

At the tensor level an op that brings a tensor into being, `tensor.empty` above all, says in `mem.scope` where that is
to live, and a copy that stays one has `mem.explicit`. The `memref.alloc` that the tensor becomes keeps the scope until
`promote` writes it down as `schedule.set_scope`.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import MemRefType, ModuleOp, StringAttr, TensorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.mem import EXPLICIT, OFF_CHIP, SCOPE, BufferOp, scope_of, span_in_bytes
from penstock.passes.analysis.kernels import HOST, REMARK, device_of, kernels, machine_of
from penstock.passes.analysis.memory.storage import in_scope


def stated_scope(value: SSAValue) -> str | None:
    """The scope where the op that brings a value into being says that it is to live; None where it says nothing."""
    owner = value.owner
    scope = owner.attributes.get(SCOPE) if isinstance(owner, Operation) else None
    return scope.data if isinstance(scope, StringAttr) else None


def stated(value: SSAValue) -> dict[str, Attribute]:
    """What the op that brings a value into being says of where it is to live."""
    attributes = value.owner.attributes if isinstance(value.owner, Operation) else {}
    return {name: attributes[name] for name in (SCOPE, OFF_CHIP) if name in attributes}


def is_explicit(op: Operation) -> bool:
    """Whether an op is an explicit copy, or does a part of one: it stays, wherever its data is."""
    return EXPLICIT in op.attributes


def is_explicit_copy(op: Operation) -> bool:
    """Whether a generic is all of an explicit copy: it becomes a transfer."""
    if not isinstance(op, GenericOp) or not is_explicit(op) or not op.inputs:
        return False
    last = op.body.block.last_op
    return last is not None and last.operands[0] is op.body.block.args[0]


def has_own_tiles(kernel: func.FuncOp) -> bool:
    """Whether a kernel is cut into tiles as it is written: it has loops, or says what is copied or where it lives."""
    return states_scopes(kernel) or any(isinstance(op, scf.ForOp) for op in kernel.walk())


def states_scopes(kernel: func.FuncOp) -> bool:
    """Whether a kernel says what is copied, or where something lives."""
    return any(is_explicit(op) or SCOPE in op.attributes for op in kernel.walk())


def stating(kernel: func.FuncOp) -> Iterator[tuple[SSAValue, str]]:
    """What says where it is to live, in program order, and where."""
    for op in kernel.walk():
        for value in op.results[:1]:
            if (scope := stated_scope(value)) is not None:
                yield value, scope


def require_scopes(kernel: func.FuncOp, target: TargetOp) -> None:
    """Raise UserError, where it is said, for a scope that the machine lacks, or that cannot hold what it is to."""
    for value, name in stating(kernel):
        if name == DRAM:
            continue
        if (scope := target.scopes().get(name)) is None:
            notes = [f"its scopes: {', '.join([*target.scopes(), DRAM])}"]
            raise UserError(f'machine "{target.machine_name}" has no scope "{name}"', loc=_place(value), notes=notes)
        type = value.type
        assert isa(type, TensorType | MemRefType)
        if type.element_type not in scope.dtypes.data:
            holds = ", ".join(map(str, scope.dtypes.data))
            message = f'{_called(value)} is of {type.element_type}, and "{name}" holds {holds}'
            raise UserError(message, loc=_place(value))
        size = span_in_bytes(in_scope(MemRefType(type.element_type, type.shape), target, name))
        if size > scope.size_bytes:
            message = f'{_called(value)} takes {size:,} bytes, and "{name}" has {scope.size_bytes:,}'
            raise UserError(message, loc=_place(value), notes=["loops over smaller tiles take less"])


def require_on_machine(kernel: func.FuncOp, reason: str) -> None:
    """Raise UserError, where it is said, for a scope that a kernel on the host cannot have, for this reason."""
    for value, scope in stating(kernel):
        if scope != DRAM:
            message = f'{_called(value)} cannot be in "{scope}": the kernel runs on the host'
            raise UserError(message, loc=_place(value), notes=[f"because {reason}"])


def off_chip_remarks(module: ModuleOp) -> list[str]:
    """Of each local of a kernel that could have been on chip, or should have been, and is not, where it is, and why."""
    found: list[str] = []
    for kernel in kernels(module):
        for op in kernel.walk():
            if isinstance(op, BufferOp | memref.AllocOp) and scope_of(op.results[0].type) is None:
                if (reason := _reason(op, kernel, machine_of(module))) is not None:
                    found.append(f"{location_of(op)}: remark: {_called(op.results[0])} is off chip: {reason}")
    return list(dict.fromkeys(found))


def _reason(op: Operation, kernel: func.FuncOp, target: TargetOp | None) -> str | None:
    reason = op.attributes.get(OFF_CHIP)
    if isinstance(reason, StringAttr):
        return reason.data
    scope = stated_scope(op.results[0])
    if scope in (None, DRAM):
        return None
    if target is None or device_of(kernel) != HOST:
        return f'the host has no scope "{scope}"'
    remark = kernel.attributes.get(REMARK)
    return f"the kernel runs on the host{f', because {remark.data}' if isinstance(remark, StringAttr) else ''}"


def _called(value: SSAValue) -> str:
    return f'"{value.name_hint}"' if value.name_hint else "this tensor"


def _place(value: SSAValue) -> str:
    assert isinstance(value.owner, Operation)
    return location_of(value.owner)
