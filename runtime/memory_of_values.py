# SPDX-License-Identifier: Apache-2.0
"""How much memory a run in the interpreter takes at the least."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from xdsl.dialects import memref
from xdsl.dialects.builtin import MemRefType, ModuleOp, TensorType
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.graph import ConstantOp, ExpandOp, ReshapeOp, SliceOp, TransposeOp
from penstock.dialects.mem import BufferOp, element_bytes
from penstock.runtime.memory import MemoryNeed, argument_bytes
from penstock.runtime.signature import main_function
from penstock.runtime.tensor_specs import Signature
from penstock.runtime.weights import weight_uses

COMPUTING = ("tensor.empty", "tensor.pad", "tensor.generate", "tensor.from_elements", "tensor.concat")
"""The ops of `tensor` that make elements; the others see those of their operands."""


def interpreter_need(module: ModuleOp, signature: Signature) -> MemoryNeed:
    """What a run of a module in the interpreter takes: each value from the op that computes it to its last use."""
    functions = {op.sym_name.data: op for op in module.ops if isinstance(op, FuncOp)}
    main = main_function(module)
    peak = _Peaks(functions).of_function(main)
    # Results are intermediates until they are returned; outputs that are arguments are there from the start.
    outputs = () if main.function_type.outputs.data else signature.outputs
    return MemoryNeed(argument_bytes((*signature.inputs, *outputs)), _weights(module), peak.size, peak.at)


def _weights(module: ModuleOp) -> int:
    return sum(map(_bytes, {name: type for name, type, _ in weight_uses(module)}.values()))


def _bytes(type: Attribute) -> int:
    """The bytes of a tensor or a memref; 0 for anything else, and where a size is not known."""
    if not isa(type, TensorType | MemRefType[Attribute]) or not type.has_static_shape():
        return 0
    try:
        return prod(type.get_shape()) * element_bytes(type)
    except ValueError:
        return 0


@dataclass(frozen=True)
class _Peak:
    size: int
    at: Operation | None


@dataclass
class _Peaks:
    """What the values of functions take at the most at one time, in bytes; not less than is counted here."""

    functions: Mapping[str, FuncOp]
    known: dict[FuncOp, _Peak] = field(default_factory=dict[FuncOp, _Peak])

    def of_function(self, function: FuncOp) -> _Peak:
        if function not in self.known:
            # One that calls itself takes nothing more here: it is refused when it runs.
            self.known[function] = _Peak(0, None)
            self.known[function] = self._of_blocks(list(function.body.blocks))
        return self.known[function]

    def _of_blocks(self, blocks: Sequence[Block]) -> _Peak:
        return max((self._of_block(block) for block in blocks), key=lambda peak: peak.size, default=_Peak(0, None))

    def _of_block(self, block: Block) -> _Peak:
        last: dict[SSAValue, Operation] = {}
        for op in block.ops:
            for inner in op.walk():
                last.update(dict.fromkeys(inner.operands, op))
        sizes: dict[SSAValue, int] = {}
        peak, live, arena = _Peak(0, None), 0, 0
        for op in block.ops:
            inside = self._of_blocks([each for region in op.regions for each in region.blocks])
            if isinstance(op, CallOp) and (callee := self.functions.get(op.callee.string_value())) is not None:
                inside = self.of_function(callee)
            if isinstance(op, BufferOp) and op.scope is None:
                arena = max(arena, (op.byte_offset or 0) + op.size_in_bytes)
            made = sum(_made(op, result) for result in op.results)
            taken = live + max(inside.size, 0 if _takes_over(op) else made)
            if taken + arena > peak.size:
                peak = _Peak(taken + arena, inside.at if inside.size > made and inside.at else op)
            live += made
            sizes.update({result: _made(op, result) for result in op.results})
            for value in (*dict.fromkeys(op.operands), *op.results):
                # Only what an op allocates outlives its last use.
                if last.get(value, op) is op and not isinstance(value.type, MemRefType):
                    live -= sizes.pop(value, 0)
        return peak


def _takes_over(op: Operation) -> bool:
    """Whether the results may lie where operands lay: those of destinations, and of what a loop carries."""
    return op.name.startswith(("linalg.", "scf."))


def _made(op: Operation, result: SSAValue) -> int:
    """The bytes that an op allocates for a result; 0 for a view, for a constant, and for what another op allocated."""
    match op:
        case ConstantOp() | ExpandOp() | ReshapeOp() | SliceOp() | TransposeOp():
            return 0
        case memref.AllocOp() | memref.AllocaOp():
            return _bytes(result.type)
        case _:
            if isinstance(result.type, MemRefType) or op.name in ("arith.constant", "func.call"):
                return 0
            return 0 if op.name.startswith("tensor.") and op.name not in COMPUTING else _bytes(result.type)
