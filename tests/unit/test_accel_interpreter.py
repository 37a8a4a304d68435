# SPDX-License-Identifier: Apache-2.0
"""Scopes as bytes, commands under seeded interleavings, and what is counted on the way."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import WeightStore
from penstock.runtime.interpreter import Counters, run_function, run_module
from penstock.runtime.interpreter.commands import IssuedCommand

CONTEXT = make_context()
SEEDS = range(12)

ROWS = 'memref<?x?xf32, strided<[?, 1]>, "{}">'
SPAD, ACC = ROWS.format("spad"), ROWS.format("acc")
MACHINE = f"""
machine.target @toy frequency 1000 {{
  machine.scope @spad size 4096 granule 16 dtypes [f32, i8] parent @dram
  machine.scope @acc size 2048 granule 16 dtypes [f32] parent @dram
  machine.unit @load
  machine.unit @execute
  machine.unit @store
  machine.dma @mvin unit @load from [@dram] to [@spad, @acc] dims 2 latency 10 row_overhead 1 outstanding OUTSTANDING
  machine.dma @mvout unit @store from [@acc, @spad] to [@dram] dims 2 latency 10 row_overhead 1 outstanding 4
  machine.queue from @load to @execute capacity 2 on_full "error"
  machine.queue from @execute to @load capacity 2 on_full "block"
  machine.queue from @load to @store capacity 8 on_full "error"
  machine.queue from @store to @load capacity 1 on_full "POLICY" initial 1
  machine.intrinsic @gemm unit @execute operands [a row, b row, c row]
      shape {{m = [1, 4], n = [2, 4], k = [1, 4]}} ii 4 depth 12 {{
  ^bb0(%a: {SPAD}, %b: {SPAD}, %c: {ACC}):
    linalg.generic {{indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>,
                                      affine_map<(m, n, k) -> (m, n)>],
                     iterator_types = ["parallel", "parallel", "reduction"]}}
        ins(%a, %b : {SPAD}, {SPAD}) outs(%c : {ACC}) {{
    ^bb1(%x: f32, %y: f32, %z: f32):
      %p = arith.mulf %x, %y : f32
      %s = arith.addf %z, %p : f32
      linalg.yield %s : f32
    }}
  }}
  machine.intrinsic @double unit @execute operands [x row, y row] shape {{i = [1, 8], j = [1, 8]}} ii 1 depth 4 {{
  ^bb0(%x: {SPAD}, %y: {SPAD}):
    linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
                     iterator_types = ["parallel", "parallel"]}}
        ins(%x : {SPAD}) outs(%y : {SPAD}) {{
    ^bb1(%a: f32, %z: f32):
      %s = arith.addf %a, %a : f32
      linalg.yield %s : f32
    }}
  }}
  machine.intrinsic @zero_acc dma @mvin operands [dst row] shape {{i = ?, j = ?}} {{
  ^bb0(%dst: {ACC}):
    linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}}
        outs(%dst : {ACC}) {{
    ^bb1(%z: f32):
      %zero = arith.constant 0.0 : f32
      linalg.yield %zero : f32
    }}
  }}
  machine.intrinsic @mvout_relu dma @mvout operands [src row, dst row] shape {{i = ?, j = ?}} {{
  ^bb0(%src: {ACC}, %dst: memref<?x?xf32, strided<[?, 1]>>):
    linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
                     iterator_types = ["parallel", "parallel"]}}
        ins(%src : {ACC}) outs(%dst : memref<?x?xf32, strided<[?, 1]>>) {{
    ^bb1(%x: f32, %z: f32):
      %zero = arith.constant 0.0 : f32
      %r = arith.maximumf %x, %zero : f32
      linalg.yield %r : f32
    }}
  }}
}}
"""
IDENTITY = "affine_map<(i, j) -> (i, j)>"
MATMUL = """[affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> (m, n)>]"""
KERNEL = f"""
func.func private @kernel(%x: memref<8x64xf32>, %w: memref<64x8xf32>, %y: memref<8x8xf32>) {{
  %zero = arith.constant 0 : index
  %step = arith.constant 16 : index
  %end = arith.constant 64 : index
  %acc = mem.buffer at ACC_AT : memref<8x8xf32, "acc">
  %clear = accel.exec @zero_acc extents [8, 8] maps [{IDENTITY}] (%acc) : memref<8x8xf32, "acc">
  %free = accel.ready after (%clear)
  %done = scf.for %k = %zero to %end step %step iter_args(%before = %free) -> (!accel.token) {{
    %xs = mem.buffer at 0 : memref<8x16xf32, "spad">
    %ws = mem.buffer at WS_AT : memref<16x8xf32, "spad">
    %t0 = accel.dma %x[0, %k] to %xs on "mvin" AFTER_X : memref<8x64xf32> to memref<8x16xf32, "spad">
    %t1 = accel.dma %w[%k, 0] to %ws on "mvin" AFTER_W : memref<64x8xf32> to memref<16x8xf32, "spad">
    %t2 = accel.exec @gemm extents [8, 8, 16] maps {MATMUL} (%xs, %ws, %acc) AFTER_GEMM
      : memref<8x16xf32, "spad">, memref<16x8xf32, "spad">, memref<8x8xf32, "acc"> loc("kernel.py":9:5)
    scf.yield %t2 : !accel.token
  }}
  %out = accel.exec @mvout_relu extents [8, 8] maps [{IDENTITY}, {IDENTITY}] (%acc, %y) AFTER_OUT
    : memref<8x8xf32, "acc">, memref<8x8xf32>
  BARRIER
  func.return
}}
func.func @main(%x: memref<8x64xf32> {{graph.name = "x"}}, %w: memref<64x8xf32> {{graph.weight = "w"}},
                %y: memref<8x8xf32> {{graph.output = "y"}}) {{
  func.call @kernel(%x, %w, %y) : (memref<8x64xf32>, memref<64x8xf32>, memref<8x8xf32>) -> ()
  func.return
}}
"""
GOOD = {
    "OUTSTANDING": "4",
    "POLICY": "block",
    "ACC_AT": "1024",
    "WS_AT": "512",
    "AFTER_X": "after (%before)",
    "AFTER_W": "after (%before)",
    "AFTER_GEMM": "after (%t0, %t1)",
    "AFTER_OUT": "after (%done)",
    "BARRIER": "accel.barrier",
}


def module_of(text: str, **changes: str) -> ModuleOp:
    for key, value in (GOOD | changes).items():
        text = text.replace(key, value)
    module = Parser(CONTEXT, text).parse_module()
    module.verify()
    return module


def matmul(**changes: str) -> ModuleOp:
    return module_of(MACHINE + KERNEL, **changes)


RNG = np.random.default_rng(0)
X = RNG.integers(-3, 4, (8, 64)).astype(np.float32)
W = RNG.integers(-3, 4, (64, 8)).astype(np.float32)
WEIGHTS = WeightStore()
WEIGHTS.add("w", W)
EXPECTED = np.maximum(X @ W, 0)


def run(module: ModuleOp, **options: Any) -> NDArray[Any]:
    (y,) = run_module(module, [X], WEIGHTS, **options)
    return y


def kernel_of(body: str, *arguments: str, **changes: str) -> ModuleOp:
    return module_of(f"{MACHINE}\nfunc.func @f({', '.join(arguments)}) {{\n{body}\nfunc.return\n}}", **changes)


# order


def test_a_kernel_computes_the_same_in_program_order_and_under_every_seed() -> None:
    module = matmul()
    assert np.array_equal(run(module), EXPECTED)
    for seed in SEEDS:
        assert np.array_equal(run(module, seed=seed), EXPECTED), seed


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (
            {"AFTER_GEMM": "after (%t0, %before)"},
            r"reads %ws \(mem.buffer at 512\), which accel.dma on load",
        ),
        ({"AFTER_GEMM": "after (%t1)"}, r"reads %xs \(mem.buffer at 0\), which accel.dma on load writes"),
        ({"AFTER_GEMM": ""}, "with no happens-before between the two"),
        ({"AFTER_X": ""}, r"accel.dma on load writes %xs.*, which accel.exec on execute reads through %xs"),
        (
            {"AFTER_X": "after (%free)"},
            r"accel.dma on load writes %xs.*, which accel.exec on execute reads through %xs",
        ),
        ({"AFTER_OUT": ""}, r"accel.exec on store reads %acc.*, which accel.exec on execute writes through %acc"),
        ({"AFTER_OUT": "after (%clear)"}, r"reads %acc"),
    ],
)
def test_a_missing_token_is_found_under_every_seed(tokens: dict[str, str], message: str) -> None:
    module = matmul(**tokens)
    assert np.array_equal(run(module), EXPECTED)  # program order hides it
    for seed in SEEDS:
        with pytest.raises(UserError, match=message) as caught:
            run(module, seed=seed)
        assert caught.value.notes


def test_an_order_that_the_unit_implies_needs_no_token() -> None:
    module = matmul(AFTER_W="")  # its unit takes the load of %ws once that of %xs has started
    for seed in SEEDS:
        assert np.array_equal(run(module, seed=seed), EXPECTED), seed


def test_a_race_is_reported_where_the_command_came_from() -> None:
    with pytest.raises(UserError) as caught:
        run(matmul(AFTER_GEMM=""), seed=0)
    assert caught.value.loc == "kernel.py:9:5"


TWO_LOADS = """
  %a = mem.buffer at 0 : memref<8x16xf32, "spad">
  %s = accel.dma %x to %a on "mvin" : memref<8x16xf32> to memref<8x16xf32, "spad">
  %t = accel.dma %y to %a on "mvin" : memref<8x16xf32> to memref<8x16xf32, "spad">
  %u = accel.dma %a to %z on "mvout" after (%t) : memref<8x16xf32, "spad"> to memref<8x16xf32>
  accel.barrier
"""


@pytest.mark.parametrize(("outstanding", "races"), [("1", False), ("2", True)])
def test_transfers_of_one_unit_are_ordered_only_if_one_is_outstanding(outstanding: str, races: bool) -> None:
    names = ("x", "y", "z")
    module = kernel_of(TWO_LOADS, *(f"%{name}: memref<8x16xf32>" for name in names), OUTSTANDING=outstanding)
    x, y = np.ones((8, 16), np.float32), np.full((8, 16), 2, np.float32)
    for seed in SEEDS:
        z = np.zeros((8, 16), np.float32)
        if races:
            with pytest.raises(UserError, match=r"accel.dma on load writes %a"):
                run_function(module, "f", [x, y, z], seed=seed)
        else:
            run_function(module, "f", [x, y, z], seed=seed)
            assert np.array_equal(z, y)


def test_a_reload_of_what_is_still_being_stored_off_chip_is_a_race() -> None:
    body = """
      %a = mem.buffer at 0 : memref<4x4xf32, "spad">
      %b = mem.buffer at 64 : memref<4x4xf32, "spad">
      %s = accel.dma %x to %a on "mvin" : memref<4x4xf32> to memref<4x4xf32, "spad">
      %t = accel.dma %a to %y[0, 4] on "mvout" after (%s) : memref<4x4xf32, "spad"> to memref<4x8xf32>
      %u = accel.dma %y[0, COLUMN] to %b on "mvin" after (%s) : memref<4x8xf32> to memref<4x4xf32, "spad">
      accel.barrier"""
    arguments = ("%x: memref<4x4xf32>", "%y: memref<4x8xf32>")
    arrays = [np.ones((4, 4), np.float32), np.zeros((4, 8), np.float32)]
    run_function(kernel_of(body, *arguments, COLUMN="0"), "f", arrays, seed=0)  # other columns of the same rows
    for seed in SEEDS:
        with pytest.raises(UserError, match=r"accel.dma on load reads %y, which accel.dma on store writes"):
            run_function(kernel_of(body, *arguments, COLUMN="3"), "f", arrays, seed=seed)


def test_a_ring_of_two_buffers_is_free_of_races_with_its_tokens_and_not_without() -> None:
    body = """
      %zero = arith.constant 0 : index
      %one = arith.constant 1 : index
      %two = arith.constant 2 : index
      %n = arith.constant 6 : index
      %r = accel.ready
      %slots:2 = scf.for %i = %zero to %n step %two iter_args(%p = %r, %q = %r) -> (!accel.token, !accel.token) {
        %a = mem.buffer at 0 : memref<1x8xf32, "spad">
        %s0 = accel.dma %x[%i, 0] to %a on "mvin" AFTER_P : memref<6x8xf32> to memref<1x8xf32, "spad">
        %t0 = accel.dma %a to %y[%i, 0] on "mvout" after (%s0) : memref<1x8xf32, "spad"> to memref<6x8xf32>
        %j = arith.addi %i, %one : index
        %b = mem.buffer at 32 : memref<1x8xf32, "spad">
        %s1 = accel.dma %x[%j, 0] to %b on "mvin" after (%q) : memref<6x8xf32> to memref<1x8xf32, "spad">
        %t1 = accel.dma %b to %y[%j, 0] on "mvout" after (%s1) : memref<1x8xf32, "spad"> to memref<6x8xf32>
        scf.yield %t0, %t1 : !accel.token, !accel.token
      }
      accel.barrier"""
    arguments = ("%x: memref<6x8xf32>", "%y: memref<6x8xf32>")
    x = RNG.standard_normal((6, 8)).astype(np.float32)
    for seed in SEEDS:
        y = np.zeros_like(x)
        run_function(kernel_of(body, *arguments, AFTER_P="after (%p)"), "f", [x, y], seed=seed)
        assert np.array_equal(x, y)
        with pytest.raises(UserError, match="no happens-before between the two"):
            run_function(kernel_of(body, *arguments, AFTER_P=""), "f", [x, y], seed=seed)


def test_a_seed_draws_one_interleaving_and_seeds_draw_many(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    end = IssuedCommand.end

    def noted(self: IssuedCommand) -> None:
        order.append(self.unit)
        end(self)

    monkeypatch.setattr(IssuedCommand, "end", noted)

    def drawn(seed: int) -> tuple[str, ...]:
        order.clear()
        run(matmul(), seed=seed)
        return tuple(order)

    assert drawn(3) == drawn(3)
    body = """
      %a = mem.buffer at 0 : memref<8x16xf32, "spad">
      %b = mem.buffer at 512 : memref<8x16xf32, "spad">
      %s = accel.dma %x to %a on "mvin" : memref<8x16xf32> to memref<8x16xf32, "spad">
      %t = accel.dma %y to %b on "mvin" : memref<8x16xf32> to memref<8x16xf32, "spad">
      %u = accel.dma %b to %z on "mvout" after (%t) : memref<8x16xf32, "spad"> to memref<8x16xf32>
      accel.barrier"""
    module = kernel_of(body, *(f"%{name}: memref<8x16xf32>" for name in "xyz"))
    interleavings: set[tuple[str, ...]] = set()
    for seed in range(40):
        order.clear()
        run_function(module, "f", [np.zeros((8, 16), np.float32) for _ in range(3)], seed=seed)
        interleavings.add(tuple(order))
    assert interleavings == {("load", "load", "store"), ("load", "store", "load")}


def test_the_host_must_wait_for_what_it_reads() -> None:
    body = """
      %zero = arith.constant 0 : index
      %a = mem.buffer at 0 : memref<4xf32, "spad">
      %t = accel.dma %x to %a on "mvin" : memref<4xf32> to memref<4xf32, "spad">
      WAIT
      %v = memref.load %a[%zero] : memref<4xf32, "spad">
      memref.store %v, %y[%zero] : memref<4xf32>
      accel.barrier"""
    arguments = ("%x: memref<4xf32>", "%y: memref<4xf32>")
    found: list[str] = []
    for seed in SEEDS:
        x, y = np.full(4, 3, np.float32), np.zeros(4, np.float32)
        run_function(kernel_of(body, *arguments, WAIT="accel.wait %t"), "f", [x, y], seed=seed)
        assert y[0] == 3
        with suppress(UserError):
            run_function(kernel_of(body, *arguments, WAIT=""), "f", [x, y], seed=seed)
            continue
        found.append("memref.load")
    assert found


@pytest.mark.parametrize(("row", "is_right"), [(1, True), (0, False)])
def test_an_exec_may_write_what_it_reads_through_another_view(row: int, is_right: bool) -> None:
    """Through one of other elements, of which it reads some that it writes, it may not."""
    rows = 'memref<2x4xf32, "spad">'
    part = 'memref<1x4xf32, strided<[4, 1], offset: 4>, "spad">'
    other = 'memref<1x4xf32, strided<[4, 1], offset: OFFSET>, "spad">'.replace("OFFSET", str(2 + 2 * row))
    body = f"""
      %a = mem.buffer at 0 : {rows}
      %t = accel.dma %x to %a on "mvin" : memref<2x4xf32> to {rows}
      %flat = memref.collapse_shape %a [[0, 1]] : {rows} into memref<8xf32, "spad">
      %from = memref.subview %flat[{2 + 2 * row}] [4] [1] : memref<8xf32, "spad"> to
        memref<4xf32, strided<[1], offset: {2 + 2 * row}>, "spad">
      %read = memref.expand_shape %from [[0, 1]] output_shape [1, 4] :
        memref<4xf32, strided<[1], offset: {2 + 2 * row}>, "spad"> into {other}
      %written = memref.subview %a[1, 0] [1, 4] [1, 1] : {rows} to {part}
      %u = accel.exec @double extents [1, 4] maps [{IDENTITY}, {IDENTITY}] (%read, %written) after (%t)
        : {other}, {part}
      %v = accel.dma %a to %y on "mvout" after (%u) : {rows} to memref<2x4xf32>
      accel.barrier"""
    module = kernel_of(body, "%x: memref<2x4xf32>", "%y: memref<2x4xf32>")
    for seed in SEEDS:
        x, y = np.arange(8, dtype=np.float32).reshape(2, 4), np.zeros((2, 4), np.float32)
        if is_right:
            run_function(module, "f", [x, y], seed=seed)
            assert y.tolist() == [[0, 1, 2, 3], [8, 10, 12, 14]]
        else:
            with pytest.raises(UserError, match="which a command in flight is writing"):
                run_function(module, "f", [x, y], seed=seed)


def test_what_a_transfer_is_overwriting_is_undefined_meanwhile() -> None:
    body = """
      %zero = arith.constant 0 : index
      %a = mem.buffer at 0 : memref<4xf32, "spad">
      %t = accel.dma %x to %a on "mvin" : memref<4xf32> to memref<4xf32, "spad">
      accel.wait %t
      %u = accel.dma %x to %a on "mvin" : memref<4xf32> to memref<4xf32, "spad">
      %v = memref.load %a[%zero] : memref<4xf32, "spad">
      accel.barrier"""
    module = kernel_of(body, "%x: memref<4xf32>")
    messages: set[str] = set()
    for seed in range(40):
        try:
            run_function(module, "f", [np.ones(4, np.float32)], seed=seed)
        except UserError as error:
            messages.add(error.message)
    assert messages == {"memref.load: reads an element of %a (mem.buffer at 0), which a command in flight is writing"}


def test_commands_after_a_wait_happen_after_what_was_waited_for() -> None:
    body = """
      %a = mem.buffer at 0 : memref<4xf32, "spad">
      %t = accel.dma %x to %a on "mvin" : memref<4xf32> to memref<4xf32, "spad">
      accel.wait %t
      %u = accel.dma %a to %y on "mvout" : memref<4xf32, "spad"> to memref<4xf32>
      accel.barrier"""
    y = np.zeros(4, np.float32)
    module = kernel_of(body, "%x: memref<4xf32>", "%y: memref<4xf32>")
    run_function(module, "f", [np.ones(4, np.float32), y], seed=1)
    assert y.all()


def test_a_kernel_that_does_not_end_quiescent_is_refused() -> None:
    with pytest.raises(UserError, match="@kernel returns while commands may still run"):
        run(matmul(BARRIER=""))


# bytes


def test_a_plan_that_puts_two_live_buffers_over_each_other_is_found_in_program_order() -> None:
    with pytest.raises(UserError) as caught:
        run(matmul(WS_AT="496"))
    assert caught.value.message == (
        'accel.exec reads element [7, 12] of %xs (mem.buffer at 0) at byte 496 of scope "spad", '
        "which was last written through %ws (mem.buffer at 496)"
    )
    assert caught.value.loc == "kernel.py:9:5"


def test_a_buffer_beyond_its_scope_is_refused_with_the_sizes() -> None:
    with pytest.raises(
        UserError, match=r'%acc \(mem.buffer at 1808\) takes bytes 1808 to 2064 of scope "acc", which has 2048'
    ):
        run(matmul(ACC_AT="1808"))


def test_a_scope_that_the_machine_lacks_is_named() -> None:
    module = kernel_of('%a = mem.buffer at 0 : memref<4xf32, "spat">')
    with pytest.raises(UserError, match='machine "toy" has no scope "spat"') as caught:
        run_function(module, "f", [])
    assert 'did you mean "spad"?' in caught.value.notes


def test_an_accumulator_that_nobody_cleared_is_undefined() -> None:
    text = (
        (MACHINE + KERNEL)
        .replace("(%acc) : memref<8x8", "(%other) : memref<8x8")
        .replace("%clear =", '%other = mem.buffer at 0 : memref<8x8xf32, "acc">\n%clear =')
    )
    with pytest.raises(UserError, match=r"of %acc \(mem.buffer at 1024\) at byte 1024 .* which was never written"):
        run(module_of(text))


def test_only_the_elements_an_exec_touches_need_be_defined() -> None:
    body = f"""
      %a = mem.buffer at 0 : memref<4x8xf32, "spad">
      %b = mem.buffer at 128 : memref<4x4xf32, "spad">
      %c = mem.buffer at 0 : memref<4x4xf32, "acc">
      %part = memref.subview %a[0, 0] [4, 4] [1, 1]
        : memref<4x8xf32, "spad"> to memref<4x4xf32, strided<[8, 1]>, "spad">
      %t = accel.dma %x to %part on "mvin" : memref<4x4xf32> to memref<4x4xf32, strided<[8, 1]>, "spad">
      %u = accel.dma %x to %b on "mvin" : memref<4x4xf32> to memref<4x4xf32, "spad">
      %v = accel.exec @zero_acc extents [4, 4] maps [{IDENTITY}] (%c) : memref<4x4xf32, "acc">
      %g = accel.exec @gemm extents [EXTENTS] maps {MATMUL} (%a, %b, %c) after (%t, %u, %v)
        : memref<4x8xf32, "spad">, memref<4x4xf32, "spad">, memref<4x4xf32, "acc">
      %o = accel.dma %c to %y on "mvout" after (%g) : memref<4x4xf32, "acc"> to memref<4x4xf32>
      accel.barrier"""
    x, y = RNG.integers(-3, 4, (4, 4)).astype(np.float32), np.zeros((4, 4), np.float32)
    arguments = ("%x: memref<4x4xf32>", "%y: memref<4x4xf32>")
    run_function(kernel_of(body, *arguments, EXTENTS="4, 4, 4"), "f", [x, y])
    assert np.array_equal(y, x @ x)
    run_function(kernel_of(body, *arguments, EXTENTS="2, 4, 4"), "f", [x, y])
    assert np.array_equal(y, np.concatenate([(x @ x)[:2], np.zeros((2, 4))]))


DIAGONAL = "[affine_map<(m, n, k) -> (m, m)>, affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> (m, n)>]"
DIAGONAL_KERNEL = f"""
  %a = mem.buffer at 0 : memref<2x2xf32, "spad">
  %b = mem.buffer at 16 : memref<1x2xf32, "spad">
  %c = mem.buffer at 0 : memref<2x2xf32, "acc">
  %p = memref.subview %a[0, 0] [1, 1] [1, 1] : memref<2x2xf32, "spad"> to memref<1x1xf32, strided<[2, 1]>, "spad">
  %q = memref.subview %a[1, 1] [1, 1] [1, 1]
    : memref<2x2xf32, "spad"> to memref<1x1xf32, strided<[2, 1], offset: 3>, "spad">
  %r = memref.subview %a[0, 1] [1, 1] [1, 1]
    : memref<2x2xf32, "spad"> to memref<1x1xf32, strided<[2, 1], offset: 1>, "spad">
  %tp = accel.dma %x[0, 0] to %p on "mvin" : memref<2x2xf32> to memref<1x1xf32, strided<[2, 1]>, "spad">
  %tq = accel.dma %x[1, 1] to %q on "mvin" : memref<2x2xf32> to memref<1x1xf32, strided<[2, 1], offset: 3>, "spad">
  %tb = accel.dma %x[0, 0] to %b on "mvin" : memref<2x2xf32> to memref<1x2xf32, "spad">
  %tc = accel.exec @zero_acc extents [2, 2] maps [{IDENTITY}] (%c) : memref<2x2xf32, "acc">
  %g = accel.exec @gemm extents [2, 2, 1] maps {DIAGONAL} (%a, %b, %c) after (AFTER)
    : memref<2x2xf32, "spad">, memref<1x2xf32, "spad">, memref<2x2xf32, "acc">
  %tr = accel.dma %x[0, 1] to %r on "mvin" : memref<2x2xf32> to memref<1x1xf32, strided<[2, 1], offset: 1>, "spad">
  %o = accel.dma %c to %y on "mvout" after (%g) : memref<2x2xf32, "acc"> to memref<2x2xf32>
  accel.barrier
"""


def test_elements_that_are_no_box_are_checked_one_by_one() -> None:
    x, y = np.array([[2, 3], [5, 7]], np.float32), np.zeros((2, 2), np.float32)
    arguments = ("%x: memref<2x2xf32>", "%y: memref<2x2xf32>")
    module = kernel_of(DIAGONAL_KERNEL, *arguments, AFTER="%tp, %tq, %tb, %tc")
    for seed in (None, *SEEDS):
        run_function(module, "f", [x, y], seed=seed)  # %tr writes beside the diagonal that the exec reads
        assert y.tolist() == [[4, 6], [14, 21]]
        with pytest.raises(UserError, match="no happens-before between the two"):
            run_function(kernel_of(DIAGONAL_KERNEL, *arguments, AFTER="%tp, %tb, %tc"), "f", [x, y], seed=seed or 0)
    off = DIAGONAL_KERNEL.replace("%a[1, 1] [1, 1]", "%a[1, 0] [1, 1]").replace("offset: 3", "offset: 2")
    with pytest.raises(UserError, match=r"reads element \[1, 1\] of %a .* which was never written"):
        run_function(kernel_of(off, *arguments, AFTER="%tp, %tq, %tb, %tc"), "f", [x, y])


PADDED = """
  %zero = arith.constant 0 : index
  %pad = arith.constant 7.0 : f32
  %b = mem.buffer at 0 : memref<3x3xf32, "spad">
  FIRST
  %t = accel.dma %x[%i, %j] to %b HOW on "mvin" DEPENDS : memref<4x4xf32> to memref<3x3xf32, "spad">
  %u = accel.dma %b to %y on "mvout" after (%t) : memref<3x3xf32, "spad"> to memref<3x3xf32>
  accel.barrier
"""
PADDED_ARGUMENTS = ("%x: memref<4x4xf32>", "%y: memref<3x3xf32>", "%i: index", "%j: index")


@pytest.mark.parametrize(("at", "inside"), [((0, 1), 9), ((-1, 2), 4), ((3, 3), 1), ((-3, 0), 0), ((9, -9), 0)])
def test_a_padded_transfer_counts_the_bytes_inside_its_window(at: tuple[int, int], inside: int) -> None:
    x, y = np.arange(16, dtype=np.float32).reshape(4, 4), np.zeros((3, 3), np.float32)
    counters = Counters()
    module = kernel_of(PADDED, *PADDED_ARGUMENTS, HOW="else %pad", FIRST="", DEPENDS="")
    run_function(module, "f", [x, y, *at], counters=counters)
    padded = np.full((64, 64), 7, np.float32)
    padded[30:34, 30:34] = x
    assert np.array_equal(y, padded[30 + at[0] : 33 + at[0], 30 + at[1] : 33 + at[1]])
    assert (counters.bytes_in, counters.bytes_out) == (4 * inside, 36)


def test_a_clipped_transfer_leaves_the_rest_as_somebody_filled_it() -> None:
    first = """%s = accel.dma %y to %b on "mvin" : memref<3x3xf32> to memref<3x3xf32, "spad">"""
    x, y = np.arange(1, 17, dtype=np.float32).reshape(4, 4), np.full((3, 3), -1, np.float32)
    module = kernel_of(PADDED, *PADDED_ARGUMENTS, HOW="clipped", FIRST=first, DEPENDS="after (%s)")
    run_function(module, "f", [x, y, -1, 2], seed=2)
    assert y.tolist() == [[-1, -1, -1], [3, 4, -1], [7, 8, -1]]


def test_a_clipped_transfer_that_nobody_filled_leaves_undefined_bytes() -> None:
    x, y = np.ones((4, 4), np.float32), np.zeros((3, 3), np.float32)
    module = kernel_of(PADDED, *PADDED_ARGUMENTS, HOW="clipped", FIRST="", DEPENDS="")
    with pytest.raises(UserError, match=r"element \[0, 0\] of %b .* which was never written"):
        run_function(module, "f", [x, y, -1, 2])


def test_a_transfer_of_undefined_elements_leaves_undefined_ones() -> None:
    body = """
      %a = mem.buffer at 0 : memref<2x2xf32, "spad">
      %t = accel.dma %x[0, 0] to %a clipped on "mvin" : memref<1x2xf32> to memref<2x2xf32, "spad">
      %b = mem.buffer at 64 : memref<2x2xf32>
      %u = accel.dma %a to %b on "mvout" after (%t) : memref<2x2xf32, "spad"> to memref<2x2xf32>
      accel.barrier
      mem.copy %b[%row, 0] to %y : memref<2x2xf32> to memref<1x2xf32>
    """
    x, y = np.array([[3, 4]], np.float32), np.zeros((1, 2), np.float32)
    module = kernel_of(body, "%x: memref<1x2xf32>", "%y: memref<1x2xf32>", "%row: index")
    for seed in SEEDS:
        run_function(module, "f", [x, y, 0], seed=seed)
        assert y.tolist() == [[3, 4]]
        with pytest.raises(UserError, match=r"mem\.copy reads element \[1, 0\] of %b .* which was never written"):
            run_function(module, "f", [x, y, 1], seed=seed)
    module = kernel_of(body.replace("after (%t)", ""), "%x: memref<1x2xf32>", "%y: memref<1x2xf32>", "%row: index")
    with pytest.raises(UserError, match="no happens-before between the two"):
        run_function(module, "f", [x, y, 0], seed=0)


def test_a_transfer_out_is_clipped_at_the_edge_of_its_destination() -> None:
    body = """
      %a = mem.buffer at 0 : memref<3x3xf32, "spad">
      %t = accel.dma %x to %a on "mvin" : memref<3x3xf32> to memref<3x3xf32, "spad">
      %u = accel.dma %a to %y[%i, -1] on "mvout" after (%t) : memref<3x3xf32, "spad"> to memref<4x4xf32>
      accel.barrier"""
    x, y = np.arange(1, 10, dtype=np.float32).reshape(3, 3), np.zeros((4, 4), np.float32)
    counters = Counters()
    module = kernel_of(body, "%x: memref<3x3xf32>", "%y: memref<4x4xf32>", "%i: index")
    run_function(module, "f", [x, y, 3], counters=counters)
    assert y[3].tolist() == [2, 3, 0, 0]
    assert not y[:3].any()
    assert counters.bytes_out == 8


# counting and refusals


def test_the_counters_hold_bytes_blocks_and_multiplications() -> None:
    counters = Counters()
    run(matmul(), counters=counters)
    assert counters.dma["mvin"].bytes_in == X.nbytes + W.nbytes
    assert counters.dma["mvout"].bytes_out == EXPECTED.nbytes
    gemm = counters.intrinsics["gemm"]
    assert (gemm.commands, gemm.issues, gemm.macs) == (4, 4 * 2 * 2 * 4, 8 * 8 * 64)
    assert counters.intrinsics["mvout_relu"].issues == 1
    assert counters.macs == gemm.macs


def test_a_convolution_in_one_exec_is_counted_in_blocks_of_the_matrix_product() -> None:
    maps = """[affine_map<(h, w, o, kh, kw, c) -> (h + kh, w + kw, c)>,
               affine_map<(h, w, o, kh, kw, c) -> (kh, kw, c, o)>,
               affine_map<(h, w, o, kh, kw, c) -> (h, w, o)>]"""
    body = f"""
      %a = mem.buffer at 0 : memref<5x7x4xf32, "spad">
      %b = mem.buffer at 1024 : memref<3x3x4x6xf32, "spad">
      %c = mem.buffer at 0 : memref<3x5x6xf32, "acc">
      %c2 = memref.collapse_shape %c [[0, 1], [2]] : memref<3x5x6xf32, "acc"> into memref<15x6xf32, "acc">
      %t = accel.dma %x to %a on "mvin" : memref<5x7x4xf32> to memref<5x7x4xf32, "spad">
      %u = accel.dma %w to %b on "mvin" : memref<3x3x4x6xf32> to memref<3x3x4x6xf32, "spad">
      %v = accel.exec @zero_acc extents [15, 6] maps [{IDENTITY}] (%c2) : memref<15x6xf32, "acc">
      %g = accel.exec @gemm extents [3, 5, 6, 3, 3, 4] maps {maps} (%a, %b, %c) after (%t, %u, %v)
        : memref<5x7x4xf32, "spad">, memref<3x3x4x6xf32, "spad">, memref<3x5x6xf32, "acc">
      %o = accel.dma %c to %y on "mvout" after (%g) : memref<3x5x6xf32, "acc"> to memref<3x5x6xf32>
      accel.barrier"""
    module = kernel_of(body, "%x: memref<5x7x4xf32>", "%w: memref<3x3x4x6xf32>", "%y: memref<3x5x6xf32>")
    x, w = (RNG.integers(-3, 4, shape).astype(np.float32) for shape in ((5, 7, 4), (3, 3, 4, 6)))
    y, counters = np.zeros((3, 5, 6), np.float32), Counters()
    run_function(module, "f", [x, w, y], counters=counters, seed=0)
    expected = sum(
        np.einsum("hwc,co->hwo", x[kh : kh + 3, kw : kw + 5], w[kh, kw]) for kh in range(3) for kw in range(3)
    )
    assert np.array_equal(y, expected)
    gemm = counters.intrinsics["gemm"]
    # the 3 rows in one block, which is better than the 5 columns in two; channels in 2; columns, kh and kw one by one
    assert (gemm.issues, gemm.macs) == (1 * 5 * 2 * 3 * 3 * 1, 3 * 5 * 6 * 3 * 3 * 4)


def test_a_last_block_that_is_too_small_is_refused() -> None:
    text = (MACHINE + KERNEL).replace("n = [2, 4]", "n = [3, 3]")
    with pytest.raises(UserError, match='intrinsic "gemm" takes at least 3 in dim n, but the last block of 8'):
        run(module_of(text))


# queues

PUMP = """
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %n = arith.constant 5 : index
  scf.for %i = %zero to %n step %one {
    %a = mem.buffer at 0 : memref<1x8xf32, "spad">
    POP_FREE
    %s = accel.dma %x[%i, 0] to %a on "mvin" : memref<5x8xf32> to memref<1x8xf32, "spad">
    PUSH_FULL
    POP_FULL
    %t = accel.dma %a to %y[%i, 0] on "mvout" : memref<1x8xf32, "spad"> to memref<5x8xf32>
    PUSH_FREE
  }
  accel.barrier
"""
PUMP_ARGUMENTS = ("%x: memref<5x8xf32>", "%y: memref<5x8xf32>")
QUEUED = {
    "POP_FREE": 'accel.pop "load" from "store"',
    "PUSH_FULL": 'accel.push "load" to "store"',
    "POP_FULL": 'accel.pop "store" from "load"',
    "PUSH_FREE": 'accel.push "store" to "load"',
}


def pump(**changes: str) -> ModuleOp:
    return kernel_of(PUMP, *PUMP_ARGUMENTS, **(QUEUED | changes))


def test_queues_order_two_units() -> None:
    x = RNG.standard_normal((5, 8)).astype(np.float32)
    for seed in (None, *SEEDS):
        y = np.zeros_like(x)
        run_function(pump(), "f", [x, y], seed=seed)
        assert np.array_equal(x, y)


@pytest.mark.parametrize(
    ("without", "message"),
    [
        (("POP_FREE", "PUSH_FREE"), r"accel.dma on load writes %a"),
        (("POP_FULL", "PUSH_FULL"), r"accel.dma on store reads %a"),
        (("POP_FREE",), r"accel.dma on load writes %a"),
        (("PUSH_FREE",), "pops a token from the queue from store to load that was not pushed"),
        (("PUSH_FULL",), "pops a token from the queue from load to store that was not pushed"),
    ],
)
def test_a_missing_push_or_pop_is_found_under_every_seed(without: tuple[str, ...], message: str) -> None:
    module = pump(**dict.fromkeys(without, ""))
    for seed in SEEDS:
        with pytest.raises(UserError, match=message):
            run_function(module, "f", [np.zeros((5, 8), np.float32) for _ in range(2)], seed=seed)


def test_a_full_queue_is_an_error_where_it_does_not_block() -> None:
    module = pump(POP_FREE="", POLICY="error")
    with pytest.raises(UserError, match="pushes into the queue from store to load, which is full with 1"):
        run_function(module, "f", [np.zeros((5, 8), np.float32) for _ in range(2)])


def test_a_push_that_no_pop_makes_room_for_is_a_deadlock() -> None:
    push = 'accel.push "execute" to "load" loc("kernel.py":3:1)\n'
    module = kernel_of(push * 3 + "accel.barrier")
    with pytest.raises(UserError, match="deadlock: the units wait for each other") as caught:
        run_function(module, "f", [], seed=0)
    assert caught.value.notes == ("execute is at accel.push, kernel.py:3:1",)


def test_a_token_left_in_a_queue_is_a_leak() -> None:
    text = PUMP.replace("constant 5", "constant 1")
    module = kernel_of(text, *PUMP_ARGUMENTS, **(QUEUED | {"POP_FULL": "", "POP_FREE": "", "PUSH_FREE": ""}))
    with pytest.raises(UserError, match="the queue from load to store holds 1 tokens, 0 at the beginning"):
        run_function(module, "f", [np.zeros((5, 8), np.float32) for _ in range(2)])


def test_commands_need_a_machine() -> None:
    with pytest.raises(UserError, match=r"accel\.exec needs a machine, and the module holds none"):
        run(module_of(KERNEL))
