# SPDX-License-Identifier: Apache-2.0
"""Random schedules of programs on machines, small ones that are made up and shipped ones, down to the commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random

from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import TargetOp
from penstock.dialects.upstream.transform import GeneralizeOp
from penstock.lowering.from_machine_toml import load_machine, read_machine
from penstock.lowering.from_text import SourceText
from penstock.passes.analysis.kernels import device_of, kernels, machine_kernels
from penstock.passes.loop.promote import Promotion
from penstock.passes.loop.promote_levels import Routing
from penstock.passes.loop.tensorize import TensorizePass
from penstock.passes.schedule.deciding import sequence_of
from penstock.passes.schedule.schedule import Schedule
from penstock.passes.schedule.sections import COMMANDS, LOOPS, ON_CHIP, START, decides
from penstock.runtime.pass_manager import run_passes
from penstock.runtime.pipeline import passes_for
from penstock.runtime.proofs import prove
from penstock.runtime.schedules import read_schedules, schedules_text
from penstock.runtime.simulator.run import run_program
from penstock.tools.fuzz import schedule_moves
from penstock.tools.fuzz.schedule_moves import Move, apply_moves
from penstock.tools.fuzz.scheduled_programs import (
    Case,
    Program,
    WrongError,
    kind_of,
    parsed,
    program_of,
    require_equal,
)
from penstock.tools.fuzz.tensor_programs import tensor_program
from penstock.tools.fuzz.toy_machine import toy_machine

PROOFS = ("mem-verify", "accel-check-hazards")
"""Passes that refuse what no schedule may have made."""
TOYS = 24
"""How many small machines there are."""
SHIPPED = ("gemmini-fp32", "rapid-core-like", "gemmini", "vta-pynq", "smaug-smv", "snax-opengemm", "neural-accelerator")


@cache
def _toy(number: int) -> TargetOp:
    target, faults = read_machine("toy.toml", toy_machine(number))
    assert target is not None, faults
    assert not faults, faults
    return target


@cache
def _shipped(name: str) -> TargetOp:
    return load_machine(name)


LAYERS = {
    "layer": """func.func @main(%x: tensor<MxKxT>, %w: tensor<KxNxT>, %b: tensor<NxA>) -> tensor<MxNxA> {
      %p = graph.matmul %x, %w ACC : (tensor<MxKxT>, tensor<KxNxT>) -> tensor<MxNxA>
      %s = graph.add %p, %b : (tensor<MxNxA>, tensor<NxA>) -> tensor<MxNxA>
      %r = graph.relu %s : tensor<MxNxA>
      func.return %r : tensor<MxNxA>
    }""",
    "product": """func.func @main(%x: tensor<MxKxT>, %w: tensor<KxNxT>) -> tensor<MxNxA> {
      %p = graph.matmul %x, %w ACC : (tensor<MxKxT>, tensor<KxNxT>) -> tensor<MxNxA>
      func.return %p : tensor<MxNxA>
    }""",
    "residual": """func.func @main(%x: tensor<MxKxT>, %w: tensor<KxNxT>, %c: tensor<MxNxA>) -> tensor<MxNxA> {
      %p = graph.matmul %x, %w ACC : (tensor<MxKxT>, tensor<KxNxT>) -> tensor<MxNxA>
      %s = graph.add %p, %c : (tensor<MxNxA>, tensor<MxNxA>) -> tensor<MxNxA>
      func.return %s : tensor<MxNxA>
    }""",
    "convolution": """func.func @main(%x: tensor<1xKxMxMxT>, %w: tensor<NxKx3x3xT>) -> tensor<1xNxMxMxA> {
      %c = graph.conv %x, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] ACC
          : (tensor<1xKxMxMxT>, tensor<NxKx3x3xT>) -> tensor<1xNxMxMxA>
      func.return %c : tensor<1xNxMxMxA>
    }""",
}
"""Small layers, with letters for their dims and their types."""


def layer(random: Random, machine: str) -> str:
    """A small layer in the types of a machine."""
    is_integer = machine in ("gemmini", "vta-pynq", "snax-opengemm")
    narrow, wide, accumulate = ("i8", "i32", "accumulate i32") if is_integer else ("f32", "f32", "")
    name = random.choice(list(LAYERS))
    text = LAYERS[name].replace("ACC", accumulate).replace("xT>", f"x{narrow}>").replace("xA>", f"x{wide}>")
    for letter in "MNK":
        most = 9 if name == "convolution" and letter == "M" else 40
        size = random.choice((random.randint(3, most), 8 if most < 16 else random.choice((8, 16, 32))))
        text = re.sub(rf"(?<=[<x]){letter}(?=x)", str(size), text)
    return text


def toy_program(seed: int) -> Program:
    """A chain of structured ops on a small machine."""
    return _on_machine(tensor_program(seed, is_named=True), _toy(Random(seed).randrange(TOYS)), seed)


def shipped_program(seed: int) -> Program:
    """A small layer on a machine that is shipped."""
    random = Random(seed)
    name = random.choice(SHIPPED)
    return _on_machine(layer(random, name), _shipped(name), seed)


def _on_machine(text: str, target: TargetOp, seed: int) -> Program:
    """A program with its devices assigned; what is decided before does not depend on schedules."""
    module = parsed(text)
    Rewriter.insert_op(target.clone(), InsertPoint.at_start(module.body.block))
    passes = passes_for(module, "accel", None)
    first = next(number for number, each in enumerate(passes) if each.name == "tile")
    run_passes(make_context(), module, passes[:first])
    return program_of(module, seed, passes[first:])


@dataclass
class Descent:
    """The way of one program down to the commands of its machine."""

    case: Case
    ctx: PenstockContext = field(default_factory=make_context)

    def section(self, name: str, passes: Sequence[ModulePass], moves: Sequence[Move], most: int) -> None:
        """What the compiler decides, then random primitives; or the one without the other."""
        random, module = self.case.random, self.case.module
        mode = random.choice(("own", "own", "both", "compiler"))
        if mode != "own":
            for each in passes:
                each.apply(self.ctx, module)
        if mode == "compiler":
            return
        for kernel, target in self.kernels(name):
            schedule = self.case.proposed(kernel, target, sequence_of(self.ctx, kernel))
            if mode == "own":
                schedule.enter(name)
            apply_moves(schedule, moves, random.randint(1, most), random)
            if not decides(schedule.sequence, name):
                _decide_nothing(schedule, name)

    def loop_section(self) -> None:
        """Loops and scopes at random, what the compiler makes of the rest, and loops again."""
        random, module = self.case.random, self.case.module
        early = random.choice((0, 0, 1, 3))
        for kernel, target in self.kernels(LOOPS):
            sequence = sequence_of(self.ctx, kernel)
            schedule = self.case.proposed(kernel, target, sequence)
            schedule.enter(LOOPS)
            moves = (*schedule_moves.LOOPS, *schedule_moves.SCOPES, *schedule_moves.SCOPES)
            if target is None:
                continue
            apply_moves(schedule, moves, early, random)
            compiler = Schedule(kernel, target, sequence)
            Promotion(kernel, target).write(compiler)
            Routing(hoist=True, reserve=0.0).write(compiler)
        TensorizePass().apply(self.ctx, module)
        late = random.choice((0, 1, 2, 3))
        for kernel, target in self.kernels(ON_CHIP):
            schedule = self.case.proposed(kernel, target, sequence_of(self.ctx, kernel))
            moves = (*schedule_moves.LOOPS, *schedule_moves.SCOPES)
            apply_moves(schedule, moves, late, random)

    def kernels(self, section: str) -> list[tuple[FuncOp, TargetOp | None]]:
        """The kernels that have a section, and the machine that they run on."""
        target, on_machine = machine_kernels(self.case.module)
        if section not in (START, LOOPS):
            return [(kernel, target) for kernel in on_machine]
        machine = None if target is None else target.sym_name.data
        found = list(kernels(self.case.module))
        return [(kernel, target if device_of(kernel) == machine else None) for kernel in found]


def _decide_nothing(schedule: Schedule, section: str) -> None:
    """Let a section say that all stays as it is: one without such an op is the compiler's."""
    if section == COMMANDS:
        schedule.pipeline(fixed_offsets=True)
    elif known := schedule_moves.generics(schedule):
        schedule.append(GeneralizeOp(known[0][0]))


def machine_case(case: Case) -> None:
    """All sections, down to the commands."""
    descent, reached = Descent(case), "tensors"
    steps: dict[str, tuple[str, Callable[[ModulePass], None]]] = {
        "tile": ("tensors", lambda each: descent.section(START, [each], schedule_moves.TENSOR, 3)),
        "promote": ("loops", lambda _: descent.loop_section()),
        "multi-buffer": ("on chip", lambda each: descent.section(ON_CHIP, [each], schedule_moves.ON_CHIP, 3)),
        "accel-pipeline": ("commands", lambda each: descent.section(COMMANDS, [each], schedule_moves.COMMANDS, 3)),
    }
    refusal: UserError | None = None
    try:
        for each in case.program.passes:
            if each.name in ("promote-levels", "tensorize"):
                continue
            where, step = steps.get(each.name, (None, None))
            if each.name in PROOFS:
                _prove(each, descent, reached)
                continue
            if where is None or step is None:
                each.apply(descent.ctx, case.module)
                continue
            reached = where
            step(each)
            if where != "commands":
                case.compare(where)
    except UserError as error:
        # What is legal may still be too large for a scope, or be no intrinsic.
        refusal = error
        case.refusal = f"ends at {reached}: {kind_of(error.message)}"
    else:
        _finish_commands(case)
    _require_same_program(case, descent.ctx, refusal)


def _prove(proof: ModulePass, descent: Descent, reached: str) -> None:
    """Raise WrongError where what was made of legal primitives is not proved."""
    try:
        proof.apply(descent.ctx, descent.case.module)
    except UserError as error:
        raise WrongError(f"{proof.name}, after {reached}: {error.loc}: {error.message}") from error


def _finish_commands(case: Case) -> None:
    """The proofs of a program of commands, its cycles, and C."""
    case.compare("commands")
    prove(case.module)
    if machine_kernels(case.module)[1]:
        if run_program(case.module, verify=False).cycles <= 0:
            raise WrongError("the program takes no cycles")
        case.tally.cases["commands simulated"] += 1
    case.compare_compiled()


def _require_same_program(case: Case, ctx: PenstockContext, refusal: UserError | None) -> None:
    """Raise WrongError where the schedules as text, given to the compiler, make another program."""
    text = schedules_text(ctx, ctx.schedules.applied)
    again = make_context()
    again.schedules.given = read_schedules(SourceText("schedules.mlir", text))
    module = case.program.module.clone()
    try:
        for each in case.program.passes:
            each.apply(again, module)
    except UserError as error:
        if refusal is None:
            raise WrongError(f"the text of the schedules is refused: {error.message} {error.loc}") from error
        return
    if refusal is not None:
        return  # what the compiler could not finish it may now decide from the start
    require_equal(case, module, ctx)
    if schedules_text(again, again.schedules.applied) != text:
        raise WrongError("the schedules, applied again, are another text")
