# SPDX-License-Identifier: Apache-2.0
"""The bytes of a traced command are those that the interpreter touches."""

from __future__ import annotations

from random import Random

import pytest
from sampling import sweep
from touching import interpreted, traced
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.passes.analysis.commands.limits import limit_faults
from penstock.passes.analysis.commands.trace import trace
from penstock.passes.analysis.kernels import machine_kernels

CONTEXT = make_context()
ROWS = 'memref<?x?xi16, strided<[?, 1]>, "{}">'
SPAD = ROWS.format("spad")
DRAM = "memref<?x?xi16, strided<[?, 1]>>"
KEPT = "affine_map<(i, j) -> (i, j)>"


def intrinsic(name: str, where: str, ins: list[str], out: str, body: str, shape: str) -> str:
    """An elementwise intrinsic over rows; its body computes %r of %a, %b and %z."""
    types = [*ins, out]
    maps = ", ".join([KEPT] * len(types))
    arguments = ", ".join(f"%m{number}: {type}" for number, type in enumerate(types))
    scalars = ", ".join(f"%{letter}: i16" for letter in [*"ab"[: len(ins)], "z"])
    inputs = f"ins({', '.join(f'%m{n}' for n in range(len(ins)))} : {', '.join(ins)})" if ins else ""
    operands = ", ".join(f"o{number} row" for number in range(len(types)))
    return f"""machine.intrinsic @{name} {where} operands [{operands}] shape {shape} {{
      ^bb0({arguments}):
        linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel", "parallel"]}}
            {inputs} outs(%m{len(ins)} : {out}) {{
        ^bb1({scalars}):
          {body}
          linalg.yield %r : i16
        }}
      }}"""


UNIT, ANY, BLOCK = "unit @execute", "{i = ?, j = ?}", "{i = [1, 4], j = [1, 4]} ii 2 depth 5"
TARGET = "\n".join(
    [
        "machine.target @toy frequency 1000 {",
        "machine.scope @spad size 4096 granule 2 dtypes [i16] parent @dram",
        "machine.bus @in rate [8, 1]",
        *(f"machine.unit @{name}" for name in ("load", "execute", "store")),
        "machine.dma @mvin unit @load from [@dram] to [@spad] bus @in dims 4 pad_max 9 latency 8 row_overhead 1 "
        "outstanding 2",
        "machine.dma @mvout unit @store from [@spad] to [@dram] dims 4 latency 8 row_overhead 1 outstanding 1",
        intrinsic("add", UNIT, [SPAD, SPAD], SPAD, "%r = arith.addi %a, %b : i16", BLOCK),
        intrinsic("sum", UNIT, [SPAD], SPAD, "%r = arith.addi %z, %a : i16", BLOCK),
        intrinsic("zero", UNIT, [], SPAD, "%r = arith.constant 0 : i16", BLOCK),
        intrinsic("mvin_add", "dma @mvin", [DRAM], SPAD, "%r = arith.addi %z, %a : i16", ANY),
        intrinsic("mvin_zero", "dma @mvin", [], SPAD, "%r = arith.constant 0 : i16", ANY),
        intrinsic("mvout_abs", "dma @mvout", [SPAD], DRAM, "%r = arith.maxsi %a, %a : i16", ANY),
        "}",
    ]
)
NAMES = ("add", "mvin_add", "mvin_zero", "mvout_abs", "sum", "zero")


class Kernel:
    """A random kernel: windows partly out of bounds, views, rings, and execs whose dims move operands anyhow."""

    def __init__(self, seed: int):
        self.random = Random(seed)
        self.lines: list[str] = []
        self.counters: list[tuple[str, int]] = []
        self.names = 0

    def name(self, prefix: str = "v") -> str:
        self.names += 1
        return f"%{prefix}{self.names}"

    def line(self, text: str) -> None:
        self.lines.append(text)

    def index(self, low: int, high: int) -> tuple[str, bool]:
        """An offset within the limits: a constant, or one that follows a counter."""
        fitting = [(name, trips) for name, trips in self.counters if trips - 1 <= high - low]
        if fitting and self.random.random() < 0.7:
            counter, trips = self.random.choice(fitting)
            start, made, base = self.random.randint(low, high - trips + 1), self.name(), self.name("c")
            self.line(f"{base} = arith.constant {start} : index")
            self.line(f"{made} = arith.addi {counter}, {base} : index")
            return made, True
        return str(self.random.randint(low, high)), False

    def box(self, rank: int = 2) -> list[int]:
        return [self.random.randint(1, 5) for _ in range(rank)]

    def buffer(self, box: list[int]) -> tuple[str, str]:
        """A buffer in the scratchpad with room between its rows, or a slot of a ring of them."""
        pitch = box[1] + self.random.randint(0, 2)
        type = f'memref<{box[0]}x{box[1]}xi16, strided<[{pitch}, 1]>, "spad">'
        at = 2 * self.random.randint(0, 1500)
        made = self.name("b")
        if self.counters and self.random.random() < 0.4:
            ring = self.name("ring")
            self.line(f"{ring} = mem.ring {self.random.randint(1, 3)} at {at} : !mem.ring<{type}>")
            counter = self.random.choice(self.counters)[0]
            self.line(f"{made} = mem.slot {ring}[{counter}] : !mem.ring<{type}>")
        else:
            self.line(f"{made} = mem.buffer at {at} : {type}")
        return made, type

    def part(self, of: str, shape: tuple[int, int], pitch: int, box: list[int]) -> tuple[str, str]:
        """A view of rows off chip, or of all of them; steps may be 2."""
        steps = [self.random.choice([1, 2]) if 2 * size < bound else 1 for size, bound in zip(box, shape, strict=True)]
        reach = [(size - 1) * step for size, step in zip(box, steps, strict=True)]
        at = [self.index(0, bound - 1 - end)[0] for bound, end in zip(shape, reach, strict=True)]
        made = self.name("s")
        layout = f"strided<[{pitch * steps[0]}, {steps[1]}], offset: ?>"
        if all(each.isdigit() for each in at):
            layout = layout.replace("?", str(int(at[0]) * pitch + int(at[1])))
        type = f"memref<{box[0]}x{box[1]}xi16, {layout}>"
        self.line(
            f"{made} = memref.subview {of}[{', '.join(at)}] [{box[0]}, {box[1]}] [{steps[0]}, {steps[1]}]"
            f" : memref<{shape[0]}x{shape[1]}xi16> to {type}"
        )
        return made, type

    def transfer(self) -> None:
        box = self.box()
        buffer, type = self.buffer(box)
        if self.random.random() < 0.3:
            view, view_type = self.part("%x", (9, 11), 11, box)
            self.line(f'{self.name("t")} = accel.dma {view} to {buffer} on "mvin" : {view_type} to {type}')
            return
        at = [self.index(-size - 1, bound + 1)[0] for size, bound in zip(box, (9, 11), strict=True)]
        window = f"[{', '.join(at)}]"
        if self.random.random() < 0.5:
            how = self.random.choice(["else %pad", "clipped"])
            text = f'accel.dma %x{window} to {buffer} {how} on "mvin" : memref<9x11xi16> to {type}'
        else:
            text = f'accel.dma {buffer} to %y{window} on "mvout" : {type} to memref<9x11xi16>'
        self.line(f"{self.name('t')} = {text}")

    def exec(self) -> None:
        name = self.random.choice(NAMES)
        extents = self.box(self.random.randint(1, 3))
        operands: list[tuple[str, str]] = []
        maps: list[str] = []
        dims = ", ".join(f"d{number}" for number in range(len(extents)))
        places = {"mvin_add": [1, 0], "mvout_abs": [0, 2]}.get(name, [0] * (3 if name == "add" else 2))
        if name in ("zero", "mvin_zero"):
            places = [0]
        for off_chip in places:
            results: list[str] = []
            shape: list[int] = []
            for _ in range(2):
                chosen = [d for d in range(len(extents)) if self.random.random() < 0.6]
                factors = {d: self.random.choice([1, 1, 2]) for d in chosen}
                constant = self.random.randint(0, 1)
                terms = [f"d{d} * {factor}" for d, factor in factors.items()]
                results.append(" + ".join([*terms, str(constant)]))
                shape.append(1 + constant + sum(factor * (extents[d] - 1) for d, factor in factors.items()))
            maps.append(f"affine_map<({dims}) -> ({', '.join(results)})>")
            if off_chip:
                operands.append(self.part("%u" if off_chip == 1 else "%w", (40, 40), 40, shape))
                continue
            operands.append(self.buffer(shape))
        if name in ("add", "sum") and self.random.random() < 0.3:
            operands[0], maps[0] = operands[-1], maps[-1]
        values = ", ".join(value for value, _ in operands)
        types = ", ".join(type for _, type in operands)
        text = f"accel.exec @{name} extents {extents} maps [{', '.join(maps)}] ({values}) : {types}"
        self.line(f"{self.name('t')} = {text}")

    def body(self, depth: int) -> None:
        for _ in range(self.random.randint(1, 3)):
            if depth and self.random.random() < 0.4:
                trips, step, counter = self.random.randint(0, 3), self.random.randint(1, 3), self.name("i")
                bounds = [self.name("c") for _ in range(3)]
                first = self.random.randint(0, 2)
                for bound, value in zip(bounds, (first, first + trips * step, step), strict=True):
                    self.line(f"{bound} = arith.constant {value} : index")
                self.line(f"scf.for {counter} = {bounds[0]} to {bounds[1]} step {bounds[2]} {{")
                self.counters.append((counter, first + trips * step))
                self.body(depth - 1)
                self.counters.pop()
                self.line("}")
            else:
                self.random.choice([self.transfer, self.exec])()

    def module(self) -> ModuleOp:
        self.body(3)
        arguments = "%x: memref<9x11xi16>, %y: memref<9x11xi16>, %u: memref<40x40xi16>, %w: memref<40x40xi16>"
        lines = "\n".join(self.lines)
        text = f"""{TARGET}
          func.func private @k({arguments}) attributes {{device = @toy}} {{
            %pad = arith.constant 7 : i16
            {lines}
            accel.barrier
            func.return
          }}"""
        module = Parser(CONTEXT, text).parse_module()
        module.verify()
        return module


@pytest.mark.parametrize("seed", sweep(range(60), range(20)))
def test_regions_of_random_kernels_are_what_the_interpreter_touches(seed: int) -> None:
    module = Kernel(seed).module()
    target, (kernel,) = machine_kernels(module)
    assert target is not None
    program = trace(kernel, target)
    assert traced(program) == interpreted(module, "k")
    list(limit_faults(program, target))
