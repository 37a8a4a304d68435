# SPDX-License-Identifier: Apache-2.0
"""What a loop reads and writes line by line, as lines of `graph.loop`: nothing is copied whole in each iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.graph import GatherOp, ReshapeOp, ScatterNdOp, tensor_of, tensor_type
from penstock.lowering.from_mlir.trip_counts import values_in
from penstock.passes.graph.terms import Term


@dataclass
class Lines:
    """What a body reads and writes by lines."""

    slices: list[SSAValue] = field(default_factory=list[SSAValue])
    """What is read, a line in each iteration, in the order of the block's last arguments."""
    written: dict[int, tuple[SSAValue, list[int]]] = field(default_factory=dict[int, tuple[SSAValue, list[int]]])
    """Of what is carried, by its number: the line that each iteration writes, and where it goes."""


def lines_of(
    code: Any, block: Block, state: Sequence[SSAValue], nexts: list[SSAValue], inits: Sequence[SSAValue], trips: int
) -> Lines:
    """
    Rewrite the body of a loop of `trips` iterations, whose arguments are in `state` and which gives `nexts`.

    A gather of one line of what is outside, at a place that is known and another one in each iteration, becomes an
    argument behind the others; the outside is put in the order of the iterations before the loop. What is carried and
    only gets a line in each iteration, at such places, is to be put together behind it, by `code`, from the lines: see
    `together`. Where places come again the lines of all iterations may be far more than what they are lines of.
    What takes the place of a value of `nexts` takes it in the list as well.
    """
    found, body = Lines(), (block, state, nexts)

    def places(indices: SSAValue) -> list[int] | None:
        if tensor_of(indices).element_count() != 1:
            return None
        known = values_in(code, indices, body, inits, trips)
        at = [int(array.item()) for array in known or ()]
        return at if known is not None and len(set(at)) == len(at) else None

    for op in list(block.ops):
        if not isinstance(op, GatherOp) or op.axis.value.data != 0 or _is_inside(op.x, block):
            continue
        if (at := places(op.indices)) is None:
            continue
        type = tensor_of(op.x)
        line = block.insert_arg(tensor_type(type.element_type, type.get_shape()[1:]), len(block.args))
        found.slices.append(_in_order(code, op.x, at))
        shaped = ReshapeOp(line, tensor_of(op.result).get_shape())
        shaped.location = op.location
        nexts[:] = [shaped.result if value is op.result else value for value in nexts]
        Rewriter.replace_op(op, shaped)
    for number, value in enumerate(nexts):
        op, argument = value.owner, state[number]
        if (
            not isinstance(op, ScatterNdOp)
            or op.parent is not block
            or op.x is not argument
            or op.reduction.data != "none"
        ):
            continue
        if len(list(argument.uses)) > 1 or list(value.uses) or nexts.count(value) > 1 or argument in nexts:
            continue
        if (
            argument not in block.args
            or tensor_of(op.indices).get_shape()[-1] != 1
            or (at := places(op.indices)) is None
        ):
            continue
        line = ReshapeOp(op.updates, tensor_of(argument).get_shape()[1:])
        line.location = op.location
        Rewriter.insert_op(line, InsertPoint.before(op))
        Rewriter.erase_op(op)
        found.written[number] = line.result, at
    return found


def together(code: Any, init: SSAValue, lines: Term, at: Sequence[int]) -> Term:
    """What `init` is after all iterations, each of which has written its line at a place of its own."""
    rows = tensor_of(init).get_shape()[0]
    order = sorted(range(len(at)), key=at.__getitem__)
    if order != list(range(len(at))):
        lines = code.emit(GatherOp(lines.value, code.array(np.asarray(order), "order").value, axis=0))
    if len(order) == rows:
        return lines
    return code.emit(ScatterNdOp(init, code.array(np.asarray(sorted(at))[:, None], "places").value, lines.value))


def _in_order(code: Any, x: SSAValue, at: Sequence[int]) -> SSAValue:
    if list(at) == list(range(tensor_of(x).get_shape()[0])):
        return x
    return code.emit(GatherOp(x, code.array(np.asarray(at), "places").value, axis=0)).value


def _is_inside(value: SSAValue, block: Block) -> bool:
    return value.owner is block or (isinstance(value.owner, Operation) and value.owner.parent is block)
