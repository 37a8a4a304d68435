# SPDX-License-Identifier: Apache-2.0
"""Loops, branches and calls."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import cf, func, scf
from xdsl.dialects.builtin import DYNAMIC_INDEX, MemRefType
from xdsl.ir import Operation, Region, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.mem import memref_of
from penstock.dialects.upstream.cf import is_bound_of_a_loop
from penstock.lowering.codegen.emitter import Emitter
from penstock.lowering.codegen.text import Expr
from penstock.lowering.codegen.views import View, is_token, owner_of, unsupported
from penstock.passes.analysis.loop_dependences import VECTORIZE, obstacle_to_vectors

MOST_CASES = 100
"""Of a switch, whose branches are nested."""
TOO_MANY, ASSERTED = 3, 4
"""The faults of a loop that would have more iterations than it may, and of an assertion of the program itself."""

# what loops and branches carry


def _variables(emitter: Emitter, values: Sequence[SSAValue], starts: Sequence[SSAValue] | None) -> None:
    """Variables for values that change from one iteration to the next, or, without first values, that branches set."""
    for number, value in enumerate(values):
        if is_token(value):
            continue
        start = None if starts is None else starts[number]
        view = _carried_view(emitter, value, start) if isa(value.type, MemRefType) else None
        emitter.variable(value, view, None if start is None else emitter.text(start))


def _carried_view(emitter: Emitter, value: SSAValue, start: SSAValue | None) -> View:
    op = owner_of(value)
    if start is None:
        raise emitter.refuse(op, "a branch that yields a memref")
    view = emitter.view(start)
    if view.static_strides != memref_of(value).get_strides():
        raise emitter.refuse(op, "a loop that carries a memref whose strides are not known")
    return view


def _assign(emitter: Emitter, variables: Sequence[SSAValue], values: Sequence[SSAValue]) -> None:
    pairs = [pair for pair in zip(variables, values, strict=True) if not is_token(pair[0])]
    emitter.assign([variable for variable, _ in pairs], [value for _, value in pairs])


def _read(emitter: Emitter, variables: Sequence[SSAValue], values: Sequence[SSAValue]) -> None:
    pairs = [pair for pair in zip(variables, values, strict=True) if not is_token(pair[0])]
    emitter.read([variable for variable, _ in pairs], [value for _, value in pairs])


# loops and branches


def emit_for(emitter: Emitter, op: scf.ForOp) -> None:
    """A counted loop; what it carries are variables."""
    body = op.body.block
    carried, terminator = body.args[1:], body.last_op
    assert isinstance(terminator, scf.YieldOp)
    _variables(emitter, carried, op.iter_args)

    def iteration() -> None:
        _read(emitter, carried, carried)
        emitter.emit_block(body)
        _assign(emitter, carried, terminator.arguments)

    bounds = [emitter.size(each) for each in (op.lb, op.ub, op.step)]
    is_independent = VECTORIZE in op.attributes and obstacle_to_vectors(op) is None
    emitter.counted(body.args[0], bounds, iteration, is_independent=is_independent)
    _read(emitter, carried, op.results)


def emit_parallel(emitter: Emitter, op: scf.ParallelOp) -> None:
    """A nest of counted loops, one iteration after another."""
    if op.results or op.initVals:
        raise emitter.refuse(op, "scf.parallel with reductions", "use scf.for with iter_args")
    loops = list(zip(op.body.block.args, op.lowerBound, op.upperBound, op.step, strict=True))

    def nest(number: int) -> None:
        if number == len(loops):
            emitter.emit_block(op.body.block)
            return
        counter, *bounds = loops[number]
        emitter.counted(counter, [emitter.size(bound) for bound in bounds], lambda: nest(number + 1))

    nest(0)


def emit_if(emitter: Emitter, op: scf.IfOp) -> None:
    """A branch; what it yields are variables."""
    _variables(emitter, op.results, None)
    otherwise = (lambda: _arm(emitter, op, op.false_region)) if op.false_region.blocks else None
    emitter.branch(emitter.scalar(op.cond), lambda: _arm(emitter, op, op.true_region), otherwise)
    _read(emitter, op.results, op.results)


def emit_index_switch(emitter: Emitter, op: scf.IndexSwitchOp) -> None:
    """A branch for each case, one in the other."""
    cases = list(zip(op.cases.get_values(), op.case_regions, strict=True))
    if len(cases) > MOST_CASES:
        note = "branches are nested, and C compilers need not take more than 127 blocks in each other"
        raise emitter.refuse(op, f"more than {MOST_CASES} cases", note)
    _variables(emitter, op.results, None)

    def emit(number: int) -> None:
        if number == len(cases):
            _arm(emitter, op, op.default_region)
            return
        case, region = cases[number]
        condition = emitter.equal(emitter.size(op.arg), case)
        emitter.branch(condition, lambda: _arm(emitter, op, region), lambda: emit(number + 1))

    emit(0)
    _read(emitter, op.results, op.results)


def _arm(emitter: Emitter, op: Operation, region: Region) -> None:
    emitter.emit_block(region.block)
    if isinstance(terminator := region.block.last_op, scf.YieldOp):
        _assign(emitter, op.results, terminator.arguments)


def emit_execute_region(emitter: Emitter, op: scf.ExecuteRegionOp) -> None:
    """What is inside, in its place."""
    if len(op.region.blocks) > 1:
        raise emitter.refuse(op, "a region of several blocks", "the pass lift-cf-to-scf makes ops of scf of it")
    emitter.emit_block(op.region.block)
    terminator = op.region.block.last_op
    assert isinstance(terminator, scf.YieldOp)
    for result, value in zip(op.results, terminator.arguments, strict=True):
        emitter.values[result] = emitter.values[value]


def emit_while(emitter: Emitter, op: scf.WhileOp) -> None:
    """A loop that leaves from its middle."""
    before, after = op.before_region.block, op.after_region.block
    condition, terminator = before.last_op, after.last_op
    assert isinstance(condition, scf.ConditionOp)
    assert isinstance(terminator, scf.YieldOp)
    _variables(emitter, before.args, op.arguments)
    _variables(emitter, op.results, None)

    def iteration() -> None:
        _read(emitter, before.args, before.args)
        emitter.emit_block(before)
        emitter.leave_unless(emitter.scalar(condition.condition), lambda: _assign(emitter, op.results, condition.args))
        _read(emitter, op.results, after.args)
        emitter.emit_block(after)
        _assign(emitter, before.args, terminator.arguments)

    emitter.endless(iteration)
    _read(emitter, op.results, op.results)


def emit_assert(emitter: Emitter, op: cf.AssertOp) -> None:
    """A fault of the run where what is asserted does not hold; it goes on, as after other faults."""
    emitter.expect(emitter.scalar(op.arg), TOO_MANY if is_bound_of_a_loop(op) else ASSERTED)


# calls


def emit_call(emitter: Emitter, op: func.CallOp) -> None:
    """A call: memrefs as pointers to their first elements."""
    name = op.callee.string_value()
    if op.results:
        raise unsupported(op, f"@{name} returns a value; at this level functions write through their arguments")
    for operand, arg in zip(op.arguments, emitter.program.functions[name].body.block.args, strict=True):
        _require_argument(op, emitter.values[operand], arg)
    emitter.call(emitter.program.symbols[name], op.arguments)


def _require_argument(op: func.CallOp, view: View | Expr, arg: SSAValue) -> None:
    """Raise UserError where a memref is not as the callee takes it."""
    if isinstance(view, Expr):
        return
    type = memref_of(arg)
    wanted = [*(None if size == DYNAMIC_INDEX else size for size in type.get_shape()), *(type.get_strides() or ())]
    if any(number not in (None, given) for number, given in zip(wanted, (*view.shape, *view.strides), strict=True)):
        shape = "x".join(map(str, view.shape))
        raise unsupported(
            op, f"@{op.callee.string_value()} takes {type}, and is given one of {shape} with strides {view.strides}"
        )
