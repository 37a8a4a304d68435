"""What the compiler decided for each kernel, for a person who asked for more than `CompileReport` says."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.dialects.linalg.ops import GenericOp

from penstock.dialects.accel import ExecOp
from penstock.passes.analysis.kernels import HOST, Placement, kernels, partition
from penstock.passes.loop.on_chip.prediction import on_chip_remarks


def kernel_lines(module: ModuleOp) -> list[str]:
    """
    Each kernel with its device and why, the intrinsics, what crosses to another device, its tiling and how its rounds
    overlap; and each tensor between kernels, whether it stays on chip.
    """
    intrinsics = {kernel.sym_name.data: _intrinsics(kernel) for kernel in kernels(module)}
    return [
        *(_line(placement, intrinsics[placement.kernel]) for placement in partition(module)),
        *on_chip_remarks(module),
    ]


def _line(placement: Placement, intrinsics: Sequence[str]) -> str:
    where = "on the host" if placement.device == HOST else f"on @{placement.device}"
    name = "" if placement.remark.startswith(f"{placement.location}: ") else f" {placement.location}"
    parts = [f"by {', '.join(intrinsics)}"] if intrinsics else []
    parts += [placement.remark] if placement.remark else []
    parts += [f"{placement.crossing:,} bytes cross from it"] if placement.crossing else []
    parts += [each for each in (placement.tiling, placement.pipelining) if each]
    return f"{where}: @{placement.kernel}{name}: {'; '.join(parts)}" if parts else f"{where}: @{placement.kernel}{name}"


def _intrinsics(kernel: FuncOp) -> list[str]:
    """The intrinsics that a kernel is made of, in the order of their first use, as far as they are known."""
    found: dict[str, None] = {}
    for op in kernel.walk():
        if isinstance(op, ExecOp):
            found[f"@{op.intrinsic.string_value()}"] = None
        elif isinstance(op, GenericOp) and op.library_call is not None:
            found[f"@{op.library_call.data}"] = None
    return list(found)
