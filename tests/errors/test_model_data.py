# SPDX-License-Identifier: Apache-2.0
"""Weights that are no numbers, and weights in files beside the model: what is refused, and that none is read twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import penstock as package
from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import Array, WeightStore
from penstock.lowering.from_onnx import import_model, node

if TYPE_CHECKING:
    from tests.conftest import Command, Finished

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
X = np.array([[1, 2, -3, 4]], np.float32)


def model_of(*weights: TensorProto, element: int = TensorProto.FLOAT) -> ModelProto:
    """x @ w0 @ w1 ... with x: 1x4."""
    nodes: list[onnx.NodeProto] = []
    before = "x"
    for number, weight in enumerate(weights):
        nodes.append(helper.make_node("MatMul", [before, weight.name], [f"y{number}"], f"product{number}"))
        before = f"y{number}"
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", element, [1, weights[0].dims[0]])],
        [helper.make_tensor_value_info(before, element, [1, weights[-1].dims[1]])],
        list(weights),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def save(path: Path, model: ModelProto) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def refused(finished: Finished, *parts: str) -> None:
    """The command left with status 1, said all `parts` on stderr, and had no traceback."""
    assert finished.status == 1, finished.err
    assert "Traceback" not in finished.err
    for part in parts:
        assert part in finished.err


# weights that are no numbers


def with_values(dtype: Any, *values: float) -> ModelProto:
    """The model, the first elements of each row of whose weight are `values`."""
    weight = WEIGHT.astype(dtype)
    weight[: len(values), 2] = values
    if dtype is ml_dtypes.bfloat16:
        tensor = helper.make_tensor("fc.weight", TensorProto.BFLOAT16, (4, 3), weight.tobytes(), raw=True)
        return model_of(tensor, element=TensorProto.BFLOAT16)
    tensor = numpy_helper.from_array(weight, "fc.weight")
    return model_of(tensor, element=tensor.data_type)


def test_nan_weights_are_counted_and_the_first_is_named(penstock: Command, tmp_path: Path) -> None:
    save(tmp_path / "model.onnx", with_values(np.float32, np.nan, np.nan, 0, np.nan))
    for command in ("import", "compile"):
        refused(
            penstock(command, "model.onnx"),
            'model.onnx: error: initializer "fc.weight" holds 3 NaN values, the first at [0, 2]\n',
            "note: --allow-nan, in Python allow_nan=True, imports the model as it is",
        )
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_nan_is_found_in_every_float_and_infinities_are_legal(dtype: Any) -> None:
    import_model(with_values(dtype, -np.inf, np.inf, 0))
    for values in ((0, 0, np.nan), (np.inf, 0, -np.nan)):
        with pytest.raises(UserError, match=r'"fc.weight" holds 1 NaN value, the first at \[2, 2\]'):
            import_model(with_values(dtype, *values))


def test_nan_beyond_the_first_piece_is_found_in_its_place() -> None:
    weight = np.ones((600, 1000), np.float32)
    weight[599, 998] = np.nan
    with pytest.raises(UserError, match=r"holds 1 NaN value, the first at \[599, 998\]"):
        import_model(model_of(numpy_helper.from_array(weight, "w")))


def test_nan_weights_are_imported_as_they_are_on_request(penstock: Command, tmp_path: Path) -> None:
    path = save(tmp_path / "model.onnx", with_values(np.float32, np.nan))
    assert penstock("import", "model.onnx", "--allow-nan", "-q").status == 0
    assert np.isnan(WeightStore.open(tmp_path / "model.safetensors")["fc.weight"][0, 2])
    for command in (("compile",), ("check",)):
        assert penstock(*command, "model.onnx", "--allow-nan", "-q").status == 0
    (y,) = package.compile(path, backend="interpreter", allow_nan=True)(X)
    assert np.isnan(y).tolist() == [[False, False, True]]


# data in files beside the model


def external(name: str, shape: tuple[int, ...], **entries: str | int) -> TensorProto:
    """A float tensor whose data are in a file."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


@pytest.mark.parametrize("offset", [0, 64, 6])
def test_data_beside_the_model_are_what_they_would_be_inside(tmp_path: Path, offset: int) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(b"\1" * offset + WEIGHT.tobytes())
    tensor = external("w", (4, 3), location="data/w.bin", offset=offset, length=48)
    path = save(tmp_path / "model.onnx", model_of(tensor))
    (y,) = package.compile(path)(X)
    np.testing.assert_array_equal(y, X @ WEIGHT)


def test_every_weight_is_read_once_and_none_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = node.mapped

    def counting(tensor: TensorProto, dtype: np.dtype[Any]) -> Array:
        read.append(tensor.name)
        return original(tensor, dtype)

    monkeypatch.setattr(node, "mapped", counting)
    weights = np.concatenate([WEIGHT.ravel(), np.ones(18, np.float32)])
    (tmp_path / "w.bin").write_bytes(weights.tobytes())
    tensors = (
        external("w0", (4, 3), location="w.bin", offset=0, length=48),
        external("w1", (3, 6), location="w.bin", offset=48, length=72),
    )
    _, store = import_model(save(tmp_path / "model.onnx", model_of(*tensors)))
    assert read == ["w0", "w1"]
    np.testing.assert_array_equal(store["w0"], WEIGHT)
    for name in ("w0", "w1"):
        base: Any = store[name]
        while (under := getattr(base, "base", None)) is not None:
            base = under
        assert type(base).__name__ == "mmap", "the entry is the file itself"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "gone.bin"}, 'are in the file "gone.bin", which does not exist'),
        ({"location": "w.bin", "offset": 4}, 'takes bytes 4 to 52 of "w.bin", which has 48'),
        ({"location": "w.bin", "offset": 4096, "length": 48}, 'takes bytes 4096 to 4144 of "w.bin", which has 48'),
        ({"location": "w.bin", "length": 12}, "has 12 bytes of data, and its shape takes 48"),
        ({"location": "w.bin", "offset": "-4"}, 'the offset of the data of initializer "w" is "-4", no number'),
        ({"location": "../w.bin"}, 'has its data in "../w.bin", outside the folder of the model'),
        ({"location": "a/../../w.bin"}, "outside the folder of the model"),
        ({"location": "..\\w.bin"}, "outside the folder of the model"),
        ({"location": "/etc/passwd"}, "outside the folder of the model"),
        ({"location": "C:w.bin"}, "outside the folder of the model"),
        ({"offset": 0}, 'has its data in "", outside the folder of the model'),
    ],
)
def test_data_that_cannot_be_read_are_named_with_the_model(
    penstock: Command, tmp_path: Path, entries: dict[str, str | int], message: str
) -> None:
    (tmp_path / "models").mkdir()
    for folder in (tmp_path, tmp_path / "models"):
        (folder / "w.bin").write_bytes(WEIGHT.tobytes())
    save(tmp_path / "models" / "model.onnx", model_of(external("w", (4, 3), **entries)))
    refused(penstock("import", "models/model.onnx"), "models/model.onnx: error: ", 'initializer "w"', message)
    assert not (tmp_path / "model.mlir").exists()


def test_a_loaded_model_whose_data_are_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    path = save(tmp_path / "model.onnx", model_of(external("w", (4, 3), location="w.bin")))
    loaded = onnx.load(path, load_external_data=False)  # pyright: ignore[reportUnknownMemberType]
    with pytest.raises(UserError, match=r'initializer "w" cannot be read: its data are in the file "w.bin", and'):
        import_model(loaded)


def test_a_file_larger_than_a_protocol_buffer_is_refused_unread(penstock: Command, tmp_path: Path) -> None:
    with (tmp_path / "huge.onnx").open("wb") as file:
        file.truncate(1 << 31)
    refused(
        penstock("import", "huge.onnx"),
        "huge.onnx: error: the file has 2,147,483,648 bytes, and a protocol buffer at most 2,147,483,647",
        "save_as_external_data=True",
    )


IMPORT_AND_MEASURE = """
import sys
from pathlib import Path
from penstock.tools import main

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

assert main.run(["import", "small.onnx", "-q"]) == 0
before = peak()
assert main.run(["import", "large.onnx", "-q"]) == 0
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for the peak")
def test_a_model_is_imported_in_less_memory_than_its_weights(tmp_path: Path) -> None:
    """Three weights of 64 MiB, of a file without data on the disk, become one file of weights."""
    rows, columns = 4096, 4096
    size = 4 * rows * columns
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(3 * size)
    tensors = [external(f"w{n}", (rows, columns), location="w.bin", offset=n * size, length=size) for n in range(3)]
    save(tmp_path / "large.onnx", model_of(*tensors))
    save(tmp_path / "small.onnx", model_of(numpy_helper.from_array(WEIGHT, "w")))
    words = [sys.executable, "-c", IMPORT_AND_MEASURE]
    finished = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert int(finished.stdout) <= 1.2 * size
    assert (tmp_path / "large.safetensors").stat().st_size >= 3 * size
