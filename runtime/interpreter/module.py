# SPDX-License-Identifier: Apache-2.0
"""Running a module at any level: the reference semantics in one call."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from xdsl.dialects.builtin import DYNAMIC_INDEX, MemRefType, ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation
from xdsl.ir.affine import AffineSymExpr
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.element_bits import stored
from penstock.dialects.functions import (
    NAME,
    OUTPUT,
    WEIGHT,
    attribute_text,
    bounds_of,
    entry_block,
    shape_map,
)
from penstock.dialects.mem import memref_of
from penstock.dialects.verification import find_invalid
from penstock.dialects.weights import Array, WeightStore

# Imported for its registrations.
from penstock.runtime.interpreter import below_graph
from penstock.runtime.interpreter.counters import Counters
from penstock.runtime.interpreter.execution import Execution
from penstock.runtime.interpreter.graph import implementation_of, run_graph
from penstock.runtime.interpreter.interleaving import Order
from penstock.runtime.interpreter.scopes import undefined_memref
from penstock.runtime.interpreter.source import Listener
from penstock.runtime.interpreter.values import dtype_of

__all__ = ["below_graph", "main_arguments", "run_function", "run_module"]


def run_module(
    module: ModuleOp,
    inputs: Sequence[Array],
    weights: WeightStore,
    *,
    seed: int | None = None,
    interleaving: Order = "program",
    listener: Listener | None = None,
    counters: Counters | None = None,
    ordered: bool = False,
) -> list[Array]:
    """
    Run `@main` of a module at any level on `inputs` and return its outputs, which belong to the caller.

    Below graph level, arguments with `graph.weight` are taken from `weights`, and those with `graph.output` are
    made, given to `@main` and returned; integers are signless there, so unsigned arrays are seen as signed.

    `interleaving` is the order in which the commands of the units happen (see `interleaving.Order`): "program",
    "asap" (as soon as possible), "alap" (as late as possible), or the number that one is drawn with, for which `seed`
    is short. In all but program order, two commands that touch the same bytes, one of them writing, and that nothing
    orders, are an error. `ordered` takes sums of floats in the order of the loops, bit for bit, instead of on BLAS.
    `listener` is called after each op with the values of its results and operands (at graph level of its results
    alone), `counters` is filled.

    Raises UserError for an input or a weight of another type, an op that is not interpreted (status 3, located),
    and every fault of the program that shows when it runs, such as reading undefined bytes of a scope.
    """
    main = _function(module, "main")

    def heard(op: Operation, results: Sequence[Array]) -> None:
        if listener is not None:
            listener(op, results, ())

    with _invalid_is_a_user_error(module):
        if _is_graph(main):
            return run_graph(module, inputs, weights, listener=None if listener is None else heard)
        execution = Execution(
            module, seed=seed, interleaving=interleaving, ordered=ordered, counters=counters, listener=listener
        )
        arguments, outputs = main_arguments(main, inputs, weights)
        results = execution.run("main", arguments)
    if outputs:
        return outputs
    return [np.array(result, order="C") for result in results]


def run_function(
    module: ModuleOp,
    name: str,
    args: Sequence[Any],
    *,
    seed: int | None = None,
    interleaving: Order = "program",
    listener: Listener | None = None,
    counters: Counters | None = None,
    ordered: bool = False,
) -> list[Any]:
    """
    Call a function below graph level with arrays and Python numbers as they are, and return its results.

    Memrefs are written in place. Options and faults are those of `run_module`.
    """
    function = _function(module, name)
    arguments = entry_block(function, "interpreted").args
    if len(args) != len(arguments):
        raise UserError(f"@{name} takes {len(arguments)} arguments, {len(args)} are given", loc=location_of(function))
    with _invalid_is_a_user_error(module):
        execution = Execution(
            module, seed=seed, interleaving=interleaving, ordered=ordered, counters=counters, listener=listener
        )
        return list(execution.run(name, list(args)))


@contextmanager
def _invalid_is_a_user_error(module: ModuleOp) -> Generator[None]:
    """What goes wrong in a module that does not verify is the fault of the op that does not, and of no code here."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if (found := find_invalid(module)) is None:
            raise
        op, message, notes = found
        raise UserError(message, loc=None if op is None else location_of(op), notes=notes) from error


def _function(module: ModuleOp, name: str) -> FuncOp:
    for op in module.body.block.ops:
        if isinstance(op, FuncOp) and op.sym_name.data == name and op.body.blocks:
            return op
    raise UserError(f"the module has no func.func @{name} with a body", loc=location_of(module))


def _is_graph(function: FuncOp) -> bool:
    """Whether the body holds graph ops, ours or a plug-in's."""
    return any(op.name.startswith("graph.") or implementation_of(type(op)) is not None for op in function.walk())


def main_arguments(main: FuncOp, inputs: Sequence[Array], weights: WeightStore) -> tuple[list[Any], list[Array]]:
    """The arguments of `@main`, and those among them that are its outputs."""
    arguments: list[Any] = []
    outputs: list[Array] = []
    given = list(inputs)
    block = entry_block(main, "interpreted")
    special = (WEIGHT, OUTPUT)
    sizes: list[int] = []
    wanted = [arg for arg in block.args if all(attribute_text(main, arg.index, key) is None for key in special)]
    if len(wanted) != len(given):
        raise UserError(f"@main takes {len(wanted)} inputs, {len(given)} are given", loc=location_of(main))
    if bounds := bounds_of(main):
        sizes = _sizes_of(main, bounds, wanted, given)
    for argument in block.args:
        if (weight := attribute_text(main, argument.index, WEIGHT)) is not None:
            arguments.append(_checked(main, argument, weights[weight], f'weight "{weight}"'))
        elif argument in wanted:
            name = attribute_text(main, argument.index, NAME)
            title = f'input "{name}"' if name is not None else f"input {argument.index}"
            arguments.append(_checked(main, argument, given.pop(0), title))
        else:
            type = memref_of(argument)
            if (shape := shape_map(main, argument.index)) is not None:
                type = MemRefType(type.element_type, shape.eval([], sizes))
            outputs.append(undefined_memref(type, dtype_of(type.element_type, main)))
            arguments.append(outputs[-1])
    return arguments, outputs


def _sizes_of(
    main: FuncOp, bounds: Mapping[str, int], arguments: Sequence[BlockArgument], arrays: Sequence[Array]
) -> list[int]:
    """The sizes that only a run knows, as the inputs have them; raises UserError where one is past its bound."""
    found: dict[int, int] = {}
    for argument, array in zip(arguments, arrays, strict=True):
        shape = shape_map(main, argument.index)
        for size, given in zip(() if shape is None else shape.results, np.shape(array), strict=False):
            if isinstance(size, AffineSymExpr) and found.setdefault(size.position, given) != given:
                name = list(bounds)[size.position]
                raise UserError(f"{name} is {found[size.position]} and {given}", loc=location_of(main))
    for place, (name, most) in enumerate(bounds.items()):
        if not 1 <= found.get(place, 0) <= most:
            message = f"{name} is from 1 to {most}, but {found.get(place, 'not given')} in this run"
            raise UserError(message, loc=location_of(main))
    return [found[place] for place in range(len(bounds))]


def _checked(main: FuncOp, argument: BlockArgument, array: Array, title: str) -> Any:
    """`array` as an argument that nothing writes to, or its only element where `@main` takes a scalar."""
    shape, element = _shape_and_element(argument)
    dtype = dtype_of(element, main)
    array = stored(np.asarray(array))
    if array.dtype.kind == "u" and dtype.kind == "i" and array.dtype.itemsize == dtype.itemsize:
        array = array.view(dtype)
    fits = len(array.shape) == len(shape) and all(
        wanted in (size, DYNAMIC_INDEX) for size, wanted in zip(array.shape, shape, strict=True)
    )
    if array.dtype != dtype or not fits:
        raise UserError(
            f"{title} is {_spell(array.shape, array.dtype)}, @main takes {_spell(shape, dtype)}",
            loc=location_of(main),
        )
    if not isa(argument.type, TensorType | MemRefType):
        return array[()] if dtype.kind == "f" else array.item()
    view = array.view()
    view.flags.writeable = False
    return view


def _shape_and_element(argument: BlockArgument) -> tuple[tuple[int, ...], Attribute]:
    if isa(argument.type, TensorType | MemRefType):
        return argument.type.get_shape(), argument.type.element_type
    return (), argument.type


def _spell(shape: Sequence[int], dtype: np.dtype[Any]) -> str:
    return f"{'x'.join(str(size) for size in shape) or 'a scalar'} of {dtype}"
