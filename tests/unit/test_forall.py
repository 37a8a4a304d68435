# SPDX-License-Identifier: Apache-2.0
"""`scf.forall` in the interpreter: orders of iterations, barriers, races with their places, and shared tensors."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
from in_c import agree, main, memref
from numpy.typing import NDArray
from programs import verified
from xdsl.dialects import gpu
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import Block

from penstock.dialects.diagnostics import UserError
from penstock.dialects.upstream.scf import ForallOp
from penstock.dialects.verification import verify_module
from penstock.passes.loop.forall_to_for import run_in_order
from penstock.runtime.interpreter import run_function
from penstock.runtime.interpreter.commands import Touch
from penstock.runtime.interpreter.races import Shadow
from penstock.runtime.interpreter.scopes import ScopeBytes, TaggedBuffer

ORDERS = ("program", "asap", "alap", 0, 1, 2)


def run(module: ModuleOp, *args: Any, order: Any = "program") -> list[Any]:
    return run_function(module, "f", args, interleaving=order)


def floats(*shape: int) -> NDArray[np.float32]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


ROWS = """
func.func @f(%x: memref<4x8xf32>, %y: memref<4x8xf32>, %n: index) {
  scf.forall (%i, %j) = (0, 1) to (4, %n) step (2, 3) {
    %v = memref.load %x[%i, %j] : memref<4x8xf32>
    memref.store %v, %y[%i, %j] : memref<4x8xf32>
  }
  func.return
}
"""


@pytest.mark.parametrize("order", ORDERS)
def test_iterations_are_those_of_the_bounds_and_steps(order: Any) -> None:
    x, y = floats(4, 8), np.zeros((4, 8), np.float32)
    run(verified(ROWS), x, y, 8, order=order)
    expected = np.zeros((4, 8), np.float32)
    expected[0:4:2, 1:8:3] = x[0:4:2, 1:8:3]
    np.testing.assert_array_equal(y, expected)


def test_a_step_that_is_not_positive_is_refused_in_its_place() -> None:
    text = "func.func @f(%n: index) {\n  scf.forall (%i) = (0) to (4) step (%n) {\n  }\n  func.return\n}"
    with pytest.raises(UserError, match=r"the step of a loop is 0"):
        run(verified(text), 0)


def test_the_order_that_is_drawn_depends_on_its_number() -> None:
    orders: set[tuple[int, ...]] = set()
    text = """
    func.func @f(%x: memref<6xf32>) {
      scf.forall (%i) in (6) {
        %v = memref.load %x[%i] : memref<6xf32>
        memref.store %v, %x[%i] : memref<6xf32>
      }
      func.return
    }"""
    module = verified(text)
    for seed in range(4):
        seen: list[int] = []

        def heard(op: Any, results: Any, operands: Any, seen: list[int] = seen) -> None:
            if op.name == "memref.load":
                seen.append(operands[1])

        run_function(module, "f", [floats(6)], interleaving=seed, listener=heard)
        assert sorted(seen) == list(range(6))
        orders.add(tuple(seen))
    assert len(orders) > 1


RACES = {
    "two write": (
        "memref.store %c, %y[%zero] : memref<8xf32>",
        "memref.store in iteration",
        "writes %y, which memref.store in iteration",
    ),
    "one reads what another writes": (
        "%j = arith.addi %i, %one : index  %k = arith.remsi %j, %four : index"
        "  %v = memref.load %y[%k] : memref<8xf32>  memref.store %v, %y[%i] : memref<8xf32>",
        "data race: memref.",
        "%y",
    ),
    "copies that overlap": (
        "mem.copy %x[%i] to %b else %c : memref<8xf32> to memref<2xf32>  mem.copy %b to %y[%i]"
        " : memref<2xf32> to memref<8xf32>",
        "data race: mem.copy in iteration",
        "%b",
    ),
    "a generic": (
        "%s = memref.subview %y[%i] [2] [1] : memref<8xf32> to memref<2xf32, strided<[1], offset: ?>>"
        '  linalg.generic {indexing_maps = [affine_map<(d) -> (d)>], iterator_types = ["parallel"]}'
        " outs(%s : memref<2xf32, strided<[1], offset: ?>>) { ^bb0(%a: f32): linalg.yield %c : f32 }",
        "data race: linalg.generic in iteration",
        "%s",
    ),
    "in a function that is called": (
        "func.call @g(%y) : (memref<8xf32>) -> ()",
        "data race: memref.store in iteration",
        "%z",
    ),
}


def racy(body: str) -> str:
    return f"""
func.func @f(%x: memref<8xf32>, %y: memref<8xf32>) {{
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %four = arith.constant 4 : index
  %c = arith.constant 1.0 : f32
  %b = memref.alloc() : memref<2xf32>
  scf.forall (%i) in (4) {{
    {body}
  }}
  func.return
}}
func.func private @g(%z: memref<8xf32>) {{
  %zero = arith.constant 0 : index
  %c = arith.constant 1.0 : f32
  memref.store %c, %z[%zero] : memref<8xf32>
  func.return
}}
"""


@pytest.mark.parametrize("name", RACES)
def test_a_race_is_refused_whatever_the_order(name: str) -> None:
    body, first, second = RACES[name]
    module = verified(racy(body))
    run(module, floats(8), floats(8))
    for order in ORDERS[1:]:
        with pytest.raises(UserError) as error:
            run(module, floats(8), floats(8), order=order)
        assert error.value.message.startswith(first) or first in error.value.message
        assert second in error.value.message
        assert "with no happens-before between the two" in error.value.message
        assert "let a barrier be between this and the" in error.value.notes[0]


REVERSE = """
func.func @f(%x: memref<4xf32>, %n: index) {
  %b = mem.buffer : memref<4xf32, "spad">
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %three = arith.constant 3 : index
  scf.for %k = %zero to %n step %one {
    scf.forall (%i) in (4) {
      %v = memref.load %x[%i] : memref<4xf32>
      memref.store %v, %b[%i] : memref<4xf32, "spad">
      scf.for %again = %zero to %n step %one {
        gpu.barrier
        %j = arith.subi %three, %i : index
        %w = memref.load %b[%j] : memref<4xf32, "spad">
        memref.store %w, %x[%i] : memref<4xf32>
        gpu.barrier
        memref.store %w, %b[%i] : memref<4xf32, "spad">
      }
    } {mapping = [#gpu.thread<x>]}
  }
  func.return
}
"""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("times", [1, 2])
def test_a_barrier_is_passed_when_all_have_come_to_it(order: Any, times: int) -> None:
    x = floats(4)
    run(verified(REVERSE), x, times, order=order)
    np.testing.assert_array_equal(x, floats(4)[::-1] if times == 1 else floats(4))


def test_without_a_barrier_there_is_a_race() -> None:
    for number in range(2):
        module = verified(REVERSE)
        [op for op in module.walk() if isinstance(op, gpu.BarrierOp)][number].detach()
        for order in ORDERS[1:]:
            with pytest.raises(UserError, match=r"data race.*%b|%b, which was never written"):
                run(module, floats(4), 2, order=order)


NESTED = """
func.func @f(%x: memref<2x4xf32>, %y: memref<2x4xf32>) {
  scf.forall (%b) in (2) {
    %s = memref.alloc() : memref<4xf32>
    scf.forall (%i) in (4) {
      %v = memref.load %x[%b, %i] : memref<2x4xf32>
      memref.store %v, %s[%i] : memref<4xf32>
    } {mapping = [#gpu.thread<x>]}
    scf.forall (%i) in (4) {
      %three = arith.constant 3 : index
      %j = arith.subi %three, %i : index
      %v = memref.load %s[%j] : memref<4xf32>
      gpu.barrier
      memref.store %v, %s[%i] : memref<4xf32>
      memref.store %v, %y[%b, %i] : memref<2x4xf32>
    } {mapping = [#gpu.thread<x>]}
  } {mapping = [#gpu.block<x>]}
  func.return
}
"""


@pytest.mark.parametrize("order", ORDERS)
def test_a_loop_inside_ends_before_what_comes_after_it(order: Any) -> None:
    x, y = floats(2, 4), np.zeros((2, 4), np.float32)
    run(verified(NESTED), x, y, order=order)
    np.testing.assert_array_equal(y, x[:, ::-1])


def test_iterations_of_different_outer_ones_race_through_what_they_share() -> None:
    text = NESTED.replace("  scf.forall (%b) in (2) {\n    %s = memref.alloc() : memref<4xf32>",
                          "  %s = memref.alloc() : memref<4xf32>\n  scf.forall (%b) in (2) {")  # fmt: skip
    run(verified(text), floats(2, 4), floats(2, 4))
    for order in ORDERS[1:]:
        with pytest.raises(UserError, match=r"data race.*%s"):
            run(verified(text), floats(2, 4), floats(2, 4), order=order)


def test_private_buffers_at_one_place_race() -> None:
    text = """
    func.func @f(%x: memref<4xf32>) {
      %zero = arith.constant 0 : index
      scf.forall (%i) in (4) {
        %b = mem.buffer : memref<1xf32, "spad">
        %v = memref.load %x[%i] : memref<4xf32>
        memref.store %v, %b[%zero] : memref<1xf32, "spad">
        %w = memref.load %b[%zero] : memref<1xf32, "spad">
        memref.store %w, %x[%i] : memref<4xf32>
      }
      func.return
    }"""
    run(verified(text), floats(4), order=1)
    with pytest.raises(UserError, match=r"data race.*%b \(mem.buffer at 64\)"):
        run(verified(text.replace("mem.buffer :", "mem.buffer at 64 :")), floats(4), order=1)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("scf.if %p { gpu.barrier }", r"iteration \(0\) waits at this gpu.barrier for ever: iteration \(2\) ends"),
        (
            "scf.if %p { gpu.barrier } else { gpu.barrier }",
            r"iteration \(0\) waits .* iteration \(2\) waits at the one",
        ),
        ("scf.for %k = %zero to %i step %one { gpu.barrier }", r"iteration \(1\) waits .* iteration \(0\) ends"),
    ],
)
def test_a_barrier_that_not_all_come_to_is_refused(body: str, message: str, order: Any) -> None:
    module = verified(f"""
    func.func @f() {{
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %two = arith.constant 2 : index
      scf.forall (%i) in (4) {{
        %p = arith.cmpi slt, %i, %two : index
        {body}
      }}
      func.return
    }}""")
    with pytest.raises(UserError, match=message):
        run(module, order=order)


def test_a_barrier_outside_of_a_loop_is_refused() -> None:
    with pytest.raises(UserError, match=r"is in no scf\.forall"):
        run(verified("func.func @f() {\n gpu.barrier\n func.return\n}"))


SHARED = """
func.func @f(%t: tensor<4x2xf32>) -> tensor<4x2xf32> {
  %three = arith.constant 3 : index
  %r = scf.forall (%i) in (4) shared_outs(%o = %t) -> (tensor<4x2xf32>) {
    %j = arith.subi %three, %i : index
    %s = tensor.extract_slice %o[%i, 0] [1, 2] [1, 1] : tensor<4x2xf32> to tensor<2xf32>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %s into %o[%j, 0] [1, 2] [1, 1] : tensor<2xf32> into tensor<4x2xf32>
    }
  }
  func.return %r : tensor<4x2xf32>
}
"""


@pytest.mark.parametrize("order", ORDERS)
def test_a_shared_tensor_is_seen_as_it_was_before(order: Any) -> None:
    t = floats(4, 2)
    np.testing.assert_array_equal(run(verified(SHARED), t, order=order)[0], t[::-1])
    np.testing.assert_array_equal(t, floats(4, 2))


def test_insertions_that_overlap_are_refused() -> None:
    module = verified(SHARED.replace("into %o[%j, 0]", "into %o[%three, 0]"))
    for order in ORDERS[1:]:
        with pytest.raises(UserError, match=r"data race: tensor.parallel_insert_slice in iteration"):
            run(module, floats(4, 2), order=order)


# in order

KEPT = """
func.func @f(%x: memref<2x4xf32>, %n: index) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %shared = mem.buffer : memref<2x4xf32, "spad">
  scf.forall (%b, %i) = (0, 1) to (4, 8) step (2, 2) {
    %own = mem.buffer : memref<1xf32, "spad">
    %two = arith.constant 2 : index
    %three = arith.constant 3 : index
    %row = arith.divui %b, %two : index
    %at = arith.divui %i, %two : index
    %v = memref.load %x[%row, %at] : memref<2x4xf32>
    memref.store %v, %own[%zero] : memref<1xf32, "spad">
    memref.store %v, %shared[%row, %at] : memref<2x4xf32, "spad">
    %d = arith.addf %v, %v : f32
    gpu.barrier
    scf.for %k = %zero to %n step %one {
      %c = memref.subview %own[0] [1] [1] : memref<1xf32, "spad"> to memref<1xf32, strided<[1]>, "spad">
      %j = arith.subi %three, %at : index
      %w = memref.load %shared[%row, %j] : memref<2x4xf32, "spad">
      gpu.barrier
      %e = memref.load %c[%zero] : memref<1xf32, strided<[1]>, "spad">
      %s = arith.addf %w, %e : f32
      %t = arith.addf %s, %d : f32
      memref.store %t, %shared[%row, %at] : memref<2x4xf32, "spad">
      memref.store %s, %c[%zero] : memref<1xf32, strided<[1]>, "spad">
      gpu.barrier
    }
    %u = memref.load %shared[%row, %at] : memref<2x4xf32, "spad">
    memref.store %u, %x[%row, %at] : memref<2x4xf32>
  }
  func.return
}
"""


def in_order(module: ModuleOp) -> ModuleOp:
    copy = module.clone()
    run_in_order(copy)
    copy.verify()
    verify_module(copy)
    assert not any(isinstance(op, ForallOp | gpu.BarrierOp) for op in copy.walk())
    return copy


def test_what_is_used_on_both_sides_of_a_barrier_is_kept_for_each_iteration() -> None:
    module = verified(KEPT)
    expected, found = floats(2, 4), floats(2, 4)
    run(module, expected, 3, order=1)
    run(in_order(module), found, 3)
    np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(found, floats(2, 4))


@pytest.mark.parametrize("text", [REVERSE, NESTED, SHARED, ROWS])
def test_iterations_in_order_do_the_same(text: str) -> None:
    module = verified(text)
    arguments: list[list[Any]] = []
    results: list[list[Any]] = []
    for each in (module, in_order(module)):
        given = {REVERSE: [floats(4), 3], NESTED: [floats(2, 4), floats(2, 4)], SHARED: [floats(4, 2)],
                 ROWS: [floats(4, 8), floats(4, 8), 7]}[text]  # fmt: skip
        results.append(run(each, *given))
        arguments.append(given)
    for left, right in zip(*arguments, strict=True):
        np.testing.assert_array_equal(left, right)
    for left, right in zip(*results, strict=True):
        np.testing.assert_array_equal(left, right)


def test_c_runs_the_iterations_in_order() -> None:
    body = """
    %p = mem.buffer at 0 : memref<4x4xf32>
    scf.forall (%i) in (4) {
      %three = arith.constant 3 : index
      scf.forall (%j) in (4) {
        %v = memref.load %x[%i, %j] : memref<4x4xf32>
        memref.store %v, %p[%i, %j] : memref<4x4xf32>
      }
      gpu.barrier
      scf.forall (%j) in (4) {
        %k = arith.subi %three, %i : index
        %v = memref.load %p[%k, %j] : memref<4x4xf32>
        memref.store %v, %y[%i, %j] : memref<4x4xf32>
      }
    } {mapping = [#gpu.thread<x>]}
    """
    module = verified(main([("x", memref((4, 4))), ("y", memref((4, 4)))], body))
    text = str(module)
    (found,) = agree(module, [floats(4, 4)])
    np.testing.assert_array_equal(found, floats(4, 4)[::-1])
    assert str(module) == text


REFUSED = {
    "a branch": ("scf.if %p { gpu.barrier }", "this barrier is in scf.if, which cannot be split there"),
    "a loop that carries values": (
        "%r = scf.for %k = %zero to %n step %one iter_args(%a = %zero) -> (index)"
        " { gpu.barrier  scf.yield %a : index }",
        "this barrier is in scf.for that carries values",
    ),
    "bounds of its own": (
        "scf.for %k = %zero to %i step %one { gpu.barrier }",
        "how often it runs may differ from iteration to iteration",
    ),
    "bounds from memory": (
        "%m = memref.load %x[%zero] : memref<4xindex>  scf.for %k = %zero to %m step %one { gpu.barrier }",
        "how often it runs may differ from iteration to iteration",
    ),
    "an index from memory": (
        "%m = memref.load %x[%i] : memref<4xindex>  gpu.barrier  memref.store %m, %x[%i] : memref<4xindex>",
        "the result of memref.load is used after a barrier, and cannot be kept for each iteration",
    ),
    "a buffer with a place": (
        "%b = mem.buffer at 0 : memref<4xf32>  memref.store %c, %b[%zero] : memref<4xf32>  gpu.barrier"
        "  memref.store %c, %b[%zero] : memref<4xf32>",
        "has one place for all iterations",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_body_that_cannot_be_split_is_refused_in_its_place(name: str) -> None:
    body, message = REFUSED[name]
    module = verified(f"""
    func.func @f(%x: memref<4xindex>, %p: i1, %n: index) {{
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %c = arith.constant 1.0 : f32
      scf.forall (%i) in (4) {{
        {body}
      }}
      func.return
    }}""")
    with pytest.raises(UserError, match=message) as error:
        run_in_order(module)
    assert error.value.loc


def test_what_is_kept_needs_a_known_number_of_iterations() -> None:
    with pytest.raises(UserError, match="how many there are is not known here"):
        run_in_order(verified(KEPT.replace("= (0, 1) to (4, 8)", "= (0, 1) to (4, %n)")))


def test_no_memory_takes_the_address_of_one_whose_accesses_are_known() -> None:
    shadow, gone = Shadow(), list[weakref.ref[ScopeBytes]]()
    value = Block(arg_types=[i32]).args[0]
    for _ in range(2):
        scope = ScopeBytes("scope", np.zeros(16, np.uint8), 4, np.zeros(4, np.int32), [])
        gone.append(weakref.ref(scope))
        buffer = TaggedBuffer(scope.data.view(np.int32), scope.tags.reshape(4, 1), 0, scope)
        shadow.visit(Touch(buffer, None, value), lambda state: state, one_state=True)
        del scope, buffer
    assert all(each() is not None for each in gone)


ROWS_IN_REGISTERS = """
func.func @f(%x: memref<6x8xf32>, %y: memref<6x8xf32>) {{
  {outside}
  scf.forall (%i) in (6) {{
    {inside}
    %xs = memref.subview %x[%i, 0] [1, 8] [1, 1] : memref<6x8xf32> to memref<8xf32, strided<[1], offset: ?>>
    %ys = memref.subview %y[%i, 0] [1, 8] [1, 1] : memref<6x8xf32> to memref<8xf32, strided<[1], offset: ?>>
    {nested}
  }}
  func.return
}}
"""
COPIES = """mem.copy %xs to %b : memref<8xf32, strided<[1], offset: ?>> to memref<8xf32, "registers">
    mem.copy %b to %ys : memref<8xf32, "registers"> to memref<8xf32, strided<[1], offset: ?>>"""
HALVES = """scf.forall (%j) = (0) to (8) step (4) {
      %xh = memref.subview %xs[%j] [4] [1]
          : memref<8xf32, strided<[1], offset: ?>> to memref<4xf32, strided<[1], offset: ?>>
      %yh = memref.subview %ys[%j] [4] [1]
          : memref<8xf32, strided<[1], offset: ?>> to memref<4xf32, strided<[1], offset: ?>>
      %h = memref.subview %b[AT] [4] [1]
          : memref<8xf32, "registers"> to memref<4xf32, strided<[1], offset: ?>, "registers">
      mem.copy %xh to %h
          : memref<4xf32, strided<[1], offset: ?>> to memref<4xf32, strided<[1], offset: ?>, "registers">
      mem.copy %h to %yh
          : memref<4xf32, strided<[1], offset: ?>, "registers"> to memref<4xf32, strided<[1], offset: ?>>
    }"""
SHARED_HALF = HALVES.replace("AT", "%c0")
"""Both halves of a row at once, in one place."""
OWN_HALVES = HALVES.replace("AT", "%j")


@pytest.mark.parametrize("place", ["mem.buffer", "mem.buffer at 0", "memref.alloc()", "memref.alloca()"])
@pytest.mark.parametrize("nested", [COPIES, OWN_HALVES, SHARED_HALF])
def test_registers_are_those_of_the_iteration_that_made_the_buffer(place: str, nested: str) -> None:
    """An iteration may use what it made, whatever the others do at that place; one that all share is a race."""
    buffer = f'%b = {place} : memref<8xf32, "registers">'
    zero = "%c0 = arith.constant 0 : index"
    x, y = floats(6, 8), np.zeros((6, 8), np.float32)
    own = verified(ROWS_IN_REGISTERS.format(outside=zero, inside=buffer, nested=nested), "host-avx2")
    hoisted = verified(ROWS_IN_REGISTERS.format(outside=f"{zero}\n  {buffer}", inside="", nested=nested), "host-avx2")
    if nested == SHARED_HALF:
        with pytest.raises(UserError, match="data race"):
            run(own, x, y, order="alap")
    else:
        run(own, x, y, order="alap")
        np.testing.assert_array_equal(y, x)
    with pytest.raises(UserError, match="data race"):
        run(hoisted, x, y, order="alap")
