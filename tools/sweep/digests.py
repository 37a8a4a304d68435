# SPDX-License-Identifier: Apache-2.0
"""Digests of what the figures of a sweep depend on: values, files, and the code that computes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from penstock import __version__
from penstock.dialects.plugins import groups, installed
from penstock.passes.code_cache import DIGITS


def digest_of(parts: Iterable[object]) -> str:
    """A digest of values whose `repr` says all of them."""
    return hashlib.sha256(repr(list(parts)).encode()).hexdigest()[:DIGITS]


def file_digest(path: Path) -> str:
    """The digest of a file's contents."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]


@cache
def code_digest() -> str:
    """
    What computes: the version and the sources of Penstock and of all packages with plug-ins for it, and the versions of
    xDSL and NumPy. Another one may compute other figures, so nothing of it is used.
    """
    modules = sorted({entry.module.partition(".")[0] for group in groups() for entry in installed(group)})
    digests = [file_digest(path) for module in modules if module != "xdsl" for path in _sources(module)]
    return digest_of([__version__, version("xdsl"), version("numpy"), modules, digests])


def _sources(module: str) -> list[Path]:
    """The files of a package whose contents are code, in the order of their names."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return []
    top = [path for folder in spec.submodule_search_locations or () for path in Path(folder).iterdir()]
    # The folders of this package may be links, which are not followed further down.
    found = [Path(spec.origin), *top, *(path for each in top if each.is_dir() for path in each.rglob("*"))]
    return sorted({path for path in found if path.suffix in (".py", ".c", ".h", ".lark")})
