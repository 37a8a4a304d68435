# SPDX-License-Identifier: Apache-2.0
"""Models of TensorFlow Lite against its own interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sampling import sweep

pytest.importorskip("tflite", reason="the extra `tflite`")
interpreter: Any = pytest.importorskip("ai_edge_litert.interpreter", reason="the package ai-edge-litert")

import tflite_files  # noqa: E402

import penstock  # noqa: E402

if TYPE_CHECKING:
    from tests.conftest import Command


def theirs(data: bytes, given: Any) -> list[Any]:
    found = interpreter.Interpreter(
        model_content=data,
        # XNNPACK's kernels and the reference's differ by one; it is the reference that is meant.
        experimental_op_resolver_type=interpreter.OpResolverType.BUILTIN_REF,
    )
    found.allocate_tensors()
    found.set_tensor(found.get_input_details()[0]["index"], given)
    found.invoke()
    return [found.get_tensor(each["index"]) for each in found.get_output_details()]


@pytest.mark.parametrize("seed", sweep(range(40), lambda seed: seed < 2))
@pytest.mark.parametrize("quantised", [True, False])
def test_a_network_computes_what_tensorflow_lite_computes(quantised: bool, seed: int, tmp_path: Path) -> None:
    data, given = tflite_files.network(seed, quantised=quantised)
    (tmp_path / "model.tflite").write_bytes(data)
    wanted = theirs(data, given)
    machine = "snax-opengemm" if quantised and seed % 4 == 0 else None
    for found in (
        penstock.compile(tmp_path / "model.tflite", machine).run([given]),
        penstock.compile(tmp_path / "model.tflite", backend="interpreter").run([given]),
    ):
        apart = [np.abs(ours.astype(float) - other).ravel() for ours, other in zip(found, wanted, strict=True)]
        for ours, other in zip(found, wanted, strict=True):
            assert (ours.shape, ours.dtype) == (other.shape, other.dtype)
            if quantised:
                # Each operator may round otherwise by one, and the next scales that.
                assert np.abs(ours.astype(int) - other).max() <= 3
                assert np.mean(np.concatenate(apart) != 0) < 0.1
            else:
                np.testing.assert_allclose(ours, other, rtol=1e-4, atol=1e-5)


def test_what_is_no_such_file_and_what_is_not_supported_are_refused(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "other.tflite").write_bytes(b"nothing of the kind")
    finished = penstock("import", tmp_path / "other.tflite")
    assert finished.status == 1
    assert "other.tflite: error: this is no model of TensorFlow Lite" in finished.err
    file = tflite_files.File()
    x = file.tensor([4], "float32")
    y = file.node("CUMSUM", [x, x], file.tensor([4], "float32"))
    (tmp_path / "cumsum.tflite").write_bytes(file.data([x], [y]))
    finished = penstock("import", tmp_path / "cumsum.tflite")
    assert finished.status == 3
    assert 'operator 0, "tensor1" (CUMSUM), is not supported' in finished.err
