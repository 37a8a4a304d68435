# SPDX-License-Identifier: Apache-2.0
"""A kernel that fits no scope runs on the host, and says with its sizes why; a tile given by hand is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

MODEL = """
func.func @main(%x: tensor<1x8x8x4xf32>, %w: tensor<3x3x4x8xf32>) -> tensor<1x8x8x8xf32> {
  %c = graph.conv %x, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] layout "NHWC"
      : (tensor<1x8x8x4xf32>, tensor<3x3x4x8xf32>) -> tensor<1x8x8x8xf32>
  func.return %c : tensor<1x8x8x8xf32>
}
"""


class Finished(Protocol):
    status: int
    out: str
    err: str


class Command(Protocol):
    def __call__(self, *argv: object, stdin: str = "") -> Finished: ...


def machine_with(repository: Path, spad: int, acc: int) -> str:
    """gemmini-fp32 with other sizes."""
    text = (repository / "machines" / "gemmini-fp32.toml").read_text()
    assert "size = 262144" in text
    return text.replace("size = 262144", f"size = {spad}").replace("size = 65536", f"size = {acc}")


def test_a_kernel_whose_window_fits_no_scope_runs_on_the_host_and_says_why(penstock: Command, repository: Path) -> None:
    # Even with one output element and one channel of each, the windows of image and weights exceed every scope.
    Path("small.toml").write_text(machine_with(repository, 128, 16))
    Path("conv.mlir").write_text(MODEL)
    done = penstock("compile", "conv.mlir", "--machine", "small.toml", "--emit=accel", "-o", "out.mlir")
    assert done.status == 0
    text = Path("out.mlir").read_text()
    assert "device = @host" in text
    remark = r"no tile of it fits scope \\22spad\\22: the smallest needs 288 bytes of its 128 \(%\w+ 144, %\w+ 144\)"
    assert re.search(remark, text)
    assert "accel.exec" not in text


def test_the_least_accumulator_of_one_row_is_enough(penstock: Command, repository: Path) -> None:
    Path("small.toml").write_text(machine_with(repository, 262144, 16))
    Path("conv.mlir").write_text(MODEL)
    assert penstock("compile", "conv.mlir", "--machine", "small.toml", "--emit=accel", "-o", "out.mlir").status == 0


def test_tiles_given_by_hand_that_do_not_fit_are_refused_by_the_planner(
    penstock_opt: Command, repository: Path
) -> None:
    Path("conv.mlir").write_text(MODEL)
    Path("small.toml").write_text(machine_with(repository, 2048, 65536))
    passes = "graph-fuse,graph-to-tensor,assign-devices,tile{sizes=1,8,8,8,3,3,4}"
    done = penstock_opt("conv.mlir", "--machine", "small.toml", "-p", passes)
    assert (done.status, done.out) == (1, "")
    assert re.search(r"conv\.mlir:3:\d+: error: the tile 1x8x8x8x3x3x4 of kernel @fused_0 does not fit", done.err)
    sizes = re.search(r"note: choose smaller sizes: the largest that fit are (1(?:,\d+){6})\n", done.err)
    assert sizes is not None
    fits = passes.replace("1,8,8,8,3,3,4", sizes[1])
    assert penstock_opt("conv.mlir", "--machine", "small.toml", "-p", fits).status == 0
