# SPDX-License-Identifier: Apache-2.0
"""
Whether data gets through a machine: from off chip into every scope, and from where results are written off chip.

DMA engines move it both ways. On the way in, so does an intrinsic of a unit, from the scopes it reads to the one it
writes: nothing has to lead into accumulators but the operation that sums in them. On the way out only one that moves
elements as they are, `y[i] = x[i]`, does: what is computed must be able to leave without more being computed on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.dialects.machine import DRAM, IntrinsicOp, MachinePart, OperandSpec, PartFault, ScopeOp, TargetOp

_Filling = tuple[frozenset[str], str]
"""The scopes that must be filled for another one to be, and that other one."""


def reach_faults(target: TargetOp) -> Iterator[tuple[MachinePart, PartFault]]:
    """
    The parts that no data can reach, or leave; the machine must be without faults otherwise.

    A machine that only has scopes is one whose processor fills them, by ordinary copies, and has none.
    """
    everything = list(target.intrinsics().values())
    intrinsics = [op for op in everything if op.unit_name is not None]
    scopes = list(target.scopes().values())
    if not scopes or target.is_host or not (target.dmas() or intrinsics):
        return
    moves = [(source, end) for dma in target.dmas().values() for source in dma.sources for end in dma.destinations]
    steps: list[_Filling] = [(frozenset([source]), end) for source, end in moves]
    for op in intrinsics:
        reads = frozenset(spec.scope for spec in _operands(op) if spec.role == "in")
        steps += [(reads, _output(op).scope)] if reads else []
    if not any(source == DRAM for source, _ in moves):
        what = f'nothing gets onto the chip: no DMA reads "{DRAM}"'
        yield scopes[0], PartFault("name", what, (_repair(DRAM, scopes[0].sym_name.data),))
        return
    reached = _closure({DRAM}, steps)
    for scope in scopes:
        if scope.sym_name.data not in reached:
            yield scope, _unreached(scope, intrinsics)
    emptied = _emptied(moves, intrinsics)
    for op in everything:
        output = _output(op)
        # What only fills a scope, for others to read, computes nothing that has to leave.
        is_fill = all(spec.role == "out" for spec in _operands(op))
        if is_fill or output.scope in emptied | {DRAM}:
            continue
        emptied.add(output.scope)
        parent = target.scopes()[output.scope].parent_name
        place = _operands(op).index(output)
        what = f'"{output.name}" is written in "{output.scope}", from where nothing leads off chip'
        yield op, PartFault("operands", what, (_repair(output.scope, parent),), (place, "scope"))


def _operands(intrinsic: IntrinsicOp) -> list[OperandSpec]:
    """The operands that a machine file lists: those in scopes."""
    return [spec for spec in intrinsic.operand_specs() if spec.scope]


def _output(intrinsic: IntrinsicOp) -> OperandSpec:
    return _operands(intrinsic)[-1]


def _closure(start: set[str], steps: list[_Filling]) -> set[str]:
    """What can be filled if `start` is."""
    filled = set(start)
    while more := {end for needed, end in steps if needed <= filled} - filled:
        filled |= more
    return filled


def _emptied(moves: list[tuple[str, str]], intrinsics: list[IntrinsicOp]) -> set[str]:
    """The scopes from which elements get off chip as they are."""
    back: list[_Filling] = [(frozenset([end]), source) for source, end in moves]
    back += [(frozenset([_output(op).scope]), _operands(op)[0].scope) for op in intrinsics if _is_move(op)]
    return _closure({DRAM}, back)


def _is_move(intrinsic: IntrinsicOp) -> bool:
    """Whether an intrinsic writes what it reads: its body yields its only input."""
    block = intrinsic.generic.body.block
    return len(block.args) == 2 and block.last_op is not None and list(block.last_op.operands) == [block.args[0]]


def _unreached(scope: ScopeOp, intrinsics: list[IntrinsicOp]) -> PartFault:
    name = scope.sym_name.data
    wanted = [
        f'@{op.sym_name.data} reads its operand "{spec.name}" there'
        for op in intrinsics
        for spec in _operands(op)
        if spec.scope == name and spec.role != "out"
    ]
    what = f'nothing gets from off chip to the scope "{name}"'
    return PartFault("name", what, (*wanted[:1], _repair(scope.parent_name, name)))


def _repair(start: str, end: str) -> str:
    return f'add a [[dma]] with from = ["{start}"] and to = ["{end}"]'
