# SPDX-License-Identifier: Apache-2.0
"""Misuses of scopes in the kernel language, which are known when there is a machine: each is refused at its token."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock import kernel
from penstock.dialects.diagnostics import UserError

MACHINE = "neural-accelerator"


@dataclass(frozen=True)
class Misuse:
    """A declaration with a mark before the token that is wrong, what is said of it, and what would help."""

    name: str
    declared: str
    message: str
    note: str
    value: str = "t * 2"
    machine: str = MACHINE


MISUSES = [
    Misuse(
        "scope that the machine lacks",
        "^sram f32 t[N] = load(x)",
        'machine "neural-accelerator" has no scope "sram"',
        "its scopes: neural, weight, dram",
    ),
    Misuse(
        "local larger than its scope",
        "neural f32 t[N] = load(x)\n    ^neural f32 large[200, N] = 0",
        '"large" takes 819,200 bytes, and "neural" has 524,288',
        "loops over smaller tiles take less",
        value="t + large[0, :]",
    ),
    Misuse("scope of another type", "^weight f32 t[N] = load(x)", '"t" is of f32, and "weight" holds f16', ""),
    Misuse(
        "window that no engine copies",
        "^acc f32 t[N] = load(x[1:+N else 1])",
        '"t" cannot be in "acc": the kernel runs on the host',
        'because no DMA pads by 1, and no intrinsic fills "acc" with the padding',
        value="max(t, 0)",
        machine="gemmini-fp32",
    ),
    Misuse(
        "kernel that runs on the host",
        "^neural f32 t[N] = load(x)",
        '"t" cannot be in "neural": the kernel runs on the host',
        "because <kernel>:3:14: no intrinsic computes math.erf",
        value="erf(t)",
    ),
]


@pytest.mark.parametrize("misuse", MISUSES, ids=[misuse.name for misuse in MISUSES])
def test_a_misuse_is_refused_at_its_token(misuse: Misuse) -> None:
    text = f"kernel f(f32 x[N]) -> (f32 y[N]) {{\n    {misuse.declared}\n    store(y, {misuse.value})\n}}\n"
    before, mark, after = text.partition("^")
    assert mark
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    with pytest.raises(UserError) as caught:
        kernel(before + after).on(misuse.machine).mlir("accel", N=1024)
    assert caught.value.message == misuse.message
    assert caught.value.loc == f"<kernel>:{line}:{column}"
    assert [*caught.value.notes] == ([misuse.note] if misuse.note else [])


def test_locals_that_do_not_fit_together_are_named_with_their_lines() -> None:
    lines = ["kernel f(f32 x[N]) -> (f32 y[N]) {"]
    lines += ["    neural f32 a[N] = load(x)", "    neural f32 b[N] = exp(a)", "    neural f32 c[N] = exp(b)"]
    lines += ["    store(y, a + b + c)", "}"]
    with pytest.raises(UserError) as caught:
        kernel("\n".join(lines)).on(MACHINE).mlir("accel", N=65536)
    for name, line in (("a", 2), ("b", 3), ("c", 4)):
        assert any(f"%{name} : " in note and f"<kernel>:{line}:5" in note for note in caught.value.notes)
