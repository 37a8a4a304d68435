# SPDX-License-Identifier: Apache-2.0
"""
Texts that are half typed, by the mutators of `penstock fuzz`, as an editor reads them: whatever is asked about one,
what reads it does not fail, and every place that it answers with is in the text.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest

from penstock.tools.fuzz.kernel_texts import mutated
from penstock.tools.fuzz.text_mutants import mutant
from penstock.tools.lsp.documents import Document
from penstock.tools.lsp.server import LANGUAGES

ROOT = Path(__file__).parents[2]
BLOCKS = """#row = affine_map<(d0, d1) -> (d0, d1)>
!line = memref<4x4xf32, "sram">
machine.target @small frequency 100 {
  machine.scope @sram size 1024 granule 16 dtypes [f32]
}
func.func @main(%x: memref<4x4xf32>, %n: index, %c: i1) -> index attributes {device = @host} {
  %a = mem.buffer at 64 : !line
  mem.copy %x to %a : memref<4x4xf32> to !line
  linalg.generic {indexing_maps = [#row, #row], iterator_types = ["parallel", "parallel"]} ins(%a : !line) outs(%x : memref<4x4xf32>) {
  ^bb0(%in: f32, %out: f32):
    %s = arith.addf %in, %in : f32
    linalg.yield %s : f32
  }
  cf.cond_br %c, ^bb1(%n : index), ^bb2
^bb1(%m: index):
  %p:2 = "scf.for"(%n, %m, %n, %m, %m) ({
  ^bb0(%i: index, %u: index, %v: index):
    "scf.yield"(%v, %u) : (index, index) -> ()
  }) : (index, index, index, index, index) -> (index, index)
  %q = func.call @other(%p#1) : (index) -> index
  func.return %q : index
^bb2:
  func.return %n : index
}
func.func private @other(index) -> index
"""  # noqa: E501


def samples(suffix: str) -> list[str]:
    match suffix:
        case ".mlir":
            paths = sorted((ROOT / "tests/filecheck").rglob("*.mlir"))
            return [BLOCKS, *(path.read_text() for path in paths if path.stat().st_size < 4000)]
        case ".pk":
            return [path.read_text() for path in sorted((ROOT / "examples/operators").glob("*.pk"))]
        case _:
            files = resources.files("penstock.machines").iterdir()
            return [path.read_text() for path in sorted(files, key=str) if path.name.endswith(".toml")]


def half_typed(rng: random.Random, text: str, suffix: str) -> str:
    """The text as it may be while somebody types: cut off, with words changed, or with a part removed."""
    match rng.randrange(4 if text.strip() else 1):
        case 0:
            return text[: rng.randrange(len(text) + 1)]
        case 1:
            start = rng.randrange(len(text) + 1)
            return text[:start] + text[start + rng.randrange(40) :]
        case 2:
            at = rng.randrange(len(text) + 1)
            return text[:at] + rng.choice("\"{}[]()<>%@^#!=,.:\n\f\u2028\U0001d11e'") + text[at:]
        case _:
            return mutated(text, rng) if suffix == ".pk" else mutant(rng, text)


def ask(document: Document, rng: random.Random, complete: Callable[..., object]) -> None:
    """Ask everything at some places of a document."""
    end = len(document.text)
    for problem in document.problems:
        assert 0 <= problem.extent.start <= problem.extent.end <= end
    for symbol in document.symbols():
        assert symbol.extent.start <= symbol.named.start <= symbol.named.end <= symbol.extent.end <= end
    for _ in range(6):
        at = rng.randrange(end + 1)
        if (hover := document.hover(at)) is not None:
            assert hover.extent.start <= at <= hover.extent.end <= end
            assert hover.text
        for location in document.definitions(at):
            assert location.path or location.extent.end <= end
        for extent, _ in document.occurrences(at):
            assert document.text[extent.start : extent.end].strip()
        complete(document.text, at, document)
        complete(document.text, at, None)


def check(suffix: str, seed: int) -> None:
    rng = random.Random(seed)
    text = rng.choice(samples(suffix))
    for _ in range(rng.randint(0, 2)):
        text = half_typed(rng, text, suffix)
    document = LANGUAGES[suffix].read(str(ROOT / f"half_typed{suffix}"), text)
    ask(document, rng, LANGUAGES[suffix].complete)


@pytest.mark.parametrize("suffix", LANGUAGES)
def test_what_reads_a_half_typed_text_does_not_fail(suffix: str) -> None:
    for seed in range(40):
        check(suffix, seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 5000, 500))
@pytest.mark.parametrize("suffix", LANGUAGES)
def test_what_reads_more_half_typed_texts_does_not_fail(suffix: str, first: int) -> None:
    for seed in range(first, first + 500):
        check(suffix, seed)
