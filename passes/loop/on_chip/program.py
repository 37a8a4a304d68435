# SPDX-License-Identifier: Apache-2.0
"""
`@main` as a sequence of steps that access tensors, for the planner of on-chip allocation; the IR is only read.

A step is an op of `@main` that computes: the call of a kernel, as a rule, or a loop around such calls with all its
iterations. So what an iteration leaves to the next, and what all of them read, is a tensor of one step, and so is what
each of them makes and reads. A tensor is an allocation or an argument of `@main`, and what is accessed through views of
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import DYNAMIC_INDEX, FunctionType, MemRefType, ModuleOp, SymbolRefAttr
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue, Use
from xdsl.utils.hints import isa

from penstock.dialects.functions import unique_name
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import CopyOp, element_bytes, memref_of, scope_of
from penstock.passes.analysis.access import steps_of
from penstock.passes.analysis.commands.command_loops import commands
from penstock.passes.analysis.commands.loop_domain import ClippedSpan, iteration_domain, sum_over_loops
from penstock.passes.analysis.commands.traffic import executions, touched_elements
from penstock.passes.analysis.kernels import DEVICE, ENTRY, machine_kernels
from penstock.passes.analysis.loops import trip_count
from penstock.passes.analysis.memory.dataflow import Flows
from penstock.passes.analysis.memory.storage import VIEWS, reads_and_writes, storage_of, uses_through
from penstock.passes.loop.tensorize import prove
from penstock.runtime.interpreter.domain import OperandAccess


@dataclass(frozen=True)
class Site:
    """An operand of an op of `@main` that is a tensor, or a view of one."""

    step: int
    op: Operation
    number: int
    """Of the operand."""
    views: tuple[Operation, ...]
    """What lies between the tensor and the operand, the outermost view first."""
    kernel: func.FuncOp | None
    """The kernel of the machine that `@main` calls, in loops or not; None where the access can only be off chip."""
    reads: bool
    writes: bool
    into: int
    """
    Bytes from off chip, over the chip's edge, by which an access there differs from one on chip: below 0 for a copy of
    `@main`, which moves none as long as both its ends are off chip.
    """
    out: int
    """Bytes to off chip."""


@dataclass
class TensorUse:
    """A tensor and all accesses of it."""

    root: SSAValue
    name: str
    main: func.FuncOp
    flows: Flows
    """What the ops of `main` do to memory."""
    sites: list[Site] = field(default_factory=list[Site])
    """In the order of the program."""

    @property
    def type(self) -> MemRefType[Attribute]:
        """Where it lies off chip."""
        return memref_of(self.root)

    @property
    def bytes(self) -> int:
        """Of all its elements."""
        return prod(self.type.get_shape()) * element_bytes(self.type)

    @property
    def is_source(self) -> bool:
        """Whether it has its contents from the beginning."""
        return isinstance(self.root, BlockArgument) and not self.is_output

    @property
    def is_output(self) -> bool:
        """Whether its contents are needed in the end."""
        return isinstance(self.root, BlockArgument) and any(site.writes for site in self.sites)

    def by_step(self) -> dict[int, list[Site]]:
        """The accesses of each step."""
        found: dict[int, list[Site]] = {}
        for site in self.sites:
            found.setdefault(site.step, []).append(site)
        return found

    def is_accessed_once(self) -> bool:
        """Whether one step alone accesses it, and that is no loop."""
        return len(self.by_step()) < 2 and isinstance(self.sites[0].op.parent_op(), func.FuncOp)

    def writers(self) -> list[int]:
        """The steps, from the first on, that write it before any reads it."""
        found: list[int] = []
        for step, sites in self.by_step().items():
            if any(site.reads for site in sites):
                break
            if any(site.writes for site in sites):
                found.append(step)
        return found

    def is_made_at_once(self) -> bool:
        """Whether the first step writes all of it, so that from then on it may be copied whole."""
        writers = self.writers()
        return self.is_source or (len(writers) == 1 and self._covers(set(writers)))

    def is_made_in_parts(self) -> bool:
        """Whether the first steps together write all of it."""
        return self._covers(set(self.writers()))

    def _covers(self, steps: set[int]) -> bool:
        shape = self.type.get_shape()
        if prod(shape) > 1 << 26:
            return False
        missing = np.ones(shape, np.bool_)
        for site in self.sites:
            if site.step not in steps or not self._fills(site):
                continue
            cut = [view for view in site.views if isinstance(view, memref.SubviewOp)]
            if not cut:
                return True
            if len(cut) == 1 and all(
                isinstance(view, memref.CastOp) for view in site.views[: site.views.index(cut[0])]
            ):
                missing[_box(cut[0])] = False
        return not missing.any()

    def _fills(self, site: Site) -> bool:
        """Whether an access certainly writes all of the view that it is given."""
        if not site.writes or not all(map(trip_count, _loops_around(site.op))):
            return False
        if isinstance(site.op, func.CallOp):
            summary = self.flows.summarize(site.op)
            return summary is not None and site.number in summary.fills
        flow = self.flows.of(self.main)
        part = flow.aliases.part(site.op.operands[site.number])
        return part is not None and part in flow.effects[site.op].fills


def _box(view: memref.SubviewOp) -> tuple[slice, ...]:
    """The elements that a view shows; none where that is not constant."""
    at, sizes = view.static_offsets.get_values(), view.static_sizes.get_values()
    steps = view.static_strides.get_values()
    if DYNAMIC_INDEX in at or DYNAMIC_INDEX in sizes:
        return tuple(slice(0, 0) for _ in at)
    return tuple(slice(a, a + (n - 1) * s + 1, s) for a, n, s in zip(at, sizes, steps, strict=True))


@dataclass
class ProgramUse:
    """The steps of `@main`, and the tensors that they access."""

    target: TargetOp
    main: func.FuncOp
    steps: list[Operation]
    tensors: list[TensorUse]
    kernels: dict[str, func.FuncOp]
    """The kernels of the machine."""
    functions: dict[str, func.FuncOp]
    """All functions."""
    _number: dict[Operation, int]
    _moved_by: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict[str, dict[int, tuple[int, int]]])

    def calls(self, step: int) -> Iterator[func.FuncOp]:
        """The kernels of the machine that run at a step."""
        yield from self._called_in(self.steps[step])

    def own_calls(self, step: int) -> Iterator[tuple[func.CallOp, func.FuncOp]]:
        """The calls of kernels of the machine that `@main` itself makes at a step."""
        for call in self.steps[step].walk():
            if isinstance(call, func.CallOp) and (kernel := self.kernels.get(call.callee.string_value())) is not None:
                yield call, kernel

    def _called_in(self, op: Operation) -> Iterator[func.FuncOp]:
        for call in op.walk():
            if not isinstance(call, func.CallOp):
                continue
            name = call.callee.string_value()
            if (kernel := self.kernels.get(name)) is not None:
                yield kernel
            elif name in self.functions and not self.functions[name].is_declaration:
                yield from self._called_in(self.functions[name])

    def sites(self, value: SSAValue, views: tuple[Operation, ...]) -> Iterator[Site]:
        """All accesses of a memref, itself or through views."""
        for use in value.uses:
            op = use.operation
            if isinstance(op, memref.DeallocOp):
                continue
            if isinstance(op, VIEWS):
                yield from self.sites(op.results[0], (*views, op))
                continue
            yield self._site(op, use.index, views)

    def _site(self, op: Operation, number: int, views: tuple[Operation, ...]) -> Site:
        step = self.main.body.block.find_ancestor_op_in_block(op)
        assert step is not None
        at = self._number.get(step, 0)
        callee = self.functions.get(op.callee.string_value()) if isinstance(op, func.CallOp) else None
        if callee is None or len(callee.body.blocks) != 1 or op.results:
            reads, writes = reads_and_writes(Use(op, number))
            return Site(at, op, number, views, None, reads, writes, 0, 0)
        found = [reads_and_writes(use) for use in uses_through(callee.body.block.args[number])]
        reads, writes = any(each for each, _ in found), any(each for _, each in found)
        if _may_be_skipped(op, self.main):
            # What a branch does not write stays as it was, as if it were read; what it would move is not counted.
            return Site(at, op, number, views, None, reads or writes, writes, 0, 0)
        name = callee.sym_name.data
        kernel = self.kernels.get(name)
        if kernel is None:
            return Site(at, op, number, views, None, reads, writes, 0, 0)
        times = sum_over_loops(iteration_domain(op))
        into, out = self._moved(kernel).get(number, (0, 0))
        return Site(at, op, number, views, kernel, reads, writes, times * into, times * out)

    def as_mover(self, site: Site) -> Site:
        """An access by a copy of `@main` as that of the kernel that would make it, between that tensor and off chip."""
        op = site.op
        if not isinstance(op, CopyOp) or op.window_side is not None or _may_be_skipped(op, self.main):
            return site
        if not op.source_type.has_static_shape() or not op.dest_type.has_static_shape():
            return site
        moved = sum_over_loops(iteration_domain(op)) * prod(op.box) * element_bytes(op.source_type)
        # Off chip it moves nothing over the edge.
        into, out = (0, -moved) if site.number == 0 else (-moved, 0)
        kernel = copier(f"copy {op.source.type} {op.dest.type}", op.source.type, op.dest.type, self.target)
        return replace(site, kernel=kernel, into=into, out=out)

    def _moved(self, kernel: func.FuncOp) -> dict[int, tuple[int, int]]:
        """The bytes that one call moves from and to each of its arguments off chip."""
        name = kernel.sym_name.data
        if name not in self._moved_by:
            found: dict[int, tuple[int, int]] = {}
            for crossing in crossings(kernel, self.target):
                if crossing.argument is not None:
                    into, out = found.get(crossing.argument, (0, 0))
                    found[crossing.argument] = into + crossing.into, out + crossing.out
            self._moved_by[name] = found
        return self._moved_by[name]


def copier(name: str, source: Attribute, dest: Attribute, target: TargetOp) -> func.FuncOp:
    """A kernel that copies one memref to another, both whole."""
    block = Block(arg_types=(source, dest))
    block.args[0].name_hint, block.args[1].name_hint = "source", "dest"
    block.add_ops([CopyOp(block.args[0], block.args[1]), func.ReturnOp()])
    return machine_kernel(name, block, target)


def machine_kernel(name: str, block: Block, target: TargetOp) -> func.FuncOp:
    """A kernel of the machine with this body."""
    type = FunctionType.from_lists([arg.type for arg in block.args], [])
    kernel = func.FuncOp(name, type, Region(block), "private")
    kernel.attributes[DEVICE] = SymbolRefAttr(target.sym_name.data)
    return kernel


def _is_in_a_loop(site: Site) -> bool:
    return site.kernel is not None and isinstance(site.op.parent_op(), scf.ForOp)


def _loops_around(op: Operation) -> Iterator[scf.ForOp]:
    parent = op.parent_op()
    while isinstance(parent, scf.ForOp):
        yield parent
        parent = parent.parent_op()


def _may_be_skipped(op: Operation, main: func.FuncOp) -> bool:
    """Whether something else than loops decides how often an op of `main` runs."""
    outermost = op
    for outermost in _loops_around(op):
        pass
    return outermost.parent_op() is not main


def program_use(module: ModuleOp) -> ProgramUse | None:
    """The use that `@main` makes of its memrefs; None without a machine that it calls kernels of, and without one."""
    target, kernels = machine_kernels(module)
    functions = {op.sym_name.data: op for op in module.ops if isinstance(op, func.FuncOp)}
    main = functions.get(ENTRY)
    if target is None or main is None or len(main.body.blocks) != 1 or not kernels:
        return None
    on_machine = {kernel.sym_name.data: kernel for kernel in kernels if len(kernel.body.blocks) == 1}
    block = main.body.block
    steps = [op for op in block.ops if not isinstance(op, (*_SILENT, *VIEWS))]
    program = ProgramUse(target, main, steps, [], on_machine, functions, {op: step for step, op in enumerate(steps)})
    roots = [arg for arg in block.args if isa(arg.type, MemRefType)]
    roots += [op.memref for op in main.walk() if isinstance(op, memref.AllocOp) and not _may_be_skipped(op, main)]
    order = {op: number for number, op in enumerate(main.walk())}
    tensors, flows = program.tensors, Flows(module)
    taken: set[str] = set()
    for root in roots:
        name = unique_name(root.name_hint or f"buffer {len(tensors)}", taken)
        sites = sorted(program.sites(root, ()), key=lambda site: order[site.op])
        if isinstance(root.owner, memref.AllocOp) and any(_is_in_a_loop(site) for site in sites):
            # What the host copies to and from it would be copied by the machine, if it were on chip.
            sites = [program.as_mover(site) for site in sites]
        if sites and memref_of(root).has_static_shape():
            tensors.append(TensorUse(root, name, main, flows, sites))
    return program


_SILENT = (memref.AllocOp, memref.DeallocOp, arith.ConstantOp, func.ReturnOp)
"""Ops of `@main` that access no elements."""


@dataclass(frozen=True)
class Crossing:
    """What one op moves over the edge in one call of its kernel."""

    storage: SSAValue
    """What lives off chip: an argument of the kernel, or an allocation in it."""
    into: int
    """Bytes from off chip."""
    out: int
    """Bytes to off chip."""

    @property
    def argument(self) -> int | None:
        """The number of the argument; None for an allocation."""
        return self.storage.index if isinstance(self.storage, BlockArgument) else None


def crossings(kernel: func.FuncOp, target: TargetOp) -> Iterator[Crossing]:
    """
    All that one call of a kernel moves over the edge, op by op.

    Raises UserError, located, where loops and constants do not decide how much that is.
    """
    for op in kernel.walk():
        if isinstance(op, CopyOp):
            yield from _of_copy(op)
        elif isinstance(op, GenericOp) and op.library_call is not None:
            intrinsic = target.intrinsics().get(op.library_call.data)
            if intrinsic is not None and intrinsic.dma_name is not None:
                yield from _of_generic(op, target)


def _is_off_chip(value: SSAValue) -> bool:
    return isa(value.type, MemRefType) and scope_of(value.type) is None


def _of_copy(op: CopyOp) -> Iterator[Crossing]:
    source, dest = _is_off_chip(op.source), _is_off_chip(op.dest)
    if source == dest:
        return
    if op.window_side == "dest":
        at, bounds = op.mixed_dest_offsets(), op.dest_type.get_shape()
    else:
        at, bounds = op.mixed_source_offsets(), op.source_type.get_shape()
    spans = [ClippedSpan(offset, size, bound) for offset, size, bound in zip(at, op.box, bounds, strict=True)]
    moved = sum_over_loops(iteration_domain(op), spans) * element_bytes(op.source_type)
    if source:
        yield Crossing(storage_of(op.source), moved, 0)
    else:
        yield Crossing(storage_of(op.dest), 0, moved)


def _of_generic(op: GenericOp, target: TargetOp) -> Iterator[Crossing]:
    """An intrinsic on the way reads its inputs, and writes its output: each of the commands that it takes anew."""
    times = sum_over_loops(iteration_domain(op))
    match = prove(op, target)
    steps = [steps_of(op.indexing_maps.data[number].data, op.operands[number]) for number in match.buffers]
    pieces = list(commands(match, op.get_static_loop_ranges(), target, steps))
    for number, value in enumerate(op.operands):
        if not isa(value.type, MemRefType) or not _is_off_chip(value):
            continue
        access = OperandAccess.of(op.indexing_maps.data[number].data)
        touched = sum(count * touched_elements(access, extents, value.type.get_shape()) for count, extents in pieces)
        size = times * touched * element_bytes(value.type)
        written = number >= len(op.inputs)
        yield Crossing(storage_of(value), 0 if written else size, size if written else 0)


def edge_traffic(module: ModuleOp) -> tuple[int, int]:
    """The bytes from and to off chip in one run of `@main`, at the loop level."""
    target, functions = machine_kernels(module)
    if target is None:
        return 0, 0
    times = {function.sym_name.data: count for function, count in executions(module)}
    into = out = 0
    for function in functions:
        for crossing in crossings(function, target):
            into += times[function.sym_name.data] * crossing.into
            out += times[function.sym_name.data] * crossing.out
    return into, out
