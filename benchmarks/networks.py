"""The networks that are measured, and the reference beside them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.measure import ROOT


def network(name: str) -> tuple[Any, dict[str, Any]]:
    """A published network of examples/networks with seeded weights, as an ONNX model, and an input by name."""
    spec = importlib.util.spec_from_file_location("light_networks", ROOT / "examples" / "networks" / "light.py")
    assert spec is not None
    assert spec.loader is not None
    light = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(light)
    model = light.light_model(name, seed=0)
    return model, light.light_input(model, seed=1)


def onnxruntime_on_one_thread(model: Any, feeds: dict[str, Any], *, optimised: bool) -> Callable[[], Sequence[Any]]:
    """What runs a model once in onnxruntime, on one thread, with all of its graph optimisations or with none."""
    onnxruntime: Any = importlib.import_module("onnxruntime")  # has no types
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), sess_options=options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, feeds)


def check_agreement(ours: Sequence[Any], theirs: Sequence[Any], what: str) -> None:
    """Raise AssertionError unless the outputs are those of the reference up to rounding."""
    import numpy as np

    for mine, other in zip(ours, theirs, strict=True):
        scale = float(np.abs(other).max())
        error = float(np.abs(np.asarray(mine, np.float64) - other).max())
        assert error <= 1e-3 * scale, (
            f"{what}: the outputs differ from those of onnxruntime by {error:.3g} of {scale:.3g}"
        )
