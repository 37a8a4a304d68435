# SPDX-License-Identifier: Apache-2.0
"""Random kernels of the tensor level on integers: chains and trees of structured ops, and a @main that calls one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from xdsl.dialects.builtin import DictionaryAttr, MemRefType, ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute
from xdsl.utils.hints import isa

from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.weights import Array

SIZES = (2, 3, 4, 6, 8)
"""Of the dims."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Value:
    name: str
    shape: Shape


def tensor(shape: Shape, element: str) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"


class _Writer:
    def __init__(self, random: Random, element: str, is_named: bool):
        self.random = random
        self.element = element
        self.is_named = is_named
        self.kind = "f" if element.startswith("f") else "i"
        self.arguments: list[_Value] = []
        self.values: list[_Value] = []
        self.lines: list[str] = []
        self.count = 0

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def argument(self, shape: Shape) -> _Value:
        made = _Value(f"%x{len(self.arguments)}", shape)
        self.arguments.append(made)
        return made

    def operand(self) -> _Value:
        """A value, mostly a recent one, of two dims; rarely a new argument."""
        found = [value for value in self.values if len(value.shape) == 2]
        if not found or self.random.random() < 0.15:
            return self.argument((self.random.choice(SIZES), self.random.choice(SIZES)))
        return found[-1 - min(self.random.randrange(len(found)), self.random.randrange(len(found)))]

    def type(self, value: _Value) -> str:
        return tensor(value.shape, self.element)

    def empty(self, shape: Shape) -> _Value:
        made = _Value(self.fresh(), shape)
        self.lines.append(f"{made.name} = tensor.empty() : {self.type(made)}")
        return made

    def generic(
        self, maps: Sequence[str], dims: str, kinds: str, inputs: Sequence[_Value], dest: _Value, body: Sequence[str]
    ) -> _Value:
        """A structured op; `kinds` has a letter for each dim, p or r; the body yields %r from %a, %b and %o."""
        listed = ", ".join(f"affine_map<({dims}) -> ({each})>" for each in maps)
        iterators = ", ".join('"parallel"' if kind == "p" else '"reduction"' for kind in kinds)
        names = [value.name for value in inputs]
        types = ", ".join(self.type(value) for value in inputs)
        ins = f"ins({', '.join(names)} : {types}) " if inputs else ""
        arguments = ", ".join(f"%{name}: {self.element}" for name in [*"ab"[: len(inputs)], "o"])
        made = _Value(self.fresh(), dest.shape)
        self.lines += [
            f"{made.name} = linalg.generic {{indexing_maps = [{listed}], iterator_types = [{iterators}]}}",
            f"  {ins}outs({dest.name} : {self.type(dest)}) {{",
            f"^bb0({arguments}):",
            *(f"  {line}" for line in body),
            f"  linalg.yield %r : {self.element}",
            f"}} -> {self.type(dest)}",
        ]
        self.values.append(made)
        return made

    def op(self, name: str) -> str:
        return f"arith.{name}{self.kind}"

    def fill(self, shape: Shape) -> _Value:
        dims = ", ".join("ij"[: len(shape)])
        zero = "0.0" if self.kind == "f" else "0"
        made = self.generic(
            [dims],
            dims,
            "p" * len(shape),
            [],
            self.empty(shape),
            [f"%r = arith.constant {zero} : {self.element}"],
        )
        self.values.remove(made)
        return made

    # what a kernel is made of

    def pointwise(self) -> None:
        first = self.operand()
        name = self.random.choice(("add", "sub", "mul"))
        body = [f"%r = {self.op(name)} %a, %a : {self.element}"]
        inputs, maps = [first], ["i, j"]
        kind = self.random.choice(("unary", "broadcast", "transposed", "same", "index"))
        dest = first.shape
        if kind == "unary" and self.random.random() < 0.5:
            maps, dest = ["j, i"], (dest[1], dest[0])
        elif kind == "broadcast":
            inputs, maps = [first, self.argument((dest[1],))], ["i, j", "j"]
        elif kind == "transposed":
            inputs, maps = [first, self.argument((dest[1], dest[0]))], ["i, j", "j, i"]
        elif kind == "same":
            alike = [value for value in self.values if value.shape == dest]
            inputs, maps = [first, self.random.choice(alike) if alike else self.argument(dest)], ["i, j", "i, j"]
        if len(inputs) == 2:
            body = [f"%r = {self.op(name)} %a, %b : {self.element}"]
        if kind == "index" and self.kind == "i" and not self.is_named:
            body = [
                f"%n = linalg.index {self.random.randrange(2)} : index",
                f"%c = arith.index_cast %n : index to {self.element}",
                f"%r = {self.op(name)} %a, %c : {self.element}",
            ]
        self.generic([*maps, "i, j"], "i, j", "pp", inputs, self.empty(dest), body)

    def matmul(self) -> None:
        left = self.operand()
        count = self.random.choice(SIZES)
        right = self.argument((left.shape[1], count))
        shape = (left.shape[0], count)
        dest = self.argument(shape) if self.random.random() < 0.25 else self.fill(shape)
        body = [
            f"%p = {self.op('mul')} %a, %b : {self.element}",
            f"%r = {self.op('add')} %o, %p : {self.element}",
        ]
        self.generic(["i, k", "k, j", "i, j"], "i, j, k", "ppr", [left, right], dest, body)

    def window(self) -> None:
        source = self.operand()
        taps, stride = self.random.randint(1, min(3, source.shape[0])), self.random.randint(1, 2)
        rows = (source.shape[0] - taps) // stride + 1
        weights = self.argument((taps, source.shape[1]))
        body = [
            f"%p = {self.op('mul')} %a, %b : {self.element}",
            f"%r = {self.op('add')} %o, %p : {self.element}",
        ]
        # What the windows leave over at the end is cut off first.
        length = (rows - 1) * stride + taps
        if length != source.shape[0]:
            cut = _Value(self.fresh(), (length, source.shape[1]))
            self.lines.append(
                f"{cut.name} = tensor.extract_slice {source.name}[0, 0] [{length}, {source.shape[1]}] [1, 1]"
                f" : {self.type(source)} to {self.type(cut)}"
            )
            source = cut
        dest = self.fill((rows, source.shape[1]))
        moved = f"i * {stride} + k" if stride > 1 else "i + k"
        self.generic([f"{moved}, j", "k, j", "i, j"], "i, j, k", "ppr", [source, weights], dest, body)

    def reduction(self) -> None:
        source = self.operand()
        largest = "maximum" if self.kind == "f" else "maxs"
        name = self.random.choice(("add", "add" if self.is_named else largest))
        body = [f"%r = {self.op(name)} %o, %a : {self.element}"]
        dest = self.fill((source.shape[0],))
        total = self.generic(["i, k", "i"], "i, k", "pr", [source], dest, body)
        # Back to two dims: an expansion, or a normalisation of what was reduced.
        body = [f"%r = {self.op('sub')} %a, %b : {self.element}"]
        self.generic(["i, j", "i", "i, j"], "i, j", "pp", [source, total], self.empty(source.shape), body)

    def text(self) -> str:
        steps = (self.pointwise, self.pointwise, self.matmul, self.window, self.reduction)
        for _ in range(self.random.randint(1, 4)):
            self.random.choice(steps)()
        results = [self.values[-1]]
        if len(self.values) > 1 and self.random.random() < 0.25:
            results.append(self.random.choice(self.values[:-1]))
        types = ", ".join(self.type(value) for value in results)
        arguments = ", ".join(f"{value.name}: {self.type(value)}" for value in self.arguments)
        names = ", ".join(value.name for value in self.arguments)
        inputs = ", ".join(self.type(value) for value in self.arguments)
        body = "\n  ".join(self.lines)
        returned = ", ".join(value.name for value in results)
        found = ", ".join(f"%r#{number}" for number in range(len(results))) if len(results) > 1 else "%r"
        count = f":{len(results)}" if len(results) > 1 else ""
        return (
            f"func.func private @kernel({arguments}) -> ({types}) {{\n  {body}\n"
            f"  func.return {returned} : {types}\n}}\n"
            f"func.func @main({arguments}) -> ({types}) {{\n"
            f"  %r{count} = func.call @kernel({names}) : ({inputs}) -> ({types})\n  func.return {found} : {types}\n}}\n"
        )


def tensor_program(seed: int, element: str = "i32", *, is_named: bool = False) -> str:
    """
    The text of a module with a random kernel and @main, which calls it; `is_named` leaves out maxima and indices, which
    the machines of tests have no intrinsics for.
    """
    return _Writer(Random(seed), element, is_named).text()


def inputs_of(module: ModuleOp, seed: int) -> list[Array]:
    """Small integers for the arguments of @main that are not outputs."""
    rng = np.random.default_rng(seed)
    (main,) = (op for op in module.ops if isinstance(op, FuncOp) and op.sym_name.data == "main")
    types = main.function_type.inputs.data
    attributes = main.arg_attrs.data if main.arg_attrs is not None else [DictionaryAttr({})] * len(types)
    found: list[Array] = []
    for type, attribute in zip(types, attributes, strict=True):
        assert isa(type, TensorType[Attribute]) or isa(type, MemRefType[Attribute])
        if "graph.output" not in attribute.data:
            found.append(rng.integers(-4, 5, type.get_shape()).astype(numpy_dtype(type.element_type)))
    return found


def kernel_of(module: ModuleOp) -> FuncOp:
    """The kernel of a module that has one."""
    (kernel,) = (op for op in module.ops if isinstance(op, FuncOp) and op.sym_name.data == "kernel")
    return kernel
