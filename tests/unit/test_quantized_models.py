# SPDX-License-Identifier: Apache-2.0
"""
Models that onnxruntime's static quantiser wrote, as QDQ and in integer operators: in integer arithmetic they agree with
onnxruntime, which fuses the same way, bit for bit; without its fusion onnxruntime is a step off itself.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnxruntime import quantization
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType
from sampling import combinations
from xdsl.dialects.builtin import i8

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.runtime.compiler import LoadedProgram, compile_module, load_input
from penstock.runtime.interpreter import run_module
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.pass_manager import read_pipeline, run_passes

Array = NDArray[Any]
ort: Any = onnxruntime
quantizer: Any = quantization


def network(group: int, plain: bool) -> ModelProto:
    """Two convolutions and a matrix; unless `plain`, a residual, an average and a bias that are added in float."""
    rng = np.random.default_rng(group)

    def normal(*shape: int) -> Array:
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    constants = {
        "w1": normal(8, 3, 3, 3),
        "b1": normal(8),
        "w2": normal(8, 8 // group, 3, 3),
        "b2": normal(8),
        "f": normal(32, 10),
    }
    pool: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}

    def node(kind: str, given: str, out: str, **attributes: Any) -> NodeProto:
        return helper.make_node(kind, given.split(), [out], name=out, **attributes)

    nodes = [
        node("Conv", "x w1 b1", "c1", pads=[1] * 4),
        node("Relu", "c1", "r1"),
        node("MaxPool", "r1", "p1", **pool),
        node("Conv", "p1 w2 b2", "c2", pads=[1] * 4, group=group),
    ]
    if plain:
        nodes += [node("Relu", "c2", "r2"), node("MaxPool", "r2", "p2", **pool)]
        nodes += [node("Flatten", "p2", "flat"), node("MatMul", "flat f", "y")]
    else:
        constants["fb"] = normal(10)
        nodes += [node("Add", "c2 p1", "a"), node("Relu", "a", "r2"), node("AveragePool", "r2", "p2", **pool)]
        nodes += [node("Flatten", "p2", "flat"), node("MatMul", "flat f", "m"), node("Add", "m fb", "y")]
    proto = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Reader(CalibrationDataReader):
    """Hands images to onnxruntime's calibration."""

    def __init__(self, images: list[Array]):
        self.images = iter(images)

    def get_next(self) -> dict[str, Array] | None:  # type: ignore[override]
        image = next(self.images, None)
        return None if image is None else {"x": image}


IMAGES = [np.random.default_rng(seed).standard_normal((1, 3, 8, 8)).astype(np.float32) for seed in range(12)]


def fused(program: LoadedProgram, x: Array) -> Array:
    return run_graph(program.module, [x], program.ctx.weights)[0]


@pytest.mark.parametrize(
    ("form", "types", "per_channel", "group"),
    combinations(
        ["QDQ", "QOperator"],
        [("QInt8", "QInt8"), ("QUInt8", "QInt8"), ("QUInt8", "QUInt8")],
        [False, True],
        [1, 4],
    ),
)
def test_models_of_onnxruntimes_quantiser_agree_with_it_bit_for_bit(
    tmp_path: Path, form: str, types: tuple[str, str], per_channel: bool, group: int
) -> None:
    logging.getLogger().setLevel(logging.ERROR)
    (tmp_path / "m.onnx").write_bytes(network(group, plain=form == "QOperator").SerializeToString())
    activation, weight = (QuantType[name] for name in types)
    quantizer.quantize_static(
        tmp_path / "m.onnx",
        tmp_path / "q.onnx",
        Reader(IMAGES),
        quant_format=QuantFormat[form],
        activation_type=activation,
        weight_type=weight,
        per_channel=per_channel,
        # Without instructions for 8-bit products onnxruntime's sums of pairs saturate in 16 bits.
        reduce_range=True,
    )
    session = ort.InferenceSession(str(tmp_path / "q.onnx"))
    expected = [session.run(None, {"x": x})[0] for x in IMAGES]
    program = load_input(tmp_path / "q.onnx")
    run_passes(program.ctx, program.module, read_pipeline("integer-arithmetic"))
    products = [op for op in program.module.walk() if isinstance(op, graph.ConvOp | graph.MatmulOp)]
    assert len(products) >= 3
    assert all(tensor_of(operand).element_type == i8 for op in products for operand in op.operands[:2])
    for x, reference in zip(IMAGES, expected, strict=True):
        np.testing.assert_array_equal(fused(program, x), reference)
    if types == ("QUInt8", "QUInt8"):
        graph_level = fused(program, IMAGES[0])
        compile_module(program.module, program.ctx, None, "loop")
        np.testing.assert_array_equal(run_module(program.module, IMAGES[:1], program.ctx.weights)[0], graph_level)
