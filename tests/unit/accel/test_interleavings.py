# SPDX-License-Identifier: Apache-2.0
"""As soon as possible, as late as possible, and drawn: what each order of commands brings to light."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime.interpreter import Order, read_order, run_function
from penstock.runtime.interpreter.commands import IssuedCommand, holds, join, with_command
from penstock.runtime.machines import attach_machine

CHECKED: tuple[Order, ...] = ("asap", "alap", 0, 1, 2, 3)

CHAIN = """
func.func @k(%x: memref<4x1x16xi8>, %y: memref<4x1x16xi8>) {
  %a = mem.buffer at <A> : memref<1x1x16xi8, "spad">
  %b = mem.buffer at <B> : memref<1x1x16xi8, "spad">
  %l0 = accel.dma %x[0, 0, 0] to %a on "mvin" : memref<4x1x16xi8> to memref<1x1x16xi8, "spad">
  %s0 = accel.dma %a to %y[0, 0, 0] on "mvout" <AFTER_S0> : memref<1x1x16xi8, "spad"> to memref<4x1x16xi8>
  %l1 = accel.dma %x[1, 0, 0] to %b on "mvin" <AFTER_L1> : memref<4x1x16xi8> to memref<1x1x16xi8, "spad">
  %s1 = accel.dma %b to %y[1, 0, 0] on "mvout" after (%l1) : memref<1x1x16xi8, "spad"> to memref<4x1x16xi8>
  accel.barrier
  func.return
}
"""
GOOD = {"A": "0", "B": "0", "AFTER_S0": "after (%l0)", "AFTER_L1": "after (%s0)"}


def module_of(text: str, **changes: str) -> ModuleOp:
    for name, value in (GOOD | changes).items():
        text = text.replace(f"<{name}>", value)
    module = parse_text(make_context(), SourceText("k.mlir", text)).module
    attach_machine(module, "gemmini")
    module.verify()
    return module


def data() -> tuple[NDArray[Any], NDArray[Any]]:
    return np.arange(64, dtype=np.int8).reshape(4, 1, 16), np.zeros((4, 1, 16), np.int8)


def run(module: ModuleOp, interleaving: Order) -> NDArray[Any]:
    x, y = data()
    run_function(module, "k", [x, y], interleaving=interleaving)
    return y


def test_every_order_computes_the_same_where_tokens_order_what_they_must() -> None:
    x, _ = data()
    for interleaving in ("program", *CHECKED):
        y = run(module_of(CHAIN), interleaving)
        assert np.array_equal(y[:2], x[:2]), interleaving


@pytest.mark.parametrize("interleaving", CHECKED)
@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("AFTER_S0", "accel.dma on store reads %a .*, which accel.dma on load writes through %a"),
        ("AFTER_L1", "accel.dma on load writes %b .*, which accel.dma on store reads through %a"),
    ],
)
def test_a_missing_token_is_an_error_that_names_both_ops(interleaving: Order, missing: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        run(module_of(CHAIN, **{missing: ""}), interleaving)
    assert caught.value.loc is not None
    assert caught.value.loc.startswith("k.mlir:")
    assert "k.mlir:5" in caught.value.notes[0] or "k.mlir:6" in caught.value.notes[0]


@pytest.mark.parametrize("interleaving", CHECKED)
def test_bytes_and_not_buffers_decide(interleaving: Order) -> None:
    run(module_of(CHAIN, B="16", AFTER_L1=""), interleaving)
    # One byte of the second buffer lies in the first. The granule is 16, so only a scope without one has this.
    with pytest.raises(UserError, match="no happens-before between the two"):
        run(module_of(CHAIN, B="15", AFTER_L1=""), interleaving)


def order_of_events(module: ModuleOp, interleaving: Order, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    events: list[str] = []
    start, end = IssuedCommand.start, IssuedCommand.end

    def noted_start(self: IssuedCommand) -> None:
        events.append(f"start {self.op.results[0].name_hint}")
        start(self)

    def noted_end(self: IssuedCommand) -> None:
        events.append(f"end {self.op.results[0].name_hint}")
        end(self)

    monkeypatch.setattr(IssuedCommand, "start", noted_start)
    monkeypatch.setattr(IssuedCommand, "end", noted_end)
    run(module, interleaving)
    return events


PARALLEL = """
func.func @k(%x: memref<4x1x16xi8>, %y: memref<4x1x16xi8>) {
  %a = mem.buffer at 0 : memref<1x1x16xi8, "spad">
  %b = mem.buffer at 16 : memref<1x1x16xi8, "spad">
  %l0 = accel.dma %x[0, 0, 0] to %a on "mvin" : memref<4x1x16xi8> to memref<1x1x16xi8, "spad">
  %l1 = accel.dma %x[1, 0, 0] to %b on "mvin" : memref<4x1x16xi8> to memref<1x1x16xi8, "spad">
  %s0 = accel.dma %a to %y[0, 0, 0] on "mvout" after (%l0) : memref<1x1x16xi8, "spad"> to memref<4x1x16xi8>
  %s1 = accel.dma %a to %y[1, 0, 0] on "mvout" after (%s0) : memref<1x1x16xi8, "spad"> to memref<4x1x16xi8>
  accel.barrier
  func.return
}
"""


def test_as_soon_as_possible_starts_all_that_can_before_anything_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    events = order_of_events(module_of(PARALLEL), "asap", monkeypatch)
    assert events[:2] == ["start l0", "start l1"]
    assert events.index("end l1") < events.index("end s0")


def test_as_late_as_possible_does_nothing_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    late = order_of_events(module_of(PARALLEL), "alap", monkeypatch)
    # No command waits for the second load, so it starts when nothing is left but the end.
    assert late.index("end s0") < late.index("start l1")
    assert set(late[-2:]) == {"end l1", "end s1"}


def test_as_late_as_possible_runs_only_what_the_host_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    text = PARALLEL.replace("  %s0 =", "  accel.wait %l0\n  %s0 =")
    late = order_of_events(module_of(text), "alap", monkeypatch)
    assert late[:2] == ["start l0", "end l0"]
    assert late.index("start l1") > late.index("end s0")


QUEUED = """
func.func @k(%x: memref<4x1x16xi8>, %y: memref<4x1x16xi8>) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %four = arith.constant 4 : index
  %ring = mem.ring 2 at 0 : !mem.ring<memref<1x1x16xi8, "spad">>
  PRIME
  scf.for %i = %zero to %four step %one {
    %a = mem.slot %ring[%i] : !mem.ring<memref<1x1x16xi8, "spad">>
    accel.pop "load" from "store"
    %l = accel.dma %x[%i, 0, 0] to %a on "mvin" : memref<4x1x16xi8> to memref<1x1x16xi8, "spad">
    accel.push "load" to "store"
    accel.pop "store" from "load"
    %s = accel.dma %a to %y[%i, 0, 0] on "mvout" : memref<1x1x16xi8, "spad"> to memref<4x1x16xi8>
    accel.push "store" to "load"
  }
  DRAIN
  accel.barrier
  func.return
}
"""


def queued(prime: int, drain: int) -> ModuleOp:
    text = QUEUED.replace("PRIME", 'accel.push "store" to "load"\n' * prime)
    return module_of(text.replace("DRAIN", 'accel.pop "load" from "store"\n' * drain))


@pytest.mark.parametrize("interleaving", ["program", *CHECKED])
def test_primed_and_drained_queues_order_a_ring(interleaving: Order) -> None:
    x, _ = data()
    assert np.array_equal(run(queued(2, 2), interleaving), x)


@pytest.mark.parametrize("interleaving", CHECKED)
def test_one_push_too_many_before_the_loop_is_a_race(interleaving: Order) -> None:
    with pytest.raises(UserError, match=r"accel\.dma on load writes %a, which accel\.dma on store reads"):
        run(queued(3, 3), interleaving)


@pytest.mark.parametrize("interleaving", ["program", *CHECKED])
def test_popping_more_often_than_pushing_is_an_error(interleaving: Order) -> None:
    with pytest.raises(UserError, match="pops a token from the queue from store to load that was not pushed"):
        run(queued(0, 0), interleaving)


@pytest.mark.parametrize("interleaving", ["program", *CHECKED])
def test_what_is_left_in_a_queue_is_a_leak(interleaving: Order) -> None:
    with pytest.raises(UserError, match="the queue from store to load holds 1 tokens, 0 at the beginning"):
        run(queued(2, 1), interleaving)


def test_integers_are_undefined_while_a_command_overwrites_them() -> None:
    text = """
func.func @k(%x: memref<4x1x16xi8>, %y: memref<4x1x16xi8>) {
  %zero = arith.constant 0 : index
  %a = mem.buffer at 0 : memref<1x1x16xi8, "spad">
  %l = accel.dma %x[0, 0, 0] to %a on "mvin" : memref<4x1x16xi8> to memref<1x1x16xi8, "spad">
  %s = accel.dma %a to %y[0, 0, 0] on "mvout" after (%l) : memref<1x1x16xi8, "spad"> to memref<4x1x16xi8>
  %v = memref.load %y[%zero, %zero, %zero] : memref<4x1x16xi8>
  memref.store %v, %x[%zero, %zero, %zero] : memref<4x1x16xi8>
  accel.barrier
  func.return
}
"""
    module, seen = module_of(text), set[int]()
    for seed in range(40):
        x, y = np.full((4, 1, 16), 7, np.int8), np.full((4, 1, 16), 3, np.int8)
        run_function(module, "k", [x, y], interleaving=seed)
        seen.add(int(x[0, 0, 0]))
    # The host has not waited: it reads what was there, what the store leaves, or rubbish in between.
    assert seen >= {3, -91}


def test_a_number_draws_the_same_interleaving_again() -> None:
    for interleaving in (5, 6):
        assert np.array_equal(run(module_of(CHAIN), interleaving), run(module_of(CHAIN), interleaving))


def test_orders_are_read_as_they_are_spelled() -> None:
    assert [read_order(word) for word in ("program", "asap", "alap", "17")] == ["program", "asap", "alap", 17]
    with pytest.raises(UserError, match='there is no interleaving "asab"') as caught:
        read_order("asab")
    assert 'did you mean "asap"?' in caught.value.notes
    assert caught.value.status == 2


# clocks


def test_clocks_count_commands_that_complete_in_any_order() -> None:
    clock = with_command(with_command((), 1, 2), 1, 0)
    assert [holds(clock, 1, number) for number in range(4)] == [True, False, True, False]
    assert not holds(clock, 0, 0)
    both = join(clock, with_command((), 1, 1))
    assert both == ((0, 0), (3, 0))
    assert holds(both, 1, 2)
    assert join(both, clock) == both
    far = with_command((), 0, 100_000)
    assert holds(far, 0, 100_000)
    assert not holds(far, 0, 99_999)
