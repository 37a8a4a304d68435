# SPDX-License-Identifier: Apache-2.0
"""A tiler that there is not, one whose plan is none, sizes that no scope holds, and a kernel that there is not."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import parse_pipeline

from penstock.dialects.diagnostics import UserError
from penstock.passes.planning.registry import DEFAULT_PLANNER
from penstock.passes.planning.registry import planner as find_planner
from penstock.runtime.pass_manager import AvailablePasses, make_pass

if TYPE_CHECKING:
    from tests.conftest import Command

PRODUCT = """
func.func @main(%x: tensor<128x96xf32>, %w: tensor<96x64xf32>) -> tensor<128x64xf32> {
  %y = graph.matmul %x, %w : (tensor<128x96xf32>, tensor<96x64xf32>) -> tensor<128x64xf32>
  func.return %y : tensor<128x64xf32>
}
"""

PACKAGE = '''
from penstock.passes.planning.tile_problem import NoTile
from penstock.passes.planning.tiling import TilePlan, loops_of

def everything(problem):
    """Takes no notice of the scopes."""
    return TilePlan(problem, tuple(dim.extent for dim in problem.dims), (), {})

def inside_out(problem):
    """Reductions are its outermost loops."""
    tile = (16, 16, 32)
    return TilePlan(problem, tile, loops_of(problem, tile)[::-1])

def odd(problem):
    raise NoTile("this tiler tiles nothing")
'''

ENTRY_POINTS = """
[penstock.tilers]
everything = faulty_tilers_of_a_test:everything
inside-out = faulty_tilers_of_a_test:inside_out
odd = faulty_tilers_of_a_test:odd
"""


@pytest.fixture(autouse=True)
def plugins(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that offers tilers with faults."""
    folder = tmp_path_factory.mktemp("plugins")
    about = folder / "faulty_tilers_of_a_test-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-tilers-of-a-test\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "faulty_tilers_of_a_test.py").write_text(PACKAGE)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.delitem(sys.modules, "faulty_tilers_of_a_test", raising=False)
    importlib.invalidate_caches()


def tiled(penstock_opt: Command, assign: str, tile: str = "tile", repository: Path | None = None) -> tuple[int, str]:
    """The status and what is said when the product is tiled, on a machine with small scopes."""
    passes = f"graph-fuse,graph-to-tensor,{assign},{tile}"
    machine = "gemmini-fp32"
    if repository is not None:
        text = (repository / "machines" / "gemmini-fp32.toml").read_text()
        Path("small.toml").write_text(
            text.replace("size = 262144", "size = 16384").replace("size = 65536", "size = 4096")
        )
        machine = "small.toml"
    done = penstock_opt("--machine", machine, "-p", passes, stdin=PRODUCT)
    return done.status, done.err


@pytest.mark.parametrize("spec", ['assign-devices{tiler="larges"}', 'assign-devices,tile{tiler="larges"}'])
def test_an_unknown_tiler_is_answered_with_the_nearest(penstock_opt: Command, spec: str) -> None:
    status, said = tiled(penstock_opt, spec)
    assert status == 1
    assert re.search(
        'pass-pipeline:1:[0-9]+: error: no tiler is called "larges"\n.*\n.*\nnote: did you mean "largest"', said
    )


@pytest.mark.parametrize("spec", ["assign-devices{tiler=everything}", "assign-devices,tile{tiler=everything}"])
def test_a_plan_that_overflows_a_scope_names_the_tiler_and_the_bytes(
    penstock_opt: Command, spec: str, repository: Path
) -> None:
    status, said = tiled(penstock_opt, spec, repository=repository)
    assert status == 1
    assert (
        '<stdin>:3:3: error: kernel @fused_0: the tiler "everything" returned a plan that is not valid: it takes '
        '73,728 bytes of scope "spad", which has 16,384 (%a 49,152, %b 24,576)\n'
    ) in said


def test_an_order_with_a_reduction_outside_names_the_loops(penstock_opt: Command) -> None:
    status, said = tiled(penstock_opt, 'assign-devices{tiler="inside-out"}')
    assert status == 1
    assert (
        'the tiler "inside-out" returned a plan that is not valid: the order d2, d1, d0 has the reduction d2 outside '
        "of d1, which is parallel\n"
    ) in said


def test_a_tiler_that_refuses_leaves_the_kernel_to_the_host(penstock_opt: Command) -> None:
    done = penstock_opt(
        "--machine", "gemmini-fp32", "-p", "graph-fuse,graph-to-tensor,assign-devices{tiler=odd}", stdin=PRODUCT
    )
    assert done.status == 0
    assert r'device_remark = "this tiler tiles nothing, by the tiler \22odd\22"' in done.out


def test_a_tiler_that_refuses_later_is_named(penstock_opt: Command) -> None:
    status, said = tiled(penstock_opt, "assign-devices", "tile{tiler=odd}")
    assert status == 1
    assert 'warning: the tiler "odd" is to tile kernels that were cut for "pipelined"\n' in said
    assert 'note: assign-devices{tiler="odd"} cuts them for it, and tile then asks it, too\n' in said
    assert "error: kernel @fused_0: this tiler tiles nothing\n" in said


def test_a_tile_larger_than_its_scope_is_answered_with_the_largest(penstock_opt: Command, repository: Path) -> None:
    status, said = tiled(penstock_opt, "assign-devices", "tile{sizes=128,64,32}", repository)
    assert status == 1
    assert 'error: the tile 128x64x32 of kernel @fused_0 does not fit scope "spad"' in said
    assert "note: choose smaller sizes: the largest that fit are 16,64,32\n" in said
    assert tiled(penstock_opt, "assign-devices", "tile{sizes=16,64,32}", repository) == (0, "")


def test_sizes_for_a_kernel_that_there_is_not(penstock_opt: Command) -> None:
    status, said = tiled(penstock_opt, "assign-devices", 'tile{kernel="fused_1" sizes=16,16,32}')
    assert status == 1
    assert 'error: tile: no kernel is called "fused_1"\nnote: did you mean "fused_0"?\n' in said


def test_a_kernel_without_sizes(penstock_opt: Command) -> None:
    status, said = tiled(penstock_opt, "assign-devices", 'tile{kernel="fused_0"}')
    assert status == 1
    assert "error: tile: a kernel is named, and no sizes are given for it\n" in said


def test_sizes_for_a_kernel_of_the_host(penstock_opt: Command) -> None:
    status, said = tiled(penstock_opt, "assign-devices{tiler=odd}", 'tile{kernel="fused_0" sizes=16,16,32}')
    assert status == 1
    assert "error: tile: kernel @fused_0 runs on @host, where nothing is tiled\n" in said
    assert "note: because this tiler tiles nothing" in said


@dataclass(frozen=True)
class OwnPass(ModulePass):
    """A pass of someone else, with a tiler that is none of the registry and a planner that is."""

    name = "own"
    tiler: str = "round"
    planner: str = DEFAULT_PLANNER
    PARTS: ClassVar = {"planner": find_planner}

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pass


def test_an_option_is_looked_up_where_its_pass_says_that_it_names_a_part() -> None:
    available: AvailablePasses = {"own": lambda: OwnPass}
    assert make_pass(available, next(iter(parse_pipeline("own{tiler=square}"))), "here") == OwnPass(tiler="square")
    with pytest.raises(UserError, match='no planner is called "first"') as caught:
        make_pass(available, next(iter(parse_pipeline("own{planner=first}"))), "here")
    assert caught.value.loc == "here"
