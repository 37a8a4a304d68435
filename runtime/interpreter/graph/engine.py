# SPDX-License-Identifier: Apache-2.0
"""Runs a graph: op by op, in order, keeping each value until its last use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.element_bits import DType
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.functions import NAME, attribute_text, body_block
from penstock.dialects.graph import ConstantOp, FusedOp, IfOp, LoopOp, YieldOp, tensor_of
from penstock.dialects.upstream.cf import TOO_MANY_TRIPS
from penstock.dialects.verification import require_dominance
from penstock.dialects.weights import Array, WeightStore
from penstock.runtime.interpreter.graph.registry import implementation_of
from penstock.runtime.interpreter.values import dense_array

Listener = Callable[[Operation, Sequence[Array]], None]
"""Called after each op, those in groups included, with the op and the values of its results."""


def run_graph(
    func_or_module: FuncOp | ModuleOp,
    inputs: Sequence[Array],
    weights: WeightStore,
    *,
    listener: Listener | None = None,
) -> list[Array]:
    """
    The results of a graph-level function, of `@main` in the case of a module.

    `inputs` are the arguments in order, of exactly their types; `#graph.weight` constants come from
    `weights`. Intermediate values are dropped after their last use, so that the peak of memory is that of
    the graph in this order. What is returned belongs to the caller.

    Raises UserError if there is no `@main`, if an input has another type, and (unsupported, located) at an
    op without reference semantics.
    """
    func = func_or_module if isinstance(func_or_module, FuncOp) else _main_of(func_or_module)
    block = body_block(func, "interpreted")
    require_dominance(func)
    arguments = [np.asarray(array) for array in inputs]
    _check_inputs(func, arguments)
    with np.errstate(all="ignore"):  # inf and NaN are results like others
        results = _run_block(block, arguments, weights, listener)
    return [np.array(result, order="C") for result in results]


def evaluate_op(op: Operation, operands: Sequence[Array], weights: WeightStore | None = None) -> list[Array]:
    """
    The values of the results of one op, a `graph.fused` included, possibly as views of the operands.

    `weights` is needed for constants of weights only. Raises UserError (unsupported, located) for an op
    without reference semantics.
    """
    with np.errstate(all="ignore"):
        return _evaluate(op, operands, weights, None)


def _dtype_of(element: Attribute) -> DType:
    """The NumPy type in which an element type is computed; raises UserError (unsupported) where there is none."""
    try:
        return numpy_dtype(element)
    except ValueError as error:
        raise UserError(f"cannot be interpreted: {error}", status=UNSUPPORTED) from None


def _main_of(module: ModuleOp) -> FuncOp:
    for op in module.body.block.ops:
        if isinstance(op, FuncOp) and op.sym_name.data == "main":
            return op
    raise UserError("the module has no func.func @main", loc=module.location)


def _check_inputs(func: FuncOp, inputs: Sequence[Array]) -> None:
    block = func.body.block
    if len(inputs) != len(block.args):
        raise UserError(
            f"@{func.sym_name.data} takes {len(block.args)} inputs, {len(inputs)} are given",
            loc=func.location,
        )
    for index, (argument, array) in enumerate(zip(block.args, inputs, strict=True)):
        if not isa(argument.type, TensorType):
            raise UserError(
                f"input {index} of @{func.sym_name.data} is an {argument.type}, and a graph takes tensors",
                loc=location_of(func),
                notes=["lower it first, with graph-to-tensor: functions on tensors take scalars, too"],
                status=UNSUPPORTED,
            )
        tensor = tensor_of(argument)
        dtype, shape = _dtype_of(tensor.element_type), tensor.get_shape()
        if array.dtype == dtype and array.shape == shape:
            continue
        named = attribute_text(func, index, NAME)
        name = f' ("{named}")' if named is not None else ""
        raise UserError(
            f"input {index}{name} must be {dtype}{list(shape)}, found {array.dtype}{list(array.shape)}",
            loc=func.location,
        )


def _run_block(
    block: Block,
    arguments: Sequence[Array],
    weights: WeightStore | None,
    listener: Listener | None,
) -> list[Array]:
    """The values of the operands of the terminator."""
    last_use: dict[SSAValue, Operation] = {operand: op for op in block.ops for operand in op.operands}
    values: dict[SSAValue, Array] = dict(zip(block.args, arguments, strict=True))
    for op in block.ops:
        operands = [values[operand] for operand in op.operands]
        if isinstance(op, ReturnOp | YieldOp):
            return operands
        for operand in op.operands:
            if last_use[operand] is op:
                values.pop(operand, None)  # once, if it is an operand twice
        results = _evaluate(op, operands, weights, listener)
        if listener is not None:
            listener(op, results)
        for result, array in zip(op.results, results, strict=True):
            if result in last_use:
                values[result] = array
    parent = block.parent_op()
    raise UserError("a graph ends in func.return", loc=location_of(parent) if parent else None)


def _evaluate(
    op: Operation,
    operands: Sequence[Array],
    weights: WeightStore | None,
    listener: Listener | None,
) -> list[Array]:
    match op:
        case FusedOp():
            return _run_block(op.body.block, operands, weights, listener)
        case IfOp():
            taken = op.then_body if operands[0].item() else op.else_body
            return _run_block(taken.block, operands[1:], weights, listener)
        case LoopOp():
            return _run_loop(op, operands, weights, listener)
        case ConstantOp():
            results = (_constant(op, weights),)
        case _:
            implementation = implementation_of(type(op))
            if implementation is None:
                raise UserError(
                    f"{op.name} has no reference semantics at graph level",
                    loc=location_of(op),
                    notes=["register them with penstock.runtime.interpreter.graph.implements"],
                    status=UNSUPPORTED,
                )
            found = implementation(op, operands)
            results = found if isinstance(found, tuple) else (found,)
    arrays = [np.asarray(result) for result in results]
    for result, array in zip(op.results, arrays, strict=True):
        tensor = tensor_of(result)
        if array.shape != tensor.get_shape() or array.dtype != _dtype_of(tensor.element_type):
            raise TypeError(f"{op.name} computed {array.dtype}{list(array.shape)} as a {tensor}")
    return arrays


def _run_loop(
    op: LoopOp, operands: Sequence[Array], weights: WeightStore | None, listener: Listener | None
) -> list[Array]:
    given = iter(operands)
    count = None if op.count is None else int(next(given).item())
    goes_on = op.condition is None or bool(next(given).item())
    carried, slices, inputs = ([next(given) for _ in each] for each in (op.inits, op.slices, op.inputs))
    most = op.most
    wanted = most if op.is_counted else count
    carries = len(carried)
    types = [tensor_of(value) for value in op.outputs[carries:]]
    stacked = [np.zeros(each.get_shape(), _dtype_of(each.element_type)) for each in types]
    done = 0
    while goes_on and (wanted is None or done < wanted):
        if most is not None and done == most:
            raise UserError(TOO_MANY_TRIPS.format(most), loc=location_of(op))
        number = most - 1 - done if op.reverse is not None and most is not None else done
        index = np.asarray(number, np.int64)
        yielded = _run_block(
            op.body.block, [index, *carried, *(each[number] for each in slices), *inputs], weights, listener
        )
        if op.condition is not None:
            goes_on = bool(yielded.pop(0).item())
        carried = yielded[:carries]
        for lines, line in zip(stacked, yielded[carries:], strict=True):
            lines[number] = line
        done += 1
    return [*carried, *stacked]


def _constant(op: ConstantOp, weights: WeightStore | None) -> Array:
    name = op.weight
    if name is None:
        return dense_array(op.dense, _dtype_of(op.dense.get_element_type()))
    if weights is None:
        raise UserError(f'the weight "{name}" is needed', loc=location_of(op))
    try:
        array = weights[name]
    except UserError as error:
        raise UserError(error.message, loc=location_of(op), notes=error.notes) from None
    tensor = op.result_type
    if array.shape != tensor.get_shape() or array.dtype != _dtype_of(tensor.element_type):
        raise UserError(
            f'weight "{name}" is {array.dtype}{list(array.shape)} in the store, a {tensor} in the IR',
            loc=location_of(op),
        )
    return array
