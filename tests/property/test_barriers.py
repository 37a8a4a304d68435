# SPDX-License-Identifier: Apache-2.0
"""Random iterations that run at once: with the barriers that are put in, none races, and no barrier is too many."""

from __future__ import annotations

from itertools import count
from random import Random

import numpy as np
import pytest
from programs import verified
from sampling import sweep
from xdsl.dialects import gpu
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.diagnostics import UserError
from penstock.dialects.upstream.scf import ForallOp
from penstock.passes.loop.forall_to_for import run_in_order
from penstock.passes.schedule.primitives.insert_barriers import insert_barriers
from penstock.runtime.interpreter import run_function

SIZE = 8
OWN = ("%i", "%last", "%far", "%lastfar")
"""Indices that are another one in each iteration."""
INDICES = (*OWN, "%next", "%zero", "%five")
ORDERS = ("asap", "alap", 0, 1)
NAMES = ("a", "b", "c")

Statement = tuple[str, ...] | tuple[str, list["Statement"]]


def statement(random: Random) -> Statement:
    """`a[f(i)] = b[g(i)] + c[h(i)]`, as the names of arrays and indices."""
    chosen = [random.choice(OWN), random.choice(INDICES), random.choice(INDICES)]
    return tuple(each for index in chosen for each in (random.choice(NAMES), index))


def statements(random: Random) -> list[Statement]:
    """Statements, and loops of some, each with its number of trips."""
    found: list[Statement] = []
    for _ in range(random.randint(1, 5)):
        inner = [statement(random) for _ in range(random.randint(1, 3))]
        found.append(inner[0] if random.random() < 0.6 else (random.choice("123"), inner))
    return found


def text_of(body: list[Statement]) -> str:
    """A function of four threads that do these statements."""
    numbers = count()

    def lines(body: list[Statement]) -> str:
        found = ""
        for each in body:
            if isinstance(each[1], list):
                found += f"scf.for %k{next(numbers)} = %zero to %t{each[0]} step %one {{ {lines(each[1])} }}\n"
                continue
            dest, at, left, where, right, elsewhere = map(str, each)
            n = next(numbers)
            found += f"""
              %l{n} = memref.load %{left}[{where}] : memref<8xf32>
              %r{n} = memref.load %{right}[{elsewhere}] : memref<8xf32>
              %s{n} = arith.addf %l{n}, %r{n} : f32
              memref.store %s{n}, %{dest}[{at}] : memref<8xf32>"""
        return found

    arguments = ", ".join(f"%{name}: memref<8xf32>" for name in NAMES)
    return f"""
    func.func @f({arguments}) {{
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %t1 = arith.constant 1 : index
      %t2 = arith.constant 2 : index
      %t3 = arith.constant 3 : index
      %four = arith.constant 4 : index
      %five = arith.constant 5 : index
      scf.forall (%i) in (4) {{
        %last = arith.subi %t3, %i : index
        %far = arith.addi %i, %four : index
        %lastfar = arith.addi %last, %four : index
        %up = arith.addi %i, %one : index
        %next = arith.remui %up, %four : index
        {lines(body)}
      }} {{mapping = [#gpu.thread<x>]}}
      func.return
    }}"""


def result(module: ModuleOp, order: str | int) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    arrays = [np.arange(SIZE, dtype=np.float32) + 10 * number for number in range(len(NAMES))]
    run_function(module, "f", arrays, interleaving=order)  # pyright: ignore[reportArgumentType]
    return arrays


@pytest.mark.parametrize("seed", sweep(range(200), range(6)))
def test_barriers_are_enough_and_none_is_too_many(seed: int) -> None:
    module = verified(text_of(statements(Random(seed))))
    (forall,) = (op for op in module.walk() if isinstance(op, ForallOp))
    insert_barriers(forall)
    expected = result(module, "program")
    for order in ORDERS:
        np.testing.assert_array_equal(result(module, order), expected)
    sequential = module.clone()
    run_in_order(sequential)
    np.testing.assert_array_equal(result(sequential, "program"), expected)
    for number in range(sum(isinstance(op, gpu.BarrierOp) for op in module.walk())):
        without = module.clone()
        [op for op in without.walk() if isinstance(op, gpu.BarrierOp)][number].detach()
        with pytest.raises(UserError, match="data race"):
            result(without, 0)
