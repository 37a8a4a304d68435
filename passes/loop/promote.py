"""Promote what the machine computes on into its scopes: buffers, and the copies that fill and empty them."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import func, memref
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.mem import BufferOp, CopyOp, scope_of
from penstock.passes.analysis.access import access_of
from penstock.passes.analysis.intrinsics import Match, candidates, runs_on_unit
from penstock.passes.analysis.kernels import machine_kernels
from penstock.passes.analysis.memory.storage import (
    accesses_of,
    in_scope,
    is_written,
    overwrites,
    storage_of,
)
from penstock.passes.analysis.scope_paths import no_path, scope_path
from penstock.passes.schedule.retype import retype


@dataclass
class Promotion:
    """The promotion of one kernel to the scopes of `target`."""

    function: func.FuncOp
    target: TargetOp
    matches: dict[GenericOp, Match] = field(default_factory=dict[GenericOp, Match])

    def run(self) -> None:
        """Rewrite the kernel."""
        generics = [op for op in self.function.walk() if isinstance(op, GenericOp)]
        scopes = self._choose(generics)
        for allocation, scope in scopes.items():
            self._place(allocation, scope, self._adjoining(allocation))
        done: dict[tuple[SSAValue, str], SSAValue] = {}
        for generic in generics:
            for number, operand in enumerate(generic.operands):
                wanted = self.matches[generic].scope_of_operand(number)
                assert isa(operand.type, MemRefType)
                if wanted != (scope_of(operand.type) or DRAM):
                    self._bring(generic, number, operand, wanted, done)

    def _choose(self, generics: list[GenericOp]) -> dict[SSAValue, str]:
        """An intrinsic for every generic, and a scope for every allocation. Units choose; DMA engines follow."""
        scopes: dict[SSAValue, str] = {}
        options = {generic: self._options(generic) for generic in generics}
        # What only fills a buffer goes where the others need it.
        for generic in sorted(generics, key=lambda g: (not g.inputs, not runs_on_unit(options[g][0]))):
            match = next((m for m in options[generic] if self._agrees(generic, m, scopes)), options[generic][0])
            self.matches[generic] = match
            for number, operand in enumerate(generic.operands):
                root, scope = storage_of(operand), match.scope_of_operand(number)
                # What is written stays in its scope from one op to the next, wherever it goes in the end.
                if isinstance(root.owner, memref.AllocOp) or (operand in generic.outputs and scope != DRAM):
                    scopes.setdefault(root, scope)
        allocated = {root: scope for root, scope in scopes.items() if isinstance(root.owner, memref.AllocOp)}
        return {root: scope for root, scope in allocated.items() if scope != DRAM}

    def _options(self, generic: GenericOp) -> list[Match]:
        access = access_of(generic, placed=False)
        matches, failures = candidates(access, self.target) if access is not None else ([], [])
        if not matches:
            raise UserError(
                f"no intrinsic of @{self.target.sym_name.data} computes this op of @{self.function.sym_name.data}",
                loc=location_of(generic),
                notes=[f"@{failure.intrinsic}: {failure.reason}" for failure in failures],
            )
        return matches

    def _agrees(self, generic: GenericOp, match: Match, scopes: dict[SSAValue, str]) -> bool:
        """Whether a match takes operands where they are to be; what has a scope already is to stay there."""
        for number, operand in enumerate(generic.operands):
            wanted, root = match.scope_of_operand(number), storage_of(operand)
            assert isa(operand.type, MemRefType)
            if scopes.get(root, scope_of(operand.type) or wanted) != wanted:
                return False
        return True

    def _adjoining(self, allocation: SSAValue) -> int:
        """How many of its last dims some intrinsic needs without gaps."""
        return max(
            match.adjoining(number)
            for generic, match in self.matches.items()
            for number, operand in enumerate(generic.operands)
            if storage_of(operand) is allocation
        )

    def _place(self, allocation: SSAValue, scope: str, adjoining: int) -> None:
        op = allocation.owner
        assert isinstance(op, memref.AllocOp)
        assert isa(allocation.type, MemRefType)
        retype(allocation, in_scope(allocation.type, self.target, scope, adjoining))
        placed = op.results[0]
        assert isa(placed.type, MemRefType)
        buffer = BufferOp(placed.type)
        buffer.location = op.location
        buffer.memref.name_hint = placed.name_hint
        Rewriter.replace_op(op, buffer)

    def _bring(
        self, generic: GenericOp, number: int, operand: SSAValue, scope: str, done: dict[tuple[SSAValue, str], SSAValue]
    ) -> None:
        """Make operand `number` of `generic` a buffer in `scope`, filled and emptied as its uses demand."""
        if (known := done.get((operand, scope))) is not None:
            generic.operands[number] = known
            return
        adjoining = self.matches[generic].adjoining(number)
        storage = storage_of(operand)
        accesses = accesses_of(self.function, storage)
        if not any(is_written(op, storage) for op in accesses):
            buffer = self._buffer(operand, scope, adjoining, _after(operand), generic)
            Rewriter.insert_op(self._copy(operand, buffer, generic), _after(buffer))
            done[(operand, scope)] = buffer
            generic.operands[number] = buffer
            return
        assert isa(operand.type, MemRefType)
        if scope_of(operand.type) is not None and operand not in generic.outputs:
            # What another intrinsic left in its scope, and this one only reads: brought over as it is now.
            buffer = self._buffer(operand, scope, adjoining, InsertPoint.before(generic), generic)
            Rewriter.insert_op(self._copy(operand, buffer, generic), InsertPoint.before(generic))
            generic.operands[number] = buffer
            return
        users = [op for op in accesses if operand in op.operands]
        block = _after(operand).block
        if len(users) < len(accesses):
            # Other views reach the same bytes: the buffer may only stand for them during this one op.
            assert generic.parent is not None
            users, block = [generic], generic.parent
        spots = sorted({_ancestor_in(op, block) for op in users}, key=_position)
        buffer = self._buffer(operand, scope, adjoining, InsertPoint.before(spots[0]), generic)
        if not overwrites(spots[0], operand):
            Rewriter.insert_op(self._copy(operand, buffer, generic), InsertPoint.before(spots[0]))
        for op in users:
            for position, value in enumerate(op.operands):
                if value is operand:
                    op.operands[position] = buffer
        Rewriter.insert_op(self._copy(buffer, operand, generic), InsertPoint.after(spots[-1]))

    def _buffer(self, operand: SSAValue, scope: str, adjoining: int, place: InsertPoint, op: Operation) -> SSAValue:
        assert isa(operand.type, MemRefType)
        buffer = BufferOp(in_scope(operand.type, self.target, scope, adjoining))
        buffer.location = op.location
        buffer.memref.name_hint = operand.name_hint
        Rewriter.insert_op(buffer, place)
        return buffer.memref

    def _copy(self, source: SSAValue, dest: SSAValue, op: Operation) -> CopyOp:
        assert isa(source.type, MemRefType)
        assert isa(dest.type, MemRefType)
        start, end = scope_of(source.type) or DRAM, scope_of(dest.type) or DRAM
        if scope_path(self.target, start, end) is None:
            raise no_path(self.target, start, end, op)
        copy = CopyOp(source, dest)
        copy.location = op.location
        return copy


def _after(value: SSAValue) -> InsertPoint:
    owner = value.owner
    return InsertPoint.at_start(owner) if isinstance(owner, Block) else InsertPoint.after(owner)


def _ancestor_in(op: Operation, block: Block) -> Operation:
    found = block.find_ancestor_op_in_block(op)
    assert found is not None
    return found


def _position(op: Operation) -> int:
    assert op.parent is not None
    return op.parent.get_operation_index(op)


@dataclass(frozen=True)
class PromotePass(ModulePass):
    """
    Put the operands of the machine's kernels into the scopes that its intrinsics need.

    Requires the loop level. A temporary becomes a `mem.buffer` in its scope, rows rounded up to the granule. What
    lives off chip gets a buffer and copies: a source that the kernel only reads is copied where its slice is
    defined, so that hoisting the slice before hoists the copy; what is written is copied in before its first use,
    unless that overwrites it, and out after its last. Guarantees: every operand lives where some intrinsic of the
    machine needs it. A copy may lead where no single DMA does, if several in turn do: `promote-levels` sees to that.
    Raises UserError for an op that no intrinsic computes, and where no path of DMAs leads.

    Before:
    ```mlir
    #mk = affine_map<(m, n, k) -> (m, k)>
    #kn = affine_map<(m, n, k) -> (k, n)>
    #mn = affine_map<(m, n, k) -> (m, n)>
    func.func private @k(%a: memref<8x3xf32>, %b: memref<3x4xf32>, %c: memref<8x4xf32>)
        attributes {device = @gemmini_fp32} {
      linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%a, %b : memref<8x3xf32>, memref<3x4xf32>) outs(%c : memref<8x4xf32>) {
      ^bb0(%x: f32, %y: f32, %z: f32):
        %p = arith.mulf %x, %y : f32
        %s = arith.addf %z, %p : f32
        linalg.yield %s : f32
      }
      func.return
    }
    ```
    After (`promote` on `gemmini-fp32`):
    ```mlir
    #mk = affine_map<(m, n, k) -> (m, k)>
    #kn = affine_map<(m, n, k) -> (k, n)>
    #mn = affine_map<(m, n, k) -> (m, n)>
    func.func private @k(%a: memref<8x3xf32>, %b: memref<3x4xf32>, %c: memref<8x4xf32>)
        attributes {device = @gemmini_fp32} {
      %b_1 = mem.buffer : memref<3x4xf32, "spad">
      mem.copy %b to %b_1 : memref<3x4xf32> to memref<3x4xf32, "spad">
      %a_1 = mem.buffer : memref<8x3xf32, strided<[4, 1]>, "spad">
      mem.copy %a to %a_1 : memref<8x3xf32> to memref<8x3xf32, strided<[4, 1]>, "spad">
      %c_1 = mem.buffer : memref<8x4xf32, "acc">
      mem.copy %c to %c_1 : memref<8x4xf32> to memref<8x4xf32, "acc">
      linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%a_1, %b_1 : memref<8x3xf32, strided<[4, 1]>, "spad">, memref<3x4xf32, "spad">)
          outs(%c_1 : memref<8x4xf32, "acc">) {
      ^bb0(%x: f32, %y: f32, %z: f32):
        %p = arith.mulf %x, %y : f32
        %s = arith.addf %z, %p : f32
        linalg.yield %s : f32
      }
      mem.copy %c_1 to %c : memref<8x4xf32, "acc"> to memref<8x4xf32>
      func.return
    }
    ```
    """

    name = "promote"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target, functions = machine_kernels(op)
        for function in functions:
            assert target is not None
            Promotion(function, target).run()
