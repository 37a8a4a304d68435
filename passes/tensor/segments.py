"""Cutting a kernel where the device changes: which intrinsic covers which op, and who can share a tile."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.dialects import func
from xdsl.dialects.builtin import NameLoc
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import SSAValue

from penstock.dialects.diagnostics import render_location
from penstock.dialects.machine import DRAM, TargetOp
from penstock.passes.analysis.access import access_of, in_place_variants
from penstock.passes.analysis.intrinsics import BODY, Match, candidates, pattern_of, runs_on_unit
from penstock.passes.analysis.kernels import (
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
    choices: list[Choice] = []
    for number, variant in variants:
        found, more = candidates(variant, target)
        failures += more
        choices += [Choice(match, number) for match in found]
    choices += [Choice(match, None) for match in matches]
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
    """What the body of a generic does, for whoever may want to declare an intrinsic for it."""
    names = [op.name for op in generic.body.block.ops if op.name not in ("arith.constant", "linalg.yield")]
    words = ", ".join(dict.fromkeys(names)) or "a copy"
    return f"{words} in a reduction" if has_reduction(generic) else words


def _fetches_computed(generic: GenericOp, choice: Choice) -> bool:
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
    return not generic.inputs and not has_reduction(generic)


def runs_on_a_unit(generics: list[GenericOp], target: TargetOp | None) -> bool:
    """Whether some unit of the machine computes one of the generics; a transfer alone is no reason to go there."""
    found = [choose(generic, target) for generic in generics] if target is not None else []
    return any(isinstance(choice, Choice) and runs_on_unit(choice.match) for choice in found)


def segments_of(kernel: func.FuncOp, choices: dict[GenericOp, Choice | str]) -> list[Segment]:
    """
    Cut the generics of a kernel where the device changes, and where one tile cannot hold the neighbours.

    A segment on the machine is a tree: every result in it but the last is used once, by the next op towards the root.
    """
    trees: dict[GenericOp, Segment] = {}
    for generic, choice in choices.items():
        if is_fill(generic):
            continue
        covered = isinstance(choice, Choice) and _inits_are_covered(generic, choices)
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
        if segment.on_machine and not any(isinstance(c, Choice) and runs_on_unit(c.match) for c in found):
            segment.on_machine = False
            segment.remark = remark_on(segment.generics[0], "only a transfer computes it, and nothing is transferred")
        if segments and not segments[-1].on_machine and not segment.on_machine:
            segments[-1].generics += segment.generics
        else:
            segments.append(segment)
    return segments


def remark_on(generic: GenericOp, why: str) -> str:
    """The reason, with the name of the op in the model where it has one."""
    return f"{render_location(generic.location)}: {why}" if isinstance(generic.location, NameLoc) else why


def _inits_are_covered(generic: GenericOp, choices: dict[GenericOp, Choice | str]) -> bool:
    """Whether every fill that this generic starts from is covered too."""
    owners = [operand.owner for operand in generic.operands]
    fills = [owner for owner in owners if isinstance(owner, GenericOp) and is_fill(owner)]
    return all(isinstance(choices[fill], Choice) for fill in fills)


def _must_cut(below: Segment, tree: Segment, generic: GenericOp, choices: dict[GenericOp, Choice | str]) -> bool:
    """Whether `generic`, the root of `tree`, cannot share a tile with the segment that computes one of its operands."""
    producer = below.generics[-1]
    before = choices[producer]
    assert isinstance(before, Choice)
    after = choices[generic]
    assert isinstance(after, Choice)
    stored = pattern_of(before.match.intrinsic).specs[-1].scope == DRAM or _fetches_computed(generic, after)
    escapes = any(use.operation is not generic for use in producer.results[0].uses)
    two_reductions = all(any(has_reduction(g) for g in segment.generics) for segment in (below, tree))
    return stored or escapes or two_reductions or not _reads_where_it_writes(generic, producer)


def _reads_where_it_writes(generic: GenericOp, producer: GenericOp) -> bool:
    """Whether a point of `generic` needs just the element of the producer's result that it writes of its own."""
    maps = [attr.data for attr in generic.indexing_maps]
    read = [m for operand, m in zip(generic.operands, maps, strict=True) if operand is producer.results[0]]
    return not has_reduction(generic) and all(m == maps[-1] for m in read)
