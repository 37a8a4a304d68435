# SPDX-License-Identifier: Apache-2.0
"""The bytes that commands touch: as a trace says, and as the interpreter does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.mem import memref_of, scope_of
from penstock.passes.analysis.commands.program import Program
from penstock.passes.analysis.commands.region import Region
from penstock.runtime.interpreter import run_function
from penstock.runtime.interpreter.commands import DONE, IssuedCommand, Token, Touch
from penstock.runtime.interpreter.interleaving import Interleaving
from penstock.runtime.interpreter.scopes import TaggedBuffer, array_of
from penstock.runtime.interpreter.values import dtype_of

Bytes = frozenset[tuple[str, int, int]]
"""Space, storage and offset of each."""


def bytes_of(regions: Sequence[Region]) -> Bytes:
    """The bytes of regions."""
    return frozenset(
        (region.space, region.storage, int(start) + at)
        for region in regions
        for start in region.starts
        for at in range(region.length)
    )


def traced(program: Program) -> list[tuple[Bytes, Bytes]]:
    """What each command reads and writes, by its trace."""
    return [(bytes_of(command.reads), bytes_of(command.writes)) for command in program.commands]


def interpreted(module: ModuleOp, name: str) -> list[tuple[Bytes, Bytes]]:
    """The same, by the interpreter, which performs none of them."""
    function = next(op for op in module.ops if isinstance(op, func.FuncOp) and op.sym_name.data == name)
    arguments: list[Any] = []
    for value in function.body.block.args:
        type = memref_of(value)
        assert scope_of(type) is None
        arguments.append(np.ones(type.get_shape(), dtype_of(type.element_type, function)))
    found: list[tuple[Bytes, Bytes]] = []

    def watched(interleaving: Interleaving, command: IssuedCommand) -> Token:
        touched = [
            frozenset(byte for touch in touches for byte in _touched(touch, arguments))
            for touches in (command.reads, command.writes)
        ]
        found.append((touched[0], touched[1]))
        return DONE

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Interleaving, "issue", watched)
        run_function(module, name, arguments)
    return found


def _touched(touch: Touch, arguments: Sequence[Any]) -> set[tuple[str, int, int]]:
    array = array_of(touch.memref)
    at: int = array.__array_interface__["data"][0]
    chosen = np.ones(array.shape, np.bool_)
    if isinstance(touch.region, np.ndarray):
        chosen = touch.region
    elif touch.region is not None:
        chosen[...] = False
        chosen[touch.region] = True
    starts = [
        at + sum(int(index) * stride for index, stride in zip(each, array.strides, strict=True))
        for each in np.argwhere(chosen)
    ]
    space, storage, base = _home(touch.memref, at, arguments)
    return {(space, storage, start - base + byte) for start in starts for byte in range(array.itemsize)}


def _home(memref: Any, at: int, arguments: Sequence[Any]) -> tuple[str, int, int]:
    """The space and the storage of a memref, and where it begins."""
    if isinstance(memref, TaggedBuffer):
        data = memref.scope.data
        return memref.scope.title.removeprefix('scope "').removesuffix('"'), 0, data.__array_interface__["data"][0]
    for number, argument in enumerate(arguments):
        base = argument.__array_interface__["data"][0]
        if base <= at < base + max(1, argument.nbytes):
            return "dram", number + 1, base
    raise AssertionError("an array that is no argument")
