"""
A kernel of the accelerator level as the list of its commands.

The loops are gone through and the indices computed, but nothing is moved and nothing multiplied. A function becomes one
of Python first, as in the interpreter: arithmetic in line, each command a call.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import DYNAMIC_INDEX, IndexType, IntegerType, MemRefType, ModuleOp
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Operation, SSAValue

from penstock.dialects import accel, mem
from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.functions import body_block
from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.mem import element_bytes, memref_of, scope_of
from penstock.dialects.verification import require_dominance
from penstock.passes.analysis.commands.program import MachineModel, Program, View
from penstock.passes.analysis.commands.tracing.commands import (
    OFFSET_MASK,
    STORAGE_SHIFT,
    execution,
    strides_of,
    transfer,
)
from penstock.passes.analysis.commands.tracing.recorder import NOTHING, Recorder, join
from penstock.passes.analysis.kernels import ENTRY, device_of, machine_of
from penstock.runtime.interpreter.ownership import Ownership
from penstock.runtime.interpreter.source import Writer

Rounds = Callable[[scf.ForOp, int, tuple[int, ...]], Iterable[int]]
"""From a loop, its number of rounds and the counters of those around it to the rounds that are gone through."""

ARENA = 0
"""The storage off chip of buffers that have a place there."""


def trace(
    function: func.FuncOp,
    target: TargetOp,
    *,
    limit: int = 1_000_000,
    rounds: Rounds | None = None,
    arguments: Sequence[View | None] | None = None,
    storages: Sequence[str] | None = None,
    record: Callable[[MachineModel, int], Recorder] = Recorder,
) -> Program:
    """
    The commands of one kernel at the accelerator level, in program order.

    Off chip each argument is a storage of its own, the first of them number 1, and 0 is what buffers with a place
    share; so are arguments in a scope, as nobody knows where in it they lie. With `arguments`, each memref begins where
    its view does instead, and `storages` names the storages off chip. `rounds` says which rounds of a loop to go
    through, in place of all; `record` makes the recorder, for who wants to know more of the commands.

    Raises UserError, located, for more commands than `limit`, for anything but loops, views, index arithmetic and
    commands, for what has no static shape or no place, and where a window or view leaves its memref.
    """
    recorder = record(MachineModel.of(target), limit)
    writer = _Tracer(recorder, target, function, rounds)
    addresses: list[int] = []
    for number, address in enumerate(writer.own_storages()):
        view = arguments[number] if arguments is not None else None
        addresses.append(address if view is None else (view.storage << STORAGE_SHIFT) + view.start)
    writer.ops(writer.block.ops)
    run = writer.finish(function).function
    with _without_collection():
        run(*addresses)
    return recorder.program(writer.storages if storages is None else storages)


@contextmanager
def _without_collection() -> Generator[None]:
    """Commands refer to nothing that refers to them: looking for cycles among a million only takes time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True)
class Call:
    """One run of a kernel."""

    op: func.CallOp
    function: func.FuncOp
    arguments: tuple[View | None, ...]
    """Where each memref lies; None for anything else."""
    program: Program | None
    """Its commands; None for a kernel of the host, and where they were not asked for."""


def trace_calls(module: ModuleOp, *, limit: int = 1_000_000, commands: bool = True) -> Iterator[Call]:
    """
    The kernels in the order in which one run of `@main` calls them, each with its commands, traced as it is asked for.

    Memrefs lie where they do in the run: in their scope, if something stays there between kernels, or in a storage off
    chip that has the same number in all of them. Without `commands` only the calls are found. Raises UserError as
    `trace` does, `limit` counting for each kernel.
    """
    target = machine_of(module)
    functions = {op.sym_name.data: op for op in module.ops if isinstance(op, func.FuncOp)}
    entry = functions.get(ENTRY)
    if target is None or entry is None or entry.is_declaration:
        return
    found: list[tuple[func.CallOp, tuple[int, ...]]] = []
    writer = _Tracer(Recorder(MachineModel.of(target), 0), target, entry, None)

    def called(op: func.CallOp, *addresses: int) -> None:
        found.append((op, addresses))

    writer.called = called
    addresses = writer.own_storages()
    writer.ops(writer.block.ops)
    writer.finish(entry).function(*addresses)
    traced: dict[tuple[str, tuple[int, ...]], Program] = {}
    for op, at in found:
        name = op.callee.string_value()
        function = functions[name]
        views = tuple(_view(value, address, op) for value, address in zip(op.arguments, at, strict=True))
        program = None
        if commands and device_of(function) == target.sym_name.data:
            program = traced.get((name, at))
            if program is None:
                program = trace(function, target, limit=limit, arguments=views, storages=writer.storages)
                traced[name, at] = program
        yield Call(op, function, views, program)


def _view(value: SSAValue, address: int, op: Operation) -> View | None:
    if not isinstance(value.type, MemRefType):
        return None
    type = memref_of(value)
    storage, start = address >> STORAGE_SHIFT, address & OFFSET_MASK
    return View(scope_of(type) or DRAM, storage, start, type.get_shape(), strides_of(value, op), element_bytes(type))


class _Tracer(Writer):
    """Writes the Python function that issues the commands of a kernel."""

    def __init__(self, recorder: Recorder, target: TargetOp, function: func.FuncOp, rounds: Rounds | None):
        super().__init__(None, Ownership(function), None)
        self.recorder = recorder
        self.target = target
        self.rounds = rounds
        self.loops: list[str] = []
        """The counters of the loops around what is being written."""
        self.storages = [""]
        """The names of the storages off chip by their number."""
        self.called: Callable[..., None] | None = None
        """What is told of a call, and of the addresses of its arguments, where calls are allowed; what the host
        itself does to memory between them is left out."""
        self.block = body_block(function, "followed command by command")
        require_dominance(function)
        self._unknown: set[SSAValue] = {
            argument for argument in self.block.args if not isinstance(argument.type, MemRefType)
        }
        """Values that only a run knows."""

    def new_storage(self, name: str) -> int:
        """The address at which another storage begins."""
        self.storages.append(name)
        return len(self.storages) - 1 << STORAGE_SHIFT

    def own_storages(self) -> list[int]:
        """The address of each argument, all in storages of their own."""
        return [
            self.new_storage(f"%{value.name_hint}" if value.name_hint else f"argument {number}")
            for number, value in enumerate(self.block.args)
        ]

    @property
    def counters(self) -> str:
        return f"({''.join(f'{counter}, ' for counter in self.loops)})"

    def offsets(self, offsets: Sequence[int | SSAValue]) -> list[str]:
        return [str(each) if isinstance(each, int) else self.name(each) for each in offsets]

    def name(self, value: SSAValue) -> str:
        """The Python variable of a value; raises UserError, at the op being written, for one that only a run knows."""
        if value in self._unknown and self._current is not None:
            raise UserError(
                "which commands the machine gets, and on which bytes, depends here on a value that only a run knows",
                loc=location_of(self._current),
                notes=["a proof of all runs needs bounds, conditions and offsets that are constants or loop counters"],
            )
        return super().name(value)

    def _write(self, op: Operation) -> None:
        on_host = self.called is not None and not _calls(op)
        if op.name.startswith("arith.") and not self._unknown.isdisjoint(op.operands):
            self._unknown.update(op.results)
        elif on_host and isinstance(op, scf.ForOp | scf.IfOp) and not (_gives_places(op) and self._knows(op)):
            self._unknown.update(op.results)
        elif (emit := _EMITTERS.get(type(op))) is not None:
            emit(self, op)
        elif isinstance(op, func.CallOp) and self.called is not None:
            self._write_call(op)
        elif isinstance(op, func.ReturnOp):
            self.line("return")
        elif op.name.startswith("arith.") or isinstance(op, scf.IfOp):
            super()._write(op)
        elif on_host:
            self._unknown.update(op.results)
        elif self.called is not None:
            raise UserError(f"the calls inside {op.name} cannot be followed", loc=location_of(op))
        else:
            raise UserError(f"{op.name} is nothing that a kernel of the machine does", loc=location_of(op))

    def _knows(self, op: Operation) -> bool:
        return self._unknown.isdisjoint(op.operands)

    def _write_call(self, op: func.CallOp) -> None:
        addresses = "".join(
            f"{self.name(value) if isinstance(value.type, MemRefType) else None}, " for value in op.arguments
        )
        self.line(f"{self.bind(self.called, 'called')}({self.bind(op, 'op')}, {addresses})")
        self._unknown.update(op.results)


def _gives_places(op: Operation) -> bool:
    """Whether bytes that the machine gets may depend on a result: on an index, a condition or a memref."""
    return any(isinstance(result.type, IndexType | IntegerType | MemRefType) for result in op.results)


def _calls(op: Operation) -> bool:
    """Whether `op` is a call, or holds one."""
    return any(isinstance(inner, func.CallOp) for inner in op.walk())


# control


def _for(writer: _Tracer, op: scf.ForOp) -> None:
    block = op.body.block
    counter = f"c{len(writer.loops)}"
    for value, argument in zip(op.iter_args, block.args[1:], strict=True):
        writer.assign(argument, writer.name(value))
    bounds = ", ".join(writer.name(value) for value in (op.lb, op.ub, op.step))
    if writer.rounds is None:
        writer.line(f"for {counter}, {writer.name(block.args[0])} in enumerate(range({bounds})):")
    else:
        rounds, loop = writer.bind(writer.rounds, "rounds"), writer.bind(op, "loop")
        writer.line(f"for {counter} in {rounds}({loop}, len(range({bounds})), {writer.counters}):")
    terminator = block.last_op
    assert isinstance(terminator, scf.YieldOp)
    with writer.indented():
        if writer.rounds is not None:
            writer.assign(block.args[0], f"{writer.name(op.lb)} + {counter} * {writer.name(op.step)}")
        writer.loops.append(counter)
        writer.ops([inner for inner in block.ops if inner is not terminator])
        writer.loops.pop()
        carried = [
            (writer.name(to), writer.name(value)) for to, value in zip(block.args[1:], terminator.operands, strict=True)
        ]
        if carried := [(to, value) for to, value in carried if to != value]:
            writer.line(f"{', '.join(to for to, _ in carried)} = {', '.join(value for _, value in carried)}")
    for result, argument in zip(op.results, block.args[1:], strict=True):
        writer.assign(result, writer.name(argument))


# memrefs


def _outside(op: Operation, at: int, size: int, bound: int, dim: int) -> None:
    raise UserError(
        f"{op.name} takes elements {at} to {at + size} of dim {dim}, which has {bound}", loc=location_of(op)
    )


def _subview(writer: _Tracer, op: memref.SubviewOp) -> None:
    source = memref_of(op.source)
    offsets = get_dynamic_index_list(op.static_offsets.get_values(), op.offsets, DYNAMIC_INDEX)
    sizes = get_dynamic_index_list(op.static_sizes.get_values(), op.sizes, DYNAMIC_INDEX)
    steps = get_dynamic_index_list(op.static_strides.get_values(), op.strides, DYNAMIC_INDEX)
    terms = [writer.name(op.source)]
    places = zip(offsets, sizes, steps, strides_of(op.source, op), source.get_shape(), strict=True)
    for dim, (offset, size, step, stride, bound) in enumerate(places):
        if not isinstance(size, int) or not isinstance(step, int):
            raise UserError("the shape of this view is not static", loc=location_of(op), status=UNSUPPORTED)
        reach = (size - 1) * step + 1
        if isinstance(offset, int):
            if offset < 0 or offset + reach > bound:
                _outside(op, offset, reach, bound, dim)
            if offset:
                terms.append(str(offset * stride))
            continue
        at = writer.name(offset)
        outside, view = writer.bind(_outside, "outside"), writer.bind(op, "op")
        writer.line(f"if not 0 <= {at} <= {bound - reach}: {outside}({view}, {at}, {reach}, {bound}, {dim})")
        terms.append(f"{at} * {stride}")
    writer.assign(op.result, " + ".join(terms))


def _same(writer: _Tracer, op: memref.CastOp | memref.ExpandShapeOp | memref.CollapseShapeOp) -> None:
    """The result begins where the source does."""
    writer.assign(op.results[0], writer.name(op.operands[0]))


def _reinterpret(writer: _Tracer, op: memref.ReinterpretCastOp) -> None:
    source = memref_of(op.source)
    offset, *rest = op.static_offsets.get_values()
    if rest or source.get_offset() != 0 or offset == DYNAMIC_INDEX:
        raise UserError("where this view begins is not static", loc=location_of(op), status=UNSUPPORTED)
    writer.assign(op.result, f"{writer.name(op.source)} + {offset * element_bytes(source)}")


def _buffer(writer: _Tracer, op: mem.BufferOp | mem.RingOp) -> None:
    scope, offset = op.scope, op.byte_offset
    if offset is None:
        if scope is not None or isinstance(op, mem.RingOp):
            raise UserError(f'this buffer in "{scope or DRAM}" has no place', loc=location_of(op))
        _alloc(writer, op)
        return
    writer.alias(op.storage, str(offset))


def _alloc(writer: _Tracer, op: Operation) -> None:
    hint = op.results[0].name_hint
    writer.alias(op.results[0], str(writer.new_storage(f"%{hint}" if hint else op.name)))


def _slot(writer: _Tracer, op: mem.SlotOp) -> None:
    ring = op.ring.owner
    if not isinstance(ring, mem.RingOp):
        raise UserError("which ring this slot belongs to is not known", loc=location_of(op), status=UNSUPPORTED)
    index = writer.name(op.index)
    writer.assign(op.memref, f"{writer.name(op.ring)} + {index} % {ring.slot_count} * {ring.pitch_in_bytes}")


# commands


def _tokens(writer: _Tracer, tokens: Sequence[SSAValue]) -> str:
    return f"({writer.names(tokens)})"


def _ready(writer: _Tracer, op: accel.ReadyOp) -> None:
    if not op.dependencies:
        writer.alias(op.token, writer.bind(NOTHING, "nothing"))
    elif len(op.dependencies) == 1:
        writer.assign(op.token, writer.name(op.dependencies[0]))
    else:
        writer.assign(op.token, f"{writer.bind(join, 'join')}{_tokens(writer, op.dependencies)}")


def _dma(writer: _Tracer, op: accel.DmaOp) -> None:
    issue = writer.bind(transfer(op, writer.target, writer.recorder), "issue")
    offsets: list[int | SSAValue] = []
    if op.window_side is not None:
        offsets = op.mixed_source_offsets() if op.window_side == "source" else op.mixed_dest_offsets()
    window = "".join(f"{each}, " for each in writer.offsets(offsets))
    writer.assign(
        op.token,
        f"{issue}({writer.name(op.source)}, {writer.name(op.dest)}, ({window}),"
        f" {_tokens(writer, op.dependencies)}, {writer.counters})",
    )


def _exec(writer: _Tracer, op: accel.ExecOp) -> None:
    issue = writer.bind(execution(op, writer.target, writer.recorder), "issue")
    buffers, tokens = _tokens(writer, op.buffers), _tokens(writer, op.dependencies)
    writer.assign(op.token, f"{issue}({buffers}, {tokens}, {writer.counters})")


def _wait(writer: _Tracer, op: accel.WaitOp) -> None:
    writer.line(f"{writer.bind(writer.recorder.wait, 'wait')}({_tokens(writer, op.tokens)})")


def _barrier(writer: _Tracer, op: accel.BarrierOp) -> None:
    writer.line(f"{writer.bind(writer.recorder.barrier, 'barrier')}()")


def _queue(writer: _Tracer, op: accel.PushOp | accel.PopOp) -> None:
    act = writer.recorder.push if isinstance(op, accel.PushOp) else writer.recorder.pop
    unit, peer = op.unit.data, op.peer.data
    writer.line(f"{writer.bind(act, 'queue')}({writer.bind(op, 'op')}, {unit!r}, {peer!r}, {writer.counters})")


_EMITTERS: dict[type[Operation], Callable[[Any, Any], None]] = {
    scf.ForOp: _for,
    memref.SubviewOp: _subview,
    memref.CastOp: _same,
    memref.ExpandShapeOp: _same,
    memref.CollapseShapeOp: _same,
    memref.ReinterpretCastOp: _reinterpret,
    memref.AllocOp: _alloc,
    memref.GetGlobalOp: _alloc,
    mem.BufferOp: _buffer,
    mem.RingOp: _buffer,
    mem.SlotOp: _slot,
    accel.ReadyOp: _ready,
    accel.DmaOp: _dma,
    accel.ExecOp: _exec,
    accel.WaitOp: _wait,
    accel.BarrierOp: _barrier,
    accel.PushOp: _queue,
    accel.PopOp: _queue,
}
