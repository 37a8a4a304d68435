# SPDX-License-Identifier: Apache-2.0
"""`copy-parts`: which parts of a concatenation are copied into it, for the least peak, rather than written there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from xdsl.context import Context
from xdsl.dialects import arith, func, tensor
from xdsl.dialects.builtin import ModuleOp, TensorType, UnitAttr
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import SymbolTable
from xdsl.utils.hints import isa

from penstock.dialects.mem import EXPLICIT, element_bytes
from penstock.dialects.remarks import is_listened, remark
from penstock.passes.analysis.kernels import ENTRY
from penstock.passes.planning.order_problem import OrderProblem, alive
from penstock.passes.tensor.bufferization.assignment import (
    BufferAssignment,
    Layouts,
    NoBufferSlice,
    OutArgument,
    Root,
    is_tensor,
    origin_of,
    viewed,
)

Strip = tuple[Root, tuple[int, int]]
"""Some bytes of a buffer, from and to."""


@dataclass(frozen=True)
class _Peak:
    """The bytes that are alive at once at most, and where: what a choice makes smaller."""

    bytes: int
    moments: int
    """Ops at which that many are alive."""
    roots: frozenset[Root]
    """What is alive at the first of them."""

    def is_above(self, other: _Peak) -> bool:
        return (self.bytes, self.moments) > (other.bytes, other.moments)


class _Parts:
    """The insertions of a function that hold parts of a larger value, and what each choice among them takes."""

    def __init__(self, function: func.FuncOp):
        self._function = function
        self._ops = [op for op in function.body.block.ops if _viewed_result(op) is None]
        insertions = [op for op in self._ops if isinstance(op, tensor.InsertSliceOp) and EXPLICIT not in op.attributes]
        self.of_whole: dict[SSAValue, list[tensor.InsertSliceOp]] = {}
        """The insertions into each fresh value."""
        for op in insertions:
            if isinstance((whole := origin_of(op.dest)).owner, tensor.EmptyOp):
                self.of_whole.setdefault(whole, []).append(op)

    def peak(self) -> _Peak:
        """What the insertions take as they are marked now. Raises NoBufferSlice."""
        assignment = BufferAssignment(self._function, Layouts.contiguous(self._function), set())
        accesses = [list(self._accesses(op, assignment)) for op in self._ops]
        ends: dict[Root, set[int]] = {}
        for each in accesses:
            for root, span, is_run in each:
                ends.setdefault(root, {0, _size(root)}).update(span if is_run else ())
        # As liveness does: what is written and read in runs of bytes is alive run by run.
        strips = {root: list(pairwise(sorted(found))) for root, found in ends.items()}
        return _peak_of(
            [
                {
                    (root, (low, high))
                    for root, span, _ in each
                    for low, high in strips[root]
                    if _meet((low, high), span)
                }
                for each in accesses
            ]
        )

    def _accesses(self, op: Operation, assignment: BufferAssignment) -> Iterator[tuple[Root, tuple[int, int], bool]]:
        """The buffers that an op accesses, between which bytes, and whether it accesses all that lie there."""
        for value in _accessed(op, assignment):
            piece = assignment.buffer_slice(value)
            if isinstance(piece.root, OutArgument) or _is_given(piece.root):
                continue
            assert isa(value.type, TensorType)
            width, low = element_bytes(value.type), piece.offset.constant
            if low is None or not piece.size or self._reaches_beyond(op):
                yield piece.root, (0, _size(piece.root)), True
                continue
            reach = 1 + sum((count - 1) * stride for count, stride in zip(piece.shape, piece.strides, strict=True))
            yield piece.root, (low * width, (low + reach) * width), reach == piece.size

    def _reaches_beyond(self, op: Operation) -> bool:
        """Whether an op is a call of what has no body here, of which it is not known what it accesses."""
        if not isinstance(op, func.CallOp):
            return False
        module = self._function.get_toplevel_object()
        callee = SymbolTable.lookup_symbol(module, op.callee) if isinstance(module, ModuleOp) else None
        return not isinstance(callee, func.FuncOp) or callee.is_declaration


def _size(root: Root) -> int:
    """The bytes of a buffer of the arena."""
    assert isinstance(root, SSAValue)
    assert isa(root.type, TensorType)
    return prod(root.type.get_shape()) * element_bytes(root.type)


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _is_given(root: SSAValue) -> bool:
    """Whether a root is no buffer of the arena: an argument or a constant."""
    return isinstance(root, BlockArgument) or isinstance(root.owner, arith.ConstantOp)


def _viewed_result(op: Operation) -> SSAValue | None:
    """The only result of an op that is a view, which nothing is executed for."""
    return op.results[0] if len(op.results) == 1 and viewed(op.results[0]) is not None else None


def _accessed(op: Operation, assignment: BufferAssignment) -> Iterator[SSAValue]:
    """The tensors whose bytes an op reads or writes."""
    if isinstance(op, tensor.EmptyOp | func.ReturnOp):
        return
    if isinstance(op, tensor.InsertSliceOp) and assignment.is_in_place(op):
        return
    yield from (value for inner in op.walk() for value in inner.operands if is_tensor(value))
    yield from (value for value in op.results if is_tensor(value))


def _peak_of(touched: Sequence[AbstractSet[Strip]]) -> _Peak:
    """By the strips that each op touches."""
    numbers = {strip: number for number, strip in enumerate(dict.fromkeys(strip for each in touched for strip in each))}
    accessed = tuple(frozenset(numbers[strip] for strip in each) for each in touched)
    sizes = tuple(high - low for _, (low, high) in numbers)
    wholes = {root: number for number, root in enumerate(dict.fromkeys(root for root, _ in numbers))}
    strips = tuple((wholes[root], low) for root, (low, _) in numbers)
    problem = OrderProblem(sizes, accessed, (frozenset[int](),) * len(touched), (0,) * len(touched), strips)
    bytes = alive(problem, range(len(touched)))
    most = max(bytes, default=0)
    first = bytes.index(most) if bytes else 0
    there = frozenset[Strip]().union(*touched[: first + 1]) & frozenset[Strip]().union(*touched[first:])
    return _Peak(most, bytes.count(most), frozenset(root for root, _ in there))


def _mark(insertions: Sequence[Operation], *, copied: bool) -> None:
    for op in insertions:
        if copied:
            op.attributes[EXPLICIT] = UnitAttr()
        else:
            op.attributes.pop(EXPLICIT, None)


def _bytes_of(insertions: Sequence[tensor.InsertSliceOp]) -> int:
    types = [op.source.type for op in insertions]
    return sum(prod(type.get_shape()) * element_bytes(type) for type in types if isa(type, TensorType))


def _choose(parts: _Parts) -> tuple[_Peak, _Peak, list[tensor.InsertSliceOp]]:
    """Mark the insertions that are copies; returns the peak before and after, and what is marked."""
    before = now = parts.peak()
    chosen: list[tensor.InsertSliceOp] = []
    while True:
        tried: list[tuple[_Peak, int, list[tensor.InsertSliceOp]]] = []
        for whole, insertions in parts.of_whole.items():
            if whole in now.roots and not set(insertions) & set(chosen):
                _mark(insertions, copied=True)
                if now.is_above(found := parts.peak()):
                    tried.append((found, _bytes_of(insertions), insertions))
                _mark(insertions, copied=False)
        if not tried:
            break
        now, _, insertions = min(tried, key=lambda each: (each[0].bytes, each[0].moments, each[1]))
        _mark(insertions, copied=True)
        chosen += insertions
    if now.bytes == before.bytes:
        _mark(chosen, copied=False)
        return before, before, []
    # Of what is copied the largest part first may be written in place after all.
    for insertion in sorted(chosen, key=lambda op: -_bytes_of([op])):
        _mark([insertion], copied=False)
        if (found := parts.peak()).bytes > now.bytes:
            _mark([insertion], copied=True)
        else:
            now = found
    return before, now, [op for op in chosen if EXPLICIT in op.attributes]


@dataclass(frozen=True)
class CopyPartsPass(ModulePass):
    """
    Copy parts into the concatenations of @main that would otherwise have to be there for too long.

    `tensor-to-loop` lets a part be written into the concatenation that it is inserted in: nothing is copied, but all of
    the concatenation is alive from its first part on, unless its parts are runs of bytes. Where that raises the peak
    of the arena an insertion is marked as an explicit copy (`mem.explicit`), and its source has a buffer of its own.
    From what is alive at the peak the concatenation is taken, all parts of it copied, that lowers it most, until none
    does; then each part goes back that need not be copied. A remark says the peak before and after and the bytes that
    are copied. What kernels need inside is not counted, and a call of what has no body here accesses all of a buffer.

    Required: the tensor level. Guaranteed: the same values bit for bit, and no higher peak in the order of the text.

    Before:
    ```mlir
    func.func private @narrow(tensor<128xf32>) -> tensor<4xf32>
    func.func private @wide(tensor<4xf32>) -> tensor<128xf32>
    func.func private @more(tensor<4xf32>) -> tensor<64xf32>
    func.func private @join(tensor<68xf32>) -> tensor<4xf32>
    func.func @main(%x: tensor<128xf32>) -> tensor<4xf32> {
      %a = func.call @narrow(%x) : (tensor<128xf32>) -> tensor<4xf32>
      %b = func.call @wide(%a) : (tensor<4xf32>) -> tensor<128xf32>
      %c = func.call @narrow(%b) : (tensor<128xf32>) -> tensor<4xf32>
      %d = func.call @more(%c) : (tensor<4xf32>) -> tensor<64xf32>
      %empty = tensor.empty() : tensor<68xf32>
      %one = tensor.insert_slice %a into %empty[0] [4] [1] : tensor<4xf32> into tensor<68xf32>
      %both = tensor.insert_slice %d into %one[4] [64] [1] : tensor<64xf32> into tensor<68xf32>
      %y = func.call @join(%both) : (tensor<68xf32>) -> tensor<4xf32>
      func.return %y : tensor<4xf32>
    }
    ```
    After (`copy-parts`):
    ```mlir
    func.func private @narrow(tensor<128xf32>) -> tensor<4xf32>
    func.func private @wide(tensor<4xf32>) -> tensor<128xf32>
    func.func private @more(tensor<4xf32>) -> tensor<64xf32>
    func.func private @join(tensor<68xf32>) -> tensor<4xf32>
    func.func @main(%x: tensor<128xf32>) -> tensor<4xf32> {
      %a = func.call @narrow(%x) : (tensor<128xf32>) -> tensor<4xf32>
      %b = func.call @wide(%a) : (tensor<4xf32>) -> tensor<128xf32>
      %c = func.call @narrow(%b) : (tensor<128xf32>) -> tensor<4xf32>
      %d = func.call @more(%c) : (tensor<4xf32>) -> tensor<64xf32>
      %empty = tensor.empty() : tensor<68xf32>
      %one = tensor.insert_slice %a into %empty[0] [4] [1] {mem.explicit} : tensor<4xf32> into tensor<68xf32>
      %both = tensor.insert_slice %d into %one[4] [64] [1] : tensor<64xf32> into tensor<68xf32>
      %y = func.call @join(%both) : (tensor<68xf32>) -> tensor<4xf32>
      func.return %y : tensor<4xf32>
    }
    ```
    """

    name = "copy-parts"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if not isinstance(function, func.FuncOp) or function.is_declaration or function.sym_name.data != ENTRY:
                continue
            parts = _Parts(function) if len(function.body.blocks) == 1 else None
            if parts is None or not parts.of_whole:
                continue
            try:
                before, after, copied = _choose(parts)
            except NoBufferSlice:
                # A value in a shape that strides cannot express: `tensor-to-loop` gives it a buffer of its own.
                _mark([each for one in parts.of_whole.values() for each in one], copied=False)
                continue
            if is_listened() and copied:
                remark(function, "passed", _in_words(before, after, copied))


def _in_words(before: _Peak, after: _Peak, copied: Sequence[tensor.InsertSliceOp]) -> str:
    parts = f"{len(copied)} part{'s' * (len(copied) > 1)} of {_bytes_of(copied):,} bytes"
    return f"{parts} copied into concatenations: peak {before.bytes:,} -> {after.bytes:,} bytes of the arena"
