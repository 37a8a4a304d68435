# SPDX-License-Identifier: Apache-2.0
"""The networks that are measured, and the reference beside them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from benchmarks.measure import ROOT

Feeds: TypeAlias = dict[str, Any]
"""Arrays for the inputs of a model, by name."""


def _zoo() -> Any:
    spec = importlib.util.spec_from_file_location("zoo", ROOT / "examples" / "networks" / "zoo.py")
    assert spec is not None
    assert spec.loader is not None
    zoo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(zoo)
    return zoo


def names() -> tuple[str, ...]:
    """The networks of examples/networks."""
    return tuple(_zoo().NETWORKS)


def network(name: str, *, small: bool = False) -> tuple[Any, Feeds]:
    """A network of examples/networks with seeded weights, as an ONNX model, and inputs by name."""
    zoo = _zoo()
    model = zoo.NETWORKS[name](seed=0, small=small)
    return model, zoo.inputs(model, seed=1)


def new_model(name: str) -> Any:
    """The `OnnxBuilder` of examples/networks, for a model with seeded weights."""
    _zoo()  # puts its neighbours where they are found
    return importlib.import_module("onnx_builder").OnnxBuilder(name, seed=0, opset=20)


def inputs_of(model: Any) -> Feeds:
    """Seeded inputs of a model, by name."""
    return _zoo().inputs(model, seed=1)


def layers_of_bert(layers: int, **sizes: int) -> Any:
    """BERT-base of so many layers, or of other sizes, as an ONNX model."""
    _zoo()  # puts its neighbours where they are found
    return importlib.import_module("bert").bert(seed=0, layers=layers, **sizes)


def onnxruntime_on_one_thread(model: Any, feeds: Feeds, *, optimised: bool) -> Callable[[], Sequence[Any]]:
    """What runs a model once in onnxruntime, on one thread, with all of its graph optimisations or with none."""
    return onnxruntime_session(model.SerializeToString(), feeds, optimised=optimised, threads=1)


def onnxruntime_session(model: bytes, feeds: Feeds, *, optimised: bool, threads: int) -> Callable[[], Sequence[Any]]:
    """The same from the bytes of a model, on `threads` threads; with 0, on as many as onnxruntime likes."""
    onnxruntime: Any = importlib.import_module("onnxruntime")  # has no types
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, sess_options=options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)


def check_agreement(ours: Sequence[Any], theirs: Sequence[Any], what: str, *, tolerance: float = 1e-3) -> None:
    """Raise AssertionError unless the outputs are those of the reference up to rounding, a share of the largest."""
    import numpy as np

    for mine, other in zip(ours, theirs, strict=True):
        scale = float(np.abs(other).max())
        error = float(np.abs(np.asarray(mine, np.float64) - other).max())
        assert error <= tolerance * scale, (
            f"{what}: the outputs differ from those of onnxruntime by {error:.3g} of {scale:.3g}"
        )
