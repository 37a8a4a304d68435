# SPDX-License-Identifier: Apache-2.0
"""A training step of the digits network is a program: it agrees with NumPy's at every level, and training works."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sampling import every_other

from penstock.dialects import graph
from penstock.dialects.diagnostics import UserError
from penstock.lowering.to_onnx import export_model
from penstock.passes.analysis.kernels import partition, share_on_machine
from penstock.passes.toolchain import find_compiler
from penstock.runtime.engine import Backend, Engine
from penstock.runtime.signature import main_function

try:
    HAS_COMPILER = bool(find_compiler())
except UserError:
    HAS_COMPILER = False  # pyright: ignore[reportConstantRedefinition]


@pytest.fixture(scope="module")
def digits() -> Any:
    """The example as a module; it is a script, in no package, and imports the one beside it."""
    folder = Path(__file__).parents[2] / "examples" / "digits"
    spec = importlib.util.spec_from_file_location("digits_training_step", folder / "training_step.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(folder), *sys.path])
        spec.loader.exec_module(module)
        yield module
        sys.modules.pop("train", None)


def interpreted(digits: Any) -> Engine:
    """The step at graph level."""
    program = digits.training_step()
    return Engine(program.module, program.ctx, backend="interpreter")


def test_the_gradients_are_those_written_by_hand(digits: Any) -> None:
    ((images, labels),) = digits.batches(1)
    weights = digits.train.initial_weights()
    scores, kept = digits.train.forward(weights, images)
    expected = digits.train.backward(weights, kept, scores, labels)
    # with a rate of -1 and weights of 0 the new weights would be the gradient: the difference is
    _, new = digits.by(interpreted(digits))(weights, images, labels, -1.0)
    for name, gradient in expected.items():
        np.testing.assert_allclose(new[name] - weights[name], gradient, rtol=1e-4, atol=1e-6, err_msg=name)


def test_onnxruntime_takes_the_same_step(digits: Any) -> None:
    onnxruntime: Any = pytest.importorskip("onnxruntime")
    program = digits.training_step()
    model = export_model(main_function(program.module), program.ctx.weights)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = session.get_inputs()
    rng = np.random.default_rng(0)
    arrays: list[Any] = [
        rng.standard_normal(each.shape, dtype=np.float32)
        if each.type == "tensor(float)"
        else np.ones(each.shape, {"tensor(int64)": np.int64, "tensor(int32)": np.int32}[each.type])
        for each in inputs
    ]
    found = session.run(None, {each.name: array for each, array in zip(inputs, arrays, strict=True)})
    for theirs, ours in zip(found, interpreted(digits).run(arrays), strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-5 * float(np.abs(ours).max()))


def test_the_step_holds_no_more_than_the_forward_pass_and_the_adjoint_code(digits: Any) -> None:
    ops = [op for op in digits.training_step().module.walk() if isinstance(op, graph.GraphOp)]
    convolutions = [op for op in ops if isinstance(op, graph.ConvOp)]
    products = [op for op in ops if isinstance(op, graph.GemmOp)]
    # two forward, the filters of both, and the image of the second only: nobody asks for that of the first
    assert (len(convolutions), len(products)) == (5, 3)
    assert len(ops) < 80


@pytest.mark.parametrize(
    ("machine", "level", "backend"),
    every_other(
        [
            (None, "loop", "native"),
            ("gemmini-fp32", "tensor", "interpreter"),
            ("gemmini-fp32", "accel", "interpreter"),
            ("gemmini-fp32", "accel", "native"),
        ]
    ),
)
def test_two_steps_are_those_of_numpy_at_every_level(
    digits: Any, machine: str | None, level: str, backend: Backend
) -> None:
    if backend == "native" and not HAS_COMPILER:
        pytest.skip("no C compiler")
    engine = digits.compiled(machine, until=level, backend=backend)
    given = list(digits.batches(2))
    losses, weights = digits.trained(digits.by(engine), given)
    expected_losses, expected = digits.trained(digits.by_numpy, given)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    assert digits.apart(weights, expected) < 1e-6
    if machine is not None:
        # The matrix products and convolutions of the backward pass run on the machine like those of the forward pass.
        assert share_on_machine(partition(engine.module)) == 1.0


def test_training_lowers_the_loss(digits: Any) -> None:
    losses, weights = digits.trained(digits.by(interpreted(digits)), list(digits.batches(30)))
    assert np.mean(losses[-5:]) < 0.6 * losses[0]
    _, expected = digits.trained(digits.by_numpy, list(digits.batches(30)))
    assert digits.apart(weights, expected) < digits.TOLERANCE
