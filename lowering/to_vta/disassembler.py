"""
A stream as text, one instruction a line, and text as a stream.

```text
0000 load inp sram 0 dram 16 rows 14 of 29 stride 56 pad 1,0,1,0 push_next
0001 gemm pop_prev reset uops 0..8 loops 14x1 dst 14,0 src 0,0 wgt 0,0
```

`pad` is rows before, rows behind, entries before, entries behind; `dst`, `src` and `wgt` are the factors of the outer
and the inner loop. Under a GEMM or ALU whose micro-operations are known stands a line for each, `dst src wgt`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.dialects.diagnostics import UserError
from penstock.lowering.to_vta.isa import (
    FLAGS,
    Alu,
    AluOpcode,
    Finish,
    Gemm,
    Instruction,
    Load,
    Loops,
    Memory,
    MicroOp,
    Store,
    Transfer,
)


def disassemble(instructions: Sequence[Instruction], micro_ops: Sequence[Sequence[MicroOp]] | None = None) -> str:
    """
    The text of a stream. With `micro_ops`, for each instruction those that it executes, these are listed, too:
    `executed_micro_ops` finds them.
    """
    lines: list[str] = []
    for number, instruction in enumerate(instructions):
        lines.append(f"{number:04d} {text_of(instruction)}")
        if micro_ops is not None:
            lines.extend(f"     : {each.dst} {each.src} {each.wgt}" for each in micro_ops[number])
    return "\n".join(lines) + "\n"


def text_of(instruction: Instruction) -> str:
    """One instruction on one line, without its number."""
    words: list[str] = [instruction.opcode.name.lower()]
    match instruction:
        case Transfer():
            words += [instruction.memory.name.lower(), f"sram {instruction.sram_base} dram {instruction.dram_base}"]
            words += [f"rows {instruction.y_size} of {instruction.x_size} stride {instruction.x_stride}"]
            if isinstance(instruction, Load) and any(pads := _pads(instruction)):
                words.append("pad " + ",".join(map(str, pads)))
        case Loops():
            if isinstance(instruction, Alu):
                words.append(instruction.alu_opcode.name.lower())
                if instruction.use_immediate or instruction.immediate:
                    words.append(f"{'imm' if instruction.use_immediate else 'unused'} {instruction.immediate}")
            words += ["reset"] * instruction.reset
            words.append(f"uops {instruction.uop_begin}..{instruction.uop_end}")
            words.append(f"loops {instruction.iter_out}x{instruction.iter_in}")
            words.append(f"dst {instruction.dst_factor_out},{instruction.dst_factor_in}")
            words.append(f"src {instruction.src_factor_out},{instruction.src_factor_in}")
            if isinstance(instruction, Gemm):
                words.append(f"wgt {instruction.wgt_factor_out},{instruction.wgt_factor_in}")
        case _:
            pass
    return " ".join([*words, *(name for name in FLAGS if getattr(instruction, name))])


def micro_op_text(micro_ops: Sequence[MicroOp], first: int) -> str:
    """Micro-operations, one a line: `address: dst src wgt`; addresses are those of LOAD, and begin with `first`."""
    return "".join(f"{number}: {each.dst} {each.src} {each.wgt}\n" for number, each in enumerate(micro_ops, first))


def _pads(load: Load) -> tuple[int, int, int, int]:
    return load.y_pad_0, load.y_pad_1, load.x_pad_0, load.x_pad_1


_TRANSFER = re.compile(
    r"(?P<opcode>load|store) (?P<memory>\w+) sram (?P<sram>\d+) dram (?P<dram>\d+)"
    r" rows (?P<y>\d+) of (?P<x>\d+) stride (?P<stride>\d+)(?: pad (?P<pads>\d+,\d+,\d+,\d+))?"
)
_LOOPS = re.compile(
    r"(?P<opcode>gemm|alu)(?: (?P<alu>min|max|add|shr|mul))?(?: (?P<use>imm|unused) (?P<imm>-?\d+))?(?P<reset> reset)?"
    r" uops (?P<begin>\d+)\.\.(?P<end>\d+) loops (?P<out>\d+)x(?P<in>\d+)"
    r" dst (?P<dst>\d+,\d+) src (?P<src>\d+,\d+)(?: wgt (?P<wgt>\d+,\d+))?"
)
_FINISH = re.compile(r"finish")


def assemble(text: str) -> list[Instruction]:
    """
    The instructions of a text; empty lines, lines of micro-operations and what follows a `#` do not count.

    Raises UserError, with the line, for what is no instruction.
    """
    found: list[Instruction] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if line and not line.startswith(":"):
            found.append(_assembled(re.sub(r"^\d+\s+", "", line), number))
    return found


def _assembled(line: str, number: int) -> Instruction:
    for pattern, build in ((_TRANSFER, _transfer), (_LOOPS, _loops), (_FINISH, _finish)):
        if (found := pattern.match(line)) is None:
            continue
        flags = line[found.end() :].split()
        try:
            instruction = build(found)
        except (KeyError, TypeError):
            break
        if all(flag in FLAGS for flag in flags):
            return replace(instruction, **dict.fromkeys(flags, True))
    raise UserError(f"no instruction: {line}", notes=[f"in line {number}"])


def _transfer(found: re.Match[str]) -> Instruction:
    memory = Memory[found["memory"].upper()]
    sizes: dict[str, Any] = {
        "sram_base": int(found["sram"]),
        "dram_base": int(found["dram"]),
        "y_size": int(found["y"]),
        "x_size": int(found["x"]),
        "x_stride": int(found["stride"]),
    }
    if found["opcode"] == "store":
        if found["pads"]:
            raise TypeError("STORE cannot pad")
        return Store(memory=memory, **sizes)
    pads: dict[str, Any] = dict(
        zip(("y_pad_0", "y_pad_1", "x_pad_0", "x_pad_1"), _numbers(found["pads"] or "0,0,0,0"), strict=True)
    )
    return Load(memory=memory, **sizes, **pads)


def _loops(found: re.Match[str]) -> Instruction:
    fields: dict[str, Any] = {
        "uop_begin": int(found["begin"]),
        "uop_end": int(found["end"]),
        "iter_out": int(found["out"]),
        "iter_in": int(found["in"]),
    }
    for name in ("dst", "src", "wgt"):
        if found[name]:
            fields[f"{name}_factor_out"], fields[f"{name}_factor_in"] = _numbers(found[name])
    if found["opcode"] == "gemm":
        if found["alu"] or found["use"]:
            raise TypeError("GEMM has no operation and no immediate")
        return Gemm(reset=bool(found["reset"]), **fields)
    return Alu(
        alu_opcode=AluOpcode[found["alu"].upper()] if found["alu"] else AluOpcode.MIN,
        use_immediate=found["use"] == "imm",
        immediate=int(found["imm"] or 0),
        reset=bool(found["reset"]),
        **fields,
    )


def _finish(found: re.Match[str]) -> Instruction:
    return Finish()


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def executed_micro_ops(
    instructions: Sequence[Instruction], micro_ops: Sequence[MicroOp], base: int
) -> list[list[MicroOp]]:
    """
    For each instruction the micro-operations that it executes, by following the loads of them.

    `micro_ops` are those in memory off chip, the first of them at `base`, counted in micro-operations.
    """
    on_chip: dict[int, MicroOp] = {}
    found: list[list[MicroOp]] = []
    for instruction in instructions:
        if isinstance(instruction, Load) and instruction.memory is Memory.UOP:
            first = instruction.dram_base - base
            loaded = micro_ops[first : first + instruction.x_size] if instruction.x_size else ()
            on_chip.update(enumerate(loaded, instruction.sram_base))
        used = range(instruction.uop_begin, instruction.uop_end) if isinstance(instruction, Loops) else ()
        found.append([on_chip[each] for each in used if each in on_chip])
    return found
