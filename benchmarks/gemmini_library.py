# SPDX-License-Identifier: Apache-2.0
"""
How many instructions a library routine of Gemmini issues for a product or a convolution, counted along its loops.

Written from the description of the routines `tiled_matmul_auto` and `tiled_conv_auto` in ucb-bar/gemmini-rocc-tests,
include/gemmini.h: weight stationary, blocks of the mesh's size, tiles that grow until two of them fill the scratchpad
or the accumulators, each operand of a tile moved in for the tile, by instructions that move up to 64 bytes of a row.
Where the library leaves the loops of a tile to the hardware (LOOP_WS, LOOP_CONV_WS), the instructions are those that
the hardware then issues, as the C beside it writes them out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt

from penstock.runtime.gemmini.executor import Counts

DIM = 16
SPAD_ROWS = 16384
ACC_ROWS = 1024
WIDE = 4
"""Blocks of the mesh's width that an instruction moves into the scratchpad."""
SUM_BYTES = 4


class Issued(Counts):
    """What was issued, and what it moved."""

    @property
    def bytes(self) -> int:
        return self.bytes_in + self.bytes_out

    def load(self, name: str, rows: int, columns: int, element: int, per_command: int) -> None:
        """Instructions that move a matrix in, each up to `per_command` columns of up to one mesh's rows."""
        self.commands[name] += blocks(rows) * -(-columns // per_command)
        self.bytes_in += rows * columns * element


def blocks(size: int) -> int:
    """Of the mesh's size, the last one smaller."""
    return -(-size // DIM)


def spans(size: int, step: int) -> Iterator[int]:
    """The sizes of the tiles of a dim."""
    for start in range(0, size, step):
        yield min(step, size - start)


def matmul_tile(m: int, n: int, k: int) -> tuple[int, int, int]:
    """Blocks of a tile in m, n and k: square in the output at first, then each dim grows as long as there is room."""
    spad, acc = SPAD_ROWS // 2 // DIM, ACC_ROWS // 2 // DIM
    most = blocks(m), blocks(n), blocks(k)
    side = isqrt(acc)
    tile = [min(most[0], side), min(most[1], side), min(most[2], spad // side)]

    def fits(sizes: list[int]) -> bool:
        rows, columns, depth = sizes
        return rows * depth + depth * columns <= spad and rows * columns <= acc

    grown = True
    while grown:
        grown = False
        for dim in (1, 0, 2):
            wider = [size + (place == dim) for place, size in enumerate(tile)]
            if wider[dim] <= most[dim] and fits(wider):
                tile, grown = wider, True
    return tile[0], tile[1], tile[2]


def matmul(m: int, n: int, k: int, *, bias: bool = False, output_bytes: int = SUM_BYTES) -> Issued:
    """C of m x n = A of m x k times B of k x n, of 8-bit integers; a bias is a row of 32-bit sums."""
    issued = Issued(Counter({"flush": 1, "config_ex": 1, "config_ld": 3, "config_st": 1}))
    tile_m, tile_n, tile_k = matmul_tile(m, n, k)
    # A tile of one operand stays where it is while two of it, at most, are all there is of it.
    tiles_m, tiles_n, tiles_k = (-(-blocks(d) // t) for d, t in ((m, tile_m), (n, tile_n), (k, tile_k)))
    keeps_a, keeps_b = tiles_m * tiles_k <= 2, tiles_n * tiles_k <= 2
    for number_m, rows in enumerate(spans(m, tile_m * DIM)):
        for number_n, columns in enumerate(spans(n, tile_n * DIM)):
            for number_k, depth in enumerate(spans(k, tile_k * DIM)):
                if bias and number_k == 0:
                    issued.load("mvin3", rows, columns, SUM_BYTES, DIM)
                if not (keeps_a and number_n):
                    issued.load("mvin", rows, depth, 1, WIDE * DIM)
                if not (keeps_b and number_m):
                    issued.load("mvin2", depth, columns, 1, WIDE * DIM)
                issued.commands["preload"] += blocks(rows) * blocks(columns) * blocks(depth)
                issued.commands["compute"] += blocks(rows) * blocks(columns) * blocks(depth)
            issued.commands["mvout"] += blocks(rows) * blocks(columns)
            issued.bytes_out += rows * columns * output_bytes
    return issued


@dataclass(frozen=True)
class Convolution:
    """Channels last; the same in both directions."""

    size: int
    channels: int
    outputs: int
    kernel: int
    stride: int

    @property
    def padding(self) -> int:
        return self.kernel // 2

    @property
    def out(self) -> int:
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1


ROWS, COLUMNS, OUTPUTS, KERNEL_ROWS, KERNEL_COLUMNS, CHANNELS = range(6)


def convolution_tile(layer: Convolution) -> tuple[int, ...]:
    """Output rows, columns, channels, kernel rows, columns, input channels: the largest shrinks until all fits."""
    most = [layer.out, layer.out, layer.outputs, layer.kernel, layer.kernel, layer.channels]
    tile = list(most)

    def fits(sizes: list[int]) -> bool:
        rows = (sizes[ROWS] * layer.stride + sizes[KERNEL_ROWS] - 1) * blocks(sizes[CHANNELS])
        a = rows * (sizes[COLUMNS] * layer.stride + sizes[KERNEL_COLUMNS] - 1)
        b = blocks(sizes[OUTPUTS]) * sizes[KERNEL_ROWS] * sizes[KERNEL_COLUMNS] * sizes[CHANNELS]
        c = blocks(sizes[OUTPUTS]) * sizes[ROWS] * sizes[COLUMNS]
        return a + b <= SPAD_ROWS // 2 and c <= ACC_ROWS // 2

    while not fits(tile):
        # Columns fill the mesh: they shrink below its size only when there is one row.
        free = [dim for dim in range(6) if not (dim == COLUMNS and tile[dim] <= DIM and tile[ROWS] > 1)]
        largest = max(free, key=lambda dim: tile[dim])
        if largest in (OUTPUTS, CHANNELS):
            tile[largest] = max(1, (tile[largest] - 1) // DIM * DIM)
        else:
            tile[largest] -= 1
    grown = True
    while grown:
        grown = False
        for dim in (COLUMNS, *range(6)):
            wider = [size + (place == dim) for place, size in enumerate(tile)]
            while wider[dim] <= most[dim] and fits(wider):
                tile, grown = list(wider), True
                wider[dim] += 1
                if dim != COLUMNS:
                    break
    return tuple(tile)


def convolution(layer: Convolution, *, bias: bool = False, output_bytes: int = 1) -> Issued:
    """Of 8-bit integers; a bias has 32 bits."""
    issued = Issued(Counter({"flush": 1, "config_ex": 1, "config_st": 1}))
    tile = convolution_tile(layer)
    for row in range(0, layer.out, tile[ROWS]):
        rows = min(tile[ROWS], layer.out - row)
        for column in range(0, layer.out, tile[COLUMNS]):
            columns = min(tile[COLUMNS], layer.out - column)
            for outputs in spans(layer.outputs, tile[OUTPUTS]):
                sums = rows * blocks(columns) * blocks(outputs)
                if bias:
                    issued.commands["config_ld"] += 1
                    issued.commands["mvin3"] += sums
                    issued.bytes_in += outputs * SUM_BYTES * rows * columns
                for kernel_row in range(0, layer.kernel, tile[KERNEL_ROWS]):
                    kernel_rows = min(tile[KERNEL_ROWS], layer.kernel - kernel_row)
                    for kernel_column in range(0, layer.kernel, tile[KERNEL_COLUMNS]):
                        kernel_columns = min(tile[KERNEL_COLUMNS], layer.kernel - kernel_column)
                        for channels in spans(layer.channels, tile[CHANNELS]):
                            issued.commands["config_ld"] += 2
                            _input(issued, layer, (row, rows, kernel_row, kernel_rows),
                                   (column, columns, kernel_column, kernel_columns), channels)  # fmt: skip
                            weights = kernel_rows * kernel_columns
                            issued.commands["mvin2"] += weights * blocks(channels) * -(-outputs // (WIDE * DIM))
                            issued.bytes_in += weights * channels * outputs
                            issued.commands["preload"] += weights * blocks(channels) * sums
                            issued.commands["compute"] += weights * blocks(channels) * sums
                issued.commands["mvout"] += sums
                issued.bytes_out += rows * columns * outputs * output_bytes
    return issued


def _input(
    issued: Issued, layer: Convolution, in_rows: tuple[int, ...], in_columns: tuple[int, ...], channels: int
) -> None:
    """A window of the image, a row after the other; what lies outside of it is moved in as zeros."""
    first, height = _window(layer, *in_rows)
    left, width = _window(layer, *in_columns)
    before = max(0, -left)
    after = max(0, left + width - layer.size)
    inside = width - before - after
    pieces = blocks(before) + blocks(inside) + blocks(after)
    issued.commands["mvin"] += height * pieces * -(-channels // (WIDE * DIM))
    real_rows = min(first + height, layer.size) - max(first, 0)
    issued.bytes_in += real_rows * inside * channels


def _window(layer: Convolution, start: int, count: int, kernel_start: int, kernel: int) -> tuple[int, int]:
    """Where the window of input begins that outputs read, and how long it is."""
    return start * layer.stride + kernel_start - layer.padding, (count - 1) * layer.stride + kernel
