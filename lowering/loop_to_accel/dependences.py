"""
What a command must wait for.

Bytes are tracked by the allocation or argument they belong to. A read comes after the last write of its
storage; a write after every access of its own storage and of every buffer whose bytes overlap it, for a
planner gives the bytes of a dead buffer to the next. What the kernel never writes needs no order at all. All slots
of a ring count as one storage: which of them a round uses is not looked into.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects import func
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation, SSAValue

from penstock.dialects.mem import BufferOp, CopyOp, RingOp
from penstock.passes.loop.promotion import storage_of


@dataclass(frozen=True)
class Accesses:
    """The storages that a command reads, and those that it writes."""

    reads: tuple[SSAValue, ...]
    writes: tuple[SSAValue, ...]


def accesses_of(op: Operation) -> Accesses | None:
    """What an op of the loop level will access as a command; None if it becomes none."""
    if isinstance(op, CopyOp):
        return Accesses((storage_of(op.source),), (storage_of(op.dest),))
    if isinstance(op, GenericOp):
        inputs = dict.fromkeys(storage_of(value) for value in op.inputs)
        written = [storage_of(value) for value in op.outputs]
        initial = [s for s, arg in zip(written, op.body.block.args[len(op.inputs) :], strict=True) if arg.uses]
        return Accesses((*inputs, *initial), tuple(written))
    return None


def accesses_within(op: Operation) -> Accesses:
    """All that the ops inside `op` access, in program order."""
    found = [accesses for inner in op.walk() if (accesses := accesses_of(inner)) is not None]
    return Accesses(
        tuple(dict.fromkeys(storage for accesses in found for storage in accesses.reads)),
        tuple(dict.fromkeys(storage for accesses in found for storage in accesses.writes)),
    )


def overlapping(function: func.FuncOp) -> dict[SSAValue, tuple[SSAValue, ...]]:
    """For each placed buffer, the others that share bytes with it."""
    placed: list[tuple[SSAValue, str | None, int, int]] = []
    for op in function.walk():
        if isinstance(op, BufferOp | RingOp) and op.byte_offset is not None:
            placed.append((op.storage, op.scope, op.byte_offset, op.byte_offset + op.size_in_bytes))
    return {
        buffer: tuple(
            other
            for other, other_scope, low, high in placed
            if other is not buffer and other_scope == scope and low < end and start < high
        )
        for buffer, scope, start, end in placed
    }


@dataclass(frozen=True)
class History:
    """The tokens of the last write of a storage, and of the reads since."""

    written: tuple[SSAValue, ...] = ()
    read: tuple[SSAValue, ...] = ()


@dataclass
class Tracker:
    """The history of every storage at one point of the program."""

    ordered: frozenset[SSAValue]
    """The storages that the kernel writes somewhere."""
    overlaps: Mapping[SSAValue, Sequence[SSAValue]]
    histories: dict[SSAValue, History] = field(default_factory=dict[SSAValue, History])

    def copy(self) -> Tracker:
        return Tracker(self.ordered, self.overlaps, dict(self.histories))

    def history(self, storage: SSAValue) -> History:
        return self.histories.get(storage, History())

    def tracked(self, storages: Iterable[SSAValue]) -> list[SSAValue]:
        return [storage for storage in storages if storage in self.ordered]

    def dependencies(self, accesses: Accesses) -> list[SSAValue]:
        """The tokens that a command with these accesses comes after."""
        tokens: list[SSAValue] = []
        for storage in self.tracked(accesses.reads):
            tokens += self.history(storage).written
        for storage in self.tracked(accesses.writes):
            for other in (storage, *self.overlaps.get(storage, ())):
                tokens += (*self.history(other).written, *self.history(other).read)
        return list(dict.fromkeys(tokens))

    def record(self, accesses: Accesses, token: SSAValue) -> None:
        """The command has been issued; `token` is its completion."""
        for storage in self.tracked(accesses.reads):
            if storage not in accesses.writes:
                before = self.history(storage)
                self.histories[storage] = History(before.written, (*before.read, token))
        for storage in self.tracked(accesses.writes):
            self.histories[storage] = History((token,))
