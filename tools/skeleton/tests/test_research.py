"""The package, installed: each part by its name, through the doors that Penstock's own parts use."""

from pathlib import Path

from research.planning import longest_first, square

from penstock.lowering.from_machine_toml import load_machine
from penstock.passes.planning.conformance.planners import check_planner
from penstock.passes.planning.conformance.tilers import check_tiler
from penstock.tools.main import run

PROGRAM = """func.func @main(%x: tensor<8x64xf32>) -> tensor<8x64xf32> {
  %y = graph.mul %x, %x : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<8x64xf32>
  func.return %y : tensor<8x64xf32>
}"""
EDITS = (
    "default, +research-find-squares before layout, assign-devices{tiler=research-square}, "
    "mem-plan{planner=research-longest-first}"
)


def test_the_planner_and_the_tiler_keep_to_their_contracts():
    assert check_planner(longest_first, problems=50).fault is None
    assert check_tiler(square, problems=[], random=20).fault is None


def test_every_pass_keeps_the_values_and_the_machine_squares(tmp_path, capsys):
    source = tmp_path / "in.mlir"
    source.write_text(PROGRAM)
    assert load_machine("research").machine_name == "research"
    assert run(["check", str(source), "--machine", "research", "-p", EDITS]) == 0
    assert "research-find-squares: equal" in capsys.readouterr().out
    target = str(tmp_path / "out.mlir")
    assert run(["compile", str(source), "--machine", "research", "-p", EDITS, "--emit=accel", "-o", target]) == 0
    assert "@vec_square" in Path(target).read_text().partition("func.func")[2]
