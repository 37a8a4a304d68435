# SPDX-License-Identifier: Apache-2.0
"""Programs for a RISC-V without an operating system, built by the makefile that is shipped and run by QEMU."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from gemmini import CODE

if TYPE_CHECKING:
    from tests.conftest import Command

CROSS = "riscv64-unknown-elf-gcc"
QEMU = "qemu-system-riscv64"
PRODUCT = Path(__file__).parent.parent.parent / "support" / "gemmini_product.c"


def has_picolibc() -> bool:
    """Whether the cross compiler is there with its C library."""
    if shutil.which(CROSS) is None:
        return False
    words = [CROSS, "--specs=picolibc.specs", "-E", "-x", "c", "-"]
    return (
        subprocess.run(words, input="#include <stdio.h>\n", text=True, capture_output=True, check=False).returncode == 0
    )


pytestmark = pytest.mark.skipif(not has_picolibc(), reason="riscv64-unknown-elf-gcc with picolibc is not there")


def build(folder: Path, defines: str = "") -> tuple[Path, int]:
    """The program, and the bytes of its code and constants."""
    words = ["make", "-s", "-f", str(CODE.parent / "riscv64" / "bare_metal.mk"), "PROGRAM=product"]
    words += [f"SOURCES={PRODUCT}", f"INCLUDE={CODE} {CODE.parent}", f"DEFINES={defines}"]
    made = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert (made.returncode, made.stderr) == (0, "")
    found = re.search(r"^\s*(\d+)", made.stdout, re.MULTILINE)
    assert found is not None
    return folder / "product.elf", int(found[1])


def execute(program: Path) -> tuple[int, str]:
    """On a hart without Gemmini."""
    words = [QEMU, "-M", "spike", "-m", "512M", "-bios", "none", "-nographic", "-kernel", str(program)]
    ended = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode, ended.stdout


def test_instructions_are_custom_3_of_two_registers(tmp_path: Path) -> None:
    program, text = build(tmp_path)
    dumped = subprocess.run(
        ["riscv64-unknown-elf-objdump", "-d", str(program)], capture_output=True, text=True, check=True
    )
    words = [int(word, 16) for word in re.findall(r"^\s*[0-9a-f]+:\s+([0-9a-f]{8})\s", dumped.stdout, re.MULTILINE)]
    custom = [word for word in words if word & 0x7F == 0x7B]
    assert all(word >> 12 & 7 == 3 and word >> 7 & 31 == 0 for word in custom), "funct3 3, and x0 as destination"
    assert sorted(word >> 25 for word in custom) == [0, 0, 0, 2, 2, 3, 4, 6, 7]
    assert 0 < text < 32768, "a few functions and printf"


@pytest.mark.skipif(shutil.which(QEMU) is None, reason="QEMU is not there")
def test_programs_start_print_and_end(tmp_path: Path) -> None:
    assert execute(build(tmp_path, "-DPENSTOCK_MODEL")[0]) == (0, "PASS\n")


@pytest.mark.skipif(shutil.which(QEMU) is None, reason="QEMU is not there")
def test_the_first_difference_is_printed(tmp_path: Path) -> None:
    status, said = execute(build(tmp_path, "-DPENSTOCK_MODEL -DSPOIL")[0])
    assert status == 1
    assert re.fullmatch(r"c\[55\] is (-?\d+), and (-?\d+) is expected; 1 of 256 elements differ\n", said)


@pytest.mark.skipif(shutil.which(QEMU) is None, reason="QEMU is not there")
def test_a_hart_without_gemmini_traps(tmp_path: Path) -> None:
    status, said = execute(build(tmp_path)[0])
    assert status == 70
    assert said.startswith("trap 2 at 0x8000"), "an illegal instruction"


COMPILED = """
func.func @main(%x: tensor<20x40xi8>, %w: tensor<40x24xi8>) -> tensor<20x24xi32> {
  %y = graph.matmul %x, %w accumulate i32 : (tensor<20x40xi8>, tensor<40x24xi8>) -> tensor<20x24xi32>
  func.return %y : tensor<20x24xi32>
}
"""


@pytest.mark.skipif(shutil.which(QEMU) is None, reason="QEMU is not there")
def test_a_program_of_the_compiler_runs_with_the_model_on_the_hart(penstock: Command, tmp_path: Path) -> None:
    source, out = tmp_path / "compiled.mlir", tmp_path / "out"
    source.write_text(COMPILED)
    assert penstock("compile", source, "--machine", "gemmini", "--emit", "device-c", "-o", out, "-q").status == 0
    subprocess.run(["make", "-s"], cwd=out, check=True, capture_output=True)
    status, said = execute(out / "compiled.elf")
    assert (status, said.partition(" at ")[0]) == (70, "trap 2"), "there is no Gemmini"
    words = ["make", "-s", "-B", "-f", "bare_metal.mk", "PROGRAM=compiled", "SOURCES=compiled.c main.c data.S"]
    subprocess.run([*words, "DEFINES=-DPENSTOCK_MODEL"], cwd=out, check=True, capture_output=True)
    assert execute(out / "compiled.elf") == (0, "PASS\n")
