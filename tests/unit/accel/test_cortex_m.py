# SPDX-License-Identifier: Apache-2.0
"""Networks of 8-bit integers as calls of kernels: on the host, and on a Cortex-M7 as QEMU emulates it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from in_c import needs_compiler

if TYPE_CHECKING:
    from tests.conftest import Command

MACHINE = "cortex-m7-nn"
CROSS = "arm-none-eabi-gcc"
QEMU = ("qemu-system-arm", "-M", "mps2-an500", "-nographic", "-semihosting", "-kernel")
DEPTHWISE = """
func.func @main(%x: tensor<1x{c}x9x10xi8>, %w: tensor<{c}x1x3x3xi8>) -> tensor<1x{c}x{h}x{v}xi32> {{
  %0 = graph.conv %x, %w strides [{s}, {s}] pads [1, 1, 1, 1] dilations [1, 1] group {c} accumulate i32
      : (tensor<1x{c}x9x10xi8>, tensor<{c}x1x3x3xi8>) -> tensor<1x{c}x{h}x{v}xi32>
  func.return %0 : tensor<1x{c}x{h}x{v}xi32>
}}
"""


def checked(folder: Path) -> str:
    needs_compiler()
    # Its rows are bytes: what is wider must begin where C lets it.
    words = ["make", "-s", "check", "CC=cc -fsanitize=undefined -fno-sanitize-recover"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False).stdout


@pytest.fixture
def digits(tmp_path: Path, penstock: Command, repository: Path) -> Path:
    """The digits in integers throughout."""
    path, folder = tmp_path / "digits.mlir", repository / "examples" / "digits"
    words = ["--calibration", folder / "calibration_images.npz", "--scheme", "power-of-two", "-o", path, "-q"]
    assert penstock("quantize", folder / "digits.onnx", *words).status == 0
    return path


def test_the_digits_are_calls(digits: Path, tmp_path: Path, penstock: Command) -> None:
    finished = penstock("compile", digits, "--machine", MACHINE, "--emit", "device-c", "-o", tmp_path / "out")
    assert finished.status == 0, finished.err
    commands = re.search(r"([\d,]+) commands", finished.err)
    assert commands is not None
    assert int(commands[1].replace(",", "")) < 300
    assert checked(tmp_path / "out") == "PASS\n"


@pytest.mark.skipif(shutil.which(CROSS) is None, reason=f"{CROSS} is not there")
def test_the_digits_run_on_a_cortex_m(digits: Path, tmp_path: Path, penstock: Command) -> None:
    out = tmp_path / "out"
    assert penstock("compile", digits, "--machine", MACHINE, "--emit", "device-c", "-o", out, "-q").status == 0
    made = subprocess.run(["make", "-s"], cwd=out, capture_output=True, text=True, check=False)
    assert (made.returncode, made.stderr) == (0, "")
    if shutil.which(QEMU[0]) is None:
        pytest.skip(f"{QEMU[0]} is not there")
    words = [*QEMU, str(out / "digits.elf")]
    ran = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.stdout, ran.returncode) == ("PASS\n", 0)


@pytest.mark.parametrize(("channels", "stride"), [(16, 1), (5, 2)])
def test_channels_of_a_depthwise_convolution_adjoin(
    channels: int, stride: int, tmp_path: Path, penstock: Command
) -> None:
    path = tmp_path / "depthwise.mlir"
    path.write_text(DEPTHWISE.format(c=channels, s=stride, h=-(-9 // stride), v=-(-10 // stride)))
    out = tmp_path / "out"
    assert penstock("compile", path, "--machine", MACHINE, "--emit", "device-c", "-o", out, "-q").status == 0
    calls = re.findall(r"nn_depthwise_s8\((\d+), (\d+),", (out / "depthwise.c").read_text())
    assert {int(n) for _, n in calls} == {channels}
    assert checked(out) == "PASS\n"
