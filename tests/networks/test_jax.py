# SPDX-License-Identifier: Apache-2.0
"""Functions of JAX, as the text of StableHLO that it prints, against JAX itself; and what of StableHLO is refused."""

from __future__ import annotations

# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock
from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.passes.toolchain import find_compiler
from penstock.runtime.compiler import load_input

if TYPE_CHECKING:
    from tests.conftest import Command

Array = NDArray[Any]

TOLERANCE = 1e-5


def numbers(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape, dtype=np.float32)


def check(function: Callable[..., Any], *arguments: Array, folder: Path) -> penstock.Engine:
    """Compile what JAX prints of a function, and compare."""
    jax: Any = pytest.importorskip("jax")
    text = jax.jit(function, keep_unused=True).lower(*arguments).as_text()
    (folder / "function.mlir").write_text(text)
    engine = penstock.compile(folder / "function.mlir", backend=_backend())
    assert isinstance(engine, penstock.Engine)
    expected = [np.asarray(each) for each in jax.tree_util.tree_leaves(jax.jit(function)(*arguments))]
    found = engine.run(list(arguments))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        bound = TOLERANCE * float(np.abs(theirs.astype(np.float64)).max(initial=0))
        np.testing.assert_allclose(ours, theirs, TOLERANCE, bound)
    return engine


def _backend() -> Any:
    try:
        find_compiler()
    except UserError:
        return "interpreter"
    return "native"


def perceptron(x: Any, w: Any, b: Any, v: Any) -> Any:
    jax: Any = pytest.importorskip("jax")

    return jax.nn.softmax(jax.nn.gelu(x @ w + b) @ v)


def test_a_perceptron(tmp_path: Path) -> None:
    check(perceptron, numbers(2, 3), numbers(3, 4), numbers(4), numbers(4, 5), folder=tmp_path)


def test_a_gradient_step(tmp_path: Path) -> None:
    def step(x: Any, w: Any, b: Any, v: Any) -> Any:
        jax: Any = pytest.importorskip("jax")

        def loss(parameters: Any) -> Any:
            return (perceptron(x, *parameters) ** 2).sum()

        gradients = jax.grad(loss)((w, b, v))
        return [each - 0.1 * gradient for each, gradient in zip((w, b, v), gradients, strict=True)]

    check(step, numbers(2, 3), numbers(3, 4), numbers(4), numbers(4, 5), folder=tmp_path)


def test_a_convolutional_network_and_its_gradient(tmp_path: Path) -> None:
    def scores(x: Any, w: Any, b: Any, v: Any) -> Any:
        jax: Any = pytest.importorskip("jax")
        lax: Any = pytest.importorskip("jax.lax")

        y = lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) + b
        most = lax.reduce_window(jax.nn.relu(y), -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return most.mean((1, 2)) @ v

    def gradient(x: Any, w: Any, b: Any, v: Any) -> Any:
        jax: Any = pytest.importorskip("jax")
        lax: Any = pytest.importorskip("jax.lax")

        def loss(w: Any) -> Any:
            y = lax.conv_general_dilated(x, w, (2, 1), ((1, 0), (2, 2)), dimension_numbers=("NHWC", "HWIO", "NHWC"))
            return (
                lax.reduce_window(jax.numpy.tanh(y + b), 0.0, lax.add, (1, 2, 2, 1), (1, 1, 2, 1), "SAME") @ v
            ).sum()

        return jax.grad(loss)(w)

    arguments = (numbers(1, 8, 8, 3), numbers(3, 3, 3, 4), numbers(4), numbers(4, 2))
    check(scores, *arguments, folder=tmp_path)
    check(gradient, *arguments, folder=tmp_path)


def test_attention_under_a_mask(tmp_path: Path) -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        jax: Any = pytest.importorskip("jax")
        jnp: Any = pytest.importorskip("jax.numpy")

        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / jnp.sqrt(8.0)
        scores = jnp.where(jnp.tril(jnp.ones((5, 5), bool)), scores, -1e9)
        return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), v)

    check(attention, numbers(1, 2, 5, 8), numbers(1, 2, 5, 8), numbers(1, 2, 5, 8), folder=tmp_path)


def test_a_recurrence_over_a_known_number_of_steps(tmp_path: Path) -> None:
    def recurrence(x: Any, w: Any, u: Any) -> Any:
        lax: Any = pytest.importorskip("jax.lax")
        jnp: Any = pytest.importorskip("jax.numpy")

        def step(state: Any, now: Any) -> Any:
            state = jnp.tanh(now @ w + state @ u)
            return state, state

        return lax.scan(step, jnp.zeros((2, 4)), x)

    check(recurrence, numbers(3, 2, 6), numbers(6, 4), numbers(4, 4), folder=tmp_path)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "transposed_convolution": lambda j, x, i: j.lax.conv_transpose(
        x.reshape(1, 4, 2, 3), x.reshape(2, 2, 3, 2), (2, 2), "SAME"
    ),
    "grouped_convolution": lambda j, x, i: j.lax.conv_general_dilated(
        x.reshape(1, 2, 3, 4), x.reshape(6, 1, 2, 2), (1, 1), [(1, 1), (2, 0)], rhs_dilation=(2, 1),
        feature_group_count=2,
    ),
    "cropping_convolution": lambda j, x, i: j.lax.conv_general_dilated(
        x.reshape(1, 1, 24), x.reshape(2, 1, 12)[:, :, :3], (1,), [(-2, -1)]
    ),
    "lookups": lambda j, x, i: (j.numpy.take(x, i, axis=0), j.numpy.take(x, i, axis=1), x[i, i], x.T[:, i]),
    "updates": lambda j, x, i: (
        x.at[i].add(1.5), x.at[i, i].set(2.0), x.at[:, i].max(0.5), x.at[i - 3].min(0.1), x.at[i * 9].multiply(3.0),
        x.at[i * 0 + 2].add(x[:2]), j.grad(lambda e: (e[i] ** 2).sum())(x),
    ),
    "extrema": lambda j, x, i: (
        j.numpy.argmax(x, 1), j.numpy.argmin(x * (x > 0), 0), j.numpy.argmax(j.numpy.where(x > 1, j.numpy.nan, x), 1),
        j.numpy.argmax(i),
    ),
    "slices": lambda j, x, i: (x[1:3, ::2], x[::-1], j.numpy.roll(x, 2, 1), j.numpy.split(x, 3, 1)),
    "slices_at_run_time": lambda j, x, i: (
        j.lax.dynamic_slice(x, (i[0], i[1] + 9), (2, 3)), j.lax.dynamic_update_slice(x, x[:2, :2], (i[1], i[0]))
    ),
    "pads": lambda j, x, i: (j.numpy.pad(x, 1), j.lax.pad(x, 0.0, ((-1, 2, 1), (0, 0, 2)))),
    "reductions": lambda j, x, i: (
        x.max(1), x.min(), x.prod(0), (x > 0).any(1), (x > 0).all(0), x.var(1), j.nn.logsumexp(x, 1)
    ),
    "sums_so_far": lambda j, x, i: j.numpy.cumsum(x, 1),
    "branches": lambda j, x, i: j.lax.cond(i[0] > 1, lambda x: x + 1, lambda x: x * 2, x),
    "loops": lambda j, x, i: j.lax.fori_loop(0, 4, lambda step, c: c * 1.5 + step, x),
    "integers": lambda j, x, i: (
        x.astype("int32") // 3, j.numpy.mod(-i, 3), (i & 3) | (~i) ^ 5, i >> 1, j.lax.shift_right_logical(-i, 3)
    ),
    "activations": lambda j, x, i: (
        j.nn.silu(x), j.nn.softplus(x), j.nn.elu(x), j.lax.erf(x), j.nn.log_softmax(x), j.numpy.isnan(x),
        j.numpy.log1p(abs(x) * 1e-4), j.numpy.expm1(x * 1e-3),
    ),
    "einsums": lambda j, x, i: (
        j.numpy.einsum("ab,cb->ac", x, x), j.numpy.einsum("ab,cd->adbc", x, x), j.vmap(lambda r: r * r.sum())(x)
    ),
    "one_hot": lambda j, x, i: j.nn.one_hot(i, 4),
    "random_bits": lambda j, x, i: j.random.bits(j.random.key(3), (5,)),
}  # fmt: skip
"""Each of JAX, of numbers 4 x 6 and of two indices."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function(name: str, tmp_path: Path) -> None:
    jax: Any = pytest.importorskip("jax")
    indices = np.array([1, 2], np.int32)
    check(lambda x, i: FUNCTIONS[name](jax, x, i), numbers(4, 6), indices, folder=tmp_path)


def text_of(*lines: str) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return f"module @jit_f {{\n  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {{\n{body}  }}\n}}\n"


@pytest.mark.parametrize(
    ("lines", "message", "status"),
    [
        (
            ['%0 = stablehlo.custom_call @Special(%arg0) {api = 1 : i32} : (tensor<4xf32>) -> tensor<4xf32>'],
            "m.mlir:3:5: error: stablehlo.custom_call is not supported: it calls Special",
            UNSUPPORTED,
        ),
        (
            ["%0 = stablehlo.cbrt %arg0 : tensor<4xf32>"],
            "m.mlir:3:5: error: stablehlo.cbrt is not supported",
            UNSUPPORTED,
        ),
        (
            ["%0 = call @main(%arg0) : (tensor<4xf32>) -> tensor<4xf32>", "%1 = stablehlo.abs %0 : tensor<4xf32>"],
            "m.mlir:3:5: error: func.call is not supported: @main calls itself",
            UNSUPPORTED,
        ),
        (
            ["%0 = stablehlo.slice %arg0 [2:6] : (tensor<4xf32>) -> tensor<4xf32>"],
            "m.mlir:3:5: error: stablehlo.slice is malformed: dimension 0 reads from 2 to 5, outside its 4 elements",
            1,
        ),
        (
            ["%0 = stablehlo.add %arg0 %arg0 : tensor<4xf32>"],
            "m.mlir:3:30: error: ",
            1,
        ),
    ],
)  # fmt: skip
def test_what_is_refused_is_refused_where_it_stands(
    lines: Sequence[str], message: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.mlir").write_text(text_of(*lines, "return %0 : tensor<4xf32>"))
    with pytest.raises(UserError) as refused:
        load_input("m.mlir")
    assert str(refused.value).startswith(message)
    assert refused.value.status == status


def test_the_command_imports_it(penstock: Command) -> None:
    text = text_of(
        "%cst = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>",
        '%0 = "stablehlo.add"(%arg0, %cst) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>',
        "return %0 : tensor<4xf32>",
    )
    Path("m.mlir").write_text(text)
    finished = penstock("import", "m.mlir", "-o", "graph.mlir")
    assert finished.status == 0, finished.err
    assert finished.err == "graph.mlir: 2 operations, 1 weights in graph.safetensors\n"
    assert "graph.add %arg0, " in Path("graph.mlir").read_text()
    assert penstock("import", "m.mlir").err.startswith("m.graph.mlir: ")
    assert penstock("export", "graph.mlir").status == 0
