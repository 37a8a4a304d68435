"""
The arena of a program: what of it is alive at once, as the ops stand in the model and in the order of `order-ops`.

    python -m benchmarks.peak [--networks NAME ...] [--machine NAME] [--steps N] [--seeds N] [--patches [NAME ...]]

For every network of examples/networks, and for drawn ones whose wiring leaves many orders (`wired.py` there): KiB of
the arena that are alive at once at most in the order of the model, in that of `topological-sort`, and in the new one;
the bound that no order falls below ("=": the order is proved to be best), what `mem-plan` then takes, and CPU seconds
of the pass.

With `--patches` the images by patches (`patch`) instead: for each network the peak of its images whole, and the least
that takes no more than so many times the multiply-accumulates.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from benchmarks.measure import cpu_seconds, say
from benchmarks.networks import names, network
from benchmarks.planning_runs import text_table
from penstock.dialects.context import make_context
from penstock.lowering.from_onnx import import_model
from penstock.passes.analysis.memory.memory_problems import ARENA, plan_report
from penstock.passes.analysis.memory.op_orders import BlockOrder, BlockOrders
from penstock.passes.graph.patching.images import ImageSteps
from penstock.passes.graph.values import graph_blocks
from penstock.passes.planning.op_order import DEFAULT_STEPS, OrderOutcome, OrderProblem, order_ops, peak_of
from penstock.passes.planning.patches import pareto
from penstock.runtime.compiler import passes_for
from penstock.runtime.pass_manager import run_passes

KIB = 1024
PASS = "order-ops"


@dataclass(frozen=True)
class Measured:
    """One network: bytes of the arena, and CPU seconds."""

    ops: int
    given: int
    """The peak in the order of the model."""
    walked: int
    """That of the walk from the results, which the graph level begins with."""
    outcome: OrderOutcome
    planned: int
    seconds: float

    @property
    def gain(self) -> float:
        """By how much the peak falls, as a share."""
        return 1 - self.outcome.peak / self.given if self.given else 0.0

    def cells(self, name: str) -> Sequence[object]:
        """A line of the table."""
        bound = "=" if self.outcome.is_optimal else f"{self.outcome.bound / KIB:,.0f}"
        peaks = (f"{each / KIB:,.0f}" for each in (self.given, self.walked, self.outcome.peak))
        planned = f"{self.planned / KIB:,.0f}"
        return name, self.ops, *peaks, f"{self.gain:.1%}", bound, planned, f"{self.seconds:.2f}"


HEAD = (
    "network",
    "ops",
    "model's order, KiB",
    "depth first",
    "order-ops",
    "less",
    "bound, KiB",
    "planned, KiB",
    "CPU s",
)


@dataclass(frozen=True)
class Lowered:
    """A program before its ops are ordered, and what is left to do."""

    module: ModuleOp
    ctx: Context
    rest: Sequence[ModulePass]

    @staticmethod
    def of(model: Any, machine: str | None, *, is_sorted: bool) -> Lowered:
        """A model for a machine, or for the host without one."""
        module, store = import_model(model)
        ctx = make_context()
        ctx.weights = store
        passes = passes_for(module, "loop", machine, None if is_sorted else "default, -topological-sort")
        at = [each.name for each in passes].index(PASS)
        run_passes(ctx, module, passes[:at], verify_each=False)
        return Lowered(module, ctx, passes[at:])

    def order(self) -> BlockOrder:
        """That of @main; of no ops where it has no buffers."""
        (main,) = (op for op in self.module.ops if isinstance(op, func.FuncOp) and op.sym_name.data == "main")
        return BlockOrders(self.module).of(main) or BlockOrder(main.body.block, (), OrderProblem((), (), (), ()))


def measured(model: Any, machine: str | None, steps: int) -> Measured:
    """The peaks of @main of a model in the order of the model, and in the new one."""
    given = Lowered.of(model, machine, is_sorted=False).order()
    lowered = Lowered.of(model, machine, is_sorted=True)
    started = cpu_seconds()
    order = lowered.order()
    outcome = order_ops(order.problem, steps)
    seconds = cpu_seconds() - started
    run_passes(lowered.ctx, lowered.module, lowered.rest, verify_first=False, verify_each=False)
    arena = [plan.peak for plan in plan_report(lowered.module) if plan.scope == ARENA]
    walked = peak_of(order.problem, order.given)
    return Measured(len(order.ops), peak_of(given.problem, given.given), walked, outcome, sum(arena), seconds)


WORK = (1.01, 1.05, 1.1, 1.17, 1.5)
PATCHED = ("mobilenet_v1", "mobilenet_v2", "squeezenet", "resnet50")


def patch_cells(name: str, machine: str | None) -> Sequence[object]:
    """A line of the table of patches: the points of the Pareto curve of peak and work below each bound."""
    model = network(name)[0]
    module, store = import_model(model)
    ctx = make_context()
    ctx.weights = store
    passes = passes_for(module, "graph", machine)
    at = [each.name for each in passes].index("graph-fuse")
    run_passes(ctx, module, passes[:at], verify_each=False)
    (block,) = graph_blocks(module)
    started = cpu_seconds()
    problem = ImageSteps.of(block).problem()
    curve = list(pareto(problem))
    seconds = cpu_seconds() - started
    whole = curve[0].peak
    least = (min(plan.peak for plan in curve if plan.macs <= most * problem.macs) for most in WORK)
    shares = (f"{peak / KIB:,.0f} ({1 - peak / whole:.0%})" for peak in least)
    return name, f"{whole / KIB:,.0f}", *shares, f"{curve[-1].peak / KIB:,.0f}", len(curve), f"{seconds:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", metavar="NAME", help="default: all; none with no name")
    parser.add_argument("--machine", default="native", metavar="NAME", help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS, metavar="N", help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="drawn networks of a kind (%(default)s)")
    parser.add_argument("--patches", nargs="*", metavar="NAME", help=f"of {', '.join(PATCHED)}, or of these networks")
    args = parser.parse_args()
    rows: list[Sequence[object]] = []
    if args.patches is not None:
        rows = [patch_cells(name, args.machine) for name in args.patches or PATCHED]
        head = ("network", "whole, KiB", *(f"<= {most}x work" for most in WORK), "least", "plans", "CPU s")
        print(text_table(f"Images by patches for {args.machine}", head, rows))
        return
    for name in names() if args.networks is None else args.networks:
        say(f"peak: {name}")
        rows.append(measured(network(name)[0], args.machine, args.steps).cells(name))
    print(text_table(f"Peak of the arena for {args.machine}", HEAD, rows))
    wired = importlib.import_module("wired")
    kinds: dict[str, Callable[[int], Any]] = {
        "NASNet-like": wired.nasnet_like,
        "randomly wired, 32 nodes": wired.randomly_wired,
        "randomly wired, 64 nodes": partial(wired.randomly_wired, nodes=64),
        "branches, breadth first": wired.branches,
    }
    rows = []
    for kind, build in kinds.items():
        found: list[Measured] = []
        for seed in range(args.seeds):
            say(f"peak: {kind}, seed {seed}")
            found.append(measured(build(seed), args.machine, args.steps))
        gains = [each.gain for each in found]
        proved = sum(each.outcome.is_optimal for each in found)
        longest = max(each.seconds for each in found)
        ops = f"{min(each.ops for each in found)}-{max(each.ops for each in found)}"
        rows.append(
            (
                kind,
                ops,
                f"{statistics.mean(gains):.1%}",
                f"{max(gains):.1%}",
                f"{proved} of {len(found)}",
                f"{longest:.2f}",
            )
        )
    head = ("network", "ops", "less, mean", "most", "proved", "CPU s at most")
    print(text_table(f"Drawn networks, {args.seeds} of a kind", head, rows))


if __name__ == "__main__":
    main()
