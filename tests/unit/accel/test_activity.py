# SPDX-License-Identifier: Apache-2.0
"""What takes energy: the bytes and operations of commands, against what the interpreter is seen to touch and do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pytest
from sampling import sweep
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.parser import Parser

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.context import make_context
from penstock.dialects.machine import DRAM, IMMEDIATE, TargetOp
from penstock.dialects.machine.energy import OPERATIONS, READ, TRANSFER, WRITE
from penstock.dialects.mem import element_bytes, memref_of, scope_of
from penstock.dialects.weights import WeightStore
from penstock.passes.analysis.commands.trace import trace_calls
from penstock.passes.analysis.kernels import machine_of
from penstock.runtime.compiler import compile_module, load_input
from penstock.runtime.interpreter import run_module
from penstock.runtime.interpreter.commands import CommandKind, IssuedCommand, Touch
from penstock.runtime.interpreter.interleaving import Interleaving
from penstock.runtime.interpreter.scopes import array_of
from penstock.runtime.signature import signature_of

ROOT = Path(__file__).parents[3]
CHAIN = """
func.func @main(%x: tensor<30x96xf32>, %v: tensor<96x50xf32>, %w: tensor<50x72xf32>) -> tensor<30x72xf32> {
  %y = graph.matmul %x, %v : (tensor<30x96xf32>, tensor<96x50xf32>) -> tensor<30x50xf32>
  %z = graph.relu %y : tensor<30x50xf32>
  %u = graph.matmul %z, %w : (tensor<30x50xf32>, tensor<50x72xf32>) -> tensor<30x72xf32>
  func.return %u : tensor<30x72xf32>
}"""
CONVOLUTION = """
func.func @main(%x: tensor<1x5x11x9xf32>, %w: tensor<7x5x3x3xf32>) -> tensor<1x7x6x5xf32> {
  %y = graph.conv %x, %w strides [2, 2] pads [1, 1, 1, 1] dilations [1, 1] group 1
      : (tensor<1x5x11x9xf32>, tensor<7x5x3x3xf32>) -> tensor<1x7x6x5xf32>
  func.return %y : tensor<1x7x6x5xf32>
}"""


class Witness:
    """What the commands of an execution read, write, carry and compute, seen where they are issued."""

    def __init__(self, target: TargetOp):
        self.target = target
        self.seen = Counter[tuple[str, str]]()

    def issued(self, command: IssuedCommand) -> None:
        if command.kind not in (CommandKind.TRANSFER, CommandKind.EXEC):
            return
        op = command.op
        if isinstance(op, ExecOp):
            points = int(np.prod(op.extents.get_values()))
            self.seen.update(Counter({what: points * n for what, n in self.operations(op).items()}))
        if command.kind is CommandKind.EXEC:
            assert isinstance(op, ExecOp)
            applied = applications(op, self.target)
            for touch in command.reads:
                self.seen[READ, space(touch.value)] += applied[operand_number(op, touch)]
            self.seen[WRITE, space(op.buffers[-1])] += applied[-1]
            return
        for what, touches in ((READ, command.reads), (WRITE, command.writes)):
            for touch in touches:
                self.seen[what, space(touch.value)] += touched(touch)
        self.seen[TRANSFER, self.carrier(op)] += self.carried(command)

    def operations(self, op: ExecOp) -> Counter[tuple[str, str]]:
        """By the names of the ops; every body of these tests is known."""
        ops = [each for each in self.target.intrinsics()[op.intrinsic_name].generic.body.block.ops if each.results]
        body = [each.name for each in ops]
        narrow = "i8" if "arith.extsi" in body else "f16" if "arith.extf" in body else None
        found = Counter[tuple[str, str]]()
        for name, type in ((each.name, str(each.results[0].type)) for each in ops):
            if name in ("arith.mulf", "arith.muli"):
                found["multiply", narrow or type] += 1
            elif name in ("arith.addf", "arith.addi", "arith.maximumf", "arith.minimumf", "arith.subf"):
                found["add", type] += 1
            elif name in ("math.exp", "arith.divf"):
                found["special", type] += 1
        return found

    def carrier(self, op: Operation) -> str:
        if isinstance(op, ExecOp):
            name = self.target.intrinsics()[op.intrinsic_name].dma_name
        else:
            assert isinstance(op, DmaOp)
            name = op.engine.data
        assert name is not None
        return self.target.dmas()[name].bus_name or name

    def carried(self, command: IssuedCommand) -> int:
        """Bytes off chip where it reaches there, else those that it reads."""
        if not isinstance(command.op, ExecOp):
            return touched(command.reads[0])
        off_chip = [touch for touch in (*command.reads, *command.writes) if space(touch.value) == DRAM]
        inputs = [touch for touch in command.reads if space(touch.value) != space(command.writes[0].value)]
        return sum(map(touched, off_chip or inputs))


def space(value: SSAValue) -> str:
    return scope_of(memref_of(value)) or DRAM


def touched(touch: Touch) -> int:
    array = array_of(touch.memref)
    marks = np.zeros(array.shape, np.bool_)
    marks[... if touch.region is None else touch.region] = True
    return int(marks.sum()) * array.itemsize


def operand_number(op: ExecOp, touch: Touch) -> int:
    return list(op.buffers).index(touch.value)


def applications(op: ExecOp, target: TargetOp) -> list[int]:
    """
    The bytes of each operand that applications touch, point by point: an element counts once for each application.

    A dim of the intrinsic covers the dim of the domain that moves through the same operands, along the last index of
    those where it does so itself; of several the one in which its blocks are fullest, and then the last.
    """
    intrinsic = target.intrinsics()[op.intrinsic_name]
    specs = zip(intrinsic.generic.indexing_maps, intrinsic.operand_specs(), strict=True)
    wanted, ends = moves([attr.data for attr, spec in specs if spec.role != IMMEDIATE])
    found, last = moves([attr.data for attr in op.maps])
    extents = op.extents.get_values()
    block = [1] * len(extents)
    for number in reversed(range(len(intrinsic.dims))):
        largest = (intrinsic.shape[number] or (1, 1))[1]
        free = [
            dim
            for dim, extent in enumerate(extents)
            if found[dim] == wanted[number] and ends[number] <= last[dim] and block[dim] == 1 and extent > 1
        ]
        if free:
            block[max(free, key=lambda dim: (extents[dim] / -(-extents[dim] // largest), dim))] = largest
    seen: list[set[tuple[object, ...]]] = [set() for _ in op.buffers]
    for point in product(*(range(extent) for extent in extents)):
        application = tuple(at // size for at, size in zip(point, block, strict=True))
        for number, attr in enumerate(op.maps):
            seen[number].add((application, attr.data.eval(list(point), [])))
    return [len(each) * element_bytes(memref_of(value)) for each, value in zip(seen, op.buffers, strict=True)]


def moves(maps: Sequence[AffineMap]) -> tuple[list[set[int]], list[set[int]]]:
    """For each dim the operands that it moves through, and those along whose last index."""
    used = [{n for n, each in enumerate(maps) if dim in each.used_dims()} for dim in range(maps[0].num_dims)]
    last = [
        {n for n, each in enumerate(maps) if each.results and dim in each.results[-1].used_dims()}
        for dim in range(maps[0].num_dims)
    ]
    return used, last


def assert_agree(module: ModuleOp, weights: WeightStore, monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """Everything that the compiler counts is what the interpreter was seen to do."""
    target = machine_of(module)
    assert target is not None
    counted = Counter[tuple[str, str]]()
    for call in trace_calls(module):
        counted.update({} if call.program is None else call.program.activity)
    witness, issue = Witness(target), Interleaving.issue

    def seen(self: Interleaving, command: IssuedCommand) -> object:
        witness.issued(command)
        return issue(self, command)

    monkeypatch.setattr(Interleaving, "issue", seen)
    inputs = [np.zeros(spec.shape, spec.dtype) for spec in signature_of(module).inputs]
    run_module(module, inputs, weights)
    assert +counted == +witness.seen
    return counted


def compiled(text: str, machine: str) -> tuple[ModuleOp, WeightStore]:
    ctx = make_context()
    module = Parser(ctx, text).parse_module()
    compile_module(module, ctx, machine, "accel")
    return module, ctx.weights


@pytest.mark.parametrize(
    ("text", "machine"),
    sweep(
        [
            *product(
                (CHAIN, CONVOLUTION), ("gemmini-fp32", "rapid-core-like", "smaug-smv", "neural-cluster", "h100-sm")
            ),
        ],
        quick=[(CHAIN, "neural-cluster"), (CONVOLUTION, "gemmini-fp32")],
    ),
)
def test_what_is_counted_of_a_program_is_what_the_interpreter_touches(
    text: str, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = assert_agree(*compiled(text, machine), monkeypatch)
    assert min(counted[READ, DRAM], counted[WRITE, DRAM]) > 0
    assert any(table in OPERATIONS for table, _ in counted)


def test_so_it_is_of_the_digits_network(monkeypatch: pytest.MonkeyPatch) -> None:
    program = load_input(ROOT / "examples" / "digits" / "digits.onnx")
    compile_module(program.module, program.ctx, "gemmini-fp32")
    assert_agree(program.module, program.ctx.weights, monkeypatch)


@pytest.mark.parametrize("seed", sweep(range(40), quick=[0, 1]))
def test_so_it_is_of_random_products(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    m, k, n = (random.randint(1, 70) for _ in range(3))
    end = random.choice(("graph.relu %y", "graph.tanh %y", "graph.add %y, %b"))
    types = f"tensor<{m}x{n}xf32>, tensor<{n}xf32>" if "add" in end else f"tensor<{m}x{n}xf32>"
    text = f"""
      func.func @main(%x: tensor<{m}x{k}xf32>, %w: tensor<{k}x{n}xf32>, %b: tensor<{n}xf32>) -> tensor<{m}x{n}xf32> {{
        %y = graph.matmul %x, %w : (tensor<{m}x{k}xf32>, tensor<{k}x{n}xf32>) -> tensor<{m}x{n}xf32>
        %z = {end} : {f"({types}) -> tensor<{m}x{n}xf32>" if "add" in end else types}
        func.return %z : tensor<{m}x{n}xf32>
      }}"""
    assert_agree(*compiled(text, random.choice(("gemmini-fp32", "rapid-core-like", "smaug-smv"))), monkeypatch)
