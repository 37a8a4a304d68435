# SPDX-License-Identifier: Apache-2.0
"""Sequences and optionals of ONNX: those that are tensors once the model has been imported, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from xdsl.dialects.builtin import TensorType, f32
from xdsl.utils.exceptions import VerifyException

import penstock
from penstock.dialects import graph
from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.lowering.from_onnx import import_model
from penstock.lowering.from_onnx.schema import refuse_faulty
from penstock.runtime import onnx_backend

onnxruntime: Any = pytest.importorskip("onnxruntime")
Array = NDArray[Any]
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
node = helper.make_node


def value(name: str, shape: tuple[int, ...] | None = (2, 3, 4), kind: int = TensorProto.FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: Sequence[NodeProto], outputs: Sequence[str], *, count: bool = False) -> ModelProto:
    """A model on `x`, and with `count` on the number `n`; constants are called `c3`, or `cm` for -1."""
    numbers = {"c0": 0, "c1": 1, "c2": 2, "c3": 3, "cm": -1, "c70": 70, "two_one": [2, 1]}
    constants = [numpy_helper.from_array(np.array(each, np.int64), name) for name, each in numbers.items()]
    constants.append(numpy_helper.from_array(np.array(True), "true"))
    inputs = [value("x"), *([value("n", (), TensorProto.INT64)] if count else [])]
    made = helper.make_graph(
        list(nodes), "test", inputs, [helper.make_empty_tensor_value_info(name) for name in outputs], constants
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def check(made: ModelProto, **feeds: Any) -> None:
    """Compare with onnxruntime, in the graph interpreter and compiled."""
    given = {"x": X} | {name: np.array(each, np.int64) for name, each in feeds.items()}
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, given)
    for options in ({"backend": "interpreter", "level": "graph"}, {"backend": "interpreter"}):
        found = onnx_backend.prepare(made, "CPU", **options).run(list(given.values()))
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            np.testing.assert_array_equal(ours, theirs)


CONSTRUCTED = [
    node("Neg", ["x"], ["minus"]),
    node("SequenceConstruct", ["x", "minus"], ["s"]),
    node("Add", ["x", "x"], ["e"]),
    node("SequenceInsert", ["s", "e"], ["longer"]),
]
CASES: dict[str, tuple[list[NodeProto], list[str]]] = {
    "a_place": (
        [*CONSTRUCTED, node("SequenceAt", ["longer", "cm"], ["y"]), node("SequenceAt", ["s", "c1"], ["z"])],
        ["y", "z"],
    ),
    "insertion": (
        [
            *CONSTRUCTED,
            node("SequenceInsert", ["s", "e", "c0"], ["t"]),
            node("ConcatFromSequence", ["t"], ["y"], axis=1),
        ],
        ["y"],
    ),
    "erasure": (
        [
            *CONSTRUCTED,
            node("SequenceErase", ["longer", "c0"], ["t"]),
            node("SequenceErase", ["longer"], ["u"]),
            node("ConcatFromSequence", ["t"], ["y"], axis=0, new_axis=1),
            node("ConcatFromSequence", ["u"], ["z"], axis=-1, new_axis=1),
        ],
        ["y", "z"],
    ),
    "length": (
        [
            *CONSTRUCTED,
            node("SequenceLength", ["longer"], ["l"]),
            node("Cast", ["l"], ["f"], to=TensorProto.FLOAT),
            node("Mul", ["x", "f"], ["y"]),
        ],
        ["y"],
    ),
    "parts_of_one": (
        [node("SplitToSequence", ["x"], ["s"], axis=1, keepdims=0), node("SequenceAt", ["s", "c2"], ["y"])],
        ["y"],
    ),
    "parts_of_two": (
        [node("SplitToSequence", ["x", "c2"], ["s"], axis=1), node("SequenceAt", ["s", "cm"], ["y"])],
        ["y"],
    ),
    "parts_of_sizes": (
        [
            node("SplitToSequence", ["x", "two_one"], ["s"], axis=-2),
            node("Identity", ["s"], ["t"]),
            node("SequenceAt", ["t", "c0"], ["y"]),
            node("ConcatFromSequence", ["t"], ["z"], axis=1),
        ],
        ["y", "z"],
    ),
    "an_empty_one_to_begin_with": (
        [
            node("SequenceEmpty", [], ["s"]),
            node("SequenceInsert", ["s", "x"], ["t"]),
            node("ConcatFromSequence", ["t"], ["y"], axis=0),
        ],
        ["y"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_sequence_of_known_length_is_its_tensors(name: str) -> None:
    check(model(*CASES[name]))


def test_a_place_that_is_an_input_is_taken_from_it() -> None:
    for place in (0, -1):
        check(model([*CONSTRUCTED, node("SequenceAt", ["s", "n"], ["y"])], ["y"], count=True), n=place)


def test_optionals_are_what_they_hold() -> None:
    nodes = [
        node("Optional", ["x"], ["o"]),
        node("OptionalHasElement", ["o"], ["has"]),
        node("OptionalGetElement", ["o"], ["y"]),
        node("OptionalHasElement", [""], ["none"]),
        node("Where", ["has", "y", "x"], ["z"]),
        node("Where", ["none", "y", "minus"], ["w"]),
    ]
    made = model([node("Neg", ["x"], ["minus"]), *nodes], ["y", "z", "w"])
    y, z, w = penstock.compile(made, backend="interpreter")(X)
    np.testing.assert_array_equal(y, X)
    np.testing.assert_array_equal(z, X)
    np.testing.assert_array_equal(w, -X)


def appending(*, twice: bool = False, at: str | None = None, reads: bool = False) -> GraphProto:
    """The body of a loop that doubles `a`, and appends it to the sequence `s`."""
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    longer = helper.make_tensor_sequence_value_info("longest" if twice else "longer", TensorProto.FLOAT, None)
    nodes = [
        node("Identity", ["c"], ["d"]),
        node("Add", ["a", "a"], ["b"]),
        node("SequenceInsert", ["s", "b", *([at] if at else [])], ["longer"]),
    ]
    if twice:
        nodes.append(node("SequenceInsert", ["longer", "a"], ["longest"]))
    if reads:
        nodes[1] = node("SequenceAt", ["s", "c0"], ["b"])
    return helper.make_graph(
        nodes,
        "body",
        [value("i", (), TensorProto.INT64), value("c", (), TensorProto.BOOL), value("a"), sequence],
        [value("d", (), TensorProto.BOOL), value("b"), longer],
    )


def torch_like(trips: str, axis: int, new_axis: int, begin: Sequence[str] = (), **options: Any) -> ModelProto:
    """What PyTorch exports of a Python list that a loop appends to and `torch.stack` or `torch.cat` reads."""
    nodes = [
        node("SequenceConstruct", list(begin), ["none"]) if begin else node("SequenceEmpty", [], ["none"]),
        node("Loop", [trips, "true", "x", "none"], ["last", "all"], name="loop", body=appending(**options)),
        node("ConcatFromSequence", ["all"], ["y"], axis=axis, new_axis=new_axis),
    ]
    return model(nodes, ["last", "y"], count=trips == "n")


@pytest.mark.parametrize(("axis", "new_axis"), [(0, 1), (2, 1), (-1, 1), (0, 0), (1, 0), (-1, 0)])
@pytest.mark.parametrize("begin", [(), ("x",)])
def test_what_a_loop_appends_to_a_sequence_are_its_lines(axis: int, new_axis: int, begin: tuple[str, ...]) -> None:
    made = torch_like("c3", axis, new_axis, begin)
    module, _ = import_model(made)
    (loop,) = [op for op in module.walk() if isinstance(op, graph.LoopOp)]
    assert loop.most == 3
    assert len(loop.lines) == 1
    check(made)


def test_a_loop_that_appends_stays_a_loop_however_long_it_is() -> None:
    module, _ = import_model(torch_like("c70", 0, 1))
    assert len([op for op in module.walk() if isinstance(op, graph.LoopOp)]) == 1


def test_a_run_may_decide_how_many_tensors_are_appended() -> None:
    for count in (1, 4):
        check(torch_like("n", 0, 1), n=count)
    y = penstock.compile(torch_like("n", 0, 1), max_trips=5, backend="interpreter")(X, np.array(2, np.int64))
    np.testing.assert_array_equal(y[1], np.stack([2 * X, 4 * X, 0 * X, 0 * X, 0 * X]))


@pytest.mark.parametrize("options", [{"twice": True}, {"at": "c0"}])
def test_iterations_are_written_out_where_a_body_does_more_than_append_one(options: dict[str, Any]) -> None:
    made = torch_like("c3", 0, 1, **options)
    module, _ = import_model(made)
    assert not [op for op in module.walk() if isinstance(op, graph.LoopOp)]
    check(made)


def exchanging(trips: str) -> ModelProto:
    """A loop that carries two sequences: each becomes the other, with one more tensor."""
    p, q, longer_p, longer_q = (
        helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None) for name in ("p", "q", "p1", "q1")
    )
    body = helper.make_graph(
        [
            node("Identity", ["c"], ["d"]),
            node("Add", ["a", "a"], ["b"]),
            node("SequenceInsert", ["q", "a"], ["p1"]),
            node("SequenceInsert", ["p", "b"], ["q1"]),
        ],
        "body",
        [value("i", (), TensorProto.INT64), value("c", (), TensorProto.BOOL), value("a"), p, q],
        [value("d", (), TensorProto.BOOL), value("b"), longer_p, longer_q],
    )
    nodes = [
        node("Neg", ["x"], ["minus"]),
        node("SequenceConstruct", ["x"], ["s"]),
        node("SequenceConstruct", ["minus"], ["t"]),
        node("Loop", [trips, "true", "x", "s", "t"], ["last", "ps", "qs"], name="loop", body=body),
        node("ConcatFromSequence", ["ps"], ["y"], axis=0, new_axis=1),
        node("ConcatFromSequence", ["qs"], ["z"], axis=0, new_axis=1),
    ]
    return model(nodes, ["last", "y", "z"], count=trips == "n")


@pytest.mark.parametrize("trips", ["c1", "c2", "c3"])
def test_iterations_are_written_out_where_sequences_are_exchanged(trips: str) -> None:
    check(exchanging(trips))


def test_what_a_loop_inside_appends_to_the_sequence_of_the_loop_around_it_is_written_out() -> None:
    p, q, longer, made = (
        helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None) for name in ("p", "q", "longer", "made")
    )
    counter = [value("i", (), TensorProto.INT64), value("c", (), TensorProto.BOOL), value("a")]
    inside = helper.make_graph(
        [
            node("Identity", ["c_in"], ["d_in"]),
            node("Add", ["a_in", "a_in"], ["b_in"]),
            node("SequenceInsert", ["p", "a_in"], ["longer"]),
        ],
        "inside",
        [value("i_in", (), TensorProto.INT64), value("c_in", (), TensorProto.BOOL), value("a_in"), q],
        [value("d_in", (), TensorProto.BOOL), value("b_in"), longer],
    )
    around = helper.make_graph(
        [
            node("Identity", ["c"], ["d"]),
            node("SequenceEmpty", [], ["none"]),
            node("Loop", ["c2", "true", "a", "none"], ["b", "made"], name="inside", body=inside),
        ],
        "around",
        [*counter, p],
        [value("d", (), TensorProto.BOOL), value("b"), made],
    )
    nodes = [
        node("SequenceConstruct", ["x"], ["s"]),
        node("Loop", ["c2", "true", "x", "s"], ["last", "all"], name="around", body=around),
        node("ConcatFromSequence", ["all"], ["y"], axis=0, new_axis=1),
    ]
    check(model(nodes, ["last", "y"]))


def test_a_sequence_that_a_loop_only_reads_is_that_around_it() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    same = helper.make_tensor_sequence_value_info("same", TensorProto.FLOAT, None)
    body = helper.make_graph(
        [
            node("Identity", ["c"], ["d"]),
            node("SequenceAt", ["s", "c1"], ["read"]),
            node("Add", ["a", "read"], ["b"]),
            node("Identity", ["s"], ["same"]),
        ],
        "body",
        [value("i", (), TensorProto.INT64), value("c", (), TensorProto.BOOL), value("a"), sequence],
        [value("d", (), TensorProto.BOOL), value("b"), same],
    )
    loop = node("Loop", ["c3", "true", "x", "s"], ["y", "t"], body=body)
    check(model([*CONSTRUCTED, loop, node("SequenceAt", ["t", "c0"], ["z"])], ["y", "z"]))


def test_a_map_is_written_out() -> None:
    body = helper.make_graph([node("Add", ["p", "q"], ["r"])], "body", [value("p"), value("q")], [value("r")])
    mapped = node("SequenceMap", ["longer", "x"], ["m"], body=body)
    made = model([*CONSTRUCTED, mapped, node("ConcatFromSequence", ["m"], ["y"], axis=0)], ["y"])
    (y,) = penstock.compile(made, backend="interpreter")(X)
    np.testing.assert_array_equal(y, np.concatenate([X + X, 0 * X, 3 * X]))


def test_a_map_takes_sequences_of_one_length() -> None:
    body = helper.make_graph([node("Add", ["p", "q"], ["r"])], "body", [value("p"), value("q")], [value("r")])
    for first, other, lengths in (("longer", "s", (2, 3)), ("s", "longer", (3, 2))):
        mapped = node("SequenceMap", [first, other], ["m"], name="map", body=body)
        made = model([*CONSTRUCTED, mapped, node("ConcatFromSequence", ["m"], ["y"], axis=0)], ["y"])
        message = f'"map".*its input 1 is a sequence of {lengths[0]}, the first of {lengths[1]}'
        with pytest.raises(UserError, match=message):
            import_model(made)


def test_what_onnx_says_of_types_leaves_sequences_out() -> None:
    given = [node("SequenceInsert", ["s", "x"], ["t"]), node("SequenceMap", ["x", "s"], ["t"])]
    assert refuse_faulty(given[0], 18, [None, TensorType(f32, [2])]) == {}
    with pytest.raises(VerifyException, match=r"SequenceMap takes no tensor\(float\) as input 0"):
        refuse_faulty(given[1], 18, [TensorType(f32, [2]), None])


def _branch(operands: list[str]) -> GraphProto:
    sequence = helper.make_tensor_sequence_value_info("r", TensorProto.FLOAT, None)
    return helper.make_graph([node("SequenceConstruct", operands, ["r"])], "branch", [], [sequence])


REFUSED: dict[str, tuple[ModelProto, str]] = {
    "output": (
        model([node("SplitToSequence", ["x"], ["s"], name="split")], ["s"]),
        'SplitToSequence: what it makes, "s", is an output of the model, in 1 node: "split"',
    ),
    "place": (
        model([*CONSTRUCTED, node("SequenceAt", ["s", "n"], ["y"], name="at")], ["y"], count=True),
        'SequenceAt: the position must be constant, in 1 node: "at"',
    ),
    "operator": (
        model([*CONSTRUCTED, node("Neg", ["s"], ["y"], name="neg")], ["y"]),
        'Neg: it takes a sequence, in 1 node: "neg"',
    ),
    "branch": (
        model(
            [
                node("Greater", ["n", "c1"], ["more"]),
                node("If", ["more"], ["s"], name="if", then_branch=_branch(["x"]), else_branch=_branch(["x", "x"])),
                node("SequenceAt", ["s", "c0"], ["y"]),
            ],
            ["y"],
            count=True,
        ),
        'If: its "r" is a sequence, which SequenceConstruct makes, in 1 node: "if"',
    ),
    "reads": (
        torch_like("n", 0, 1, ("x",), reads=True),
        "SequenceAt: of a sequence that a loop carries",
    ),
    "exchanged": (
        exchanging("n"),
        'Loop: it carries the sequence "p", to which its body does not append, in 1 node: "loop"',
    ),
    "many_exchanged": (
        exchanging("c70"),
        'Loop: it carries the sequence "p", to which its body does not append, in 1 node: "loop"',
    ),
    "twice": (
        torch_like("n", 0, 1, twice=True),
        'Loop: its body appends 2 tensors to the sequence "s", and not one, in 1 node: "loop"',
    ),
    "axis": (
        torch_like("n", 1, 1),
        "ConcatFromSequence: of as many tensors as a run decides, but for those along a new first axis",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_tensor_is_refused_by_the_name_of_the_operator(name: str) -> None:
    made, message = REFUSED[name]
    with pytest.raises(UserError) as caught:
        import_model(made, max_trips=8)
    assert caught.value.status == UNSUPPORTED
    assert message in str(caught.value)
