# SPDX-License-Identifier: Apache-2.0
"""How data gets from one scope of a machine to another: one DMA engine after the other."""

from __future__ import annotations

from xdsl.ir import Operation

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.machine import DRAM, DmaOp, TargetOp


def scope_path(target: TargetOp, start: str, end: str) -> tuple[str, ...] | None:
    """
    The scopes that data passes from `start` to `end`, both included; None if no engines lead there.

    It is a shortest one; among several it follows the engine that is declared first, and the scope that this engine
    names first. It does not pass off chip ("dram") on the way: that would be no path of a kernel, but a spill.
    """
    came_from: dict[str, str] = {}
    waiting = [start]
    engines = [(dma.sources, dma.destinations) for dma in target.parts(DmaOp)]
    known = {end, *target.scopes()}
    while waiting and end not in came_from:
        here = waiting.pop(0)
        for sources, destinations in engines:
            if here not in sources:
                continue
            for there in destinations:
                if there != start and there not in came_from and there in known:
                    came_from[there] = here
                    waiting += [there] if there != DRAM else []
    if end not in came_from:
        return None
    path = [end]
    while path[0] != start:
        path.insert(0, came_from[path[0]])
    return tuple(path)


def intermediates(target: TargetOp, start: str, end: str) -> tuple[str, ...]:
    """The scopes between `start` and `end`; none where an engine leads there directly, or nothing does."""
    path = scope_path(target, start, end)
    return () if path is None else path[1:-1]


def stop_between(target: TargetOp, start: str, end: str) -> str | None:
    """
    The scope that data reaches first from `start` to `end`, where no engine goes all the way; None if it cannot arrive.

    It is the next one on the path. Where there is none, data takes the way off chip to the first scope from where a
    path leads to `end`: at the last off chip itself ("dram").
    """
    if (path := scope_path(target, start, end)) is not None:
        return path[1]
    outwards = scope_path(target, start, DRAM) or ()
    return next((scope for scope in outwards[1:] if scope_path(target, scope, end) is not None), None)


def no_path(target: TargetOp, start: str, end: str, op: Operation) -> UserError:
    """The error for data that `op` needs and that cannot get from scope `start` to scope `end`."""
    engines = [
        f"@{name} from {', '.join(dma.sources)} to {', '.join(dma.destinations)}" for name, dma in target.dmas().items()
    ]
    return UserError(
        f'no DMA of @{target.sym_name.data} goes from "{start}" to "{end}", nor do several in turn',
        loc=location_of(op),
        notes=[
            "the intrinsic needs its operand there; add a DMA to the machine file",
            f"its engines: {'; '.join(engines) or 'none'}",
        ],
    )
