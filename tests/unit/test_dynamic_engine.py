# SPDX-License-Identifier: Apache-2.0
"""An engine of a program with symbolic dimensions: it binds them from its inputs and compiles once for each binding."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

import penstock
from penstock.dialects.diagnostics import UserError
from penstock.runtime import dynamic_engine
from penstock.runtime.compiler import import_program
from penstock.runtime.dynamic_engine import DynamicEngine
from penstock.runtime.engine import Engine

Array = NDArray[Any]

WEIGHT = (np.arange(12, dtype=np.float32) % 5 - 2).reshape(4, 3)


def make_model(**inputs: list[int | str]) -> ModelProto:
    """The sum of relu(x @ w) over all inputs, with the names of their dimensions."""
    nodes = [helper.make_node("MatMul", [name, "w"], [f"{name}w"], f"product_{name}") for name in inputs]
    nodes.append(helper.make_node("Sum", [f"{name}w" for name in inputs], ["s"], "total"))
    nodes.append(helper.make_node("Relu", ["s"], ["y"], "clamp"))
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def given(*shape: int) -> Array:
    return (np.arange(np.prod(shape), dtype=np.float32) % 3 - 1).reshape(shape)


def expected(*arrays: Array) -> Array:
    return np.maximum(sum(array @ WEIGHT for array in arrays), 0)


def compiled(model: ModelProto, **options: Any) -> DynamicEngine:
    return DynamicEngine(import_program(model, {}), None, "interpreter", **options)


@pytest.mark.parametrize("machine", [None, "gemmini-fp32"])
@pytest.mark.parametrize("backend", ["native", "interpreter"])
def test_a_model_with_an_open_batch_is_compiled_for_the_batch_of_each_call(machine: str | None, backend: Any) -> None:
    engine = penstock.compile(make_model(x=["N", 4]), machine, backend)
    assert isinstance(engine, DynamicEngine)
    for count in (2, 5, 2):
        x = given(count, 4)
        np.testing.assert_array_equal(engine(x)[0], expected(x))
    assert engine.bindings == [{"N": 5}, {"N": 2}]


def test_a_model_whose_dimensions_are_all_bound_is_an_ordinary_engine() -> None:
    engine = penstock.compile(make_model(x=["N", 4]), backend="interpreter", dims={"N": 3})
    assert isinstance(engine, Engine)
    assert engine.signature.inputs[0].shape == (3, 4)


def test_a_file_of_ir_keeps_its_symbols(tmp_path: Path) -> None:
    (tmp_path / "f.mlir").write_text("""
    func.func @main(%x: tensor<?x2xf32> {graph.name = "x", graph.dims = ["N", ""]}) -> tensor<?x2xf32> {
      %y = graph.relu %x : tensor<?x2xf32>
      func.return %y : tensor<?x2xf32>
    }""")
    engine = penstock.compile(tmp_path / "f.mlir", backend="interpreter")
    np.testing.assert_array_equal(engine(x=given(3, 2))[0], np.maximum(given(3, 2), 0))


def test_the_signature_has_the_names_of_the_dimensions() -> None:
    engine = compiled(make_model(x=["N", "T", 4], z=["N", "T", 4]))
    assert engine.signature.symbols == ("N", "T")
    assert str(engine.signature.inputs[0]) == '"x": NxTx4 float32'
    assert engine.signature.inputs[0].shape == (-1, -1, 4)
    bound = engine.bind(N=2, T=3)
    assert bound.signature.inputs[0].shape == (2, 3, 4)
    assert bound.signature.outputs[0].shape == (2, 3, 3)
    assert engine.signature.symbols == ("N", "T"), "binding leaves the program as it is"


def test_a_binding_is_compiled_once_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    compilations: list[tuple[int, ...]] = []
    original = dynamic_engine.compile_program

    def counted(program: Any, **options: Any) -> Engine:
        engine = original(program, **options)
        compilations.append(engine.signature.inputs[0].shape)
        return engine

    monkeypatch.setattr(dynamic_engine, "compile_program", counted)
    engine = compiled(make_model(x=["N", 4]), cached=2)
    for count in (1, 2, 1, 3, 1, 2):
        engine(given(count, 4))
    assert compilations == [(1, 4), (2, 4), (3, 4), (2, 4)]
    assert engine.bindings == [{"N": 1}, {"N": 2}]
    assert engine.bind({"N": 2}) is engine.bind(N=2)


def test_sizes_of_numpy_are_sizes_and_others_are_refused() -> None:
    dynamic = compiled(make_model(x=["N", 4]))
    assert dynamic.bind(N=np.int64(3)) is dynamic.bind(N=3)  # pyright: ignore[reportArgumentType]
    for size, message in (
        (2.0, "must be an integer, not 2.0"),
        ("3", "not '3'"),
        (0, "at least 1"),
        (2**40, "at most"),
    ):
        with pytest.raises(UserError, match=message):
            dynamic.bind(N=size)  # pyright: ignore[reportArgumentType]
        with pytest.raises(UserError, match=message):
            penstock.compile(make_model(x=["N", 4]), dims={"N": size})  # pyright: ignore[reportArgumentType]


def test_threads_that_ask_for_one_new_binding_get_one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    original = dynamic_engine.compile_program
    compilations: list[int] = []
    both_wait = threading.Barrier(3)

    def slow(program: Any, **options: Any) -> Engine:
        compilations.append(1)
        threading.Event().wait(0.05)
        return original(program, **options)

    monkeypatch.setattr(dynamic_engine, "compile_program", slow)
    engine = compiled(make_model(x=["N", 4]))
    found: list[Engine] = []

    def ask() -> None:
        both_wait.wait()
        found.append(engine.bind(N=2))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compilations) == 1
    assert len(found) == 3
    assert len({id(each) for each in found}) == 1


def test_two_sizes_of_one_dimension_are_refused_with_both_places() -> None:
    engine = compiled(make_model(x=["N", 4], z=["N", 4]))
    with pytest.raises(UserError) as caught:
        engine(given(2, 4), given(3, 4))
    message = "N is 2 by input x (dimension 0 of ?x4), but input z has 3 there (dimension 0 of ?x4)"
    assert caught.value.message == message


def test_inputs_that_may_broadcast_are_bound_apart() -> None:
    engine = compiled(make_model(x=["N", 4], z=["M", 4]))
    np.testing.assert_array_equal(engine(given(3, 4), given(1, 4))[0], expected(given(3, 4), given(1, 4)))
    with pytest.raises(UserError, match="2x3 and 3x3 do not broadcast") as caught:
        engine(given(2, 4), given(3, 4))
    assert caught.value.loc == '"total"'
    assert caught.value.notes == ("with N = 2, M = 3",)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({}, 'not bound: "N"'),
        ({"N": 0}, "must be at least 1"),
        ({"N": 2, "M": 3}, 'no symbolic dimension "M"'),
    ],
)
def test_a_binding_that_does_not_fit_is_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        compiled(make_model(x=["N", 4])).bind(sizes)


@pytest.mark.parametrize(
    ("shape", "message"),
    [((2, 5), r"has the shape \(2, 5\), and the program takes Nx4"), ((2, 2, 4), "takes Nx4"), ((0, 4), "at least 1")],
)
def test_inputs_that_do_not_fit_are_refused_with_the_symbolic_shape(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        compiled(make_model(x=["N", 4]))(given(*shape))


def test_what_is_misspelt_is_found_before_anything_is_compiled() -> None:
    program = import_program(make_model(x=["N", 4]), {})
    with pytest.raises(UserError, match='did you mean "gemmini-fp32"'):
        DynamicEngine(program, "gemini-fp32")
    with pytest.raises(UserError, match="no backend"):
        DynamicEngine(program, None, "nativ")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="at least one engine"):
        DynamicEngine(program, cached=0)


def test_a_symbolic_program_is_no_engine() -> None:
    program = import_program(make_model(x=["N", 4]), {})
    with pytest.raises(UserError, match='not bound: "N"'):
        Engine(program.module, program.ctx, backend="interpreter")
