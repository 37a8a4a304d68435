# SPDX-License-Identifier: Apache-2.0
"""
From the ONNX model of resnet50 to loaded C code for gemmini-fp32, nothing of it cached, and where the time goes.

There is no other compiler to put beside it: the rows are parts of one compilation.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import Row, cpu_seconds, limited, report, say
from benchmarks.networks import network

MACHINE = "gemmini-fp32"
AT_MOST = 60.0
"""Wall-clock seconds aimed at."""
LISTED_PASSES = 10


@dataclass
class CpuTimer:
    """An observer: CPU seconds of every pass, with the verification after it."""

    seconds: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    _started: float = 0.0

    def before(self, module_pass: Any, module: Any) -> None:
        self._started = cpu_seconds()

    def after(self, module_pass: Any, module: Any) -> None:
        self.seconds.append((module_pass.name, cpu_seconds() - self._started))


@dataclass
class Stopwatch:
    """CPU seconds of each part, and of the whole also wall-clock seconds."""

    parts: dict[str, float] = field(default_factory=dict[str, float])
    started: float = field(default_factory=time.perf_counter)
    _last: float = field(default_factory=cpu_seconds)

    def lap(self, part: str) -> None:
        """The part that ends now."""
        now = cpu_seconds()
        self.parts[part] = now - self._last
        self._last = now


def rows() -> Sequence[Row]:
    """The whole and its parts."""
    model, _ = network("resnet50")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["PENSTOCK_CACHE"] = cache
        say(f"compile_resnet50: resnet50 for {MACHINE}")
        watch = Stopwatch()
        # Imported here, since that is part of what a person waits for.
        from penstock.lowering.to_c import emit_c
        from penstock.passes.toolchain import load
        from penstock.runtime.compiler import compile_module, import_program
        from penstock.runtime.native import NativeModule, build

        watch.lap("import of the compiler")
        program = import_program(model, {})
        watch.lap("import of the model")
        timer = CpuTimer()
        compile_module(program.module, program.ctx, MACHINE, observers=[timer])
        watch.lap("passes")
        source = emit_c(program.module, name="resnet50")
        watch.lap("emission of C")
        path = build(source)
        watch.lap("C compiler")
        NativeModule(source, load(path))
        watch.lap("loading")
        wall = time.perf_counter() - watch.started
    slowest = sorted(timer.seconds, key=lambda entry: -entry[1])[:LISTED_PASSES]
    return [
        limited(f"resnet50 for {MACHINE}, wall", wall, AT_MOST),
        Row("all of it, CPU", sum(watch.parts.values())),
        *(Row(f"  {name}", seconds) for name, seconds in watch.parts.items()),
        *(Row(f"    pass {name}", seconds) for name, seconds in slowest),
    ]


if __name__ == "__main__":
    report(rows, __doc__)
