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

from penstock.dialects.diagnostics import UserError
from penstock.lowering.to_vta.isa import (
    FLAGS,
    INSTRUCTIONS,
    MICRO_OP,
    Alu,
    Gemm,
    Instruction,
    Load,
    Loops,
    Opcode,
    Transfer,
)
from penstock.lowering.to_vta.words import micro_op_indices


def disassemble(instructions: Sequence[Instruction]) -> str:
    """The text of a stream."""
    return "".join(f"{number:04d} {text_of(instruction)}\n" for number, instruction in enumerate(instructions))


def text_of(instruction: Instruction) -> str:
    """One instruction on one line, without its number."""
    words: list[str] = [instruction.opcode.name.lower()]
    match instruction:
        case Transfer():
            words += [instruction.memory.name.lower(), f"sram {instruction.sram_base} dram {instruction.dram_base}"]
            words += [f"rows {instruction.y_size} of {instruction.x_size} stride {instruction.x_stride}"]
            if isinstance(instruction, Load) and any(instruction.pads):
                words.append("pad " + ",".join(map(str, instruction.pads)))
        case Loops():
            if isinstance(instruction, Alu):
                words.append(instruction.alu_opcode.name.lower())
                if instruction.use_immediate or instruction.immediate:
                    words.append(f"{'imm' if instruction.use_immediate else 'unused'} {instruction.immediate}")
            words += ["reset"] * instruction.reset
            words.append(f"uops {instruction.uop_begin}..{instruction.uop_end}")
            words.append(f"loops {instruction.iter_out}x{instruction.iter_in}")
            for index in MICRO_OP if isinstance(instruction, Gemm) else ("dst", "src"):
                words.append(f"{index} {','.join(map(str, instruction.factors(index)))}")
        case _:
            pass
    return " ".join([*words, *(name for name in FLAGS if getattr(instruction, name))])


def micro_op_text(micro_ops: bytes, first: int) -> str:
    """Micro-operations, one a line: `address: dst src wgt`; addresses are those of LOAD, and begin with `first`."""
    columns = micro_op_indices(micro_ops).T.tolist()
    return "".join(f"{number}: {dst} {src} {wgt}\n" for number, (dst, src, wgt) in enumerate(columns, first))


_TRANSFER = re.compile(
    r"(?P<opcode>load|store) (?P<memory>\w+) sram (?P<sram_base>\d+) dram (?P<dram_base>\d+)"
    r" rows (?P<y_size>\d+) of (?P<x_size>\d+) stride (?P<x_stride>\d+)"
    r"(?: pad (?P<y_pad_0>\d+),(?P<y_pad_1>\d+),(?P<x_pad_0>\d+),(?P<x_pad_1>\d+))?"
)
_LOOPS = re.compile(
    r"(?P<opcode>gemm|alu)(?: (?P<alu_opcode>min|max|add|shr|mul))?"
    r"(?: (?P<use_immediate>imm|unused) (?P<immediate>-?\d+))?(?: (?P<reset>reset))?"
    r" uops (?P<uop_begin>\d+)\.\.(?P<uop_end>\d+) loops (?P<iter_out>\d+)x(?P<iter_in>\d+)"
    r" dst (?P<dst_factor_out>\d+),(?P<dst_factor_in>\d+) src (?P<src_factor_out>\d+),(?P<src_factor_in>\d+)"
    r"(?: wgt (?P<wgt_factor_out>\d+),(?P<wgt_factor_in>\d+))?"
)
_FINISH = re.compile(r"(?P<opcode>finish)")


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
    found = next(filter(None, (pattern.match(line) for pattern in (_TRANSFER, _LOOPS, _FINISH))), None)
    if found is not None:
        written = {name: word for name, word in found.groupdict().items() if word is not None}
        flags = line[found.end() :].split()
        kind = INSTRUCTIONS[Opcode[written.pop("opcode").upper()]]
        # Not all that the pattern takes is of this instruction: STORE has no padding, GEMM no immediate.
        with suppress(KeyError, TypeError):
            values = {name: _value(word, kind.fields()[name].type) for name, word in written.items()}
            if all(flag in FLAGS for flag in flags):
                return kind(**values, **dict.fromkeys(flags, True))  # pyright: ignore[reportArgumentType]
    raise UserError(f"no instruction: {line}", notes=[f"in line {number}"])


def _value(word: str, type: type[int]) -> int:
    if issubclass(type, IntEnum):
        return type[word.upper()]
    return word in ("imm", "reset") if type is bool else int(word)
