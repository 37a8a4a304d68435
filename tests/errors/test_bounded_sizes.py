# SPDX-License-Identifier: Apache-2.0
"""What is said of sizes that only a run knows where they cannot be: at the operator, with what would help."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import penstock
from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.dialects.graph.dims import AtMost


def make_model(nodes: list[NodeProto], shape: list[Any], **weights: NDArray[Any]) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def node(operator: str, inputs: str, name: str, **attributes: Any) -> NodeProto:
    return helper.make_node(operator, inputs.split(), ["y"], name, **attributes)


def pool(kernel: int, stride: int) -> ModelProto:
    return make_model([node("MaxPool", "x", "pool", kernel_shape=[kernel, 1], strides=[stride, 1])], IMAGE)


def convolution(stride: int) -> ModelProto:
    weights = np.ones((2, 4, stride, 1), np.float32)
    return make_model([node("Conv", "x w", "convolution", strides=[stride, 1])], IMAGE, w=weights)


IMAGE: list[Any] = [1, 4, "N", 8]
RELU = make_model([node("Relu", "x", "clamp")], ["N", 4])
REFUSED = {
    "a mean": (make_model([node("ReduceMean", "x", "mean", axes=[0])], ["N", 4]), "a factor or a divisor of floats"),
    "a reshape that divides": (
        make_model([node("Reshape", "x pairs", "pairs")], ["N", 4], pairs=np.array([-1, 8])),
        "do not fit the shape -1x8",
    ),
    "a stride": (
        make_model([node("MaxPool", "x", "pool", kernel_shape=[1, 1], strides=[2, 2])], [1, 4, "N", 8]),
        "is no sum of products of the sizes",
    ),
    "a size that may be none": (
        make_model([node("MaxPool", "x", "pool", kernel_shape=[3, 3])], [1, 4, "N", 8]),
        r"graph.max_pool: ",
    ),
    **{f"a pool with the stride {stride}": (pool(stride, stride), "graph.max_pool: ") for stride in (8, 16)},
    **{f"lines {stride} apart": (pool(1, stride), "it is 1 at N = 1 and ") for stride in (8, 16)},
    **{f"a convolution with the stride {stride}": (convolution(stride), "graph.conv: ") for stride in (8, 16)},
    "a sum of a pool": (
        make_model(
            [
                helper.make_node("MaxPool", ["x"], ["p"], "pool", kernel_shape=[8, 1], strides=[8, 1]),
                node("ReduceSum", "p axes", "sum", keepdims=0),
            ],
            IMAGE,
            axes=np.array([2]),
        ),
        "graph.max_pool: ",
    ),
    "a line that may be missing": (
        make_model([node("Gather", "x row", "line", axis=0)], ["N", 4], row=np.array(10)),
        "graph.",
    ),
    "lines that may be missing": (
        make_model([node("Gather", "x rows", "lines", axis=0)], ["N", 4], rows=np.array([0, 10])),
        "graph.",
    ),
    "a line that may be of either part": (
        make_model(
            [
                helper.make_node("Abs", ["x"], ["a"], "first"),
                helper.make_node("Neg", ["x"], ["b"], "second"),
                helper.make_node("Concat", ["a", "b"], ["both"], "both", axis=0),
                node("Gather", "both row", "line", axis=0),
            ],
            ["N", 4],
            row=np.array([1]),
        ),
        "line 1 is read, and there can be none",
    ),
    "a slice that may be none": (
        make_model(
            [node("Slice", "x start end axis", "slice")],
            ["N", 4],
            start=np.array([1]),
            end=np.array([2**62]),
            axis=np.array([0]),
        ),
        "N",
    ),
    "more than there may be": (
        make_model([helper.make_node("TopK", ["x", "k"], ["y", "places"], "top", axis=0)], ["N", 4], k=np.array([5])),
        "graph.",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("bound", [16, 64])
def test_what_is_no_sum_of_products_of_sizes_is_refused_at_the_operator(what: str, bound: int) -> None:
    model, message = REFUSED[what]
    with pytest.raises(UserError, match=message) as refusal:
        penstock.compile(model, dims={"N": AtMost(bound)})
    assert refusal.value.status == UNSUPPORTED
    places = [each.name for each in model.graph.node]
    assert any(f'"{place}"' in str(refusal.value) for place in (*places, "y"))
    assert any("--dim NAME=SIZE" in note for note in refusal.value.notes)


@pytest.mark.parametrize("machine", ["gemmini-fp32", "host-avx2"])
def test_machines_take_numbers(machine: str) -> None:
    with pytest.raises(UserError, match=f'"N", is not for the machine "{machine}"') as refusal:
        penstock.compile(RELU, machine, dims={"N": AtMost(16)})
    assert any("bind it" in note for note in refusal.value.notes)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"threads": 2}, "is not for several threads"),
        ({"backend": "llvm"}, "are for C and the interpreter, not for LLVM"),
    ],
)
def test_threads_and_llvm_take_numbers(options: dict[str, Any], what: str) -> None:
    with pytest.raises(UserError, match=what):
        penstock.compile(RELU, dims={"N": AtMost(16)}, **options)


def test_the_name_must_be_that_of_a_dimension() -> None:
    with pytest.raises(UserError, match='there is no symbolic dimension "M"') as refusal:
        penstock.compile(RELU, dims={"M": AtMost(16)})
    assert refusal.value.notes == ('symbolic dimensions: "N"',)


@pytest.mark.parametrize("bound", [0, -3])
def test_a_bound_is_at_least_1(bound: int) -> None:
    with pytest.raises(UserError, match=f'the dimension "N" must be at least 1, not {bound}'):
        penstock.compile(RELU, dims={"N": AtMost(bound)})


def test_a_dimension_has_a_size_or_a_bound(penstock: Any, tmp_path: Any) -> None:
    (tmp_path / "a.onnx").write_bytes(RELU.SerializeToString())
    finished = penstock("compile", tmp_path / "a.onnx", "--dim", "N<=4", "--dim", "N=4")
    assert finished.status == 2
    assert "the dimension N is given a size and a bound" in finished.err


def test_at_most_three_sizes_are_open() -> None:
    model = make_model([node("Relu", "x", "clamp")], ["A", "B", "C", "D"])
    with pytest.raises(UserError, match="4 sizes are open"):
        penstock.compile(model, dims={name: AtMost(4) for name in "ABCD"})


def test_commands_that_need_a_number_say_so(penstock: Any, tmp_path: Any) -> None:
    (tmp_path / "a.onnx").write_bytes(RELU.SerializeToString())
    finished = penstock("simulate", tmp_path / "a.onnx", "--dim", "N<=4", "--machine", "gemmini-fp32")
    assert finished.status == 1
    assert 'a number is needed for what only a run knows the size of: "N"' in finished.err
