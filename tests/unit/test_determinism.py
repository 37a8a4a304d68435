# SPDX-License-Identifier: Apache-2.0
"""The same input gives the same text, byte for byte, whatever the order of Python's hashes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from sampling import sweep

from penstock.tools import main


@pytest.mark.parametrize("emit", sweep(["accel", "c"], quick=["c"]))
def test_a_compilation_does_not_depend_on_hashes(
    emit: str, script: Callable[[str], str], repository: Path, tmp_path: Path
) -> None:
    model = repository / "examples" / "digits" / "digits.onnx"
    texts: list[bytes] = []
    # This process has another seed than the other: its own, unless one is set.
    other = "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"
    for name in ("here", "there"):
        folder = tmp_path / name
        folder.mkdir()
        out = folder / ("out" if emit == "c" else "out.mlir")
        words = ["compile", str(model), "--machine", "gemmini-fp32", f"--emit={emit}", "-o", str(out), "-q"]
        if name == "here":
            assert main.run(words) == 0
        else:
            subprocess.run([script("penstock"), *words], check=True, env={**os.environ, "PYTHONHASHSEED": other})
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        assert files
        texts.append(b"".join(path.name.encode() + path.read_bytes() for path in files))
    assert texts[0] == texts[1]
