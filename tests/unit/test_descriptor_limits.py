# SPDX-License-Identifier: Apache-2.0
"""What a descriptor of a DMA engine, or a command of a unit, cannot hold becomes several that do the same."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from sampling import sweep
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.context import make_context
from penstock.dialects.mem import static_strides
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.machine_names import machine_text
from penstock.runtime.compiler import compile_module
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter import run_module

PROGRAM = """
func.func @main(%x: tensor<1x4x7x5xf32>, %w: tensor<6x4x3x3xf32>) -> tensor<1x6x7x5xf32> {
  %y = graph.conv %x, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] group 1
      : (tensor<1x4x7x5xf32>, tensor<6x4x3x3xf32>) -> tensor<1x6x7x5xf32>
  func.return %y : tensor<1x6x7x5xf32>
}
"""


def limited(folder: Path, changes: dict[str, str]) -> str:
    """A copy of gemmini-fp32 with other limits."""
    text = machine_text("gemmini-fp32")[1].replace('name = "gemmini-fp32"', 'name = "limited"')
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = folder / "limited.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


ENTRY = 4
"""The elements of a granule: what the innermost count of a descriptor counts."""


def fits(transfer: DmaOp, dims: int, max_count: list[int]) -> bool:
    """Whether some way to join contiguous neighbours spells the box within the limits."""
    box = [(size, *steps) for size, *steps in zip(transfer.box, *strides(transfer), strict=True) if size > 1]
    for joints in product([False, True], repeat=max(0, len(box) - 1)):
        counts, legal = [size for size, *_ in box[-1:]], True
        for joined, outer, inner in reversed(list(zip(joints, box[:-1], box[1:], strict=True))):
            contiguous = all(far == inner[0] * near for far, near in zip(outer[1:], inner[1:], strict=True))
            legal = legal and (contiguous or not joined)
            counts = [counts[0] * outer[0], *counts[1:]] if joined else [outer[0], *counts]
        counts[-1:] = [-(-count // ENTRY) for count in counts[-1:]]
        within = all(count <= limit for count, limit in zip(counts[::-1], max_count[::-1], strict=False))
        if legal and within and len(counts) <= dims:
            return True
    return not box


def strides(transfer: DmaOp) -> list[tuple[int, ...]]:
    return [static_strides(type) for type in (transfer.source_type, transfer.dest_type)]


def convolve(machine: str) -> ModuleOp:
    """The program compiled for a machine; what its commands and its C compute is right."""
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (1, 4, 7, 5)).astype(np.float32)
    w = rng.integers(-4, 5, (6, 4, 3, 3)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    expected = sum(
        np.einsum("nchw,oc->nohw", padded[:, :, i : i + 7, j : j + 5], w[:, :, i, j])
        for i in range(3)
        for j in range(3)
    )
    ctx = make_context()
    module = parse_text(ctx, SourceText("conv.mlir", PROGRAM)).module
    compile_module(module, ctx, machine, "accel")
    for seed in (None, 1):
        np.testing.assert_array_equal(run_module(module, [x, w], ctx.weights, seed=seed)[0], expected)
    np.testing.assert_array_equal(Engine(module, ctx, backend="native")(x, w)[0], expected)
    return module


@pytest.mark.parametrize(
    ("dims", "max_count"),
    sweep(
        [(2, [65535, 65535]), (4, [1, 2, 3, 4]), (2, [4, 5]), (3, [2, 2, 2]), (2, [1, 1])],
        quick=[(4, [1, 2, 3, 4]), (2, [4, 5])],
    ),
)
def test_transfers_are_cut_to_what_a_descriptor_holds(tmp_path: Path, dims: int, max_count: list[int]) -> None:
    counts = "max_count = {{ value = {}".format
    machine = limited(tmp_path, {"dims = 2\n": f"dims = {dims}\n", counts([65535, 65535]): counts(max_count)})
    transfers = [op for op in convolve(machine).walk() if isinstance(op, DmaOp)]
    assert transfers
    assert all(fits(op, dims, max_count) for op in transfers)


@pytest.mark.parametrize("loops", sweep([1, 2, 3, 4, 7], quick=[1, 4]))
def test_commands_are_cut_to_the_loops_that_they_have(tmp_path: Path, loops: int) -> None:
    machine = limited(tmp_path, {str([65535] * 7): str([65535] * loops)})
    commands = [op for op in convolve(machine).walk() if isinstance(op, ExecOp) and op.intrinsic_name == "gemm"]
    assert commands
    for command in commands:
        # A dim of at most 4 can be one block.
        assert len([extent for extent in command.extents.get_values() if extent > 4]) <= loops
