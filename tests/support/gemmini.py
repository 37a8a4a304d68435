# SPDX-License-Identifier: Apache-2.0
"""Streams of Gemmini's instructions, issued through gemmini.h on the model that is shipped beside it."""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock.machines
from penstock.passes.toolchain import find_compiler
from penstock.runtime.gemmini import Counts, Log, read_log, replay

CODE = Path(penstock.machines.__file__).parent / "code" / "gemmini"
NONE = 0xFFFFFFFF
NOWHERE = (1 << 64) - 1
"""The region of address 0."""
SOURCE = Path(__file__).with_name("gemmini_stream.c")
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-ffp-contract=off")


@dataclass(frozen=True)
class Geometry:
    """A configuration of the generator."""

    dim: int = 16
    floating: bool = False
    spad_rows: int = 16384
    acc_rows: int = 1024

    @property
    def macros(self) -> list[str]:
        values = {
            "GEMMINI_DIM": self.dim,
            "GEMMINI_FLOAT": int(self.floating),
            "GEMMINI_SPAD_ROWS": self.spad_rows,
            "GEMMINI_ACC_ROWS": self.acc_rows,
        }
        return ["-DPENSTOCK_MODEL", *(f"-D{name}={value}" for name, value in values.items())]

    @property
    def element(self) -> np.dtype[Any]:
        return np.dtype("<f4" if self.floating else "i1")

    @property
    def sum(self) -> np.dtype[Any]:
        return np.dtype("<f4" if self.floating else "<i4")


INT8 = Geometry()
FP32 = Geometry(dim=4, floating=True, acc_rows=4096)


def acc(row: int, *, add: bool = False, full: bool = False) -> int:
    """A local address in the accumulators."""
    return 1 << 31 | int(add) << 30 | int(full) << 29 | row


def bits(value: float) -> int:
    """Of a float32."""
    return struct.unpack("<I", struct.pack("<f", value))[0]


@dataclass
class Stream:
    """Commands in the order of issue; methods are named as in gemmini.h."""

    geometry: Geometry = INT8
    regions: list[tuple[int, bool]] = field(default_factory=list[tuple[int, bool]])
    words: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])

    def region(self, size: int, writable: bool = True) -> int:
        self.regions.append((size, writable))
        return len(self.regions) - 1

    def array(self, values: NDArray[Any], writable: bool = False) -> int:
        """A region that holds these values."""
        number = self.region(values.nbytes, writable)
        self.put(number, 0, values.tobytes())
        return number

    def config_ex(self, relu: bool = False, a_stride: int = 1, c_stride: int = 1) -> None:
        self._issue(0, int(relu), a_stride, c_stride)

    def config_ld(
        self, stride: int, channel: int = 0, block_stride: int = 0, scale: float = 1, narrow: bool = False
    ) -> None:
        self._issue(1, channel, stride, block_stride, bits(scale), int(narrow))

    def config_st(self, stride: int, relu: bool = False, scale: float = 1) -> None:
        self._issue(2, stride, int(relu), bits(scale))

    def mvin(self, region: int, offset: int, to: int, columns: int, rows: int, channel: int = 0) -> None:
        self._issue(3, channel, region, offset, to, columns, rows)

    def mvout(self, region: int, offset: int, source: int, columns: int, rows: int) -> None:
        self._issue(4, region, offset, source, columns, rows)

    def preload(self, b: int, b_columns: int, b_rows: int, c: int, c_columns: int, c_rows: int) -> None:
        self._issue(5, b, b_columns, b_rows, c, c_columns, c_rows)

    def compute(
        self, a: int, a_columns: int, a_rows: int, d: int = NONE, d_columns: int = 1, d_rows: int = 1, new: bool = True
    ) -> None:
        self._issue(6, int(new), a, a_columns, a_rows, d, d_columns, d_rows)

    def flush(self) -> None:
        self._issue(7)

    def fence(self) -> None:
        self._issue(8)

    def fill(self, region: int, offset: int, size: int, first: int, step: int = 0) -> None:
        """The host writes bytes that go up by `step`."""
        self._issue(9, region, offset, size, first, step)

    def put(self, region: int, offset: int, data: bytes) -> None:
        """The host writes these bytes."""
        for start in range(0, len(data), 8):
            part = data[start : start + 8]
            self._issue(11, region, offset + start, len(part), int.from_bytes(part, "little"))

    def rocc(self, rs1: int, rs2: int, funct: int) -> None:
        """Whatever it is."""
        self._issue(10, rs1, rs2, funct)

    def _issue(self, *words: int) -> None:
        self.words.append((*words, *[0] * (8 - len(words))))

    def raw(self) -> bytes:
        """As gemmini_stream.c reads it."""
        head = [len(self.regions), *(word for size, writable in self.regions for word in (size, int(writable)))]
        flat = [word for command in self.words for word in command]
        return struct.pack(f"<{len(head) + len(flat)}Q", *head, *flat)


@dataclass(frozen=True)
class Run:
    """What the model made of a stream."""

    status: int
    message: str
    regions: Sequence[bytes]
    log: Log

    def array(self, region: int, dtype: np.dtype[Any] | str) -> NDArray[Any]:
        return np.frombuffer(self.regions[region], dtype)


def run(stream: Stream, *, lazy: bool = False) -> Run:
    """Issue the stream on the model; `lazy` executes it at the fences."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log")
        environment = {**os.environ, "GEMMINI_LOG": str(path), "GEMMINI_LAZY": str(int(lazy))}
        finished = subprocess.run(
            [_driver(stream.geometry)], input=stream.raw(), capture_output=True, check=False, env=environment
        )
        regions: list[bytes] = []
        at = 0
        for size, _ in stream.regions:
            regions.append(finished.stdout[at : at + size])
            at += size
        return Run(finished.returncode, finished.stderr.decode(), regions, read_log(path))


def check(stream: Stream) -> tuple[Run, Counts]:
    """Run a stream that has no faults: at once, at the fences, and by the executor in two orders."""
    found, late = run(stream), run(stream, lazy=True)
    assert (found.status, found.message) == (0, "")
    assert (late.status, late.message, late.regions) == (0, "", found.regions)
    counts = replay(found.log)
    assert replay(found.log, seed=1) == counts
    return found, counts


_BUILT = tempfile.TemporaryDirectory(prefix="penstock-gemmini-")
"""Removed at the end of the process."""


@cache
def _driver(geometry: Geometry) -> Path:
    program = Path(_BUILT.name, f"stream{geometry.dim}")
    build = [
        *find_compiler().command,
        *STRICT,
        "-O2",
        *geometry.macros,
        "-I",
        str(CODE),
        str(SOURCE),
        "-o",
        str(program),
    ]
    subprocess.run(build, check=True)
    return program
