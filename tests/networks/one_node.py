# SPDX-License-Identifier: Apache-2.0
"""Models of one node, run at graph level, at loop level and in C, against onnxruntime or ONNX's reference evaluator."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
from onnx import ModelProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import Array
from penstock.passes.toolchain import find_compiler
from penstock.runtime.compiler import compile_module, import_program
from penstock.runtime.engine import Engine
from penstock.runtime.signature import signature_of


def levels() -> tuple[str, ...]:
    """Where a model is run: C where there is a compiler."""
    try:
        find_compiler()
    except UserError:
        return ("graph", "loop")
    return ("graph", "loop", "c")


LEVELS = levels()


def model_of(
    operator: str,
    operands: Sequence[Array | None],
    *,
    known: Sequence[int] = (),
    outputs: int = 1,
    opset: int = 22,
    **attributes: Any,
) -> ModelProto:
    """A model of one node; the operands at the places `known` are initializers, None is left out."""
    names = ["" if array is None else f"x{index}" for index, array in enumerate(operands)]
    results = [f"y{index}" for index in range(outputs)]
    given = [(index, array) for index, array in enumerate(operands) if array is not None]
    infos = [
        helper.make_tensor_value_info(names[index], helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for index, array in given
        if index not in known
    ]
    graph = helper.make_graph(
        [helper.make_node(operator, names, results, name="node", **attributes)],
        "test",
        infos,
        [helper.make_empty_tensor_value_info(name) for name in results],
        [numpy_helper.from_array(array, names[index]) for index, array in given if index in known],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def run(model: ModelProto, inputs: Sequence[Array], level: str) -> list[Array]:
    """What a model computes at a level."""
    return next(found for _, found in run_at(model, inputs, [level]))


def run_at(
    model: ModelProto, inputs: Sequence[Array], levels: Sequence[str] = LEVELS
) -> Iterator[tuple[str, list[Array]]]:
    """Each of `levels`, in the order of `LEVELS`, and what a model computes there; it is lowered once."""
    program = import_program(model, {}, name="test")
    signature = signature_of(program.module)
    at = "graph"
    for level in levels:
        if at == "graph" and level != "graph":
            compile_module(program.module, program.ctx, None, "loop")
        # The program at loop level is proved safe once.
        is_proved, at = at == "loop" and level == "c", level
        backend = "native" if level == "c" else "interpreter"
        engine = Engine(program.module, program.ctx, signature, backend, verify=not is_proved)
        yield level, engine.run(list(inputs), {})


def onnxruntime_of(model: ModelProto, inputs: Mapping[str, Array], *, is_fused: bool = True) -> list[Array]:
    """What onnxruntime computes; node by node, unless `is_fused`."""
    options = cast(Any, onnxruntime).SessionOptions()
    if not is_fused:
        options.graph_optimization_level = cast(Any, onnxruntime).GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = cast(Any, onnxruntime).InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, dict(inputs))


def reference_of(model: ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    """What ONNX's reference evaluator computes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cast(Any, ReferenceEvaluator(model)).run(None, dict(inputs))


def agree(
    operator: str,
    operands: Sequence[Array | None],
    *,
    known: Sequence[int] = (),
    witness: Any = onnxruntime_of,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    at: Sequence[str] = LEVELS,
    **attributes: Any,
) -> None:
    """Check a node at the levels `at` against a witness: element types, shapes and, about, values."""
    model = model_of(operator, operands, known=known, **attributes)
    inputs = {f"x{index}": array for index, array in enumerate(operands) if array is not None and index not in known}
    check(model, inputs, witness=witness, rtol=rtol, atol=atol, at=at)


def check(
    model: ModelProto,
    inputs: Mapping[str, Array],
    *,
    witness: Any = onnxruntime_of,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    at: Sequence[str] = LEVELS,
) -> None:
    """Check a model, whose inputs are in their order, like `agree`."""
    wanted = witness(model, inputs)
    for level, found in run_at(model, list(inputs.values()), at):
        assert len(found) == len(wanted)
        for ours, theirs in zip(found, wanted, strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), level
            np.testing.assert_allclose(comparable(ours), comparable(theirs), rtol=rtol, atol=atol, err_msg=level)


def comparable(array: Array) -> Array:
    """The numbers in a type that NumPy compares."""
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)
