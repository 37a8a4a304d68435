# SPDX-License-Identifier: Apache-2.0
"""What memory off chip holds before, between and after the launches of a program, as our own interpreter has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from xdsl.dialects import memref
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from penstock.dialects import functions
from penstock.dialects.functions import attribute_text
from penstock.dialects.weights import WeightStore
from penstock.lowering.to_vta.module import VtaModule
from penstock.passes.analysis.commands.program import View
from penstock.runtime.interpreter import array_of, main_arguments, run_function
from penstock.runtime.signature import main_function

Array = NDArray[Any]

INPUT, WEIGHT, CONSTANT, OUTPUT, INTERMEDIATE = "input", "weight", "constant", "output", "intermediate"


@dataclass(frozen=True)
class Origin:
    """What a memref of `@main` is a view of."""

    name: str
    role: str


@dataclass(frozen=True)
class Observation:
    """A run of a program."""

    dram: NDArray[np.uint8]
    """Memory off chip at the beginning: inputs, weights and constants; micro-operations are not in it."""
    after: tuple[tuple[Array | None, ...], ...]
    """For each step what its arguments off chip hold when it is done."""
    origins: tuple[tuple[Origin | None, ...], ...]
    """For each step where its arguments off chip come from."""
    outputs: tuple[Array, ...]


def view_of(dram: NDArray[np.uint8], address: int, view: View, dtype: np.dtype[Any]) -> Array:
    """The elements of a view of which the first is at `address`, in place."""
    return elements_at(dram, address, view.shape, view.strides, dtype)


def elements_at(
    dram: NDArray[np.uint8], address: int, shape: Sequence[int], strides: Sequence[int], dtype: np.dtype[Any]
) -> Array:
    """The elements of that shape, with strides in bytes, of which the first is at `address`, in place."""
    start = dram[address:]
    return as_strided(start[: start.size - start.size % dtype.itemsize].view(dtype), shape, strides)


def observe(module: ModuleOp, encoded: VtaModule, inputs: Sequence[Array], weights: WeightStore) -> Observation:
    """Interpret `@main` at the accelerator level on `inputs`, in the order of the program."""
    main = main_function(module)
    arguments, outputs = main_arguments(main, inputs, weights)
    for output in outputs:  # off chip, memory is zero at the beginning
        output[...] = 0
    values: dict[SSAValue, Any] = dict(zip(main.body.block.args, arguments, strict=True))
    dram = np.zeros(encoded.micro_ops.base, np.uint8)
    after: list[tuple[Array | None, ...]] = []
    origins: list[tuple[Origin | None, ...]] = []

    def listen(op: Operation, results: Sequence[Any], _: Sequence[Any]) -> None:
        if op.parent is not main.body.block:
            return
        values.update(zip(op.results, results, strict=True))
        if isinstance(op, CallOp):
            step = encoded.steps[len(after)]
            assert step.op is op
            found: list[Array | None] = []
            known: list[Origin | None] = []
            for value, view in zip(op.arguments, step.arguments, strict=True):
                if view is None:
                    found.append(None)
                    known.append(None)
                    continue
                array = array_of(values[value])
                origin = _origin(main, value)
                if origin.role in (INPUT, WEIGHT, CONSTANT):
                    view_of(dram, encoded.address(view), view, array.dtype)[...] = array
                found.append(np.array(array))
                known.append(origin)
            after.append(tuple(found))
            origins.append(tuple(known))

    run_function(module, "main", arguments, listener=listen)
    return Observation(dram, tuple(after), tuple(origins), tuple(outputs))


_ROLES = ((functions.WEIGHT, WEIGHT), (functions.OUTPUT, OUTPUT), (functions.NAME, INPUT))


def _origin(main: FuncOp, value: SSAValue) -> Origin:
    while isinstance(value.owner, Operation) and value.owner.operands:
        value = value.owner.operands[0]
    if isinstance(value, BlockArgument):
        for key, role in _ROLES:
            if (name := attribute_text(main, value.index, key)) is not None:
                return Origin(name, role)
        return Origin(value.name_hint or f"input_{value.index}", INPUT)
    if isinstance(value.owner, memref.GetGlobalOp):
        return Origin(value.owner.name_.string_value(), CONSTANT)
    return Origin(value.name_hint or "", INTERMEDIATE)
