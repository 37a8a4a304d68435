"""The ops of a function in order: loops, branches and calls, and for every other op the emitter it has elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from xdsl.dialects import arith, func, gpu, memref, scf
from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects import accel, accel_issue, mem
from penstock.dialects.mem import RingType, memref_of
from penstock.dialects.upstream.scf import ForallOp, InParallelOp, forall_around
from penstock.lowering.to_c import copies, issues, memory, structured
from penstock.lowering.to_c.emitter import CView, FunctionEmitter, is_token, refuse
from penstock.lowering.to_c.scalar import RULES, emit_scalar
from penstock.lowering.to_c.text import CWriter, Expr, Names, for_loop, sum_of, wrapped
from penstock.passes.analysis.loop_dependences import VECTORIZE, obstacle_to_vectors
from penstock.passes.analysis.loops import forall_iterations, threads_of
from penstock.passes.analysis.memory.storage import storage_of
from penstock.runtime.interpreter.body import captured_values

Emitter = Callable[[FunctionEmitter, Any], None]

TERMINATORS = (scf.YieldOp, scf.ConditionOp, scf.ReduceOp, InParallelOp, func.ReturnOp)
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


def uses_threads(op: ForallOp) -> bool:
    """
    Whether iterations of a loop run in several threads: the loop says so, and they do nothing that needs another order.
    """
    if threads_of(op) < 2 or forall_iterations(op) is None or op.outputs or forall_around(op) is not None:
        return False
    return not any(isinstance(inner, func.CallOp | gpu.BarrierOp) for inner in op.walk())


def emit_forall(emitter: FunctionEmitter, op: ForallOp) -> None:
    """A parallel loop: a function that runs some of its iterations, which the threads call."""
    program, prefix, bounds = emitter.program, emitter.prefix, forall_iterations(op)
    assert bounds is not None
    program.threads = max(program.threads, threads_of(op))
    name = f"{program.symbols[emitter.symbol]}_loop{len(emitter.parts)}"
    part = FunctionEmitter(
        program,
        CWriter(1),
        Names([*program.symbols.values(), name, "own", "given", "all", "first", "last", "n"]),
        prefix,
        emitter.symbol,
        outline=emitter.outline,
        own="own",
        depth=emitter.depth,
    )
    captured = _captured(emitter, part, op)
    with part.nest(for_loop("n", "last", start="first")):
        _declare_indices(part, op, bounds)
        emit_block(part, op.region.block)
    body = part.writer.text()
    given = [each for each in captured if re.search(rf"\b{each.name}\b", body)]
    emitter.parts.append(_part(prefix, name, given, body))
    with emitter.writer.block():
        if given:
            values = ", ".join(each.value for each in given)
            emitter.writer.line(f"const struct {name}_given given = {{{values}}};")
        count = prod(trips for _, _, trips in bounds)
        emitter.writer.line(f"{prefix}_parallel(ctx, {name}_part, {'&given' if given else 'NULL'}, {count});")


@dataclass(frozen=True)
class _Given:
    """A value from outside of a parallel loop, handed to the function that runs iterations."""

    type: str
    """Of the member of the struct, with what separates it from the name."""
    name: str
    value: str
    """In the function around the loop."""
    is_restricted: bool = False

    @property
    def parameter(self) -> str:
        return f"{self.type}{'restrict ' if self.is_restricted else ''}{self.name}"


def _part(prefix: str, name: str, given: Sequence[_Given], body: str) -> str:
    """The function that runs some iterations, and the one that the threads call, which unpacks what it is given."""
    common, limits = [f"{prefix}_ctx *ctx", f"{prefix}_own *own"], ["int64_t first", "int64_t last"]
    writer = CWriter()
    if given:
        writer.line(f"struct {name}_given {{")
        writer.lines += [f"  {each.type}{each.name};" for each in given]
        writer.line("};")
    parameters = [*common, *(each.parameter for each in given), *limits]
    writer.line(f"static PENSTOCK_APART void {name}({wrapped(parameters)}) {{")
    writer.line("  (void)ctx, (void)own;")
    writer.lines += [*body.splitlines(), "}", ""]
    with writer.block(f"static void {name}_part({wrapped([*common, 'const void *given', *limits])})"):
        writer.line(f"const struct {name}_given *const all = given;" if given else "(void)given;")
        passed = ["ctx", "own", *(f"all->{each.name}" for each in given), "first", "last"]
        writer.line(f"{name}({', '.join(passed)});")
    return writer.text() + "\n"


def _captured(emitter: FunctionEmitter, part: FunctionEmitter, op: ForallOp) -> list[_Given]:
    """What the iterations use from outside, bound in `part` to parameters."""
    values = [value for value in captured_values(op) if not is_token(value)]
    roots = [storage_of(value) for value in values if isa(value.type, MemRefType)]
    restricted = emitter.program.restricted[emitter.symbol] if emitter.own == "ctx" else frozenset[int]()
    found: list[_Given] = []
    for value in values:
        known = emitter.values[value]
        if isinstance(known, Expr):
            part.values[value] = known
            if known.number is None and not isinstance(value.owner, arith.ConstantOp):
                if isinstance(value.type, RingType):
                    type = f"{emitter.ctype(value.type.slot.element_type, value.owner).storage} *"
                else:
                    type = f"{emitter.ctype(value.type, value.owner).value} "
                name = part.name(value)
                found.append(_Given(type, name, known.text))
                part.values[value] = Expr(name, is_atom=True)
            continue
        if known.static_strides is None or not all(isinstance(size, int) for size in known.shape):
            raise refuse(op, "scf.forall uses a memref whose shape or strides are not known, so it has no threads in C")
        name, root = part.name(value), storage_of(value)
        is_alone = isinstance(root, BlockArgument) and root.index in restricted and roots.count(root) == 1
        found.append(_Given(known.pointer_type, name, known.pointer, is_alone))
        base = name
        if known.base != known.pointer:
            base = part.names.fresh("v")
            found.append(_Given(known.pointer_type, base, known.base))
        part.values[value] = replace(known, pointer=name, base=base)
    return found


def _declare_indices(part: FunctionEmitter, op: ForallOp, bounds: Sequence[tuple[int, int, int]]) -> None:
    """The indices of the iteration `n`, the last dim fastest."""
    inner = prod(trips for _, _, trips in bounds)
    for number, (index, (lower, step, trips)) in enumerate(zip(op.indices, bounds, strict=True)):
        inner //= max(trips, 1)
        digit = "n" if inner == 1 else f"n / {inner}"
        if number and trips > 1:
            digit = f"({digit}) % {trips}" if inner > 1 else f"n % {trips}"
        atom = digit if digit == "n" else f"({digit})"
        part.declare(index, Expr(sum_of([(atom, step)], lower) if trips > 1 else str(lower)))


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
    accel.PushOp: issues.emit_queue,
    accel.PopOp: issues.emit_queue,
    accel_issue.IssueOp: issues.emit_issue,
    accel_issue.SetOp: issues.emit_set,
    accel_issue.CodeOp: issues.emit_code,
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
    ForallOp: emit_forall,
    scf.IfOp: emit_if,
    scf.WhileOp: emit_while,
    func.CallOp: emit_call,
}
"""Class of an op -> what writes its C. A plug-in may add its own."""
