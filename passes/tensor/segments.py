"""Cutting a kernel where the device changes: which intrinsic covers which op, and who can share a tile."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.dialects import func, tensor
from xdsl.dialects.builtin import NameLoc
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import SSAValue

from penstock.dialects.diagnostics import render_location
from penstock.dialects.machine import DRAM, TargetOp
from penstock.passes.access import access_of, in_place_variants
from penstock.passes.intrinsics import Match, candidates, pattern_of, runs_on_unit
from penstock.passes.kernels import (
    has_reduction,
)


@dataclass(frozen=True)
class Choice:
    """How the machine computes a generic: by which intrinsic, with which input as the output's initial value."""

    match: Match
    in_place: int | None


@dataclass
class Segment:
    """Consecutive generics of a kernel that run on one device."""

    on_machine: bool
    generics: list[GenericOp] = field(default_factory=list[GenericOp])
    remark: str = ""


def choose(generic: GenericOp, target: TargetOp) -> Choice | str:
    """The first intrinsic that covers `generic`, or the reason why none does, from the one that came furthest."""
    access = access_of(generic)
    if access is None:
        return "it has several outputs, a dynamic domain, or needs its own index"
    matches, failures = candidates(access, target)
    # An intrinsic that accumulates in place saves a transfer: try the variants before the plain form, and what was
    # just computed before what would have to be fetched.
    variants = sorted(in_place_variants(access), key=lambda found: not _is_computed(generic.inputs[found[0]]))
    for number, variant in variants:
        found, more = candidates(variant, target)
        failures += more
        if found:
            return Choice(found[0], number)
    if matches:
        return Choice(matches[0], None)
    if not failures:
        return "the machine has no intrinsics"
    furthest = max(failures, key=lambda failure: failure.stage)
    return f"@{furthest.intrinsic}: {furthest.reason}"


def _is_computed(value: SSAValue) -> bool:
    return isinstance(value.owner, GenericOp)


def _is_fill(generic: GenericOp) -> bool:
    return not generic.inputs and not has_reduction(generic)


def segments_of(kernel: func.FuncOp, choices: dict[GenericOp, Choice | str]) -> list[Segment]:
    """Cut the generics of a kernel where the device changes, and where one tile cannot hold the neighbours."""
    segments: list[Segment] = []
    for generic, choice in choices.items():
        if _is_fill(generic):
            continue
        on_machine = isinstance(choice, Choice) and _inits_are_covered(generic, choices)
        last = segments[-1] if segments else None
        if last is None or last.on_machine != on_machine or (on_machine and _must_cut(last, generic, choices)):
            last = Segment(on_machine)
            segments.append(last)
        last.generics.append(generic)
        if not on_machine and not last.remark:
            why = choice if isinstance(choice, str) else "its initial value is not covered"
            last.remark = _remark(generic, why)
    merged: list[Segment] = []
    for segment in segments:
        found = [choices[generic] for generic in segment.generics]
        if segment.on_machine and not any(isinstance(c, Choice) and runs_on_unit(c.match) for c in found):
            segment.on_machine = False
            segment.remark = _remark(segment.generics[0], "only a transfer computes it, and nothing is transferred")
        if merged and not merged[-1].on_machine and not segment.on_machine:
            merged[-1].generics += segment.generics
        else:
            merged.append(segment)
    return merged


def _remark(generic: GenericOp, why: str) -> str:
    """The reason, with the name of the op in the model where it has one."""
    return f"{render_location(generic.location)}: {why}" if isinstance(generic.location, NameLoc) else why


def _inits_are_covered(generic: GenericOp, choices: dict[GenericOp, Choice | str]) -> bool:
    """Whether every fill that this generic starts from is covered too."""
    owners = [operand.owner for operand in generic.operands]
    fills = [owner for owner in owners if isinstance(owner, GenericOp) and _is_fill(owner)]
    return all(isinstance(choices[fill], Choice) for fill in fills)


def _must_cut(segment: Segment, generic: GenericOp, choices: dict[GenericOp, Choice | str]) -> bool:
    """Whether `generic` cannot share a tile with the segment before it."""
    previous = segment.generics[-1]
    before = choices[previous]
    assert isinstance(before, Choice)
    stored = before.match.scope_of_operand(before.match.operands[_output_spec(before.match)]) == DRAM
    escapes = any(use.operation is not generic for use in previous.results[0].uses)
    unused = not any(operand is previous.results[0] for operand in generic.operands)
    two_reductions = has_reduction(generic) and any(has_reduction(g) for g in segment.generics)
    reshaped = generic.results[0].type != previous.results[0].type
    return stored or escapes or unused or two_reductions or reshaped or _pads_a_result(generic, segment)


def _output_spec(match: Match) -> int:
    roles = [spec.role for spec in pattern_of(match.intrinsic).specs]
    return next(number for number, role in enumerate(roles) if role != "in")


def _pads_a_result(generic: GenericOp, segment: Segment) -> bool:
    owners = [operand.owner for operand in generic.operands]
    return any(isinstance(o, tensor.PadOp) and o.source.owner in segment.generics for o in owners)
