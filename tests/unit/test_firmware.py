# SPDX-License-Identifier: Apache-2.0
"""Firmware: a folder for a microcontroller, in the memories that its machine file says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from in_c import needs_compiler

if TYPE_CHECKING:
    from tests.conftest import Command

MACHINE = "cortex-m7-like"
CROSS = "arm-none-eabi-"
QEMU = "qemu-system-arm"
WIDE = """
func.func @main(%x: tensor<4x8xi64>, %w: tensor<8x4xi64>) -> tensor<4x4xi64> {
  %0 = graph.matmul %x, %w : (tensor<4x8xi64>, tensor<8x4xi64>) -> tensor<4x4xi64>
  func.return %0 : tensor<4x4xi64>
}
"""


def ran(*words: str | Path, folder: Path) -> str:
    finished = subprocess.run(
        [*map(str, words)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(params=["f32", "int8"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, penstock: Command, repository: Path) -> Path:
    """The firmware of the digits, in floats and quantized."""
    scratch, examples = tmp_path, repository / "examples" / "digits"
    path = examples / "digits.onnx"
    if request.param == "int8":
        path = scratch / "digits.mlir"
        words = ["--calibration", examples / "calibration_images.npz", "-o", path, "-q"]
        assert penstock("quantize", examples / "digits.onnx", *words).status == 0
    for name in ("out", "again"):
        finished = penstock("compile", path, "--machine", MACHINE, "--emit", "firmware", "-o", scratch / name, "-q")
        assert finished.status == 0, finished.err
    return scratch / "out"


def test_the_same_network_gives_the_same_files(folder: Path) -> None:
    again = folder.parent / "again"
    names = sorted(each.name for each in folder.iterdir())
    assert names == sorted(each.name for each in again.iterdir())
    assert all((folder / name).read_bytes() == (again / name).read_bytes() for name in names)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_host_runs_it_under_sanitizers(folder: Path, compiler: str) -> None:
    needs_compiler()
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not there")
    words = f"CC={compiler} -fsanitize=address,undefined -fno-sanitize-recover -fno-sanitize=alignment"
    assert ran("make", "-B", "-s", "check", words, folder=folder) == "PASS\n"


@pytest.mark.skipif(shutil.which(f"{CROSS}gcc") is None, reason=f"{CROSS}gcc is not there")
def test_it_runs_on_an_emulated_board_in_the_memories_of_the_machine(folder: Path) -> None:
    ran("make", "-s", folder=folder)
    # What the network is made of calls nothing of the C library but copies and mathematics: no heap, no streams.
    called = {line.split()[-1] for line in ran(f"{CROSS}nm", "-u", "digits.o", folder=folder).splitlines()}
    assert called <= {"memcpy", "memset", "memmove", "rintf", "__aeabi_f2lz"}
    sections = ran(f"{CROSS}objdump", "-h", "digits.elf", folder=folder)
    starts = {words[1]: int(words[3], 16) for words in map(str.split, sections.splitlines()) if len(words) == 7}
    assert starts[".weights"] < 0x400000
    assert starts[".bss"] >= 0x20000000
    if shutil.which(QEMU) is None:
        pytest.skip(f"{QEMU} is not there")
    assert ran("make", "-s", "run", folder=folder) == "PASS\n"


@pytest.mark.skipif(shutil.which(f"{CROSS}gcc") is None, reason=f"{CROSS}gcc is not there")
def test_a_stack_that_would_overlap_data_is_not_linked(folder: Path) -> None:
    ran("make", "-s", folder=folder)
    symbols = ran(f"{CROSS}nm", "digits.elf", folder=folder).splitlines()
    end = next(int(line.split()[0], 16) for line in symbols if line.endswith(" __bss_end__"))
    script = (folder / "link.ld").read_text()
    (folder / "link.ld").write_text(script.replace("LENGTH = 4194304\n}", f"LENGTH = {end - 0x20000000 + 1024}\n}}"))
    made = subprocess.run(["make", "-s"], cwd=folder, capture_output=True, text=True, check=False)
    assert made.returncode != 0
    assert "the stack would overlap data" in made.stderr


def refused(penstock: Command, model: Path, machine: str | Path, out: Path) -> str:
    finished = penstock("compile", model, "--machine", machine, "--emit", "firmware", "-o", out, "-q")
    assert finished.status in (1, 3), finished.err
    assert "Traceback" not in finished.err
    assert not out.exists()
    return finished.err


def test_a_machine_without_memories_is_refused(tmp_path: Path, penstock: Command, repository: Path) -> None:
    model = repository / "examples" / "digits" / "digits.onnx"
    said = refused(penstock, model, "host", tmp_path / "out")
    assert 'machine "host" has no memories to place firmware in' in said
    assert "[[memory]]" in said


@pytest.mark.parametrize(
    ("memory", "size", "message"),
    [
        ("FLASH", 16384, 'memory "FLASH" of 16,384 bytes does not hold weights 43,840 bytes'),
        ("SRAM", 1024, 'memory "SRAM" of 1,024 bytes does not hold data'),
    ],
)
def test_what_does_not_fit_is_refused(
    memory: str, size: int, message: str, tmp_path: Path, penstock: Command, repository: Path
) -> None:
    machine = tmp_path / "small.toml"
    part = f'[[memory]]\nname = "{memory}"\nsize = {{ value = {size}, assumed = true }}\n'
    machine.write_text(f'[machine]\nextends = "{MACHINE}"\nname = "small"\n\n{part}')
    said = refused(penstock, repository / "examples" / "digits" / "digits.onnx", machine, tmp_path / "out")
    assert message in said
    assert "the least size that may do is" in said
    assert "small.toml:" in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("address = { value = 0x1000, assumed = true }", 'overlaps memory "FLASH", which ends at 0x400000'),
        ('holds = ["data", "code"]', 'memory "FLASH" holds code already'),
        ('holds = ["stack"]', 'holds must be some of code, weights, data, but has "stack"'),
        ("holds = []", "no memory holds data"),
        ('remove = true\n\n[[memory]]\nname = "FLASH"\nholds = ["data"]', "no memory holds code"),
    ],
)
def test_memories_that_no_script_can_be_made_of_are_refused(
    change: str, message: str, tmp_path: Path, penstock: Command
) -> None:
    machine = tmp_path / "other.toml"
    machine.write_text(f'[machine]\nextends = "{MACHINE}"\nname = "other"\n\n[[memory]]\nname = "SRAM"\n{change}\n')
    finished = penstock("machines", "validate", machine)
    assert finished.status == 1
    assert message in finished.out + finished.err


def test_products_of_64_bits_are_refused(tmp_path: Path, penstock: Command) -> None:
    model = tmp_path / "wide.mlir"
    model.write_text(WIDE)
    said = refused(penstock, model, MACHINE, tmp_path / "out")
    assert "wide.mlir:3:" in said
    assert "multiply-accumulates of i64 are not for firmware" in said
