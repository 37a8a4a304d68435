# SPDX-License-Identifier: Apache-2.0
"""Orders of commands that cannot be right: each is an error at the op, which says what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest


class Finished(Protocol):
    status: int
    out: str
    err: str


class Command(Protocol):
    def __call__(self, *argv: object, stdin: str = "") -> Finished: ...


HEAD = """machine.target @small frequency 100 {
  machine.scope @spad size 4096 granule 16 dtypes [f32]
  machine.unit @load
  machine.unit @store
  machine.dma @mvin unit @load from [@dram] to [@spad] dims 2 latency 10 row_overhead 1 outstanding 4
  machine.dma @mvout unit @store from [@spad] to [@dram] dims 2 latency 10 row_overhead 1 outstanding 4
  machine.queue from @load to @store capacity 1 on_full "error"
}
func.func @copy(%x: memref<16xf32>, %y: memref<16xf32>) attributes {device = @small} {
  %a = mem.buffer at 0 : memref<16xf32, "spad">
  %b = mem.buffer at 64 : memref<16xf32, "spad">
"""
IN = '%{}in = accel.dma %x to %{} on "mvin" {}: memref<16xf32> to memref<16xf32, "spad">'
OUT = '%{}out = accel.dma %{} to %y on "mvout" {}: memref<16xf32, "spad"> to memref<16xf32>'
PUSH, POP = 'accel.push "load" to "store"', 'accel.pop "store" from "load"'


def load(buffer: str, after: str = "") -> str:
    return IN.format(buffer, buffer, after)


def store(buffer: str, after: str = "") -> str:
    return OUT.format(buffer, buffer, after)


def check(penstock_opt: Command, *lines: str) -> Finished:
    body = "".join(f"  {line}\n" for line in (*lines, "accel.barrier", "func.return"))
    Path("in.mlir").write_text(HEAD + body + "}\n")
    return penstock_opt("in.mlir", "-p", "accel-check-hazards", "-o", "out.mlir")


def test_an_order_that_is_right_passes(penstock_opt: Command) -> None:
    assert check(penstock_opt, load("a"), PUSH, POP, store("a")).status == 0
    assert check(penstock_opt, load("a"), store("a", "after (%ain) ")).status == 0


@pytest.mark.parametrize(
    ("lines", "first", "note"),
    [
        pytest.param(
            [load("a"), POP, store("a")],
            "in.mlir:14:3: error: deadlock: token is never signalled",
            'note: store is at accel.dma "mvout" on store at in.mlir:14:3, which waits for a token of the queue from '
            '"load" to "store", which is popped 1 times and pushed 0',
            id="never signalled",
        ),
        pytest.param(
            [load("a"), PUSH, POP, store("a"), POP, store("b")],
            "in.mlir:17:3: error: deadlock: token is never signalled",
            'from "load" to "store", which is popped 2 times and pushed 1',
            id="popped too often",
        ),
        pytest.param(
            [load("a"), PUSH, load("b"), PUSH, POP, store("a")],
            'error: the queue from "load" to "store" ends with 1 tokens and began with 0: it is pushed 2 times and '
            "popped 1",
            'may push into the queue from "load" to "store" when that holds 1 tokens, which is all it can hold',
            id="leak and overflow",
        ),
        pytest.param(
            [load("a"), store("a")],
            'in.mlir:13:3: error: data race: accel.dma "mvout" on store reads bytes 0..63 of "spad", which accel.dma '
            '"mvin" on load at in.mlir:12:3 writes, with no happens-before between the two',
            'note: let it come after the token of accel.dma "mvin" on load at in.mlir:12:3',
            id="race",
        ),
        pytest.param(
            [load("a"), PUSH, 'accel.pop "load" from "store"', store("a")],
            'in.mlir:14:3: error: \'accel.pop\' does not verify: @small has no queue from "store" to "load"',
            "",
            id="wrong unit",
        ),
        pytest.param(
            [load("a"), 'accel.push "store" to "load"', store("a")],
            'in.mlir:13:3: error: \'accel.push\' does not verify: @small has no queue from "store" to "load"',
            "",
            id="pushed by the wrong unit",
        ),
        pytest.param(
            [store("a", "after (%lost) ")],
            "in.mlir:12:",
            "%lost",
            id="a token that there is not",
        ),
    ],
)
def test_an_order_that_is_wrong_is_named_at_its_op(
    penstock_opt: Command, lines: list[str], first: str, note: str
) -> None:
    found = check(penstock_opt, *lines)
    assert found.status == 1
    assert first in found.err.splitlines()[0]
    assert note in found.err
    assert not Path("out.mlir").exists()


ANYWHERE = "memref<16xf32, strided<[1], offset: ?>>"
MAIN = f"""func.func @main(%x: memref<32xf32>) {{
  %none = arith.constant 0 : index
  %at = arith.constant AT : index
  %y = memref.subview %x[%none] [16] [1] : memref<32xf32> to {ANYWHERE}
  %z = memref.subview %x[%at] [16] [1] : memref<32xf32> to {ANYWHERE}
  func.call @copy(%y, %z) : ({ANYWHERE}, {ANYWHERE}) -> ()
  func.return
}}
"""


def test_what_arguments_share_is_seen_where_a_kernel_is_called(penstock_opt: Command) -> None:
    kernel = "".join(f"  {line}\n" for line in (load("a"), store("b"), "accel.barrier", "func.return"))
    text = (HEAD + kernel + "}\n").replace("memref<16xf32>", ANYWHERE) + MAIN
    for at, status in ((16, 0), (8, 1)):
        Path("in.mlir").write_text(text.replace("AT", str(at)))
        found = penstock_opt("in.mlir", "-p", "accel-check-hazards", "-o", "out.mlir")
        assert found.status == status, found.err
        assert ("no happens-before between the two" in found.err) == bool(status)
