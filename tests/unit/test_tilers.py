# SPDX-License-Identifier: Apache-2.0
"""Kernels under every tiler: the same results, free of hazards, and beside the same bounds."""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.dialects.context import make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.analysis.kernels import DEPTHS, TILER, TILING, kernels, machine_of
from penstock.passes.planning.tilers.registry import plan_tile
from penstock.passes.schedule.tiled_ops import TiledOps
from penstock.passes.tensor.tile_plan import root_of
from penstock.runtime.interpreter import run_module
from penstock.runtime.pass_manager import run_passes
from penstock.runtime.pipeline import passes_for
from penstock.runtime.simulator.figures import Figures, total_of
from penstock.runtime.simulator.run import run_program
from penstock.runtime.simulator.workloads import Workloads

if TYPE_CHECKING:
    from tests.conftest import Command

LAYER = """
func.func @main(%x: tensor<1x18x18x12xf32>, %w: tensor<3x3x12x24xf32>) -> tensor<1x9x9x24xf32> {
  %y = graph.conv %x, %w strides [2, 2] pads [1, 1, 1, 1] dilations [1, 1] layout "NHWC"
      : (tensor<1x18x18x12xf32>, tensor<3x3x12x24xf32>) -> tensor<1x9x9x24xf32>
  %z = graph.relu %y : tensor<1x9x9x24xf32>
  func.return %z : tensor<1x9x9x24xf32>
}
"""
SMALL = {"scope.spad.size": "8K", "scope.acc.size": "2K"}


@cache
def under(tiler: str) -> tuple[list[NDArray[Any]], Figures, dict[str, str]]:
    """The results of the layer on small scopes, the figures of a run, and what its kernel says."""
    ctx = make_context()
    module = parse_text(ctx, SourceText("layer.mlir", LAYER)).module
    workloads = Workloads()
    passes = passes_for(
        module, "accel", "gemmini-fp32", f'default, assign-devices{{tiler="{tiler}"}}', machine_options=SMALL
    )
    run_passes(ctx, module, passes, observers=[workloads])
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((1, 18, 18, 12), (3, 3, 12, 24)))
    (kernel, *_) = kernels(module)
    says = {name: str(kernel.attributes[name]) for name in (TILER, TILING, DEPTHS) if name in kernel.attributes}
    return list(run_module(module, [x, w], ctx.weights)), total_of(run_program(module, workloads)), says


@pytest.mark.parametrize("tiler", ["largest", "smaug", "smaug-nch", "exhaustive"])
def test_results_and_bounds_are_those_of_the_usual_tiler(tiler: str) -> None:
    usual = under("pipelined")
    results, figures, says = under(tiler)
    assert [each.tobytes() for each in results] == [each.tobytes() for each in usual[0]]
    assert figures.traffic.compulsory == usual[1].traffic.compulsory
    assert figures.traffic.square_root == usual[1].traffic.square_root
    assert figures.traffic.best_tiling == usual[1].traffic.best_tiling
    assert figures.cycles >= figures.ideal
    assert says[TILER] == f'"{tiler}"'
    # Another tile, another remark.
    assert says[TILING] != usual[2][TILING]
    assert TILER not in usual[2]
    assert (DEPTHS in says) == (tiler == "exhaustive")


def test_the_modelled_bytes_of_any_tiler_are_those_that_are_moved() -> None:
    for tiler in ("pipelined", "largest", "smaug"):
        _, figures, says = under(tiler)
        modelled = int(says[TILING].split(" cycles and ")[1].split(" bytes")[0].replace(",", ""))
        assert modelled == pytest.approx(figures.traffic.bytes, rel=0.1), tiler


PAIR = """
func.func @main(%x: tensor<64x64xf32>, %w: tensor<64x64xf32>, %v: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %y = graph.matmul %x, %w : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %z = graph.matmul %y, %v : (tensor<64x64xf32>, tensor<64x32xf32>) -> tensor<64x32xf32>
  func.return %z : tensor<64x32xf32>
}
"""


def test_sizes_for_one_kernel_leave_the_others_to_the_tiler(penstock_opt: Command) -> None:
    passes = "graph-fuse,graph-to-tensor,assign-devices"
    Path("pair.mlir").write_text(PAIR)

    def cuts(tile: str) -> list[str]:
        done = penstock_opt("pair.mlir", "--machine", "gemmini-fp32", "-p", f"{passes},{tile}")
        assert done.status == 0, done.err
        return [line.split('tiling = "')[1].split("modelled")[0] for line in done.out.splitlines() if "tiling" in line]

    first, second = cuts("tile")
    given, other = cuts('tile{kernel="fused_1" sizes=8,16,32}')
    assert given == first
    assert other != second
    assert other.startswith("d0 parallel, 8 tiles of 8 in 64; d1 parallel, 2 tiles of 16 in 32; d2 reduction, 2 tiles")
    assert cuts("tile{sizes=8,16,32}")[1] == other


@pytest.mark.parametrize(
    ("tiler", "figure"),
    [("least-energy", "picojoules"), ("least-edp", "delayed_energy"), ("least-traffic", "traffic.bytes")],
)
def test_a_tiler_takes_least_of_what_it_is_called_by(tiler: str, figure: str) -> None:
    results, figures, _ = under(tiler)
    assert [each.tobytes() for each in results] == [each.tobytes() for each in under("pipelined")[0]]
    figure_of = attrgetter(figure)
    for other in ("pipelined", "largest", "smaug", "smaug-nch", "least-energy", "least-edp", "least-traffic"):
        assert figure_of(figures) <= figure_of(under(other)[1]), other


@pytest.mark.parametrize("tiler", ["pipelined", "largest", "smaug", "least-energy"])
def test_the_modelled_energy_is_that_of_a_run_but_for_padding(tiler: str) -> None:
    ctx = make_context()
    module = parse_text(ctx, SourceText("layer.mlir", LAYER)).module
    passes = passes_for(module, "tensor", "gemmini-fp32", "default", machine_options=SMALL)
    names = [each.name for each in passes]
    run_passes(ctx, module, passes[: names.index("assign-devices") + 1])
    (kernel, *_) = kernels(module)
    target, root = machine_of(module), root_of(kernel)
    assert target is not None
    assert root is not None
    plan = plan_tile(TiledOps(root, target).problem, tiler)
    run = under(tiler)[1].picojoules
    assert plan.picojoules is not None
    assert run is not None
    assert plan.picojoules == pytest.approx(float(run), rel=0.05)


def test_a_machine_that_says_nothing_of_energy_is_refused(penstock: Command) -> None:
    Path("product.mlir").write_text(PAIR.replace("f32", "f16"))
    pipeline = "default, assign-devices{tiler=least-energy}"
    done = penstock("compile", "product.mlir", "--machine", "h100-sm", "-p", pipeline)
    assert done.status == 1
    assert 'error: the tiler "least-energy" asks what energy @h100_sm takes, and its file does not say' in done.err
    assert "h100-sm.toml:4:1" in done.err
