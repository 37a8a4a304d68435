# SPDX-License-Identifier: Apache-2.0
"""Small kernels at graph level, with inputs, small integers, and what they compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from penstock.dialects.context import PenstockContext, make_context

Array = NDArray[Any]


@dataclass
class Program:
    """A program at graph level, its inputs, and what it computes."""

    text: str
    inputs: list[Array]
    expected: Array

    def parse(self) -> tuple[ModuleOp, PenstockContext]:
        ctx = make_context()
        module = Parser(ctx, self.text).parse_module()
        module.verify()
        return module, ctx


def integers(rng: np.random.Generator, *shape: int) -> Array:
    return rng.integers(-3, 4, shape).astype(np.float32)


def tensor(*shape: int) -> str:
    return f"tensor<{'x'.join(map(str, shape))}xf32>"


def matmul(m: int, n: int, k: int, bias: bool, relu: bool) -> Program:
    rng = np.random.default_rng(m * 10007 + n * 101 + k)
    x, w, b = integers(rng, m, k), integers(rng, k, n), integers(rng, n)
    result, value, expected = tensor(m, n), "%p", x @ w
    body = f"%p = graph.matmul %x, %w : ({tensor(m, k)}, {tensor(k, n)}) -> {result}\n"
    if bias:
        body += f"%s = graph.add {value}, %b : ({result}, {tensor(n)}) -> {result}\n"
        value, expected = "%s", expected + b
    if relu:
        body += f"%r = graph.relu {value} : {result}\n"
        value, expected = "%r", np.maximum(expected, 0)
    arguments = f"%x: {tensor(m, k)}, %w: {tensor(k, n)}, %b: {tensor(n)}"
    text = f"func.func @main({arguments}) -> {result} {{\n{body} func.return {value} : {result}\n}}"
    return Program(text, [x, w, b], expected)
