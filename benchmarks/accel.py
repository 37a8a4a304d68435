# SPDX-License-Identifier: Apache-2.0
"""
The accelerator level: cycles, traffic and tokens of what the compiler makes, beside what is published.

    python -m benchmarks.accel [--only SECTION]... [--layers C2,C6]

Sections: layers (ResNet-18's convolutions on vta-pynq, at depth 1 with the best tiles for that and at the depth that
is chosen), resnets (those and the others of ResNet-50 and -101: modelled and simulated), variants (ResNet-18, -34, -50
v2 and -101 v2 on VTA as each of its sources has it), overlap (whole networks with their kernels
merged, and what overlap could gain at most), exact (each of ResNet-18's
executed, beside NumPy), models (what the two models say of every kernel of the smaller networks, beside the
simulator), products (1024 x 1024 x 1024 on every machine, in its own types), fusion (convolutions with an
epilogue: fused, an op a kernel, and as `assign-devices` decides), depthwise (on machines with products of matrices
only: each channel by itself, and in blocks), stems (first convolutions, of three channels and of
more without a stride), network (what vta-pynq runs of ResNet-18: seconds to
prove and to simulate it, cycles, what the host runs), tokens (how many say nothing). Every figure of cycles is of
commands that are proved free of hazards.

"As instructions" is the same program encoded for VTA: with loads of micro-operations and empty carriers of tokens.
T* is the time of the busiest unit or bus alone. "Of peak" counts multiply-accumulates only. Published: apache/tvm-vta's
pipelined RTL, simulated, takes 7,729,601 cycles for the same layers with their multiplicities, 85.7 % of the peak;
latency hiding of TVM (OSDI 2018) takes the peak utilisation on VDLA from 70 % to 88 %.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from tests.accel.redundancy import redundant_operands
from xdsl.dialects.builtin import ModuleOp

from benchmarks.accel_programs import (
    BOTTLENECKS,
    DEPTHWISE,
    FIRST,
    FOLDS_SCALES,
    FUSED,
    LAYERS,
    RESNETS,
    STEMS,
    depthwise_convolution,
    first_convolution,
    product,
    scaled_convolution,
)
from benchmarks.measure import ROOT, say
from benchmarks.networks import network as whole_network
from benchmarks.planning_runs import text_table
from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.context import PenstockContext, make_context
from penstock.lowering.from_machine_toml import load_machine
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.machine_names import shipped_machines
from penstock.lowering.to_vta.module import encode_module
from penstock.lowering.to_vta.stream import program_of
from penstock.passes.analysis.commands.hazards import check
from penstock.passes.analysis.commands.trace import trace_calls
from penstock.passes.analysis.kernels import PIPELINING, TILING, machine_kernels
from penstock.runtime.compiler import compile_module, import_program
from penstock.runtime.engine import Engine
from penstock.runtime.levels import level_of
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline
from penstock.runtime.signature import signature_of
from penstock.runtime.simulator import simulate
from penstock.runtime.simulator.figures import Figures, total_of
from penstock.runtime.simulator.run import run_program
from penstock.runtime.simulator.workloads import Workloads

MACHINE = "vta-pynq"
PUBLISHED, PUBLISHED_PEAK, LIMIT = 7_729_601, 0.857, 6_623_232
SIDE = 1024
NETWORKS = (
    ("resnet18_int8", "vta-pynq"),
    ("bert_layer", "gemmini-fp32"),
    ("mobilenet_v1", "gemmini-fp32"),
    ("shufflenet", "gemmini-fp32"),
    ("resnet50", "rapid-core-like"),
    ("squeezenet", "h100-sm"),
    ("squeezenet", "smaug-smv"),
)
"""Whose kernels are modelled and simulated."""
OVERLAPPED = (
    ("bert_layer", "rapid-core-like"),
    ("mobilenet_v2", "rapid-core-like"),
    ("mobilenet_v2", "gemmini-fp32"),
    ("resnet18_int8", "vta-pynq"),
)
"""Whole networks whose kernels are merged."""
VARIANTS = ("vta-pynq", "vta-rtl", "vta-hls")
NEAR = 0.02
"""How far the model may be from the simulation."""


@dataclass(frozen=True)
class Compiled:
    """A program at the accelerator level, and the figures of one run."""

    module: ModuleOp
    ctx: PenstockContext
    figures: Figures
    compile_seconds: float
    simulate_seconds: float


def specs(machine: str, start: str, *, depth: int | None) -> str:
    """The compiler's own passes; with a `depth`, tiles that are best for it, and so many slots everywhere."""
    found = list(pipeline("accel", machine, start=start))
    if depth is not None:
        found = [f"tile{{depth={depth}}}" if spec.split("{")[0] == "tile" else spec for spec in found]
        found = [
            spec for spec in found if not (depth == 1 and spec.split("{")[0] in ("multi-buffer", "accel-pipeline"))
        ]
    return ",".join(found)


def lowered(text: str, machine: str, *, depth: int | None = None) -> tuple[ModuleOp, PenstockContext, Workloads]:
    """A program in text at the accelerator level."""
    ctx = make_context()
    module = parse_text(ctx, SourceText("program.mlir", text)).module
    start = level_of(module)
    attach_machine(module, machine)
    workloads = Workloads()
    run_passes(ctx, module, read_pipeline(specs(machine, start, depth=depth)), observers=[workloads])
    return module, ctx, workloads


def compiled(text: str, machine: str, *, depth: int | None = None) -> Compiled:
    """A program in text, compiled and simulated; raises UserError for a hazard, or if the host runs it all."""
    started = time.perf_counter()
    module, ctx, workloads = lowered(text, machine, depth=depth)
    between = time.perf_counter()
    figures = total_of(run_program(module, workloads))
    return Compiled(module, ctx, figures, between - started, time.perf_counter() - between)


def stream_cycles(module: ModuleOp) -> tuple[int, int, int]:
    """The cycles, instructions and micro-operations of VTA's own stream, in which those are loaded, too."""
    encoded = encode_module(module)
    launches = [step.instructions for step in encoded.steps if step.instructions is not None]
    cycles = sum(simulate(program_of(each, encoded.target)).cycles for each in launches)
    return cycles, sum(map(len, launches)), len(encoded.micro_ops.data) // 4


# sections


def layers(chosen: Sequence[str]) -> None:
    """Cycles and bytes of each layer, at depth 1 and at the depth that the planner chooses."""
    rows: list[Sequence[object]] = []
    sums = [0.0] * 9
    for name in chosen:
        layer = LAYERS[name]
        single, auto = (compiled(layer.text, MACHINE, depth=depth) for depth in (1, None))
        say(f"accel: {name}: {auto.compile_seconds:.1f} s to compile")
        one, best = single.figures, auto.figures
        stream, instructions, micro_ops = stream_cycles(auto.module)
        traffic = best.traffic
        rows.append(
            (
                name, layer.times, layer.macs // 256, one.cycles, _percent(layer.macs, one.cycles), best.cycles,
                _percent(layer.macs, best.cycles), f"{best.ratio:.3f}", traffic.bytes,
                _ratio(traffic.bytes, traffic.compulsory), _ratio(traffic.bytes, layer.published_bytes), best.commands,
                stream, instructions, micro_ops,
            )
        )  # fmt: skip
        parts = (layer.macs / 256, one.cycles, best.cycles, float(best.ideal), traffic.bytes, traffic.compulsory or 0)
        for number, part in enumerate((*parts, layer.published_bytes, float(one.ideal), stream)):
            sums[number] += layer.times * part
    limit, one_cycles, cycles, ideal, moved, compulsory, known, _, streams = sums
    rows.append(
        (
            "all", sum(LAYERS[name].times for name in chosen), round(limit), round(one_cycles),
            f"{limit / one_cycles:.1%}", round(cycles), f"{limit / cycles:.1%}", f"{cycles / ideal:.3f}", round(moved),
            _ratio(moved, compulsory), _ratio(moved, known), None, round(streams), None, None,
        )
    )  # fmt: skip
    head = (
        "layer", "times", "limit, cycles", "depth 1", "of peak", "auto", "of peak", "T / T*", "bytes", "/ compulsory",
        "/ best tiling known", "commands", "as instructions", "of them", "micro-ops",
    )  # fmt: skip
    print(text_table(f"ResNet-18's convolutions on {MACHINE}", head, rows))
    if len(chosen) == len(LAYERS):
        print(
            f"total {cycles:,.0f} cycles: {cycles / PUBLISHED:.3f} of the published {PUBLISHED:,} (limit {LIMIT:,}; "
            f"{PUBLISHED_PEAK:.1%} of peak there, {limit / cycles:.1%} here); must be at most 7,500,000 (aimed at: "
            f"7,000,000); T / T* {cycles / ideal:.3f} (1.11; 1.05); bytes {_ratio(moved, compulsory)} of compulsory "
            "(1.20; 1.149)"
        )
        print(f"latency hiding: {limit / one_cycles:.1%} -> {limit / cycles:.1%} of peak (TVM's paper: 70 % -> 88 %)")


def resnets(_: Sequence[str]) -> None:
    """T / T* of every convolution that ResNet-18, -34, -50 and -101 have, and what the planner's model says of it."""
    rows: list[Sequence[object]] = []
    furthest = worst = 0.0
    for name, layer in {**LAYERS, **BOTTLENECKS}.items():
        found = compiled(layer.text, MACHINE)
        cycles, (tiles, pipeline) = found.figures.cycles, modelled_cycles(found.module)
        furthest = max(furthest, *(abs(each / cycles - 1) for each in (tiles, pipeline)))
        worst = max(worst, float(found.figures.ratio))
        cells = (tiles, f"{tiles / cycles - 1:+.1%}", pipeline, f"{pipeline / cycles - 1:+.1%}")
        rows.append((name, *cells, cycles, f"{found.figures.ratio:.3f}", _percent(layer.macs, cycles)))
        say(f"accel: {name}: {found.figures.ratio:.3f}")
    head = ("layer", "by tile", "", "by accel-pipeline", "", "simulated, cycles", "T / T*", "of peak")
    print(text_table(f"Convolutions of ResNet-18, -34, -50 and -101 on {MACHINE}", head, rows))
    print(f"model and simulation differ by {furthest:.1%} at most (5 %); T / T* {worst:.3f} at most")


def variants(_: Sequence[str]) -> None:
    """The cycles of the convolutions of four networks on VTA as three sources have it, planned for each."""
    known = {**LAYERS, **BOTTLENECKS}
    needed = list(dict.fromkeys(name for counts in RESNETS.values() for name in counts))
    rows: list[Sequence[object]] = []
    cycles: dict[tuple[str, str], int] = {}
    for name in needed:
        for machine in VARIANTS:
            cycles[name, machine] = compiled(known[name].text, machine).figures.cycles
        say(f"accel: {name}: {', '.join(f'{cycles[name, machine]:,}' for machine in VARIANTS)}")
    for network, counts in RESNETS.items():
        limit = sum(count * known[name].macs // 256 for name, count in counts.items())
        cells: list[object] = []
        for machine in VARIANTS:
            total = sum(count * cycles[name, machine] for name, count in counts.items())
            cells += [total, f"{limit / total:.1%}"]
        rows.append((network, sum(counts.values()), limit, *cells))
    head = ("network", "convolutions", "limit, cycles", *(each for m in VARIANTS for each in (m, "of peak")))
    print(text_table("Convolutions behind the first one, on VTA as its sources have it", head, rows))


def overlap(_: Sequence[str]) -> None:
    """What merging kernels of whole networks gains, beside what there is to gain."""
    rows: list[Sequence[object]] = []
    for name, machine in OVERLAPPED:
        found: list[Figures] = []
        for merged in (False, True):
            program = import_program(whole_network(name)[0], {})
            attach_machine(program.module, machine)
            specs = list(pipeline("accel", machine))
            if merged:
                specs.insert(specs.index("accel-pipeline") + 1, "merge-kernels")
            run_passes(program.ctx, program.module, read_pipeline(",".join(specs)), parsed=program.parsed)
            found.append(total_of(run_program(program.module)))
            say(f"accel: {name} on {machine}: {found[-1].cycles:,} cycles")
        before, after = found
        busiest = max((*before.buses.values(), *(each["busy"] for each in before.units.values())))
        gain, alone, most = (1 - each / before.cycles for each in (after.cycles, float(before.ideal), busiest))
        limits = (round(before.ideal), f"{alone:.2%}", busiest, f"{most:.2%}")
        rows.append((name, machine, before.cycles, after.cycles, f"{gain:.2%}", *limits))
    head = (
        "network",
        "machine",
        "apart, cycles",
        "merged",
        "gained",
        "sum of T*",
        "",
        "busiest, whole",
        "no more than",
    )
    print(text_table("Kernels of whole networks, apart and merged", head, rows))


def modelled_cycles(module: ModuleOp) -> tuple[int, int]:
    """What `tile` and `accel-pipeline` expect of the only kernel of a module."""
    _, (kernel,) = machine_kernels(module)
    return _modelled(str(kernel.attributes[TILING])), _modelled(str(kernel.attributes[PIPELINING]))


def _modelled(words: str) -> int:
    return int(words.split("modelled ")[1].split(" cycles")[0].replace(",", ""))


def models(_: Sequence[str]) -> None:
    """What `tile` and `accel-pipeline` expect of each kernel of the smaller networks, beside the simulation."""
    rows: list[Sequence[object]] = []
    far = kernels = 0
    for name, machine in NETWORKS:
        program = import_program(whole_network(name, small=True)[0], {})
        compile_module(program.module, program.ctx, machine, "accel")
        words = {each.sym_name.data: each.attributes for each in machine_kernels(program.module)[1]}
        for run in run_program(program.module).kernels:
            said = words[run.kernel]
            if PIPELINING not in said:
                continue
            cycles = run.simulation.cycles
            tiles = _modelled(str(said[TILING])) if "modelled" in str(said.get(TILING)) else None
            pipeline = _modelled(str(said[PIPELINING]))
            kernels, far = kernels + 1, far + (abs(pipeline / cycles - 1) > NEAR)
            apart = [None if each is None else f"{each / cycles - 1:+.1%}" for each in (tiles, pipeline)]
            rows.append((name, machine, run.kernel, tiles, apart[0], pipeline, apart[1], cycles))
        say(f"accel: {name} on {machine}: {far} of {kernels} kernels so far are further than {NEAR:.0%}")
    head = ("network", "machine", "kernel", "by tile", "", "by accel-pipeline", "", "simulated, cycles")
    print(text_table("Kernels of the smaller networks", head, rows))
    print(f"by accel-pipeline, {far} of {kernels} kernels are further than {NEAR:.0%} from the simulation")


def exact(chosen: Sequence[str]) -> None:
    """Each layer executed as C at the accelerator level, beside NumPy."""
    rows: list[Sequence[object]] = []
    for name in chosen:
        layer = LAYERS[name]
        ctx = make_context()
        module = parse_text(ctx, SourceText("program.mlir", layer.text)).module
        signature = signature_of(module)
        attach_machine(module, MACHINE)
        run_passes(ctx, module, read_pipeline(specs(MACHINE, "tensor", depth=None)))
        inputs = layer.draw(np.random.default_rng(0))
        (found,) = Engine(module, ctx, signature, "native").run(inputs, {})
        expected = layer.evaluate(*inputs)
        different = np.count_nonzero(found != expected)
        rows.append(
            (name, expected.size, np.count_nonzero(expected), different, "bit for bit" if not different else "NO")
        )
    print(text_table("Executed, beside NumPy", ("layer", "numbers", "not 0", "different", ""), rows))


def products(_: Sequence[str]) -> None:
    """T / T* of a square matrix product on every machine, in the types that its intrinsics multiply."""
    rows: list[Sequence[object]] = []
    for machine in shipped_machines():
        target = load_machine(machine)
        contractions = [each for each in target.intrinsics().values() if each.macs_per_issue()]
        elements = dict.fromkeys(str(each.operand_specs()[0].dtype) for each in contractions)
        if not elements:
            rows.append((machine, None, None, None, None, None, "no intrinsic multiplies and adds"))
        for element in elements:
            found = compiled(product(SIDE, element), machine)
            note = ""
            if not found.figures.macs.issued and element == "i8":
                note = "shifted, cut off, stored in 8 bits: 32 are not stored"
                found = compiled(product(SIDE, element, narrowed=True), machine)
            figures = found.figures
            useful = figures.macs.useful or 0
            if useful < SIDE**3:
                note = f"{useful / SIDE**3:.0%} of the products on the machine"
            ratio = f"{figures.ratio:.3f}" if useful else None
            rows.append((machine, element, figures.cycles, ratio, figures.commands, found.compile_seconds, note))
            say(f"accel: {machine}, {element}: {ratio}")
    head = ("machine", "type", "cycles", "T / T*", "commands", "compile, s", "")
    print(text_table(f"{SIDE} x {SIDE} x {SIDE} (T / T* at most 1.11; aimed at: 1.03)", head, rows))


def epilogue_cycles(machine: str, channels: int, size: int, groups: int) -> tuple[int, int, int]:
    """The cycles of a 3x3 convolution with its epilogue: fused, an op a kernel, and as `assign-devices` decides."""
    text = scaled_convolution(channels, size, groups)
    cycles: list[int] = []
    for swapped in (
        {"assign-devices": "assign-devices{weigh-fusion=false}"},
        {"graph-fuse": "graph-fuse{max-ops=1}"},
        {},
    ):
        specs = [swapped.get(spec, spec) for spec in pipeline("accel", machine) if spec not in FOLDS_SCALES]
        ctx = make_context()
        module = parse_text(ctx, SourceText("program.mlir", text)).module
        attach_machine(module, machine)
        run_passes(ctx, module, read_pipeline(",".join(specs)))
        cycles.append(run_program(module).cycles)
    fused, single, decided = cycles
    return fused, single, decided


def fusion(_: Sequence[str]) -> None:
    """
    A convolution with a scale, an offset and a rectifier: the cycles fused, of single ops, and as it is decided.

    On a machine that multiplies f16, single ops store f16 between kernels, and an epilogue that is cut off reads f32.
    """
    rows: list[Sequence[object]] = []
    for machine, channels, size, groups in FUSED:
        fused, single, ours = epilogue_cycles(machine, channels, size, groups)
        kind = "depthwise" if groups == channels else "dense"
        rows.append(
            (machine, f"{channels}x{size}x{size}", kind, fused, single, ours, f"{ours / min(fused, single):.3f}")
        )
        say(f"accel: fusion: {machine}, {kind}: {ours:,}")
    head = ("machine", "image", "3x3", "fused", "an op a kernel", "ours", "/ the better one")
    print(text_table("Cycles of a convolution with its epilogue", head, rows))


def depthwise(_: Sequence[str]) -> None:
    """A 3x3 convolution of each channel of 14x14: the cycles of one by one, and of several as one product."""
    rows: list[Sequence[object]] = []
    for machine, channels, element in DEPTHWISE:
        cycles: list[int] = []
        for left_out in ("block-diagonal", ""):
            ctx = make_context()
            text = depthwise_convolution(channels, 14, element)
            module = parse_text(ctx, SourceText("program.mlir", text)).module
            attach_machine(module, machine)
            kept = [spec for spec in pipeline("accel", machine) if spec != left_out]
            run_passes(ctx, module, read_pipeline(",".join(kept)))
            cycles.append(run_program(module).cycles)
        alone, joined = cycles
        rows.append((machine, channels, alone, joined, f"{alone / joined:.1f}"))
        say(f"accel: depthwise: {machine}: {joined:,}")
    print(text_table("Cycles of a depthwise convolution", ("machine", "channels", "alone", "in blocks", "x"), rows))


def stems(_: Sequence[str]) -> None:
    """
    The first convolution of an image: the cycles of the machine, and with those of its host, of three channels and of
    as many more as the stride allows.
    """
    rows: list[Sequence[object]] = []
    for machine, element in FIRST:
        for name, stem in STEMS.items():
            cells: list[int | None] = []
            for left_out in ("space-to-depth", ""):
                ctx = make_context()
                text = first_convolution(stem, 224, element)
                module = parse_text(ctx, SourceText("program.mlir", text)).module
                attach_machine(module, machine)
                kept = [spec for spec in pipeline("accel", machine) if spec != left_out]
                run_passes(ctx, module, read_pipeline(",".join(kept)))
                run = run_program(module, verify=False)
                cells += [run.cycles, None if run.time is None else run.time.serial]
            before, both, after, all_after = cells
            ratios = [
                f"{one / other:.2f}" if one and other else None for one, other in ((before, after), (both, all_after))
            ]
            rows.append((machine, name, before, after, ratios[0], both, all_after, ratios[1]))
            say(f"accel: stems: {machine}, {name}: {before:,} {after:,}")
    head = ("machine", "kernel / stride, channels", "alone", "deep", "x", "with the host", "deep", "x")
    print(text_table("Cycles of the first convolution of 3 x 224 x 224", head, rows))


def network(_: Sequence[str]) -> None:
    """The whole of ResNet-18 that the machine runs."""
    sys.path.insert(0, str(ROOT / "examples" / "networks"))
    import zoo  # pyright: ignore[reportMissingImports]

    model = zoo.NETWORKS["resnet18_int8"](0)  # pyright: ignore
    started = time.perf_counter()
    program = import_program(model, {})  # pyright: ignore
    attach_machine(program.module, MACHINE)
    workloads = Workloads()
    run_passes(program.ctx, program.module, read_pipeline(specs(MACHINE, "graph", depth=None)), observers=[workloads])
    seconds = time.perf_counter() - started
    calls = list(trace_calls(program.module))
    steps: list[tuple[str, float]] = [("compile", seconds)]
    before = time.perf_counter()
    kernels = {call.program for call in trace_calls(program.module) if call.program is not None}
    steps.append(("trace", time.perf_counter() - before))
    before = time.perf_counter()
    hazards = sum(len(check(kernel)) for kernel in kernels)
    steps.append((f"check: {hazards} hazards", time.perf_counter() - before))
    before = time.perf_counter()
    cycles = sum(simulate(call.program).cycles for call in calls if call.program is not None)
    steps.append((f"simulate: {cycles:,} cycles", time.perf_counter() - before))
    print(text_table("ResNet-18 in 8 bits, 224 x 224", ("", "s"), steps))
    total = sum(seconds for _, seconds in steps[1:])
    on_machine = sum(call.program is not None for call in calls)
    print(f"trace, check and simulate: {total:.1f} s (30 s; aimed at: 5 s); {on_machine} kernels on the machine")
    host = dict.fromkeys(call.function for call in calls if call.program is None)
    for function in host:
        remark = function.attributes.get("device_remark")
        print(f"  host: @{function.sym_name.data}: {remark}")


def tokens(chosen: Sequence[str]) -> None:
    """The tokens that can be left out, at depth 1 and at the depth that is chosen."""
    rows: list[Sequence[object]] = []
    for name in chosen:
        cells: list[object] = [name]
        for depth in (1, None):
            module, _, _ = lowered(LAYERS[name].text, MACHINE, depth=depth)
            target, functions = machine_kernels(module)
            assert target is not None
            commands = [op for function in functions for op in function.walk() if isinstance(op, DmaOp | ExecOp)]
            found = [redundant_operands(function, target) for function in functions]
            cells += [sum(len(op.dependencies) for op in commands), sum(map(len, found))]
        rows.append(cells)
    head = ("layer", "depth 1: tokens", "redundant", "auto: tokens", "redundant")
    print(text_table("Tokens, and those of a transitive reduction (at most 5 %; aimed at: 0)", head, rows))
    every, superfluous = (sum(row[at] + row[at + 2] for row in rows) for at in (1, 2))  # pyright: ignore
    print(f"redundant: {superfluous} of {every}")


def _percent(macs: int, cycles: int) -> str:
    return f"{macs / 256 / cycles:.1%}"


def _ratio(part: float, whole: float | None) -> str | None:
    return f"{part / whole:.3f}" if whole else None


SECTIONS: dict[str, Callable[[Sequence[str]], None]] = {
    "layers": layers,
    "resnets": resnets,
    "variants": variants,
    "overlap": overlap,
    "exact": exact,
    "models": models,
    "products": products,
    "fusion": fusion,
    "depthwise": depthwise,
    "stems": stems,
    "network": network,
    "tokens": tokens,
}


def main() -> int:
    """Run the sections that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="SECTION", choices=list(SECTIONS), help="one of several")
    parser.add_argument("--layers", metavar="NAMES", help="only these convolutions, with commas between them")
    args = parser.parse_args()
    chosen: list[str] = args.layers.split(",") if args.layers else list(LAYERS)
    if unknown := [name for name in chosen if name not in LAYERS]:
        parser.error(f"there is no layer {unknown[0]}: {', '.join(LAYERS)}")
    for name, section in SECTIONS.items():
        if not args.only or name in args.only:
            section(chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
