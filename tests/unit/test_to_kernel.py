# SPDX-License-Identifier: Apache-2.0
"""Kernels at tensor level as text of the kernel language."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Command

LAYERS = """\
func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x3xf32>, %b: tensor<3xf32>, %im: tensor<1x1x6x6xf32>)
    -> (tensor<4x3xf32>, tensor<1x1x6x6xf32>) {
  %y = graph.matmul %x, %w : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xf32>
  %z = graph.add %y, %b : (tensor<4x3xf32>, tensor<3xf32>) -> tensor<4x3xf32>
  %s = graph.softmax %z axis 1 : tensor<4x3xf32> -> tensor<4x3xf32>
  %p = graph.max_pool %im kernel_shape [3, 3] strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1]
    : tensor<1x1x6x6xf32> -> tensor<1x1x6x6xf32>
  func.return %s, %p : tensor<4x3xf32>, tensor<1x1x6x6xf32>
}
"""
SHOWN = """\
kernel fused_0(f32 a[4, 8], f32 b[8, 3], f32 b_1[3]) -> (f32 add[4, 3]) {
    matmul[i, j] = sum(k, a[i, k] * b[k, j])
    add[i, j] = matmul[i, j] + b_1[j]
}

kernel fused_1(f32 x[4, 3]) -> (f32 softmax[4, 3]) {
    softmax_1[i] = max(j, x[i, j])
    softmax_2[i, j] = exp(x[i, j] - softmax_1[i])
    softmax_3[i] = sum(j, softmax_2[i, j])
    softmax_4[i] = 1 / softmax_3[i]
    softmax[i, j] = softmax_2[i, j] * softmax_4[i]
}

kernel fused_2(f32 x[1, 6, 6, 1]) -> (f32 max_pool[1, 6, 6, 1]) {
    max_pool[i, j, k, l] = max(m in 0:3, n in 0:3, x[i, j + m - 1, k + n - 1, l else -inf])
}
"""
TILED = """\
func.func private @fused_0(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = arith.constant 0 : index
  %b = arith.constant 4 : index
  %c = arith.constant 2 : index
  %y = scf.for %i = %a to %b step %c iter_args(%z = %x) -> (tensor<4xf32>) {
    scf.yield %z : tensor<4xf32>
  }
  func.return %y : tensor<4xf32>
}
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_fusion_took_together_reads_as_kernels(penstock: Command) -> None:
    Path("layers.mlir").write_text(LAYERS)
    assert penstock("show", "layers.mlir").out == SHOWN
    Path("layers.pk").write_text(SHOWN)
    assert penstock("format", "--check", "layers.pk").status == 0


def test_one_kernel_is_shown_by_name(penstock: Command) -> None:
    Path("layers.mlir").write_text(LAYERS)
    assert penstock("show", "layers.mlir", "--kernel", "fused_0").out == SHOWN.partition("\n\n")[0] + "\n"
    unknown = penstock("show", "layers.mlir", "--kernel", "fused_9")
    assert unknown.status == 2
    assert unknown.err == 'error: the program has no kernel "fused_9"\nnote: did you mean "fused_2"?\n'


def test_a_kernel_without_a_form_is_a_comment_and_an_error_by_itself(penstock: Command) -> None:
    Path("tiled.mlir").write_text(TILED)
    assert penstock("show", "tiled.mlir").out == "# fused_0: scf.for has no form in the kernel language\n"
    refused = penstock("show", "tiled.mlir", "--kernel", "fused_0")
    assert refused.status == 3
    assert refused.err.startswith("tiled.mlir:5:3: error: scf.for has no form in the kernel language\n")
