"""
What the arguments of functions reach: which are written, and which are proved to share no memory with another.

`@main`'s own arguments are arrays of the caller, which must not overlap; buffers are disjoint where the plan places
them so; everything else is taken to overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import BufferOp, CopyOp, RingOp, scope_of

VIEWS = (
    memref.SubviewOp,
    memref.ExpandShapeOp,
    memref.CollapseShapeOp,
    memref.CastOp,
    memref.MemorySpaceCastOp,
    memref.ReinterpretCastOp,
)


def roots_of(value: SSAValue, seen: frozenset[SSAValue] = frozenset()) -> frozenset[SSAValue]:
    """The buffers, arguments of functions and other origins that a memref may be a view of."""
    if value in seen:
        return frozenset()
    seen |= {value}
    owner = value.owner
    if isinstance(owner, VIEWS):
        return roots_of(owner.operands[0], seen)
    loop = owner.parent_op() if isinstance(owner, Block) else owner
    if isinstance(loop, scf.ForOp):
        position = loop.results.index(value) if isinstance(value, OpResult) else _argument_index(value) - 1
        terminator = loop.body.block.last_op
        assert terminator is not None
        return roots_of(loop.iter_args[position], seen) | roots_of(terminator.operands[position], seen)
    return frozenset([value])


def _argument_index(value: SSAValue) -> int:
    assert isinstance(value, BlockArgument)
    return value.index


# written arguments


def written_values(op: Operation, target: TargetOp | None, written: Mapping[str, frozenset[int]]) -> list[SSAValue]:
    """The memrefs that one op writes through; `written` says so of the functions that it may call."""
    match op:
        case GenericOp():
            return list(op.outputs)
        case CopyOp() | DmaOp():
            return [op.dest]
        case memref.CopyOp():
            return [op.destination]
        case memref.StoreOp():
            return [op.memref]
        case ExecOp():
            intrinsic = target.intrinsics().get(op.intrinsic_name) if target is not None else None
            outputs = len(intrinsic.generic.outputs) if intrinsic is not None else 1
            return list(op.buffers)[-outputs:]
        case func.CallOp():
            numbers = written.get(op.callee.string_value(), frozenset(range(len(op.arguments))))
            return [op.arguments[number] for number in sorted(numbers)]
        case _:
            return []


def written_arguments(functions: Mapping[str, func.FuncOp], target: TargetOp | None) -> dict[str, frozenset[int]]:
    """For each function, the numbers of the arguments that it or what it calls writes through."""
    written = {name: frozenset[int]() for name in functions}
    changed = True
    while changed:
        changed = False
        for name, function in functions.items():
            found = frozenset(_written(function, target, written))
            changed = changed or found != written[name]
            written[name] = found
    return written


def _written(function: func.FuncOp, target: TargetOp | None, written: Mapping[str, frozenset[int]]) -> Iterable[int]:
    for op in function.walk():
        for value in written_values(op, target, written):
            for root in roots_of(value):
                if isinstance(root, BlockArgument) and root.block.parent_op() is function:
                    yield root.index


# disjoint arguments


def restricted_arguments(functions: Mapping[str, func.FuncOp], entry: str) -> dict[str, frozenset[int]]:
    """For each function, the arguments of which every call proves that no other memory it accesses overlaps them."""
    restricted = {name: frozenset(_memref_arguments(function)) for name, function in functions.items()}
    called = {entry}
    changed = True
    while changed:
        changed = False
        for name, function in functions.items():
            for call in function.walk():
                if not isinstance(call, func.CallOp) or call.callee.string_value() not in functions:
                    continue
                callee = call.callee.string_value()
                called.add(callee)
                shared = _shared_operands(call, functions[callee], restricted[name])
                changed = changed or bool(shared & restricted[callee])
                restricted[callee] -= shared
    return {name: numbers if name in called else frozenset[int]() for name, numbers in restricted.items()}


def _memref_arguments(function: func.FuncOp) -> list[int]:
    return [arg.index for arg in function.body.block.args if isa(arg.type, MemRefType)]


def _shared_operands(call: func.CallOp, callee: func.FuncOp, apart: frozenset[int]) -> set[int]:
    """The operands of a call that may overlap another one, or a buffer of the callee."""
    operands = [
        (number, roots_of(operand)) for number, operand in enumerate(call.arguments) if isa(operand.type, MemRefType)
    ]
    own = [op.memref for op in callee.walk() if isinstance(op, BufferOp)]
    own += [op.ring for op in callee.walk() if isinstance(op, RingOp) and scope_of(op.slot_type) is None]
    shared: set[int] = set()
    for (number, roots), (other, other_roots) in combinations(operands, 2):
        if any(_may_overlap(a, b, apart) for a in roots for b in other_roots):
            shared |= {number, other}
    for number, roots in operands:
        if any(_may_overlap(a, b, apart) for a in roots for b in own):
            shared.add(number)
    return shared


def _may_overlap(one: SSAValue, other: SSAValue, apart: frozenset[int]) -> bool:
    """Whether two origins may share bytes; `apart` are the arguments that overlap nothing else."""
    if one is other:
        return True
    constants = [value.owner.name_ for value in (one, other) if isinstance(value.owner, memref.GetGlobalOp)]
    if constants:
        return len(constants) == 2 and constants[0] == constants[1]
    if isinstance(one.owner, BufferOp) and isinstance(other.owner, BufferOp):
        return _addresses_overlap(one.owner, other.owner)
    numbers = [value.index for value in (one, other) if isinstance(value, BlockArgument)]
    known = [isinstance(value, BlockArgument) or isinstance(value.owner, BufferOp) for value in (one, other)]
    if not all(known):
        return True
    # An argument that overlaps nothing else does not overlap a buffer either.
    return not any(number in apart for number in numbers)


def _addresses_overlap(one: BufferOp, other: BufferOp) -> bool:
    if scope_of(one.type) != scope_of(other.type):
        return False
    if one.byte_offset is None or other.byte_offset is None:
        return True
    one_end, other_end = one.byte_offset + one.size_in_bytes, other.byte_offset + other.size_in_bytes
    return one.byte_offset < other_end and other.byte_offset < one_end
