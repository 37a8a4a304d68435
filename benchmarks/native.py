# SPDX-License-Identifier: Apache-2.0
"""
Generated C beside the libraries that others tuned by hand: operators and networks, f32, batch 1.

    python -m benchmarks.native [--only GROUP,NAME...] [--machine NAME]... [--threads N] [--measure] [--repetitions N]
        [--json FILE] [MODEL...]

The peers are onnxruntime with all of its optimisations, openvino where it is installed (`pip install openvino`, or a
folder with it in PYTHONPATH), and, for products of matrices on one thread, the BLAS of NumPy. They and ours, in this
process, take turns; the outputs are compared first, up to 1e-3 of the largest. The ratio is the median of those of the
turns, to the peer for which it is largest: below 1, ours is faster than all of them. Inputs and outputs are bound
before, so neither ours nor theirs copies any, and all begin with a line of the caches.

Seconds of one thread are CPU seconds of the process, medians; a machine that does other things makes the ratios noisy,
and its load is printed beside them. With `--threads N` all have so many threads, seconds are those of a clock, so that
the machine has to be idle, and a second row says how much faster ours is than on one thread, with the same bytes.

"inside" is a convolution in the middle of a graph, where the compiler chooses the layout, and not between images in
NCHW. Flops are compared with what the CPU does in fused multiply-adds of registers alone, which have turns as well.
Networks are those of examples/networks; "QDQ" are quantised to 8 bits by onnxruntime's own tool, and their outputs
compared up to 0.05 of the largest. A MODEL is the path of another network.
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
from benchmarks.native_rows import MEANS, Target, Work, all_work, geometric_mean, work_of_file
from benchmarks.networks import Feeds, check_agreement
from benchmarks.peers import Run, multiply_adds, numpy_product, onnxruntime, openvino
from penstock.dialects import alignment
from penstock.dialects.diagnostics import UserError
from penstock.lowering.machine_names import NATIVE

REPETITIONS = 15
SAMPLE_SECONDS = 5e-3
"""Short work is repeated until a turn takes so long."""
PEAK, ALONE = "peak", "one thread"
"""What is no peer, and has turns as well."""
SPEED_UP = 1.85
"""That two threads are to reach; more of them, the same share of what each adds."""
SETTLING_SECONDS = 0.02
"""Before a turn of several threads: those of the one before may still look for work."""


MEASURED = "measured"
"""What is added to the name of a machine for which kernels are measured."""


def ours(model: Any, feeds: Feeds, machine: str, threads: int = 1) -> Run:
    """What the compiler makes of a model; "host" is the machine without registers."""
    import penstock

    name, _, how = machine.partition(", ")
    engine = penstock.compile(model, None if name == "host" else name, measure=how == MEASURED, threads=threads)
    assert isinstance(engine, penstock.Engine)
    context, inputs = engine.context(), [feeds[spec.name] for spec in engine.signature.inputs]
    outputs = context.run(inputs)
    return lambda: context.run(inputs, out=outputs)


def peers_of(work: Work, model: Any, feeds: Feeds, threads: int) -> dict[str, Run]:
    """Those that compute a row, by name."""
    found: dict[str, Run] = {"onnxruntime": onnxruntime(model, feeds, threads=threads)}
    if (other := openvino(model, feeds, threads=threads)) is not None:
        found["openvino"] = other
    if work.is_product and threads == 1:
        found["NumPy"] = numpy_product(model, feeds)
    return found


def in_turns(runs: Mapping[str, Run], repetitions: int, threads: int = 1) -> dict[str, list[float]]:
    """Seconds of a call of each, `repetitions` times; another one has the first turn each time."""
    for run in runs.values():
        run()
    calls = {name: max(1, round(SAMPLE_SECONDS / max(_seconds(run, 1, threads), 1e-6))) for name, run in runs.items()}
    found: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(repetitions):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(_seconds(runs[name], calls[name], threads))
    return found


def _seconds(run: Run, calls: int, threads: int) -> float:
    gc.collect()
    clock = time.process_time
    if threads > 1:
        clock = time.perf_counter
        time.sleep(SETTLING_SECONDS)
    started = clock()
    for _ in range(calls):
        run()
    return (clock() - started) / calls


def measured(work: Work, machines: Sequence[str], repetitions: int, threads: int = 1) -> dict[str, list[Row]]:
    """The rows of a work for each machine; where ours is refused or wrong, the row says so."""
    say(f"native: {work.name}")
    model, feeds = work.build()
    # As onnxruntime has its own of each input.
    feeds = {name: alignment.copied(array) for name, array in feeds.items()}
    peers = peers_of(work, model, feeds, threads)
    expected = [array.copy() for array in peers["onnxruntime"]()]
    for name, run in peers.items():
        check_agreement(run(), expected, f"{work.name}, {name}", tolerance=work.tolerance)
    runs: dict[str, Run] = {}
    rows: dict[str, list[Row]] = {}
    for machine in machines:
        try:
            run = ours(model, feeds, machine, threads)
            check_agreement(run(), expected, work.name, tolerance=work.tolerance)
            if threads > 1:
                alone = ours(model, feeds, machine)
                pairs = zip(run(), alone(), strict=True)
                assert all(a.tobytes() == b.tobytes() for a, b in pairs), "threads change the bytes of the outputs"
                runs[_alone(machine)] = alone
            runs[machine] = run
        except (UserError, AssertionError) as error:
            what = " ".join(str(error).split())
            rows[machine] = [Row(_name(work, threads), None, target=_target(work.target), met=False, remark=what)]
    timed = {**runs, **peers, **({} if work.flops is None else {PEAK: multiply_adds()[0]})}
    seconds = in_turns(timed, repetitions, threads)
    for machine in (each for each in machines if each in runs):
        rows[machine] = [_row(work, machine, list(peers), seconds, threads)]
        if threads > 1:
            rows[machine].append(_speed_up(work, machine, seconds, threads))
    for row in (row for machine in machines for row in rows[machine]):
        say(f"  {'-' if row.ratio is None else f'{row.ratio:.2f}'}  {row.remark}")
    return rows


def _name(work: Work, threads: int) -> str:
    return work.name if threads == 1 else f"{work.name}, {threads} threads"


def _alone(machine: str) -> str:
    return f"{machine}, {ALONE}"


def _median_ratio(seconds: Mapping[str, Sequence[float]], name: str, other: str) -> float:
    return statistics.median(one / two for one, two in zip(seconds[name], seconds[other], strict=True))


def _speed_up(work: Work, machine: str, seconds: Mapping[str, Sequence[float]], threads: int) -> Row:
    """How many times as fast ours is with several threads as with one."""
    ratio, least = _median_ratio(seconds, _alone(machine), machine), 1 + (SPEED_UP - 1) * (threads - 1)
    own, alone = (statistics.median(seconds[name]) * 1e3 for name in (machine, _alone(machine)))
    what, remark = f"{_name(work, threads)}: speed-up", f"load {os.getloadavg()[0]:.1f}"
    return Row(what, own, ALONE, alone, ratio, f">= {least:g}", ratio >= least, "ms", remark)


def _row(work: Work, machine: str, peers: Sequence[str], seconds: Mapping[str, Sequence[float]], threads: int) -> Row:
    ratios = {peer: _median_ratio(seconds, machine, peer) for peer in peers}
    fastest = max(peers, key=lambda peer: ratios[peer])
    own, theirs = (statistics.median(seconds[name]) for name in (machine, fastest))
    ratio, target = ratios[fastest], work.target
    remarks: list[str] = []
    if target is not None and target.beyond is not None and ratio <= target.beyond:
        remarks.append("beyond")
    if work.flops is not None:
        peak = threads * multiply_adds()[1] / statistics.median(seconds[PEAK])
        rate, other = work.flops / own, work.flops / theirs
        remarks.append(f"{rate / 1e9:.1f} GFLOP/s, {rate / peak:.0%} of the peak (theirs {other / 1e9:.1f})")
    remarks += [f"{peer} {each:.2f}" for peer, each in ratios.items() if peer != fastest]
    remarks.append(f"load {os.getloadavg()[0]:.1f}")
    met = None if target is None else ratio <= target.must
    return Row(
        _name(work, threads), own * 1e3, fastest, theirs * 1e3, ratio, _target(target), met, "ms", "; ".join(remarks)
    )


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
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL", help="measured instead of all rows")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of ours and of the peers (1)")
    parser.add_argument("--measure", action="store_true", help="each machine also with kernels that are measured")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, metavar="N", help=f"turns ({REPETITIONS})")
    parser.add_argument("--quick", action="store_true", help="small extents, which say nothing of the targets")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the rows to FILE instead of printing them")
    args = parser.parse_args(arguments)
    only = [each for each in args.only.split(",") if each]
    if args.threads < 1:
        parser.error("--threads must be 1 or more")
    everything = list(all_work(quick=args.quick))
    for each in only:
        if not chosen(everything, [each]):
            parser.error(f'no group or row is called "{each}"; the groups: {groups}')
    machines: list[str] = args.machine or [NATIVE]
    if args.measure:
        machines = [each for name in machines for each in (name, f"{name}, {MEASURED}")]
    wanted = [*(chosen(everything, only) if only or not args.models else []), *map(work_of_file, args.models)]
    found = {work: measured(work, machines, args.repetitions, args.threads) for work in wanted}
    rows: list[Row] = []
    for machine in machines:
        if len(machines) > 1:
            rows.append(Row(f"{machine}:", None))
        rows += [row for each in found.values() for row in each[machine]]
        for group in MEANS:
            own = [each[machine][0] for work, each in found.items() if work.group == group]
            if (row := mean(group, own, sum(work.group == group for work in everything))) is not None:
                rows.append(row)
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in rows]))
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
