# SPDX-License-Identifier: Apache-2.0
"""Random inputs of the compiler, by the level that they begin at: each is a text, or a model, of a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from penstock.dialects.context import make_context
from penstock.dialects.files import write_whole
from penstock.lowering.from_machine_toml import read_machine
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime.compiler import LoadedProgram, import_program, load_kernel
from penstock.tools.fuzz.kernel_texts import KernelWriter
from penstock.tools.fuzz.loop_programs import loop_program
from penstock.tools.fuzz.machine_files import MACHINES, changed, program
from penstock.tools.fuzz.onnx_models import random_model
from penstock.tools.fuzz.tensor_programs import tensor_program

HOSTS = (None, "host-avx2")
ACCELERATORS = ("gemmini-fp32", "rapid-core-like", "neural-accelerator", "smaug-smv")


@dataclass(frozen=True)
class Sample:
    """A program, and the machines that it is compiled for; None is the host."""

    program: LoadedProgram
    machines: Sequence[str | None]


def _parsed(text: str, name: str) -> LoadedProgram:
    ctx = make_context()
    parsed = parse_text(ctx, SourceText(name, text))
    return LoadedProgram(parsed.module, ctx, Path(name), parsed)


def graph(seed: int, folder: Path) -> Sample | None:
    """An ONNX model of two to eight nodes."""
    model, _ = random_model(seed)
    return Sample(import_program(model, {}, name=f"graph_{seed}.onnx"), [HOSTS[seed % 2]])


def accel(seed: int, folder: Path) -> Sample | None:
    """The same for an accelerator, whose commands then run in several orders."""
    model, _ = random_model(seed)
    program = import_program(model, {}, name=f"accel_{seed}.onnx")
    return Sample(program, [ACCELERATORS[seed % len(ACCELERATORS)]])


def kernel(seed: int, folder: Path) -> Sample | None:
    """A kernel of the kernel language, with recurrences, branches and tiles that pass the end."""
    writer = KernelWriter(Random(seed))
    path = folder / f"kernel_{seed}.pk"
    write_whole(path, writer.text())
    machines = (None, "gemmini-fp32", "rapid-core-like")
    return Sample(load_kernel(path, writer.sizes), [machines[seed % 3]])


def tensor(seed: int, folder: Path) -> Sample | None:
    """A chain or a tree of structured ops on tensors."""
    element = ("i32", "f32", "i16")[seed % 3]
    machines = [None] if element == "i16" else [None, "gemmini-fp32"]
    return Sample(_parsed(tensor_program(seed, element), f"tensor_{seed}.mlir"), machines)


def loop(seed: int, folder: Path) -> Sample | None:
    """A nest of loops around copies, structured ops, loads and stores on buffers at offsets."""
    return Sample(_parsed(loop_program(seed, ("i32", "f32")[seed % 2]), f"loop_{seed}.mlir"), [None])


def machine(seed: int, folder: Path) -> Sample | None:
    """A machine file with parts left out or changed, and a small program; None for a file that is not valid."""
    random = Random(seed)
    text = changed(random, MACHINES[seed % len(MACHINES)])
    path = folder / f"machine_{seed}.toml"
    if read_machine(str(path), text)[1]:
        return None
    write_whole(path, text)
    return Sample(_parsed(program(random, text), f"machine_{seed}.mlir"), [str(path)])


LEVELS: dict[str, Callable[[int, Path], Sample | None]] = {
    each.__name__: each for each in (graph, kernel, tensor, loop, accel, machine)
}
