# SPDX-License-Identifier: Apache-2.0
"""Cooperative copies: iterations that run at once fill a buffer that they share, each a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.builder import Builder
from xdsl.dialects import arith, func, memref, scf
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.mem import BufferOp, CopyOp
from penstock.dialects.schedule_parallel import CooperateOp
from penstock.dialects.upstream.gpu import BlockMappingAttr
from penstock.dialects.upstream.scf import ForallOp, forall_around
from penstock.passes.analysis.effects import is_computed
from penstock.passes.analysis.loop_dependences import name_of
from penstock.passes.analysis.loops import iteration_count
from penstock.passes.analysis.memory.aliases import Aliases
from penstock.passes.analysis.memory.effects import MemoryEffects
from penstock.passes.analysis.memory.graph import FlowGraph
from penstock.passes.analysis.memory.storage import overwrites, reads_and_writes, slice_of, uses_through
from penstock.passes.index_builder import Index, add, materialize, scale
from penstock.passes.schedule.loop_nests import iteration_of
from penstock.passes.schedule.primitives.insert_barriers import insert_barriers
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState

_Buffer = BufferOp | memref.AllocOp


def cooperate(copy: CopyOp) -> CopyOp:
    """
    Let the iterations of `scf.forall` share the buffer that each of them fills with the same, and split the load.

    The buffer is made before the loop, once. Of the copy each iteration does a part: as many slices of the first dim,
    and of the next ones if there are more iterations than that, as divide it; iterations that are left over copy
    nothing. Then the barriers are put in that the loop needs (`insert_barriers`). TVM calls this cooperative fetching.
    Returns the copy of a part.

    Raises UserError where the copy is not the same in all iterations, its source is written among them, the buffer is
    written otherwise, too, or the number of iterations is not known.

    Before:
    ```mlir
    func.func @k(%x: memref<8xf32>, %y: memref<4xf32>) {
      %seven = arith.constant 7 : index
      scf.forall (%i) in (4) {
        %b = mem.buffer : memref<8xf32, "spad">
        mem.copy %x to %b : memref<8xf32> to memref<8xf32, "spad">
        %j = arith.subi %seven, %i : index
        %v = memref.load %b[%j] : memref<8xf32, "spad">
        memref.store %v, %y[%i] : memref<4xf32>
      } {mapping = [#gpu.thread<x>]}
      func.return
    }
    ```
    After (`%part = schedule.cooperate %copy`):
    ```mlir
    func.func @k(%x: memref<8xf32>, %y: memref<4xf32>) {
      %seven = arith.constant 7 : index
      %b = mem.buffer : memref<8xf32, "spad">
      scf.forall (%i) in (4) {
        %0 = arith.constant 2 : index
        %1 = arith.muli %i, %0 : index
        %2 = memref.subview %b[%1] [2] [1] : memref<8xf32, "spad"> to memref<2xf32, strided<[1], offset: ?>, "spad">
        mem.copy %x[%1] to %2 : memref<8xf32> to memref<2xf32, strided<[1], offset: ?>, "spad">
        %j = arith.subi %seven, %i : index
        gpu.barrier
        %v = memref.load %b[%j] : memref<8xf32, "spad">
        memref.store %v, %y[%i] : memref<4xf32>
      } {mapping = [#gpu.thread<x>]}
      func.return
    }
    ```
    """
    forall, buffer = _check(copy)
    part = _share(copy, buffer, forall)
    insert_barriers(forall)
    return part


def _check(copy: CopyOp) -> tuple[ForallOp, _Buffer]:
    """The iterations and the buffer that they will share; raises UserError where that is not legal."""
    where, buffer, forall = location_of(copy), copy.dest.owner, forall_around(copy)
    if forall is None:
        raise UserError("this copy is in no scf.forall whose iterations could split it", loc=where)
    if forall.mapping is not None and isinstance(forall.mapping.data[0], BlockMappingAttr):
        raise UserError("iterations that are mapped to blocks share no buffer", loc=where)
    if iteration_count(forall) is None:
        raise UserError("among how many iterations the copy is to be split is not known", loc=where)
    if not isinstance(buffer, _Buffer) or forall_around(buffer) is not forall or not overwrites(copy, copy.dest):
        raise UserError("this copy does not fill a buffer that each iteration has for itself", loc=where)
    if isinstance(buffer, BufferOp) and buffer.byte_offset is not None:
        raise UserError(
            "this buffer has a place already", loc=location_of(buffer), notes=["share it before `mem-plan`"]
        )
    for use in uses_through(copy.dest):
        if use.operation is not copy and reads_and_writes(use)[1]:
            raise UserError(
                f"the buffer is written by {use.operation.name}, too: it is no copy of {_named(copy.source)} alone",
                loc=location_of(use.operation),
            )
    for value in copy.operands:
        if value is not copy.dest:
            _check_uniform(value, forall, copy)
    _check_control(copy, forall)
    _check_source(copy, forall)
    return forall, buffer


def _named(value: SSAValue) -> str:
    return f"%{value.name_hint}" if value.name_hint else "a value"


def _check_uniform(value: SSAValue, forall: ForallOp, copy: CopyOp) -> None:
    """Raise UserError unless a value is the same in all iterations."""
    op = value.owner
    if not forall.is_ancestor(op):
        return
    if isinstance(op, Block):
        loop = op.parent_op()
        if isinstance(loop, scf.ForOp) and value is op.args[0]:
            for bound in (loop.lb, loop.ub, loop.step):
                _check_uniform(bound, forall, copy)
            return
    elif is_computed(op):
        for operand in op.operands:
            _check_uniform(operand, forall, copy)
        return
    raise UserError(
        f"iterations copy different elements: {_named(value)} is not the same in all of them", loc=location_of(copy)
    )


def _check_control(copy: CopyOp, forall: ForallOp) -> None:
    """Raise UserError unless all iterations come to the copy alike."""
    parent = copy.parent_op()
    while parent is not None and parent is not forall:
        if not isinstance(parent, scf.ForOp):
            raise UserError(f"not all iterations may come to this copy: it is in {parent.name}", loc=location_of(copy))
        for bound in (parent.lb, parent.ub, parent.step):
            try:
                _check_uniform(bound, forall, copy)
            except UserError:
                raise UserError(
                    f"iterations run {name_of(parent)}, which this copy is in, differently often",
                    loc=location_of(copy),
                ) from None
        parent = parent.parent_op()


def _check_source(copy: CopyOp, forall: ForallOp) -> None:
    """Raise UserError if an iteration may write what is copied."""
    function = forall.parent_op()
    while not isinstance(function, func.FuncOp):
        if function is None:
            raise UserError("scf.forall is in no function", loc=location_of(forall))
        function = function.parent_op()
    aliases = Aliases(FlowGraph(function))
    effects = MemoryEffects(aliases, None, lambda call: None)
    for op in forall.walk():
        if op is not forall and effects.of(op).writes & aliases.of(copy.source):
            raise UserError(
                f"{op.name} of an iteration may write {_named(copy.source)}, of which this is a copy",
                loc=location_of(copy),
                notes=[f"the {op.name} is at {location_of(op)}"],
            )


def _parts(box: Sequence[int], count: int) -> list[int]:
    """Into how many parts each dim is cut, the first ones first, for that many iterations."""
    parts: list[int] = []
    for size in box:
        parts.append(max((part for part in range(1, min(size, count) + 1) if size % part == 0), default=1))
        count //= parts[-1]
    return parts


def _share(copy: CopyOp, buffer: _Buffer, forall: ForallOp) -> CopyOp:
    """Make the buffer before the loop, and a part of the copy in the place of all of it."""
    count = iteration_count(forall)
    assert count is not None
    buffer.detach()
    Rewriter.insert_op(buffer, InsertPoint.before(forall))
    parts, builder = _parts(copy.box, count), Builder(InsertPoint.before(copy))
    number = iteration_of(forall, forall.indices, builder)
    offsets: list[Index] = []
    for dim, (size, part) in enumerate(zip(copy.box, parts, strict=True)):
        digit: Index = 0
        if part > 1:
            digit, inner = number, prod(parts[dim + 1 :])
            if inner > 1:
                digit = builder.insert(arith.DivUIOp(digit, materialize(builder, inner))).result
            if dim and prod(parts[:dim]) > 1:
                digit = builder.insert(arith.RemUIOp(digit, materialize(builder, part))).result
        offsets.append(scale(builder, digit, size // part))
    inside = builder
    if prod(parts) < count:
        limit = materialize(builder, prod(parts))
        condition = builder.insert(arith.CmpiOp(number, limit, "ult")).result
        branch = builder.insert(scf.IfOp(condition, [], Region(Block())))
        branch.location = copy.location
        inside = Builder(InsertPoint.at_end(branch.true_region.block))
    dest = slice_of(inside, copy.dest, offsets, [size // part for size, part in zip(copy.box, parts, strict=True)])
    window = copy.mixed_source_offsets()
    moved = [add(inside, at, offset) for at, offset in zip(window, offsets, strict=True)]
    made = CopyOp(copy.source, dest, source_offsets=moved, padding=copy.padding)
    made.location = copy.location
    inside.insert(made)
    if inside is not builder:
        inside.insert(scf.YieldOp())
    Rewriter.erase_op(copy)
    return made


@PRIMITIVES.register(CooperateOp)
def _apply(state: TransformState, op: CooperateOp) -> Sequence[Payload]:
    # Only with the buffer shared is it seen which barriers there would have to be.
    with state.undone_on_error():
        part: Operation = cooperate(state.one(op.copy, CopyOp))
    return ((part,),)
