# SPDX-License-Identifier: Apache-2.0
"""
Random programs of commands, whose tokens order the accesses to each buffer and little else: planned as they are,
they have no race and read no foreign byte, in whichever order the units take them.
"""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from programs import checked
from sampling import examples
from xdsl.dialects.builtin import IntegerAttr, ModuleOp

from penstock.dialects.context import make_context
from penstock.dialects.mem import BufferOp
from penstock.dialects.weights import Array
from penstock.runtime.interpreter import run_function
from penstock.runtime.pass_manager import read_pipeline, run_passes

OFF, ON = "memref<4x4xf32>", 'memref<4x4xf32, "spad">'
ROWS = 'memref<?x?xf32, strided<[?, 1]>, "spad">'
MACHINE = f"""
machine.target @toy frequency 1000 {{
  machine.scope @spad size 4096 granule 64 dtypes [f32] parent @dram
  machine.unit @load
  machine.unit @execute
  machine.unit @store
  machine.dma @mvin unit @load from [@dram] to [@spad] dims 2 latency 10 row_overhead 1 outstanding 4
  machine.dma @mvout unit @store from [@spad] to [@dram] dims 2 latency 10 row_overhead 1 outstanding 4
  machine.intrinsic @add unit @execute operands [a row, c row] shape {{m = [1, 4], n = [1, 4]}} ii 4 depth 12 {{
  ^bb0(%a: {ROWS}, %c: {ROWS}):
    linalg.generic {{indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>],
        iterator_types = ["parallel", "parallel"]}} ins(%a : {ROWS}) outs(%c : {ROWS}) {{
    ^bb1(%x: f32, %y: f32):
      %s = arith.addf %x, %y : f32
      linalg.yield %s : f32
    }}
  }}
  machine.intrinsic @copy unit @execute operands [a row, c row] shape {{m = [1, 4], n = [1, 4]}} ii 4 depth 12 {{
  ^bb0(%a: {ROWS}, %c: {ROWS}):
    linalg.generic {{indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>],
        iterator_types = ["parallel", "parallel"]}} ins(%a : {ROWS}) outs(%c : {ROWS}) {{
    ^bb1(%x: f32, %y: f32):
      linalg.yield %x : f32
    }}
  }}
}}
"""


class RandomCommands:
    """Builds @kernel command by command; for each memory it knows the token of all accesses so far."""

    def __init__(self, random: Random):
        self.random = random
        self.names = 0
        self.lines = ["%c0 = arith.constant 0 : index", "%c1 = arith.constant 1 : index"]
        self.lines += ["%c3 = arith.constant 3 : index"]
        self.buffers = [self.emit(f"mem.buffer : {ON}") for _ in range(random.randint(2, 5))]
        free = self.emit("accel.ready")
        self.done = dict.fromkeys((*self.buffers, "%y"), free)
        self.written: set[str] = set()
        for _ in range(random.randint(3, 6)):
            self.step(0)
        for buffer in self.buffers:
            if buffer in self.written and random.random() < 0.5:
                self.transfer(buffer, "%y")
        body = "\n".join(self.lines)
        self.text = (
            f"{MACHINE}\nfunc.func private @kernel(%x: {OFF}, %y: {OFF}, %n: index) attributes {{device = @toy}} "
            f"{{\n{body}\naccel.barrier\nfunc.return\n}}\n"
        )

    def emit(self, text: str) -> str:
        self.names += 1
        self.lines.append(f"%v{self.names} = {text}")
        return f"%v{self.names}"

    def step(self, depth: int) -> None:
        choice = self.random.random()
        known = sorted(self.written)
        if choice < 0.2 and depth < 2:
            self.loop(depth)
        elif choice < 0.28:
            self.lines.append(f"accel.wait {self.random.choice(sorted(set(self.done.values())))}")
        elif choice < 0.3:
            self.lines.append("accel.barrier")
        elif choice < 0.55 or len(known) < 2:
            self.transfer("%x", self.random.choice(self.buffers))
        elif choice < 0.75:
            self.transfer(self.random.choice(known), "%y")
        else:
            source, dest = self.random.sample(known, 2)
            self.execute(source, dest)

    def after(self, *memories: str) -> str:
        """What orders a command behind all accesses to what it touches; sometimes a little more."""
        tokens = [self.done[memory] for memory in memories]
        if self.random.random() < 0.4:
            tokens.append(self.random.choice(list(self.done.values())))
        return f"after ({', '.join(dict.fromkeys(tokens))})"

    def transfer(self, source: str, dest: str) -> None:
        if source == "%x":
            after, engine, types = self.after(dest), "mvin", f"{OFF} to {ON}"
        else:
            after, engine, types = self.after(source, dest), "mvout", f"{ON} to {OFF}"
        token = self.emit(f'accel.dma {source} to {dest} on "{engine}" {after} : {types}')
        self.done.update({memory: token for memory in (source, dest) if memory in self.done})
        self.written.update({dest} - {"%y"})

    def execute(self, source: str, dest: str) -> None:
        name = self.random.choice(["add", "copy"])
        maps = "[affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>]"
        token = self.emit(
            f"accel.exec @{name} extents [4, 4] maps {maps} ({source}, {dest}) {self.after(source, dest)} : {ON}, {ON}"
        )
        self.done[source] = self.done[dest] = token

    def loop(self, depth: int) -> None:
        """A loop carries the token of every memory."""
        self.names += 1
        number = self.names
        memories = list(self.done)
        carried = [f"%k{number}_{index}" for index in range(len(memories))]
        results = [f"%r{number}_{index}" for index in range(len(memories))]
        inits = ", ".join(f"{arg} = {self.done[memory]}" for arg, memory in zip(carried, memories, strict=True))
        types = ", ".join(["!accel.token"] * len(memories))
        upper = self.random.choice(["%n", "%c3", "%c1"])
        self.lines.append(
            f"{', '.join(results)} = scf.for %i{number} = %c0 to {upper} step %c1 iter_args({inits}) -> ({types}) {{"
        )
        written = set(self.written)
        self.done = dict(zip(memories, carried, strict=True))
        for _ in range(self.random.randint(1, 4)):
            self.step(depth + 1)
        self.lines += [f"scf.yield {', '.join(self.done[memory] for memory in memories)} : {types}", "}"]
        self.done = dict(zip(memories, results, strict=True))
        self.written = written


def placed(module: ModuleOp) -> list[BufferOp]:
    return [op for op in module.walk() if isinstance(op, BufferOp)]


def apart(text: str) -> ModuleOp:
    """All buffers at places of their own."""
    module = checked(text)
    for number, op in enumerate(placed(module)):
        op.offset = IntegerAttr(64 * number, 64)
    return module


def planned(text: str) -> ModuleOp:
    module = checked(text)
    run_passes(make_context(), module, read_pipeline('mem-plan{planner="first-fit-by-start"},mem-verify'))
    return module


def run(module: ModuleOp, rounds: int, seed: int | None) -> Array:
    result = np.zeros((4, 4), np.float32)
    run_function(module, "kernel", [np.arange(1, 17, dtype=np.float32).reshape(4, 4), result, rounds], seed=seed)
    return result


@examples(30)
@given(st.integers(0, 2**32 - 1), st.integers(0, 3))
def test_a_plan_of_commands_in_flight_has_no_race(seed: int, rounds: int) -> None:
    text = RandomCommands(Random(seed)).text
    expected = run(apart(text), rounds, None)
    shared = planned(text)
    for order in (None, 0, 1):
        np.testing.assert_array_equal(run(shared, rounds, order), expected)


def test_such_plans_share_bytes() -> None:
    sharing = 0
    for seed in range(20):
        offsets = [op.byte_offset for op in placed(planned(RandomCommands(Random(seed)).text))]
        sharing += len(set(offsets)) < len(offsets)
    assert sharing >= 3
