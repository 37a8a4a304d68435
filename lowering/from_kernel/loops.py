# SPDX-License-Identifier: Apache-2.0
"""
Loops of a kernel: `scf.for` that carry what is assigned inside and was there before.

A loop whose step does not divide its range has its last iteration after it where something is stored at its variable:
what passes the end of the tensor is cut off there. Sizes stay static, and the loop itself is of whole tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from xdsl.ir import SSAValue

from penstock.lowering.from_kernel.accesses import Span
from penstock.lowering.from_kernel.branches import Branches
from penstock.lowering.from_kernel.copies import tensor_for_parts
from penstock.lowering.from_kernel.expressions import Expressions
from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.numbers import integer_of
from penstock.lowering.from_kernel.symbols import Box, LoopVariable, Symbols, Tensor
from penstock.lowering.from_kernel.syntax import (
    Access,
    Assignment,
    Block,
    CallStatement,
    Loop,
    LoopRange,
    Name,
    Node,
    walk,
)
from penstock.passes.index_builder import Index

_MOST_BOXES = 4096
"""Of parts that are stored, which are looked at one by one."""


@dataclass(frozen=True)
class Store:
    """A part of a tensor that a statement stores."""

    tensor: Tensor
    box: tuple[Span, ...] | None
    """None for the whole tensor."""
    at: Node


class Loops:
    """Lowers the loops of one kernel; `run` lowers the statements in them."""

    def __init__(self, expressions: Expressions, branches: Branches, run: Callable[[Block], None]):
        self._builder = expressions.builder
        self._symbols: Symbols = expressions.symbols
        self._expressions = expressions
        self._run_block = run
        self._branches = branches
        self._recorded: list[list[Store]] = []
        """What each `grid` around has stored."""

    def run(self, statement: Loop) -> None:
        """Lower a loop. Raises Fault."""
        if statement.kind == "grid":
            self._require_unread(statement)
            self._recorded.append([])
        self._nest(statement, list(statement.ranges))
        if statement.kind == "grid":
            stores = self._recorded.pop()
            self._require_disjoint(statement, stores)
            for outer in self._recorded:
                outer += stores

    def record(self, store: Store) -> None:
        """Take note of what a statement stores."""
        if self._recorded:
            self._recorded[-1].append(store)
        tensor = store.tensor
        if tensor.missing is None:
            return
        if store.box is None:
            tensor.missing = None
            return
        tensor.boxes += self._boxes(tensor, store.box)
        if all(span.stride == 1 for span in store.box):
            tensor.windows.append((self._symbols.depth, tuple(span.window() for span in store.box)))
        if self._symbols.depth == tensor.depth:
            tensor.note_stored()

    # one loop

    def _nest(self, statement: Loop, ranges: list[LoopRange]) -> None:
        if not ranges:
            self._run_block(statement.body)
            return
        first, *rest = ranges
        numbers = self._symbols.numbers
        start, stop = (integer_of(end, numbers, "the end of a range") for end in (first.start, first.stop))
        step = 1 if first.step is None else integer_of(first.step, numbers, "a step")
        if step < 1:
            raise Fault(f"a step must be at least 1, not {step}", first.step or first)
        if stop <= start:
            raise Fault(f'the range of "{first.name}" is empty: {start} to {stop}', first)
        for part in self._branches.parts(first.name, range(start, stop, step), statement.body):
            self._loop(statement, rest, first, part.start, min(part.stop, stop), step)

    def _loop(self, statement: Loop, rest: list[LoopRange], first: LoopRange, start: int, stop: int, step: int) -> None:
        """The iterations from `start` to `stop`."""
        is_outermost = not list(self._symbols.variables())
        carried = self._carried(statement.body)
        for tensor in carried:
            if tensor.value is None:
                tensor_for_parts(tensor, self._expressions)
        whole = (stop - start) // step
        trips = (
            whole
            if (stop - start) % step and self._stores_at(first.name, statement.body)
            else -((start - stop) // step)
        )
        last = start + (trips - 1) * step

        def body(at: Index, values: Sequence[SSAValue]) -> list[SSAValue]:
            for tensor, value in zip(carried, values, strict=True):
                tensor.value = value
                self._builder.names[value] = tensor.name
            if isinstance(at, SSAValue):
                self._builder.names[at] = first.name
            self._inside(statement, rest, first, LoopVariable(first.name, at, start, last, step))
            return [tensor.value for tensor in carried if tensor.value is not None]

        self._builder.location = self._expressions.location(first.at)
        if trips:
            initial = [tensor.value for tensor in carried if tensor.value is not None]
            results = self._builder.loop(trips * step, step, initial, body, start=start, always=is_outermost)
            for tensor, value in zip(carried, results, strict=True):
                tensor.value = value
                self._builder.names[value] = tensor.name
        if start + trips * step < stop:
            end = start + whole * step
            self._inside(statement, rest, first, LoopVariable(first.name, end, end, end, step, is_last=True))
        for tensor in self._symbols.tensors():
            if tensor.depth == self._symbols.depth:
                tensor.note_stored()

    def _inside(self, statement: Loop, rest: list[LoopRange], first: LoopRange, variable: LoopVariable) -> None:
        self._symbols.enter()
        self._symbols.declare(variable, first)
        self._nest(statement, rest)
        self._symbols.leave()

    # what is assigned inside

    def _targets(self, block: Block) -> Iterable[Name | Access]:
        for node in walk(block):
            if isinstance(node, Assignment):
                yield node.target
            elif isinstance(node, CallStatement) and node.call.function == "store" and node.call.arguments:
                target = node.call.arguments[0]
                if isinstance(target, Name | Access):
                    yield target

    def _carried(self, block: Block) -> list[Tensor]:
        """The tensors of around that a block assigns, in the order of the text."""
        found: dict[str, Tensor] = {}
        for target in self._targets(block):
            name = target.name if isinstance(target, Name) else target.tensor
            symbol = self._symbols.find(name)
            if isinstance(symbol, Tensor) and symbol.kind != "parameter":
                found.setdefault(name, symbol)
        return list(found.values())

    def _stores_at(self, variable: str, block: Block) -> bool:
        """Whether a block stores where the variable of a loop says."""
        return any(
            isinstance(part, Name) and part.name == variable
            for target in self._targets(block)
            if isinstance(target, Access)
            for index in target.indices
            for part in walk(index)
        )

    # grids

    def _require_unread(self, statement: Loop) -> None:
        """Raise Fault for what an iteration would read of another one."""
        carried = {tensor.name for tensor in self._carried(statement.body)}
        notes = ["the iterations of a grid are independent; a for loop carries what it assigns"]
        own = set(self._own_reads(statement))
        # What a mask keeps is read where it is stored, and is written there in the text.
        targets = {target.at for target in self._targets(statement.body)}
        for node in walk(statement.body):
            name = node.name if isinstance(node, Name) else node.tensor if isinstance(node, Access) else None
            is_sum = isinstance(node, Assignment) and node.operator == "+="
            if is_sum and isinstance(node, Assignment):
                name = node.target.name if isinstance(node.target, Name) else node.target.tensor
            if name in carried and id(node) not in own and (is_sum or node.at not in targets):
                raise Fault(f'"{name}" is assigned in a grid, and read in it', node, notes)

    @staticmethod
    def _own_reads(statement: Loop) -> Iterator[int]:
        """The sums and reads of a grid, by `id`, that are of the part of a tensor which an iteration alone stores."""
        variables = {each.name for each in statement.ranges}
        for node in walk(statement.body):
            if not isinstance(node, Assignment) or not isinstance(target := node.target, Access):
                continue
            names = [{each.name for each in walk(index) if isinstance(each, Name)} for index in target.indices]
            if not variables <= set().union(*names):
                continue
            yield id(node)
            for read in walk(node.value):
                if isinstance(read, Access) and read.tensor == target.tensor and len(read.indices) == len(names):
                    pairs = zip(target.indices, read.indices, names, strict=True)
                    if all(ours == theirs for ours, theirs, used in pairs if used & variables):
                        yield id(read)

    def _require_disjoint(self, statement: Loop, stores: Sequence[Store]) -> None:
        """Raise Fault unless no two iterations store to one element."""
        notes = ["the iterations of a grid are independent; those of a for loop come one after the other"]
        outside = [store for store in stores if store.tensor.depth <= self._symbols.depth]
        for loop in statement.ranges:
            by_tensor: dict[int, list[Store]] = {}
            for store in outside:
                by_tensor.setdefault(id(store.tensor), []).append(store)
            for group in by_tensor.values():
                step = 1 if loop.step is None else integer_of(loop.step, self._symbols.numbers, "a step")
                if not any(_apart(group, dim, loop.name, step) for dim in range(group[0].tensor.rank)):
                    name = group[0].tensor.name
                    message = f'two iterations of "{loop.name}" may store to one element of "{name}"'
                    raise Fault(message, group[0].at, notes)

    # what is stored

    def _boxes(self, tensor: Tensor, box: Sequence[Span]) -> list[Box]:
        """The parts of a tensor that a statement stores in all iterations of the loops within which the tensor is."""
        variables = {each.name: each for each in self._symbols.variables(below=tensor.depth)}
        used = [name for span in box for name in span.place.terms]
        if any(name not in variables for name in used):
            return []
        if len(set(used)) == len(used):
            # Each variable moves one dim: what is stored along each dim, and all combinations of that.
            along = [_along(span, variables) for span in box]
            return list(product(*along)) if _count(along) <= _MOST_BOXES else []
        names = list(dict.fromkeys(used))
        values = [variables[name].values for name in names]
        if _count(values) > _MOST_BOXES:
            return []
        found: list[Box] = []
        for point in product(*values):
            at = dict(zip(names, point, strict=True))
            found.append(tuple(span.from_start(span.place.at(at)) for span in box))
        return found


def _apart(stores: Sequence[Store], dim: int, variable: str, step: int) -> bool:
    """Whether what the iterations of a loop store lies apart from each other along a dim."""
    low: list[int] = []
    high: list[int] = []
    factors: set[int] = set()
    for store in stores:
        if store.box is None:
            return False
        span = store.box[dim]
        place, stored = span.place, span.from_start(span.place.constant)
        # The last iteration, which is lowered by itself, has the same place.
        if set(place.terms) != {variable}:
            return False
        factors.add(place.terms[variable])
        low.append(stored.start)
        high.append(stored.stop)
    return len(factors) == 1 and max(high) - min(low) <= abs(factors.pop()) * step


def _along(span: Span, variables: Mapping[str, LoopVariable]) -> list[range]:
    """What is stored along a dim in all iterations; what meets is one range."""
    names = list(span.place.terms)
    if _count([variables[name].values for name in names]) > _MOST_BOXES:
        return []
    points = product(*(variables[name].values for name in names))
    found: list[range] = []
    for start in sorted({span.place.at(dict(zip(names, point, strict=True))) for point in points}):
        stored = span.from_start(start)
        if found and stored.step == 1 and stored.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(stored.stop, found[-1].stop))
        else:
            found.append(stored)
    return found


def _count(lists: Sequence[Sequence[object]]) -> int:
    total = 1
    for each in lists:
        total *= len(each)
    return total
