# SPDX-License-Identifier: Apache-2.0
"""
What a compilation came to, in figures: for a person in at most ten lines, and as JSON for benchmarks and tables.

Everything is read from the lowered program; only what the program no longer shows is handed in: the operations
that were fused, the times of the passes and the generated C.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.passes import ModulePass

from penstock.dialects.accel import ExecOp
from penstock.dialects.diagnostics import UserError
from penstock.dialects.functions import bounds_of
from penstock.dialects.graph import FusedOp
from penstock.dialects.upstream.scf import ForallOp
from penstock.passes.analysis.kernels import (
    ENTRY,
    HOST,
    Placement,
    host_reasons,
    kernels,
    machine_of,
    multiply_accumulates,
    partition,
)
from penstock.passes.analysis.loops import iteration_count, threads_of
from penstock.passes.analysis.memory.memory_problems import ARENA, ScopePlan, plan_report
from penstock.passes.graph.fuse import GraphFusePass
from penstock.passes.graph.fusion.nodes import is_groupable
from penstock.runtime.levels import LEVELS, level_of

if TYPE_CHECKING:
    from penstock.lowering.to_c import CSource

SCHEMA = 1
"""The version of the layout of the JSON."""

AT_MOST = 10
"""Lines of a report."""

_SLOWEST = 3


@dataclass
class FusionCount:
    """An observer of passes: what computes something in `@main` before and after `graph-fuse`; None without it."""

    operations: int | None = None
    groups: int | None = None
    explain: bool = False
    """Whether to ask why the groups are not larger."""
    remarks: list[str] = field(default_factory=list[str])
    """Why, a line a group."""

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        if isinstance(module_pass, GraphFusePass):
            self.operations = _graph_kernels(module)
            self.remarks = module_pass.explain(module) if self.explain else []

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        if module_pass.name == "graph-fuse":
            self.groups = _graph_kernels(module)


@dataclass(frozen=True)
class ScopeUse:
    """How full a scope is in the kernel that fills it most; of the arena, in the whole program. In bytes."""

    scope: str
    kernel: str
    """Empty for what the whole program shares, as it does the arena."""
    peak: int
    capacity: int | None
    """None for the arena, which takes what it needs."""
    lower_bound: int
    """What no plan of that kernel can do without."""

    def __str__(self) -> str:
        capacity = "" if self.capacity is None else f" of {self.capacity:,}"
        where = f" in @{self.kernel}" if self.kernel else ""
        return f"{self.scope}: peak {self.peak:,}{capacity} bytes{where}, lower bound {self.lower_bound:,}"


@dataclass(frozen=True)
class Transfers:
    """The bytes that DMA engines move in one run; see `penstock.passes.analysis.commands.traffic`."""

    bytes_in: int
    bytes_out: int
    compulsory_in: int
    """What every schedule of the same kernels moves: see `compulsory_bytes`."""
    compulsory_out: int
    between: tuple[tuple[str, str, int], ...]
    """The bytes from one scope to another; "dram" is off chip."""

    def __str__(self) -> str:
        sides = ((self.bytes_in, "in", self.compulsory_in), (self.bytes_out, "out", self.compulsory_out))
        words = [
            f"{moved:,} bytes {way}, {_ratio(moved, compulsory)} of the compulsory {compulsory:,}"
            for moved, way, compulsory in sides
        ]
        inner = [f"{source} to {dest} {size:,}" for source, dest, size in self.between if "dram" not in (source, dest)]
        return "; ".join(["DMA: " + words[0], *words[1:], *inner])


@dataclass(frozen=True)
class CompileReport:
    """The figures of one compilation; None for what the level that was reached does not decide."""

    machine: str | None
    """The name of the machine; None for the host."""
    level: str
    """The level that the program was lowered to."""
    operations: int | None
    """Operations that compute something before fusion; None where the program came in below that."""
    groups: int | None
    """What fusion made of them."""
    kernels: int
    """Places that call kernels, groups at graph level: a group is cut where the device changes."""
    machine_kernels: int | None
    """How many of them run on the machine; None before devices are assigned."""
    host_reasons: dict[str, int]
    """Why kernels stay on the host, the most frequent reason first, each with the calls that it is given for."""
    macs: int | None
    """Multiply-accumulates of one run, loops of unknown trips taken once; None at graph level."""
    machine_macs: int | None
    crossing_bytes: int | None
    """What kernels hand to kernels on the other device in one run; None before devices are assigned."""
    scopes: tuple[ScopeUse, ...] | None
    """In the order of the machine; None above loop level."""
    arena: ScopeUse | None
    """The intermediates off chip."""
    transfers: Transfers | None
    kept: str = ""
    """What it saves that tensors stay on chip between kernels; empty where none does."""
    transfers_unknown: str = ""
    """Why the bytes could not be counted."""
    c_bytes: int | None = None
    c_lines: int | None = None
    passes: tuple[tuple[str, float], ...] = field(default=())
    """Names and seconds, in the order in which they ran."""
    threads: int = 1
    """The most threads that run a loop of the host."""
    threaded_kernels: int = 0
    """Kernels, each counted once, with loops that several threads run."""

    def lines(self) -> list[str]:
        """The report for a person, at most ten lines."""
        first = [self._kernels_line(), *self._machine_lines()]
        last = [*self._thread_lines(), *self._memory_lines(), *self._c_lines(), *self._pass_lines()]
        scopes = [str(scope) for scope in self.scopes or ()]
        room = AT_MOST - len(first) - len(last)
        if len(scopes) > room:
            scopes = [*scopes[: room - 1], "; ".join(scopes[room - 1 :])]
        return [*first, *scopes, *last]

    def to_json(self) -> str:
        """The report as text, its schema's version first."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2) + "\n"

    def _kernels_line(self) -> str:
        if self.operations is None:
            return f"kernels: {self.kernels}"
        cut = f", cut into {_kernels(self.kernels)}" if self.kernels != self.groups else ""
        return f"kernels: {self.operations} before fusion, {self.groups} after it{cut}"

    def _machine_lines(self) -> list[str]:
        if self.macs is None:
            return []
        if self.machine is None:
            return [f"host: {self.macs:,} multiply-accumulates, all kernels"]
        if self.machine_kernels is None or self.machine_macs is None:
            return []
        share = self.machine_macs / self.macs if self.macs else 0.0
        there = _kernels(self.machine_kernels)
        lines = [f"{self.machine}: {share:.1%} of {self.macs:,} multiply-accumulates, {there}"]
        if self.kernels > self.machine_kernels:
            first = next(iter(self.host_reasons.items()), None)
            reason = "" if first is None else f", {first[1]} of them: {first[0]}"
            crossing = f"; {self.crossing_bytes:,} bytes cross between the two" if self.crossing_bytes else ""
            lines.append(f"host: {_kernels(self.kernels - self.machine_kernels)}{reason}{crossing}")
        return lines

    def _thread_lines(self) -> list[str]:
        return [] if self.threads == 1 else [f"threads: {self.threads}, in {_kernels(self.threaded_kernels)}"]

    def _memory_lines(self) -> list[str]:
        lines = [str(self.arena)] if self.arena is not None else []
        lines += [self.kept] if self.kept else []
        if self.transfers is not None:
            lines.append(str(self.transfers))
        elif self.transfers_unknown:
            lines.append(f"DMA: not counted: {self.transfers_unknown}")
        return lines

    def _c_lines(self) -> list[str]:
        return [] if self.c_bytes is None else [f"C: {self.c_bytes:,} bytes, {self.c_lines:,} lines"]

    def _pass_lines(self) -> list[str]:
        if not self.passes:
            return []
        slowest = sorted(self.passes, key=lambda entry: -entry[1])[:_SLOWEST]
        total = sum(seconds for _, seconds in self.passes)
        return [f"passes: {total:.2f} s; the slowest: {', '.join(f'{name} {s:.2f}' for name, s in slowest)}"]


def report_on(
    module: ModuleOp,
    *,
    fusion: FusionCount | None = None,
    seconds: Sequence[tuple[str, float]] = (),
    source: CSource | None = None,
) -> CompileReport:
    """
    The figures of a module at any level.

    `fusion` is what that observer saw, `seconds` what `compile_module` returned, `source` the C, if any.
    Raises UserError for memory plans that are not valid.
    """
    level = level_of(module)
    below_graph, placed = level != "graph", level in LEVELS[2:]
    target = machine_of(module)
    placements = partition(module) if below_graph else []
    assigned = target is not None and below_graph
    macs = sum(placement.macs for placement in placements)
    if below_graph and target is None:
        runs = {placement.kernel: placement.runs for placement in placements}
        macs = sum(runs[kernel.sym_name.data] * multiply_accumulates(kernel) for kernel in kernels(module))
    is_open = any(bounds_of(op) for op in module.ops if isinstance(op, FuncOp))
    plans = plan_report(module) if placed else []
    threaded = threaded_loops(module)
    uses = _fullest(plans, [*target.scopes()] if target is not None else [])
    transfers, unknown = _transfers(module) if level == "accel" and target is not None else (None, "")
    return CompileReport(
        machine=target.machine_name if target is not None else None,
        level=level,
        operations=fusion.operations if fusion else None,
        groups=fusion.groups if fusion else None,
        kernels=sum(placement.calls for placement in placements) if below_graph else _graph_kernels(module),
        machine_kernels=sum(p.calls for p in placements if p.device != HOST) if assigned else None,
        host_reasons=host_reasons(placements),
        macs=macs if below_graph and not is_open else None,
        machine_macs=sum(p.macs for p in placements if p.device != HOST) if assigned else None,
        crossing_bytes=sum(p.crossing for p in placements) if assigned else None,
        scopes=tuple(use for use in uses if use.scope != ARENA) if placed else None,
        arena=next((use for use in uses if use.scope == ARENA), None),
        transfers=transfers,
        kept=_kept(module),
        transfers_unknown=unknown,
        c_bytes=len(source.header.encode()) + len(source.source.encode()) if source is not None else None,
        c_lines=source.header.count("\n") + source.source.count("\n") if source is not None else None,
        passes=tuple(seconds),
        threads=max((threads for _, threads in threaded.values()), default=1),
        threaded_kernels=len(threaded),
    )


def _kernels(count: int) -> str:
    return f"{count} kernel{'s' * (count != 1)}"


def _graph_kernels(module: ModuleOp) -> int:
    """The operations of `@main` that compute something: no constants, views or concatenations; a group is one."""
    return sum(
        isinstance(op, FusedOp) or is_groupable(op)
        for function in module.ops
        if isinstance(function, FuncOp) and function.sym_name.data == ENTRY and not function.is_declaration
        for op in function.body.block.ops
    )


def _fullest(plans: Sequence[ScopePlan], scopes: Sequence[str]) -> list[ScopeUse]:
    """For each of the scopes the plan with the highest peak, in their order; that of the arena last."""
    fullest: dict[str, ScopePlan] = {}
    for plan in plans:
        known = fullest.get(plan.scope)
        if known is None or plan.peak > known.peak:
            fullest[plan.scope] = plan
    found = [fullest[scope] for scope in (*scopes, ARENA) if scope in fullest]
    return [ScopeUse(p.scope, p.function, p.peak, p.capacity, p.lower_bound) for p in found]


def _transfers(module: ModuleOp) -> tuple[Transfers | None, str]:
    """The transfers, or why they cannot be counted: a program that people wrote may do what loops do not decide."""
    from penstock.passes.analysis.commands.traffic import compulsory_bytes, traffic

    try:
        moved = traffic(module)
        into, out = compulsory_bytes(module)
    except UserError as error:
        return None, error.message
    between = tuple((source, dest, size) for (source, dest), size in moved.between().items())
    return Transfers(moved.bytes_in, moved.bytes_out, into, out, between), ""


def _kept(module: ModuleOp) -> str:
    from penstock.passes.loop.on_chip.prediction import predicted_traffic

    found = predicted_traffic(module)
    if found is None or found.total >= found.if_streamed:
        return ""
    return f"kept on chip between kernels: {found.if_streamed - found.total:,} of {found.if_streamed:,} bytes saved"


def _ratio(moved: int, compulsory: int) -> str:
    return f"{moved / compulsory:.2f}" if compulsory else "-"


def kernel_lines(module: ModuleOp) -> list[str]:
    """
    Each kernel with its device and why, the intrinsics, what crosses to another device, its tiling and how its
    iterations overlap; and each tensor between kernels, whether it stays on chip.
    """
    from penstock.passes.loop.on_chip.prediction import on_chip_remarks

    intrinsics = {kernel.sym_name.data: _intrinsics(kernel) for kernel in kernels(module)}
    return [
        *(_line(placement, intrinsics[placement.kernel]) for placement in partition(module)),
        *on_chip_remarks(module),
        *(
            f"threads: @{kernel}: {'; '.join(f'{count} iterations in {threads} threads' for count in counts)}"
            for kernel, (counts, threads) in threaded_loops(module).items()
        ),
    ]


def threaded_loops(module: ModuleOp) -> dict[str, tuple[list[int], int]]:
    """For each kernel with loops that several threads run: how many iterations each has, and how many threads."""
    found: dict[str, tuple[list[int], int]] = {}
    for function in module.ops:
        loops = [op for op in function.walk() if isinstance(op, ForallOp) and threads_of(op) > 1]
        if isinstance(function, FuncOp) and loops:
            counts = [iteration_count(loop) or 0 for loop in loops]
            found[function.sym_name.data] = counts, max(map(threads_of, loops))
    return found


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
