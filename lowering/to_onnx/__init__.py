# SPDX-License-Identifier: Apache-2.0
"""
Out of the IR: a program at graph level becomes an ONNX model that other tools run to the same numbers.

What ONNX has no operator for is written with several: attention, layouts of images other than NCHW, sums in a wider
type than that of the operands. Groups are written as what stands in them. See https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import onnx
from onnx import ModelProto
from xdsl.dialects.func import FuncOp

from penstock.dialects.files import write_whole
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_onnx.model import LARGEST_MODEL
from penstock.lowering.to_onnx.exporter import GraphExporter

__all__ = ["export_model", "save_model"]

SMALLEST_BESIDE = 1 << 10
"""Bytes of a weight that is written to the file beside a large model."""


def export_model(function: FuncOp, store: WeightStore) -> ModelProto:
    """
    The ONNX model of a function at graph level, whose weights are in `store`; the function is not changed.

    Inputs and outputs keep their names and those of their dimensions; nodes are called as they were where the IR came
    from. The operator set is 20, or the first after it that takes all operators as they are.

    Raises UserError, located at the operation, for the first one that ONNX has no form for.
    """
    return GraphExporter(function, store).model()


def save_model(model: ModelProto, path: Path) -> None:
    """Write a model; the weights of one that does not fit into a protocol buffer go to a file beside it, `.data`."""
    if model.ByteSize() <= LARGEST_MODEL:
        write_whole(path, model.SerializeToString())
        return
    beside = f"{path.name}.data"
    path.with_name(beside).unlink(missing_ok=True)  # it would be appended to
    save = cast(Any, onnx).save_model
    save(model, path, save_as_external_data=True, location=beside, size_threshold=SMALLEST_BESIDE)
