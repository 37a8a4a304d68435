# SPDX-License-Identifier: Apache-2.0
"""
What xDSL 0.74 lacks of the gpu dialect: the text of `gpu.barrier`, attached to its class when this module is imported,
`gpu.dealloc` and `gpu.memcpy` without sizes of operand groups, as MLIR has them, and the attributes that map the
iterations of `scf.forall` to processors, https://mlir.llvm.org/docs/Dialects/GPU/.

A processor's name says what its iterations have in common, whatever the machine is: `#gpu.thread`s, and the warps and
warp groups made of them, share scopes and can wait for each other with `gpu.barrier`; `#gpu.block`s cannot.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.gpu import GPU, AsyncTokenType, BarrierOp
from xdsl.dialects.gpu import DeallocOp as SegmentedDeallocOp
from xdsl.dialects.gpu import MemcpyOp as SegmentedMemcpyOp
from xdsl.ir import Data, Dialect
from xdsl.irdl import (
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_result_def,
    var_operand_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa
from xdsl.utils.type import have_compatible_shape

DIMS = ("x", "y", "z", *(f"linear_dim_{number}" for number in range(10)))


class DeviceMappingAttr(Data[str]):
    """One dim of a kind of processor, as in `#gpu.thread<x>`."""

    dims: ClassVar[tuple[str, ...]] = DIMS

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> str:
        with parser.in_angle_brackets():
            start = parser.pos
            dim = parser.parse_identifier()
            if dim not in cls.dims:
                parser.raise_error(f"#{cls.name} has the dims {', '.join(cls.dims)}, and no {dim}", start, parser.pos)
        return dim

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(self.data)


@irdl_attr_definition
class BlockMappingAttr(DeviceMappingAttr):
    """Blocks of threads: they share memory off chip only, and run in any order."""

    name = "gpu.block"


@irdl_attr_definition
class WarpgroupMappingAttr(DeviceMappingAttr):
    """Groups of warps of one block."""

    name = "gpu.warpgroup"


@irdl_attr_definition
class WarpMappingAttr(DeviceMappingAttr):
    """Warps of one block."""

    name = "gpu.warp"


@irdl_attr_definition
class ThreadMappingAttr(DeviceMappingAttr):
    """Threads of one block."""

    name = "gpu.thread"


@irdl_attr_definition
class MemorySpaceMappingAttr(DeviceMappingAttr):
    """Memories of one block; of a copy of a buffer, not of iterations that compute."""

    name = "gpu.memory_space"
    dims: ClassVar[tuple[str, ...]] = ("global", "workgroup", "private")


MAPPINGS: tuple[type[DeviceMappingAttr], ...] = (
    BlockMappingAttr,
    WarpgroupMappingAttr,
    WarpMappingAttr,
    ThreadMappingAttr,
    MemorySpaceMappingAttr,
)


@irdl_op_definition
class DeallocOp(IRDLOperation):
    """Free device memory; https://mlir.llvm.org/docs/Dialects/GPU/#gpudealloc-gpudeallocop"""

    name = "gpu.dealloc"

    async_dependencies = var_operand_def(AsyncTokenType)
    memref = operand_def(MemRefType)
    async_token = opt_result_def(AsyncTokenType)


@irdl_op_definition
class MemcpyOp(IRDLOperation):
    """Copy between host and device; https://mlir.llvm.org/docs/Dialects/GPU/#gpumemcpy-gpumemcpyop"""

    name = "gpu.memcpy"

    async_dependencies = var_operand_def(AsyncTokenType)
    dst = operand_def(MemRefType)
    src = operand_def(MemRefType)
    async_token = opt_result_def(AsyncTokenType)

    def verify_(self) -> None:
        dst, src = self.dst.type, self.src.type
        assert isa(dst, MemRefType)
        assert isa(src, MemRefType)
        if dst.element_type != src.element_type or not have_compatible_shape(dst, src):
            raise VerifyException(f"copies {src} to {dst}")


def _parse_barrier(cls: type[BarrierOp], parser: Parser) -> BarrierOp:
    op = cls()
    op.attributes |= parser.parse_optional_attr_dict()
    return op


def _print_barrier(self: BarrierOp, printer: Printer) -> None:
    printer.print_op_attributes(self.attributes)


setattr(BarrierOp, "parse", classmethod(_parse_barrier))
setattr(BarrierOp, "print", _print_barrier)

_OPS = [op for op in GPU.operations if op not in (SegmentedDeallocOp, SegmentedMemcpyOp)]
DIALECT = Dialect("gpu", [*_OPS, DeallocOp, MemcpyOp], [*GPU.attributes, *MAPPINGS])
"""xDSL's gpu dialect with these operations and attributes."""
