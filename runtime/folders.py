"""Folders that are written as a whole or not at all, and only in the place of one of their own kind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from penstock.dialects.diagnostics import UserError


def write_folder(path: Path, kind: str, marker: str, fill: Callable[[Path], None]) -> None:
    """
    Let `fill` write the files of the folder `path`.

    What is there already is replaced if it holds the file `marker`, by which a `kind` is known. Raises UserError if it
    does not, or if the folder cannot be written.
    """
    if path.exists() and not (path / marker).is_file():
        raise UserError(f"exists and is no {kind}, so it is not replaced", loc=str(path))
    try:
        fresh = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    except OSError as error:
        raise UserError(f"cannot write the {kind}: {error.strerror}", loc=str(path)) from None
    try:
        fresh.chmod(0o755)  # mkdtemp makes folders that only their owner may read
        fill(fresh)
        _exchange(fresh, path)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def _exchange(fresh: Path, path: Path) -> None:
    """Put `fresh` in the place of `path`; a folder cannot be renamed onto one that is not empty."""
    if not path.exists():
        fresh.rename(path)
        return
    old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    path.rename(old / "old")
    fresh.rename(path)
    shutil.rmtree(old)
