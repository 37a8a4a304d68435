# SPDX-License-Identifier: Apache-2.0
"""Text that went wrong is refused with a place: mutants of the texts of the tests and of what the compiler emits."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from penstock.lowering.from_text import read_text, split_text
from penstock.runtime.pipeline import pipeline
from penstock.tools.fuzz.text_mutants import mutant
from penstock.tools.opt import run

ROOT = Path(__file__).parents[1]
PLACE = re.compile(r"^[^\n]*?:\d+:\d+: error: .", re.MULTILINE)
NETWORK = """func.func @main(%x: tensor<1x2x6x6xf32>, %w: tensor<4x2x3x3xf32>) -> (tensor<1x4x3x3xf32> {graph.name = "y"}) {
  %c = graph.constant dense<[[[1.5]], [[-2.0]], [[0x7F800000]], [[0.1]]]> : tensor<4x1x1xf32>
  %0 = graph.conv %x, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] : (tensor<1x2x6x6xf32>, tensor<4x2x3x3xf32>) -> tensor<1x4x6x6xf32>
  %1 = graph.add %0, %c : (tensor<1x4x6x6xf32>, tensor<4x1x1xf32>) -> tensor<1x4x6x6xf32>
  %2 = graph.max_pool %1 kernel_shape [2, 2] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] : tensor<1x4x6x6xf32> -> tensor<1x4x3x3xf32>
  func.return %2 : tensor<1x4x3x3xf32>
}
"""  # noqa: E501


def texts() -> list[str]:
    """Every piece of text of the filecheck tests and of the corpus that MLIR reads."""
    files = [*sorted((ROOT / "filecheck").rglob("*.mlir")), ROOT / "unit" / "mlir_chunks.mlir"]
    pieces = [piece.text for file in files for piece in split_text(read_text(file))]
    # Comments hold expectations, and half of the tokens.
    return [text for piece in pieces if (text := re.sub(r"^\s*//[^\n]*\n", "", piece, flags=re.MULTILINE)).strip()]


LEVELS = (("tensor", None), ("loop", None), ("loop", "gemmini-fp32"), ("accel", "gemmini-fp32"))
"""Levels of the network, and for which machine."""


def emitted(folder: Path, levels: Sequence[tuple[str, str | None]]) -> Iterator[str]:
    """A small network at these levels, in both forms, without its weights, which stand beside the text."""
    source, target = folder / "network.mlir", folder / "emitted.mlir"
    source.write_text(NETWORK)
    for level, machine in levels:
        flags = [] if machine is None else ["--machine", machine]
        passes = ",".join(pipeline(level, machine))
        assert run([str(source), *flags, "-p", passes, "-o", str(target)]) == 0
        target.write_text(re.sub(r'graph.weights = "[^"]*"', "", target.read_text()))
        yield target.read_text()
        assert run([str(target), "--print-op-generic", "-o", str(target)]) == 0
        yield target.read_text()


def faults(text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str | None:
    """What is wrong with how a text is taken: a status that is neither 0 nor 1, an error without a place."""
    source, target = folder / "mutant.mlir", folder / "out.mlir"
    source.write_text(text)
    status = run(["--allow-unregistered-dialect", str(source), "-o", str(target)])
    err = capsys.readouterr().err
    if status == 1:
        return None if PLACE.match(err) else f"no place: {err[:300]}"
    if status != 0:
        return f"status {status}: {err[-600:]}"
    once = target.read_text()
    again = run(["--allow-unregistered-dialect", str(target), "-o", str(target)])
    err = capsys.readouterr().err
    if again != 0:
        return f"our own text is refused: {err[:300]}"
    return None if target.read_text() == once else "our own text changes when it is read"


def check(seed: int, count: int, originals: Sequence[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(seed)
    wrong: list[str] = []
    for number in range(count):
        text = mutant(rng, rng.choice(originals))
        if text and (fault := faults(text, folder, capsys)) is not None:
            wrong.append(f"// {number}: {fault}\n{text}")
    assert not wrong, f"{len(wrong)} of {count}\n" + "\n".join(wrong)


def test_a_mutant_is_read_or_refused_with_a_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # With this seed a text runs into what the parser has to give a place to.
    check(20, 60, [*texts(), *emitted(tmp_path, LEVELS[1:2])], tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 7))
def test_many_mutants_are_read_or_refused_with_a_place(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check(seed, 500, [*texts(), *emitted(tmp_path, LEVELS)], tmp_path, capsys)
