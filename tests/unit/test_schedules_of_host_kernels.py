# SPDX-License-Identifier: Apache-2.0
"""Schedules of kernels that run on the host: cut into tiles, and as loops, with a machine and without one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import penstock as package
from penstock.dialects.diagnostics import UserError

if TYPE_CHECKING:
    from tests.conftest import Command

PROGRAM = """func.func @main(%x: tensor<16x24xi32> {graph.name = "x"}, %w: tensor<24x8xi32>) -> tensor<8x16xi32> {
  %0 = graph.matmul %x, %w : (tensor<16x24xi32>, tensor<24x8xi32>) -> tensor<16x8xi32>
  %1 = graph.transpose %0 perm [1, 0] : tensor<16x8xi32> -> tensor<8x16xi32>
  func.return %1 : tensor<8x16xi32>
}
"""


def write(path: str, name: str, target: str | None = None) -> None:
    """The compiler's file of schedules, with the schedule of the product by hand, made from Python."""
    schedule = package.schedule("in.mlir", name, machine=target, check=True)
    zero, product = schedule.match("linalg.generic")[:2]
    schedule.tile(product, [8, 0, 6], fusing=[zero])
    schedule.lower("tensor-to-loop")
    product = schedule.match("linalg.generic")[1]
    rows, columns, sums = schedule.convert_to_loops(product)
    schedule.reorder(rows, sums, columns)
    split = schedule.split(columns, 4)
    schedule.vectorize(split.inner)
    schedule.unroll(sums, 2)
    schedule.parallel(rows)
    schedule.save(path)


def kernels(penstock: Command, *words: str) -> list[str]:
    assert penstock("compile", "in.mlir", *words, "--emit=tensor", "-o", "t.mlir", "-q").status == 0
    lines = Path("t.mlir").read_text().splitlines()
    return [line.partition("@")[2].partition("(")[0] for line in lines if "func.func private" in line]


@pytest.mark.parametrize("machine", [(), ("--machine", "gemmini-fp32")], ids=["host", "machine"])
def test_the_command_line_applies_what_python_writes(machine: tuple[str, ...], penstock: Command) -> None:
    Path("in.mlir").write_text(PROGRAM)
    name = kernels(penstock, *machine)[0]
    write("own.mlir", name, machine[1] if machine else None)
    assert "schedule.vectorize" in Path("own.mlir").read_text()
    words = ("compile", "in.mlir", *machine, "-q")
    assert penstock(*words, "--emit=loop", "--schedule", "own.mlir", "-o", "own.loop.mlir").status == 0
    assert penstock(*words, "--emit=loop", "-o", "usual.loop.mlir").status == 0
    own, usual = (Path(f"{each}.loop.mlir").read_text() for each in ("own", "usual"))
    assert own.count("scf.for") > usual.count("scf.for") == 0
    assert "vectorize" in own
    # What is printed of it is applied again.
    assert penstock(*words, "--emit=schedule", "--schedule", "own.mlir", "-o", "again.mlir").status == 0
    assert f"transform.named_sequence @{name}(" in Path("again.mlir").read_text()
    assert penstock(*words, "--emit=loop", "--schedule", "again.mlir", "-o", "again.loop.mlir").status == 0
    assert Path("again.loop.mlir").read_text() == own


def test_interpreter_and_c_compute_the_same_by_it(penstock: Command) -> None:
    Path("in.mlir").write_text(PROGRAM)
    write("own.mlir", kernels(penstock)[0])
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-1000, 1000, shape, np.int32) for shape in ((16, 24), (24, 8)))
    for backend in ("interpreter", "native"):
        engine = package.compile("in.mlir", backend=backend, schedule="own.mlir")
        assert isinstance(engine, package.Engine)
        assert np.array_equal(engine(x, w)[0], (x @ w).T), backend


def test_the_compiler_prints_an_empty_schedule_of_a_kernel_on_the_host(penstock: Command) -> None:
    Path("in.mlir").write_text(PROGRAM)
    assert penstock("compile", "in.mlir", "--emit=schedule", "-o", "own.mlir", "-q").status == 0
    text = Path("own.mlir").read_text()
    assert [line.split("@")[1].split("(")[0] for line in text.splitlines() if "named_sequence @" in line] == kernels(
        penstock
    )
    assert text.count('apply_registered_pass "tensor-to-loop"') == len(kernels(penstock))


def test_a_kernel_on_the_host_has_no_section_about_scopes(penstock: Command) -> None:
    Path("in.mlir").write_text(PROGRAM)
    name = kernels(penstock)[0]
    for machine in (None, "gemmini-fp32"):
        schedule = package.schedule("in.mlir", name, machine=machine)
        with pytest.raises(UserError, match=f"kernel @{name} runs on the host, which has no scopes"):
            schedule.lower("mem-promote")


LAYER = """func.func @main(%x: tensor<16x24xi32> {graph.name = "x"}, %w: tensor<24x32xi32>) -> tensor<16x32xi32> {
  %0 = graph.matmul %x, %w : (tensor<16x24xi32>, tensor<24x32xi32>) -> tensor<16x32xi32>
  %1 = graph.relu %0 : tensor<16x32xi32>
  func.return %1 : tensor<16x32xi32>
}
"""


def test_tiles_that_are_computed_at_once_make_buffers_of_their_own(penstock: Command) -> None:
    """A product that is computed in each tile of what reads it is in a buffer that each iteration makes."""
    Path("in.mlir").write_text(LAYER)
    schedule = package.schedule("in.mlir", "fused_0", check=True)
    _, product, relu = schedule.match("linalg.generic")
    tiles = schedule.tile_using_forall(relu, np.array([8, 8]))  # pyright: ignore[reportArgumentType]
    schedule.compute_at(product, tiles.forall_op)
    schedule.save("own.mlir")
    checked = penstock("check", "in.mlir", "--schedule", "own.mlir")
    assert checked.status == 0, checked.err
    assert "forall-to-for: equal" in checked.out
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-1000, 1000, shape, np.int32) for shape in ((16, 24), (24, 32)))
    (result,) = package.compile("in.mlir", schedule="own.mlir")(x, w)
    assert np.array_equal(result, np.maximum(x @ w, 0))


def test_a_step_from_python_takes_handles_of_its_schedule_and_whole_numbers(penstock: Command) -> None:
    Path("in.mlir").write_text(LAYER)
    schedule, other = (package.schedule("in.mlir", "fused_0") for _ in range(2))
    product, before = schedule.match("linalg.generic")[1], str(schedule)
    with pytest.raises(UserError, match="is given a value that is no handle of this schedule"):
        schedule.tile(other.match("linalg.generic")[1], [8, 0, 0])
    with pytest.raises(UserError, match=r"operand 'target' at position 0 does not verify"):
        schedule.tile(schedule.op(product), [8, 0, 0])  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        schedule.tile(product, [8.0, 0, 0])  # pyright: ignore[reportArgumentType]
    assert str(schedule) == before


@pytest.mark.parametrize(("step", "strides"), [("align", "[35, 1]"), ("layout", "[1, 16]")])
def test_an_allocation_on_the_host_has_the_strides_that_are_said(step: str, strides: str, penstock: Command) -> None:
    Path("in.mlir").write_text(LAYER)
    schedule = package.schedule("in.mlir", "fused_0", check=True)
    schedule.lower("tensor-to-loop")
    (product,) = schedule.match("memref.alloc")
    if step == "align":
        schedule.storage_align(product, 0, 8, 3)
    else:
        schedule.layout(product, [1, 0])
        with pytest.raises(UserError, match="are stored in another order"):
            schedule.storage_align(product, 0, 8)
    schedule.save("own.mlir")
    assert penstock("compile", "in.mlir", "--schedule", "own.mlir", "--emit=loop", "-o", "l.mlir", "-q").status == 0
    assert f"memref<16x32xi32, strided<{strides}>>" in Path("l.mlir").read_text()
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-1000, 1000, shape, np.int32) for shape in ((16, 24), (24, 32)))
    (result,) = package.compile("in.mlir", schedule="own.mlir")(x, w)
    assert np.array_equal(result, np.maximum(x @ w, 0))


def test_a_consumer_is_computed_where_the_loops_begin_with_an_empty_tensor(penstock: Command) -> None:
    Path("in.mlir").write_text(LAYER)
    schedule = package.schedule("in.mlir", "fused_0", check=True)
    zero, product, relu = schedule.match("linalg.generic")
    columns = schedule.tile(product, [8, 8, 0]).loops[-1]
    with pytest.raises(UserError, match="go on with a tensor that is there already") as refused:
        schedule.reverse_compute_at(relu, columns)
    assert refused.value.notes == ("schedule.compute_at lets the loop compute its part of what fills that tensor",)
    schedule.compute_at(zero, columns)
    schedule.reverse_compute_at(relu, columns)
