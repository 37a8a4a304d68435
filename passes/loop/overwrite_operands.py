# SPDX-License-Identifier: Apache-2.0
"""`overwrite-operands`: kernels that write their result over an operand that nothing reads afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects import func, memref
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.mem import memref_of
from penstock.dialects.remarks import is_listened, remark
from penstock.passes.analysis.kernels import ENTRY, host_functions
from penstock.passes.analysis.memory.aliases import Aliases, Allocation
from penstock.passes.analysis.memory.dataflow import Flows
from penstock.passes.analysis.memory.memory_problems import scope_of_allocation, size_in_bytes
from penstock.passes.analysis.memory.op_orders import BlockOrder, BlockOrders
from penstock.passes.analysis.overwriting import Overwriting
from penstock.passes.planning.order_problem import alive
from penstock.passes.views import reshape_view


@dataclass(frozen=True)
class _Choice:
    """A call whose operand `read`, all of one buffer, may be overwritten by its result `written`, all of another."""

    op: int
    read: int
    written: int
    dying: memref.AllocOp
    born: memref.AllocOp


@dataclass
class _Choices:
    """The choices at the calls of a function, and what is alive at them."""

    order: BlockOrder
    flows: Flows
    callees: dict[str, func.FuncOp]
    _known: dict[str, Overwriting] = field(default_factory=dict[str, Overwriting])
    alive: list[int] = field(default_factory=list[int])
    """Bytes that are alive at each op."""

    def __post_init__(self) -> None:
        problem = self.order.problem
        self.arena = [
            op for op in self.order.block.ops if isinstance(op, Allocation) and scope_of_allocation(op) is None
        ]
        number_of = {op: number for number, op in enumerate(self.arena)}
        numbers = [number_of[op] for op in self.order.allocations]
        self.first: dict[int, int] = {}
        self.last: dict[int, int] = {}
        for number, touched in enumerate(problem.touched):
            for buffer in {numbers[strip] for strip in touched}:
                self.first.setdefault(buffer, number)
                self.last[buffer] = number
        self.alive = alive(problem, range(len(problem.touched)))

    def at(self, number: int) -> list[_Choice]:
        """What may be overwritten at an op: each result over one operand, each operand by one result."""
        op = self.order.ops[number]
        if not isinstance(op, func.CallOp) or (callee := self.callees.get(op.callee.string_value())) is None:
            return []
        function = self.order.block.parent_op()
        assert isinstance(function, func.FuncOp)
        aliases, summary = self.flows.of(function).aliases, self.flows.of(callee).summary
        wholes = [self._whole(value, aliases) for value in op.operands]
        # A buffer of which the call is given a part, too, is none that it may overwrite.
        parts = [aliases.of(value) for value, whole in zip(op.operands, wholes, strict=True) if whole is None]
        found: list[_Choice] = []
        taken: set[int] = set()
        for written in sorted(summary.fills - summary.reads):
            born = wholes[written]
            if born is None or self.first[born] != number or wholes.count(born) > 1:
                continue
            for read in sorted(summary.reads - summary.writes):
                dying = wholes[read]
                if dying is None or self.last[dying] != number or dying in taken:
                    continue
                if op.operands[read].type != op.operands[written].type:
                    continue
                if any(aliases.of(op.operands[place]) & part for place in (read, written) for part in parts):
                    continue
                reads = [place for place, whole in enumerate(wholes) if whole == dying]
                if self._is_safe(callee, reads, written):
                    taken.add(dying)
                    pair = self.arena[dying], self.arena[born]
                    found.append(_Choice(number, read, written, *pair))  # pyright: ignore[reportArgumentType]
                    break
        return found

    def _whole(self, value: SSAValue, aliases: Aliases) -> int | None:
        """The buffer, by its number, all of which a value is, in order."""
        part = aliases.part(value)
        if part is None or not part.is_whole:
            return None
        op = aliases.roots[part.root].owner
        if not isinstance(op, memref.AllocOp) or op not in self.arena or op.operands:
            return None
        return self.arena.index(op)

    def _is_safe(self, callee: func.FuncOp, reads: Sequence[int], written: int) -> bool:
        name, arguments = callee.sym_name.data, callee.body.block.args
        if name not in self._known:
            self._known[name] = Overwriting(callee)
        return self._known[name].is_safe([arguments[place] for place in reads], arguments[written])

    def best(self) -> tuple[list[_Choice], int]:
        """Those without which the peak would be higher than with all of them, and the peak with them."""
        peak = max(self.alive, default=0)
        least = 0
        found: list[list[_Choice]] = []
        # From the dearest op on: at one that nothing makes cheaper the peak is reached.
        for number in sorted(range(len(self.alive)), key=lambda each: -self.alive[each]):
            if self.alive[number] <= least:
                break
            choices = self.at(number)
            saved = sum(size_in_bytes(each.born) for each in choices)
            least = max(least, self.alive[number] - saved)
            found.append(choices)
        if least == peak:
            return [], peak
        above = [each for choices in found for each in choices if self.alive[each.op] > least]
        return above, least


def _overwrite(order: BlockOrder, choices: Sequence[_Choice]) -> None:
    """Let results of calls be written over operands."""
    instead: dict[memref.AllocOp, memref.AllocOp] = {}
    for choice in sorted(choices, key=lambda each: each.op):
        call, born = order.ops[choice.op], choice.born
        dying = instead.get(choice.dying, choice.dying)
        instead[born] = dying
        block = born.parent
        assert block is not None
        if not dying.is_before_in_block(born):
            dying.detach()
            block.insert_op_before(dying, born)
        view = reshape_view(Builder(InsertPoint.before(born)), dying.memref, memref_of(born.memref).get_shape())
        born.memref.replace_all_uses_with(view)
        Rewriter.erase_op(born)
        call.operands[choice.written] = call.operands[choice.read]


@dataclass(frozen=True)
class OverwriteOperandsPass(ModulePass):
    """
    Let kernels of the host write a result over an operand, where that lowers the peak of the arena.

    A call in @main reads all of a buffer that nothing uses afterwards, and writes all of another one: if the kernel
    has read each element before it writes the one in its place (`overwriting`), both may be one buffer, as the sum of
    a residual block may be that of its shortcut, or what an activation makes that of its operand. It is done at those
    calls only at which more is alive than the least that can be reached so. The call then has that buffer as both
    operands. A remark says the peak before and after.

    Required: the loop level, no plan yet, the calls in their order. Guaranteed: the same results bit for bit, and no
    higher peak of lifetimes. Kernels of a machine stay as they are: what they fetch early would have to wait.

    Before:
    ```mlir
    func.func private @exp(%x: memref<64xf32>, %y: memref<64xf32>) {
      linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<64xf32>) outs(%y : memref<64xf32>) {
      ^bb0(%in: f32, %out: f32):
        %e = math.exp %in : f32
        linalg.yield %e : f32
      }
      func.return
    }
    func.func @main(%x: memref<64xf32>, %y: memref<64xf32>) {
      %a = memref.alloc() : memref<64xf32>
      func.call @exp(%x, %a) : (memref<64xf32>, memref<64xf32>) -> ()
      %b = memref.alloc() : memref<64xf32>
      func.call @exp(%a, %b) : (memref<64xf32>, memref<64xf32>) -> ()
      func.call @exp(%b, %y) : (memref<64xf32>, memref<64xf32>) -> ()
      func.return
    }
    ```
    After (`overwrite-operands`):
    ```mlir
    func.func private @exp(%x: memref<64xf32>, %y: memref<64xf32>) {
      linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%x : memref<64xf32>) outs(%y : memref<64xf32>) {
      ^bb0(%in: f32, %out: f32):
        %e = math.exp %in : f32
        linalg.yield %e : f32
      }
      func.return
    }
    func.func @main(%x: memref<64xf32>, %y: memref<64xf32>) {
      %a = memref.alloc() : memref<64xf32>
      func.call @exp(%x, %a) : (memref<64xf32>, memref<64xf32>) -> ()
      func.call @exp(%a, %a) : (memref<64xf32>, memref<64xf32>) -> ()
      func.call @exp(%a, %y) : (memref<64xf32>, memref<64xf32>) -> ()
      func.return
    }
    ```
    """  # noqa: E501

    name = "overwrite-operands"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        functions = {each.sym_name.data: each for each in op.ops if isinstance(each, func.FuncOp)}
        main = functions.get(ENTRY)
        order = None if main is None or main.is_declaration else BlockOrders(op).of(main)
        if main is None or order is None:
            return
        own = {each.sym_name.data: each for each in host_functions(op)}
        choices = _Choices(order, Flows(op), own)
        found, least = choices.best()
        _overwrite(order, found)
        if found and is_listened():
            results = f"{len(found)} result{'s' * (len(found) > 1)} written over an operand"
            remark(main, "passed", f"{results}: peak {max(choices.alive):,} -> {least:,} bytes of the arena")
