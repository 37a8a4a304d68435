# SPDX-License-Identifier: Apache-2.0
"""`Loop` and `Scan` of ONNX: what is a loop, what is written out, how many lines there are, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp

import penstock
from penstock.dialects import graph
from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.lowering.from_onnx import import_model
from penstock.runtime import onnx_backend
from penstock.runtime.signature import signature_of

if TYPE_CHECKING:
    from tests.conftest import Command

onnxruntime: Any = pytest.importorskip("onnxruntime")
Array = NDArray[Any]
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name: str, kind: int = FLOAT, shape: tuple[int | str, ...] | None = (3,)) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def body(nodes: list[NodeProto], outputs: list[ValueInfoProto], state: tuple[int | str, ...] = (3,)) -> GraphProto:
    """The body of a loop that carries `a`, from the iteration `i` and the condition `c`."""
    inputs = [value("i", INT64, ()), value("c", BOOL, ()), value("a", FLOAT, state)]
    return helper.make_graph(nodes, "body", inputs, outputs)


def looped(
    inner: GraphProto, outputs: list[str], *, trips: str = "n", opset: int = 18, inputs: tuple[str, ...] = ("x", "n")
) -> ModelProto:
    """A model of one loop on the input x; `n` is the number of iterations, an input like x unless left out."""
    nodes = [helper.make_node("Loop", [trips, "true", "x"], outputs, name="loop", body=inner)]
    declared = {"x": value("x"), "n": value("n", INT64, ())}
    constants = {
        "true": np.array(True),
        "three": np.array(3, np.int64),
        "none": np.array(0),
        "limit": np.array(9, np.float32),
    }
    made = helper.make_graph(
        nodes,
        "test",
        [declared[name] for name in inputs],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def doubling(*, ends: bool = False, lines: bool = True) -> GraphProto:
    """a becomes 2 a, of which each iteration gives a line; with `ends` until the sum passes a limit."""
    nodes = [
        helper.make_node("Add", ["a", "a"], ["twice"]),
        helper.make_node("ReduceSum", ["twice"], ["sum"], keepdims=0),
        helper.make_node("Less", ["sum", "limit"], ["small"]),
        helper.make_node("Identity", ["small" if ends else "c"], ["more"]),
        helper.make_node("Identity", ["twice"], ["line"]),
    ]
    outputs = [value("more", BOOL, ()), value("twice"), *([value("line")] if lines else [])]
    return body(nodes, outputs)


def expected(model: ModelProto, feeds: dict[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)


def loops_of(module: ModuleOp) -> list[graph.LoopOp]:
    return [op for op in module.walk() if isinstance(op, graph.LoopOp)]


X = np.array([0.5, 1.0, -0.25], np.float32)


# how many lines there are


def test_a_known_number_of_iterations_gives_as_many_lines() -> None:
    model = looped(doubling(), ["y", "lines"], trips="three", inputs=("x",))
    module, _ = import_model(model)
    (loop,) = loops_of(module)
    assert loop.is_counted
    assert loop.most == 3
    for mine, other in zip(penstock.compile(model)(X), expected(model, {"x": X}), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_a_loop_of_no_iterations_gives_what_it_is_given() -> None:
    model = looped(doubling(lines=False), ["y"], trips="none", inputs=("x",))
    module, _ = import_model(model)
    assert loops_of(module) == []
    np.testing.assert_array_equal(penstock.compile(model)(X)[0], expected(model, {"x": X})[0])
    y, lines, count = penstock.compile(looped(doubling(), ["y", "lines"], trips="none", inputs=("x",)))(X)
    np.testing.assert_array_equal(y, X)
    assert lines[: int(count)].shape == (0, *lines.shape[1:])


def test_a_number_that_is_an_input_is_taken_from_it_where_lines_depend_on_it() -> None:
    model = looped(doubling(), ["y", "lines"])
    for count in (1, 4, 70):
        feeds = {"x": X, "n": np.array(count, np.int64)}
        found = onnx_backend.prepare(model, "CPU").run([X, feeds["n"]])
        for mine, other in zip(found, expected(model, feeds), strict=True):
            np.testing.assert_array_equal(mine, other)


def test_the_backend_gives_the_lines_of_a_run_that_ends_early() -> None:
    model = looped(doubling(ends=True), ["y", "lines"])
    for options in ({}, {"backend": "interpreter", "level": "graph"}):
        for count in (1, 3, 40):
            feeds = {"x": X, "n": np.array(count, np.int64)}
            found = onnx_backend.prepare(model, "CPU", **options).run([X, feeds["n"]])
            for mine, other in zip(found, expected(model, feeds), strict=True):
                np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("ends", [False, True])
def test_a_loop_of_no_iterations_gives_what_it_began_with_and_no_lines(ends: bool) -> None:
    none = {"n": np.array(0, np.int64)}
    (y,) = penstock.compile(looped(doubling(ends=ends), ["y"]), values=none)(X)
    np.testing.assert_array_equal(y, X)
    model = looped(doubling(ends=ends), ["y", "lines"])
    (y, lines, count) = penstock.compile(model, values=none)(X)
    np.testing.assert_array_equal(y, X)
    np.testing.assert_array_equal(lines, np.zeros((1, *lines.shape[1:]), np.float32))
    assert count == 0
    for options in ({}, {"backend": "interpreter", "level": "graph"}):
        found = onnx_backend.prepare(model, "CPU", **options).run([X, none["n"]])
        for mine, other in zip(found, expected(model, {"x": X, **none}), strict=True):
            assert mine.shape == other.shape
            np.testing.assert_array_equal(mine, other)
    with pytest.raises(UserError, match="max_trips, is at least 1"):
        import_model(looped(doubling(ends=ends), ["y", "lines"]), max_trips=0)


def test_where_a_run_decides_the_most_has_to_be_given() -> None:
    model = looped(doubling(), ["y", "lines"])
    with pytest.raises(UserError) as found:
        import_model(model)
    assert found.value.status == UNSUPPORTED
    assert "a run decides how many lines its outputs have; --max-trips N, in Python max_trips=N" in str(found.value)
    assert 'in 1 node: "loop"' in str(found.value)


@pytest.mark.parametrize("backend", ["interpreter", "native", "llvm"])
def test_lines_beyond_those_of_the_run_are_zeros_and_their_number_is_a_result(backend: Any) -> None:
    model = looped(doubling(ends=True), ["y", "lines"])
    engine = penstock.compile(model, backend=backend, max_trips=5)
    assert [each.name for each in engine.signature.outputs] == ["y", "lines", "lines/count"]
    for count in (0, 1, 3, 5, 40):
        feeds = {"x": X, "n": np.array(count, np.int64)}
        y, lines, number = engine(X, feeds["n"])
        last, own = expected(model, feeds)
        np.testing.assert_array_equal(y, last)
        assert number == len(own)
        np.testing.assert_array_equal(lines[: len(own)], own)
        np.testing.assert_array_equal(lines[len(own) :], 0)


def named_as_a_count(*, counted: bool) -> ModelProto:
    """A model that has outputs `lines` and `lines/count` of its own; with `counted` the lines are those of a loop."""
    nodes = [helper.make_node("Add", ["x", "x"], ["lines/count"])]
    if counted:
        model = looped(doubling(ends=True), ["y", "lines"])
    else:
        model = looped(doubling(lines=False), ["y"])
        nodes.append(helper.make_node("Neg", ["x"], ["lines"]))
        model.graph.output.append(helper.make_empty_tensor_value_info("lines"))
    model.graph.node.extend(nodes)
    model.graph.output.append(helper.make_empty_tensor_value_info("lines/count"))
    return model


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("by_plan", [False, True])
def test_no_output_of_a_model_counts_the_lines_of_another(
    tmp_path: Path, penstock: Command, counted: bool, by_plan: bool
) -> None:
    model = named_as_a_count(counted=counted)
    feeds = {"x": X, "n": np.array(3, np.int64)}
    wanted = expected(model, feeds)
    found = onnx_backend.prepare(model, "CPU").run([X, feeds["n"]])
    for mine, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, other)
    path, plan = tmp_path / "model.onnx", tmp_path / "out.plan"
    path.write_bytes(model.SerializeToString())
    for name, array in feeds.items():
        np.save(tmp_path / f"{name}.npy", array)
    given = [f"{name}={tmp_path / name}.npy" for name in feeds]
    if by_plan:
        assert penstock("compile", path, "--max-trips", "9", "-o", plan).status == 0
    finished = penstock("run", plan if by_plan else path, "--input", *given, "--output-dir", tmp_path / "made")
    assert finished.status == 0, finished.err
    for number, other in enumerate(wanted):
        np.testing.assert_array_equal(np.load(tmp_path / "made" / f"output_{number}.npy"), other)


def test_the_number_of_lines_has_a_name_of_its_own() -> None:
    module, _ = import_model(named_as_a_count(counted=True), max_trips=5)
    outputs = signature_of(module).outputs
    assert [(each.name, each.count) for each in outputs] == [
        ("y", ""),
        ("lines", "lines/count_1"),
        ("lines/count", ""),
        ("lines/count_1", ""),
    ]
    (main,) = [op for op in module.ops if isinstance(op, FuncOp)]
    main.res_attrs = ArrayAttr(
        DictionaryAttr({**entry.data, "graph.count": StringAttr("lines/count")}) for entry in main.res_attrs or ()
    )
    with pytest.raises(UserError, match='names "lines/count", which does not count its lines'):
        signature_of(module)


@pytest.mark.parametrize("backend", ["interpreter", "native", "llvm"])
def test_more_iterations_than_there_may_be_are_a_fault_and_write_nothing_beyond(backend: Any) -> None:
    engine = penstock.compile(looped(doubling(), ["y", "lines"]), backend=backend, max_trips=2)
    assert isinstance(engine, penstock.Engine)
    engine(X, np.array(2, np.int64))
    with pytest.raises(UserError, match=r"more than 2 iterations|more iterations of a loop than there may be"):
        engine(X, np.array(3, np.int64))
    # Memory is what it was: the next run is right.
    np.testing.assert_array_equal(engine(X, np.array(1, np.int64))[0], 2 * X)


def test_lines_of_an_unknown_number_are_refused_inside_the_model() -> None:
    model = looped(doubling(), ["y", "lines"])
    model.graph.node.append(helper.make_node("ReduceSum", ["lines"], ["total"], name="sum"))
    model.graph.output.append(helper.make_empty_tensor_value_info("total"))
    with pytest.raises(UserError, match="ReduceSum") as found:
        import_model(model, max_trips=4)
    assert 'a run decides how many lines "lines" has, so it can only be an output of the model' in str(found.value)


def test_the_most_is_an_option_of_the_commands(tmp_path: Path, penstock: Command) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(looped(doubling(), ["y", "lines"]).SerializeToString())
    assert penstock("compile", path, "-o", tmp_path / "out.plan").status == UNSUPPORTED
    finished = penstock("compile", path, "--max-trips", "4", "--emit", "graph", "-o", "-")
    assert finished.status == 0
    assert "trips 4" in finished.out


# what is a loop


def test_a_number_of_iterations_that_is_data_needs_no_bound_without_lines() -> None:
    model = looped(doubling(lines=False), ["y"])
    module, _ = import_model(model)
    (loop,) = loops_of(module)
    assert loop.most is None
    engine = penstock.compile(model)
    for count in (0, 1, 70):
        feeds = {"x": X, "n": np.array(count, np.int64)}
        np.testing.assert_array_equal(engine(X, feeds["n"])[0], expected(model, feeds)[0])


def test_what_a_loop_never_changes_is_known_in_it() -> None:
    nodes = [
        helper.make_node("Reshape", ["a", "shape"], ["flat"]),
        helper.make_node("Add", ["flat", "flat"], ["twice"]),
        helper.make_node("Identity", ["c"], ["more"]),
        helper.make_node("Identity", ["shape"], ["same"]),
    ]
    inner = body(nodes, [value("more", BOOL, ()), value("twice"), value("same", INT64, (1,))])
    inner.input.append(value("shape", INT64, (1,)))
    model = looped(inner, ["y", "s"], trips="many", inputs=("x",))
    model.graph.node[0].input.append("sizes")
    for name, array in (("many", np.array(100, np.int64)), ("sizes", np.array([3], np.int64))):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    module, _ = import_model(model)
    (loop,) = loops_of(module)
    assert len(loop.inits) == 1


def growing() -> GraphProto:
    nodes = [
        helper.make_node("Concat", ["a", "a"], ["longer"], axis=0),
        helper.make_node("Identity", ["c"], ["more"]),
    ]
    return body(nodes, [value("more", BOOL, ()), value("longer", FLOAT, ("m",))], ("k",))


def test_a_body_that_changes_a_size_is_written_out_where_the_number_is_known() -> None:
    model = looped(growing(), ["y"], trips="three", inputs=("x",))
    module, _ = import_model(model)
    assert loops_of(module) == []
    np.testing.assert_array_equal(penstock.compile(model)(X)[0], expected(model, {"x": X})[0])


def test_a_body_that_changes_a_size_is_refused_where_a_run_decides() -> None:
    with pytest.raises(UserError) as found:
        import_model(looped(growing(), ["y"]))
    assert found.value.status == UNSUPPORTED
    assert 'its body changes "a" from tensor<3xf32> to tensor<6xf32>, in 1 node: "loop"' in str(found.value)


def test_a_loop_that_never_ends_is_refused() -> None:
    with pytest.raises(UserError, match="Loop") as found:
        import_model(looped(doubling(lines=False), ["y"], trips="", inputs=("x",)))
    assert "it never ends" in str(found.value)


def test_what_is_not_supported_in_a_body_is_named_once() -> None:
    inner = doubling(lines=False)
    inner.node.append(helper.make_node("NonZero", ["a"], ["where"], name="inside"))
    for trips, inputs in (("three", ("x",)), ("n", ("x", "n"))):
        with pytest.raises(UserError, match="1 operator not supported: NonZero") as found:
            import_model(looped(inner, ["y"], trips=trips, inputs=inputs))
        assert str(found.value).count('"inside"') == 1


def test_a_body_with_too_few_values_is_refused() -> None:
    inner = doubling(lines=False)
    del inner.input[2]
    with pytest.raises(UserError, match=r'node "loop" \(Loop\)'):
        import_model(looped(inner, ["y"]))


def test_the_code_of_a_loop_does_not_grow_with_its_iterations() -> None:
    sizes: list[int] = []
    for count in (3, 3000):
        model = looped(doubling(), ["y", "lines"], trips="t", inputs=("x",))
        model.graph.initializer.append(numpy_helper.from_array(np.array(count, np.int64), "t"))
        sizes.append(len(list(import_model(model)[0].walk())))
    assert sizes[0] == sizes[1]


def test_functions_that_call_each_other_in_a_circle_are_refused() -> None:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("d", 1)]
    functions = [
        helper.make_function("d", name, ["a"], ["b"], [helper.make_node(other, ["a"], ["b"], domain="d")], opsets)
        for name, other in (("First", "Second"), ("Second", "First"))
    ]
    nodes = [helper.make_node("First", ["x"], ["y"], domain="d")]
    made = helper.make_graph(nodes, "test", [value("x")], [value("y")])
    model = helper.make_model(made, opset_imports=opsets, ir_version=8, functions=functions)
    with pytest.raises(UserError, match=r"call each other in a circle: First -> Second -> First|Second -> First -> Se"):
        import_model(model, name="model.onnx")
