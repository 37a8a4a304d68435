"""
Generated C beside onnxruntime: seconds an inference on one thread, batch 1.

From loop level the C is that of the host, without a machine, and for "native", the one whose file says what the
registers of this CPU hold; from accel level it executes what gemmini-fp32 would do, transfers and
intrinsics, on the CPU: a functional model of the machine, which owes its reader values and not speed.
onnxruntime has all of its optimisations.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import Row, paired, report, say
from benchmarks.networks import check_agreement, network, onnxruntime_on_one_thread
from penstock.lowering.from_machine_toml import native_machine

NETWORKS = ("squeezenet", "resnet50", "densenet121", "mobilenet_v2", "inception_v1")
MACHINES = ((None, "C of the host"), ("native", f"C of {native_machine()}"), ("gemmini-fp32", "C of gemmini-fp32"))


def rows() -> Sequence[Row]:
    """Each network from both levels."""
    import penstock

    found: list[Row] = []
    for name in NETWORKS:
        model, feeds = network(name)
        theirs = onnxruntime_on_one_thread(model, feeds, optimised=True)
        inputs = list(feeds.values())
        for machine, title in MACHINES:
            say(f"native: compiling {name}, {title}")
            engine = penstock.compile(model, machine)

            def ours(engine: penstock.Engine = engine) -> Sequence[object]:
                return engine.run(inputs)

            what = f"{name}, {title}"
            check_agreement(ours(), theirs(), what)
            found.append(paired(what, ours, "onnxruntime", theirs, repetitions=7, warm=False, scale=1e3, unit="ms"))
    return found


if __name__ == "__main__":
    report(rows, __doc__)
