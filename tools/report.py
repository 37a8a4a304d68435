"""What the compiler decided for each kernel, for a person who asked for more than `CompileReport` says."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from penstock.passes.kernels import HOST, partition


def kernel_lines(module: ModuleOp) -> list[str]:
    """Each kernel that is cut, with its tiling, and each that stays on the host, with its reason."""
    placements = partition(module)
    lines = [f"tiled: @{p.kernel} {p.location}: {p.tiling}" for p in placements if p.device != HOST and p.tiling]
    lines += [f"on the host: @{p.kernel}: {p.remark}" for p in placements if p.device == HOST and p.remark]
    return lines
