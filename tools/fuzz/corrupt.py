# SPDX-License-Identifier: Apache-2.0
"""Inputs of every kind that went wrong: each is read, or refused by a message, and no command crashes or hangs."""

from __future__ import annotations

import io
import random
import re
import signal
from collections.abc import Callable, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from penstock.dialects.diagnostics import INTERNAL
from penstock.dialects.files import write_whole
from penstock.tools.fuzz.kernel_texts import KernelWriter
from penstock.tools.fuzz.kernel_texts import mutated as mutated_kernel
from penstock.tools.fuzz.machine_files import MACHINES
from penstock.tools.fuzz.model_mutants import mutated_model
from penstock.tools.fuzz.onnx_models import random_model
from penstock.tools.fuzz.onnx_writer import Writer
from penstock.tools.fuzz.text_mutants import mutant

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

MODELS = 200
"""How many ONNX models are taken."""
SECONDS = 60
"""A command that takes longer hangs."""
MATMUL = """func.func @main(%x: tensor<8x12xf32>) -> tensor<8x10xf32> {
  %w = graph.constant dense<1.5> : tensor<12x10xf32>
  %p = graph.matmul %x, %w : (tensor<8x12xf32>, tensor<12x10xf32>) -> tensor<8x10xf32>
  %y = graph.relu %p : tensor<8x10xf32>
  func.return %y : tensor<8x10xf32>
}
"""
DIALECT = """irdl.dialect @lab {
  irdl.type @number {
    %0 = irdl.is f32
    %1 = irdl.is f64
    %2 = irdl.any_of(%0, %1)
    irdl.parameters(elem: %2)
  }
  irdl.operation @norm {
    %0 = irdl.any
    %1 = irdl.parametric @lab::@number<%0>
    %2 = irdl.base "#builtin.string"
    irdl.operands(x: %1, y: optional %1)
    irdl.results(norm: %0)
    irdl.attributes {"mode" = %2}
    %body = irdl.region(%0) with size 1
    irdl.regions(body: %body)
  }
}
"""
PROBLEM = "id,lower,upper,size\na,0,3,64\nb,1,5,32\nc,4,9,128\nd,2,7,16\ne,6,9,48\n"


@dataclass(frozen=True)
class Corrupted:
    """An input of one kind, with the command that reads it."""

    kind: str
    words: tuple[str, ...]
    file: Path


def _run(words: Sequence[str]) -> tuple[int, str]:
    """The exit status of a command line of penstock or penstock-opt, and what it says on stderr."""
    from penstock.tools import main, opt

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = (opt if words[0] == "penstock-opt" else main).run(words[1:])
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else 2
    return status, err.getvalue()


@contextmanager
def _limit(seconds: int) -> Generator[None]:
    """Raise TimeoutError in what takes longer."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"it takes longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def corrupted_bytes(rng: random.Random, data: bytes) -> bytes:
    """Some bytes flipped, inserted, removed or repeated, or the end cut off."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(changed)) if changed else 0
        length = min(rng.choice((1, 1, 4, 16)), len(changed) - at)
        match rng.randrange(6):
            case 0 | 1 if changed:
                changed[at] ^= 1 << rng.randrange(8)
            case 2:
                changed[at:at] = rng.randbytes(rng.choice((1, 4, 8)))
            case 3:
                del changed[at : at + length]
            case 4:
                changed[at:at] = changed[at : at + length]
            case _:
                del changed[at:]
    return bytes(changed)


FILE = "FILE"
"""In a command line: the input that is corrupted."""


@dataclass(frozen=True)
class Original:
    """A sound input, and the command line that reads it."""

    file: str
    words: tuple[str, ...]


@dataclass
class Originals:
    """Sound inputs of every kind, each made once in a folder, where corrupted copies stand beside them."""

    folder: Path
    _made: dict[str, Original] = field(default_factory=dict[str, Original])

    def of(self, kind: str) -> Original:
        """The sound input of a kind."""
        if kind not in self._made:
            self._made[kind] = KINDS[kind](self.folder)
        return self._made[kind]

    def corrupted(self, seed: int) -> Corrupted:
        """The input with this number."""
        rng = random.Random(seed)
        kind = list(KINDS)[seed % len(KINDS)]
        original = self.of(kind)
        if kind == "model" and rng.random() < 0.8:
            file = self.folder / "model.onnx"
            sound = random_model(rng.randrange(MODELS))[0]
            write_whole(file, mutated_model(rng, sound).SerializeToString())
            return self._case(kind, original, file)
        data = (self.folder / original.file).read_bytes()
        file = self.folder / f"{kind}{Path(original.file).suffix}"
        if kind in TEXTS and rng.random() < 0.8:
            text = data.decode()
            changed = mutated_kernel(text, rng) if kind == "kernel" else mutant(rng, text)
            write_whole(file, changed)
        else:
            write_whole(file, corrupted_bytes(rng, data))
        return self._case(kind, original, file)

    def _case(self, kind: str, original: Original, file: Path) -> Corrupted:
        return Corrupted(kind, tuple(str(file) if word == FILE else word for word in original.words), file)


def _sound(*words: str) -> None:
    status, err = _run(words)
    assert status == 0, f"{words}: {err}"


def _matmul(folder: Path) -> str:
    write_whole(folder / "matmul.mlir", MATMUL)
    return str(folder / "matmul.mlir")


def _out(folder: Path) -> tuple[str, ...]:
    return "-q", "-o", str(folder / "out.mlir")


def _model(folder: Path) -> Original:
    write_whole(folder / "sound.onnx", random_model(6)[0].SerializeToString())
    return Original("sound.onnx", ("penstock", "compile", FILE, "--emit=graph", *_out(folder)))


def _weights(folder: Path) -> Original:
    model = folder / "weights.onnx"
    writer = Writer(np.random.default_rng(0))
    x = writer.input(4, 40)
    writer.emit("MatMul", [x.name, writer.weight(40, 50)], (4, 50), True, 100)
    write_whole(model, writer.model().SerializeToString())
    _sound("penstock", "import", str(model), "-o", str(folder / "weights.mlir"))
    write_whole(folder / "sound.safetensors", (folder / "weights.safetensors").read_bytes())
    # The corrupted copy has the name that the program knows.
    return Original(
        "sound.safetensors", ("penstock", "compile", str(folder / "weights.mlir"), "--emit=graph", *_out(folder))
    )


def _ir(level: str, machine: str | None) -> Callable[[Path], Original]:
    def make(folder: Path) -> Original:
        target = folder / f"sound_{level}.mlir"
        flags = [] if machine is None else ["--machine", machine]
        _sound("penstock", "compile", _matmul(folder), *flags, f"--emit={level}", "-q", "-o", str(target))
        text = re.sub(r'graph.weights = "[^"]*"', "", target.read_text(encoding="utf-8"))
        write_whole(target, text)
        words = ("penstock-opt", FILE, "-p", "canonicalize,cse", "-o", str(folder / "out.mlir"))
        return Original(target.name, words)

    return make


def _kernel(folder: Path) -> Original:
    writer = KernelWriter(random.Random(5))
    write_whole(folder / "sound.pk", writer.text())
    dims = [part for name, size in writer.sizes.items() for part in ("--dim", f"{name}={size}")]
    return Original("sound.pk", ("penstock", "compile", FILE, *dims, "--emit=tensor", *_out(folder)))


def _machine(folder: Path) -> Original:
    from penstock.lowering.machine_names import machine_text

    write_whole(folder / "sound.toml", machine_text(MACHINES[0])[1])
    words = ("penstock", "compile", _matmul(folder), "--machine", FILE, "--emit=loop", *_out(folder))
    return Original("sound.toml", words)


def _problem(folder: Path) -> Original:
    write_whole(folder / "sound.csv", PROBLEM)
    return Original("sound.csv", ("penstock", "plan", FILE, "-q", "-o", str(folder / "out.csv")))


def _schedule(folder: Path) -> Original:
    flags = ("penstock", "compile", _matmul(folder), "--machine", "gemmini-fp32")
    _sound(*flags, "--emit=schedule", "-q", "-o", str(folder / "sound_schedule.mlir"))
    return Original("sound_schedule.mlir", (*flags, "--schedule", FILE, "--emit=loop", *_out(folder)))


def _irdl(folder: Path) -> Original:
    write_whole(folder / "sound.irdl", DIALECT)
    return Original("sound.irdl", ("penstock-opt", _matmul(folder), "--irdl-file", FILE, *_out(folder)[1:]))


def _plan(folder: Path) -> Original:
    _sound("penstock", "compile", _matmul(folder), "-q", "-o", str(folder / "sound.plan"))
    array = io.BytesIO()
    np.save(array, np.ones((8, 12), np.float32))
    write_whole(folder / "x.npy", array.getvalue())
    words = ("penstock", "run", FILE, "--input", str(folder / "x.npy"), "--output-dir", str(folder), "-q")
    return Original("sound.plan", words)


KINDS: dict[str, Callable[[Path], Original]] = {
    "model": _model,
    "weights": _weights,
    "graph": _ir("graph", None),
    "tensor": _ir("tensor", None),
    "loop": _ir("loop", "gemmini-fp32"),
    "accel": _ir("accel", "gemmini-fp32"),
    "kernel": _kernel,
    "machine": _machine,
    "problem": _problem,
    "schedule": _schedule,
    "plan": _plan,
    "irdl": _irdl,
}
TEXTS = ("graph", "tensor", "loop", "accel", "kernel", "machine", "problem", "schedule", "irdl")


def fault_of(case: Corrupted) -> tuple[str | None, int]:
    """What is wrong with how a corrupted input is taken, a crash, a hang or no message, if it is; and the status."""
    try:
        with _limit(SECONDS):
            status, err = _run(case.words)
    except TimeoutError as error:
        return str(error), INTERNAL
    if status == INTERNAL or "Traceback" in err:
        return err[-1500:], status
    if status and "error: " not in err:
        return f"status {status} without a message: {err[-300:]}", status
    return None, status
