"""The same input gives the same text, byte for byte, whatever the order of Python's hashes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from sampling import sweep


@pytest.mark.parametrize("emit", sweep(["accel", "c"], quick=["c"]))
def test_a_compilation_does_not_depend_on_hashes(
    emit: str, script: Callable[[str], str], repository: Path, tmp_path: Path
) -> None:
    model = repository / "examples" / "digits" / "digits.onnx"
    texts: list[bytes] = []
    for seed in ("0", "1"):
        folder = tmp_path / seed
        folder.mkdir()
        out = folder / ("out" if emit == "c" else "out.mlir")
        command = [
            script("penstock"),
            "compile",
            str(model),
            "--machine",
            "gemmini-fp32",
            f"--emit={emit}",
            "-o",
            str(out),
        ]
        subprocess.run([*command, "-q"], check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        assert files
        texts.append(b"".join(path.name.encode() + path.read_bytes() for path in files))
    assert texts[0] == texts[1]
