# SPDX-License-Identifier: Apache-2.0
"""A memory that a program is to fit: what cannot be, and what goes with what."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Command

RELU = """
func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
  %0 = graph.softmax %x axis 0 : tensor<64xf32> -> tensor<64xf32>
  %1 = graph.softmax %0 axis 0 : tensor<64xf32> -> tensor<64xf32>
  func.return %1 : tensor<64xf32>
}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.mlir"
    path.write_text(RELU)
    return path


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--memory", "16"], 1, "model.mlir: error: the program does not fit 16 bytes"),
        (["--memory", "1X"], 2, '"1X" is no number of bytes, as 65536 or 64K'),
        (["--memory", "-1"], 2, "--memory"),
        (["--memory", "1K", "-p", "default"], 2, "--memory decides what --pipeline would"),
        (["--memory", "1K", "--threads", "2"], 2, "--memory decides what --threads would"),
    ],
)
def test_a_limit_that_cannot_be(words: list[str], status: int, message: str, model: Path, penstock: Command) -> None:
    done = penstock("compile", model, "--emit", "loop", "-o", model.with_name("out.mlir"), "-q", *words)
    assert done.status == status
    assert message in done.err
    assert not model.with_name("out.mlir").exists()


def test_a_program_that_is_lowered_already(model: Path, penstock: Command) -> None:
    loop = model.with_name("loop.mlir")
    assert penstock("compile", model, "--emit", "loop", "-o", loop, "-q").status == 0
    done = penstock("fit", loop)
    assert done.status == 1
    assert "a program at the loop level does not fit otherwise" in done.err
