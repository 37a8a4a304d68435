# SPDX-License-Identifier: Apache-2.0
"""What a sweep says of an axis: ratios over pairs, a test over inputs; and its pictures."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from penstock.dialects.diagnostics import UserError
from penstock.tools.sweep.comparison import compare, comparison_line, signed_rank
from penstock.tools.sweep.plan import Axis, Choice, Input, SweepPlan
from penstock.tools.sweep.plots import Picture, draw_pareto, draw_scaling, pareto_front
from penstock.tools.sweep.store import Result
from penstock.tools.sweep.tables import Row, Table


def table(inputs: int, cycles: dict[str, float], macs: dict[str, int] | None = None) -> Table:
    """A table of two sizes and of planners, whose cycles are those of the input times a factor."""
    names = [f"n{number}.onnx" for number in range(inputs)]
    axes = (
        Axis("planner", tuple(Choice(name) for name in cycles)),
        Axis("scope.spad.size", (Choice("8K"), Choice("32K"))),
    )
    plan = SweepPlan(tuple(Input(name, name) for name in names), ("m",), axes)
    rows: list[Row] = []
    for point in plan.points():
        labels = plan.labels(point)
        scale = 1000 * (1 + names.index(point.input.label)) + (labels["scope.spad.size"] == "8K")
        work = (macs or {}).get(labels["planner"], 64)
        figures = {"cycles": scale * cycles[labels["planner"]], "bytes": 100 / cycles[labels["planner"]]}
        rows.append(Row(labels, Result("ok", "", {**figures, "machine_macs": work})))
    return Table(plan, tuple(rows))


@examples(60)
@given(st.lists(st.integers(-4, 4), max_size=9))
def test_the_signed_rank_test_counts_all_signs(differences: list[int]) -> None:
    others = [abs(each) for each in differences if each]
    below = {size: sum(each < size for each in others) for size in others}
    rank = {size: below[size] + (others.count(size) + 1) / 2 for size in others}
    mean = sum(rank[size] for size in others) / 2
    observed = abs(sum(rank[abs(each)] for each in differences if each > 0) - mean)
    signs = list(product((0, 1), repeat=len(others)))
    as_far = sum(
        abs(sum(rank[size] for size, sign in zip(others, each, strict=True) if sign) - mean) >= observed - 1e-9
        for each in signs
    )
    assert math.isclose(signed_rank(differences), as_far / len(signs))


def test_an_axis_is_compared_over_pairs_and_tested_over_inputs() -> None:
    better, same = compare(table(7, {"first": 1.0, "fast": 0.9, "same": 1.0}), "planner", "cycles")
    assert (better.value, len(better.ratios), better.unlike) == ("fast", 14, 0)
    assert math.isclose(better.mean, 0.9)
    # All 7 inputs of one sign are 2 of 128 outcomes, and there are two comparisons.
    assert better.p == pytest.approx(2 * 2 / 128)
    assert same.p == 1.0
    line = comparison_line(table(7, {"first": 1.0, "fast": 0.9, "same": 1.0}), "planner", "cycles")
    assert '"fast" 0.900x (14 pairs: 14 lower; p = 0.0312*), "same" 1.000x (14 pairs: 14 equal; p = 1)' in line


def test_few_inputs_are_not_tested() -> None:
    (found,) = compare(table(5, {"first": 1.0, "fast": 0.5}), "planner", "cycles")
    assert found.p is None
    assert signed_rank([1.0] * 5) > 0.05 > signed_rank([1.0] * 6)
    assert "it takes 6" in comparison_line(table(5, {"first": 1.0, "fast": 0.5}), "planner", "cycles")


def test_runs_that_leave_work_to_the_host_are_not_compared() -> None:
    (found,) = compare(table(2, {"first": 1.0, "lazy": 0.1}, {"lazy": 8}), "planner", "cycles")
    assert (found.ratios, found.unlike) == ((), 4)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6))))
def test_a_front_has_what_nothing_is_better_than(points: list[tuple[int, int]]) -> None:
    def is_beaten(point: tuple[int, int]) -> bool:
        return any(a <= point[0] and b <= point[1] and (a, b) != point for a, b in points)

    assert pareto_front([(float(a), float(b)) for a, b in points]) == sorted(
        {each for each in points if not is_beaten(each)}
    )


def test_pictures_are_the_same_bytes_every_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = table(4, {"first": 1.0, "lazy": 0.1, "fast": 0.9}, {"lazy": 8})
    for name in ("one", "two"):
        draw_pareto(made, Picture.read(f"cycles:bytes:planner={tmp_path / name}.svg", "--pareto"))
        draw_scaling(made, Picture.read(f"scope.spad.size:cycles={tmp_path / name}.png", "--scaling"))
    svg = (tmp_path / "one.svg").read_text()
    assert svg == (tmp_path / "two.svg").read_text()
    assert svg.count("2 leave more to the host") == 4
    assert all(word in svg for word in ("n3.onnx on m", "cycles", "bytes", ">fast<"))
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


@pytest.mark.parametrize("text", ["a=x.svg", "cycles:bytes", "cycles:bytes=x.pdf", ":bytes=x.svg", "a:b:c:d=x.svg"])
def test_what_is_no_picture_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is no picture") as refusal:
        Picture.read(text, "--pareto")
    assert refusal.value.notes[0].startswith("write --pareto X:Y=FILE")


def test_names_that_there_are_not_are_refused(tmp_path: Path) -> None:
    made = table(2, {"first": 1.0, "fast": 0.5})
    with pytest.raises(UserError, match='the plan has no axis "planer"') as refusal:
        compare(made, "planer", "cycles")
    assert refusal.value.notes == ('did you mean "planner"?',)
    with pytest.raises(UserError, match='no run has the figure "cycle"'):
        compare(made, "planner", "cycle")
    with pytest.raises(UserError, match='there is no axis "size" to draw'):
        draw_scaling(made, Picture.read(f"size:cycles={tmp_path / 'x.svg'}", "--scaling"))
    with pytest.raises(UserError, match='there is no figure "byte" to draw'):
        draw_pareto(made, Picture.read(f"cycles:byte={tmp_path / 'x.svg'}", "--pareto"))
