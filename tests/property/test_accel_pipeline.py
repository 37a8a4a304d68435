# SPDX-License-Identifier: Apache-2.0
"""
Random nests of transfers and commands, pipelined: the same results bit for bit whatever units do first, and in C; every
access that meets another ordered, and no token too many, nor carried too far.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_kernels import FETCHING, MACHINES, closure, parsed, random_kernel, traced, unordered, with_fetches
from sampling import examples
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.accel import ReadyOp, TokenType
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import TargetOp
from penstock.dialects.weights import Array
from penstock.passes.schedule.ordering import order
from penstock.passes.schedule.ordering.tokens import is_completed
from penstock.passes.toolchain import find_compiler
from penstock.runtime.interpreter import run_function
from penstock.runtime.native import load_native
from penstock.runtime.pass_manager import read_pipeline, run_passes, verify

SPAD = 'memref<4xi32, "spad">'
SAME = "affine_map<(i) -> (i)>"
ROWS = "memref<64x4xi32>"


class Nest:
    """Writes a kernel of loops in which tiles are loaded, computed with and stored, each buffer in its own place."""

    def __init__(self, random: Random):
        self.random = random
        self.lines: list[str] = []
        self.names = 0
        self.bytes = 0
        self.outputs = 0

    def name(self) -> str:
        self.names += 1
        return f"%v{self.names}"

    def emit(self, text: str) -> str:
        name = self.name()
        self.lines.append(f"{name} = {text}")
        return name

    def constant(self, value: int) -> str:
        return self.emit(f"arith.constant {value} : index")

    def buffer(self) -> str:
        self.bytes += 16
        return self.emit(f"mem.buffer at {self.bytes - 16} : {SPAD}")

    def row(self, loops: list[tuple[str, int]], rows: int) -> str:
        """A row of an array for each round, the same for several if there are not enough."""
        total, weight, wraps = self.constant(0), 1, self.random.random() < 0.2
        for counter, trips in reversed(loops):
            if wraps or weight * trips <= rows:
                scaled = self.emit(f"arith.muli {counter}, {self.constant(weight)} : index")
                total = self.emit(f"arith.addi {total}, {scaled} : index")
                weight *= trips
        return self.emit(f"arith.remui {total}, {self.constant(rows)} : index") if wraps else total

    def load(self, loops: list[tuple[str, int]], array: str = "%x") -> str:
        buffer = self.buffer()
        at = self.row(loops, 64)
        row = self.emit(f"memref.subview {array}[{at}, 0] [1, 4] [1, 1] : {ROWS} to {SLICE}")
        if self.random.random() < 0.3:
            # In pieces, by a loop of its own.
            zero, two, four = (self.constant(value) for value in (0, 2, 4))
            counter = self.name()
            self.lines.append(f"scf.for {counter} = {zero} to {four} step {two} {{")
            part = self.emit(f"memref.subview {row}[{counter}] [2] [1] : {SLICE} to {PIECE}")
            half = self.emit(f"memref.subview {buffer}[{counter}] [2] [1] : {SPAD} to {HALF}")
            self.emit(f'accel.dma {part} to {half} on "mvin" : {PIECE} to {HALF}')
            self.lines.append("}")
        else:
            self.emit(f'accel.dma {row} to {buffer} on "mvin" : {SLICE} to {SPAD}')
        return buffer

    def store(self, buffer: str, loops: list[tuple[str, int]]) -> None:
        array = "%y" if self.outputs == 0 else "%z"
        self.outputs += 1
        row = self.emit(f"memref.subview {array}[{self.row(loops, 64)}, 0] [1, 4] [1, 1] : {ROWS} to {SLICE}")
        self.emit(f'accel.dma {buffer} to {row} on "mvout" : {SPAD} to {SLICE}')

    def compute(self, name: str, source: str, dest: str) -> None:
        self.emit(f"accel.exec @{name} extents [4] maps [{SAME}, {SAME}] ({source}, {dest}) : {SPAD}, {SPAD}")

    def block(self, loops: list[tuple[str, int]], inputs: list[str], depth: int) -> None:
        """Load something, start a result, add to it here or in a loop, and store it."""
        inputs = [*inputs, *(self.load(loops) for _ in range(self.random.randint(0 if inputs else 1, 2)))]
        result = self.buffer()
        self.compute("move", self.random.choice(inputs), result)
        for _ in range(self.random.randint(0, 2)):
            self.compute("mix", self.random.choice(inputs), result)
        if depth and self.random.random() < 0.8:
            self.loop(loops, inputs, result, depth - 1)
        if self.random.random() < 0.3:
            self.compute("mix", self.load(loops), result)
        if self.random.random() < 0.9 or not loops:
            self.store(result, loops)

    def loop(self, loops: list[tuple[str, int]], inputs: list[str], result: str | None, depth: int) -> None:
        trips, first, step = self.random.randint(1, 7), self.random.randint(0, 2), self.random.randint(1, 2)
        bounds = [self.constant(value) for value in (first, first + trips * step, step)]
        counter = self.name()
        self.lines.append(f"scf.for {counter} = {bounds[0]} to {bounds[1]} step {bounds[2]} {{")
        moved = self.emit(f"arith.subi {counter}, {bounds[0]} : index")
        inner = [*loops, (self.emit(f"arith.divui {moved}, {bounds[2]} : index"), trips)]
        if result is None or self.random.random() < 0.3:
            self.block(inner, inputs, depth)
        if result is not None:
            self.compute("mix", self.load(inner), result)
        self.lines.append("}")

    def text(self) -> str:
        shared = [self.load([]) for _ in range(self.random.randint(0, 1))]
        self.loop([], shared, None, self.random.randint(0, 2))
        body = "\n".join(self.lines)
        return f"""func.func private @k(%x: {ROWS}, %y: {ROWS}, %z: {ROWS}) attributes {{device = @toy}} {{
          {body}
          accel.barrier
          func.return
        }}"""


SLICE = "memref<4xi32, strided<[1], offset: ?>>"
PIECE, HALF = "memref<2xi32, strided<[1], offset: ?>>", 'memref<2xi32, strided<[1], offset: ?>, "spad">'


MOST = 150
"""Commands of a kernel whose tokens are judged one by one."""


def arrays() -> list[Array]:
    x = np.arange(256, dtype=np.int32).reshape(64, 4) * 7 % 101
    return [x, np.zeros((64, 4), np.int32), np.zeros((64, 4), np.int32)]


def results(module: ModuleOp, seed: int | None) -> list[Array]:
    given = arrays()
    run_function(module, "k", given, seed=seed)
    return given[1:]


def judge(function: func.FuncOp, target: TargetOp) -> None:
    """No race is left, and no token could be left out, where a command waits for it or where a loop carries it."""
    program = traced(function, target)
    if len(program.commands) > MOST:
        return
    assert unordered(program) == []
    full = closure(program)
    never = ReadyOp()
    Rewriter.insert_op(never, InsertPoint.at_start(function.body.block))
    for op in list(function.walk()):
        for position, value in enumerate(op.operands):
            if isinstance(value.type, TokenType) and not is_completed(value):
                op.operands[position] = never.token
                assert closure(traced(function, target)) != full, f"{op}: operand {position} is implied by others"
                op.operands[position] = value


@examples(20)
@given(st.integers(0, 10**6), st.sampled_from(sorted(MACHINES)))
def test_random_commands_keep_every_order_that_matters_and_no_other(seed: int, machine: str) -> None:
    module, kernel, target = parsed(MACHINES[machine] + random_kernel(seed))
    order(kernel, target)
    verify(module)
    judge(kernel, target)


@examples(20)
@given(st.integers(0, 10**6))
def test_a_prefetch_that_waits_for_a_later_command_waits_for_all_that_it_has_to(seed: int) -> None:
    module, kernel, target = parsed(FETCHING + with_fetches(random_kernel(seed)))
    order(kernel, target)
    verify(module)
    judge(kernel, target)


@examples(20)
@given(st.integers(0, 10**6), st.sampled_from(sorted(MACHINES)), st.sampled_from(["auto", "1", "2", "3", "4"]))
def test_a_pipelined_nest_computes_the_same(seed: int, machine: str, depth: str) -> None:
    text = MACHINES[machine] + Nest(Random(seed)).text()
    module, kernel, target = parsed(text)
    order(kernel, target)
    expected = results(module, None)
    run_passes(make_context(), module, read_pipeline(f"accel-pipeline{{depth={depth}}},mem-verify"))
    function = next(op for op in module.ops if isinstance(op, func.FuncOp))
    judge(function, target)
    for run in (None, 0, 1):
        assert all(map(np.array_equal, results(module, run), expected))


MAIN = f"""func.func @main(%x: {ROWS}, %a: {ROWS}, %b: {ROWS},
    %y: {ROWS} {{graph.output = "y"}}, %z: {ROWS} {{graph.output = "z"}}) {{
  mem.copy %a to %y : {ROWS} to {ROWS}
  mem.copy %b to %z : {ROWS} to {ROWS}
  func.call @k(%x, %y, %z) : ({ROWS}, {ROWS}, {ROWS}) -> ()
  func.return
}}
"""


@pytest.mark.parametrize(("seed", "machine"), list(enumerate(sorted(MACHINES), 3)))
def test_a_pipelined_nest_computes_the_same_in_c(
    seed: int, machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        find_compiler()
    except UserError:
        pytest.skip("no C compiler")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    module, kernel, target = parsed(MACHINES[machine] + MAIN + Nest(Random(seed)).text())
    order(kernel, target)
    expected = results(module, None)
    run_passes(make_context(), module, read_pipeline("accel-pipeline{depth=3},mem-verify"))
    assert any(op.name == "mem.ring" for op in module.walk())
    assert all(map(np.array_equal, load_native(module).run(arrays()), expected))
