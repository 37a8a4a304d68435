# SPDX-License-Identifier: Apache-2.0
"""
A stream as text, one instruction a line, and text as a stream.

```text
0000 load inp sram 0 dram 16 rows 14 of 29 stride 56 pad 1,0,1,0 push_next
0001 gemm pop_prev reset uops 0..8 loops 14x1 dst 14,0 src 0,0 wgt 0,0
```

`pad` is rows before and after, entries before and after; `dst`, `src` and `wgt` are the factors of the outer and the
inner loop.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from functools import cache

from penstock.dialects.diagnostics import UserError
from penstock.lowering.to_vta.isa import (
    FLAGS,
    INSTRUCTIONS,
    Alu,
    Finish,
    Gemm,
    Instruction,
    Load,
    Opcode,
    Store,
    micro_op_indices,
)

_MOVE = "{memory} sram {sram_base} dram {dram_base} rows {y_size} of {x_size} stride {x_stride}"
_LOOPS = (
    "uops {uop_begin}..{uop_end} loops {iter_out}x{iter_in} dst {dst_factor_out},{dst_factor_in}"
    " src {src_factor_out},{src_factor_in}"
)
_FORMATS: dict[type[Instruction], str] = {
    Load: f"load {_MOVE}[ pad {{y_pad_0}},{{y_pad_1}},{{x_pad_0}},{{x_pad_1}}]",
    Store: f"store {_MOVE}",
    Gemm: f"gemm[ {{reset}}] {_LOOPS} wgt {{wgt_factor_out}},{{wgt_factor_in}}",
    Alu: f"alu {{alu_opcode}}[ {{use_immediate}} {{immediate}}][ {{reset}}] {_LOOPS}",
    Finish: "finish",
}
"""The text of an instruction, but for its flags at the end. What is in brackets is left out where all in it is 0."""
_WORDS = {"reset": ("", "reset"), "use_immediate": ("unused", "imm")}
"""The words for false and true."""
_FIELD = re.compile(r"{(\w+)}")


@cache
def _pieces(kind: type[Instruction]) -> list[tuple[str, list[str]]]:
    """The pieces of a format and the fields in each; every second one is optional."""
    return [(piece, _FIELD.findall(piece)) for piece in re.split(r"[][]", _FORMATS[kind])]


def disassemble(instructions: Sequence[Instruction]) -> str:
    """The text of a stream."""
    return "".join(f"{number:04d} {text_of(instruction)}\n" for number, instruction in enumerate(instructions))


def text_of(instruction: Instruction) -> str:
    """One instruction on one line, without its number."""
    text = ""
    for number, (piece, names) in enumerate(_pieces(type(instruction))):
        values = {name: getattr(instruction, name) for name in names}
        if number % 2 == 0 or any(values.values()):
            text += piece.format(**{name: _word(name, value) for name, value in values.items()})
    return " ".join([text, *(name for name in FLAGS if getattr(instruction, name))])


def _word(name: str, value: int) -> str:
    if name in _WORDS:
        return _WORDS[name][value]
    return value.name.lower() if isinstance(value, IntEnum) else str(value)


def micro_op_text(micro_ops: bytes, first: int) -> str:
    """Micro-operations, one a line: `address: dst src wgt`; addresses are those of LOAD, and begin with `first`."""
    columns = micro_op_indices(micro_ops).T.tolist()
    return "".join(f"{number}: {dst} {src} {wgt}\n" for number, (dst, src, wgt) in enumerate(columns, first))


def assemble(text: str) -> list[Instruction]:
    """
    The instructions of a text; empty lines and what follows a `#` do not count.

    Raises UserError, with the line, for what is no instruction.
    """
    found: list[Instruction] = []
    for number, raw in enumerate(text.splitlines(), 1):
        if line := raw.partition("#")[0].strip():
            found.append(_assembled(re.sub(r"^\d+\s+", "", line), number))
    return found


def _assembled(line: str, number: int) -> Instruction:
    with suppress(KeyError):
        kind = INSTRUCTIONS[Opcode[line.partition(" ")[0].upper()]]
        if (found := _pattern(kind).match(line)) is not None:
            written = {name: word for name, word in found.groupdict().items() if word is not None}
            values = {name: _value(name, word, kind.fields()[name].type) for name, word in written.items()}
            flags = line[found.end() :].split()
            if all(flag in FLAGS for flag in flags):
                return kind(**values, **dict.fromkeys(flags, True))  # pyright: ignore[reportArgumentType]
    raise UserError(f"no instruction: {line}", notes=[f"in line {number}"])


@cache
def _pattern(kind: type[Instruction]) -> re.Pattern[str]:
    """What reads the format of a kind of instruction."""

    def group(match: re.Match[str]) -> str:
        name, field = match[1], kind.fields()[match[1]]
        number = "-?[0-9]+" if field.signed else "[0-9]+"
        word = "|".join(filter(None, _WORDS[name])) if name in _WORDS else "[a-z_0-9]+"
        return f"(?P<{name}>{number if field.type is int else word})"

    pieces = [_FIELD.sub(group, piece.replace(".", r"\.")) for piece, _ in _pieces(kind)]
    return re.compile("".join(f"(?:{piece})?" if number % 2 else piece for number, piece in enumerate(pieces)))


def _value(name: str, word: str, type: type[int]) -> int:
    if name in _WORDS:
        return bool(_WORDS[name].index(word))
    return type[word.upper()] if issubclass(type, IntEnum) else int(word)
