"""
Matching a `linalg.generic` against an intrinsic's declared behaviour (decision 7 of the design).

A `machine.intrinsic` holds one `linalg.generic`. A generic of the program *is* that intrinsic, run over some
domain, if

1. the bodies unify, up to the order of a commutative op's operands; an immediate is played by a constant that the
   instruction can carry;
2. every dim of the intrinsic is played by a dim of the generic (or by none, then its extent is 1) of the same
   iterator kind, so that each operand moves along that dim as the intrinsic says: not at all, by one element,
   or by a row, whose pitch is a multiple of the scope's granule, or, in a dense operand, the row itself: a block of
   VTA's weights is 16 rows of 16 that adjoin, and the tensor must have its blocks as its last dims;
3. the blocks that a dim is cut into, the last one included, have extents that the intrinsic permits;
4. the dims left over, which a command iterates outside the intrinsic, move each operand by whole granules.

What is not decided yet, on tensors, is taken to become what the intrinsic wants: scopes, strides, and extents, which
tiling cuts, shifts and pads to whole blocks.

Nothing here changes the IR. Partitioning, tiling, promotion, tensorization and the lowering to commands all ask the
same question, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.ir import Attribute

from penstock.dialects.machine import DRAM, IMMEDIATE, STRIDES, IntrinsicOp, OperandSpec, TargetOp
from penstock.passes.analysis.access import (
    Access,
    Binding,
    Hole,
    Leaf,
    Operand,
    expression_of,
    leaves,
    linear_form,
    map_leaves,
    unify,
    untyped,
)

Extents = tuple[int, int]
"""The least and the largest extent of one application in a dim."""


DENSE = STRIDES[0]
NOTHING_LEFT = "no dim is left"


def is_whole(extent: int, block: Extents) -> bool:
    """Whether `extent` is cut into blocks that are all permitted, the last one being what is left."""
    return (extent - 1) % block[1] + 1 >= block[0]


# the match


@dataclass(frozen=True)
class Match:
    """An intrinsic, and how a generic is an application of it."""

    intrinsic: IntrinsicOp
    operands: tuple[int | None, ...]
    """For each operand of the intrinsic, the operand of the generic that plays it; None for an immediate."""
    dims: tuple[int | None, ...]
    """For each dim of the intrinsic, the dim of the generic that plays it; None has extent 1."""
    immediates: tuple[Attribute, ...] = ()
    """The constants that the command carries, in the order of the intrinsic's immediates."""

    @property
    def buffers(self) -> tuple[int, ...]:
        """The operands of the generic in the order of the intrinsic's, immediates left out."""
        return tuple(number for number in self.operands if number is not None)

    @property
    def blocks(self) -> dict[int, Extents]:
        """The extents of one application, for each dim of the generic that plays a bounded dim."""
        pairs = zip(self.dims, self.intrinsic.shape, strict=True)
        return {dim: shape for dim, shape in pairs if dim is not None and shape is not None}

    def issues(self, extents: Sequence[int]) -> int:
        """The applications that the domain of these extents takes."""
        blocks = self.blocks
        return prod(-(-extent // blocks[dim][1]) if dim in blocks else extent for dim, extent in enumerate(extents))

    def scope_of_operand(self, number: int) -> str:
        """The scope that the intrinsic wants operand `number` of the generic in."""
        return pattern_of(self.intrinsic).specs[self.operands.index(number)].scope

    def adjoining(self, number: int) -> int:
        """How many of the last dims of operand `number` are one block, without gaps between its rows."""
        return len(block_of(self.intrinsic, self.operands.index(number))) or 1


BODY = 1
"""The stage of a failure at which the bodies differ; one at which the numbers of operands do is before it."""


@dataclass(frozen=True)
class Failure:
    """Why a generic is not an intrinsic; a later `stage` came further."""

    intrinsic: str
    stage: int
    reason: str


def match_intrinsic(access: Access, intrinsic: IntrinsicOp, target: TargetOp) -> Match | Failure:
    """
    Match `access` against one intrinsic. Where several dims could play one of the intrinsic's, the longest does.
    """
    name = intrinsic.sym_name.data
    pattern, specs = pattern_of(intrinsic).access, pattern_of(intrinsic).specs
    buffers = sum(spec.role != IMMEDIATE for spec in specs)
    if buffers != len(access.operands):
        return Failure(name, 0, f"it has {buffers} operands, the op {len(access.operands)}")
    bindings = [
        {**binding, pattern.output: access.output}
        for binding in unify(pattern.yielded, access.yielded, {})
        if binding.get(pattern.output, access.output) == access.output
    ]
    complete = [b for b in bindings if len(b) == len(pattern.operands)]
    if not complete:
        alike = any(True for _ in unify(untyped(pattern.yielded), untyped(access.yielded), {}))
        types = f"{specs[-1].dtype}, not {access.operands[access.output].element}"
        if alike and specs[-1].dtype != access.operands[access.output].element:
            return Failure(name, 2, f"its body computes {types}")
        return Failure(name, BODY, "its body computes something else")
    failures: list[Failure] = []
    for binding in complete:
        outcome = _match_operands(access, intrinsic, pattern, binding, target)
        if isinstance(outcome, Match):
            return outcome
        failures.append(outcome)
    return max(failures, key=lambda failure: failure.stage)


@dataclass(frozen=True)
class Pattern:
    """An intrinsic, as matching sees it: its own generic, whose dynamic extents stand as 0, and its operands."""

    access: Access
    specs: tuple[OperandSpec, ...]


@lru_cache(maxsize=256)
def pattern_of(intrinsic: IntrinsicOp) -> Pattern:
    """The pattern of an intrinsic. It is asked for with every op of a program, and machines do not change."""
    generic = intrinsic.generic
    body = generic.body.block
    terminator = body.last_op
    assert terminator is not None
    specs = intrinsic.operand_specs()
    operands = tuple(
        Operand(None, spec.scope, spec.dtype, None, map_attr.data)
        for spec, map_attr in zip(specs, generic.indexing_maps, strict=True)
    )

    def hole(number: int) -> Leaf | Hole:
        return Hole(number, specs[number].dtype) if specs[number].role == IMMEDIATE else Leaf(number)

    access = Access(
        (0,) * generic.get_num_loops(),
        tuple(kind.data for kind in generic.iterator_types),
        operands,
        map_leaves(expression_of(terminator.operands[0], body), hole),
    )
    return Pattern(access, specs)


@lru_cache(maxsize=1024)
def block_of(intrinsic: IntrinsicOp, number: int) -> tuple[int, ...]:
    """The shape of what an application takes of a dense operand of several rows; empty for any other."""
    pattern = pattern_of(intrinsic)
    results = pattern.access.operands[number].index_map.results
    most = [(intrinsic.shape[dim] or (1, 1))[1] for expr in results for dim in expr.used_dims()]
    is_block = pattern.specs[number].strides == DENSE and any(size > 1 for size in most[:-1])
    return tuple(most) if is_block and len(most) == len(results) else ()


def _match_operands(
    access: Access, intrinsic: IntrinsicOp, pattern: Access, binding: Binding, target: TargetOp
) -> Match | Failure:
    name = intrinsic.sym_name.data
    specs = pattern_of(intrinsic).specs
    played: list[int | None] = []
    immediates: list[Attribute] = []
    for number, spec in enumerate(specs):
        bound = binding[number]
        if isinstance(bound, Attribute):
            if (fault := intrinsic.immediate_fault(bound)) is not None:
                return Failure(name, 2, fault)
            immediates.append(bound)
            played.append(None)
            continue
        played.append(bound)
        operand = access.operands[bound]
        if operand.element != spec.dtype:
            return Failure(name, 2, f"operand {spec.name} is {spec.dtype}, not {operand.element}")
        if operand.scope is not None and operand.scope != spec.scope:
            return Failure(name, 3, f'operand {spec.name} lives in "{spec.scope}", not in "{operand.scope}"')
    dims = _match_dims(access, intrinsic, pattern, played, target)
    for number in range(len(access.operands)):
        if number not in played and not isinstance(dims, Failure):
            return Failure(name, 6, f"nothing in it plays operand {number} of the op")
    return dims if isinstance(dims, Failure) else Match(intrinsic, tuple(played), tuple(dims), tuple(immediates))


def _match_dims(
    access: Access, intrinsic: IntrinsicOp, pattern: Access, played: Sequence[int | None], target: TargetOp
) -> list[int | None] | Failure:
    """For each dim of the intrinsic the dim of the generic that plays it."""
    name = intrinsic.sym_name.data
    dims: list[int | None] = []
    unplayed: list[str] = []
    for dim, dim_name in enumerate(intrinsic.dims):
        block = intrinsic.shape[dim] or (1, 1)
        candidates: list[int] = []
        reason, stage = NOTHING_LEFT, 4
        for candidate, extent in enumerate(access.extents):
            if candidate in dims or (extent == 1 and block[0] == 1):
                continue
            fault = _dim_fault(access, pattern, intrinsic, played, dim, candidate, target)
            if fault is not None:
                # That a dim is of the other kind says the least.
                is_close = access.kinds[candidate] == pattern.kinds[dim]
                reason = fault if stage == 4 and (is_close or reason == NOTHING_LEFT) else reason
            elif access.is_placed and not is_whole(extent, block):
                reason, stage = _extent_fault(block, extent), 5
            else:
                candidates.append(candidate)
        if candidates:
            dims.append(max(candidates, key=lambda c: (access.extents[c], c)))
            continue
        if stage == 5:
            return Failure(name, stage, f"dim {dim_name} {reason}")
        unplayed.append(f"nothing can play its dim {dim_name}: {reason}")
        if block[0] > 1:
            return Failure(name, stage, unplayed[-1])
        dims.append(None)
    for outer in range(len(access.extents)):
        if outer in dims or access.extents[outer] == 1:
            continue
        fault = _outer_fault(access, intrinsic, pattern, played, outer, target)
        if fault is not None:
            # A dim that cannot stay outside should have been one of the intrinsic's own.
            return Failure(name, 6, "; ".join([*unplayed, fault]))
    return dims


def _extent_fault(block: Extents, extent: int) -> str:
    if block[0] == block[1]:
        return f"takes multiples of {block[0]}, not {extent}"
    return f"takes blocks of {block[0]} to {block[1]}, and the last of {extent} is smaller"


@lru_cache(maxsize=256)
def _granule(target: TargetOp, scope: str) -> int:
    return 1 if scope == DRAM else target.scope(scope).granule_bytes


def _dim_fault(
    access: Access,
    pattern: Access,
    intrinsic: IntrinsicOp,
    played: Sequence[int | None],
    dim: int,
    candidate: int,
    target: TargetOp,
) -> str | None:
    """Why dim `candidate` of the generic cannot play dim `dim` of the intrinsic; None if it can."""
    if access.kinds[candidate] != pattern.kinds[dim]:
        return f"d{candidate} is {access.kinds[candidate].value}"
    specs = pattern_of(intrinsic).specs
    for number, bound in enumerate(played):
        if bound is None:
            continue
        spec, wanted, operand = specs[number], pattern.operands[number].index_map, access.operands[bound]
        moves = operand.moves(candidate)
        last = len(wanted.results) > 0 and dim in wanted.results[-1].used_dims()
        if dim not in wanted.used_dims():
            if moves:
                return f"d{candidate} moves operand {spec.name}"
        elif last:
            if not _is_last(operand, candidate):
                return f"d{candidate} does not move operand {spec.name} by one element"
        elif block := block_of(intrinsic, number):
            row = next(at for at, expr in enumerate(wanted.results) if dim in expr.used_dims())
            if not _adjoins(operand, candidate, block[row:]):
                return f"operand {spec.name} is dense: its rows of {block[-1]} adjoin, and those of d{candidate} do not"
        elif (pitch := _pitch_fault(operand, candidate, _granule(target, spec.scope))) is not None:
            return f"d{candidate} moves operand {spec.name} by {pitch}"
    return None


def _is_last(operand: Operand, dim: int) -> bool:
    """Whether one step of `dim` moves the operand by one element."""
    if operand.steps is not None:
        return operand.steps[dim] == 1
    results = operand.index_map.results
    if not results or dim not in results[-1].used_dims():
        return False
    _, rows = linear_form(operand.index_map)
    return rows[-1][dim] == 1 and all(row[dim] == 0 for row in rows[:-1])


def _adjoins(operand: Operand, dim: int, block: tuple[int, ...]) -> bool:
    """Whether `dim` is the first dim of the last ones of the operand, which in all others have the sizes of `block`."""
    if operand.steps is not None:
        return operand.steps[dim] == prod(block[1:])
    first = len(operand.index_map.results) - len(block)
    if first < 0 or operand.shape is None or operand.shape[first + 1 :] != block[1:]:
        return False
    _, rows = linear_form(operand.index_map)
    return [row[dim] for row in rows] == [int(at == first) for at in range(len(rows))]


def _pitch_fault(operand: Operand, dim: int, granule: int) -> str | None:
    """The distance, if one step of `dim` moves the operand by something else than whole granules."""
    if operand.steps is None:
        # Not laid out yet: rows will be, and only the last index is not a row.
        results = operand.index_map.results
        if not results:
            return None
        _, rows = linear_form(operand.index_map)
        return f"{rows[-1][dim]} elements" if rows[-1][dim] else None
    distance = operand.steps[dim] * operand.element.compile_time_size  # pyright: ignore
    return f"{distance} bytes, not a multiple of {granule}" if distance % granule else None


def _outer_fault(
    access: Access, intrinsic: IntrinsicOp, pattern: Access, played: Sequence[int | None], outer: int, target: TargetOp
) -> str | None:
    """Why dim `outer` cannot be iterated around the intrinsic; None if it can."""
    specs = pattern_of(intrinsic).specs
    if access.kinds[outer] == IteratorType.REDUCTION and pattern.output not in leaves(pattern.yielded):
        return f"d{outer} is a reduction, and it does not accumulate"
    for number, bound in enumerate(played):
        if bound is None:
            continue
        spec = specs[number]
        if (pitch := _pitch_fault(access.operands[bound], outer, _granule(target, spec.scope))) is not None:
            return f"d{outer} moves operand {spec.name} by {pitch}"
    return None


def candidates(access: Access, target: TargetOp) -> tuple[list[Match], list[Failure]]:
    """
    All matches of `access`, and why the machine's other intrinsics are none.

    What is cheapest comes first: what a DMA engine does on the way, then the least cycles of a unit; among equals
    the order is that of the machine.
    """
    operands = tuple(replace(operand, value=None) for operand in access.operands)
    intrinsics = tuple(target.intrinsics().values())
    matches, failures = _candidates(replace(access, operands=operands), target, intrinsics)
    return [*matches], [*failures]


@lru_cache(maxsize=4096)
def _candidates(
    access: Access, target: TargetOp, intrinsics: tuple[IntrinsicOp, ...]
) -> tuple[tuple[Match, ...], tuple[Failure, ...]]:
    """`candidates` of an access without values, of which a network has few that differ."""
    outcomes = [match_intrinsic(access, intrinsic, target) for intrinsic in intrinsics]
    matches = [outcome for outcome in outcomes if isinstance(outcome, Match)]
    matches.sort(key=lambda match: match.intrinsic.initiation_interval * match.issues(access.extents))
    return tuple(matches), tuple(outcome for outcome in outcomes if isinstance(outcome, Failure))


def runs_on_unit(match: Match) -> bool:
    """Whether the intrinsic runs on a unit of its own, not on the way of a DMA."""
    return match.intrinsic.dma_name is None
