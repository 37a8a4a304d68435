# SPDX-License-Identifier: Apache-2.0
"""
Schedules: what the compiler decides, written down and applied again; and schedules by hand, beside its own.

    python -m benchmarks.schedules [--only SECTION]... [--before PYTHON] [--count N] [--seed S]

Sections: replay (the smaller networks on machines: the program from the printed schedules is the same, byte for byte),
hand (GEMM 1024 and ResNet-18's convolutions: the cycles of the schedules in examples/schedules, beside the compiler's
own, aimed at within 3 %), time (CPU seconds of the passes that decide, and of those how many in the model; with
`--before`, the interpreter of an environment with another version of Penstock, also theirs), random (random kernels
under random schedules through all levels, `--count` of them from case `--seed` on: none may compute anything else; see
tests/support/scheduled_cases.py).

    python -m benchmarks.schedules --only random --count 20000
"""

from __future__ import annotations

import argparse
import gc
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.scheduled_cases import Tally, run_case

from benchmarks.accel_programs import LAYERS, Layer, product
from benchmarks.measure import ROOT, say
from benchmarks.networks import network
from benchmarks.planning_runs import text_table
from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.machine_names import shipped_machines
from penstock.lowering.to_text import module_text
from penstock.runtime.compiler import compile_module, load_input
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import run_passes
from penstock.runtime.pipeline import passes_for
from penstock.runtime.schedules import read_schedules, schedules_text
from penstock.runtime.simulator.figures import Figures, total_of
from penstock.runtime.simulator.run import run_program
from penstock.runtime.simulator.workloads import Workloads

FOLDER = ROOT / "examples" / "schedules"
MACHINES = ("vta-pynq", "gemmini-fp32", "rapid-core-like")
CONVOLUTIONS = {f"C{n}": Layer(56, 64, 64, 1, 1) if n == 3 else LAYERS[f"C{n}"] for n in range(2, 13)}
SIDE = 1024
MAX_LINES = 25
MAX_RATIO = 1.03
DECIDING = ("tile", "promote", "promote-levels", "tensorize", "multi-buffer", "accel-pipeline")

REPLAYED = ("digits", "squeezenet", "mobilenet_v1", "resnet50", "bert_layer", "lstm", "int8_cnn", "resnet18_int8")
IN_C = 50
"""One random case of so many also runs in C."""
LONGEST_SECONDS = 300
"""After which a random case counts as one that does not end."""
COLLECTED = 200
"""Random cases between two collections of garbage."""
TIMED = (("bert_layer", "gemmini-fp32"), ("resnet50", "rapid-core-like"), ("mobilenet_v1", "gemmini-fp32"))


def programs(machine: str) -> Iterator[tuple[str, str]]:
    """GEMM and the convolutions in the types of a machine, by name."""
    element = {"vta-pynq": "i8", "gemmini-fp32": "f32", "rapid-core-like": "f16"}[machine]
    yield "GEMM", product(SIDE, element, narrowed=element == "i8")
    for name, layer in CONVOLUTIONS.items():
        yield name, layer.text if element == "i8" else layer.channels_last(element, "f32")


def simulated(text: str, machine: str, schedule: Path | None = None) -> Figures:
    """The figures of a program in text, under a schedule of its kernels or the compiler's own."""
    ctx = make_context()
    module = parse_text(ctx, SourceText("program.mlir", text)).module
    attach_machine(module, machine)
    if schedule is not None:
        ctx.schedules.given = read_schedules(schedule)
    workloads = Workloads()
    run_passes(ctx, module, passes_for(module, "accel", None), observers=[workloads])
    return total_of(run_program(module, workloads))


def hand(_: argparse.Namespace) -> None:
    """Cycles of schedules by hand, beside the compiler's own."""
    rows: list[Sequence[object]] = []
    missed = 0
    for machine in MACHINES:
        for name, text in programs(machine):
            file = FOLDER / machine / f"{name.lower()}.mlir"
            own, lines = simulated(text, machine), len(file.read_text().splitlines())
            try:
                given = simulated(text, machine, file)
            except UserError as error:
                say(f"schedules: {error}")
                missed += 1
                rows.append((machine, name, own.cycles, "refused", "-", "-", lines))
                continue
            ratio = given.cycles / own.cycles
            missed += ratio > MAX_RATIO or lines > MAX_LINES
            say(f"schedules: {machine} {name}: {ratio:.3f}")
            rows.append((machine, name, own.cycles, given.cycles, f"{ratio:.3f}", f"{given.ratio:.3f}", lines))
    head = ("machine", "program", "compiler's, cycles", "by hand", "ratio", "T / T*", "lines")
    print(text_table("Schedules by hand", head, rows))
    print(f"{missed} of {len(rows)} are above {MAX_RATIO} of the compiler's cycles or {MAX_LINES} lines (must: 0)")


def _model(name: str, folder: Path) -> Path:
    import onnx

    if name == "digits":
        return ROOT / "examples" / "digits" / "digits.onnx"
    file = folder / f"{name}.onnx"
    if not file.exists():
        onnx.save(network(name, small=True)[0], file)
    return file


def _compiled(model: Path, machine: str, schedules: Path | None = None) -> tuple[str, PenstockContext]:
    program = load_input(model)
    if schedules is not None:
        program.ctx.schedules.given = read_schedules(schedules)
    compile_module(program.module, program.ctx, machine)
    return module_text(program.ctx, program.module), program.ctx


def replay(_: argparse.Namespace) -> None:
    """The program from the compiler's own schedules, as text, beside the program without."""
    rows: list[Sequence[object]] = []
    different = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in REPLAYED:
            model = _model(name, Path(folder))
            for machine in shipped_machines():
                if name != "digits" and machine not in MACHINES:
                    continue
                text, ctx = _compiled(model, machine)
                file = Path(folder, "schedules.mlir")
                written = schedules_text(ctx, ctx.schedules.applied)
                file.write_text(written)
                again, ctx = _compiled(model, machine, file)
                same = again == text and schedules_text(ctx, ctx.schedules.applied) == written
                different += not same
                say(f"schedules: {name} on {machine}: {'the same' if same else 'DIFFERENT'}")
                ops = sum(len(sequence.body.block.ops) for sequence in ctx.schedules.applied.values())
                rows.append((name, machine, len(ctx.schedules.applied), ops, "same" if same else "different"))
    print(text_table("Replayed", ("network", "machine", "kernels", "ops of schedules", "program"), rows))
    print(f"{different} of {len(rows)} programs differ (must: 0)")


MEASURE = """
import gc, sys, time
from collections import Counter
import penstock.passes.accel.pipelining.model as commands
import penstock.passes.planning.tile_cost as tiles
from penstock.runtime.compiler import compile_module, load_input

class Clock:
    seconds, modelling, name = Counter(), Counter(), None

    def before(self, module_pass, module):
        gc.collect()
        gc.disable()
        Clock.name, self.started = module_pass.name, time.process_time()

    def after(self, module_pass, module):
        self.seconds[module_pass.name] += time.process_time() - self.started
        gc.enable()

def counted(function):
    def call(*args, **named):
        started = time.process_time()
        try:
            return function(*args, **named)
        finally:
            Clock.modelling[Clock.name] += time.process_time() - started
    return call

for module in tiles, commands:
    for name in "time_of", "skewed", "skewed_nest":
        if hasattr(module, name):
            setattr(module, name, counted(getattr(module, name)))
program, clock = load_input(sys.argv[1]), Clock()
compile_module(program.module, program.ctx, sys.argv[2], observers=[clock])
for name in sys.argv[3:]:
    print(clock.seconds[name], clock.modelling[name], sum(1 for _ in program.module.walk()))
"""
"""
Of each pass its seconds, verification after it included, those of them in the model of latency hiding, and the ops of
the program in the end. It runs in versions without schedules, too.
"""
RUNS = 5


def _timed_once(python: str, model: Path, machine: str) -> list[tuple[float, float, int]]:
    command = [python, "-c", MEASURE, str(model), machine, *DECIDING]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [(float(a), float(b), int(c)) for a, b, c in (line.split() for line in lines)]


def timed(args: argparse.Namespace) -> None:
    """CPU seconds of deciding and applying, the least of several runs for each pass."""
    before: str | None = args.before
    rows: list[Sequence[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, machine in TIMED:
            model = _model(name, Path(folder))
            runs: dict[str, list[list[tuple[float, float, int]]]] = {
                python: [] for python in (sys.executable, before) if python is not None
            }
            for _ in range(RUNS):
                for python, found in runs.items():
                    found.append(_timed_once(python, model, machine))
            # Of each version: for each pass the run with the fewest seconds.
            least = [[min(each) for each in zip(*found, strict=True)] for found in runs.values()]
            for number, each in enumerate((*DECIDING, "all")):
                sums = [passes if each == "all" else [passes[number]] for passes in least]
                cells: list[object] = []
                for passes in sums:
                    seconds, modelling = sum(one[0] for one in passes), sum(one[1] for one in passes)
                    cells += [f"{seconds:.3f}", f"{modelling:.3f}", passes[0][2]]
                cells += [None] * (6 - len(cells))
                theirs = sum(one[0] for one in sums[1]) if before is not None else 0
                ratio = f"{sum(one[0] for one in sums[0]) / theirs:.2f}" if theirs else None
                rows.append((name, machine, each, *cells, ratio))
            say(f"schedules: {name} on {machine}: {rows[-1][3]} s")
    head = ("network", "machine", "pass", "CPU s", "in the model", "ops", "before", "in the model", "ops", "ratio")
    print(text_table("Deciding and applying (ratio of all: at most 1.0)", head, rows))
    print("a better search costs seconds in the model, and more where its programs have more ops; the rest is applying")


def random(args: argparse.Namespace) -> None:
    """Random kernels under random schedules; what goes wrong is said at once, and an interrupt ends it earlier."""
    tally, wrong, started = Tally(), 0, time.process_time()
    signal.signal(signal.SIGALRM, _does_not_end)
    gc.disable()  # a fifth of the time: what a case makes is dropped with it, or soon after
    done = 0
    try:
        for done in range(1, args.count + 1):
            seed = args.seed + done - 1
            signal.alarm(LONGEST_SECONDS)
            try:
                run_case(seed, tally, in_c=seed % IN_C == 0)
            except Exception as error:
                wrong += 1
                print(f"WRONG: case {seed}: {type(error).__name__}: {error}", flush=True)
            if done % COLLECTED == 0:
                gc.collect()
                say(f"schedules: {done:,} cases, {_counts(tally, wrong, started)}")
    except KeyboardInterrupt:
        done -= 1
    signal.alarm(0)
    gc.enable()
    print(text_table("Cases and their ends", ("cases", "number"), tally.cases.most_common()))
    rows: list[Sequence[object]] = []
    for name in sorted({*tally.applied, *(name for name, _ in tally.refused)}):
        refused = sum(count for (each, _), count in tally.refused.items() if each == name)
        applied = tally.applied[name]
        rows.append((name, applied, refused, f"{100 * refused / (applied + refused):.0f} %"))
    print(text_table("Primitives", ("primitive", "applied", "refused", "refused"), rows))
    for kind, count in tally.refused.most_common():
        print(f"{count:6,} {': '.join(kind)} (case {tally.examples[kind]})")
    print(f"{done:,} cases from {args.seed}: {_counts(tally, wrong, started)}")


def _does_not_end(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"it does not end within {LONGEST_SECONDS} s")


def _counts(tally: Tally, wrong: int, started: float) -> str:
    applied, refused, seconds = tally.applied.total(), tally.refused.total(), time.process_time() - started
    return (
        f"{applied:,} primitives applied, {refused:,} refused without a change, {wrong} wrong (must: 0), "
        f"{seconds:.0f} CPU s"
    )


SECTIONS = {"replay": replay, "hand": hand, "time": timed, "random": random}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=tuple(SECTIONS), help="a section; all by default")
    parser.add_argument("--before", metavar="PYTHON", help="the Python of an environment with another version")
    parser.add_argument("--count", type=int, default=500, metavar="N", help="random cases (500)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the first random case (0)")
    args = parser.parse_args()
    for name in args.only or SECTIONS:
        SECTIONS[name](args)


if __name__ == "__main__":
    main()
