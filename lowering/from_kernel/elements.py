# SPDX-License-Identifier: Apache-2.0
"""
What an expression computes element by element: one `linalg.generic` over a space of indices.

What it reads becomes operands with index maps. A reduction within it is computed before, and read as any other tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import (
    FileLineColLoc,
    IndexType,
    IntAttr,
    LocationAttr,
    StringAttr,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr

from penstock.lowering.from_kernel.accesses import Accesses, IndexRange, Place, Space
from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.numbers import number_of
from penstock.lowering.from_kernel.reductions import PLACES, REDUCTIONS, is_reduction
from penstock.lowering.from_kernel.scalars import SCALAR_NAMES, Operand, Scalars, name_of, unknown_function
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
from penstock.passes.scalar_body import Body
from penstock.passes.shapes import Dims, loops, signless
from penstock.passes.tensor.tensor_builder import TensorBuilder


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


class Elements:
    """
    Computes values element by element for the statements of one kernel.

    What has to be computed before, a reduction or a product, `Expressions` computes.
    """

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
            return self._scalars(operands, space).emit(body, node, known)

        return self._generic(space, reads, output, 0, compute, node.at), element

    @staticmethod
    def _require_expected(element: Attribute, expected: Attribute | None, node: Node) -> None:
        if expected is not None and element != expected:
            notes = [f"cast({name_of(expected)}, ...) converts"]
            raise Fault(f"the right side is {name_of(element)}, but the left {name_of(expected)}", node, notes)

    def type_of(self, node: Expression, reads: Reads) -> Attribute | None:
        """The type of an expression; None for a number."""
        return self._scalars({part: Operand(read.element) for part, read in reads.items()}, {}).type_of(node)

    def _scalars(self, operands: Mapping[Node, Operand], space: Space) -> Scalars:
        return Scalars(
            operands,
            self.symbols.numbers,
            self.symbols.functions,
            locate=self.location,
            decide=lambda node: self.accesses.decided(node, space),
        )

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
            result = compute(body, operands, elements[-1])
            for node, read in reads.items():
                if read.value is None:
                    _erase_unused(operands[node].value, result)
            return result

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
            case Call() if node.function == "dot" or self.is_reduction(node, space):
                found[node] = self._computed_before(node, space)
            case Call():
                self._require_known(node)
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

    def _require_known(self, node: Call) -> None:
        """Raise Fault for a function that there is not, before what is wrong with arguments that it gives a meaning."""
        known = [*SCALAR_NAMES, *self.symbols.functions, *REDUCTIONS, *PLACES, *self.symbols.reducers, "dot"]
        if node.function not in known and node.function not in ("load", "store"):
            raise unknown_function(node, known)

    def _read(self, node: Access, space: Space) -> Read:
        tensor = self.symbols.tensor(node.tensor, node)
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

    def _computed_before(self, node: Call, space: Space) -> Read:
        """A reduction or a product of matrices within an expression, as what that reads."""
        raise NotImplementedError

    def is_reduction(self, node: Call, space: Space) -> bool:
        """Whether a call is a reduction where it stands."""
        names = [each.name for each in node.arguments if isinstance(each, Name)]
        free = {name: name not in space and self.symbols.meaning(name) is None for name in names}
        return is_reduction(node, self.symbols.reducers, free)

    def names_in(self, node: Node, space: Space) -> list[str]:
        """The indices of a space that an expression uses, in the order of the space."""
        used = {each.name for each in walk(node) if isinstance(each, Name)}
        return [name for name in space if name in used]

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

    def fresh(self, space: Space, element: Attribute) -> Destination:
        """A new tensor over a space."""
        shape = [each.size for each in space.values()]
        return Destination(self.builder.empty(shape, signless(element)), tuple(loops(len(shape))))


def _erase_unused(value: SSAValue | None, result: SSAValue) -> None:
    """Take the number that an index is out of a body whose conditions on it are decided."""
    op = None if value is None else value.owner
    inside = isinstance(op, Operation) and op.parent is not None and op.parent is _block_of(result)
    if value is None or value.uses or value is result or not inside:
        return
    assert isinstance(op, Operation)
    operands = list(op.operands)
    op.detach()
    op.erase()
    for operand in operands:
        _erase_unused(operand, result)


def _block_of(value: SSAValue) -> Block | None:
    owner = value.owner
    return owner if isinstance(owner, Block) else owner.parent
