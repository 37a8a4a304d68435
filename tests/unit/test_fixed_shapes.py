# SPDX-License-Identifier: Apache-2.0
"""Intrinsics of fixed shape: how a tile becomes whole blocks, and which kernels cannot and stay on the host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects import tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.parser import Parser

from penstock.dialects.accel import ExecOp
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.mem import CopyOp, scope_of
from penstock.dialects.weights import WeightStore
from penstock.passes.analysis.kernels import HOST, Placement, kernels, partition
from penstock.passes.planning.tile_problem import NoTile, TileDim, given_size, tile_sizes
from penstock.runtime.interpreter import Counters, run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline

BLOCKS = Path(__file__).parents[1] / "machines" / "blocks.toml"


# sizes, plain data


def test_a_tile_is_cut_into_whole_blocks() -> None:
    fixed = ((8, 8),)
    assert tile_sizes(TileDim(40, True, 8, blocks=fixed)) == [8, 16, 24, 40]
    assert tile_sizes(TileDim(37, True, 8, blocks=fixed)) == [8, 16, 24]
    assert tile_sizes(TileDim(5, True, 8, blocks=fixed)) == [8]
    assert tile_sizes(TileDim(1, True, 8, blocks=fixed)) == [8]


def test_the_last_block_of_a_range_is_not_too_small() -> None:
    ranged = TileDim(20, True, 8, blocks=((3, 8),))
    assert [ranged.takes(size) for size in (2, 3, 8, 9, 10, 11, 16)] == [False, True, True, False, False, True, True]
    assert all(ranged.takes(size) for size in tile_sizes(ranged))


def test_blocks_of_several_intrinsics_hold_at_once() -> None:
    assert tile_sizes(TileDim(7, True, blocks=((4, 4), (6, 6)))) == [12]
    assert tile_sizes(TileDim(30, True, blocks=((4, 4), (6, 6)))) == [12, 24]


def test_a_reduction_is_filled_up_with_zeros_only_where_they_change_nothing() -> None:
    assert tile_sizes(TileDim(10, False, 8, runs_past_end=True, blocks=((8, 8),))) == [8, 16]
    assert tile_sizes(TileDim(16, False, 8, blocks=((8, 8),))) == [8, 16]
    with pytest.raises(NoTile, match="d2 of 10 is not cut into blocks of 8"):
        tile_sizes(TileDim(10, False, 8, blocks=((8, 8),)), 2)


def test_a_size_given_by_hand_must_be_whole_blocks_or_the_whole_dim() -> None:
    dim = TileDim(20, True, 8, blocks=((8, 8),))
    assert [given_size(dim, size, 0) for size in (8, 16, 20, 99)] == [8, 16, 24, 24]
    with pytest.raises(ValueError, match="tile size 9 of dim 0 is not cut into blocks of 8"):
        given_size(dim, 9, 0)
    with pytest.raises(ValueError, match="dim 1 of 20 is not cut into blocks of 8"):
        given_size(TileDim(20, False, 8, blocks=((8, 8),)), 20, 1)


# kernels


def machine(path: Path, *edits: tuple[str, str]) -> str:
    text = BLOCKS.read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    file = path / "blocks.toml"
    file.write_text(text)
    return str(file)


def block(m: int, n: int, k: int) -> tuple[str, str]:
    return "{ m = 4, n = 4, k = 4 }", f"{{ m = {m}, n = {n}, k = {k} }}"


def matmul(m: int, n: int, k: int, epilogue: str = "") -> str:
    """relu(x w) and more, at graph level."""
    result = f"tensor<{m}x{n}xf32>"
    return f"""func.func @main(%x: tensor<{m}x{k}xf32>, %w: tensor<{k}x{n}xf32>) -> {result} {{
      %p = graph.matmul %x, %w : (tensor<{m}x{k}xf32>, tensor<{k}x{n}xf32>) -> {result}
      %r = graph.relu %p : {result}
      {epilogue}
      func.return %{"s" if epilogue else "r"} : {result}
    }}"""


def lowered(text: str, machine: str, until: str = "accel", tile: str = "tile") -> ModuleOp:
    ctx = make_context()
    module = Parser(ctx, text).parse_module()
    attach_machine(module, machine)
    level = "tensor" if "linalg" in text else "graph"
    specs = [tile if spec == "tile" else spec for spec in pipeline(until, "blocks", start=level)]
    run_passes(ctx, module, read_pipeline(",".join(specs)))
    return module


def placements(text: str, machine: str) -> list[Placement]:
    return partition(lowered(text, machine, "tensor"))


def run(module: ModuleOp, shapes: Sequence[tuple[int, ...]]) -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes]
    return inputs, run_module(module, inputs, WeightStore())[0]


def test_what_is_shorter_than_a_block_is_padded_and_only_its_valid_part_is_stored(tmp_path: Path) -> None:
    module = lowered(matmul(5, 3, 10), machine(tmp_path, block(16, 8, 8)), "loop")
    (kernel,) = partition(module)
    assert kernel.device != HOST
    assert kernel.tiling.startswith(
        "d0 of 5 is padded to 16, 220.0% extra work; d1 of 3 is padded to 8, 166.7% extra work; "
        "d2 of 10 is filled with zeros to 16, 60.0% extra work"
    )
    stored = [op for op in module.walk() if isinstance(op, CopyOp) and scope_of(op.dest_type) is None]
    assert [list(op.source_type.get_shape()) for op in stored] == [[5, 3]]
    inputs, result = run(module, [(5, 10), (10, 3)])
    np.testing.assert_array_equal(result, np.maximum(inputs[0] @ inputs[1], 0))


def test_a_long_dim_is_cut_into_whole_blocks_of_which_the_last_overlaps(tmp_path: Path) -> None:
    module = lowered(matmul(37, 8, 8), machine(tmp_path, block(16, 8, 8)))
    (kernel,) = (kernel for kernel in partition(module) if kernel.macs)
    assert kernel.tiling.startswith("d0 parallel, 3 tiles of 16 in 37, the last overlaps, 29.7% is done twice; ")
    extents = [op.extents.get_values() for op in module.walk() if isinstance(op, ExecOp) and op.intrinsic_name == "mma"]
    assert extents == [(16, 8, 8)]


def test_every_application_is_a_whole_block(tmp_path: Path) -> None:
    module = lowered(matmul(20, 12, 9), machine(tmp_path, block(16, 8, 8)))
    counters = Counters()
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-4, 5, shape).astype(np.float32) for shape in ((20, 9), (9, 12))]
    run_module(module, inputs, WeightStore(), counters=counters)
    count = counters.intrinsics["mma"]
    assert count.points == count.issues * 16 * 8 * 8


def test_a_tile_by_hand_that_is_not_whole_blocks_is_refused(tmp_path: Path) -> None:
    path = machine(tmp_path, block(4, 4, 4))
    with pytest.raises(UserError, match="tile size 6 of dim 0 is not cut into blocks of 4"):
        lowered(matmul(20, 12, 8), path, tile="tile{sizes=6,4,4}")
    module = lowered(matmul(20, 12, 9), path, tile="tile{sizes=8,8,4}")
    inputs, result = run(module, [(20, 9), (9, 12)])
    np.testing.assert_array_equal(result, np.maximum(inputs[0] @ inputs[1], 0))


SUM_OF_MAXIMA = """
#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>
func.func private @kernel(%x: tensor<8x10xf32>, %w: tensor<10x8xf32>, %c: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %r = linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<8x10xf32>, tensor<10x8xf32>) outs(%c : tensor<8x8xf32>) {
  ^bb0(%a: f32, %b: f32, %s: f32):
    %d = arith.maximumf %a, %b : f32
    %t = arith.addf %s, %d : f32
    linalg.yield %t : f32
  } -> tensor<8x8xf32>
  func.return %r : tensor<8x8xf32>
}
func.func @main(%x: tensor<8x10xf32>, %w: tensor<10x8xf32>, %c: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %r = func.call @kernel(%x, %w, %c) : (tensor<8x10xf32>, tensor<10x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  func.return %r : tensor<8x8xf32>
}"""


def test_a_reduction_that_zeros_would_change_stays_on_the_host(tmp_path: Path) -> None:
    edit = ('"c[m,n] += a[m,k] * b[k,n]"', '"c[m,n] += max(a[m,k], b[k,n])"')
    (kernel,) = placements(SUM_OF_MAXIMA, machine(tmp_path, edit))
    assert (kernel.device, kernel.remark) == (
        HOST,
        "the reduction d2 of 10 is not cut into blocks of 4, and elements after its end would count",
    )
    (kernel,) = placements(SUM_OF_MAXIMA.replace("10", "12"), machine(tmp_path, edit))
    assert kernel.device != HOST


def test_an_op_without_a_dim_that_plays_a_fixed_one_stays_on_the_host(tmp_path: Path) -> None:
    text = """func.func @main(%x: tensor<16xf32>, %w: tensor<16x8xf32>) -> tensor<8xf32> {
      %p = graph.matmul %x, %w : (tensor<16xf32>, tensor<16x8xf32>) -> tensor<8xf32>
      func.return %p : tensor<8xf32>
    }"""
    (kernel,) = placements(text, machine(tmp_path, block(4, 4, 4)))
    assert kernel.device == HOST
    assert "nothing can play its dim m" in kernel.remark
    assert placements(text, machine(tmp_path, ("m = 4", "m = [1, 4]")))[0].device != HOST


# scopes that are too small


def test_a_kernel_of_which_no_tile_fits_goes_to_the_host_with_the_bytes(tmp_path: Path) -> None:
    found = placements(matmul(64, 64, 64), machine(tmp_path, block(32, 32, 32), ("size = 65536", "size = 12000")))
    assert (found[0].device, found[0].macs) == (HOST, 64**3)
    assert found[0].remark == (
        'no tile of it fits scope "spm": the smallest needs 12,288 bytes of its 12,000 '
        "(%matmul 4,096, %a 4,096, %b 4,096)"
    )


def test_a_contraction_that_only_fits_alone_leaves_its_epilogue(tmp_path: Path) -> None:
    # One block of each operand of the product fits, but not one of what is added to it beside them.
    type = "tensor<64x64xf32>"
    text = matmul(64, 64, 64, f"%s = graph.add %r, %x : ({type}, {type}) -> {type}")
    found = placements(text, machine(tmp_path, block(32, 32, 32), ("size = 65536", "size = 13008")))
    assert [(kernel.device != HOST, kernel.macs) for kernel in found] == [(True, 64**3), (True, 0)]
    module = lowered(text, str(tmp_path / "blocks.toml"))
    inputs, result = run(module, [(64, 64), (64, 64)])
    np.testing.assert_array_equal(result, np.maximum(inputs[0] @ inputs[1], 0) + inputs[0])


def test_an_op_takes_the_buffer_of_what_was_computed_for_it_alone(tmp_path: Path) -> None:
    module = lowered(matmul(64, 64, 64), machine(tmp_path, block(32, 32, 32), ("size = 65536", "size = 13008")))
    (kernel,) = partition(module)
    assert kernel.device != HOST
    (relu,) = [op for op in module.walk() if isinstance(op, ExecOp) and op.intrinsic_name == "max_imm"]
    assert relu.buffers[0] is relu.buffers[1]
    for seed in (None, 0, 1):
        inputs = [np.full((64, 64), value, np.float32) for value in (1, -1)]
        np.testing.assert_array_equal(run_module(module, inputs, WeightStore(), seed=seed)[0], np.zeros((64, 64)))


def test_the_nest_of_a_padded_kernel_is_one_pad_per_operand_and_one_slice(tmp_path: Path) -> None:
    module = lowered(matmul(5, 8, 8), machine(tmp_path, block(16, 8, 8)), "tensor")
    pads = [op for op in module.walk() if isinstance(op, tensor.PadOp)]
    slices = [op for op in module.walk() if isinstance(op, tensor.ExtractSliceOp)]
    assert [list(op.result.type.get_shape()) for op in pads] == [[16, 8]]
    assert [list(op.result.type.get_shape()) for op in slices] == [[5, 8]]
    (kernel,) = kernels(module)
    shapes = {tuple(op.get_static_loop_ranges()) for op in kernel.walk() if isinstance(op, GenericOp)}
    assert shapes == {(16, 8), (16, 8, 8)}
