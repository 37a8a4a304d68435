# SPDX-License-Identifier: Apache-2.0
"""One command for a whole tile: counted loops, a list of micro-operations, and runs of padded pixels."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod
from pathlib import Path

import numpy as np
import pytest
from blocked_convolutions import Layer
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples, sweep
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.machine import TargetOp
from penstock.lowering.from_machine_toml import load_machine, validate
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.machine_names import machine_text
from penstock.passes.analysis.commands.command_loops import commands, counted_dims, descriptors
from penstock.passes.analysis.commands.hazards import check
from penstock.passes.analysis.commands.limits import limit_faults
from penstock.passes.analysis.commands.trace import trace
from penstock.passes.analysis.intrinsics import Match
from penstock.passes.analysis.kernels import machine_kernels, machine_of
from penstock.passes.loop.tensorize import prove
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline

TILES = Layer(size=14, channels=64, outputs=32)


def lowered(text: str, machine: str, *, until: str = "accel") -> tuple[ModuleOp, PenstockContext]:
    ctx = make_context()
    module = parse_text(ctx, SourceText("layer.mlir", text)).module
    attach_machine(module, machine)
    run_passes(ctx, module, read_pipeline(",".join(pipeline(until, machine, start="tensor"))))
    return module, ctx


def execs(module: ModuleOp, intrinsic: str) -> list[ExecOp]:
    return [op for op in module.walk() if isinstance(op, ExecOp) and op.intrinsic_name == intrinsic]


def changed(folder: Path, changes: dict[str, str]) -> str:
    """A copy of vta-pynq with other limits."""
    text = machine_text("vta-pynq")[1].replace('name = "vta-pynq"', 'name = "limited"', 1)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = folder / "limited.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def assert_exact(layer: Layer, module: ModuleOp, ctx: PenstockContext) -> None:
    inputs = layer.draw(np.random.default_rng(3))
    expected = layer.evaluate(*inputs)
    assert 0 < np.count_nonzero(expected) < expected.size
    for seed in (None, 1):
        np.testing.assert_array_equal(run_module(module, list(inputs), ctx.weights, seed=seed)[0], expected)
    np.testing.assert_array_equal(Engine(module, ctx, backend="native").run(inputs, {})[0], expected)


# execs


def test_one_command_multiplies_a_whole_tile() -> None:
    module, ctx = lowered(TILES.text(), "vta-pynq")
    for command in execs(module, "gemm"):
        assert not any(dim > 1 and dim not in command.extents.get_values() for dim in (3, 16))
        assert prod(command.extents.get_values()) > 16 * 16 * 9
    assert len(execs(module, "gemm")) == 1
    assert_exact(TILES, module, ctx)


@pytest.mark.parametrize("limit", [1, 5, 36])
def test_a_shorter_list_of_micro_operations_leaves_loops_around_the_command(tmp_path: Path, limit: int) -> None:
    machine = changed(tmp_path, {"micro_ops = { value = 8192": f"micro_ops = {{ value = {limit}"})
    module, ctx = lowered(TILES.text(), machine)
    for command in execs(module, "gemm"):
        rounds = sorted((extent for extent in blocks_of(command) if extent > 1), reverse=True)
        assert prod(rounds[2:]) <= limit
    assert_exact(TILES, module, ctx)


def test_counted_loops_are_cut_where_they_count_no_further(tmp_path: Path) -> None:
    machine = changed(tmp_path, {"max_iterations = [16383, 16383]": "max_iterations = [5, 5]"})
    module, ctx = lowered(TILES.text(), machine)
    for command in execs(module, "alu_shr_imm"):
        assert all(extent <= 5 for extent in sorted(blocks_of(command), reverse=True)[:2])
    assert_exact(TILES, module, ctx)


def blocks_of(command: ExecOp) -> list[int]:
    """The extents of a command, without the last dims of a block: 16 lanes, and 16 that are summed."""
    extents = list(command.extents.get_values())
    for index_map in (command.maps.data[0].data, command.maps.data[-1].data):
        (lane,) = index_map.results[-1].used_dims()
        extents[lane] = 1
    return extents


@lru_cache
def gemm() -> tuple[Match, TargetOp, tuple[int, ...]]:
    """VTA's matrix intrinsic as a match of a convolution's dims, and their extents."""
    module, _ = lowered(TILES.text(), "vta-pynq", until="loop")
    target = machine_of(module)
    assert target is not None
    generics = [op for op in module.walk() if isinstance(op, GenericOp) and op.library_call is not None]
    generic = next(op for op in generics if str(op.library_call) == '"gemm"')
    return prove(generic, target), target, tuple(generic.get_static_loop_ranges())


@given(st.lists(st.sampled_from([1, 2, 3, 7, 28, 300, 20_000]), min_size=9, max_size=9))
@examples(60)
def test_commands_do_every_point_once_within_the_limits(sizes: list[int]) -> None:
    match, target, shape = gemm()
    own = [dim for dim, block in match.blocks.items() if block[1] > 1]
    extents = [shape[dim] if dim in own else size for dim, size in enumerate(sizes)]
    steps = [[0] * len(extents)] * 3
    limits, listed = match.intrinsic.max_iterations, match.intrinsic.micro_ops
    issued = points = 0
    for count, command in commands(match, extents, target, steps):
        rounds = {dim: size for dim, size in enumerate(command) if size > 1 and dim not in own}
        counted = counted_dims(rounds, len(limits))
        assert all(rounds[dim] <= limit for dim, limit in zip(counted[::-1], limits[::-1], strict=False))
        assert prod(size for dim, size in rounds.items() if dim not in counted) <= listed
        points += count * prod(command)
        issued += count
    assert points == prod(extents)
    if prod(sorted(size for dim, size in enumerate(extents) if dim not in own)[:-2]) <= listed:
        assert issued == prod(-(-size // limits[0]) for dim, size in enumerate(extents) if dim not in own)


# transfers


@pytest.mark.parametrize(
    ("planes", "channels"), sweep(product([False, True], [16, 64, 256]), quick=[(False, 16), (True, 64)])
)
def test_padded_pixels_are_runs_of_entries(planes: bool, channels: int) -> None:
    layer = Layer(size=7, channels=channels, outputs=16, planes=planes)
    module, ctx = lowered(layer.text(), "vta-pynq")
    target, (kernel,) = machine_kernels(module)
    assert target is not None
    program = trace(kernel, target)
    assert not list(limit_faults(program, target))
    assert not check(program)
    loads = [each for each in program.commands if each.name == "load_inp"]
    # 16 blocks of a pixel are more than the engine pads: then a pixel is a row, and each line of them a transfer.
    assert len(loads) == channels // 16 if planes or channels == 16 else len(loads) <= max(9, channels // 16 * 9)
    assert any(isinstance(op, DmaOp) and op.padding is not None for op in module.walk())
    assert_exact(layer, module, ctx)


def test_a_descriptor_takes_padded_pixels_as_far_as_it_pads() -> None:
    engine = load_machine("vta-pynq").dmas()["load_inp"]

    def image(blocks: int) -> tuple[int, int]:
        box = [9, 9, blocks, 16]
        sides = [[7 * blocks * 16, blocks * 16, 16, 1], [9 * blocks * 16, blocks * 16, 16, 1]]
        return descriptors(engine, box, sides, 16, {0: 1, 1: 1})

    assert image(15) == (1, 9)
    assert image(16) == (9, 81)


STORE = """
#id = affine_map<(n, c, h, w, o) -> (n, c, h, w, o)>
func.func private @k(%y: memref<1x2x14x14x16xi8>, %z: memref<1x2xLINESx28x16xi8>) attributes {device = @vta_pynq} {
  %c = mem.buffer at 0 : memref<1x2x14x14x16xi32, "acc">
  linalg.generic {indexing_maps = [#id, #id], library_call = "store_narrow",
      iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel"]}
      ins(%c : memref<1x2x14x14x16xi32, "acc">) outs(OUT) {
  ^bb0(%in: i32, %out: i8):
    %0 = arith.trunci %in : i32 to i8
    linalg.yield %0 : i8
  }
  func.return
}
"""


def half(lines: int) -> str:
    """The first half of each of 14 lines of images that have more."""
    type = f"memref<1x2x14x14x16xi8, strided<[{2 * lines * 448}, {lines * 448}, 448, 16, 1]>>"
    view = f"""  %h = memref.subview %z[0, 0, 0, 0, 0] [1, 2, 14, 14, 16] [1, 1, 1, 1, 1]
      : memref<1x2x{lines}x28x16xi8> to {type}
  %c = """
    return STORE.replace("OUT", f"%h : {type}").replace("  %c = ", view).replace("LINES", str(lines))


@pytest.mark.parametrize(
    ("text", "extents"),
    [
        (STORE.replace("OUT", "%y : memref<1x2x14x14x16xi8>").replace("LINES", "14"), (2, 14, 14, 16)),
        (half(14), (2, 14, 14, 16)),
        (half(20), (14, 14, 16)),
    ],
    ids=["whole planes", "half of each line", "half of some lines"],
)
def test_an_engine_stores_as_many_dims_as_its_descriptor_spells(text: str, extents: tuple[int, ...]) -> None:
    ctx = make_context()
    module = parse_text(ctx, SourceText("store.mlir", text)).module
    attach_machine(module, "vta-pynq")
    run_passes(ctx, module, read_pipeline("loop-to-accel"))
    # Lines of whole planes adjoin on both sides, and are one run; halves of all lines are rows of one stride.
    (store,) = execs(module, "store_narrow")
    assert store.extents.get_values() == extents


# the machine file


def test_a_list_without_loops_means_nothing(tmp_path: Path) -> None:
    machine = changed(tmp_path, {"max_iterations = [16383, 16383]\n": ""})
    assert any("micro_ops has no meaning without max_iterations" in str(fault) for fault in validate(machine))


def test_no_list_is_no_micro_operation() -> None:
    limits = {name: each.micro_ops for name, each in load_machine("gemmini-fp32").intrinsics().items()}
    assert set(limits.values()) == {0}
    assert load_machine("vta-pynq").intrinsics()["gemm"].micro_ops == 8192


@pytest.mark.parametrize("order", list(product([2, 3, 5], repeat=3)))
def test_the_longest_dims_are_counted_and_of_equals_the_outer_ones(order: tuple[int, ...]) -> None:
    rounds = dict(enumerate(order))
    counted = counted_dims(rounds, 2)
    assert list(counted) == sorted(counted)
    (listed,) = set(rounds) - set(counted)
    assert all(rounds[listed] < rounds[dim] or (rounds[listed] == rounds[dim] and listed > dim) for dim in counted)
