# SPDX-License-Identifier: Apache-2.0
"""Random kernels whose dims are collapsed compute what they did, bit for bit; and what must not be collapsed stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from programs import parsed_in_context
from sampling import sweep
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.weights import WeightStore
from penstock.passes.analysis.kernels import kernels
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes

EXTENTS = (1, 2, 2, 3)


def tensor(shape: Sequence[int]) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}i32>"


@dataclass
class Writer:
    """A kernel of random structured ops, each of which reads what the one before makes."""

    random: Random
    indices: float = 0.1
    """The share of ops that read the index of a loop."""
    arguments: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    lines: list[str] = field(default_factory=list[str])
    count: int = 0

    def argument(self, shape: tuple[int, ...]) -> str:
        self.arguments.append(shape)
        return f"%x{len(self.arguments) - 1}"

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def reduction(self) -> tuple[str, tuple[int, ...]]:
        """An op of some loops of both kinds on arguments with random maps, and its shape."""
        random = self.random
        extents = [random.choice(EXTENTS) for _ in range(random.randint(2, 5))]
        kinds = [random.choice("ppppr") for _ in extents]
        parallel = self.order([loop for loop, kind in enumerate(kinds) if kind == "p"])
        maps = [self.map([*range(len(extents))], extents, 0.5) for _ in range(random.choice((0, 0, 1, 2)))]
        # One operand says how far each loop runs.
        whole = self.order([*range(len(extents))])
        maps.append([(f"d{loop}", extents[loop]) for loop in whole])
        inputs = [(self.argument(tuple(size for _, size in each)), each) for each in maps]
        dest = [(f"d{loop}", extents[loop]) for loop in parallel]
        return self.generic(kinds, inputs, dest), tuple(extents[loop] for loop in parallel)

    def pointwise(self, value: str, shape: tuple[int, ...]) -> str:
        """An op on a value and on part of its dims of others."""
        dims = [(f"d{dim}", size) for dim, size in enumerate(shape)]
        inputs = [(value, dims)]
        if self.random.random() < 0.6:
            part = [each for each in dims if self.random.random() < 0.6]
            inputs.append((self.argument(tuple(size for _, size in part)), part))
        return self.generic("p" * len(shape), inputs, dims)

    def pad(self, value: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        low, high = ([self.random.choice((0, 0, 0, 1)) for _ in shape] for _ in range(2))
        padded = tuple(a + size + b for a, size, b in zip(low, shape, high, strict=True))
        made, names = self.fresh(), ", ".join(f"%i{dim}: index" for dim in range(len(shape)))
        self.lines += [
            f"{made} = tensor.pad {value} low{low} high{high} {{",
            f"^bb0({names}):",
            "  %c = arith.constant 7 : i32",
            "  tensor.yield %c : i32",
            f"}} : {tensor(shape)} to {tensor(padded)}",
        ]
        return made, padded

    def order(self, loops: list[int]) -> list[int]:
        """Mostly as they are: what is indexed in another order is not collapsible."""
        return loops if self.random.random() < 0.9 else self.random.sample(loops, len(loops))

    def map(self, loops: list[int], extents: Sequence[int], share: float) -> list[tuple[str, int]]:
        """Some dims, by their indices and sizes: a loop, or a window of two."""
        found: list[tuple[str, int]] = []
        for loop in self.order([loop for loop in loops if self.random.random() < share]):
            other = self.random.choice(loops)
            if other != loop and self.random.random() < 0.25:
                found.append((f"2 * d{loop} + d{other}", 2 * (extents[loop] - 1) + extents[other]))
            else:
                found.append((f"d{loop}", extents[loop]))
        return found

    def generic(
        self,
        kinds: Sequence[str],
        inputs: Sequence[tuple[str, Sequence[tuple[str, int]]]],
        dest: Sequence[tuple[str, int]],
    ) -> str:
        """out = 3 * out + in0 - in1 + ...: the order of a reduction shows in its value."""
        dims = ", ".join(f"d{loop}" for loop in range(len(kinds)))
        exprs = [[expr for expr, _ in each] for each in (*(indices for _, indices in inputs), dest)]
        maps = ", ".join(f"affine_map<({dims}) -> ({', '.join(each)})>" for each in exprs)
        iterators = ", ".join('"parallel"' if kind == "p" else '"reduction"' for kind in kinds)
        types = [tensor([size for _, size in indices]) for _, indices in inputs]
        shape, made = tuple(size for _, size in dest), self.fresh()
        out, filled = tensor(shape), self.argument(shape)
        body = ["%t0 = arith.muli %o, %three : i32"]
        for number in range(len(inputs)):
            op = "addi" if number % 2 == 0 else "subi"
            body.append(f"%t{number + 1} = arith.{op} %t{number}, %a{number} : i32")
        last = f"%t{len(inputs)}"
        if kinds and self.random.random() < self.indices:
            loop = self.random.randrange(len(kinds))
            body += [f"%n = linalg.index {loop} : index", "%m = arith.index_cast %n : index to i32"]
            body += [f"%r = arith.muli %m, {last} : i32"]
            last = "%r"
        arguments = ", ".join(f"%{name}: i32" for name in [*(f"a{number}" for number in range(len(inputs))), "o"])
        self.lines += [
            f"{made} = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{iterators}]}}",
            f"  ins({', '.join(name for name, _ in inputs)} : {', '.join(types)}) outs({filled} : {out}) {{",
            f"^bb0({arguments}):",
            "  %three = arith.constant 3 : i32",
            *(f"  {line}" for line in body),
            f"  linalg.yield {last} : i32",
            f"}} -> {out}",
        ]
        return made


def random_kernel(seed: int) -> tuple[str, list[tuple[int, ...]]]:
    """The text of a module with a kernel that @main calls, and the shapes of its arguments."""
    writer = Writer(Random(seed))
    value, shape = writer.reduction()
    for _ in range(writer.random.randint(0, 2)):
        if writer.random.random() < 0.3 and shape:
            value, shape = writer.pad(value, shape)
        value = writer.pointwise(value, shape)
    return module_text(writer.lines, writer.arguments, value, shape), writer.arguments


def module_text(lines: Sequence[str], arguments: Sequence[tuple[int, ...]], value: str, shape: tuple[int, ...]) -> str:
    types = [tensor(each) for each in arguments]
    names = [f"%x{number}" for number in range(len(types))]
    listed = ", ".join(f"{name}: {type}" for name, type in zip(names, types, strict=True))
    body = "\n".join(f"  {line}" for line in lines)
    return f"""
func.func @main({listed}) -> {tensor(shape)} {{
  %y = func.call @k({", ".join(names)}) : ({", ".join(types)}) -> {tensor(shape)}
  func.return %y : {tensor(shape)}
}}
func.func private @k({listed}) -> {tensor(shape)} attributes {{device = @host}} {{
{body}
  func.return {value} : {tensor(shape)}
}}
"""


def collapsed(text: str) -> ModuleOp:
    """The module with its dims collapsed, verified."""
    ctx, module = parsed_in_context(text)
    attach_machine(module, "host-avx2")
    run_passes(ctx, module, read_pipeline("collapse-dims"))
    module.verify()
    return module


def compare(seed: int) -> bool:
    """Compare a random kernel with itself collapsed; whether that changed it."""
    text, shapes = random_kernel(seed)
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(-(2**31), 2**31, shape, np.int32) for shape in shapes]
    before, after = parsed_in_context(text)[1], collapsed(text)
    (expected,), (found,) = (run_module(module, arrays, WeightStore()) for module in (before, after))
    np.testing.assert_array_equal(found, expected, err_msg=f"seed {seed}\n{text}")
    (old,), (new,) = ([*kernels(module)] for module in (before, after))
    return old.function_type != new.function_type


@pytest.mark.parametrize("first", sweep(range(0, 2000, 100), quick=[0]))
def test_collapsed_kernels_compute_the_same_bits(first: int) -> None:
    changed = sum(compare(seed) for seed in range(first, first + 100))
    assert 20 < changed < 80, "of too few kernels dims are collapsed, or of nearly all"


ROWS = [f"d{dim}" for dim in range(3)]


def one_generic(maps: Sequence[Sequence[str]], kinds: str, body: str = "", shape: tuple[int, ...] = (2, 3, 4)) -> str:
    """The shape of the first argument of a kernel of one op on tensors with these maps, collapsed."""
    sizes = {f"d{dim}": size for dim, size in enumerate(shape)}
    writer = Writer(Random(0), indices=0)
    inputs = [[(each, sizes[each]) for each in index_map] for index_map in maps]
    *reads, dest = inputs
    value = writer.generic(kinds, [(writer.argument(tuple(s for _, s in each)), each) for each in reads], dest)
    lines = [line.replace("linalg.yield", f"{body}\n  linalg.yield") for line in writer.lines]
    text = module_text(lines, writer.arguments, value, tuple(size for _, size in dest))
    (kernel,) = kernels(collapsed(text))
    return str(kernel.function_type.inputs.data[0])


def test_all_dims_are_collapsed_where_nothing_separates_them() -> None:
    assert one_generic([ROWS, ROWS], "ppp") == "tensor<24xi32>"


@pytest.mark.parametrize(("dim", "left"), [(0, "2x12"), (1, "2x3x4"), (2, "6x4")])
def test_a_loop_whose_index_is_read_stays(dim: int, left: str) -> None:
    assert one_generic([ROWS, ROWS], "ppp", f"%n = linalg.index {dim} : index") == f"tensor<{left}xi32>"


@pytest.mark.parametrize(("kinds", "left"), [("ppr", "6x4"), ("prr", "2x12"), ("prp", "2x3x4")])
def test_loops_of_two_kinds_stay_apart(kinds: str, left: str) -> None:
    dest = [name for name, kind in zip(ROWS, kinds, strict=True) if kind == "p"]
    assert one_generic([ROWS, dest], kinds) == f"tensor<{left}xi32>"


@pytest.mark.parametrize(("other", "left"), [(["d0"], "2x12"), (["d2"], "6x4"), (["d0", "d2"], "2x3x4")])
def test_an_operand_without_one_of_them_keeps_them_apart(other: list[str], left: str) -> None:
    assert one_generic([ROWS, other, ROWS], "ppp") == f"tensor<{left}xi32>"


def test_a_transposed_operand_keeps_them_apart() -> None:
    assert one_generic([ROWS, ["d1", "d0", "d2"], ROWS], "ppp") == "tensor<2x3x4xi32>"


@pytest.mark.parametrize(("low", "left"), [([1, 0, 0], "2x12"), ([0, 1, 0], "2x3x4"), ([0, 0, 0], "24")])
def test_padded_dims_stay_apart(low: list[int], left: str) -> None:
    padded = tuple(size + edge for size, edge in zip((2, 3, 4), low, strict=True))
    lines = [
        f"%p = tensor.pad %x0 low{low} high[0, 0, 0] {{",
        "^bb0(%i: index, %j: index, %k: index):",
        "  %c = arith.constant 7 : i32",
        "  tensor.yield %c : i32",
        f"}} : {tensor((2, 3, 4))} to {tensor(padded)}",
    ]
    (kernel,) = kernels(collapsed(module_text(lines, [(2, 3, 4)], "%p", padded)))
    assert str(kernel.function_type.inputs.data[0]) == f"tensor<{left}xi32>"
