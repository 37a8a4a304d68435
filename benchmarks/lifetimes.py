# SPDX-License-Identifier: Apache-2.0
"""What a graph keeps in memory from operator to operator: buffers with lifetimes, and tensors with their accesses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from penstock.dialects.diagnostics import UserError
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.functions import body_block
from penstock.dialects.graph import ConstantOp, PatternKind, pattern_kind, tensor_of
from penstock.passes.graph.expose_values import name_of
from penstock.passes.graph.fusion.nodes import is_graph_op
from penstock.passes.graph.values import is_constant, is_view, require_static
from penstock.passes.planning.on_chip.problem import OnChipProblem, Tensor, TensorAccess
from penstock.passes.planning.problem import Buffer, Problem

Weights = Literal["none", "used", "prefetched"]
"""Whether weights count, from the operator that uses them on, or from the one before it."""


@dataclass(frozen=True)
class Lifetimes:
    """What counts, and for how much."""

    element_bytes: int | None = None
    """Bytes of an element of every tensor, whatever its type: 1 for a network that is going to be int8."""
    inputs: bool = True
    """Whether the inputs lie in the memory too, from the beginning to their last use."""
    outputs: bool = True
    """Whether what the graph returns lies in the memory until the end. (It is computed there in any case.)"""
    weights: Weights = "none"
    in_place: bool = False
    """Whether an elementwise operator writes over its one operand that is no weight, if nothing else reads that."""
    alignment: int = 1


@dataclass
class _Value:
    """A tensor that needs room: an input, a weight, or what an operator computes."""

    id: str
    size: int
    made: int | None
    """The operator that computes it; None for inputs and weights."""
    kind: str
    is_weight: bool = False
    returned: bool = False
    reads: dict[int, int] = field(default_factory=dict[int, int])
    """Bytes read by each operator, at most its size."""


class _Values:
    """The values of one block that need room, and when they are accessed."""

    def __init__(self, block: Block, options: Lifetimes, time: Callable[[Operation], float] | None = None):
        self.options = options
        self.operators = 0
        self.compute: list[float] = []
        """By operator, if a time is given."""
        self._time = time
        self.found: list[_Value] = []
        self._roots: dict[SSAValue, _Value] = {}
        """What each value of the block lies in."""
        self._names: dict[str, int] = {}
        for index, argument in enumerate(block.args):
            self._add(argument, argument.name_hint or f"input{index}", None, f"input {_shape(argument)}")
        for op in block.ops:
            if isinstance(op, ReturnOp):
                for operand in op.operands:
                    if operand in self._roots:
                        self._roots[operand].returned = True
            elif is_graph_op(op) and not is_constant(op.results[0]):
                self._visit(op)
            elif not isinstance(op, ConstantOp) and not is_graph_op(op):
                raise UserError(f"{op.name} is no operator of a graph", loc=op.location)

    def bytes_of(self, value: SSAValue) -> int:
        """Of a tensor, as it counts."""
        tensor = tensor_of(value)
        element = self.options.element_bytes
        return prod(tensor.get_shape()) * (numpy_dtype(tensor.element_type).itemsize if element is None else element)

    def _add(self, value: SSAValue, name: str, made: int | None, kind: str) -> _Value:
        number = self._names.get(name, 0)
        self._names[name] = number + 1
        found = _Value(f"{name}.{number}" if number else name, self.bytes_of(value), made, kind)
        self.found.append(found)
        self._roots[value] = found
        return found

    def _visit(self, op: Operation) -> None:
        result = op.results[0]
        if is_view(op):
            self._roots[result] = self._roots[op.operands[0]]
            return
        over = self._overwritten(op) if self.options.in_place else None
        step = self.operators
        if over is not None and (made := self._roots[over].made) is not None:
            step = made
        self._spend(op, step)
        for operand in dict.fromkeys(op.operands):
            if operand is over:
                continue
            if operand in self._roots:
                self._read(self._roots[operand], step, self.bytes_of(operand))
            elif self.options.weights != "none":
                self._read_weights(operand, step)
        if over is not None:
            self._roots[result] = self._roots[over]
            return
        self._add(result, name_of(op) or result.name_hint or op.name, step, f"{op.name} {_shape(result)}")
        self.operators += 1

    def _spend(self, op: Operation, step: int) -> None:
        if self._time is not None:
            self.compute += [0.0] * (step + 1 - len(self.compute))
            self.compute[step] += self._time(op)

    def _read(self, value: _Value, step: int, size: int) -> None:
        value.reads[step] = min(value.reads.get(step, 0) + size, value.size)

    def _read_weights(self, operand: SSAValue, step: int) -> None:
        """Count what an operator reads that is computed from constants alone, a view as what it is a view of."""
        while isinstance(owner := operand.owner, Operation) and is_view(owner):
            operand = owner.operands[0]
        if operand not in self._roots:
            name = (name_of(owner) if isinstance(owner, Operation) else "") or operand.name_hint or "weight"
            self._add(operand, name, None, f"weight {_shape(operand)}").is_weight = True
        self._read(self._roots[operand], step, self.bytes_of(operand))

    def _overwritten(self, op: Operation) -> SSAValue | None:
        """
        The operand that an elementwise operator may write over: one of the same size that an operator computed, and
        of which it is the only user. Nothing else being read, the two are computed together.
        """
        if pattern_kind(op) not in (PatternKind.ELEMENTWISE, PatternKind.BROADCAST):
            return None
        candidates = [operand for operand in dict.fromkeys(op.operands) if operand in self._roots]
        candidates = [operand for operand in candidates if not self._roots[operand].is_weight]
        if len(candidates) != 1:
            return None
        operand = candidates[0]
        value = self._roots[operand]
        if value.made is None or value.reads or value.size != self.bytes_of(op.results[0]):
            return None
        return operand if _is_read_once(operand) else None


def _is_read_once(value: SSAValue) -> bool:
    """Whether one operator reads a value, or what it is a view of, and that value is not returned."""
    users = {use.operation for use in value.uses}
    owner = value.owner
    while isinstance(owner, Operation) and is_view(owner):
        value = owner.operands[0]
        users |= {use.operation for use in value.uses} - {owner}
        owner = value.owner
    return len(users) == 1 and not any(isinstance(user, ReturnOp) for user in users)


def _shape(value: SSAValue) -> str:
    return "x".join(map(str, tensor_of(value).get_shape()))


def _body(graph: FuncOp) -> Block:
    require_static(graph)
    return body_block(graph, "planned as a graph")


def lifetimes(graph: FuncOp, options: Lifetimes | None = None) -> Problem:
    """
    The buffers of a graph, or of one after `graph-fuse`, as a packing problem whose time counts its operators.

    Each operator and each fused group computes into one buffer, alive from its own step through that of the last one
    that reads it; views (reshapes, slices of neighbouring elements) are the buffer that they show, and what is
    computed from constants alone is a weight. Inputs live from the beginning, what is returned until the end. A
    prefetched weight lives from the step before the first one that uses it. Raises UserError for shapes that are not
    known, and for what is no graph.
    """
    values = _Values(_body(graph), given := options or Lifetimes())
    buffers: list[Buffer] = []
    for value in values.found:
        if value.made is None and not value.is_weight and not given.inputs:
            continue
        last = max(value.reads, default=0 if value.made is None else value.made)
        end = max(values.operators, 1) if value.returned and given.outputs else last + 1
        start = value.made or 0
        if value.is_weight:
            start = max(min(value.reads) - (given.weights == "prefetched"), 0)
        buffers.append(Buffer(value.id, ((start, end),), value.size, given.alignment))
    return Problem(tuple(buffers))


def on_chip_problem(
    graph: FuncOp,
    capacity: int,
    options: Lifetimes | None = None,
    *,
    workspace: tuple[int, ...] = (),
    time: Callable[[Operation], float] | None = None,
    bandwidth: float = 1.0,
) -> OnChipProblem:
    """
    What may stay in a memory of `capacity` bytes between the operators of a graph, as they are in `lifetimes`.

    Inputs lie off chip and are read from there first; what is returned has to lie there in the end. An operator that
    streams a tensor moves the bytes that it reads of it once. Weights, if they count, are sources. Whether inputs and
    outputs count in `lifetimes` makes no difference here. `time` says how long an operator, or a group, computes, and
    `bandwidth` how many bytes cross the edge of the chip in that unit.
    """
    values = _Values(_body(graph), given := options or Lifetimes(), time)
    tensors: list[Tensor] = []
    for value in values.found:
        accesses = [] if value.made is None else [TensorAccess(value.made)]
        accesses += [
            TensorAccess(step, None if count == value.size else count) for step, count in sorted(value.reads.items())
        ]
        if accesses:
            source, output = value.made is None, value.returned and value.made is not None
            tensors.append(
                Tensor(value.id, value.size, tuple(accesses), source, output, given.alignment, kind=value.kind)
            )
    return OnChipProblem(tuple(tensors), capacity, workspace, compute=tuple(values.compute), bandwidth=bandwidth)
