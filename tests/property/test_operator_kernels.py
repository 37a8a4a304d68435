# SPDX-License-Identifier: Apache-2.0
"""Random operator kernels, with locals in scopes and explicit copies: the machine computes what the host does."""

from __future__ import annotations

import random

import numpy as np
import pytest

from penstock import kernel


class _Text:
    """A random text: locals that are declared, assigned and copied, in a loop over tiles or not."""

    def __init__(self, seed: int):
        self._rng = random.Random(seed)
        self._locals: list[str] = []
        self._in_loop = self._rng.random() < 0.6
        self._tile = "[i:+64]" if self._in_loop else "[0:64]"

    def write(self) -> str:
        lines = [self._statement(number) for number in range(self._rng.randint(2, 7))]
        if not self._in_loop:
            lines.append(self._rng.choice(("y[64:128] = x[64:128] + z[64:128]", "store(y[64:128], x[64:128])")))
        value = self._rng.choice((self._rng.choice(self._locals), self._value()))
        lines.append(self._rng.choice((f"store(y{self._tile}, {value})", f"y{self._tile} = {value}")))
        if self._in_loop:
            lines = ["for i in 0:N:64 {", *lines, "}"]
        return "\n".join(["kernel f(f32 x[N], f32 z[N]) -> (f32 y[N]) {", *lines, "}"])

    def _statement(self, number: int) -> str:
        value = self._rng.choice((f"load({self._operand()})", self._value()))
        if self._locals and self._rng.random() < 0.3:
            return f"{self._rng.choice(self._locals)} = {value}"
        name = f"t{number}"
        declared = self._rng.choice(("", "f32 ", "f32 ", "neural f32 ", "dram f32 "))
        self._locals.append(name)
        return f"{declared}{name}{'[64]' if declared else ''} = {value}"

    def _operand(self) -> str:
        if self._locals and self._rng.random() < 0.8:
            return self._rng.choice(self._locals)
        window = f"[{'i - 3' if self._in_loop else 100}:+64 else 0]"
        return self._rng.choice("xz") + self._rng.choice((self._tile, self._tile, window))

    def _value(self) -> str:
        forms = ("exp({} * 0.1)", "{} + {}", "{} * {}", "max({}, {})", "{} - {} * {}", "{}")
        form = self._rng.choice(forms)
        return form.format(*(self._operand() for _ in range(form.count("{}"))))


def test_the_generator_writes_what_the_language_has() -> None:
    texts = [_Text(seed).write() for seed in range(40)]
    assert len(set(texts)) > 35
    for construct in ("neural f32", "dram f32", "= load(", "store(", "for i", "else 0"):
        assert sum(construct in text for text in texts) > 5


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 120))])
def test_the_machine_computes_what_the_host_does(seed: int) -> None:
    f, rng = kernel(_Text(seed).write()), np.random.default_rng(seed)
    x, z = (rng.integers(-3, 4, 128).astype(np.float32) for _ in range(2))
    expected = f.on(None, "interpreter")(x, z)
    np.testing.assert_allclose(f.on("neural-accelerator", "interpreter")(x, z), expected, rtol=1e-5, atol=1e-5)
