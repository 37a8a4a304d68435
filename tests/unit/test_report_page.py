# SPDX-License-Identifier: Apache-2.0
"""`penstock report`: a page that needs no network, on which a click shows the same thing everywhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("plotly")

from browser import evaluate

if TYPE_CHECKING:
    from tests.conftest import Command

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from penstock.tools import main

    path = tmp_path_factory.mktemp("report") / "digits.html"
    assert main.run(["report", str(DIGITS), "--machine", "gemmini-fp32", "-o", str(path), "-q"]) == 0
    return path


def data_of(page: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.fixture(scope="module")
def program(page: Path) -> dict[str, Any]:
    data = data_of(page)
    assert (data["schema"], len(data["programs"])) == ("penstock-report", 1)
    return data["programs"][0]


def test_the_page_is_one_file_that_asks_for_nothing(page: Path) -> None:
    # What plotly.js itself would ask for are maps, of which there are none.
    text = re.sub(r"<script>.*?</script>", "", page.read_text(), flags=re.DOTALL)
    assert not re.search(r"\b(src|href)=|@import|url\(", text)
    assert page.stat().st_size < 10_000_000


def test_every_level_is_there_and_every_line_has_a_link(program: dict[str, Any]) -> None:
    assert [level["title"] for level in program["levels"]] == ["as it came in", "graph", "tensor", "loop", "accel"]
    for level in program["levels"]:
        assert len(level["links"]) == level["text"].count("\n") + 1
        named = {program["names"][name] for link in level["links"] for name in program["links"][link][1]}
        assert {"conv1", "conv2", "fc"} <= named


def test_kernels_know_all_nodes_that_they_were_fused_of(program: dict[str, Any]) -> None:
    nodes = {
        row["name"]: {program["names"][each] for each in program["links"][row["link"]][1]} for row in program["kernels"]
    }
    assert nodes["fused_2"] == {"conv2", "relu2"}
    assert nodes["fused_1"] == {"pool1"}


def test_the_pieces_of_a_unit_add_up_to_its_cycles(program: dict[str, Any]) -> None:
    for run in program["runs"]:
        assert {row[0] for row in run["rows"]} == {"load", "execute", "store", "bus sys"}
        for _, names, ends, which in run["rows"]:
            assert ends == sorted(set(ends))
            assert ends[-1] == run["cycles"]
            assert len(ends) == len(which)
            assert set(which) == set(range(len(names)))
    assert program["total"]["cycles"] == sum(
        program["runs"][call["run"]]["cycles"] for call in program["calls"] if call["run"] >= 0
    )


def test_buffers_that_are_alive_together_share_no_byte(program: dict[str, Any]) -> None:
    for run, call in ((call["run"], call) for call in program["calls"] if call["run"] >= 0):
        mine = [
            (life, span)
            for life in program["lives"]
            if life["kernel"] == call["kernel"]
            for span in life["cycles"][str(run)]
        ]
        assert mine
        for number, (one, (first, last)) in enumerate(mine):
            assert 0 <= first < last <= program["runs"][run]["cycles"]
            for other, (begin, end) in mine[:number]:
                apart = (
                    one["offset"] + one["size"] <= other["offset"] or other["offset"] + other["size"] <= one["offset"]
                )
                assert apart or one["scope"] != other["scope"] or last <= begin or end <= first


CLICKS = """
  const figure = document.getElementById("time"), said = () => document.getElementById("selected").textContent;
  const texts = (query) => [...document.querySelectorAll(query)].map((line) => line.textContent.trim());
  const panes = [...document.querySelectorAll(".level")];
  const pane = (title) => panes.find((each) => each.firstChild.textContent === title);
  const lines = (title, kind) => [...pane(title).querySelectorAll("." + kind)].map((line) => line.textContent.trim());
  const cells = (wanted) => figure.data[1].z.map((row) => row.filter(wanted).length / row.length);
  const isFaded = (kind) => kind >= page.kinds.length;
  const found = { busy: cells((kind) => kind === 0), scopes: program.scopes.map((scope) => scope.name) };

  [...pane("graph").querySelectorAll(".line")].find((line) => line.textContent.includes("graph.conv %pool1")).click();
  found.line = { graph: lines("graph", "hit"), loop: lines("loop", "hit"), accel: lines("accel", "hit"),
    near: lines("accel", "near").length, kernels: texts("#table .hit td:first-child"),
    remarks: texts("#remarks .hit"), said: said(),
    opacity: figure.data.filter((trace) => trace.type === "bar").map((trace) => trace.marker.opacity) };

  chooseCommand("execute", 2500);
  found.command = { exact: texts(".exact"), said: said(), faded: cells(isFaded) };

  document.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
  found.cleared = { left: texts(".exact, .hit, .near"), faded: cells(isFaded) };

  [...document.querySelectorAll("#axis button")].find((each) => each.textContent === "operations").click();
  await Plotly.relayout("time", { "xaxis.range": [4, 40] });
  found.operations = { types: figure.data.map((trace) => trace.type), ticks: figure.layout.xaxis.ticktext };
  return found;
"""


@pytest.fixture(scope="module")
def clicked(page: Path) -> dict[str, Any]:
    """What the page shows after some clicks."""
    return evaluate(page, CLICKS)


def test_a_click_on_a_line_shows_its_node_everywhere(clicked: dict[str, Any]) -> None:
    found = clicked["line"]
    (line,) = found["graph"]
    assert "graph.conv" in line
    assert any("linalg.generic" in line and "gemm" in line for line in found["loop"])
    assert any("accel.exec @gemm" in line for line in found["accel"])
    assert not any("@fused_0" in line for line in found["accel"])
    assert found["near"] > 10
    assert found["kernels"] == ["@fused_2"]
    assert "@fused_2" in found["said"]
    assert "conv2" in found["said"]
    assert all("@fused_2" in remark for remark in found["remarks"])
    assert found["remarks"]
    # Of the kernels only one is not faded, and so are its buffers in each scope.
    kernels, *scopes = found["opacity"]
    assert kernels.count(1) == 1
    assert kernels.count(0.18) == len(kernels) - 1
    assert clicked["scopes"] == ["spad", "acc", "arena"]
    assert all(max(opacity) >= 0.6 for opacity in scopes[:2])
    assert all(0.18 in opacity for opacity in scopes)


def test_a_click_on_a_command_shows_its_line_and_esc_clears(clicked: dict[str, Any]) -> None:
    found = clicked["command"]
    (line,) = found["exact"]
    assert "accel.exec @gemm" in line
    assert "waited for token load" in found["said"]
    assert max(found["faded"]) > 0
    assert clicked["cleared"]["left"] == []
    assert max(clicked["cleared"]["faded"]) == 0


def test_the_axis_may_show_operations_with_their_names(clicked: dict[str, Any]) -> None:
    assert "heatmap" not in clicked["operations"]["types"]
    assert {"accel.dma", "accel.exec", "mem.ring"} <= set(clicked["operations"]["ticks"])


def test_the_picture_of_a_unit_has_the_cycles_that_were_counted(
    clicked: dict[str, Any], program: dict[str, Any]
) -> None:
    total = program["total"]
    for unit, cells in zip(total["units"], clicked["busy"], strict=False):
        # To the pixels at whose borders something changes.
        assert cells == pytest.approx(total["units"][unit]["busy"] / total["cycles"], abs=0.05)


def test_two_programs_are_compared(penstock: Command, tmp_path: Path) -> None:
    for depth in ("1", "2"):
        options = ["--machine", "gemmini-fp32", "-p", f"default, multi-buffer{{depth={depth}}}", "--emit", "accel"]
        done = penstock("compile", str(DIGITS), *options, "-q", "-o", str(tmp_path / f"depth{depth}.mlir"))
        assert done.status == 0, done.err
    page = tmp_path / "depths.html"
    done = penstock(
        "report", str(tmp_path / "depth1.mlir"), "--compare", str(tmp_path / "depth2.mlir"), "-o", str(page)
    )
    assert done.status == 0, done.err
    script = """
      const words = (row) => [...row.cells].map((cell) => cell.textContent);
      const rows = [...document.querySelectorAll("#differences tr")].map(words);
      document.querySelectorAll("#programs button")[1].click();
      return { rows, title: document.getElementById("title").textContent };
    """
    found = evaluate(page, script)
    cycles = next(row for row in found["rows"] if row[0] == "cycles")
    first, second = (each["total"]["cycles"] for each in data_of(page)["programs"])
    assert cycles[1:] == [f"{first:,}", f"{second:,}", f"{second / first:.3f}"]
    assert first != second
    assert found["title"].startswith("depth2.mlir")


def test_a_program_for_the_host_has_levels_and_an_arena(penstock: Command, tmp_path: Path) -> None:
    page = tmp_path / "host.html"
    assert penstock("report", str(DIGITS), "-o", str(page)).status == 0
    (program,) = data_of(page)["programs"]
    assert program["total"] is None
    assert [scope["name"] for scope in program["scopes"]] == ["arena"]
    assert evaluate(page, "return document.getElementById('time').data.length") == 3


def test_the_page_is_the_same_each_time(page: Path, penstock: Command, tmp_path: Path) -> None:
    again = tmp_path / "again.html"
    assert penstock("report", str(DIGITS), "--machine", "gemmini-fp32", "-o", str(again)).status == 0
    assert again.read_text() == page.read_text()
