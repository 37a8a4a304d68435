# SPDX-License-Identifier: Apache-2.0
"""Programs for a machine that only queues order, on a model that runs its units in any order they permit."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from in_c import needs_compiler

if TYPE_CHECKING:
    from tests.conftest import Command

PRODUCT = """
func.func @main(%x: tensor<56x60xf32>, %w: tensor<60x72xf32>) -> tensor<56x72xf32> {
  %y = graph.matmul %x, %w : (tensor<56x60xf32>, tensor<60x72xf32>) -> tensor<56x72xf32>
  func.return %y : tensor<56x72xf32>
}
"""
LAST_FIRST, FIRST_FIRST, DRAWN = 0, -1, (1, 2, 3)


@pytest.fixture
def machine(repository: Path) -> Path:
    return repository / "examples" / "decoupled" / "decoupled.toml"


@pytest.fixture
def product(tmp_path: Path, penstock: Command, machine: Path) -> Path:
    """The folder of one whose transfers are in loops."""
    path, out = tmp_path / "product.mlir", tmp_path / "out"
    path.write_text(PRODUCT)
    assert penstock("compile", path, "--machine", machine, "--emit", "device-c", "-o", out, "-q").status == 0
    return out


def said(folder: Path) -> list[str]:
    """By the last unit first, the first one first, and in orders that are drawn."""
    needs_compiler()
    subprocess.run(["make", "-s", "model"], cwd=folder, check=True, capture_output=True)
    found: list[str] = []
    for order in (LAST_FIRST, FIRST_FIRST, *DRAWN):
        variables = {**os.environ, "DECOUPLED": str(order)}
        found.append(subprocess.run([folder / "model"], env=variables, capture_output=True, text=True).stdout)
    return found


def test_a_product_passes_in_every_order(product: Path) -> None:
    assert set(said(product)) == {"PASS\n"}


def test_the_digits_pass_in_every_order(tmp_path: Path, penstock: Command, machine: Path, repository: Path) -> None:
    digits, out = repository / "examples" / "digits" / "digits.onnx", tmp_path / "out"
    assert penstock("compile", digits, "--machine", machine, "--emit", "device-c", "-o", out, "-q").status == 0
    assert set(said(out)) == {"PASS\n"}


@pytest.mark.parametrize(
    "queue", [("LOAD", "EXECUTE"), ("EXECUTE", "LOAD"), ("EXECUTE", "STORE"), ("STORE", "EXECUTE")]
)
def test_each_queue_is_missed(queue: tuple[str, str], product: Path) -> None:
    source = product / "product.c"
    start, end = queue
    text = source.read_text()
    left, removed = re.subn(rf".*decoupled\(({start}, PUSH, {end}|{end}, POP, {start}),.*\n", "", text)
    assert removed > 1
    source.write_text(left)
    assert any(each != "PASS\n" for each in said(product))


@pytest.mark.parametrize("kind", ["PUSH", "POP"])
def test_a_token_too_many_or_too_few_is_told(kind: str, product: Path) -> None:
    source = product / "product.c"
    source.write_text(re.sub(rf".*decoupled\(\w+, {kind}, .*\n", "", source.read_text(), count=1))
    assert all("are left" in each or "waits for ever" in each for each in said(product))


def test_an_order_within_a_unit_is_no_queues(
    tmp_path: Path, penstock: Command, machine: Path, repository: Path
) -> None:
    """A window is read over its border while that is written: with several transfers in flight only a token says so."""
    digits, out = repository / "examples" / "digits" / "digits.onnx", tmp_path / "out"
    words = ["--machine", machine, "--set", "dma.read.outstanding=4", "--emit", "device-c", "-o", out, "-q"]
    finished = penstock("compile", digits, *words)
    assert finished.status == 3
    assert '"conv1": error: it waits for a transfer in flight on its own unit' in finished.err
    assert not out.exists()
