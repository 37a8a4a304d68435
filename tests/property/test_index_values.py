# SPDX-License-Identifier: Apache-2.0
"""
Random arithmetic on indices that are computed from data, some of which wrap around: the interpreter, C and LLVM have
the same bits, in a structured op and in a loop over elements.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from in_c import agrees_by_llvm, load_native, needs_compiler
from programs import parsed
from sampling import sweep

from penstock.dialects.weights import WeightStore
from penstock.runtime.interpreter import run_module

LEAST, MOST = -(1 << 63), (1 << 63) - 1
NUMBERS = (0, 1, 2, 3, 5, -1, -2, 7, 1 << 31, 1 << 32, -(1 << 40), 1 << 61, 1 << 62, LEAST, LEAST + 1, MOST, MOST - 1)
FACTORS = (1, 2, 3, 5, -1, -2, 7, 1 << 31, -(1 << 30))
"""Of affine maps, which multiply two of them as they are read."""
INFIX = ("addi", "addi", "subi", "subi", "muli", "muli", "minsi", "maxsi", "minui", "maxui", "andi", "ori", "xori")
DIVISIONS = ("divsi", "remsi", "floordivsi", "ceildivsi", "divui", "remui", "ceildivui")
PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")


def affine_sum(random: Random, depth: int) -> str:
    """An affine expression of `d0` and `d1`."""
    if depth == 0 or random.random() < 0.2:
        return random.choice(("d0", "d1"))
    inner = affine_sum(random, depth - 1)
    kind = random.choice(("+", "+", "*", "floordiv", "ceildiv", "mod"))
    if kind == "+":
        other = random.choice((affine_sum(random, depth - 1), str(random.choice(FACTORS))))
        return f"({inner} + {other})"
    number = random.choice(FACTORS if kind == "*" else (1, 2, 3, 8, 1 << 40, (1 << 62) + 1, MOST))
    return f"({inner} {kind} {number})"


def arithmetic(random: Random, first: list[str]) -> list[str]:
    """Lines that compute the i64 `%result` from some indices."""
    known, lines = [*first], list[str]()

    def emit(text: str) -> None:
        lines.append(f"%v{len(lines)} = {text}")
        known.append(f"%v{len(lines) - 1}")

    for _ in range(random.randint(1, 6)):
        left, right = random.choice(known), random.choice(known)
        if random.random() < 0.5:
            emit(f"arith.constant {random.choice(NUMBERS)} : index")
            right = known[-1]
        kind = random.random()
        if kind < 0.55:
            emit(f"arith.{random.choice(INFIX)} {left}, {right} : index")
        elif kind < 0.7:
            emit(f"arith.constant {random.choice((1, 2, 3, 8, 10, MOST))} : index")
            emit(f"arith.{random.choice(DIVISIONS)} {left}, {known[-1]} : index")
        elif kind < 0.8:
            results = [affine_sum(random, random.randint(1, 2)) for _ in range(random.randint(1, 2))]
            index_map = f"affine_map<(d0, d1) -> ({', '.join(results)})>"
            name = "apply" if len(results) == 1 else "min"
            emit(f'"affine.{name}"({left}, {right}) <{{map = {index_map}}}> : (index, index) -> index')
        elif kind < 0.9:
            lines.append(f"%c{len(lines)} = arith.cmpi {random.choice(PREDICATES)}, {left}, {right} : index")
            chosen = lines[-1].split()[0]
            emit(f"arith.select {chosen}, {left}, {random.choice(known)} : index")
        else:
            width = random.choice((8, 16, 32))
            lines.append(f"%n{len(lines)} = arith.index_cast {left} : index to i{width}")
            emit(f"arith.index_cast {lines[-1].split()[0]} : i{width} to index")
    if random.random() < 0.5:
        # What compilers fold where they take it that nothing wraps.
        base, number = random.choice(first), random.choice(NUMBERS[1:])
        emit(f"arith.constant {number} : index")
        constant = known[-1]
        infix = random.choice(("addi", "subi", "muli"))
        emit(f"arith.{infix} {base}, {constant} : index")
        if infix == "muli" and number > 0:
            emit(f"arith.{random.choice(DIVISIONS[:4])} {known[-1]}, {constant} : index")
        else:
            lines.append(f"%c{len(lines)} = arith.cmpi {random.choice(PREDICATES[2:6])}, {known[-1]}, {base} : index")
            emit(f"arith.select {lines[-1].split()[0]}, {constant}, {random.choice(known[:-1])} : index")
    return [*lines, f"%result = arith.index_cast {known[-1]} : index to i64"]


def programs(seed: int) -> tuple[str, str]:
    """The same arithmetic in a structured op, and in a loop over elements."""
    random = Random(seed)
    body = "\n".join(arithmetic(random, ["%i", "%j", "%k"]))
    arguments = ", ".join(f'%{name}: memref<8xi64> {{graph.name = "{name}"}}' for name in "xy")
    arguments += ', %z: memref<8xi64> {graph.output = "z"}'
    identity = "affine_map<(i) -> (i)>"
    casts = "%i = arith.index_cast %a : i64 to index\n%j = arith.index_cast %b : i64 to index"
    structured = f"""func.func @main({arguments}) {{
      linalg.generic {{indexing_maps = [{identity}, {identity}, {identity}], iterator_types = ["parallel"]}}
          ins(%x, %y : memref<8xi64>, memref<8xi64>) outs(%z : memref<8xi64>) {{
      ^bb0(%a: i64, %b: i64, %out: i64):
        {casts}
        %k = linalg.index 0 : index
        {body}
        linalg.yield %result : i64
      }}
      func.return
    }}"""
    looped = f"""func.func @main({arguments}) {{
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %eight = arith.constant 8 : index
      scf.for %k = %zero to %eight step %one {{
        %a = memref.load %x[%k] : memref<8xi64>
        %b = memref.load %y[%k] : memref<8xi64>
        {casts}
        {body}
        memref.store %result, %z[%k] : memref<8xi64>
      }}
      func.return
    }}"""
    return structured, looped


def check(seed: int, *, in_c: bool) -> None:
    structured, looped = programs(seed)
    random = Random(seed)
    inputs = [np.array([random.choice(NUMBERS) for _ in range(8)]) for _ in "xy"]
    # Ops of `affine` have no meaning in the body of a structured op.
    texts = (looped,) if '"affine.' in looped else (looped, structured)
    with np.errstate(all="ignore"):
        (expected,), *others = (run_module(parsed(text), inputs, WeightStore()) for text in texts)
    for (other,) in others:
        np.testing.assert_array_equal(other, expected, f"seed {seed}\n{looped}")
    for text in texts:
        if in_c:
            (found,) = load_native(parsed(text)).run(inputs)
            np.testing.assert_array_equal(found, expected, f"C, seed {seed}\n{text}")
        agrees_by_llvm(parsed(text), inputs, [expected])


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("first", sweep(range(0, 600, 60), [0]))
def test_indices_from_data_wrap_around(first: int) -> None:
    needs_compiler()
    for seed in range(first, first + 60):
        check(seed, in_c=seed % 20 == 0)
