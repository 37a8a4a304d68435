# SPDX-License-Identifier: Apache-2.0
"""`graph-gradient` through kernels that a graph calls: beside the gradients of the graph's own ops, and compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from reference import OPERATORS
from sampling import sweep
from xdsl.dialects.func import FuncOp
from xdsl.dialects.linalg.ops import GenericOp

import penstock
from penstock.dialects.diagnostics import UserError
from penstock.dialects.graph.kernel import called_kernels
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_kernel.lower import KernelFile
from penstock.lowering.from_text import read_text
from penstock.passes.analysis.kernels import rounds_each_step
from penstock.runtime.compiler import LoadedProgram, load_input
from penstock.runtime.interpreter import run_module
from penstock.runtime.kernel_function import KernelFunction
from penstock.runtime.pass_manager import read_pipeline, run_passes

FOLDER = Path(__file__).parents[3] / "examples/operators"
Array = NDArray[Any]

KERNEL = """
func.func @main(%a: tensor<6x5xf32>, %b: tensor<5x7xf32>) -> tensor<6x7xf32> {
  %r = graph.relu %a : tensor<6x5xf32>
  %c = graph.kernel @matmul(%r, %b) : (tensor<6x5xf32>, tensor<5x7xf32>) -> tensor<6x7xf32>
  %d = graph.kernel @gelu(%c) : (tensor<6x7xf32>) -> tensor<6x7xf32>
  %e = graph.kernel @softmax(%d) : (tensor<6x7xf32>) -> tensor<6x7xf32>
  %y = graph.add %e, %c : (tensor<6x7xf32>, tensor<6x7xf32>) -> tensor<6x7xf32>
  func.return %y : tensor<6x7xf32>
}
"""
OPS = """
func.func @main(%a: tensor<6x5xf32>, %b: tensor<5x7xf32>) -> tensor<6x7xf32> {
  %r = graph.relu %a : tensor<6x5xf32>
  %c = graph.matmul %r, %b : (tensor<6x5xf32>, tensor<5x7xf32>) -> tensor<6x7xf32>
  %d = graph.gelu %c : tensor<6x7xf32>
  %e = graph.softmax %d axis 1 : tensor<6x7xf32> -> tensor<6x7xf32>
  %y = graph.add %e, %c : (tensor<6x7xf32>, tensor<6x7xf32>) -> tensor<6x7xf32>
  func.return %y : tensor<6x7xf32>
}
"""
GELU = """kernel gelu(f32 x[N, M]) -> (f32 y[N, M]) {
    y[i, j] = 0.5 * x[i, j] * (1 + erf(x[i, j] / sqrt(2)))
}
"""


def function_of(source: str | Path, name: str, **sizes: int) -> str:
    """The function of a kernel, as text."""
    lowered = penstock.kernel(source, name).mlir("graph", **sizes)
    return lowered[lowered.index("func.func private") :].removesuffix("}\n")


def program_of(tmp_path: Path, *texts: str, pipeline: str = "graph-gradient{replace=true}") -> LoadedProgram:
    path = tmp_path / "program.mlir"
    path.write_text("\n".join(texts))
    program = load_input(path)
    run_passes(program.ctx, program.module, read_pipeline(pipeline))
    return program


def functions(program: LoadedProgram) -> list[str]:
    return [op.sym_name.data for op in program.module.ops if isinstance(op, FuncOp)]


@pytest.fixture
def by_kernels(tmp_path: Path) -> LoadedProgram:
    return program_of(
        tmp_path,
        KERNEL,
        function_of(FOLDER / "products.pk", "matmul", N=6, K=5, M=7),
        function_of(GELU, "gelu", N=6, M=7),
        function_of(FOLDER / "normalisations.pk", "softmax", N=6, M=7),
    )


def test_kernels_have_the_gradients_of_the_ops_that_they_are(tmp_path: Path, by_kernels: LoadedProgram) -> None:
    names = functions(by_kernels)
    assert set(names) == {"main", "matmul", "gelu", "matmul_gradient", "gelu_gradient", "softmax_gradient"}
    assert called_kernels(by_kernels.module) == {*names} - {"main"}
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(shape).astype(np.float32) for shape in ((6, 5), (5, 7), (6, 7))]
    (tmp_path / "ops").mkdir()
    expected = run_module(program_of(tmp_path / "ops", OPS).module, given, WeightStore())
    found = run_module(by_kernels.module, given, WeightStore())
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


CALLS = """
func.func @main(%x: tensor<6x7xf16>, %z: tensor<6x7xf16>) -> tensor<6x7xf16> {
  %a = graph.kernel @softmax(%x) : (tensor<6x7xf16>) -> tensor<6x7xf16>
  %b = graph.kernel @softmax(%a) : (tensor<6x7xf16>) -> tensor<6x7xf16>
  %y = graph.mul %b, %z : (tensor<6x7xf16>, tensor<6x7xf16>) -> tensor<6x7xf16>
  func.return %y : tensor<6x7xf16>
}
"""


def test_calls_share_a_kernel_and_narrow_sums_are_carried_in_f32(tmp_path: Path) -> None:
    text = (FOLDER / "normalisations.pk").read_text().replace("f32", "f16")
    softmax = function_of(text, "softmax", N=6, M=7)
    program = program_of(tmp_path, CALLS, softmax, pipeline='graph-gradient{wrt=0 to="slope"}')
    assert functions(program) == ["main", "slope", "softmax", "softmax_gradient"]
    assert str(program.module).count("graph.kernel @softmax_gradient") == 2
    assert not any(rounds_each_step(op) for op in program.module.walk() if isinstance(op, GenericOp))
    again = program_of(tmp_path, CALLS, softmax, pipeline="graph-gradient{wrt=0},graph-gradient{wrt=1 to=other}")
    assert functions(again) == ["main", "other", "main_gradient", "softmax", "softmax_gradient"]


TWO_RESULTS = """
func.func @main(%x: tensor<4x3xf32>, %s: tensor<f32>, %w: tensor<3xi32>) -> (tensor<4xf32>, tensor<3xf32>) {
  %a, %b = graph.kernel @f(%x, %s, %w) : (tensor<4x3xf32>, tensor<f32>, tensor<3xi32>) -> (tensor<4xf32>, tensor<3xf32>)
  func.return %a, %b : tensor<4xf32>, tensor<3xf32>
}
"""
F = """kernel f(f32 x[N, M], f32 s, i32 w[M]) -> (f32 a[N], f32 b[M]) {
    a[i] = sum(j, x[i, j] * cast(f32, w[j]))
    b[j] = s
}
"""


@pytest.mark.parametrize("options", ["results=0", "results=1", "wrt=1"])
def test_only_what_is_asked_for_is_computed(tmp_path: Path, options: str) -> None:
    pipeline = f"graph-gradient{{replace=true {options}}}"
    program = program_of(tmp_path, TWO_RESULTS, function_of(F, "f", N=4, M=3), pipeline=pipeline)
    rng = np.random.default_rng(0)
    x, a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 3), 4, 3))
    w = np.array([2, -1, 3], np.int32)
    seeds = {"results=0": [a], "results=1": [b], "wrt=1": [a, b]}[options]
    found = run_module(program.module, [x, np.asarray(2, np.float32), w, *seeds], WeightStore())
    of_s = np.asarray(b.sum())
    expected = {"results=0": [np.outer(a, w), np.zeros(())], "results=1": [0 * x, of_s], "wrt=1": [of_s]}[options]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_a_loop_is_refused_at_its_place(tmp_path: Path) -> None:
    text = "kernel f(f32 x[N]) -> (f32 y) {\n    y = 1\n    for n in 0:N {\n        y = y * x[n]\n    }\n}"
    graph = "func.func @main(%x: tensor<4xf32>) -> tensor<f32> {\n"
    graph += "  %y = graph.kernel @f(%x) : (tensor<4xf32>) -> tensor<f32>\n  func.return %y : tensor<f32>\n}\n"
    with pytest.raises(UserError, match=r"scf\.for has no derivative") as caught:
        program_of(tmp_path, graph, function_of(text, "f", N=4))
    assert caught.value.status == 3


@pytest.mark.parametrize("machine", sweep((None, "gemmini-fp32", "rapid-core-like"), (None,)))
@pytest.mark.parametrize("name", sweep(("conv2d", "max_pool", "layer_norm", "lstm_cell", "matmul"), ("conv2d",)))
def test_gradients_are_compiled_as_any_kernel(name: str, machine: str | None) -> None:
    operator = next(each for each in OPERATORS if each.name == name)
    file = KernelFile(read_text(FOLDER / f"{operator.file}.pk"))
    sizes = dict(operator.sizes[-1])
    rng = np.random.default_rng(0)
    slope = KernelFunction(file, name, machine).gradient()
    engine = slope.engine(sizes)
    inputs = [np.asarray(rng.standard_normal(each.shape)).astype(each.dtype) for each in engine.signature.inputs]
    expected = slope.on(None, "interpreter").engine(sizes).run(inputs)
    for ours, theirs in zip(engine.run(inputs), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_row_that_is_copied_to_another_has_a_derivative() -> None:
    text = """kernel move(f32 x[N, M]) -> (f32 y[N, M]) {
        y = x
        row = load(x[1, :])
        store(y[2, :], row)
    }"""
    seed = np.arange(6, dtype=np.float32).reshape(3, 2)
    found = penstock.kernel(text, backend="interpreter").gradient()(np.ones((3, 2), np.float32), seed)
    np.testing.assert_array_equal(found, [seed[0], seed[1] + seed[2], [0, 0]])


def test_a_stride_on_the_left_is_refused_at_its_place() -> None:
    text = "kernel f(f32 x[N]) -> (f32 y[2 * N]) {\n    y[2 * i] = x[i]\n    y[2 * i + 1] = 2 * x[i]\n}"
    with pytest.raises(UserError, match=r"tensor\.insert_slice has no derivative") as caught:
        penstock.kernel(text).gradient().mlir("graph", N=4)
    assert caught.value.notes == ("what is stored by parts lies together: a stride on the left has none",)
    assert caught.value.loc == "<kernel>:3:22"
