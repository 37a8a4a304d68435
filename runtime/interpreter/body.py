# SPDX-License-Identifier: Apache-2.0
"""The body of a `linalg.generic` or of a `tensor.pad`, compiled once to a function on whole arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects import arith
from xdsl.dialects.linalg.ops import IndexOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import IsTerminator

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.runtime.interpreter.arithmetic import ARITHMETIC, constant_of
from penstock.runtime.interpreter.values import has_own_dtype


@dataclass(frozen=True)
class CompiledBody:
    """A block of scalar ops as a function on arrays that broadcast against each other."""

    function: Callable[..., tuple[Any, ...]]
    """From the block's arguments, the indices of `index_dims`, and what is captured, to what the block yields."""
    reads: tuple[bool, ...]
    """For each block argument whether it is used."""
    index_dims: tuple[int, ...]
    """The dims whose index the body reads."""


def captured_values(op: Operation) -> tuple[SSAValue, ...]:
    """The values from outside that the regions of `op` use, each once, in the order of their first use."""
    inside: set[SSAValue] = set()
    captured: dict[SSAValue, None] = {}
    for region in op.regions:
        for block in region.blocks:
            inside.update(block.args)
        for nested in region.walk():
            for nested_region in nested.regions:
                for block in nested_region.blocks:
                    inside.update(block.args)
            captured.update((operand, None) for operand in nested.operands if operand not in inside)
            inside.update(nested.results)
    return tuple(captured)


def accumulation(block: Block) -> tuple[Operation, SSAValue] | None:
    """The op that yields `combine(accumulator, term)`, and the term, where the last argument is an accumulator."""
    terminator, accumulator = block.last_op, block.args[-1]
    assert terminator is not None
    total = terminator.operands[0].owner
    if not isinstance(total, Operation) or accumulator not in total.operands or len(list(accumulator.uses)) != 1:
        return None
    if len(total.operands) != 2 or not has_own_dtype(accumulator.type):
        return None
    return total, next(operand for operand in total.operands if operand is not accumulator)


def compile_block(block: Block, captured: Sequence[SSAValue] = ()) -> CompiledBody:
    """
    Compile a block of `arith`, `math` and `linalg.index` ops, which uses `captured` from outside.

    Scalars are passed to it as NumPy scalars, so that arithmetic stays in their type. Raises UserError
    (unsupported) at an op that has no elementwise meaning.
    """
    terminator = block.last_op
    assert terminator is not None
    assert terminator.has_trait(IsTerminator)
    ops = [op for op in block.ops if op is not terminator]
    return compile_expression(block.args, ops, terminator.operands, captured)


def compile_expression(
    args: Sequence[SSAValue],
    ops: Sequence[Operation],
    results: Sequence[SSAValue],
    captured: Sequence[SSAValue] = (),
) -> CompiledBody:
    """The function from `args` to `results` that `ops` compute, one after another."""
    names: dict[SSAValue, str] = {arg: f"a{number}" for number, arg in enumerate(args)}
    bindings: dict[str, Any] = {}
    index_dims = tuple(sorted({op.dim.value.data for op in ops if isinstance(op, IndexOp)}))
    lines: list[str] = []
    names.update((value, f"c{number}") for number, value in enumerate(captured))
    for number, op in enumerate(ops):
        if isinstance(op, IndexOp):
            names[op.result] = f"i{op.dim.value.data}"
        elif isinstance(op, arith.ConstantOp):
            names[op.result] = f"k{number}"
            bindings[f"k{number}"] = constant_of(op)
        else:
            names[op.results[0]] = f"v{number}"
            bindings[f"f{number}"] = _function_of(op)
            operands = ", ".join(names[operand] for operand in op.operands)
            lines.append(f"    v{number} = f{number}({operands})")
    parameters = [*(names[arg] for arg in args), *(f"i{dim}" for dim in index_dims)]
    parameters += [names[value] for value in captured]
    yielded = "".join(f"{names[value]}, " for value in results)
    source = "\n".join([f"def body({', '.join(parameters)}):", *lines, f"    return ({yielded})"])
    exec(compile(source, "<body of a generic>", "exec"), bindings)
    used = {operand for op in ops for operand in op.operands} | set(results)
    return CompiledBody(bindings["body"], tuple(arg in used for arg in args), index_dims)


def _function_of(op: Operation) -> Callable[..., Any]:
    rule = ARITHMETIC.get(type(op))
    if rule is None:
        raise UserError(f"{op.name} has no elementwise meaning", loc=location_of(op), status=UNSUPPORTED)
    return rule.on_arrays(op)
