"""
What a group costs on a machine whose scopes are managed by software: the bytes that go off chip and back.

A group is sketched as the kernel that it will be, and `assign-devices` cuts the sketch as it will cut the kernel. Each
part on the machine costs what its best tile moves: what is read again for every tile counts every time. Each part on
the host costs its operands and its results. So a value between two groups costs a store and a load, one on which a
group is cut costs them in the type that it has inside, and a fused operand that takes room from the tiles costs what is
read again because they are smaller. A group that has no sketch has no estimate, and is formed as TVM forms it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType, f32
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.graph import ConcatOp, ReshapeOp, SliceOp, tensor_of
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import element_bytes
from penstock.passes.analysis.kernels import kernels, machine_kernels
from penstock.passes.graph.fusion.groups import Stop, Veto
from penstock.passes.graph.fusion.nodes import FusionGraph, PlannedGroup, is_groupable
from penstock.passes.graph.fusion.spm_sketch import NoSketch, Sketch
from penstock.passes.graph.storage_type import CONTRACTIONS, fixed_values
from penstock.passes.graph.values import is_view
from penstock.passes.tensor.assign_devices import AssignDevicesPass
from penstock.passes.tensor.tile_plan import estimated_plan

PARTLY = "the machine computes a part of it only"


@dataclass(frozen=True)
class Estimate:
    """Where a group would run, and the bytes that would go off chip and back for it."""

    bytes: int
    """Those of the transfers of the machine."""
    host_bytes: int = 0
    """Those that the host reads and writes."""
    on_machine: bool = False
    """Whether the machine computes all of it, as one kernel."""
    trouble: str = ""
    """Why the machine does not compute all of it, where it computes some."""
    is_known: bool = True

    @property
    def all_bytes(self) -> int:
        return self.bytes + self.host_bytes


UNKNOWN = Estimate(0, is_known=False)
"""Of a group that has no sketch."""


@dataclass
class SpmModel:
    """Estimates for the groups of a graph on one machine."""

    graph: FusionGraph
    target: TargetOp
    halves: bool
    """Whether values are stored in f16 between kernels."""
    otherwise: Veto | None = None
    """Who decides where a group has no estimate."""
    known: dict[tuple[Operation, ...], Estimate] = field(default_factory=dict[tuple[Operation, ...], Estimate])
    like: dict[str, Estimate] = field(default_factory=dict[str, Estimate])
    """By the text of the kernel: a network repeats itself."""

    def estimate(self, nodes: Sequence[int]) -> Estimate:
        """What a group of these nodes costs."""
        return self.estimate_ops([self.graph.ops[node] for node in nodes])

    def estimate_ops(self, ops: Sequence[Operation]) -> Estimate:
        """What a group of these ops costs, each after those that it reads; the last computes the result."""
        key = tuple(dict.fromkeys(ops))
        if key not in self.known:
            self.known[key] = self._estimate(key)
        return self.known[key]

    def veto(self, merged: Sequence[int], parts: Sequence[Sequence[int]]) -> str | None:
        """Why these parts do not become one group; None if they do."""
        whole, apart = self.estimate(merged), [self.estimate(part) for part in parts]
        if not all(each.is_known for each in (whole, *apart)):
            return self.otherwise(merged, parts) if self.otherwise is not None else None
        together, before = whole.all_bytes, sum(each.all_bytes for each in apart)
        if together < before or (together == before and not whole.on_machine and not self._contracts(merged)):
            return None
        return whole.trouble or f"together they move {together:,} bytes, and apart {before:,}"

    def _contracts(self, nodes: Sequence[int]) -> bool:
        return any(isinstance(self.graph.ops[node], CONTRACTIONS) for node in nodes)

    def total(self, groups: Sequence[PlannedGroup]) -> Estimate:
        """What these groups cost together."""
        found = [self.estimate_ops(group.members) for group in groups]
        if not all(each.is_known for each in found):
            return UNKNOWN
        return Estimate(sum(each.bytes for each in found), sum(each.host_bytes for each in found))

    def is_half(self, value: SSAValue) -> bool:
        """Whether a value is stored in f16 if it goes from one kernel to another; see `storage-type`."""
        return self.halves and tensor_of(value).element_type == f32 and value not in self._fixed

    @cached_property
    def _fixed(self) -> set[SSAValue]:
        """What `storage-type` leaves in the type that it has, were each op a kernel."""
        block = self.graph.ops[0].parent_block() if self.graph.ops else None
        return set() if block is None else fixed_values(block, is_groupable, _is_between)

    @cached_property
    def _computed(self) -> set[str]:
        """The scalar ops in the intrinsics of the machine."""
        intrinsics = self.target.intrinsics().values()
        return {op.name for intrinsic in intrinsics for op in intrinsic.generic.body.block.ops}

    def _estimate(self, ops: Sequence[Operation]) -> Estimate:
        if all(is_view(op) or isinstance(op, ConcatOp) for op in ops):
            return Estimate(0)
        try:
            kernel = Sketch(ops, self.halves, self.is_half, self._computed).kernel
        except NoSketch:
            return UNKNOWN
        text = str(kernel)
        if text not in self.like:
            self.like[text] = self._of_kernel(kernel)
        return self.like[text]

    def _of_kernel(self, kernel: FuncOp) -> Estimate:
        module = ModuleOp([self.target.clone(), kernel])
        AssignDevicesPass(weigh_fusion=False).apply(Context(), module)
        parts = list(kernels(module))
        target, there = machine_kernels(module)
        assert target is not None
        moved = 0
        for part in there:
            plan = estimated_plan(part, target)
            assert not isinstance(plan, str)
            moved += plan.bytes_moved
        types = [type for part in parts if part not in there for type in _boundary(part)]
        read_here = sum(prod(type.get_shape()) * element_bytes(type) for type in types)
        whole = len(there) == len(parts) == 1
        return Estimate(moved, read_here, whole, PARTLY if there and not whole else "")


def _boundary(kernel: FuncOp) -> list[TensorType[Attribute]]:
    types = [*kernel.function_type.inputs, *kernel.function_type.outputs]
    return [type for type in types if isa(type, TensorType)]


def _is_between(op: Operation) -> bool:
    """Whether `op` stands outside the groups and only places elements."""
    return isinstance(op, ConcatOp) or (isinstance(op, ReshapeOp | SliceOp) and is_view(op))


def cheaper(
    model: SpmModel, groups: Sequence[PlannedGroup], graph: FusionGraph, others: Sequence[PlannedGroup]
) -> list[PlannedGroup]:
    """
    `groups`, but `others` instead, a partition of the same ops by `graph`, where these differ and the machine moves
    less for them, or less goes off chip in all, or that cannot be told: merges that pay one by one may lead away from
    those that pay together, and what the host does instead costs the machine nothing.
    """
    chosen: list[PlannedGroup] = []
    for mine, theirs in _islands(groups, others):
        cost, other = model.total(mine), model.total(theirs)
        same = [group.members for group in mine] == [group.members for group in theirs]
        known = cost.is_known and other.is_known
        if same or (known and cost.bytes <= other.bytes and cost.all_bytes <= other.all_bytes):
            chosen += mine
        else:
            chosen += [replace(group, stop=_renumbered(group.stop, graph, model.graph)) for group in theirs]
    return chosen


def _islands(
    groups: Sequence[PlannedGroup], others: Sequence[PlannedGroup]
) -> Iterator[tuple[list[PlannedGroup], list[PlannedGroup]]]:
    """The least parts of two partitions that are made of the same ops."""
    own = {op: group for group in groups for op in group.members}
    other = {op: group for group in others for op in group.members}
    seen: set[PlannedGroup] = set()
    for first in groups:
        if first in seen:
            continue
        mine, theirs = {first: None}, dict[PlannedGroup, None]()
        pending = list(first.members)
        while pending:
            op = pending.pop()
            for found, place in ((mine, own), (theirs, other)):
                group = place.get(op)
                if group is not None and group not in found:
                    found[group] = None
                    pending += group.members
        seen.update(mine)
        yield list(mine), list(theirs)


def _renumbered(stop: Stop, before: FusionGraph, after: FusionGraph) -> Stop:
    """A stop by the nodes of another graph of the same ops."""
    toward, blocker = (
        None if node is None else after.ops.index(before.ops[node]) for node in (stop.toward, stop.blocker)
    )
    return replace(stop, toward=toward, blocker=blocker)
