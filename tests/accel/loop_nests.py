# SPDX-License-Identifier: Apache-2.0
"""Random kernels of nested loops: transfers between moving windows, rings and buffers, ordered well or nearly so."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.machine import TargetOp
from penstock.passes.analysis.kernels import machine_of

MACHINE = """
machine.target @toy frequency 1000 {
  machine.scope @spad size 65536 granule 16 dtypes [f32] parent @dram
  machine.unit @load
  machine.unit @execute
  machine.unit @store
  machine.dma @mvin unit @load from [@dram] to [@spad] dims 2 latency 10 row_overhead 1 outstanding OUTSTANDING
  machine.dma @mvout unit @store from [@spad] to [@dram] dims 2 latency 10 row_overhead 1 outstanding OUTSTANDING
  machine.intrinsic @relu unit @execute operands [x dense, y dense] shape {i = [1, 4]} ii 1 depth 1 {
  ^bb0(%x: memref<?xf32, "spad">, %y: memref<?xf32, "spad">):
    linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
        ins(%x : memref<?xf32, "spad">) outs(%y : memref<?xf32, "spad">) {
    ^bb1(%a: f32, %b: f32):
      %zero = arith.constant 0.0 : f32
      %r = arith.maximumf %a, %zero : f32
      linalg.yield %r : f32
    }
  }
}
"""
TILE = 'memref<4xf32, "spad">'
SIZE = 4096
TYPES = {"spad": TILE, "dram": f"memref<{SIZE}xf32>"}


def kernel_of(text: str, *, outstanding: int = 4) -> tuple[func.FuncOp, TargetOp]:
    """The kernel, and the machine, of a module made of `MACHINE` and `text`."""
    module = Parser(make_context(), MACHINE.replace("OUTSTANDING", str(outstanding)) + text).parse_module()
    module.verify()
    return parts(module)


def parts(module: ModuleOp) -> tuple[func.FuncOp, TargetOp]:
    target = machine_of(module)
    assert target is not None
    return next(op for op in module.ops if isinstance(op, func.FuncOp) and not op.is_declaration), target


@dataclass
class Nest:
    """A kernel as it is written; `random` decides everything."""

    random: Random
    trips: tuple[int, ...] = (1, 2, 3, 17, 18, 23)
    most_loops: int = 2
    lines: list[str] = field(default_factory=list[str])
    names: int = 0
    rings: int = 0

    def name(self) -> str:
        self.names += 1
        return f"%v{self.names}"

    def text(self) -> str:
        """The function."""
        self.rings = self.random.randint(1, 2)
        for number in range(self.rings):
            depth = self.random.choice((1, 2, 2, 3, 4))
            self.lines.append(f"%ring{number} = mem.ring {depth} at {1024 * number} : !mem.ring<{TILE}>")
        self.lines.append(f"%fixed = mem.buffer at 8192 : {TILE}")
        self.lines.append("%none = accel.ready")
        tokens = ["%none"]
        for _ in range(self.random.randint(1, 2)):
            tokens += self.item(1, [], tokens, first=tokens[-1])
        body = "\n".join(f"  {line}" for line in ["%c0 = arith.constant 0 : index", *self.lines])
        off_chip = TYPES["dram"]
        return (
            f"func.func @kernel(%x: {off_chip}, %y: {off_chip}) attributes {{device = @toy}} {{\n{body}\n"
            "  accel.barrier\n  func.return\n}\n"
        )

    def item(self, depth: int, counters: list[str], tokens: list[str], *, first: str) -> list[str]:
        if depth <= self.most_loops and self.random.random() < 0.6:
            return [self.loop(depth, counters, tokens, first)]
        return [self.command(counters, first, tokens)]

    def loop(self, depth: int, counters: list[str], tokens: list[str], first: str) -> str:
        random = self.random
        carried = random.randint(1, 3)
        arguments = [self.name() for _ in range(carried)]
        counter, result = self.name(), self.name()
        upper, step = self.name(), self.name()
        trips = random.choice(self.trips)
        stride = random.choice((1, 1, 4))
        self.lines.append(f"{upper} = arith.constant {trips * stride} : index")
        self.lines.append(f"{step} = arith.constant {stride} : index")
        starts = ", ".join(f"{argument} = {first}" for argument in arguments)
        several = f":{carried}" if carried > 1 else ""
        types = ", ".join(["!accel.token"] * carried)
        self.lines.append(
            f"{result}{several} = scf.for {counter} = %c0 to {upper} step {step} iter_args({starts}) -> ({types}) {{"
        )
        inner = [arguments[0]]
        for _ in range(random.randint(1, 3)):
            inner += self.item(depth + 1, [*counters, counter], [*tokens, *arguments], first=inner[-1])
        yielded = [*arguments[1:], inner[-1]]
        if random.random() < 0.1:
            yielded[0] = random.choice([*arguments, *inner])
        if random.random() < 0.1:
            joined = self.name()
            self.lines.append(f"{joined} = accel.ready after ({inner[-1]}, {random.choice(arguments + inner)})")
            yielded[-1] = joined
        self.lines.append(f"scf.yield {', '.join(yielded)} : {types}")
        self.lines.append("}")
        everything = self.name()
        results = ", ".join(f"{result}#{number}" for number in range(carried)) if carried > 1 else result
        self.lines.append(f"{everything} = accel.ready after ({results})")
        return everything

    def command(self, counters: list[str], first: str, tokens: list[str]) -> str:
        random = self.random
        after = [first] if random.random() < 0.93 else []
        if random.random() < 0.2:
            after.append(random.choice(tokens))
        behind = f" after ({', '.join(dict.fromkeys(after))})" if after else ""
        kind = random.choice(("mvin", "mvout", "relu"))
        if kind == "relu":
            one, two = self.tile(counters), self.tile(counters)
            token = self.name()
            maps = "[affine_map<(i) -> (i)>, affine_map<(i) -> (i)>]"
            self.lines.append(
                f"{token} = accel.exec @relu extents [4] maps {maps} ({one}, {two}){behind} : {TILE}, {TILE}"
            )
            return token
        tile, token = self.tile(counters), self.name()
        window = f"{random.choice(('%x', '%y'))}[{self.index(counters)}]"
        if kind == "mvin":
            self.lines.append(f'{token} = accel.dma {window} to {tile} on "mvin"{behind} : {TYPES["dram"]} to {TILE}')
        else:
            self.lines.append(f'{token} = accel.dma {tile} to {window} on "mvout"{behind} : {TILE} to {TYPES["dram"]}')
        return token

    def tile(self, counters: list[str]) -> str:
        if not counters or self.random.random() < 0.2:
            return "%fixed"
        slot, number = self.name(), self.random.randrange(self.rings)
        counter = self.random.choice(counters)
        self.lines.append(f"{slot} = mem.slot %ring{number}[{counter}] : !mem.ring<{TILE}>")
        return slot

    def index(self, counters: list[str]) -> str:
        """A sum of multiples of counters, at times bent at an edge."""
        random = self.random
        value = self.constant(random.choice((0, 0, 4, 8, 20, 1000)))
        for counter in counters:
            factor = random.choice((0, 1, 2, 4, 4, 16, 100 // max(1, len(counters))))
            if not factor:
                continue
            product, total = self.name(), self.name()
            self.lines.append(f"{product} = arith.muli {counter}, {self.constant(factor)} : index")
            self.lines.append(f"{total} = arith.addi {value}, {product} : index")
            value = total
        if counters and random.random() < 0.15:
            bent, op = self.name(), random.choice(("minsi", "maxsi"))
            self.lines.append(f"{bent} = arith.{op} {value}, {self.constant(random.choice((8, 40, 60)))} : index")
            value = bent
        return value

    def constant(self, value: int) -> str:
        name = self.name()
        self.lines.append(f"{name} = arith.constant {value} : index")
        return name
