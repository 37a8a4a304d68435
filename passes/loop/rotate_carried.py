# SPDX-License-Identifier: Apache-2.0
"""`rotate-carried`: what an iteration leaves to the next one is handed on in two buffers that take turns, uncopied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.mem import CopyOp, memref_of
from penstock.passes.analysis.kernels import ENTRY, machine_kernels
from penstock.passes.analysis.loops import constant_of, trip_count
from penstock.passes.analysis.memory.dataflow import DataFlow, Flows
from penstock.passes.analysis.memory.storage import VIEWS
from penstock.passes.index_builder import add, materialize
from penstock.passes.loop.rotation.carried import Carried, Finder, made_by
from penstock.passes.schedule.loop_nests import Iterations, builder_in, clone_body, iterations_of, new_loop


def _rotate(loop: scf.ForOp, carried: Sequence[Carried], flow: DataFlow) -> None:
    """Write two iterations at once, which exchange the buffers; an odd one stands behind the loop."""
    whole = iterations_of(loop)
    block, before, after = loop.body.block, Builder(InsertPoint.before(loop)), Builder(InsertPoint.after(loop))
    # All are looked at before any op changes: the data flow knows none that is new.
    origins = [_origin(loop, each, flow) for each in carried]
    pairs = [_buffers(loop, each, origin) for each, origin in zip(carried, origins, strict=True)]
    for each, pair in zip(carried, pairs, strict=True):
        here = [block.insert_arg(buffer.type, len(block.args)) for buffer in pair]
        old, new = each.old, each.new
        if pair[0] is not old and pair[whole.trips % 2] is not old:
            after.insert(_copy(pair[whole.trips % 2], old, each.copy))
        old.replace_uses_with_if(
            here[0], lambda use: loop.is_ancestor(use.operation) and use.operation is not each.copy
        )
        made = _as(memref_of(new), here[1], block)
        new.replace_uses_with_if(made, lambda use: use.operation is not each.copy)
        if each.is_own:
            Rewriter.erase_op(each.copy)
            Rewriter.erase_op(made_by(new))
        else:
            Rewriter.replace_op(each.copy, _copy(here[1], new, each.copy), [])
    turns = [buffer for pair in pairs for buffer in pair], [buffer for pair in pairs for buffer in reversed(pair)]
    new_one = new_loop(before, Iterations(whole.lower, 2 * whole.step, whole.trips // 2), loop)
    inside = builder_in(new_one)
    for number, buffers in enumerate(turns):
        counter = materialize(inside, add(inside, new_one.body.block.args[0], number * whole.step))
        clone_body(inside, loop, counter, buffers)
    inside.insert(scf.YieldOp())
    if whole.trips % 2:
        clone_body(before, loop, materialize(before, whole.lower + (whole.trips - 1) * whole.step), turns[0])
    Rewriter.erase_op(loop)


def _origin(loop: scf.ForOp, each: Carried, flow: DataFlow) -> Operation:
    """
    What the first iteration reads: the allocation of `old` where nothing else needs it, the copy that fills `old` for
    the loop alone, or else the loop itself, before which `old` is copied.
    """
    old, root, block = each.old, flow.aliases.of(each.old), loop.parent
    assert block is not None
    touching = [op for op in block.ops if _touches(op, root, flow)]
    place = touching.index(loop)
    earlier = touching[place - 1] if place else None
    if isinstance(old.owner, memref.AllocOp) and old.owner.parent is block and touching[-1] is loop:
        return old.owner
    if isinstance(earlier, CopyOp) and earlier.dest is old and earlier.window_side is None:
        # What fills it is nothing that anyone else reads: it is overwritten behind the loop.
        return earlier
    return loop


def _buffers(loop: scf.ForOp, each: Carried, origin: Operation) -> list[SSAValue]:
    """The two buffers, the one that the first iteration reads first."""
    old = each.old
    if origin is old.owner:
        return [old, _alloc(Builder(InsertPoint.before(loop)), old)]
    builder = Builder(InsertPoint.before(origin))
    pair = [_alloc(builder, old), _alloc(builder, old)]
    if isinstance(origin, CopyOp):
        Rewriter.replace_op(origin, _copy(origin.source, pair[0], origin), [])
    else:
        builder.insert(_copy(old, pair[0], each.copy))
    return pair


def _as(type: MemRefType[Attribute], buffer: SSAValue, block: Block) -> SSAValue:
    """A buffer as the type of what it stands for, where that has an offset that is not known."""
    if buffer.type == type:
        return buffer
    cast = memref.CastOp.get(buffer, type)
    Builder(InsertPoint.at_start(block)).insert(cast)
    return cast.dest


def _touches(op: Operation, root: int, flow: DataFlow) -> bool:
    inner = (flow.effects[each].touches for each in op.walk() if each in flow.effects and not isinstance(each, VIEWS))
    return any(touched & root for touched in inner) and not isinstance(op, memref.AllocOp)


def _alloc(builder: Builder, like: SSAValue) -> SSAValue:
    type = memref_of(like)
    buffer = builder.insert(memref.AllocOp([], [], MemRefType(type.element_type, type.get_shape())))
    buffer.location = made_by(like).location
    buffer.memref.name_hint = like.name_hint
    return buffer.memref


def _copy(source: SSAValue, dest: SSAValue, like: CopyOp) -> CopyOp:
    copy = CopyOp(source, dest)
    copy.location = like.location
    return copy


@dataclass(frozen=True)
class RotateCarriedPass(ModulePass):
    """
    Hand on what loops of `@main` carry without copies: two buffers take turns, and two iterations are written out.

    What an iteration leaves to the next is copied at its end (`mem.copy %new to %old`). Where only that copy writes
    `%old`, nothing writes `%new` behind it, and kernels of the machine read the one and write the other, the next
    iteration reads where this one has written. So neither leaves the chip, if `mem-promote` keeps both there. A part
    of a tensor that an iteration writes and hands on, as a line of an output, is copied there from the buffer.

    Required: the loop level, before `mem-promote`; loops of constant bounds and at least two iterations, others are
    left as they are. Guaranteed: the same results bit for bit. No iteration copies what it hands on, unless that is a
    part of a tensor: that is copied as often as before. At most two copies more stand before and behind the loop, for
    each buffer that is handed on, where something else reads or writes it there.

    Before:
    ```mlir
    func.func @main(%h: memref<16xf32>, %y: memref<16xf32> {graph.output = "y"}) {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %five = arith.constant 5 : index
      mem.copy %h to %y : memref<16xf32> to memref<16xf32>
      scf.for %i = %zero to %five step %one {
        %new = memref.alloc() : memref<16xf32>
        func.call @k(%y, %new) : (memref<16xf32>, memref<16xf32>) -> ()
        mem.copy %new to %y : memref<16xf32> to memref<16xf32>
      }
      func.return
    }
    func.func private @k(%x: memref<16xf32>, %y: memref<16xf32>) attributes {device = @gemmini_fp32} {
      %tile = mem.buffer : memref<16xf32, "spad">
      mem.copy %x to %tile : memref<16xf32> to memref<16xf32, "spad">
      mem.copy %tile to %y : memref<16xf32, "spad"> to memref<16xf32>
      func.return
    }
    ```
    After (`rotate-carried` on `gemmini-fp32`):
    ```mlir
    func.func @main(%h: memref<16xf32>, %y: memref<16xf32> {graph.output = "y"}) {
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %five = arith.constant 5 : index
      %y_1 = memref.alloc() : memref<16xf32>
      %y_2 = memref.alloc() : memref<16xf32>
      mem.copy %h to %y_1 : memref<16xf32> to memref<16xf32>
      %0 = arith.constant 4 : index
      %1 = arith.constant 2 : index
      scf.for %i = %zero to %0 step %1 {
        func.call @k(%y_1, %y_2) : (memref<16xf32>, memref<16xf32>) -> ()
        %2 = arith.constant 1 : index
        %3 = arith.addi %i, %2 : index
        func.call @k(%y_2, %y_1) : (memref<16xf32>, memref<16xf32>) -> ()
      }
      %4 = arith.constant 4 : index
      func.call @k(%y_1, %y_2) : (memref<16xf32>, memref<16xf32>) -> ()
      mem.copy %y_2 to %y : memref<16xf32> to memref<16xf32>
      func.return
    }
    func.func private @k(%x: memref<16xf32>, %y: memref<16xf32>) attributes {device = @gemmini_fp32} {
      %tile = mem.buffer : memref<16xf32, "spad">
      mem.copy %x to %tile : memref<16xf32> to memref<16xf32, "spad">
      mem.copy %tile to %y : memref<16xf32, "spad"> to memref<16xf32>
      func.return
    }
    ```
    """

    name = "rotate-carried"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        _, kernels = machine_kernels(op)
        names = frozenset(kernel.sym_name.data for kernel in kernels)
        main = next((each for each in op.ops if isinstance(each, func.FuncOp) and each.sym_name.data == ENTRY), None)
        if main is None or not names or len(main.body.blocks) != 1:
            return
        # Inner loops first: their bodies are in those of outer ones.
        for loop in reversed([each for each in main.walk() if isinstance(each, scf.ForOp)]):
            if loop.iter_args or (trip_count(loop) or 0) < 2 or constant_of(loop.lb) is None:
                continue
            flows = Flows(op)
            flow = flows.of(main)
            if carried := list(Finder(loop, flow, flows, names).carried()):
                _rotate(loop, carried, flow)
