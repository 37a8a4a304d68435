# SPDX-License-Identifier: Apache-2.0
"""
Kernels without their dims of size 1.

A vector unit has its lanes along the last dim of its operands. Where that has size 1, as in a depthwise convolution and
after it, every element would be an application of its own, in a row padded to a granule. For the callers it is a view.
"""

from __future__ import annotations

from xdsl.dialects import arith, func, tensor
from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    ModuleOp,
    TensorType,
    i64,
)
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.utils.hints import isa

from penstock.passes.analysis.kernels import calls_by_callee, has_reduction
from penstock.passes.tensor.reshape import reshape_kernel

_OPS = (arith.ConstantOp, func.ReturnOp, tensor.EmptyOp, tensor.PadOp, GenericOp)


def drop_unit_dims(kernel: func.FuncOp, module: ModuleOp, *, reductions: bool = False) -> None:
    """
    Rewrite `kernel`, and its calls in `module`, so that its values have no dims of size 1.

    Nothing changes unless the last dim of its results has size 1 and another one more, it consists of generics
    without a reduction, or with any if `reductions`, and of pads that leave dims of size 1 alone, and every tensor in
    it is static and has several elements.
    """
    returned = kernel.body.block.last_op
    if not isinstance(returned, func.ReturnOp) or not all(_ends_in_one(value.type) for value in returned.operands):
        return
    if not all(isinstance(op, _OPS) for op in kernel.body.block.ops):
        return
    if not reductions and any(isinstance(op, GenericOp) and has_reduction(op) for op in kernel.body.block.ops):
        return
    pads = [op for op in kernel.body.block.ops if isinstance(op, tensor.PadOp)]
    if not all(map(_pads_no_unit, pads)):
        return
    constants = [op for op in kernel.body.block.ops if isinstance(op, arith.ConstantOp)]
    computed = [result for op in kernel.body.block.ops for result in op.results]
    types = {value: t for value in (*kernel.body.block.args, *computed) if isa(t := value.type, TensorType)}
    if any(not type.has_static_shape() or {*type.get_shape()} <= {0, 1} for type in types.values()):
        return
    for op in kernel.body.block.ops:
        if isinstance(op, GenericOp):
            _index_without(op)
    for pad in pads:
        _pad_without(pad)
    for constant in constants:
        if isinstance(held := constant.value, DenseIntOrFPElementsAttr) and constant.result in types:
            sizes = [size for size in held.get_shape() or () if size != 1]
            constant.value = DenseIntOrFPElementsAttr(TensorType(held.get_element_type(), sizes), held.data)
    calls = calls_by_callee(module).get(kernel.sym_name.data, ())
    reshape_kernel(kernel, calls, {value: [size for size in t.get_shape() if size != 1] for value, t in types.items()})


def _ends_in_one(type: Attribute) -> bool:
    return isa(type, TensorType) and bool(type.get_num_dims()) and type.get_shape()[-1] == 1


def _pads_no_unit(pad: tensor.PadOp) -> bool:
    """Whether a pad of a constant makes no dim of size 1 longer."""
    assert isa(pad.source.type, TensorType)
    assert isa(pad.result.type, TensorType)
    sizes = zip(pad.source.type.get_shape(), pad.result.type.get_shape(), strict=True)
    return all(before == after for before, after in sizes if before == 1) and not any(
        arg.uses for arg in pad.region.block.args
    )


def _pad_without(pad: tensor.PadOp) -> None:
    """Leave out the edges of dims of size 1."""
    assert isa(pad.source.type, TensorType)
    kept = [dim for dim, size in enumerate(pad.source.type.get_shape()) if size != 1]
    low, high = pad.static_low.get_values(), pad.static_high.get_values()
    pad.static_low = DenseArrayBase.from_list(i64, [low[dim] for dim in kept])
    pad.static_high = DenseArrayBase.from_list(i64, [high[dim] for dim in kept])
    block = pad.region.block
    for arg in block.args[len(kept) :]:
        block.erase_arg(arg)


def _index_without(generic: GenericOp) -> None:
    """Leave out the loops of one iteration, and the indices of dims of size 1."""
    extents = generic.get_static_loop_ranges()
    kept = [loop for loop, extent in enumerate(extents) if extent != 1]
    loops = [AffineExpr.dimension(kept.index(n)) if n in kept else AffineExpr.constant(0) for n in range(len(extents))]
    maps: list[AffineMapAttr] = []
    for value, map_attr in zip(generic.operands, generic.indexing_maps, strict=True):
        shape = value.type.get_shape() if isa(value.type, TensorType) else ()
        results = [expr for expr, size in zip(map_attr.data.results, shape, strict=True) if size != 1]
        index_map = AffineMap(len(extents), 0, tuple(results)).replace_dims_and_symbols(loops, [], len(kept), 0)
        maps.append(AffineMapAttr(index_map))
    generic.indexing_maps = ArrayAttr(maps)
    generic.iterator_types = ArrayAttr([generic.iterator_types.data[loop] for loop in kept])
