# SPDX-License-Identifier: Apache-2.0
"""
The cycles of ResNet-18's convolutions on VTA's RTL, twice: as the simulator has them on `vta-rtl`, and by its rules.

    python -m benchmarks.vta_rtl [--layers C2,C6]

The second is a computation of its own, which shares nothing with the compiler but the 128-bit instructions that it
writes: fields are cut out of the words, and four units (fetch, load, compute, store) and two channels of the memory
are followed through them. Its rules are those of apache/tvm-vta, hardware/chisel, at c18a224, with its ideal memory: a
row, or what is left of it after bursts of 256 beats, takes 4 cycles and a cycle a beat of 8 bytes; padding a cycle an
entry; a store 4 cycles a burst and 3 an entry; GEMM and ALU an application a cycle, but two with two vectors;
instructions are fetched 128 at a time, two beats each. The simulator knows no fetch: the last column is what that, and
all else, comes to.
"""

from __future__ import annotations

import argparse
import struct
from collections import deque
from dataclasses import dataclass

from benchmarks.accel import lowered
from benchmarks.accel_programs import LAYERS
from benchmarks.measure import say
from benchmarks.planning_runs import text_table
from penstock.lowering.to_vta.isa import encode
from penstock.lowering.to_vta.module import encode_module
from penstock.lowering.to_vta.stream import program_of
from penstock.runtime.simulator import simulate

MACHINE = "vta-rtl"
PUBLISHED = 7_729_601
"""Cycles of all of them, simulated by its authors, with their own tiles."""
AT_MOST = 0.03
"""How far a layer may be from its rules."""
UNITS = ("load", "compute", "store")
BURST, COMMAND, BEAT = 2048, 4, 8
CHUNK = 128
"""Instructions that are fetched at a time."""
PIPELINE = 10
"""Cycles from the last application of GEMM or ALU to its result; assumed."""
ENTRY = {0: 4, 1: 256, 2: 16, 3: 64, 4: 16}
"""Bytes off chip of an entry of each type of memory."""
MICRO_OPS, WEIGHTS, INPUTS, SUMS, OUTPUTS = range(5)
LOAD, STORE, GEMM, FINISH, ALU = range(5)


@dataclass(frozen=True)
class Decoded:
    """What an instruction takes, of which unit, and whose tokens it pops and pushes."""

    unit: int
    cycles: int
    """Of its unit, or of the channel that it moves on."""
    moves: str
    """The channel: "read", "write", or none."""
    pops: tuple[tuple[int, int], ...]
    pushes: tuple[tuple[int, int], ...]


def field(word: int, high: int, low: int) -> int:
    """Bits of a word, both ends included."""
    return word >> low & (1 << high - low + 1) - 1


def decoded(low: int, high: int) -> Decoded:
    """An instruction of two words."""
    opcode = field(low, 2, 0)
    unit, cycles, moves = 1, 0, ""
    if opcode in (LOAD, STORE):
        memory, rows, entries = field(low, 9, 7), field(high, 15, 0), field(high, 31, 16)
        top, bottom, left, right = (field(high, at + 3, at) for at in (48, 52, 56, 60))
        unit = 2 if opcode == STORE else 0 if memory in (WEIGHTS, INPUTS) else 1
        size = entries * ENTRY[memory]
        bursts = [min(BURST, size - at) for at in range(0, size, BURST)]
        if opcode == STORE:
            cycles = rows * (3 * entries + COMMAND * len(bursts))
        else:
            cycles = rows * sum(COMMAND + -(-each // BEAT) for each in bursts)
        if opcode == LOAD and memory == INPUTS:
            cycles += (rows + top + bottom) * (entries + left + right) - rows * entries
        moves = "write" if opcode == STORE else "read"
    elif opcode in (GEMM, ALU):
        times = (field(low, 34, 21) - field(low, 20, 8)) * field(low, 48, 35) * field(low, 62, 49)
        # Two vectors are read one after the other.
        each = 2 if opcode == ALU and not field(high, 47, 47) else 1
        cycles = each * times + PIPELINE if times else 0
    before, after = (unit - 1, unit), (unit, unit + 1)
    pops = [each for each, bit in ((before, 3), ((unit + 1, unit), 4)) if field(low, bit, bit)]
    pushes = [each for each, bit in (((unit, unit - 1), 5), (after, 6)) if field(low, bit, bit)]
    return Decoded(unit, cycles, moves if cycles else "", tuple(pops), tuple(pushes))


def cycles_of(stream: bytes) -> int:
    """
    The cycles of a stream of instructions.

    Of what can go on, that goes on next which asks first: a later one cannot ask before it, so each channel serves
    requests in their order.
    """
    instructions = [decoded(*words) for words in struct.iter_unpack("<QQ", stream)]
    waiting = [deque[tuple[int, Decoded]]() for _ in UNITS]
    tokens: dict[tuple[int, int], deque[int]] = {(a, b): deque() for a in range(3) for b in range(3)}
    arrived: list[int] = []
    free, channel, fetched, done = [0] * len(UNITS), {"read": 0, "write": 0}, 0, 0
    for number, each in enumerate(instructions):
        waiting[each.unit].append((number, each))
    while len(arrived) < len(instructions) or any(waiting):
        asks: list[tuple[int, int]] = []
        for unit, queue in enumerate(waiting):
            if queue and queue[0][0] < len(arrived) and all(tokens[name] for name in queue[0][1].pops):
                number, each = queue[0]
                asks.append((max(free[unit], arrived[number], *(tokens[name][0] for name in each.pops)), unit))
        if len(arrived) < len(instructions):
            asks.append((fetched, -1))
        moment, unit = min(asks)
        if unit < 0:
            begin = max(moment, channel["read"]) + COMMAND
            count = min(CHUNK, len(instructions) - len(arrived))
            arrived += [begin + 2 * (place + 1) for place in range(count)]
            fetched = channel["read"] = arrived[-1]
            continue
        _, each = waiting[unit].popleft()
        for name in each.pops:
            tokens[name].popleft()
        begin = max(moment, channel[each.moves]) if each.moves else moment
        free[unit] = begin + each.cycles
        if each.moves:
            channel[each.moves] = free[unit]
        for name in each.pushes:
            tokens[name].append(free[unit])
        done = max(done, free[unit])
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default=",".join(LAYERS), help="which of them")
    rows: list[list[object]] = []
    total = {"simulated": 0, "by rules": 0}
    furthest = 0.0
    for name in parser.parse_args().layers.split(","):
        layer = LAYERS[name]
        module, _, _ = lowered(layer.text, MACHINE)
        encoded = encode_module(module)
        launches = [step.instructions for step in encoded.steps if step.instructions is not None]
        ours = sum(simulate(program_of(each, encoded.target)).cycles for each in launches)
        rules = sum(cycles_of(encode(each)) for each in launches)
        apart = ours / rules - 1
        furthest = max(furthest, abs(apart))
        total["simulated"] += layer.times * ours
        total["by rules"] += layer.times * rules
        rows.append([name, layer.times, sum(map(len, launches)), layer.macs // 256, ours, rules, f"{apart:+.2%}"])
        say(f"vta_rtl: {name}: {ours:,} and {rules:,}")
    head = ("layer", "times", "instructions", "limit, cycles", "simulated", "by its rules", "apart")
    print(text_table(f"ResNet-18's convolutions on {MACHINE}", head, rows))
    print(
        f"all: simulated {total['simulated']:,}, by its rules {total['by rules']:,} "
        f"({total['simulated'] / total['by rules'] - 1:+.2%}); a layer at most {furthest:.2%} apart ({AT_MOST:.0%}); "
        f"published, with other tiles: {PUBLISHED:,}"
    )


if __name__ == "__main__":
    main()
