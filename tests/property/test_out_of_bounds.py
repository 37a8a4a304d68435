# SPDX-License-Identifier: Apache-2.0
"""
Random accesses at numbers that are read from memory, of which some are out of bounds: C and LLVM compute the bits of
the interpreter where it computes any, and have a fault where it refuses; memory around the arrays stays as it is.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from in_c import load_llvm, load_native, needs_compiler
from programs import parsed
from sampling import sweep

from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import WeightStore
from penstock.runtime.interpreter import run_module
from penstock.runtime.llvm import has_llvm

ROWS, COLUMNS, NUMBERS = 6, 8, 12
ODD = (-1, -2, 5, 6, 7, 9, 40, 1 << 31, 1 << 40, 1 << 62, -(1 << 62), (1 << 63) - 1, -(1 << 63))
MATRIX = f"memref<{ROWS}x{COLUMNS}xf32>"
OPEN = "memref<?x?xf32, strided<[8, 1], offset: ?>>"


def element(random: Random) -> str:
    """One element."""
    return f"""%v = memref.load %x[%i0, %i1] : {MATRIX}
    memref.store %v, %y[%i2, %i3] : {MATRIX}"""


def window(random: Random) -> str:
    """A part of a known size."""
    steps = random.choice(((1, 1), (2, 1), (1, 2), (3, 2)))
    layout = f"strided<[{8 * steps[0]}, {steps[1]}], offset: ?>"
    return f"""%p = memref.subview %x[%i0, %i1] [2, 3] [{steps[0]}, {steps[1]}] : {MATRIX} to memref<2x3xf32, {layout}>
    %q = memref.subview %y[%i2, %i3] [2, 3] [1, 1] : {MATRIX} to memref<2x3xf32, strided<[8, 1], offset: ?>>
    mem.copy %p to %q : memref<2x3xf32, {layout}> to memref<2x3xf32, strided<[8, 1], offset: ?>>"""


def box(random: Random) -> str:
    """A transfer from a window without padding."""
    return f"""%b = mem.buffer at 0 : memref<2x3xf32>
    mem.copy %x[%i0, %i1] to %b : {MATRIX} to memref<2x3xf32>
    %q = memref.subview %y[1, 2] [2, 3] [1, 1] : {MATRIX} to memref<2x3xf32, strided<[8, 1], offset: 10>>
    mem.copy %b to %q : memref<2x3xf32> to memref<2x3xf32, strided<[8, 1], offset: 10>>"""


def part(random: Random) -> str:
    """Parts whose sizes are read, copied or summed; now and then they are not the same."""
    other = random.choice(("%i4, %i5", "%i4, %i5", "%i4, %i5", "%i6, %i5"))
    parts = f"""%p = memref.subview %x[%i0, %i1] [%i4, %i5] [1, 1] : {MATRIX} to {OPEN}
    %q = memref.subview %y[%i2, %i3] [{other}] [1, 1] : {MATRIX} to {OPEN}
    """
    if random.random() < 0.5:
        return f'{parts}"memref.copy"(%p, %q) : ({OPEN}, {OPEN}) -> ()'
    identity = "affine_map<(d0, d1) -> (d0, d1)>"
    return f"""{parts}linalg.generic {{
        indexing_maps = [{identity}, {identity}], iterator_types = ["parallel", "parallel"]}}
        ins(%p : {OPEN}) outs(%q : {OPEN}) {{
    ^bb0(%a: f32, %b: f32):
      %s = arith.addf %a, %b : f32
      linalg.yield %s : f32
    }}"""


def apart(random: Random) -> str:
    """Elements of a row, as far apart as is read: of one alone that may be any distance."""
    row = "memref<?xf32, strided<[?], offset: ?>>"
    return f"""%p = memref.subview %x[%i0, %i1] [1, %i4] [1, %i5] : {MATRIX} to {row}
    %v = memref.load %p[%c0] : {row}
    memref.store %v, %y[%i2, %i3] : {MATRIX}"""


def cast(random: Random) -> str:
    """Another view of the same memory."""
    shape, sizes, strides, steps = random.choice((
        ("?x?", "%i4, %i5", "8, 1", "8, 1"),
        ("?x?", "%i4, %i5", "%i6, 1", "?, 1"),
        ("2x?", "2, %i4", "%i5, 2", "?, 2"),
    ))  # fmt: skip
    type = f"memref<{shape}xf32, strided<[{steps}], offset: ?>>"
    return f"""%p = memref.reinterpret_cast %x to offset: [%i0], sizes: [{sizes}], strides: [{strides}]
        : {MATRIX} to {type}
    %v = memref.load %p[%i1, %i2] : {type}
    memref.store %v, %y[%c1, %c1] : {MATRIX}"""


def split(random: Random) -> str:
    """A dim made two."""
    return f"""%f = memref.collapse_shape %x [[0, 1]] : {MATRIX} into memref<48xf32>
    %p = memref.subview %f[0] [%i4] [1] : memref<48xf32> to memref<?xf32, strided<[1]>>
    %e = memref.expand_shape %p [[0, 1]] output_shape [%i5, %i6]
        : memref<?xf32, strided<[1]>> into memref<?x?xf32, strided<[?, 1]>>
    %v = memref.load %e[%i0, %i1] : memref<?x?xf32, strided<[?, 1]>>
    memref.store %v, %y[%c1, %c1] : {MATRIX}"""


def slot(random: Random) -> str:
    """A slot of a ring."""
    return f"""%r = mem.ring 3 at 0 : !mem.ring<memref<2x3xf32>>
    %s = mem.slot %r[%i0] : !mem.ring<memref<2x3xf32>>
    mem.copy %x[1, 1] to %s : {MATRIX} to memref<2x3xf32>
    %v = memref.load %s[%c1, %c2] : memref<2x3xf32>
    memref.store %v, %y[%i1, %i2] : {MATRIX}"""


def loop(random: Random) -> str:
    """A row from and to where it is read, as far as is read."""
    # Code goes on after a fault, so that the loop must not be endless.
    return f"""%forty = arith.constant 40 : index
    %end = arith.minsi %i4, %forty : index
    scf.for %k = %c0 to %end step %c1 {{
      %at = arith.addi %k, %i1 : index
      %v = memref.load %x[%i0, %at] : {MATRIX}
      memref.store %v, %y[%i2, %k] : {MATRIX}
    }}"""


def filtered(random: Random) -> str:
    """Sums of windows, of parts whose sizes are read."""
    row = "memref<?xf32, strided<[1], offset: ?>>"
    index_maps = ", ".join(f"affine_map<(d0, d1) -> ({each})>" for each in ("d0 + d1", "d1", "d0"))
    return f"""%p = memref.subview %x[%i0, 0] [1, %i4] [1, 1] : {MATRIX} to {row}
    %w = memref.subview %x[1, 0] [1, %i5] [1, 1] : {MATRIX} to memref<?xf32, strided<[1], offset: 8>>
    %q = memref.subview %y[%i1, 0] [1, %i6] [1, 1] : {MATRIX} to {row}
    linalg.generic {{indexing_maps = [{index_maps}], iterator_types = ["parallel", "reduction"]}}
        ins(%p, %w : {row}, memref<?xf32, strided<[1], offset: 8>>) outs(%q : {row}) {{
    ^bb0(%a: f32, %b: f32, %c: f32):
      %m = arith.mulf %a, %b : f32
      %s = arith.addf %c, %m : f32
      linalg.yield %s : f32
    }}"""


KINDS = (element, window, box, part, part, apart, cast, split, slot, loop, filtered)


def drawn(seed: int) -> tuple[str, list[int]]:
    """A program, and the numbers that it reads."""
    random = Random(seed)
    reads: list[str] = []
    for number in range(7):
        reads.append(f"%c{number} = arith.constant {number} : index")
        reads.append(f"%n{number} = memref.load %n[%c{number}] : memref<{NUMBERS}xi64>")
        reads.append(f"%i{number} = arith.index_cast %n{number} : i64 to index")
    body = "\n    ".join([*reads, random.choice(KINDS)(random)])
    text = f"""func.func @main(%x: {MATRIX}, %n: memref<{NUMBERS}xi64>, %y: {MATRIX} {{graph.output = "y"}}) {{
    mem.copy %x to %y : {MATRIX} to {MATRIX}
    {body}
    func.return
    }}"""
    odd = random.choice((0, 0, 0.1, 0.3))
    # From the fourth on they are sizes: of what is empty, generated code refuses more than the interpreter.
    firsts = [0] * 4 + [1] * (NUMBERS - 4)
    return text, [random.choice(ODD) if random.random() < odd else random.randint(first, 4) for first in firsts]


def check(seed: int) -> str:
    """The result of the interpreter and of generated code for one program: `computed` or `refused`."""
    text, numbers = drawn(seed)
    guard = np.full(ROWS * COLUMNS + 64, 7, np.float32)
    x = guard[32:-32].reshape(ROWS, COLUMNS)
    x[...] = np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS)
    inputs = [x, np.array(numbers)]
    try:
        (expected,) = run_module(parsed(text), inputs, WeightStore())
    except UserError:
        expected = None
    for load in (load_native, *([load_llvm] if has_llvm() else [])):
        code = load(parsed(text))
        if expected is None:
            with pytest.raises(UserError, match="out of bounds"):
                code.run(inputs)
        else:
            (found,) = code.run(inputs)
            np.testing.assert_array_equal(found, expected, f"seed {seed}, {numbers}\n{text}")
    assert np.all(guard[:32] == 7)
    assert np.all(guard[-32:] == 7)
    return "refused" if expected is None else "computed"


@pytest.mark.parametrize("first", sweep(range(0, 400, 40), [0]))
def test_what_is_out_of_bounds_is_a_fault_everywhere(first: int) -> None:
    needs_compiler()
    seen = {check(seed) for seed in range(first, first + 40)}
    assert seen == {"computed", "refused"}
