# SPDX-License-Identifier: Apache-2.0
"""One program for all sizes up to a bound: `?` in types, and sizes as values of `memref.dim` and `tensor.dim`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from xdsl.dialects import arith, func, memref, tensor
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    IndexType,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    StridedLayoutAttr,
    TensorType,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.irdl import IRDLOperation
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.functions import SHAPE, set_bounds_of
from penstock.dialects.graph.base import set_type
from penstock.dialects.graph.sizes import Dim, Size, named_size
from penstock.lowering.bounded.comparison import Differences, OpenType
from penstock.lowering.bounded.points import Points

Inserted = TypeVar("Inserted", bound=Operation)

_OPERANDS = {
    "static_offsets": "offsets",
    "static_sizes": "sizes",
    "static_strides": "strides",
    "static_output_shape": "output_shape",
    "static_low": "low",
    "static_high": "high",
    "static_source_offsets": "source_offsets",
    "static_dest_offsets": "dest_offsets",
}
"""Property with the numbers of a list -> the operands that are those which are not known."""


def open_sizes(module: ModuleOp, differences: Differences) -> None:
    """
    Rewrite the first of the modules that were compared into the one that all of them are.

    A size is read off an argument by `memref.dim` (`tensor.dim`), at the start of a function. A buffer keeps its
    allocation, of the most bytes that it has at sizes within the bounds, and says its shape in terms of them, in
    `graph.shape`; what is used of it is a `memref.reinterpret_cast` to its size in a run, dense, in its first bytes.
    `@main` says the names and bounds of its sizes, in `graph.sizes` and
    `graph.bounds`, and what the shape of each argument is in terms of them, in `graph.shape`.

    Raises UserError, located, where a size is needed in a function that no argument of it has.
    """
    for function in [op for op in module.ops if isinstance(op, func.FuncOp) and op.body.blocks]:
        _Opening(function, differences).run()


class _Opening:
    def __init__(self, function: func.FuncOp, differences: Differences):
        self._function = function
        self._differences = differences
        self._last: Operation | None = None
        """Of the ops at the start of the function that compute sizes."""
        self._places: dict[Size, tuple[SSAValue, int]] = {}
        """The arguments that have a size as one of theirs."""
        self._values: dict[Size, SSAValue] = {}
        self._types: dict[SSAValue, OpenType] = {}
        """What is open in the types of values as they are now."""

    def run(self) -> None:
        function, differences = self._function, self._differences
        made: dict[Operation, tuple[tensor.EmptyOp | tensor.SplatOp, OpenType]] = {}
        ops = list(function.body.walk())
        shapes = [differences.types.get(argument) for argument in function.body.block.args]
        for number, open_type in enumerate(shapes):
            if open_type is None:
                continue
            argument = function.body.block.args[number]
            argument = Rewriter.replace_value_with_new_type(argument, _closed(argument.type, open_type))
            self._types[argument] = open_type
            for dim, size in enumerate(open_type.shape):
                if isinstance(size, Dim):
                    self._places.setdefault(size, (argument, dim))
        for value in [*_arguments(ops), *(result for op in ops for result in op.results)]:
            if (open_type := differences.types.get(value)) is None:
                continue
            if isinstance(value.owner, tensor.EmptyOp | tensor.SplatOp):
                made[value.owner] = (value.owner, open_type)
            if isinstance(value.owner, memref.AllocOp):
                self._allocation(value.owner, open_type)
            else:
                self._types[Rewriter.replace_value_with_new_type(value, _closed(value.type, open_type))] = open_type
        for op in ops:
            if op in differences.constants and isinstance(op, arith.ConstantOp):
                op.result.replace_all_uses_with(self._value(differences.constants[op], op))
                Rewriter.erase_op(op)
            elif op in made:
                self._make(*made[op])
            elif op in differences.lists and isinstance(op, IRDLOperation):
                self._lists(op, differences.lists[op])
        if function.sym_visibility is None or function.sym_visibility.data != "private":
            last = function.body.block.last_op
            results = [self._types.get(value) for value in last.operands] if last is not None else []
            _say_sizes(function, differences.points, shapes, results)
        function.update_function_type()

    def _insert(self, op: Inserted) -> Inserted:
        block = self._function.body.block
        point = InsertPoint.at_start(block) if self._last is None else InsertPoint.after(self._last)
        Rewriter.insert_op(op, point)
        self._last = op
        return op

    def _value(self, size: Size, op: Operation) -> SSAValue:
        """A size as a value, made once, at the start of the function."""
        if (found := self._values.get(size)) is None:
            found = self._values[size] = self._made(size, op)
            found.name_hint = None if not isinstance(size, Dim) else size.symbol
        return found

    def _made(self, size: Size, op: Operation) -> SSAValue:
        insert = self._insert
        if not isinstance(size, Dim):
            return insert(arith.ConstantOp(IntegerAttr(size, IndexType()))).result
        if (place := self._places.get(size)) is not None:
            argument, dim = place
            number = self._value(dim, op)
            kind = memref.DimOp if isinstance(argument.type, MemRefType) else tensor.DimOp
            return insert(kind(argument, number)).result
        if (solved := self._solved(size, op)) is not None:
            return solved
        if size.symbol is not None:
            known = ", ".join(str(each) for each in self._places) or "none"
            raise UserError(
                f'the size "{size}" is needed here, and no argument of @{self._function.sym_name.data} has it',
                loc=location_of(op),
                notes=[f"sizes of its arguments: {known}"],
                status=UNSUPPORTED,
            )
        total: SSAValue | None = None
        for monomial, factor in size.terms.items():
            factors = [Dim({(atom,): 1}) for atom in monomial]
            numbers = [self._value(each, op) for each in ([factor] if factor != 1 or not factors else [])]
            term, *others = [*(self._value(each, op) for each in factors), *numbers]
            for other in others:
                term = insert(arith.MuliOp(term, other)).result
            total = term if total is None else insert(arith.AddiOp(total, term)).result
        assert total is not None
        return total

    def _solved(self, size: Dim, op: Operation) -> SSAValue | None:
        """A size of a name out of one that is linear in it, `N` of `2 * N * T + 1` where `T` is known."""
        if (name := size.symbol) is None:
            return None
        for known in self._places:
            assert isinstance(known, Dim)
            slope: Size = 0
            rest: Size = known
            for monomial, factor in known.terms.items():
                if [atom.text for atom in monomial].count(name) == 1:
                    others = Dim({tuple(atom for atom in monomial if atom.text != name): factor})
                    slope = slope + (others if len(monomial) > 1 else factor)
                    rest = rest - Dim({monomial: factor})
            needed = [each for part in (slope, rest) if isinstance(part, Dim) for each in part.names]
            if slope == 0 or name in needed or any(named_size(each) not in self._places for each in needed):
                continue
            whole = self._made(known, op)
            above = whole if rest == 0 else self._insert(arith.SubiOp(whole, self._value(rest, op))).result
            return self._insert(arith.DivUIOp(above, self._value(slope, op))).result
        return None

    def _mixed(self, sizes: Sequence[Size], op: Operation) -> tuple[list[int], list[SSAValue]]:
        """The numbers among sizes, and the values of the others."""
        static = [DYNAMIC_INDEX if isinstance(size, Dim) else size for size in sizes]
        return static, [self._value(size, op) for size in sizes if isinstance(size, Dim)]

    def _allocation(self, op: memref.AllocOp, open_type: OpenType) -> None:
        """The buffer has the bytes that it needs at the bounds, and is used in the size of the run."""
        old = op.memref.type
        assert isa(old, MemRefType)
        points = self._differences.points
        most = [points.range_of(size)[1] for size in open_type.shape]
        op.attributes[SHAPE] = AffineMapAttr(_shape_map(open_type.shape, points))
        users = list(op.memref.uses)
        set_type(op.memref, MemRefType(old.element_type, most, memory_space=old.memory_space))
        strides: list[Size] = [1]
        for size in reversed(open_type.shape[1:]):
            strides.insert(0, strides[0] * size)
        static_sizes, sizes = self._mixed(open_type.shape, op)
        static_strides, steps = self._mixed(strides, op)
        strided = OpenType(open_type.shape, tuple(strides))
        cast = memref.ReinterpretCastOp.build(
            operands=[op.memref, [], sizes, steps],
            properties={
                "static_offsets": DenseArrayBase.from_list(i64, [0]),
                "static_sizes": DenseArrayBase.from_list(i64, static_sizes),
                "static_strides": DenseArrayBase.from_list(i64, static_strides),
            },
            result_types=[_closed(old, strided)],
        )
        dense = memref.CastOp.get(cast.result, _closed(old, open_type))  # pyright: ignore[reportArgumentType]
        for made in (cast, dense):
            made.location = op.location
            made.results[0].name_hint = op.memref.name_hint
        for use in users:
            use.operation.operands[use.index] = dense.dest
        Rewriter.insert_op([cast, dense], InsertPoint.after(op))

    def _make(self, op: tensor.EmptyOp | tensor.SplatOp, open_type: OpenType) -> None:
        """A tensor that is made takes its sizes."""
        _, sizes = self._mixed(open_type.shape, op)
        first = [list(op.operands)] if isinstance(op, tensor.SplatOp) else []
        made = type(op).build(operands=[*first, sizes], result_types=[op.results[0].type])
        self._replace(op, made)

    def _replace(self, op: Operation, made: Operation) -> None:
        made.location = op.location
        for old, new in zip(op.results, made.results, strict=True):
            new.name_hint = old.name_hint
            if old in self._types:
                self._types[new] = self._types[old]
        Rewriter.replace_op(op, made)

    def _lists(self, op: IRDLOperation, lists: Mapping[str, Sequence[Size]]) -> None:
        """Give an op the numbers of its lists that are sizes as operands."""
        properties = dict(op.properties)
        groups: dict[str, list[SSAValue]] = {}
        for key, sizes in lists.items():
            is_expanded = isinstance(op, tensor.ExpandShapeOp)
            name = "dynamic_output_shape" if is_expanded else _OPERANDS.get(key)
            if name is None:
                raise UserError(f"the {key} of {op.name} depends on the sizes", loc=location_of(op), status=UNSUPPORTED)
            dynamic = iter(getattr(op, name))
            static = [DYNAMIC_INDEX if isinstance(size, Dim) else size for size in sizes]
            groups[name] = [
                self._value(size, op) if isinstance(size, Dim) else next(dynamic)
                for size in sizes
                if isinstance(size, Dim) or size == DYNAMIC_INDEX
            ]
            properties[key] = DenseArrayBase.from_list(i64, static)
        properties.pop("operandSegmentSizes", None)
        operands: list[Sequence[SSAValue]] = []
        for name, _ in op.get_irdl_definition().operands:
            given: SSAValue | Sequence[SSAValue] | None = getattr(op, name)
            own = [given] if isinstance(given, SSAValue) else list(given or ())
            operands.append(groups.get(name, own))
        made = type(op).build(
            operands=operands,
            result_types=[result.type for result in op.results],
            properties=properties,
            attributes=op.attributes,
            regions=[region.clone() for region in op.regions],
        )
        self._replace(op, made)


def _arguments(ops: Sequence[Operation]) -> list[SSAValue]:
    regions = (region for op in ops for region in op.regions)
    return [argument for region in regions for block in region.blocks for argument in block.args]


def _closed(type: Attribute, open_type: OpenType) -> MemRefType[Attribute] | TensorType[Attribute]:
    """The type with `?` for what is not known."""
    shape = [DYNAMIC_INDEX if isinstance(size, Dim) else size for size in open_type.shape]
    if isa(type, TensorType):
        return TensorType(type.element_type, shape)
    assert isa(type, MemRefType)
    if open_type.strides is None:
        return MemRefType(type.element_type, shape, memory_space=type.memory_space)
    strides = [_or_none(stride) for stride in open_type.strides]
    layout = StridedLayoutAttr(strides, _or_none(open_type.offset))
    return MemRefType(type.element_type, shape, layout, type.memory_space)


def _or_none(number: Size) -> int | None:
    return None if isinstance(number, Dim) or number == DYNAMIC_INDEX else number


def _say_sizes(
    function: func.FuncOp, points: Points, shapes: Sequence[OpenType | None], results: Sequence[OpenType | None]
) -> None:
    """Let a function say what its sizes are called, how large they are at most, and what its shapes are."""
    set_bounds_of(function, points.bounds)
    function.arg_attrs = _with_shapes(function.arg_attrs, points, shapes)
    if any(results):
        function.res_attrs = _with_shapes(function.res_attrs, points, results)


def _with_shapes(
    attributes: ArrayAttr[DictionaryAttr] | None, points: Points, shapes: Sequence[OpenType | None]
) -> ArrayAttr[DictionaryAttr]:
    entries = list(attributes) if attributes is not None else [DictionaryAttr({}) for _ in shapes]
    for number, open_type in enumerate(shapes):
        if open_type is not None:
            shape = AffineMapAttr(_shape_map(open_type.shape, points))
            entries[number] = DictionaryAttr({**entries[number].data, SHAPE: shape})
    return ArrayAttr(entries)


def _shape_map(shape: Sequence[Size], points: Points) -> AffineMap:
    symbols = {name: AffineExpr.symbol(place) for place, name in enumerate(points.bounds)}

    def expression(size: Size) -> AffineExpr:
        if not isinstance(size, Dim):
            return AffineExpr.constant(size)
        total: AffineExpr | None = None
        for monomial, factor in size.terms.items():
            term = AffineExpr.constant(factor)
            for atom in monomial:
                term = symbols[atom.text] if term == AffineExpr.constant(1) else symbols[atom.text] * term
            total = term if total is None else total + term
        assert total is not None
        return total

    return AffineMap(0, len(symbols), tuple(map(expression, shape)))
