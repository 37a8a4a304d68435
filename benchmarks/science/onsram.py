# SPDX-License-Identifier: Apache-2.0
"""
What stays on chip between operators: OnSRAM's twelve networks, in a model of the graph and through the compiler.

In the model an operator takes the longer of computing, at the machine's peak, and moving what it reads and writes:
16-bit tensors, batch 1, weights read once and not kept, a double buffer of up to 64 KiB for what is streamed. Batch
normalisations are folded. A rectifier or a sum is an operator of its own, or, fused, part of the one before it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from benchmarks.lifetimes import Lifetimes, on_chip_problem
from benchmarks.measure import say
from benchmarks.networks import network
from benchmarks.planning_runs import geomean, text_table
from benchmarks.science.plots import Bars
from benchmarks.science.study import Found, Study
from benchmarks.science.sweeping import swept
from penstock.dialects.graph import ConvOp, FusedOp, GemmOp, MatmulOp, tensor_of
from penstock.passes.planning.on_chip.pinning import step_bytes, step_time, unlimited
from penstock.passes.planning.on_chip.problem import OnChipAllocation, OnChipProblem, TensorAccess
from penstock.passes.planning.on_chip.registry import decide

FOLDED = "simplify,fold-batch-norm,fold-scale,fold-constants,value-dce"
STRATEGIES = ("one-step", "onsram-static", "onsram-eager", "sweep")
NAMES = {"one-step": "one step", "onsram-static": "static", "onsram-eager": "eager", "sweep": "ours"}


def run(study: Study, *, long: bool) -> Found:
    """The tables of both, and geometric means."""
    found = Found()
    published: Mapping[str, list[Any]] = study.values["published"]
    operators, fused, slower = _modelled(study)
    for strategy in ("infinite", *STRATEGIES):
        found.figures[strategy] = geomean(each[strategy] for each in operators.values())
    for strategy in ("onsram-static", "onsram-eager"):
        found.figures[f"{strategy}, most"] = max(each[strategy] for each in operators.values())
    found.figures["infinite, fused"] = geomean(each["infinite"] for each in fused.values())
    found.figures["infinite, slower"] = geomean(slower.values())
    heads = ("network", "as published", "infinite", "published", "one step", "published", "static", "eager", "ours")
    for title, gains in (("an operator a node", operators), ("fused by graph-fuse", fused)):
        rows: list[tuple[object, ...]] = []
        for name, (theirs, infinite, one_step) in published.items():
            cells = [f"{gains[name][each]:.2f}" for each in ("infinite", *STRATEGIES)]
            rows.append((name, theirs, cells[0], f"{infinite:.2f}", cells[1], f"{one_step:.2f}", *cells[2:]))
        found.tables.append(text_table(f"Times as fast as with nothing kept, {title}", heads, rows))
    series: dict[str, list[float | None]] = {
        "infinite": [each["infinite"] for each in operators.values()],
        "static": [each["onsram-static"] for each in operators.values()],
        "eager": [each["onsram-eager"] for each in operators.values()],
        "infinite, published": [infinite for _, infinite, _ in published.values()],
    }
    labels = [theirs for theirs, _, _ in published.values()]
    title = "A scratchpad managed between operators, graph-level model"
    found.plots["onsram"] = Bars(title, "times as fast", labels, series, frozenset({"infinite, published"}))
    if long:
        _compiled(study, found)
    return found


def model_of(name: str, study: Study) -> Any:
    """A network of the zoo, or one step of the language model."""
    if name != "ptb_lstm":
        return network(name)[0]
    network("lstm", small=True)  # puts its neighbours where they are found
    lstm: Callable[..., Any] = importlib.import_module("lstm").lstm
    return lstm(seed=study.seed, **study.values["ptb_lstm"])


Gains = dict[str, dict[str, float]]
"""For each network by how much each strategy makes it faster."""


def _modelled(study: Study) -> tuple[Gains, Gains, dict[str, float]]:
    """With an operator a node; with fused operators; and of a memory without end where they reach half the peak."""
    operators, fused, slower = Gains(), Gains(), dict[str, float]()
    for name in study.values["published"]:
        model = model_of(name, study)
        for gains, fuse in ((operators, False), (fused, True)):
            problem = problem_of(graph_of(model, fuse=fuse), study)
            baseline = total_time(problem, decide(problem, "none"))
            times = {"infinite": total_time(problem, unlimited(problem))}
            times |= {each: total_time(problem, decide(problem, each)) for each in STRATEGIES}
            gains[name] = {each: baseline / time for each, time in times.items()}
            if not fuse:
                longer = replace(problem, compute=tuple(2 * each for each in problem.compute))
                slower[name] = total_time(longer, decide(longer, "none")) / total_time(longer, unlimited(longer))
        say(f"science: onsram: {name}")
    return operators, fused, slower


def graph_of(model: Any, *, fuse: bool) -> Any:
    """@main of a model after graph passes."""
    from penstock.runtime.compiler import import_program
    from penstock.runtime.pass_manager import read_pipeline, run_passes
    from penstock.runtime.signature import main_function

    program = import_program(model, {})
    run_passes(program.ctx, program.module, read_pipeline(FOLDED + (",graph-fuse" if fuse else "")))
    return main_function(program.module)


def problem_of(main: Any, study: Study) -> OnChipProblem:
    """A network as the publication's machine would have it."""
    values = study.values
    buffer = values["double_buffer"]
    found = on_chip_problem(
        main,
        values["on_chip"],
        Lifetimes(2, weights="used"),
        time=lambda op: operations(op) / values["operations"],
        bandwidth=values["bandwidth"],
    )

    def staged(access: TensorAccess, size: int, is_weight: bool) -> TensorAccess:
        return replace(access, may_reside=not is_weight, staging=min(size, buffer))

    tensors = tuple(
        replace(
            tensor,
            accesses=tuple(staged(access, tensor.size, tensor.kind.startswith("weight")) for access in tensor.accesses),
        )
        for tensor in found.tensors
    )
    return replace(found, tensors=tensors)


def operations(op: Any) -> float:
    """Multiplications and additions of an operator, or of a group; one for each element of what is no contraction."""
    if isinstance(op, FusedOp):
        return sum(operations(inner) for inner in op.body.block.ops if inner.results)
    result = prod(tensor_of(op.results[0]).get_shape())
    if isinstance(op, ConvOp):
        return 2.0 * result * prod(tensor_of(op.w).get_shape()[1:])
    if isinstance(op, GemmOp):
        return 2.0 * result * prod(tensor_of(op.a).get_shape()) / max(tensor_of(op.results[0]).get_shape()[0], 1)
    if isinstance(op, MatmulOp):
        return 2.0 * result * tensor_of(op.a).get_shape()[-1]
    return float(result)


def total_time(problem: OnChipProblem, found: OnChipAllocation) -> float:
    """Seconds that the program takes."""
    moved = step_bytes(problem, [found.spans(tensor.id) for tensor in problem.tensors])
    return sum(step_time(problem, step, count) for step, count in enumerate(moved))


def _compiled(study: Study, found: Found) -> None:
    """The same networks through the compiler: cycles and energy on the machine, each beside nothing kept."""
    machine = study.values["machine"]
    names = study.values["compiled"]
    models = {name: model_of(name, study) for name in names}
    axes = {"machines": [machine], "on-chip": ["none", *STRATEGIES]}
    figures = swept("onsram", models, axes, ("cycles", "energy", "macs", "machine_macs"))
    gains: dict[str, dict[str, tuple[float, float]]] = {}
    rows: list[tuple[object, ...]] = []
    for name in names:
        runs = {each: run for each in axes["on-chip"] if (run := figures.get((name, machine, each))) is not None}
        if len(runs) < len(axes["on-chip"]):
            continue
        base = runs["none"]
        gains[name] = {
            each: (base["cycles"] / runs[each]["cycles"], base["energy"] / runs[each]["energy"]) for each in STRATEGIES
        }
        share = base["machine_macs"] / base["macs"]
        used = base["macs"] / study.values["macs_per_cycle"] / base["cycles"]
        cells = [f"{gain:.2f}" for each in STRATEGIES for gain in gains[name][each]]
        rows.append((name, f"{base['cycles']:,.0f}", f"{used:.0%}", f"{share:.0%}", *cells))
    for each in STRATEGIES:
        found.figures[f"{each}, cycles"] = geomean(gain[each][0] for gain in gains.values())
        found.figures[f"{each}, energy"] = geomean(gain[each][1] for gain in gains.values())
    heads = ["network", "nothing kept, cycles", "of peak", "MACs on it"]
    heads += [f"{NAMES[each]}, {what}" for each in STRATEGIES for what in ("cycles", "energy")]
    found.tables.append(
        text_table(f"Through the compiler on {machine}: times less than with nothing kept", heads, rows)
    )
    series = {NAMES[each]: [gain[each][0] for gain in gains.values()] for each in STRATEGIES}
    title = f"A scratchpad managed between kernels, cycles on {machine}"
    found.plots["onsram-compiled"] = Bars(title, "times as fast", list(gains), series)
