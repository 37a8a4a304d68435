# SPDX-License-Identifier: Apache-2.0
"""Programs for a machine whose transfers have numbers, on a model that does them as late as it may, or at random."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from in_c import needs_compiler
from xdsl.dialects import scf
from xdsl.ir import Operation

from penstock.dialects.accel_issue import WAIT, CodeOp, IssueOp
from penstock.passes.accel.accel_configure import issue_counts
from penstock.runtime.compiler import compile_module, load_input
from penstock.runtime.device import lower_to_device

if TYPE_CHECKING:
    from tests.conftest import Command

MACHINE = "snitch-cluster"
PRODUCT = """
func.func @main(%x: tensor<{m}x{k}xf32>, %w: tensor<{k}x{n}xf32>, %b: tensor<{n}xf32>) -> tensor<{m}x{n}xf32> {{
  %y = graph.gemm %x, %w : (tensor<{m}x{k}xf32>, tensor<{k}x{n}xf32>) -> tensor<{m}x{n}xf32>
  %s = graph.add %y, %b : (tensor<{m}x{n}xf32>, tensor<{n}xf32>) -> tensor<{m}x{n}xf32>
  %z = graph.relu %s : tensor<{m}x{n}xf32>
  func.return %z : tensor<{m}x{n}xf32>
}}
"""
WAITS = re.compile(r"^ *snrt_dma_wait\(.*\n", re.MULTILINE)


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """One that does not fit, so that transfers are in loops."""
    path = tmp_path / "product.mlir"
    path.write_text(PRODUCT.format(m=200, k=320, n=224))
    return path


def built(folder: Path) -> Path:
    needs_compiler()
    subprocess.run(["make", "-s", "model"], cwd=folder, check=True, capture_output=True)
    return folder / "model"


def said(model: Path, seed: int | None = None) -> str:
    environment = dict(os.environ) if seed is None else {**os.environ, "SNRT_SEED": str(seed)}
    return subprocess.run([model], capture_output=True, text=True, check=False, env=environment).stdout


def test_a_product_passes_whenever_transfers_are_done(product: Path, tmp_path: Path, penstock: Command) -> None:
    finished = penstock("compile", product, "--machine", MACHINE, "--emit", "device-c", "-o", tmp_path / "out")
    assert finished.status == 0, finished.err
    assert re.search(r"\d+ commands, \d+ waits for single commands, 1 barriers", finished.err)
    model = built(tmp_path / "out")
    assert {said(model, seed) for seed in (None, 1, 2, 3)} == {"PASS\n"}


def test_the_digits_pass(tmp_path: Path, penstock: Command, repository: Path) -> None:
    digits = repository / "examples" / "digits" / "digits.onnx"
    out = tmp_path / "out"
    assert penstock("compile", digits, "--machine", MACHINE, "--emit", "device-c", "-o", out, "-q").status == 0
    assert said(built(out)) == "PASS\n"


def test_each_wait_is_missed(product: Path, tmp_path: Path, penstock: Command) -> None:
    """But for one: a store is complete when loads are that began after it, which are waited for later."""
    out = tmp_path / "out"
    assert penstock("compile", product, "--machine", MACHINE, "--emit", "device-c", "-o", out, "-q").status == 0
    source = out / "product.c"
    text = source.read_text()
    found = list(WAITS.finditer(text))
    assert len(found) > 2
    unnoticed: list[str] = []
    for wait in found:
        source.write_text(text[: wait.start()] + text[wait.end() :])
        if said(built(out)) == "PASS\n":
            unnoticed.append(wait[0])
    assert len(unnoticed) <= 1, unnoticed


def test_waits_are_for_single_transfers_and_few(product: Path) -> None:
    program = load_input(product)
    compile_module(program.module, program.ctx, MACHINE)
    lower_to_device(program.module, program.ctx)
    counts = issue_counts(program.module)
    assert counts.barriers == 1
    waits = [op for op in program.module.walk() if isinstance(op, CodeOp) and op.key.data == WAIT]
    started = [op for op in program.module.walk() if isinstance(op, IssueOp) and op.id is not None]
    assert 0 < len(waits) <= len(started)


def test_transfers_of_the_next_iteration_begin_before_a_wait(product: Path) -> None:
    program = load_input(product)
    compile_module(program.module, program.ctx, MACHINE)
    lower_to_device(program.module, program.ctx)
    inner = [op for op in program.module.walk() if isinstance(op, scf.ForOp)]
    orders = [
        [WAIT if isinstance(each, CodeOp) else "start" for each in loop.body.block.ops if is_start_or_wait(each)]
        for loop in inner
    ]
    assert ["start", "start", WAIT] in orders


def is_start_or_wait(op: Operation) -> bool:
    return (isinstance(op, IssueOp) and op.id is not None) or (isinstance(op, CodeOp) and op.key.data == WAIT)
