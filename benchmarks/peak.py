# SPDX-License-Identifier: Apache-2.0
"""
The arena of a program, and what order, aliasing, patches and rematerialisation make of it.

    python -m benchmarks.peak [--networks NAME ...] [--machine NAME] [--work X] [--seeds N]
    python -m benchmarks.peak --patches [NAME ...]
    python -m benchmarks.peak --training

For every network of examples/networks, one quantised to 8 bits (`mobilenet_v2-int8`), and a drawn one of each kind
(`wired.py` there: their wiring leaves many orders): KiB that `mem-plan` gives the
arena as layers follow each other in the model; with `order-ops`; with what is copied and overwritten (`copy-parts`,
`overwrite-operands`); by patches of at most `--work` times the multiply-accumulates (`patch`), without and with these;
the lower bound of the last, its multiply-accumulates, and CPU seconds of the passes of all five. Then, for several
drawn networks of each kind, by how much `order-ops` lowers the peak.

With `--patches` the images by patches: for each network the peak of its images whole, and the least that takes no more
than so many times the multiply-accumulates. With `--training` the gradients of two networks, in the least that
`graph-remat` finds of some shares of the arena by layers.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
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
from benchmarks.native_rows import quantized
from benchmarks.networks import names, network
from benchmarks.planning_runs import text_table
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.remarks import listening
from penstock.lowering.from_onnx import import_model
from penstock.passes.analysis.memory.memory_problems import ARENA, plan_report
from penstock.passes.analysis.memory.op_orders import BlockOrder, BlockOrders
from penstock.passes.graph.patch import PatchPass
from penstock.passes.graph.patching.images import ImageSteps
from penstock.passes.graph.values import graph_blocks
from penstock.passes.planning.op_order import DEFAULT_STEPS, OrderOutcome, order_ops
from penstock.passes.planning.order_problem import OrderProblem, peak_of
from penstock.passes.planning.patches import PatchProblem, least_macs, pareto
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import passes_for

EXAMPLES = Path(__file__).parents[1] / "examples"
KIB = 1024
PASS = "order-ops"
INT8 = "-int8"
"""Behind the name of a network: quantised by onnxruntime's own tool."""
ALIASES = "-copy-parts, -overwrite-operands"
VARIANTS = {
    "by layers": f"default, {ALIASES}, -topological-sort, -order-ops",
    "by order": f"default, {ALIASES}",
    "aliased": "default",
    "by patches": f"default, {ALIASES}, +patch{{limit=LIMIT}} before graph-fuse",
    "all": "default, +patch{limit=LIMIT} before graph-fuse",
}
"""The pipelines that are compared."""


def model_of(name: str) -> Any:
    """A network as an ONNX model."""
    return quantized(name.removesuffix(INT8), small=False)[0] if name.endswith(INT8) else network(name)[0]


class Lowerings:
    """Lowerings of one network by several pipelines: what they begin with runs once."""

    def __init__(self, model: Any, machine: str | None):
        self._module, store = import_model(model)
        self._ctx, self._machine = make_context(), machine
        self._ctx.weights = store
        self._begun: dict[Sequence[ModulePass], ModuleOp] = {}

    def _begin(self, pipeline: str) -> tuple[ModuleOp, Sequence[ModulePass]]:
        """The program before its images are cut, which nothing else may change, and the passes from there on."""
        module = self._module.clone()
        passes = passes_for(module, "loop", self._machine, pipeline)
        at = next(at for at, each in enumerate(passes) if each.name in (PatchPass.name, "graph-fuse"))
        if passes[:at] not in self._begun:
            run_passes(self._ctx, module, passes[:at], verify_each=False)
            self._begun[passes[:at]] = module
        return self._begun[passes[:at]], passes[at:]

    def arena(self, pipeline: str) -> tuple[int, int]:
        """The bytes of the arena, and the least that its lifetimes take."""
        begun, passes = self._begin(pipeline)
        module = begun.clone()
        run_passes(self._ctx, module, passes, verify_first=False, verify_each=False)
        plans = [plan for plan in plan_report(module) if plan.scope == ARENA]
        return sum(plan.peak for plan in plans), sum(plan.lower_bound for plan in plans)

    def images(self, room: int) -> PatchProblem:
        """What `patch` decides where it has so much room."""
        (block,) = graph_blocks(self._begin("default")[0])
        return ImageSteps.of(block, room).problem()


def cells_of(name: str, model: Any, machine: str | None, most: float) -> Sequence[object]:
    """A line of the table of networks."""
    started = cpu_seconds()
    lowerings = Lowerings(model, machine)
    problem = lowerings.images(0)
    plans = [plan for plan in pareto(problem) if problem.macs and plan.macs <= most * problem.macs]
    limit = min((plan.peak for plan in plans), default=None)
    found: list[str] = []
    bound, work = 0, 1.0
    for variant, pipeline in VARIANTS.items():
        if "LIMIT" in pipeline and limit is None:
            found.append("-")
            continue
        arena, bound = lowerings.arena(pipeline.replace("LIMIT", str(limit)))
        found.append(f"{arena / KIB:,.0f}")
        say(f"peak: {name} {variant}: {found[-1]} KiB, {cpu_seconds() - started:.1f} CPU s so far")
    if limit is not None and (plan := least_macs(problem, limit)) is not None:
        work = plan.macs / problem.macs
    return name, *found, f"{bound / KIB:,.0f}", f"{work:.3f}x", f"{cpu_seconds() - started:.1f}"


HEAD = ("network", *(f"{each}, KiB" for each in VARIANTS), "bound, KiB", "MACs", "CPU s")


@dataclass(frozen=True)
class Measured:
    """One drawn network: how far `order-ops` lowers its peak, and CPU seconds."""

    ops: int
    given: int
    """The peak in the order of the model."""
    outcome: OrderOutcome
    seconds: float

    @property
    def gain(self) -> float:
        """By how much the peak falls, as a share."""
        return 1 - self.outcome.peak / self.given if self.given else 0.0


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
    return Measured(len(order.ops), peak_of(given.problem, given.given), outcome, cpu_seconds() - started)


WORK = (1.01, 1.05, 1.1, 1.17, 1.5)
PATCHED = tuple(
    f"{name}{kind}" for name in ("mobilenet_v1", "mobilenet_v2", "squeezenet", "resnet50") for kind in ("", INT8)
)


def patch_cells(name: str, machine: str | None) -> Sequence[object]:
    """A line of the table of patches: the points of the Pareto curve of peak and work below each bound."""
    model = model_of(name)
    started = cpu_seconds()
    lowerings = Lowerings(model, machine)
    whole = least_macs(lowerings.images(1 << 62))
    assert whole is not None
    problem = lowerings.images(0)
    curve = list(pareto(problem))
    seconds = cpu_seconds() - started
    least = (min(plan.peak for plan in curve if plan.macs <= most * problem.macs) for most in WORK)
    shares = (f"{peak / KIB:,.0f} ({1 - peak / whole.peak:.0%})" for peak in least)
    return name, f"{whole.peak / KIB:,.0f}", *shares, f"{curve[-1].peak / KIB:,.0f}", len(curve), f"{seconds:.2f}"


TRAINED = ("digits, a step on 32 images", "ResNet-18, 4 images of 32x32, width 16")
SHARES = (0.8, 0.6, 0.5, 0.4, 0.35)
BY_LAYERS = f"default, {ALIASES}, -topological-sort, -order-ops"


def training_programs() -> Iterator[tuple[str, Callable[[], tuple[ModuleOp, Context]]]]:
    """Programs of gradients, made anew for each use."""
    step, resnet = importlib.import_module("training_step"), importlib.import_module("resnet18")

    def digits() -> tuple[ModuleOp, Context]:
        program = step.training_step()
        return program.module, program.ctx

    def resnet18() -> tuple[ModuleOp, Context]:
        model = resnet.resnet18(width=16, batch=4)
        module, store = import_model(model)
        ctx = make_context()
        ctx.weights = store
        run_passes(ctx, module, read_pipeline(resnet.gradient_of(model)))
        return module, ctx

    yield from zip(TRAINED, (digits, resnet18), strict=True)


def training_cells(
    name: str, make: Callable[[], tuple[ModuleOp, Context]], machine: str | None
) -> Iterator[Sequence[object]]:
    """Lines of the table of gradients."""
    by_layers = 0
    pipelines = [("by layers", BY_LAYERS), ("default", "default"), *((f"{share:.0%}", "") for share in SHARES)]
    for number, (what, pipeline) in enumerate(pipelines):
        say(f"peak: {name}, {what}")
        limit = round(by_layers * SHARES[number - 2]) if number > 1 else 0
        text = pipeline or f"default, +graph-remat{{limit={limit}}} after graph-fuse"
        module, ctx = make()
        started = cpu_seconds()
        remarks: list[str] = []
        try:
            passes = passes_for(module, "loop", machine, text)
            with listening(lambda found: remarks.append(found.message)):
                run_passes(ctx, module, passes, verify_each=False)
        except UserError as fault:
            yield name, what, fault.message, "", "", f"{cpu_seconds() - started:.1f}"
            continue
        arena = sum(plan.peak for plan in plan_report(module) if plan.scope == ARENA)
        by_layers = by_layers or arena
        again = next((each for each in remarks if "computed again" in each), "")
        yield name, what, f"{arena:,}", f"{arena / by_layers:.1%}", again, f"{cpu_seconds() - started:.1f}"


def main() -> None:
    sys.path += [str(EXAMPLES / "networks"), str(EXAMPLES / "digits")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", metavar="NAME", help="default: all; none with no name")
    parser.add_argument("--machine", default="native", metavar="NAME", help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS, metavar="N", help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="drawn networks of a kind (%(default)s)")
    parser.add_argument("--patches", nargs="*", metavar="NAME", help=f"of {', '.join(PATCHED)}, or of these networks")
    parser.add_argument("--work", type=float, default=1.17, metavar="X", help="of patches at most (%(default)s)")
    parser.add_argument("--training", action="store_true", help="gradients, by graph-remat")
    args = parser.parse_args()
    rows: list[Sequence[object]] = []
    if args.patches is not None:
        rows = [patch_cells(name, args.machine) for name in args.patches or PATCHED]
        head = ("network", "whole, KiB", *(f"<= {most}x work" for most in WORK), "least", "plans", "CPU s")
        print(text_table(f"Images by patches for {args.machine}", head, rows))
        return
    if args.training:
        rows = [row for program in training_programs() for row in training_cells(*program, args.machine)]
        head = ("program", "limit", "arena, bytes", "of that by layers", "graph-remat", "CPU s")
        print(text_table(f"Gradients for {args.machine}", head, rows))
        return
    wired = importlib.import_module("wired")
    kinds: dict[str, Callable[[int], Any]] = {
        "NASNet-like": wired.nasnet_like,
        "randomly wired, 32 nodes": wired.randomly_wired,
        "randomly wired, 64 nodes": partial(wired.randomly_wired, nodes=64),
        "branches, breadth first": wired.branches,
    }
    networks = (*names(), f"mobilenet_v2{INT8}") if args.networks is None else args.networks
    rows = [cells_of(name, model_of(name), args.machine, args.work) for name in networks]
    if args.networks is None:
        rows += [cells_of(kind, build(0), args.machine, args.work) for kind, build in kinds.items()]
    print(text_table(f"The arena for {args.machine}, patches of at most {args.work}x the work", HEAD, rows))
    if not args.seeds:
        return
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
