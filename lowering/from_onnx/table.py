"""The importer of each ONNX operator; `com.example.Op` would be the name of one from another domain."""

from __future__ import annotations

from penstock.lowering.from_onnx import (
    nodes_elementwise,
    nodes_nn,
    nodes_reduction,
    nodes_shape,
    nodes_window,
)
from penstock.lowering.from_onnx.node import Importer

IMPORTERS: dict[str, Importer] = {
    **nodes_elementwise.TABLE,
    **nodes_nn.TABLE,
    **nodes_reduction.TABLE,
    **nodes_shape.TABLE,
    **nodes_window.TABLE,
}
