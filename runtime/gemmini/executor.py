# SPDX-License-Identifier: Apache-2.0
"""What instructions of Gemmini do, in NumPy: the local memories, which know what was written, and memory off chip."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.diagnostics import UserError
from penstock.runtime.gemmini.isa import (
    Block,
    Command,
    Compute,
    ConfigEx,
    ConfigLd,
    ConfigSt,
    Flush,
    Mvin,
    Mvout,
    Preload,
)

Array = NDArray[Any]

DMA_BYTES = 64
"""The longest row of a mvin, in bytes of the local memory."""


@dataclass
class Counts:
    """What was executed."""

    commands: Counter[str] = field(default_factory=Counter[str])
    """By kind, in the words of gemmini.h."""
    bytes_in: int = 0
    bytes_out: int = 0

    @property
    def total(self) -> int:
        return self.commands.total()

    @property
    def configurations(self) -> int:
        return sum(count for name, count in self.commands.items() if name.startswith("config"))


class Memory:
    """One region off chip."""

    def __init__(self, base: int, size: int, writable: bool):
        self.base, self.size, self.writable = base, size, writable
        self.data: NDArray[np.uint8] = np.zeros(size, np.uint8)
        self._unfenced: NDArray[np.bool_] = np.zeros(size, np.bool_)
        self._extent = (size, 0)

    def read(self, address: int, rows: int, row_bytes: int, stride: int) -> Array:
        """A matrix; raises UserError for bytes that instructions have written since the last fence."""
        start, end = address - self.base, address - self.base + (rows - 1) * stride + row_bytes
        shape, strides = (rows, row_bytes), (stride, 1)
        if start < self._extent[1] and self._extent[0] < end:
            if np.ndarray(shape, np.bool_, self._unfenced, start, strides).any():
                raise UserError("reads bytes off chip that were written without a fence between")
        return np.ndarray(shape, np.uint8, self.data, start, strides).copy()

    def write(self, address: int, raw: Array, stride: int) -> None:
        """Replace a matrix, one row after another: they may overlap."""
        if not self.writable:
            raise UserError("writes to a region that is only read")
        for number, row in enumerate(raw):
            start = address - self.base + number * stride
            self.data[start : start + row.size] = row
            self._unfenced[start : start + row.size] = True
            self._extent = min(start, self._extent[0]), max(start + row.size, self._extent[1])

    def fence(self) -> None:
        """What was written can be read."""
        self._unfenced[slice(*self._extent)] = False
        self._extent = (self.size, 0)


class Local:
    """The scratchpad, or the accumulators."""

    def __init__(self, name: str, rows: int, dim: int, dtype: str):
        self.name, self.dim = name, dim
        self.data: Array = np.zeros((rows, dim), dtype)
        self.written: NDArray[np.bool_] = np.zeros((rows, dim), np.bool_)

    def window(self, block: Block, stride: int = 1) -> tuple[slice, slice]:
        """Where the block is; raises UserError where it reaches out of the memory."""
        last = block.row + (block.rows - 1) * stride
        if not 1 <= block.rows <= self.dim or not 1 <= block.columns <= self.dim:
            raise UserError(
                f"a block of {block.rows} rows and {block.columns} columns, at most {self.dim} are possible"
            )
        if last >= len(self.data):
            raise UserError(f"reaches row {last} of the {self.name}, which has {len(self.data)}")
        return slice(block.row, last + 1, max(stride, 1)), slice(0, block.columns)

    def read(self, block: Block, stride: int = 1) -> Array:
        """The block; raises UserError for what was never written."""
        window = self.window(block, stride)
        if not self.written[window].all():
            row, column = np.argwhere(~self.written[window])[0].tolist()
            raise UserError(
                f"reads row {block.row + row * stride}, column {column} of the {self.name}, which nothing has written"
            )
        if stride == 0:
            return np.repeat(self.data[window], block.rows, axis=0)
        return self.data[window]

    def write(self, block: Block, values: Array, stride: int = 1) -> None:
        """Replace the block, or add to it."""
        if block.accumulate:
            values = self.read(block, stride) + values
        window = self.window(block, stride)
        self.data[window] = values
        self.written[window] = True


class Executor:
    """The state of a Gemmini, and memory off chip."""

    def __init__(self, dim: int, floating: bool, spad_rows: int, acc_rows: int):
        self.dim, self.floating = dim, floating
        self.element, self.sum = np.dtype("<f4" if floating else "i1"), np.dtype("<f4" if floating else "<i4")
        self.spad = Local("scratchpad", spad_rows, dim, self.element.str)
        self.acc = Local("accumulators", acc_rows, dim, self.sum.str)
        self.memories: list[Memory] = []
        self.counts = Counts()
        self._load: dict[int, ConfigLd] = {}
        self._execute: ConfigEx | None = None
        self._store: ConfigSt | None = None
        self._preload: Preload | None = None
        self._weights: Array | None = None

    def memory(self, address: int, size: int) -> Memory:
        """The region that holds these bytes; raises UserError where there is none."""
        for memory in self.memories:
            if memory.base <= address and address + size <= memory.base + memory.size:
                return memory
        raise UserError(f"reaches {size} bytes at address {address:#x}, which are in no region")

    def fence(self) -> None:
        """What was written can be read."""
        for memory in self.memories:
            memory.fence()

    def execute(self, command: Command) -> None:
        """Do one command; raises UserError for what it cannot do."""
        self.counts.commands[_name(command)] += 1
        match command:
            case ConfigEx():
                self._execute = command
            case ConfigLd():
                self._load[command.channel] = command
            case ConfigSt():
                if command.relu and command.scale < 0:
                    raise UserError("an activation of what a negative scale multiplies is done in different orders")
                self._store = command
            case Mvin():
                self._mvin(command)
            case Mvout():
                self._mvout(command)
            case Preload():
                if self._preload is not None:
                    raise UserError("the preload before has had no compute")
                self._preload = command
            case Compute():
                self._compute(command)
            case Flush():
                pass

    def _mvin(self, command: Mvin) -> None:
        config = self._load.get(command.channel)
        if config is None:
            raise UserError(f"channel {command.channel} is not configured")
        block = command.block
        target = self.acc if block.accumulator else self.spad
        dtype = self.sum if block.accumulator and not config.narrow else self.element
        if block.columns * target.data.dtype.itemsize > DMA_BYTES or not block.columns or not block.rows:
            raise UserError(f"moves {block.rows} rows of {block.columns} columns")
        if block.columns > self.dim and config.block_stride < block.rows:
            raise UserError("its blocks overwrite each other")
        row_bytes = block.columns * dtype.itemsize
        if command.address:
            memory = self.memory(command.address, (block.rows - 1) * config.stride + row_bytes)
            values = memory.read(command.address, block.rows, row_bytes, config.stride).view(dtype)
            self.counts.bytes_in += values.nbytes
            values = self._scaled_in(values, config.scale)
        else:
            values = np.zeros((block.rows, block.columns), dtype)
        for number, start in enumerate(range(0, block.columns, self.dim)):
            part = values[:, start : start + self.dim].astype(target.data.dtype)
            row = block.row + number * config.block_stride
            piece = Block(row, block.rows, part.shape[1], block.accumulator, block.accumulate, block.full)
            target.write(piece, part)

    def _scaled_in(self, values: Array, scale: float) -> Array:
        if scale == 1:
            return values
        if values.dtype == np.dtype("<i4"):
            raise UserError("32-bit integers are not scaled on the way in")
        return self._narrow(values, scale)

    def _mvout(self, command: Mvout) -> None:
        config, block = self._store, command.block
        if config is None:
            raise UserError("the store is not configured")
        source = self.acc if block.accumulator else self.spad
        values = source.read(block)
        if block.accumulator and not block.full:
            values = self._narrow(values, config.scale)
            if config.relu:
                values = np.where(values > 0, values, values.dtype.type(0))
        raw = np.ascontiguousarray(values).view(np.uint8)
        memory = self.memory(command.address, (block.rows - 1) * config.stride + raw.shape[1])
        memory.write(command.address, raw, config.stride)
        self.counts.bytes_out += raw.nbytes

    def _narrow(self, values: Array, scale: float) -> Array:
        scaled = values.astype(np.float32) * np.float32(scale)
        return scaled if self.floating else np.clip(np.rint(scaled), -128, 127).astype(np.int8)

    def _compute(self, command: Compute) -> None:
        preload, config = self._preload, self._execute
        if preload is None or config is None:
            raise UserError("there is no preload before it" if config else "products are not configured")
        self._preload = None
        if command.new_weights:
            self._weights = self._padded(preload.b)
        elif preload.b is not None:
            raise UserError("B was preloaded, and it multiplies by the one before")
        if self._weights is None:
            raise UserError("the mesh holds no B")
        sums = self._padded(command.d)
        a = self._padded(command.a, config.a_stride)
        if self.floating:
            for k in range(self.dim):
                sums = sums + a[:, k, None] * self._weights[k]
        else:
            sums = sums + a @ self._weights
        if preload.c is None:
            return
        if preload.c.rows > 1 and not config.c_stride:
            raise UserError("rows of C overwrite each other")
        values = sums[: preload.c.rows, : preload.c.columns]
        if preload.c.accumulator:
            self.acc.write(preload.c, values, config.c_stride)
            return
        narrow = self._narrow(values, 1)
        self.spad.write(preload.c, np.maximum(narrow, 0) if config.relu else narrow, config.c_stride)

    def _padded(self, block: Block | None, stride: int = 1) -> Array:
        """A block of the scratchpad with zeros around it, at the width of sums."""
        whole = np.zeros((self.dim, self.dim), self.sum)
        if block is None:
            return whole
        if block.accumulator or block.accumulate or block.full:
            raise UserError("multiplies what is in the accumulators")
        whole[: block.rows, : block.columns] = self.spad.read(block, stride)
        return whole


def _name(command: Command) -> str:
    match command:
        case ConfigEx():
            return "config_ex"
        case ConfigLd():
            return "config_ld"
        case ConfigSt():
            return "config_st"
        case Mvin():
            return ("mvin", "mvin2", "mvin3")[command.channel]
        case Mvout():
            return "mvout"
        case Preload():
            return "preload"
        case Compute():
            return "compute_preloaded" if command.new_weights else "compute_accumulated"
        case Flush():
            return "flush"
