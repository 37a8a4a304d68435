# SPDX-License-Identifier: Apache-2.0
"""
The gradient of a kernel, along a random direction, is what central finite differences in f64 give: of the operators of
the examples, and of texts that read in every way that index notation has.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from reference import OPERATORS, Operator
from sampling import sweep

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_kernel.lower import KernelFile
from penstock.lowering.from_kernel.sizes import bind_numbers, shape_of_declaration
from penstock.lowering.from_text import SourceText
from penstock.runtime.interpreter import run_module
from penstock.runtime.pass_manager import read_pipeline, run_passes

Array = NDArray[Any]
FOLDER = Path(__file__).parents[2] / "examples/operators"
STEP = 1e-6
DTYPES: dict[str, Any] = {"f64": np.float64, "bool": np.bool_, "i8": np.int8, "i32": np.int32, "i64": np.int64}


def require_right(text: str, name: str, sizes: dict[str, int], order: int = 1) -> None:
    """Raise AssertionError unless the derivative of a kernel on f64 of an order is that of finite differences."""
    file = KernelFile(SourceText("kernel.pk", text))
    kernel = file.kernel(name)
    numbers = bind_numbers(kernel, sizes)
    module, ctx = file.module(kernel, sizes), make_context()
    differentiate = read_pipeline("graph-gradient{replace=true}")
    rng = np.random.default_rng(0)
    given: list[Array] = []
    directions: list[Array] = []
    for each in kernel.parameters:
        shape = shape_of_declaration(each, numbers)
        values = rng.uniform(0.4, 1.6, shape) if each.element == "f64" else rng.integers(0, 2, shape)
        given.append(np.asarray(values).astype(DTYPES[each.element]))
        is_float = each.element == "f64"
        directions.append(np.asarray(rng.uniform(-1, 1, shape)) if is_float else np.zeros(shape, DTYPES[each.element]))
    store = WeightStore()
    for _ in range(order - 1):
        seeds = [np.asarray(rng.uniform(-1, 1, each.shape)) for each in run_module(module, given, store)]
        given += seeds
        directions += [np.asarray(rng.uniform(-1, 1, each.shape)) for each in seeds]
        run_passes(ctx, module, differentiate)
    gradient = module.clone()
    run_passes(ctx, gradient, differentiate)
    forward = run_module(module, given, store)
    floats = [number for number, each in enumerate(forward) if each.dtype.kind == "f"]
    seeds = [np.asarray(rng.uniform(-1, 1, forward[number].shape)) for number in floats]
    found = run_module(gradient, [*given, *seeds], store)
    pairs = list(zip(given, directions, strict=True))
    places = [[x + sign * STEP * v if x.dtype.kind == "f" else x for x, v in pairs] for sign in (1, -1)]
    moved = [run_module(module, place, store) for place in places]
    slopes = [(moved[0][number] - moved[1][number]) / (2 * STEP) for number in floats]
    expected = sum(float((seed * slope).sum()) for seed, slope in zip(seeds, slopes, strict=True))
    along = [v for x, v in zip(given, directions, strict=True) if x.dtype.kind == "f"]
    assert [each.shape for each in found] == [each.shape for each in along]
    total = sum(float((each * v).sum()) for each, v in zip(found, along, strict=True))
    scale = sum(float(np.abs(each * v).sum()) for each, v in zip(found, along, strict=True))
    assert abs(total - expected) <= 1e-7 * max(scale, 1.0), (total, expected)


_OTHER = "of reductions, sums, products, maxima and minima have one"
_LOOP = "a kernel of tensor expressions has one, and not what a loop carries"
QUICK = ("softmax", "conv2d", "max_pool", "layer_norm", "gelu", "concatenate", "lstm_cell")
REFUSED = {
    "log_sum_exp": _OTHER,
    **dict.fromkeys(("attention", "attention_half", "cumulative_sum", "matmul_tiles", "softmax_half", "top_k"), _LOOP),
}
"""Operators of the examples without a derivative, and why."""
FLAT = ("any_negative", "arg_max", "quantize", "quantized_matmul")
"""Operators whose results are no floats."""


def wide_text(operator: Operator) -> str:
    return (FOLDER / f"{operator.file}.pk").read_text().replace("f32", "f64").replace("f16", "f64")


@pytest.mark.parametrize(
    "operator",
    sweep(
        [each for each in OPERATORS if each.name not in FLAT], lambda each: each.name in QUICK or each.name in REFUSED
    ),
    ids=lambda operator: operator.name,
)
def test_an_operator_has_its_derivative(operator: Operator) -> None:
    sizes = dict(operator.sizes[-1])
    if (why := REFUSED.get(operator.name)) is None:
        require_right(wide_text(operator), operator.name, sizes)
        return
    with pytest.raises(UserError, match="has no derivative") as caught:
        require_right(wide_text(operator), operator.name, sizes)
    assert caught.value.notes == (why,)
    assert caught.value.status == 3
    assert (caught.value.loc or "").startswith("kernel.pk:")


TEXTS = {
    "halo": ("x[N], w[3]", "y[N]", "y[i] = sum(r, x[i + r - 1 else 0] * w[r])"),
    "stride": ("x[N], w[3]", "y[N // 2]", "y[i] = sum(r, x[2 * i + r else 0] * w[r])"),
    "dilation": ("x[N], w[3]", "y[N - 4]", "y[i] = sum(r, x[i + 2 * r] * w[r])"),
    "stride and dilation": ("x[N], w[2]", "y[N // 3]", "y[i] = sum(r, x[3 * i + 2 * r else 0] * w[r])"),
    "backwards": ("x[N], w[3]", "y[N]", "y[i] = sum(r, x[N + 1 - i - r else 0] * w[r])"),
    "reversed": ("x[N]", "y[N]", "y[i] = exp(x[N - 1 - i])"),
    "every second": ("x[N]", "y[N // 2]", "y[i] = sqrt(x[2 * i])"),
    "one column": ("x[N, M]", "y[N]", "y[i] = x[i, 2] * x[i, 0]"),
    "the middle": ("x[N]", "y[N]", "y[i] = sum(k in 1:3, x[k]) * x[i]"),
    "not linear in a window": ("x[N], w[3]", "y[N]", "y[i] = sum(r, w[r] / x[i + r - 1 else 1])"),
    "window of nothing else": ("x[N]", "y[N]", "y[i] = sum(r in 0:3, x[i + r else 0])"),
    "summed windows": ("x[N], w[3]", "y", "y = sum(i in 0:N - 2, r, x[i + r] * w[r])"),
    "largest of windows": ("x[N]", "y[N // 2]", "y[i] = max(r in 0:3, x[2 * i + r - 1 else -inf])"),
    "smallest of functions": ("x[N, M]", "y[N]", "y[i] = min(j, x[i, j] * exp(-x[i, j]))"),
    "skewed": ("x[N, M]", "y[N, 2]", "y[i, j] = x[i, i + j else 0]"),
    "in two places": ("x[N, M]", "y[N, M]", "y[i, j] = x[i, j] * x[i, M - 1 - j] + x[0, j]"),
    "number of the index": ("x[N]", "y[N]", "y[i] = sum(r in 0:2, cast(f64, i + r) * x[i + r else 0] ** 2)"),
    "branch": ("x[N], z[N]", "y[N]", "y[i] = select(x[i] > 1, x[i] * z[i], pow(x[i], z[i]))"),
    "quotient": ("x[N, M]", "y[2 * N, M]", "y[i, j] = x[i // 2, j] ** 3"),
    "factor at the place of a window": ("x[N], v[N]", "y[N]", "y[i] = sum(r in 0:3, x[i + r else 0] * v[i])"),
    "product": ("x[N, M]", "y[N]", "y[i] = prod(j, x[i, j] - 1)"),
    "product of windows": ("x[N], w[3]", "y[N]", "y[i] = prod(r, x[i + r - 1 else 3] * w[r])"),
    "no factor but one is zero": ("x[N]", "y", "y = prod(i, select(i == 2, x[i] - x[i], x[i]))"),
    "two factors are zero": ("x[N]", "y", "y = prod(i, select(i < 2, (x[i] - x[i]) * x[0], x[i]))"),
    "parts": ("x[N], z[M]", "y[N + M]", "y[0:N] = x * x\ny[N:N + M] = z * z"),
    "added to": ("a[N, M], b[M]", "y[N]", "y[i] = b[0]\ny[i] += a[i, k] * b[k]\ny[i] += tanh(y[i])"),
    "two results": ("x[N, M]", "s[N], y[N, M]", "s[i] = sum(j, x[i, j])\ny[i, j] = x[i, j] / s[i]"),
    "floors": ("x[N]", "y[N]", "y[i] = floor(3 * x[i]) * x[i] + abs(x[i] - 1) + x[i] % 0.3"),
}


def text_of(parameters: str, results: str, body: str) -> str:
    """A kernel on f64."""
    declared = (", ".join(f"f64 {each}" for each in re.split(r", (?=\w+\[)", part)) for part in (parameters, results))
    head = "kernel f({}) -> ({})".format(*declared)
    return f"{head} {{\n{body}\n}}"


@pytest.mark.parametrize("kernel", TEXTS.values(), ids=TEXTS)
def test_what_reads_elsewhere_adds_there(kernel: tuple[str, str, str]) -> None:
    require_right(text_of(*kernel), "f", {"N": 8, "M": 5} if "M]" in kernel[0] else {"N": 8})


@pytest.mark.parametrize("name", sweep(TEXTS, ("halo", "stride", "branch", "parts", "largest of windows")))
def test_a_gradient_has_a_derivative_too(name: str) -> None:
    require_right(text_of(*TEXTS[name]), "f", {"N": 8, "M": 5} if "M]" in TEXTS[name][0] else {"N": 8}, order=2)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("y[i, j] = x[i, i] * x[i, j]", "it reads at one loop along two dims"),
        ("y[i, j] = x[i + j, i + 2 * j else 0]", "it reads at sums of the same loops along two dims"),
        ("y[i, j] = add(k, x[i, k])", _OTHER),
    ],
)
def test_what_cannot_be_turned_round_is_refused(statement: str, why: str) -> None:
    text = text_of("x[N, N]", "y[N, N]", statement) + "\nreducer add(a, b) from -inf = log(exp(a) + exp(b))\n"
    with pytest.raises(UserError, match=r"linalg\.generic has no derivative") as caught:
        require_right(text, "f", {"N": 4})
    assert caught.value.notes == (why,)
    assert (caught.value.loc or "").startswith("kernel.pk:2:")


@pytest.mark.parametrize("seed", sweep(range(60), (0, 1, 2)))
def test_random_windows_add_where_they_read(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def place(index: str, window: str) -> str:
        step, apart = (int(rng.choice([-2, -1, 1, 2, 3])) for _ in range(2))
        return f"{step} * {index} + {apart} * {window} + {int(rng.integers(-6, 7))}"

    function = str(rng.choice(["{} * w[r, q]", "exp({} - w[r, q])", "max({}, w[r, q])", "{} + w[r, q]", "{}"]))
    term = function.format(f"x[{place('i', 'r')}, {place('j', 'q')} else {rng.choice(['0', '2.5'])}]")
    reduction = str(rng.choice(["sum", "max"]))
    text = text_of("x[N, M], w[R, Q]", "y[5, 4]", f"y[i, j] = {reduction}(r in 0:R, q in 0:Q, {term})")
    sizes = {name: int(rng.integers(low, high)) for name, low, high in zip("NMRQ", (6, 5, 1, 1), (12, 9, 4, 4))}
    require_right(text, "f", sizes)
