"""The importer of each ONNX operator; `com.example.Op` would be the name of one from another domain."""

from __future__ import annotations

from penstock.lowering.from_onnx import (
    nodes_conv_transpose,
    nodes_einsum,
    nodes_elementwise,
    nodes_fill,
    nodes_indexing,
    nodes_nn,
    nodes_quantization,
    nodes_recurrent,
    nodes_reduction,
    nodes_resize,
    nodes_scalar_functions,
    nodes_selection,
    nodes_shape,
    nodes_window,
)
from penstock.lowering.from_onnx.node import Importer

IMPORTERS: dict[str, Importer] = {
    **nodes_conv_transpose.TABLE,
    **nodes_einsum.TABLE,
    **nodes_elementwise.TABLE,
    **nodes_fill.TABLE,
    **nodes_nn.TABLE,
    **nodes_quantization.TABLE,
    **nodes_recurrent.TABLE,
    **nodes_reduction.TABLE,
    **nodes_scalar_functions.TABLE,
    **nodes_selection.TABLE,
    **nodes_shape.TABLE,
    **nodes_window.TABLE,
    **nodes_resize.TABLE,
    **nodes_indexing.TABLE,
}
