# SPDX-License-Identifier: Apache-2.0
"""What a statement assigns to: a whole tensor, or a part of one, and the indices that the statement has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.ir.affine import AffineDimExpr, AffineExpr

from penstock.lowering.from_kernel.accesses import IndexRange, Place, Span
from penstock.lowering.from_kernel.expressions import Expressions
from penstock.lowering.from_kernel.faults import Fault
from penstock.lowering.from_kernel.symbols import LoopVariable, Symbols, Tensor, dims_text
from penstock.lowering.from_kernel.syntax import Access, Binding, Expression, Name, Node, Slice, walk
from penstock.passes.shapes import loops


@dataclass(frozen=True)
class StoreTarget:
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


class StoreTargets:
    """Finds what the statements of one kernel assign to."""

    def __init__(self, expressions: Expressions):
        self._expressions = expressions
        self._symbols: Symbols = expressions.symbols
        self._accesses = expressions.accesses

    def find(self, target: Name | Access, name: str, value: Expression) -> StoreTarget:
        """What a statement assigns to; `name` is that of the tensor. Raises Fault."""
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
            self.require_shape(value, shape, name)
            return StoreTarget(tensor, Expressions.tile_space(shape), None, tuple(loops(len(shape))), shape)
        return self._new_tensor(target, value) if tensor is None else self._part_of(tensor, target, value)

    def require_shape(self, value: Expression, shape: Sequence[int], name: str) -> None:
        """Raise Fault unless an expression of whole tensors has a shape; a scalar goes everywhere."""
        found = self._expressions.tile_shape(value)
        if found and found != tuple(shape):
            notes = ["say what goes where with indices"]
            raise Fault(f'"{name}" is {dims_text(shape)}, and the right side {dims_text(found)}', value, notes)

    def _new_tensor(self, target: Access, value: Expression) -> StoreTarget:
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
        return StoreTarget(None, space, None, tuple(loops(len(space))), tuple(each.size for each in space.values()))

    def _require_new(self, index: Name | Binding, space: Mapping[str, IndexRange]) -> None:
        if index.name in space:
            raise Fault(f'"{index.name}" is on the left twice', index)
        self._symbols.require_free(index.name, index)

    def _part_of(self, tensor: Tensor, target: Access, value: Expression) -> StoreTarget:
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
            self.require_shape(value, shape, f"{tensor.name}[...]")
        # What has a number for an index has fewer dims than the tensor.
        is_whole = all(isinstance(dim, AffineDimExpr) for dim in dims) and all(
            not span.place.terms and span.length == size for span, size in zip(box, tensor.shape, strict=True)
        )
        return StoreTarget(tensor, space, None if is_whole else tuple(box), tuple(dims), tuple(sizes))

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
