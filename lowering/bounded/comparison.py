# SPDX-License-Identifier: Apache-2.0
"""Modules that are one program at several sizes, compared op by op: every number that is not the same in all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from xdsl.dialects import arith, func, memref, tensor
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AnyFloat,
    DenseArrayBase,
    DictionaryAttr,
    FloatAttr,
    FunctionType,
    IndexType,
    IntegerAttr,
    IntegerType,
    LocationAttr,
    MemRefType,
    ModuleOp,
    NoneAttr,
    StridedLayoutAttr,
    SymbolRefAttr,
    TensorType,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.graph.sizes import Dim, Size
from penstock.dialects.locations import location_of_value
from penstock.lowering.bounded.points import Points, size_at

Place: TypeAlias = "LocationAttr | str | None"
Shaped: TypeAlias = "MemRefType[Attribute] | TensorType[Attribute]"


@dataclass(frozen=True)
class OpenType:
    """The type of a memref or tensor, some of whose numbers are not known."""

    shape: tuple[Size, ...]
    strides: tuple[Size, ...] | None
    """None for a tensor, and where the layout is that of the shape."""
    offset: Size = 0


@dataclass
class Differences:
    """Where modules differ, in terms of the first of them."""

    points: Points
    types: dict[SSAValue, OpenType] = field(default_factory=dict[SSAValue, OpenType])
    """The memrefs and tensors of types that are not the same in all."""
    lists: dict[Operation, dict[str, tuple[Size, ...]]] = field(
        default_factory=dict[Operation, dict[str, tuple[Size, ...]]]
    )
    """Properties that are lists of numbers, such as the sizes of a subview."""
    constants: dict[arith.ConstantOp, Dim] = field(default_factory=dict[arith.ConstantOp, Dim])
    """Constants that are sizes."""


def compare(modules: Sequence[ModuleOp], points: Points) -> Differences:
    """
    Compare modules that are one program, compiled at the sizes of `points`.

    Raises UserError, located, where they differ in more than what `Points.fit` finds: in their ops, in a number that is
    no sum of products of sizes, or one that is used as a float; where a size can be less than 1, or is largest where
    the sizes are not; and where a window can leave what it is of.
    """
    found = _Comparison(points)
    found.regions([module.body for module in modules])
    return found.differences


class _Comparison:
    def __init__(self, points: Points):
        self.differences = Differences(points)
        self._points = points
        self._numbers: list[dict[SSAValue, int]] = [{} for _ in points.all]
        """For each module, its values in the order in which they are defined."""

    def regions(self, regions: Sequence[Region]) -> None:
        blocks = [list(region.blocks) for region in regions]
        self._alike([len(each) for each in blocks], regions[0].parent)
        for each in zip(*blocks, strict=True):
            self._block(each)

    def _block(self, blocks: Sequence[Block]) -> None:
        owner = blocks[0].parent_op()
        self._define([list(block.args) for block in blocks], owner)
        self._alike([len(block.ops) for block in blocks], owner)
        for ops in zip(*(block.ops for block in blocks), strict=True):
            self._op(ops)

    def _op(self, ops: Sequence[Operation]) -> None:
        op = ops[0]
        self._alike([each.name for each in ops], op)
        operands = [[numbers.get(v) for v in each.operands] for numbers, each in zip(self._numbers, ops, strict=True)]
        self._alike(operands, op)
        for key in self._keys(ops):
            self._attribute(op, key, [each.properties.get(key) or each.attributes.get(key) for each in ops])
        self._alike([len(each.regions) for each in ops], op)
        for regions in zip(*(each.regions for each in ops), strict=True):
            self.regions(regions)
        self._define([list(each.results) for each in ops], op)
        if isinstance(op, memref.SubviewOp | tensor.ExtractSliceOp):
            self._require_within(op)

    def _require_within(self, op: memref.SubviewOp | tensor.ExtractSliceOp) -> None:
        """Raise UserError for a window that leaves what it is of at some sizes."""
        found = self.differences.lists.get(op, {})
        lists = (op.static_offsets, op.static_sizes, op.static_strides)
        keys = ("static_offsets", "static_sizes", "static_strides")
        windows = (found.get(key) or each.get_values() for key, each in zip(keys, lists, strict=True))
        open_type = self.differences.types.get(op.source)
        shape = cast("Shaped", op.source.type).get_shape() if open_type is None else open_type.shape
        for limit, first, size, stride in zip(shape, *windows, strict=True):
            if size == 0 or DYNAMIC_INDEX in (limit, first, size, stride):
                continue
            for place in (first, first + (size - 1) * stride):
                left = limit - 1 - place
                if min(self._points.range_of(place)[0], self._points.range_of(left)[0]) < 0:
                    raise self._refusal(f"line {place} is read, and there can be none", location_of(op))

    def _keys(self, ops: Sequence[Operation]) -> list[str]:
        keys = [[*each.properties, *each.attributes] for each in ops]
        self._alike(keys, ops[0])
        return keys[0]

    def _define(self, values: Sequence[Sequence[SSAValue]], op: Operation | None) -> None:
        self._alike([len(each) for each in values], op)
        for alike in zip(*values, strict=True):
            for numbers, value in zip(self._numbers, alike, strict=True):
                numbers[value] = len(numbers)
            if len({value.type for value in alike}) > 1:
                self._type(alike)

    def _type(self, values: Sequence[SSAValue]) -> None:
        first, types = values[0], [value.type for value in values]
        place = location_of_value(first)
        where = location_of(first.owner) if isinstance(first.owner, Operation) else place
        if not all(isa(type, MemRefType | TensorType) for type in types):
            raise self._refusal(f"the type of a value is {types[0]} or {types[-1]}", where)
        shaped = cast("list[Shaped]", types)
        kinds = [(type(each), each.element_type, len(each.get_shape()), _space(each)) for each in shaped]
        self._alike(kinds, first.owner if isinstance(first.owner, Operation) else None)
        shape = tuple(self._size(sizes, where) for sizes in zip(*(each.get_shape() for each in shaped), strict=True))
        strides, offset = None, 0
        layouts = [each.layout if isinstance(each, MemRefType) else NoneAttr() for each in shaped]
        self._alike([type(each) for each in layouts], None)
        if all(isinstance(each, StridedLayoutAttr) for each in layouts):
            strided = cast("list[StridedLayoutAttr]", layouts)
            strides = tuple(
                self._number([_known(n) for n in each], where)
                for each in zip(*(layout.strides.data for layout in strided), strict=True)
            )
            offset = self._number([_known(layout.offset) for layout in strided], where)
        elif not isinstance(layouts[0], NoneAttr):
            raise self._refusal(f"the layout of {types[0]} is a map", where)
        self.differences.types[first] = OpenType(shape, strides, offset)

    def _attribute(self, op: Operation, key: str, values: Sequence[Attribute | None]) -> None:
        first = values[0]
        if all(value == first for value in values):
            return
        where = location_of(op)
        if isinstance(first, FunctionType):
            return  # It follows from the types of the arguments.
        if all(isa(value, DenseArrayBase) for value in values):
            lists = [cast("DenseArrayBase[IntegerType]", value).get_values() for value in values]
            self._alike([len(each) for each in lists], op)
            found = tuple(self._number(each, where) for each in zip(*lists, strict=True))
            self.differences.lists.setdefault(op, {})[key] = found
            return
        if isinstance(op, arith.ConstantOp) and all(isa(value, IntegerAttr) for value in values):
            number = self._number([cast("IntegerAttr", value).value.data for value in values], where)
            if isinstance(number, Dim) and isinstance(op.result.type, IndexType):
                self.differences.constants[op] = number
                return
        if isinstance(op, func.FuncOp) and key in ("arg_attrs", "res_attrs", "sym_name"):
            raise self._refusal(f"what is said of @{op.sym_name.data} depends on the sizes", where)
        if all(isinstance(value, SymbolRefAttr) for value in values):
            raise self._refusal("which function is called depends on the sizes", where)
        if isa(first, FloatAttr[AnyFloat]):
            raise self._refusal("a size is a factor or a divisor of floats here, as in a mean over it", where)
        if isinstance(op, memref.GlobalOp | memref.GetGlobalOp) or isa(first, DictionaryAttr):
            raise self._refusal("a constant depends on the sizes", where)
        raise self._refusal(f"its {key} depends on the sizes", where)

    def _size(self, values: Sequence[int], where: Place) -> Size:
        found = self._number(values, where)
        low, high = self._points.range_of(found)
        if low < 1:
            raise self._refusal(f"the size {found} can be {low}", where)
        if isinstance(found, Dim) and high != size_at(found, self._points.bounds):
            raise self._refusal(f"the size {found} is not largest where the sizes are", where)
        return found

    def _number(self, values: Sequence[int], where: Place) -> Size:
        if (found := self._points.fit(values)) is None:
            at = " and ".join(f"{value} at {size_words(self._points.all[n])}" for n, value in enumerate(values[:2]))
            raise self._refusal(f"a size or offset is no sum of products of the sizes: it is {at}", where)
        return found

    def _alike(self, what: Sequence[object], op: Operation | None) -> None:
        if any(each != what[0] for each in what):
            raise self._refusal("the program is another one at other sizes", op and location_of(op))

    def _refusal(self, message: str, where: Place) -> UserError:
        return refusal(message, where, self._points)


def refusal(message: str, where: Place, points: Points) -> UserError:
    """An error for what is not one program at all sizes, with what would help."""
    names = ", ".join(f'"{name}"' for name in points.bounds)
    notes = [
        f"a size that only a run knows, {names}, can be here what is added, and multiplied with numbers",
        "bind it, --dim NAME=SIZE, or compile for each size: penstock.compile without a bound does",
    ]
    return UserError(message, loc=where, notes=notes, status=UNSUPPORTED)


def _space(type: Shaped) -> Attribute | None:
    return type.memory_space if isinstance(type, MemRefType) else None


def _known(number: Attribute) -> int:
    """A number of a layout; what is dynamic in all modules stays so."""
    return DYNAMIC_INDEX if isinstance(number, NoneAttr) else number.data  # pyright: ignore


def size_words(sizes: Mapping[str, int]) -> str:
    """`N = 3, T = 4`."""
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())
