# SPDX-License-Identifier: Apache-2.0
"""Kernels of the kernel language in the commands of penstock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from tests.conftest import Command

TEXT = """kernel double(f32 x[N, M]) -> (f32 y[N, M]) {
    y[i, j] = 2 * x[i, j]
}

kernel product[B = 4](f32 a[N, K], f32 b[K, M]) -> (f32 c[N, M]) {
    grid i in 0:N:B {
        c[i:+B, :] = dot(a[i:+B, : else 0], b)
    }
}
"""
SIZES = ("--dim", "N=10", "--dim", "K=8", "--dim", "M=12")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.pk"
    path.write_text(TEXT)
    return path


def test_a_kernel_runs_at_the_sizes_of_its_inputs(penstock: Command, text: Path) -> None:
    a, b = np.ones((10, 8), np.float32), np.arange(96, dtype=np.float32).reshape(8, 12)
    np.save("a.npy", a)
    np.save("b.npy", b)
    given = ("--input", "a.npy", "--input", "b=b.npy", "--output-dir", "out")
    finished = penstock("run", text, "--kernel", "product", *given)
    assert finished.status == 0, finished.err
    np.testing.assert_array_equal(np.load("out/output_0.npy"), a @ b)


@pytest.mark.parametrize("command", ["check", "simulate", "plan"])
def test_every_command_takes_a_kernel(penstock: Command, text: Path, command: str) -> None:
    finished = penstock(command, text, "--kernel", "product", "--machine", "gemmini-fp32", *SIZES)
    assert finished.status == 0, finished.err


def test_a_kernel_is_compiled_to_any_level(penstock: Command, text: Path) -> None:
    finished = penstock(
        "compile", text, "--kernel", "product", "--dim", "B=5", *SIZES, "--emit", "tensor", "-o", "out.mlir"
    )
    assert finished.status == 0, finished.err
    assert "[5, 8] [1, 1]" in Path("out.mlir").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "there are several kernels in this text"),
        (("--kernel", "prodct"), 'there is no kernel "prodct"'),
        (("--kernel", "double"), 'the sizes are not known: "N", "M" of the kernel "double"'),
        (("--kernel", "double", "--dim", "Q=3"), 'the kernel "double" has no size "Q"'),
    ],
)
def test_the_kernel_and_its_sizes_must_be_known(
    penstock: Command, text: Path, words: tuple[str, ...], message: str
) -> None:
    finished = penstock("compile", text, *words)
    assert finished.status == 1
    assert message in finished.err


def test_inputs_that_a_kernel_does_not_take_are_told(penstock: Command, text: Path) -> None:
    np.save("x.npy", np.ones((3, 4), np.float32))
    finished = penstock("run", text, "--kernel", "double", "--input", "z=x.npy")
    assert finished.status == 1
    assert f'{text}:1:1: error: the kernel "double" has no parameter "z"' in finished.err


def test_only_a_text_of_kernels_has_one_to_choose(penstock: Command) -> None:
    Path("a.mlir").write_text("func.func @main() {\n  func.return\n}\n")
    finished = penstock("compile", "a.mlir", "--kernel", "f")
    assert finished.status == 2
    assert "only a file of kernels has a kernel to choose" in finished.err


def test_passes_are_tried_on_a_kernel(penstock_opt: Command, text: Path) -> None:
    chosen = ("--kernel", "product", *SIZES, "--machine", "gemmini-fp32")
    finished = penstock_opt(text, *chosen, "--dim", "B=5", "--lockstep", "-p", "graph-to-tensor,assign-devices,tile")
    assert finished.status == 0, finished.err
    assert "tile: equal, bit for bit" in finished.err
    assert "step %" in finished.out
    finished = penstock_opt(text, "--kernel", "product", "-p", "cse")
    assert finished.status == 1
    assert f"{text}:5:1: error: the sizes are not known" in finished.err
    finished = penstock_opt("-", "--kernel", "product", stdin="")
    assert finished.status == 2
    assert "--kernel and --dim are for a file of kernels" in finished.err


def test_a_fault_of_ours_on_a_kernel_is_repeated_by_the_same_words(
    penstock_opt: Command, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xdsl.transforms.common_subexpression_elimination import CommonSubexpressionElimination

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(CommonSubexpressionElimination, "apply", broken)
    finished = penstock_opt(text, "--kernel", "double", "--dim", "N=2", "--dim", "M=3", "-p", "cse")
    assert finished.status == 70
    assert f"penstock-opt --kernel double --dim=N=2 --dim=M=3 -p cse {text}" in finished.err
