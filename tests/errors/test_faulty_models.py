# SPDX-License-Identifier: Apache-2.0
"""
Models with faults in their structure: every one is refused at the file, with the node or tensor at fault. Those that
ONNX does not document so, and that have one meaning still, are imported with a warning.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from sampling import examples

import penstock as package
from penstock.dialects.diagnostics import InputWarning, UserError
from penstock.lowering.from_onnx import import_model
from penstock.lowering.from_onnx.structure import nodes_of

if TYPE_CHECKING:
    from tests.conftest import Command

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
W = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")


def node(operator: str, inputs: str, outputs: str, name: str, **attributes: Any) -> NodeProto:
    return helper.make_node(operator, inputs.split(), outputs.split(), name, **attributes)


def value(name: str, *shape: int, element: int = FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def tensor(data: bytes = b"", *, element: int = FLOAT, shape: Sequence[int] = (4, 3), **fields: Any) -> TensorProto:
    """The tensor `w` with the bytes `data`, or numbers in other fields."""
    made = TensorProto(name="w", data_type=element, dims=shape, **fields)
    if data:
        made.raw_data = data
    return made


MATMUL = node("MatMul", "x w", "y", "product")


def model(
    *nodes: NodeProto,
    inputs: Sequence[ValueInfoProto] = (value("x", 2, 4),),
    outputs: Sequence[ValueInfoProto] = (value("y", 2, 3),),
    weights: Sequence[TensorProto] = (),
    values: Sequence[ValueInfoProto] = (),
) -> ModelProto:
    graph = helper.make_graph(nodes, "small", list(inputs), list(outputs), list(weights), value_info=list(values))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def twice(attribute: str, *values: Any) -> NodeProto:
    """A Concat with one attribute several times."""
    made = node("Concat", "x x", "y", "join")
    made.attribute.extend(helper.make_attribute(attribute, each) for each in values)
    return made


X5, Y24 = value("x", 2, 5), value("y", 2, 4)
INDICES = value("i", 4, element=INT64)
IMAGE, FILTERS = value("x", 1, 3, 5, 5), value("k", 4, 2, 3, 3)

NONE = numpy_helper.from_array(np.zeros(0, np.int64), "w")

FAULTS: dict[str, tuple[ModelProto, str]] = {
    "an axis twice": (
        model(node("Unsqueeze", "x w", "y", "more"), weights=[numpy_helper.from_array(np.array([0, 0]), "w")]),
        'node "more" (Unsqueeze): an axis is there twice in [0, 0]',
    ),
    "pads of fewer axes": (
        model(
            NodeProto(op_type="Pad", input=["x", "p", "", "w"], output=["y"], name="pad"),
            weights=[
                numpy_helper.from_array(np.array(each, np.int64), name) for name, each in (("p", [1]), ("w", [0]))
            ],
        ),
        'node "pad" (Pad): ',
    ),
    "repeats that are no integers": (
        model(node("Tile", "x w", "y", "tiles"), weights=[numpy_helper.from_array(np.ones(2, np.float32), "w")]),
        'node "tiles" (Tile): the repeats must be of integers, got float32',
    ),
    "axes that are no integers": (
        model(node("Unsqueeze", "x w", "y", "more"), weights=[numpy_helper.from_array(np.ones(1, np.float32), "w")]),
        'node "more" (Unsqueeze): the axes must be of integers, got float32',
    ),
    "an axis that is no integer": (
        model(node("CumSum", "x w", "y", "sums"), weights=[numpy_helper.from_array(np.array(0.5, np.float32), "w")]),
        'node "sums" (CumSum): the axis must be an integer, got 0.5',
    ),
    # Numbers that are none, or several.
    "a count of no number": (
        model(node("TopK", "x w", "y i", "largest"), weights=[NONE], outputs=[value("y", 2, 3)]),
        'node "largest" (TopK): the number of elements is one number, and 0 are given',
    ),
    "a bound of no number": (
        model(node("Clip", "x w", "y", "clip"), weights=[tensor(shape=(0,))], outputs=[value("y", 2, 4)]),
        'node "clip" (Clip): ',
    ),
    "a padding of several numbers": (
        model(node("Pad", "x p w", "y", "pad"), weights=[numpy_helper.from_array(np.zeros(4, np.int64), "p"), W]),
        'node "pad" (Pad): the padding is one number, and 12 are given',
    ),
    # Shapes.
    "operands that do not multiply": (
        model(MATMUL, inputs=[X5], weights=[W]),
        'node "product" (MatMul): the inner sizes 5 of tensor<2x5xf32> and 4 of tensor<4x3xf32> differ',
    ),
    "operands that do not broadcast": (
        model(node("Add", "x b", "y", "shift"), inputs=[value("x", 2, 4), value("b", 3)]),
        'node "shift" (Add): shapes 2x4 and 3 do not broadcast: 4 against 3 in dimension 1 of 2',
    ),
    "filters for other channels": (
        model(node("Conv", "x k", "y", "conv"), inputs=[IMAGE, FILTERS]),
        'node "conv" (Conv): 3 input channels do not match 2 in the filters times 1 group(s)',
    ),
    "an output of another type than declared": (
        model(MATMUL, weights=[W], outputs=[value("y", 2, 3, element=INT64)]),
        'node "product" (MatMul): its result "y" has elements of type float32, and the model declares int64',
    ),
    # Attributes.
    "an attribute that the operator does not have": (
        model(node("LeakyRelu", "x", "y", "leak", alpah=0.1), outputs=[Y24]),
        'node "leak" (LeakyRelu): LeakyRelu has no attribute "alpah"\nnote: did you mean "alpha"?',
    ),
    "an attribute of an operator without any": (
        model(node("Relu", "x", "y", "clamp", max=6.0), outputs=[Y24]),
        'node "clamp" (Relu): Relu has no attribute "max"\nnote: its attributes: none',
    ),
    "an attribute twice": (
        model(twice("axis", 0, 1), outputs=[value("y", 4, 4)]),
        'node "join" (Concat): its attribute "axis" is there twice',
    ),
    "an attribute of the wrong type": (
        model(node("Transpose", "x", "y", "turn", perm=1.0)),
        "node \"turn\" (Transpose): Mismatched attribute type in 'turn : perm'. Expected: 'INTS', actual: 'FLOAT'",
    ),
    "a missing attribute": (
        model(node("Cast", "x", "y", "convert")),
        "node \"convert\" (Cast): Required attribute 'to' is missing.",
    ),
    "a constant without a value": (
        model(node("Constant", "", "w", "constant"), MATMUL),
        'node "constant" (Constant): it takes one attribute, its value, and has none',
    ),
    "a constant with two values": (
        model(node("Constant", "", "w", "constant", value_float=1.0, value_int=2), MATMUL),
        'node "constant" (Constant): it takes one attribute, its value, and has value_float and value_int',
    ),
    "a value that is none of those there are": (
        model(
            node("ScatterND", "x i u", "y", "scatter", reduction="avg"),
            inputs=[value("x", 4), value("i", 1, 1, element=INT64), value("u", 1)],
            outputs=[value("y", 4)],
        ),
        'node "scatter" (ScatterND): graph.scatter_nd: the reduction is one of none, add, mul, max, min, not "avg"',
    ),
    "filters without channels": (
        model(node("ConvTranspose", "x k", "y", "deconv"), inputs=[IMAGE, value("k")]),
        'node "deconv" (ConvTranspose): ',
    ),
    # Element types.
    "two element types": (
        model(node("Add", "x i", "y", "shift"), inputs=[value("x", 4), INDICES]),
        'node "shift" (Add): graph.add needs one element type, found f32 and i64',
    ),
    "an element type that the kernel does not take": (
        model(node("Sqrt", "i", "y", "root"), inputs=[INDICES]),
        'node "root" (Sqrt): graph.sqrt works on floats, not on i64',
    ),
    "floats as truth values": (
        model(node("And", "x x", "y", "both")),
        'node "both" (And): graph.and works on i1, not on f32',
    ),
    "floats as bits": (
        model(node("BitwiseNot", "x", "y", "flip")),
        'node "flip" (BitwiseNot): ',
    ),
    # The graph.
    "a cycle": (
        model(node("Add", "x b", "a", "first"), node("Relu", "a", "b", "second"), node("Neg", "b", "y", "last")),
        'node "first" (Add): it reads "b", which no input, initializer or earlier node defines\n'
        'note: the graph has a cycle: "first" -> "second" -> "first"',
    ),
    "a node that reads its own result": (
        model(node("Add", "x y", "y", "first")),
        'node "first" (Add): it reads "y", which no input, initializer or earlier node defines\n'
        "note: it is its own result: a graph has no cycles",
    ),
    "a value that nothing produces": (
        model(node("Relu", "scores", "y", "clamp"), inputs=[value("score", 2, 3)]),
        'node "clamp" (Relu): it reads "scores", which no input, initializer or earlier node defines\n'
        'note: did you mean "score"?',
    ),
    "an output that nothing produces": (
        model(node("Relu", "x", "t", "clamp")),
        'nothing defines the output "y"',
    ),
    "no outputs": (model(MATMUL, weights=[W], outputs=[]), 'the graph "small" has no outputs'),
    "a node without an operator": (model(node("", "x", "y", "blank")), 'node "blank": it has no operator'),
    # Names.
    "two nodes that define one value": (
        model(node("Relu", "x", "y", "first"), node("Neg", "x", "y", "second")),
        'node "second" (Neg): it defines "y", which is the result of node "first" already',
    ),
    "a node that defines one value twice": (
        model(node("Split", "x", "y y", "halves", axis=0)),
        'node "halves" (Split): it defines "y", which is the result of node "halves" already',
    ),
    "a node that defines an input": (
        model(node("Relu", "x", "x", "clamp")),
        'node "clamp" (Relu): it defines "x", which is an input already',
    ),
    "a node that defines an initializer": (
        model(node("Relu", "x", "w", "clamp"), MATMUL, weights=[W]),
        'node "clamp" (Relu): it defines "w", which is an initializer already',
    ),
    "an input twice": (model(MATMUL, inputs=[value("x", 2, 4)] * 2, weights=[W]), 'the input "x" is there twice'),
    "an initializer twice": (model(MATMUL, weights=[W, W]), 'the initializer "w" is there twice'),
    "an initializer without a name": (
        model(MATMUL, weights=[W, numpy_helper.from_array(np.ones(1, np.float32))]),
        "initializer 1 has no name",
    ),
    # Initializers.
    "too few bytes": (
        model(MATMUL, weights=[tensor(bytes(40))]),
        'initializer "w" cannot be read: it has 40 bytes of data, and 4x3 float takes 48',
    ),
    "too many bytes": (
        model(MATMUL, weights=[tensor(bytes(52))]),
        'initializer "w" cannot be read: it has 52 bytes of data, and 4x3 float takes 48',
    ),
    "bytes of another element type": (
        model(MATMUL, weights=[tensor(bytes(48), element=TensorProto.DOUBLE)]),
        'initializer "w" cannot be read: it has 48 bytes of data, and 4x3 double takes 96',
    ),
    "too few numbers": (
        model(MATMUL, weights=[tensor(float_data=[1, 2, 3])]),
        'initializer "w" cannot be read: it has 3 numbers in float_data, and its shape 4x3 takes 12',
    ),
    "no data": (
        model(MATMUL, weights=[tensor()]),
        'initializer "w" cannot be read: it has 0 numbers in float_data, and its shape 4x3 takes 12',
    ),
    "numbers of another element type": (
        model(MATMUL, weights=[tensor(int64_data=[1] * 12)]),
        'initializer "w" cannot be read: its elements of type float are in int64_data, and belong into float_data',
    ),
    "data in two fields": (
        model(MATMUL, weights=[tensor(bytes(48), float_data=[1] * 12)]),
        'initializer "w" cannot be read: it has data in float_data and in raw_data',
    ),
    "a negative size": (
        model(MATMUL, weights=[tensor(bytes(48), shape=(-4, 3))]),
        'initializer "w" cannot be read: its shape is -4x3',
    ),
    "an element type that does not exist": (
        model(MATMUL, weights=[tensor(bytes(48), element=99)]),
        'initializer "w" cannot be read: its element type is 99, which ONNX does not know',
    ),
    "a shape larger than all memory": (
        model(MATMUL, weights=[tensor(bytes(48), shape=(1 << 40, 1 << 40))]),
        'initializer "w" cannot be read: it has 48 bytes of data, and',
    ),
    "an initializer of another shape than the input": (
        model(MATMUL, inputs=[value("x", 2, 4), value("w", 5, 3)], weights=[W]),
        'initializer "w" has the shape 4x3, and the input of that name 5x3',
    ),
    "an initializer of another type than the input": (
        model(MATMUL, inputs=[value("x", 2, 4), value("w", 4, 3, element=INT64)], weights=[W]),
        'initializer "w" has elements of type float, and the input of that name int64',
    ),
    "a constant with too few bytes": (
        model(node("Constant", "", "w", "constant", value=tensor(bytes(40))), MATMUL),
        'node "constant" (Constant): it has 40 bytes of data, and 4x3 float takes 48',
    ),
}


UNUSUAL: dict[str, tuple[ModelProto, str]] = {
    "an output of another shape than declared": (
        model(MATMUL, weights=[W], outputs=[value("y", 2, 7)]),
        'node "product" (MatMul): its result "y" has the shape 2x3, and the model declares 2x7',
    ),
    "an output of another rank than declared": (
        model(MATMUL, weights=[W], outputs=[value("y", 6)]),
        'node "product" (MatMul): its result "y" has the shape 2x3, and the model declares 6',
    ),
    "a value of another shape than declared": (
        model(
            node("MatMul", "x w", "t", "product"), node("Relu", "t", "y", "clamp"), weights=[W], values=[value("t", 9)]
        ),
        'node "product" (MatMul): its result "t" has the shape 2x3, and the model declares 9',
    ),
    "a constant of another shape than declared": (
        model(
            node("Constant", "", "b", "constant", value=numpy_helper.from_array(np.ones(3, np.float32))),
            node("Add", "x b", "y", "shift"),
            inputs=[value("x", 2, 3)],
            values=[value("b", 4)],
        ),
        'node "constant" (Constant): its result "b" has the shape 3, and the model declares 4',
    ),
    "nodes out of order": (
        model(node("Relu", "a", "y", "second"), node("Neg", "x", "a", "first")),
        'node "second" (Relu) stands before node "first" (Neg), whose result it reads; they are taken in the order',
    ),
    "two nodes of one name": (
        model(node("Relu", "x", "t", "same"), node("Neg", "t", "y", "same")),
        'two nodes are called "same": a Relu and a Neg; the second one is called "same_2" here',
    ),
}
"""Models that are not as ONNX documents them, and what is said about it."""


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_has_one_meaning_is_imported_with_a_warning(penstock: Command, tmp_path: Path, name: str) -> None:
    unusual, message = UNUSUAL[name]
    (tmp_path / "model.onnx").write_bytes(unusual.SerializeToString())
    finished = penstock("import", "model.onnx", "-q")
    assert (finished.status, finished.out) == (0, "")
    assert finished.err.startswith(f"model.onnx: warning: {message}")


def test_one_warning_tells_all_of_its_kind() -> None:
    nodes = [node("Relu", f"v{n}", f"v{n + 1}", "same") for n in range(9)]
    many = model(*reversed(nodes), inputs=[value("v0", 2)], outputs=[value("v9", 3)], values=[value("v3", 7)])
    with pytest.warns(InputWarning) as caught:
        import_model(many, name="model.onnx")
    words = [str(each.message) for each in caught]
    assert len(words) == 3
    assert all(each.startswith("model.onnx: ") for each in words)
    assert words[0].splitlines()[-1] == "note: and 2 more"
    assert words[2].count("the inferred shape is taken") == 2


def test_names_that_are_made_up_do_not_meet_others() -> None:
    nodes = [node("Relu", f"v{n}", f"v{n + 1}", name) for n, name in enumerate(["a", "a_2", "a", "b", "a"])]
    named = model(*nodes, inputs=[value("v0", 2)], outputs=[value("v5", 2)])
    with pytest.warns(InputWarning):
        found = nodes_of(named.graph, "model.onnx")
    assert [each.name for each in found] == ["a", "a_2", "a_3", "b", "a_4"]
    assert [each.name for each in named.graph.node] == ["a", "a_2", "a", "b", "a"]


@examples(60)
@given(edges=st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8))), order=st.permutations(range(9)))
def test_nodes_are_sorted_by_their_data_and_else_stay_as_they_are(
    edges: set[tuple[int, int]], order: Sequence[int]
) -> None:
    reads = [sorted(low for low, high in edges if low < high == n) for n in range(9)]
    made = [node("Sum", " ".join(["x", *(f"v{low}" for low in reads[n])]), f"v{n}", f"n{n}") for n in range(9)]
    shuffled = model(*(made[n] for n in order), outputs=[value(f"v{n}", 2, 4) for n in range(9)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [int(each.name[1:]) for each in nodes_of(shuffled.graph, "model.onnx")]
    expected: list[int] = []
    while len(expected) < 9:
        expected.append(next(n for n in order if n not in expected and set(reads[n]) <= set(expected)))
    assert found == expected
    assert bool(caught) == (found != list(order))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_model_is_refused_where_the_fault_is(fault: str) -> None:
    faulty, message = FAULTS[fault]
    with pytest.raises(UserError) as caught:
        import_model(faulty, name="model.onnx")
    assert caught.value.status == 1
    assert str(caught.value).startswith(f"model.onnx: error: {message}")


@pytest.mark.parametrize("command", ["import", "compile", "run", "check"])
def test_every_command_says_so_without_a_traceback(penstock: Command, tmp_path: Path, command: str) -> None:
    faulty, message = FAULTS["a cycle"]
    (tmp_path / "model.onnx").write_bytes(faulty.SerializeToString())
    finished = penstock(command, "model.onnx")
    assert finished.status == 1
    assert finished.err.startswith(f"model.onnx: error: {message}\n")
    assert "Traceback" not in finished.err


def test_long_cycles_are_cut_short() -> None:
    nodes = [node("Relu", f"v{n}", f"v{(n + 1) % 20}", f"n{n}") for n in range(20)]
    with pytest.raises(UserError, match=r'has a cycle: "n0" -> .* -> "n7" -> \.\.\. -> "n0"$'):
        import_model(model(*nodes, node("Add", "x v0", "y", "last")))


def test_a_graph_inside_a_node_is_checked_as_well() -> None:
    branches = [
        helper.make_graph(list(nodes), name, [], [value("r", 2, 4)])
        for name, nodes in (
            ("one", [node("Relu", "x", "r", "a"), node("Neg", "x", "r", "b")]),
            ("other", [node("Neg", "x", "r", "c")]),
        )
    ]
    choose = helper.make_node("If", ["flag"], ["y"], "choose", then_branch=branches[0], else_branch=branches[1])
    flag = numpy_helper.from_array(np.array(True), "flag")
    with pytest.raises(UserError, match=r'node "b" \(Neg\): it defines "r", which is the result of node "a" already'):
        import_model(model(choose, weights=[flag], outputs=[Y24]))


@pytest.mark.filterwarnings("error")
def test_a_graph_inside_a_node_may_have_names_of_values_that_come_after_it() -> None:
    """The result of the branch is called as that of the node, and a value in it as the result of a later node."""
    inside = [node("Relu", "x", "t", "a"), node("Neg", "t", "r", "b")]
    branch = helper.make_graph(inside, "both", [], [value("r", 2, 4)])
    choose = helper.make_node("If", ["flag"], ["r"], "choose", then_branch=branch, else_branch=branch)
    flag = numpy_helper.from_array(np.array(True), "flag")
    module, _ = import_model(model(choose, node("Abs", "r", "t", "last"), weights=[flag], outputs=[value("t", 2, 4)]))
    assert [op.name for op in module.walk() if op.name.startswith("graph.")] == ["graph.relu", "graph.neg", "graph.abs"]


def test_what_the_outputs_do_not_need_is_no_fault() -> None:
    """Two parts that are not connected, of which the outputs need one, and an input that nothing reads."""
    apart = model(
        node("Relu", "x", "y", "used"),
        node("Neg", "u", "dead", "unused"),
        inputs=[value("x", 2, 4), value("u", 3), value("v", 1)],
        outputs=[Y24],
    )
    x = np.arange(-4, 4, dtype=np.float32).reshape(2, 4)
    engine = package.compile(apart, backend="interpreter")
    (y,) = engine(x, np.ones(3, np.float32), np.ones(1, np.float32))
    np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_shapes_that_are_declared_in_part_or_by_name_fit() -> None:
    for shape in (["N", 3], [None, 3], [2, None]):
        import_model(model(MATMUL, weights=[W], outputs=[helper.make_tensor_value_info("y", FLOAT, shape)]))
    untyped = model(MATMUL, weights=[W], outputs=[ValueInfoProto(name="y")])
    import_model(untyped)


SOUND = [faulty for faulty, _ in (*FAULTS.values(), *UNUSUAL.values())]


def damaged(data: bytes, numbers: random.Random) -> bytes:
    """`data` with bytes changed, taken out or put in."""
    changed = bytearray(data)
    at = numbers.randrange(len(changed))
    match numbers.randrange(4):
        case 0:
            del changed[at : at + numbers.randrange(1, 20)]
        case 1:
            changed[at:at] = changed[numbers.randrange(len(changed)) :][: numbers.randrange(1, 40)]
        case _:
            for _ in range(numbers.choice((1, 1, 2, 4))):
                changed[numbers.randrange(len(changed))] = numbers.randrange(256)
    return bytes(changed)


@pytest.mark.filterwarnings("ignore::penstock.dialects.diagnostics.InputWarning")
@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_are_imported_or_refused(tmp_path: Path, seed: int) -> None:
    numbers = random.Random(seed)
    path = tmp_path / "model.onnx"
    places: list[str | None] = []
    for _ in range(150):
        path.write_bytes(damaged(numbers.choice(SOUND).SerializeToString(), numbers))
        try:
            import_model(path)
        except UserError as error:
            places.append(error.loc)
    assert len(places) > 100
    assert set(places) == {str(path)}
