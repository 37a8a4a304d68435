# SPDX-License-Identifier: Apache-2.0
"""How much memory a run takes at the least, and how much this machine has: asked before anything is run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.dialects.diagnostics import UserError, location_of
from penstock.runtime.tensor_specs import Signature, TensorSpec

if TYPE_CHECKING:
    from xdsl.ir import Operation

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_SWAP = Path("/proc/meminfo")


@dataclass(frozen=True)
class MemoryNeed:
    """What a run takes at the least, in bytes."""

    arguments: int
    """Inputs and outputs."""
    weights: int
    intermediates: int
    at: Operation | None = None
    """The op at which the intermediates take most; None where a plan says how much they take."""

    @property
    def total_bytes(self) -> int:
        return self.arguments + self.weights + self.intermediates


def native_need(signature: Signature, weight_bytes: int, context_bytes: int) -> MemoryNeed:
    """What a run of compiled code takes, whose arena and scopes take `context_bytes`."""
    return MemoryNeed(argument_bytes((*signature.inputs, *signature.outputs)), weight_bytes, context_bytes)


def require_memory(need: MemoryNeed) -> None:
    """Raise UserError, located at the op that takes most, where a run takes more memory than this machine has."""
    have = machine_bytes()
    if have is None or need.total_bytes <= have:
        return
    notes = [
        f"inputs and outputs take {in_words(need.arguments)}, weights {in_words(need.weights)},"
        f" intermediates {in_words(need.intermediates)}"
    ]
    raise UserError(
        f"a run takes at least {in_words(need.total_bytes)} of memory, and there are {in_words(have)}",
        loc=None if need.at is None else location_of(need.at),
        notes=notes,
    )


def machine_bytes() -> int | None:
    """The memory that a process can have here: that of the machine with its swap, or the limit of its group."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
    for line in _lines(_SWAP):
        if line.startswith("SwapTotal:"):
            total += int(line.split()[1]) * 1024
    limits = [int(line) for line in _lines(_CGROUP_LIMIT) if line.isdigit()]
    return min([total, *limits])


def in_words(size: int) -> str:
    """A number of bytes to a tenth of the largest unit that it has."""
    for power, unit in ((6, "EiB"), (5, "PiB"), (4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1 << 10 * power:
            return f"{size / (1 << 10 * power):.1f} {unit}"
    return f"{size} bytes"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def argument_bytes(specs: Sequence[TensorSpec]) -> int:
    """The bytes of inputs or outputs."""
    return sum(prod(spec.shape) * spec.dtype.itemsize for spec in specs)
