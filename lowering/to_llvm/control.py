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
from penstock.lowering.to_c.control import TERMINATORS, require_argument
from penstock.lowering.to_c.emitter import CView, is_token
from penstock.lowering.to_c.memory import emit_cast, emit_dim, emit_rank, emit_retyped, refuse_alloc
from penstock.lowering.to_llvm import copies, memory, structured
from penstock.lowering.to_llvm.emitter import LlvmEmitter, refuse
from penstock.lowering.to_llvm.scalar import RULES, emit_scalar
from penstock.lowering.to_llvm.types import value_type
from penstock.passes.analysis.loop_dependences import VECTORIZE, obstacle_to_vectors

Emitter = Callable[[LlvmEmitter, Any], None]


def emit_block(emitter: LlvmEmitter, block: Block) -> None:
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
            raise refuse(op, f"{op.name} cannot be lowered to LLVM IR")


# what loops and branches carry


def _carried(values: Sequence[SSAValue]) -> list[SSAValue]:
    """The values that are there at run time: commands run when they are issued, so tokens are not."""
    return [value for value in values if not is_token(value)]


def _texts(emitter: LlvmEmitter, values: Sequence[SSAValue]) -> list[str]:
    found = [emitter.values[value] for value in _carried(values)]
    return [each.pointer if isinstance(each, CView) else each.text for each in found]


def _types(emitter: LlvmEmitter, values: Sequence[SSAValue]) -> list[str]:
    return [
        "ptr" if isa(value.type, MemRefType) else value_type(emitter.ctype(value.type, value.owner))
        for value in _carried(values)
    ]


def _bind(emitter: LlvmEmitter, values: Sequence[SSAValue], texts: Sequence[str], like: Sequence[SSAValue]) -> None:
    """Give values their texts; memrefs are views as `like` is."""
    for value, text, model in zip(_carried(values), texts, _carried(like), strict=True):
        found = emitter.values.get(model)
        if isinstance(found, CView):
            if found.static_strides != memref_of(value).get_strides():
                owner = value.owner if isinstance(value.owner, Operation) else value.owner.parent_op()
                assert owner is not None
                raise refuse(owner, "a memref whose strides are not known cannot be carried in LLVM IR")
            emitter.values[value] = CView(
                text, found.ctype, found.shape, found.strides, found.scope, text, found.is_const
            )
        else:
            emitter.bind(value, text)


# loops and branches


def emit_for(emitter: LlvmEmitter, op: scf.ForOp) -> None:
    """A counted loop."""
    body = op.body.block
    terminator = body.last_op
    assert isinstance(terminator, scf.YieldOp)
    carried = list(zip(_types(emitter, op.iter_args), _texts(emitter, op.iter_args), strict=True))
    lower, upper, step = emitter.size(op.lb), emitter.size(op.ub), emitter.size(op.step)
    type = value_type(emitter.ctype(body.args[0].type, op))
    is_independent = VECTORIZE in op.attributes and obstacle_to_vectors(op) is None
    with emitter.asm.loop(lower, upper, step, carried, type=type, is_independent=is_independent) as loop:
        emitter.bind(body.args[0], loop.counter)
        _bind(emitter, body.args[1:], loop.values, op.iter_args)
        emit_block(emitter, body)
        loop.next = _texts(emitter, terminator.arguments)
    _bind(emitter, op.results, loop.values, op.iter_args)


def emit_parallel(emitter: LlvmEmitter, op: scf.ParallelOp) -> None:
    """A nest of counted loops, one iteration after another."""
    if op.results or op.initVals:
        message = "scf.parallel with reductions cannot be lowered to LLVM IR"
        raise refuse(op, message, "use scf.for with iter_args")
    with ExitStack() as nest:
        for arg, *bounds in zip(op.body.block.args, op.lowerBound, op.upperBound, op.step, strict=True):
            lower, upper, step = (emitter.size(bound) for bound in bounds)
            emitter.bind(arg, nest.enter_context(emitter.asm.loop(lower, upper, step)).counter)
        emit_block(emitter, op.body.block)


def emit_if(emitter: LlvmEmitter, op: scf.IfOp) -> None:
    """A branch; what it yields are phis."""
    asm = emitter.asm
    if any(isa(result.type, MemRefType) for result in op.results):
        raise refuse(op, "a branch that yields a memref cannot be lowered to LLVM IR")
    then, otherwise, after = asm.new_label(), asm.new_label(), asm.new_label()
    asm.branch(emitter.scalar(op.cond).text, then, otherwise)
    incoming: list[tuple[str, list[str]]] = []
    for label, region in ((then, op.true_region), (otherwise, op.false_region)):
        asm.start(label)
        yielded: list[str] = []
        if region.blocks:
            emit_block(emitter, region.block)
            if isinstance(region.block.last_op, scf.YieldOp):
                yielded = _texts(emitter, region.block.last_op.arguments)
        incoming.append((asm.block, yielded))
        asm.jump(after)
    asm.start(after)
    names, place = asm.phis(_types(emitter, op.results))
    asm.complete(place, incoming)
    _bind(emitter, op.results, names, op.results)


def emit_while(emitter: LlvmEmitter, op: scf.WhileOp) -> None:
    """A loop that leaves from its middle."""
    asm = emitter.asm
    before, after = op.before_region.block, op.after_region.block
    condition, terminator = before.last_op, after.last_op
    assert isinstance(condition, scf.ConditionOp)
    assert isinstance(terminator, scf.YieldOp)
    head, body, end = asm.new_label(), asm.new_label(), asm.new_label()
    start, first = asm.block, _texts(emitter, op.arguments)
    asm.jump_into(head)
    names, place = asm.phis(_types(emitter, before.args))
    _bind(emitter, before.args, names, op.arguments)
    emit_block(emitter, before)
    asm.branch(emitter.scalar(condition.condition).text, body, end)
    for values in (after.args, op.results):
        _bind(emitter, values, _texts(emitter, condition.args), condition.args)
    asm.start(body)
    emit_block(emitter, after)
    asm.complete(place, [(start, first), (asm.block, _texts(emitter, terminator.arguments))])
    asm.jump(head)
    asm.start(end)


# calls


def emit_call(emitter: LlvmEmitter, op: func.CallOp) -> None:
    """A call: memrefs as pointers to their first elements."""
    name = op.callee.string_value()
    if op.results:
        raise refuse(op, f"@{name} returns a value; at this level functions write through their arguments")
    for operand, arg in zip(op.arguments, emitter.program.functions[name].body.block.args, strict=True):
        require_argument(op, emitter.values[operand], arg)
    given = zip(_types(emitter, op.arguments), _texts(emitter, op.arguments), strict=True)
    listed = ", ".join(["ptr %ctx", *(f"{type} {text}" for type, text in given)])
    emitter.asm.line(f"call void @{emitter.program.symbols[name]}({listed})")


def _nothing(emitter: LlvmEmitter, op: Operation) -> None:
    """Commands run when they are issued: waiting is done."""


EMITTERS: dict[type[Operation], Emitter] = {
    GenericOp: structured.emit_generic,
    accel.ExecOp: structured.emit_exec,
    accel.DmaOp: copies.emit_transfer,
    **dict.fromkeys((accel.ReadyOp, accel.WaitOp, accel.BarrierOp, accel.PushOp, accel.PopOp), _nothing),
    mem.BufferOp: memory.emit_buffer,
    mem.RingOp: memory.emit_ring,
    mem.SlotOp: memory.emit_slot,
    mem.CopyOp: copies.emit_transfer,
    **dict.fromkeys((memref.AllocOp, memref.AllocaOp, memref.DeallocOp), refuse_alloc),
    memref.CopyOp: copies.emit_memref_copy,
    memref.SubviewOp: memory.emit_subview,
    memref.ExpandShapeOp: emit_retyped,
    memref.CollapseShapeOp: emit_retyped,
    memref.CastOp: emit_cast,
    memref.MemorySpaceCastOp: emit_cast,
    memref.ReinterpretCastOp: memory.emit_reinterpret_cast,
    memref.DimOp: emit_dim,
    memref.RankOp: emit_rank,
    memref.LoadOp: memory.emit_load,
    memref.StoreOp: memory.emit_store,
    memref.GetGlobalOp: memory.emit_get_global,
    scf.ForOp: emit_for,
    scf.ParallelOp: emit_parallel,
    scf.IfOp: emit_if,
    scf.WhileOp: emit_while,
    func.CallOp: emit_call,
}
"""Class of an op -> what writes it. A plug-in may add its own."""
