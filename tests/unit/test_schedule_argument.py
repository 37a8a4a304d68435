# SPDX-License-Identifier: Apache-2.0
"""A file of schedules, given to every command that compiles, and to `penstock.compile`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import penstock as package
from penstock.dialects.diagnostics import UserError

if TYPE_CHECKING:
    from tests.conftest import Command

MACHINE = ("--machine", "gemmini-fp32")
PRODUCT = """func.func @main(%x: tensor<32x32xf32> {graph.name = "x"}) -> (tensor<32x32xf32> {graph.name = "y"}) {
  %y = graph.matmul %x, %x : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
  func.return %y : tensor<32x32xf32>
}
"""
X = np.arange(1024, dtype=np.float32).reshape(32, 32) % 7


@pytest.fixture
def edited(penstock: Command) -> str:
    """The compiler's own schedule of the product with other rows in a tile: the same numbers, in other loops."""
    Path("in.mlir").write_text(PRODUCT)
    np.save("x.npy", X)
    assert penstock("compile", "in.mlir", *MACHINE, "--emit=schedule", "-o", "own.mlir", "-q").status == 0
    own = Path("own.mlir").read_text()
    found = re.search(r"sizes \[(\d+)", own)
    assert found is not None
    rows = 16 if found[1] != "16" else 8
    tiling = re.sub(r" attributes \{schedule.kernel.*\} \{", " {", own).split("    %kernel_1 = ")[0]
    Path("any.mlir").write_text(tiling + "    transform.yield\n  }\n}\n")
    Path("edited.mlir").write_text(own.replace(found[0], f"sizes [{rows}"))
    return "edited.mlir"


def test_a_program_is_lowered_by_it(penstock: Command, edited: str) -> None:
    for name, words in (("usual", ()), ("own", ("--schedule", "own.mlir")), ("other", ("--schedule", edited))):
        done = penstock("compile", "in.mlir", *MACHINE, *words, "--emit=accel", "-o", f"{name}.accel.mlir", "-q")
        assert done.status == 0, done.err
    usual, own, other = (Path(f"{name}.accel.mlir").read_text() for name in ("usual", "own", "other"))
    assert usual == own != other
    there = penstock("simulate", "other.accel.mlir").out.splitlines()[0]
    here = penstock("simulate", "in.mlir", *MACHINE, "--schedule", edited).out.splitlines()[0]
    assert there == here != penstock("simulate", "in.mlir", *MACHINE).out.splitlines()[0]


def test_a_program_is_run_by_it(penstock: Command, edited: str) -> None:
    words = ("run", "in.mlir", *MACHINE, "--schedule", edited, "--input", "x.npy", "--level", "accel", "-q")
    assert penstock(*words).status == 0
    assert np.array_equal(np.load("output_0.npy"), X @ X)


def test_a_program_is_checked_by_it(penstock: Command, edited: str) -> None:
    done = penstock("check", "in.mlir", *MACHINE, "--schedule", edited, "--interleaving", "program")
    assert (done.status, "tile: equal, bit for bit" in done.out) == (0, True)


def test_a_level_takes_what_is_of_it(penstock: Command, edited: str) -> None:
    """A schedule of all levels is no fault where the program ends at one of them."""
    for level in ("tensor", "loop"):
        words = ("compile", "in.mlir", *MACHINE, f"--emit={level}", "-q", "-o")
        assert penstock(*words, "given.mlir", "--schedule", edited).status == 0
        assert penstock(*words, "usual.mlir").status == 0
        assert Path("given.mlir").read_text() != Path("usual.mlir").read_text()


def test_from_python(edited: str) -> None:
    engine = package.compile("in.mlir", "gemmini-fp32", "interpreter", schedule=edited)
    usual = package.compile("in.mlir", "gemmini-fp32", "interpreter")
    assert isinstance(engine, package.Engine)
    assert isinstance(usual, package.Engine)
    assert str(engine.module) != str(usual.module)
    assert np.array_equal(engine(X)[0], X @ X)
    with pytest.raises(UserError, match="the kernel runs on the host, which has no scopes"):
        package.compile("in.mlir", backend="interpreter", schedule=edited)


def test_each_binding_of_symbolic_dims_takes_it(edited: str) -> None:
    text = PRODUCT.replace("tensor<32x32xf32> {graph", 'tensor<?x32xf32> {graph.dims = ["N", ""], graph')
    Path("open.mlir").write_text(
        text.replace("func.func @main(%x:", "func.func @main(%w: tensor<32x32xf32>, %x:")
        .replace("%x, %x : (tensor<32x32xf32>", "%x, %w : (tensor<?x32xf32>")
        .replace("-> tensor<32x32xf32>\n", "-> tensor<?x32xf32>\n")
        .replace("return %y : tensor<32x32xf32>", "return %y : tensor<?x32xf32>")
    )
    engine = package.compile("open.mlir", "gemmini-fp32", "interpreter", schedule=edited)
    assert isinstance(engine, package.DynamicEngine)
    # It is the schedule of a kernel of two inputs, whatever the sizes.
    for _ in range(2):
        with pytest.raises(UserError, match="this is the schedule of another kernel @fused_0"):
            engine.bind(N=32)


REFUSED = {
    "for the host": ("compile in.mlir --schedule {}", 1, "the kernel runs on the host, which has no scopes"),
    "above tiles": ("compile in.mlir {m} --emit=graph --schedule {}", 1, "the schedule of @fused_0 is not applied"),
    "without tile": (
        "simulate in.mlir {m} -p default,-tile --schedule {}",
        1,
        "the schedule of another kernel @fused_0",
    ),
    "without tile, any kernel": ("simulate in.mlir {m} -p default,-tile --schedule any.mlir", 1, "is not applied"),
    "on commands": ("simulate accel.mlir --schedule {}", 1, "the schedule of @fused_0 is not applied"),
    "on a plan": ("run in.plan --input x.npy --schedule {}", 2, "a plan is compiled already: --schedule is for"),
    "on offsets": ("plan accel.mlir --schedule {}", 2, "--schedule is for a program that is yet to be cut into tiles"),
    "no file": ("check in.mlir {m} --schedule missing.mlir", 1, "missing.mlir: error: cannot read the file"),
    "a knob without it": ("run in.mlir {m} --input x.npy --knob fused_0.n=3", 2, "--knob is for the schedules that"),
    "of a problem": ("plan p.csv --schedule {}", 2, "--schedule is for a model or a file of IR"),
}


@pytest.fixture
def programs(penstock: Command, edited: str) -> Callable[[str], str]:
    """Makes the file of a program that a command line names."""

    def make(line: str) -> str:
        for name, words in (("accel.mlir", ["--emit=accel"]), ("in.plan", [])):
            if name in line:
                assert penstock("compile", "in.mlir", *MACHINE, *words, "-o", name, "-q").status == 0
        Path("p.csv").write_text("id,lower,upper,size\na,0,3,4\n")
        return line.replace("{m}", " ".join(MACHINE)).replace("{}", edited)

    return make


@pytest.mark.parametrize("misuse", REFUSED)
def test_a_schedule_that_would_not_be_followed_is_refused(
    misuse: str, programs: Callable[[str], str], penstock: Command
) -> None:
    line, status, message = REFUSED[misuse]
    done = penstock(*programs(line).split())
    assert (done.status, message in done.err) == (status, True), done.err


def test_a_section_that_only_matches_is_the_compilers(penstock: Command, edited: str) -> None:
    own, edit = (Path(name).read_text() for name in ("own.mlir", edited))
    for name, text in (("own", own), ("matching", re.sub(r".* = schedule\.tile .*\n", "", edit))):
        Path(f"{name}.mlir").write_text(text)
        words = ("--schedule", f"{name}.mlir", "--emit=tensor", "-o", f"{name}.tensor.mlir", "-q")
        assert penstock("compile", "in.mlir", *MACHINE, *words).status == 0
    assert "schedule.tile" not in text
    assert "transform.structured.match" in text.split("tensor-to-loop")[0]
    assert Path("own.tensor.mlir").read_text() == Path("matching.tensor.mlir").read_text()
