# SPDX-License-Identifier: Apache-2.0
"""
Cutting a kernel where the device changes: which intrinsic covers which op, what shares a tile, what crossing costs.

1. `choose` finds the intrinsic that covers an op, `segments_of` cuts the kernel where the device changes.
2. `settle` gives back to the host what does not pay: beside a segment of the host, an op without multiply-accumulates
   may take longer on the machine, where its operands go off chip and come back. Both are estimated in cycles of the
   machine, nothing overlapped: bytes over the slowest bus, the latency of a transfer for every operand, and the issues
   of the intrinsics there; scalar operations and bytes of the `machine.processor` here.
3. `count_crossings` writes on kernels how many bytes go to another device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import groupby, product
from math import prod

from xdsl.dialects import func, tensor
from xdsl.dialects.builtin import FileLineColLoc, IntegerAttr, ModuleOp, NameLoc, TensorType, i64
from xdsl.dialects.linalg.ops import GenericOp, IndexOp
from xdsl.ir import SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import render_location
from penstock.dialects.machine import DRAM, ProcessorOp, TargetOp
from penstock.dialects.mem import element_bytes
from penstock.passes.analysis.access import access_of, in_place_variants
from penstock.passes.analysis.intrinsics import BODY, Match, candidates, pattern_of, runs_on_unit
from penstock.passes.analysis.kernels import (
    CROSSING,
    device_of,
    has_reduction,
    is_contraction,
    joined_remarks,
    kernels,
)
from penstock.passes.analysis.work import scalar_operations


@dataclass(frozen=True)
class Coverage:
    """How the machine computes a generic: by which intrinsic, with which input as the output's initial value."""

    match: Match
    in_place: int | None
    cycles: int
    """In which the intrinsic issues all of the generic, if nothing is in its way."""


@dataclass
class Segment:
    """Consecutive generics of a kernel that run on one device."""

    on_machine: bool
    generics: list[GenericOp] = field(default_factory=list[GenericOp])
    remark: str = ""


def choose(generic: GenericOp, target: TargetOp) -> Coverage | str:
    """The first intrinsic that covers `generic`, or the reason why none does, from the one that came furthest."""
    access = access_of(generic)
    if access is None:
        return "it has several outputs, a dynamic domain, or needs its own index"
    matches, failures = candidates(access, target)
    # An intrinsic that accumulates in place saves a transfer: try the variants before the plain form, and what was
    # just computed before what would have to be fetched.
    variants = sorted(in_place_variants(access), key=lambda found: not _is_computed(generic.inputs[found[0]]))
    choices: list[Coverage] = []
    for number, variant in variants:
        found, more = candidates(variant, target)
        failures += more
        choices += [Coverage(match, number, match.cycles(variant)) for match in found]
    choices += [Coverage(match, None, match.cycles(access)) for match in matches]
    if choices:
        # What was just computed is on the chip: an engine that reads it off chip comes last.
        return next((each for each in choices if not _fetches_computed(generic, each)), choices[0])
    if not failures:
        return "the machine has no intrinsics"
    furthest = max(failures, key=lambda failure: failure.stage)
    if furthest.stage <= BODY:
        return f"no intrinsic computes {_words(generic)}"
    return f"@{furthest.intrinsic}: {furthest.reason}"


def _words(generic: GenericOp) -> str:
    """What the body of a generic does, for a remark."""
    names = [op.name for op in generic.body.block.ops if op.name not in ("arith.constant", "linalg.yield")]
    words = ", ".join(dict.fromkeys(names)) or "a copy"
    return f"{words} in a reduction" if has_reduction(generic) else words


def _fetches_computed(generic: GenericOp, choice: Coverage) -> bool:
    """Whether a choice reads off chip what another generic of the kernel computes."""
    operands = list(generic.operands)
    if choice.in_place is not None:
        operands = [*operands[: choice.in_place], *operands[choice.in_place + 1 : -1], operands[choice.in_place]]
    scopes = [choice.match.scope_of_operand(number) for number in range(len(operands))]
    return any(_is_computed(value) and scope == DRAM for value, scope in zip(operands, scopes, strict=True))


def _is_computed(value: SSAValue) -> bool:
    return isinstance(value.owner, GenericOp)


def is_fill(generic: GenericOp) -> bool:
    """Whether `generic` only gives every element of its output the same value."""
    by_index = any(isinstance(op, IndexOp) for op in generic.body.block.ops)
    return not generic.inputs and not has_reduction(generic) and not by_index


def runs_on_a_unit(generics: list[GenericOp], target: TargetOp | None) -> bool:
    """Whether some unit of the machine computes one of the generics; a transfer alone is no reason to go there."""
    found = [choose(generic, target) for generic in generics] if target is not None else []
    return any(isinstance(choice, Coverage) and runs_on_unit(choice.match) for choice in found)


def segments_of(kernel: func.FuncOp, choices: dict[GenericOp, Coverage | str]) -> list[Segment]:
    """
    Cut the generics of a kernel where the device changes, and where one tile cannot hold the neighbours.

    A segment on the machine is a tree: every result in it but the last is used once, by the next op towards the root.
    """
    trees: dict[GenericOp, Segment] = {}
    for generic, choice in choices.items():
        if is_fill(generic):
            continue
        covered = isinstance(choice, Coverage) and _inits_are_covered(generic, choices)
        tree = trees[generic] = Segment(covered, [generic])
        if not covered:
            tree.remark = remark_on(generic, choice if isinstance(choice, str) else "its initial value is not covered")
            continue
        for operand in dict.fromkeys(generic.operands):
            producer = operand.owner
            if not isinstance(producer, GenericOp) or (below := trees.get(producer)) is None:
                continue
            if below.on_machine and not _must_cut(below, tree, generic, choices):
                tree.generics[:0] = below.generics
                del trees[producer]
    segments: list[Segment] = []
    for segment in trees.values():
        found = [choices[generic] for generic in segment.generics]
        if segment.on_machine and not any(isinstance(c, Coverage) and runs_on_unit(c.match) for c in found):
            segment.on_machine = False
            segment.remark = remark_on(segment.generics[0], "only a transfer computes it, and nothing is transferred")
        if segments and not segments[-1].on_machine and not segment.on_machine:
            segments[-1].generics += segment.generics
            segments[-1].remark = joined_remarks([segments[-1].remark, segment.remark])
        else:
            segments.append(segment)
    return segments


def remark_on(generic: GenericOp, why: str, *, placed: bool = False) -> str:
    """The reason, with the name of the op in the model where it has one, or, if `placed`, its place in a text."""
    is_known = isinstance(generic.location, NameLoc) or (placed and isinstance(generic.location, FileLineColLoc))
    return f"{render_location(generic.location)}: {why}" if is_known else why


def _inits_are_covered(generic: GenericOp, choices: dict[GenericOp, Coverage | str]) -> bool:
    """Whether every fill that this generic starts from is covered too."""
    owners = [operand.owner for operand in generic.operands]
    fills = [owner for owner in owners if isinstance(owner, GenericOp) and is_fill(owner)]
    return all(isinstance(choices[fill], Coverage) for fill in fills)


def _must_cut(below: Segment, tree: Segment, generic: GenericOp, choices: dict[GenericOp, Coverage | str]) -> bool:
    """Whether `generic`, the root of `tree`, cannot share a tile with the segment that computes one of its operands."""
    producer = below.generics[-1]
    before = choices[producer]
    assert isinstance(before, Coverage)
    after = choices[generic]
    assert isinstance(after, Coverage)
    stored = pattern_of(before.match.intrinsic).specs[-1].scope == DRAM or _fetches_computed(generic, after)
    escapes = any(use.operation is not generic for use in producer.results[0].uses)
    two_reductions = all(any(has_reduction(g) for g in segment.generics) for segment in (below, tree))
    return stored or escapes or two_reductions or not _reads_where_it_writes(generic, producer)


def _reads_where_it_writes(generic: GenericOp, producer: GenericOp) -> bool:
    """Whether a point of `generic` needs just the element of the producer's result that it writes of its own."""
    maps = [attr.data for attr in generic.indexing_maps]
    read = [m for operand, m in zip(generic.operands, maps, strict=True) if operand is producer.results[0]]
    return not has_reduction(generic) and all(m == maps[-1] for m in read)


MAX_MOVABLE_SEGMENTS = 8
"""With more segments that could move than this, legality decides: all placements are compared."""


def settle(
    segments: Sequence[Segment], choices: dict[GenericOp, Coverage | str], target: TargetOp | None
) -> list[Segment]:
    """
    The segments of a kernel, those that do not pay on the machine given to the host, and neighbours there joined.

    Nothing changes for a kernel that is whole on one device, nor on a machine whose processor is not described.
    """
    processor = target.processor() if target is not None else None
    movable = [number for number, segment in enumerate(segments) if segment.on_machine and not _contracts(segment)]
    is_cut = any(not segment.on_machine for segment in segments)
    if target is None or processor is None or not is_cut or not 0 < len(movable) <= MAX_MOVABLE_SEGMENTS:
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
    return [Segment(False, generics, joined_remarks(segment.remark for segment in run))]


def _explained(
    part: Segment,
    segments: Sequence[Segment],
    choices: dict[GenericOp, Coverage | str],
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
    segment: Segment, choices: dict[GenericOp, Coverage | str], target: TargetOp, processor: ProcessorOp
) -> float:
    """The cycles that a segment is estimated to take where it is, with all that it reads and writes off chip."""
    sizes = [_bytes(value) for value in _boundary(segment)]
    if not segment.on_machine:
        operations = sum(scalar_operations(generic, processor) for generic in segment.generics)
        return float(operations * processor.cycles_per_op + sum(sizes) * processor.cycles_per_byte)
    per_byte, per_transfer = _transfer_costs(target)
    found = [choices[generic] for generic in segment.generics]
    issues = sum(choice.cycles for choice in found if isinstance(choice, Coverage))
    return issues + sum(sizes) * per_byte + len(sizes) * per_transfer


def least_cycles(segment: Segment, choices: Mapping[GenericOp, Coverage], target: TargetOp) -> Fraction:
    """The cycles that no schedule on the machine goes below: its longest op, or all bytes over all buses at once."""
    rates = [Fraction(*bus.bytes_per_cycle) for bus in target.buses().values()]
    moved = Fraction(sum(_bytes(value) for value in _boundary(segment)))
    issues = [choice.cycles for generic, choice in choices.items() if generic in segment.generics]
    unlimited = not rates or any(dma.bus_name is None for dma in target.dmas().values())
    latency = min((dma.latency_cycles for dma in target.dmas().values()), default=0)
    # Something is loaded before anything happens, and what is computed last is stored after it.
    return latency + max(Fraction(max(issues, default=0) + latency), Fraction(0) if unlimited else moved / sum(rates))


def _transfer_costs(target: TargetOp) -> tuple[float, int]:
    """The cycles of a byte on the slowest bus of an engine, and the longest latency of one."""
    buses, engines = target.buses(), target.dmas().values()
    rates = [buses[dma.bus_name].bytes_per_cycle for dma in engines if dma.bus_name is not None]
    per_byte = max((cycles / size for size, cycles in rates), default=1.0)
    return per_byte, max((dma.latency_cycles for dma in engines), default=0)


def _contracts(segment: Segment) -> bool:
    return any(is_contraction(generic) for generic in segment.generics)


def _chosen(segment: Segment, choices: dict[GenericOp, Coverage | str]) -> list[Coverage]:
    return [choice for generic in segment.generics if isinstance(choice := choices[generic], Coverage)]


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
    return prod(type.get_shape()) * element_bytes(type) if isa(type, TensorType) else 0


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
