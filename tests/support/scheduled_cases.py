"""
Random kernels under random schedules, through all levels: what is legal keeps every bit, and what is refused changes
nothing.

A case is a kernel and the primitives that `schedule_moves` proposes for it in each section: on the host (tensors,
memrefs, C), a nest of loops alone, or on a machine (down to its commands). At the end of each section the program runs
on the interpreter and equals the one before; commands also run in other orders of their units and are proved free of
hazards, and the cycle model gets through them. The schedule, printed and parsed again, makes the same program.

Integers and sums of small integers in floats are compared bit for bit; floats that are not exact and were reassociated
within `TOLERANCE` of the largest.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tests.support import schedule_moves
from tests.support.loop_programs import loop_program
from tests.support.schedule_moves import Move, apply_moves
from tests.support.tensor_programs import tensor_program
from tests.support.toy_machine import toy_machine
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.dialects.transform import NamedSequenceOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.machine import TargetOp
from penstock.dialects.upstream.scf import ForallOp
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_machine_toml import load_machine, read_machine
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.to_text import module_text
from penstock.passes.analysis.kernels import device_of, kernels, machine_kernels
from penstock.passes.loop.promote import Promotion
from penstock.passes.loop.promote_levels import Routing
from penstock.passes.loop.tensorize import TensorizePass
from penstock.passes.schedule.schedule import COMMANDS, ON_CHIP, SECTIONS, START, Schedule, sequence_of
from penstock.runtime.compiler import passes_for
from penstock.runtime.interpreter import run_module
from penstock.runtime.native import load_native
from penstock.runtime.pass_manager import read_pipeline, run_passes, verify
from penstock.runtime.proofs import prove
from penstock.runtime.schedules import read_schedules, schedules_text
from penstock.runtime.simulator.run import run_program

Array = NDArray[Any]
Op = TypeVar("Op", bound=Operation)

LOOP = SECTIONS[0]
"""The section of the loop level."""
TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float16): 4e-3}
TOYS = 24
"""How many small machines there are."""
SHIPPED = ("gemmini-fp32", "rapid-core-like", "gemmini", "vta-pynq", "smaug-smv", "snax-opengemm", "neural-accelerator")
ORDERS = ("program", "asap", "alap", 0)
"""Of iterations and commands that may happen in several."""
HANDLES = ("transform.structured.match", "transform.split_handle", "transform.cast", "transform.get_parent_op")
"""Ops of schedules that only look."""


class WrongError(AssertionError):
    """A schedule that is not what it should be."""


@dataclass
class Tally:
    """What became of the primitives of many cases, and of the cases."""

    applied: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """By the op and the kind of message."""
    cases: Counter[str] = field(default_factory=Counter[str])
    """How many reached which end, and how often what was checked."""
    examples: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """A seed for each kind of refusal."""

    def add(self, other: Tally) -> None:
        self.applied += other.applied
        self.refused += other.refused
        self.cases += other.cases
        self.examples = {**other.examples, **self.examples}


def kind_of(message: str) -> str:
    """A message without its numbers and names."""
    return re.sub(r'"[^"]*"|@\w+|%\w+|-?\d[\d,.]*', "_", message)[:120]


class Proposed(Schedule):
    """A schedule that counts what is applied and refused, and demands that what is refused changes nothing."""

    def __init__(
        self, kernel: FuncOp, target: TargetOp | None, sequence: NamedSequenceOp | None, tally: Tally, seed: int
    ):
        super().__init__(kernel, target, sequence)
        self._tally, self._seed = tally, seed
        self._known: FuncOp | None = None

    def append(self, op: Op) -> Op:
        """As `Schedule` does."""
        if op.name in HANDLES:
            return super().append(op)
        name, kernel = op.name, self.state.kernel
        before = self._known = self._known or kernel.clone()
        try:
            found = super().append(op)
        except UserError as error:
            kind = name, kind_of(error.message)
            self._tally.refused[kind] += 1
            self._tally.examples.setdefault(kind, self._seed)
            if not kernel.is_structurally_equivalent(before):
                raise WrongError(f"{name} is refused, and changed the kernel: {error.message}") from error
            raise
        self._tally.applied[name] += 1
        self._known = None
        return found


def drawn(module: ModuleOp, seed: int) -> list[Array]:
    """Small integers for the inputs of @main."""
    rng = np.random.default_rng(seed)
    (main,) = (op for op in module.ops if isinstance(op, FuncOp) and op.sym_name.data == "main")
    types = main.function_type.inputs.data
    attributes = main.arg_attrs.data if main.arg_attrs is not None else [None] * len(types)
    given: list[Array] = []
    for type, attribute in zip(types, attributes, strict=True):
        if attribute is None or "graph.output" not in attribute.data:
            shape: Sequence[int] = type.get_shape()  # pyright: ignore
            given.append(rng.integers(-4, 5, shape).astype(numpy_dtype(type.element_type)))  # pyright: ignore
    return given


@dataclass(frozen=True)
class Program:
    """A program before its kernels are scheduled, and what it computes."""

    module: ModuleOp
    inputs: list[Array]
    expected: list[Array]
    passes: tuple[ModulePass, ...] = ()
    """That take it to the commands of its machine."""


def program_of(module: ModuleOp, seed: int, passes: Sequence[ModulePass] = ()) -> Program:
    """A program with inputs."""
    inputs = drawn(module, seed)
    return Program(module, inputs, run_module(module, inputs, WeightStore(), ordered=True), tuple(passes))


@dataclass
class Case:
    """One program under one schedule, on its way down."""

    seed: int
    program: Program
    tally: Tally
    in_c: bool
    random: Random = field(init=False)
    module: ModuleOp = field(init=False)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.module = self.program.module.clone()

    def compare(self, where: str) -> None:
        """Raise WrongError where the module does not verify any more, or computes something else."""
        verify(self.module)
        orders: Sequence[Any] = ("program",)
        if where == "commands" or any(isinstance(op, ForallOp) for op in self.module.walk()):
            orders = ORDERS
        for order in orders:
            results = run_module(self.module, self.program.inputs, WeightStore(), ordered=True, interleaving=order)
            self._require_same(results, f"{where}, in the order {order}")

    def compare_in_c(self) -> None:
        """Raise WrongError where C computes something else."""
        self._require_same(load_native(self.module).run(self.program.inputs), "in C")
        self.tally.cases["also in C"] += 1

    def _require_same(self, results: Sequence[Array], where: str) -> None:
        for found, expected in zip(results, self.program.expected, strict=True):
            if found.dtype == expected.dtype and found.tobytes() == expected.tobytes():
                continue
            tolerance = TOLERANCE.get(expected.dtype)
            largest = np.abs(expected).max(initial=0)
            # Values below this are exact in any order.
            exact = largest < (2048 if expected.dtype == np.float16 else 2**22)
            if tolerance is None or exact or not np.allclose(found, expected, rtol=0, atol=tolerance * largest):
                raise WrongError(f"{where}: other values")
            self.tally.cases["floats within the tolerance"] += 1

    def proposed(self, kernel: FuncOp, target: TargetOp | None, sequence: NamedSequenceOp | None) -> Proposed:
        return Proposed(kernel, target, sequence, self.tally, self.seed)


# the host


def host_program(seed: int) -> Program:
    """A chain of structured ops on tensors."""
    return program_of(parsed(tensor_program(seed, "f32" if seed % 5 == 0 else "i32")), seed)


def host_case(case: Case) -> None:
    """The tensor section, the loop section, memrefs in C."""
    schedule = case.proposed(_named(case.module, "kernel"), None, None)
    apply_moves(schedule, schedule_moves.TENSOR, case.random.randint(2, 6), case.random)
    case.compare("tensors")
    _lower(case.module)
    schedule = case.proposed(_named(case.module, "kernel"), None, schedule.sequence)
    schedule.enter(LOOP)
    apply_moves(schedule, schedule_moves.LOOPS, case.random.randint(1, 5), case.random)
    case.compare("loops")
    _require_round_trip(case, schedule.sequence, "kernel", (START, LOOP))
    _finish_in_c(case)


def loops_program(seed: int) -> Program:
    """A nest of loops around copies, structured ops, loads and stores."""
    return program_of(parsed(loop_program(seed, "f32" if seed % 4 == 0 else "i32")), seed)


def loops_case(case: Case) -> None:
    """Primitives on loops and memrefs."""
    schedule = case.proposed(_named(case.module, "main"), None, None)
    apply_moves(schedule, schedule_moves.LOOPS, case.random.randint(2, 6), case.random)
    case.compare("loops")
    _require_round_trip(case, schedule.sequence, "main", (START,))
    _finish_in_c(case)


def parsed(text: str) -> ModuleOp:
    """A program in text."""
    return parse_text(make_context(), SourceText("program.mlir", text)).module


def _named(module: ModuleOp, name: str) -> FuncOp:
    return next(op for op in module.ops if isinstance(op, FuncOp) and op.sym_name.data == name)


def _lower(module: ModuleOp) -> None:
    run_passes(make_context(), module, read_pipeline(LOOP), verify_each=False)


def _finish_in_c(case: Case) -> None:
    if not case.in_c:
        return
    try:
        run_passes(make_context(), case.module, read_pipeline("forall-to-for,mem-plan"))
    except UserError as error:
        case.tally.cases[f"not in C: {kind_of(error.message)}"] += 1
        return
    case.compare("planned")
    case.compare_in_c()


def _require_round_trip(case: Case, sequence: NamedSequenceOp, name: str, sections: Sequence[str]) -> None:
    """Raise WrongError where the text of a schedule, parsed and applied, makes another program, or other text."""
    ctx = make_context()
    text = schedules_text(ctx, {name: sequence})
    (given,) = parse_text(make_context(), SourceText("schedule.mlir", text)).module.ops
    assert isinstance(given, NamedSequenceOp)
    replayed, again = case.program.module.clone(), None
    for section in sections:
        if section == LOOP:
            _lower(replayed)
        schedule = Schedule(_named(replayed, name), None, again)
        if section != START:
            schedule.enter(section)
        schedule.replay(given, section)
        again = schedule.sequence
    _require_equal(case, replayed, ctx)
    if again is None or schedules_text(ctx, {name: again}) != text:
        raise WrongError("the schedule, applied again, is another text")


def _require_equal(case: Case, replayed: ModuleOp, ctx: PenstockContext) -> None:
    """Raise WrongError where text, applied, made another program; every tenth is compared with its names."""
    if not replayed.is_structurally_equivalent(case.module):
        raise WrongError("the text of the schedule makes another program")
    if case.seed % 10 == 0 and module_text(ctx, replayed) != module_text(ctx, case.module):
        raise WrongError("the text of the schedule makes a program with other names")


# a machine


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
                # A section without ops is the compiler's.
                schedule.match("func.return")
            else:
                schedule.resume()
            apply_moves(schedule, moves, random.randint(1, most), random)

    def loop_section(self) -> None:
        """Loops and scopes at random, what the compiler makes of the rest, and loops again."""
        random, module = self.case.random, self.case.module
        early = random.choice((0, 0, 1, 3))
        for kernel, target in self.kernels(LOOP):
            assert target is not None
            sequence = sequence_of(self.ctx, kernel)
            schedule = self.case.proposed(kernel, target, sequence)
            schedule.enter(LOOP)
            moves = (*schedule_moves.LOOPS, *schedule_moves.SCOPES, *schedule_moves.SCOPES)
            apply_moves(schedule, moves, early, random)
            compiler = Schedule(kernel, target, sequence)
            compiler.resume()
            Promotion(kernel, target).write(compiler)
            Routing(hoist=True, reserve=0.0).write(compiler)
        TensorizePass().apply(self.ctx, module)
        late = random.choice((0, 1, 2, 3))
        for kernel, target in self.kernels(LOOP):
            schedule = self.case.proposed(kernel, target, sequence_of(self.ctx, kernel))
            schedule.resume()
            moves = (*schedule_moves.LOOPS, *schedule_moves.SCOPES)
            apply_moves(schedule, moves, late, random)

    def kernels(self, section: str) -> list[tuple[FuncOp, TargetOp | None]]:
        """The kernels that have a section, and the machine that they run on."""
        target, on_machine = machine_kernels(self.case.module)
        if section != START:
            return [(kernel, target) for kernel in on_machine]
        machine = None if target is None else target.sym_name.data
        found = list(kernels(self.case.module))
        return [(kernel, target if device_of(kernel) == machine else None) for kernel in found]


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
        case.tally.cases[f"ends at {reached}: {kind_of(error.message)}"] += 1
    else:
        _finish_commands(case)
    _require_same_program(case, descent.ctx, refusal)


def _finish_commands(case: Case) -> None:
    """The proofs of a program of commands, its cycles, and C."""
    case.compare("commands")
    prove(case.module)
    if machine_kernels(case.module)[1]:
        if run_program(case.module, verify=False).cycles <= 0:
            raise WrongError("the program takes no cycles")
        case.tally.cases["commands simulated"] += 1
    if case.in_c:
        case.compare_in_c()


def _require_same_program(case: Case, ctx: PenstockContext, refusal: UserError | None) -> None:
    """Raise WrongError where the schedules as text, given to the compiler, make another program."""
    text = schedules_text(ctx, ctx.schedules.applied)
    again = make_context()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "schedules.mlir")
        file.write_text(text, encoding="utf-8")
        again.schedules.given = read_schedules(file)
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
    _require_equal(case, module, ctx)
    if schedules_text(again, again.schedules.applied) != text:
        raise WrongError("the schedules, applied again, are another text")


KINDS: dict[str, tuple[int, Callable[[int], Program], Callable[[Case], None]]] = {
    "host": (14, host_program, host_case),
    "loops": (16, loops_program, loops_case),
    "small machine": (2, toy_program, machine_case),
    "shipped machine": (1, shipped_program, machine_case),
}
"""Of programs: so many of each in turn."""
SCHEDULES = 4
"""Of each program."""


@lru_cache(1)
def _program(number: int) -> tuple[str, Program, Callable[[Case], None]]:
    """A program, its kind, and what is done with it."""
    left = number % sum(share for share, _, _ in KINDS.values())
    for name, (share, make, run) in KINDS.items():
        if left < share:
            return name, make(number), run
        left -= share
    raise AssertionError


def run_case(seed: int, tally: Tally, *, in_c: bool = False) -> None:
    """Raise WrongError where a random schedule is not what it should be."""
    name, program, run = _program(seed // SCHEDULES)
    tally.cases[name] += 1
    run(Case(seed, program, tally, in_c))
