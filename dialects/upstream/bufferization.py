# SPDX-License-Identifier: Apache-2.0
"""
The bufferization dialect between tensors and memrefs with a layout or a memory space, which xDSL 0.74 refuses: only the
shape and the element type of the two have to agree. See https://mlir.llvm.org/docs/Dialects/BufferizationOps
"""

from __future__ import annotations

from typing import cast

from xdsl.dialects import bufferization
from xdsl.dialects.bufferization import Bufferization
from xdsl.dialects.builtin import MemRefType, TensorType, UnrankedMemRefType, UnrankedTensorType
from xdsl.ir import Attribute
from xdsl.irdl import AnyAttr, BaseAttr
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.upstream import amend

_MEMREF = BaseAttr(MemRefType) | BaseAttr(UnrankedMemRefType)
_TENSOR = BaseAttr(TensorType) | BaseAttr(UnrankedTensorType)
_Shaped = MemRefType | TensorType | UnrankedMemRefType | UnrankedTensorType


def _contents(type: Attribute) -> tuple[tuple[int, ...] | None, Attribute]:
    """The shape, None where it is unranked, and the element type."""
    ranked = cast(MemRefType, type).get_shape() if isinstance(type, MemRefType | TensorType) else None
    return ranked, cast(_Shaped, type).element_type


def _check(op: bufferization.ToTensorOp | bufferization.ToBufferOp) -> None:
    if _contents(op.tensor.type) != _contents(op.memref.type):
        raise VerifyException(f"{op.tensor.type} is not the tensor of {op.memref.type}")


def _is_compatible(source: Attribute, dest: Attribute) -> bool:
    (one, element), (other, expected) = _contents(source), _contents(dest)
    if element != expected or one is None or other is None:
        return element == expected
    return len(one) == len(other) and not any(a != b and a >= 0 <= b for a, b in zip(one, other, strict=True))


def _check_destination(op: bufferization.MaterializeInDestinationOp) -> None:
    source: Attribute = op.source.type
    dest: Attribute = op.dest.type
    if (not _MEMREF.verifies(dest) and not _TENSOR.verifies(dest)) or not _is_compatible(source, dest):
        raise VerifyException(f"{source} does not fit into {dest}")
    if list(op.result_types) != ([dest] if _TENSOR.verifies(dest) else []):
        raise VerifyException("has a result, of the type of its destination, exactly if that is a tensor")


def _check_clone(op: bufferization.CloneOp) -> None:
    if not _is_compatible(op.input.type, op.output.type):
        raise VerifyException(f"{op.output.type} is no clone of {op.input.type}")


amend.values(bufferization.ToTensorOp, memref=_MEMREF, tensor=_TENSOR)
amend.values(bufferization.ToBufferOp, memref=_MEMREF, tensor=_TENSOR)
amend.values(bufferization.MaterializeInDestinationOp, source=_TENSOR, dest=AnyAttr(), result=_TENSOR)
amend.values(bufferization.CloneOp, input=_MEMREF, output=_MEMREF)
amend.optional_property(bufferization.AllocTensorOp, "memory_space", AnyAttr())
amend.check(bufferization.ToTensorOp, _check)
amend.check(bufferization.ToBufferOp, _check)
amend.check(bufferization.MaterializeInDestinationOp, _check_destination)
amend.check(bufferization.CloneOp, _check_clone)
for _op, _text in (
    (
        bufferization.ToTensorOp,
        "$memref (`restrict` $restrict^)? (`writable` $writable^)? attr-dict `:` type($memref) `to` type($tensor)",
    ),
    (
        bufferization.ToBufferOp,
        "$tensor (`read_only` $read_only^)? `:` attr-dict type($tensor) `to` type($memref)",
    ),
    (bufferization.CloneOp, "$input attr-dict `:` type($input) `to` type($output)"),
    (
        bufferization.MaterializeInDestinationOp,
        "$source `in` (`restrict` $restrict^)? (`writable` $writable^)? $dest attr-dict"
        " `:` functional-type(operands, results)",
    ),
):
    amend.assembly(_op, _text)

DIALECT = Bufferization
