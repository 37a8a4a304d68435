# SPDX-License-Identifier: Apache-2.0
"""A host with a library of its own: what BLAS defines, in plain loops, which refuse what BLAS does not take."""

from __future__ import annotations

from pathlib import Path

HEADERS = Path(__file__).parent / "blas"


def blas_machine(folder: Path, code: str = "", parts: str = "", *, flags: str = f"-I{HEADERS}") -> str:
    """The path of a machine file in a folder; `code` is added to its `[code]`, and `parts` to its end."""
    path = folder / "own-blas.toml"
    path.write_text(
        f'[machine]\nextends = "host-blas"\nname = "own-blas"\n\n[code]\nflags = "{flags}"\n{code}\n{parts}\n'
    )
    return str(path)
