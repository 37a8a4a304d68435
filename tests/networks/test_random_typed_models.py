# SPDX-License-Identifier: Apache-2.0
"""Random ONNX models of every element type, with branches, against onnxruntime, or ONNX's own evaluator without it."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from sampling import sweep

import penstock
from penstock.tools.fuzz.onnx_typed import TYPES, typed_model

ort: Any = pytest.importorskip("onnxruntime")
refusals: Any = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
REFUSALS = refusals.Fail, refusals.InvalidGraph, refusals.NotImplemented
Array = NDArray[Any]

TOLERANCES = {"float16": 1e-2, "bfloat16": 8e-2}
"""Of the largest value of an output, where it is not 1e-4: the witness may round after every operator."""


def witness(model: onnx.ModelProto, inputs: dict[str, Array]) -> Sequence[Array]:
    """
    By onnxruntime, where it refuses the model without its optimiser, and else by ONNX's evaluator: onnxruntime does not
    have every operator for every type, its optimiser takes less, and it neither takes nor returns bf16.
    """
    types = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    levels = ort.GraphOptimizationLevel.ORT_ENABLE_ALL, ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for level in levels if onnx.TensorProto.BFLOAT16 not in types else ():
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = level
        with suppress(*REFUSALS):
            session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            return session.run(None, inputs)
    return [np.asarray(each) for each in ReferenceEvaluator(model).run(None, inputs)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", sweep(range(400), lambda seed: seed % 80 == 1))
def test_a_model_of_any_types_computes_what_others_compute(seed: int) -> None:
    model, inputs = typed_model(seed)
    onnx.checker.check_model(model, full_check=True)
    theirs = witness(model, inputs)
    runs = [penstock.compile(model, backend=backend).run([], inputs) for backend in ("interpreter", "native")]
    if seed % 4 == 0:
        runs.append(penstock.compile(model, machine="gemmini-fp32").run([], inputs))
    for found in runs:
        for ours, other in zip(found, theirs, strict=True):
            assert (ours.shape, ours.dtype) == (other.shape, other.dtype)
            if ours.dtype.kind in "biu":
                np.testing.assert_array_equal(ours, other)
                continue
            wide = other.astype(np.float64)
            scale = max(1.0, float(np.abs(wide[np.isfinite(wide)]).max(initial=0)))
            bound = TOLERANCES.get(str(other.dtype), 1e-4)
            np.testing.assert_allclose(ours.astype(np.float64), wide, bound, bound * scale)


def test_the_models_are_of_all_types_and_many_operators() -> None:
    operators, types, branches, several = Counter[str](), set[str](), 0, 0
    for seed in range(200):
        model, inputs = typed_model(seed)
        operators.update(node.op_type for node in model.graph.node)
        types |= {str(array.dtype) for array in inputs.values()}
        branches += any(node.op_type == "If" for node in model.graph.node)
        several += len(model.graph.output) > 1
    assert types == {str(np.dtype(dtype)) for _, dtype in TYPES.values()}
    assert len(operators) > 60
    assert branches > 30
    assert several > 60
