# SPDX-License-Identifier: Apache-2.0
"""Random kernels at the accelerator level, without tokens, and a brute-force judge of those that are put in."""

from __future__ import annotations

from random import Random

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.context import make_context
from penstock.dialects.machine import TargetOp, find_target
from penstock.passes.analysis.commands.program import Kind, Program
from penstock.passes.analysis.commands.trace import trace

VECTOR = "memref<?xi32, strided<[?]{}>"
SPAD, OFF_CHIP = 'memref<?xi32, "spad">', "memref<?xi32>"
SAME = "affine_map<(i) -> (i)>"


def machine(load: str, store: str, outstanding: int, latency: int = 8, fetch: str | None = None) -> str:
    """
    A toy with one scratchpad, whose transfers in and out are issued to the units `load` and `store`; with `fetch`
    another engine on the bus of the loads, @fetch, is issued to that unit.
    """
    units = "\n".join(f"machine.unit @{unit}" for unit in dict.fromkeys((load, "execute", store)))
    times = f"dims 2 latency {latency} row_overhead 1 outstanding {outstanding}"
    second = f"machine.dma @fetch unit @{fetch} from [@dram] to [@spad] bus @in {times}" if fetch is not None else ""
    return f"""machine.target @toy frequency 1000 {{
      machine.scope @spad size 4096 granule 4 dtypes [i32] parent @dram
      machine.bus @in rate [8, 1]
      machine.bus @out rate [8, 1]
      {units}
      machine.dma @mvin unit @{load} from [@dram] to [@spad] bus @in {times}
      machine.dma @mvout unit @{store} from [@spad] to [@dram] bus @out {times}
      {second}
      machine.intrinsic @mix unit @execute operands [a dense, c dense] shape {{i = [1, 8]}} ii 1 depth 4 {{
      ^bb0(%a: {SPAD}, %c: {SPAD}):
        linalg.generic {{indexing_maps = [{SAME}, {SAME}], iterator_types = ["parallel"]}}
            ins(%a : {SPAD}) outs(%c : {SPAD}) {{
        ^bb1(%x: i32, %z: i32):
          %three = arith.constant 3 : i32
          %p = arith.muli %z, %three : i32
          %s = arith.addi %p, %x : i32
          linalg.yield %s : i32
        }}
      }}
      machine.intrinsic @move unit @execute operands [a dense, c dense] shape {{i = [1, 8]}} ii 1 depth 4 {{
      ^bb0(%a: {SPAD}, %c: {SPAD}):
        linalg.generic {{indexing_maps = [{SAME}, {SAME}], iterator_types = ["parallel"]}}
            ins(%a : {SPAD}) outs(%c : {SPAD}) {{
        ^bb1(%x: i32, %z: i32):
          linalg.yield %x : i32
        }}
      }}
    }}
    """


MACHINES = {
    "in order": machine("load", "store", 1),
    "in flight": machine("load", "store", 4),
    "one unit": machine("dma", "dma", 1),
    "one unit, in flight": machine("dma", "dma", 4),
}
FETCHING = machine("load", "store", 1, fetch="execute")
"""A machine whose unit `execute` loads by itself, too."""


class Writer:
    """Writes the text of one random kernel."""

    def __init__(self, random: Random):
        self.random = random
        self.lines: list[str] = []
        self.names = 0
        self.loops: list[tuple[str, int]] = []
        self.memory: list[tuple[str, str, int]] = [("%x", "memref<64xi32>", 64), ("%y", "memref<64xi32>", 64)]
        self.rings: list[tuple[str, int]] = []

    def name(self) -> str:
        self.names += 1
        return f"%v{self.names}"

    def constant(self, value: int) -> str:
        name = self.name()
        self.lines.append(f"{name} = arith.constant {value} : index")
        return name

    def index(self, most: int) -> tuple[str, int]:
        """An index and its largest value: a constant, or a loop's counter times something."""
        fitting = [(name, trips) for name, trips in self.loops if trips <= most + 1]
        if not fitting or self.random.random() < 0.3:
            at = self.random.randint(0, most)
            return str(at), at
        name, trips = self.random.choice(fitting)
        factor = self.random.randint(1, max(1, most // max(1, trips - 1)))
        scaled = self.name()
        self.lines.append(f"{scaled} = arith.muli {name}, {self.constant(factor)} : index")
        return scaled, factor * (trips - 1)

    def slot_number(self) -> str:
        """What a slot is counted by: rounds of one loop, or of several as one number, with or without a distance."""
        total = self.constant(self.random.randint(0, 2))
        weight = 1
        for name, trips in reversed(self.loops):
            if self.random.random() < 0.7:
                scaled, summed = self.name(), self.name()
                self.lines.append(f"{scaled} = arith.muli {name}, {self.constant(weight)} : index")
                self.lines.append(f"{summed} = arith.addi {total}, {scaled} : index")
                total = summed
                weight *= trips
        return total

    def scope_memory(self) -> tuple[str, str, int]:
        inside = [each for each in self.memory if "spad" in each[1]]
        if self.rings and (not inside or self.random.random() < 0.5):
            ring, size = self.random.choice(self.rings)
            slot = self.name()
            type = f'memref<{size}xi32, "spad">'
            self.lines.append(f"{slot} = mem.slot {ring}[{self.slot_number()}] : !mem.ring<{type}>")
            return slot, type, size
        return self.random.choice(inside) if inside else self.buffer()

    def buffer(self) -> tuple[str, str, int]:
        size = self.random.choice([4, 8, 16])
        made = self.name(), f'memref<{size}xi32, "spad">', size
        self.lines.append(f"{made[0]} = mem.buffer at {4 * self.random.randint(0, 30)} : {made[1]}")
        self.memory.append(made)
        return made

    def ring(self) -> None:
        size, name = self.random.choice([4, 8]), self.name()
        depth, at = self.random.randint(1, 4), 256 + 4 * self.random.randint(0, 8) * self.random.randint(0, 20)
        self.lines.append(f'{name} = mem.ring {depth} at {at} : !mem.ring<memref<{size}xi32, "spad">>')
        self.rings.append((name, size))

    def view(self, memory: tuple[str, str, int], size: int) -> tuple[str, str]:
        name, type, whole = memory
        at, _ = self.index(whole - size)
        part = self.name()
        place = ', "spad"' if "spad" in type else ""
        offset = at if at.isdigit() else "?"
        view = f"memref<{size}xi32, strided<[1], offset: {offset}>{place}>"
        self.lines.append(f"{part} = memref.subview {name}[{at}] [{size}] [1] : {type} to {view}")
        return part, view

    def command(self) -> None:
        kind = self.random.choice(["in", "out", "mix", "move"])
        first = self.scope_memory()
        if kind in ("in", "out"):
            size = self.random.choice([each for each in (2, 4, 8) if each <= first[2]])
            inside, inner = self.view(first, size)
            outside, outer = self.view(self.random.choice(self.memory[:2]), size)
            ends = [(outside, outer), (inside, inner)] if kind == "in" else [(inside, inner), (outside, outer)]
            self.lines.append(
                f'{self.name()} = accel.dma {ends[0][0]} to {ends[1][0]} on "mv{kind}" : {ends[0][1]} to {ends[1][1]}'
            )
            return
        second = self.scope_memory()
        size = self.random.choice([each for each in (2, 4) if each <= min(first[2], second[2])])
        (a, a_type), (b, b_type) = self.view(first, size), self.view(second, size)
        self.lines.append(
            f"{self.name()} = accel.exec @{kind} extents [{size}] maps [{SAME}, {SAME}] ({a}, {b}) : {a_type}, {b_type}"
        )

    def block(self, depth: int) -> None:
        held = len(self.memory), len(self.rings)
        for _ in range(self.random.randint(2, 4)):
            what = self.random.random()
            if what < 0.15:
                self.buffer()
            elif what < 0.3:
                self.ring()
            elif what < 0.5 and depth < 3:
                trips = self.random.randint(1, 7 if depth < 2 else 4)
                bounds = [self.constant(bound) for bound in (0, trips, 1)]
                counter = self.name()
                self.lines.append(f"scf.for {counter} = {bounds[0]} to {bounds[1]} step {bounds[2]} {{")
                self.loops.append((counter, trips))
                self.block(depth + 1)
                self.loops.pop()
                self.lines.append("}")
            else:
                self.command()
        del self.memory[held[0] :], self.rings[held[1] :]


def random_kernel(seed: int) -> str:
    """A function `@k` of commands that need not make sense, in loops, in places that overlap or not."""
    writer = Writer(Random(seed))
    writer.block(0)
    body = "\n".join(writer.lines)
    return f"""func.func private @k(%x: memref<64xi32>, %y: memref<64xi32>) attributes {{device = @toy}} {{
      {body}
      accel.barrier
      func.return
    }}"""


def with_fetches(kernel: str) -> str:
    """Every second load as one of the engine @fetch."""
    parts = kernel.split('"mvin"')
    return parts[0] + "".join(('"fetch"' if at % 2 else '"mvin"') + part for at, part in enumerate(parts[1:]))


def parsed(text: str) -> tuple[ModuleOp, func.FuncOp, TargetOp]:
    """A module, its kernel `@k` and its machine."""
    module = Parser(make_context(), text).parse_module()
    target = find_target(module)
    assert target is not None
    kernel = next(op for op in module.ops if isinstance(op, func.FuncOp) and op.sym_name.data == "k")
    return module, kernel, target


# the judge


def closure(program: Program) -> list[int]:
    """For each command, as a mask, those that are certain to be complete when it starts."""
    before: list[int] = []
    last: dict[str, list[int]] = {}
    for number, command in enumerate(program.commands):
        mine, mask = last.setdefault(command.unit, []), 0
        for other in mine:
            outer = program.commands[other]
            mask |= before[other]
            if _is_alone(program, number) or outer.kind is Kind.EXEC:
                mask |= 1 << other
        for other in command.after:
            mask |= before[other] | 1 << other
        # What starts after a command that was complete.
        before.append(mask)
        mine.append(number)
    return before


def _is_alone(program: Program, number: int) -> bool:
    command = program.commands[number]
    if command.kind is not Kind.TRANSFER:
        return True
    assert command.engine is not None
    return program.machine.engines[command.engine].outstanding == 1


def unordered(program: Program) -> list[tuple[int, int]]:
    """The pairs of commands that touch the same bytes, one of them writing, and that nothing orders."""
    before = closure(program)
    found: list[tuple[int, int]] = []
    for second, late in enumerate(program.commands):
        for first in range(second):
            if before[second] >> first & 1:
                continue
            early = program.commands[first]
            touching = [(a, b) for a in early.writes for b in (*late.reads, *late.writes)]
            touching += [(a, b) for a in early.reads for b in late.writes]
            if any(a.overlaps(b) for a, b in touching):
                found.append((first, second))
    return found


def token_operands(function: func.FuncOp) -> list[tuple[DmaOp | ExecOp, int]]:
    """Every token that a command waits for, by the command and its position."""
    return [
        (op, position)
        for op in function.walk()
        if isinstance(op, DmaOp | ExecOp)
        for position in range(len(op.dependencies))
    ]


def traced(function: func.FuncOp, target: TargetOp) -> Program:
    """Its commands, all of them."""
    return trace(function, target)
