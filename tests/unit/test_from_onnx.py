# SPDX-License-Identifier: Apache-2.0
"""Models become modules: names, weights and static shapes, and faults that are named at the file."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from sampling import examples
from xdsl.dialects.builtin import ModuleOp, NameLoc, StringAttr, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation

from penstock.dialects import graph
from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.dialects.graph.dims import dims_of
from penstock.dialects.weights import Array, WeightStore
from penstock.lowering.from_onnx import data_in_place, import_model

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NEWEST = onnx.defs.onnx_opset_version()

Shape = Sequence[int | str]

# onnx annotates a path without its parameter, which strict checking calls unknown.
load = cast(Callable[[Path], ModelProto], cast(Any, onnx).load)
save = cast(Callable[..., None], cast(Any, onnx).save)


def make_model(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Sequence[str],
    *,
    opset: int = NEWEST,
    weights: Mapping[str, Array] | None = None,
    kinds: Mapping[str, int] | None = None,
) -> ModelProto:
    """A model of a few nodes; inputs are floats unless `kinds` says otherwise."""
    kinds = kinds or {}
    graph_proto = helper.make_graph(
        nodes,
        "test",
        [
            helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), list(shape))
            for name, shape in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()],
    )
    return helper.make_model(graph_proto, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def main_of(module: ModuleOp) -> FuncOp:
    (function,) = module.ops
    assert isinstance(function, FuncOp)
    return function


def ops_of(module: ModuleOp) -> list[Operation]:
    """The ops of @main that compute something."""
    return [op for op in main_of(module).body.block.ops if not isinstance(op, graph.ConstantOp)][:-1]


def names_of(module: ModuleOp) -> list[str]:
    return [op.name.removeprefix("graph.") for op in ops_of(module)]


def result_shapes(module: ModuleOp) -> list[tuple[int, ...]]:
    return [cast(TensorType[Attribute], each).get_shape() for each in main_of(module).function_type.outputs]


def node(op_type: str, inputs: str, outputs: str = "y", **attributes: object) -> NodeProto:
    """A node; `-` in `inputs` is an input that is left out."""
    words = ["" if word == "-" else word for word in inputs.split()]
    return helper.make_node(op_type, words, outputs.split(), **cast(Any, attributes))


X: Mapping[str, Shape] = {"x": [2, 3, 4]}


def array(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


def indices(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


CONV = make_model(
    [node("Conv", "x w b", group=2)],
    {"x": [2, 4, 7, 8]},
    ["y"],
    weights={"w": np.ones((6, 2, 3, 3), np.float32), "b": array(*range(6))},
)


@pytest.mark.parametrize("name", ["squeezenet", "resnet50", "shufflenet", "inception_v1", "densenet121"])
def test_light_models_import_with_the_shapes_that_onnx_infers(name: str) -> None:
    path = LIGHT / f"light_{name}.onnx"
    module, weights = import_model(path)
    inferred = onnx.shape_inference.infer_shapes(load(path))
    shapes = {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in (*inferred.graph.value_info, *inferred.graph.output)
    }
    names = {node.name or node.output[0]: node.output[0] for node in inferred.graph.node}
    compared = 0
    for op in ops_of(module):
        # An op that shares its node with others need not have its shape.
        location = op.location
        assert isinstance(location, NameLoc)
        output = names[location.desc.data]
        if op.results[0].name_hint is not None and not isinstance(op, graph.ReshapeOp | graph.SoftmaxOp):
            assert graph.tensor_of(op.results[0]).get_shape() == shapes[output]
            compared += 1
    assert compared > 50
    assert result_shapes(module) == [shapes[output.name] for output in inferred.graph.output]
    constants = [op for op in main_of(module).walk() if isinstance(op, graph.ConstantOp)]
    assert {op.weight for op in constants if op.weight} == set(weights.names()), "no weight is unused"


def test_names_and_places_come_from_the_model() -> None:
    model = make_model(
        [
            helper.make_node("Relu", ["in/put:0"], ["r"], name="first relu"),
            helper.make_node("Add", ["r", "w"], ["out"]),
        ],
        {"in/put:0": [2, 3]},
        ["out"],
        weights={"w": array(1, 2, 3), "unused": array(4, 5)},
    )
    module, weights = import_model(model, name="tiny")
    assert module.sym_name == StringAttr("tiny")
    assert weights.names() == ("w",)
    function = main_of(module)
    assert function.sym_name.data == "main"
    assert function.arg_attrs is not None
    assert function.res_attrs is not None
    assert [each.data["graph.name"] for each in function.arg_attrs] == [StringAttr("in/put:0")]
    assert [each.data["graph.name"] for each in function.res_attrs] == [StringAttr("out")]
    places = [cast(NameLoc, op.location).desc.data for op in function.body.block.ops if op.results]
    assert places == ["first relu", "w", "out"]


def test_small_integers_and_scalars_stay_in_the_text_and_the_rest_goes_to_the_store() -> None:
    weights = {
        "scalar": np.array(0.5, np.float32),
        "ints": np.array([[1, 2]], np.int64),
        "infinite": np.array(-np.inf, np.float32),
        "floats": array(1, 2),
        "many": np.arange(100),
    }
    outputs = [f"{name}.out" for name in weights]
    nodes = [helper.make_node("Identity", [name], [f"{name}.out"]) for name in weights]
    module, store = import_model(make_model(nodes, X, outputs, weights=weights))
    assert {name.removesuffix(".out") for name in store.names()} == {"floats", "many"}
    for name in store.names():
        np.testing.assert_array_equal(store[name], weights[name.removesuffix(".out")])
    module.verify()


def test_an_initializer_that_is_also_an_input_is_no_argument() -> None:
    model = make_model([node("Add", "x w")], {"x": [2], "w": [2]}, ["y"], weights={"w": array(1, 2)})
    module, _ = import_model(model)
    assert len(main_of(module).body.block.args) == 1


def test_a_symbolic_dimension_is_bound_or_stays() -> None:
    model = make_model([node("Relu", "x")], {"x": ["batch", 3, "width"]}, ["y"])
    module, _ = import_model(model, dims={"batch": 2})
    assert str(main_of(module).function_type.inputs.data[0]) == "tensor<2x3x?xf32>"
    assert dims_of(main_of(module)) == [["", "", "width"]]
    module, _ = import_model(model, dims={"batch": 2, "width": 5})
    assert result_shapes(module) == [(2, 3, 5)]


def test_a_dimension_without_a_name_is_called_after_its_input() -> None:
    model = make_model([node("Relu", "x")], {"x": [2, 3]}, ["y"])
    model.graph.input[0].type.tensor_type.shape.dim[1].Clear()
    assert dims_of(main_of(import_model(model)[0])) == [["", "x.1"]]
    assert result_shapes(import_model(model, dims={"x.1": 4})[0]) == [(2, 4)]


def test_a_misspelt_dimension_is_answered_with_the_nearest_name() -> None:
    model = make_model([node("Relu", "x")], {"x": ["batch", 3]}, ["y"])
    with pytest.raises(UserError, match='no symbolic dimension "bacth"') as caught:
        import_model(model, dims={"bacth": 2})
    assert caught.value.notes == ('did you mean "batch"?',)


def test_a_dimension_below_one_is_refused() -> None:
    model = make_model([node("Relu", "x")], {"x": ["batch", 3]}, ["y"])
    with pytest.raises(UserError, match="must be at least 1, not 0"):
        import_model(model, dims={"batch": 0})


def test_all_unsupported_operators_are_listed_at_once_with_their_nodes() -> None:
    model = make_model(
        [
            helper.make_node("RandomNormalLike", ["x"], ["a"], name="first"),
            helper.make_node("RandomNormalLike", ["x"], ["b"], name="second"),
            helper.make_node("Relu", ["a"], ["after"], name="needs first"),
            helper.make_node("Fancy", ["x"], ["c"], name="third", domain="com.example"),
            helper.make_node("MaxPool", ["x"], ["d", "where"], name="pool", kernel_shape=[65], pads=[40, 40]),
            helper.make_node("NonZero", ["after"], ["e"], name="nonzero of unknown"),
            helper.make_node("Unique", ["a"], ["f"], name="after an unknown one"),
        ],
        X,
        ["b", "c", "d", "where", "e", "f"],
    )
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(UserError) as caught:
        import_model(model, name="model.onnx")
    error = caught.value
    assert (error.loc, error.status) == ("model.onnx", UNSUPPORTED)
    assert (
        error.message
        == "the model uses 4 operators not supported: RandomNormalLike, com.example.Fancy, MaxPool, Unique"
    )
    assert error.notes == (
        'RandomNormalLike, in 2 nodes: "first", "second"',
        'com.example.Fancy, in 1 node: "third"',
        'MaxPool: indices of integers, or of more than 64 taps, in 1 node: "pool"',
        'Unique, in 1 node: "after an unknown one"',
    )


def test_an_operator_newer_than_the_operator_set_is_not_supported() -> None:
    model = make_model([node("Gelu", "x")], X, ["y"], opset=13)
    with pytest.raises(UserError, match="Gelu") as caught:
        import_model(model)
    assert caught.value.notes == ('Gelu: not in operator set 13, in 1 node: "y"',)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("Relu", "nothing")], r'node "y" \(Relu\): it reads "nothing", which no input'),
        ([node("Relu", "x", "z")], 'nothing defines the output "y"'),
        ([node("Add", "x x", alpha=1)], r'node "y" \(Add\): Add has no attribute "alpha"'),
        ([node("Conv", "x")], r'node "y" \(Conv\): .*input size 1 not in range'),
        ([node("MatMul", "x x")], r'node "y" \(MatMul\): the inner sizes 4 of .* and 3 of .* differ'),
        ([node("Transpose", "x", perm=[0, 1])], r'\(Transpose\): perm \[0, 1\] is no permutation of the 3'),
        ([node("MaxPool", "x", kernel_shape=[2, 2])], r"kernel_shape \[2, 2\] for 1 spatial dimensions"),
        ([node("Constant", "", "s", value=numpy_helper.from_array(indices(5))), node("Reshape", "x s")],
         "24 elements of tensor<2x3x4xf32> do not fit the shape 5"),
        ([node("Constant", "", "i", value=numpy_helper.from_array(indices(7))), node("Gather", "x i")],
         "index 7 is outside a dimension of 2"),
    ],
)  # fmt: skip
def test_a_faulty_graph_is_refused_at_the_file_with_the_node(nodes: list[NodeProto], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        import_model(make_model(nodes, X, ["y"]), name="model.onnx")
    assert (caught.value.loc, caught.value.status) == ("model.onnx", 1)


@pytest.mark.parametrize("kept", [0, 1, 40, 0.5, 0.98])
def test_a_truncated_file_is_refused_at_the_file(tmp_path: Path, kept: float) -> None:
    data = CONV.SerializeToString()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[: int(kept * len(data)) if 0 < kept < 1 else int(kept)])
    with pytest.raises(UserError, match="not an ONNX model, or it is truncated") as caught:
        import_model(path)
    assert (caught.value.loc, caught.value.status) == (str(path), 1)


@given(st.data())
@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_imports_or_is_a_users_fault(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(CONV.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.onnx"
    path.write_bytes(bytes(content))
    fault: UserError | None = None
    try:
        import_model(path)
    except UserError as error:
        fault = error
    assert fault is None or fault.loc == str(path)


@pytest.mark.parametrize("content", [b"hello, world\n" * 9, b"\x89PNG\r\n\x1a\n" + bytes(64), b"module {}"])
def test_a_file_of_another_kind_is_refused_at_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(UserError, match="not an ONNX model"):
        import_model(path)


def test_a_missing_file_is_refused_at_the_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the model") as caught:
        import_model(tmp_path / "none.onnx")
    assert caught.value.loc == str(tmp_path / "none.onnx")


def test_data_outside_the_file_are_read_and_missed(tmp_path: Path) -> None:
    model = make_model([node("Add", "x w")], X, ["y"], weights={"w": np.arange(4, dtype=np.float32)})
    path = tmp_path / "model.onnx"
    save(model, str(path), save_as_external_data=True, location="data.bin", size_threshold=0)
    _, weights = import_model(path)
    np.testing.assert_array_equal(weights["w"], np.arange(4, dtype=np.float32))
    (tmp_path / "data.bin").unlink()
    with pytest.raises(UserError, match=r'"w" are in the file "data.bin", which does not exist'):
        import_model(path)


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files count as large ones, whose weights stay in them."""
    monkeypatch.setattr(data_in_place, "SMALL_FILE", 0)
    monkeypatch.setattr(data_in_place, "SMALL_TENSOR", 0)


def base_of(array: Any) -> Any:
    """What owns the memory of an array."""
    while not isinstance(array, mmap.mmap) and array.base is not None:
        array = array.base
    return array


@pytest.mark.usefixtures("in_place")
@pytest.mark.parametrize("shift", range(4))
def test_the_weights_of_a_large_file_stay_in_it(tmp_path: Path, shift: int) -> None:
    weights = {"w": np.arange(2000, dtype=np.float32).reshape(2, 1000), "v": np.arange(1000.0, dtype=np.float32)}
    model = make_model([node("Add", "x w", "z"), node("Add", "z v")], {"x": (2, 1000)}, ["y"], weights=weights)
    model.producer_name = "p" * shift  # so that the elements are at different places
    path = tmp_path / "model.onnx"
    save(model, str(path))
    expected, _ = import_model(model)
    module, store = import_model(path)
    assert str(module) == str(expected)
    for name, weight in weights.items():
        np.testing.assert_array_equal(store[name], weight)
        assert isinstance(base_of(store[name]), mmap.mmap)
        assert not store[name].flags.writeable


@pytest.mark.usefixtures("in_place")
@pytest.mark.parametrize("content", [b"hello, world\n" * 9, b"\x3a\x05abc", b"\x0b", b"\xff" * 12])
def test_a_large_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(UserError, match="not an ONNX model"):
        import_model(path)


@pytest.mark.usefixtures("in_place")
def test_every_truncated_large_model_is_refused_or_read(tmp_path: Path) -> None:
    model = make_model([node("Add", "x w")], X, ["y"], weights={"w": array(1, 2, 3, 4)})
    data = model.SerializeToString()
    path = tmp_path / "model.onnx"
    for length in range(1, len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(UserError):
            import_model(path)


@pytest.mark.usefixtures("in_place")
def test_an_initializer_of_a_large_file_of_the_wrong_size_is_refused(tmp_path: Path) -> None:
    model = make_model([node("Add", "x w")], X, ["y"], weights={"w": array(1, 2, 3, 4)})
    model.graph.initializer[0].raw_data = b"123"
    path = tmp_path / "model.onnx"
    save(model, str(path))
    with pytest.raises(UserError, match="it has 3 bytes of data"):
        import_model(path)


def test_an_initializer_of_the_wrong_size_is_refused() -> None:
    model = make_model([node("Add", "x w")], X, ["y"], weights={"w": array(1, 2, 3, 4)})
    model.graph.initializer[0].raw_data = b"123"
    with pytest.raises(UserError, match='initializer "w" cannot be read'):
        import_model(model)


@pytest.mark.parametrize("opset", [6, NEWEST + 1])
def test_an_operator_set_out_of_range_is_not_supported(opset: int) -> None:
    with pytest.raises(UserError, match=f"operator set {opset}") as caught:
        import_model(make_model([node("Relu", "x")], X, ["y"], opset=opset))
    assert caught.value.status == UNSUPPORTED


def test_an_input_of_strings_is_not_supported() -> None:
    model = make_model([node("Identity", "x")], X, ["y"], kinds={"x": TensorProto.STRING})
    with pytest.raises(UserError, match='input "x": elements of type STRING') as caught:
        import_model(model)
    assert caught.value.status == UNSUPPORTED


def test_a_branch_with_a_constant_condition_is_taken_at_import() -> None:
    def branch(op_type: str) -> onnx.GraphProto:
        return helper.make_graph(
            [helper.make_node(op_type, ["x"], ["z"])], op_type, [], [helper.make_empty_tensor_value_info("z")]
        )

    for condition, name in ((True, "relu"), (False, "neg")):
        chosen = helper.make_node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Neg"))
        module, _ = import_model(make_model([chosen], X, ["y"], weights={"c": np.array(condition)}))
        assert names_of(module) == [name]


def test_functions_of_the_model_are_inlined() -> None:
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 13)]
    )
    model = make_model([helper.make_node("Twice", ["x"], ["y"], domain="local")], X, ["y"], opset=13)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("local", 1))
    assert names_of(import_model(model)[0]) == ["add"]


def test_importing_twice_gives_the_same_text() -> None:
    first, second = (import_model(LIGHT / "light_squeezenet.onnx") for _ in range(2))
    assert str(first[0]) == str(second[0])
    assert first[1].names() == second[1].names()


def test_the_store_of_a_model_without_weights_is_empty() -> None:
    _, weights = import_model(make_model([node("Relu", "x")], X, ["y"]))
    assert isinstance(weights, WeightStore)
    assert len(weights) == 0
