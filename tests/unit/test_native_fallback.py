# SPDX-License-Identifier: Apache-2.0
"""Without a C compiler of the system: the one that the package `ziglang` brings, and what is said without that too."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import penstock as package
from penstock.dialects.diagnostics import UserError, pip_install
from penstock.passes import toolchain as compiler
from penstock.passes.toolchain import find_compiler
from penstock.runtime import llvm

DIGITS = Path(__file__).parents[2] / "examples" / "digits"


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler is named or in the PATH, and nothing is in the cache."""
    # What zig keeps between calls it may keep between tests.
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", os.environ.get("ZIG_GLOBAL_CACHE_DIR", str(base / "zig")))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)


def hide(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Make the package look as if it were not installed."""
    monkeypatch.setattr(compiler, "find_spec", lambda wanted: None if wanted == name else find_spec(wanted))  # pyright: ignore


@pytest.mark.usefixtures("no_compiler")
def test_without_any_compiler_both_remedies_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "ziglang")
    monkeypatch.setattr(llvm, "find_spec", lambda wanted: None)  # pyright: ignore
    with pytest.raises(UserError, match=r"no C compiler is found: .* and ziglang is not installed") as refusal:
        package.compile(DIGITS / "digits.onnx")
    assert list(refusal.value.notes) == [
        "install a C compiler (apt-get install gcc, or xcode-select --install), or: " + pip_install("cc"),
        "the interpreter backend does without one, and so does llvm: pip install 'penstock-compiler[llvm]'",
    ]
    with np.load(DIGITS / "test_images.npz") as file:
        image = file["images"][:1]
    (scores,) = package.compile(DIGITS / "digits.onnx", backend="interpreter")(image)
    assert scores.shape == (1, 10)


@pytest.mark.usefixtures("no_compiler")
def test_the_package_is_looked_for_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing it would run it. The command is what Python makes of `-m`, so it is that of this environment."""
    folder = tmp_path / "packages" / "ziglang"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "packages"), *sys.path])
    monkeypatch.setattr(compiler, "_version", lambda command: "clang version 0")  # pyright: ignore
    assert find_compiler().command[:4] == (sys.executable, "-m", "ziglang", "cc")
    assert "ziglang" not in sys.modules


@pytest.mark.usefixtures("no_compiler")
def test_a_compiler_of_the_system_comes_first(tmp_path: Path) -> None:
    gcc = tmp_path / "gcc"
    gcc.write_text("#!/bin/sh\necho gcc 0\n")
    gcc.chmod(0o755)
    assert find_compiler().command == (str(gcc),)


@pytest.mark.skipif(find_spec("ziglang") is None, reason="pip install 'penstock-compiler[cc]'")
def test_the_compiler_of_the_package_computes_the_same_bits(request: pytest.FixtureRequest) -> None:
    """Floats keep the order and the roundings of the IR, so two compilers agree bit for bit."""
    with np.load(DIGITS / "test_images.npz") as file:
        images = file["images"][:8]
    system = package.compile(DIGITS / "digits.onnx", machine="gemmini-fp32")
    expected = [system(image[None])[0] for image in images]
    request.getfixturevalue("no_compiler")
    assert find_compiler().command[1:3] == ("-m", "ziglang")
    engine = package.compile(DIGITS / "digits.onnx", machine="gemmini-fp32")
    for image, scores in zip(images, expected, strict=True):
        np.testing.assert_array_equal(engine(image[None])[0], scores)
