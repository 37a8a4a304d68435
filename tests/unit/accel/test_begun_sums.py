# SPDX-License-Identifier: Apache-2.0
"""Where a product can overwrite the sums that it begins, no zeros are written before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.dialects.accel_issue import IssueOp
from penstock.runtime.compiler import compile_module, load_input
from penstock.runtime.device import lower_to_device

PRODUCT = """
func.func @main(%x: tensor<{m}x{k}xi8>, %w: tensor<{k}x{n}xi8>) -> tensor<{m}x{n}xi32> {{
  %y = graph.matmul %x, %w accumulate i32 : (tensor<{m}x{k}xi8>, tensor<{k}x{n}xi8>) -> tensor<{m}x{n}xi32>
  func.return %y : tensor<{m}x{n}xi32>
}}
"""


def issued(folder: Path, m: int, n: int, k: int) -> set[str]:
    """The names of the parts whose commands are issued for a product."""
    path = folder / "product.mlir"
    path.write_text(PRODUCT.format(m=m, n=n, k=k))
    program = load_input(path)
    compile_module(program.module, program.ctx, "gemmini")
    lower_to_device(program.module, program.ctx)
    return {op.part_name for op in program.module.walk() if isinstance(op, IssueOp)}


@pytest.mark.parametrize("shape", [(64, 64, 64), (48, 32, 80), (1, 5, 3)])
def test_a_product_of_whole_sums_writes_no_zeros(shape: tuple[int, int, int], tmp_path: Path) -> None:
    assert issued(tmp_path, *shape) == {"mvin", "gemm", "mvout"}


def test_sums_that_are_added_to_in_a_loop_begin_as_zeros(tmp_path: Path) -> None:
    """The scratchpad does not hold all of the operands, so a loop around the product goes along k."""
    assert "zero_acc" in issued(tmp_path, 16, 512, 16384)
