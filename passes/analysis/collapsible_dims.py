# SPDX-License-Identifier: Apache-2.0
"""
The dims of a kernel that can be collapsed in all of its values: the reassociation of each.

Two dims of a value, one after the other, are collapsible if every op that indexes it iterates over both as over one:
by two loops of one kind, of which each operand has either none or both, side by side in this order in dims that are
collapsible as well. So what is collapsible is the greatest fixed point: all pairs are, until an op separates them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod

from xdsl.dialects import arith, func, tensor
from xdsl.dialects.builtin import TensorType
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp, IndexOp
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap
from xdsl.utils.hints import isa

Tensors = Mapping[SSAValue, TensorType[Attribute]]
IndexingMaps = Mapping[GenericOp, Sequence[AffineMap]]


class CollapsibleDims:
    """
    The pairs of dims that are collapsible in the values of a kernel of generics and pads on static tensors.

    `types` are those of its values, and `maps` the indexing maps that its generics are taken to have.
    """

    def __init__(self, kernel: func.FuncOp, types: Tensors, maps: IndexingMaps):
        self._types = types
        self._maps = maps
        self._pairs = {
            (value, dim)
            for value, type in types.items()
            if not isinstance(value.owner, arith.ConstantOp)
            for dim in range(type.get_num_dims() - 1)
        }
        """A value and a dim, for this dim and the next one."""
        count = -1
        while len(self._pairs) != count:
            count = len(self._pairs)
            for op in kernel.body.block.ops:
                if isinstance(op, GenericOp):
                    self._separate_by_generic(op)
                elif isinstance(op, tensor.PadOp):
                    self._separate_by_pad(op)

    def __bool__(self) -> bool:
        """Whether any are collapsible."""
        return bool(self._pairs)

    def reassociation(self, value: SSAValue) -> list[list[int]]:
        """The dims of a value in groups, each of which collapses to one dim."""
        groups: list[list[int]] = []
        for dim in range(self._types[value].get_num_dims()):
            if (value, dim - 1) in self._pairs:
                groups[-1].append(dim)
            else:
                groups.append([dim])
        return groups

    def collapsed_shape(self, value: SSAValue) -> list[int]:
        """The shape of a value after its groups are collapsed."""
        sizes = self._types[value].get_shape()
        return [prod(sizes[dim] for dim in group) for group in self.reassociation(value)]

    def collapsible_loops(self, generic: GenericOp) -> set[tuple[AffineExpr, AffineExpr]]:
        """The pairs of loops of an op that collapse to one: each of its operands is indexed by both, or by neither."""
        kinds = [kind.data for kind in generic.iterator_types]
        reductions = [loop for loop, kind in enumerate(kinds) if kind == IteratorType.REDUCTION]
        # Reductions are computed in their order, and two are one only where they follow one another.
        ordered = {*pairwise(reductions)}
        read = {op.dim.value.data for op in generic.body.block.ops if isinstance(op, IndexOp)}
        found: set[tuple[AffineExpr, AffineExpr]] = set()
        for first, second in {pair for _, index_map in self._indexed(generic) for pair in _adjacent(index_map)}:
            if not isinstance(first, AffineDimExpr) or not isinstance(second, AffineDimExpr) or first == second:
                continue
            loops = first.position, second.position
            if kinds[loops[0]] != kinds[loops[1]] or read & {*loops}:
                continue
            is_ordered = loops[0] not in reductions or loops in ordered
            if is_ordered and all(self._keeps(each, value, first, second) for value, each in self._indexed(generic)):
                found.add((first, second))
        return found

    def _indexed(self, generic: GenericOp) -> Iterator[tuple[SSAValue, AffineMap]]:
        """The tensors of an op, and how it indexes them."""
        for value, index_map in zip(generic.operands, self._maps[generic], strict=True):
            if isa(value.type, TensorType):
                yield value, index_map

    def _keeps(self, index_map: AffineMap, value: SSAValue, first: AffineDimExpr, second: AffineDimExpr) -> bool:
        """Whether an operand is indexed by neither of two loops, or by both, in adjacent dims that are collapsible."""
        loops = {first.position, second.position}
        using = [dim for dim, expr in enumerate(index_map.results) if expr.used_dims() & loops]
        if not using:
            return True
        dim = using[0]
        return (
            using == [dim, dim + 1]
            and (value, dim) in self._pairs
            and (first, second) == index_map.results[dim : dim + 2]
        )

    def _separate_by_generic(self, generic: GenericOp) -> None:
        loops = self.collapsible_loops(generic)
        for value, index_map in self._indexed(generic):
            self._pairs -= {(value, dim) for dim, pair in enumerate(_adjacent(index_map)) if pair not in loops}
        for output, result in zip(generic.outputs, generic.results, strict=True):
            self._keep_common(output, result)

    def _separate_by_pad(self, pad: tensor.PadOp) -> None:
        sides = zip(pad.static_low.get_values(), pad.static_high.get_values(), strict=True)
        padded = [any(each) for each in sides]
        self._pairs -= {(pad.source, dim) for dim in range(len(padded) - 1) if padded[dim] or padded[dim + 1]}
        self._keep_common(pad.source, pad.result)

    def _keep_common(self, one: SSAValue, other: SSAValue) -> None:
        """Two values of one shape are collapsed alike."""
        for dim in range(self._types[one].get_num_dims() - 1):
            if not {(one, dim), (other, dim)} <= self._pairs:
                self._pairs -= {(one, dim), (other, dim)}


def _adjacent(index_map: AffineMap) -> Iterator[tuple[AffineExpr, AffineExpr]]:
    return pairwise(index_map.results)
