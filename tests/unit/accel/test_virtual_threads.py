# SPDX-License-Identifier: Apache-2.0
"""Rounds of a loop that take turns on the units: the same results, buffers of their own, and less time."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.mem import BufferOp
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.accel.accel_assign_queues import AccelAssignQueuesPass
from penstock.passes.accel.accel_virtual_threads import AccelVirtualThreadsPass
from penstock.passes.analysis.commands.hazards import check
from penstock.passes.analysis.commands.program import Program
from penstock.passes.analysis.commands.trace import trace
from penstock.passes.analysis.kernels import machine_kernels
from penstock.runtime.interpreter import run_function
from penstock.runtime.machines import attach_machine
from penstock.runtime.simulator import simulate

COPY = """
func.func private @k(%x: memref<9x1x16xi8>, %y: memref<9x1x16xi8>) attributes {device = @gemmini} {
  %first = arith.constant 0 : index
  %step = arith.constant 1 : index
  %end = arith.constant 9 : index
  %free = accel.ready
  %done = scf.for %i = %first to %end step %step iter_args(%before = %free) -> (!accel.token) {
    %a = mem.buffer at 64 : memref<1x1x16xi8, "spad">
    %t = accel.dma %x[%i, 0, 0] to %a on "mvin" after (%before) : memref<9x1x16xi8> to memref<1x1x16xi8, "spad">
    %u = accel.dma %a to %y[%i, 0, 0] on "mvout" after (%t) : memref<1x1x16xi8, "spad"> to memref<9x1x16xi8>
    scf.yield %u : !accel.token
  }
  accel.barrier
  func.return
}
"""
MARK = " {virtual_threads = 3 : i64}\n  accel.barrier"


def module_of(text: str, machine: str = "gemmini") -> ModuleOp:
    module = parse_text(make_context(), SourceText("k.mlir", text)).module
    attach_machine(module, machine)
    return module


def apply(module: ModuleOp, threads: int = 2) -> None:
    AccelVirtualThreadsPass(threads=threads).apply(make_context(), module)
    module.verify()


def traced(module: ModuleOp) -> Program:
    target, (kernel, *_) = machine_kernels(module)
    assert target is not None
    return trace(kernel, target)


def offsets(module: ModuleOp) -> list[int | None]:
    return [op.byte_offset for op in module.walk() if isinstance(op, BufferOp)]


def runs_as_before(module: ModuleOp, rounds: range) -> None:
    x = np.random.default_rng(0).integers(1, 9, (9, 1, 16)).astype(np.int8)
    expected = np.zeros_like(x)
    expected[list(rounds)] = x[list(rounds)]
    for interleaving in ("program", "asap", "alap", 0, 1):
        y = np.zeros_like(x)
        run_function(module, "k", [x, y], interleaving=interleaving)
        assert np.array_equal(y, expected), interleaving


@pytest.mark.parametrize(("end", "threads"), list(product((1, 2, 3, 5, 9), (1, 2, 3, 4))))
def test_any_number_of_rounds_and_threads_computes_the_same(end: int, threads: int) -> None:
    module = module_of(COPY.replace("constant 9", f"constant {end}"))
    apply(module, threads)
    assert check(traced(module)) == []
    runs_as_before(module, range(end))
    AccelAssignQueuesPass().apply(make_context(), module)
    runs_as_before(module, range(end))


def test_a_loop_that_begins_and_steps_elsewhere_is_stripped_alike() -> None:
    module = module_of(
        COPY.replace("constant 0", "constant 1").replace("constant 1 : index\n  %end", "constant 2 : index\n  %end")
    )
    apply(module)
    runs_as_before(module, range(1, 9, 2))


def test_two_threads_take_less_time_than_one() -> None:
    module = module_of(COPY)
    alone = simulate(traced(module)).cycles
    apply(module)
    assert simulate(traced(module)).cycles < 0.65 * alone


def test_each_thread_has_a_buffer_of_its_own_and_the_first_keeps_its_place() -> None:
    module = module_of(COPY.replace("constant 9", "constant 8"))
    apply(module, 3)
    loop = offsets(module)[:3]
    assert loop[0] == 64
    assert len(set(loop)) == 3


def test_queues_are_primed_with_a_token_for_each_thread() -> None:
    module = module_of(COPY.replace("constant 9", "constant 8"))
    apply(module)
    AccelAssignQueuesPass().apply(make_context(), module)
    before = str(module)[: str(module).index("scf.for")]
    assert before.count('accel.push "store" to "load"') == 2


# which loop

NESTED = """
func.func private @k(%x: memref<4x3x4x4xf32>, %w: memref<3x4x4xf32>, %y: memref<4x4x4xf32>)
    attributes {device = @gemmini_fp32} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %three = arith.constant 3 : index
  %four = arith.constant 4 : index
  scf.for %i = %zero to %four step %one {
    %c = mem.buffer at 0 : memref<4x4xf32, "acc">
    %z = accel.exec @zero_acc extents [4, 4] maps [affine_map<(i, j) -> (i, j)>] (%c) : memref<4x4xf32, "acc">
    %sum = scf.for %k = %zero to %three step %one iter_args(%before = %z) -> (!accel.token) {
      %a = mem.buffer at 0 : memref<4x4xf32, "spad">
      %b = mem.buffer at 64 : memref<4x4xf32, "spad">
      %xs = memref.subview %x[%i, %k, 0, 0] [1, 1, 4, 4] [1, 1, 1, 1]
        : memref<4x3x4x4xf32> to memref<4x4xf32, strided<[4, 1], offset: ?>>
      %ws = memref.subview %w[%k, 0, 0] [1, 4, 4] [1, 1, 1]
        : memref<3x4x4xf32> to memref<4x4xf32, strided<[4, 1], offset: ?>>
      %s = accel.dma %xs to %a on "mvin" after (%before)
        : memref<4x4xf32, strided<[4, 1], offset: ?>> to memref<4x4xf32, "spad">
      %t = accel.dma %ws to %b on "mvin" after (%before)
        : memref<4x4xf32, strided<[4, 1], offset: ?>> to memref<4x4xf32, "spad">
      %u = accel.exec @gemm extents [4, 4, 4]
        maps [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> (m, n)>]
        (%a, %b, %c) after (%s, %t)
        : memref<4x4xf32, "spad">, memref<4x4xf32, "spad">, memref<4x4xf32, "acc">
      scf.yield %u : !accel.token
    }
    %ys = memref.subview %y[%i, 0, 0] [1, 4, 4] [1, 1, 1]
      : memref<4x4x4xf32> to memref<4x4xf32, strided<[4, 1], offset: ?>>
    %v = accel.dma %c to %ys on "mvout" after (%sum)
      : memref<4x4xf32, "acc"> to memref<4x4xf32, strided<[4, 1], offset: ?>>
    accel.wait %v
  }
  accel.barrier
  func.return
}
"""


def test_a_loop_that_sums_up_is_no_choice_and_is_gone_through_by_all_threads_together() -> None:
    module = module_of(NESTED, "gemmini-fp32")
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((4, 3, 4, 4), (3, 4, 4)))
    alone = simulate(traced(module)).cycles
    apply(module)
    loops = [op for op in module.walk() if isinstance(op, scf.ForOp)]
    assert len(loops) == 2
    assert sum(isinstance(op, BufferOp) and op.scope == "acc" for op in module.walk()) == 2
    assert str(loops[1]).count("@gemm ") == 2
    assert simulate(traced(module)).cycles < 0.6 * alone
    for interleaving in ("program", "asap", "alap", 3):
        y = np.zeros((4, 4, 4), np.float32)
        run_function(module, "k", [x, w, y], interleaving=interleaving)
        assert np.array_equal(y, np.einsum("ikmp,kpn->imn", x, w)), interleaving


def test_a_marked_loop_has_the_threads_of_its_mark() -> None:
    module = module_of(COPY.replace("\n  accel.barrier", MARK))
    apply(module, 1)
    assert len(offsets(module)) == 3
    assert "virtual_threads" not in str(module)
    runs_as_before(module, range(9))


def test_rounds_that_depend_on_each_other_are_refused_with_both_ops() -> None:
    text = COPY.replace("%y[%i, 0, 0]", "%y[0, 0, 0]").replace("\n  accel.barrier", MARK)
    with pytest.raises(UserError, match="the iterations of this loop depend on each other") as caught:
        apply(module_of(text))
    assert caught.value.loc == "k.mlir:7:3"
    assert [note[:9] for note in caught.value.notes] == ["accel.dma", "accel.dma"]


def test_without_a_mark_a_kernel_of_dependent_rounds_is_left_as_it_is() -> None:
    module = module_of(COPY.replace("%y[%i, 0, 0]", "%y[0, 0, 0]"))
    before = str(module)
    apply(module)
    assert str(module) == before


# room


def test_copies_without_room_name_the_scope_and_the_bytes() -> None:
    text = COPY.replace("memref<1x1x16xi8", "memref<9000x1x16xi8").replace("memref<9x1x16xi8>", "memref<81000x1x16xi8>")
    text = text.replace("constant 1 :", "constant 9000 :").replace("constant 9 :", "constant 81000 :")
    with pytest.raises(UserError, match='the scope "spad" has no room for the buffers of 2 threads') as caught:
        apply(module_of(text.replace("at 64", "at 0")))
    assert caught.value.notes == ("those of all threads but the first are 144,000 bytes",)


def test_what_is_in_the_way_of_the_copies_is_moved() -> None:
    # One buffer of 96,000 bytes in the middle leaves no room of that size on either side, the whole scope does.
    text = COPY.replace("memref<1x1x16xi8", "memref<6000x1x16xi8").replace("memref<9x1x16xi8>", "memref<54000x1x16xi8>")
    text = text.replace("constant 1 :", "constant 6000 :").replace("constant 9 :", "constant 54000 :")
    module = module_of(text.replace("at 64", "at 83200"))
    apply(module)
    first, second, *_ = offsets(module)
    assert first is not None
    assert second is not None
    assert abs(first - second) >= 96_000


# faults


def test_fewer_than_one_thread_is_refused() -> None:
    with pytest.raises(UserError, match="at least one virtual thread, not 0"):
        apply(module_of(COPY), 0)
    with pytest.raises(UserError, match="virtual_threads is the number of iterations that are interleaved, at least 1"):
        apply(module_of(COPY.replace("\n  accel.barrier", MARK.replace("3", "0"))))


def test_a_kernel_in_queue_form_is_refused() -> None:
    module = module_of(COPY)
    AccelAssignQueuesPass().apply(make_context(), module)
    with pytest.raises(UserError, match="tokens are derived before they become queues"):
        apply(module)


def test_a_marked_loop_without_constant_bounds_is_refused() -> None:
    text = COPY.replace("%y: memref<9x1x16xi8>)", "%y: memref<9x1x16xi8>, %n: index)").replace("to %end", "to %n")
    with pytest.raises(UserError, match="virtual threads need a loop with constant bounds"):
        apply(module_of(text.replace("\n  accel.barrier", MARK)))
