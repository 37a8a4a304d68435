# SPDX-License-Identifier: Apache-2.0
"""The kernel language: what each construct computes, against NumPy, at shapes of which the last divides nothing."""

# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# The references are lambdas of as many arrays as their kernels take.

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sampling import every_other
from xdsl.dialects.builtin import FileLineColLoc
from xdsl.dialects.func import FuncOp

import penstock
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError, render_location
from penstock.lowering.from_kernel.lower import KernelFile
from penstock.lowering.from_text import SourceText
from penstock.runtime.compiler import LoadedProgram
from penstock.runtime.engine import Backend, Engine

Array = NDArray[Any]
SHAPES = ({"N": 8, "M": 16, "K": 32}, {"N": 16, "M": 4, "K": 8}, {"N": 5, "M": 7, "K": 13})
GELU = "function gelu(x) = 0.5 * x * (1 + erf(x / sqrt(2)))\n"


@dataclass(frozen=True)
class Case:
    """A kernel, and the same in NumPy."""

    name: str
    text: str
    reference: Callable[..., Any]


def erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def softmax(x: Array) -> Array:
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def above_diagonal(x: Array) -> Array:
    rows, columns = np.indices(x.shape)
    return np.where((rows + 1 < columns) | (rows == x.shape[1]), x, -1)


def repeated(x: Array) -> Array:
    rows = np.arange(2 * len(x))[:, None]
    return x.repeat(2, 0).repeat(3, 1) + rows % 2 - rows


def halo(x: Array, w: Array) -> Array:
    padded = np.pad(x, 1)
    parts = (padded[r : r + x.shape[0], q : q + x.shape[1]] * w[r, q] for r in range(3) for q in range(3))
    return sum(parts, np.zeros_like(x))


def narrow_sum(x: Array) -> Array:
    return x.astype(np.float32).sum(1).astype(np.float16)


def looking_back_twice(x: Array) -> Array:
    y = [x[0], x[1]]
    for row in x[2:]:
        y.append(y[-1] - y[-2] * 0.5 + row)
    return np.stack(y)


def recurrent(x: Array, w: Array) -> Array:
    y = [np.zeros_like(x[0])]
    for row in x:
        y.append(np.tanh(y[-1] @ w + row))
    return np.stack(y[1:])


def paths(x: Array) -> Array:
    y = [np.zeros_like(x[0])]
    for row in x:
        y.append(0.5 * (np.concatenate([[0], y[-1][:-1]]) + y[-1]) + row)
    return np.stack(y[1:])


CASES = [
    Case(
        "softmax",
        """kernel f(f32 x[N, M]) -> (f32 y[N, M]) {
            largest[i] = max(j, x[i, j])
            power[i, j] = exp(x[i, j] - largest[i])
            y[i, j] = power[i, j] / sum(k, power[i, k])
        }""",
        softmax,
    ),
    Case("transposed", "kernel f(f32 x[N, M]) -> (f32 y[M, N]) {\n y[j, i] = x[i, j] \n}", lambda x: x.T),
    Case("diagonal", "kernel f(f32 x[N, N]) -> (f32 y[N]) {\n y[i] = x[i, i] \n}", np.diag),
    Case("reversed", "kernel f(f32 x[N]) -> (f32 y[N]) {\n y[i] = x[N - 1 - i] \n}", lambda x: x[::-1]),
    Case(
        "function of a product",
        GELU + "kernel f(f32 a[N, K], f32 b[K, M], f32 c[M]) -> (f32 y[N, M]) {\n"
        " y[i, j] = gelu(sum(k, a[i, k] * b[k, j]) + c[j]) \n}",
        lambda a, b, c: 0.5 * (a @ b + c) * (1 + erf((a @ b + c) / np.sqrt(2))),
    ),
    Case(
        "halo",
        "kernel f(f32 x[N, M], f32 w[3, 3]) -> (f32 y[N, M]) {\n"
        " y[i, j] = sum(r, q, x[i + r - 1, j + q - 1 else 0] * w[r, q]) \n}",
        halo,
    ),
    Case(
        "window",
        "kernel f(f32 x[N, M]) -> (f32 y[(N - 2) // 2 + 1, M]) {\n y[i, j] = max(r in 0:2, x[2 * i + r, j]) \n}",
        lambda x: np.maximum(x[: len(x) // 2 * 2 : 2], x[1 : len(x) // 2 * 2 : 2]),
    ),
    Case(
        "sum of an index",
        "kernel f(f32 x[N]) -> (f32 y) {\n y = sum(i, x[i] * cast(f32, i)) \n}",
        lambda x: x @ np.arange(len(x)),
    ),
    Case(
        "comparison of indices",
        "kernel f(f32 x[N, M]) -> (f32 y[N, M]) {\n y[i, j] = select(i + 1 < j or i == M, x[i, j], -1) \n}",
        lambda x: np.where(
            (np.arange(len(x))[:, None] + 1 < np.arange(x.shape[1])) | (np.arange(len(x))[:, None] == x.shape[1]), x, -1
        ),
    ),
    Case(
        "quotients and remainders of indices",
        "kernel f(f32 x[N, M]) -> (f32 y[2 * N, 3 * M]) {\n"
        " y[i, j] = x[i // 2, j // 3] + cast(f32, i % 2) - cast(f32, i) \n}",
        repeated,
    ),
    Case("argmax", "kernel f(f32 x[N, M]) -> (i64 y[N]) {\n y[i] = argmax(j, x[i, j]) \n}", lambda x: x.argmax(1)),
    Case("argmin", "kernel f(f32 x[N, M]) -> (i64 y[M]) {\n y[j] = argmin(i, x[i, j]) \n}", lambda x: x.argmin(0)),
    Case(
        "reducer",
        "reducer log_add(a, b) from -inf = max(a, b) + log1p(exp(-abs(a - b)))\n"
        "kernel f(f32 x[N, M]) -> (f32 y[N]) {\n y[i] = log_add(j, x[i, j]) \n}",
        lambda x: np.log(np.exp(x).sum(1)),
    ),
    Case(
        "any", "kernel f(f32 x[N, M]) -> (bool y[N]) {\n y[i] = any(j, x[i, j] > 1.4) \n}", lambda x: (x > 1.4).any(1)
    ),
    Case(
        "all",
        "kernel f(f32 x[N, M]) -> (bool y[N]) {\n y[i] = all(j, not x[i, j] > 1.4) \n}",
        lambda x: (x <= 1.4).all(1),
    ),
    Case("product", "kernel f(f32 x[N, M]) -> (f32 y[M]) {\n y[j] = prod(i, x[i, j]) \n}", lambda x: x.prod(0)),
    Case("f16 sums", "kernel f(f16 x[N, M]) -> (f16 y[N]) {\n y[i] = sum(j, x[i, j]) \n}", narrow_sum),
    Case(
        "integers",
        "kernel f(i32 x[N], i32 z[N]) -> (i32 y[N]) {\n"
        " y[i] = (x[i] - 9) // z[i] + (x[i] - 9) % z[i] + shr(x[i], 1) \n}",
        lambda x, z: (x - 9) // z + (x - 9) % z + (x >> 1),
    ),
    Case(
        "a sum that is added",
        "kernel f(f32 a[N, K], f32 b[K, M], f32 c[M]) -> (f32 y[N, M]) {\n"
        " y[i, j] = c[j]\n y[i, j] += a[i, k] * b[k, j] \n}",
        lambda a, b, c: a @ b + c,
    ),
    Case(
        "whole tensors",
        """kernel f(f32 x[N, M]) -> (f32 y[N, M]) {
            for i in 0:N {
                f32 row[M] = x[i, :]
                row = exp(row - max(row))
                y[i, :] = row / sum(row)
            }
        }""",
        softmax,
    ),
    Case(
        "parts of a result",
        "kernel f(f32 a[N, M], f32 b[K, M]) -> (f32 y[N + K, M]) {\n"
        " y[i in 0:N, j] = a[i, j]\n y[N + i, j] = b[i, j] \n}",
        lambda a, b: np.concatenate([a, b]),
    ),
    Case(
        "tiles",
        """kernel f[B = 4](f32 a[N, K], f32 b[K, M]) -> (f32 c[N, M]) {
            grid i in 0:N:B, j in 0:M:B {
                f32 acc[B, B] = 0
                for k in 0:K:B {
                    acc += dot(a[i:+B, k:+B else 0], b[k:+B, j:+B else 0])
                }
                c[i:+B, j:+B] = acc
            }
        }""",
        lambda a, b: a @ b,
    ),
    Case(
        "a loop that carries",
        "kernel f(f32 x[N, M]) -> (f32 y[N, M]) {\n"
        " f32 t[M] = 0\n for n in 0:N {\n t[j] += x[n, j]\n y[n, j] = t[j] \n}\n}",
        lambda x: np.cumsum(x, 0),
    ),
    Case(
        "scan",
        "kernel f(f32 x[N, M]) -> (f32 y[N, M]) {\n y[t, j] = y[t - 1, j else 0] + x[t, j] \n}",
        lambda x: np.cumsum(x, 0),
    ),
    Case(
        "scan of one dim",
        "kernel f(f32 x[N]) -> (f32 y[N]) {\n y[t] = max(y[t - 1 else -inf], sin(7 * x[t])) \n}",
        lambda x: np.maximum.accumulate(np.sin(7 * x)),
    ),
    Case(
        "scan backwards",
        "kernel f(f32 x[N, M]) -> (f32 y[N, M]) {\n y[i, t] = y[i, t + 1 else 0] + x[i, t] * cast(f32, t) \n}",
        lambda x: np.cumsum((x * np.arange(x.shape[1]))[:, ::-1], 1)[:, ::-1],
    ),
    Case(
        "scan from rows that are stored",
        """kernel f(f32 x[N, M]) -> (f32 y[N, M]) {
            y[0, j] = x[0, j]
            y[1, j] = x[1, j]
            y[t in 2:N, j] = y[t - 1, j] - 0.5 * y[t - 2, j] + x[t, j]
        }""",
        looking_back_twice,
    ),
    Case(
        "scan with a product of matrices",
        "kernel f(f32 x[N, M], f32 w[M, M]) -> (f32 y[N, M]) {\n"
        " y[t, j] = tanh(sum(k, y[t - 1, k else 0] * w[k, j]) + x[t, j]) \n}",
        recurrent,
    ),
    Case(
        "scan of neighbours",
        "kernel f(f32 x[N, M]) -> (f32 y[N, M]) {\n"
        " y[t, j] = 0.5 * (y[t - 1, j - 1 else 0] + y[t - 1, j else 0]) + x[t, j] \n}",
        paths,
    ),
    Case(
        "scans in a loop",
        "kernel f(f32 x[N, M]) -> (f32 y[N, M]) {\n for n in 0:N {\n y[n, t] = y[n, t - 1 else 1] * x[n, t] \n}\n}",
        lambda x: np.cumprod(x, 1),
    ),
    Case(
        "scans in a grid",
        "kernel f(f32 x[N, M]) -> (f32 y[N, M]) {\n"
        " grid n in 0:N {\n y[n, t] = y[n, t - 1 else 0] + x[n, t]\n}\n"
        " grid n in 0:N {\n y[n, :] += x[n, :] \n}\n}",
        lambda x: np.cumsum(x, 1) + x,
    ),
    Case(
        "use of what an iteration has stored",
        """kernel f(f32 x[N, M]) -> (f32 y[N, M], f32 z[N]) {
            for n in 0:N {
                y[n, 0] = 2 * x[n, 0]
                y[n, t in 1:M] = y[n, t - 1] + x[n, t]
                z[n] = y[n, 0] + 1
                z[n] += x[n, 0]
            }
        }""",
        lambda x: (np.cumsum(x, 1) + x[:, :1], 3 * x[:, 0] + 1),
    ),
    Case(
        "branch on a constant",
        "kernel f[A = 1](f32 x[N]) -> (f32 y[N]) {\n if A == 1 and N > 2 {\n y = x + 1 \n} else {\n y = x \n}\n}",
        lambda x: x + 1,
    ),
    Case(
        "branch that splits a loop",
        """kernel f(f32 x[N, M]) -> (f32 y[N, M]) {
            for i in 0:N {
                if i == 0 {
                    y[i, :] = x[i, :]
                } else {
                    y[i, :] = x[i, :] - x[i - 1, :]
                }
            }
        }""",
        lambda x: np.concatenate([x[:1], np.diff(x, axis=0)]),
    ),
    Case(
        "branch at the last tile",
        """kernel f[B = 4](f32 x[N, M]) -> (f32 y[N, M]) {
            grid i in 0:N:B {
                if i + B > N {
                    y[i:+B, :] = 3 - x[i:+B, : else 0]
                } else {
                    y[i:+B, :] = x[i:+B, :]
                }
            }
        }""",
        lambda x: np.where(np.arange(len(x))[:, None] >= len(x) // 4 * 4, 3 - x, x),
    ),
    Case(
        "branch on two loop variables",
        """kernel f(f32 x[N, M]) -> (f32 y[N, M]) {
            y = 1
            for i in 0:N, j in 0:M {
                if j <= i {
                    y[i, j] = x[i, j] * x[i, j]
                }
            }
        }""",
        lambda x: np.where(np.arange(x.shape[1]) <= np.arange(len(x))[:, None], x * x, 1),
    ),
    Case(
        "branch that alternates",
        """kernel f(f32 x[N, M]) -> (f32 y[N, M], f32 z[M]) {
            y = x
            z = 0
            for i in 0:N, k in 0:1 {
                if (i + k) % 3 == 1 {
                    y[i + k, :] = x[i + k, :] + 1
                    z += x[i + k, :]
                }
            }
        }""",
        lambda x: (np.where(np.arange(len(x))[:, None] % 3 == 1, x + 1, x), x[1::3].sum(0)),
    ),
    Case(
        "branch on an element",
        """kernel f(f32 x[N, M]) -> (f32 y[N, M]) {
            y = x
            for i in 0:N {
                if x[i, 0] > 1 {
                    t = 2 * x[i, :]
                    t = t + x[i, 0]
                    store(y[i, :], t)
                } else {
                    grid j in 0:M {
                        y[i, j] = x[i, j] + x[0, j]
                    }
                }
            }
        }""",
        lambda x: np.where(x[:, :1] > 1, 2 * x + x[:, :1], x + x[0]),
    ),
    Case(
        "strides on the left",
        "kernel f(f32 x[N, M], f32 z[N, M]) -> (f32 y[2 * N, M]) {\n"
        " y[2 * i, j] = x[i, j]\n y[2 * i + 1, j] = x[i, j] + z[i, j] \n}",
        lambda x, z: np.stack([x, x + z], 1).reshape(-1, x.shape[1]),
    ),
    Case(
        "strides on the left in a loop",
        """kernel f(f32 x[N, M], f32 z[N, M]) -> (f32 y[N, 3 * M + 1]) {
            y[i, 0] = 1
            for n in 0:3 {
                y[i, 3 * j + n + 1] = x[i, j] + cast(f32, n) * z[i, j]
            }
            y[i, 3 * j + 1] += x[i, j]
        }""",
        lambda x, z: np.concatenate(
            [
                np.ones((len(x), 1)),
                (x[:, :, None] + z[:, :, None] * np.arange(3) + x[:, :, None] * [1, 0, 0]).reshape(len(x), -1),
            ],
            1,
        ),
    ),
    Case(
        "sums into tiles",
        """kernel f[B = 4](f32 x[N, M], f32 z[N, M]) -> (f32 y[N, M]) {
            y = z
            for i in 0:N:B {
                y[i:+B, :] += x[i:+B, : else 0]
            }
        }""",
        lambda x, z: x + z,
    ),
    Case(
        "sums of products into tiles",
        """kernel f[B = 4](f32 x[N, K], f32 z[K, M]) -> (f32 y[N, M]) {
            y = 1
            for i in 0:N:B, k in 0:K:B {
                y[i:+B, :] += dot(x[i:+B, k:+B else 0], z[k:+B, : else 0])
            }
        }""",
        lambda x, z: 1 + x @ z,
    ),
    Case(
        "attention",
        """kernel f[B = 4](f32 q[K, N], f32 k[K, N], f32 v[K, N]) -> (f32 o[K, N]) {
            grid m in 0:K:B {
                f32 largest[B] = -inf
                f32 total[B] = 0
                f32 acc[B, N] = 0
                for n in 0:K:B {
                    s[r in 0:B, c in 0:B] = sum(d, q[m + r, d else 0] * k[n + c, d else 0]) / sqrt(N)
                    s[r, c] = select(n + c < K, s[r, c], -inf)
                    highest[r] = max(largest[r], max(c, s[r, c]))
                    power[r, c] = exp(s[r, c] - highest[r])
                    factor[r] = exp(largest[r] - highest[r])
                    total[r] = total[r] * factor[r]
                    total[r] += sum(c, power[r, c])
                    acc[r, d] = acc[r, d] * factor[r]
                    acc[r, d] += sum(c, power[r, c] * v[n + c, d else 0])
                    largest = highest
                }
                o[m + r, d] = acc[r, d] / total[r]
            }
        }""",
        lambda q, k, v: softmax(q @ k.T / np.sqrt(q.shape[1])) @ v,
    ),
]
ATTENTION = """\
kernel attention[BQ = 16, BK = 16](f16 q[H, D, S], f16 k[H, S, D], f16 v[H, D, S]) -> (f32 o[H, D, S]) {
    grid h in 0:H, m in 0:S:BQ {
        f32 largest[BQ] = -60000
        f32 total[BQ] = 0
        f32 acc[D, BQ] = 0
        for n in 0:S:BK {
            s[c in 0:BK, r in 0:BQ] = sum(d, cast(f32, k[h, n + c, d]) * cast(f32, q[h, d, m + r]))
            s[c, r] = s[c, r] * (1 / sqrt(D))
            highest[r] = max(largest[r], max(c, s[c, r]))
            factor[r] = exp(largest[r] - highest[r])
            power[c, r] = exp(s[c, r] - highest[r])
            total[r] = total[r] * factor[r]
            total[r] += sum(c, power[c, r])
            narrow[c, r] = cast(f16, power[c, r])
            acc[d, r] = acc[d, r] * factor[r]
            acc[d, r] += sum(c, cast(f32, v[h, d, n + c]) * cast(f32, narrow[c, r]))
            largest = highest
        }
        share[r] = 1 / total[r]
        o[h, d, m + r] = acc[d, r] * share[r]
    }
}
"""
"""In the form that the machine's intrinsics take: f16 into products, and what belongs to a query innermost."""
ON_MACHINES = [
    "function of a product",
    "halo",
    "tiles",
    "a sum that is added",
    "scan",
    "scan backwards",
    "scans in a loop",
    "a loop that carries",
    "branch at the last tile",
    "branch that alternates",
    "strides on the left",
    "sums into tiles",
    "sums of products into tiles",
]


def arguments(engine: Engine) -> list[Array]:
    """What a kernel is called on."""
    rng = np.random.default_rng(7)
    found: list[Array] = []
    for spec in engine.signature.inputs:
        if spec.dtype.kind == "f":
            found.append(rng.uniform(0.5, 1.5, spec.shape).astype(spec.dtype))
        else:
            found.append(rng.integers(1, 20, spec.shape).astype(spec.dtype))
    return found


def compare(case: Case, engine: Engine) -> None:
    given = arguments(engine)
    wide = [each.astype(np.float64) if each.dtype == np.float32 else each for each in given]
    expected = case.reference(*wide)
    for ours, theirs in zip(engine.run(given), expected if isinstance(expected, tuple) else (expected,), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3 if ours.dtype == np.float16 else 1e-5, atol=1e-5)


def sizes_of(case: Case, shape: dict[str, int]) -> dict[str, int]:
    head = case.text[: case.text.index("->")]
    return {name: size for name, size in shape.items() if f"[{name}" in head or f", {name}]" in head}


def tensor_engine(text: str, sizes: dict[str, int]) -> Engine:
    """What interprets a kernel as it is lowered."""
    file = KernelFile(SourceText("test.pk", text))
    program = LoadedProgram(file.module(file.kernel(), sizes), make_context(), Path("test.pk"))
    return Engine(program.module, program.ctx, backend="interpreter")


@pytest.mark.parametrize("shape", SHAPES, ids=["32", "8", "odd"])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_kernel_computes_what_it_says(case: Case, shape: dict[str, int]) -> None:
    compare(case, tensor_engine(case.text, sizes_of(case, shape)))


@pytest.mark.parametrize("case", every_other(CASES), ids=lambda case: case.name)
def test_generated_c_computes_it_too(case: Case) -> None:
    compare(case, penstock.kernel(case.text).engine(sizes_of(case, SHAPES[-1])))


@pytest.mark.parametrize("machine", ["gemmini-fp32", "rapid-core-like"])
@pytest.mark.parametrize(
    "case", every_other(case for case in CASES if case.name in ON_MACHINES), ids=lambda case: case.name
)
def test_a_machine_computes_it_too(case: Case, machine: str) -> None:
    on_machine = penstock.kernel(case.text).on(machine, "interpreter")
    compare(case, on_machine.engine(sizes_of(case, SHAPES[-1])))


def test_tiles_get_slots_and_tokens_without_a_word_about_them() -> None:
    case = next(case for case in CASES if case.name == "tiles")
    text = penstock.kernel(case.text, machine="gemmini-fp32").mlir("accel", N=64, M=64, K=64, B=16)
    assert "mem.ring 2" in text
    assert "accel.exec @gemm" in text
    assert "device = @host" not in text


def test_tiles_that_pass_the_end_stay_on_the_machine() -> None:
    case = next(case for case in CASES if case.name == "tiles")
    text = penstock.kernel(case.text, machine="gemmini-fp32").mlir("tensor", **SHAPES[-1])
    assert "tensor.pad" in text
    assert "device = @gemmini_fp32" in text
    assert "device = @host" not in text


def test_every_op_says_where_it_comes_from() -> None:
    text = "kernel f(f32 x[N, M]) -> (f32 y[N]) {\n    y[i] = sum(j, exp(x[i, j]))\n}"
    file = KernelFile(SourceText("k.pk", text))
    function = file.function(file.kernel(), {"N": 4, "M": 5})
    places = {
        op.name: render_location(op.location) for op in function.walk() if isinstance(op.location, FileLineColLoc)
    }
    assert isinstance(function, FuncOp)
    assert places["math.exp"] == "k.pk:2:19"
    assert places["linalg.generic"] == "k.pk:2:12"
    assert places["func.func"] == "k.pk:1:1"


def test_a_kernel_is_called_on_arrays_of_any_size() -> None:
    double = penstock.kernel(
        "kernel f[A = 2](f32 x[N]) -> (f32 y[N], f32 z) {\n y[i] = A * x[i]\n z = sum(i, x[i]) \n}"
    )
    for size in (3, 5):
        x = np.arange(size, dtype=np.float32)
        doubled, total = double(x)
        np.testing.assert_array_equal(doubled, 2 * x)
        assert total == x.sum()
    np.testing.assert_array_equal(double(x, A=3)[0], 3 * x)


def test_the_shapes_of_arguments_must_agree() -> None:
    add = penstock.kernel("kernel f(f32 x[N], f32 z[N]) -> (f32 y[N]) {\n y = x + z \n}")
    with pytest.raises(UserError, match='"N" is 3, and 4 by the argument "z"'):
        add(np.zeros(3, np.float32), np.zeros(4, np.float32))


@pytest.mark.parametrize("backend", ["native", "interpreter"])
def test_results_are_arrays_of_their_own_and_arguments_may_be_one_array(backend: Backend) -> None:
    both = penstock.kernel(
        "kernel f(f32 x[N], f32 z[N]) -> (f32 y[N], f32 w[N]) {\n y = x\n w = x + z \n}", backend=backend
    )
    x = np.arange(4, dtype=np.float32)
    y, w = both(x, x)
    assert not np.shares_memory(y, x)
    assert not np.shares_memory(y, w)
    np.testing.assert_array_equal(y, np.arange(4))
    np.testing.assert_array_equal(w, 2 * np.arange(4))
    np.testing.assert_array_equal(x, np.arange(4))


def test_attention_runs_on_a_machine_as_a_whole() -> None:
    attention = penstock.kernel(ATTENTION).on("rapid-core-like", "interpreter")
    assert "device = @host" not in attention.mlir("tensor", H=1, S=32, D=16)
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, 32, 16)).astype(np.float16) for _ in range(3))
    found = attention(*(np.ascontiguousarray(each) for each in (q.swapaxes(1, 2), k, v.swapaxes(1, 2))))
    wide = [each.astype(np.float64) for each in (q, k, v)]
    expected = softmax(wide[0] @ wide[1].swapaxes(1, 2) / 4) @ wide[2]
    np.testing.assert_allclose(np.asarray(found).swapaxes(1, 2), expected, atol=2e-3)


def test_a_mask_leaves_a_negative_zero_what_it_is() -> None:
    masked = penstock.kernel(
        "kernel f(f32 x[N]) -> (f32 y[N]) {\ny = x\nif x[0] > 0 { y += x }\n}", backend="interpreter"
    )
    found = masked(np.array([-0.0, 1], np.float32))
    assert np.signbit(found).tolist() == [True, False]


@pytest.mark.parametrize("text", ["max(1, nan)", "min(1, nan)", "max(nan, 1)"])
def test_numbers_are_computed_as_elements_are(text: str) -> None:
    number = penstock.kernel(f"kernel f(f32 x[N]) -> (f32 y[N]) {{\ny = x + {text}\n}}", backend="interpreter")
    assert np.isnan(number(np.ones(2, np.float32))).all()
