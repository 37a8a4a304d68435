# SPDX-License-Identifier: Apache-2.0
"""
The operators of examples/operators: what they compute beside NumPy, and what that costs beside the graph path.

    python -m benchmarks.operators [--only SECTION]... [--machines NAME]... [--operators NAME]... [--jobs N]

Sections: operators (each at its three sizes on the host and on every shipped machine that has scopes, against NumPy,
and its cycles beside those of the same operator as an ONNX model), attention (512 positions, 64 wide, 8 heads, and
softmax, on rapid-core-like: cycles, bytes off chip, and the largest buffer), time (10,000 lines parsed; all operators
compiled and checked for one machine), lines (four kernels beside what TVM and Triton publish).

Floats are f32, and f16 as well on machines that hold f16. Cycles are simulated for what the machine does; what the host
does is estimated as `assign-devices` estimates it, each block of a loop by itself, with the processor of the machine's
file. The host runs generated C, machines are interpreted. f32 is held to 2e-5 of the largest value, f16 to 2e-3.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import ROOT, Row, limited, once, say, table
from benchmarks.operator_graphs import graph_of
from benchmarks.planning_runs import text_table

sys.path.extend(str(ROOT / folder) for folder in ("examples/operators", "tests/support"))

from operator_cases import FOLDER, HALF, SINGLE, OperatorCase, cases
from reference import OPERATORS
from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Block
from xdsl.passes import ModulePass
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError
from penstock.dialects.mem import RingType, ScopedAllocation
from penstock.lowering.from_kernel.parser import parse_source
from penstock.lowering.from_kernel.syntax import Call, walk
from penstock.lowering.from_machine_toml import load_machine
from penstock.lowering.machine_names import shipped_machines
from penstock.passes.analysis.commands.traffic import traffic
from penstock.passes.analysis.kernels import HOST, device_of, kernels, machine_of
from penstock.passes.analysis.loops import trip_count
from penstock.passes.tensor.partition import Segment, cycles_of
from penstock.runtime.compiler import LoadedProgram, compile_module, import_program
from penstock.runtime.engine import Backend, Engine
from penstock.runtime.pass_manager import run_passes
from penstock.runtime.pipeline import passes_for
from penstock.runtime.signature import signature_of
from penstock.runtime.simulator.run import run_program
from penstock.tools.main import run

if TYPE_CHECKING:
    from penstock.dialects.machine import TargetOp

MAX_RATIO = 1.1
SAME_TYPES = "default, -storage-type"
"""The graph path without the pass that stores f32 in f16: what a kernel does in f32 is compared with f32."""
SHOWN = 25
"""The worst rows of a table that are printed."""


@dataclass(frozen=True)
class Task:
    """An operator on a machine, or on the host alone."""

    machine: str | None
    element: str
    name: str
    number: int

    @property
    def case(self) -> OperatorCase:
        """The operator at its sizes."""
        operator = next(each for each in OPERATORS if each.name == self.name)
        return OperatorCase(operator, self.number, self.element)

    @property
    def place(self) -> str:
        """The machine and the type, in a table."""
        return self.machine or "host"


@dataclass(frozen=True)
class Cost:
    """What a program takes: cycles that are simulated, and those that the host is estimated to take."""

    simulated: int
    host: float | None
    """None where the machine's file does not describe the host."""
    kernels: int
    """Calls on the machine."""
    moved: int
    """Bytes off chip."""

    @property
    def cycles(self) -> float:
        return self.simulated + (self.host or 0)


@dataclass
class Outcome:
    """What became of a task."""

    task: Task
    refused: str = ""
    wrong: str = ""
    ours: Cost | None = None
    graph: Cost | None = None
    no_graph: str = ""
    """Why the model is not compiled."""

    @property
    def ratio(self) -> float | None:
        """Our cycles over those of the graph path; None where neither has any that are known."""
        if self.ours is None or self.graph is None or not self.graph.cycles or not self.graph.kernels:
            return None
        return self.ours.cycles / self.graph.cycles


@dataclass
class HostWork:
    """An observer: the cycles that the host's kernels are estimated to take, before they are tiled."""

    cycles: float | None = None

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None: ...

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        target = machine_of(module)
        if module_pass.name != "assign-devices" or target is None or (processor := target.processor()) is None:
            return
        calls = Counter(op.callee.string_value() for op in module.walk() if isinstance(op, func.CallOp))
        self.cycles = 0.0
        for kernel in kernels(module):
            if device_of(kernel) == HOST:
                for block, times in _blocks(kernel.body.block):
                    segment = Segment(False, [op for op in block.ops if isinstance(op, GenericOp)])
                    self.cycles += calls[kernel.sym_name.data] * times * cycles_of(segment, {}, target, processor)


def _blocks(block: Block, times: int = 1) -> Iterator[tuple[Block, int]]:
    """A block and those of the loops in it, each with how often it runs."""
    yield block, times
    for op in block.ops:
        if isinstance(op, scf.ForOp):
            yield from _blocks(op.body.block, times * (trip_count(op) or 1))


def compiled(program: LoadedProgram, machine: str | None) -> tuple[LoadedProgram, Engine, Cost | None]:
    """A program compiled in place, ready to run, and what it costs on its machine."""
    signature, work = signature_of(program.module), HostWork()
    compile_module(program.module, program.ctx, machine, observers=[work])
    # The interpreter refuses what is read from a scope before it is written there.
    backend: Backend = "native" if machine is None else "interpreter"
    engine = Engine(program.module, program.ctx, signature, backend, verify=False)
    return program, engine, None if machine is None else cost_of(program.module, work)


def cost_of(module: ModuleOp, work: HostWork) -> Cost:
    """What a compiled program takes on its machine."""
    run, moved = run_program(module), traffic(module)
    return Cost(run.cycles, work.cycles, len(run.order), moved.bytes_in + moved.bytes_out)


def through_graph(case: OperatorCase, machine: str) -> Cost:
    """The same operator as an ONNX model."""
    program, work = import_program(graph_of(case), {}), HostWork()
    run_passes(program.ctx, program.module, passes_for(program.module, "accel", machine, SAME_TYPES), observers=[work])
    return cost_of(program.module, work)


def outcome_of(task: Task) -> Outcome:
    """Compile an operator, run it, and compile its model."""
    found, case = Outcome(task), task.case
    try:
        _, engine, found.ours = compiled(case.program(), task.machine)
    except UserError as error:
        found.refused = error.message
        return found
    try:
        case.compare(engine.run(case.arguments))
    except (AssertionError, UserError) as error:
        found.wrong = " ".join(str(error).split())
    if task.machine is not None:
        try:
            found.graph = through_graph(case, task.machine)
        except UserError as error:
            found.no_graph = error.message
    return found


def machines_with_scopes() -> list[str]:
    """The shipped machines that have memories of their own."""
    return [name for name in shipped_machines() if not load_machine(name).is_host and load_machine(name).scopes()]


def elements_of(machine: str | None) -> tuple[str, ...]:
    """The floats to compare on a machine."""
    target: TargetOp | None = None if machine is None else load_machine(machine)
    halves = target is None or any(HALF in map(str, scope.dtypes) for scope in target.scopes().values())
    return (SINGLE, HALF) if halves else (SINGLE,)


def operators(args: argparse.Namespace) -> Sequence[str]:
    """Values beside NumPy's, cycles beside the graph path's."""
    places: list[str | None] = [None if name == "host" else name for name in args.machines or ()]
    tasks = [
        Task(machine, element, case.operator.name, case.number)
        for machine in places or [None, *machines_with_scopes()]
        for element in elements_of(machine)
        for case in cases(element)
        if not args.operators or case.operator.name in args.operators
    ]
    done: list[Outcome] = []
    with ProcessPoolExecutor(args.jobs) as pool:
        for number, found in enumerate(pool.map(outcome_of, tasks, chunksize=8), 1):
            done.append(found)
            if number % 210 == 0 or number == len(tasks):
                say(f"operators: {number:,} of {len(tasks):,}")
    return [*_values(done), *_cycles(done)]


def _values(done: Sequence[Outcome]) -> list[str]:
    rows: list[Sequence[object]] = []
    misses: list[str] = []
    for place, element in dict.fromkeys((each.task.place, each.task.element) for each in done):
        here = [each for each in done if (each.task.place, each.task.element) == (place, element)]
        wrong, refused = [each for each in here if each.wrong], [each for each in here if each.refused]
        there = sum(each.ours is not None and each.ours.kernels > 0 for each in here)
        equal = len(here) - len(wrong) - len(refused)
        rows.append((place, element, len(here), equal, len(wrong), len(refused), there if place != "host" else None))
        misses += [f"{_words(each.task)}: {(each.wrong or each.refused)[:200]}" for each in (*wrong, *refused)]
    head = ("machine", "floats", "operators x sizes", "equal to NumPy's", "wrong", "refused", "partly on the machine")
    print(text_table("Values", head, rows))
    return misses


def _cycles(done: Sequence[Outcome]) -> list[str]:
    compared = [(ratio, each) for each in done if (ratio := each.ratio) is not None]
    rows: list[Sequence[object]] = []
    for place, element in dict.fromkeys((each.task.place, each.task.element) for _, each in compared):
        ratios = sorted(ratio for ratio, each in compared if (each.task.place, each.task.element) == (place, element))
        above = sum(ratio > MAX_RATIO for ratio in ratios)
        middle = f"{ratios[len(ratios) // 2]:.3f}"
        rows.append((place, element, len(ratios), f"{ratios[0]:.3f}", middle, f"{ratios[-1]:.3f}", above))
    head = ("machine", "floats", "compared", "least", "median", "most", f"above {MAX_RATIO}")
    print(text_table("Cycles over those of the graph path, where it has some on the machine", head, rows))
    for each in done:
        if each.no_graph:
            print(f"no cycles of the graph path, which refuses it: {_words(each.task)}: {each.no_graph}")
    compared.sort(key=lambda each: -each[0])
    rows = []
    for ratio, each in compared[:SHOWN]:
        assert each.ours is not None
        assert each.graph is not None
        costs = [number for cost in (each.ours, each.graph) for number in (cost.simulated, _rounded(cost.host))]
        rows.append((each.task.place, each.task.element, each.task.name, _sizes(each.task), *costs, f"{ratio:.3f}"))
    head = ("machine", "floats", "operator", "sizes", "simulated", "host", "graph's", "host", "ratio")
    print(text_table("The worst of them", head, rows))
    return [f"{_words(each.task)}: {ratio:.3f} of the graph path" for ratio, each in compared if ratio > MAX_RATIO]


def _rounded(cycles: float | None) -> int | None:
    return None if cycles is None else round(cycles)


def _sizes(task: Task) -> str:
    return _words_of(list(task.case.sizes.values()))


def _words(task: Task) -> str:
    return f"{task.name} {_sizes(task)}, {task.element}, {task.place}"


# attention

CHECKED_ON = "gemmini-fp32"
CORE = "rapid-core-like"
LENGTH, WIDTH, HEADS = 512, 64, 8
LARGE = (
    ("attention_half", {"H": HEADS, "S": LENGTH, "D": WIDTH, "BQ": LENGTH, "BK": 128}),
    ("softmax_half", {"N": 4096, "M": LENGTH, "B": 256}),
)
"""Kernels in the form that the machine's intrinsics take, and their sizes."""


def attention(args: argparse.Namespace) -> Sequence[str]:
    """Attention and softmax at the size of a network, beside the graph path."""
    rows: list[Sequence[object]] = []
    misses: list[str] = []
    for name, sizes in LARGE:
        say(f"operators: {name}")
        kernel = replace(next(each for each in OPERATORS if each.name == name), sizes=[sizes])
        program, _, ours = compiled(OperatorCase(kernel, 0).program(), CORE)
        graph = through_graph(OperatorCase(kernel, 0), CORE)
        assert ours is not None
        shapes = _allocated(program.module)
        squares = [shape for shape in shapes if name.startswith("attention") and sum(n >= LENGTH for n in shape) > 1]
        compared = (
            ("cycles", ours.simulated, graph.simulated),
            ("cycles with those of the host", round(ours.cycles), round(graph.cycles)),
            ("bytes off chip", ours.moved, graph.moved),
        )
        rows += [(name, what, one, other, f"{one / other:.3f}") for what, one, other in compared]
        largest = _words_of(max(shapes, key=prod, default=()))
        words = ", ".join(map(_words_of, squares)) or "none"
        rows += [(name, "largest buffer", largest, None, None), (name, "buffers of S x S", words, None, None)]
        misses += [f"{name}: {what} {one / other:.3f}" for what, one, other in compared if one > MAX_RATIO * other]
        misses += [f"{name}: a buffer of {words}"] if squares else []
    head = ("kernel", CORE, "ours", "the graph path's", "ratio")
    print(text_table(f"{LENGTH} positions of {WIDTH}, {HEADS} heads", head, rows))
    return misses


def _words_of(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _allocated(module: ModuleOp) -> list[tuple[int, ...]]:
    """The shapes of all buffers of a program, on chip and off."""
    shapes: list[tuple[int, ...]] = []
    for op in module.walk():
        if isinstance(op, ScopedAllocation | memref.AllocOp):
            type = op.storage.type if isinstance(op, ScopedAllocation) else op.memref.type
            type = type.slot if isinstance(type, RingType) else type
            assert isa(type, MemRefType)
            shapes.append(type.get_shape())
    return shapes


# time

LINES = 10_000


def timed(args: argparse.Namespace) -> Sequence[str]:
    """CPU seconds of parsing, and of compiling and checking every operator."""
    lines = [line for path in sorted(FOLDER.glob("*.pk")) for line in path.read_text().splitlines()]
    whole = (lines * (LINES // len(lines) + 1))[:LINES]
    whole = whole[: max(number for number, line in enumerate(whole) if line == "}") + 1]
    dense = [line for line in lines if " = " in line and line.startswith("    ") and not line.endswith("{")]
    dense = (dense * (LINES // len(dense) + 1))[: LINES - 2]
    texts = {"of the operators": whole, "of their statements alone": ["kernel f() -> (f32 y) {", *dense, "}"]}
    rows: list[Row] = []
    parse_source("kernel f(f32 x) -> (f32 y) {\n    y = x\n}\n")
    for what, each in texts.items():
        seconds = min(once(lambda text="\n".join(each): parse_source(text)) for _ in range(3))
        rows.append(limited(f"{len(each):,} lines {what} parsed", seconds, 5))

    def check_all() -> None:
        for operator in OPERATORS:
            sizes = [word for name, size in operator.sizes[0].items() for word in ("--dim", f"{name}={size}")]
            file = str(FOLDER / f"{operator.file}.pk")
            status = run(["check", file, "--kernel", operator.name, *sizes, "--machine", CHECKED_ON, "-q"])
            assert status == 0, operator.name

    say(f"operators: checking {len(OPERATORS)}")
    rows.append(limited(f"{len(OPERATORS)} operators compiled and checked for {CHECKED_ON}", once(check_all), 120))
    print("\nTime\n" + table(rows))
    return [f"{row.what}: {row.ours:.1f} s" for row in rows if not row.met]


# lines


@dataclass(frozen=True)
class Published:
    """A kernel as others publish it, and its lines: without empty ones, comments, docstrings and tuning lists."""

    lines: int
    place: str
    what: str = ""


TVM, TRITON, GEMS = "apache/tvm", "triton-lang/triton", "flagos-ai/FlagGems"
LEGALIZED = "python/tvm/relax/transform/legalize_ops/nn.py"
BESIDE: Sequence[tuple[str, int, Published, Published]] = (
    (
        "softmax",
        8,
        Published(47, f"{TVM} 060e40fcc5ee python/tvm/topi/nn/softmax.py", "softmax_common"),
        Published(17, f"{TRITON} 066e1eb8c33a python/tutorials/02-fused-softmax.py", "softmax_kernel"),
    ),
    (
        "matmul_bias_gelu",
        12,
        Published(
            30,
            f"{TVM} 01640b2462cd python/tvm/topi/nn/dense.py, 00f0b164c0fd {LEGALIZED}",
            "dense and te_gelu",
        ),
        Published(
            43,
            f"{TRITON} 7649d87cce6c python/tutorials/03-matrix-multiplication.py",
            "matmul_kernel and leaky_relu: no bias, and another activation",
        ),
    ),
    (
        "depthwise",
        12,
        Published(47, f"{TVM} 00ac0ca15fe7 python/tvm/topi/nn/depthwise_conv2d.py", "depthwise_conv2d_nhwc: no bias"),
        Published(
            117,
            f"{GEMS} 24bf03cd7f48 src/flag_gems/ops/conv2d.py",
            "conv2d_forward_kernel, which its depthwise convolution calls",
        ),
    ),
    (
        "attention",
        25,
        Published(
            43,
            f"{TVM} 00f0b164c0fd {LEGALIZED}",
            "_te_attention: masks, too, and with the scores in memory",
        ),
        Published(
            119,
            f"{TRITON} dc6ee3ed2cf9 python/tutorials/06-fused-attention.py",
            "_attn_fwd_inner and _attn_fwd: causal, too, and what a gradient needs",
        ),
    ),
)
"""Our kernel, how many lines it may have, and the forms of TVM and of Triton, each as of a commit."""


def lines_of(name: str) -> int:
    """The lines of a kernel of examples/operators with the functions that it calls, without empty ones and comments."""
    operator = next(each for each in OPERATORS if each.name == name)
    source = parse_source((FOLDER / f"{operator.file}.pk").read_text())
    text = (FOLDER / f"{operator.file}.pk").read_text().splitlines()
    definitions = {each.name: each for each in source.definitions}
    calls = {each.function for each in walk(definitions[name]) if isinstance(each, Call)}
    count = 0
    for each in (definitions[called] for called in (name, *sorted(calls)) if called in definitions):
        last = each.last_line or max(part.at.line for part in walk(each))
        lines = [line.strip() for line in text[each.at.line - 1 : last]]
        count += sum(bool(line) and not line.startswith("#") for line in lines)
    return count


def counted(args: argparse.Namespace) -> Sequence[str]:
    """The lines of four kernels beside what others publish."""
    rows: list[Sequence[object]] = []
    misses: list[str] = []
    for name, most, tvm, triton in BESIDE:
        own = lines_of(name)
        rows.append((name, own, most, tvm.lines, triton.lines))
        misses += [f"{name}: {own} lines, more than {most}"] if own > most else []
    print(text_table("Lines", ("kernel", "ours", "at most", "TVM", "Triton"), rows))
    for name, _, *others in BESIDE:
        for each in others:
            print(f"{name}: {each.place} ({each.what})")
    return misses


SECTIONS = {"operators": operators, "attention": attention, "time": timed, "lines": counted}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=tuple(SECTIONS), help="a section; all by default")
    parser.add_argument("--machines", action="append", metavar="NAME", help='a machine, or "host"; all by default')
    parser.add_argument("--operators", action="append", metavar="NAME", help="an operator; all by default")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that compile operators (1)")
    args = parser.parse_args()
    misses = [miss for name in args.only or SECTIONS for miss in SECTIONS[name](args)]
    for miss in misses:
        print(f"MISSED: {miss}")
    print(f"{len(misses)} misses (must: 0)")


if __name__ == "__main__":
    main()
