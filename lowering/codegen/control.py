"""Loops, branches and calls."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import func, scf
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Region, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.mem import memref_of
from penstock.lowering.codegen.emitter import Emitter
from penstock.lowering.codegen.text import Expr
from penstock.lowering.codegen.views import View, is_token, owner_of, unsupported
from penstock.passes.analysis.loop_dependences import VECTORIZE, obstacle_to_vectors

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

    def emit(region: Region) -> None:
        emitter.emit_block(region.block)
        if isinstance(terminator := region.block.last_op, scf.YieldOp):
            _assign(emitter, op.results, terminator.arguments)

    otherwise = (lambda: emit(op.false_region)) if op.false_region.blocks else None
    emitter.branch(emitter.scalar(op.cond), lambda: emit(op.true_region), otherwise)
    _read(emitter, op.results, op.results)


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
    if view.shape != tuple(type.get_shape()) or view.strides != type.get_strides():
        shape = "x".join(map(str, view.shape))
        raise unsupported(
            op, f"@{op.callee.string_value()} takes {type}, and is given one of {shape} with strides {view.strides}"
        )
