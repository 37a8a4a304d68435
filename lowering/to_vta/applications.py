# SPDX-License-Identifier: Apache-2.0
"""
Execs as GEMM and ALU: two counted loops around a list of micro-operations.

Each dim of the domain outside the block becomes one of the two loops or is spelled out in the list. Neighbours that
move all operands as one dim would are merged. Of the choices whose factors fit their bits, one that writes no
accumulator twice in a row is taken, if there is one; among these, the one with the shortest list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import prod

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import IntegerAttr

from penstock.dialects.accel import ExecOp
from penstock.dialects.diagnostics import UserError, location_of
from penstock.lowering.to_vta.isa import BLOCK, DEPTHS, ENTRY_BYTES, MICRO_OP, Alu, AluOpcode, Gemm, Loops, MemoryType
from penstock.passes.analysis.commands.program import Command
from penstock.runtime.interpreter.domain import OperandAccess

MAX_ITERATIONS = 16383

MicroOps = NDArray[np.uint32]
"""A list of micro-operations, a word each."""

_ALU = {f"alu_{opcode.name.lower()}": opcode for opcode in AluOpcode}

ACCUMULATOR, SOURCE, WEIGHT = range(3)


@dataclass(frozen=True)
class _LoopDim:
    """One dim of a domain of applications, and how far it moves dst, src and wgt, in entries."""

    extent: int
    steps: tuple[int, int, int]

    @property
    def moves_accumulator(self) -> bool:
        return self.steps[ACCUMULATOR] > 0


@dataclass(frozen=True)
class _Operand:
    """Bytes from the start of a scope: of the first element, and by dim of the domain."""

    scope: str
    start: int
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Application:
    """An instruction without its list of micro-operations, and that list."""

    micro_ops: MicroOps
    loops: Loops

    def at(self, begin: int) -> Loops:
        """The instruction, if the list begins at this entry."""
        return replace(self.loops, uop_begin=begin, uop_end=begin + self.micro_ops.size)


def encode_exec(command: Command, most: int) -> Application:
    """
    The instruction of an exec, whose list has at most `most` micro-operations. Raises UserError, located, for an
    intrinsic or a domain that none can do.
    """
    op = command.op
    if not isinstance(op, ExecOp):
        raise UserError(f"the exec {command.name} has no operation to be encoded from")
    operands = _operands(command, op)
    name = op.intrinsic_name
    if name == "gemm":
        inp, wgt, acc = operands
        block = {"k": [(inp, 1), (wgt, 1), (acc, 0)], "n": [(inp, 0), (wgt, BLOCK), (acc, 4)]}
        return _application(op, [acc, inp, wgt], block, most, Gemm())
    if name == "gemm_reset":
        return _application(op, operands[:1], {"n": [(operands[0], 4)]}, most, Gemm(reset=True))
    opcode = _ALU.get(name.removesuffix("_imm"))
    if opcode is None:
        raise UserError(f"@{name} is no instruction of VTA", loc=location_of(op))
    *rhs, acc = operands
    immediates = [value.value.data for value in op.immediate_values if isinstance(value, IntegerAttr)]
    if len(operands) + len(immediates) != 2:
        raise UserError(f"@{name} has not two operands", loc=location_of(op))
    alu = Alu(alu_opcode=opcode, use_immediate=bool(immediates), immediate=sum(immediates))
    return _application(op, [acc, *rhs], {"n": [(each, 4) for each in operands]}, most, alu)


def _operands(command: Command, op: ExecOp) -> list[_Operand]:
    found: list[_Operand] = []
    extents = op.extents.get_values()
    for view, attr in zip(command.operands, op.maps, strict=True):
        access = OperandAccess.of(attr.data)
        if access.forms is None:
            raise UserError(f"@{op.intrinsic_name}: an operand is indexed by quotients", loc=location_of(op))
        start = view.start + sum(
            form.constant * stride for form, stride in zip(access.forms, view.strides, strict=True)
        )
        found.append(_Operand(view.space, start, tuple(access.strides(view.strides, extents))))
    return found


Block = Mapping[str, Sequence[tuple[_Operand, int]]]
"""Dims inside an instruction: by name, how many bytes a step in it moves each operand."""


def _application(op: ExecOp, operands: Sequence[_Operand], block: Block, most: int, kind: Loops) -> Application:
    """`kind` with its loops and their factors; `operands` are dst, src and wgt, as far as it has them."""
    dims, bases = _dims_and_bases(op, operands, block)
    in_order = isinstance(kind, Alu) and _depends_on_order(dims, bases, len(operands))
    outer, inner, listed = _choose(op, dims if in_order else _merged(dims), most, in_order=in_order)
    factors = {
        f"{index}_factor_{side}": loop.steps[position]
        for position, index in enumerate(MICRO_OP)
        for side, loop in (("out", outer), ("in", inner))
        if f"{index}_factor_{side}" in kind.fields()
    }
    loops = replace(kind, iter_out=outer.extent, iter_in=inner.extent, **factors)
    return Application(_listed(op, listed, bases), loops)


def _dims_and_bases(
    op: ExecOp, operands: Sequence[_Operand], block: Block
) -> tuple[list[_LoopDim], tuple[int, int, int]]:
    """The dims around the block, in entries, outermost first; and the entries of the first application."""
    extents = list(op.extents.get_values())
    around = dict(enumerate(extents))
    inside: list[int] = []
    for name, pattern in block.items():
        fitting = [
            dim
            for dim, extent in around.items()
            if dim not in inside and extent % BLOCK == 0 and all(each.steps[dim] == step for each, step in pattern)
        ]
        if not fitting:
            raise UserError(
                f"@{op.intrinsic_name}: no dim of {extents} is a multiple of {BLOCK} and moves as {name} does",
                loc=location_of(op),
            )
        around[fitting[-1]] //= BLOCK
        inside.append(fitting[-1])
    dims: list[_LoopDim] = []
    for dim, extent in around.items():
        if extent > 1:
            factor = BLOCK if dim in inside else 1
            steps = [_entries(op, each, each.steps[dim] * factor) for each in operands]
            dims.append(_LoopDim(extent, (*steps, *[0] * (3 - len(steps)))))  # pyright: ignore[reportArgumentType]
    bases = [_entries(op, each, each.start) for each in operands]
    bases += [0] * (3 - len(bases))
    return dims, (bases[0], bases[1], bases[2])


def _entries(op: ExecOp, operand: _Operand, size: int) -> int:
    entry = ENTRY_BYTES.get(operand.scope)
    if entry is None or size % entry:
        raise UserError(
            f'@{op.intrinsic_name}: begins or steps by {size} bytes of "{operand.scope}", which is no multiple of an'
            f" entry of {entry}",
            loc=location_of(op),
        )
    return size // entry


def _merged(dims: Sequence[_LoopDim]) -> list[_LoopDim]:
    """Pairs of dims that move all operands as one dim would are one."""
    found = list(dims)
    for outer, inner in permutations(dims, 2):
        if (
            outer in found
            and inner in found
            and outer is not inner
            and outer.extent * inner.extent <= MAX_ITERATIONS
            and all(a == b * inner.extent for a, b in zip(outer.steps, inner.steps, strict=True))
        ):
            rest = list(found)
            rest.remove(outer)
            rest[rest.index(inner)] = _LoopDim(outer.extent * inner.extent, inner.steps)
            return _merged(rest)
    return found


def _depends_on_order(dims: Sequence[_LoopDim], bases: tuple[int, int, int], operands: int) -> bool:
    """Whether an application may read what another one writes, so that their order matters."""
    if operands < 2 or (bases[ACCUMULATOR] == bases[SOURCE] and all(d.steps[0] == d.steps[1] for d in dims)):
        return False
    ends = [bases[each] + sum(dim.steps[each] * (dim.extent - 1) for dim in dims) for each in (ACCUMULATOR, SOURCE)]
    return bases[ACCUMULATOR] <= ends[1] and bases[SOURCE] <= ends[0]


_ONCE = _LoopDim(1, (0, 0, 0))


def _choose(
    op: ExecOp, dims: Sequence[_LoopDim], most: int, *, in_order: bool = False
) -> tuple[_LoopDim, _LoopDim, list[_LoopDim]]:
    """The outer and the inner loop, and the dims that are listed, outermost first."""
    numbers = range(len(dims))
    pairs: list[tuple[int, ...]] = [(), *((each,) for each in numbers), *permutations(numbers, 2)]
    if in_order:
        pairs = [tuple(numbers[:count]) for count in range(3)]
    best: tuple[tuple[bool, int], tuple[_LoopDim, _LoopDim, list[_LoopDim]]] | None = None
    for pair in pairs:
        loops = [dims[each] for each in pair]
        listed = [dims[each] for each in numbers if each not in pair]
        if not in_order:
            listed.sort(key=lambda dim: dim.moves_accumulator)
        length = prod(dim.extent for dim in listed)
        if length > most or not all(map(_fits, loops)):
            continue
        innermost = next(iter([*listed[::-1], *loops[::-1]]), _ONCE)
        key = innermost.extent > 1 and not innermost.moves_accumulator, length
        if best is None or key < best[0]:
            outer, inner = [*[_ONCE] * (2 - len(loops)), *loops]
            best = key, (outer, inner, listed)
    if best is None:
        raise UserError(
            f"@{op.intrinsic_name}: its domain of {[dim.extent for dim in dims]} applications is no two loops of at"
            f" most {MAX_ITERATIONS} around {most} micro-operations",
            loc=location_of(op),
        )
    return best[1]


def _fits(dim: _LoopDim) -> bool:
    limits = (DEPTHS[MemoryType.ACC], DEPTHS[MemoryType.INP], DEPTHS[MemoryType.WGT])
    return dim.extent <= MAX_ITERATIONS and all(step < limit for step, limit in zip(dim.steps, limits, strict=True))


def _listed(op: ExecOp, dims: Sequence[_LoopDim], bases: tuple[int, int, int]) -> MicroOps:
    words = np.zeros((), np.uint32)
    for position, (name, field) in enumerate(MICRO_OP.items()):
        indices = np.full(1, bases[position], np.int64)
        for dim in dims:
            indices = (indices[:, None] + np.arange(dim.extent, dtype=np.int64) * dim.steps[position]).ravel()
        if int(indices.max()) > field.bounds[1]:
            raise UserError(
                f"@{op.intrinsic_name}: a micro-operation has {name} {int(indices.max())}, and the most is"
                f" {field.bounds[1]}",
                loc=location_of(op),
            )
        words = words | (indices << field.low).astype(np.uint32)
    return words
