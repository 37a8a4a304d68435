# SPDX-License-Identifier: Apache-2.0
"""
Which tensors stay on chip between the operators of a program, as plain data.

A program is a fixed sequence of steps, one operator each. A tensor is accessed at some of them; each access is
*resident* (the operator finds the whole tensor on chip, or leaves it there) or *streamed* (it goes off chip for it,
at a cost that the access names). Between two neighbouring accesses lies a gap; a tensor is *kept* over a gap, or not.
A *run* is a maximal stretch of resident accesses with kept gaps between them: the tensor has one place on chip then.

For tensor i of s_i bytes on chip and m_i bytes off chip, with accesses k = 0..n at steps a_k, and for steps t:

    r_k in {0, 1}    access k is resident             r_k <= may_reside_k,  1 - r_k <= may_stream_k
    y_k in {0, 1}    kept over the gap k to k + 1     y_k <= r_k,  y_k <= r_(k+1)
    f_k = r_k - y_(k-1)                               a run begins (y_(-1) = 0): m_i bytes are filled from off chip,
                                                      but for f_0 of a tensor that is no source: that one makes it
    d_k >= r_k where k writes                         what is on chip is newer than what is off chip
    d_k >= d_(k-1) + y_(k-1) - 1 where k reads
    b_k >= d_k - y_k,  b_n >= d_n of an output        a run ends: m_i bytes are written back, unless they are not needed

    min    sum_i sum_k  c_k (1 - r_k) + m_i f_k + m_i b_k         (c_k: off-chip bytes of access k when streamed)
    s.t.   sum_i s_i z_it + B_t + sum_k g_k (1 - r_k) <= C        for every step t

with z_it = r_k at the step of access k, z_it = y_k at the steps strictly between k and k + 1, and 0 elsewhere; B_t is
the workspace of a step, g_k the staging that access k needs when it is streamed. A run that ends before the last
access is always written back if it was written: whatever follows reads what lies off chip. Where c_k = s_i = m_i,
nothing is staged and only the first access writes, r follows from y, and this is

    min    compulsory + sum_g s_i (1 - y_g) + sum_i s_i w_i       with w_i >= 1 - y_g for every gap g of i.

That is one dimension, space; the second is the place. Every run has one offset, the workspace of every step is one
block of bytes, and what is on chip at the same step does not overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple

from penstock.passes.planning.problem import Buffer, Plan, PlanError, Problem, validate

RunSpan = tuple[int, int]
"""The indices of the first and the last access of a run."""
RunSpans = tuple[RunSpan, ...]
"""The runs of one tensor, ascending and disjoint."""


@dataclass(frozen=True)
class TensorAccess:
    """One step at which a tensor is read or written."""

    step: int
    """When: an index into the sequence of operators. The same step reads and writes in one access."""
    off_chip_bytes: int | None = None
    """Bytes over the edge of the chip if it is streamed; those of the tensor by default. A tiled kernel may read some
    of them more than once; a kernel that takes a part of the tensor moves fewer."""
    may_reside: bool = True
    """Whether the operator can take the tensor from on chip, or leave it there."""
    may_stream: bool = True
    """Whether it can go off chip for it."""
    writes: bool = False
    """Whether it writes all or some of it. The first access of a tensor that is no source always does."""
    staging: int = 0
    """Bytes of workspace that it needs in addition when it is streamed."""

    def __post_init__(self) -> None:
        if self.step < 0:
            raise PlanError(f"an access is at step {self.step}")
        if self.staging < 0 or (self.off_chip_bytes is not None and self.off_chip_bytes < 0):
            raise PlanError(f"the access at step {self.step} moves or stages a negative number of bytes")
        if not (self.may_reside or self.may_stream):
            raise PlanError(f"the access at step {self.step} may be neither resident nor streamed")


@dataclass(frozen=True)
class Tensor:
    """One tensor of the program, with all its accesses."""

    id: str
    """Unique in its problem."""
    size: int
    """Bytes that it takes on chip."""
    accesses: tuple[TensorAccess, ...]
    """In ascending order of steps, one a step at most. The first one makes it, unless it is a source."""
    source: bool = False
    """Whether it lies off chip from the beginning, as the inputs and weights of a network do."""
    output: bool = False
    """Whether it has to lie off chip in the end."""
    alignment: int = 1
    """Its place on chip is a multiple of this many bytes."""
    off_chip_size: int | None = None
    """Bytes that filling it or writing it back moves; `size` by default. On chip its rows may be padded."""
    kind: str = ""
    """The operator that makes it and its shape, in words: what decisions made from experience go by."""

    def __post_init__(self) -> None:
        if self.size < 0 or (self.off_chip_size is not None and self.off_chip_size < 0):
            raise PlanError(f"tensor {self.id} has a negative byte count")
        if self.alignment < 1:
            raise PlanError(f"tensor {self.id} is aligned to {self.alignment} bytes")
        steps = [access.step for access in self.accesses]
        if not steps:
            raise PlanError(f"tensor {self.id} is never accessed")
        if any(later <= earlier for earlier, later in pairwise(steps)):
            raise PlanError(f"the accesses of tensor {self.id} are at the steps {steps}, which do not ascend")

    @property
    def moved(self) -> int:
        """Bytes of a fill or a write-back."""
        return self.size if self.off_chip_size is None else self.off_chip_size

    def streamed(self, index: int) -> int:
        """Bytes over the edge of the chip when access `index` is streamed."""
        found = self.accesses[index].off_chip_bytes
        return self.moved if found is None else found

    def writes(self, index: int) -> bool:
        """Whether access `index` writes it."""
        return self.accesses[index].writes or (index == 0 and not self.source)


@dataclass(frozen=True)
class OnChipProblem:
    """Tensors, a memory, and what the steps need of it besides."""

    tensors: tuple[Tensor, ...]
    """Each with its accesses; no two have the same id."""
    capacity: int
    """Bytes on chip."""
    workspace: tuple[int, ...] = ()
    """Bytes that each step takes for itself, whatever is resident: one block. 0 where it ends too early."""
    workspace_alignment: int = 1
    """The place of every such block is a multiple of this many bytes."""
    compute: tuple[float, ...] = ()
    """Time that each step computes, in any unit; 0 where it ends too early. Only some strategies use it."""
    bandwidth: float = 1.0
    """Bytes over the edge of the chip in that unit of time. A step takes the longer of computing and moving."""

    def __post_init__(self) -> None:
        if len({tensor.id for tensor in self.tensors}) != len(self.tensors):
            raise PlanError("two tensors have the same id")
        if self.capacity < 0:
            raise PlanError(f"the capacity is {self.capacity} bytes")
        if any(each < 0 for each in self.workspace):
            raise PlanError("a step has a workspace of a negative byte count")
        if self.workspace_alignment < 1:
            raise PlanError(f"the workspace is aligned to {self.workspace_alignment} bytes")
        if self.bandwidth <= 0 or any(each < 0 for each in self.compute):
            raise PlanError("a step computes for a negative time, or the bandwidth is not positive")

    @property
    def steps(self) -> int:
        """How many steps there are."""
        last = max((tensor.accesses[-1].step for tensor in self.tensors), default=-1)
        return max(last + 1, len(self.workspace), len(self.compute))


@dataclass(frozen=True)
class ResidentRun:
    """A stretch of neighbouring accesses of a tensor that are all resident, the gaps between them kept."""

    tensor: str
    """Its id."""
    first: int
    """Index of its first access among those of the tensor."""
    last: int
    """Index of its last one; the same as `first` where nothing is kept."""
    offset: int
    """Where the tensor lies on chip from the step of the first to that of the last, both included."""


@dataclass(frozen=True)
class OnChipAllocation:
    """An answer: the runs, in the order of the tensors; every access in none of them is streamed."""

    runs: tuple[ResidentRun, ...]
    """What is kept, and where; no access is in two of them."""
    workspace: Mapping[int, int] = field(default_factory=dict[int, int])
    """The offset of the block of each step that needs one: its workspace, and what is staged there."""
    off_chip_bytes: int = 0
    """Bytes over the edge of the chip, all tensors together, as its strategy predicts."""
    by_tensor: Mapping[str, int] = field(default_factory=dict[str, int])
    """The same, tensor by tensor."""
    bound: int = 0
    """Bytes that no answer to the problem can do without, as far as was proved."""

    @property
    def is_optimal(self) -> bool:
        """Whether it is proved that no answer moves fewer bytes."""
        return self.off_chip_bytes == self.bound

    def spans(self, tensor: str) -> RunSpans:
        """The runs of a tensor."""
        return tuple((run.first, run.last) for run in self.runs if run.tensor == tensor)

    def resident(self, tensor: str) -> frozenset[int]:
        """The indices of the accesses of a tensor that are resident."""
        return frozenset(index for first, last in self.spans(tensor) for index in range(first, last + 1))

    def kept(self, tensor: str) -> frozenset[int]:
        """The gaps over which a tensor is kept: gap k lies between accesses k and k + 1."""
        return frozenset(index for first, last in self.spans(tensor) for index in range(first, last))


class Movement(NamedTuple):
    """Bytes of one tensor over the edge of the chip."""

    tensor: str
    """Its id."""
    access: int
    """Index of the access that it belongs to."""
    step: int
    """The step of that access: a fill comes before its operator, a write-back after it."""
    kind: Literal["fill", "write-back", "stream"]
    """Onto the chip at the begin of a run, off it at the end of one, or past it, for one access."""
    bytes: int
    """So many."""


def movements(problem: OnChipProblem, allocation: OnChipAllocation) -> Iterator[Movement]:
    """Everything that goes over the edge of the chip, tensor by tensor, each in the order of the steps."""
    for tensor in problem.tensors:
        yield from movements_of(tensor, allocation.spans(tensor.id))


def movements_of(tensor: Tensor, spans: RunSpans) -> Iterator[Movement]:
    """
    What one tensor with these runs moves.

    A run that does not begin where the tensor is made begins with a fill; one in which it was written is written
    back after the last access that wrote it, if there are accesses after the run or the tensor is an output; every
    access outside of a run is streamed. Requires runs that `validate_allocation` accepts.
    """
    last_index = len(tensor.accesses) - 1
    last_of = {index: last for first, last in spans for index in range(first, last + 1)}
    firsts = {first for first, _ in spans}
    for index, access in enumerate(tensor.accesses):
        last = last_of.get(index)
        if last is None:
            yield Movement(tensor.id, index, access.step, "stream", tensor.streamed(index))
            continue
        if index in firsts and (index > 0 or tensor.source):
            yield Movement(tensor.id, index, access.step, "fill", tensor.moved)
        is_last_write = tensor.writes(index) and not any(map(tensor.writes, range(index + 1, last + 1)))
        if is_last_write and (last < last_index or tensor.output):
            yield Movement(tensor.id, index, access.step, "write-back", tensor.moved)


def traffic(problem: OnChipProblem, allocation: OnChipAllocation) -> dict[str, int]:
    """Bytes over the edge of the chip of each tensor, counted from the movements."""
    found = {tensor.id: 0 for tensor in problem.tensors}
    for movement in movements(problem, allocation):
        found[movement.tensor] += movement.bytes
    return found


def counted(problem: OnChipProblem, allocation: OnChipAllocation) -> OnChipAllocation:
    """The answer with the bytes that it moves."""
    counts = traffic(problem, allocation)
    return replace(allocation, off_chip_bytes=sum(counts.values()), by_tensor=counts)


def workspace_of(problem: OnChipProblem, allocation: OnChipAllocation) -> dict[int, int]:
    """The bytes of the block of each step that needs one: its workspace, and the staging of what it streams."""
    found = {step: size for step, size in enumerate(problem.workspace) if size}
    for tensor in problem.tensors:
        resident = allocation.resident(tensor.id)
        for index, access in enumerate(tensor.accesses):
            if access.staging and index not in resident:
                found[access.step] = found.get(access.step, 0) + access.staging
    return dict(sorted(found.items()))


def memory(problem: OnChipProblem, allocation: OnChipAllocation) -> tuple[Problem, Plan]:
    """
    What an allocation puts on chip, as a packing problem, and its packing.

    A run is called `tensor:first` and lives from the step of its first access through that of its last; the block of
    a step is called `workspace:step`.
    """
    tensors = {tensor.id: tensor for tensor in problem.tensors}
    buffers: list[Buffer] = []
    offsets: dict[str, int] = {}
    for run in allocation.runs:
        tensor = tensors[run.tensor]
        span = (tensor.accesses[run.first].step, tensor.accesses[run.last].step + 1)
        buffers.append(Buffer(f"{run.tensor}:{run.first}", (span,), tensor.size, tensor.alignment))
        offsets[buffers[-1].id] = run.offset
    for step, size in workspace_of(problem, allocation).items():
        buffers.append(Buffer(f"workspace:{step}", ((step, step + 1),), size, problem.workspace_alignment))
        if step in allocation.workspace:
            offsets[buffers[-1].id] = allocation.workspace[step]
    return Problem(tuple(buffers), problem.capacity), Plan(offsets)


def validate_allocation(problem: OnChipProblem, allocation: OnChipAllocation) -> None:
    """
    Check an answer against the definition of the problem, and nothing else.

    Raises PlanError, which says why, at a run of nothing, runs that share an access, an access that may not be
    resident but is, or may not be streamed but is, bytes on chip that overlap at a step or end outside of it, and
    predicted bytes that are not those counted.
    """
    tensors = {tensor.id: tensor for tensor in problem.tensors}
    seen: set[tuple[str, int]] = set()
    for run in allocation.runs:
        if (tensor := tensors.get(run.tensor)) is None:
            raise PlanError(f"{run.tensor} is no tensor of the problem")
        if not 0 <= run.first <= run.last < len(tensor.accesses):
            raise PlanError(f"a run of {run.tensor} is from access {run.first} to {run.last}, which are none of it")
        for index in range(run.first, run.last + 1):
            if (run.tensor, index) in seen:
                raise PlanError(f"access {index} of {run.tensor} is in two runs")
            seen.add((run.tensor, index))
            if not tensor.accesses[index].may_reside:
                raise PlanError(f"access {index} of {run.tensor} is resident, which it may not be")
    for tensor in problem.tensors:
        for index, access in enumerate(tensor.accesses):
            if not access.may_stream and (tensor.id, index) not in seen:
                raise PlanError(f"access {index} of {tensor.id} is streamed, which it may not be")
    validate(*memory(problem, allocation))
    counted = traffic(problem, allocation)
    for id, count in counted.items():
        if (said := allocation.by_tensor.get(id, 0)) != count:
            raise PlanError(f"{count} bytes of {id} go over the edge of the chip, not {said}")
    if (total := sum(counted.values())) != allocation.off_chip_bytes:
        raise PlanError(f"{total} bytes go over the edge of the chip, not {allocation.off_chip_bytes}")
    if allocation.bound > total:
        raise PlanError(f"{total} bytes go over the edge of the chip, fewer than the proved {allocation.bound}")
