# SPDX-License-Identifier: Apache-2.0
"""
What a group costs on a machine whose scopes are managed by software: the bytes that go off chip and back.

1. A group is sketched as the kernel that it will be: contractions with the channels last, elementwise ops of f32 that
   are one scalar op, with numbers of the text in the bodies; other elementwise ops as one op of their formula that
   hardly a machine has. Anything else (a pool, a reduction, a transposition) has no sketch, and no estimate.
2. `assign-devices` cuts the sketch for the same tiler. A part on the machine costs what its best tile moves, a part on
   the host its operands and results. So a value between two groups costs a store and a load.
3. Groups merge where that costs less. Without an estimate a group is formed as TVM forms it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from xdsl.context import Context
from xdsl.dialects import arith, func, math
from xdsl.dialects.builtin import ModuleOp, TensorType, f16, f32
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr
from xdsl.utils.hints import isa

from penstock.dialects import graph
from penstock.dialects.graph import ConcatOp, ReshapeOp, SliceOp, tensor_of
from penstock.dialects.machine import TargetOp
from penstock.dialects.mem import element_bytes
from penstock.passes.analysis.kernels import kernels, machine_kernels
from penstock.passes.graph.contractions import ContractionOp
from penstock.passes.graph.fusion.groups import Stop, Veto
from penstock.passes.graph.fusion.nodes import FusionGraph, PlannedGroup, is_groupable, splat
from penstock.passes.graph.storage_type import fixed_values
from penstock.passes.graph.values import is_view
from penstock.passes.planning.tilers.registry import DEFAULT_TILER
from penstock.passes.scalar_body import Body
from penstock.passes.shapes import Dims, element_of, loops, shape_of, tensor_type, windowed
from penstock.passes.tensor.assign_devices import AssignDevicesPass
from penstock.passes.tensor.tensor_builder import TensorBuilder
from penstock.passes.tensor.tile_plan import estimated_plan

Element = Callable[..., Operation]
FLOAT_BODIES: Mapping[type[Operation], Element] = {
    graph.AbsOp: math.AbsFOp,
    graph.AddOp: arith.AddfOp,
    graph.DivOp: arith.DivfOp,
    graph.ErfOp: math.ErfOp,
    graph.ExpOp: math.ExpOp,
    graph.FloorOp: math.FloorOp,
    graph.LogOp: math.LogOp,
    graph.MaxOp: arith.MaximumfOp,
    graph.MinOp: arith.MinimumfOp,
    graph.MulOp: arith.MulfOp,
    graph.NegOp: arith.NegfOp,
    graph.PowOp: math.PowFOp,
    graph.SqrtOp: math.SqrtOp,
    graph.SubOp: arith.SubfOp,
    graph.TanhOp: math.TanhOp,
}
"""The ops that are one scalar op."""
STAND_INS: Mapping[type[Operation], type[Operation]] = {
    graph.EluOp: math.ExpM1Op,
    graph.LeakyReluOp: arith.CmpfOp,
    graph.PreluOp: arith.CmpfOp,
    graph.SeluOp: math.ExpM1Op,
    graph.SigmoidOp: arith.NegfOp,
    graph.SoftplusOp: math.Log1pOp,
}
"""A scalar op in the formula of each op: a machine without it computes no more than pieces, and so none of it."""


class NoSketch(Exception):
    """The group holds something that is not drawn."""


class Sketch:
    """The kernel of some ops of a graph, in the order of their block; raises NoSketch."""

    def __init__(
        self,
        members: Sequence[Operation],
        halves: bool,
        is_half: Callable[[SSAValue], bool],
        computed: AbstractSet[str],
    ):
        """
        `halves` says whether factors are f16, `is_half` whether a value between kernels is; `computed` names the
        scalar ops that the machine has.
        """
        self._code = TensorBuilder()
        self._halves = halves
        self._is_half = is_half
        self._computed = computed
        self._arguments: dict[tuple[SSAValue, Attribute], SSAValue] = {}
        self._values: dict[SSAValue, SSAValue] = {}
        for op in members:
            self._values[op.results[0]] = self._draw(op)
        yielded = members[-1].results[0]
        result = self._values[yielded]
        if is_half(yielded):
            result = self._cast(result, f16)
        block = self._code.block
        block.add_op(func.ReturnOp(result))
        self.kernel = func.FuncOp("sketch", (block.arg_types, [result.type]), Region(block), "private")

    def _draw(self, op: Operation) -> SSAValue:
        match op:
            case graph.ConvOp() if op.layout.data == "NHWC" and op.group.value.data == 1:
                return self._conv(op)
            case graph.GemmOp():
                m, n, k = loops(3)
                a, b = [k, m] if op.trans_a else [m, k], [n, k] if op.trans_b else [k, n]
                if op.alpha.value.data != 1 or (op.c is not None and op.beta.value.data != 1):
                    raise NoSketch
                product = self._contract(op, (op.a, a), (op.b, b), 1)
                return product if op.c is None else self._pointwise([product, op.c], op.result, arith.AddfOp)
            case graph.MatmulOp() if tensor_of(op.a).get_num_dims() > 1 and tensor_of(op.b).get_num_dims() > 1:
                *parallel, k = loops(tensor_of(op.result).get_num_dims() + 1)
                a = [*self._repeated(op.a, op.result, parallel, 2), parallel[-2], k]
                b = [*self._repeated(op.b, op.result, parallel, 2), k, parallel[-1]]
                return self._contract(op, (op.a, a), (op.b, b), 1)
            case graph.ClipOp() if self._is_f32(op.result):
                value: SSAValue = op.x
                for bound, body in ((op.min, arith.MaximumfOp), (op.max, arith.MinimumfOp)):
                    if bound is not None:
                        value = self._pointwise([value, bound.value.data], op.result, body)
                return value
            case graph.ReluOp() if self._is_f32(op.result):
                return self._pointwise([op.x, 0.0], op.result, arith.MaximumfOp)
            case _ if type(op) in FLOAT_BODIES and self._is_f32(op.results[0]):
                return self._pointwise(
                    [self._number(each) for each in op.operands], op.results[0], FLOAT_BODIES[type(op)]
                )
            case _ if type(op) in STAND_INS and self._is_f32(op.results[0]):
                scalar = STAND_INS[type(op)]
                if scalar.name in self._computed:
                    raise NoSketch
                type_ = [f32]
                return self._pointwise(
                    list(op.operands), op.results[0], lambda *each: scalar.create(operands=each, result_types=type_)
                )
            case _:
                raise NoSketch

    def _conv(self, op: graph.ConvOp) -> SSAValue:
        rank = len(op.kernel_shape)
        n, *places, channel = loops(2 + rank)
        *window, inputs = loops(rank + 1, 2 + rank)
        read = windowed(places, window, op.strides.get_values(), op.dilations.get_values())
        pads = op.pads.get_values()
        border = [0, *pads[:rank], 0], [0, *pads[rank:], 0]
        product = self._contract(op, (op.x, [n, *read, inputs]), (op.w, [*window, inputs, channel]), rank + 1, border)
        return product if op.b is None else self._pointwise([product, op.b], op.result, arith.AddfOp)

    def _contract(
        self,
        op: ContractionOp,
        a: tuple[SSAValue, Dims],
        b: tuple[SSAValue, Dims],
        reductions: int,
        border: tuple[Sequence[int], Sequence[int]] = ((), ()),
    ) -> SSAValue:
        result = tensor_of(op.results[0])
        if result.element_type != f32:
            raise NoSketch
        factors = [self._argument(value, f16 if self._halves else f32) for value in (a[0], b[0])]
        if any(map(any, border)):
            factors[0] = self._code.pad(factors[0], *border, 0)
        output = self._code.fill(result.get_shape(), f32, 0), loops(result.get_num_dims())

        def step(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
            return body.add(elements[2], body.mul(*(body.widen(each, f32) for each in elements[:2])))

        return self._code.generic([(factors[0], a[1]), (factors[1], b[1])], output, reductions, step)

    def _pointwise(self, operands: Sequence[SSAValue | float], result: SSAValue, scalar: Element) -> SSAValue:
        """The generic of a scalar op, numbers in its body."""
        shape = shape_of(result)
        along = loops(len(shape))
        values = list(dict.fromkeys(each for each in operands if isinstance(each, SSAValue)))
        if not all(self._is_f32(value) for value in values):
            raise NoSketch
        read = [(self._value(value), self._repeated(value, result, along, 0)) for value in values]

        def compute(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
            of = dict(zip(values, elements, strict=False))
            taken = [of[each] if isinstance(each, SSAValue) else body.constant(each, f32) for each in operands]
            return body.emit(scalar(*taken))

        return self._code.generic(read, (self._code.empty(shape, element_of(result)), along), 0, compute)

    def _cast(self, value: SSAValue, target: Attribute) -> SSAValue:
        return self._code.map(lambda body, xs: body.cast(xs[0], target, False), value, element=target)

    def _value(self, of: SSAValue) -> SSAValue:
        """A value of the graph in the kernel, in its own type; one of the kernel is itself."""
        if of.owner.parent is self._code.block:
            return of
        if of not in self._values:
            stored = self._argument(of, f16 if self._is_half(of) else element_of(of))
            self._values[of] = self._cast(stored, f32) if self._is_half(of) else stored
        return self._values[of]

    def _argument(self, of: SSAValue, element: Attribute) -> SSAValue:
        """A value from outside as it is stored."""
        if (of, element) not in self._arguments:
            type = tensor_type(shape_of(of), element)
            self._arguments[of, element] = self._code.block.insert_arg(type, len(self._code.block.args))
        return self._arguments[of, element]

    def _repeated(self, value: SSAValue, result: SSAValue, loops: Dims, last: int) -> list[AffineExpr]:
        """How a value is indexed that broadcasts to the result, without its `last` dims."""
        sizes, whole = tensor_of(value).get_shape(), tensor_of(result).get_shape()
        offset = len(whole) - len(sizes)
        return [
            loops[offset + dim] if size == whole[offset + dim] else AffineExpr.constant(0)
            for dim, size in enumerate(sizes[: len(sizes) - last])
        ]

    def _number(self, value: SSAValue) -> SSAValue | float:
        """The number of a value in a body, if it is one of the text."""
        constant = splat(value)
        return value if constant is None else float(next(iter(constant.dense.iter_values())))  # pyright: ignore

    def _is_f32(self, value: SSAValue) -> bool:
        return element_of(value) == f32


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
    tiler: str = DEFAULT_TILER
    """The tiler that says which tiles fit the machine, and what they move."""
    otherwise: Veto | None = None
    """The rules that decide where a group has no estimate."""
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
        return any(isinstance(self.graph.ops[node], ContractionOp) for node in nodes)

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
        AssignDevicesPass(weigh_fusion=False, tiler=self.tiler).apply(Context(), module)
        parts = list(kernels(module))
        target, there = machine_kernels(module)
        assert target is not None
        moved = 0
        for part in there:
            plan = estimated_plan(part, target, self.tiler)
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
    """Whether `op` is outside the groups and only places elements."""
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
