# SPDX-License-Identifier: Apache-2.0
"""What notebooks show: engines, plans, schedules and runs."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

import penstock
from penstock.passes.analysis.memory.memory_problems import plan_report
from penstock.passes.planning.map_svg import svg_map
from penstock.passes.planning.problem import Buffer, Plan, Problem

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def engine() -> penstock.Engine:
    engine = penstock.compile(DIGITS, machine="gemmini-fp32", backend="interpreter")
    assert isinstance(engine, penstock.Engine)
    return engine


def test_an_engine_shows_its_figures_its_memories_and_its_units(engine: penstock.Engine) -> None:
    html = engine._repr_html_()  # pyright: ignore[reportPrivateUsage]
    root = ElementTree.fromstring(f"<html>{html}</html>")
    titles = [svg.findtext(f"{SVG}text") for svg in root.iter(f"{SVG}svg")]
    assert titles[0] == "gemmini-fp32: 11,126 cycles"
    assert set(titles[1:]) == {
        "@fused_0, acc: 2,048 of 65,536 bytes",
        "@fused_2, spad: 5,760 of 262,144 bytes",
        "arena: 5,120 bytes",
    }
    assert "DMA: 44,408 bytes in" in html


def test_a_plan_and_a_run_show_themselves(engine: penstock.Engine) -> None:
    for plan in plan_report(engine.module):
        picture = ElementTree.fromstring(plan._repr_svg_())  # pyright: ignore[reportPrivateUsage]
        texts = {text.text for text in picture.iter(f"{SVG}text")}
        for buffer in plan.buffers:
            assert any(buffer.name in (text or "") for text in texts)
    run = engine.provenance.run
    assert run is not None
    for kernel in run.kernels:
        picture = ElementTree.fromstring(kernel._repr_svg_())  # pyright: ignore[reportPrivateUsage]
        assert picture.findtext(f"{SVG}text") == f"@{kernel.kernel}: {kernel.simulation.cycles:,} cycles"


def test_a_map_names_each_buffer_however_small() -> None:
    buffers = [Buffer(f"%buffer_{n}", ((7 * n % 90, 7 * n % 90 + 1 + n % 9),), 1 + n % 5) for n in range(27)]
    buffers.append(Buffer("%tall", ((40, 50),), 4000))
    problem = Problem(tuple(buffers))
    plan = Plan({buffer.id: 10 * number for number, buffer in enumerate(buffers)})
    root = ElementTree.fromstring(svg_map(problem, plan, "small ones"))
    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    for number in range(27):
        assert sum(f"%buffer_{number}," in text or text == f"%buffer_{number}" for text in texts) == 1
    assert "%tall" in texts
    height = float(root.attrib["height"])
    assert all(float(text.attrib["y"]) <= height for text in root.iter(f"{SVG}text"))
