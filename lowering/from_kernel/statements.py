"""The statements of a kernel, lowered in their order to ops on tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr

from penstock.dialects.diagnostics import did_you_mean
from penstock.dialects.machine import DRAM
from penstock.dialects.upstream.tensor import EmptyOp
from penstock.lowering.from_kernel.accesses import IndexRange, Place, Span
from penstock.lowering.from_kernel.branches import Branches, as_read
from penstock.lowering.from_kernel.copies import Copies, keep_in_scope, loaded, require_local, stored, tensor_for_parts
from penstock.lowering.from_kernel.elements import Destination, Reads
from penstock.lowering.from_kernel.expressions import Expressions
from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.index_splits import split_indices
from penstock.lowering.from_kernel.loops import Loops, Store
from penstock.lowering.from_kernel.recurrences import Recurrences
from penstock.lowering.from_kernel.scalars import element_called
from penstock.lowering.from_kernel.sizes import shape_of_declaration
from penstock.lowering.from_kernel.symbols import LoopVariable, Symbols, Tensor, dims_text
from penstock.lowering.from_kernel.syntax import (
    Access,
    Assignment,
    Binary,
    Binding,
    Block,
    Call,
    CallStatement,
    Declaration,
    Declarator,
    Expression,
    If,
    Loop,
    Name,
    Node,
    Number,
    Slice,
    Statement,
    walk,
)
from penstock.passes.schedule.tile_nest import DimRange
from penstock.passes.shapes import loops, signless


@dataclass(frozen=True)
class _Target:
    """What a statement assigns to: a tensor, the indices of the statement, and where it writes in the tensor."""

    tensor: Tensor | None
    """None for one that the statement declares."""
    space: dict[str, IndexRange]
    box: tuple[Span, ...] | None
    """What is stored of each dim; None for the whole tensor."""
    dims: tuple[AffineExpr, ...]
    """How the indices of the statement index what is written."""
    sizes: tuple[int, ...]
    """The shape of what is written; what passes the end of a tensor is not stored."""


class Statements:
    """Lowers the statements of one kernel."""

    def __init__(self, expressions: Expressions):
        self._expressions = expressions
        self._builder = expressions.builder
        self._symbols: Symbols = expressions.symbols
        self._accesses = expressions.accesses
        self._copies = Copies(expressions)
        self._branches = Branches(expressions.symbols, self.run)
        self._loops = Loops(expressions, self._branches, self.run)
        self._recurrences = Recurrences(expressions, self.run)

    def run(self, block: Block) -> None:
        """Lower statements in their order. Raises Fault."""
        for statement in block.statements:
            self._builder.location = self._expressions.location(statement.at)
            self._run(statement)

    def _run(self, statement: Statement) -> None:
        match statement:
            case Declaration():
                self._declare(statement)
            case Assignment():
                self._assign(statement.target, statement.operator, statement.value)
            case CallStatement():
                target, value = stored(statement.call)
                self._copy(target, value, statement.call)
            case Loop():
                self._loops.run(statement)
            case If():
                self._branches.run(statement)

    # declarations

    def declare(self, declared: Declarator, kind: str, value: SSAValue | None = None) -> Tensor:
        """Add a tensor as it is declared. Raises Fault for an unknown type or scope, a name that is taken, a size."""
        element = element_called(declared.element)
        if element is None:
            note = did_you_mean(declared.element, ("f16", "bf16", "f32", "f64", "i8", "i32", "i64", "ui8", "bool"))
            notes = [note or "element types are f16 bf16 f32 f64, i8 to i64, ui8 to ui64, and bool"]
            raise Fault(f'unknown element type "{declared.element}"', declared, notes)
        require_local(declared, kind)
        shape = shape_of_declaration(declared, self._symbols.numbers)
        tensor = Tensor(declared.name, kind, element, shape, declared, value, scope=declared.scope)
        self._symbols.declare(tensor, declared)
        return tensor

    def _declare(self, statement: Declaration) -> None:
        if statement.value is None:
            self.declare(statement.declared, "local")
            return
        value = loaded(statement.value) or statement.value
        reads_itself = [each for each in walk(value) if isinstance(each, Name) and each.name == statement.declared.name]
        tensor = self.declare(statement.declared, "local")
        if reads_itself:
            raise Fault(f'"{tensor.name}" is read before anything is stored to it', reads_itself[0])
        self._builder.name = tensor.name
        self._require_shape(value, tensor.shape, tensor.name)
        whole = _Target(tensor, Expressions.tile_space(tensor.shape), None, tuple(loops(tensor.rank)), tensor.shape)
        if value is statement.value:
            self._keep(tensor, self._computed(whole, value, tensor.element)[0])
        else:
            self._builder.location = self._expressions.location(statement.value.at)
            self._copy_whole(whole, tensor, self._copies.source(value, tensor.shape, tensor.element)[0])

    def _require_shape(self, value: Expression, shape: Sequence[int], name: str) -> None:
        found = self._expressions.tile_shape(value)
        if found and found != tuple(shape):
            notes = ["say what goes where with indices"]
            raise Fault(f'"{name}" is {dims_text(shape)}, and the right side {dims_text(found)}', value, notes)

    def _keep(self, tensor: Tensor, value: SSAValue) -> None:
        tensor.value = value
        keep_in_scope(tensor, self._expressions)

    # assignments

    def _assign(self, target: Name | Access, operator: str, value: Expression) -> None:
        if (read := loaded(value)) is not None:
            if operator != "=":
                raise Fault("load stands alone: x = load(y[i, :])", value)
            self._copy(target, read, value)
            return
        name = target.name if isinstance(target, Name) else target.tensor
        self._builder.name = name.replace(".", "_")
        if (recurrence := self._recurrences.find(target, value)) is not None and operator == "=":
            self._recurrences.lower(recurrence, value)
            return
        found = self._target(target, name, value)
        if operator == "+=":
            self._add(found, target, value)
        elif (tile := self._tile(found, value)) is not None and found.tensor is not None:
            self._store(found, found.tensor, tile, target)
        elif found.tensor is None:
            computed, element = self._computed(found, value, None)
            shape = tuple(each.size for each in found.space.values())
            self._symbols.declare(Tensor(name, "local", element, shape, target, computed), target)
        else:
            self._store(found, found.tensor, self._computed(found, value, found.tensor.element)[0], target)

    def _tile(self, target: _Target, value: Expression) -> SSAValue | None:
        """The local tile that is stored to a part of a tensor as it is; None for anything else."""
        symbol = self._symbols.find(value.name) if isinstance(value, Name) else None
        if not isinstance(value, Name) or not isinstance(symbol, Tensor) or symbol.kind == "parameter":
            return None
        if target.box is None or target.tensor is None:
            return None
        tile = self._symbols.stored(value.name, value)
        is_same = tile.shape == target.sizes and tile.element == target.tensor.element
        if not is_same:
            return None
        if target.tensor.value is None:
            tensor_for_parts(target.tensor, self._expressions)
        return tile.value

    def _computed(self, target: _Target, value: Expression, element: Attribute | None) -> tuple[SSAValue, Attribute]:
        """The right side, in the shape of what is written, and its type, which is `element` if one is given."""

        def destination(element: Attribute, reads: Reads) -> Destination:
            return self._destination(target, element, reads)

        split = split_indices(value, target.space, self._symbols.numbers)
        if split is not None:
            if target.box is not None:
                raise Fault("a part of a tensor cannot be stored by quotients of indices: store the whole", value)
            space, value = split
            sizes = tuple(range.size for range in space.values())
            whole = _Target(None, space, None, tuple(loops(len(space))), sizes)
            computed, found = self._computed(whole, value, element)
            return self._builder.reshape(computed, target.sizes), found
        if isinstance(value, Call) and value.function == "dot":
            return self._expressions.dot(value, destination, element)
        if isinstance(value, Call) and self._expressions.is_reduction(value, target.space):
            # One that is the same along an index of the left is repeated along it.
            if self._expressions.names_in(value, target.space) == list(target.space) and value.arguments:
                return self._expressions.reduce(value, target.space, destination, element)
        return self._expressions.elementwise(value, target.space, element, destination)

    def _add(self, target: _Target, at: Name | Access, value: Expression) -> None:
        tensor = target.tensor
        name = at.name if isinstance(at, Name) else at.tensor
        window = None if target.box is None else tuple(span.window() for span in target.box)
        self._symbols.stored(name, at, window=window)
        assert tensor is not None
        assert tensor.value is not None
        old = tensor.value
        if target.box is not None:
            old = self._builder.slice(old, self._spans(target))
            past = [size - span.length for size, span in zip(target.sizes, target.box, strict=True)]
            old = self._builder.pad(old, [0] * len(past), past, 0)
        total = self._expressions.add_to(value, target.space, old, target.dims, tensor.element)
        if total is None:
            read = as_read(at)
            if target.box is not None and isinstance(read, Access):
                # A last tile passes the end of the tensor; what is computed there is not stored.
                read = replace(read, otherwise=Number("0", at=at.at))
            total, _ = self._computed(target, Binary("+", read, value, at=at.at), tensor.element)
        self._store(target, tensor, total, at)

    def _copy(self, target: Name | Access, value: Expression, at: Node) -> None:
        """An explicit copy, which `at` asks for."""
        self._builder.location = self._expressions.location(at.at)
        name = target.name if isinstance(target, Name) else target.tensor
        self._builder.name = name
        found = self._target(target, name, value)
        if not all(index.isdigit() for index in found.space):
            raise Fault("load and store copy tiles, which have no indices", target, ["y[i, j] = x[i, j] has them"])
        shape, tensor = tuple(each.size for each in found.space.values()), found.tensor
        source, element = self._copies.source(value, shape, None if tensor is None else tensor.element)
        if tensor is None:
            tensor = Tensor(name, "local", element, shape, target)
            self._symbols.declare(tensor, target)
        if found.box is None:
            self._copy_whole(found, tensor, source)
        else:
            self._copy_to_part(found, tensor, source)
        self._loops.record(Store(tensor, found.box, target))

    def _copy_whole(self, target: _Target, tensor: Tensor, source: SSAValue) -> None:
        dest = self._destination(target, tensor.element, {})
        # Off chip it is copied to by way of a tile.
        if tensor.scope != DRAM and self._copies.is_window(source) and isinstance(dest.value.owner, EmptyOp):
            self._copies.mark(source)
            self._keep(tensor, source)
        else:
            self._keep(tensor, self._copies.copy(source, self._copies.without_units(dest.value, tensor.shape)))

    def _copy_to_part(self, target: _Target, tensor: Tensor, source: SSAValue) -> None:
        assert target.box is not None
        if tensor.value is None:
            tensor_for_parts(tensor, self._expressions)
        assert tensor.value is not None
        lengths = [span.length for span in target.box]
        part = self._builder.slice(tensor.value, self._spans(target))
        # What passes the end of the tensor is not copied.
        kept = [length for length, dim in zip(lengths, target.dims, strict=True) if isinstance(dim, AffineDimExpr)]
        inside = self._builder.slice(source, [DimRange(0, length) for length in kept])
        made = self._copies.copy(inside, self._copies.without_units(part, kept))
        tensor.value = self._builder.insert(made, tensor.value, self._spans(target))
        self._builder.names[tensor.value] = tensor.name

    # what is assigned to

    def _target(self, target: Name | Access, name: str, value: Expression) -> _Target:
        """What a statement assigns to. Raises Fault."""
        symbol = self._symbols.find(name)
        what = self._symbols.meaning(name)
        if what is not None and not isinstance(symbol, Tensor):
            raise Fault(f'"{name}" is {what}, and cannot be assigned to', target)
        if isinstance(symbol, Tensor) and symbol.kind == "parameter":
            notes = ["a kernel has no effect but its results"]
            raise Fault(f'"{name}" is a parameter, and cannot be assigned to', target, notes)
        tensor = symbol if isinstance(symbol, Tensor) else None
        if isinstance(target, Name):
            shape = self._expressions.tile_shape(value) if tensor is None else tensor.shape
            self._require_shape(value, shape, name)
            return _Target(tensor, Expressions.tile_space(shape), None, tuple(loops(len(shape))), shape)
        return self._new_tensor(target, value) if tensor is None else self._part_of(tensor, target, value)

    def _new_tensor(self, target: Access, value: Expression) -> _Target:
        space: dict[str, IndexRange] = {}
        for index in target.indices:
            if not isinstance(index, Name | Binding):
                notes = ["a tensor of which parts are stored is declared first: f32 y[N, M]"]
                raise Fault(f'unknown tensor "{target.tensor}"', target, notes)
            self._require_new(index, space)
            is_bound = isinstance(index, Binding)
            space[index.name] = self._accesses.bound(index) if is_bound else self._accesses.range_of(index, value)
            if space[index.name].start:
                raise Fault(f'the range of "{index.name}" begins at {space[index.name].start}, and not at 0', index)
        return _Target(None, space, None, tuple(loops(len(space))), tuple(each.size for each in space.values()))

    def _require_new(self, index: Name | Binding, space: Mapping[str, IndexRange]) -> None:
        if index.name in space:
            raise Fault(f'"{index.name}" is on the left twice', index)
        self._symbols.require_free(index.name, index)

    def _part_of(self, tensor: Tensor, target: Access, value: Expression) -> _Target:
        if len(target.indices) != tensor.rank:
            plural = "index" if tensor.rank == 1 else "indices"
            message = f'"{tensor.name}" takes {tensor.rank} {plural}, not {len(target.indices)}'
            raise Fault(message, target)
        if target.otherwise is not None:
            raise Fault("what is stored has no value out of bounds", target.otherwise)
        space: dict[str, IndexRange] = {}
        box: list[Span] = []
        dims: list[AffineExpr] = []
        sizes: list[int] = []
        slices = [index for index in target.indices if isinstance(index, Slice)]
        for index, size in zip(target.indices, tensor.shape, strict=True):
            stride = 1
            if isinstance(index, Slice):
                place, length = self._accesses.extent(index, size, {})
                dims.append(AffineExpr.dimension(len(space)))
                space[str(len(space))] = IndexRange(0, length)
            else:
                name, range = self._index_of(index, size, tensor, target, value, space)
                if name is None:
                    place, length = self._accesses.place_of(index, {}), 1
                    dims.append(AffineExpr.constant(0))
                else:
                    if slices:
                        raise Fault("a slice stands in a statement of whole tiles, which has no indices", slices[0])
                    dims.append(AffineExpr.dimension(len(space)))
                    space[name] = range
                    inner = Name(name) if isinstance(index, Binding) else index
                    place = self._accesses.place_of(inner, space)
                    terms = dict(place.terms)
                    stride = terms.pop(name, 0)
                    if stride < 1:
                        raise Fault("an index on the left must move forwards", index)
                    place = Place(place.constant + stride * range.start, terms)
                    length = range.size
            at = target if isinstance(index, Slice) else index
            sizes.append(length)
            box.append(self._stored(Span(place, length, stride), size, tensor, at))
        if slices:
            shape = [each.size for each in space.values()]
            self._require_shape(value, shape, f"{tensor.name}[...]")
        # What has a number for an index has fewer dims than the tensor.
        is_whole = all(isinstance(dim, AffineDimExpr) for dim in dims) and all(
            not span.place.terms and span.length == size for span, size in zip(box, tensor.shape, strict=True)
        )
        return _Target(tensor, space, None if is_whole else tuple(box), tuple(dims), tuple(sizes))

    def _index_of(
        self,
        index: Expression | Binding,
        size: int,
        tensor: Tensor,
        target: Access,
        value: Expression,
        space: Mapping[str, IndexRange],
    ) -> tuple[str | None, IndexRange]:
        """The index of the statement in an index on the left, if there is one, and its range."""
        if isinstance(index, Binding):
            self._require_new(index, space)
            return index.name, self._accesses.bound(index)
        names = [each for each in walk(index) if isinstance(each, Name)]
        new = [name for name in names if self._symbols.meaning(name.name) is None]
        if not new:
            return None, IndexRange(0, 1)
        if len(new) > 1:
            raise Fault("one index of the statement may move an index on the left", new[1])
        (name,) = new
        self._require_new(name, space)
        if isinstance(index, Name):
            for access, other in self._accesses.alone(name.name, value):
                if other != size:
                    message = (
                        f'"{name.name}" runs over {size} elements of "{tensor.name}" and {other} of "{access.tensor}"'
                    )
                    raise Fault(message, access, [f"say which: {tensor.name}[{name.name} in 0:SIZE, ...] = ..."])
            return name.name, IndexRange(0, size)
        return name.name, self._accesses.range_of(name, value)

    def _stored(self, span: Span, size: int, tensor: Tensor, at: Node) -> Span:
        """What is stored: all, but for what the last tile of a loop has past the end of the tensor."""
        low, high = span.place.bounds(self._accesses.variables())
        variables = [self._symbols.find(name) for name in span.place.terms]
        if any(isinstance(each, LoopVariable) and each.is_last for each in variables) and 0 <= low == high < size:
            return span._replace(length=min(span.length, len(range(low, size, span.stride))))
        last = span.from_start(high).stop - 1
        if low < 0 or last >= size:
            where = f"{low} to {last}"
            raise Fault(f'index out of bounds: it is {where}, and the dim of "{tensor.name}" has the size {size}', at)
        return span

    # storing

    def _spans(self, target: _Target) -> list[DimRange]:
        assert target.box is not None
        return [DimRange(self._accesses.offset(span.place), span.length, span.stride) for span in target.box]

    def _destination(self, target: _Target, element: Attribute, reads: Reads) -> Destination:
        """Where the right side is written."""
        tensor = target.tensor
        if tensor is None:
            return self._expressions.fresh(target.space, element)
        old = tensor.value
        if target.box is None:
            # What a loop carries is overwritten in its place, unless other elements of it are read.
            is_carried = old is not None and self._symbols.depth > tensor.depth
            others = [read for read in reads.values() if read.value is old and read.dims != target.dims]
            if old is not None and is_carried and not others:
                return Destination(old, target.dims)
            return Destination(self._builder.empty(target.sizes, signless(element)), target.dims)
        if tensor.value is None:
            tensor_for_parts(tensor, self._expressions)
        if target.sizes != tuple(span.length for span in target.box):
            return Destination(self._builder.empty(target.sizes, signless(element)), target.dims)
        assert tensor.value is not None
        return Destination(self._builder.slice(tensor.value, self._spans(target)), target.dims)

    def _store(self, target: _Target, tensor: Tensor, written: SSAValue, at: Node) -> None:
        if target.box is None:
            self._keep(tensor, written)
        else:
            assert tensor.value is not None
            inside = self._builder.slice(written, [DimRange(0, span.length) for span in target.box])
            tensor.value = self._builder.insert(inside, tensor.value, self._spans(target))
            self._builder.names[tensor.value] = tensor.name
        self._loops.record(Store(tensor, target.box, at))
