# SPDX-License-Identifier: Apache-2.0
"""
A kernel as the units of a machine see it: plain data, one list of commands in program order.

`trace` makes it of IR. What decides hazards, what counts cycles and what encodes instructions read it; none of them
needs to know a loop. Commands are named by their position in the list; numbers of bytes, cycles and commands are int.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, lru_cache

from xdsl.ir import Operation

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.diagnostics import location_of
from penstock.dialects.machine import Activity, IntrinsicOp, TargetOp
from penstock.dialects.machine import DmaOp as EngineOp
from penstock.dialects.machine.code import TOKENS
from penstock.passes.analysis.commands.region import Region

QueueName = tuple[str, str]
"""The unit that pushes and the unit that pops."""


CommandOp = DmaOp | ExecOp
"""The ops that give a command to a unit."""


@lru_cache(maxsize=16)
def _performers(target: TargetOp) -> tuple[Mapping[str, EngineOp], Mapping[str, IntrinsicOp]]:
    """The engines and intrinsics of a machine, which does not change, by name."""
    return target.dmas(), target.intrinsics()


def engine_of(op: CommandOp, target: TargetOp) -> EngineOp | None:
    """The engine that performs a command; None for what a unit executes."""
    engines, intrinsics = _performers(target)
    name = op.engine.data if isinstance(op, DmaOp) else intrinsics[op.intrinsic_name].dma_name
    return None if name is None else engines[name]


PROCESSOR = "processor"
"""The stream of a machine whose processor waits for what a command comes after."""


def stream_of(op: CommandOp, target: TargetOp) -> str:
    """The stream that waits for what a command comes after, and all that is after it: of its unit, or the processor."""
    code = target.code()
    return PROCESSOR if code is not None and code.order.data == TOKENS else unit_of(op, target)


def runs_on(op: CommandOp, target: TargetOp) -> bool:
    """Whether a command runs on while its stream takes others: always, but for one that the processor waits for."""
    if stream_of(op, target) != PROCESSOR:
        return True
    part = target.dmas()[op.engine.data] if isinstance(op, DmaOp) else target.intrinsics()[op.intrinsic_name]
    return part.runs_on


def unit_of(op: CommandOp, target: TargetOp) -> str:
    """The unit that a command is given to."""
    if (engine := engine_of(op, target)) is not None:
        return engine.unit_name
    assert isinstance(op, ExecOp)
    unit = _performers(target)[1][op.intrinsic_name].unit_name
    assert unit is not None
    return unit


@dataclass(frozen=True)
class Engine:
    """What a DMA engine costs."""

    name: str
    unit: str
    bus: str | None
    latency: int
    row_overhead: int
    outstanding: int


@dataclass(frozen=True)
class Queue:
    """A queue of tokens between two units."""

    source: str
    destination: str
    capacity: int
    blocks: bool
    """Whether a push into the full queue waits until one is popped; otherwise it is an error."""
    initial: int = 0

    @property
    def name(self) -> QueueName:
        return self.source, self.destination


@dataclass(frozen=True)
class MachineModel:
    """The units of a machine, in the order that breaks ties, and what is between them."""

    name: str
    units: tuple[str, ...]
    buses: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """The rate of each, in declaration order: bytes per cycles."""
    engines: Mapping[str, Engine] = field(default_factory=dict[str, Engine])
    queues: tuple[Queue, ...] = ()

    @staticmethod
    def of(target: TargetOp) -> MachineModel:
        """The model of the machine in a module."""
        engines = {
            name: Engine(
                name, dma.unit_name, dma.bus_name, dma.latency_cycles, dma.row_overhead_cycles, dma.outstanding_limit
            )
            for name, dma in target.dmas().items()
        }
        queues = [
            Queue(each.source, each.destination, each.capacity_tokens, each.blocks, each.initial_tokens)
            for each in target.queues()
        ]
        rates = {name: bus.bytes_per_cycle for name, bus in target.buses().items()}
        return MachineModel(target.machine_name, tuple(target.units()), rates, engines, tuple(queues))

    def outstanding(self, command: Command) -> int:
        """How many commands of its unit may be incomplete when a command has started, itself included."""
        engine = self.engines.get(command.engine or "") if command.kind is Kind.TRANSFER else None
        return 1 if engine is None else engine.outstanding

    def starts_alone(self, command: Command) -> bool:
        """Whether a command starts only when all earlier ones of its unit are complete."""
        return self.outstanding(command) <= 1


class Kind(Enum):
    """How a unit performs a command."""

    TRANSFER = "transfer"
    """A DMA, or an intrinsic that an engine performs on the way; several may be in flight."""
    EXEC = "exec"
    """Alone on the unit."""
    CARRIER = "carrier"
    """Only pops and pushes, where no command of its unit can: it takes no time, alone on the unit."""


@dataclass(frozen=True)
class View:
    """Elements of a memref when the command was issued; the one at index i is at `start` + the sum of i x strides."""

    space: str
    """The scope; "dram" off chip."""
    storage: int
    """Off chip the number of the allocation or argument; 0 in a scope, whose offsets are absolute."""
    start: int
    """Bytes from the beginning of the storage."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Bytes from one index to the next, in each dim."""
    element_bytes: int

    @property
    def end(self) -> int:
        """The first byte of the storage after the last element."""
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True) if size)
        return self.start + last + self.element_bytes


@dataclass(eq=False)
class Command:
    """One command that is given to a unit."""

    unit: str
    kind: Kind
    name: str = ""
    """The engine, or the intrinsic."""
    engine: str | None = None
    """Of a transfer: the engine that performs it."""
    cycles: int = 0
    """
    Of an exec depth, ii of all applications, loads of its stationary operand, and conflicts of banks; of a transfer how
    long it occupies its bus.
    """
    iterations: int = 0
    """Of an exec: applications of the intrinsic."""
    macs: int = 0
    loads: int = 0
    """Of an exec: how often it loads a block of its stationary operand."""
    loading: int = 0
    """Of an exec: how many of its cycles that takes."""
    conflicts: int = 0
    """Of an exec: the pairs of its operands that share a bank of their scope, in all applications."""
    conflicting: int = 0
    """Of an exec: how many of its cycles that takes."""
    after: tuple[int, ...] = ()
    """The commands that must be complete before it starts, ascending; SSA tokens become these."""
    pops: tuple[QueueName, ...] = ()
    """The queues that it takes a token from before it starts."""
    pushes: tuple[QueueName, ...] = ()
    """The queues that it puts a token into when it ends, in this order."""
    reads: tuple[Region, ...] = ()
    writes: tuple[Region, ...] = ()
    moved: tuple[tuple[str, str, int], ...] = ()
    """From where, to where, and how many bytes, on the off-chip side."""
    op: Operation | None = None
    """Where it comes from."""
    counters: tuple[int, ...] = ()
    """The iteration of each loop around it, counted from 0, outermost first."""
    operands: tuple[View, ...] = ()
    """Of an exec its buffers; of a transfer the window inside the source, and where that goes: what really moves."""
    padding: tuple[tuple[int, int], ...] = ()
    """Of a transfer: the elements of padding before and after, in each dim of its box; empty if there is none."""
    activity: Activity = field(default_factory=dict[tuple[str, str], int])
    """
    What takes energy. A transfer reads and writes each byte once, padding that it writes included. An exec reads and
    writes what every application of its intrinsic touches, and does the operations of its points: lanes that stand idle
    take nothing.
    """

    @property
    def location(self) -> str | None:
        """Where it comes from, for a message."""
        return None if self.op is None else location_of(self.op)


@dataclass(eq=False)
class Program:
    """The commands of a kernel, in program order."""

    machine: MachineModel
    commands: list[Command]
    barriers: tuple[int, ...] = ()
    """Ascending: before the command of this number, all earlier ones must be complete. There is one at the end, too."""
    storages: tuple[str, ...] = ()
    """The name of every off-chip storage, by its number."""

    @cached_property
    def activity(self) -> Activity:
        """What takes energy, of all commands."""
        times = Counter(id(command.activity) for command in self.commands)
        found = Counter[tuple[str, str]]()
        # Commands of one op share what they do.
        for activity in {id(command.activity): command.activity for command in self.commands}.values():
            for what, count in activity.items():
                found[what] += count * times[id(activity)]
        return found
