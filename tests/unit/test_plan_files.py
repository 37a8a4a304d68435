# SPDX-License-Identifier: Apache-2.0
"""Plans as files: what they hold, that all of them is checked, and engines that are made of them."""

from __future__ import annotations

import copy
import os
import pickle
import random
import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from in_c import needs_compiler
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import penstock
from penstock.dialects import cpu
from penstock.dialects.diagnostics import UserError
from penstock.passes.toolchain import find_compiler
from penstock.runtime.compiler import import_program
from penstock.runtime.engine import Engine
from penstock.runtime.plan import BLOCK_BYTES, DTYPES, checksum, is_plan, open_plan, plan_of_bytes, write_plan
from penstock.runtime.tensor_specs import Signature, TensorSpec

Array = NDArray[Any]

LAYER = """builtin.module attributes {graph.weights = "layer.safetensors"} {
  func.func @main(%x: tensor<4x8xf32> {graph.name = "x"}) -> (tensor<4x3xf32> {graph.name = "y"}) {
    %w = graph.constant #graph.weight<"w"> : tensor<8x3xf32>
    %xw = graph.matmul %x, %w : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xf32> loc("product")
    %y = graph.relu %xw : tensor<4x3xf32> loc("clamp")
    func.return %y : tensor<4x3xf32>
  }
}"""
X = np.arange(32, dtype=np.float32).reshape(4, 8) - 16
W = np.arange(24, dtype=np.float32).reshape(8, 3) % 5 - 2
Y = np.maximum(X @ W, 0)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Engine]:
    """The program in C, on a machine in C, and in the interpreter."""
    needs_compiler()
    from penstock.dialects.weights import WeightStore

    folder = tmp_path_factory.mktemp("layer")
    store = WeightStore()
    store.add("w", W)
    store.save(folder / "layer.safetensors")
    path = folder / "layer.mlir"
    path.write_text(LAYER)
    found = {
        "host": penstock.compile(path),
        "machine": penstock.compile(path, "gemmini-fp32"),
        "interpreter": penstock.compile(path, backend="interpreter"),
    }
    assert all(isinstance(each, Engine) for each in found.values())
    return found  # pyright: ignore[reportReturnType]


@pytest.fixture(scope="module")
def contents(engines: dict[str, Engine], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("plan") / "layer.plan"
    engines["host"].save(path)
    return path.read_bytes()


# engines


@pytest.mark.parametrize("kind", ["host", "machine", "interpreter"])
def test_an_engine_is_the_same_from_its_plan_pickled_and_copied(
    engines: dict[str, Engine], tmp_path: Path, kind: str
) -> None:
    engine = engines[kind]
    engine.save(tmp_path / "layer.plan")
    loaded = Engine.load(tmp_path / "layer.plan", engine.backend)
    others = [loaded, *(pickle.loads(pickle.dumps(each)) for each in (engine, loaded))]
    others += [make(each) for each in (engine, loaded) for make in (copy.copy, copy.deepcopy)]
    for other in (engine, *others):
        np.testing.assert_array_equal(other(X)[0], Y)
        assert other.signature == engine.signature
        assert other.backend == engine.backend
        assert repr(other) == repr(engine)
        assert str(other.module).count("func.func") == str(engine.module).count("func.func")
    loaded.save(tmp_path / "again.plan")
    assert (tmp_path / "again.plan").read_bytes() == (tmp_path / "layer.plan").read_bytes()


def test_repr_says_what_an_engine_is(engines: dict[str, Engine]) -> None:
    assert repr(engines["machine"]).startswith(
        '<Engine ("x": 4x8 float32) -> ("y": 4x3 float32); machine gemmini-fp32; arena '
    )
    assert repr(engines["host"]).endswith(" bytes; backend native>")
    assert repr(engines["interpreter"]).endswith("arena - bytes; backend interpreter>")


def test_a_deep_copy_has_a_module_of_its_own(engines: dict[str, Engine]) -> None:
    engine = engines["host"]
    assert copy.copy(engine).module is engine.module
    assert copy.deepcopy(engine).module is not engine.module
    assert copy.deepcopy(engine).ctx.weights is not engine.ctx.weights


def test_a_plan_holds_the_text_with_locations(engines: dict[str, Engine], tmp_path: Path) -> None:
    engines["machine"].save(tmp_path / "layer.plan")
    plan = open_plan(tmp_path / "layer.plan")
    assert plan.about["machine"] == "gemmini-fp32"
    assert plan.about["level"] == "accel"
    assert re.search(r'loc\("product"\(".*layer.mlir":\d+:\d+\)\)', plan.text)
    assert "graph.weights" not in plan.text
    engine = Engine.load(tmp_path / "layer.plan")
    assert engine.report.machine == "gemmini-fp32"
    interpreted = Engine.load(tmp_path / "layer.plan", "interpreter")
    np.testing.assert_array_equal(interpreted(X)[0], Y)


def test_weights_are_used_where_they_are_mapped(contents: bytes, tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(contents)
    plan = open_plan(tmp_path / "p")
    engine = Engine.load(tmp_path / "p")
    (weight,) = plan.weights.values()
    assert weight.ctypes.data % 64 == 0
    assert not weight.flags.owndata
    assert not weight.flags.writeable
    (bound,) = engine._native.weights.arrays  # pyright: ignore
    assert not bound.flags.owndata
    (tmp_path / "p").unlink()
    np.testing.assert_array_equal(engine(X)[0], Y)


def test_a_plan_runs_without_compiler_cache_and_ir(contents: bytes, tmp_path: Path) -> None:
    """In a process of its own, which has imported nothing, and where code has no folder."""
    (tmp_path / "layer.plan").write_bytes(contents)
    np.save(tmp_path / "x.npy", X)
    program = """
import sys
from penstock.tools.main import run
status = run(["run", "layer.plan", "--input", "x.npy", "-q"])
print(status, *sorted(name for name in sys.modules if name.split(".")[0] in ("onnx", "xdsl") and "exc" not in name))
"""
    environment = {"PATH": str(tmp_path), "PENSTOCK_CACHE": "/nonexistent/cache", "HOME": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert found.stderr == ""
    status, *imported = found.stdout.split()
    assert status == "0"
    assert set(imported) <= {"xdsl", "xdsl.utils"}, imported
    np.testing.assert_array_equal(np.load(tmp_path / "output_0.npy"), Y)


def test_code_is_loaded_from_the_cache_where_files_without_names_are_not(
    contents: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(name: str) -> int:
        raise PermissionError(name)

    monkeypatch.setattr("os.memfd_create", forbidden, raising=False)
    monkeypatch.setattr("penstock.passes.toolchain._LOADED", {})
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "p").write_bytes(contents)
    for _ in range(2):
        np.testing.assert_array_equal(Engine.load(tmp_path / "p")(X)[0], Y)
    (entry,) = (tmp_path / "cache").iterdir()
    assert entry.read_bytes() == bytes(open_plan(tmp_path / "p").code or b"")


def test_two_plans_that_are_loaded_keep_their_code_apart(engines: dict[str, Engine], tmp_path: Path) -> None:
    """The loader knows libraries by their paths, and numbers of files are used again."""
    (tmp_path / "double.mlir").write_text(
        "func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {\n"
        "%y = graph.add %x, %x : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>\n"
        "func.return %y : tensor<4x8xf32>\n}"
    )
    other = penstock.compile(tmp_path / "double.mlir")
    assert isinstance(other, Engine)
    engines["host"].save(tmp_path / "one.plan")
    other.save(tmp_path / "two.plan")
    for _ in range(3):
        np.testing.assert_array_equal(Engine.load(tmp_path / "one.plan")(X)[0], Y)
        np.testing.assert_array_equal(Engine.load(tmp_path / "two.plan")(X)[0], X + X)


def test_a_plan_is_known_by_its_name_or_by_how_it_begins(contents: bytes, tmp_path: Path) -> None:
    (tmp_path / "any").write_bytes(contents)
    (tmp_path / "text.mlir").write_text("func.func @main() { func.return }")
    os.mkfifo(tmp_path / "fifo.mlir")
    assert [is_plan(tmp_path / name) for name in ("any", "missing.plan")] == [True, True]
    # No process has the FIFO open for writing: a read from it would block.
    assert [is_plan(tmp_path / name) for name in ("text.mlir", "fifo.mlir", "missing", ".")] == [False] * 4


# the format


def test_every_element_type_comes_back(tmp_path: Path) -> None:
    arrays: dict[str, Array] = {}
    for number, name in enumerate(DTYPES):
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        arrays[name] = np.array([0, 1, 1, 0, 1], np.int8).astype(dtype)[: number % 5 + 1]
    arrays["empty"] = np.zeros((0, 3), np.float32)
    arrays["scalar"] = np.array(7.5)
    arrays["uint4"] = np.arange(16).astype(ml_dtypes.uint4)
    arrays["int2"] = np.array([-2, -1, 0, 1]).astype(ml_dtypes.int2)
    signature = Signature((TensorSpec("ä \0 b", (), np.dtype(bool)),), (TensorSpec("y", (2, 0), arrays["int4"].dtype),))
    path = tmp_path / "types.plan"
    with path.open("wb") as file:
        write_plan(file, {"machine": None}, signature, arrays, list(arrays), "text", None)
    plan = open_plan(path)
    assert (plan.signature, plan.text, plan.code) == (signature, "text", None)
    assert plan.weight_arguments == tuple(arrays)
    for name, array in arrays.items():
        assert plan.weights[name].dtype == array.dtype, name
        assert plan.weights[name].tobytes() == array.tobytes(), name
        assert plan.weights[name].shape == array.shape, name
    with pytest.raises(UserError, match="the plan has no machine code"):
        Engine.load(path)


def test_the_checksum_is_as_documented() -> None:
    data = np.random.default_rng(0).bytes(2 * BLOCK_BYTES + 100)
    padded = data + bytes(-len(data) % BLOCK_BYTES)
    sums = b""
    for at in range(0, len(padded), BLOCK_BYTES):
        words = struct.unpack(f"<{BLOCK_BYTES // 8}Q", padded[at : at + BLOCK_BYTES])
        sums += struct.pack("<Q", sum(words) % (1 << 64))
    import zlib

    assert checksum(data) == zlib.crc32(sums)


def test_no_flipped_bit_is_accepted(contents: bytes) -> None:
    """Each byte of the header's table, and bits anywhere in the file; the sweep over all of them took minutes."""
    chosen = random.Random(17)
    places = {at * 8 + chosen.randrange(8) for at in range(0, 320)}
    places |= {chosen.randrange(len(contents) * 8) for _ in range(1500)}
    for bit in sorted(places):
        flipped = bytearray(contents)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(UserError, match=r"layer: error: (the plan|not a plan)"):
            plan_of_bytes("layer", bytes(flipped))


def test_no_plan_of_another_length_is_accepted(contents: bytes) -> None:
    chosen = random.Random(17)
    lengths = [*range(1, 40), 4095, 4096, 4097, len(contents) - 1, *chosen.sample(range(len(contents)), 200)]
    for length in lengths:
        with pytest.raises(UserError, match="truncated"):
            plan_of_bytes("layer", contents[:length])
    for more in (b"\0", bytes(BLOCK_BYTES), contents):
        with pytest.raises(UserError, match="damaged: it has"):
            plan_of_bytes("layer", contents + more)


def test_blocks_that_change_places_are_found(contents: bytes) -> None:
    count = len(contents) // BLOCK_BYTES
    blocks = [contents[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES] for at in range(count)]
    swaps = [(one, other) for one in range(1, count) for other in range(one) if blocks[one] != blocks[other]]
    for one, other in random.Random(17).sample(swaps, min(100, len(swaps))):
        changed = list(blocks)
        changed[one], changed[other] = changed[other], changed[one]
        with pytest.raises(UserError):
            plan_of_bytes("layer", b"".join(changed))


# the CPU


def test_code_for_another_cpu_is_refused(contents: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "layer.plan"
    path.write_bytes(contents)
    features = find_compiler().features()
    if features:
        lacking = replace(cpu.chosen_cpu(), name=None, features=frozenset(features[:-1]))
        monkeypatch.setattr("penstock.runtime.plan.chosen_cpu", lambda: lacking)
        with pytest.raises(UserError, match=f"features that this CPU does not have: {features[-1]}\n") as refused:
            Engine.load(path)
        assert refused.value.loc == str(path)
        assert refused.value.notes == (f"compile it here: penstock compile MODEL -o {path}",)
    np.testing.assert_array_equal(Engine.load(path, "interpreter")(X)[0], Y)
    monkeypatch.setattr("penstock.runtime.plan.architecture", lambda: "linux pdp11")
    with pytest.raises(UserError, match=f"the plan is code for {cpu.architecture()}, and this is linux pdp11"):
        Engine.load(path)


def test_a_plan_above_loop_level_has_its_weights() -> None:
    weights = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}
    node = helper.make_node("Gemm", ["x", "w"], ["y"])
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 2]), ("y", [1, 3])))
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(v, k) for k, v in weights.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    program = import_program(model, {}, name="gemm")
    engine = Engine(program.module, program.ctx, backend="interpreter")
    given = np.ones((1, 2), np.float32)
    found = pickle.loads(pickle.dumps(engine))(given)[0]
    np.testing.assert_array_equal(found, given @ weights["w"])


def test_an_engine_of_a_plan_replaces_nothing_that_is_no_plan(contents: bytes, tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(contents)
    (tmp_path / "precious").write_text("no plan")
    with pytest.raises(UserError, match="exists and is no plan"):
        Engine.load(tmp_path / "p").save(tmp_path / "precious")
    assert (tmp_path / "precious").read_text() == "no plan"
