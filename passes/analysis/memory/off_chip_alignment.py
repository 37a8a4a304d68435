"""Where buffers off chip begin: at multiples of what the engines that move them want."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation, SSAValue

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.machine import DmaOp as EngineOp
from penstock.dialects.mem import CopyOp, memref_of, scope_of
from penstock.passes.analysis.memory.aliases import bits
from penstock.passes.analysis.memory.program_time import ProgramTime


class OffChipAlignment:
    """
    For the buffers off chip of a module: the least common multiple, in bytes, of the `align` of all engines that may
    move their bytes, in the function that makes them and in those that it calls.
    """

    def __init__(self, target: TargetOp | None, time: ProgramTime):
        self._target = target
        self._time = time
        self._wanted: dict[str, dict[SSAValue, int]] = {}
        self._is_needed = target is not None and any(engine.alignment > 1 for engine in target.parts(EngineOp))

    def of(self, function: func.FuncOp, buffer: SSAValue) -> int:
        """What the place of a buffer that `function` makes must be a multiple of."""
        return self._of(function).get(buffer, 1) if self._is_needed else 1

    def _of(self, function: func.FuncOp) -> dict[SSAValue, int]:
        """By the allocations and the arguments of a function."""
        name = function.sym_name.data
        if name not in self._wanted:
            found: dict[SSAValue, int] = {}
            aliases = self._time.of(function).aliases
            for op in function.walk():
                for value, alignment in self._by_op(op):
                    for number in bits(aliases.of(value)):
                        root = aliases.roots[number]
                        found[root] = lcm(found.get(root, 1), alignment)
            self._wanted[name] = found
        return self._wanted[name]

    def _by_op(self, op: Operation) -> Iterator[tuple[SSAValue, int]]:
        """The operands off chip of an op, each with what its engines want."""
        if isinstance(op, func.CallOp):
            callee = self._time.callee(op)
            wanted = {} if callee is None else self._of(callee)
            entry = () if callee is None else callee.body.blocks[0].args
            yield from ((value, wanted.get(to, 1)) for value, to in zip(op.arguments, entry, strict=False))
            return
        engines = list(self._engines(op))
        for value in op.operands if engines else ():
            if isinstance(value.type, MemRefType) and scope_of(memref_of(value)) is None:
                yield value, lcm(*(engine.alignment for engine in engines))

    def _engines(self, op: Operation) -> Iterator[EngineOp]:
        """The engines that may run an op: of a copy, all that go the way."""
        assert self._target is not None
        engines, intrinsics = self._target.dmas(), self._target.intrinsics()
        match op:
            case CopyOp():
                ends = [scope_of(memref_of(value)) or DRAM for value in (op.source, op.dest)]
                for engine in engines.values():
                    if ends[0] in engine.sources and ends[1] in engine.destinations:
                        yield engine
            case DmaOp():
                yield engines[op.engine.data]
            case ExecOp() | GenericOp():
                called = op.intrinsic_name if isinstance(op, ExecOp) else op.library_call and op.library_call.data
                intrinsic = intrinsics.get(called or "")
                if intrinsic is not None and intrinsic.dma_name is not None:
                    yield engines[intrinsic.dma_name]
            case _:
                return
