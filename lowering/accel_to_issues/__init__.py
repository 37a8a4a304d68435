# SPDX-License-Identifier: Apache-2.0
"""From the commands of the accel level to what a processor writes to the machine, one command after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import IndexType, MemRefType, ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.accel import BarrierOp, DmaOp, ExecOp, PopOp, PushOp, ReadyOp, TokenType, WaitOp
from penstock.dialects.accel_issue import WAIT, CodeOp
from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.functions import body_block
from penstock.dialects.machine import TargetOp
from penstock.dialects.machine.code import QUEUES, TOKENS
from penstock.dialects.machine.spelling import NO_ID
from penstock.dialects.mem import BufferOp, RingOp, SlotOp, memref_of, scope_of
from penstock.lowering.accel_to_issues.commands import issue_exec, issue_transfer
from penstock.lowering.accel_to_issues.places import (
    Place,
    place_of_reshaped,
    place_of_slot,
    place_of_subview,
    start_in_granules,
)
from penstock.lowering.accel_to_issues.sums import sums_begun_after
from penstock.passes.accel.waiting import Completion
from penstock.passes.analysis.commands.program import unit_of
from penstock.passes.analysis.kernels import ENTRY, machine_kernels
from penstock.passes.index_builder import materialize
from penstock.passes.schedule.ordering.tokens import is_completed, strip

Handed = dict[tuple[str, int], Place]
"""Where the arguments of kernels lie that are on chip, by the kernel and the number of the argument."""


@dataclass
class _Function:
    """The lowering of one function: of a kernel, or of the entry, which may hold buffers on chip for its kernels."""

    target: TargetOp
    handed: Handed
    order: str
    """What keeps commands in order."""
    places: dict[SSAValue, Place] = field(default_factory=dict[SSAValue, Place])
    dead: list[Operation] = field(default_factory=list[Operation])
    numbered: dict[SSAValue, tuple[str, Operation] | None] = field(
        default_factory=dict[SSAValue, "tuple[str, Operation] | None"]
    )
    """The unit and the op of the command that a number stands for; None for the number of none."""
    begins: set[ExecOp] = field(default_factory=set[ExecOp])
    """The commands that overwrite what they would add to zeros."""

    def run(self, kernel: func.FuncOp) -> None:
        block = body_block(kernel, "lowered to commands of the machine")
        on_chip = self._arguments(kernel)
        if self.order == QUEUES:
            _require_no_tokens(kernel)
        if self.order != TOKENS:
            strip(kernel)
        self._block(block)
        for op in reversed(self.dead):
            Rewriter.erase_op(op)
        for arg in on_chip:
            block.erase_arg(arg)
        kernel.update_function_type()

    def _arguments(self, kernel: func.FuncOp) -> list[BlockArgument]:
        """A buffer on chip that is handed in comes as its address; the arguments in whose place that is."""
        block = kernel.body.block
        found: list[BlockArgument] = []
        for arg in list(block.args):
            if not isinstance(arg.type, MemRefType) or (name := scope_of(memref_of(arg))) is None:
                continue
            place = self.handed.get((kernel.sym_name.data, arg.index - len(found)))
            address = block.insert_arg(IndexType(), arg.index)
            address.name_hint = arg.name_hint
            if place is None:
                place = Place.of(memref_of(arg), self.target.scope(name), 0, kernel)
            self.places[arg] = replace(place, start=address)
            found.append(arg)
        return found

    def _block(self, block: Block) -> None:
        for op in list(block.ops):
            builder = Builder(InsertPoint.before(op))
            match op:
                case scf.ForOp():
                    for value in (*op.body.block.args, *op.results):
                        if isinstance(value.type, TokenType):
                            Rewriter.replace_value_with_new_type(value, IndexType())
                    self._block(op.body.block)
                case ReadyOp():
                    self._join(builder, op)
                case BufferOp() if (name := op.scope) is not None:
                    scope = self.target.scope(name)
                    start = start_in_granules(op.planned_offset(), scope, op)
                    self.places[op.memref] = Place.of(op.type, scope, start, op)
                    self.dead.append(op)
                case RingOp():
                    self.dead.append(op)
                case SlotOp():
                    ring = op.ring.owner
                    if not isinstance(ring, RingOp):
                        raise UserError("the ring of this slot is not made in this function", loc=location_of(op))
                    self.places[op.memref] = place_of_slot(builder, op, ring, self.target.scope(ring.scope or ""))
                    self.dead.append(op)
                case memref.SubviewOp() if op.source in self.places:
                    self.places[op.result] = place_of_subview(builder, op, self.places[op.source])
                    self.dead.append(op)
                case memref.CastOp() if op.source in self.places:
                    self.places[op.dest] = self.places[op.source]
                    self.dead.append(op)
                case memref.ExpandShapeOp() | memref.CollapseShapeOp() if op.operands[0] in self.places:
                    self.places[op.results[0]] = place_of_reshaped(op, self.places[op.operands[0]])
                    self.dead.append(op)
                case DmaOp():
                    self._issued(op, issue_transfer(builder, op, self.target, self.places))
                case ExecOp() if (sums := sums_begun_after(op, self.target)) is not None:
                    self.begins.add(sums)
                    self.dead.append(op)
                case ExecOp():
                    self._issued(op, issue_exec(builder, op, self.target, self.places, begins=op in self.begins))
                case func.CallOp():
                    self._call(builder, op)
                case WaitOp() if self.order == TOKENS:
                    self._wait(builder, op, op.tokens)
                    self.dead.append(op)
                case BarrierOp() | WaitOp():
                    builder.insert(CodeOp("barrier")).location = op.location
                    self.dead.append(op)
                case PushOp() | PopOp():
                    ends = (op.unit.data, op.peer.data) if isinstance(op, PushOp) else (op.peer.data, op.unit.data)
                    key = "push" if isinstance(op, PushOp) else "pop"
                    builder.insert(CodeOp(key, ends)).location = op.location
                    self.dead.append(op)
                case _:
                    pass

    def _issued(self, op: DmaOp | ExecOp, number: SSAValue | None) -> None:
        if number is not None:
            number.name_hint = op.token.name_hint
            op.token.replace_all_uses_with(number)
            self.numbered[number] = unit_of(op, self.target), op
        self.dead.append(op)

    def _join(self, builder: Builder, op: ReadyOp) -> None:
        """A number stands for one command: of several the last, where the others have been waited for."""
        *first, last = op.dependencies or [self._none(builder)]
        self._wait(builder, op, first)
        op.token.replace_all_uses_with(last)
        self.dead.append(op)

    def _none(self, builder: Builder) -> SSAValue:
        found = materialize(builder, NO_ID)
        self.numbered[found] = None
        return found

    def _wait(self, builder: Builder, op: Operation, tokens: Sequence[SSAValue]) -> None:
        """A command that does not run on has no number; of those of a unit in a row the last completes all."""
        completion = Completion(self._issued_as, lambda token: token in self.numbered and self.numbered[token] is None)
        for token in completion.least([token for token in tokens if isinstance(token.type, IndexType)]):
            builder.insert(CodeOp(WAIT, id=token)).location = op.location

    def _issued_as(self, token: SSAValue) -> tuple[str, Operation] | None:
        if isinstance(op := token.owner, DmaOp | ExecOp):
            return unit_of(op, self.target), op
        return self.numbered.get(token)

    def _call(self, builder: Builder, op: func.CallOp) -> None:
        """What is on chip is handed over as its address; what else there is to know of it is known to the kernel."""
        for number, value in enumerate(op.arguments):
            if (place := self.places.get(value)) is None:
                continue
            key = op.callee.string_value(), number
            place = replace(place, start=place.row(builder, op), within=0)
            known = replace(self.handed.setdefault(key, place), start=place.start)
            if known != place:
                message = f"two calls of @{key[0]} hand it buffers that lie in different ways"
                raise UserError(message, loc=location_of(op), status=UNSUPPORTED)
            address = materialize(builder, place.start)
            address.name_hint = value.name_hint
            op.operands[number] = address


def _require_no_tokens(kernel: func.FuncOp) -> None:
    """Raise UserError where queues are not all that keeps the commands of a kernel in order."""
    for op in kernel.walk():
        if isinstance(op, DmaOp | ExecOp) and any(not is_completed(token) for token in op.dependencies):
            message = "it waits for a transfer in flight on its own unit, and no queue leads from a unit to itself"
            notes = ["outstanding = 1 says that a unit completes a transfer before it begins the next"]
            raise UserError(message, loc=location_of(op), notes=notes, status=UNSUPPORTED)


@dataclass(frozen=True)
class AccelToIssuesPass(ModulePass):
    """
    Turn the commands of a machine's kernels into those that its processor issues, by the spelling of the machine.

    Requires the accel level, and a machine whose file spells its commands. Guaranteed: kernels of the machine hold
    `accel.issue`, each of which is one command of a block that the machine permits, loops, and index arithmetic; no
    memref in a scope is left. A dim whose stride is not what a command `requires` is taken one index at a time. Zeros
    are not written where the command that adds to all of them next can overwrite, by a spelling with `{earlier}`. What
    keeps commands in order is the machine, as `order` of its `[code]` says, or what was there before: barriers, or
    queues. Raises UserError, located, for what the machine does not spell.

    Before:
    ```mlir
    func.func private @k(%x: memref<40x16xi8>) attributes {device = @gemmini} {
      %a = mem.buffer at 256 : memref<40x16xi8, "spad">
      %t = accel.dma %x to %a on "mvin" : memref<40x16xi8> to memref<40x16xi8, "spad">
      accel.barrier
      func.return
    }
    ```
    After (`accel-to-issues,canonicalize,cse` on `gemmini`):
    ```mlir
    func.func private @k(%x: memref<40x16xi8>) attributes {device = @gemmini} {
      %0 = arith.constant 0 : index
      %1 = arith.constant 40 : index
      %2 = arith.constant 16 : index
      scf.for %3 = %0 to %1 step %2 {
        %4 = arith.subi %1, %3 : index
        %5 = arith.minsi %4, %2 : index
        %6 = arith.muli %3, %2 : index
        %7 = arith.addi %3, %2 : index
        accel.issue @mvin ["src", "src.offset", "dst.row", "rows", "columns", "config_ld.stride"]
          (%x, %6, %7, %5, %2, %2 : memref<40x16xi8>, index, index, index, index, index)
          in {src = "dram", dst = "spad"} says "mvin x to a in spad"
      }
      accel.code "barrier"
      func.return
    }
    ```
    """

    name = "accel-to-issues"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target, functions = machine_kernels(op)
        if target is None:
            return
        code = target.code()
        if code is None:
            notes = ["a machine file spells its commands: [code], and emit of its engines and intrinsics"]
            message = f'machine "{target.machine_name}" does not say how its commands are written'
            raise UserError(message, loc=location_of(target), notes=notes, status=UNSUPPORTED)
        handed: Handed = {}
        entries = [each for each in op.ops if isinstance(each, func.FuncOp) and each.sym_name.data == ENTRY]
        for function in (*(each for each in entries if not each.is_declaration), *functions):
            _Function(target, handed, code.order.data).run(function)
        for entry in entries if code.begin is not None else ():
            Rewriter.insert_op(CodeOp("begin"), InsertPoint.at_start(entry.body.blocks[0]))


__all__ = ["AccelToIssuesPass"]
