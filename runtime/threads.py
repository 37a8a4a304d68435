# SPDX-License-Identifier: Apache-2.0
"""The number of threads of a program, as people give it."""

from __future__ import annotations

from penstock.dialects.diagnostics import UserError
from penstock.dialects.threads import MOST_THREADS

INTERPRETED = "the interpreter has one thread, not {}"
"""What is said where several threads are asked of it."""


def require_threads(threads: int) -> int:
    """The number of threads; raises UserError for one that no program has."""
    if not 1 <= threads <= MOST_THREADS:
        raise UserError(f"a program has from 1 to {MOST_THREADS} threads, not {threads}")
    return threads


def require_at_most(threads: int, compiled: int, *, interpreted: bool = False) -> int:
    """The number of threads of a context; raises UserError for more than the program was compiled for."""
    if require_threads(threads) > compiled:
        if interpreted:
            raise UserError(INTERPRETED.format(threads))
        plural = "" if compiled == 1 else "s"
        notes = [f"compile it again: --threads {threads}, or threads={threads}"]
        if compiled == 1:
            notes.append("a program of which no loop pays for threads has one, however it is compiled")
        raise UserError(f"the program was compiled for {compiled} thread{plural}, not for {threads}", notes=notes)
    return threads
