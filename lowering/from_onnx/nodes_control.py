# SPDX-License-Identifier: Apache-2.0
"""Importers of If, Loop and Scan, which become ops with regions unless it is known what a run decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

import numpy as np
from onnx import GraphProto
from xdsl.dialects.builtin import i64
from xdsl.ir import Block, SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import require, tensor_type
from penstock.lowering.from_onnx.node import Held, OnnxNode, TensorSequence, Unsupported, imports, one_of
from penstock.passes.graph.terms import Term
from penstock.passes.graph.values import isolate

State: TypeAlias = Held | TensorSequence
"""What a graph inside gives, or a loop carries."""


def _as_values(node: OnnxNode, results: Sequence[State], graph_name: str) -> list[SSAValue]:
    """What a graph inside gives, as values."""
    outputs = node.graph(graph_name).output
    return [_as_value(node, held, output.name) for held, output in zip(results, outputs, strict=True)]


def _as_value(node: OnnxNode, held: State, name: str) -> SSAValue:
    if isinstance(held, TensorSequence):
        raise Unsupported(f'its "{name}" is a sequence, which {held.origin[0]} makes')
    return held if isinstance(held, SSAValue) else node.builder.constant(held, name)


def _known(results: Sequence[State | None]) -> list[State] | None:
    return None if any(held is None for held in results) else cast(list[State], results)


@imports("If")
def if_(node: OnnxNode) -> Sequence[State] | None:
    """The outputs of the branch that a constant condition takes, or of both behind one that a run computes."""
    condition = node.held(0)
    if not isinstance(condition, SSAValue):
        return _known(node.run_inner("then_branch" if one_of(condition, "condition") else "else_branch"))
    blocks, found = list[Block](), list[list[SSAValue]]()
    for name in ("then_branch", "else_branch"):
        with node.code.region() as block:
            blocks.append(block)
            if (results := _known(node.run_inner(name))) is not None:
                found.append(_as_values(node, results, name))
    if len(found) < len(blocks):
        return None
    types = [[tensor_of(value) for value in values] for values in found]
    if types[0] != types[1]:
        left, right = (" and ".join(map(str, each)) for each in types)
        raise Unsupported(f"its then_branch gives {left}, its else_branch {right}")
    for block, values in zip(blocks, found, strict=True):
        block.add_op(graph.YieldOp(*values))
    op = graph.IfOp(condition, isolate(blocks), blocks[0], blocks[1], types[0])
    node.builder.append(op, node.name)
    return list(op.outputs)


class _Gap(Exception):
    """What a graph inside gives cannot be known: what is in the way has been noted."""


MOST_UNROLLED = 64
"""Iterations of a loop that are written out where they differ in more than numbers: in sizes, as a rule."""


@imports("Loop")
def loop(node: OnnxNode) -> Sequence[State | None] | None:
    """
    A `graph.loop`, which is counted where the number of iterations is known and nothing can end it before.

    Where that number is known, and small, and there is no loop of one body for it, its iterations are written out.
    """
    count, condition = (node.inputs[number] if node.has(number) else None for number in (0, 1))
    trips = None if count is None or isinstance(count, SSAValue) else max(0, int(one_of(count, "trip count")))
    if condition is not None and not isinstance(condition, SSAValue):
        trips = trips if one_of(condition, "condition") else 0
        condition = None
    inits: list[State] = [node.sequences.get(n) or node.held(n) for n in range(2, len(node.inputs))]
    body = node.graph("body")
    require(len(body.input) == 2 + len(inits), f"its body takes {len(body.input)} values, not {2 + len(inits)}")
    require(len(body.output) > len(inits), f"its body gives {len(body.output)} values, and carries {len(inits)}")
    if trips == 0:
        if any(node.used_outputs[len(inits) :]):
            # No tensor is empty: there is one line, and their number says that it is none of the model's.
            count = node.constant(np.asarray(0, np.int64), "none")
            return _as_loop(node, 1, None, inits, count)
        return [*inits, *[None] * (len(node.used_outputs) - len(inits))]
    if trips is None or trips > MOST_UNROLLED or condition is not None:
        return _as_loop(node, trips, condition, inits)
    found = node.builder.attempt(lambda: _as_loop(node, trips, None, inits))
    return found or _unrolled(node, trips, inits)


def _as_loop(
    node: OnnxNode,
    trips: int | None,
    condition: SSAValue | None,
    inits: Sequence[State],
    count: SSAValue | None = None,
) -> list[State | None] | None:
    """
    The results of a `graph.loop`, of `trips` iterations, or with a `count` or a `condition` of at most so many; None
    where a gap in its body keeps them from being known.
    """
    try:
        return _one_body(node, trips, condition, inits, count)
    except _Gap:
        return None


def _one_body(
    node: OnnxNode,
    trips: int | None,
    condition: SSAValue | None,
    inits: Sequence[State],
    count: SSAValue | None,
) -> list[State | None]:
    body = node.graph("body")
    passed_on = _passed_on(body)
    fixed = {number: held for number, held in enumerate(inits) if 1 + number in passed_on}
    names = [value.name for value in body.input]
    growing = {n: init for n, init in enumerate(inits) if n not in fixed and isinstance(init, TensorSequence)}
    if any(init.grows or init.lines is not None for init in growing.values()):
        raise Unsupported("it carries a sequence to which another loop appends")
    carried = {n: node.value(2 + n) for n in range(len(inits)) if n not in fixed and n not in growing}
    with node.code.region() as block:
        index = block.insert_arg(tensor_type(i64, []), 0)
        arguments = {n: block.insert_arg(value.type, len(block.args)) for n, value in carried.items()}
        begun = {n: TensorSequence((), init.origin, carried=(block, n)) for n, init in growing.items()}
        known = fixed | arguments | begun
        # In the body the condition is true.
        given = [index, np.asarray(True), *(known[n] for n in range(len(inits)))]
        if (results := _known(node.run_inner("body", given))) is None:
            raise _Gap
        values = {n: (held, body.output[1 + n].name) for n, held in enumerate(results[1:]) if n not in fixed}
        nexts = [_as_value(node, *values[n]) for n in carried]
        for (number, value), following in zip(carried.items(), nexts, strict=True):
            _check_carried(names[2 + number], value, following)
        used = [n for n in range(len(inits), len(node.used_outputs)) if node.used_outputs[n]]
        lines = [_as_value(node, _appended(names[2 + n], begun[n], values[n][0]), values[n][1]) for n in growing]
        lines += [_as_value(node, *values[n]) for n in used]
        goes_on = results[0]
        if not isinstance(goes_on, SSAValue):
            is_known = not isinstance(goes_on, TensorSequence) and one_of(goes_on, "condition") and condition is None
            goes_on = None if is_known else _as_value(node, goes_on, body.output[0].name)
        is_counted = goes_on is None and trips is not None and count is None
        done: list[SSAValue] = []
        if lines and not is_counted:
            # Only a run knows how many lines there are: they are counted.
            trips = node.builder.max_trips if trips is None else trips
            if trips is None:
                raise Unsupported(
                    "a run decides how many lines its outputs have; --max-trips N, in Python max_trips=N, says how many"
                    " there may be"
                )
            block.insert_arg(index.type, len(block.args))
            done = [(node.code.term(index) + 1).value]
        block.add_op(graph.YieldOp(*([] if goes_on is None else [goes_on]), *nexts, *done, *lines))
    if count is None and not is_counted and node.has(0):
        count = node.value(0)
    if goes_on is None and count is None and trips is None:
        raise Unsupported("it has neither a trip count nor a condition: it never ends")
    if goes_on is not None and condition is None:
        condition = node.constant(np.asarray(True), "begins")
    zero = [node.constant(np.asarray(0, np.int64), "none") for _ in done]
    op = graph.LoopOp(
        [*carried.values(), *zero],
        [],
        isolate([block]),
        block,
        trips=trips if is_counted or lines else None,
        count=count,
        condition=condition,
    )
    node.builder.append(op, node.name)
    results = list(op.outputs)
    if done:
        number = results.pop(len(carried))
        node.builder.counts.update(dict.fromkeys(results[len(carried) :], number))
    found: dict[int, State] = {**fixed, **dict(zip([*carried, *growing, *used], results, strict=True))}
    for number, init in growing.items():
        found[number] = TensorSequence(init.items, node.origin, cast(SSAValue, found[number]))
    return [found.get(number) for number in range(len(node.used_outputs))]


def _appended(name: str, begun: TensorSequence, sequence: State) -> Held:
    """What an iteration appends to a sequence that a loop carries, in whose body it is `begun`."""
    if not isinstance(sequence, TensorSequence) or sequence.carried != begun.carried:
        raise Unsupported(f'it carries the sequence "{name}", to which its body does not append')
    if len(sequence.items) != 1:
        raise Unsupported(f'its body appends {len(sequence.items)} tensors to the sequence "{name}", and not one')
    return sequence.items[0]


def _check_carried(name: str, before: SSAValue, after: SSAValue) -> None:
    if before.type != after.type:
        raise Unsupported(f'its body changes "{name}" from {before.type} to {after.type}')


def _passed_on(body: GraphProto) -> set[int]:
    """The numbers of the outputs of a body after the condition that are the inputs of that place, from 1 on."""
    makers = {name: each for each in body.node for name in each.output}
    found = set[int]()
    for number, (output, given) in enumerate(zip(body.output, list(body.input)[1:], strict=False)):
        name = output.name
        while (maker := makers.get(name)) is not None and maker.op_type == "Identity":
            name = maker.input[0]
        if number and name == given.name:
            found.add(number)
    return found


def _unrolled(node: OnnxNode, trips: int, inits: Sequence[State]) -> list[State | None] | None:
    """All iterations, one after the other."""
    state, lines = list(inits), list[list[State]]()
    for number in range(trips):
        given: list[State] = [np.asarray(number, np.int64), np.asarray(True), *state]
        if (results := _known(node.run_inner("body", given))) is None:
            return None
        goes_on, *values = results
        if isinstance(goes_on, SSAValue | TensorSequence):
            raise Unsupported("sizes change in it, and a run decides when it ends")
        state, lines = values[: len(inits)], [*lines, values[len(inits) :]]
        if not one_of(goes_on, "condition"):
            break
    name = node.name
    stacked = [
        node.code.stack([node.code.term(_as_value(node, line, name)) for line in column]).value
        for column in zip(*lines, strict=True)
    ]
    return [*state, *stacked]


@imports("Scan")
def scan(node: OnnxNode) -> Sequence[Held] | None:
    """
    A `graph.loop` that takes a line of each scan input; axes and directions are those of the tensors around it.

    Before operator set 9 everything has a batch in front, the sequences of which are scanned one after the other.
    """
    has_batch = node.opset < 9
    given = [node.code.input(number) for number in range(int(has_batch), len(node.inputs))]
    if has_batch and node.has(0):
        raise Unsupported("sequences of different lengths")
    count = node.int("num_scan_inputs", 0)
    states = len(given) - count
    require(count > 0 and states >= 0, f"{len(given)} inputs, of which {count} are scanned")
    body = node.graph("body")
    require(len(body.input) == len(given), f"its body takes {len(body.input)} values, not {len(given)}")
    require(len(body.output) >= states, f"its body gives {len(body.output)} values, and carries {states}")
    code = node.code

    def one(_: Term, state: Sequence[Term], values: Sequence[Term]) -> list[Term]:
        scanned = values[len(values) - count :]
        return _scanned(node, [*state, *values[: len(values) - count]], scanned)

    try:
        results = code.loop([], given, one) if has_batch else _scanned(node, given[:states], given[states:])
    except _Gap:
        return None
    return [each.value for each in results]


def _scanned(node: OnnxNode, inits: Sequence[Term], scanned: Sequence[Term]) -> list[Term]:
    """What is carried and the scan outputs; raises _Gap."""
    body, states, count = node.graph("body"), len(inits), len(scanned)
    stacked = len(body.output) - states

    def listed(name: str, of: int) -> list[int]:
        found = node.ints(name) or [0] * of
        require(len(found) == of, f"{name} has {len(found)} numbers, not {of}")
        return found

    axes, axes_out = listed("scan_input_axes", count), listed("scan_output_axes", stacked)
    backwards = listed("directions" if node.opset < 9 else "scan_input_directions", count)
    backwards_out = listed("scan_output_directions", stacked)
    # A loop has one direction: what goes the other way is turned around before, or after.
    reverse = all([*backwards, *backwards_out])

    def turned(x: Term, is_backwards: int) -> Term:
        return x.reversed([0]) if is_backwards and not reverse else x

    def step(_: Term, carried: Sequence[Term], lines: Sequence[Term]) -> list[Term]:
        results = _known(node.run_inner("body", [each.value for each in (*carried, *lines)]))
        if results is None:
            raise _Gap
        values = [node.code.term(each) for each in _as_values(node, results, "body")]
        for value, before, after in zip(body.input, carried, values, strict=False):
            _check_carried(value.name, before.value, after.value)
        return values

    slices = [turned(x.moved(axis, 0), back) for x, axis, back in zip(scanned, axes, backwards, strict=True)]
    results = node.code.loop(inits, slices, step, reverse=reverse)
    outputs = zip(results[states:], axes_out, backwards_out, strict=True)
    return [*results[:states], *(turned(x, back).moved(0, axis) for x, axis, back in outputs)]
