# SPDX-License-Identifier: Apache-2.0
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

An operand whose elements are not read, as the window of a pool, only says how far loops run: nothing plays it.

What is not decided yet, on tensors, is taken to become what the intrinsic requires: scopes, strides, and extents, which
tiling cuts, shifts and pads to whole blocks.

Nothing here changes the IR. Partitioning, tiling, promotion, tensorization and the lowering to commands all ask the
same question, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, SSAValue

from penstock.dialects.cycles import Loop, loops_of
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

    def cycles(self, access: Access) -> int:
        """The cycles in which the intrinsic issues all of a generic, with loads of its stationary operand."""
        return self.intrinsic.timing.cycles(self.loops(access))

    def loops(self, access: Access) -> tuple[Loop, ...]:
        """The domain of a generic in blocks of the intrinsic, as its command iterates over it."""
        blocks = self.blocks
        dims = range(len(access.extents))
        covered = [(self.dims.index(dim), blocks[dim][1]) if dim in blocks else (None, 1) for dim in dims]
        stays = self.intrinsic.stationary_operand
        ends = (None if stays is None else self.buffers[stays], access.output)
        through = [[number is None or access.operands[number].moves(dim) for dim in dims] for number in ends]
        return loops_of(access.extents, covered, *through)

    def scope_of_operand(self, number: int) -> str:
        """The scope that the intrinsic requires of operand `number` of the generic; off chip for one that is unread."""
        return pattern_of(self.intrinsic).specs[self.operands.index(number)].scope if number in self.operands else DRAM

    def adjoining(self, number: int) -> int:
        """How many of the last dims of operand `number` are one block, without gaps between its rows."""
        if number not in self.operands or not block_of(self.intrinsic, place := self.operands.index(number)):
            return 1
        # Rows that nothing plays are iterated one by one, each in granules of its own.
        results = pattern_of(self.intrinsic).access.operands[place].index_map.results
        played = [any(self.dims[dim] is not None for dim in expr.used_dims()) for expr in results]
        return len(played) - played.index(True) if any(played) else 1


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
    buffers, touched = sum(spec.role != IMMEDIATE for spec in specs), access.touched
    if buffers != len(touched):
        return Failure(name, 0, f"it has {buffers} operands, the op {len(touched)}")
    bindings = [
        {**binding, pattern.output: access.output}
        for binding in unify(pattern.yielded, access.yielded, {})
        if binding.get(pattern.output, access.output) == access.output
    ]
    complete = [b for b in bindings if len(b) == len(pattern.operands)]
    if not complete:
        wanted, given = specs[-1].dtype, access.operands[access.output].element
        if wanted != given and any(True for _ in unify(untyped(pattern.yielded), untyped(access.yielded), {})):
            return Failure(name, 2, f"its body computes {wanted}, not {given}")
        return Failure(name, BODY, "its body computes something else")
    failures: list[Failure] = []
    for binding in complete:
        outcome = _Matching(access, intrinsic, target, binding).match()
        if isinstance(outcome, Match):
            return outcome
        failures.append(outcome)
    return max(failures, key=lambda failure: failure.stage)


@dataclass(frozen=True)
class IntrinsicPattern:
    """An intrinsic, as matching sees it: its own generic, whose dynamic extents are 0, and its operands."""

    access: Access
    specs: tuple[OperandSpec, ...]


@lru_cache(maxsize=256)
def pattern_of(intrinsic: IntrinsicOp) -> IntrinsicPattern:
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
    return IntrinsicPattern(access, specs)


@lru_cache(maxsize=1024)
def block_of(intrinsic: IntrinsicOp, number: int) -> tuple[int, ...]:
    """The shape of what an application takes of a dense operand of several rows; empty for any other."""
    pattern = pattern_of(intrinsic)
    results = pattern.access.operands[number].index_map.results
    most = [(intrinsic.shape[dim] or (1, 1))[1] for expr in results for dim in expr.used_dims()]
    is_block = pattern.specs[number].strides == DENSE and any(size > 1 for size in most[:-1])
    return tuple(most) if is_block and len(most) == len(results) else ()


class _Matching:
    """One way to bind the operands of an intrinsic, for which the dims that play its dims are sought."""

    def __init__(self, access: Access, intrinsic: IntrinsicOp, target: TargetOp, binding: Binding):
        self._access, self._intrinsic, self._target = access, intrinsic, target
        self._name = intrinsic.sym_name.data
        self._pattern, self._specs = pattern_of(intrinsic).access, pattern_of(intrinsic).specs
        self._bound = [binding[number] for number in range(len(self._specs))]
        self._played = tuple(None if isinstance(bound, Attribute) else bound for bound in self._bound)

    def match(self) -> Match | Failure:
        for spec, bound in zip(self._specs, self._bound, strict=True):
            if isinstance(bound, Attribute):
                if (fault := self._intrinsic.immediate_fault(bound)) is not None:
                    return Failure(self._name, 2, fault)
                continue
            operand = self._access.operands[bound]
            if operand.element != spec.dtype:
                return Failure(self._name, 2, f"operand {spec.name} is {spec.dtype}, not {operand.element}")
            if operand.scope is not None and operand.scope != spec.scope:
                reason = f'operand {spec.name} is to be in "{spec.scope}", and is in "{operand.scope}"'
                return Failure(self._name, 3, reason)
        dims = self._dims()
        if isinstance(dims, Failure):
            return dims
        for number in self._access.touched:
            if number not in self._played:
                return Failure(self._name, 6, f"nothing in it plays operand {number} of the op")
        immediates = tuple(bound for bound in self._bound if isinstance(bound, Attribute))
        return Match(self._intrinsic, self._played, tuple(dims), immediates)

    def _dims(self) -> list[int | None] | Failure:
        """For each dim of the intrinsic the dim of the generic that plays it."""
        access = self._access
        dims: list[int | None] = []
        unplayed: list[str] = []
        for dim, dim_name in enumerate(self._intrinsic.dims):
            block = self._intrinsic.shape[dim] or (1, 1)
            candidates: list[int] = []
            reason, stage = NOTHING_LEFT, 4
            for candidate, extent in enumerate(access.extents):
                if candidate in dims or (extent == 1 and block[0] == 1):
                    continue
                fault = self._dim_fault(dim, candidate)
                if fault is not None:
                    # That a dim is of the other kind says the least.
                    is_close = access.kinds[candidate] == self._pattern.kinds[dim]
                    reason = fault if stage == 4 and (is_close or reason == NOTHING_LEFT) else reason
                elif access.is_placed and not is_whole(extent, block):
                    reason, stage = _extent_fault(block, extent), 5
                else:
                    candidates.append(candidate)
            if candidates:
                dims.append(max(candidates, key=lambda c: (access.extents[c], c)))
                continue
            if stage == 5:
                return Failure(self._name, stage, f"dim {dim_name} {reason}")
            unplayed.append(f"nothing can play its dim {dim_name}: {reason}")
            if block[0] > 1:
                return Failure(self._name, stage, unplayed[-1])
            dims.append(None)
        for outer in range(len(access.extents)):
            if outer in dims or access.extents[outer] == 1:
                continue
            if (fault := self._outer_fault(outer)) is not None:
                # A dim that cannot stay outside should have been one of the intrinsic's own.
                return Failure(self._name, 6, "; ".join([*unplayed, fault]))
        return dims

    def _operands(self) -> Iterator[tuple[int, OperandSpec, Operand]]:
        """The operands of the intrinsic, immediates left out: number, what it says, and what plays it."""
        for number, bound in enumerate(self._played):
            if bound is not None:
                yield number, self._specs[number], self._access.operands[bound]

    def _dim_fault(self, dim: int, candidate: int) -> str | None:
        """Why dim `candidate` of the generic cannot play dim `dim` of the intrinsic; None if it can."""
        if self._access.kinds[candidate] != self._pattern.kinds[dim]:
            return f"d{candidate} is {self._access.kinds[candidate].value}"
        for number, spec, operand in self._operands():
            pattern = self._pattern.operands[number].index_map
            last = len(pattern.results) > 0 and dim in pattern.results[-1].used_dims()
            if dim not in pattern.used_dims():
                if operand.moves(candidate):
                    return f"d{candidate} moves operand {spec.name}"
            elif last:
                if not _is_last(operand, candidate):
                    return f"d{candidate} does not move operand {spec.name} by one element"
            elif block := block_of(self._intrinsic, number):
                row = next(at for at, expr in enumerate(pattern.results) if dim in expr.used_dims())
                if not _adjoins(operand, candidate, block[row:]):
                    rows = f"its rows of {block[-1]} adjoin, and those of d{candidate} do not"
                    return f"operand {spec.name} is dense: {rows}"
            elif (pitch := _pitch_fault(operand, candidate, _granule(self._target, spec.scope))) is not None:
                return f"d{candidate} moves operand {spec.name} by {pitch}"
        return None

    def _outer_fault(self, outer: int) -> str | None:
        """Why dim `outer` cannot be iterated around the intrinsic; None if it can."""
        is_reduction = self._access.kinds[outer] == IteratorType.REDUCTION
        if is_reduction and self._pattern.output not in leaves(self._pattern.yielded):
            return f"d{outer} is a reduction, and it does not accumulate"
        for _, spec, operand in self._operands():
            if (pitch := _pitch_fault(operand, outer, _granule(self._target, spec.scope))) is not None:
                return f"d{outer} moves operand {spec.name} by {pitch}"
        return None


def _extent_fault(block: Extents, extent: int) -> str:
    if block[0] == block[1]:
        return f"takes multiples of {block[0]}, not {extent}"
    return f"takes blocks of {block[0]} to {block[1]}, and the last of {extent} is smaller"


@lru_cache(maxsize=256)
def _granule(target: TargetOp, scope: str) -> int:
    return 1 if scope == DRAM else target.scope(scope).granule_bytes


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


def candidates(access: Access, target: TargetOp) -> tuple[list[Match], list[Failure]]:
    """
    All matches of `access`, and why the machine's other intrinsics are none.

    What is cheapest comes first: what a DMA engine does on the way, then the least cycles of a unit; among equals
    the order is that of the machine.
    """
    key = access, target, target.parts(IntrinsicOp)
    if (known := _KNOWN.get(key)) is None:
        if len(_KNOWN) >= MAX_KNOWN:
            _KNOWN.clear()
        plain = replace(access, operands=tuple(replace(operand, value=None) for operand in access.operands))
        known = _KNOWN[plain, *key[1:]] = _candidates(plain, target, key[2])
    return [*known[0]], [*known[1]]


_Outcomes = tuple[tuple[Match, ...], tuple[Failure, ...]]
_KNOWN: dict[tuple[Access, TargetOp, tuple[IntrinsicOp, ...]], _Outcomes] = {}
"""`candidates` of an access without values, of which a network has few that differ. A value plays no part in a key."""
MAX_KNOWN = 4096


def _candidates(access: Access, target: TargetOp, intrinsics: Sequence[IntrinsicOp]) -> _Outcomes:
    outcomes = [match_intrinsic(access, intrinsic, target) for intrinsic in intrinsics]
    matches = [outcome for outcome in outcomes if isinstance(outcome, Match)]
    matches.sort(key=lambda match: match.cycles(access))
    return tuple(matches), tuple(outcome for outcome in outcomes if isinstance(outcome, Failure))


def runs_on_unit(match: Match) -> bool:
    """Whether the intrinsic runs on a unit of its own, not on the way of a DMA."""
    return match.intrinsic.dma_name is None


def choose_matches(
    options: Mapping[GenericOp, Sequence[Match]],
    place_of: Callable[[SSAValue], tuple[SSAValue, str | None]],
    stays: Callable[[GenericOp, SSAValue, str], bool],
) -> tuple[dict[GenericOp, Match | None], dict[SSAValue, str]]:
    """
    The intrinsic of each op, such that what one leaves in a scope the next finds there, and the scopes of storages.

    Units choose, what DMA engines do follows, and what only fills a buffer goes where the others need it. `place_of`
    tells the storage of an operand, and its scope if it has one already; `stays` whether an op settles the scope of one
    of its operands. Where no option agrees with what is settled the first is taken.
    """
    scopes: dict[SSAValue, str] = {}
    chosen: dict[GenericOp, Match | None] = dict.fromkeys(options)
    for generic in sorted(options, key=lambda g: (not g.inputs, not any(map(runs_on_unit, options[g][:1])))):
        places = [(number, value, *place_of(value)) for number, value in enumerate(generic.operands)]
        agreeing = (
            match
            for match in options[generic]
            if all(
                scopes.get(root, known or s) == s for n, _, root, known in places for s in [match.scope_of_operand(n)]
            )
        )
        match = chosen[generic] = next(agreeing, next(iter(options[generic]), None))
        for number, value, root, _ in places:
            if match is not None and stays(generic, value, scope := match.scope_of_operand(number)):
                scopes.setdefault(root, scope)
    return chosen, scopes
