# SPDX-License-Identifier: Apache-2.0
"""
A kernel of the accelerator level as the list of its commands.

Loops are run and indices computed, but nothing is moved and nothing multiplied. A function becomes one of Python first,
as in the interpreter: arithmetic in line, each command a call. What an op says is worked out once; what changes from
iteration to iteration is where its memrefs begin.

A memref is an address at run time: the number of its storage, shifted, plus the bytes from the start of that.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from math import prod
from typing import Any

from xdsl.dialects import affine, func, memref, scf
from xdsl.dialects.builtin import DYNAMIC_INDEX, IndexType, IntegerType, MemRefType, ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Attribute, Operation, SSAValue

from penstock.dialects import accel, mem
from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.functions import body_block
from penstock.dialects.machine import DRAM, HOST, Activity, ScopeOp, TargetOp
from penstock.dialects.machine import DmaOp as EngineOp
from penstock.dialects.machine.energy import READ, TRANSFER, WRITE, operations_of
from penstock.dialects.mem import element_bytes, memref_of, scope_of, static_strides
from penstock.dialects.verification import require_dominance
from penstock.passes.analysis.commands.descriptor import describe, entry_elements, transfer_cost
from penstock.passes.analysis.commands.program import Command, Kind, MachineModel, Program, View
from penstock.passes.analysis.commands.recorder import NOTHING, Recorder, Token, join
from penstock.passes.analysis.commands.region import Region
from penstock.passes.analysis.commands.stationary import StationaryOperand
from penstock.passes.analysis.commands.traffic import touched_elements
from penstock.passes.analysis.kernels import ENTRY, device_of, machine_of
from penstock.runtime.interpreter import Evaluator, applications_of
from penstock.runtime.interpreter.counters import moved_bytes
from penstock.runtime.interpreter.ownership import Ownership
from penstock.runtime.interpreter.source import SourceWriter

Iterations = Callable[[scf.ForOp, int], Iterable[int]]
"""From a loop and its trip count to the iterations that are run."""

STORAGE_SHIFT = 48
OFFSET_MASK = (1 << STORAGE_SHIFT) - 1


# commands


def strides_of(value: SSAValue, op: Operation) -> tuple[int, ...]:
    """The strides of a memref in bytes; raises UserError if they are not static."""
    type = memref_of(value)
    try:
        strides = static_strides(type)
    except ValueError as error:
        raise UserError(f"{op.name} cannot be followed: {error}", loc=location_of(op)) from None
    return tuple(stride * element_bytes(type) for stride in strides)


def _shape(type: MemRefType[Attribute], op: Operation) -> tuple[int, ...]:
    if not type.has_static_shape():
        raise UserError(f"{op.name} cannot be followed: {type} has no static shape", loc=location_of(op))
    return type.get_shape()


class _Area:
    """Elements at a distance from an address: the view and the region of them, made once for each address."""

    def __init__(self, space: str, relative: int, shape: Sequence[int], strides: Sequence[int], size: int):
        self.space, self.relative, self.size = space, relative, size
        self.shape, self.strides = tuple(shape), tuple(strides)
        self._template = Region.of(space, 0, relative, size, list(zip(self.shape, self.strides, strict=True)))
        self._views: dict[int, View] = {}
        self._regions: dict[int, tuple[Region, ...]] = {}

    def view(self, address: int) -> View:
        """The elements of the memref at an address."""
        found = self._views.get(address)
        if found is None:
            # A window may begin before its memref, what moves of it does not: only their sum lies in the storage.
            storage, start = divmod(address + self.relative, 1 << STORAGE_SHIFT)
            found = self._views[address] = View(self.space, storage, start, self.shape, self.strides, self.size)
        return found

    def regions(self, address: int) -> tuple[Region, ...]:
        """Their bytes: one region, or none."""
        found = self._regions.get(address)
        if found is None:
            storage, start = divmod(address + self._template.start, 1 << STORAGE_SHIFT)
            region = Region(self.space, storage, start, self._template.length, self._template.dims)
            found = self._regions[address] = () if 0 in self.shape else (region,)
        return found


@dataclass(frozen=True)
class _ClippedTransfer:
    """What moves of a window that is clipped in one way."""

    source: _Area
    dest: _Area
    written: _Area
    padding: tuple[tuple[int, int], ...]
    cycles: int
    activity: Activity


class _TransferIssuer:
    """Issues an `accel.dma`, and knows the ways in which its window has been clipped so far."""

    def __init__(self, op: accel.DmaOp, target: TargetOp, recorder: Recorder):
        self.op = op
        self.recorder = recorder
        self.engine = target.dmas()[op.engine.data]
        self.window = op.window_side
        side = 0 if self.window == "source" else 1
        self.box = op.box
        self.shape = tuple(_shape(type, op) for type in (op.source_type, op.dest_type))[side]
        """Of the side that the window is in."""
        self.may_exceed = self.window != "source" or op.padding is not None or op.clipped is not None
        self.inside = tuple((0, 0) for _ in self.box)
        self.last = [bound - size for size, bound in zip(self.box, self.shape, strict=True)]
        """The last offsets at which the window is within bounds."""
        self.strides = strides_of(op.source, op), strides_of(op.dest, op)
        self.steps = self.strides[side]
        self.spaces = scope_of(op.source_type) or DRAM, scope_of(op.dest_type) or DRAM
        self.size = element_bytes(op.source_type)
        self.cost = transfer_cost(self.engine, target)
        self.entry = entry_elements(target, self.spaces, (self.size, self.size))
        self._pieces: dict[tuple[tuple[int, int], ...], _ClippedTransfer] = {}

    def issue(
        self, source: int, dest: int, offsets: Sequence[int], tokens: Sequence[Token], counters: tuple[int, ...]
    ) -> int:
        """From two addresses, the offsets of the window (or none), tokens and counters to the command's number."""
        clipped = self.inside
        if self.window is not None:
            clipped = self._clipped(offsets)
            moved = sum([at * step for at, step in zip(offsets, self.steps, strict=True)])
            if self.window == "source":
                source += moved
            else:
                dest += moved
        piece = self._pieces.get(clipped)
        if piece is None:
            piece = self._pieces[clipped] = self._piece(clipped)
        name = self.engine.sym_name.data
        command = Command(
            self.engine.unit_name,
            Kind.TRANSFER,
            name,
            name,
            piece.cycles,
            reads=piece.source.regions(source),
            writes=piece.written.regions(dest),
            moved=((*self.spaces, prod(piece.source.shape) * self.size),),
            op=self.op,
            counters=counters,
            operands=(piece.source.view(source), piece.dest.view(dest)),
            padding=piece.padding,
            activity=piece.activity,
        )
        return self.recorder.issue(command, tokens)

    def _piece(self, clipped: tuple[tuple[int, int], ...]) -> _ClippedTransfer:
        """By dim the elements that are cut off before and after."""
        shape = tuple(max(0, size - before - after) for size, (before, after) in zip(self.box, clipped, strict=True))
        source, dest = (
            _Area(
                space,
                sum(before * stride for (before, _), stride in zip(clipped, strides, strict=True)),
                shape,
                strides,
                self.size,
            )
            for space, strides in zip(self.spaces, self.strides, strict=True)
        )
        padding, written = (), dest
        if self.op.padding is not None:
            written = _Area(self.spaces[1], 0, self.box, self.strides[1], self.size)
            padding = clipped if clipped != self.inside else ()
        descriptor = describe([source.view(0), dest.view(0)], padding, engine=self.engine, entry=self.entry)
        cycles = descriptor.cycles(self.cost)
        moved = prod(shape) * self.size
        activity = {
            (READ, self.spaces[0]): moved,
            (TRANSFER, _carrier_of(self.engine)): moved,
            (WRITE, self.spaces[1]): prod(written.shape) * self.size,
        }
        return _ClippedTransfer(source, dest, written, padding, cycles, activity)

    def _clipped(self, offsets: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """By dim how many elements of a window at these offsets are out of bounds, before and after."""
        for at, last in zip(offsets, self.last, strict=True):
            if not 0 <= at <= last:
                break
        else:
            return self.inside
        clipped: list[tuple[int, int]] = []
        for dim, (at, size, bound) in enumerate(zip(offsets, self.box, self.shape, strict=True)):
            before = min(max(-at, 0), size)
            after = min(max(at + size - bound, 0), size - before)
            clipped.append((before, after))
            if (before or after) and not self.may_exceed:
                raise UserError(
                    f"accel.dma reads elements {at} to {at + size} in dim {dim} of its source, which has {bound}",
                    loc=location_of(self.op),
                    notes=["`else` names what is read outside"],
                )
        return tuple(clipped)


def _carrier_of(engine: EngineOp) -> str:
    """What carries the bytes of an engine: its bus, or itself."""
    return engine.bus_name or engine.sym_name.data


def _access(op: accel.ExecOp, evaluator: Evaluator, number: int, extents: Sequence[int]) -> _Area:
    """The elements of an operand that an exec accesses: a view with the dims of the domain."""
    value, access = op.buffers[number], evaluator.accesses[number]
    if access.forms is None:
        raise UserError("an index of accel.exec is no sum of multiples of its dims", loc=location_of(op))
    type = memref_of(value)
    strides = strides_of(value, op)
    relative = sum(form.constant * stride for form, stride in zip(access.forms, strides, strict=True))
    return _Area(scope_of(type) or DRAM, relative, extents, access.strides(strides, extents), element_bytes(type))


def _pairs_in_banks(accessed: Sequence[_Area], target: TargetOp) -> list[tuple[ScopeOp, int, int]]:
    """The pairs of operands in one scope that costs them time where they share a bank."""
    scopes = {name: scope for name, scope in target.scopes().items() if scope.conflict_cycles}
    return [
        (scopes[one.space], number, other)
        for number, one in enumerate(accessed)
        for other in range(number + 1, len(accessed))
        if one.space == accessed[other].space and one.space in scopes
    ]


def share_a_bank(scope: ScopeOp, one: Sequence[Region], other: Sequence[Region]) -> bool:
    """Whether two operands have bytes in one bank; the same bytes are read once."""
    if not one or not other or one == other:
        return False
    return any(scope.banks_of(a.start, a.end) & scope.banks_of(b.start, b.end) for a in one for b in other)


def _execution(op: accel.ExecOp, target: TargetOp, recorder: Recorder) -> Callable[..., int]:
    """What issues an `accel.exec`: from the addresses of its buffers, tokens and counters."""
    intrinsic = target.intrinsics()[op.intrinsic_name]
    body = intrinsic.body_with(op.immediate_values)
    evaluator = Evaluator(op, body.block, [attr.data for attr in op.maps], len(intrinsic.generic.outputs))
    extents = op.extents.get_values()
    accessed = [_access(op, evaluator, number, extents) for number in range(len(op.buffers))]
    applications = applications_of(op, intrinsic)
    iterations = applications.count
    macs = prod(extents) if evaluator.is_contraction else 0
    reading = [number for number, read in enumerate(evaluator.reads) if read]
    last = len(accessed) - 1
    activity = Counter(
        {what: prod(extents) * count for what, count in operations_of(intrinsic.generic.body.block).items()}
    )
    if intrinsic.dma_name is not None:
        engine = target.dmas()[intrinsic.dma_name]
        unit, kind = engine.unit_name, Kind.TRANSFER
        scopes, sizes = [area.space for area in accessed], [area.size for area in accessed]
        entry = entry_elements(target, scopes, sizes)
        descriptor = describe([area.view(0) for area in accessed], engine=engine, entry=entry)
        cycles = descriptor.cycles(transfer_cost(engine, target))
        touched = [
            touched_elements(access, extents, memref_of(value).get_shape()) * area.size
            for access, value, area in zip(evaluator.accesses, op.buffers, accessed, strict=True)
        ]
        moved = tuple((start, end, size) for (start, end), size in moved_bytes(scopes, touched).items())
        views = accessed
        touches = touched
        activity[TRANSFER, _carrier_of(engine)] = sum(size for _, _, size in moved)
    else:
        assert intrinsic.unit_name is not None
        unit, kind, moved = intrinsic.unit_name, Kind.EXEC, ()
        cycles = intrinsic.depth + intrinsic.timing.cycles(applications.loops)
        views = [
            _Area(area.space, 0, memref_of(value).get_shape(), strides_of(value, op), area.size)
            for area, value in zip(accessed, op.buffers, strict=True)
        ]
        touches = [count * area.size for count, area in zip(applications.elements, accessed, strict=True)]
    for number in reading:
        activity[READ, accessed[number].space] += touches[number]
    activity[WRITE, accessed[last].space] += touches[last]
    engine_name, name = intrinsic.dma_name, op.intrinsic_name
    stationary, held_activity = None, activity
    if (number := intrinsic.stationary_operand) is not None:
        area = accessed[number]
        stationary = StationaryOperand.of(
            name, number, intrinsic.timing, applications.loops, area.space, area.strides, area.size
        )
        held_activity = activity.copy()
        held_activity[READ, area.space] -= stationary.first_bytes
    banked = [] if kind is Kind.TRANSFER else _pairs_in_banks(accessed, target)

    def issue(addresses: Sequence[int], tokens: Sequence[Token], counters: tuple[int, ...]) -> int:
        held, loads, loading, taken = False, 0, 0, cycles
        if stationary is not None:
            area = accessed[stationary.number]
            at = divmod(addresses[stationary.number] + area.relative, 1 << STORAGE_SHIFT)
            held = recorder.residents.exchange(unit, stationary.first.at(*at), stationary.last.at(*at))
            loads = stationary.loads - held
            loading = stationary.loading - held * stationary.first_load
            taken = cycles - held * stationary.first_load
        conflicts = conflicting = 0
        for scope, one, other in banked:
            if share_a_bank(scope, *(accessed[each].regions(addresses[each]) for each in (one, other))):
                conflicts += iterations
                conflicting += iterations * scope.conflict_cycles
        reads: tuple[Region, ...] = ()
        for number in reading:
            reads += accessed[number].regions(addresses[number])
        command = Command(
            unit,
            kind,
            name,
            engine_name,
            taken + conflicting,
            iterations,
            macs,
            loads=loads,
            loading=loading,
            conflicts=conflicts,
            conflicting=conflicting,
            reads=reads,
            writes=accessed[last].regions(addresses[last]),
            moved=moved,
            op=op,
            counters=counters,
            operands=tuple([area.view(address) for area, address in zip(views, addresses, strict=True)]),
            activity=held_activity if held else activity,
        )
        return recorder.issue(command, tokens)

    return issue


# kernels


def trace(
    function: func.FuncOp,
    target: TargetOp,
    *,
    limit: int = 1_000_000,
    iterations: Iterations | None = None,
    arguments: Sequence[View | None] | None = None,
    storages: Sequence[str] | None = None,
    record: Callable[[MachineModel, int], Recorder] = Recorder,
) -> Program:
    """
    The commands of one kernel at the accelerator level, in program order.

    Off chip each argument is a storage of its own, the first of them number 1, and 0 is what buffers with a place
    share; so are arguments in a scope, as their offsets in it are not known. With `arguments`, each memref begins where
    its view does instead, and `storages` names the storages off chip. `iterations` says which iterations of a loop to
    run, in place of all; `record` makes the recorder: a subclass may keep more of the commands.

    Raises UserError, located, for more commands than `limit`, for anything but loops, views, index arithmetic and
    commands, for what has no static shape or no offset, and where a window or view leaves its memref.
    """
    recorder = record(MachineModel.of(target), limit)
    writer = _Tracer(recorder, target, function, iterations)
    addresses: list[int] = []
    for number, address in enumerate(writer.own_storages()):
        view = arguments[number] if arguments is not None else None
        addresses.append(address if view is None else (view.storage << STORAGE_SHIFT) + view.start)
    writer.ops(writer.block.ops)
    run = writer.finish(function).function
    try:
        with _without_collection():
            run(*addresses)
    except ZeroDivisionError:
        message = f"@{function.sym_name.data} divides an index by zero"
        raise UserError(message, loc=location_of(function)) from None
    return recorder.program(writer.storages if storages is None else storages)


@contextmanager
def _without_collection() -> Generator[None]:
    """Without garbage collection: no command is part of a cycle, and a million of them take long to search."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True, eq=False)
class Call:
    """One run of a kernel."""

    op: func.CallOp
    function: func.FuncOp
    arguments: tuple[View | None, ...]
    """Where each memref lies; None for anything else."""
    trace: Callable[[], Program] | None
    """What finds its commands; None for a kernel of the host."""

    @cached_property
    def program(self) -> Program | None:
        """Its commands; None for a kernel of the host. Raises UserError as `trace` does."""
        return None if self.trace is None else self.trace()


def trace_calls(module: ModuleOp, *, limit: int = 1_000_000) -> Iterator[Call]:
    """
    The kernels in the order in which one run of `@main` calls them, each with its commands, which are traced when they
    are asked for.

    Memrefs lie where they do in the run: in their scope, if something stays there between kernels, or in a storage off
    chip that has the same number in all of them. Raises UserError as `trace` does, `limit` counting for each kernel.
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

    @cache
    def program(function: func.FuncOp, arguments: tuple[View | None, ...]) -> Program:
        return trace(function, target, limit=limit, arguments=arguments, storages=writer.storages)

    for op, at in found:
        function = functions[op.callee.string_value()]
        views = tuple(_view(value, address, op) for value, address in zip(op.arguments, at, strict=True))
        is_here = device_of(function) == target.sym_name.data
        yield Call(op, function, views, partial(program, function, views) if is_here else None)


def _view(value: SSAValue, address: int, op: Operation) -> View | None:
    if not isinstance(value.type, MemRefType):
        return None
    type = memref_of(value)
    storage, start = address >> STORAGE_SHIFT, address & OFFSET_MASK
    return View(scope_of(type) or DRAM, storage, start, type.get_shape(), strides_of(value, op), element_bytes(type))


class _Tracer(SourceWriter):
    """Writes the Python function that issues the commands of a kernel."""

    def __init__(self, recorder: Recorder, target: TargetOp, function: func.FuncOp, iterations: Iterations | None):
        super().__init__(None, Ownership(function), None)
        self.recorder = recorder
        self.target = target
        self.iterations = iterations
        self.loops: list[str] = []
        """The counters of the loops around what is being written."""
        self.storages = [""]
        """The names of the storages off chip by their number."""
        self.called: Callable[..., None] | None = None
        """Receives each call and the addresses of its arguments, where calls are allowed; what the host itself does
        to memory between them is left out."""
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
        on_host = self.called is not None and not (_calls(op) and (self._knows(op) or self._runs_kernels(op)))
        is_arithmetic = op.name.startswith("arith.") or isinstance(op, affine.ApplyOp | affine.MinOp)
        if is_arithmetic and not self._unknown.isdisjoint(op.operands):
            self._unknown.update(op.results)
        elif on_host and isinstance(op, scf.ForOp | scf.IfOp) and not (_may_determine_bytes(op) and self._knows(op)):
            self._unknown.update(op.results)
        elif (emit := _EMITTERS.get(type(op))) is not None:
            emit(self, op)
        elif isinstance(op, func.CallOp) and self.called is not None:
            self._write_call(op)
        elif isinstance(op, func.ReturnOp):
            self.line("return")
        elif is_arithmetic or isinstance(op, scf.IfOp):
            super()._write(op)
        elif on_host:
            self._unknown.update(op.results)
        elif self.called is not None:
            raise UserError(f"the calls inside {op.name} cannot be followed", loc=location_of(op))
        else:
            is_above = isinstance(op, GenericOp | mem.CopyOp)
            notes = ["`loop-to-accel` makes commands of copies and of what intrinsics compute"] if is_above else []
            message = f"{op.name} is nothing that a kernel of the machine does"
            raise UserError(message, loc=location_of(op), notes=notes)

    def _knows(self, op: Operation) -> bool:
        return not isinstance(op, scf.WhileOp) and self._unknown.isdisjoint(op.operands)

    def _runs_kernels(self, op: Operation) -> bool:
        """Whether a call in an op of `@main` is one that the machine takes part in."""
        module = self.block.parent_op()
        while isinstance(module, Operation) and not isinstance(module, ModuleOp):
            module = module.parent_op()
        assert module is not None
        functions = {each.sym_name.data: each for each in module.walk() if isinstance(each, func.FuncOp)}
        seen: dict[str, func.FuncOp] = {}
        pending = [op]
        while pending:
            for inner in pending.pop().walk():
                if isinstance(inner, func.CallOp) and (name := inner.callee.string_value()) not in seen:
                    seen[name] = functions[name]
                    pending.append(functions[name])
        return any(device_of(each) != HOST for each in seen.values())

    def _write_call(self, op: func.CallOp) -> None:
        addresses = "".join(
            f"{self.name(value) if isinstance(value.type, MemRefType) else None}, " for value in op.arguments
        )
        self.line(f"{self.bind(self.called, 'called')}({self.bind(op, 'op')}, {addresses})")
        self._unknown.update(op.results)


def _may_determine_bytes(op: Operation) -> bool:
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
    if writer.iterations is None:
        writer.line(f"for {counter}, {writer.name(block.args[0])} in enumerate(range({bounds})):")
    else:
        iterations, loop = writer.bind(writer.iterations, "iterations"), writer.bind(op, "loop")
        writer.line(f"for {counter} in {iterations}({loop}, len(range({bounds}))):")
    terminator = block.last_op
    assert isinstance(terminator, scf.YieldOp)
    with writer.indented():
        if writer.iterations is not None:
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
    dims = zip(offsets, sizes, steps, strides_of(op.source, op), source.get_shape(), strict=True)
    for dim, (offset, size, step, stride, bound) in enumerate(dims):
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
    if op.byte_offset is None and op.scope is None and isinstance(op, mem.BufferOp):
        _alloc(writer, op)
    else:
        writer.alias(op.storage, str(op.planned_offset()))


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
    issue = writer.bind(_TransferIssuer(op, writer.target, writer.recorder).issue, "issue")
    offsets: list[int | SSAValue] = []
    if op.window_side is not None:
        offsets = op.mixed_source_offsets() if op.window_side == "source" else op.mixed_dest_offsets()
    window = "".join(f"{each if isinstance(each, int) else writer.name(each)}, " for each in offsets)
    writer.assign(
        op.token,
        f"{issue}({writer.name(op.source)}, {writer.name(op.dest)}, ({window}),"
        f" {_tokens(writer, op.dependencies)}, {writer.counters})",
    )


def _exec(writer: _Tracer, op: accel.ExecOp) -> None:
    issue = writer.bind(_execution(op, writer.target, writer.recorder), "issue")
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
