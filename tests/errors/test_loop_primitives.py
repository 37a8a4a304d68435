# SPDX-License-Identifier: Apache-2.0
"""Primitives on loops that are not legal: each says why, at the schedule's line, and leaves the program alone."""

from __future__ import annotations

import re

import pytest
from programs import parsed_in_context
from schedules import apply_schedule

from penstock.dialects.diagnostics import UserError

HEADER = """
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c4 = arith.constant 4 : index
  %c8 = arith.constant 8 : index
"""


def kernel(body: str, element: str = "f32", shape: str = "9x9") -> str:
    type = f"memref<{shape}x{element}>"
    return f"func.func @k(%a: {type}, %b: {type}, %n: index) {{{HEADER}{body}\nfunc.return\n}}"


def nest(*body: str, outer: str = "%c8", inner: str = "%c8") -> str:
    lines = "\n".join(body)
    return f"""scf.for %i = %c0 to {outer} step %c1 {{
      scf.for %j = %c0 to {inner} step %c1 {{
        {lines}
      }}
    }}"""


LOAD = "%v = memref.load %a[{}] : memref<9x9xf32>"
STORE = "memref.store %v, %{}[{}] : memref<9x9xf32>"
UP = "%down = arith.addi %i, %c1 : index\n%right = arith.addi %j, %c1 : index"
SUM = """linalg.generic {{indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (0)>],
      iterator_types = ["reduction"]}} ins(%x : memref<8x{0}>) outs(%s : memref<1x{0}>) {{
    ^bb0(%l: {0}, %m: {0}):
      %t = arith.{1} %m, %l : {0}
      linalg.yield %t : {0}
    }}"""


def row_sums(element: str, op: str) -> str:
    """Sums over both loops into one element."""
    return f"""func.func @k(%x: memref<8x{element}>, %s: memref<1x{element}>) {{{HEADER}
      {nest(SUM.format(element, op))}
      func.return
    }}"""


WAVE = kernel(nest(UP, LOAD.format("%down, %j"), STORE.format("a", "%i, %right")))
COPY = kernel(nest(LOAD.format("%i, %j"), STORE.format("b", "%i, %j")))
SHIFT = kernel(nest(UP, LOAD.format("%i, %j"), STORE.format("a", "%i, %right")))
BETWEEN = kernel("""scf.for %i = %c0 to %c8 step %c1 {
      %w = memref.load %a[%i, %c0] : memref<9x9xf32>
      scf.for %j = %c0 to %c8 step %c1 {
        memref.store %w, %b[%i, %j] : memref<9x9xf32>
      }
    }""")
DYNAMIC = kernel(nest(LOAD.format("%i, %j"), STORE.format("b", "%i, %j"), inner="%n"))
TWO = kernel("""scf.for %i = %c0 to %c8 step %c1 {
      %next = arith.addi %i, %c1 : index
      %v = memref.load %a[%i, %c0] : memref<9x9xf32>
      memref.store %v, %b[%i, %c0] : memref<9x9xf32>
      %w = memref.load %b[%i, %c0] : memref<9x9xf32>
      memref.store %w, %a[%next, %c0] : memref<9x9xf32>
    }""")
CARRIED = """func.func @k(%a: memref<8xf32>) -> f32 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %zero = arith.constant 0.0 : f32
  %r = scf.for %i = %c0 to %c8 step %c1 iter_args(%s = %zero) -> (f32) {
    %v = memref.load %a[%i] : memref<8xf32>
    %t = arith.addf %s, %v : f32
    scf.yield %t : f32
  }
  func.return %r : f32
}"""
BUFFER = kernel("""%buf = mem.buffer : memref<4x6xf32>
    %flat = memref.collapse_shape %buf [[0, 1]] : memref<4x6xf32> into memref<24xf32>""")
PLACED = kernel("%buf = mem.buffer at 64 : memref<4x6xf32>")
FREE = kernel("%buf = mem.buffer : memref<4x6xf32>")

RING = kernel(
    """%ring = mem.ring 2 : !mem.ring<memref<1x1xf32>>
    """
    + nest(
        "%number = arith.addi %i, %j : index",
        "%slot = mem.slot %ring[%number] : !mem.ring<memref<1x1xf32>>",
        "BODY",
    )
)
FILL = "mem.copy %a[%i, %j] to %slot : memref<9x9xf32> to memref<1x1xf32>"
EMPTY = "mem.copy %slot to %b[%i, %j] : memref<1x1xf32> to memref<9x9xf32>"

REFUSED = {
    "iterations that find in a ring what others have left": (
        RING.replace("BODY", f"{EMPTY}\n{FILL}"),
        "schedule.reorder %j, %i",
        r"the order %j, %i reverses a dependence\n(.*\n)*note: mem.copy .* reads %ring, which mem.copy",
    ),
    "an order that reverses a dependence": (
        WAVE,
        "schedule.reorder %j, %i",
        r"schedule:2:1: error: the order %j, %i reverses a dependence\n.*\nnote: memref.load "
        r"\(test.mlir:\d+:\d+\) reads %a, which memref.store \(test.mlir:\d+:\d+\) writes "
        r"1 iteration of %i later and 1 iteration of %j earlier: "
        r"direction \(<, >\)",
    ),
    "another order of sums of floats": (
        row_sums("f32", "addf"),
        "schedule.reorder %j, %i",
        r"the order %j, %i reverses a dependence\n.*\n.*linalg.generic .* adds to %s, which the same op adds to "
        r"1 iteration of %i later and 1 iteration of %j earlier.*\n.*`reassociate` permits that",
    ),
    "a nest that is not perfect": (
        BETWEEN,
        "schedule.reorder %j, %i",
        r"the nest of %i and %j is not perfect: memref.load is between them",
    ),
    "bounds that are not constant": (DYNAMIC, "schedule.reorder %j, %i", "the bounds of %j are not constant"),
    "one loop in another order": (COPY, "schedule.reorder %j", "two loops or more are reordered, each listed once"),
    "a factor that is too large": (
        COPY,
        "%o, %n, %t = schedule.split %j by 9",
        r"%j has 8 iterations: strips of 9 cannot be made of them\n(.*\n)*note: a factor is from 1 to 8",
    ),
    "a loop that carries a sum": (
        CARRIED,
        "%o, %n, %t = schedule.split %i by 2",
        r"%i carries values from one iteration to the next \(iter_args\)",
    ),
    "fusing what is not nested": (COPY, "%f = schedule.fuse %j, %i", "%i is not in a nest of loops with %j"),
    "vectors across a dependence": (
        SHIFT,
        "schedule.vectorize %j",
        r"%j cannot be vectorized\n(.*\n)*note: memref.store .* writes %a, which memref.load .* reads "
        r"1 iteration of %j later: direction \(<\)",
    ),
    "vectors of sums": (
        row_sums("i32", "addi"),
        "schedule.vectorize %j",
        r"%j cannot be vectorized\n(.*\n)*note: linalg.generic .* adds to %s, which the same op adds to 1 "
        r"iteration of %j",
    ),
    "vectors of an outer loop": (COPY, "schedule.vectorize %i", r"it is not innermost: it contains scf.for"),
    "distribution against a dependence": (
        TWO,
        "%f, %s = schedule.distribute %i before %w",
        r"%i cannot be distributed: a dependence would be reversed\n(.*\n)*note: memref.store .* writes %a, which "
        r"memref.load .* reads 1 iteration of %i later",
    ),
    "distribution of a value": (
        COPY,
        '%p = transform.structured.match ops{["memref.store"]} in %kernel : (!transform.any_op) -> !transform.any_op\n'
        "%f, %s = schedule.distribute %j before %p",
        r"%j cannot be distributed: memref.store uses what memref.load yields in the same iteration",
    ),
    "distribution before the first op": (
        COPY,
        "%f, %s = schedule.distribute %j before %v",
        "memref.load is not in the body of %j with something before it",
    ),
    "unrolling without a number of iterations": (
        DYNAMIC,
        "transform.loop.unroll %j {factor = 2} : !transform.any_op",
        "the bounds of %j are not constant",
    ),
    "peeling what divides, where it must not": (
        COPY,
        '%c = transform.cast %j : !transform.any_op to !transform.op<"scf.for">\n'
        "%m, %r = transform.loop.peel %c {fail_if_already_divisible = true}"
        ' : (!transform.op<"scf.for">) -> (!transform.any_op, !transform.any_op)',
        "the step of %j divides its range: nothing is to be peeled",
    ),
    "a layout that something relies on": (
        BUFFER,
        "schedule.storage_align %buf dim 0 to 8",
        "memref.collapse_shape needs the layout that this buffer has",
    ),
    "a buffer that has its place": (PLACED, "schedule.storage_align %buf dim 0 to 8", "has its place already"),
    "rows along the last dim": (
        FREE,
        "schedule.storage_align %buf dim 1 to 8",
        "memref<4x6xf32> has no rows along dim 1: an outer dim is meant, from 0 to 0",
    ),
    "a loop that has been replaced": (
        COPY,
        "%o, %n, %t = schedule.split %j by 2\nschedule.vectorize %j",
        r"schedule:3:1: error: %j is used after schedule.split has replaced what it stood for",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_legal_is_refused_at_its_line(what: str) -> None:
    text, schedule, message = REFUSED[what]
    ctx, module = parsed_in_context(text)
    before = str(module)
    *legal, _ = schedule.splitlines()
    with pytest.raises(UserError) as refused:
        apply_schedule(ctx, module, schedule)
    assert re.search(message, str(refused.value)), str(refused.value)
    assert str(refused.value).startswith("schedule:")
    if not any("schedule.split" in line for line in legal):
        assert str(module) == before


LEGAL = {
    "a ring that every iteration fills before it reads it": (
        RING.replace("BODY", f"{FILL}\n{EMPTY}"),
        "schedule.reorder %j, %i",
    ),
    "another order of sums of integers": (row_sums("i32", "addi"), "schedule.reorder %j, %i"),
    "another order of sums of floats that may be": (row_sums("f32", "addf"), "schedule.reorder reassociate %j, %i"),
    "largest elements of floats": (row_sums("f32", "maximumf"), "schedule.reorder %j, %i"),
}


@pytest.mark.parametrize("what", LEGAL)
def test_what_does_not_depend_on_the_order_is_reordered(what: str) -> None:
    text, schedule = LEGAL[what]
    ctx, module = parsed_in_context(text)
    before = str(module)
    apply_schedule(ctx, module, schedule)
    assert str(module) != before
