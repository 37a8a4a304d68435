"""
What xDSL 0.74 lacks of the gpu dialect: the text of `gpu.barrier`, attached to its class when this module is imported,
and the attributes that map the iterations of `scf.forall` to processors, https://mlir.llvm.org/docs/Dialects/GPU/.

A processor's name says what its iterations have in common, whatever the machine is: `#gpu.thread`s, and the warps and
warp groups made of them, share scopes and can wait for each other with `gpu.barrier`; `#gpu.block`s cannot.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.gpu import GPU, BarrierOp
from xdsl.ir import Data, Dialect
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer

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


def _parse_barrier(cls: type[BarrierOp], parser: Parser) -> BarrierOp:
    op = cls()
    op.attributes |= parser.parse_optional_attr_dict()
    return op


def _print_barrier(self: BarrierOp, printer: Printer) -> None:
    printer.print_op_attributes(self.attributes)


setattr(BarrierOp, "parse", classmethod(_parse_barrier))
setattr(BarrierOp, "print", _print_barrier)

DIALECT = Dialect("gpu", list(GPU.operations), [*GPU.attributes, *MAPPINGS])
"""xDSL's gpu dialect with these attributes."""
