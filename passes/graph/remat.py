# SPDX-License-Identifier: Apache-2.0
"""`graph-remat`: values computed again rather than kept, so that those alive at once fit a limit of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from penstock.dialects.diagnostics import UserError
from penstock.dialects.graph import (
    ConcatOp,
    ConstantOp,
    FusedOp,
    GraphOp,
    IdentityOp,
    IfOp,
    PadOp,
    PatternKind,
    SliceOp,
    YieldOp,
    pattern_kind,
    tensor_of,
)
from penstock.dialects.mem import EXPLICIT
from penstock.dialects.remarks import remark
from penstock.passes.graph.layouts.forms import bytes_of
from penstock.passes.graph.operator_work import macs_of
from penstock.passes.graph.values import derived, graph_blocks, is_constant, is_view
from penstock.passes.planning.op_order import order_ops
from penstock.passes.planning.order_problem import OrderProblem
from penstock.passes.planning.remat import RematOp, RematProblem, joined, least_limit, least_work, peak_of

ORDER_STEPS = 100_000
"""Of the search for an order: what is computed again counts more."""


def _is_place(op: Operation) -> bool:
    """Whether an op says where elements lie, and computes nothing."""
    return isinstance(op, GraphOp) and (is_view(op) or isinstance(op, IdentityOp))


def _base(value: SSAValue) -> SSAValue:
    """The value that a view is one of."""
    while isinstance(value.owner, Operation) and _is_place(value.owner):
        value = value.owner.operands[0]
    return value


def _inside(op: Operation) -> int:
    """Bytes of what a kernel stores inside: what is padded, or read there by an op whose result is of another shape."""
    if not isinstance(op, FusedOp):
        return 0
    found = 0
    for each in op.body.block.ops:
        if isinstance(each, PadOp):
            found += bytes_of(each.result)
        elif not isinstance(each, ConstantOp | YieldOp | SliceOp):
            readers = [use.operation for use in each.results[0].uses if not isinstance(use.operation, PadOp)]
            found += 0 if all(_has_shape_of(use, each.results[0]) for use in readers) else bytes_of(each.results[0])
    return found


def _has_shape_of(reader: Operation, value: SSAValue) -> bool:
    """Whether what reads a value makes one of its shape, or ends the kernel."""
    return isinstance(reader, YieldOp) or tensor_of(reader.results[0]).get_shape() == tensor_of(value).get_shape()


@dataclass
class _Graph:
    """The ops of a block as a problem."""

    block: Block
    ops: list[Operation] = field(default_factory=list[Operation])
    values: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])

    @staticmethod
    def of(block: Block) -> _Graph:
        """That of a block of static sizes."""
        found = _Graph(block)
        for op in block.ops:
            if _is_place(op) or isinstance(op, ReturnOp) or (op.results and all(map(is_constant, op.results))):
                continue
            found.ops.append(op)
            for result in op.results:
                found.values[result] = len(found.values)
        return found

    def problem(self) -> RematProblem:
        """What there is to decide. What the program returns lies elsewhere than in the arena."""
        last = self.block.last_op
        returned = {_base(value) for value in last.operands} if isinstance(last, ReturnOp) else set[SSAValue]()
        sizes = tuple(0 if value in returned else bytes_of(value) for value in self.values)
        return RematProblem(sizes, tuple(self._step(op, returned) for op in self.ops))

    def _step(self, op: Operation, returned: set[SSAValue]) -> RematOp:
        values = self.values
        reads = [base for base in map(_base, op.operands) if base in values]
        is_result = not op.results or any(result in returned for result in op.results)
        return RematOp(
            tuple(values[each] for each in reads),
            tuple(values[each] for each in op.results),
            macs_of(op),
            inside=_inside(op),
            can_repeat=not isinstance(op, ConcatOp | IfOp) and not is_result,
            is_result=is_result,
            can_join=_kind(op) not in (None, PatternKind.REDUCTION),
            takes=tuple(values[each] for each in reads if _may_hold(op, each)),
            overwrites=tuple(values[each] for each in reads if _may_overwrite(op, each)),
        )

    def reorder(self) -> None:
        """Put the ops into the order in which least is alive at once."""
        problem = self.problem()
        touched = tuple(frozenset(each for each in (*op.reads, *op.makes) if problem.sizes[each]) for op in problem.ops)
        before = tuple(frozenset(problem.maker[each] for each in op.reads) for op in problem.ops)
        inside = tuple(op.inside for op in problem.ops)
        found = order_ops(OrderProblem(problem.sizes, touched, before, inside), ORDER_STEPS)
        self.ops = [self.ops[number] for number in found.order]
        self.values = {result: number for number, result in enumerate(each for op in self.ops for each in op.results)}

    def write(self, problem: RematProblem, schedule: Sequence[int]) -> None:
        """
        Put the executions of a schedule into the block, each as a copy of its op.

        The ops themselves stay as they are until all copies are made: what is joined takes a copy apart.
        """
        before = list(self.block.ops)
        inside = joined(problem, schedule)
        now = _Instances(self.block)
        copies: dict[int, list[FusedOp]] = {}
        seen: set[int] = set()
        for place, number in enumerate(schedule):
            original = self.ops[number]
            op = original.clone()
            if number in seen:
                op.location = derived(original.location, "again")
                op.attributes[EXPLICIT] = UnitAttr()
            seen.add(number)
            now.append(op)
            for at, operand in enumerate(original.operands):
                op.operands[at] = now.of(operand, op)
            for copy in copies.pop(place, ()):
                assert isinstance(op, FusedOp)
                op = _joined(copy, op)
            for old, new in zip(original.results, op.results, strict=True):
                new.name_hint = old.name_hint
                now.newest[old] = new
            if place in inside:
                assert isinstance(op, FusedOp)
                copies.setdefault(inside[place], []).insert(0, op)
        last = self.block.last_op
        assert last is not None
        for at, operand in enumerate(last.operands):
            last.operands[at] = now.of(operand, last)
        executed = set(self.ops)
        for op in reversed(before):
            if op in executed or (_is_place(op) and not op.results[0].uses):
                Rewriter.erase_op(op)


def _may_overwrite(op: Operation, value: SSAValue) -> bool:
    """Whether a kernel computes each element of its result by itself, and reads a value of that type."""
    kinds = (PatternKind.ELEMENTWISE, PatternKind.BROADCAST, PatternKind.INJECTIVE)
    return _kind(op) in kinds and op.results[0].type == value.type and value in op.operands


@dataclass
class _Instances:
    """The newest instances of values, and the views of them that there are."""

    block: Block
    newest: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    _views: dict[tuple[Operation, SSAValue], SSAValue] = field(
        default_factory=dict["tuple[Operation, SSAValue]", SSAValue]
    )

    def append(self, op: Operation) -> None:
        last = self.block.last_op
        assert last is not None
        self.block.insert_op_before(op, last)

    def of(self, value: SSAValue, before: Operation) -> SSAValue:
        """The newest instance of a value, made of the newest one of its base if it is a view."""
        if value in self.newest or _base(value) not in self.newest:
            return self.newest.get(value, value)
        op = value.owner
        assert isinstance(op, Operation)
        source = self.of(op.operands[0], before)
        if (op, source) not in self._views:
            view = op.clone()
            view.operands[0] = source
            self.block.insert_op_before(view, before)
            view.results[0].name_hint = value.name_hint
            self._views[op, source] = view.results[0]
        return self._views[op, source]


def _kind(op: Operation | Block) -> PatternKind | None:
    """The kind of a kernel of one result that computes each element by itself, or sums up such; None of another."""
    if not isinstance(op, FusedOp) or len(op.outputs) != 1:
        return None
    members = [each for each in op.body.block.ops if not isinstance(each, ConstantOp | YieldOp)]
    kinds = [pattern_kind(each) for each in members]
    most = max(kinds, key=lambda kind: kind.level)
    is_moved = any(isinstance(each, ConcatOp | PadOp) for each in members)
    return None if is_moved or most.level > PatternKind.REDUCTION.level else most


def _may_hold(consumer: Operation, value: SSAValue) -> bool:
    """Whether what a kernel makes may be computed inside another one that reads it: the rules of `graph-fuse`."""
    made, reads = _kind(value.owner), _kind(consumer)
    if made is None or reads is None or made == PatternKind.REDUCTION:
        return False
    assert isinstance(consumer, FusedOp)
    places = [place for place, operand in enumerate(consumer.inputs) if _base(operand) is value]
    arguments = [consumer.body.block.args[place] for place in places]
    # In another shape it would be stored inside.
    return (
        made != PatternKind.INJECTIVE
        and all(consumer.inputs[place] is value for place in places)
        and all(_has_shape_of(use.operation, each) for each in arguments for use in each.uses)
    )


def _joined(producer: FusedOp, consumer: FusedOp) -> FusedOp:
    """One kernel of two, of which the first makes what only the second reads; it takes the place of the second."""
    body = Block()
    inputs: list[SSAValue] = []
    inside: dict[SSAValue, SSAValue] = {}
    for group in (producer, consumer):
        known: dict[SSAValue, SSAValue] = {}
        for argument, operand in zip(group.body.block.args, group.inputs, strict=True):
            if operand not in inside:
                inside[operand] = body.insert_arg(operand.type, len(body.args))
                inside[operand].name_hint = argument.name_hint
                inputs.append(operand)
            known[argument] = inside[operand]
        for member in group.body.block.ops:
            if member is not group.terminator:
                body.add_op(member.clone(known))
        for result, value in zip(group.outputs, group.terminator.values, strict=True):
            inside[result] = known[value]
    body.add_op(YieldOp(*(inside[result] for result in consumer.outputs)))
    fused = FusedOp(inputs, body, pattern=consumer.pattern.data)
    fused.location = consumer.location
    fused.attributes.update(consumer.attributes)
    Rewriter.replace_op(consumer, fused)
    Rewriter.erase_op(producer)
    return fused


def limits(block: Block) -> tuple[int, int]:
    """The bytes of values that are alive at once in the best order of a fused graph, and the least that is found."""
    graph = _Graph.of(block)
    graph.reorder()
    problem = graph.problem()
    return peak_of(problem, problem.given), least_limit(problem)


@dataclass(frozen=True)
class GraphRematPass(ModulePass):
    """
    Compute values again rather than keep them, so that what is alive at once fits a limit, with least extra work.

    The activations of a training step are kept from the forward pass until their gradients are taken; those that are
    computed again need not be. An op that is computed again stands a second time before what reads it, with the
    attribute `mem.explicit`, by which no later pass makes one of the two; its operands are kept for it, or are computed
    again, too. Work is counted in multiply-accumulates: elementwise ops are free. See `passes/planning/remat` for the
    search. It is a limit of the results of ops, in the order of the text; what kernels need inside comes on top. A
    remark says the peak and the multiply-accumulates.

    Required: the graph level after `graph-fuse`, static sizes. Guaranteed: the same results bit for bit, no more than
    `limit` bytes alive at once. Raises UserError, located, for a limit that is not met, with the least that is found,
    and a bound that nothing can meet.

    Before:
    ```mlir
    func.func @main(%x: tensor<4x64xf32>) -> tensor<4x64xf32> {
      %a = graph.exp %x : tensor<4x64xf32>
      %b = graph.softmax %a axis 1 : tensor<4x64xf32> -> tensor<4x64xf32>
      %c = graph.softmax %b axis 0 : tensor<4x64xf32> -> tensor<4x64xf32>
      %d = graph.mul %c, %a : (tensor<4x64xf32>, tensor<4x64xf32>) -> tensor<4x64xf32>
      func.return %d : tensor<4x64xf32>
    }
    ```
    After (`graph-remat{limit=2048}`):
    ```mlir
    func.func @main(%x: tensor<4x64xf32>) -> tensor<4x64xf32> {
      %a = graph.exp %x : tensor<4x64xf32>
      %b = graph.softmax %a axis 1 : tensor<4x64xf32> -> tensor<4x64xf32>
      %c = graph.softmax %b axis 0 : tensor<4x64xf32> -> tensor<4x64xf32>
      %a_1 = graph.exp %x {mem.explicit} : tensor<4x64xf32>
      %d = graph.mul %c, %a_1 : (tensor<4x64xf32>, tensor<4x64xf32>) -> tensor<4x64xf32>
      func.return %d : tensor<4x64xf32>
    }
    ```
    """

    name = "graph-remat"

    limit: int
    """Bytes that the results of the ops of a function may take at once."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.limit < 0:
            raise UserError("a limit of graph-remat is negative")
        for block in graph_blocks(op):
            function = block.parent_op()
            assert function is not None
            graph = _Graph.of(block)
            before = peak_of(problem := graph.problem(), problem.given)
            if before <= self.limit:
                continue
            graph.reorder()
            problem = graph.problem()
            schedule = least_work(problem, self.limit)
            if schedule is None:
                notes = [f"the least that the search meets is {least_limit(problem):,} bytes"]
                if problem.bound > self.limit:
                    notes.append(f"one op alone reads and makes {problem.bound:,} bytes")
                raise UserError(f"the values do not fit {self.limit:,} bytes", loc=function.location, notes=notes)
            remark(function, "passed", _in_words(problem, schedule, before))
            graph.write(problem, schedule)


def _in_words(problem: RematProblem, schedule: Sequence[int], before: int) -> str:
    again = len(schedule) - len(problem.ops)
    return (
        f"{again} op{'s' * (again != 1)} computed again: {before:,} -> {peak_of(problem, schedule):,} bytes of values,"
        f" {problem.work(schedule):,} multiply-accumulates for {problem.work(problem.given):,}"
    )
