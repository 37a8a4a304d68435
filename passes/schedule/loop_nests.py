# SPDX-License-Identifier: Apache-2.0
"""What the primitives on loops share: constant bounds, perfect nests, and loops built around a body that is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.builder import Builder
from xdsl.dialects import arith, scf
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.upstream.scf import ForallOp
from penstock.passes.analysis.loop_dependences import NestMemory, name_of
from penstock.passes.analysis.loops import constant_of, forall_iterations, trip_count
from penstock.passes.index_builder import Index, add, materialize, scale


@dataclass(frozen=True)
class Iterations:
    """The iterations of a loop: `trips` values of its counter from `lower` on, `step` apart."""

    lower: int
    step: int
    trips: int

    @property
    def end(self) -> int:
        """The first value after them."""
        return self.lower + self.trips * self.step

    def after(self, trips: int) -> Iterations:
        """Those but the first ones."""
        return Iterations(self.lower + trips * self.step, self.step, self.trips - trips)

    def first(self, trips: int) -> Iterations:
        """The first ones."""
        return Iterations(self.lower, self.step, trips)


def iterations_of(loop: scf.ForOp) -> Iterations:
    """The iterations of a loop; raises UserError where its bounds are not constant."""
    lower, step, trips = constant_of(loop.lb), constant_of(loop.step), trip_count(loop)
    if lower is None or step is None or trips is None or step < 1:
        raise UserError(f"the bounds of {name_of(loop)} are not constant", loc=location_of(loop))
    return Iterations(lower, step, trips)


def carries_nothing(loop: scf.ForOp) -> None:
    """Raise UserError for a loop that hands values from one iteration to the next."""
    if loop.iter_args:
        raise UserError(
            f"{name_of(loop)} carries values from one iteration to the next (iter_args)",
            loc=location_of(loop),
            notes=["at the loop level, after tensor-to-loop, loops of structured ops carry none"],
        )


def body_of(loop: scf.ForOp) -> list[Operation]:
    """The ops of a loop but the one that ends it."""
    return [op for op in loop.body.block.ops if op is not loop.body.block.last_op]


def perfect_nest(outermost: scf.ForOp, innermost: scf.ForOp) -> tuple[scf.ForOp, ...]:
    """
    The loops from `outermost` to `innermost`, which carry nothing; only pure ops, such as index arithmetic and views,
    are between them.

    Raises UserError, at what stands in between, where the nest is not perfect.
    """
    nest = [innermost]
    while nest[0] is not outermost:
        parent = nest[0].parent_op()
        if not isinstance(parent, scf.ForOp):
            raise UserError(
                f"{name_of(innermost)} is not in a nest of loops with {name_of(outermost)}", loc=location_of(innermost)
            )
        if (between := _impure_op(parent, nest[0])) is not None:
            raise UserError(
                f"the nest of {name_of(parent)} and {name_of(nest[0])} is not perfect: {between.name} is between them",
                loc=location_of(between),
                notes=["schedule.distribute makes loops of their own of the parts of a body"],
            )
        nest.insert(0, parent)
    for loop in nest:
        carries_nothing(loop)
    return tuple(nest)


def is_perfect(outer: scf.ForOp, inner: scf.ForOp) -> bool:
    """Whether nothing but pure ops is beside the loop `inner` in the body of `outer`, and neither carries values."""
    return not outer.iter_args and not inner.iter_args and _impure_op(outer, inner) is None


def _impure_op(outer: scf.ForOp, inner: scf.ForOp) -> Operation | None:
    """An op beside `inner` in the body of `outer` that is not pure."""
    memory = NestMemory.around(outer)
    return next((op for op in body_of(outer) if op is not inner and not memory.only_computes(op)), None)


def sink_pure_ops(nest: Sequence[scf.ForOp]) -> None:
    """Move the ops between the loops of a perfect nest into the innermost."""
    first = nest[-1].body.block.first_op
    assert first is not None
    for loop in nest[:-1]:
        for op in body_of(loop):
            if not isinstance(op, scf.ForOp):
                op.detach()
                nest[-1].body.block.insert_ops_before([op], first)


def new_loop(builder: Builder, iterations: Iterations, like: scf.ForOp, carried: Sequence[SSAValue] = ()) -> scf.ForOp:
    """An empty loop over these iterations, where `builder` inserts; location and name of the counter are those of
    `like`."""
    last, known = iterations.end - iterations.step, constant_of(like.ub)
    end = known if known is not None and last < known <= iterations.end else iterations.end
    bounds = [(iterations.lower, like.lb), (end, like.ub), (iterations.step, like.step)]
    values = [_constant(builder, number, value) for number, value in bounds]
    types = [like.body.block.args[0].type, *(value.type for value in carried)]
    loop = scf.ForOp(values[0], values[1], values[2], carried, Region(Block(arg_types=types)))
    loop.location = like.location
    counter, old = loop.body.block.args[0], like.body.block.args[0]
    counter.name_hint, counter.location = old.name_hint, old.location
    return builder.insert(loop)


def _constant(builder: Builder, number: int, known: SSAValue) -> SSAValue:
    """The constant, which is `known` if that is the same number and defined where `builder` inserts, or around."""
    block = builder.insertion_point.block
    if constant_of(known) == number and isinstance(known.owner, Operation):
        around: Block | None = block
        while around is not None and around is not known.owner.parent:
            around = around.parent_block()
        if around is not None:
            return known
    return materialize(builder, number)


def counter_value(builder: Builder, iterations: Iterations, number: Index) -> Index:
    """The counter of the iteration `number`."""
    return add(builder, scale(builder, number, iterations.step), iterations.lower)


def move_body(source: scf.ForOp, target: scf.ForOp, counter: SSAValue) -> None:
    """Move the body of a loop to the end of another, with `counter` for its counter."""
    source.body.block.args[0].replace_all_uses_with(counter)
    for op in list(source.body.block.ops):
        op.detach()
        target.body.block.add_op(op)


def clone_body(builder: Builder, loop: scf.ForOp, counter: SSAValue, carried: Sequence[SSAValue]) -> list[SSAValue]:
    """Insert a copy of the body of a loop for one iteration; returns what it yields."""
    block = loop.body.block
    values: dict[SSAValue, SSAValue] = dict(zip(block.args, (counter, *carried), strict=True))
    for op in body_of(loop):
        builder.insert(op.clone(values))
    terminator = block.last_op
    assert terminator is not None
    return [values.get(value, value) for value in terminator.operands]


def builder_in(loop: scf.ForOp) -> Builder:
    """A builder at the end of the body of a loop."""
    return Builder(InsertPoint.at_end(loop.body.block))


def iteration_of(forall: ForallOp, indices: Sequence[SSAValue], builder: Builder) -> SSAValue:
    """The number of an iteration, from 0 in program order, of a `scf.forall` with constant bounds."""
    number: Index = 0
    dims = forall_iterations(forall)
    assert dims is not None
    for index, (lower, step, count) in zip(indices, dims, strict=True):
        own = add(builder, index, -lower)
        if step != 1:
            own = builder.insert(arith.DivUIOp(materialize(builder, own), materialize(builder, step))).result
        number = add(builder, scale(builder, number, count), own)
    return materialize(builder, number)
