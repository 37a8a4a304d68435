# SPDX-License-Identifier: Apache-2.0
"""Random loops and branches around commands: where states are set, no command sees another setting than its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from random import Random

import pytest
from sampling import sweep
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.parser import Parser
from xdsl.rewriter import Rewriter

from penstock.dialects.accel_issue import IssueOp, SetOp
from penstock.dialects.context import make_context
from penstock.dialects.machine import TargetOp
from penstock.lowering.from_machine_toml import load_machine
from penstock.passes.accel.accel_configure import AccelConfigurePass, needs
from penstock.passes.analysis.loops import constant_of

STRIDES = (16, 32, 48, 64)
COMMANDS = ("mvin", "mvout", "gemm", "zero_acc")
TRIPS = (0, 1, 2, 3)
GEMMINI = str(load_machine("gemmini"))


def commands(random: Random, depth: int, numbers: Iterator[int]) -> str:
    """Commands of gemmini, loops and branches, as text."""
    text = ""
    for _ in range(random.randint(1, 4)):
        inner = commands(random, depth - 1, numbers) if depth else ""
        match random.choice(("issue", "issue", "loop", "branch") if depth else ("issue",)):
            case "loop":
                trips = random.choice([*map(str, TRIPS), "n"])
                text += (
                    f"scf.for %i{next(numbers)} = %c0 to %{'' if trips == 'n' else 'c'}{trips} step %c1 {{\n{inner}}}\n"
                )
            case "branch":
                text += f"scf.if %b{next(numbers) % 3} {{\n{inner}}} else {{\n{commands(random, 0, numbers)}}}\n"
            case _:
                text += issue(random)
    return text


def issue(random: Random) -> str:
    """A command with what it needs, of which some is left open."""
    name = random.choice(COMMANDS)
    stride, other = (f"%c{random.choice(STRIDES)}" for _ in range(2))
    fields = {
        "mvin": {"config_ld.stride": stride, "config_ld.column": other},
        "zero_acc": {"config_ld.column": other},
        "mvout": {"config_st.stride": stride},
        "gemm": {"config_ex.a_stride": stride, "config_ex.c_stride": other},
    }[name]
    fields = {key: value for key, value in fields.items() if random.random() < 0.8}
    names = ", ".join(f'"{key}"' for key in fields)
    values = f" ({', '.join(fields.values())} : {', '.join(['index'] * len(fields))})" if fields else ""
    return f"accel.issue @{name} [{names}]{values}\n"


def module_of(seed: int) -> ModuleOp:
    """A kernel of gemmini of random commands."""
    constants = "".join(f"%c{each} = arith.constant {each} : index\n" for each in (*TRIPS, *STRIDES))
    body = commands(Random(seed), 3, count())
    arguments = "%n: index, %b0: i1, %b1: i1, %b2: i1"
    kernel = f"func.func @k({arguments}) attributes {{device = @gemmini}} {{\n{constants}{body}func.return\n}}"
    return Parser(make_context(), f"builtin.module {{\n{GEMMINI}\n{kernel}\n}}").parse_module()


class Machine:
    """What the copies of each state hold while a kernel runs, whose branches go this way or that."""

    def __init__(self, module: ModuleOp, random: Random):
        target, kernel = module.body.block.ops
        assert isinstance(target, TargetOp)
        self.target = target
        self.held: dict[str, dict[int, Mapping[str, int]]] = {name: {} for name in target.states()}
        self.random = random
        self.seen = 0
        self.run(kernel.regions[0].block)

    def run(self, block: Block) -> None:
        for op in block.ops:
            match op:
                case scf.ForOp():
                    end = constant_of(op.ub)
                    for _ in range(self.random.choice(TRIPS) if end is None else end):
                        self.run(op.body.block)
                case scf.IfOp():
                    self.run(self.random.choice(op.regions).block)
                case SetOp():
                    fields = numbers_of(op)
                    self.held[op.part_name][fields.pop("copy", 0)] = fields
                case IssueOp():
                    self.check(op)
                case _:
                    pass

    def check(self, op: IssueOp) -> None:
        values = numbers_of(op)
        for state, needed in needs(op, self.target).items():
            held = self.held[state].get(values.get(state, 0))
            assert held is not None, f"{op} finds {state} unset"
            assert all(held[field] == value for field, value in needed.items()), f"{op} finds {held}"
            self.seen += 1


def numbers_of(op: SetOp | IssueOp) -> dict[str, int]:
    return {name: number for name, value in op.field_values().items() if (number := constant_of(value)) is not None}


@pytest.mark.parametrize("seed", sweep(range(400), range(50)))
def test_every_command_finds_what_it_needs(seed: int) -> None:
    module = module_of(seed)
    AccelConfigurePass().apply(make_context(), module)
    module.verify()
    for way in range(4):
        Machine(module, Random(way))


def test_a_setting_that_is_left_out_is_noticed() -> None:
    """The executor of this file is a check: without any one of the settings of some programs, commands see another."""
    noticed = 0
    for seed in range(8):
        module = module_of(seed)
        AccelConfigurePass().apply(make_context(), module)
        settings: list[Operation] = [op for op in module.walk() if isinstance(op, SetOp)]
        for number in range(len(settings)):
            mutant = module.clone()
            Rewriter.erase_op([op for op in mutant.walk() if isinstance(op, SetOp)][number])
            try:
                for way in range(8):
                    Machine(mutant, Random(way))
            except AssertionError:
                noticed += 1
    assert noticed > 20
