"""Importers of convolution and pooling."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph.base import require
from penstock.lowering.from_onnx.node import Importer, Node, Unsupported


def resolved_pads(
    node: Node,
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[int]:
    """
    The padding that `pads` and `auto_pad` ask for, all beginnings and then all ends.

    SAME_UPPER and SAME_LOWER give ceil(size / stride) places; an odd padding puts the larger part after,
    or before.
    """
    rank = len(spatial)
    for name, values in (("kernel_shape", kernel), ("strides", strides), ("dilations", dilations)):
        require(len(values) == rank, f"{name} {list(values)} for {rank} spatial dimensions")
    mode = node.string("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        return node.ints("pads") or [0] * (2 * rank)
    if mode == "VALID":
        return [0] * (2 * rank)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise Unsupported(f"auto_pad {mode}")
    before: list[int] = []
    after: list[int] = []
    for size, window, stride, dilation in zip(spatial, kernel, strides, dilations, strict=True):
        extent = dilation * (window - 1) + 1
        total = max((-(-size // stride) - 1) * stride + extent - size, 0)
        small, large = total // 2, total - total // 2
        before.append(small if mode == "SAME_UPPER" else large)
        after.append(large if mode == "SAME_UPPER" else small)
    return before + after


def conv(node: Node) -> SSAValue:
    spatial, kernel = node.shape(0)[2:], node.shape(1)[2:]
    stated = node.ints("kernel_shape") or list(kernel)
    require(stated == list(kernel), f"kernel_shape is {stated}, the filters have {list(kernel)}")
    strides = node.ints("strides") or [1] * len(spatial)
    dilations = node.ints("dilations") or [1] * len(spatial)
    return node.emit(
        graph.ConvOp(
            node.value(0),
            node.value(1),
            node.optional(2),
            strides=strides,
            pads=resolved_pads(node, spatial, kernel, strides, dilations),
            dilations=dilations,
            group=node.int("group", 1),
        )
    )


def _window(node: Node) -> tuple[list[int], list[int], list[int], list[int]]:
    """Kernel, strides, pads and dilations of a pool."""
    spatial = node.shape(0)[2:]
    kernel = node.ints("kernel_shape") or []
    strides = node.ints("strides") or [1] * len(spatial)
    dilations = node.ints("dilations") or [1] * len(spatial)
    return kernel, strides, resolved_pads(node, spatial, kernel, strides, dilations), dilations


def max_pool(node: Node) -> SSAValue:
    node.refuse_outputs_after(1)
    kernel, strides, pads, dilations = _window(node)
    return node.emit(
        graph.MaxPoolOp(
            node.value(0),
            kernel_shape=kernel,
            strides=strides,
            pads=pads,
            dilations=dilations,
            ceil_mode=node.flag("ceil_mode", False),
        )
    )


def average_pool(node: Node) -> SSAValue:
    kernel, strides, pads, dilations = _window(node)
    return node.emit(
        graph.AveragePoolOp(
            node.value(0),
            kernel_shape=kernel,
            strides=strides,
            pads=pads,
            dilations=dilations,
            ceil_mode=node.flag("ceil_mode", False),
            count_include_pad=node.flag("count_include_pad", False),
        )
    )


def global_average_pool(node: Node) -> SSAValue:
    return node.emit(graph.GlobalAveragePoolOp(node.value(0)))


def global_max_pool(node: Node) -> SSAValue:
    return node.emit(graph.GlobalMaxPoolOp(node.value(0)))


TABLE: dict[str, Importer] = {
    "AveragePool": average_pool,
    "Conv": conv,
    "GlobalAveragePool": global_average_pool,
    "GlobalMaxPool": global_max_pool,
    "MaxPool": max_pool,
}
