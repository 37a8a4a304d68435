# SPDX-License-Identifier: Apache-2.0
"""
Random kernels of the host: reductions and products in a net of what is computed before and after them, on operands that
lie in any order and lack any dims. All of them compile for machines with registers, in the tiles that the compiler
chooses, and compute what NumPy does, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray
from programs import parsed_in_context
from sampling import sweep

import penstock
from penstock.passes.analysis.kernels import TILING, kernels
from penstock.passes.schedule.deciding import LEFT
from penstock.runtime.engine import Backend
from penstock.runtime.interpreter import run_module

MACHINES = ("host-avx2", "host-avx512-vnni", "host-neon")
EXTENTS = (1, 2, 3, 9, 16, 24, 33, 48, 64, 96, 130, 256)

Array = NDArray[np.float32]

COMBINED: dict[str, Callable[..., Array]] = {
    "addf": np.add,
    "subf": np.subtract,
    "maximumf": np.maximum,
    "minimumf": np.minimum,
}


@dataclass(frozen=True)
class Value:
    name: str
    dims: str
    """The letter of each dim, in the order in which it lies."""
    array: Array


@dataclass
class Kernel:
    """A kernel as text, and what NumPy computes for its arguments, which are small integers."""

    random: Random
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    arguments: list[Value] = field(default_factory=list[Value])
    values: list[Value] = field(default_factory=list[Value])
    lines: list[str] = field(default_factory=list[str])

    def write(self) -> None:
        random = self.random
        self.sizes = {dim: random.choice(EXTENTS) for dim in "hmnk"}
        self.sizes["h"] = random.choice((1, 2, 3))
        for _ in range(random.choice((0, 0, 1))):
            self.elementwise(random.choice(("mk", "kn", "mn", "hmn")))
        random.choice((self.product, self.product, self.reduction))()
        for _ in range(random.randint(1, 4)):
            self.elementwise(random.choice(("mn", "mn", "nm", "m", "hmn")))
            if random.random() < 0.15:
                self.reduction()

    def product(self) -> None:
        """Sums of products of two operands; of a matrix and a vector, too."""
        dims = self.random.choice(("mn", "mn", "nm", "m", "n", "hmn"))
        inputs = [self.operand("mk", exact=True), self.operand("kn", exact=True)]
        if len(dims) == 1:
            other = "mk" if dims == "m" else "kn"
            inputs = [self.operand(other, exact=True), self.operand("k", exact=True)]
        dest = self.start(dims)
        product = np.einsum(
            f"{inputs[0].dims},{inputs[1].dims}->{''.join(sorted({*dims} - {'h'}))}", *self.arrays(inputs)
        )
        added = self.spread(product, "".join(sorted({*dims} - {"h"})), dims) + dest.array
        self.emit(inputs, dest, dims, "k", ["%p = arith.mulf %a0, %a1 : f32", "%r = arith.addf %o, %p : f32"], added)

    def reduction(self) -> None:
        """What combines the elements along some dims of one operand."""
        source = self.operand(self.random.choice(("mk", "km", "kn", "mkn", "mn", "hmn")), exact=False)
        reduced = self.random.choice(source.dims)
        kept = "".join(dim for dim in source.dims if dim != reduced)
        combiner = self.random.choice(("addf", "maximumf", "minimumf"))
        dest = self.start(kept)
        array = COMBINED[combiner].reduce(source.array, source.dims.index(reduced))  # type: ignore[attr-defined]
        found = COMBINED[combiner](dest.array, array)
        self.emit([source], dest, kept, reduced, [f"%r = arith.{combiner} %o, %a0 : f32"], found)

    def elementwise(self, dims: str) -> None:
        """Something of operands that are there, or of arguments, each of which has some of the dims, in any order."""
        there = [value for value in self.values[-4:] if {*value.dims} <= {*dims}]
        first = self.random.choice(there) if there and self.random.random() < 0.9 else self.operand(dims, exact=False)
        second = self.operand(self.random.choice((dims, dims[::-1], dims[:1], dims[-1:])), exact=False)
        combiner = self.random.choice([*COMBINED])
        inputs = [first, second] if self.random.random() < 0.5 else [second, first]
        spread = [self.spread(each.array, each.dims, dims) for each in inputs]
        dest = self.empty(dims)
        body = [f"%r = arith.{combiner} %a0, %a1 : f32"]
        self.emit(inputs, dest, dims, "", body, COMBINED[combiner](*spread))

    def operand(self, dims: str, *, exact: bool) -> Value:
        """A value with these dims, in an order of its own, that is there already or is an argument."""
        there = [value for value in self.values if {*value.dims} == {*dims} and np.abs(value.array).max(initial=0) < 64]
        if there and self.random.random() < (0.3 if exact else 0.6):
            return self.random.choice(there)
        lying = dims if self.random.random() < 0.7 else "".join(self.random.sample(dims, len(dims)))
        array = np.random.default_rng(self.random.randrange(1 << 30)).integers(
            -4, 5, [self.sizes[dim] for dim in lying]
        )
        value = Value(f"%x{len(self.arguments)}", lying, array.astype(np.float32))
        self.arguments.append(value)
        self.values.append(value)
        return value

    def empty(self, dims: str) -> Value:
        name = f"%e{len(self.lines)}"
        self.lines.append(f"{name} = tensor.empty() : {self.type(dims)}")
        return Value(name, dims, np.zeros([self.sizes[dim] for dim in dims], np.float32))

    def start(self, dims: str) -> Value:
        """What sums start from: zeros, something that is there, or what is computed for it."""
        same = [value for value in self.values if value.dims == dims]
        if same and self.random.random() < 0.3:
            return self.random.choice(same)
        if self.random.random() < 0.3:
            self.elementwise(dims)
            return self.values[-1]
        empty = self.empty(dims)
        self.emit([], empty, dims, "", ["%r = arith.constant 0.0 : f32"], empty.array)
        return self.values.pop()

    def emit(self, inputs: list[Value], dest: Value, dims: str, reduced: str, body: list[str], array: Array) -> None:
        """A structured op over some dims, and the value that it makes."""
        # Reductions stand anywhere among the dims.
        loops = self.random.sample(dims + reduced, len(dims) + len(reduced)) if reduced else [*dims]
        maps = [
            f"affine_map<({', '.join(loops)}) -> ({', '.join(each)})>" for each in [*(v.dims for v in inputs), dims]
        ]
        kinds = ", ".join('"reduction"' if dim in reduced else '"parallel"' for dim in loops)
        types = ", ".join(self.type(value.dims) for value in inputs)
        ins = f"ins({', '.join(value.name for value in inputs)} : {types})" if inputs else ""
        arguments = [*(f"%a{number}: f32" for number in range(len(inputs))), "%o: f32"]
        name = f"%v{len(self.lines)}"
        self.lines += [
            f"{name} = linalg.generic {{indexing_maps = [{', '.join(maps)}], iterator_types = [{kinds}]}}",
            f"{ins} outs({dest.name} : {self.type(dims)}) {{",
            f"^bb0({', '.join(arguments)}):",
            *body,
            f"linalg.yield %r : f32 }} -> {self.type(dims)}",
        ]
        self.values.append(Value(name, dims, array.astype(np.float32)))

    def arrays(self, values: list[Value]) -> list[Array]:
        return [value.array for value in values]

    def spread(self, array: Array, own: str, dims: str) -> Array:
        """An array whose dims lie in another order, as often as dims that it lacks say."""
        kept = [dim for dim in dims if dim in own]
        turned = np.transpose(array, [own.index(dim) for dim in kept])
        places = tuple(slice(None) if dim in own else None for dim in dims)
        return np.broadcast_to(turned[places], [self.sizes[dim] for dim in dims])

    def type(self, dims: str) -> str:
        return f"tensor<{''.join(f'{self.sizes[dim]}x' for dim in dims)}f32>"

    @property
    def result(self) -> Value:
        return self.values[-1]

    @property
    def text(self) -> str:
        types = [self.type(value.dims) for value in self.arguments]
        names = [value.name for value in self.arguments]
        parameters = ", ".join(f"{name}: {type}" for name, type in zip(names, types, strict=True))
        type = self.type(self.result.dims)
        body = "\n".join(f"  {line}" for line in self.lines)
        return (
            f"func.func private @k({parameters}) -> {type} {{\n{body}\n  func.return {self.result.name} : {type}\n}}\n"
            f"func.func @main({parameters}) -> {type} {{\n"
            f"  %r = func.call @k({', '.join(names)}) : ({', '.join(types)}) -> {type}\n  func.return %r : {type}\n}}\n"
        )


def check(folder: Path, seed: int, backend: Backend = "interpreter") -> bool:
    """Compare a kernel with NumPy; whether the compiler cut it."""
    kernel = Kernel(Random(seed))
    kernel.write()
    (folder / "kernel.mlir").write_text(kernel.text)
    # Those that `measure` may choose.
    pipeline = f"default, tile{{rank={kernel.random.choice((0, 0, -1, 1, 2, 3))}}}"
    engine = penstock.compile(folder / "kernel.mlir", MACHINES[seed % 3], backend=backend, pipeline=pipeline)
    assert isinstance(engine, penstock.Engine)
    (found,) = engine.run([value.array for value in kernel.arguments])
    np.testing.assert_array_equal(found, kernel.result.array, f"seed {seed}\n{kernel.text}")
    said = [str(each.attributes.get(TILING, "")) for each in kernels(engine.module)]
    assert not any(LEFT in text for text in said), f"seed {seed}: {said}\n{kernel.text}"
    return any(said)


@pytest.mark.parametrize("first", sweep(range(0, 1000, 50), [0]))
def test_random_kernels(tmp_path: Path, first: int) -> None:
    assert sum(check(tmp_path, seed) for seed in range(first, first + 50)) > 4


# Reductions that are no sums, of numbers that are large, small, or none.

SPECIAL = (1e30, 1e-30, -1e30, 1e-38, 3e38, 0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan)


def unsplit(seed: int) -> Kernel:
    """A reduction of floats along some dims that lie anywhere, what follows it, and numbers for it."""
    random = Random(seed)
    dims = "abc"[: random.choice((1, 2, 2, 3))]
    reduced = "".join(random.sample(dims, random.choice((1, min(2, len(dims))))))
    kept = "".join(dim for dim in dims if dim not in reduced)
    kernel = Kernel(random, {dim: random.choice((1, 2, 3, 5)) for dim in dims})
    kernel.sizes[reduced[0]] = random.choice((7, 16, 33, 64, 100, 257))
    shape = [kernel.sizes[dim] for dim in dims]
    array = np.resize(np.array(random.sample(SPECIAL, random.randint(2, len(SPECIAL))), np.float32), shape)
    if random.random() < 0.7:
        # Large and small factors in turn, whose product is near one at every point.
        array = np.where(np.indices(shape).sum(0) % 2, factor := 10.0 ** random.choice((4, 15, 30)), 1 / factor)
    array = array.astype(np.float32)
    array[np.random.default_rng(seed).random(array.shape) < 0.1] = 1
    x = Value("%x", dims, array)
    kernel.arguments.append(x)
    combiner, start = random.choice((*[("mulf", "1.0")] * 3, ("maximumf", "0xFF800000"), ("minimumf", "0x7F800000")))
    kernel.emit([], kernel.empty(kept), kept, "", [f"%r = arith.constant {start} : f32"], array)
    squared = ["%p = arith.mulf %a0, %a0 : f32"] if random.random() < 0.2 else []
    body = [*squared, f"%r = arith.{combiner} %o, {'%p' if squared else '%a0'} : f32"]
    kernel.emit([x], kernel.values[-1], kept, reduced, body, array)
    if random.random() < 0.4:
        kernel.emit([x, kernel.values[-1]], kernel.empty(dims), dims, "", ["%r = arith.maximumf %a0, %a1 : f32"], array)
    return kernel


def check_unsplit(folder: Path, seed: int, backend: Backend = "interpreter") -> None:
    kernel = unsplit(seed)
    (folder / "kernel.mlir").write_text(kernel.text)
    x = kernel.arguments[0].array
    ctx, module = parsed_in_context(kernel.text)
    (expected,) = run_module(module, [x], ctx.weights)
    # Those that `measure` may choose.
    pipeline = f"default, tile{{rank={kernel.random.choice((0, 0, -1, 1, 2, 3))}}}"
    engine = penstock.compile(folder / "kernel.mlir", MACHINES[seed % 3], backend=backend, pipeline=pipeline)
    assert isinstance(engine, penstock.Engine)
    with np.errstate(all="ignore"):
        (found,) = engine.run([x])
    np.testing.assert_array_equal(found, expected, f"seed {seed}\n{kernel.text}")


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
@pytest.mark.parametrize("first", sweep(range(0, 600, 40), [0]))
def test_products_and_maxima_of_any_numbers_are_those_of_the_kernel_as_given(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 40):
        check_unsplit(tmp_path, seed)
