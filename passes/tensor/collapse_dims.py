"""Collapse neighbouring dims that all ops of a kernel walk as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from xdsl.context import Context
from xdsl.dialects import arith, func, tensor
from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, DenseArrayBase, IntegerAttr, ModuleOp, TensorType, i64
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp, IndexOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.passes.analysis.kernels import calls_by_callee, kernels, processor_of
from penstock.passes.tensor.reshape import emit_reshape

_OPS = (arith.ConstantOp, func.ReturnOp, tensor.EmptyOp, tensor.PadOp, GenericOp)

Tensors = dict[SSAValue, TensorType[Attribute]]


class JoinedDims:
    """The neighbouring dims of a kernel's values that every op walks as one."""

    def __init__(self, kernel: func.FuncOp, types: Tensors):
        self._types = types
        self._joined = {
            (value, dim)
            for value, type in types.items()
            if not isinstance(value.owner, arith.ConstantOp)
            for dim in range(type.get_num_dims() - 1)
        }
        """A value and a dim, for this dim and the next one."""
        count = -1
        while len(self._joined) != count:
            count = len(self._joined)
            for op in kernel.body.block.ops:
                if isinstance(op, GenericOp):
                    self._restrict(op)
                elif isinstance(op, tensor.PadOp):
                    self._restrict_pad(op)

    def __bool__(self) -> bool:
        return bool(self._joined)

    def _restrict(self, generic: GenericOp) -> None:
        """Part what this op walks otherwise, and what its result does not have in common with its destination."""
        loops = self.loops_of(generic)
        for value, index_map in _indexed(generic):
            self._joined -= {(value, dim) for dim, pair in enumerate(_neighbours(index_map)) if pair not in loops}
        for output, result in zip(generic.outputs, generic.results, strict=True):
            self._tie(output, result)

    def _restrict_pad(self, pad: tensor.PadOp) -> None:
        sides = zip(pad.static_low.get_values(), pad.static_high.get_values(), strict=True)
        padded = [any(each) for each in sides]
        self._joined -= {(pad.source, dim) for dim in range(len(padded) - 1) if padded[dim] or padded[dim + 1]}
        self._tie(pad.source, pad.result)

    def _tie(self, one: SSAValue, other: SSAValue) -> None:
        for dim in range(self._types[one].get_num_dims() - 1):
            if not {(one, dim), (other, dim)} <= self._joined:
                self._joined -= {(one, dim), (other, dim)}

    def loops_of(self, generic: GenericOp) -> set[tuple[AffineExpr, AffineExpr]]:
        """The pairs of loops of an op that each of its operands walks as one, or not at all."""
        kinds = [kind.data for kind in generic.iterator_types]
        reductions = [loop for loop, kind in enumerate(kinds) if kind == IteratorType.REDUCTION]
        # Reductions are computed in their order, and two are one only where they follow one another.
        ordered = {*pairwise(reductions)}
        read = {op.dim.value.data for op in generic.body.block.ops if isinstance(op, IndexOp)}
        found: set[tuple[AffineExpr, AffineExpr]] = set()
        for first, second in {pair for _, index_map in _indexed(generic) for pair in _neighbours(index_map)}:
            if isinstance(first, AffineDimExpr) and isinstance(second, AffineDimExpr) and first != second:
                loops = {first.position, second.position}
                pair = first.position, second.position
                if kinds[pair[0]] == kinds[pair[1]] and not loops & read:
                    is_ordered = pair[0] not in reductions or pair in ordered
                    if is_ordered and all(self._walks(value, each, first, second) for value, each in _indexed(generic)):
                        found.add((first, second))
        return found

    def _walks(self, value: SSAValue, index_map: AffineMap, first: AffineExpr, second: AffineExpr) -> bool:
        loops = first.used_dims() | second.used_dims()
        using = [dim for dim, expr in enumerate(index_map.results) if expr.used_dims() & loops]
        pairs = list(_neighbours(index_map))
        return not using or (
            len(using) == 2
            and (value, using[0]) in self._joined
            and using[0] < len(pairs)
            and pairs[using[0]] == (first, second)
        )

    def groups(self, value: SSAValue) -> list[list[int]]:
        """The dims of a value, those that become one together."""
        groups: list[list[int]] = []
        for dim in range(self._types[value].get_num_dims()):
            if (value, dim - 1) in self._joined:
                groups[-1].append(dim)
            else:
                groups.append([dim])
        return groups

    def shape(self, value: SSAValue) -> list[int]:
        """The shape of a value with its groups as dims."""
        sizes = self._types[value].get_shape()
        return [prod(sizes[dim] for dim in group) for group in self.groups(value)]


def _indexed(generic: GenericOp) -> Iterator[tuple[SSAValue, AffineMap]]:
    """The tensors of an op, and how it indexes them."""
    for value, map_attr in zip(generic.operands, generic.indexing_maps, strict=True):
        if isa(value.type, TensorType):
            yield value, map_attr.data


def _neighbours(index_map: AffineMap) -> Iterator[tuple[AffineExpr, AffineExpr]]:
    return zip(index_map.results, index_map.results[1:], strict=False)


def collapse_dims(kernel: func.FuncOp, calls: Sequence[func.CallOp]) -> None:
    """Rewrite a kernel, and its `calls`, so that dims that all its ops walk as one are one."""
    block = kernel.body.block
    if len(kernel.body.blocks) != 1 or not all(isinstance(op, _OPS) for op in block.ops):
        return
    computed = (result for op in block.ops for result in op.results)
    types: Tensors = {v: t for v in (*block.args, *computed) if isa(t := v.type, TensorType)}
    if not all(type.has_static_shape() for type in types.values()):
        return
    for op in block.ops:
        if isinstance(op, GenericOp):
            _drop_unit_windows(op)
    if not (joined := JoinedDims(kernel, types)):
        return
    shapes = {value: joined.shape(value) for value in types}
    for call in calls:
        _call_collapsed(call, kernel, shapes)
    for op in block.ops:
        if isinstance(op, GenericOp):
            _index_collapsed(op, joined)
        elif isinstance(op, tensor.PadOp):
            _pad_collapsed(op, joined.groups(op.result))
    for value, type in types.items():
        Rewriter.replace_value_with_new_type(value, TensorType(type.element_type, shapes[value]))
    kernel.update_function_type()


def _drop_unit_windows(generic: GenericOp) -> None:
    """Leave loops of one iteration out of sums: a window of one element is the element."""
    extents = generic.get_static_loop_ranges()
    dims = [AffineExpr.dimension(loop) for loop in range(len(extents))]
    kept = [AffineExpr.constant(0) if extent == 1 else dim for dim, extent in zip(dims, extents, strict=True)]

    def without(expr: AffineExpr, size: int) -> AffineExpr:
        left = expr.replace_dims_and_symbols(kept, [])
        # A dim by itself says how far its loop runs, and so has to be one that this loop covers.
        covers = not isinstance(left, AffineDimExpr) or extents[left.position] == size
        return left if not isinstance(expr, AffineDimExpr) and covers else expr

    maps: list[AffineMap] = []
    for value, map_attr in zip(generic.operands, generic.indexing_maps, strict=True):
        sizes = value.type.get_shape() if isa(value.type, TensorType) else ()
        results = [without(expr, size) for expr, size in zip(map_attr.data.results, sizes, strict=True)]
        maps.append(AffineMap(len(extents), 0, tuple(results)))
    # The operands still have to say how far every loop runs.
    if {*dims} <= {expr for each in maps for expr in each.results}:
        generic.indexing_maps = ArrayAttr(AffineMapAttr(each) for each in maps)


def _index_collapsed(generic: GenericOp, joined: JoinedDims) -> None:
    seconds = {second.position for _, second in joined.loops_of(generic) if isinstance(second, AffineDimExpr)}
    kept = [loop for loop in range(generic.get_num_loops()) if loop not in seconds]
    # What stands for a dim that is left out is left out with it.
    loops = [AffineExpr.dimension(kept.index(n) if n in kept else 0) for n in range(generic.get_num_loops())]
    maps: list[AffineMapAttr] = []
    for value, map_attr in zip(generic.operands, generic.indexing_maps, strict=True):
        results = map_attr.data.results
        if isa(value.type, TensorType):
            results = tuple(results[group[0]] for group in joined.groups(value))
        index_map = AffineMap(len(loops), 0, results)
        maps.append(AffineMapAttr(index_map.replace_dims_and_symbols(loops, [], len(kept), 0)))
    for op in generic.body.block.ops:
        if isinstance(op, IndexOp):
            op.dim = IntegerAttr(kept.index(op.dim.value.data), op.dim.type)
    generic.iterator_types = ArrayAttr([generic.iterator_types.data[loop] for loop in kept])
    generic.indexing_maps = ArrayAttr(maps)


def _pad_collapsed(pad: tensor.PadOp, groups: list[list[int]]) -> None:
    low, high = pad.static_low.get_values(), pad.static_high.get_values()
    pad.static_low = DenseArrayBase.from_list(i64, [low[group[0]] for group in groups])
    pad.static_high = DenseArrayBase.from_list(i64, [high[group[0]] for group in groups])
    for index in reversed(pad.region.block.args[len(groups) :]):
        pad.region.block.erase_arg(index)


def _call_collapsed(call: func.CallOp, kernel: func.FuncOp, shapes: dict[SSAValue, list[int]]) -> None:
    """Call with views of the arguments, and view the results as they were."""
    returned = kernel.body.block.last_op
    assert isinstance(returned, func.ReturnOp)

    def before(op: Operation) -> SSAValue:
        op.location = call.location
        Rewriter.insert_op(op, InsertPoint.before(call))
        return op.results[0]

    arguments = [
        emit_reshape(before, value, shapes[arg]) if arg in shapes else value
        for value, arg in zip(call.arguments, kernel.body.block.args, strict=True)
    ]
    types = [
        TensorType(type.element_type, shapes[value]) if isa(type := value.type, TensorType) else type
        for value in returned.operands
    ]
    made = func.CallOp(call.callee, arguments, types)
    made.location = call.location
    Rewriter.insert_op(made, InsertPoint.before(call))
    results: list[SSAValue] = []
    for old, new in zip(call.results, made.results, strict=True):
        new.name_hint = old.name_hint
        results.append(emit_reshape(before, new, old.type.get_shape()) if isa(old.type, TensorType) else new)
    Rewriter.replace_op(call, [], results)


@dataclass(frozen=True)
class CollapseDimsPass(ModulePass):
    """
    Make one dim of neighbouring ones that all ops of a kernel of the host walk as one, in its operands and results.

    Requires the tensor level. A convolution with filters of one element becomes a product of matrices, whose rows are
    all pixels, so that its tiles are cut from many; for the callers of the kernel the new shapes are views. Nothing
    happens without a machine whose file says what the registers of the host hold. Kernels stay as they are in which
    there is anything but generics, pads and constants, as loops or slices. Sizes for `tile` and schedules count the new
    dims.

    Before:
    ```mlir
    #id = affine_map<(n, h, c) -> (n, h, c)>
    #c = affine_map<(n, h, c) -> (c)>
    func.func @main(%x: tensor<2x3x4xf32>, %b: tensor<4xf32>) -> tensor<2x3x4xf32> {
      %y = func.call @add(%x, %b) : (tensor<2x3x4xf32>, tensor<4xf32>) -> tensor<2x3x4xf32>
      func.return %y : tensor<2x3x4xf32>
    }
    func.func private @add(%x: tensor<2x3x4xf32>, %b: tensor<4xf32>) -> tensor<2x3x4xf32> attributes {device = @host} {
      %e = tensor.empty() : tensor<2x3x4xf32>
      %s = linalg.generic {indexing_maps = [#id, #c, #id], iterator_types = ["parallel", "parallel", "parallel"]}
          ins(%x, %b : tensor<2x3x4xf32>, tensor<4xf32>) outs(%e : tensor<2x3x4xf32>) {
      ^bb0(%0: f32, %1: f32, %2: f32):
        %3 = arith.addf %0, %1 : f32
        linalg.yield %3 : f32
      } -> tensor<2x3x4xf32>
      func.return %s : tensor<2x3x4xf32>
    }
    ```
    After (`collapse-dims` on `host-avx2`):
    ```mlir
    #id = affine_map<(p, c) -> (p, c)>
    #c = affine_map<(p, c) -> (c)>
    func.func @main(%x: tensor<2x3x4xf32>, %b: tensor<4xf32>) -> tensor<2x3x4xf32> {
      %0 = tensor.collapse_shape %x [[0 : i64, 1 : i64], [2 : i64]] : tensor<2x3x4xf32> into tensor<6x4xf32>
      %y = func.call @add(%0, %b) : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6x4xf32>
      %y_1 = tensor.expand_shape %y [[0 : i64, 1 : i64], [2 : i64]] output_shape [2, 3, 4]
          : tensor<6x4xf32> into tensor<2x3x4xf32>
      func.return %y_1 : tensor<2x3x4xf32>
    }
    func.func private @add(%x: tensor<6x4xf32>, %b: tensor<4xf32>) -> tensor<6x4xf32> attributes {device = @host} {
      %e = tensor.empty() : tensor<6x4xf32>
      %s = linalg.generic {indexing_maps = [#id, #c, #id], iterator_types = ["parallel", "parallel"]}
          ins(%x, %b : tensor<6x4xf32>, tensor<4xf32>) outs(%e : tensor<6x4xf32>) {
      ^bb0(%0: f32, %1: f32, %2: f32):
        %3 = arith.addf %0, %1 : f32
        linalg.yield %3 : f32
      } -> tensor<6x4xf32>
      func.return %s : tensor<6x4xf32>
    }
    ```
    """

    name = "collapse-dims"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if processor_of(op) is not None:
            calls = calls_by_callee(op)
            for kernel in kernels(op):
                collapse_dims(kernel, calls.get(kernel.sym_name.data, ()))
