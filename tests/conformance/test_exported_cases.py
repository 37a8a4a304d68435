# SPDX-License-Identifier: Apache-2.0
"""
ONNX's own backend cases, imported and exported again: onnxruntime runs what it is given to the values of the case, and
what it has no code for, such as floats of few bits, is imported once more and interpreted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto
from onnx_cases import cases, compare, data_of, model_of, read_record, values_of
from sampling import sweep

from penstock.lowering.from_onnx.upgrade import upgraded
from penstock.lowering.to_onnx import export_model
from penstock.runtime.compiler import import_program
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline
from penstock.runtime.signature import main_function
from penstock.runtime.specialize import Specialiser

onnxruntime: Any = pytest.importorskip("onnxruntime")

Array = NDArray[Any]

CHUNKS = 64
NOT_THERE = ("NOT_IMPLEMENTED", "Numpy_type", "No corresponding Numpy type", "only *guarantees*", "IR version")
"""Of what onnxruntime says of a model, or of inputs or outputs, of types that it has no code for."""
GRAPH_PASSES = ",".join(pipeline("graph", None))


def exported(case: Any, inputs: Sequence[Any], passes: str) -> tuple[ModelProto, list[Array]]:
    """The case through the IR, specialised as far as it has to be, and the inputs that are left."""
    specialiser = Specialiser(upgraded(model_of(case), case.name), place=case.name)
    fitted = specialiser.fit([np.asarray(each) for each in inputs], {}, {})
    program = import_program(specialiser.with_constants(fitted.constants), fitted.dims, name=case.name)
    run_passes(program.ctx, program.module, read_pipeline(passes))
    return export_model(main_function(program.module), program.ctx.weights), fitted.ordered


def run(model: ModelProto, inputs: Sequence[Array]) -> tuple[str, list[Any]]:
    """What runs a model, and the outputs."""
    try:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [value.name for value in model.graph.input]
        return "onnxruntime", session.run(None, dict(zip(names, inputs, strict=True)))
    except Exception as error:
        if not any(word in str(error) for word in NOT_THERE):
            raise
    again = import_program(model, {})
    return "interpreter", run_graph(again.module, inputs, again.ctx.weights)


@pytest.mark.parametrize(
    ("passes", "chunk"),
    sweep([(passes, chunk) for passes in ("", GRAPH_PASSES) for chunk in range(CHUNKS)], lambda each: each[1] == 0),
)
def test_a_case_that_is_imported_is_exported_to_the_same_values(passes: str, chunk: int, record_property: Any) -> None:
    counts: Counter[str] = Counter()
    record = read_record()
    for case in cases()[chunk::CHUNKS]:
        if record.word(case.name, "graph") != "passed":
            continue
        for inputs, expected in data_of(case):
            try:
                witness, outputs = run(*exported(case, values_of(inputs), passes))
                wanted = values_of(expected)
                # onnxruntime gives floats of 8 bits as bytes.
                pairs = zip(outputs, wanted, strict=True)
                compare(case, [a.view(b.dtype) if a.dtype == np.uint8 else a for a, b in pairs], wanted)
            except Exception as error:
                raise AssertionError(f"{case.name}: {error}") from error
            counts[witness] += 1
    for word, count in sorted(counts.items()):
        record_property(word, count)
    assert counts["onnxruntime"] > 2 * counts["interpreter"] > 0
