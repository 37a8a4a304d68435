# SPDX-License-Identifier: Apache-2.0
"""Knobs, alternatives and included sequences of a file of schedules, from the command line to the loops."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from penstock.dialects.context import make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.to_text import module_text

if TYPE_CHECKING:
    from tests.conftest import Command

HANDLE = "!transform.any_op"
PARAM = "!transform.any_param"

PROGRAM = """#id = affine_map<(m, n) -> (m, n)>
func.func private @double(%x: tensor<16x24xf32>) -> tensor<16x24xf32> {
  %e = tensor.empty() : tensor<16x24xf32>
  %y = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<16x24xf32>) outs(%e : tensor<16x24xf32>) {
  ^bb0(%p: f32, %o: f32):
    %s = arith.addf %p, %p : f32
    linalg.yield %s : f32
  } -> tensor<16x24xf32>
  func.return %y : tensor<16x24xf32>
}
func.func @main(%x: tensor<16x24xf32>) -> tensor<16x24xf32> {
  %y = func.call @double(%x) : (tensor<16x24xf32>) -> tensor<16x24xf32>
  func.return %y : tensor<16x24xf32>
}
"""

SCHEDULE = f"""transform.named_sequence @rows(%op: {HANDLE}, %size: {PARAM}) -> {HANDLE} {{
  %t, %l = transform.structured.tile_using_for %op tile_sizes [%size] : ({HANDLE}, {PARAM}) -> ({HANDLE}, {HANDLE})
  transform.yield %t : {HANDLE}
}}
transform.named_sequence @double(%kernel: {HANDLE} {{transform.readonly}}) {{
  %y = transform.structured.match ops{{["linalg.generic"]}} in %kernel : ({HANDLE}) -> {HANDLE}
  %rows = transform.tune.knob<"rows"> options = [2, 4, 8] -> {PARAM}
  %t = transform.include @rows failures(propagate) (%y, %rows) : ({HANDLE}, {PARAM}) -> {HANDLE}
  transform.tune.alternatives<"columns"> selected_region = 0 {{
    transform.yield
  }}, {{
    %c = transform.tune.knob<"width"> = 6 from options = [6, 12] -> {PARAM}
    %u, %l = schedule.tile %t sizes [0, %c]
    transform.yield
  }}
  transform.yield
}}
"""


class Lowered(Protocol):
    def __call__(self, *knobs: str, schedule: str = "s.mlir", emit: str = "tensor") -> str: ...


@pytest.fixture
def lowered(penstock: Command, tmp_path: Path) -> Lowered:
    """The program with a schedule and knobs, at a level: a function of these."""
    (tmp_path / "p.mlir").write_text(PROGRAM)
    (tmp_path / "s.mlir").write_text(SCHEDULE)

    def run(*knobs: str, schedule: str = "s.mlir", emit: str = "tensor") -> str:
        chosen = [word for knob in knobs for word in ("--knob", knob)]
        words = ("--machine", "gemmini-fp32", f"--emit={emit}", "-q", "-o", "-", "--schedule", schedule, *chosen)
        found = penstock("compile", "p.mlir", *words)
        assert not found.status, found.err
        return found.out

    return run


def tile_of(text: str) -> str:
    """The shape of what the op computes at a time."""
    found = re.findall(r"outs\(%\w+ : tensor<(\w+)xf32>\)", text)
    assert len(found) == 1, text
    return found[0]


@pytest.mark.parametrize(
    ("knobs", "expected"),
    [
        (["double.rows=4"], "4x24"),
        (["double.rows=8"], "8x24"),
        (["double.rows=2", "double.columns=1"], "2x6"),
        (["double.rows=2", "double.columns=1", "double.width=12"], "2x12"),
    ],
)
def test_what_is_chosen_is_applied(lowered: Lowered, knobs: list[str], expected: str) -> None:
    assert tile_of(lowered(*knobs)) == expected


def test_what_was_applied_is_printed_with_its_choices_and_applies_again(lowered: Lowered, tmp_path: Path) -> None:
    chosen = ("double.rows=2", "double.columns=1")
    text = lowered(*chosen, emit="schedule")
    assert 'transform.tune.knob<"rows"> = 2 : i64 from options' in text
    assert 'transform.tune.alternatives<"columns"> selected_region = 1' in text
    assert "include" not in text
    (tmp_path / "again.mlir").write_text(text)
    assert lowered(schedule="again.mlir") == lowered(*chosen)
    assert lowered(schedule="again.mlir", emit="schedule") == text


def test_a_schedule_of_all_choices_is_read_as_it_is_printed() -> None:
    texts = [SCHEDULE]
    for _ in range(2):
        ctx = make_context()
        module = parse_text(ctx, SourceText("s.mlir", texts[-1])).module
        module.verify()
        texts.append(module_text(ctx, module))
    assert texts[1] == texts[2]
