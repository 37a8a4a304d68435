# SPDX-License-Identifier: Apache-2.0
"""The intrinsics of a host that are calls of a library, and how long they take, roughly."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation
from xdsl.utils.hints import isa

from penstock.dialects.machine import IntrinsicOp, TargetOp, ints_of
from penstock.dialects.mem import element_bytes
from penstock.passes.analysis.access import access_of
from penstock.passes.analysis.intrinsics import Match, candidates
from penstock.passes.planning.register_blocks import VectorUnit


def library_call_of(generic: GenericOp, target: TargetOp) -> Match | None:
    """How an op on tensors is calls of a library of the host: the fewest, in the order of the machine."""
    if not any(intrinsic.is_call for intrinsic in target.intrinsics().values()):
        return None
    access = access_of(generic, placed=False)
    matches = [] if access is None else candidates(access, target)[0]
    extents = generic.get_static_loop_ranges()
    calls = [match for match in matches if match.intrinsic.is_call]
    return min(calls, key=lambda match: prod(extents) // prod(_extents(match, extents)), default=None)


def names_call(op: Operation, target: TargetOp) -> bool:
    """Whether an op says that a call of a library of the host computes it."""
    if not isinstance(op, GenericOp) or op.library_call is None or not target.is_host:
        return False
    intrinsic = target.intrinsics().get(op.library_call.data)
    return intrinsic is not None and intrinsic.is_call


def call_cycles(
    match: Match, generic: GenericOp, fused: Sequence[GenericOp], unit: VectorUnit, target: TargetOp
) -> Fraction:
    """
    What the calls that do an op on tensors are modelled to take. What is computed before and after it, which no tile
    shares with them, reads and writes its operands once more.
    """
    extents = generic.get_static_loop_ranges()
    own = _extents(match, extents)
    around = sum(
        prod(value.type.get_shape()) * element_bytes(value.type)
        for op in fused
        for value in op.operands
        if isa(value.type, TensorType)
    )
    calls = prod(extents) // prod(own)
    return calls * cycles_of_call(match.intrinsic, own, unit, target) + around * _cycles_per_byte(target)


def cycles_of_call(intrinsic: IntrinsicOp, extents: Sequence[int], unit: VectorUnit, target: TargetOp) -> Fraction:
    """
    What a call over these extents is modelled to take: its applications at the share of the processor's multiply-adds
    that the library does, copies of what it reads and writes, and what it takes beside them.
    """
    blocks = [1 if shape is None else shape[1] for shape in intrinsic.shape]
    applications = prod(-(-extent // block) for extent, block in zip(extents, blocks, strict=True))
    each = Fraction(intrinsic.initiation_interval)
    if intrinsic.efficiency is not None:
        part, whole = ints_of(intrinsic.efficiency)
        each = Fraction(prod(blocks) * whole, part) / (unit.lanes * unit.fmas)
    maps = [index_map.data for index_map in intrinsic.generic.indexing_maps]
    touched = sum(prod(extents[dim] for dim in index_map.used_dims()) for index_map in maps) * unit.element_bytes
    return intrinsic.depth + applications * each + touched * _cycles_per_byte(target)


def _cycles_per_byte(target: TargetOp) -> Fraction:
    processor = target.processor()
    return Fraction(0) if processor is None else Fraction(*reversed(ints_of(processor.rate)))


def _extents(match: Match, extents: Sequence[int]) -> list[int]:
    """The extents of a call."""
    return [1 if dim is None else extents[dim] for dim in match.dims]
