# SPDX-License-Identifier: Apache-2.0
"""Transfers become LOADs and STOREs with the sizes, strides and padding of their rows, or are refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import TargetOp
from penstock.lowering.to_vta.isa import Load, MemoryInstruction, MemoryType, Store
from penstock.lowering.to_vta.transfers import encode_transfer
from penstock.passes.analysis.commands.program import Command, Kind, View
from penstock.passes.analysis.kernels import machine_of
from penstock.runtime.machines import attach_machine


@pytest.fixture(scope="module")
def target() -> TargetOp:
    module = ModuleOp([])
    attach_machine(module, "vta-pynq")
    found = machine_of(module)
    assert found is not None
    return found


def vectors(space: str, start: int, shape: Sequence[int], *steps: int) -> View:
    """Vectors of 16 bytes; `steps` are bytes between them, outermost first."""
    return View(space, 0, start, (*shape, 16), (*steps, 1), 1)


def load(target: TargetOp, source: View, dest: View, *padding: tuple[int, int]) -> list[MemoryInstruction]:
    command = Command(
        "load", Kind.TRANSFER, engine="load_inp", operands=(source, dest), padding=(*padding, (0, 0)) if padding else ()
    )
    return encode_transfer(command, target, [0])


def test_rows_that_follow_each_other_on_chip_are_one_load(target: TargetOp) -> None:
    source, dest = vectors("dram", 320, (3, 2), 160, 16), vectors("inp", 64, (3, 2), 32, 16)
    expected = Load(memory=MemoryType.INP, sram_base=4, dram_base=20, y_size=3, x_size=2, x_stride=10)
    assert load(target, source, dest) == [expected]


def test_padding_begins_before_the_rows_and_between_them(target: TargetOp) -> None:
    # Rows of 1 + 2 + 1 vectors, one row before them and two after.
    source, dest = vectors("dram", 0, (3, 2), 160, 16), vectors("inp", 80, (3, 2), 64, 16)
    assert load(target, source, dest, (1, 2), (1, 1)) == [
        Load(
            memory=MemoryType.INP, sram_base=0, dram_base=0, y_size=3, x_size=2, x_stride=10,
            y_pad_0=1, y_pad_1=2, x_pad_0=1, x_pad_1=1,
        )
    ]  # fmt: skip


def test_rows_that_lie_apart_on_chip_are_a_load_each(target: TargetOp) -> None:
    source, dest = vectors("dram", 0, (2, 2), 160, 16), vectors("inp", 0, (2, 2), 48, 16)
    loads = load(target, source, dest)
    assert [(each.sram_base, each.dram_base, each.y_size, each.x_size) for each in loads] == [
        (0, 0, 1, 2),
        (3, 10, 1, 2),
    ]


def test_one_row_with_padding_apart_from_it_is_refused(target: TargetOp) -> None:
    """The row of padding would be written right before the row, and not where the box has it."""
    apart, close = vectors("inp", 80, (1, 2), 80, 16), vectors("inp", 32, (1, 2), 32, 16)
    source = vectors("dram", 0, (1, 2), 160, 16)
    with pytest.raises(UserError, match="pads more than rows and the entries of a row"):
        load(target, source, apart, (1, 0), (0, 0))
    (found,) = load(target, source, close, (1, 0), (0, 0))
    assert found == Load(memory=MemoryType.INP, sram_base=0, dram_base=0, y_size=1, x_size=2, x_stride=2, x_pad_0=2)


def test_a_store_takes_the_low_bytes_of_accumulators(target: TargetOp) -> None:
    source = View("acc", 0, 128, (2, 16), (64, 4), 4)
    dest = View("dram", 0, 256, (2, 16), (16, 1), 1)
    command = Command("store", Kind.TRANSFER, engine="store_out", operands=(source, dest))
    assert encode_transfer(command, target, [0]) == [
        Store(memory=MemoryType.OUT, sram_base=2, dram_base=16, y_size=1, x_size=2, x_stride=2)
    ]
