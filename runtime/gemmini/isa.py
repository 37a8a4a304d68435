# SPDX-License-Identifier: Apache-2.0
"""The bits of Gemmini's instructions: a table of fields, and what they say. See gemmini.h for the documents."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

from penstock.dialects.diagnostics import UserError
from penstock.runtime.gemmini.log import Instruction

MVIN_CHANNELS = {2: 0, 1: 1, 14: 2}
"""By funct7, the channel that a mvin goes by."""

NO_MATRIX = 0xFFFFFFFF


@dataclass(frozen=True)
class Block:
    """Rows in a local memory; where there are more columns than the mesh has, several blocks of rows."""

    row: int
    rows: int
    columns: int
    accumulator: bool
    accumulate: bool
    full: bool


@dataclass(frozen=True)
class ConfigEx:
    relu: bool
    a_stride: int
    c_stride: int


@dataclass(frozen=True)
class ConfigLd:
    channel: int
    stride: int
    block_stride: int
    scale: float
    narrow: bool


@dataclass(frozen=True)
class ConfigSt:
    stride: int
    relu: bool
    scale: float


@dataclass(frozen=True)
class Mvin:
    channel: int
    address: int
    block: Block


@dataclass(frozen=True)
class Mvout:
    address: int
    block: Block


@dataclass(frozen=True)
class Preload:
    b: Block | None
    c: Block | None


@dataclass(frozen=True)
class Compute:
    new_weights: bool
    a: Block
    d: Block | None


@dataclass(frozen=True)
class Flush:
    pass


Command = ConfigEx | ConfigLd | ConfigSt | Mvin | Mvout | Preload | Compute | Flush

_LOCAL = {"row": (28, 0), "full": (29, 29), "accumulate": (30, 30), "accumulator": (31, 31)}
_BLOCK = {**_LOCAL, "columns": (47, 32), "rows": (63, 48)}
_CONFIG_EX = {
    "kind": (1, 0),
    "weight_stationary": (2, 2),
    "activation": (4, 3),
    "a_stride": (31, 16),
    "scale": (63, 32),
}
_CONFIG_EX_2 = {"c_stride": (63, 48)}
_CONFIG_LD = {
    "kind": (1, 0),
    "narrow": (2, 2),
    "channel": (4, 3),
    "repeats": (15, 8),
    "block_stride": (31, 16),
    "scale": (63, 32),
}
_CONFIG_LD_2 = {"stride": (31, 0)}
_CONFIG_ST = {"kind": (1, 0), "activation": (3, 2)}
_CONFIG_ST_2 = {"stride": (31, 0), "scale": (63, 32)}


def decode(instruction: Instruction) -> Command:
    """The instruction in words; raises UserError for bits that are no instruction, or none that is executed here."""
    funct, rs1, rs2 = instruction
    match funct:
        case 0:
            return _config(rs1, rs2)
        case 1 | 2 | 14:
            return Mvin(MVIN_CHANNELS[funct], rs1, _matrix(rs2))
        case 3:
            return Mvout(rs1, _matrix(rs2))
        case 4 | 5:
            return Compute(funct == 4, _matrix(rs1), _block(rs2))
        case 6:
            return Preload(_block(rs1), _block(rs2))
        case 7:
            return Flush()
        case _:
            raise UserError(f"funct7 {funct} is no instruction that is executed here")


def _fields(word: int, layout: dict[str, tuple[int, int]]) -> dict[str, int]:
    values = {name: word >> low & (1 << high - low + 1) - 1 for name, (high, low) in layout.items()}
    rest = word & ~sum((1 << high + 1) - (1 << low) for high, low in layout.values())
    if rest:
        raise UserError(f"bits {rest:#x} mean nothing that is executed here")
    return values


@lru_cache(maxsize=1 << 16)
def _block(word: int) -> Block | None:
    if word & NO_MATRIX == NO_MATRIX:
        return None
    found = _fields(word, _BLOCK)
    flags = {name: bool(found[name]) for name in ("accumulator", "accumulate", "full")}
    return Block(found["row"], found["rows"], found["columns"], **flags)


def _matrix(word: int) -> Block:
    block = _block(word)
    if block is None:
        raise UserError("has no local address")
    return block


def _scale(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def _relu(activation: int) -> bool:
    if activation > 1:
        raise UserError(f"activation {activation} is not executed here")
    return activation == 1


def _config(rs1: int, rs2: int) -> ConfigEx | ConfigLd | ConfigSt:
    match rs1 & 3:
        case 0:
            found = _fields(rs1, _CONFIG_EX)
            if not found["weight_stationary"] or _scale(found["scale"]) != 1:
                raise UserError("only weight stationary products without a scale are executed here")
            return ConfigEx(_relu(found["activation"]), found["a_stride"], _fields(rs2, _CONFIG_EX_2)["c_stride"])
        case 1:
            found = _fields(rs1, _CONFIG_LD)
            if found["channel"] > 2 or found["repeats"] > 1:
                raise UserError(f"channel {found['channel']} with {found['repeats']} pixels is not executed here")
            stride = _fields(rs2, _CONFIG_LD_2)["stride"]
            scale = _scale(found["scale"])
            return ConfigLd(found["channel"], stride, found["block_stride"], scale, bool(found["narrow"]))
        case 2:
            activation = _fields(rs1, _CONFIG_ST)["activation"]
            found = _fields(rs2, _CONFIG_ST_2)
            return ConfigSt(found["stride"], _relu(activation), _scale(found["scale"]))
        case _:
            raise UserError("configures nothing that is known")
