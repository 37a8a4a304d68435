# SPDX-License-Identifier: Apache-2.0
"""
Firmware of small networks in 8-bit integers, run on an emulated microcontroller.

    python -m benchmarks.firmware [NAME ...] [--machine NAME] [--scheme SCHEME]

Each network is quantised, compiled, built and run on QEMU, which counts instructions; a run compares its outputs with
those of the graph level bit for bit. Bytes: the text of the network's own object, its weights, the planned arena, and
the stack: what a run takes of it (painted), and the bound that the compiler's frames give. Beside it the same network
as plain code, built and run in the same way: the same groups of ops, but not tiled, and bytes of its own for each
buffer, in a memory that is large enough.

Ops in float are functions of the network's object that hold an instruction on floats or call a function for them.
"""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from xdsl.dialects import memref
from xdsl.dialects.builtin import IntegerAttr, MemRefType, ModuleOp, i64
from xdsl.rewriter import Rewriter
from xdsl.utils.hints import isa

from benchmarks.measure import say
from benchmarks.networks import inputs_of, new_model
from benchmarks.planning_runs import text_table
from penstock.dialects.mem import BufferOp, scope_of, span_in_bytes
from penstock.passes.analysis.memory.memory_problems import ARENA, plan_report
from penstock.passes.graph.quantize import QUANTIZERS, Scheme
from penstock.runtime.compiler import LoadedProgram
from penstock.runtime.device import device_program, lower_to_device, write_device_folder
from penstock.runtime.pass_manager import run_passes
from penstock.runtime.pipeline import passes_for
from penstock.runtime.quantization import quantize
from penstock.runtime.signature import signature_of

PLAIN = "default, -tile, -order-ops, -copy-parts, -overwrite-operands"
"""The pipeline of plain code."""
LARGER = """
[machine]
extends = "{machine}"
name = "larger"

[[memory]]
name = "{memory}"
address = {{ value = {address}, assumed = true }}
size = {{ value = 4194304, assumed = true }}
"""
"""The machine that plain code runs on: its board has more memory, further away."""


@dataclass(frozen=True)
class Board:
    """What builds for a machine, and how what it counts becomes instructions."""

    cross: str
    qemu: str
    instructions: float = 1
    """For each that it counts: a timer counts every so many nanoseconds, and an instruction takes one."""
    room: tuple[str, int] | None = None
    """The memory of data of a larger machine, and its address; None where the board has no more."""


ARM = ("arm-none-eabi-", "qemu-system-arm")
BOARDS = {
    "cortex-m55-like": Board(*ARM, 1000 / 32, ("DTCM", 0x21000000)),
    "cortex-m7-like": Board(*ARM, 1000 / 25, ("SRAM", 0x20000000)),
    "fe310-like": Board("riscv64-unknown-elf-", "qemu-system-riscv32"),
}
OPTIONS = "OPTIONS=-DPENSTOCK_MEASURE -DPENSTOCK_EXACT"
ALIGNMENT = 64
FLOAT = re.compile(r"\tv[a-z]+[\w.]*\.f(16|32|64)|__aeabi_[fd]|\b__(\w+[sd]f[23]|float\w+|fix\w+)\b")
"""In disassembled code, and of names."""
PUBLISHED = {
    "mobilenet_v2_80": (
        "RAM in KiB: TensorFlow Lite for Microcontrollers 2.5 155, EON 153, X-CUBE-AI 109, TinyEngine 98, Plumerai 80"
        " (blog.plumerai.com/2021/10/cortex-m-inference-software)"
    )
}
"""What others say of the same shape."""


def apart(module: ModuleOp) -> None:
    """Give every buffer off chip bytes of its own."""
    end = 0
    for op in list(module.walk()):
        if not isinstance(op, BufferOp | memref.AllocOp):
            continue
        type = op.results[0].type
        assert isa(type, MemRefType)
        if scope_of(type) is not None:
            continue
        if isinstance(op, BufferOp):
            op.offset = IntegerAttr(end, i64)
        else:
            Rewriter.replace_op(op, BufferOp(type, end))
        end += -(-span_in_bytes(type) // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Firmware:
    """A folder, built."""

    folder: Path
    name: str
    board: Board
    arena: int
    """As it was planned, with what operands are repacked to."""
    weights: int

    @staticmethod
    def write(
        program: LoadedProgram,
        machine: str,
        folder: Path,
        name: str,
        inputs: Sequence[Any],
        *,
        plain: bool = False,
        pipeline: str | None = None,
    ) -> Firmware:
        """Compile a quantised program, which stays as it is, by an edited pipeline or as plain code."""
        module, board = program.module.clone(), BOARDS[machine]
        ctx, signature = program.ctx, signature_of(module)
        if plain:
            assert board.room is not None
            memory, address = board.room
            folder.mkdir()
            (folder / "larger.toml").write_text(LARGER.format(machine=machine, memory=memory, address=address))
            machine, folder = str(folder / "larger.toml"), folder / "plain"
        passes = passes_for(module, "accel", machine, PLAIN if plain else pipeline)
        at = [each.name for each in passes].index("mem-plan")
        run_passes(ctx, module, passes[:at], verify_each=False)
        if plain:
            apart(module)
        run_passes(ctx, module, passes[at:], verify_first=False, verify_each=False)
        arena = sum(plan.peak for plan in plan_report(module) if plan.scope == ARENA)
        lower_to_device(module, ctx)
        written = device_program(module, name)
        write_device_folder(folder, written, program.module.clone(), ctx.weights, signature, inputs)
        weights = sum(ctx.weights[each].nbytes for each in written.weights)
        return Firmware(folder, name, board, arena + written.source.scratch_bytes, weights)

    def build(self) -> None:
        """By the compiler of the machine."""
        self.run("make", "-s", OPTIONS)

    def run(self, *words: str) -> str:
        """What a command in the folder prints; raises RuntimeError if it fails."""
        done = subprocess.run(
            words, cwd=self.folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            raise RuntimeError(f"{self.name}: {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def measured(self) -> tuple[int, float]:
        """Bytes of stack, and millions of instructions."""
        flags = "-icount shift=0,sleep=off"
        said = self.run("make", "-s", "run", OPTIONS, f"QEMU_FLAGS={flags}")
        assert said.endswith("PASS\n"), said
        found = re.search(r"stack (\d+) bytes, (\d+) ", said)
        assert found is not None, said
        return int(found[1]), int(found[2]) * self.board.instructions / 1e6

    def stack_bound(self) -> int:
        """The frame of the entry, and the largest of what it calls."""
        lines = [line.split("\t") for line in (self.folder / f"{self.name}.su").read_text().splitlines()]
        assert all(kind == "static" for _, _, kind in lines), self.name
        frames = {place.rpartition(":")[2]: int(size) for place, size, _ in lines}
        return frames.pop(f"{self.name}_run") + max(frames.values(), default=0)

    def text(self) -> int:
        """Bytes of code and constants of the network's own object."""
        return int(self.run(f"{self.board.cross}size", f"{self.name}.o").splitlines()[1].split()[0])

    def functions_in_float(self) -> list[str]:
        """The functions that compute on floats, without the name of the network."""
        found: dict[str, None] = {}
        current = ""
        for line in self.run(f"{self.board.cross}objdump", "-dr", f"{self.name}.o").splitlines():
            if line.endswith(">:") and "<.L" not in line:
                current = line.partition("<")[2][: -len(">:")].partition(".")[0].removeprefix(f"{self.name}_")
            elif FLOAT.search(line):
                found[current] = None
        return list(found)


def networks() -> dict[str, Any]:
    """The builder of each network, by name."""
    new_model("")  # puts its neighbours where they are found
    tiny, mobilenet = importlib.import_module("tiny"), importlib.import_module("mobilenet")
    return {**tiny.NETWORKS, "mobilenet_v2_80": partial(mobilenet.mobilenet_v2, input_size=80, width=0.3)}


def quantised(model: Any, scheme: Scheme) -> LoadedProgram:
    """A network in 8-bit integers, calibrated with normal numbers."""
    feeds = inputs_of(model)
    rng = np.random.default_rng(2)
    calibration = [rng.standard_normal((2, *array.shape[1:]), dtype=np.float32) for array in feeds.values()]
    return quantize(model, calibration[0], scheme=scheme).program


def main() -> None:
    known = networks()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; all by default")
    parser.add_argument("--machine", default="cortex-m55-like", choices=tuple(BOARDS), help="default: %(default)s")
    parser.add_argument("--scheme", choices=tuple(QUANTIZERS), default="power-of-two", help="default: %(default)s")
    args = parser.parse_args()
    rows: list[Sequence[object]] = []
    floats: list[str] = []
    for name in args.names or known:
        say(f"firmware: {name}")
        model = known[name](0)
        program, inputs = quantised(model, args.scheme), list(inputs_of(model).values())
        with tempfile.TemporaryDirectory() as scratch:
            ours = Firmware.write(program, args.machine, Path(scratch, "planned"), name, inputs)
            ours.build()
            stack, count = ours.measured()
            cells = [
                f"{ours.text():,}",
                f"{ours.weights:,}",
                f"{ours.arena:,}",
                f"{stack:,} ({ours.stack_bound():,})",
                f"{count:,.1f}",
            ]
            if BOARDS[args.machine].room is None:
                cells += ["-"] * 4
            else:
                plain = Firmware.write(program, args.machine, Path(scratch, "plain"), name, inputs, plain=True)
                plain.build()
                _, plain_count = plain.measured()
                more = f"{plain.arena / ours.arena:.1f}x, {plain_count / count:.1f}x"
                cells += [f"{plain.text():,}", f"{plain.arena:,}", f"{plain_count:,.1f}", more]
            rows.append((name, *cells))
            floats.append(f"{name}: {', '.join(ours.functions_in_float()) or 'none'}")
    head = (
        "network",
        "text",
        "weights",
        "arena",
        "stack (bound)",
        "M instr.",
        "plain: text",
        "arena",
        "M instr.",
        "more",
    )
    print(text_table(f"Firmware for {args.machine}, {args.scheme}; bytes", head, rows))
    print("\nIn float:", *floats, sep="\n  ")
    print(*(f"{name}: {said}" for name, said in PUBLISHED.items() if name in (args.names or known)), sep="\n")


if __name__ == "__main__":
    main()
