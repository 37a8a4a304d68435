# SPDX-License-Identifier: Apache-2.0
"""Networks and random models, exported after what graph level does to them: onnxruntime gives what it gave before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
import zoo
from network import TOLERANCE, error
from numpy.typing import NDArray
from one_node import onnxruntime_of
from onnx import ModelProto
from sampling import sweep

from penstock.lowering.to_onnx import export_model
from penstock.runtime.compiler import import_program
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline
from penstock.runtime.quantization import quantize
from penstock.runtime.signature import main_function
from penstock.tools.fuzz.onnx_models import random_model

GRAPH_PASSES = ",".join(pipeline("graph", None))


def exported(model: ModelProto, passes: str) -> ModelProto:
    program = import_program(model, {})
    run_passes(program.ctx, program.module, read_pipeline(passes))
    found = export_model(main_function(program.module), program.ctx.weights)
    onnx.checker.check_model(found, full_check=True)  # pyright: ignore[reportUnknownMemberType]
    return found


def check(model: ModelProto, inputs: Mapping[str, NDArray[Any]], passes: str) -> None:
    found = onnxruntime_of(exported(model, passes), inputs)
    for ours, theirs in zip(found, onnxruntime_of(model, inputs), strict=True):
        assert ours.dtype == theirs.dtype
        bound = TOLERANCE * float(np.abs(theirs).max(initial=0)) if ours.dtype.kind == "f" else 0
        np.testing.assert_allclose(ours, theirs, 0, bound)


@pytest.mark.parametrize("passes", ["", GRAPH_PASSES], ids=["imported", "graph-passes"])
@pytest.mark.parametrize("name", sweep(list(zoo.NETWORKS), lambda name: name in ("lstm", "shufflenet")))
def test_a_network_computes_the_same_when_it_is_exported(name: str, passes: str) -> None:
    model = zoo.NETWORKS[name](seed=0, small=True)
    check(model, zoo.inputs(model, seed=1), passes)


@pytest.mark.parametrize("first", sweep(list(range(0, 300, 10)), lambda first: first == 0))
def test_random_models_compute_the_same_when_they_are_exported(first: int) -> None:
    for seed in range(first, first + 10):
        model, inputs = random_model(seed)
        # Between networks in exact numbers the order of sums does not count.
        check(model, inputs, GRAPH_PASSES)


@pytest.mark.parametrize("is_integer", [False, True])
def test_a_quantised_network_is_what_the_interpreter_computes(is_integer: bool) -> None:
    model = zoo.NETWORKS["squeezenet"](seed=0, small=True)
    inputs = zoo.inputs(model, seed=1)
    done = quantize(model, [inputs])
    program = done.program
    if is_integer:
        run_passes(program.ctx, program.module, read_pipeline("integer-arithmetic,fold-constants"))
    found = export_model(main_function(program.module), program.ctx.weights)
    kinds = {node.op_type for node in found.graph.node}
    assert "QuantizeLinear" in kinds
    assert ("Conv" in kinds) != is_integer
    from penstock.runtime.interpreter.graph import run_graph

    (ours,) = run_graph(program.module, [*inputs.values()], program.ctx.weights)
    # Fused into products of bytes, sums would saturate on some CPUs.
    (theirs,) = onnxruntime_of(found, inputs, is_fused=False)
    # A step of the scale apart where a quotient is a half.
    assert error(theirs, ours) <= 0.05
    assert np.median(np.abs(theirs - ours)) <= TOLERANCE * np.abs(ours).max()
