"""What the compiler decided, for a person: what runs where, how it is tiled, and how full the scopes are."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp

from penstock.passes.kernels import HOST, Placement, partition, share_on_machine
from penstock.passes.loop.plan_report import ScopePlan, plan_report


def compile_report(module: ModuleOp, level: str) -> str:
    """The report on a module that has been lowered to `level`; empty where nothing has been decided yet."""
    if level == "graph":
        return ""
    lines = partition_lines(partition(module))
    if level in ("loop", "accel"):
        lines += scope_lines(plan_report(module))
    return "\n".join(lines)


def partition_lines(placements: Sequence[Placement]) -> list[str]:
    """The share of the machine; then each kernel that is cut, and each that stays on the host with its reason."""
    machine = [placement for placement in placements if placement.device != HOST]
    host = [placement for placement in placements if placement.device == HOST]
    total = sum(placement.macs for placement in placements)
    name = f"@{machine[0].device}" if machine else "the machine"
    lines = [
        f"{len(machine)} kernels on {name}, {len(host)} on the host",
        f"{share_on_machine(placements):.1%} of {total:,} multiply-accumulates on the machine",
    ]
    lines += [f"tiled: @{p.kernel} {p.location}: {p.tiling}" for p in machine if p.tiling]
    lines += [f"on the host: @{p.kernel}: {p.remark}" for p in host if p.remark]
    return lines


def scope_lines(plans: Sequence[ScopePlan]) -> list[str]:
    """For each scope the fullest kernel; for the arena the whole program."""
    fullest: dict[str, ScopePlan] = {}
    for plan in plans:
        known = fullest.get(plan.scope)
        if known is None or plan.peak > known.peak:
            fullest[plan.scope] = plan
    lines: list[str] = []
    for scope, plan in fullest.items():
        capacity = "" if plan.capacity is None else f" of {plan.capacity:,}"
        where = f" in @{plan.function}" if plan.function else ""
        lines.append(f"{scope}: peak {plan.peak:,}{capacity} bytes{where}, lower bound {plan.lower_bound:,}")
    return lines
