# SPDX-License-Identifier: Apache-2.0
"""What a kernel reads and writes off chip, each byte once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.passes.analysis.commands.program import Command, Kind, MachineModel, Program
from penstock.passes.analysis.commands.region import Region
from penstock.runtime.simulator.work import MAX_COUNTED_BYTES, compulsory


def program(*commands: tuple[list[Region], list[Region]]) -> Program:
    listed = [Command("load", Kind.EXEC, reads=tuple(reads), writes=tuple(writes)) for reads, writes in commands]
    return Program(MachineModel("any", ("load",)), listed)


def at(start: int, length: int, *dims: tuple[int, int], storage: int = 1) -> Region:
    return Region("dram", storage, start, length, dims)


def test_what_is_read_again_counts_once() -> None:
    assert compulsory(program(([at(0, 10)], []), ([at(5, 10)], []), ([at(0, 10)], []))) == (15, 0)


def test_storages_are_apart() -> None:
    assert compulsory(program(([at(0, 10)], []), ([at(0, 10, storage=2)], [at(0, 4, storage=3)]))) == (20, 4)


def test_what_the_kernel_has_written_itself_needs_not_be_read() -> None:
    assert compulsory(program(([], [at(0, 10)]), ([at(5, 10)], []))) == (5, 10)
    assert compulsory(program(([at(5, 10)], []), ([], [at(0, 10)]))) == (10, 10)


def test_what_is_on_chip_does_not_count() -> None:
    assert compulsory(program(([Region("spad", 0, 0, 10)], [at(3, 4)]))) == (0, 4)


def test_rows_that_a_window_skips_do_not_count() -> None:
    assert compulsory(program(([at(100, 4, (3, 32), (2, 8))], []))) == (24, 0)


def test_what_is_too_large_to_be_counted_is_not() -> None:
    assert compulsory(program(([at(MAX_COUNTED_BYTES, 1)], []))) is None


@st.composite
def regions(draw: st.DrawFn) -> Region:
    dims = draw(st.lists(st.tuples(st.integers(2, 4), st.integers(1, 20)), max_size=2))
    return at(draw(st.integers(0, 40)), draw(st.integers(1, 8)), *dims)


@given(st.lists(st.tuples(st.lists(regions(), max_size=2), st.lists(regions(), max_size=1)), max_size=6))
def test_bytes_are_counted_one_by_one(commands: list[tuple[list[Region], list[Region]]]) -> None:
    read: set[int] = set()
    written: set[int] = set()
    for reads, writes in commands:
        read |= {byte for region in reads for byte in _bytes(region)} - written
        written |= {byte for region in writes for byte in _bytes(region)}
    assert compulsory(program(*commands)) == (len(read), len(written))


def _bytes(region: Region) -> list[int]:
    return [start + byte for start in region.starts.tolist() for byte in range(region.length)]
