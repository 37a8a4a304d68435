# SPDX-License-Identifier: Apache-2.0
"""
The bytes that DMA engines move in one run of a program, counted on the accel level without running it.

The count is exact: windows that are partly out of bounds count what lies inside, as the accel interpreter does, whose
counters it equals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.machine import DRAM, IMMEDIATE, TargetOp
from penstock.dialects.mem import element_bytes, memref_of, scope_of
from penstock.passes.analysis.commands.loop_domain import ClippedSpan, iteration_domain, sum_over_loops
from penstock.passes.analysis.commands.program import CommandOp, engine_of
from penstock.passes.analysis.kernels import ENTRY, machine_of
from penstock.passes.analysis.loops import nest_around
from penstock.runtime.interpreter.domain import OperandAccess
from penstock.runtime.interpreter.loop import region_of


@dataclass(frozen=True)
class Flow:
    """What one engine moves between two scopes in all calls of one kernel; "dram" is off chip."""

    kernel: str
    engine: str
    source: str
    dest: str
    bytes: int
    """Those inside the windows; of an intrinsic on the way, those that it reads, or writes off chip."""


@dataclass(frozen=True)
class Traffic:
    """The transfers of one run of a program."""

    flows: tuple[Flow, ...]
    """In the order of the kernels and their transfers."""
    commands: dict[str, int]
    """The commands of each engine."""

    @property
    def bytes_in(self) -> int:
        """From off chip."""
        return sum(flow.bytes for flow in self.flows if flow.source == DRAM)

    @property
    def bytes_out(self) -> int:
        """To off chip."""
        return sum(flow.bytes for flow in self.flows if flow.dest == DRAM)

    @property
    def bytes_on_chip(self) -> int:
        """Between scopes."""
        return sum(flow.bytes for flow in self.flows if DRAM not in (flow.source, flow.dest))

    def between(self) -> dict[tuple[str, str], int]:
        """The bytes by source and destination, over all kernels and engines."""
        sums: dict[tuple[str, str], int] = {}
        for flow in self.flows:
            pair = flow.source, flow.dest
            sums[pair] = sums.get(pair, 0) + flow.bytes
        return sums


def traffic(module: ModuleOp) -> Traffic:
    """
    The transfers of one run of `@main`, at accel level.

    Raises UserError, located, for a transfer whose number or window is not decided by loops and constants.
    """
    target = machine_of(module)
    sums: dict[tuple[str, str, str, str], int] = {}
    commands: dict[str, int] = {}
    if target is not None:
        for function, times in executions(module):
            for op in function.walk():
                if not isinstance(op, CommandOp) or (engine_op := engine_of(op, target)) is None:
                    continue
                engine = engine_op.sym_name.data
                moved = _dma_bytes(op) if isinstance(op, DmaOp) else _exec_bytes(op, engine_op.unit_name)
                commands[engine] = commands.get(engine, 0) + times * sum_over_loops(iteration_domain(op))
                for source, dest, size in moved:
                    key = function.sym_name.data, engine, source, dest
                    sums[key] = sums.get(key, 0) + times * size
    return Traffic(tuple(Flow(*key, size) for key, size in sums.items()), commands)


def executions(module: ModuleOp) -> Iterator[tuple[func.FuncOp, int]]:
    """
    Every function with a body, and how often it runs in one run of `@main`, at most: what stands in a branch is counted
    as if that were always taken.
    """
    calls: dict[str, list[tuple[str, int]]] = {}
    functions = [op for op in module.ops if isinstance(op, func.FuncOp) and not op.is_declaration]
    for caller in functions:
        for op in caller.walk():
            if isinstance(op, func.CallOp):
                callee = calls.setdefault(op.callee.string_value(), [])
                callee.append((caller.sym_name.data, _most_often(op)))

    @cache
    def times(name: str) -> int:
        return (name == ENTRY) + sum(times(caller) * count for caller, count in calls.get(name, []))

    for function in functions:
        yield function, times(function.sym_name.data)


def _most_often(op: Operation) -> int:
    """How often an op runs in one run of its function, at most."""
    branch = op.parent_op()
    while isinstance(branch, scf.ForOp):
        branch = branch.parent_op()
    if not isinstance(branch, scf.IfOp):
        return sum_over_loops(iteration_domain(op))
    return sum_over_loops(nest_around(op)) * _most_often(branch)


def _scope(value: SSAValue) -> str:
    return scope_of(memref_of(value)) or DRAM


def _dma_bytes(op: DmaOp) -> Iterator[tuple[str, str, int]]:
    """Where one call of the function moves how many bytes by this op."""
    source, dest = op.source_type.get_shape(), op.dest_type.get_shape()
    if op.window_side == "dest":
        at, box, bounds = op.mixed_dest_offsets(), source, dest
    elif op.window_side == "source":
        at, box, bounds = op.mixed_source_offsets(), dest, source
    else:
        at, box, bounds = [0] * len(source), source, source
    spans = [ClippedSpan(offset, size, bound) for offset, size, bound in zip(at, box, bounds, strict=True)]
    elements = sum_over_loops(iteration_domain(op), spans)
    yield _scope(op.source), _scope(op.dest), elements * element_bytes(op.source_type)


def _exec_bytes(op: ExecOp, unit: str) -> Iterator[tuple[str, str, int]]:
    """The same for an intrinsic that an engine performs on the way: what it reads, and what it writes off chip."""
    times = sum_over_loops(iteration_domain(op))
    touched = [times * _touched_bytes(op, number) for number in range(len(op.buffers))]
    *inputs, output = (_scope(value) for value in op.buffers)
    # Between two buffers off chip the unit of the engine is named as the way.
    for place, size in zip(inputs, touched[:-1], strict=True):
        if place == DRAM or DRAM != output != place:
            yield place, unit if place == output else output, size
    if output == DRAM:
        yield next((place for place in inputs if place != DRAM), unit), DRAM, touched[-1]


def _touched_bytes(op: ExecOp, number: int) -> int:
    """The bytes of the elements of an operand that one command touches."""
    type = memref_of(op.buffers[number])
    access = OperandAccess.of(op.maps.data[number].data)
    return touched_elements(access, op.extents.get_values(), type.get_shape()) * element_bytes(type)


def touched_elements(access: OperandAccess, extents: Sequence[int], shape: Sequence[int]) -> int:
    """How many elements of an operand of this shape a command of these extents touches."""
    region = region_of(access, extents, shape)
    if region is None:
        return prod(shape)
    if isinstance(region, np.ndarray):
        return int(np.count_nonzero(region))
    return prod(len(range(*part.indices(size))) for part, size in zip(region, shape, strict=True))


# compulsory


def compulsory_bytes(module: ModuleOp) -> tuple[int, int]:
    """
    The bytes into and out of the machine that no schedule of these kernels can do without: each off-chip argument
    that a kernel reads once, each that it writes once, summed over the calls in one run.

    It takes the kernels as they are: nothing stays on chip from one kernel to the next, and an argument counts
    whole even where a kernel skips some of it, as a strided window does.
    """
    target = machine_of(module)
    into = out = 0
    if target is not None:
        for function, times in executions(module):
            read, written = _arguments_moved(function, target)
            into += times * sum(map(_size, read))
            out += times * sum(map(_size, written))
    return into, out


def _arguments_moved(function: func.FuncOp, target: TargetOp) -> tuple[list[SSAValue], list[SSAValue]]:
    """The arguments that commands read, and those that they write."""
    read: dict[SSAValue, None] = {}
    written: dict[SSAValue, None] = {}
    for op in function.walk():
        if isinstance(op, DmaOp):
            sides = [(op.source, "in"), (op.dest, "out")]
        elif isinstance(op, ExecOp):
            specs = target.intrinsics()[op.intrinsic_name].operand_specs()
            roles = [spec.role for spec in specs if spec.role != IMMEDIATE]
            sides = list(zip(op.buffers, roles, strict=True))
        else:
            continue
        for memref, role in sides:
            argument = _argument_of(memref)
            if argument is not None and argument.block is function.body.block and _scope(argument) == DRAM:
                (read if role == "in" else written)[argument] = None
    return list(read), list(written)


def _argument_of(value: SSAValue) -> BlockArgument | None:
    """The argument that a memref is a view of."""
    while isinstance(value.owner, Operation) and value.owner.operands:
        value = value.owner.operands[0]
    return value if isinstance(value, BlockArgument) else None


def _size(value: SSAValue) -> int:
    type = memref_of(value)
    return prod(type.get_shape()) * element_bytes(type)
