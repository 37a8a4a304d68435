# SPDX-License-Identifier: Apache-2.0
"""What loops of `@main` carry from one iteration to the next by a copy, where the two buffers could take turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Operation, SSAValue

from penstock.dialects.mem import CopyOp, memref_of, static_strides
from penstock.passes.analysis.memory.dataflow import DataFlow, Flows
from penstock.passes.analysis.memory.storage import VIEWS


@dataclass(frozen=True)
class Carried:
    """A copy that ends an iteration: what the next one reads in `old` is what this one has made in `new`."""

    copy: CopyOp
    is_own: bool
    """Whether each iteration makes `new` anew; otherwise it is a part of something from outside."""

    @property
    def old(self) -> SSAValue:
        return self.copy.dest

    @property
    def new(self) -> SSAValue:
        return self.copy.source


@dataclass
class Finder:
    """What a loop of `@main` carries."""

    loop: scf.ForOp
    flow: DataFlow
    flows: Flows
    kernels: frozenset[str]
    """The names of the kernels of the machine."""

    def carried(self) -> Iterator[Carried]:
        """Each copy that rotation makes needless, no two from one buffer."""
        taken: set[SSAValue] = set()
        for op in self.loop.body.block.ops:
            if isinstance(op, CopyOp) and op.source not in taken and (found := self._carried(op)) is not None:
                taken.add(op.source)
                yield found

    def _carried(self, copy: CopyOp) -> Carried | None:
        old, new = copy.dest, copy.source
        if (
            not memref_of(old).has_static_shape()
            or copy.window_side is not None
            or self.loop.is_ancestor(made_by(old))
            or new.owner not in _body(self.loop)
        ):
            return None
        type = memref_of(old)
        plain = MemRefType(type.element_type, type.get_shape())
        strides = memref_of(new).get_strides()
        if type != plain or strides is None or tuple(strides) != static_strides(plain):
            return None
        readers, makers = self._users(old), self._users(new)
        if readers is None or makers is None:
            return None
        is_own = isinstance(new.owner, memref.AllocOp)
        number, made = self._bit(old), self._bit(new)
        others = [op for op in readers if op is not copy]
        if number == made or any(self._writes(op, number) or not self._is_before(op, copy) for op in others):
            return None
        if any(self._writes(op, made) and not self._is_before(op, copy) for op in makers):
            return None
        if not is_own and not self._fills(makers[0], new):
            return None
        on_machine = [op for op in makers if self._writes(op, made)]
        if not any(map(self._is_on_machine, others)) or not any(map(self._is_on_machine, on_machine)):
            return None
        return Carried(copy, is_own)

    def _bit(self, value: SSAValue) -> int:
        return self.flow.aliases.of(value)

    def _users(self, value: SSAValue) -> list[Operation] | None:
        """The ops of the loop that touch the bytes of a memref, in order; None if any does but by this value."""
        derived, pending = {value}, [value]
        while pending:
            for use in pending.pop().uses:
                if isinstance(use.operation, VIEWS):
                    derived.add(use.operation.results[0])
                    pending.append(use.operation.results[0])
        root = self._bit(value)
        if root & (root - 1):
            return None
        found: list[Operation] = []
        for op in self.loop.walk():
            if op is self.loop or isinstance(op, (*VIEWS, memref.AllocOp, scf.ForOp)):
                continue
            touching = [operand for operand in op.operands if self._is_memory(operand) and self._bit(operand) & root]
            if touching and (op not in self.flow.effects or isinstance(op, memref.DeallocOp)):
                return None
            if not derived.issuperset(touching):
                return None
            if touching:
                found.append(op)
        return found

    def _is_memory(self, value: SSAValue) -> bool:
        return isinstance(value.type, MemRefType)

    def _writes(self, op: Operation, root: int) -> bool:
        return bool(self.flow.effects[op].writes & root)

    def _is_before(self, op: Operation, copy: CopyOp) -> bool:
        ancestor = self.loop.body.block.find_ancestor_op_in_block(op)
        assert ancestor is not None
        return ancestor.is_before_in_block(copy)

    def _fills(self, op: Operation, value: SSAValue) -> bool:
        """Whether an op of the body certainly writes all of `value` before anything reads it."""
        if op.parent is not self.loop.body.block:
            return False
        if isinstance(op, CopyOp):
            return op.dest is value and op.source is not value and op.window_side != "dest"
        if not isinstance(op, func.CallOp) or (summary := self.flows.summarize(op)) is None:
            return False
        places = [number for number, operand in enumerate(op.operands) if operand is value]
        return bool(places) and summary.fills.issuperset(places)

    def _is_on_machine(self, op: Operation) -> bool:
        return isinstance(op, func.CallOp) and op.callee.string_value() in self.kernels


def made_by(value: SSAValue) -> Operation:
    """The op that makes a value, or holds the block that it is an argument of."""
    owner = value.owner if isinstance(value.owner, Operation) else value.owner.parent_op()
    assert owner is not None
    return owner


def _body(loop: scf.ForOp) -> Sequence[Operation]:
    return list(loop.body.block.ops)
