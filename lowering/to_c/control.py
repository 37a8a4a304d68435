"""The ops of a function in order: loops, branches and calls, and for every other op the emitter it has elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects import accel, mem
from penstock.dialects.mem import memref_of
from penstock.lowering.to_c import copies, memory, structured
from penstock.lowering.to_c.emitter import CView, FunctionEmitter, is_token, refuse
from penstock.lowering.to_c.scalar import RULES, emit_scalar
from penstock.lowering.to_c.text import Expr, for_loop
from penstock.passes.analysis.loop_dependences import VECTORIZE, obstacle_to_vectors

Emitter = Callable[[FunctionEmitter, Any], None]

TERMINATORS = (scf.YieldOp, scf.ConditionOp, scf.ReduceOp, func.ReturnOp)
"""What ends a block: the op around it knows what to do with its operands."""


def emit_block(emitter: FunctionEmitter, block: Block) -> None:
    """All ops of a block but a terminator that yields; raises UserError (unsupported) for one without an emitter."""
    for op in block.ops:
        if isinstance(op, TERMINATORS):
            continue
        emit = EMITTERS.get(type(op))
        if emit is not None:
            emit(emitter, op)
        elif type(op) in RULES:
            emit_scalar(emitter, op)
        else:
            raise refuse(op, f"{op.name} cannot be lowered to C", *_hint(op))


def _hint(op: Operation) -> list[str]:
    level = op.name.split(".")[0]
    if level in ("graph", "tensor", "bufferization"):
        return ["C comes from the loop or the accel level: lower the module first"]
    return []


# loops and branches


def _variable(emitter: FunctionEmitter, value: SSAValue, start: SSAValue | None) -> None:
    """A variable for a value that changes from one iteration to the next, or that branches set."""
    if is_token(value):
        return
    if isa(value.type, MemRefType):
        _pointer_variable(emitter, value, start)
        return
    ctype = emitter.ctype(value.type, value.owner)
    name = emitter.name(value)
    initial = "" if start is None else f" = {emitter.scalar(start).text}"
    emitter.writer.line(f"{ctype.value} {name}{initial};")
    emitter.values[value] = Expr(name, is_atom=True)


def _pointer_variable(emitter: FunctionEmitter, value: SSAValue, start: SSAValue | None) -> None:
    op = value.owner if isinstance(value.owner, Operation) else value.owner.parent_op()
    assert op is not None
    if start is None:
        raise refuse(op, "a branch that yields a memref cannot be lowered to C")
    view = emitter.view(start)
    if view.static_strides != memref_of(value).get_strides():
        raise refuse(op, "a loop that carries a memref whose strides are not known cannot be lowered to C")
    emitter.declare_pointer(value, view, "0", mutable=True)


def _assign(emitter: FunctionEmitter, targets: Sequence[SSAValue], values: Sequence[SSAValue]) -> None:
    """Assign all values at once: none reads a target that has changed already."""
    pairs = [(t, v) for t, v in zip(targets, values, strict=True) if not is_token(t)]
    texts = [_text(emitter, value) for _, value in pairs]
    if len(pairs) > 1:
        held: list[str] = []
        for (target, _), text in zip(pairs, texts, strict=True):
            name = emitter.names.fresh("v")
            emitter.writer.line(f"{_declared(emitter, target)}{name} = {text};")
            held.append(name)
        texts = held
    for (target, _), text in zip(pairs, texts, strict=True):
        name = _text(emitter, target)
        if name != text:
            emitter.writer.line(f"{name} = {text};")


def _text(emitter: FunctionEmitter, value: SSAValue) -> str:
    found = emitter.values[value]
    return found.pointer if isinstance(found, CView) else found.text


def _declared(emitter: FunctionEmitter, value: SSAValue) -> str:
    found = emitter.values[value]
    if isinstance(found, CView):
        return f"{found.pointer_type}const "
    return f"const {emitter.ctype(value.type, value.owner).value} "


def _share(emitter: FunctionEmitter, values: Sequence[SSAValue], others: Sequence[SSAValue]) -> None:
    """`others` are the same variables as `values`."""
    for value, other in zip(values, others, strict=True):
        if not is_token(value):
            emitter.values[other] = emitter.values[value]


def emit_for(emitter: FunctionEmitter, op: scf.ForOp) -> None:
    """A counted loop; what it carries are variables."""
    body = op.body.block
    terminator = body.last_op
    assert isinstance(terminator, scf.YieldOp)
    for arg, start in zip(body.args[1:], op.iter_args, strict=True):
        _variable(emitter, arg, start)
    lower, upper, step = emitter.size(op.lb), emitter.size(op.ub), emitter.size(op.step)
    counter = emitter.name(body.args[0])
    ctype = emitter.ctype(body.args[0].type, op)
    emitter.values[body.args[0]] = Expr(counter, is_atom=True)
    header = for_loop(counter, upper, step=step, start=lower, type=ctype.value)
    if VECTORIZE in op.attributes and obstacle_to_vectors(op) is None:
        emitter.writer.line("PENSTOCK_INDEPENDENT")
    with emitter.nest(header):
        emit_block(emitter, body)
        _assign(emitter, body.args[1:], terminator.arguments)
    _share(emitter, body.args[1:], op.results)


def emit_parallel(emitter: FunctionEmitter, op: scf.ParallelOp) -> None:
    """A nest of counted loops; C runs them one after another."""
    if op.results or op.initVals:
        raise refuse(op, "scf.parallel with reductions cannot be lowered to C", "use scf.for with iter_args")
    headers: list[str] = []
    for arg, lower, upper, step in zip(op.body.block.args, op.lowerBound, op.upperBound, op.step, strict=True):
        name = emitter.name(arg)
        emitter.values[arg] = Expr(name, is_atom=True)
        headers.append(for_loop(name, emitter.size(upper), step=emitter.size(step), start=emitter.size(lower)))
    with ExitStack() as nest:
        for header in headers:
            nest.enter_context(emitter.nest(header))
        emit_block(emitter, op.body.block)


def emit_if(emitter: FunctionEmitter, op: scf.IfOp) -> None:
    """A branch; what it yields are variables."""
    for result in op.results:
        _variable(emitter, result, None)
    regions = [region for region in (op.true_region, op.false_region) if region.blocks]
    for number, region in enumerate(regions):
        with emitter.writer.block(f"if ({emitter.scalar(op.cond).text})" if number == 0 else "else"):
            emit_block(emitter, region.block)
            terminator = region.block.last_op
            if isinstance(terminator, scf.YieldOp):
                _assign(emitter, op.results, terminator.arguments)


def emit_while(emitter: FunctionEmitter, op: scf.WhileOp) -> None:
    """A loop that leaves from its middle."""
    before, after = op.before_region.block, op.after_region.block
    condition, terminator = before.last_op, after.last_op
    assert isinstance(condition, scf.ConditionOp)
    assert isinstance(terminator, scf.YieldOp)
    for arg, start in zip(before.args, op.arguments, strict=True):
        _variable(emitter, arg, start)
    for result in op.results:
        _variable(emitter, result, None)
    _share(emitter, op.results, after.args)
    with emitter.nest("for (;;)"):
        emit_block(emitter, before)
        held = emitter.names.fresh("v")
        emitter.writer.line(f"const int {held} = {emitter.scalar(condition.condition).text};")
        _assign(emitter, op.results, condition.args)
        emitter.writer.line(f"if (!{held}) break;")
        emit_block(emitter, after)
        _assign(emitter, before.args, terminator.arguments)


# calls


def emit_call(emitter: FunctionEmitter, op: func.CallOp) -> None:
    """A call: memrefs as pointers to their first elements."""
    name = op.callee.string_value()
    callee = emitter.program.functions[name]
    if op.results:
        raise refuse(op, f"@{name} returns a value; at this level functions write through their arguments")
    operands = ["ctx"]
    for operand, arg in zip(op.arguments, callee.body.block.args, strict=True):
        found = emitter.values[operand]
        require_argument(op, found, arg)
        operands.append(_text(emitter, operand))
    emitter.writer.line(f"{emitter.program.symbols[name]}({', '.join(operands)});")


def require_argument(op: func.CallOp, view: CView | Expr, arg: SSAValue) -> None:
    """Raise UserError where a memref is not as the callee takes it."""
    if isinstance(view, Expr):
        return
    type = memref_of(arg)
    if view.shape != tuple(type.get_shape()) or view.strides != type.get_strides():
        shape = "x".join(map(str, view.shape))
        raise refuse(
            op, f"@{op.callee.string_value()} takes {type}, and is given one of {shape} with strides {view.strides}"
        )


def _nothing(emitter: FunctionEmitter, op: Operation) -> None:
    """Commands run when they are issued: waiting is done."""


EMITTERS: dict[type[Operation], Emitter] = {
    GenericOp: structured.emit_generic,
    accel.ExecOp: structured.emit_exec,
    accel.DmaOp: copies.emit_transfer,
    accel.ReadyOp: _nothing,
    accel.WaitOp: _nothing,
    accel.BarrierOp: _nothing,
    accel.PushOp: _nothing,
    accel.PopOp: _nothing,
    mem.BufferOp: memory.emit_buffer,
    mem.RingOp: memory.emit_ring,
    mem.SlotOp: memory.emit_slot,
    mem.CopyOp: copies.emit_transfer,
    memref.AllocOp: memory.refuse_alloc,
    memref.AllocaOp: memory.refuse_alloc,
    memref.DeallocOp: memory.refuse_alloc,
    memref.CopyOp: copies.emit_memref_copy,
    memref.SubviewOp: memory.emit_subview,
    memref.ExpandShapeOp: memory.emit_retyped,
    memref.CollapseShapeOp: memory.emit_retyped,
    memref.CastOp: memory.emit_cast,
    memref.MemorySpaceCastOp: memory.emit_cast,
    memref.ReinterpretCastOp: memory.emit_reinterpret_cast,
    memref.DimOp: memory.emit_dim,
    memref.RankOp: memory.emit_rank,
    memref.LoadOp: memory.emit_load,
    memref.StoreOp: memory.emit_store,
    memref.GetGlobalOp: memory.emit_get_global,
    scf.ForOp: emit_for,
    scf.ParallelOp: emit_parallel,
    scf.IfOp: emit_if,
    scf.WhileOp: emit_while,
    func.CallOp: emit_call,
}
"""Class of an op -> what writes its C. A plug-in may add its own."""
