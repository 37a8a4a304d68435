# SPDX-License-Identifier: Apache-2.0
"""Programs in C for the real machine, built by the host's compiler against a model of it: they print PASS."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from in_c import needs_compiler
from xdsl.parser import Parser

from penstock.dialects.accel_issue import IssueOp, SetOp
from penstock.dialects.context import make_context
from penstock.lowering.from_machine_toml import load_machine
from penstock.passes.accel.accel_configure import issue_counts
from penstock.runtime.compiler import compile_module, load_input
from penstock.runtime.device import lower_to_device

if TYPE_CHECKING:
    from tests.conftest import Command

PRODUCT = """
func.func @main(%x: tensor<{m}x{k}xi8>, %w: tensor<{k}x{n}xi8>, %b: tensor<{n}xi32>) -> tensor<{m}x{n}xi32> {{
  %y = graph.gemm %x, %w accumulate i32 : (tensor<{m}x{k}xi8>, tensor<{k}x{n}xi8>) -> tensor<{m}x{n}xi32>
  %s = graph.add %y, %b : (tensor<{m}x{n}xi32>, tensor<{n}xi32>) -> tensor<{m}x{n}xi32>
  func.return %s : tensor<{m}x{n}xi32>
}}
"""


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build a folder against the model, and run it."""
    needs_compiler()
    if shutil.which("make") is None:
        pytest.skip("no make")
    return subprocess.run(["make", "-s", "check"], cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def product(tmp_path: Path) -> Path:
    path = tmp_path / "product.mlir"
    path.write_text(PRODUCT.format(m=40, k=36, n=24))
    return path


@pytest.mark.parametrize(("m", "k", "n"), [(40, 36, 24), (16, 16, 16), (1, 70, 100), (130, 17, 1)])
def test_a_product_and_a_bias_run_on_the_model_of_gemmini(
    m: int, k: int, n: int, tmp_path: Path, penstock: Command
) -> None:
    path = tmp_path / "product.mlir"
    path.write_text(PRODUCT.format(m=m, k=k, n=n))
    finished = penstock("compile", path, "--machine", "gemmini", "--emit", "device-c", "-o", tmp_path / "out")
    assert finished.status == 0, finished.err
    ran = check(tmp_path / "out")
    assert (ran.stdout, ran.stderr) == ("PASS\n", "")


def test_the_digits_run_on_the_model_in_floats(tmp_path: Path, penstock: Command, repository: Path) -> None:
    model = repository / "examples" / "digits" / "digits.onnx"
    out = tmp_path / "out"
    assert penstock("compile", model, "--machine", "gemmini-fp32", "--emit", "device-c", "-o", out, "-q").status == 0
    assert check(out).stdout == "PASS\n"


def test_a_wrong_result_is_told(product: Path, tmp_path: Path, penstock: Command) -> None:
    """The first difference, and status 1: what was expected is edited."""
    out = tmp_path / "out"
    assert penstock("compile", product, "--machine", "gemmini", "--emit", "device-c", "-o", out, "-q").status == 0
    expected = out / "expected_0.bin"
    expected.write_bytes(bytes([expected.read_bytes()[0] ^ 1]) + expected.read_bytes()[1:])
    ran = check(out)
    assert ran.returncode != 0
    assert ran.stdout.startswith("output_0[0] is ")
    assert ran.stdout.endswith("FAIL\n")


def test_the_same_program_is_the_same_text(product: Path, tmp_path: Path, penstock: Command) -> None:
    texts: list[dict[str, bytes]] = []
    for name in ("one", "two"):
        out = tmp_path / name
        assert penstock("compile", product, "--machine", "gemmini", "--emit", "device-c", "-o", out, "-q").status == 0
        listed = json.loads((out / "manifest.json").read_text())["files"]
        assert sorted(path.name for path in out.iterdir()) == listed
        texts.append({name: (out / name).read_bytes() for name in listed})
    assert texts[0] == texts[1]


def test_settings_are_few_and_every_command_has_been_set(product: Path) -> None:
    program = load_input(product)
    compile_module(program.module, program.ctx, "gemmini")
    lower_to_device(program.module, program.ctx)
    counts = issue_counts(program.module)
    assert counts.settings == sum(isinstance(op, SetOp) for op in program.module.walk())
    assert 0 < counts.settings <= counts.every_time // 10
    assert counts.commands > sum(isinstance(op, IssueOp) for op in program.module.walk())


def test_a_machine_that_spells_nothing_has_no_c(product: Path, tmp_path: Path, penstock: Command) -> None:
    finished = penstock("compile", product, "--machine", "vta-fsim", "--emit", "device-c", "-o", tmp_path / "out", "-q")
    assert finished.status != 0
    assert "Traceback" not in finished.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["gemmini", "gemmini-fp32"])
def test_spelling_survives_as_text(name: str) -> None:
    text = str(load_machine(name))
    assert "gemmini_preload" in text
    assert str(Parser(make_context(), text).parse_op()) == text


def test_units_that_run_on_are_ordered_by_barriers(product: Path, tmp_path: Path, penstock: Command) -> None:
    """The pass proves the order; fewer barriers than commands, and more than the one that a kernel ends in."""
    machine = tmp_path / "own.toml"
    machine.write_text('[machine]\nname = "own"\nextends = "gemmini"\n\n[code]\norder = "barrier"\n')
    finished = penstock("compile", product, "--machine", machine, "--emit", "device-c", "-o", tmp_path / "out")
    assert finished.status == 0, finished.err
    (barriers,) = re.findall(r"(\d+) barriers", finished.err)
    assert 1 < int(barriers) < 30
    assert check(tmp_path / "out").stdout == "PASS\n"
