"""The importer of each ONNX operator; `com.example.Op` would be the name of one from another domain."""

from __future__ import annotations

from penstock.dialects.plugins import load_plugins
from penstock.lowering.from_onnx import (
    nodes_cast,
    nodes_conv_transpose,
    nodes_einsum,
    nodes_elementwise,
    nodes_fill,
    nodes_indexing,
    nodes_linear_attention,
    nodes_matrix,
    nodes_nn,
    nodes_quantization,
    nodes_recurrent,
    nodes_reduction,
    nodes_resize,
    nodes_sampling,
    nodes_scalar_functions,
    nodes_selection,
    nodes_shape,
    nodes_signal,
    nodes_window,
)
from penstock.lowering.from_onnx.constants import FROM_CONSTANTS
from penstock.lowering.from_onnx.node import Importer

IMPORTERS: dict[str, Importer] = {
    **nodes_cast.TABLE,
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
    **nodes_signal.TABLE,
    **nodes_window.TABLE,
    **nodes_resize.TABLE,
    **nodes_sampling.TABLE,
    **nodes_indexing.TABLE,
    **nodes_linear_attention.TABLE,
    **nodes_matrix.TABLE,
}

_BY_THE_IMPORT = ("Constant", "If", *FROM_CONSTANTS)
"""Operators of ONNX that need no importer."""


def importer_of(operator: str) -> Importer | None:
    """The importer of an operator, which installed packages may bring where Penstock has none; None without one."""
    if operator not in IMPORTERS and operator not in _BY_THE_IMPORT:
        load_plugins()
    return IMPORTERS.get(operator)
