"""Building a generated program to a shared library."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.lowering.to_c import CSource
from penstock.passes.toolchain.library import build_library

SPLIT_LENGTH = 60_000
"""Characters of C from which on several files, compiled at the same time, are faster than one."""


def build(source: CSource) -> Path:
    """
    The shared library of a program, built unless the cache has it.

    Raises UserError without a working C compiler and for a cache that others may write, and CompilerFault where the
    compiler refuses the program, whose files are kept for a day.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    units = source.units(cores if len(source.source) >= SPLIT_LENGTH else 1)
    files = [f"{source.name}.c"] if len(units) == 1 else [f"{source.name}_{n}.c" for n in range(len(units))]
    # How the program is cut does not change what it does, so it is not part of the key.
    content = f"{source.header}\0{source.source}"
    sources = dict(zip(files, units, strict=True))
    return build_library(source.name, sources, {source.header_name: source.header}, content=content)
