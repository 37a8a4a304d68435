# SPDX-License-Identifier: Apache-2.0
"""Programs of linalg and of TOSA through the front door, against MLIR's own tools and NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from mlir_texts import Text, linalg_program, tosa_program
from sampling import sweep
from upstream_programs import FROM_TOSA, run_upstream, upstream
from upstream_tools import needs_tools

import penstock

if TYPE_CHECKING:
    from tests.conftest import Command

GENERATORS = {"linalg": linalg_program, "tosa": tosa_program}


def check(made: Text, folder: Path, *, is_tosa: bool, machine: str | None, again: bool) -> None:
    """C, the interpreter and a machine give what MLIR's code gives; and so does what MLIR lowers TOSA to."""
    text, inputs, file = made.text(), made.arrays(), folder / "program.mlir"
    file.write_text(text)
    lowered = upstream(text, FROM_TOSA) if is_tosa else text
    found = [penstock.compile(file).run(inputs)]
    found.append(penstock.compile(file, backend="interpreter").run(inputs))
    if machine is not None:
        found.append(penstock.compile(file, machine=machine).run(inputs))
    if again:
        below = folder / "lowered.mlir"
        below.write_text(lowered)
        found.append(penstock.compile(below).run(inputs))
    theirs = run_upstream(lowered, inputs, found[0], folder)
    for ours in found:
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.dtype == other.dtype
            np.testing.assert_allclose(mine, other, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("seed", sweep(range(60), lambda seed: seed in (0, 2)))
@pytest.mark.parametrize("dialect", GENERATORS)
def test_a_program_computes_what_mlir_computes(dialect: str, seed: int, tmp_path: Path) -> None:
    needs_tools()
    is_tosa = dialect == "tosa"
    machine = "gemmini-fp32" if seed % 4 == 0 else None
    made = GENERATORS[dialect](seed, count=6 if seed > 2 else 2)
    check(made, tmp_path, is_tosa=is_tosa, machine=machine, again=is_tosa and seed % 3 == 0)


def run(text: str, folder: Path, *inputs: object) -> list[np.ndarray]:
    file = folder / "program.mlir"
    file.write_text(text)
    return penstock.compile(file, backend="interpreter").run(list(inputs))


def test_values_are_joined_and_the_function_may_have_any_name(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    text = """
    func.func @forward(%x: tensor<2x3xf32>) -> tensor<4x3xf32> {
      %e = tensor.empty() : tensor<2x3xf32>
      %y = linalg.square ins(%x : tensor<2x3xf32>) outs(%e : tensor<2x3xf32>) -> tensor<2x3xf32>
      %z = tensor.concat dim(0) %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<4x3xf32>
      return %z : tensor<4x3xf32>
    }
    """
    np.testing.assert_array_equal(run(text, tmp_path, x)[0], np.concatenate([x, x * x]))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_softmax_is_that_of_numpy(axis: int, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    text = f"""
    func.func @main(%x: tensor<2x3x4xf32>) -> tensor<2x3x4xf32> {{
      %e = tensor.empty() : tensor<2x3x4xf32>
      %y = linalg.softmax dimension({axis}) ins(%x : tensor<2x3x4xf32>) outs(%e : tensor<2x3x4xf32>)
        -> tensor<2x3x4xf32>
      return %y : tensor<2x3x4xf32>
    }}
    """
    powers = np.exp(x - x.max(axis, keepdims=True))
    np.testing.assert_allclose(run(text, tmp_path, x)[0], powers / powers.sum(axis, keepdims=True), 1e-6)


def test_a_lookup_reads_rows_and_a_resource_is_a_weight(tmp_path: Path) -> None:
    """What torch-mlir prints of an embedding, with its table at the end of the text."""
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    blob = "04000000" + table.tobytes().hex().upper()
    text = f"""
    module attributes {{torch.debug_module_name = "Embedding"}} {{
      func.func @main(%rows: tensor<5xi64>) -> tensor<5x3xf32> {{
        %table = arith.constant dense_resource<table> : tensor<4x3xf32>
        %e = tensor.empty() : tensor<5x3xf32>
        %y = linalg.generic {{indexing_maps = [affine_map<(d0, d1) -> (d0)>, affine_map<(d0, d1) -> (d0, d1)>],
            iterator_types = ["parallel", "parallel"]}} ins(%rows : tensor<5xi64>) outs(%e : tensor<5x3xf32>) {{
        ^bb0(%in: i64, %out: f32):
          %row = arith.index_cast %in : i64 to index
          %column = linalg.index 1 : index
          %found = tensor.extract %table[%row, %column] : tensor<4x3xf32>
          linalg.yield %found : f32
        }} -> tensor<5x3xf32>
        return %y : tensor<5x3xf32>
      }}
    }}
    {{-#
      dialect_resources: {{ builtin: {{ table: "0x{blob}" }} }}
    #-}}
    """
    rows = np.array([3, 0, 2, 2, 1])
    np.testing.assert_array_equal(run(text, tmp_path, rows)[0], table[rows])
    np.testing.assert_array_equal(penstock.compile(tmp_path / "program.mlir").run([rows])[0], table[rows])


def test_newer_text_of_tosa_has_its_numbers_in_operands(tmp_path: Path) -> None:
    """The form since version 1.0 of TOSA: zero points, shapes, starts and shifts are constants that are read."""
    x = np.arange(-8, 8, dtype=np.int8).reshape(1, 4, 4, 1)
    text = """
    func.func @main(%x: tensor<1x4x4x1xi8>) -> (tensor<1x3x3x1xi32>, tensor<1x2x2x1xi8>, tensor<2x8xi8>) {
      %w = "tosa.const"() <{values = dense<2> : tensor<1x2x2x1xi8>}> : () -> tensor<1x2x2x1xi8>
      %b = "tosa.const"() <{values = dense<3> : tensor<1xi32>}> : () -> tensor<1xi32>
      %z = "tosa.const"() <{values = dense<1> : tensor<1xi8>}> : () -> tensor<1xi8>
      %c = tosa.conv2d %x, %w, %b, %z, %z {acc_type = i32, dilation = array<i64: 1, 1>,
        pad = array<i64: 0, 0, 0, 0>, stride = array<i64: 1, 1>}
        : (tensor<1x4x4x1xi8>, tensor<1x2x2x1xi8>, tensor<1xi32>, tensor<1xi8>, tensor<1xi8>) -> tensor<1x3x3x1xi32>
      %start = tosa.const_shape {values = dense<[0, 1, 1, 0]> : tensor<4xindex>} : () -> !tosa.shape<4>
      %size = tosa.const_shape {values = dense<[1, 2, 2, 1]> : tensor<4xindex>} : () -> !tosa.shape<4>
      %s = tosa.slice %x, %start, %size
        : (tensor<1x4x4x1xi8>, !tosa.shape<4>, !tosa.shape<4>) -> tensor<1x2x2x1xi8>
      %shape = tosa.const_shape {values = dense<[2, 8]> : tensor<2xindex>} : () -> !tosa.shape<2>
      %r = tosa.reshape %x, %shape : (tensor<1x4x4x1xi8>, !tosa.shape<2>) -> tensor<2x8xi8>
      return %c, %s, %r : tensor<1x3x3x1xi32>, tensor<1x2x2x1xi8>, tensor<2x8xi8>
    }
    """
    convolved, part, flat = run(text, tmp_path, x)
    wide = x[0, :, :, 0].astype(np.int32) - 1
    sums = wide[:-1, :-1] + wide[1:, :-1] + wide[:-1, 1:] + wide[1:, 1:]
    np.testing.assert_array_equal(convolved[0, :, :, 0], sums * (2 - 1) + 3)
    np.testing.assert_array_equal(part, x[:, 1:3, 1:3])
    np.testing.assert_array_equal(flat, x.reshape(2, 8))


LINALG = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{\n  {}\n  return %y : tensor<4xf32>\n}}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            LINALG.format("%y = tosa.fft2d %x : (tensor<4xf32>) -> tensor<4xf32>"),
            "program.mlir:2:3: error: tosa.fft2d is not supported",
        ),
        (
            "func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {\n"
            "  %y = linalg.exp ins(%x : tensor<?xf32>) outs(%x : tensor<?xf32>) -> tensor<?xf32>\n"
            "  return %y : tensor<?xf32>\n}",
            "program.mlir:1:1: error: tensor<?xf32> has sizes that are open",
        ),
        (
            LINALG.format("%y = linalg.conv_9d ins(%x : tensor<4xf32>) outs(%x : tensor<4xf32>) -> tensor<4xf32>"),
            'program.mlir:2:3: error: the operation "linalg.conv_9d" is not registered',
        ),
        (
            LINALG.format("%y = linalg.dot ins(%x : tensor<4xf32>) outs(%x : tensor<4xf32>) -> tensor<4xf32>"),
            "program.mlir:2:19: error: expects 3 operands, and has 2",
        ),
        (
            LINALG.format("%y = linalg.div_unsigned ins(%x, %x : tensor<4xf32>, tensor<4xf32>)"
                          " outs(%x : tensor<4xf32>) -> tensor<4xf32>"),
            "error: div_unsigned is not of elements of the type f32",
        ),
        (
            LINALG.format("%w = arith.constant dense_resource<nowhere> : tensor<4xf32>\n  %y = linalg.add"
                          " ins(%x, %w : tensor<4xf32>, tensor<4xf32>) outs(%x : tensor<4xf32>) -> tensor<4xf32>"),
            'error: the text does not have the resource "nowhere"',
        ),
        (
            "".join(
                LINALG.format("%y = linalg.exp ins(%x : tensor<4xf32>) outs(%x : tensor<4xf32>) -> tensor<4xf32>")
                .replace("@main", name)
                for name in ("@one", "@two")
            ),
            "program.mlir:1:1: error: the text has no function @main",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_is_refused_at_its_line(
    text: str, message: str, penstock: Command, tmp_path: Path
) -> None:
    (tmp_path / "program.mlir").write_text(text)
    finished = penstock("import", tmp_path / "program.mlir", "-o", tmp_path / "out.mlir")
    assert finished.status in (1, 3)
    assert message in finished.err
    assert "Traceback" not in finished.err


def test_the_command_imports_compiles_and_runs_a_program(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "program.mlir").write_text(
        LINALG.format("%y = tosa.add %x, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>")
    )
    np.save(tmp_path / "x.npy", np.arange(4, dtype=np.float32))
    finished = penstock("run", tmp_path / "program.mlir", "--input", tmp_path / "x.npy", "--output-dir", tmp_path)
    assert finished.status == 0, finished.err
    np.testing.assert_array_equal(np.load(tmp_path / "output_0.npy"), 2 * np.arange(4, dtype=np.float32))
