"""What the C back end returns: the text, cut where it may be cut, and what a caller has to know about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.dialects.element_types import DType
from penstock.lowering.to_c.types import CType


@dataclass(frozen=True)
class Parameter:
    """An array that the caller passes: an input, a weight or an output. Dense, in row-major order."""

    name: str
    shape: tuple[int, ...]
    ctype: CType

    @property
    def dtype(self) -> DType:
        """The NumPy type of its elements; integers are signless and count as signed."""
        return self.ctype.dtype()

    def __str__(self) -> str:
        return f"{self.name}: {'x'.join(map(str, self.shape)) or 'scalar'} {self.ctype.name}"


@dataclass(frozen=True)
class CFunction:
    """The text of one kernel."""

    symbol: str
    prototype: str
    text: str


@dataclass(frozen=True)
class CSource:
    """
    A program in C11.

    `header` declares the entry `<name>_run`, `<name>_context_size` and the context; `source` is the program as
    one file, which needs only the header, as `<name>.h`, and the C library with its mathematics.
    """

    name: str
    header: str
    prelude: str
    """Includes and helper functions."""
    constants: str
    kernels: tuple[CFunction, ...]
    entry: str
    """The text of the entry and of what belongs to it."""
    inputs: tuple[Parameter, ...]
    weights: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    arena_bytes: int
    """Bytes for the off-chip intermediates."""
    scope_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    """For each scope the bytes that the plan uses."""

    @property
    def run_symbol(self) -> str:
        return f"{self.name}_run"

    @property
    def size_symbol(self) -> str:
        return f"{self.name}_context_size"

    @property
    def header_name(self) -> str:
        return f"{self.name}.h"

    @property
    def source(self) -> str:
        """The whole program as one file."""
        return self._file("".join(f"\n{kernel.text}" for kernel in self.kernels) + f"\n{self.entry}")

    def units(self, count: int) -> tuple[str, ...]:
        """
        The program as up to `count` files of about equal length, to be compiled at the same time with
        `-DPENSTOCK_KERNEL=` and linked.
        """
        parts = [*(kernel.text for kernel in self.kernels), self.entry]
        count = max(1, min(count, len(parts)))
        if count == 1:
            return (self.source,)
        bins: list[list[int]] = [[] for _ in range(count)]
        lengths = [0] * count
        for number in sorted(range(len(parts)), key=lambda number: (-len(parts[number]), number)):
            least = lengths.index(min(lengths))
            bins[least].append(number)
            lengths[least] += len(parts[number])
        return tuple(self._file("".join(f"\n{parts[number]}" for number in sorted(each))) for each in bins)

    def _file(self, body: str) -> str:
        prototypes = "".join(f"{kernel.prototype};\n" for kernel in self.kernels)
        sections = (f'#include "{self.header_name}"\n\n{self.prelude}', self.constants, prototypes)
        return "\n".join(section for section in sections if section) + body
