# SPDX-License-Identifier: Apache-2.0
"""`graph-fuse` on IR: the rules of the house around TVM's algorithm, the kinds of the ops, and the remarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import StringAttr

from penstock.dialects import graph
from penstock.dialects.graph import HasPatternKind
from penstock.dialects.weights import Array
from penstock.passes.graph.fuse import GraphFusePass

Make = Callable[..., Any]
T = "tensor<4x6xf32>"


def integers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(np.float32)


def program_of(make: Make, body: str, result: str = T, **weights: Any) -> Any:
    return make(f"func.func @main(%x: {T}, %z: {T}) -> {result} {{\n{body}\nfunc.return %y : {result}\n}}", **weights)


def fused(make: Make, body: str, result: str = T, **weights: Any) -> list[list[str]]:
    """The ops of each group; the program keeps its values."""
    program = program_of(make, body, result, **weights)
    program.assert_kept("graph-fuse", integers(4, 6), integers(4, 6) + 1)
    return program.groups()


def in_main(make: Make, body: str, result: str = T) -> list[str]:
    program = program_of(make, body, result)
    program.after("graph-fuse")
    return [op.name.split(".")[-1] for op in program.ops()]


def unary(name: str, op: str, of: str, type: str = T) -> str:
    return f"%{name} = graph.{op} %{of} : {type}\n"


def test_views_at_the_ends_of_a_group_stay_in_main_and_those_between_are_inside(make: Make) -> None:
    flat, tall = "tensor<24xf32>", "tensor<8x3xf32>"
    body = f"%a = graph.reshape %x : {T} -> {flat}\n" + unary("b", "neg", "a", flat)
    body += f"%c = graph.reshape %b : {flat} -> {tall}\n" + unary("d", "abs", "c", tall)
    body += f"%y = graph.reshape %d : {tall} -> {T}"
    assert fused(make, body) == [["neg", "reshape", "abs"]]
    assert in_main(make, body) == ["reshape", "fused", "reshape", "return"]


def test_views_alone_are_no_kernel(make: Make) -> None:
    body = f"%a = graph.reshape %x : {T} -> tensor<24xf32>\n%y = graph.reshape %a : tensor<24xf32> -> {T}"
    assert fused(make, body) == []


def test_a_concatenation_of_what_is_computed_with_it_is_inside(make: Make) -> None:
    wide = "tensor<4x12xf32>"
    body = unary("a", "neg", "x") + unary("b", "abs", "z")
    body += f"%c = graph.concat %a, %b axis 1 : ({T}, {T}) -> {wide}\n" + unary("y", "relu", "c", wide)
    assert fused(make, body, wide) == [["neg", "abs", "concat", "relu"]]


def test_a_concatenation_of_anything_else_is_in_main(make: Make) -> None:
    wide = "tensor<4x12xf32>"
    body = unary("a", "neg", "x") + f"%b = graph.softmax %z axis 1 : {T} -> {T}\n"
    body += f"%c = graph.concat %a, %b axis 1 : ({T}, {T}) -> {wide}\n" + unary("y", "relu", "c", wide)
    assert in_main(make, body, wide) == ["fused", "fused", "concat", "fused", "return"]


def test_what_is_padded_is_computed_by_another_kernel(make: Make) -> None:
    body = unary("a", "neg", "x") + f"%b = graph.pad %a pads [0, 1, 0, 1] : {T} -> tensor<4x8xf32>\n"
    body += unary("y", "abs", "b", "tensor<4x8xf32>")
    assert fused(make, body, "tensor<4x8xf32>") == [["neg"], ["pad", "abs"]]


def test_a_constant_is_no_partner_and_does_not_join_its_users(make: Make) -> None:
    body = f'%w = graph.constant #graph.weight<"w"> : {T}\n'
    body += f"%a = graph.add %x, %w : ({T}, {T}) -> {T}\n%s = graph.softmax %a axis 1 : {T} -> {T}\n"
    body += f"%y = graph.mul %s, %w : ({T}, {T}) -> {T}"
    assert fused(make, body, w=integers(4, 6)) == [["add"], ["softmax"], ["mul"]]


def test_groups_are_not_fused_again(make: Make) -> None:
    body = unary("a", "neg", "x") + f"%b = graph.softmax %a axis 1 : {T} -> {T}\n" + unary("y", "abs", "b")
    program = program_of(make, body)
    program.after("graph-fuse{max-ops=1}")
    before = program.groups()
    assert program.after("graph-fuse").groups() == before == [["neg"], ["softmax"], ["abs"]]


def test_limits_are_options(make: Make) -> None:
    body = unary("a", "neg", "x") + unary("b", "abs", "a") + f"%y = graph.add %b, %z : ({T}, {T}) -> {T}"
    for options, groups in (("max-ops=2", [["neg", "abs"], ["add"]]), ("max-arguments=1", [["neg", "abs"], ["add"]])):
        program = program_of(make, body)
        assert program.after(f"graph-fuse{{{options}}}").groups() == groups


KINDS = {
    # As TVM's TOpPattern has them.
    "elementwise": [graph.ReluOp, graph.ExpOp, graph.CastOp, graph.ClipOp, graph.LeakyReluOp, graph.NotOp],
    "broadcast": [graph.AddOp, graph.MulOp, graph.WhereOp, graph.PreluOp, graph.ExpandOp, graph.LessOp],
    "injective": [graph.TransposeOp, graph.ReshapeOp, graph.SliceOp, graph.ConcatOp, graph.PadOp],
    "reduction": [graph.ReduceSumOp, graph.ReduceMeanOp, graph.ReduceMaxOp, graph.ReduceProdOp],
    "complex_out_fusable": [
        *(graph.ConvOp, graph.GemmOp, graph.MatmulOp, graph.MaxPoolOp, graph.AveragePoolOp),
        *(graph.GlobalAveragePoolOp, graph.GlobalMaxPoolOp),
    ],
    # TVM: softmax was opaque until it became out-elementwise-fusable; gathers are injective there.
    "opaque": [
        *(graph.SoftmaxOp, graph.LogSoftmaxOp, graph.LrnOp, graph.TopKOp, graph.ScatterNdOp),
        *(graph.GatherOp, graph.GatherElementsOp, graph.GatherNdOp),
    ],
}


@pytest.mark.parametrize("kind", KINDS)
def test_ops_have_the_kinds_of_tvm_and_gathers_are_opaque(kind: str) -> None:
    found = {op_class.name: op_class.get_trait(HasPatternKind) for op_class in KINDS[kind]}
    assert {name: trait.kind.value for name, trait in found.items() if trait} == dict.fromkeys(found, kind)


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (unary("y", "neg", "x"), "the function returns it"),
        # A view of the result is no part of the kernel, and yet it is what leaves the function, or is read.
        (
            unary("a", "neg", "x")
            + f"%b = graph.reshape %a : {T} -> tensor<24xf32>\n%y = graph.reshape %b : tensor<24xf32> -> {T}",
            "the function returns it",
        ),
        (
            unary("a", "neg", "x") + f"%b = graph.reshape %a : {T} -> tensor<6x4xf32>\n"
            "%c = graph.softmax %b axis 1 : tensor<6x4xf32> -> tensor<6x4xf32>\n"
            f"%y = graph.reshape %c : tensor<6x4xf32> -> {T}",
            "softmax is opaque and takes nothing before it",
        ),
        (f"%y = graph.softmax %x axis 1 : {T} -> {T}", "softmax is opaque"),
        (
            unary("a", "neg", "x") + f"%y = graph.softmax %a axis 1 : {T} -> {T}",
            "softmax takes nothing before it",
        ),
        (
            f"%a = graph.reduce_max %x axes [1] : {T} -> tensor<4x1xf32>\n"
            f"%y = graph.sub %x, %a : ({T}, tensor<4x1xf32>) -> {T}",
            "sub follows a reduction",
        ),
        (
            unary("a", "neg", "x") + f"%m = graph.reduce_max %a axes [1] : {T} -> tensor<4x1xf32>\n"
            f'%y = graph.sub %a, %m : ({T}, tensor<4x1xf32>) -> {T} loc("centred")',
            "reduce_max, on the way to centred (sub), is a reduction, "
            "which takes only elementwise and broadcasting ops",
        ),
    ],
)
def test_a_remark_names_the_op_at_which_a_group_ends_and_the_rule(make: Make, body: str, remark: str) -> None:
    program = program_of(make, body)
    lines = GraphFusePass().explain(program.module)
    program.after("graph-fuse{remarks=true}")
    (first, *_) = (op for op in program.ops() if isinstance(op, graph.FusedOp))
    found = first.attributes["fusion_remark"]
    assert isinstance(found, StringAttr)
    assert found.data == remark
    assert lines[0].endswith(f": {remark}")


def test_groups_carry_no_remark_unless_it_is_asked_for(make: Make) -> None:
    program = program_of(make, unary("y", "neg", "x")).after("graph-fuse")
    assert not any(op.attributes for op in program.ops())
