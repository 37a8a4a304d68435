# SPDX-License-Identifier: Apache-2.0
"""
The memref dialect as MLIR has it, where xDSL 0.74 has less: views, copies and ranks of unranked memrefs; globals that
are public or declared; `memref.dma_start` with strides and without segments, which MLIR's operation does not have. See https://mlir.llvm.org/docs/Dialects/MemRef
"""

from __future__ import annotations

from typing import cast

from xdsl.dialects import memref
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    DenseIntOrFPElementsAttr,
    DenseResourceAttr,
    IndexType,
    MemRefType,
    StringAttr,
    UnitAttr,
    UnrankedMemRefType,
)
from xdsl.dialects.memref import MemRef
from xdsl.dialects.utils import verify_dynamic_index_list
from xdsl.ir import Attribute, Dialect, SSAValue
from xdsl.irdl import (
    BaseAttr,
    IRDLOperation,
    irdl_op_definition,
    traits_def,
    var_operand_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from penstock.dialects.upstream import amend

_ANY_RANK = BaseAttr(MemRefType) | BaseAttr(UnrankedMemRefType)


def _shape(value: SSAValue) -> tuple[int, ...] | None:
    type: Attribute = value.type
    return type.get_shape() if isa(type, MemRefType) else None


def _element(value: SSAValue) -> Attribute:
    return cast(MemRefType | UnrankedMemRefType, value.type).element_type


def _check_copy(op: memref.CopyOp) -> None:
    source, dest = _shape(op.source), _shape(op.destination)
    if source is not None and dest is not None:
        # A size that is not known may be any.
        if len(source) != len(dest) or any(a != b and a >= 0 <= b for a, b in zip(source, dest, strict=True)):
            raise VerifyException("Expected source and destination to have the same shape.")
    if _element(op.source) != _element(op.destination):
        raise VerifyException("Expected source and destination to have the same element type.")


def _check_reinterpreted(op: memref.ReinterpretCastOp) -> None:
    static = op.static_offsets.get_values(), op.static_sizes.get_values(), op.static_strides.get_values()
    for values, given, title in zip(
        (op.offsets, op.sizes, op.strides), static, ("offset", "size", "stride"), strict=True
    ):
        verify_dynamic_index_list(given, values, DYNAMIC_INDEX, f" in the {title} arguments")
    shape = _shape(op.result) or ()
    # A size that is known may be unknown to the type.
    agree = len(shape) == len(static[1]) and all(a in (b, DYNAMIC_INDEX) for a, b in zip(shape, static[1], strict=True))
    if len(static[0]) != 1 or not agree or len(static[2]) != len(shape):
        raise VerifyException(
            f"Expected one offset, and sizes and strides of {op.result.type}, got {list(static[0])}, {list(static[1])}"
            f" and {list(static[2])}"
        )
    if _element(op.source) != _element(op.result):
        raise VerifyException(f"casts {op.source.type} to other elements, {op.result.type}")


def _check_wait(op: memref.DmaWaitOp) -> None:
    if len(_shape(op.tag) or ()) != len(op.tag_indices):
        raise VerifyException(f"has {len(op.tag_indices)} indices of {op.tag.type}")


def _check_global(op: memref.GlobalOp) -> None:
    if (alignment := op.alignment) is not None and alignment.value.data.bit_count() != 1:
        raise VerifyException(f"Alignment attribute {alignment.value.data} is not a power of 2")


def _check_alignment(op: memref.AssumeAlignmentOp) -> None:
    if (alignment := op.alignment.value.data) < 1:
        raise VerifyException(f"Alignment must be positive, got {alignment}")
    if any(result.type != op.memref.type for result in op.results):
        raise VerifyException(f"results in another type than {op.memref.type}")


@irdl_op_definition
class DmaStartOp(IRDLOperation):
    """
    A transfer: source and its indices, destination and its indices, the number of elements, a tag and its indices, and,
    where the transfer is strided, a stride and the number of elements for each;
    https://mlir.llvm.org/docs/Dialects/MemRef/#memrefdma_start-memrefdmastartop
    """

    name = "memref.dma_start"

    transfer = var_operand_def()

    traits = traits_def(MemoryWriteEffect(), MemoryReadEffect())

    def verify_(self) -> None:
        at = 0
        for title, others in (("source", 0), ("destination", 1), ("tag", 0)):
            shape = _shape(self.operands[at]) if at < len(self.operands) else None
            if shape is None:
                raise VerifyException(f"expected a memref as its {title}, operand {at}")
            indices = self.operands[at + 1 : at + 1 + len(shape) + others]
            if len(indices) < len(shape) + others or not all(isinstance(each.type, IndexType) for each in indices):
                raise VerifyException(f"expected {len(shape) + others} indices after its {title}")
            at += 1 + len(indices)
        strided = self.operands[at:]
        if len(strided) not in (0, 2) or not all(isinstance(each.type, IndexType) for each in strided):
            raise VerifyException("expected a stride and the number of elements for each, or neither")


amend.values(memref.CopyOp, source=_ANY_RANK, destination=_ANY_RANK)
amend.check(memref.CopyOp, _check_copy)
amend.values(memref.RankOp, source=_ANY_RANK)
amend.values(memref.ReinterpretCastOp, source=_ANY_RANK)
amend.check(memref.ReinterpretCastOp, _check_reinterpreted)
amend.check(memref.DmaWaitOp, _check_wait)
amend.optional_property(memref.GlobalOp, "sym_visibility", BaseAttr(StringAttr))
amend.optional_property(
    memref.GlobalOp,
    "initial_value",
    BaseAttr(UnitAttr) | BaseAttr(DenseIntOrFPElementsAttr) | BaseAttr(DenseResourceAttr),
)
amend.check(memref.GlobalOp, _check_global)
# MLIR 22 gives it a result, which stands for the aligned memref; MLIR 19 does not.
amend.optional_result(memref.AssumeAlignmentOp)
amend.check(memref.AssumeAlignmentOp, _check_alignment)

_OURS = {DmaStartOp.name: DmaStartOp}
DIALECT = Dialect("memref", [_OURS.get(op.name, op) for op in MemRef.operations], list(MemRef.attributes))
"""xDSL's memref dialect with our `memref.dma_start` in place of its own."""
