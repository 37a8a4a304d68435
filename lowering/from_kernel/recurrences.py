# SPDX-License-Identifier: Apache-2.0
"""
Recurrences: a statement that reads what it has stored itself, at earlier places along one of its indices.

`s[t, j] = s[t - 1, j else 0] + x[t, j]` is a scan. It becomes a loop over `t` that carries the last row, or the last
few, beside what is stored of `s`, so that no row is read where it was stored. Where `t + 1` is read, the loop runs
backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from penstock.lowering.from_kernel.accesses import IndexRange
from penstock.lowering.from_kernel.expressions import Expressions
from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.numbers import Value, number_of
from penstock.lowering.from_kernel.scalars import name_of
from penstock.lowering.from_kernel.symbols import Symbols, Tensor
from penstock.lowering.from_kernel.syntax import (
    Access,
    Assignment,
    Binary,
    Binding,
    Block,
    Declaration,
    Declarator,
    Expression,
    Loop,
    LoopRange,
    Name,
    Node,
    Number,
    Statement,
    rewritten,
    walk,
)
from penstock.passes.shapes import signless


@dataclass(frozen=True)
class Recurrence:
    """A statement that computes one row of a tensor after the other."""

    target: Access
    dim: int
    """The dim of the target that the rows follow each other along, and the range of its index."""
    range: IndexRange
    backwards: bool
    reads: Mapping[int, int]
    """How many rows back each access of the target in the right side reads, by its `id`."""

    @property
    def counter(self) -> Name | Binding:
        """The index that counts rows."""
        index = self.target.indices[self.dim]
        assert isinstance(index, Name | Binding)
        return index

    @property
    def first(self) -> int:
        """The row that is computed first."""
        return self.range.stop - 1 if self.backwards else self.range.start

    def row_before(self, back: int) -> int:
        """The place of the row that lies some rows before the first."""
        return self.first + back if self.backwards else self.first - back


class Recurrences:
    """Lowers the recurrences of one kernel, with `run` for the statements that they are made of."""

    def __init__(self, expressions: Expressions, run: Callable[[Block], None]):
        self._builder = expressions.builder
        self._accesses = expressions.accesses
        self._symbols: Symbols = expressions.symbols
        self._run = run
        self._is_lowering = False
        """Whether what is run are the statements of a recurrence, which are none themselves."""

    def find(self, target: Name | Access, value: Expression) -> Recurrence | None:
        """The recurrence that a statement is; None for another statement. Raises Fault."""
        if isinstance(target, Name) or self._is_lowering:
            return None
        reads = [each for each in walk(value) if isinstance(each, Access) and each.tensor == target.tensor]
        tensor = self._symbols.find(target.tensor)
        if not reads or not isinstance(tensor, Tensor) or len(target.indices) != tensor.rank:
            return None
        found = self._along_a_dim(target, tensor, reads)
        is_stored = tensor.value is not None and tensor.missing is None
        if found is not None and is_stored:
            notes = [
                "a recurrence is stored to a tensor that holds nothing yet",
                f"what it holds is read by another name: old = {tensor.name}",
            ]
            raise Fault(f'"{tensor.name}" holds values already, and is read where others are stored', reads[0], notes)
        return found

    def lower(self, found: Recurrence, value: Expression) -> None:
        """Lower a recurrence to a loop. Raises Fault."""
        tensor = self._symbols.tensor(found.target.tensor, found.target)
        kept = self._kept(found)
        shape = tuple(size if dim in kept else 1 for dim, size in enumerate(self._sizes(found.target, tensor)))
        before = self._before(found, value)
        self._is_lowering = True
        self._symbols.enter()
        rows = [f"{tensor.name}.before{back}" for back in range(1, max(found.reads.values()) + 1)]
        for back, name in enumerate(rows, 1):
            row = Tensor(name, "local", tensor.element, shape, found.target)
            self._symbols.declare(row, found.target)
            # A message speaks of the tensor that the text knows.
            row.name = tensor.name
            place = found.row_before(back)
            if 0 <= place < tensor.shape[found.dim]:
                self._run(_block(self._loaded(found, name, place, kept, value)))
            else:
                assert before is not None
                row.value = self._builder.fill(shape, signless(row.element), before, name=row.name)
        new = Declarator(name_of(tensor.element), f"{tensor.name}.row", tuple(Number(str(size)) for size in shape))
        self._run(_block(self._loop(found, value, rows, new, kept)))
        self._symbols.leave()
        self._is_lowering = False
        if self._symbols.depth == tensor.depth:
            tensor.note_stored()

    # what a recurrence is

    def _along_a_dim(self, target: Access, tensor: Tensor, reads: Sequence[Access]) -> Recurrence | None:
        """The recurrence along the first dim along which all reads are of earlier rows."""
        for dim, index in enumerate(target.indices):
            if not isinstance(index, Name | Binding) or self._symbols.meaning(index.name) is not None:
                continue
            distances = [self._distance(index.name, read, dim) for read in reads]
            for sign in (-1, 1):
                if all(distance is not None and distance * sign > 0 for distance in distances):
                    back = {id(read): abs(distance or 0) for read, distance in zip(reads, distances, strict=True)}
                    return Recurrence(target, dim, self._range(index, tensor.shape[dim]), sign > 0, back)
        return None

    def _distance(self, name: str, read: Access, dim: int) -> int | None:
        """How far from the index of a row an access is along a dim; None if that is not always the same."""
        if len(read.indices) <= dim or not isinstance(node := read.indices[dim], Binary):
            return None
        if any(isinstance(each, Name) and each.name != name and not self._is_number(each) for each in walk(node)):
            return None
        place = self._accesses.place_of(node, {name: IndexRange(0, 1)})
        return place.constant if place.terms == {name: 1} else None

    def _is_number(self, node: Node) -> bool:
        return number_of(node, self._symbols.numbers) is not None

    def _range(self, index: Name | Binding, size: int) -> IndexRange:
        return self._accesses.bound(index) if isinstance(index, Binding) else IndexRange(0, size)

    def _sizes(self, target: Access, tensor: Tensor) -> list[int]:
        """How much of each dim a statement stores."""
        pairs = zip(target.indices, tensor.shape, strict=True)
        return [self._accesses.bound(index).size if isinstance(index, Binding) else size for index, size in pairs]

    def _kept(self, found: Recurrence) -> list[int]:
        """The dims along which a row has several elements. Raises Fault for one of which a part is stored."""
        kept: list[int] = []
        for dim, index in enumerate(found.target.indices):
            names = [each.name for each in walk(index) if isinstance(each, Name | Binding)]
            if dim == found.dim or not any(self._symbols.meaning(name) is None for name in names):
                continue
            is_bound = isinstance(index, Binding) and self._accesses.bound(index).start == 0
            if not is_bound and not isinstance(index, Name):
                raise Fault("a row of a recurrence is stored from its beginning", index, ["index it by a name alone"])
            kept.append(dim)
        return kept

    # how it is lowered

    def _before(self, found: Recurrence, value: Expression) -> Value | None:
        """What is read before the first row. Raises Fault if reads do not agree in that."""
        known: Value | None = None
        for read in walk(value):
            if isinstance(read, Access) and id(read) in found.reads:
                place = found.row_before(found.reads[id(read)])
                number = None if read.otherwise is None else number_of(read.otherwise, self._symbols.numbers)
                is_inside = 0 <= place < self._symbols.tensor(read.tensor, read).shape[found.dim]
                if number is None and not is_inside:
                    at = read if read.otherwise is None else read.otherwise
                    wrong = "must be a number" if read.otherwise is not None else "is not said"
                    notes = [f"{read.tensor}[... else VALUE] says it", "or rows are stored before it"]
                    raise Fault(f"what a recurrence reads before its first row {wrong}", at, notes)
                if known is not None and number is not None and number != known:
                    raise Fault(f"before the first row, this reads {number}, and another read {known}", read)
                known = number if known is None else known
        return known

    def _loaded(self, found: Recurrence, name: str, place: int, kept: Sequence[int], value: Expression) -> Assignment:
        """The statement that loads a row that is stored already."""
        target = found.target
        read = next(each for each in walk(value) if isinstance(each, Access) and id(each) in found.reads)
        indices = [Name(each.name, at=each.at) if isinstance(each, Binding) else each for each in target.indices]
        indices[found.dim] = Number(str(place), at=target.at)
        return Assignment(_of_row(name, target, kept), "=", replace(read, indices=tuple(indices)), at=target.at)

    def _loop(
        self, found: Recurrence, value: Expression, rows: Sequence[str], new: Declarator, kept: Sequence[int]
    ) -> Loop:
        """The loop that computes a row, stores it, and keeps it for those that follow."""
        target, at, counter = found.target, found.target.at, found.counter

        def in_loop(node: Node) -> Node | None:
            if isinstance(node, Access) and id(node) in found.reads:
                self._require_same_part(found, node, kept)
                indices = (rewritten(index, in_loop) if dim in kept else Number("0") for dim, index in pairs(node))
                return replace(node, tensor=rows[found.reads[id(node)] - 1], indices=tuple(indices))
            if isinstance(node, Name) and node.name == counter.name and found.backwards:
                last = Number(str(found.range.start + found.range.stop - 1), at=node.at)
                return Binary("-", last, node, at=node.at)
            return None

        def pairs(node: Access) -> list[tuple[int, Node]]:
            return list(enumerate(node.indices))

        # A row that is not read but at its own place is overwritten where it is.
        newest = rows[0] if len(rows) == 1 else new.name
        stored = list(target.indices)
        stored[found.dim] = cast(Expression, rewritten(Name(counter.name, at=counter.at), in_loop))
        statements: list[Statement] = [Declaration(new, at=at)] if len(rows) > 1 else []
        statements += [
            Assignment(_of_row(newest, target, kept), "=", cast(Expression, rewritten(value, in_loop)), at=at),
            Assignment(replace(target, indices=tuple(stored)), "=", Name(newest, at=at), at=at),
        ]
        for number in reversed(range(len(rows) if len(rows) > 1 else 0)):
            newer = rows[number - 1] if number else newest
            statements.append(Assignment(Name(rows[number], at=at), "=", Name(newer, at=at), at=at))
        ends = (Number(str(end), at=counter.at) for end in found.range)
        return Loop("for", (LoopRange(counter.name, *ends, at=counter.at),), _block(*statements), at=at)

    def _require_same_part(self, found: Recurrence, read: Access, kept: Sequence[int]) -> None:
        """Raise Fault if a row is read of another part of the tensor than the statement stores."""
        tensor = self._symbols.tensor(read.tensor, read)
        sizes = self._sizes(found.target, tensor)
        for dim, (ours, theirs) in enumerate(zip(found.target.indices, read.indices, strict=True)):
            if dim in kept:
                # What the loop carries ends with the part: an `else` would stand for elements that lie behind it.
                assert isinstance(ours, Name | Binding)
                is_own = isinstance(theirs, Name) and theirs.name == ours.name
                if sizes[dim] < tensor.shape[dim] and read.otherwise is not None and not is_own:
                    notes = [f"the statement stores {sizes[dim]} of the {tensor.shape[dim]} elements of a row"]
                    raise Fault(f'this may read another part of "{tensor.name}" than is stored', theirs, notes)
            elif dim != found.dim:
                if self._accesses.place_of(ours, {}) != self._accesses.place_of(theirs, {}):
                    raise Fault(f'this reads another part of "{read.tensor}" than the statement stores', theirs)


def _block(*statements: Statement) -> Block:
    return Block(statements, at=statements[0].at)


def _of_row(name: str, target: Access, kept: Sequence[int]) -> Access:
    """All elements of a row, as what a statement assigns to: at the indices of the whole statement."""
    indices = (index if dim in kept else Number("0", at=target.at) for dim, index in enumerate(target.indices))
    return Access(name, tuple(indices), at=target.at)
