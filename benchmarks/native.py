"""
Generated C beside the libraries that others tuned by hand: operators and networks, f32, batch 1, on one thread.

    python -m benchmarks.native [--only GROUP,NAME...] [--machine NAME]... [--measure] [--repetitions N] [--json FILE]

The peers are onnxruntime with all of its optimisations, openvino where it is installed (`pip install openvino`, or a
folder with it in PYTHONPATH), and, for products of matrices, the BLAS of NumPy, all on one thread. They and ours, in
this process, take turns; the outputs are compared first, up to 1e-3 of the largest. The ratio is the median of those of
the turns, to the peer for which it is largest: below 1, ours is faster than all of them. Inputs and outputs are bound
before, so neither ours nor theirs copies any.

Seconds are CPU seconds of the process, medians; a machine that does other things makes the ratios noisy, and its load
is printed beside them. "inside" is a convolution in the middle of a graph, where the compiler chooses the layout, and
not between images in NCHW. Flops are compared with what the CPU does in fused multiply-adds of registers alone,
which have turns as well. Networks are those of examples/networks; "QDQ" are quantised to 8 bits by onnxruntime's own
tool, and their outputs compared up to 0.05 of the largest.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # which is read when NumPy is imported

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import Row, say, table
from benchmarks.native_rows import MEANS, Target, Work, all_work, geometric_mean
from benchmarks.networks import Feeds, check_agreement
from benchmarks.peers import Run, multiply_adds, numpy_product, onnxruntime, openvino
from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_machine_toml import NATIVE

REPETITIONS = 15
SAMPLE_SECONDS = 5e-3
"""Short work is repeated until a turn takes so long."""
PEAK = "peak"
"""What is no peer, and has turns as well."""


MEASURED = "measured"
"""What is added to the name of a machine for which kernels are measured."""


def ours(model: Any, feeds: Feeds, machine: str) -> Run:
    """What the compiler makes of a model; "host" is the machine without registers."""
    import penstock

    name, _, how = machine.partition(", ")
    engine = penstock.compile(model, None if name == "host" else name, measure=how == MEASURED)
    assert isinstance(engine, penstock.Engine)
    context, inputs = engine.context(), [feeds[spec.name] for spec in engine.signature.inputs]
    outputs = context.run(inputs)
    return lambda: context.run(inputs, out=outputs)


def peers_of(work: Work, model: Any, feeds: Feeds) -> dict[str, Run]:
    """Those that compute a row, by name."""
    found: dict[str, Run] = {"onnxruntime": onnxruntime(model, feeds, threads=1)}
    if (other := openvino(model, feeds, threads=1)) is not None:
        found["openvino"] = other
    if work.is_product:
        found["NumPy"] = numpy_product(model, feeds)
    return found


def in_turns(runs: Mapping[str, Run], repetitions: int) -> dict[str, list[float]]:
    """CPU seconds of a call of each, `repetitions` times; another one has the first turn each time."""
    for run in runs.values():
        run()
    calls = {name: max(1, round(SAMPLE_SECONDS / max(_seconds(run, 1), 1e-6))) for name, run in runs.items()}
    found: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(repetitions):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(_seconds(runs[name], calls[name]))
    return found


def _seconds(run: Run, calls: int) -> float:
    gc.collect()
    started = time.process_time()
    for _ in range(calls):
        run()
    return (time.process_time() - started) / calls


def measured(work: Work, machines: Sequence[str], repetitions: int) -> dict[str, Row]:
    """The row of a work for each machine; where ours is refused or wrong, the row says so."""
    say(f"native: {work.name}")
    model, feeds = work.build()
    peers = peers_of(work, model, feeds)
    expected = [array.copy() for array in peers["onnxruntime"]()]
    for name, run in peers.items():
        check_agreement(run(), expected, f"{work.name}, {name}", tolerance=work.tolerance)
    runs: dict[str, Run] = {}
    rows: dict[str, Row] = {}
    for machine in machines:
        try:
            run = ours(model, feeds, machine)
            check_agreement(run(), expected, work.name, tolerance=work.tolerance)
            runs[machine] = run
        except (UserError, AssertionError) as error:
            what = " ".join(str(error).split())
            rows[machine] = Row(work.name, None, target=_target(work.target), met=False, remark=what)
    timed = {**runs, **peers, **({} if work.flops is None else {PEAK: multiply_adds()[0]})}
    seconds = in_turns(timed, repetitions)
    rows.update((machine, _row(work, machine, list(peers), seconds)) for machine in runs)
    for row in rows.values():
        say(f"  {'-' if row.ratio is None else f'{row.ratio:.2f}'}  {row.remark}")
    return rows


def _row(work: Work, machine: str, peers: Sequence[str], seconds: Mapping[str, Sequence[float]]) -> Row:
    ratios = {
        peer: statistics.median(mine / other for mine, other in zip(seconds[machine], seconds[peer], strict=True))
        for peer in peers
    }
    fastest = max(peers, key=lambda peer: ratios[peer])
    own, theirs = (statistics.median(seconds[name]) for name in (machine, fastest))
    ratio, target = ratios[fastest], work.target
    remarks: list[str] = []
    if target is not None and target.beyond is not None and ratio <= target.beyond:
        remarks.append("beyond")
    if work.flops is not None:
        peak = multiply_adds()[1] / statistics.median(seconds[PEAK])
        rate, other = work.flops / own, work.flops / theirs
        remarks.append(f"{rate / 1e9:.1f} GFLOP/s, {rate / peak:.0%} of the peak (theirs {other / 1e9:.1f})")
    remarks += [f"{peer} {each:.2f}" for peer, each in ratios.items() if peer != fastest]
    remarks.append(f"load {os.getloadavg()[0]:.1f}")
    met = None if target is None else ratio <= target.must
    return Row(work.name, own * 1e3, fastest, theirs * 1e3, ratio, _target(target), met, "ms", "; ".join(remarks))


def _target(target: Target | None) -> str:
    if target is None:
        return ""
    return f"<= {target.must:g}" + ("" if target.beyond is None else f", beyond <= {target.beyond:g}")


def mean(group: str, rows: Sequence[Row], size: int) -> Row | None:
    """The geometric mean of rows of a group of that size; one with a target, where they are all of it."""
    ratios = [row.ratio for row in rows if row.ratio is not None]
    if group not in MEANS or not ratios:
        return None
    found, target = geometric_mean(ratios), MEANS[group] if len(ratios) == size else None
    met = None if target is None else found <= target.must
    return Row(f"{group}, geometric mean of {len(ratios)}", None, ratio=found, target=_target(target), met=met)


def chosen(work: Sequence[Work], only: Sequence[str]) -> list[Work]:
    """The work of some groups, or whose names begin so; all of it where nothing is asked for."""
    return [each for each in work if not only or any(each.group == one or each.name.startswith(one) for one in only)]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    groups = ", ".join(dict.fromkeys(each.group for each in all_work()))
    parser.add_argument(
        "--only", default="", metavar="WHAT,...", help=f"groups, or how names of rows begin; the groups: {groups}"
    )
    parser.add_argument("--machine", action="append", metavar="NAME", help=f"a machine, or host ({NATIVE})")
    parser.add_argument("--measure", action="store_true", help="each machine also with kernels that are measured")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, metavar="N", help=f"turns ({REPETITIONS})")
    parser.add_argument("--quick", action="store_true", help="small extents, which say nothing of the targets")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the rows to FILE instead of printing them")
    args = parser.parse_args(arguments)
    only = [each for each in args.only.split(",") if each]
    everything = list(all_work(quick=args.quick))
    for each in only:
        if not chosen(everything, [each]):
            parser.error(f'no group or row is called "{each}"; the groups: {groups}')
    machines: list[str] = args.machine or [NATIVE]
    if args.measure:
        machines = [each for name in machines for each in (name, f"{name}, {MEASURED}")]
    found = {work: measured(work, machines, args.repetitions) for work in chosen(everything, only)}
    rows: list[Row] = []
    for machine in machines:
        if len(machines) > 1:
            rows.append(Row(f"{machine}:", None))
        rows += [each[machine] for each in found.values()]
        for group in MEANS:
            own = [each[machine] for work, each in found.items() if work.group == group]
            if (row := mean(group, own, sum(work.group == group for work in everything))) is not None:
                rows.append(row)
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in rows]))
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
