# SPDX-License-Identifier: Apache-2.0
"""`storage-type`: what is stored in f16, what stays in f32, and how far the values move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects import tensor
from xdsl.dialects.builtin import ModuleOp, TensorType, f16, f32
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, SSAValue
from xdsl.rewriter import Rewriter
from xdsl.utils.hints import isa

from penstock.dialects import graph
from penstock.dialects.diagnostics import location_of
from penstock.dialects.graph import PatternKind, pattern_kind
from penstock.lowering.from_machine_toml import load_machine
from penstock.passes.graph.fuse import GraphFusePass
from penstock.passes.graph.storage_type import StorageTypePass, multiplies_halves_only
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pipeline import pipeline
from penstock.tools.lockstep import lockstep

Array = NDArray[Any]
Make = Any

NARROW = 'graph-fuse,storage-type{type="f16"}'

NETWORK = """func.func @main(%x: tensor<1x8x8x4xf32>) -> tensor<1x6xf32> {
  %w = graph.constant #graph.weight<"conv.weight"> : tensor<3x3x4x8xf32>
  %b = graph.constant #graph.weight<"conv.bias"> : tensor<8xf32>
  %m = graph.constant #graph.weight<"fc.weight"> : tensor<128x6xf32>
  %s = graph.constant #graph.weight<"scale"> : tensor<8xf32>
  %c = graph.conv %x, %w, %b strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] layout "NHWC"
      : (tensor<1x8x8x4xf32>, tensor<3x3x4x8xf32>, tensor<8xf32>) -> tensor<1x8x8x8xf32>
  %r = graph.relu %c : tensor<1x8x8x8xf32>
  %p = graph.max_pool %r kernel_shape [2, 2] strides [2, 2] pads [0, 0, 0, 0] dilations [1, 1] layout "NHWC"
      : tensor<1x8x8x8xf32> -> tensor<1x4x4x8xf32>
  %q = graph.mul %p, %s : (tensor<1x4x4x8xf32>, tensor<8xf32>) -> tensor<1x4x4x8xf32>
  %t = graph.transpose %q perm [0, 3, 1, 2] : tensor<1x4x4x8xf32> -> tensor<1x8x4x4xf32>
  %f = graph.reshape %t : tensor<1x8x4x4xf32> -> tensor<1x128xf32>
  %g = graph.matmul %f, %m : (tensor<1x128xf32>, tensor<128x6xf32>) -> tensor<1x6xf32>
  %y = graph.softmax %g axis 1 : tensor<1x6xf32> -> tensor<1x6xf32>
  func.return %y : tensor<1x6xf32>
}"""


def weights(rng: np.random.Generator) -> dict[str, Array]:
    return {
        "conv.weight": rng.standard_normal((3, 3, 4, 8)) / 6,
        "conv.bias": rng.standard_normal(8),
        "fc.weight": rng.standard_normal((128, 6)) / 8,
        "scale": rng.standard_normal(8),
    }


def element(value: SSAValue) -> Attribute:
    assert isa(value.type, TensorType[Attribute])
    return value.type.element_type


def groups(module: ModuleOp) -> list[graph.FusedOp]:
    return [op for op in module.walk() if isinstance(op, graph.FusedOp)]


def test_what_goes_from_group_to_group_is_f16_and_the_ends_are_f32(make: Make) -> None:
    program = make(NETWORK, **weights(np.random.default_rng(0))).after(NARROW)
    program.module.verify()
    main = program.main
    assert [str(type) for type in main.function_type.inputs] == ["tensor<1x8x8x4xf32>"]
    assert [str(type) for type in main.function_type.outputs] == ["tensor<1x6xf32>"]
    stored = [op.results[0] for op in program.ops() if isinstance(op, graph.FusedOp | graph.ReshapeOp)]
    # The last two are the logits of the softmax, and its result.
    assert [element(value) for value in stored] == [f16] * (len(stored) - 2) + [f32] * 2


def test_groups_compute_in_f32_on_what_they_cast(make: Make) -> None:
    program = make(NETWORK, **weights(np.random.default_rng(0))).after(NARROW)
    moving = (graph.CastOp, graph.TransposeOp, graph.ReshapeOp, graph.ConstantOp)
    computing = [
        op
        for group in groups(program.module)
        for op in group.body.block.ops
        if isinstance(op, graph.GraphOp) and not isinstance(op, moving)
    ]
    assert computing
    assert {element(op.result) for op in computing} == {f32}
    contractions = [op for op in computing if isinstance(op, graph.ConvOp | graph.MatmulOp)]
    assert [op.accumulator for op in contractions] == [f32, f32]
    assert {element(factor) for op in contractions for factor in op.operands[:2]} == {f16}


def test_an_input_that_is_multiplied_is_cast_by_a_group_of_its_own(make: Make) -> None:
    program = make(NETWORK, **weights(np.random.default_rng(0))).after(NARROW)
    first = groups(program.module)[0]
    assert [op.name for op in first.body.block.ops] == ["graph.cast", "graph.yield"]
    assert first.inputs[0] is program.main.body.block.args[0]
    assert pattern_kind(first) == PatternKind.ELEMENTWISE


def test_factors_become_entries_of_the_store_and_vectors_stay(make: Make) -> None:
    arrays = weights(np.random.default_rng(0))
    program = make(NETWORK, **arrays).after(NARROW)
    named = {op.weight: element(op.result) for op in program.ops() if isinstance(op, graph.ConstantOp)}
    assert named == {"conv.weight/f16": f16, "conv.bias": f32, "fc.weight/f16": f16, "scale": f32}
    expected = arrays["fc.weight"].astype(np.float32).astype(np.float16)
    np.testing.assert_array_equal(program.ctx.weights["fc.weight/f16"], expected, strict=True)


def test_the_kinds_of_groups_do_not_change(make: Make) -> None:
    arrays = weights(np.random.default_rng(0))
    before = [pattern_kind(op) for op in groups(make(NETWORK, **arrays).after("graph-fuse").module)]
    after = [pattern_kind(op) for op in groups(make(NETWORK, **arrays).after(NARROW).module)]
    assert after == [PatternKind.ELEMENTWISE, *before]


def test_values_move_by_roundings_to_f16_at_every_level(make: Make) -> None:
    rng = np.random.default_rng(3)
    arrays = weights(rng)
    x = rng.standard_normal((1, 8, 8, 4)).astype(np.float32)
    (expected,) = make(NETWORK, **arrays).run(x)
    program = make(NETWORK, **arrays).after(NARROW)
    (found,) = program.run(x)
    assert found.tobytes() != expected.tobytes()
    assert np.abs(found - expected).max() <= 2e-3 * np.abs(expected).max()
    program.after("graph-to-tensor,tensor-to-loop,mem-plan")
    (lowered,) = run_module(program.module, [x], program.ctx.weights)
    assert np.abs(lowered - found).max() <= 1e-3 * np.abs(expected).max()


def test_small_integers_stay_exact(make: Make) -> None:
    rng = np.random.default_rng(4)
    arrays = {name: rng.integers(-1, 2, array.shape) for name, array in weights(rng).items()}
    softmax = "graph.softmax %g axis 1 : tensor<1x6xf32> -> tensor<1x6xf32>"
    text = NETWORK.replace(softmax, "graph.relu %g : tensor<1x6xf32>")
    x = rng.integers(-1, 2, (1, 8, 8, 4)).astype(np.float32)
    (expected,) = make(text, **arrays).run(x)
    (found,) = make(text, **arrays).after(NARROW).run(x)
    np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize(("value", "stored"), [(-1.0, f16), (0.1, f32), (2049.0, f32)])
def test_a_pad_moves_halves_where_its_number_is_one(make: Make, value: float, stored: Attribute) -> None:
    text = f"""func.func @main(%x: tensor<2x3xf32>) -> tensor<3x4xf32> {{
      %a = graph.exp %x : tensor<2x3xf32>
      %p = graph.fused(%a) pattern injective {{
      ^bb0(%a_1: tensor<2x3xf32>):
        %p_1 = graph.pad %a_1 pads [1, 0, 0, 1] value {value!r} : tensor<2x3xf32> -> tensor<3x4xf32>
        graph.yield %p_1 : tensor<3x4xf32>
      }} : (tensor<2x3xf32>) -> tensor<3x4xf32>
      %y = graph.neg %p : tensor<3x4xf32>
      func.return %y : tensor<3x4xf32>
    }}"""
    program = make(text).after(NARROW)
    (pad,) = [op for op in program.module.walk() if isinstance(op, graph.PadOp)]
    assert element(pad.result) == stored
    (y,) = program.run(np.zeros((2, 3), np.float32))
    assert y[0, 0] == -np.float32(np.float16(value))  # stored in f16 in any case


def test_the_cast_of_a_nameless_input_is_where_the_input_is(make: Make) -> None:
    program = make("""func.func @main(%x: tensor<2x3xf32>, %w: tensor<3x4xf32>) -> tensor<2x4xf32> {
      %y = graph.matmul %x, %w : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
      func.return %y : tensor<2x4xf32>
    }""").after(NARROW)
    places = [location_of(op) for op in program.module.walk() if isinstance(op, graph.CastOp)]
    assert [place.partition(":")[2] for place in places] == ["1:17", "1:38"]


def test_a_weight_that_f16_cannot_hold_keeps_its_contraction_in_f32(make: Make) -> None:
    arrays = weights(np.random.default_rng(0))
    arrays["fc.weight"][3, 3] = 70000
    program = make(NETWORK, **arrays).after(NARROW)
    (matmul,) = [op for op in program.module.walk() if isinstance(op, graph.MatmulOp)]
    assert [element(factor) for factor in matmul.operands] == [f32, f32]
    assert matmul.accumulator is None
    assert "fc.weight/f16" not in program.ctx.weights
    assert "conv.weight/f16" in program.ctx.weights


RESIDUAL = """
func.func @main(%x: tensor<4x4xf32>, %n: tensor<4x4xi64>) -> (tensor<8x4xf32>, tensor<16xf32>, tensor<4x4xi64>) {
  %a = graph.exp %x : tensor<4x4xf32>
  %p = graph.matmul %a, %x : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %c = graph.concat %p, %x axis 0 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %z = graph.neg %c : tensor<8x4xf32>
  %s = graph.softmax %a axis 1 : tensor<4x4xf32> -> tensor<4x4xf32>
  %r = graph.reshape %s : tensor<4x4xf32> -> tensor<16xf32>
  %m = graph.mul %n, %n : (tensor<4x4xi64>, tensor<4x4xi64>) -> tensor<4x4xi64>
  func.return %z, %r, %m : tensor<8x4xf32>, tensor<16xf32>, tensor<4x4xi64>
}"""


def test_views_integers_and_values_that_are_returned(make: Make) -> None:
    program = make(RESIDUAL).after(NARROW)
    program.module.verify()
    (concat,) = [op for op in program.ops() if isinstance(op, graph.ConcatOp)]
    assert element(concat.result) == f16
    (reshape,) = [op for op in program.ops() if isinstance(op, graph.ReshapeOp)]
    assert element(reshape.result) == f32
    x = np.random.default_rng(5).standard_normal((4, 4)).astype(np.float32)
    n = np.arange(16).reshape(4, 4)
    before, after = make(RESIDUAL).run(x, n), program.run(x, n)
    for expected, found in zip(before, after, strict=True):
        np.testing.assert_allclose(found, expected, rtol=4e-3, atol=4e-3)
    np.testing.assert_array_equal(after[2], n * n)


def test_the_input_is_cast_once_for_all_its_users(make: Make) -> None:
    program = make(RESIDUAL).after(NARROW)
    casting = [op for op in groups(program.module) if program.main.body.block.args[0] in op.inputs]
    alone = [op for op in casting if [each.name for each in op.body.block.ops] == ["graph.cast", "graph.yield"]]
    assert len(alone) == 1
    assert len({use.operation for use in alone[0].results[0].uses}) == 2


GROUPED = """func.func @main(%x: tensor<1x4x4x8xf32>) -> tensor<1x4x4x8xf32> {
  %w = graph.constant #graph.weight<"w"> : tensor<1x1x4x8xf32>
  %r = graph.relu %x : tensor<1x4x4x8xf32>
  %c = graph.conv %r, %w strides [1, 1] pads [0, 0, 0, 0] dilations [1, 1] group 2 layout "NHWC"
      : (tensor<1x4x4x8xf32>, tensor<1x1x4x8xf32>) -> tensor<1x4x4x8xf32>
  %a = graph.add %c, %r : (tensor<1x4x4x8xf32>, tensor<1x4x4x8xf32>) -> tensor<1x4x4x8xf32>
  func.return %a : tensor<1x4x4x8xf32>
}"""


def test_a_residual_of_a_grouped_convolution_is_cast_in_the_shape_of_the_groups(make: Make) -> None:
    w = np.random.default_rng(6).integers(-2, 3, (1, 1, 4, 8))
    x = np.random.default_rng(7).integers(-2, 3, (1, 4, 4, 8)).astype(np.float32)
    (expected,) = make(GROUPED, w=w).run(x)
    program = make(GROUPED, w=w).after(f"{NARROW},graph-to-tensor")
    views = [op.parent_op() for op in program.module.walk() if isinstance(op, tensor.ExpandShapeOp)]
    assert views
    assert {op.sym_name.data for op in views if isinstance(op, FuncOp)} == {"main"}
    (found,) = run_module(program.module, [x], program.ctx.weights)
    np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize(
    ("machine", "narrows"), [("gemmini-fp32", False), ("vta-pynq", False), ("rapid-core-like", True)]
)
def test_auto_asks_the_machine_what_it_multiplies(make: Make, machine: str, narrows: bool) -> None:
    assert multiplies_halves_only(load_machine(machine)) == narrows
    program = make(NETWORK, **weights(np.random.default_rng(0)))
    attach_machine(program.module, machine)
    text = program.after("graph-fuse").text
    program.after("storage-type")
    assert (program.text != text) == narrows
    assert "storage-type" in pipeline("graph", machine)


def test_without_a_machine_nothing_happens(make: Make) -> None:
    program = make(NETWORK, **weights(np.random.default_rng(0))).after("graph-fuse")
    text = program.text
    assert program.after("storage-type").text == text
    assert "storage-type" not in pipeline("graph", None)


def test_lockstep_allows_the_roundings_and_no_more(make: Make) -> None:
    arrays = weights(np.random.default_rng(0))
    x = np.random.default_rng(1).standard_normal((1, 8, 8, 4)).astype(np.float32)
    program = make(NETWORK, **arrays)
    report = lockstep(program.module, program.ctx, [GraphFusePass(), StorageTypePass("f16")], [x])
    assert [found.verdict for found in report.comparisons] == ["equal", "rounding"]
    assert 0 < report.comparisons[-1].largest_error < report.comparisons[-1].bound < 0.05


@dataclass(frozen=True)
class NarrowAndDropRelu(StorageTypePass):
    """The pass with a fault."""

    name = "narrow-and-drop-relu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        super().apply(ctx, op)
        for found in list(op.walk()):
            if isinstance(found, graph.ReluOp):
                found.result.replace_all_uses_with(found.x)
                Rewriter.erase_op(found)


def test_lockstep_still_finds_a_fault_in_a_pass_that_narrows(make: Make) -> None:
    program = make(NETWORK, **weights(np.random.default_rng(0)))
    x = np.random.default_rng(1).standard_normal((1, 8, 8, 4)).astype(np.float32)
    report = lockstep(program.module, program.ctx, [GraphFusePass(), NarrowAndDropRelu("f16")], [x])
    assert report.culprit is not None


def test_where_f16_holds_every_value_lockstep_compares_bits(make: Make) -> None:
    text = """func.func @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
      %a = graph.relu %x : tensor<4x4xf32>
      %y = graph.matmul %a, %x : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      func.return %y : tensor<4x4xf32>
    }"""
    program = make(text)
    report = lockstep(program.module, program.ctx, [GraphFusePass(), StorageTypePass("f16")])
    assert [found.verdict for found in report.comparisons] == ["equal", "equal"]
    program = make(text)
    report = lockstep(program.module, program.ctx, [GraphFusePass(), NarrowAndDropRelu("f16")])
    assert report.culprit is not None
    assert report.culprit.bound == 0
