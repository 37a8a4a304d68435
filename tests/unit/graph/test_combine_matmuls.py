# SPDX-License-Identifier: Apache-2.0
"""`combine-matmuls`: which products are siblings, what becomes of them, and that no bit changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.graph import ConvOp, MatmulOp, SliceOp, tensor_of
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.analysis.commands.traffic import traffic
from penstock.passes.graph.combine_matmuls import MAX_GAP
from penstock.passes.graph.values import is_view
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter.graph import run_graph
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline
from penstock.runtime.signature import signature_of

Array = NDArray[Any]


def weight(name: str, *shape: int) -> tuple[str, Array]:
    seed = [ord(letter) for letter in name]
    return name, np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def constants(*weights: tuple[str, Array]) -> str:
    return "".join(
        f'  %{name} = graph.constant #graph.weight<"{name}"> : tensor<{"x".join(map(str, array.shape))}xf32>\n'
        for name, array in weights
    )


def parsed(body: str, *weights: tuple[str, Array]) -> tuple[PenstockContext, ModuleOp]:
    ctx = make_context()
    for name, array in weights:
        ctx.weights.add(name, array)
    head, _, rest = body.partition("{\n")
    text = head + "{\n" + constants(*weights) + rest
    return ctx, parse_text(ctx, SourceText("test.mlir", text)).module


def combined(ctx: PenstockContext, module: ModuleOp, options: str = "") -> ModuleOp:
    after = module.clone()
    run_passes(ctx, after, read_pipeline(f"combine-matmuls{options},fold-constants"))
    return after


def inputs_of(module: ModuleOp) -> list[Array]:
    main = next(op for op in module.ops if isinstance(op, FuncOp))
    return [
        np.random.default_rng([index]).standard_normal(tensor_of(argument).get_shape()).astype(np.float32)
        for index, argument in enumerate(main.body.block.args)
    ]


def graph_values(ctx: PenstockContext, module: ModuleOp) -> list[Array]:
    main = next(op for op in module.ops if isinstance(op, FuncOp))
    return run_graph(main, inputs_of(module), ctx.weights)


def in_c(ctx: PenstockContext, module: ModuleOp) -> list[Array]:
    signature, arrays = signature_of(module), inputs_of(module)
    specs = [spec for spec in pipeline("loop", None) if spec not in ("combine-matmuls", "fuse-attention")]
    run_passes(ctx, module, read_pipeline(",".join(specs)))
    return Engine(module, ctx, signature, "native").run(arrays)


THREE = """func.func @main(%x: tensor<2x9x16xf32>) -> (tensor<2x9x8xf32>, tensor<2x9x8xf32>, tensor<2x9x8xf32>) {
  %p = graph.matmul %x, %u : (tensor<2x9x16xf32>, tensor<16x8xf32>) -> tensor<2x9x8xf32>
  %a = graph.add %e, %p : (tensor<8xf32>, tensor<2x9x8xf32>) -> tensor<2x9x8xf32>
  %r = graph.relu %a : tensor<2x9x8xf32>
  %q = graph.matmul %x, %v : (tensor<2x9x16xf32>, tensor<16x8xf32>) -> tensor<2x9x8xf32>
  %b = graph.add %f, %q : (tensor<8xf32>, tensor<2x9x8xf32>) -> tensor<2x9x8xf32>
  %s = graph.relu %b : tensor<2x9x8xf32>
  %o = graph.matmul %x, %w : (tensor<2x9x16xf32>, tensor<16x8xf32>) -> tensor<2x9x8xf32>
  %c = graph.add %g, %o : (tensor<8xf32>, tensor<2x9x8xf32>) -> tensor<2x9x8xf32>
  %t = graph.relu %c : tensor<2x9x8xf32>
  func.return %r, %s, %t : tensor<2x9x8xf32>, tensor<2x9x8xf32>, tensor<2x9x8xf32>
}"""
THREE_WEIGHTS = [*(weight(name, 16, 8) for name in "uvw"), *(weight(name, 8) for name in "efg")]

GEMMS = """func.func @main(%x: tensor<9x16xf32>) -> (tensor<9x8xf32>, tensor<9x24xf32>) {
  %p = graph.gemm %x, %u, %e : (tensor<9x16xf32>, tensor<16x8xf32>, tensor<8xf32>) -> tensor<9x8xf32>
  %q = graph.gemm %x, %v, %f : (tensor<9x16xf32>, tensor<16x24xf32>, tensor<24xf32>) -> tensor<9x24xf32>
  func.return %p, %q : tensor<9x8xf32>, tensor<9x24xf32>
}"""
GEMM_WEIGHTS = [weight("u", 16, 8), weight("v", 16, 24), weight("e", 8), weight("f", 24)]

CONVS = """func.func @main(%x: tensor<1x4x7x7xf32>) -> (tensor<1x3x7x7xf32>, tensor<1x5x7x7xf32>) {
  %p = graph.conv %x, %u, %e strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1]
      : (tensor<1x4x7x7xf32>, tensor<3x4x1x1xf32>, tensor<3xf32>) -> tensor<1x3x7x7xf32>
  %q = graph.conv %x, %v, %f strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1]
      : (tensor<1x4x7x7xf32>, tensor<5x4x1x1xf32>, tensor<5xf32>) -> tensor<1x5x7x7xf32>
  %r = graph.relu %p : tensor<1x3x7x7xf32>
  %s = graph.relu %q : tensor<1x5x7x7xf32>
  func.return %r, %s : tensor<1x3x7x7xf32>, tensor<1x5x7x7xf32>
}"""
CONV_WEIGHTS = [weight("u", 3, 4, 1, 1), weight("v", 5, 4, 1, 1), weight("e", 3), weight("f", 5)]

PROGRAMS = {"a batch": (THREE, THREE_WEIGHTS), "gemms": (GEMMS, GEMM_WEIGHTS), "filters": (CONVS, CONV_WEIGHTS)}


def names_of(module: ModuleOp) -> list[str]:
    return [op.name for op in module.walk() if op.name.startswith("graph.") and op.name != "graph.constant"]


def test_products_of_one_shape_become_a_batch_of_which_each_takes_its_rows() -> None:
    ctx, before = parsed(THREE, *THREE_WEIGHTS)
    after = combined(ctx, before)
    assert names_of(after) == [
        "graph.reshape",
        "graph.matmul",
        "graph.add",
        "graph.relu",
        *["graph.slice", "graph.reshape"] * 3,
    ]
    (product,) = [op for op in after.walk() if isinstance(op, MatmulOp)]
    assert tensor_of(product.b).get_shape() == (3, 16, 8)
    assert all(is_view(op) for op in after.walk() if isinstance(op, SliceOp))


def test_products_of_several_widths_are_concatenated() -> None:
    ctx, before = parsed(GEMMS, *GEMM_WEIGHTS)
    after = combined(ctx, before)
    assert names_of(after) == ["graph.matmul", "graph.add", "graph.slice", "graph.slice"]
    assert names_of(combined(ctx, before, '{unequal="leave"}')) == ["graph.gemm", "graph.gemm"]


def test_filters_are_concatenated_with_their_biases() -> None:
    ctx, before = parsed(CONVS, *CONV_WEIGHTS)
    after = combined(ctx, before)
    assert names_of(after) == ["graph.conv", "graph.relu", "graph.slice", "graph.slice"]
    (product,) = [op for op in after.walk() if isinstance(op, ConvOp)]
    assert tensor_of(product.result).get_shape() == (1, 8, 7, 7)


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_bit_changes(name: str) -> None:
    text, weights = PROGRAMS[name]
    ctx, before = parsed(text, *weights)
    after = combined(ctx, before)
    for expected, found in zip(graph_values(ctx, before), graph_values(ctx, after), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    for expected, found in zip(in_c(ctx, before), in_c(ctx, after), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_siblings_stay_apart_on_a_host_with_registers() -> None:
    text, weights = next(iter(PROGRAMS.values()))
    ctx, module = parsed(text, *weights)
    attach_machine(module, "host-avx2")
    before = str(module)
    run_passes(ctx, module, read_pipeline("combine-matmuls"))
    assert str(module) == before


def test_the_left_operand_is_loaded_once() -> None:
    moved: list[int] = []
    for first in ("", "combine-matmuls,"):
        body = (
            THREE.replace("2x9x16", "1x64x512")
            .replace("2x9x8", "1x64x256")
            .replace("16x8", "512x256")
            .replace("<8xf32", "<256xf32")
        )
        weights = [*(weight(name, 512, 256) for name in "uvw"), *(weight(name, 256) for name in "efg")]
        ctx, module = parsed(body, *weights)
        attach_machine(module, "gemmini-fp32")
        # Kept on chip, the operand would be loaded once in either case; tiles that hide latency trade bytes for time.
        without = ("combine-matmuls", "mem-promote")
        specs = [spec for spec in pipeline("accel", "gemmini-fp32") if spec not in without]
        specs = ["tile{depth=1}" if spec == "tile" else spec for spec in specs]
        run_passes(ctx, module, read_pipeline(first + ",".join(specs)))
        moved.append(traffic(module).bytes_in)
    assert moved[0] - moved[1] >= 2 * 64 * 512 * 4


def test_the_ops_that_follow_are_combined_as_far_as_they_are_alike() -> None:
    other = THREE.replace("%s = graph.relu %b", "%s = graph.tanh %b")
    ctx, before = parsed(other, *THREE_WEIGHTS)
    after = combined(ctx, before)
    names = names_of(after)
    assert names[:3] == ["graph.reshape", "graph.matmul", "graph.add"]
    assert sorted(name for name in names if name in ("graph.relu", "graph.tanh")) == [
        "graph.relu",
        "graph.relu",
        "graph.tanh",
    ]


def test_a_result_that_is_used_twice_ends_what_is_combined() -> None:
    text = THREE.replace("func.return %r,", "func.return %a,")
    ctx, before = parsed(text, *THREE_WEIGHTS)
    assert names_of(combined(ctx, before)).count("graph.add") == 1
    assert names_of(combined(ctx, before)).count("graph.relu") == 3
    for expected, found in zip(graph_values(ctx, before), graph_values(ctx, combined(ctx, before)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


LEFT_ALONE = {
    "another left operand": GEMMS.replace(
        "%q = graph.gemm %x", "%z = graph.relu %x : tensor<9x16xf32>\n  %q = graph.gemm %z"
    ),
    "a factor that is computed": GEMMS.replace(
        "%q = graph.gemm %x, %v",
        "%z = graph.add %v, %y : (tensor<16x24xf32>, tensor<16x24xf32>) -> tensor<16x24xf32>\n  %q = graph.gemm %x, %z",
    ).replace("xf32>) -> (", "xf32>, %y: tensor<16x24xf32>) -> (", 1),
    "another alpha": GEMMS.replace("%v, %f", "%v, %f alpha 2.0"),
    "too far apart": GEMMS.replace(
        "  %q = graph.gemm",
        "".join(
            f"  %z{n} = graph.relu %{'p' if n == 0 else f'z{n - 1}'} : tensor<9x8xf32>\n" for n in range(MAX_GAP + 1)
        )
        + "  %q = graph.gemm",
    ).replace("return %p", f"return %z{MAX_GAP}"),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_others_are_left_alone(name: str) -> None:
    ctx, before = parsed(LEFT_ALONE[name], *GEMM_WEIGHTS)
    assert names_of(combined(ctx, before)).count("graph.gemm") == 2


def test_constants_that_come_after_the_first_product_are_moved_in_front_of_it() -> None:
    ctx, before = parsed(GEMMS, *GEMM_WEIGHTS)
    block = next(op for op in before.ops if isinstance(op, FuncOp)).body.block
    late = [op for op in block.ops if op.results and op.results[0].name_hint in ("v", "f")]
    gemms = [op for op in block.ops if op.name == "graph.gemm"]
    for op in late:
        op.detach()
        block.insert_op_before(op, gemms[1])
    after = combined(ctx, before)
    after.verify()
    assert "graph.gemm" not in names_of(after)


def test_families_that_share_weights_are_both_combined() -> None:
    text = """func.func @main(%x: tensor<9x16xf32>, %z: tensor<9x16xf32>)
      -> (tensor<9x8xf32>, tensor<9x24xf32>, tensor<9x8xf32>, tensor<9x24xf32>) {
  %p = graph.gemm %x, %u, %e : (tensor<9x16xf32>, tensor<16x8xf32>, tensor<8xf32>) -> tensor<9x8xf32>
  %q = graph.gemm %x, %v, %f : (tensor<9x16xf32>, tensor<16x24xf32>, tensor<24xf32>) -> tensor<9x24xf32>
  %r = graph.gemm %z, %u, %e : (tensor<9x16xf32>, tensor<16x8xf32>, tensor<8xf32>) -> tensor<9x8xf32>
  %s = graph.gemm %z, %v, %f : (tensor<9x16xf32>, tensor<16x24xf32>, tensor<24xf32>) -> tensor<9x24xf32>
  func.return %p, %q, %r, %s : tensor<9x8xf32>, tensor<9x24xf32>, tensor<9x8xf32>, tensor<9x24xf32>
}"""
    ctx, before = parsed(text, *GEMM_WEIGHTS)
    after = combined(ctx, before)
    assert names_of(after).count("graph.matmul") == 2
    for expected, found in zip(graph_values(ctx, before), graph_values(ctx, after), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
