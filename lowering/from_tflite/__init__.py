# SPDX-License-Identifier: Apache-2.0
"""
Into the IR: a model of TensorFlow Lite, through the ONNX model that says the same.

The package `tflite` reads the file. Images stay as they are stored, NHWC, between transpositions that the compiler
moves away. An operator on integers becomes that on the numbers that these encode, between DequantizeLinear and
QuantizeLinear, as quantisers of ONNX write it: a result may differ from TensorFlow Lite's by one, where that rounds
otherwise. See https://ai.google.dev/edge/litert/conversion/tensorflow/quantization/quantization_spec.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.dialects.diagnostics import UNSUPPORTED, UserError, pip_install

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["import_tflite"]


def import_tflite(path: Path) -> ModelProto:
    """
    The ONNX model of a file of TensorFlow Lite, in opset 20.

    Raises UserError where the package `tflite` is not installed, for what is no such file, and with status 3 for the
    first operator that is not supported.
    """
    try:
        tflite = cast("Any", import_module("tflite"))
    except ImportError:
        notes = [pip_install("tflite")]
        raise UserError(
            "a model of TensorFlow Lite is read by the package tflite", loc=str(path), notes=notes
        ) from None
    from onnx import helper, numpy_helper

    from penstock.lowering.from_tflite.model import TfliteModel, TfliteOp, Unsupported
    from penstock.lowering.from_tflite.operators import OPERATORS

    data = path.read_bytes()
    if data[4:8] != b"TFL3":
        raise UserError("this is no model of TensorFlow Lite", loc=str(path))
    file: Any = tflite.Model.GetRootAsModel(data, 0)
    if file.SubgraphsLength() != 1:
        raise UserError(
            "the model has several graphs: control flow is not supported", loc=str(path), status=UNSUPPORTED
        )
    graph = file.Subgraphs(0)
    codes = [file.OperatorCodes(index) for index in range(file.OperatorCodesLength())]
    known = cast("dict[str, Any]", vars(tflite.BuiltinOperator))
    words = {number: name for name, number in known.items() if isinstance(number, int)}
    names = [words[max(each.BuiltinCode(), each.DeprecatedBuiltinCode())] for each in codes]
    model = TfliteModel(tflite, graph, names)
    for index in range(graph.TensorsLength()):
        held = file.Buffers(graph.Tensors(index).Buffer())
        if held is not None and held.DataLength():
            array = held.DataAsNumpy().view(model.dtype(index)).reshape(model.shape(index))
            model.initializers[model.name(index)] = array
    for index in range(graph.OperatorsLength()):
        op = graph.Operators(index)
        inputs = [int(each) for each in op.InputsAsNumpy()] if op.InputsLength() else []
        made = TfliteOp(model, op, inputs, [int(each) for each in op.OutputsAsNumpy()])
        name = made.word()
        try:
            if name not in OPERATORS:
                raise Unsupported("")
            OPERATORS[name](made)
        except Unsupported as reason:
            title = graph.Tensors(made.outputs[0]).Name().decode()
            words_ = f": {reason}" if str(reason) else ""
            message = f'operator {index}, "{title}" ({name}), is not supported{words_}'
            raise UserError(message, loc=str(path), status=UNSUPPORTED) from None

    def described(indices: Sequence[int]) -> list[Any]:
        return [
            helper.make_tensor_value_info(
                model.name(index), helper.np_dtype_to_tensor_dtype(model.dtype(index)), model.shape(index)
            )
            for index in indices
        ]

    given, wanted = ([int(each) for each in found] for found in (graph.InputsAsNumpy(), graph.OutputsAsNumpy()))
    initializers = [numpy_helper.from_array(np.ascontiguousarray(a), name) for name, a in model.initializers.items()]
    made_graph = helper.make_graph(model.nodes, path.stem, described(given), described(wanted), initializers)
    return helper.make_model(made_graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
