# SPDX-License-Identifier: Apache-2.0
"""What benchmarks.science is made of: studies as data, verdicts, a camera in kernels, commands by hand, orders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.science import cosma, smaug
from benchmarks.science.__main__ import STUDIES
from benchmarks.science.commands import RECIPES, product
from benchmarks.science.plots import Bars, Roofline, Timeline, draw
from benchmarks.science.study import FOLDER, Found, Row, Study, report
from numpy.typing import NDArray

import penstock
from penstock.dialects.context import make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.planning.on_chip.problem import OnChipProblem, Tensor, TensorAccess
from penstock.passes.planning.on_chip.registry import decide
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.simulator.run import run_program

Array = NDArray[Any]


def test_every_study_has_its_file_and_the_other_way_round() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(STUDIES)
    for name in STUDIES:
        study = Study.read(name)
        assert study.rows, name
        assert all(row.why and "TODO" not in row.why for row in study.rows.values()), name


@pytest.mark.parametrize(
    ("ours", "verdict"), [(65.0, "near"), (62.0, "less"), (90.0, "near"), (99.1, "more"), (75.0, "near")]
)
def test_the_verdict_allows_a_tenth_on_both_sides_of_the_span(ours: float, verdict: str) -> None:
    assert Row("", "", (70, 90), "").verdict(ours) == verdict


def test_a_report_has_what_is_published_beside_ours() -> None:
    rows = {"a": Row("first", "x", (1.0, float("inf")), "why"), "b": Row("second", "x", None, "how", 2)}
    text = report(Study("s", "Title", "a paper", "not", 0, {}, rows), Found({"b": 1.234, "a": 2.0}, ["table"]))
    lines = [line.split() for line in text.splitlines()]
    assert ["second", "1.23", "x", "-"] in lines
    assert ["first", "2.0", "x", "over", "1.0", "near"] in lines
    assert text.endswith("- first: why\ntable\n\nsource: a paper\nchecked: not")


def test_a_study_with_a_key_that_none_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.science.study.FOLDER", tmp_path)
    (tmp_path / "s.toml").write_text('title = ""\nsource = ""\nchecked = ""\nseed = 0\ntitel = ""\n[set]\n')
    with pytest.raises(KeyError, match="titel"):
        Study.read("s")


@pytest.mark.parametrize(
    "plot",
    [
        Bars("bars", "x", ["a", "b"], {"one": [1.0, None], "published": [2.0, None]}, frozenset({"published"})),
        Roofline("roof", 256, 8, {"one": {"a": (4.0, 20.0), "b": (80.0, 200.0)}}),
        Timeline("time", [("camera a", "host", 0.0, 1.0), ("network b", "machine", 1.0, 2.0)], "ms", {"network": 1}),
    ],
    ids=lambda plot: plot.title,
)
def test_a_picture_has_the_same_bytes_each_time(plot: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("first", "second"):
        draw(plot, tmp_path / f"{name}.svg")
    text = (tmp_path / "first.svg").read_text()
    assert text == (tmp_path / "second.svg").read_text()
    assert plot.title in text


def _demosaiced(raw: Array) -> Array:
    """Bilinear, as a convolution of the colours that the sensor has, dark beyond the edge."""
    height, width = raw.shape
    i, j = np.mgrid[0:height, 0:width]
    corner, cross = [[1, 2, 1], [2, 4, 2], [1, 2, 1]], [[0, 1, 0], [1, 4, 1], [0, 1, 0]]

    def spread(mask: Array, taps: list[list[int]]) -> Array:
        padded = np.pad(raw * mask, 1).astype(np.float64)
        window = [padded[a : a + height, b : b + width] * taps[a][b] / 4 for a in range(3) for b in range(3)]
        return np.sum(window, axis=0)

    red, blue = (i % 2 == 0) & (j % 2 == 0), (i % 2 == 1) & (j % 2 == 1)
    return np.stack([spread(red, corner), spread(i % 2 != j % 2, cross), spread(blue, corner)])


def _called(name: str, *arguments: Any) -> Array:
    found = penstock.kernel(smaug.CAMERA, name)(*arguments)
    assert not isinstance(found, tuple)
    return found


def test_the_camera_computes_what_numpy_does() -> None:
    raw = np.random.default_rng(0).integers(0, 256, (8, 12), np.uint8)
    gain = np.array([1.9, 1.0, 1.6], np.float32)
    rgb = _called("demosaic", raw)
    np.testing.assert_array_equal(rgb, _demosaiced(raw))
    balanced = _called("white_balance", rgb, gain)
    np.testing.assert_allclose(balanced, np.minimum(rgb * gain[:, None, None] / 255, 1), rtol=1e-6)
    bright = _called("gamma", balanced, 0.45)
    np.testing.assert_allclose(bright, balanced**0.45, rtol=1e-5)
    center, deviation = (np.full(3, value, np.float32) for value in (0.4, 0.2))
    small = _called("shrink", bright, center, deviation)
    np.testing.assert_allclose(small, (bright.reshape(3, 4, 2, 6, 2).mean((2, 4)) - 0.4) / 0.2, rtol=1e-4, atol=1e-5)


def _logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _operator(name: str, *inputs: Array) -> Array:
    """What NumPy has for an operator."""
    a, b = inputs[0], inputs[-1]
    match name:
        case "add":
            return a + b
        case "multiply" | "square":
            return a * b
        case "maximum":
            return np.maximum(a, b)
        case "relu":
            return np.maximum(a, 0)
        case "exponential":
            return np.exp(a)
        case "inverse":
            return 1 / a
        case "sigmoid":
            return _logistic(a)
        case _:
            return a * _logistic(a)


def _executed(text: str, *inputs: Array) -> Array:
    """What a program at the accelerator level computes, once it is proved free of hazards."""
    ctx = make_context()
    module = parse_text(ctx, SourceText("commands.mlir", text)).module
    attach_machine(module, "neural-accelerator")
    assert run_program(module).cycles > 0
    (found,) = run_module(module, list(inputs), ctx.weights)
    return found


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("name", list(RECIPES))
def test_commands_by_hand_compute_the_operator_and_race_with_nothing(name: str, slots: int) -> None:
    rng = np.random.default_rng(1)
    inputs = [(rng.random(256) + 0.5).astype(np.float32) for _ in RECIPES[name].inputs]
    found = _executed(RECIPES[name].text(256, 32, slots), *inputs)
    np.testing.assert_allclose(found, _operator(name, *inputs), rtol=1e-5)


def test_the_product_by_hand_is_that_of_numpy() -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-3, 4, (64, 64)).astype(np.float16) for _ in range(2))
    found = _executed(product(64, 8, 2), a, b)
    np.testing.assert_array_equal(found, (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16))


def _tensor(name: str, size: int, *steps: int, source: bool = False, output: bool = False) -> Tensor:
    accesses = tuple(TensorAccess(step, may_stream=False) for step in steps)
    return Tensor(name, size, accesses, source=source, output=output)


def test_order_and_replacement_together_move_less_than_at_the_order_given() -> None:
    """Three branches that widen and narrow, layer by layer: one after the other, nothing has to leave the memory."""
    pytest.importorskip("highspy")
    wide = [_tensor(f"wide{n}", 30, n, 3 + n) for n in range(3)]
    narrow = [_tensor(f"narrow{n}", 5, 3 + n, 6) for n in range(3)]
    image, result = _tensor("image", 10, 0, 1, 2, source=True), _tensor("result", 10, 6, output=True)
    problem = OnChipProblem((image, *wide, *narrow, result), 55)
    assert decide(problem, "milp").off_chip_bytes > 20
    least, tried = cosma.together(problem, 0, 100, 20)
    assert (least, tried > 0) == (20, True)
    assert cosma.together(problem, 0, 100, 20) == (least, tried)


def test_a_network_of_layers_has_the_shapes_that_they_say() -> None:
    layers = ["input 3 8 8", "conv 4 3", "pool 2", "dense 6", "dense 5"]
    model = smaug.network_of("small", layers, 0)
    assert [node.op_type for node in model.graph.node] == ["Conv", "Relu", "MaxPool", "Flatten", "Gemm", "Relu", "Gemm"]
    assert [dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim] == [1, 5]
    assert model.SerializeToString() == smaug.network_of("small", layers, 0).SerializeToString()
