# SPDX-License-Identifier: Apache-2.0
"""The log of Gemmini's model: what the host wrote, the instructions as bits, what they wrote. See model.h."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from penstock.dialects.diagnostics import UserError

MAGIC = b"GEMMINI1"


class Region(NamedTuple):
    """Memory off chip that instructions may touch: zeros at first."""

    base: int
    size: int
    writable: bool


class HostWrite(NamedTuple):
    """What the host has put off chip since the last fence, before anything moved."""

    address: int
    data: bytes


class Instruction(NamedTuple):
    """The number and the two registers."""

    funct: int
    rs1: int
    rs2: int


class DeviceWrite(NamedTuple):
    """What the instructions before have put off chip, as the model says."""

    address: int
    data: bytes


class Fence(NamedTuple):
    """All instructions before are complete."""


Record = Region | HostWrite | Instruction | DeviceWrite | Fence


@dataclass(frozen=True)
class Log:
    """All of it, in order, with what the hardware is configured for."""

    dim: int
    """Rows and columns of the mesh."""
    floating: bool
    """f32 into f32; otherwise i8 into i32."""
    spad_rows: int
    acc_rows: int
    records: tuple[Record, ...]


def read_log(path: str | Path) -> Log:
    """The log in the file `path`; raises UserError for what is none, and for one that ends too early."""
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the log: {error.strerror}", loc=str(path)) from None
    if not raw.startswith(MAGIC):
        raise UserError("not a log of Gemmini's model", loc=str(path))
    try:
        dim, floating, spad_rows, acc_rows = struct.unpack_from("=4I", raw, len(MAGIC))
        return Log(dim, bool(floating), spad_rows, acc_rows, tuple(_records(raw, len(MAGIC) + 16)))
    except struct.error:
        raise UserError("the log ends within a record", loc=str(path)) from None


def _records(raw: bytes, at: int) -> list[Record]:
    records: list[Record] = []
    words = struct.Struct("=3Q")
    while at < len(raw):
        kind, first, second = words.unpack_from(raw, at)
        at += words.size
        match kind & 0xFF:
            case 0x49:  # I
                records.append(Instruction(kind >> 8, first, second))
            case 0x52:  # R
                records.append(Region(first, second, bool(kind >> 8)))
            case 0x46:  # F
                records.append(Fence())
            case 0x48 | 0x44 as tag:  # H, D
                if at + second > len(raw):
                    raise struct.error
                data = raw[at : at + second]
                records.append(HostWrite(first, data) if tag == 0x48 else DeviceWrite(first, data))
                at += second
            case tag:
                raise UserError(f"the log has a record of kind {tag:#x} at byte {at - words.size}")
    return records
