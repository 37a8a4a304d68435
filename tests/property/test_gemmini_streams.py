# SPDX-License-Identifier: Apache-2.0
"""Random streams of Gemmini's instructions: the model in C and the executor of its log leave the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
from gemmini import FP32, INT8, NONE, NOWHERE, Geometry, Stream, acc, check
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from penstock.passes.toolchain import has_compiler

pytestmark = pytest.mark.skipif(not has_compiler(), reason="there is no C compiler")

ROWS = 40
"""Rows of each local memory that are used; all are written first."""
SCALES = (1.0, 0.5, 0.01, 3.0, 0.3333)


class Writer:
    """Draws commands, and knows of the state what says which ones are legal."""

    def __init__(self, draw: st.DrawFn, geometry: Geometry):
        self.draw, self.geometry = draw, geometry
        self.stream = stream = Stream(geometry)
        random = np.random.default_rng(self.between(0, 1000))
        dim, element = geometry.dim, geometry.element
        values = random.integers(-100, 100, 64 * dim * 4)
        self.source = stream.array(values.astype(element))
        self.wide = stream.array((values * 1000).astype(geometry.sum))
        self.exchange = stream.region(64 * dim * 4)
        self.out = stream.region(64 * dim * 4)
        self.filled = True
        """Whether instructions may read `exchange`, and not write to it, before the next fence."""
        stream.config_ex()
        for channel, width in enumerate((element.itemsize, geometry.sum.itemsize)):
            stream.config_ld(dim * width, channel, dim)
        stream.config_ld(0, 2)
        stream.config_st(dim * element.itemsize)
        for row in range(0, ROWS, dim // 2):
            stream.mvin(self.source, 0, row, dim, dim // 2)
            stream.mvin(self.wide, 0, acc(row), dim, dim // 2, channel=1)
        self.block_strides = [dim, dim, 0]
        self.narrow = [False] * 3
        stream.preload(0, dim, dim, acc(0), dim, dim)
        stream.compute(0, dim, dim)

    def between(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def flag(self) -> bool:
        return self.draw(st.booleans())

    def box(self) -> tuple[int, int]:
        """Columns and rows."""
        return self.between(1, self.geometry.dim), self.between(1, self.geometry.dim)

    def step(self) -> None:
        """One command, or two that belong together."""
        kinds = (self.config, self.mvin, self.mvin, self.mvout, self.product, self.product, self.fence)
        self.draw(st.sampled_from(kinds))()

    def config(self) -> None:
        stream, width = self.stream, self.geometry.element.itemsize
        match self.between(0, 2):
            case 0:
                stream.config_ex(self.flag(), self.between(0, 2), self.between(1, 2))
            case 1:
                channel, narrow = self.between(0, 2), self.flag()
                self.narrow[channel] = narrow
                self.block_strides[channel] = self.geometry.dim if self.flag() else 0
                scale = self.draw(st.sampled_from(SCALES)) if narrow or self.geometry.floating else 1
                stride = self.between(0, 40) * self.geometry.sum.itemsize
                stream.config_ld(stride, channel, self.block_strides[channel], scale, narrow)
            case _:
                stream.config_st(self.between(0, 24) * width, self.flag(), self.draw(st.sampled_from(SCALES)))

    def mvin(self) -> None:
        channel, (columns, rows), add = self.between(0, 2), self.box(), self.flag()
        to_sums = self.flag()
        wide = to_sums and not self.narrow[channel]
        region = self.wide if wide else self.exchange if self.filled and self.flag() else self.source
        if region != self.wide and not to_sums and self.block_strides[channel]:
            columns += self.geometry.dim * self.between(0, 1)
        last = ROWS - rows - (self.geometry.dim if columns > self.geometry.dim else 0)
        row = self.between(0, max(last, 0))
        width = (self.geometry.sum if wide else self.geometry.element).itemsize
        offset = self.between(0, 8) * width
        if self.between(0, 9) == 0:
            region, offset = NOWHERE, 0
        self.stream.mvin(region, offset, acc(row, add=add) if to_sums else row, columns, rows, channel)

    def mvout(self) -> None:
        columns, rows = self.box()
        row = self.between(0, ROWS - rows)
        source = acc(row, full=self.flag()) if self.flag() else row
        region = self.out if self.filled or self.flag() else self.exchange
        self.stream.mvout(region, 4 * self.between(0, 8), source, columns, rows)

    def product(self) -> None:
        (n, k), m, dim = self.box(), self.between(1, self.geometry.dim), self.geometry.dim
        new = self.flag()
        c = NONE if self.between(0, 9) == 0 else self.between(0, ROWS - 2 * dim) if self.flag() else None
        row = acc(self.between(0, ROWS - 2 * dim), add=self.flag()) if c is None else c
        b = self.between(0, ROWS - k) if new and self.between(0, 9) else NONE
        self.stream.preload(b, n, k, row, n, m)
        d = self.between(0, ROWS - m) if self.flag() else NONE
        self.stream.compute(self.between(0, ROWS - 2 * dim), k, m, d, n, m, new=new)

    def fence(self) -> None:
        self.stream.fence()
        self.filled = self.flag()
        if not self.geometry.floating:
            self.stream.fill(self.exchange, self.between(0, 100), 50, self.between(0, 255), 3)


@st.composite
def streams(draw: st.DrawFn, geometry: Geometry) -> Stream:
    writer = Writer(draw, geometry)
    for _ in range(draw(st.integers(1, 25))):
        writer.step()
    writer.stream.fence()
    return writer.stream


@examples(400)
@given(streams(INT8))
def test_streams_of_integers_agree(stream: Stream) -> None:
    check(stream)


@examples(200)
@given(streams(FP32))
def test_streams_of_floats_agree_to_the_bit(stream: Stream) -> None:
    check(stream)
