# SPDX-License-Identifier: Apache-2.0
"""Kernels at tensor level as operators of a graph: `graph.kernel @name`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.dialects.diagnostics import UserError
from penstock.runtime.compiler import load_input
from penstock.runtime.levels import level_of
from penstock.runtime.pipeline import pipeline

GRAPH = """
func.func @main(%x: tensor<4x8xf32>, %z: tensor<8xf32>) -> tensor<4xf32> {
  %r = graph.relu %x : tensor<4x8xf32>
  %s, %t = graph.kernel @scaled(%r, %z) : (tensor<4x8xf32>, tensor<8xf32>) -> (tensor<4x8xf32>, tensor<4xf32>)
  %y = graph.relu %t : tensor<4xf32>
  func.return %y : tensor<4xf32>
}
func.func private @scaled(%x: tensor<4x8xf32>, %z: tensor<8xf32>) -> (tensor<4x8xf32>, tensor<4xf32>) {
"""
KERNEL = """kernel scaled(f32 x[N, M], f32 z[M]) -> (f32 s[N, M], f32 t[N]) {
    s[i, j] = x[i, j] * z[j]
    t[i] = sum(j, s[i, j]) - 1
}
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A graph that calls a kernel of the kernel language, whose function stands in the same module."""
    lowered = penstock.kernel(KERNEL).mlir("graph", N=4, M=8)
    body = lowered[lowered.index("func.func private @scaled") :].split("\n", 1)[1]
    path = tmp_path / "with_kernel.mlir"
    path.write_text(GRAPH + body.removesuffix("}\n"))
    return path


@pytest.mark.parametrize("machine", [None, "gemmini-fp32"])
@pytest.mark.parametrize("backend", ["native", "interpreter"])
def test_a_graph_calls_a_kernel_on_what_it_computes(program: Path, machine: str | None, backend: str) -> None:
    x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    z = np.arange(8, dtype=np.float32)
    engine = penstock.compile(program, machine, "native" if backend == "native" else "interpreter")
    (found,) = engine(x, z)
    np.testing.assert_allclose(found, np.maximum((np.maximum(x, 0) * z).sum(1) - 1, 0), rtol=1e-5)


def test_a_kernel_waits_at_tensor_level_for_the_graph(program: Path) -> None:
    module = load_input(program).module
    assert level_of(module) == "graph"
    assert "graph-to-tensor" in pipeline("tensor", None, start=level_of(module))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("graph.kernel @scaled", "graph.kernel @other", "the module has no kernel @other"),
        (
            "(tensor<4x8xf32>, tensor<8xf32>) -> (tensor<4x8xf32>, t",
            "(tensor<4x8xf32>, tensor<8xf32>) -> (tensor<2x16xf32>, t",
            "as results",
        ),
    ],
)
def test_what_is_called_must_fit_the_kernel(program: Path, old: str, new: str, message: str) -> None:
    program.write_text(program.read_text().replace(old, new, 1))
    with pytest.raises(UserError, match=message) as caught:
        penstock.compile(program)
    assert caught.value.loc == f"{program}:4:3"


def test_unsigned_integers_keep_their_sign_at_the_door() -> None:
    kernel = penstock.kernel("kernel f(ui8 x[N]) -> (ui8 y[N]) {\n    y[i] = max(x[i] // 2, 100)\n}")
    for backend in ("native", "interpreter"):
        found = kernel.on(None, "native" if backend == "native" else "interpreter")(np.array([250, 3], np.uint8))
        np.testing.assert_array_equal(found, np.array([125, 100], np.uint8))


LINKED = """
func.func @main(%x: tensor<4x8xf32>, %z: tensor<8xf32>, %w: tensor<2xf32>) -> (tensor<4xf32>, tensor<2x2xf32>) {
  %s, %t = graph.kernel @scaled(%x, %z) : (tensor<4x8xf32>, tensor<8xf32>) -> (tensor<4x8xf32>, tensor<4xf32>)
  %o = graph.reshape %w : tensor<2xf32> -> tensor<1x2xf32>
  %p = graph.concat %o, %o axis 0 : (tensor<1x2xf32>, tensor<1x2xf32>) -> tensor<2x2xf32>
  %u, %v = graph.kernel @scaled(%p, %w) : (tensor<2x2xf32>, tensor<2xf32>) -> (tensor<2x2xf32>, tensor<2xf32>)
  func.return %t, %u : tensor<4xf32>, tensor<2x2xf32>
}
"""


def test_kernels_of_files_are_put_into_the_module(tmp_path: Path) -> None:
    path, kernels = tmp_path / "graph.mlir", tmp_path / "kernels.pk"
    path.write_text(LINKED)
    kernels.write_text(KERNEL)
    rng = np.random.default_rng(0)
    x, z, w = (rng.normal(size=shape).astype(np.float32) for shape in ((4, 8), 8, 2))
    t, u = penstock.compile(path, backend="interpreter", kernels=[kernels])(x, z, w)
    np.testing.assert_allclose(t, (x * z).sum(1) - 1, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(u, [w * w] * 2, rtol=1e-5)


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        ("@scaled(%x", "@scled(%x", "graph.mlir:3:3", "the module has no kernel @scled"),
        (
            "tensor<4x8xf32>",
            "tensor<?x8xf32>",
            "graph.mlir:3:3",
            "the sizes of what @scaled is called with must be known",
        ),
        ("tensor<8xf32>", "tensor<9xf32>", "kernels.pk:1:34", '"M" is 8, and 9 by the argument "z"'),
        ("-> (tensor<2x2xf32>, tensor<2xf32>)", "-> (tensor<2x2xf32>, tensor<3xf32>)", "graph.mlir:6:3", "as results"),
    ],
)
def test_what_is_called_must_fit_the_kernel_of_the_file(
    tmp_path: Path, old: str, new: str, place: str, message: str
) -> None:
    (tmp_path / "graph.mlir").write_text(LINKED.replace(old, new))
    (tmp_path / "kernels.pk").write_text(KERNEL)
    with pytest.raises(UserError, match=message) as caught:
        penstock.compile(tmp_path / "graph.mlir", kernels=[tmp_path / "kernels.pk"])
    assert caught.value.loc == f"{tmp_path}/{place}"


def test_a_kernel_for_other_sizes_has_a_name_that_no_function_has(tmp_path: Path) -> None:
    path, kernels = tmp_path / "graph.mlir", tmp_path / "kernels.pk"
    kernels.write_text("kernel twice(f32 x[N]) -> (f32 y[N]) {\n    y = 2 * x\n}\n")
    path.write_text(
        """func.func private @twice_1(%x: tensor<3xf32>) -> tensor<3xf32> {
  %z = graph.relu %x : tensor<3xf32>
  func.return %z : tensor<3xf32>
}
func.func @main(%x: tensor<4xf32>, %w: tensor<3xf32>) -> (tensor<4xf32>, tensor<3xf32>) {
  %y = graph.kernel @twice(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %z = graph.kernel @twice(%w) : (tensor<3xf32>) -> tensor<3xf32>
  func.return %y, %z : tensor<4xf32>, tensor<3xf32>
}
"""
    )
    found = penstock.compile(path, None, "interpreter", kernels=[kernels])(
        -np.ones(4, np.float32), -np.ones(3, np.float32)
    )
    assert [each.tolist() for each in found] == [[-2] * 4, [-2] * 3]
