"""Where lists of micro-operations are: each once off chip, and on chip for as long as there is room."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from penstock.lowering.to_vta.isa import MICRO_OP_BYTES, Load, Memory


class MicroOpStore:
    """
    All lists of a program off chip, one after the other from `base` on, an address in bytes; equal ones once.

    Each begins at a multiple of `together` micro-operations, and so does what follows it.
    """

    def __init__(self, base: int, together: int = 1):
        self.base = base
        self.together = together
        self._offsets: dict[bytes, int] = {}
        self._data = bytearray()

    def room(self, words: NDArray[np.uint32]) -> int:
        """The micro-operations from the beginning of a list to that of the next one."""
        return -(-words.size // self.together) * self.together

    @property
    def data(self) -> bytes:
        """All of them, little-endian."""
        return bytes(self._data)

    def address(self, words: NDArray[np.uint32]) -> int:
        """Where a list begins, counted in micro-operations."""
        key = words.astype("<u4").tobytes()
        if key not in self._offsets:
            self._offsets[key] = len(self._data)
            self._data += key
            self._data += bytes(-len(key) % (self.together * MICRO_OP_BYTES))
        return (self.base + self._offsets[key]) // MICRO_OP_BYTES


class MicroOpCache:
    """
    What one launch has on chip; a launch begins with nothing.

    Where all its lists have room, they are loaded at its beginning: compute waits for its first operands then, and
    later a load would wait for its turn on the bus, and compute for it. Otherwise each is loaded before it is used,
    and the list that was not used for longest gives way.
    """

    def __init__(self, store: MicroOpStore, depth: int):
        """`depth` micro-operations have room on chip; lists begin there where they may begin off chip."""
        self._store = store
        self.depth = depth
        self._resident: dict[int, tuple[int, int]] = {}
        """By address off chip, the least recently used first: where it begins on chip, and how long it is."""

    def load_all(self, lists: Iterable[NDArray[np.uint32]]) -> list[Load]:
        """The loads of all lists, one for those that adjoin off chip; none where they have no room together."""
        sizes = {self._store.address(words): self._store.room(words) for words in lists}
        if sum(sizes.values()) > self.depth:
            return []
        loads: list[Load] = []
        begin = 0
        for address, size in sorted(sizes.items()):
            self._resident[address] = begin, size
            if loads and loads[-1].dram_base + loads[-1].x_size == address:
                total = loads[-1].x_size + size
                loads[-1] = replace(loads[-1], x_size=total, x_stride=total)
            else:
                loads.append(_load(begin, address, size))
            begin += size
        return loads

    def place(self, words: NDArray[np.uint32]) -> tuple[int, Load | None]:
        """Where a list begins on chip, and the load that brings it there, if it is not there yet."""
        address = self._store.address(words)
        if address in self._resident:
            found = self._resident[address] = self._resident.pop(address)
            return found[0], None
        begin = self._room(self._store.room(words))
        self._resident[address] = begin, self._store.room(words)
        return begin, _load(begin, address, words.size)

    def _room(self, size: int) -> int:
        while True:
            begin = 0
            for start, length in sorted(self._resident.values()):
                if start - begin >= size:
                    return begin
                begin = start + length
            if self.depth - begin >= size:
                return begin
            del self._resident[next(iter(self._resident))]


def _load(begin: int, address: int, size: int) -> Load:
    return Load(memory=Memory.UOP, sram_base=begin, dram_base=address, y_size=1, x_size=size, x_stride=size)
