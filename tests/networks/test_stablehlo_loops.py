# SPDX-License-Identifier: Apache-2.0
"""`stablehlo.while`, as JAX prints `scan`, `fori_loop` and `while_loop`, against NumPy: a loop stays a loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sampling import sweep

import penstock
from penstock.dialects.diagnostics import UserError
from penstock.dialects.graph import GatherOp, LoopOp, ScatterNdOp, tensor_of
from penstock.passes.toolchain import find_compiler
from penstock.runtime.compiler import load_input

Array = NDArray[Any]

SCAN = """
module @jit_recurrence attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<STEPSx2x3xf32>, %arg1: tensor<3x4xf32>, %arg2: tensor<4x4xf32>)
      -> (tensor<2x4xf32> {jax.result_info = "[0]"}, tensor<STEPSx2x4xf32> {jax.result_info = "[1]"}) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<STEPSx2x4xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %2:6 = stablehlo.while(%iterArg = %arg0, %iterArg_0 = %arg1, %iterArg_1 = %arg2, %iterArg_2 = %c,
      %iterArg_3 = %0, %iterArg_4 = %1) : tensor<STEPSx2x3xf32>, tensor<3x4xf32>, tensor<4x4xf32>, tensor<i32>,
      tensor<2x4xf32>, tensor<STEPSx2x4xf32>
    cond {
      %c_6 = stablehlo.constant dense<STEPS> : tensor<i32>
      %3 = stablehlo.compare  LT, %iterArg_2, %c_6,  SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    } do {
      %c_6 = stablehlo.constant dense<0> : tensor<i32>
      %3 = stablehlo.compare  LT, %iterArg_2, %c_6,  SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %c_7 = stablehlo.constant dense<STEPS> : tensor<i32>
      %4 = stablehlo.add %iterArg_2, %c_7 : tensor<i32>
      %5 = stablehlo.select %3, %4, %iterArg_2 : tensor<i1>, tensor<i32>
      %6 = stablehlo.dynamic_slice %iterArg, %5, %c_6, %c_6, sizes = [1, 2, 3]
        : (tensor<STEPSx2x3xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x3xf32>
      %7 = stablehlo.reshape %6 : (tensor<1x2x3xf32>) -> tensor<2x3xf32>
      %8:2 = func.call @None(%iterArg_0, %iterArg_1, %iterArg_3, %7)
        : (tensor<3x4xf32>, tensor<4x4xf32>, tensor<2x4xf32>, tensor<2x3xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
      %9 = stablehlo.broadcast_in_dim %8#1, dims = [1, 2] : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
      %10 = stablehlo.dynamic_update_slice %iterArg_4, %9, %5, %c_6, %c_6
        : (tensor<STEPSx2x4xf32>, tensor<1x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<STEPSx2x4xf32>
      %c_9 = stablehlo.constant dense<1> : tensor<i32>
      %11 = stablehlo.add %iterArg_2, %c_9 : tensor<i32>
      stablehlo.return %iterArg, %iterArg_0, %iterArg_1, %11, %8#0, %10 : tensor<STEPSx2x3xf32>, tensor<3x4xf32>,
        tensor<4x4xf32>, tensor<i32>, tensor<2x4xf32>, tensor<STEPSx2x4xf32>
    }
    return %2#4, %2#5 : tensor<2x4xf32>, tensor<STEPSx2x4xf32>
  }
  func.func private @None(%arg0: tensor<3x4xf32>, %arg1: tensor<4x4xf32>, %arg2: tensor<2x4xf32>,
      %arg3: tensor<2x3xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) {
    %0 = stablehlo.dot_general %arg3, %arg0, contracting_dims = [1] x [0]
      : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
    %1 = stablehlo.dot_general %arg2, %arg1, contracting_dims = [1] x [0]
      : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
    %2 = stablehlo.add %0, %1 : tensor<2x4xf32>
    %3 = stablehlo.tanh %2 : tensor<2x4xf32>
    return %3, %3 : tensor<2x4xf32>, tensor<2x4xf32>
  }
}
"""

NEWTON = """
module @jit_newton {
  func.func public @main(%arg0: tensor<f32>, %arg1: tensor<f32>) -> (tensor<f32>, tensor<i32>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0:3 = stablehlo.while(%iterArg = %arg0, %iterArg_0 = %arg1, %iterArg_1 = %c)
      : tensor<f32>, tensor<f32>, tensor<i32>
    cond {
      %1 = stablehlo.multiply %iterArg, %iterArg : tensor<f32>
      %2 = stablehlo.subtract %1, %iterArg_0 : tensor<f32>
      %3 = stablehlo.abs %2 : tensor<f32>
      %cst = stablehlo.constant dense<1.000000e-03> : tensor<f32>
      %4 = stablehlo.compare  GT, %3, %cst,  FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %4 : tensor<i1>
    } do {
      %1 = stablehlo.divide %iterArg_0, %iterArg : tensor<f32>
      %2 = stablehlo.add %iterArg, %1 : tensor<f32>
      %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
      %3 = stablehlo.multiply %2, %cst : tensor<f32>
      %c_0 = stablehlo.constant dense<1> : tensor<i32>
      %4 = stablehlo.add %iterArg_1, %c_0 : tensor<i32>
      stablehlo.return %3, %iterArg_0, %4 : tensor<f32>, tensor<f32>, tensor<i32>
    }
    return %0#0, %0#2 : tensor<f32>, tensor<i32>
  }
}
"""

POWERS = """
module @jit_powers {
  func.func public @main(%arg0: tensor<2x2xf32>) -> tensor<2x2xf32> {
    %c = stablehlo.constant dense<START> : tensor<i32>
    %0:2 = stablehlo.while(%iterArg = %c, %iterArg_0 = %arg0) : tensor<i32>, tensor<2x2xf32>
    cond {
      %c_1 = stablehlo.constant dense<9> : tensor<i32>
      %1 = stablehlo.compare  LT, %iterArg, %c_1,  SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %c_1 = stablehlo.constant dense<0> : tensor<i32>
      %1:2 = stablehlo.while(%iterArg_2 = %c_1, %iterArg_3 = %iterArg_0) : tensor<i32>, tensor<2x2xf32>
      cond {
        %2 = stablehlo.compare  LT, %iterArg_2, %iterArg,  SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %2 : tensor<i1>
      } do {
        %cst = stablehlo.constant dense<0.5> : tensor<2x2xf32>
        %2 = stablehlo.multiply %iterArg_3, %cst : tensor<2x2xf32>
        %c_4 = stablehlo.constant dense<1> : tensor<i32>
        %3 = stablehlo.add %iterArg_2, %c_4 : tensor<i32>
        %4 = stablehlo.add %2, %arg0 : tensor<2x2xf32>
        stablehlo.return %3, %4 : tensor<i32>, tensor<2x2xf32>
      }
      %c_5 = stablehlo.constant dense<3> : tensor<i32>
      %5 = stablehlo.add %iterArg, %c_5 : tensor<i32>
      stablehlo.return %5, %1#1 : tensor<i32>, tensor<2x2xf32>
    }
    return %0#1 : tensor<2x2xf32>
  }
}
"""


def run(text: str, arguments: Sequence[Array], folder: Path) -> tuple[list[LoopOp], list[Array]]:
    """The loops that the graph has, and what both C and the interpreter of graphs compute."""
    path = folder / "function.mlir"
    path.write_text(text)
    loops = [op for op in load_input(path).module.walk() if isinstance(op, LoopOp)]
    results = [penstock.compile(path, backend=backend).run(arguments) for backend in _backends()]
    for found in results[1:]:
        for one, other in zip(results[0], found, strict=True):
            np.testing.assert_allclose(one, other, 1e-5, 1e-6)
    return loops, results[0]


def _backends() -> list[Any]:
    try:
        find_compiler()
    except UserError:
        return ["interpreter"]
    return ["interpreter", "native"]


def numbers(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("steps", [1, 5, 100])
def test_a_scan_is_a_loop_of_so_many_trips(steps: int, tmp_path: Path) -> None:
    x, w, u = numbers(steps, 2, 3), numbers(3, 4), numbers(4, 4)
    (loop,), (last, all_) = run(SCAN.replace("STEPS", str(steps)), [x, w, u], tmp_path)
    assert loop.most == steps
    state, states = np.zeros((2, 4), np.float32), list[Array]()
    for now in x:
        state = np.tanh(now @ w + state @ u)
        states.append(state)
    np.testing.assert_allclose(last, state, 1e-4, 1e-5)
    np.testing.assert_allclose(all_, np.stack(states), 1e-4, 1e-5)


@pytest.mark.parametrize(("start", "square"), [(3.0, 2.0), (1.0, 1.0)])
def test_a_loop_may_be_as_long_as_its_data_say(start: float, square: float, tmp_path: Path) -> None:
    given = [np.asarray(value, np.float32) for value in (start, square)]
    (loop,), (root, count) = run(NEWTON, given, tmp_path)
    assert loop.condition is not None
    assert loop.most is None
    value, steps = np.float32(start), 0
    while abs(value * value - np.float32(square)) > np.float32(1e-3):
        value, steps = (value + np.float32(square) / value) * np.float32(0.5), steps + 1
    np.testing.assert_allclose(root, value, 1e-6)
    assert int(count) == steps


@pytest.mark.parametrize("start", [0, 7, 9])
def test_a_loop_in_a_loop_is_as_long_as_the_outer_one_says(start: int, tmp_path: Path) -> None:
    x = numbers(2, 2)
    loops, (found,) = run(POWERS.replace("START", str(start)), [x], tmp_path)
    assert [loop.is_counted for loop in loops] == ([True, False] if start < 9 else [])
    expected = x
    for outer in range(start, 9, 3):
        for _ in range(outer):
            expected = expected * np.float32(0.5) + x
    np.testing.assert_allclose(found, expected, 1e-5)


LINES = """
module @jit_lines {
  func.func public @main(%arg0: tensor<ROWSx3xf32>, %arg1: tensor<3xf32>, %arg2: tensor<OUTx3xf32>)
      -> (tensor<3xf32>, tensor<OUTx3xf32>, tensor<OUTx3xf32>, tensor<1x3xf32>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %zeros = stablehlo.constant dense<0.0> : tensor<1x3xf32>
    %0:5 = stablehlo.while(%i = %c, %state = %arg1, %all = %arg2, %old = %arg2, %line = %zeros)
      : tensor<i32>, tensor<3xf32>, tensor<OUTx3xf32>, tensor<OUTx3xf32>, tensor<1x3xf32>
    cond {
      %most = stablehlo.constant dense<TRIPS> : tensor<i32>
      %1 = stablehlo.compare  LT, %i, %most,  SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %by = stablehlo.constant dense<BY> : tensor<i32>
      %from = stablehlo.constant dense<FROM> : tensor<i32>
      %1 = stablehlo.multiply %i, %by : tensor<i32>
      %2 = stablehlo.add %1, %from : tensor<i32>
      %to = stablehlo.constant dense<TO> : tensor<i32>
      %4 = stablehlo.add %1, %to : tensor<i32>
      %5 = stablehlo.dynamic_slice %arg0, %2, %zero, sizes = [1, 3]
        : (tensor<ROWSx3xf32>, tensor<i32>, tensor<i32>) -> tensor<1x3xf32>
      %6 = stablehlo.reshape %5 : (tensor<1x3xf32>) -> tensor<3xf32>
      INNER
      %half = stablehlo.constant dense<0.5> : tensor<3xf32>
      %7 = stablehlo.multiply %state, %half : tensor<3xf32>
      %8 = stablehlo.add %7, LINE : tensor<3xf32>
      %9 = stablehlo.reshape %8 : (tensor<3xf32>) -> tensor<1x3xf32>
      %10 = stablehlo.dynamic_update_slice %all, %9, %4, %zero
        : (tensor<OUTx3xf32>, tensor<1x3xf32>, tensor<i32>, tensor<i32>) -> tensor<OUTx3xf32>
      %11 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %11, %8, %10, GIVEN_ON
        : tensor<i32>, tensor<3xf32>, tensor<OUTx3xf32>, tensor<OUTx3xf32>, tensor<1x3xf32>
    }
    return %0#1, %0#2, %0#3, %0#4 : tensor<3xf32>, tensor<OUTx3xf32>, tensor<OUTx3xf32>, tensor<1x3xf32>
  }
}
"""

INNER = """
      %q:2 = stablehlo.while(%k = %zero, %x = %arg0) : tensor<i32>, tensor<ROWSx3xf32>
      cond {
        %two = stablehlo.constant dense<2> : tensor<i32>
        %12 = stablehlo.compare  LT, %k, %two,  SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %12 : tensor<i1>
      } do {
        %unit = stablehlo.constant dense<1> : tensor<i32>
        %12 = stablehlo.add %k, %unit : tensor<i32>
        %13 = stablehlo.add %x, %x : tensor<ROWSx3xf32>
        stablehlo.return %12, %13 : tensor<i32>, tensor<ROWSx3xf32>
      }
      %14 = stablehlo.dynamic_slice %q#1, %2, %zero, sizes = [1, 3]
        : (tensor<ROWSx3xf32>, tensor<i32>, tensor<i32>) -> tensor<1x3xf32>
      %15 = stablehlo.reshape %14 : (tensor<1x3xf32>) -> tensor<3xf32>
      %16 = stablehlo.add %15, %6 : tensor<3xf32>
"""
"""What a loop inside gives is looked up as well."""

AGAIN = {
    "read": """
module @jit_again {
  func.func public @main(%arg0: tensor<2x8xf32>) -> tensor<8xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %state = stablehlo.constant dense<0.0> : tensor<8xf32>
    %0:2 = stablehlo.while(%i = %c, %sum = %state) : tensor<i32>, tensor<8xf32>
    cond {
      %most = stablehlo.constant dense<TRIPS> : tensor<i32>
      %1 = stablehlo.compare  LT, %i, %most,  SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %two = stablehlo.constant dense<2> : tensor<i32>
      %1 = stablehlo.remainder %i, %two : tensor<i32>
      %2 = stablehlo.dynamic_slice %arg0, %1, %zero, sizes = [1, 8]
        : (tensor<2x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
      %3 = stablehlo.reshape %2 : (tensor<1x8xf32>) -> tensor<8xf32>
      %4 = stablehlo.add %sum, %3 : tensor<8xf32>
      %5 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %5, %4 : tensor<i32>, tensor<8xf32>
    }
    return %0#1 : tensor<8xf32>
  }
}
""",
    "written": """
module @jit_again {
  func.func public @main(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %first = stablehlo.slice %arg0 [0:1, 0:8] : (tensor<2x8xf32>) -> tensor<1x8xf32>
    %0:3 = stablehlo.while(%i = %c, %line = %first, %all = %arg0) : tensor<i32>, tensor<1x8xf32>, tensor<2x8xf32>
    cond {
      %most = stablehlo.constant dense<TRIPS> : tensor<i32>
      %1 = stablehlo.compare  LT, %i, %most,  SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %two = stablehlo.constant dense<2> : tensor<i32>
      %unit = stablehlo.constant dense<1.0> : tensor<1x8xf32>
      %1 = stablehlo.remainder %i, %two : tensor<i32>
      %2 = stablehlo.dynamic_update_slice %all, %line, %1, %zero
        : (tensor<2x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<2x8xf32>
      %3 = stablehlo.add %line, %unit : tensor<1x8xf32>
      %4 = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %4, %3, %2 : tensor<i32>, tensor<1x8xf32>, tensor<2x8xf32>
    }
    return %0#2 : tensor<2x8xf32>
  }
}
""",
}


@pytest.mark.parametrize("seed", sweep(range(60), lambda seed: seed % 12 == 0))
def test_lines_in_any_order_are_lines_of_the_loop(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    trips, rows, out = random.randint(2, 6), random.randint(2, 7), random.randint(2, 7)
    by, first, to = random.choice([-2, -1, -1, 0, 1, 1, 2]), random.randint(-1, 6), random.randint(-1, 6)
    if seed % 3 == 0:
        rows = out = trips
        by, first, to = random.choice([(1, 0, 0), (-1, trips - 1, trips - 1)])
    # The old buffer is handed on, a line is carried as it is, what is looked up is made inside: none, each, all.
    gives_old, gives_line, is_inner = (seed // 12 in (shape, 4) for shape in (1, 2, 3))
    text = LINES.replace("GIVEN_ON", f"{'%all' if gives_old else '%old'}, {'%5' if gives_line else '%line'}")
    text = text.replace("INNER", INNER if is_inner else "").replace("LINE", "%16" if is_inner else "%6")
    for name, number in {"ROWS": rows, "OUT": out, "TRIPS": trips, "BY": by, "FROM": first, "TO": to}.items():
        text = text.replace(name, str(number))
    rng = np.random.default_rng(seed)
    xs, state, every = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ([rows, 3], [3], [out, 3]))
    (loop, *_), found = run(text, [xs, state, every], tmp_path)
    state, every, old, line = state.copy(), every.copy(), every, np.zeros([1, 3], np.float32)
    reads = [int(np.clip(i * by + first, 0, rows - 1)) for i in range(trips)]
    writes = [int(np.clip(i * by + to, 0, out - 1)) for i in range(trips)]
    for read, write in zip(reads, writes, strict=True):
        state = state * np.float32(0.5) + xs[read] * (5 if is_inner else 1)
        old, line = every.copy() if gives_old else old, xs[None, read] if gives_line else line
        every[write] = state
    for ours, theirs in zip(found, (state, every, old, line), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    are_lines, are_stacked = len(set(reads)) == trips, len(set(writes)) == trips and not gives_old
    assert len(loop.slices) == are_lines
    assert sum(isinstance(op, GatherOp) for op in loop.walk()) == (not are_lines) + is_inner
    assert sum(isinstance(op, ScatterNdOp) for op in loop.walk()) == (not are_stacked)
    if seed % 3 == 0 and by == 1 and not (gives_old or is_inner):
        assert not any(isinstance(op, GatherOp | ScatterNdOp) for op in loop.parent_op().walk())  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize("what", ["read", "written"])
def test_lines_that_come_again_are_not_there_once_for_each_iteration(what: str, tmp_path: Path) -> None:
    path, trips = tmp_path / "again.mlir", 500
    path.write_text(AGAIN[what].replace("TRIPS", str(trips)))
    x = np.random.default_rng(0).integers(-4, 5, [2, 8]).astype(np.float32)
    program = penstock.compile(path, backend="interpreter")
    (found,) = program.run([x])
    expected = x.sum(0) * (trips // 2) if what == "read" else np.stack([x[0] + trips - 2, x[0] + trips - 1])
    np.testing.assert_array_equal(found, expected)
    most = max(tensor_of(value).element_count() for op in load_input(path).module.walk() for value in op.results)
    assert most <= x.size
