# SPDX-License-Identifier: Apache-2.0
"""Kernels of the kernel language as operators of ONNX models: nodes of the domain `penstock`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

import penstock
from penstock.dialects.diagnostics import UserError

if TYPE_CHECKING:
    from tests.conftest import Command

KERNELS = """kernel scaled[SHIFT = 1](f32 x[N, M], f32 z[M]) -> (f32 s[N, M], f32 t[N]) {
    s[i, j] = x[i, j] * z[j]
    t[i] = sum(j, s[i, j]) - SHIFT
}

kernel double(f32 x[N]) -> (f32 y[N]) {
    y[i] = 2 * x[i]
}
"""
RNG = np.random.default_rng(0)
onnxruntime: Any = pytest.importorskip("onnxruntime")
X, Z = RNG.normal(size=(4, 8)).astype(np.float32), RNG.normal(size=8).astype(np.float32)


def model_of(*nodes: onnx.NodeProto, x: tuple[int | str, ...] = (4, 8), **settings: Any) -> ModelProto:
    """A model of x and z, whose result is y."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", x), ("z", [8]))]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("penstock", 1)]
    return helper.make_model(helper.make_graph(nodes, "g", values, [result]), opset_imports=opsets, **settings)


def node(kernel: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kernel, inputs, outputs, name=f"the_{outputs[0]}", domain="penstock", **attributes)


RELU = helper.make_node("Relu", ["x"], ["r"])
SCALED = node("scaled", ["r", "z"], ["s", "t"], SHIFT=3)
FUNCTION = helper.make_function(
    "penstock",
    "scaled",
    ["x", "z"],
    ["s", "t"],
    [
        helper.make_node("Mul", ["x", "z"], ["s"]),
        helper.make_node("Constant", [], ["axis"], value_ints=[1]),
        helper.make_node("ReduceSum", ["s", "axis"], ["sum"], keepdims=0),
        helper.make_node("Constant", [], ["shift"], value_float=3.0),
        helper.make_node("Sub", ["sum", "shift"], ["t"]),
    ],
    [helper.make_opsetid("", 20)],
    attributes=["SHIFT"],
)
"""What the kernel computes, for whom does not know it."""


@pytest.mark.parametrize("machine", [None, "gemmini-fp32"])
def test_a_kernel_in_the_place_of_a_function_computes_what_onnxruntime_does(machine: str | None) -> None:
    double = node("double", ["t"], ["y"])
    functions = [FUNCTION, helper.make_function(
        "penstock", "double", ["x"], ["y"], [helper.make_node("Add", ["x", "x"], ["y"])], [helper.make_opsetid("", 20)]
    )]  # fmt: skip
    model = model_of(RELU, SCALED, double, functions=functions, ir_version=10)
    session: Any = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {"x": X, "z": Z})
    (found,) = penstock.compile(model, machine, kernels=[KERNELS])(X, Z)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    # Without the kernels the functions are taken.
    (found,) = penstock.compile(model, backend="interpreter")(X, Z)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_kernel_is_one_function_for_each_set_of_sizes() -> None:
    from penstock.runtime.compiler import import_program

    model = model_of(
        node("scaled", ["x", "z"], ["a", "b"]),
        node("scaled", ["a", "z"], ["c", "d"]),
        node("scaled", ["c", "z"], ["e", "f"], SHIFT=2),
        helper.make_node("Add", ["d", "f"], ["y"]),
    )
    text = str(import_program(model, {}, kernels=[KERNELS]).module)
    assert [text.count(f"graph.kernel @{name}(") for name in ("scaled", "scaled_1")] == [2, 1]
    assert [text.count(f"private @{name}(") for name in ("scaled", "scaled_1")] == [1, 1]
    (found,) = penstock.compile(model, backend="interpreter", kernels=[KERNELS])(X, Z)
    np.testing.assert_allclose(found, (X * Z**2).sum(1) - 1 + (X * Z**3).sum(1) - 2, rtol=1e-4, atol=1e-5)


def test_a_model_may_carry_its_kernels() -> None:
    model = model_of(RELU, SCALED, node("double", ["t"], ["y"]))
    helper.set_model_props(model, {"penstock_kernels": KERNELS})
    (found,) = penstock.compile(model, backend="interpreter")(X, Z)
    np.testing.assert_allclose(found, 2 * ((np.maximum(X, 0) * Z).sum(1) - 3), rtol=1e-5, atol=1e-5)


def test_a_model_is_run_on_kernels_of_files(penstock: Command) -> None:
    # The size of the input is that of the array.
    Path("model.onnx").write_bytes(model_of(RELU, SCALED, node("double", ["t"], ["y"]), x=("n", 8)).SerializeToString())
    first, second = KERNELS.split("\n\n")
    Path("a.pk").write_text(first)
    Path("b.pk").write_text(second)
    np.save("x.npy", X)
    np.save("z.npy", Z)
    given = ("--input", "x.npy", "z.npy", "--output-dir", "out", "--kernels", "a.pk", "--kernels", "b.pk")
    finished = penstock("run", "model.onnx", *given)
    assert finished.status == 0, finished.err
    expected = 2 * ((np.maximum(X, 0) * Z).sum(1) - 3)
    np.testing.assert_allclose(np.load("out/output_0.npy"), expected, rtol=1e-5, atol=1e-5)
    finished = penstock("compile", "model.onnx", "--kernels", "a.pk", "--kernels", "b.pk")
    assert finished.status == 1
    assert 'the_s" (penstock.scaled): the size n is a size of the kernel, which must be known' in finished.err
    assert "--dim n=SIZE" in finished.err
    finished = penstock("compile", "a.pk", "--kernels", "b.pk")
    assert finished.status == 2
    assert "a kernel calls no kernels of other files" in finished.err


DOUBLE = node("double", ["q"], ["y"])


@pytest.mark.parametrize(
    ("nodes", "kernels", "place", "message"),
    [
        ([node("dobule", ["x"], ["y"])], [KERNELS], "<model>", 'there is no kernel "dobule"'),
        ([node("double", ["z"], ["y"])], [], "<model>", 'there is no kernel "double"'),
        ([node("double", ["x", "z"], ["y"])], [KERNELS], "<model>", "it has 2 operands, and the kernel 1"),
        ([node("double", ["z"], ["y", "w"])], [KERNELS], "<model>", "it has 2 results, and the kernel 1"),
        ([node("double", ["x"], ["y"])], [KERNELS], "<kernel>:6:", '"x" has 1 dims, and the argument 2'),
        ([node("scaled", ["x", "x"], ["y"])], [KERNELS], "<kernel>:1:", '"z" has 1 dims, and the argument 2'),
        ([node("double", ["z"], ["y"], Q=1)], [KERNELS], "<kernel>:6:1", 'the kernel "double" has no size "Q"'),
        ([node("double", ["z"], ["y"], N=1.5)], [KERNELS], "<model>", 'its attribute "N" is no integer'),
        ([node("double", ["z"], ["y"])], [KERNELS, KERNELS], "<kernel>:1:1", 'the kernel "scaled" is there twice'),
        (
            [helper.make_node("Cast", ["z"], ["q"], to=TensorProto.DOUBLE), DOUBLE],
            [KERNELS],
            "<model>",
            '"x" is tensor<8xf32>, and the operand tensor<8xf64>',
        ),
        (
            [node("cut", ["z"], ["y"])],
            ["kernel cut(f32 x[N]) -> (f32 y[N]) {\n    y[i] = x[i + 1]\n}"],
            "<kernel>:2:16",
            "index out of bounds",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    nodes: list[onnx.NodeProto], kernels: list[str], place: str, message: str
) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(")) as caught:
        penstock.compile(model_of(*nodes), kernels=kernels)
    assert (caught.value.loc or "").startswith(place)
    if place != "<model>" and "twice" not in message:
        assert any("it is called by node" in note for note in caught.value.notes)
