# SPDX-License-Identifier: Apache-2.0
"""Primitives on loops as text, in Python, and in the C that is generated."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest
from in_c import agree, main, memref
from programs import parsed_in_context
from schedules import apply_schedule
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from penstock.dialects.diagnostics import UserError
from penstock.dialects.mem import BufferOp, memref_of, static_strides
from penstock.lowering.to_c.module import emit_c
from penstock.passes.schedule.schedule import Schedule

SEQUENCE = """builtin.module attributes {transform.with_named_sequence} {
  transform.named_sequence @k(%kernel: !transform.any_op, %i: !transform.any_op, %j: !transform.any_op) {
    schedule.reorder %i, %j
    schedule.reorder reassociate %j, %i
    %first, %second = schedule.distribute %i before %j
    %both = schedule.fuse %first, %second
    %outer, %inner, %tail = schedule.split %both by 4
    %four = transform.param.constant 4 : i64 -> !transform.any_param
    %rows, %row, %rest = schedule.split %outer by_param %four
    schedule.vectorize %inner
    schedule.storage_align %j dim 0 to 8
    schedule.storage_align %j dim 0 to 8 plus 1
    transform.yield
  }
}
"""
UPSTREAM = """module attributes {transform.with_named_sequence} {
  transform.named_sequence @k(%arg0: !transform.any_op {transform.consumed}, %arg1: !transform.op<"scf.for"> {transform.consumed}, %arg2: !transform.any_op {transform.consumed}) {
    transform.loop.unroll %arg0 {factor = 4 : i64} : !transform.any_op
    %peeled_loop, %remainder_loop = transform.loop.peel %arg1 {peel_front = true} : (!transform.op<"scf.for">) -> (!transform.any_op, !transform.any_op)
    %0 = transform.cast %peeled_loop : !transform.any_op to !transform.op<"scf.for">
    %1 = transform.loop.coalesce %0 : (!transform.op<"scf.for">) -> !transform.any_op
    %2 = transform.structured.interchange %arg2 iterator_interchange = [1, 0] : (!transform.any_op) -> !transform.any_op
    %3 = transform.structured.convert_to_loops %2 : (!transform.any_op) -> !transform.any_op
    transform.yield
  }
}
"""  # noqa: E501


@pytest.mark.parametrize("text", [SEQUENCE, UPSTREAM])
def test_ops_of_schedules_print_as_they_are_read(text: str) -> None:
    _, module = parsed_in_context(text)
    printed = str(module)
    _, again = parsed_in_context(printed)
    assert str(again) == printed
    for line in text.splitlines()[2:-3]:
        assert line.split("%")[0].strip() in printed


@pytest.mark.skipif(shutil.which("mlir-opt-19") is None, reason="mlir-opt 19 is not installed")
def test_mlir_reads_what_is_printed_of_upstream() -> None:
    _, module = parsed_in_context(UPSTREAM)
    printed = subprocess.run(["mlir-opt-19"], input=str(module), capture_output=True, text=True, check=True).stdout
    expected = subprocess.run(["mlir-opt-19"], input=UPSTREAM, capture_output=True, text=True, check=True).stdout
    assert printed == expected


COPY = main(
    [("x", memref((6, 8))), ("y", memref((6, 8)))],
    """
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c6 = arith.constant 6 : index
    %c8 = arith.constant 8 : index
    %buf = mem.buffer at 0 : memref<6x8xf32>
    mem.copy %x to %buf : memref<6x8xf32> to memref<6x8xf32>
    scf.for %i = %c0 to %c6 step %c1 {
      scf.for %j = %c0 to %c8 step %c1 {
        %v = memref.load %buf[%i, %j] : memref<6x8xf32>
        memref.store %v, %y[%i, %j] : memref<6x8xf32>
      }
    }""",
)


def c_of(module: ModuleOp) -> str:
    return emit_c(module).source


def test_a_vectorized_loop_is_independent_in_c() -> None:
    ctx, module = parsed_in_context(COPY)
    before = c_of(module)
    apply_schedule(ctx, module, "schedule.vectorize %j")
    after = c_of(module)
    assert after.count("PENSTOCK_INDEPENDENT\n") == before.count("PENSTOCK_INDEPENDENT\n") + 1
    x = np.arange(48, dtype=np.float32).reshape(6, 8)
    np.testing.assert_array_equal(agree(module, [x])[0], x)


def test_a_mark_that_is_not_true_any_more_is_not_said_in_c() -> None:
    _, module = parsed_in_context(COPY.replace("memref.store %v, %y[%i, %j]", "memref.store %v, %y[%i, %c0]"))
    before = c_of(module)
    loops = [op for op in module.walk() if isinstance(op, scf.ForOp)]
    ctx, marked = parsed_in_context(COPY)
    apply_schedule(ctx, marked, "schedule.vectorize %j")
    mark = next(op.attributes for op in marked.walk() if op.attributes)
    loops[1].attributes.update(mark)
    assert c_of(module) == before


def test_a_factor_may_be_a_parameter() -> None:
    ctx, module = parsed_in_context(COPY)
    other_ctx, other = parsed_in_context(COPY)
    apply_schedule(ctx, module, "%o, %n, %t = schedule.split %j by 4")
    parameter = "%f = transform.param.constant 4 : i64 -> !transform.any_param"
    apply_schedule(other_ctx, other, f"{parameter}\n%o, %n, %t = schedule.split %j by_param %f")
    assert str(module) == str(other)


def test_alternatives_of_which_one_op_is_refused_change_nothing() -> None:
    ctx, module = parsed_in_context(COPY.replace("memref.store %v, %y[%i, %j]", "memref.store %v, %y[%i, %c0]"))
    before = str(module)
    with pytest.raises(UserError, match="%j cannot be vectorized"):
        apply_schedule(
            ctx,
            module,
            """transform.tune.alternatives<"way"> selected_region = 0 {
                 %outer, %inner, %tail = schedule.split %j by 4
                 schedule.vectorize %inner
                 transform.yield
               }, {
                 transform.yield
               }""",
        )
    assert str(module) == before


def test_python_and_text_say_the_same() -> None:
    _, module = parsed_in_context(COPY.replace("at 0 ", ""))
    (kernel,) = (op for op in module.ops if isinstance(op, FuncOp))
    schedule = Schedule(kernel)
    inner, outer = schedule.match("scf.for")
    (buffer,) = schedule.match("mem.buffer")
    schedule.reorder(inner, outer)
    split = schedule.split(outer, 4)
    schedule.vectorize(split.inner)
    schedule.storage_align(buffer, 0, 16, 1)
    peeled = schedule.peel(split.tail, front=True)
    schedule.unroll(peeled.peeled_loop, 8)
    text = "\n".join(str(op) for op in schedule.sequence.body.block.ops if op.name.startswith("schedule"))
    assert [line.split()[0 if "=" not in line else line.split().index("=") + 1] for line in text.splitlines()] == [
        "schedule.reorder",
        "schedule.split",
        "schedule.vectorize",
        "schedule.storage_align",
    ]
    (placed,) = (op for op in module.walk() if isinstance(op, BufferOp))
    assert static_strides(memref_of(placed.memref)) == (17, 1)
    _, other = parsed_in_context(COPY.replace("at 0 ", ""))
    (kernel,) = (op for op in other.ops if isinstance(op, FuncOp))
    Schedule(kernel).replay(schedule.sequence, "")
    assert str(other) == str(module)
