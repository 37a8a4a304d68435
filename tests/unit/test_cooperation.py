# SPDX-License-Identifier: Apache-2.0
"""`parallel`, `bind`, `cooperate` and `insert_barriers`: what they make is legal in every order, and needs no less."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from in_c import agree, main, memref
from numpy.typing import NDArray
from programs import verified
from xdsl.dialects import func, gpu, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.mem import CopyOp
from penstock.dialects.upstream.gpu import BlockMappingAttr, ThreadMappingAttr
from penstock.dialects.upstream.scf import ForallOp
from penstock.dialects.verification import verify_module
from penstock.passes.schedule.primitives.bind import bind
from penstock.passes.schedule.primitives.cooperate import cooperate
from penstock.passes.schedule.primitives.insert_barriers import insert_barriers
from penstock.passes.schedule.primitives.parallel import parallel
from penstock.passes.schedule.schedule import Schedule
from penstock.runtime.interpreter import run_function
from penstock.runtime.pass_manager import read_pipeline, run_passes

ORDERS = ("asap", "alap", 0, 1, 2)
X, Y = ThreadMappingAttr("x"), ThreadMappingAttr("y")

TILED = """
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c4 = arith.constant 4 : index
  %c6 = arith.constant 6 : index
  %c8 = arith.constant 8 : index
  %c12 = arith.constant 12 : index
  scf.for %i = %c0 to %c8 step %c2 {
    scf.for %j = %c0 to %c6 step %c2 {
      scf.for %k = %c0 to %c12 step %c4 {
        %xs = mem.buffer : memref<8x4xf32, "spad">
        mem.copy %x[0, %k] to %xs : memref<8x12xf32> to memref<8x4xf32, "spad">
        %ws = mem.buffer : memref<4x6xf32, "spad">
        mem.copy %w[%k, 0] to %ws : memref<12x6xf32> to memref<4x6xf32, "spad">
        %a = memref.subview %xs[%i, 0] [2, 4] [1, 1]
          : memref<8x4xf32, "spad"> to memref<2x4xf32, strided<[4, 1], offset: ?>, "spad">
        %b = memref.subview %ws[0, %j] [4, 2] [1, 1]
          : memref<4x6xf32, "spad"> to memref<4x2xf32, strided<[6, 1], offset: ?>, "spad">
        %c = memref.subview %y[%i, %j] [2, 2] [1, 1]
          : memref<8x6xf32> to memref<2x2xf32, strided<[6, 1], offset: ?>>
        linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>,
            affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%a, %b : memref<2x4xf32, strided<[4, 1], offset: ?>, "spad">,
            memref<4x2xf32, strided<[6, 1], offset: ?>, "spad">)
          outs(%c : memref<2x2xf32, strided<[6, 1], offset: ?>>) {
        ^bb0(%p: f32, %q: f32, %r: f32):
          %m = arith.mulf %p, %q : f32
          %s = arith.addf %r, %m : f32
          linalg.yield %s : f32
        }
      }
    }
  }
"""
MATMUL = "func.func @f(%x: memref<8x12xf32>, %w: memref<12x6xf32>, %y: memref<8x6xf32>) {" + TILED + "func.return }"


def loops_of(module: ModuleOp) -> list[scf.ForOp]:
    return [op for op in module.walk() if isinstance(op, scf.ForOp)]


def all_of(module: ModuleOp, kind: type[Operation]) -> list[Any]:
    return [op for op in module.walk() if isinstance(op, kind)]


def checked(module: ModuleOp) -> ModuleOp:
    module.verify()
    verify_module(module)
    return module


def operands() -> tuple[NDArray[np.float32], ...]:
    x = np.arange(96, dtype=np.float32).reshape(8, 12) % 7
    w = np.arange(72, dtype=np.float32).reshape(12, 6) % 5
    return x, w, np.zeros((8, 6), np.float32)


def cooperative(text: str = MATMUL) -> ModuleOp:
    module = verified(text)
    bind(loops_of(module)[:2], [Y, X])
    for copy in all_of(module, CopyOp):
        cooperate(copy)
    return checked(module)


def test_a_matmul_shares_its_tiles_with_two_barriers_for_each_of_them() -> None:
    module = cooperative()
    (forall,) = all_of(module, ForallOp)
    (loop,) = [op for op in forall.walk() if isinstance(op, scf.ForOp)]
    barriers = all_of(module, gpu.BarrierOp)
    assert [op.parent_op() for op in barriers] == [loop, loop]
    # Of 8 rows 8 of the 12 iterations copy one each; of 4 x 6 elements each copies 1 x 2.
    assert [copy.box for copy in all_of(module, CopyOp)] == [(1, 4), (1, 2)]
    for order in ("program", *ORDERS):
        x, w, y = operands()
        run_function(module, "f", [x, w, y], interleaving=order)
        np.testing.assert_array_equal(y, x @ w)


def test_each_barrier_of_a_matmul_is_needed() -> None:
    for number in range(2):
        module = cooperative()
        all_of(module, gpu.BarrierOp)[number].detach()
        for order in ORDERS:
            with pytest.raises(UserError, match=r"data race: .*%(xs|ws)|%xs at byte .*, which was never written"):
                run_function(module, "f", operands(), interleaving=order)


def test_the_order_of_two_copies_makes_no_barrier_more() -> None:
    module = verified(MATMUL)
    bind(loops_of(module)[:2], [Y, X])
    for copy in reversed(all_of(module, CopyOp)):
        cooperate(copy)
    assert len(all_of(module, gpu.BarrierOp)) == 2


INVARIANT = """
func.func @f(%x: memref<8x12xf32>, %w: memref<12x6xf32>, %y: memref<8x6xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c6 = arith.constant 6 : index
  %c8 = arith.constant 8 : index
  %c12 = arith.constant 12 : index
  scf.for %i = %c0 to %c8 step %c1 {
    %ws = mem.buffer : memref<12x6xf32, "spad">
    mem.copy %w to %ws : memref<12x6xf32> to memref<12x6xf32, "spad">
    scf.for %j = %c0 to %c6 step %c1 {
      scf.for %k = %c0 to %c12 step %c1 {
        %a = memref.load %x[%i, %k] : memref<8x12xf32>
        %b = memref.load %ws[%k, %j] : memref<12x6xf32, "spad">
        %c = memref.load %y[%i, %j] : memref<8x6xf32>
        %m = arith.mulf %a, %b : f32
        %s = arith.addf %c, %m : f32
        memref.store %s, %y[%i, %j] : memref<8x6xf32>
      }
    }
  }
  func.return
}
"""


def test_what_is_copied_once_needs_one_barrier() -> None:
    module = verified(INVARIANT)
    forall = bind(loops_of(module)[:1], [X])
    cooperate(all_of(module, CopyOp)[0])
    (barrier,) = all_of(checked(module), gpu.BarrierOp)
    # Before the loops, not in them.
    assert barrier.parent_op() is forall
    # Of 8 iterations 6 copy two rows each.
    assert [copy.box for copy in all_of(module, CopyOp)] == [(2, 6)]
    for order in ORDERS:
        x, w, y = operands()
        run_function(module, "f", [x, w, y], interleaving=order)
        np.testing.assert_array_equal(y, x @ w)
    barrier.detach()
    for order in ORDERS:
        with pytest.raises(UserError, match=r"data race: .*%ws|reads an element of %ws, which was never written"):
            run_function(module, "f", operands(), interleaving=order)


def test_c_runs_what_iterations_share() -> None:
    body = TILED.replace(', "spad">', ">")
    module = verified(main([("x", memref((8, 12))), ("w", memref((12, 6))), ("y", memref((8, 6)))], ZERO + body))
    bind(loops_of(module)[:2], [Y, X])
    for copy in all_of(module, CopyOp):
        cooperate(copy)
    run_passes(make_context(), module, read_pipeline("mem-plan"))
    x, w, _ = operands()
    (found,) = agree(module, [x, w])
    np.testing.assert_array_equal(found, x @ w)


ZERO = """
  %zero = arith.constant 0.0 : f32
  linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
    outs(%y : memref<8x6xf32>) {
  ^bb0(%o: f32):
    linalg.yield %zero : f32
  }
"""


def test_a_schedule_does_the_same_and_is_text() -> None:
    module = verified(MATMUL)
    (kernel,) = [op for op in module.ops if isinstance(op, func.FuncOp)]
    schedule = Schedule(kernel)
    _, j, i = schedule.match("scf.for")
    copies = schedule.match("mem.copy")
    threads = schedule.bind(i, j, to=[Y, X])
    for copy in copies:
        schedule.cooperate(copy)
    schedule.insert_barriers(threads)
    assert str(module) == str(cooperative())
    text = str(schedule.sequence)
    assert "schedule.bind %i, %j to [#gpu.thread<y>, #gpu.thread<x>]" in text or "schedule.bind" in text
    assert "schedule.cooperate" in text
    assert "schedule.insert_barriers" in text
    with pytest.raises(UserError, match=r"is used after schedule\.bind has replaced what it stood for"):
        schedule.parallel(i)


# what is refused


def loop(body: str, extra: str = "") -> ModuleOp:
    return verified(f"""
    func.func @f(%x: memref<8xf32>, %y: memref<8xf32>, %n: index) {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c7 = arith.constant 7 : index
      %c8 = arith.constant 8 : index
      %z = arith.constant 0.0 : f32
      {extra}
      scf.for %i = %c0 to %c7 step %c1 {{
        %next = arith.addi %i, %c1 : index
        {body}
      }}
      func.return
    }}""")


DEPENDENT = {
    "a recurrence": (
        "%v = memref.load %x[%i] : memref<8xf32>  memref.store %v, %x[%next] : memref<8xf32>",
        "iterations of %i cannot run at once: one depends on another",
        "memref.store (...) writes %x, which memref.load (...) reads 1 iteration of %i later: direction (<)",
    ),
    "a sum": (
        "%v = memref.load %x[%i] : memref<8xf32>  %s = memref.load %y[%c0] : memref<8xf32>"
        "  %t = arith.addf %s, %v : f32  memref.store %t, %y[%c0] : memref<8xf32>",
        "iterations of %i cannot run at once",
        "%y",
    ),
    "all write one element": (
        "memref.store %z, %y[%c0] : memref<8xf32>",
        "iterations of %i cannot run at once",
        "writes %y, which the same op writes 1 iteration of %i later",
    ),
    "a buffer with a place": (
        '%b = mem.buffer at 0 : memref<1xf32, "spad">  memref.store %z, %b[%c0] : memref<1xf32, "spad">',
        "need a buffer each, and this one has a place",
        "mem-plan",
    ),
    "an unknown effect": ("gpu.barrier", "what gpu.barrier reads and writes is not known here", ""),
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_iterations_that_depend_on_each_other_do_not_run_at_once(name: str) -> None:
    body, message, note = DEPENDENT[name]
    module = loop(body)
    before = str(module)
    with pytest.raises(UserError) as error:
        parallel(loops_of(module)[:1])
    assert message in error.value.message
    assert error.value.loc
    notes = " ".join(error.value.notes)
    for part in note.split("(...)"):
        assert part.strip() in notes
    assert str(module) == before


def test_a_loop_that_carries_values_does_not_run_at_once() -> None:
    module = verified("""
    func.func @f(%n: index) -> index {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %r = scf.for %i = %c0 to %n step %c1 iter_args(%a = %c0) -> (index) {
        %b = arith.addi %a, %i : index
        scf.yield %b : index
      }
      func.return %r : index
    }""")
    with pytest.raises(UserError, match="carries values from one iteration to the next"):
        parallel(loops_of(module))


def test_a_loop_that_counts_no_indices_does_not_run_at_once() -> None:
    module = verified("""
    func.func @f(%n: i32) {
      %c0 = arith.constant 0 : i32
      %c1 = arith.constant 1 : i32
      scf.for %i = %c0 to %n step %c1 : i32 {
      }
      func.return
    }""")
    with pytest.raises(UserError, match="%i does not count indices upwards"):
        parallel(loops_of(module))


def test_a_buffer_of_its_own_is_no_dependence() -> None:
    module = loop(
        '%b = mem.buffer : memref<1xf32, "spad">  %v = memref.load %x[%i] : memref<8xf32>'
        '  memref.store %v, %b[%c0] : memref<1xf32, "spad">  %w = memref.load %b[%c0] : memref<1xf32, "spad">'
        "  memref.store %w, %y[%i] : memref<8xf32>"
    )
    parallel(loops_of(module))
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    run_function(checked(module), "f", [x, y, 0], interleaving=3)
    np.testing.assert_array_equal(y[:7], x[:7])


def test_loops_that_are_no_nest_are_refused() -> None:
    module = verified(MATMUL)
    i, j, k = loops_of(module)
    for chosen in ([j, i], [i, k]):
        with pytest.raises(UserError, match=r"no nest of loops|is not in a nest of loops|is not perfect"):
            parallel(chosen)
    with pytest.raises(UserError, match="iterations of %i, %j, %k cannot run at once"):
        parallel([i, j, k])
    assert str(module) == str(verified(MATMUL))


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ([X], "2 loops cannot be mapped to 1 dims"),
        ([X, X], "mapped to different dims of one kind"),
        ([X, BlockMappingAttr("y")], "mapped to different dims of one kind"),
    ],
)
def test_a_mapping_that_does_not_fit_is_refused(mapping: Sequence[Any], message: str) -> None:
    module = verified(MATMUL)
    with pytest.raises(UserError, match=message):
        bind(loops_of(module)[:2], mapping)
    forall = bind(loops_of(module)[:2], [Y, X])
    with pytest.raises(UserError, match=message):
        bind([forall], mapping)
    bind([forall], [X, Y])
    assert list(forall.mapping or ()) == [X, Y]


NOT_SHARED = {
    "another part in each iteration": ("mem.copy %x[%i] to %b else %z", "%i is not the same in all of them"),
    "in a branch": ("scf.if %p { mem.copy %x[0] to %b COPY }", "it is in scf.if"),
    "in a loop of its own": ("scf.for %k = %c0 to %i step %c1 { mem.copy %x[0] to %b COPY }", "differently often"),
    "a source that is written": (
        "memref.store %z, %x[%i] : memref<8xf32>  mem.copy %x[0] to %b",
        "memref.store of an iteration may write %x",
    ),
    "a buffer that is written": (
        'memref.store %z, %b[%c0] : memref<4xf32, "spad">  mem.copy %x[0] to %b',
        "the buffer is written by memref.store, too",
    ),
}


@pytest.mark.parametrize("name", NOT_SHARED)
def test_a_copy_that_is_not_the_same_in_all_iterations_is_not_shared(name: str) -> None:
    body, message = NOT_SHARED[name]
    types = ' : memref<8xf32> to memref<4xf32, "spad">'
    body = body.replace(" COPY", types) if "COPY" in body else body + types
    module = verified(f"""
    func.func @f(%x: memref<8xf32>, %y: memref<8xf32>, %p: i1) {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %z = arith.constant 0.0 : f32
      scf.forall (%i) in (4) {{
        %b = mem.buffer : memref<4xf32, "spad">
        {body}
        %v = memref.load %b[%i] : memref<4xf32, "spad">
        memref.store %v, %y[%i] : memref<8xf32>
      }}
      func.return
    }}""")
    before = str(module)
    with pytest.raises(UserError, match=message) as error:
        cooperate(all_of(module, CopyOp)[0])
    assert error.value.loc
    assert str(module) == before


def test_blocks_share_nothing() -> None:
    module = verified(MATMUL)
    bind(loops_of(module)[:2], [BlockMappingAttr("y"), BlockMappingAttr("x")])
    with pytest.raises(UserError, match="iterations that are mapped to blocks share no buffer"):
        cooperate(all_of(module, CopyOp)[0])
    module = cooperative()
    (forall,) = all_of(module, ForallOp)
    bind([forall], [BlockMappingAttr("y"), BlockMappingAttr("x")])
    with pytest.raises(UserError, match=r"cannot wait for each other, and .* has to"):
        insert_barriers(forall)


def test_a_race_that_no_barrier_can_mend_is_refused() -> None:
    module = loop("")
    parallel(loops_of(module))
    store = "memref.store %z, %y[%c0] : memref<8xf32>"
    text = str(module).replace("scf.forall (%i) in (7) {", f"scf.forall (%i) in (7) {{ {store}")
    module = verified(text)
    assert store in str(module)
    with pytest.raises(UserError, match=r"iterations of scf\.forall race: memref\.store writes %y, which memref"):
        insert_barriers(all_of(module, ForallOp)[0])
