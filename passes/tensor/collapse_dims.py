# SPDX-License-Identifier: Apache-2.0
"""Collapse adjacent dims that all ops of a kernel iterate over as over one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, func, tensor
from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, DenseArrayBase, IntegerAttr, ModuleOp, TensorType, i64
from xdsl.dialects.linalg.ops import GenericOp, IndexOp
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.utils.hints import isa

from penstock.passes.analysis.collapsible_dims import CollapsibleDims
from penstock.passes.analysis.kernels import calls_by_callee, kernels, processor_of
from penstock.passes.tensor.reshape import reshape_kernel

_OPS = (arith.ConstantOp, func.ReturnOp, tensor.EmptyOp, tensor.PadOp, GenericOp)
_VIEWS = (tensor.CollapseShapeOp, tensor.ExpandShapeOp)


def collapse_dims(kernel: func.FuncOp, calls: Sequence[func.CallOp]) -> None:
    """Rewrite a kernel, and its `calls`, so that the dims that are collapsible in all its values are collapsed."""
    block = kernel.body.block
    if len(kernel.body.blocks) != 1 or not all(isinstance(op, _OPS) for op in block.ops):
        return
    computed = (result for op in block.ops for result in op.results)
    types: dict[SSAValue, TensorType[Attribute]] = {
        value: t for value in (*block.args, *computed) if isa(t := value.type, TensorType)
    }
    if not all(type.has_static_shape() for type in types.values()):
        return
    maps = {op: _without_unit_windows(op) for op in block.ops if isinstance(op, GenericOp)}
    if not (dims := CollapsibleDims(kernel, types, maps)):
        return
    for op in block.ops:
        if isinstance(op, GenericOp):
            _collapse_generic(op, maps[op], dims)
        elif isinstance(op, tensor.PadOp):
            _collapse_pad(op, dims.reassociation(op.result))
    reshape_kernel(kernel, calls, {value: dims.collapsed_shape(value) for value in types})


def move_views_out(kernel: func.FuncOp, calls: Sequence[func.CallOp]) -> None:
    """Let the `calls` of a kernel view its arguments and results where it only uses views of them."""
    if len(kernel.body.blocks) != 1 or not isinstance(returned := kernel.body.block.last_op, func.ReturnOp):
        return
    block = kernel.body.block
    views = [op for op in block.ops if isinstance(op, _VIEWS)]
    ends = (*block.args, *returned.operands)
    shapes = {value: type.get_shape() for value in ends if isa(type := value.type, TensorType)}
    if not views or any(-1 in shape for shape in shapes.values()):
        return
    for view in views:
        source, result = view.operands[0], view.results[0]
        before = source in block.args and source.has_one_use()
        after = isinstance(source.owner, GenericOp) and source.has_one_use() and _is_only_returned(result)
        if before or after:
            kept = result if before else source
            assert isa(kept.type, TensorType)
            shapes.pop(result, None)
            shapes[source] = kept.type.get_shape()
            result.replace_all_uses_with(source)
            Rewriter.erase_op(view)
    reshape_kernel(kernel, calls, shapes)


def _is_only_returned(value: SSAValue) -> bool:
    return value.has_one_use() and isinstance(value.get_user_of_unique_use(), func.ReturnOp)


def _without_unit_windows(generic: GenericOp) -> list[AffineMap]:
    """The indexing maps without the loops of one iteration in sums: a window of one element is the element."""
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
        return maps
    return [map_attr.data for map_attr in generic.indexing_maps]


def _collapse_generic(generic: GenericOp, maps: Sequence[AffineMap], dims: CollapsibleDims) -> None:
    seconds = {second.position for _, second in dims.collapsible_loops(generic) if isinstance(second, AffineDimExpr)}
    kept = [loop for loop in range(generic.get_num_loops()) if loop not in seconds]
    # What stands for a dim that is left out is left out with it.
    loops = [AffineExpr.dimension(kept.index(n) if n in kept else 0) for n in range(generic.get_num_loops())]
    collapsed: list[AffineMapAttr] = []
    for value, index_map in zip(generic.operands, maps, strict=True):
        results = index_map.results
        if isa(value.type, TensorType):
            results = tuple(results[group[0]] for group in dims.reassociation(value))
        index_map = AffineMap(len(loops), 0, results)
        collapsed.append(AffineMapAttr(index_map.replace_dims_and_symbols(loops, [], len(kept), 0)))
    for op in generic.body.block.ops:
        if isinstance(op, IndexOp):
            op.dim = IntegerAttr(kept.index(op.dim.value.data), op.dim.type)
    generic.iterator_types = ArrayAttr([generic.iterator_types.data[loop] for loop in kept])
    generic.indexing_maps = ArrayAttr(collapsed)


def _collapse_pad(pad: tensor.PadOp, groups: Sequence[Sequence[int]]) -> None:
    low, high = pad.static_low.get_values(), pad.static_high.get_values()
    pad.static_low = DenseArrayBase.from_list(i64, [low[group[0]] for group in groups])
    pad.static_high = DenseArrayBase.from_list(i64, [high[group[0]] for group in groups])
    for index in reversed(pad.region.block.args[len(groups) :]):
        pad.region.block.erase_arg(index)


@dataclass(frozen=True)
class CollapseDimsPass(ModulePass):
    """
    Collapse adjacent dims that all ops of a kernel of the host iterate over as over one (`analysis/collapsible_dims`).

    Requires the tensor level. A convolution with filters of one element becomes a product of matrices, whose rows are
    all pixels, so that its tiles are cut from many; for the callers of the kernel the new shapes are views, and so are
    those that the kernel itself has only as views of its arguments and results. Nothing happens without a machine
    whose file says what the registers of the host hold. Kernels stay as they are in which there is anything but
    generics, pads and constants, as loops or slices. Sizes for `tile` and schedules count the new dims.

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
            for rewrite in (move_views_out, collapse_dims):
                calls = calls_by_callee(op)
                for kernel in kernels(op):
                    rewrite(kernel, calls.get(kernel.sym_name.data, ()))
