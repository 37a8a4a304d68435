"""
Expressions over tensors: one `linalg.generic` for what is computed element by element, and one for each reduction.

An expression stands in a space of indices. What it reads becomes operands with index maps; a reduction within it
becomes a tensor of its own, over those indices of the space that it uses, and is read like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    AnyFloat,
    FileLineColLoc,
    IndexType,
    IntAttr,
    IntegerType,
    LocationAttr,
    StringAttr,
    i1,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr
from xdsl.utils.hints import isa

from penstock.dialects.element_types import accumulator_of
from penstock.dialects.graph.base import is_unsigned
from penstock.lowering.accumulation import MIN, SUM, Reduction
from penstock.lowering.from_kernel.accesses import Accesses, IndexRange, Place, Space
from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.numbers import number_of
from penstock.lowering.from_kernel.reductions import OF_BOOLS, PLACES, REDUCTIONS, is_reduction, reduction_of
from penstock.lowering.from_kernel.scalars import Operand, Scalars, name_of
from penstock.lowering.from_kernel.symbols import LoopVariable, Symbols, Tensor, dims_text
from penstock.lowering.from_kernel.syntax import (
    Access,
    Binary,
    Binding,
    Call,
    Expression,
    Name,
    Node,
    Position,
    Slice,
    Unary,
    walk,
)
from penstock.lowering.scalar_body import Body
from penstock.lowering.shapes import Dims, element_of, loops, shape_of, signless
from penstock.lowering.tensor_builder import TensorBuilder


@dataclass(frozen=True)
class Read:
    """An operand of a generic: an element of a tensor, or a number that an index is."""

    element: Attribute
    value: SSAValue | None = None
    """The tensor; None for an index."""
    dims: tuple[AffineExpr, ...] = ()
    place: Place | None = None
    """The index."""


@dataclass(frozen=True)
class Destination:
    """Where a generic writes: a tensor, and how the loops of the statement index it."""

    value: SSAValue
    dims: tuple[AffineExpr, ...]


Reads = dict[Node, Read]
MakeDestination = Callable[[Attribute, Reads], Destination]
"""From the type of what is written, and what is read for it."""
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


class Expressions:
    """Lowers the expressions of one kernel."""

    def __init__(self, builder: TensorBuilder, symbols: Symbols, file: str, first_line: int = 1):
        self.builder = builder
        self.symbols = symbols
        self.accesses = Accesses(builder, symbols)
        self._file = StringAttr(file)
        self._first_line = first_line

    def location(self, at: Position) -> LocationAttr:
        """A place of the text."""
        return FileLineColLoc(self._file, IntAttr(self._first_line - 1 + at.line), IntAttr(at.column))

    # elements

    def elementwise(
        self, node: Expression, space: Space, element: Attribute | None, destination: MakeDestination
    ) -> tuple[SSAValue, Attribute]:
        """
        The values of an expression at every point of a space, and their type, which is `element` if one is given.

        Raises Fault. `destination` is asked when the type is known and all that is read.
        """
        reads = self.reads(node, space)
        found = self.type_of(node, reads)
        if element is not None:
            self._require_expected(found or element, element, node)
        else:
            element = found
            if element is None or isinstance(element, IndexType):
                raise Fault("the type of this is not known", node, ["cast(type, x) says it"])
        output, known = destination(element, reads), element

        def compute(body: Body, operands: Mapping[Node, Operand], old: SSAValue) -> SSAValue:
            return self._scalars(operands).emit(body, node, known)

        return self._generic(space, reads, output, 0, compute, node.at), element

    def type_of(self, node: Expression, reads: Reads) -> Attribute | None:
        """The type of an expression; None for a number."""
        return self._scalars({part: Operand(read.element) for part, read in reads.items()}).type_of(node)

    def _scalars(self, operands: Mapping[Node, Operand]) -> Scalars:
        return Scalars(operands, self.symbols.numbers, self.symbols.functions, locate=self.location)

    def _generic(
        self,
        space: Space,
        reads: Reads,
        output: Destination,
        reductions: int,
        compute: Callable[[Body, Mapping[Node, Operand], SSAValue], SSAValue],
        at: Position,
        ranges: Sequence[tuple[SSAValue, Dims]] = (),
    ) -> SSAValue:
        """A generic over a space; `compute` has the operands, and the element of the output."""
        inputs: dict[tuple[SSAValue, tuple[AffineExpr, ...]], int] = {}
        for read in reads.values():
            if read.value is not None:
                inputs.setdefault((read.value, read.dims), len(inputs))

        def element(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
            operands: dict[Node, Operand] = {}
            for node, read in reads.items():
                if read.value is not None:
                    value = elements[inputs[read.value, read.dims]]
                else:
                    assert read.place is not None
                    value = self._number(body, read.place, space)
                operands[node] = Operand(read.element, value)
            return compute(body, operands, elements[-1])

        self.builder.location = self.location(at)
        return self.builder.generic([*inputs, *ranges], (output.value, output.dims), reductions, element)

    def _number(self, body: Body, place: Place, space: Space) -> SSAValue:
        """An index as a number."""
        (name,) = place.terms
        names = list(space)
        if name not in space:
            offset = self.accesses.offset(place)
            return offset if isinstance(offset, SSAValue) else body.constant(offset, IndexType())
        value = body.index(names.index(name))
        start = space[name].start
        return value if start == 0 else body.add(value, body.like(start, value))

    # what is read

    def reads(self, node: Node, space: Space) -> Reads:
        """All that an expression reads in a space; reductions in it are computed. Raises Fault."""
        found: Reads = {}
        self._collect(node, space, found)
        return found

    def _collect(self, node: Node, space: Space, found: Reads) -> None:
        if node in found or number_of(node, self.symbols.numbers) is not None:
            return
        match node:
            case Access():
                found[node] = self._read(node, space)
            case Name():
                found[node] = self._read_name(node, space)
            case Call(function="dot"):
                found[node] = self._as_operand(self.dot(node), space)
            case Call() if self.is_reduction(node, space):
                found[node] = self._reduced(node, space)
            case Call():
                for argument in node.arguments[1:] if node.function == "cast" else node.arguments:
                    self._collect(argument, space, found)
            case Binary():
                self._collect(node.left, space, found)
                self._collect(node.right, space, found)
            case Unary():
                self._collect(node.operand, space, found)
            case Binding():
                raise Fault("the range of an index stands on the left, or first in a reduction", node)
            case _:
                raise Fault("this is not a scalar", node)

    def _read(self, node: Access, space: Space) -> Read:
        tensor = self.symbols.stored(node.tensor, node)
        along = [str(number) for number in range(sum(isinstance(index, Slice) for index in node.indices))]
        if along and not all(name in space for name in along):
            raise Fault("a slice stands in a statement of whole tiles, which has no indices", node)
        value, dims = self.accesses.read(node, space, along)
        return Read(tensor.element, value, tuple(dims))

    def _read_name(self, node: Name, space: Space) -> Read:
        if node.name in space:
            return Read(IndexType(), place=Place(0, {node.name: 1}))
        symbol = self.symbols.find(node.name)
        if isinstance(symbol, LoopVariable):
            return Read(IndexType(), place=Place(0, {node.name: 1}))
        if symbol is None and self.symbols.meaning(node.name) is None:
            raise Fault(f'unknown name "{node.name}"', node, ["it is no tensor, size, index or constant"])
        tensor = self.symbols.stored(node.name, node)
        along = [str(number) for number in range(tensor.rank)]
        if not all(name in space for name in along):
            raise Fault(f'"{node.name}" is a tensor of {dims_text(tensor.shape)}: say which element', node)
        value, dims = self.accesses.read(node, space, along)
        return Read(tensor.element, value, tuple(dims))

    def _as_operand(self, computed: tuple[SSAValue, Attribute], space: Space) -> Read:
        value, element = computed
        return Read(element, value, tuple(loops(len(space))))

    # tiles

    def tile_shape(self, node: Node) -> tuple[int, ...]:
        """
        The shape of an expression of whole tensors; () for a scalar.

        Raises Fault for two parts of different shapes.
        """
        if number_of(node, self.symbols.numbers) is not None:
            return ()
        match node:
            case Name():
                found = self.symbols.find(node.name)
                return found.shape if isinstance(found, Tensor) else ()
            case Access():
                tensor = self.symbols.tensor(node.tensor, node)
                pairs = zip(node.indices, tensor.shape, strict=False)
                return tuple(
                    self.accesses.extent(index, size, {})[1] for index, size in pairs if isinstance(index, Slice)
                )
            case Call(function="dot"):
                left, right = self._factors(node)
                return left[0], right[1]
            case Call() if self.is_reduction(node, {}):
                return ()
            case Call():
                parts: Sequence[Node] = node.arguments[1:] if node.function == "cast" else node.arguments
            case Binary():
                parts = (node.left, node.right)
            case Unary():
                parts = (node.operand,)
            case _:
                parts = ()
        known: tuple[int, ...] = ()
        for part in parts:
            shape = self.tile_shape(part)
            if known and shape and known != shape:
                notes = ["say how they meet with indices: y[i, j] = a[i, j] + b[j]"]
                raise Fault(f"{dims_text(known)} meets {dims_text(shape)}", node, notes)
            known = known or shape
        return known

    @staticmethod
    def tile_space(shape: Sequence[int]) -> dict[str, IndexRange]:
        """The indices of a tile."""
        return {str(dim): IndexRange(0, size) for dim, size in enumerate(shape)}

    def _factors(self, node: Call) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if len(node.arguments) != 2:
            raise Fault(f"dot takes 2 arguments, not {len(node.arguments)}", node)
        left, right = (self.tile_shape(part) for part in node.arguments)
        if len(left) != 2 or len(right) != 2 or left[1] != right[0]:
            raise Fault(f"dot of {dims_text(left)} and {dims_text(right)}", node, ["it is of NxK and KxM"])
        return left, right

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
            tensor = self.symbols.stored(name, node)
            value, dims = self.accesses.read(node, space, along)
            return Read(tensor.element, value, tuple(dims))
        assert isinstance(node, Expression)
        inner = self.tile_space(self.tile_shape(node))
        value, element = self.elementwise(node, inner, None, lambda element, _: self.fresh(inner, element))
        names = list(space)
        return Read(element, value, tuple(AffineExpr.dimension(names.index(name)) for name in along))

    def fresh(self, space: Space, element: Attribute) -> Destination:
        """A new tensor over a space."""
        shape = [each.size for each in space.values()]
        return Destination(self.builder.empty(shape, signless(element)), tuple(loops(len(shape))))

    # reductions

    def is_reduction(self, node: Call, space: Space) -> bool:
        """Whether a call is a reduction where it stands."""
        names = [each.name for each in node.arguments if isinstance(each, Name)]
        free = {name: name not in space and self.symbols.meaning(name) is None for name in names}
        return is_reduction(node, self.symbols.reducers, free)

    def names_in(self, node: Node, space: Space) -> list[str]:
        """The indices of a space that an expression uses, in the order of the space."""
        used = {each.name for each in walk(node) if isinstance(each, Name)}
        return [name for name in space if name in used]

    def _reduced(self, node: Call, space: Space) -> Read:
        """A reduction within an expression, as what that reads."""
        outer = {name: space[name] for name in self.names_in(node, space)}
        value, element = self.reduce(node, outer)
        names = list(space)
        return Read(element, value, tuple(AffineExpr.dimension(names.index(name)) for name in outer))

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

    @staticmethod
    def _require_expected(element: Attribute, expected: Attribute | None, node: Node) -> None:
        if expected is not None and element != expected:
            notes = [f"cast({name_of(expected)}, ...) converts"]
            raise Fault(f"the right side is {name_of(element)}, but the left {name_of(expected)}", node, notes)

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
            empty, places = self.builder.empty(shape_of(old), wide), tuple(loops(len(shape_of(old))))
            start = self.builder.generic([(old, places)], (empty, places), 0, lambda body, xs: body.widen(xs[0], wide))
        total = self._combine(SUM, terms, Destination(start, dims), node.at)
        if element_of(total) == signless(element):
            return total
        places = tuple(loops(len(shape_of(old))))
        return self.rounded(total, element, Destination(self.builder.empty(shape_of(old), signless(element)), places))

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
            scalars = self._scalars(operands)
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
            scalars = self._scalars(operands)
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
