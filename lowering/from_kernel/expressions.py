# SPDX-License-Identifier: Apache-2.0
"""
Expressions with reductions and products of matrices: one `linalg.generic` for each, beside those for the elements.

A reduction within an expression becomes a tensor of its own, over those indices of the space around it that it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    AnyFloat,
    IndexType,
    IntegerType,
    i1,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr
from xdsl.utils.hints import isa

from penstock.dialects.accumulators import accumulator_of
from penstock.dialects.graph.base import is_unsigned
from penstock.lowering.accumulation import MIN, SUM, Reduction
from penstock.lowering.from_kernel.accesses import IndexRange, Place, Space
from penstock.lowering.from_kernel.elements import Destination, Elements, MakeDestination, Read, Reads
from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.reductions import OF_BOOLS, PLACES, REDUCTIONS, reduction_of
from penstock.lowering.from_kernel.scalars import Operand, name_of
from penstock.lowering.from_kernel.syntax import (
    Access,
    Binding,
    Call,
    Expression,
    Name,
    Node,
    Position,
    walk,
)
from penstock.passes.scalar_body import Body
from penstock.passes.shapes import Dims, element_of, loops, shape_of, signless

_Term = Callable[[Body, Mapping[Node, Operand]], SSAValue]


@dataclass(frozen=True)
class _Terms:
    """What a reduction combines: in which space, of which its own indices are the last, and of which type."""

    space: Space
    own: int
    reads: Reads
    element: Attribute
    term: _Term
    is_plain: bool = True
    """Whether the terms may be computed in the type of the accumulator: no cast says otherwise."""


class Expressions(Elements):
    """Lowers the expressions of one kernel."""

    def _computed_before(self, node: Call, space: Space) -> Read:
        if node.function == "dot":
            value, element = self.dot(node)
            return Read(element, value, tuple(loops(len(space))))
        outer = {name: space[name] for name in self.names_in(node, space)}
        value, element = self.reduce(node, outer)
        names = list(space)
        return Read(element, value, tuple(AffineExpr.dimension(names.index(name)) for name in outer))

    def dot(
        self, node: Call, destination: MakeDestination | None = None, expected: Attribute | None = None
    ) -> tuple[SSAValue, Attribute]:
        """The product of two matrices, and its type; as `reduce` is asked for it."""
        terms, shape = self._dot_terms(node)
        outer = self.tile_space(shape)
        return self._reduced_into(SUM, terms, outer, destination, expected, node), terms.element

    def _dot_terms(self, node: Call) -> tuple[_Terms, tuple[int, ...]]:
        left, right = self._factors(node)
        space = {"0": IndexRange(0, left[0]), "1": IndexRange(0, right[1]), "2": IndexRange(0, left[1])}
        reads: Reads = {}
        keys = Name("left factor"), Name("right factor")
        for key, part, along in zip(keys, node.arguments, (("0", "2"), ("2", "1")), strict=True):
            reads[key] = self._tile(part, space, along)
        if reads[keys[0]].element != reads[keys[1]].element:
            names = (name_of(reads[key].element) for key in keys)
            raise Fault(f"dot of {' and '.join(names)}", node, ["cast(type, x) converts"])

        def product(body: Body, operands: Mapping[Node, Operand]) -> SSAValue:
            values = [operands[key].value for key in keys]
            assert values[0] is not None
            assert values[1] is not None
            return body.mul(values[0], values[1])

        return _Terms(space, 1, reads, reads[keys[0]].element, product), (left[0], right[1])

    def _tile(self, node: Node, space: Space, along: Sequence[str]) -> Read:
        """A tile along some indices of a space; what is not read as it lies is computed first."""
        if isinstance(node, Name | Access):
            name = node.name if isinstance(node, Name) else node.tensor
            tensor = self.symbols.tensor(name, node)
            value, dims = self.accesses.read(node, space, along)
            return Read(tensor.element, value, tuple(dims))
        assert isinstance(node, Expression)
        inner = self.tile_space(self.tile_shape(node))
        value, element = self.elementwise(node, inner, None, lambda element, _: self.fresh(inner, element))
        names = list(space)
        return Read(element, value, tuple(AffineExpr.dimension(names.index(name)) for name in along))

    def reduce(
        self,
        node: Call,
        outer: Space,
        destination: MakeDestination | None = None,
        expected: Attribute | None = None,
    ) -> tuple[SSAValue, Attribute]:
        """
        A reduction for every point of a space, and its type, which is `expected` if that is given; in a new tensor, or
        in what `destination` makes. Raises Fault.
        """
        terms = self._terms(node, outer)
        if node.function not in PLACES:
            reduction = self._reduction(node, terms.element)
            return self._reduced_into(reduction, terms, outer, destination, expected, node), terms.element
        self._require_expected(i64, expected, node)
        shape = [each.size for each in outer.values()]
        output = self.fresh(outer, i64) if destination is None else destination(i64, terms.reads)
        return self._place_of_extremum(node, terms, shape, output), i64

    def _reduced_into(
        self,
        reduction: Reduction,
        terms: _Terms,
        outer: Space,
        destination: MakeDestination | None,
        expected: Attribute | None,
        node: Call,
    ) -> SSAValue:
        """A reduction over a space, rounded to the type of its terms, where that is to be."""
        element = terms.element
        self._require_expected(element, expected, node)
        wide = self._wide(reduction, element)
        if wide == signless(element):
            output = self.fresh(outer, element) if destination is None else destination(element, terms.reads)
            return self._combine(reduction, terms, self._filled(output, reduction, element), node.at)
        value = self._combine(reduction, terms, self._filled(self.fresh(outer, wide), reduction, element), node.at)
        output = self.fresh(outer, element) if destination is None else destination(element, terms.reads)
        return self.rounded(value, element, output)

    def _filled(self, output: Destination, reduction: Reduction, element: Attribute) -> Destination:
        """Where a reduction of elements of a type begins."""
        wide = element_of(output.value)
        number = reduction.start(wide, is_unsigned(element))
        value = self.builder.generic([], (output.value, output.dims), 0, lambda body, _: body.constant(number, wide))
        return replace(output, value=value)

    def add_to(
        self, node: Expression, outer: Space, old: SSAValue, dims: tuple[AffineExpr, ...], element: Attribute
    ) -> SSAValue | None:
        """`old` plus a sum, if an expression is one or has indices of its own; None for an expression of `outer`."""
        if isinstance(node, Call) and node.function == "dot":
            terms, _ = self._dot_terms(node)
        elif isinstance(node, Call) and node.function == "sum" and self.is_reduction(node, outer):
            terms = self._terms(node, outer)
        elif own := self._free_names(node, outer):
            terms = self._terms_over(own, node, outer, node)
        else:
            return None
        wide = self._wide(SUM, terms.element)
        if element not in (terms.element, wide):
            notes = [f"cast({name_of(element)}, ...) converts"]
            raise Fault(f"{name_of(terms.element)} is added to {name_of(element)}", node, notes)
        start = old
        if element_of(old) != wide:
            start = self.builder.map(lambda body, xs: body.widen(xs[0], wide), old, element=wide)
        total = self._combine(SUM, terms, Destination(start, dims), node.at)
        if element_of(total) == signless(element):
            return total
        places = tuple(loops(len(shape_of(old))))
        # In the place of what was there: a loop that carries it needs no copy.
        return self.rounded(total, element, Destination(old, places))

    def _free_names(self, node: Node, outer: Space) -> list[Name]:
        """The names in indices of an expression that stand for nothing: the indices of a sum."""
        found: dict[str, Name] = {}
        bound = {
            each.name
            for call in walk(node)
            if isinstance(call, Call) and self.is_reduction(call, outer)
            for each in call.arguments[:-1]
            if isinstance(each, Name | Binding)
        }
        for access in walk(node):
            if isinstance(access, Access):
                for index in access.indices:
                    for name in walk(index):
                        if isinstance(name, Name) and name.name not in outer and name.name not in bound:
                            if self.symbols.meaning(name.name) is None:
                                found.setdefault(name.name, name)
        return list(found.values())

    def _terms(self, node: Call, outer: Space) -> _Terms:
        """What a call of a reduction combines. Raises Fault."""
        if not node.arguments:
            raise Fault(f"{node.function} takes indices and an expression", node)
        *indices, term = node.arguments
        if isinstance(term, Binding):
            raise Fault(f"{node.function} ends in what it combines", term)
        if not indices:
            return self._terms_of_tile(node, term)
        own: list[Name | Binding] = []
        for index in indices:
            if not isinstance(index, Name | Binding):
                raise Fault("an index is expected here", index, [f"{node.function}(i, j, x[i, j])"])
            if index.name in outer or index.name in [each.name for each in own]:
                raise Fault(f'"{index.name}" is an index already', index, ["a name is bound once: choose another one"])
            self.symbols.require_free(index.name, index)
            own.append(index)
        return self._terms_over(own, term, outer, node)

    def _terms_over(self, own: Sequence[Name | Binding], term: Expression, outer: Space, at: Node) -> _Terms:
        space = dict(outer)
        for index in own:
            is_bound = isinstance(index, Binding)
            space[index.name] = self.accesses.bound(index) if is_bound else self.accesses.range_of(index, term)
        reads = self.reads(term, space)
        element = self.type_of(term, reads)
        if element is None:
            raise Fault("the type of what is combined is not known", term, ["cast(type, x) says it"])

        def compute(body: Body, operands: Mapping[Node, Operand]) -> SSAValue:
            scalars = self._scalars(operands, space)
            return scalars.emit(body, term, scalars.type_of(term) or element)

        is_plain = all(read.element == element for read in reads.values())
        is_plain &= not any(isinstance(each, Call) and each.function == "cast" for each in walk(term))
        is_plain &= not any(call.function in self.symbols.functions for call in walk(term) if isinstance(call, Call))
        return _Terms(space, len(own), reads, element, compute, is_plain)

    def _terms_of_tile(self, node: Call, term: Expression) -> _Terms:
        """All elements of a tile."""
        space = self.tile_space(self.tile_shape(term))
        if not space:
            raise Fault(f"{node.function} of a scalar", node, [f"{node.function}(i, x[i]) combines over i"])
        reads = self.reads(term, space)
        element = self.type_of(term, reads)
        assert element is not None

        def compute(body: Body, operands: Mapping[Node, Operand]) -> SSAValue:
            scalars = self._scalars(operands, space)
            return scalars.emit(body, term, scalars.type_of(term) or element)

        return _Terms(
            space, len(space), reads, element, compute, all(read.element == element for read in reads.values())
        )

    def _reduction(self, node: Call, element: Attribute) -> Reduction:
        if (reducer := self.symbols.reducers.get(node.function)) is not None:
            return reduction_of(reducer, element, self.symbols.functions)
        if (element == i1) != (node.function in OF_BOOLS) or isinstance(element, IndexType):
            notes = ["cast(type, x) converts"] if node.function not in OF_BOOLS else ["compare: any(i, x[i] > 0)"]
            raise Fault(f"{node.function} is not defined on {name_of(element)}", node, notes)
        return REDUCTIONS[node.function]

    @staticmethod
    def _wide(reduction: Reduction, element: Attribute) -> Attribute:
        return signless(element) if reduction.is_exact else accumulator_of(signless(element))

    def _combine(self, reduction: Reduction, terms: _Terms, output: Destination, at: Position) -> SSAValue:
        """The terms of a reduction combined with what `output` holds, in the type of the accumulator."""
        wide = self._wide(reduction, terms.element)

        def step(body: Body, operands: Mapping[Node, Operand], old: SSAValue) -> SSAValue:
            if terms.is_plain and isinstance(wide, AnyFloat):
                operands = {node: self._widened(body, each, wide) for node, each in operands.items()}
            term = terms.term(body, operands)
            body.unsigned = is_unsigned(terms.element)
            body.location = self.location(at)
            return reduction.step(body, old, body.widen(term, wide) if isinstance(wide, AnyFloat) else term)

        return self._generic(terms.space, terms.reads, output, terms.own, step, at, self._ranges(terms))

    @staticmethod
    def _widened(body: Body, operand: Operand, wide: AnyFloat) -> Operand:
        assert operand.value is not None
        return Operand(wide, body.widen(operand.value, wide))

    def _ranges(self, terms: _Terms) -> list[tuple[SSAValue, Dims]]:
        """An operand that only lends its shape to the loops that index nothing alone."""
        alone = {dim for read in terms.reads.values() for dim in read.dims if isinstance(dim, AffineDimExpr)}
        own = list(enumerate(terms.space.values()))[len(terms.space) - terms.own :]
        missing = [
            (AffineExpr.dimension(dim), each.size) for dim, each in own if AffineExpr.dimension(dim) not in alone
        ]
        if not missing:
            return []
        window = self.builder.empty([size for _, size in missing], signless(terms.element), name="window")
        return [(window, [dim for dim, _ in missing])]

    def rounded(self, value: SSAValue, element: Attribute, output: Destination) -> SSAValue:
        """A sum in the type of its terms."""
        target = signless(element)
        read = value, loops(len(shape_of(value)))
        return self.builder.generic(
            [read], (output.value, output.dims), 0, lambda body, xs: body.cast(xs[0], target, False)
        )

    def _place_of_extremum(self, node: Call, terms: _Terms, shape: Sequence[int], output: Destination) -> SSAValue:
        """The first index at which the extremum is, or the first NaN."""
        if terms.own != 1:
            raise Fault(f"{node.function} is over one index", node)
        if terms.element == i1 or not (isinstance(terms.element, AnyFloat) or isa(terms.element, IntegerType)):
            raise Fault(f"{node.function} is not defined on {name_of(terms.element)}", node)
        reduction, dims = PLACES[node.function], tuple(loops(len(shape)))
        empty = Destination(self.builder.empty(shape, signless(terms.element)), dims)
        extremum = self._combine(reduction, terms, self._filled(empty, reduction, terms.element), node.at)
        key = Name("extremum")
        reads = {**terms.reads, key: Read(terms.element, extremum, dims)}
        name = list(terms.space)[-1]
        last = terms.space[name].stop

        def step(body: Body, operands: Mapping[Node, Operand], old: SSAValue) -> SSAValue:
            sought = operands[key].value
            assert sought is not None
            term = terms.term(body, operands)
            body.unsigned = is_unsigned(terms.element)
            found = body.compare("eq", term, sought)
            if isinstance(term.type, AnyFloat):
                found = body.emit(arith.OrIOp(found, body.compare("ne", term, term)))
            place = body.emit(arith.IndexCastOp(self._number(body, Place(0, {name: 1}), terms.space), i64))
            body.unsigned = False
            return body.min(old, body.where(found, place, body.constant(last, i64)))

        output = self._filled(output, MIN, i64)
        return self._generic(terms.space, reads, output, 1, step, node.at, self._ranges(terms))
