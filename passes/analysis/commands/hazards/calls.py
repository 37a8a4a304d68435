"""The ways in which kernels are called, as far as hazards could tell them apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.machine import DRAM
from penstock.passes.analysis.commands.program import View
from penstock.passes.analysis.commands.trace import trace_calls
from penstock.passes.analysis.kernels import machine_kernels

Arguments = tuple[View | None, ...]


def ways(module: ModuleOp) -> Iterator[tuple[func.FuncOp, Arguments | None]]:
    """
    The kernels of the machine, each with where its arguments lie in a call: None for one that shares no byte off chip
    with others. A kernel that nobody calls has arguments that do not overlap; calls that do not differ are given once.
    """
    _, kernels = machine_kernels(module)
    if not kernels:
        return
    seen: dict[func.FuncOp, dict[Arguments, None]] = {kernel: {} for kernel in kernels}
    for call in trace_calls(module, commands=False):
        if call.function in seen:
            seen[call.function].setdefault(_placed(call.arguments))
    for kernel, arguments in seen.items():
        if not arguments:
            yield kernel, None
        for each in arguments:
            yield kernel, each


def _placed(arguments: Arguments) -> Arguments:
    """Arguments in a scope where they are, and those off chip that overlap in a storage of their own."""
    off_chip = {number: view for number, view in enumerate(arguments) if view is not None and view.space == DRAM}
    groups: list[list[int]] = []
    for number, view in off_chip.items():
        near = [group for group in groups if any(_overlap(view, off_chip[other]) for other in group)]
        groups = [group for group in groups if group not in near]
        groups.append([*(other for group in near for other in group), number])
    placed: list[View | None] = list(arguments)
    for group in groups:
        start = min(off_chip[number].start for number in group)
        for number in group:
            view = off_chip[number]
            shared = replace(view, storage=min(group) + 1, start=view.start - start)
            placed[number] = shared if len(group) > 1 else None
    return tuple(placed)


def _overlap(one: View, other: View) -> bool:
    return one.storage == other.storage and one.start < _end(other) and other.start < _end(one)


def _end(view: View) -> int:
    steps = zip(view.shape, view.strides, strict=True)
    return view.start + sum((size - 1) * stride for size, stride in steps if size) + view.element_bytes
