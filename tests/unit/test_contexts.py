# SPDX-License-Identifier: Apache-2.0
"""Contexts of engines: inputs and outputs that are not copied, runs in threads, arrays of other libraries."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from in_c import needs_compiler, needs_llvm
from numpy.typing import NDArray

import penstock
from penstock.dialects.diagnostics import UserError
from penstock.runtime.engine import Backend, Engine
from penstock.runtime.llvm import has_llvm
from penstock.runtime.native import NativeContext

Array = NDArray[Any]

TEXT = """func.func @main(%x: tensor<3x5xf32> {graph.name = "x"}, %k: tensor<3x5xui8> {graph.name = "k"})
    -> (tensor<3x5xf32> {graph.name = "twice"}, tensor<3x5xui8> {graph.name = "same"}) {
  %twice = graph.add %x, %x : (tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x5xf32>
  %same = graph.max %k, %k : (tensor<3x5xui8>, tensor<3x5xui8>) -> tensor<3x5xui8>
  func.return %twice, %same : tensor<3x5xf32>, tensor<3x5xui8>
}"""
X = np.arange(15, dtype=np.float32).reshape(3, 5)
K = (np.arange(15, dtype=np.uint8) * 17).reshape(3, 5)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Engine]:
    needs_compiler()
    path: Path = tmp_path_factory.mktemp("program") / "program.mlir"
    path.write_text(TEXT)
    backends: list[Backend] = ["native", "interpreter", *(["llvm"] if has_llvm() else [])]
    return {backend: cast(Engine, penstock.compile(path, backend=backend)) for backend in backends}


@pytest.fixture(params=["native", "interpreter", "llvm"])
def engine(engines: dict[str, Engine], request: pytest.FixtureRequest) -> Engine:
    if request.param == "llvm":
        needs_llvm()
    return engines[request.param]


class Shared:
    """An array of another library, which only `names` show."""

    def __init__(self, array: Array, *names: str):
        self._array = array
        self._names = names

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and name in self.__dict__.get("_names", ()):
            return getattr(self._array, name)
        raise AttributeError(name)


class Tensor(Shared):
    """As torch has them: DLPack, and `__array__` by which NumPy shares the memory."""

    def __dlpack__(self, **given: Any) -> Any:
        return self._array.__dlpack__(**given)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return self._array.view()


# outputs


def test_outputs_go_where_they_are_asked_to(engine: Engine) -> None:
    first, second = np.zeros((3, 5), np.float32), np.zeros((3, 5), np.uint8)
    for out in ([first, second], (first, None), {"twice": first}, {"same": second, "twice": first}):
        first[:], second[:] = 0, 0
        found = engine(X, K, out=out)
        assert found[0] is first
        np.testing.assert_array_equal(first, X + X)
        np.testing.assert_array_equal(found[1], K)
        assert found[1].dtype == np.uint8
    fresh = engine(X, K)
    assert fresh[0] is not engine(X, K)[0]


def test_one_output_needs_no_list(tmp_path: Path) -> None:
    (tmp_path / "one.mlir").write_text(
        "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
        "%y = graph.relu %x : tensor<4xf32>\nfunc.return %y : tensor<4xf32>\n}"
    )
    engine = penstock.compile(tmp_path / "one.mlir", backend="interpreter")
    out = np.zeros(4, np.float32)
    assert engine(np.array([-1, 2, -3, 4], np.float32), out=out)[0] is out
    assert out.tolist() == [0, 2, 0, 4]


READ_ONLY = np.zeros((3, 5), np.float32)
READ_ONLY.flags.writeable = False
LINE = np.zeros(40, np.float32)
REFUSED: dict[str, tuple[Any, str]] = {
    "too few": ([X.copy()], "the program has 2 outputs, and 1 arrays were given for them"),
    "a wrong name": ({"twise": X.copy()}, 'there is no output "twise"\nnote: did you mean "twice"?'),
    "a wrong shape": ([np.zeros((5, 3), np.float32), None], r'the output "twice" has the shape \(5, 3\) and elements'),
    "a wrong type": ([np.zeros((3, 5)), None], "and elements of type float64"),
    "read-only": ([READ_ONLY, None], 'the array for the output "twice" is read-only'),
    "a list": ([[0.0] * 15, None], "is no array whose memory is shared, but a list"),
    "a scalar": ([np.float32(1), None], "is no array whose memory is shared, but a float32"),
    "transposed": ([np.zeros((5, 3), np.float32).T, None], "is not contiguous, in row-major order and aligned"),
    "the input": ([X, None], "shares memory with another array"),
    "the other output": (
        [LINE[:15].reshape(3, 5), LINE[10:14].view(np.uint8)[:15].reshape(3, 5)],
        'the output "same" shares memory with another array',
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_places_that_outputs_cannot_go_to_are_refused(engine: Engine, kind: str) -> None:
    out, message = REFUSED[kind]
    before = X.copy()
    with pytest.raises(UserError, match=message):
        engine(X, K, out=out)
    np.testing.assert_array_equal(X, before)


# inputs


def given_to_code(monkeypatch: pytest.MonkeyPatch, engine: Engine, *inputs: Any) -> list[int]:
    """The addresses of the inputs that the machine code is given."""
    found: list[int] = []
    run = NativeContext.run_into

    def record(self: NativeContext, outputs: Any, inputs: Any, weights: Any) -> None:
        original = self.module.entry

        def entry(context: Any, weights: Any, inputs: Any, outputs: Any) -> int:
            found.extend(ctypes.cast(inputs, ctypes.POINTER(ctypes.c_void_p))[: len(engine.signature.inputs)])
            return original(context, weights, inputs, outputs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.module, "entry", entry)
            run(self, outputs, inputs, weights)

    monkeypatch.setattr(NativeContext, "run_into", record)
    found_x, found_k = engine(*inputs)
    np.testing.assert_array_equal(found_x, X + X)
    np.testing.assert_array_equal(found_k, K)
    return found


def test_dense_inputs_of_any_library_are_read_where_they_are(
    engines: dict[str, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines["native"]
    k = K.copy()
    shared = k.data
    for x in (X, Tensor(X), Shared(X, "__array_interface__"), X.data):
        addresses = given_to_code(monkeypatch, engine, x, shared)
        assert addresses == [X.ctypes.data, k.ctypes.data], type(x)
        monkeypatch.undo()


def test_inputs_that_are_not_dense_are_copied(engines: dict[str, Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engines["native"]
    unaligned = np.frombuffer(b"." + X.tobytes(), np.float32, offset=1).reshape(3, 5)
    for x in (np.asfortranarray(X), np.repeat(X, 2, axis=1)[:, ::2], unaligned):
        assert given_to_code(monkeypatch, engine, x, K)[0] != x.ctypes.data
        monkeypatch.undo()


def test_an_array_may_have_been_changed_since_the_last_run(engine: Engine) -> None:
    context, x, out = engine.context(), X.copy(), [np.empty_like(X), np.empty_like(K)]
    context.run([x, K], out=out)
    # So that it lies elsewhere, and is as it was.
    x.resize((3000, 5), refcheck=False)
    x.resize((3, 5), refcheck=False)
    x += 1
    context.run([x, K], out=out)
    np.testing.assert_array_equal(out[0], 2 * X + 2)
    x.resize((5, 3), refcheck=False)
    with pytest.raises(UserError, match='"x" has the shape'):
        context.run([x, K], out=out)
    out[0].flags.writeable = False
    with pytest.raises(UserError, match="read-only"):
        context.run([X, K], out=out)


def test_what_is_not_read_as_an_array_is_refused(engine: Engine) -> None:
    class Elsewhere:
        def __dlpack__(self, **given: Any) -> Any:
            raise BufferError("on a device")

        def __dlpack_device__(self) -> Any:
            return (2, 0)

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")

    with pytest.raises(UserError, match='the input "x" is not read as an array: can\'t convert cuda'):
        engine(Elsewhere(), K)


def test_outputs_are_written_to_the_arrays_of_other_libraries(engine: Engine) -> None:
    memory = np.zeros((3, 5), np.float32)
    for out in (Tensor(memory), Shared(memory, "__array_interface__"), memory.data):
        memory[:] = 0
        engine(X, K, out=[out, None])
        np.testing.assert_array_equal(memory, X + X)


def test_old_dlpack_does_not_say_that_memory_may_be_written_to(engine: Engine) -> None:
    class Old(Tensor):
        def __dlpack__(self, **given: Any) -> Any:
            given.pop("max_version", None)
            return self._array.__dlpack__(**given)

    memory = np.zeros((3, 5), np.float32)
    engine(X, K, out=[Old(memory), None])
    np.testing.assert_array_equal(memory, X + X)


# threads


def test_contexts_run_in_threads(engines: dict[str, Engine]) -> None:
    engine = engines["native"]
    wrong: list[int] = []

    def work(number: int) -> None:
        context = engine.context()
        for _ in range(50):
            if not np.all(context(X + number, K)[0] == 2 * (X + number)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=[number]) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_runs_are_enqueued(engine: Engine) -> None:
    contexts = [engine.context() for _ in range(2)]
    outputs = [np.zeros((3, 5), np.float32) for _ in range(6)]
    futures = [
        contexts[number % 2].enqueue([X + number], {"k": K}, out={"twice": array})
        for number, array in enumerate(outputs)
    ]
    for number, (future, array) in enumerate(zip(futures, outputs, strict=True)):
        found, same = future.result(timeout=60)
        assert found is array
        np.testing.assert_array_equal(array, 2 * (X + number))
        np.testing.assert_array_equal(same, K)


def test_what_does_not_fit_is_refused_when_it_is_enqueued(engine: Engine) -> None:
    with pytest.raises(UserError, match="an input is missing"):
        engine.context().enqueue([X])


def test_a_fault_of_the_program_is_the_exception_of_the_future(tmp_path: Path) -> None:
    needs_compiler()
    (
        tmp_path / "divide.mlir"
    ).write_text("""func.func @main(%x: memref<2xi32> {graph.name = "x"}, %o: memref<2xi32> {graph.output = "o"}) {
  linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%x : memref<2xi32>) outs(%o : memref<2xi32>) {
  ^bb0(%a: i32, %b: i32):
    %r = arith.divsi %a, %a : i32
    linalg.yield %r : i32
  }
  func.return
}""")
    context = cast(Engine, penstock.compile(tmp_path / "divide.mlir", pipeline="")).context()
    assert context.enqueue([np.array([3, 5], np.int32)]).result(timeout=60)[0].tolist() == [1, 1]
    future = context.enqueue([np.array([3, 0], np.int32)])
    with pytest.raises(UserError, match="the program stopped: division by zero"):
        future.result(timeout=60)
