# SPDX-License-Identifier: Apache-2.0
"""
Which operation computes another value after a faulty pass: the values of both programs, place by place.

The operations of two programs correspond by their locations, which every pass keeps. A pass may compute the values of
one place tile by tile, several times, in another order or another layout, and leave out those that a later place of
the same fused operation replaces. So of each place the last operation is compared, and by the elements that it
computes: where both programs compute one array of one shape, element by element, elsewhere as a multiset, of which
nothing may be lost. Partial results that a pass adds do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Operation, SSAValue

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.diagnostics import render_location
from penstock.dialects.element_bits import stored
from penstock.dialects.graph import FusedOp
from penstock.dialects.mem import CopyOp
from penstock.lowering.line_map import origins
from penstock.passes.analysis.memory.aliases import is_memory
from penstock.passes.analysis.memory.dataflow import DataFlow
from penstock.runtime.interpreter import Listener, array_of
from penstock.runtime.interpreter.domain import OperandAccess

Array = NDArray[Any]
Run = Callable[[ModuleOp, Listener], object]
"""Runs a module, telling a listener of every operation."""
Bound = Callable[[Array], float]
"""The largest error that a value may have."""

MAX_ELEMENTS = 1 << 26
"""Programs that compute more elements than this are not compared place by place."""
_MAX_RANK = 4
"""Of arrays whose dims are tried in every order."""


@dataclass(eq=False)
class _Group:
    """All that operations of one kind compute at one place."""

    parts: tuple[str, ...]
    """The place; of a fused operation, each of those that it was made of."""
    place: str
    kind: str
    is_move: bool = False
    """Whether they only move elements."""
    inner: tuple[str, ...] = ()
    """Other places that the body of a structured operation has taken over."""
    arrays: list[Array] = field(default_factory=list[Array])
    last: int = 0
    """When it last computed something."""


class _TooMuch(Exception):
    """A program computes more than is kept."""


def first_difference(
    before: ModuleOp, after: ModuleOp, run: Run, output: Array | None = None, bound: Bound | None = None
) -> str | None:
    """
    The place of the first operation, in the order in which `before` executes them, whose value is another in `after`.

    Errors up to the `bound` of a value are none, and with one only arrays of the same shape are compared. None where no
    such operation is found, or if the programs compute too much. Where all values are kept but
    the `output` is not, the operation that computed it is the one whose value was stored elsewhere.
    """
    try:
        expected, actual = _trace(before, run), _trace(after, run)
    except _TooMuch:
        return None
    sinks = _sinks(expected)
    found: dict[_Group, list[_Group]] = {}
    for group in actual:
        candidates = [sinks[part] for part in group.parts if part in sinks]
        if candidates:
            found.setdefault(max(candidates, key=lambda each: each.last), []).append(group)
    absorbed = _absorbed(actual, sinks) - _absorbed(expected, sinks)
    permuted: str | None = None
    for group in expected:
        if group in absorbed:
            continue
        match _difference(group, found.get(group, []), bound):
            case "lost":
                return group.place
            case "permuted":
                permuted = permuted or group.place
            case _:
                pass
    known = {part for op in after.walk() for part in origins(op.location)}
    return permuted or _producer([group for group in expected if known.intersection(group.parts)], output)


def _absorbed(trace: Iterable[_Group], sinks: dict[str, _Group]) -> set[_Group]:
    """The groups whose value may be within that of a later one, since an operation of another place computes both."""
    return {
        sinks[part]
        for group in trace
        for part in group.inner
        if part in sinks and not any(sinks.get(own) is sinks[part] for own in group.parts)
    }


def _producer(trace: Sequence[_Group], output: Array | None) -> str | None:
    """The place of the last operation that computes `output` as a whole."""
    if output is None:
        return None
    wanted = _numbers(output)
    for group in sorted(trace, key=lambda group: -group.last):
        if len(group.arrays) == 1 and np.array_equal(_numbers(group.arrays[0]), wanted, equal_nan=True):
            return group.place
    return None


def _sinks(trace: Iterable[_Group]) -> dict[str, _Group]:
    """For each place the group that computes its value: the last, or the last that moves it if none computes it."""
    sinks: dict[str, _Group] = {}
    for group in sorted(trace, key=lambda each: (not each.is_move, each.last)):
        sinks.update((part, group) for part in group.parts)
    return sinks


def _difference(expected: _Group, actual: Sequence[_Group], bound: Bound | None) -> str:
    """
    What became of the value of a place: `kept`, `lost`, or `permuted`, where its elements are there, but in other
    places of an array of the same shape. A value that no operation computes any more counts as kept.
    """
    if not actual:
        return "kept"
    actual = [group for group in actual if group.is_move == expected.is_move] or actual
    last = max(actual, key=lambda each: each.last)
    single = len(expected.arrays) == len(last.arrays) == 1 and expected.arrays[0].shape == last.arrays[0].shape
    if bound is not None:
        allowed = bound(expected.arrays[0]) if single else 0.0
        near = not single or _agree(_numbers(expected.arrays[0]), _numbers(last.arrays[0]), allowed)
        return "kept" if near else "lost"
    if single:
        left, right = _numbers(expected.arrays[0]), _numbers(last.arrays[0])
        if _agree(left, right):
            return "kept"
        if any(_agree(left, right.transpose(order)) for order in _orders(right.shape) if left.size > 1):
            return "permuted"
        if last.kind == expected.kind or _is_part_of([expected.arrays[0]], [last.arrays[0]]):
            return "lost"
    return "kept" if _is_part_of(expected.arrays, [a for group in actual for a in group.arrays]) else "lost"


def _orders(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Other orders of the dims that lead to the same shape."""
    dims = range(len(shape))
    if len(shape) <= _MAX_RANK:
        for order in permutations(dims):
            if order != tuple(dims) and tuple(shape[dim] for dim in order) == tuple(shape):
                yield order


def _agree(left: Array, right: Array, bound: float = 0.0) -> bool:
    with np.errstate(invalid="ignore"):
        near = (left == right) | (np.abs(left - right) <= bound)
    return bool((near | np.isnan(left) & np.isnan(right)).all())


def _is_part_of(some: Sequence[Array], all: Sequence[Array]) -> bool:
    """Whether every element of `some` is among `all`, as often if there is room for that."""
    wanted, wanted_counts = _counted(some)
    there, counts = _counted(all)
    at = np.minimum(np.searchsorted(there, wanted), len(there) - 1)
    if not len(there) or (there[at] != wanted).any():
        return not len(wanted)
    return bool(wanted_counts.sum() > counts.sum() or (wanted_counts <= counts[at]).all())


def _counted(arrays: Sequence[Array]) -> tuple[Array, Array]:
    """The different elements of some arrays in order, and how often each is there; what is undefined is not."""
    numbers = np.concatenate([_numbers(array).ravel() for array in arrays] or [np.empty(0)])
    return np.unique(numbers[~np.isnan(numbers)], return_counts=True)


def _numbers(array: Array) -> Array:
    """An array as numbers that compare across levels: below graph level integers are signless."""
    array = stored(array)
    if array.dtype.kind == "u":
        array = array.view(np.dtype(f"i{array.dtype.itemsize}"))
    return array.astype(np.float64)


def _trace(module: ModuleOp, run: Run) -> list[_Group]:
    """What every place computes, in the order of their first execution."""
    functions = {op.sym_name.data: op for op in module.ops if isinstance(op, func.FuncOp)}
    groups: dict[tuple[tuple[str, ...], str], _Group] = {}
    kinds: dict[Operation, tuple[tuple[str, ...], str] | None] = {}
    written: dict[Operation, frozenset[int]] = {}
    count = elements = 0

    def arguments_written(op: func.CallOp) -> frozenset[int]:
        callee = functions[op.callee.string_value()]
        if callee not in written:
            summary = DataFlow(callee).summary
            # What a faulty kernel leaves alone may be what it should have written.
            written[callee] = frozenset(range(len(op.arguments))) - (summary.reads - summary.writes)
        return written[callee]

    def listen(op: Operation, results: Sequence[Any], operands: Sequence[Any]) -> None:
        nonlocal count, elements
        # A kernel has the place of what it computes; that of its call may be that of a group that was split.
        origin = functions[op.callee.string_value()] if isinstance(op, func.CallOp) else op
        if op not in kinds:
            kinds[op] = _key_of(op, origin.location)
        if (key := kinds[op]) is None:
            return
        computed = list(_computed(op, results, operands, arguments_written))
        if not computed:
            return
        if key not in groups:
            is_move, place = isinstance(op, CopyOp | DmaOp), render_location(origin.location)
            groups[key] = _Group(key[0], place, key[1], is_move, _inner_parts(op))
        group = groups[key]
        count += 1
        group.last = count
        group.arrays += [np.array(array) for array in computed]
        elements += sum(array.size for array in computed)
        if elements > MAX_ELEMENTS:
            raise _TooMuch

    run(module, listen)
    return list(groups.values())


def _key_of(op: Operation, loc: Attribute) -> tuple[tuple[str, ...], str] | None:
    """
    The place of an operation, by its name if it has one, and what tells it from others there; None if its values are
    not compared.
    """
    place = origins(loc)
    # An empty tensor and a constant stand at the location of the op that they serve, and differ from nothing.
    if not place or not op.operands:
        return None
    match op:
        case ExecOp():
            return place, f"{op.name} {op.intrinsic_name}"
        case GenericOp():
            return place, " ".join([op.name, *(inner.name for inner in op.body.block.ops)])
        case CopyOp() | DmaOp():
            return place, "move"
        case func.CallOp() | FusedOp():
            return place, "group"
        case _:
            return place, op.name


def _computed(
    op: Operation,
    results: Sequence[Any],
    operands: Sequence[Any],
    arguments_written: Callable[[func.CallOp], frozenset[int]],
) -> Iterator[Array]:
    """What one execution of an operation computed: tensors, or the elements of memrefs that it wrote."""
    for value, result in zip(op.results, results, strict=True):
        if isinstance(result, np.ndarray | np.generic) and not is_memory(value.type):
            yield np.asarray(cast(Array, result))
    if not operands:
        return
    values = dict(zip(op.operands, operands, strict=True))
    match op:
        case ExecOp():
            number = len(op.buffers) - 1
            yield _written(values, op.buffers[number], op.maps.data[number].data, op.extents.get_values())
        case GenericOp() if not op.results:
            extents = op.get_static_loop_ranges()
            for number, output in enumerate(op.outputs, len(op.inputs)):
                if is_memory(output.type):
                    yield _written(values, output, op.indexing_maps.data[number].data, extents)
        case CopyOp() | DmaOp() if op.window_side != "dest":
            yield array_of(values[op.dest])
        case func.CallOp():
            chosen = arguments_written(op)
            memrefs = [(number, value) for number, value in enumerate(op.arguments) if is_memory(value.type)]
            yield from (array_of(values[value]) for number, value in memrefs if number in chosen)
        case _:
            return


def _written(values: dict[SSAValue, Any], memref: SSAValue, index_map: Any, extents: Sequence[int]) -> Array:
    """The elements of a memref that a structured operation writes, or all where they are no box."""
    array = array_of(values[memref])
    box = OperandAccess.of(index_map).box(tuple(extents))
    return array if box is None else array[box]


def _inner_parts(op: Operation) -> tuple[str, ...]:
    """The places in the body of a structured operation that are not its own."""
    if not isinstance(op, GenericOp):
        return ()
    found = dict.fromkeys(part for inner in op.body.block.ops for part in origins(inner.location))
    return tuple(part for part in found if part not in origins(op.location))
