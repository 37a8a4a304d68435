# SPDX-License-Identifier: Apache-2.0
"""Kernels as functions: threads, pickles, derivatives, levels."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock
from penstock.dialects.diagnostics import UserError
from penstock.runtime import kernel_function
from penstock.runtime.engine_cache import CACHED_ENGINES
from penstock.runtime.kernel_function import KernelFunction
from penstock.runtime.levels import LEVELS

TEXT = """kernel scale[SHIFT = 0](f32 x[N, M], f32 z[M]) -> (f32 y[N, M]) {
    y[i, j] = exp(x[i, j] * z[j]) + SHIFT
}
"""
MIXED = """kernel scale(f32 x[N], f32 a, i32 z[N], i32 k) -> (f32 y[N], i32 w[N]) {
    y[i] = a * x[i]
    w[i] = z[i] + k
}
"""
X = np.linspace(-1, 1, 12, dtype=np.float32)


def by_numpy(x: NDArray[Any], z: NDArray[Any]) -> NDArray[Any]:
    return np.exp(x * z)


def test_threads_compile_each_size_once_and_do_not_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []
    original = kernel_function.compile_program

    def counting(*args: Any, **kwargs: Any) -> Any:
        compiled.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(kernel_function, "compile_program", counting)
    scale = penstock.kernel(TEXT)
    shapes = [(3, 4), (4, 3), (3, 4), (2, 6)]
    start, wrong = threading.Barrier(len(shapes)), list[object]()

    def call(number: int, shape: tuple[int, int]) -> None:
        start.wait()
        for turn in range(20):
            x = X.reshape(shape) * (number + 1) + turn / 20
            z = np.linspace(0, 1, shape[1], dtype=np.float32)
            found = scale(x, z)
            if not np.allclose(found, by_numpy(x, z), rtol=1e-5):
                wrong.append((number, turn))

    threads = [threading.Thread(target=call, args=each) for each in enumerate(shapes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(compiled) == 3


def test_what_was_not_used_for_longest_is_forgotten() -> None:
    scale = penstock.kernel(TEXT, backend="interpreter")
    engines: list[weakref.ref[object]] = []
    for size in range(1, CACHED_ENGINES + 3):
        scale(np.ones((size, 1), np.float32), np.ones(1, np.float32))
        engines.append(weakref.ref(scale.engine({"N": size, "M": 1})))
    gc.collect()
    assert [each() is not None for each in engines] == [False] * 2 + [True] * CACHED_ENGINES


def test_a_kernel_is_pickled_as_its_text() -> None:
    scale = penstock.kernel(TEXT).on(None, "interpreter")
    again = pickle.loads(pickle.dumps(scale.gradient("z")))
    assert repr(scale) == "<kernel scale[SHIFT = 0](f32 x[N, M], f32 z[M]) -> (f32 y[N, M])>"
    assert repr(again.on("gemmini-fp32")) == repr(scale)[:-1] + " derived by z on gemmini-fp32>"
    x, z, seed = X.reshape(3, 4), np.ones(4, np.float32), np.ones((3, 4), np.float32)
    assert again.backend == "interpreter"
    np.testing.assert_allclose(again(x, z, seed), (x * np.exp(x)).sum(0), rtol=1e-5)


def test_a_kernel_has_a_gradient() -> None:
    scale = penstock.kernel(TEXT)
    x, z, seed = X.reshape(3, 4), np.linspace(0.5, 1, 4, dtype=np.float32), X[::-1].reshape(3, 4)
    of_x, of_z = scale.gradient()(x, z, seed)
    np.testing.assert_allclose(of_x, seed * np.exp(x * z) * z, rtol=1e-5)
    np.testing.assert_allclose(of_z, (seed * np.exp(x * z) * x).sum(0), rtol=1e-5)
    assert "@scale_gradient" in scale.gradient("x").mlir("graph", N=3, M=4)


@pytest.mark.parametrize("level", LEVELS)
def test_a_kernel_is_dumped_at_every_level(level: str) -> None:
    text = penstock.kernel(TEXT, machine="gemmini-fp32").mlir(level, N=3, M=4, SHIFT=2)
    assert "@scale(" in text


CALLS: list[tuple[Callable[[KernelFunction], object], str]] = [
    (lambda kernel: kernel(X.reshape(3, 4), X[:4], SHIFT=1.5), '"SHIFT" must be an integer, not 1.5'),  # pyright: ignore[reportArgumentType]
    (lambda kernel: kernel(X.reshape(3, 4), X), '"M" is 4, and 12 by the argument "z"'),
    (lambda kernel: kernel(X, X), '"x" has 2 dims, and the argument 1'),
    (lambda kernel: kernel(X.reshape(3, 4), X[:4], X), "takes 2 inputs, and 3 were given"),
    (lambda kernel: kernel(), 'the sizes are not known: "N", "M"'),
    (lambda kernel: kernel.mlir("loops", N=3, M=4), 'no level "loops"'),
    (lambda kernel: kernel.gradient("q").mlir(N=3, M=4), 'no argument or weight "q"'),
    (lambda kernel: kernel.gradient("x").gradient("x"), 'this is the gradient of "scale" already'),
    (lambda kernel: kernel(X.reshape(3, 4), z=4), '"z" is a parameter, and is not given by its name'),
    (lambda kernel: kernel.gradient()(X.reshape(3, 4), X[:4]), 'an input is missing: "y/seed"'),
]


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_what_does_not_fit_is_refused(call: Callable[[KernelFunction], object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        call(penstock.kernel(TEXT))
    assert message in str(caught.value)


def test_a_number_of_python_takes_the_type_of_its_scalar_if_it_is_of_its_kind_and_fits() -> None:
    scale = penstock.kernel(MIXED)
    x, z = np.ones(3, np.float32), np.ones(3, np.int32)
    for a, k in ((2.5, 1), (2, -1)):
        y, w = scale(x, a, z, k)
        assert (y.dtype, w.dtype, y[0], w[0]) == (np.float32, np.int32, a, 1 + k)
    for a, k in ((True, 1), (1e39, 1), (10**400, 1), (2.0, 1.5), (2.0, 1 << 40), (2.0, True)):
        with pytest.raises(UserError, match="has elements of type"):
            scale(x, a, z, k)
