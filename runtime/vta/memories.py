# SPDX-License-Identifier: Apache-2.0
"""The memories of VTA on the chip, which know what has been written, and memory off the chip."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.dialects.diagnostics import UserError
from penstock.lowering.to_vta.isa import BLOCK, DEPTHS, DRAM_BYTES, Load, MemoryType, Store

Indices = NDArray[np.int64]


class OnChip:
    """Entries of one memory; what was never written cannot be read."""

    def __init__(self, memory: MemoryType, shape: tuple[int, ...], dtype: str):
        self.name = memory.name
        self.depth = DEPTHS[memory]
        self.data: NDArray[Any] = np.zeros((self.depth, *shape), dtype)
        self.written: NDArray[np.bool_] = np.zeros(self.depth, np.bool_)

    def read(self, indices: Indices) -> NDArray[Any]:
        """The entries; raises UserError for one that does not exist or was never written."""
        self.check(indices)
        missing = np.flatnonzero(~self.written[indices])
        if missing.size:
            raise UserError(f"reads {self.name} entry {indices[missing[0]]}, which nothing has written")
        return self.data[indices]

    def check(self, indices: Indices) -> None:
        """Raises UserError for an entry that does not exist."""
        if indices.size and not (0 <= int(indices.min()) and int(indices.max()) < self.depth):
            worst = int(indices.max())
            raise UserError(f"reaches {self.name} entry {worst}, and there are {self.depth}")

    def write(self, indices: Indices | slice, values: NDArray[Any]) -> None:
        """Replace entries."""
        self.data[indices] = values
        self.written[indices] = True


class Memories:
    """All of them. `dram` is written in place; addresses are bytes from its beginning."""

    def __init__(self, dram: NDArray[np.uint8]):
        self.dram = dram
        self.inp = OnChip(MemoryType.INP, (BLOCK,), "i1")
        self.wgt = OnChip(MemoryType.WGT, (BLOCK, BLOCK), "i1")
        self.acc = OnChip(MemoryType.ACC, (BLOCK,), "i4")
        self.uop = OnChip(MemoryType.UOP, (), "<u4")
        # The hardware keeps the low bytes of accumulators in a memory of its own, which only GEMM and ALU write.
        self.narrowed: NDArray[np.bool_] = np.zeros(self.acc.depth, np.bool_)

    def load(self, load: Load) -> None:
        """Fill rows; raises UserError where they reach out of a memory."""
        memory, kind = load.memory, {MemoryType.ACC_8BIT: MemoryType.ACC}.get(load.memory, load.memory)
        target = {
            MemoryType.INP: self.inp,
            MemoryType.WGT: self.wgt,
            MemoryType.ACC: self.acc,
            MemoryType.UOP: self.uop,
        }.get(kind)
        if target is None:
            raise UserError(f"LOAD does not fill {memory.name}")
        if any(load.pads) and memory is not MemoryType.INP:
            raise UserError(f"only loads of INP pad, not of {memory.name}")
        width = load.x_pad_0 + load.x_size + load.x_pad_1
        rows = load.y_pad_0 + load.y_size + load.y_pad_1
        end = load.sram_base + rows * width
        if end > target.depth:
            raise UserError(f"fills {target.name} up to entry {end}, and there are {target.depth}")
        raw = self.dram[self._rows(load)]
        if memory is MemoryType.ACC_8BIT:
            values = raw.view("i1").reshape(load.y_size, load.x_size, BLOCK).astype("i4")
        else:
            values = raw.view(target.data.dtype).reshape(load.y_size, load.x_size, *target.data.shape[1:])
        box = np.zeros((rows, width, *target.data.shape[1:]), target.data.dtype)
        box[load.y_pad_0 : load.y_pad_0 + load.y_size, load.x_pad_0 : load.x_pad_0 + load.x_size] = values
        entries = slice(load.sram_base, end)
        target.write(entries, box.reshape(rows * width, *target.data.shape[1:]))
        if target is self.acc:
            self.narrowed[entries] = False

    def store(self, store: Store) -> None:
        """Empty rows of accumulators; raises UserError for one whose low bytes GEMM and ALU have not computed."""
        if store.memory is not MemoryType.OUT:
            raise UserError(f"STORE empties OUT, not {store.memory.name}")
        count = store.y_size * store.x_size
        entries = np.arange(store.sram_base, store.sram_base + count)
        values = self.acc.read(entries)
        stale = np.flatnonzero(~self.narrowed[entries])
        if stale.size:
            raise UserError(
                f"stores OUT entry {entries[stale[0]]}, which no GEMM or ALU has computed",
                notes=["a load or a reset of an accumulator does not reach the memory that STORE reads"],
            )
        self.dram[self._rows(store)] = values.astype("i1").view(np.uint8).reshape(store.y_size, -1)

    def _rows(self, transfer: Load | Store) -> Indices:
        """The bytes of its rows off chip; raises UserError where they reach out of it."""
        size = DRAM_BYTES[transfer.memory]
        starts = (transfer.dram_base + np.arange(transfer.y_size, dtype=np.int64) * transfer.x_stride) * size
        length = transfer.x_size * size
        if transfer.y_size and int(starts[-1]) + length > self.dram.size:
            raise UserError(f"reaches byte {int(starts[-1]) + length} off chip, and there are {self.dram.size}")
        return starts[:, None] + np.arange(length)
