# SPDX-License-Identifier: Apache-2.0
"""Plans from C by penstock.h, and generated C as a folder: built by the commands that stand in them, and run."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from in_c import needs_compiler
from numpy.typing import NDArray

import penstock as package
from penstock.passes.toolchain import find_compiler

if TYPE_CHECKING:
    from tests.conftest import Command

REPOSITORY = Path(__file__).parents[2]
DIGITS = REPOSITORY / "examples" / "digits"
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
SANITIZED = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module")
def image() -> NDArray[Any]:
    with np.load(DIGITS / "test_images.npz") as file:
        return file["images"][:1]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, with sanitizers where the compiler has them."""
    needs_compiler()
    folder = tmp_path_factory.mktemp("c")
    include = Path(package.get_include())
    sources = (REPOSITORY / "examples" / "c" / "main.c", include / "penstock.c")
    words = (*find_compiler().command, "-std=c11", "-O1", *WARNINGS, f"-I{include}", *map(str, sources), "-ldl")
    for flags in (SANITIZED, ()):
        found = subprocess.run([*words, *flags, "-o", "main"], cwd=folder, capture_output=True, text=True, check=False)
        if found.returncode == 0:
            return folder / "main"
    pytest.fail(found.stderr)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_compiler()
    path = tmp_path_factory.mktemp("plan") / "digits.plan"
    package.compile(DIGITS / "digits.onnx", "gemmini-fp32").save(path)  # pyright: ignore
    return path


def call(command: Path | str, *words: str, shell: bool = False) -> subprocess.CompletedProcess[str]:
    given = str(command) if shell else [str(command), *words]
    return subprocess.run(given, capture_output=True, text=True, check=False, shell=shell)


def test_a_plan_runs_in_c(runner: Path, plan: Path, image: NDArray[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runner.parent)
    image.tofile("image.bin")
    found = call(runner, str(plan), "image.bin")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == "input image: 1 1 8 8, 256 bytes\noutput scores: 1 10, 40 bytes\n"
    (scores,) = package.Engine.load(plan)(image)
    assert Path("output_0.bin").read_bytes() == scores.tobytes()
    found = call(runner, str(plan), "image.bin.2")
    assert (found.returncode, found.stderr) == (1, "image.bin.2: error: not a file of 256 bytes\n")


FAULTS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "truncated": (lambda b: b[:-4096], "the plan is truncated: it has "),
    "short": (lambda b: b[:100], "the plan is truncated: it has 100 bytes\n"),
    "header": (lambda b: b[:40] + b"x" + b[41:], "the plan is damaged: its header has another checksum\n"),
    "weights": (
        lambda b: b[:-5000] + b"?" + b[-4999:],
        'the plan is damaged: its section "weights" has ',
    ),
    "format": (lambda b: b[:8] + b"\7" + b[9:], "the plan has format 7, and this code reads 1\n"),
    "other": (lambda b: b"{}", "not a plan\n"),
    "empty": (lambda b: b"", "not a plan\n"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_c_refuses_what_python_refuses(runner: Path, plan: Path, tmp_path: Path, fault: str) -> None:
    change, message = FAULTS[fault]
    (tmp_path / "p").write_bytes(change(plan.read_bytes()))
    found = call(runner, str(tmp_path / "p"))
    assert found.returncode == 1
    assert found.stderr.startswith(f"{tmp_path / 'p'}: error: {message}")


def test_c_refuses_code_for_another_cpu(runner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    type = "tensor<4xf32>"
    (tmp_path / "m.mlir").write_text(f"func.func @main(%x: {type}) -> {type} {{ func.return %x : {type} }}")
    engine = package.compile(tmp_path / "m.mlir")
    monkeypatch.setattr("penstock.runtime.plan.architecture", lambda: "linux pdp11")
    engine.save(tmp_path / "p")  # pyright: ignore
    assert "error: the plan is code for linux pdp11, and this is " in call(runner, str(tmp_path / "p")).stderr
    monkeypatch.undo()
    if Path("/proc/cpuinfo").exists():
        monkeypatch.setattr("penstock.passes.toolchain.Compiler.features", lambda self: ("fpu2000",))  # pyright: ignore
        engine.save(tmp_path / "p")  # pyright: ignore
        found = call(runner, str(tmp_path / "p")).stderr
        assert "error: the plan needs a feature that this CPU does not have: fpu2000" in found


@pytest.mark.parametrize("machine", [None, "gemmini-fp32"])
def test_generated_c_is_built_by_its_own_command_and_runs(
    penstock: Command, tmp_path: Path, image: NDArray[Any], machine: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_compiler()
    model = DIGITS / "digits.onnx"
    assert (
        penstock(
            "compile", model, "--emit=c", *(["--machine", machine] if machine else []), "-o", "digits", "-q"
        ).status
        == 0
    )
    monkeypatch.chdir(tmp_path / "digits")
    assert sorted(os.listdir()) == ["digits.c", "digits.h", "digits.weights", "digits_main.c"]
    text = Path("digits.c").read_text()
    assert "void digits_conv1_relu1(" in text, "kernels are called after nodes"
    assert re.search(r'/\* @fused_0.*"relu1"\n     .*"conv1": ', text), "the loops of a kernel stand before it"
    command = re.search(r"/\* Build: cc (.*)", text)
    more = re.search(r"\n   With GCC on x86 add: (.*)\n", text)
    assert command is not None
    assert more is not None
    assert {*find_compiler().flags()} <= {*command[1].split(), *more[1].split(), "-fPIC"}, "as it is built"
    built = call(f"{' '.join(find_compiler().command)} {command[1]} {' '.join(WARNINGS[:2])}", shell=True)
    assert built.returncode == 0, built.stderr
    image.tofile("image.bin")
    found = call("./digits", "image.bin")
    assert (found.returncode, found.stderr) == (0, "")
    (scores,) = package.compile(model, machine)(image)
    assert Path("output_0.bin").read_bytes() == scores.tobytes()
    assert call("./digits").returncode == 2
    Path("digits.weights").write_bytes(b"short")
    assert call("./digits", "image.bin").stderr.startswith("digits.weights: error: not a file of ")


def test_a_program_without_weights_has_no_file_of_them(penstock: Command, tmp_path: Path) -> None:
    needs_compiler()
    Path("m.mlir").write_text("func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
                              "%y = graph.relu %x : tensor<4xf32>\nfunc.return %y : tensor<4xf32>\n}")  # fmt: skip
    assert penstock("compile", "m.mlir", "--emit=c", "-o", "m", "-q").status == 0
    assert sorted(os.listdir("m")) == ["m.c", "m.h", "m_main.c"]
