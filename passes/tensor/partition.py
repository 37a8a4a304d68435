"""
The cost of crossing: which ops of a group that is cut are worth sending to the machine though it covers them.

Where a group runs partly on the host, what crosses goes off chip and comes back. An op without multiply-accumulates
beside a segment of the host may then take longer on the machine than on the host, which has its operands at hand. Both
are estimated in cycles of the machine, nothing overlapped: bytes over the slowest bus, the latency of a transfer for
every operand, and the issues of the intrinsics there; scalar operations and bytes of the `machine.processor` here.
Ops that multiply and accumulate go where legality says.

What crosses in the end, between kernels that were given different devices, is counted and written on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import groupby, product
from math import prod

from xdsl.dialects import arith, func, tensor
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, TensorType, i64
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.machine import ProcessorOp, TargetOp
from penstock.dialects.mem import element_bytes
from penstock.passes.analysis.kernels import CROSSING, device_of, is_contraction, kernels
from penstock.passes.tensor.segments import Choice, Segment, is_fill

MOST_MOVABLE = 8
"""All choices are compared for so many segments at most; with more, legality decides."""


def settle(
    segments: Sequence[Segment], choices: dict[GenericOp, Choice | str], target: TargetOp | None
) -> list[Segment]:
    """
    The segments of a kernel, those that do not pay on the machine given to the host, and neighbours there joined.

    Nothing changes for a kernel that is whole on one device, nor on a machine whose processor is not described.
    """
    processor = target.processor() if target is not None else None
    movable = [number for number, segment in enumerate(segments) if segment.on_machine and not _contracts(segment)]
    is_cut = any(not segment.on_machine for segment in segments)
    if target is None or processor is None or not is_cut or not 0 < len(movable) <= MOST_MOVABLE:
        return list(segments)
    best: tuple[float, list[Segment]] | None = None
    for stays in product((True, False), repeat=len(movable)):
        moved = {number for number, stay in zip(movable, stays, strict=True) if not stay}
        placed = [replace(each, on_machine=each.on_machine and n not in moved) for n, each in enumerate(segments)]
        joined = [_joined(list(run)) for _, run in groupby(placed, key=lambda each: each.on_machine)]
        parts = [part for run in joined for part in run]
        cycles = sum(cycles_of(part, choices, target, processor) for part in parts)
        if best is None or cycles < best[0]:
            best = (cycles, parts)
    assert best is not None
    return [_explained(part, segments, choices, target, processor) for part in best[1]]


def _joined(run: list[Segment]) -> list[Segment]:
    """Neighbours on the host as one segment; those on the machine as they were."""
    if run[0].on_machine:
        return run
    generics = [generic for segment in run for generic in segment.generics]
    return [Segment(False, generics, next((segment.remark for segment in run if segment.remark), ""))]


def _explained(
    part: Segment,
    segments: Sequence[Segment],
    choices: dict[GenericOp, Choice | str],
    target: TargetOp,
    processor: ProcessorOp,
) -> Segment:
    """The segment, its remark completed by what was taken from the machine."""
    if part.on_machine:
        return part
    taken = [segment for segment in segments if segment.on_machine and segment.generics[0] in part.generics]
    words = [part.remark] if part.remark else []
    for segment in taken:
        names = dict.fromkeys(f"@{choice.match.intrinsic.sym_name.data}" for choice in _chosen(segment, choices))
        there = cycles_of(segment, choices, target, processor)
        here = cycles_of(replace(segment, on_machine=False), choices, target, processor)
        words.append(
            f"crossing to {', '.join(names)} does not pay: {there:,.0f} cycles there, at most {here:,.0f} here"
        )
    return replace(part, remark="; ".join(words))


def cycles_of(
    segment: Segment, choices: dict[GenericOp, Choice | str], target: TargetOp, processor: ProcessorOp
) -> float:
    """The cycles that a segment is estimated to take where it is, with all that it reads and writes off chip."""
    sizes = [_bytes(value) for value in _boundary(segment)]
    if not segment.on_machine:
        operations = sum(_operations(generic) for generic in segment.generics)
        return operations * processor.cycles_per_op + sum(sizes) * processor.cycles_per_byte
    per_byte, per_transfer = _transfer_costs(target)
    issues = sum(
        choice.match.intrinsic.initiation_interval * choice.match.issues(_extents(generic))
        for generic in segment.generics
        if isinstance(choice := choices[generic], Choice)
    )
    return issues + sum(sizes) * per_byte + len(sizes) * per_transfer


def least_cycles(segment: Segment, choices: Mapping[GenericOp, Choice], target: TargetOp) -> Fraction:
    """The cycles that no schedule on the machine goes below: its longest op, or all bytes over all buses at once."""
    rates = [Fraction(*bus.bytes_per_cycle) for bus in target.buses().values()]
    moved = Fraction(sum(_bytes(value) for value in _boundary(segment)))
    issues = [
        choice.match.intrinsic.initiation_interval * choice.match.issues(_extents(generic))
        for generic, choice in choices.items()
        if generic in segment.generics
    ]
    unlimited = not rates or any(dma.bus_name is None for dma in target.dmas().values())
    latency = min((dma.latency_cycles for dma in target.dmas().values()), default=0)
    # Something is loaded before anything happens, and what is computed last is stored behind it.
    return latency + max(Fraction(max(issues, default=0) + latency), Fraction(0) if unlimited else moved / sum(rates))


def _transfer_costs(target: TargetOp) -> tuple[float, int]:
    """The cycles of a byte on the slowest bus of an engine, and the longest latency of one."""
    buses, engines = target.buses(), target.dmas().values()
    rates = [buses[dma.bus_name].bytes_per_cycle for dma in engines if dma.bus_name is not None]
    per_byte = max((cycles / size for size, cycles in rates), default=1.0)
    return per_byte, max((dma.latency_cycles for dma in engines), default=0)


def _contracts(segment: Segment) -> bool:
    return any(is_contraction(generic) for generic in segment.generics)


def _chosen(segment: Segment, choices: dict[GenericOp, Choice | str]) -> list[Choice]:
    return [choice for generic in segment.generics if isinstance(choice := choices[generic], Choice)]


def _extents(generic: GenericOp) -> tuple[int, ...]:
    return tuple(generic.get_static_loop_ranges())


def _boundary(segment: Segment) -> list[SSAValue]:
    """What a segment reads from outside, and what it computes for others."""
    inside = set(segment.generics)
    read = [
        value
        for generic in segment.generics
        for value in generic.operands
        if value.owner not in inside and not _costs_nothing(value)
    ]
    written = [
        result
        for generic in segment.generics
        for result in generic.results
        if any(use.operation not in inside for use in result.uses)
    ]
    return list(dict.fromkeys([*read, *written]))


def _costs_nothing(value: SSAValue) -> bool:
    owner = value.owner
    return isinstance(owner, tensor.EmptyOp) or (isinstance(owner, GenericOp) and is_fill(owner))


def _bytes(value: SSAValue) -> int:
    source = value.owner.source if isinstance(value.owner, tensor.PadOp) else value
    type = source.type
    return prod(type.get_shape()) * element_bytes(type) if isa(type, TensorType[Attribute]) else 0


def _operations(generic: GenericOp) -> int:
    """The scalar operations of a generic: those of its body, a load of each operand that it reads, and the store."""
    body = generic.body.block
    computed = sum(not isinstance(op, arith.ConstantOp) for op in body.ops) - 1
    read = sum(bool(arg.uses) for arg in body.args)
    return prod(_extents(generic)) * (computed + read + 1)


def count_crossings(module: ModuleOp) -> None:
    """Write on every kernel how many bytes its calls hand to kernels on another device, if they do."""
    device = {kernel.sym_name.data: device_of(kernel) for kernel in kernels(module)}
    crossing: Counter[str] = Counter()
    for call in [op for op in module.walk() if isinstance(op, func.CallOp)]:
        name = call.callee.string_value()
        for result in call.results:
            if any(device.get(reader) != device.get(name) for reader in _readers(result)):
                crossing[name] += _bytes(result)
    for kernel in kernels(module):
        if size := crossing[kernel.sym_name.data]:
            kernel.attributes[CROSSING] = IntegerAttr(size, i64)


def _readers(value: SSAValue) -> Iterator[str]:
    """The kernels that are called with `value`, or with what has its elements."""
    for use in value.uses:
        op = use.operation
        if isinstance(op, func.CallOp):
            yield op.callee.string_value()
        elif not isinstance(op, func.ReturnOp):
            for result in op.results:
                yield from _readers(result)
