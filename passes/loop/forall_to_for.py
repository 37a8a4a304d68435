# SPDX-License-Identifier: Apache-2.0
"""
Iterations that run at once, one after the other: `scf.forall` as `scf.for`.

Barriers split a body into phases: all iterations run the first, then all the second (loop fission, as OpenCL runtimes
run a work group on one thread: Jaeaskelaeinen et al., "pocl", IJPP 2015). What a later phase uses is computed again, or
is kept for each iteration: a buffer becomes a ring with a slot for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects import gpu, memref, scf, tensor
from xdsl.dialects.builtin import FixedBitwidthType, MemRefType, ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of, warn_of
from penstock.dialects.machine import TargetOp, find_target
from penstock.dialects.mem import BufferOp, RingOp, SlotOp
from penstock.dialects.upstream.scf import ForallOp, forall_around
from penstock.dialects.upstream.tensor import ParallelInsertSliceOp
from penstock.passes.analysis.effects import is_computed
from penstock.passes.analysis.kernels import machine_of
from penstock.passes.analysis.loops import iteration_count, obstacle_to_threads, threads_of, uses_threads
from penstock.passes.index_builder import for_loop
from penstock.passes.schedule.loop_nests import iteration_of
from penstock.passes.schedule.rings import give_slots, ring_of
from penstock.runtime.interpreter.body import captured_values

_Buffer = BufferOp | memref.AllocOp | memref.AllocaOp
_Values = dict[SSAValue, SSAValue]


def _has_barrier(op: Operation, loop: ForallOp) -> bool:
    return any(isinstance(inner, gpu.BarrierOp) and forall_around(inner) is loop for inner in op.walk())


def _refuse(op: Operation, message: str, *notes: str) -> UserError:
    return UserError(message, loc=location_of(op), notes=notes, status=UNSUPPORTED)


@dataclass
class _Sequence:
    """One loop whose iterations are put one after the other."""

    loop: ForallOp
    target: TargetOp | None
    phase_of: dict[Operation, int] = field(default_factory=dict[Operation, int])
    """The phase of each op of the body, by number, and of what is in it."""
    kept: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    """For what a later phase uses: the ring or the memref that keeps it for each iteration."""

    def run(self) -> None:
        """Replace the loop."""
        loop, builder = self.loop, Builder(InsertPoint.before(self.loop))
        has_barriers = _has_barrier(loop, loop)
        if has_barriers and loop.outputs:
            raise _refuse(loop, "scf.forall with barriers and tensors that its iterations share cannot be sequential")
        values: _Values = dict(zip(loop.shared, loop.outputs, strict=True))
        ops = [op for op in loop.region.block.ops if op is not loop.terminator]
        if has_barriers:
            self._number(ops, 0)
            self._keep(builder)
            self._phases(ops, builder, values)
            results: Sequence[SSAValue] = ()
        else:
            results = self._iterations(ops, builder, values, loop.outputs)
        Rewriter.replace_op(loop, [], results)

    # phases

    def _number(self, ops: Sequence[Operation], phase: int) -> int:
        """Number the phases of ops from `phase` on; returns the last. Raises UserError for a barrier in a branch."""
        for op in ops:
            if not _has_barrier(op, self.loop):
                self.phase_of.update(dict.fromkeys(op.walk(), phase))
                continue
            phase += 1
            self.phase_of[op] = phase
            if isinstance(op, scf.ForOp) and not op.iter_args:
                phase = self._number(list(op.body.block.ops)[:-1], phase) + 1
            elif not isinstance(op, gpu.BarrierOp):
                barrier = next(inner for inner in op.walk() if isinstance(inner, gpu.BarrierOp))
                raise _refuse(
                    barrier,
                    f"this barrier is in {op.name}{' that carries values' if isinstance(op, scf.ForOp) else ''}, "
                    "which cannot be split there",
                    "a barrier is in the body of scf.forall, or of a scf.for in it that all iterations run alike",
                )
        return phase

    def _keep(self, builder: Builder) -> None:
        """Make room for what is used in a later phase than its own and cannot be computed again."""
        for op, phase in list(self.phase_of.items()):
            if not (isinstance(op, gpu.BarrierOp) or (isinstance(op, scf.ForOp) and _has_barrier(op, self.loop))):
                for operand in op.operands:
                    self._keep_value(operand, phase, builder)

    def _keep_value(self, value: SSAValue, phase: int, builder: Builder) -> None:
        op = value.owner
        if value in self.kept or not isinstance(op, Operation) or self.phase_of.get(op, phase) == phase:
            return
        if isinstance(op, _Buffer):
            if isinstance(op, BufferOp) and op.byte_offset is not None:
                raise _refuse(
                    op,
                    "this buffer is used on both sides of a barrier, and has one place for all iterations",
                    "run `forall-to-for` before `mem-plan`",
                )
            self.kept[value] = builder.insert(ring_of(op, self._count(op), self.target)).ring
        elif is_computed(op):
            for operand in op.operands:
                self._keep_value(operand, phase, builder)
        elif isinstance(value.type, FixedBitwidthType) and not isinstance(value.type, MemRefType):
            alloc = memref.AllocOp([], [], MemRefType(value.type, [self._count(op)]))
            self.kept[value] = builder.insert(alloc).memref
        else:
            raise _refuse(op, f"the result of {op.name} is used after a barrier, and cannot be kept for each iteration")

    def _count(self, op: Operation) -> int:
        count = iteration_count(self.loop)
        if count is None:
            raise _refuse(
                op,
                "what is used on both sides of a barrier is kept for each iteration, and how many there are "
                "is not known here",
            )
        return max(count, 1)

    def _phases(self, ops: Sequence[Operation], builder: Builder, values: _Values) -> None:
        phase: list[Operation] = []
        for op in ops:
            if not _has_barrier(op, self.loop):
                phase.append(op)
                continue
            self._iterations(phase, builder, values)
            phase = []
            if isinstance(op, scf.ForOp):
                self._shared_loop(op, builder, values)
        self._iterations(phase, builder, values)

    def _shared_loop(self, op: scf.ForOp, builder: Builder, values: _Values) -> None:
        """A loop that all iterations run alike: outside, around its phases."""
        lower, upper, step = (self._uniform(bound, op, builder, dict(values)) for bound in (op.lb, op.ub, op.step))
        counter = op.body.block.args[0]
        loop, inside = for_loop(builder, (lower, upper, step), like=op, counter=counter)
        self._phases(list(op.body.block.ops)[:-1], inside, {**values, counter: loop.body.block.args[0]})
        inside.insert(scf.YieldOp())

    def _uniform(self, value: SSAValue, loop: scf.ForOp, builder: Builder, values: _Values) -> SSAValue:
        """A bound of a loop, computed outside of the iterations."""
        if not self._is_inside(value) or value in values:
            return values.get(value, value)
        op = value.owner
        if not isinstance(op, Operation) or not is_computed(op):
            raise _refuse(
                loop,
                "this loop holds a barrier, and how often it runs may differ from iteration to iteration",
                "its bounds are computed from constants and from values outside of scf.forall",
            )
        for operand in op.operands:
            values[operand] = self._uniform(operand, loop, builder, values)
        return builder.insert(op.clone(values)).results[list[SSAValue](op.results).index(value)]

    def _is_inside(self, value: SSAValue) -> bool:
        block: Block | None = value.owner if isinstance(value.owner, Block) else value.owner.parent
        while block is not None and block is not self.loop.region.block:
            block = block.parent_block()
        return block is not None

    # iterations

    def _iterations(
        self, ops: Sequence[Operation], builder: Builder, outside: _Values, outputs: Sequence[SSAValue] = ()
    ) -> Sequence[SSAValue]:
        """All iterations of some ops, one after the other; returns the shared tensors after them."""
        if all(map(is_computed, ops)) and not outputs:
            return outputs
        loop, values, carried = self.loop, dict(outside), outputs
        loops: list[scf.ForOp] = []
        bounds = zip(loop.lower_bounds, loop.upper_bounds, loop.steps, strict=True)
        for index, bound in zip(loop.indices, bounds, strict=True):
            made, builder = for_loop(builder, bound, list(carried), like=loop, counter=index)
            loops.append(made)
            values[index], *carried = made.body.block.args
        for op in ops:
            # Between barriers only what is used there is computed.
            if not (self.phase_of and is_computed(op)):
                self._op(op, builder, values)
        for insertion in loop.terminator.insertions:
            number = list[SSAValue](loop.shared).index(insertion.dest)
            inserted = self._inserted(insertion, carried[number], builder, values)
            carried = [*carried[:number], inserted, *carried[number + 1 :]]
        for made in reversed(loops):
            Builder(InsertPoint.at_end(made.body.block)).insert(scf.YieldOp(*carried))
            carried = list(made.results)
        return carried

    def _inserted(self, op: ParallelInsertSliceOp, dest: SSAValue, builder: Builder, values: _Values) -> SSAValue:
        """A shared tensor after an insertion."""
        dynamic = [[self._value(each, builder, values) for each in part] for part in (op.offsets, op.sizes, op.strides)]
        names = ("static_offsets", "static_sizes", "static_strides")
        inserted = tensor.InsertSliceOp.build(
            operands=[self._value(op.source, builder, values), dest, *dynamic],
            properties={name: op.properties[name] for name in names},
            result_types=[dest.type],
        )
        inserted.location = op.location
        return builder.insert(inserted).result

    def _op(self, op: Operation, builder: Builder, values: _Values) -> None:
        """One op of a phase."""
        if isinstance(op, memref.DeallocOp) and op.memref in self.kept:
            return
        for value in (*op.operands, *captured_values(op)):
            self._value(value, builder, values)
        if isinstance(op, _Buffer) and op.memref in self.kept:
            self._value(op.memref, builder, values)
            return
        copy = builder.insert(op.clone(values))
        for result, copied in zip(op.results, copy.results, strict=True):
            copied.name_hint = result.name_hint
            if (memory := self.kept.get(result)) is not None:
                builder.insert(memref.StoreOp.get(copied, memory, [self._turn(builder, values)]))

    def _value(self, value: SSAValue, builder: Builder, values: _Values) -> SSAValue:
        """What stands for a value in the iteration that is being made."""
        if value in values or not self._is_inside(value):
            return values.get(value, value)
        op = value.owner
        assert not isinstance(op, Block), "an argument of a block has a value where the block is made"
        if (memory := self.kept.get(value)) is not None:
            turn = self._turn(builder, values)
            slot = SlotOp(memory, turn) if isinstance(memory.owner, RingOp) else memref.LoadOp.get(memory, [turn])
            slot.location = op.location
            values[value] = builder.insert(slot).results[0]
        else:
            assert is_computed(op), f"{op.name} is not kept"
            for operand in op.operands:
                self._value(operand, builder, values)
            copy = builder.insert(op.clone(values))
            values.update(zip(op.results, copy.results, strict=True))
        values[value].name_hint = value.name_hint
        return values[value]

    def _turn(self, builder: Builder, values: _Values) -> SSAValue:
        return iteration_of(self.loop, [values[index] for index in self.loop.indices], builder)


def run_in_order(module: ModuleOp, *, but: Callable[[ForallOp], bool] = lambda loop: False) -> None:
    """
    Let iterations of `scf.forall` run one after the other, as `forall-to-for` does, in all loops but those that `but`
    names.
    """
    target = find_target(module)
    for op in list(module.walk(region_first=True)):
        if isinstance(op, ForallOp) and not but(op):
            _Sequence(op, target).run()


@dataclass(frozen=True)
class ForallToForPass(ModulePass):
    """
    Let the iterations of `scf.forall` run one after the other, in program order.

    Works at the tensor and the loop level. Barriers split the body: every iteration does what is before a barrier
    before any does what is after it. Index arithmetic and views that are used on both sides are computed twice, an
    element that was loaded is kept for each iteration, and so is a buffer: as a ring of as many slots. A barrier in a
    `scf.for` splits it if all iterations run the loop alike. Guarantees that no other `scf.forall` and no barrier is
    left. Raises UserError, located, for a barrier in a branch or in a loop that carries values or whose bounds differ
    between iterations, for a number of iterations that is not known where something is kept, and for a buffer that has
    a place already. On the host a loop whose attribute `threads` says that several run it stays, and buffers of an
    iteration become slots of rings, unless its iterations share tensors, it has a call or a barrier, is inside another
    one, or its bounds are no constants: an InputWarning says which.

    Before:
    ```mlir
    func.func @k(%x: memref<4xf32>, %y: memref<4xf32>) {
      %b = mem.buffer : memref<4xf32, "spad">
      scf.forall (%i) in (4) {
        %v = memref.load %x[%i] : memref<4xf32>
        memref.store %v, %b[%i] : memref<4xf32, "spad">
        gpu.barrier
        %three = arith.constant 3 : index
        %j = arith.subi %three, %i : index
        %w = memref.load %b[%j] : memref<4xf32, "spad">
        memref.store %w, %y[%i] : memref<4xf32>
      } {mapping = [#gpu.thread<x>]}
      func.return
    }
    ```
    After (`forall-to-for`):
    ```mlir
    func.func @k(%x: memref<4xf32>, %y: memref<4xf32>) {
      %b = mem.buffer : memref<4xf32, "spad">
      %0 = arith.constant 0 : index
      %1 = arith.constant 4 : index
      %2 = arith.constant 1 : index
      scf.for %i = %0 to %1 step %2 {
        %v = memref.load %x[%i] : memref<4xf32>
        memref.store %v, %b[%i] : memref<4xf32, "spad">
      }
      %3 = arith.constant 0 : index
      %4 = arith.constant 4 : index
      %5 = arith.constant 1 : index
      scf.for %i_1 = %3 to %4 step %5 {
        %three = arith.constant 3 : index
        %j = arith.subi %three, %i_1 : index
        %w = memref.load %b[%j] : memref<4xf32, "spad">
        memref.store %w, %y[%i_1] : memref<4xf32>
      }
      func.return
    }
    ```
    """

    name = "forall-to-for"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if machine_of(op) is not None:
            run_in_order(op)
            return
        for loop in list(op.walk()):
            if not isinstance(loop, ForallOp) or threads_of(loop) < 2:
                continue
            if (why := obstacle_to_threads(loop)) is None:
                give_slots(loop)
            else:
                text = f"iterations of scf.forall run one after the other, without threads: {why}"
                warn_of([text], location_of(loop))
        run_in_order(op, but=uses_threads)
