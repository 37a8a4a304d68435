# SPDX-License-Identifier: Apache-2.0
"""What a program by hand that cannot be simulated says: the place in its text, and what would help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Command

MACHINE = """machine.target @small frequency 100 {
  machine.scope @spad size 256 granule 16 dtypes [f32]
  machine.unit @mover
  machine.dma @fill unit @mover from [@dram] to [@spad] dims 2 latency 4 row_overhead 1 outstanding 2
  machine.dma @drain unit @mover from [@spad] to [@dram] dims 2 latency 4 row_overhead 1 outstanding 2
}
"""
ENTRY = """func.func @main(%x: memref<16xf32> {graph.name = "x"}, %y: memref<16xf32> {graph.output = "y"}) {
  func.call @kernel(%x, %y) : (memref<16xf32>, memref<16xf32>) -> ()
  func.return
}
"""
COMMANDS = """func.func private @kernel(%x: memref<16xf32>, %y: memref<16xf32>) attributes {device = @small} {
  %a = mem.buffer at 0 : memref<16xf32, "spad">
  %s = accel.dma %x to %a on "fill" : memref<16xf32> to memref<16xf32, "spad">
  %t = accel.dma %a to %y on "drain" after(%s) : memref<16xf32, "spad"> to memref<16xf32>
  accel.barrier
  func.return
}
"""
COPIES = """func.func private @kernel(%x: memref<16xf32>, %y: memref<16xf32>) attributes {device = @small} {
  %a = mem.buffer at 0 : memref<16xf32, "spad">
  mem.copy %x to %a : memref<16xf32> to memref<16xf32, "spad">
  mem.copy %a to %y : memref<16xf32, "spad"> to memref<16xf32>
  func.return
}
"""


def test_programs_by_hand_at_both_levels_are_simulated(penstock: Command) -> None:
    cycles: list[str] = []
    for name, kernel in (("accel", COMMANDS), ("loop", COPIES)):
        Path(f"{name}.mlir").write_text(MACHINE + ENTRY + kernel)
        done = penstock("simulate", f"{name}.mlir")
        assert done.status == 0, done.err
        cycles.append(done.out.splitlines()[0])
    assert cycles[0] == cycles[1]
    assert "in 1 run of 1 kernel" in cycles[0]


def test_a_map_has_what_the_run_uses(penstock: Command) -> None:
    buffer = '  %b = mem.buffer at {} : memref<16xf32, "{}">\n'
    fill = '  %u = accel.dma %x to %b on "fill" : memref<16xf32> to memref<16xf32, "spad">\n'
    drain = '  %v = accel.dma %b to %y on "drain" after(%u, %t) : memref<16xf32, "spad"> to memref<16xf32>\n'
    larger = COMMANDS.replace("@kernel", "@larger").replace("  %s =", buffer.format(64, "spad") + fill + "  %s =")
    larger = larger.replace("  accel.b", drain + "  accel.b")
    kernel = COMMANDS.replace("  %s =", buffer.format(0, "rest") + "  %s =")
    call = "  func.call @kernel(%x, %y) : (memref<16xf32>, memref<16xf32>) -> ()\n"
    entry = ENTRY.replace(call, call + call.replace("kernel", "larger"))
    rest = "  machine.scope @rest size 256 granule 16 dtypes [f32]\n  machine.unit"
    Path("two.mlir").write_text(MACHINE.replace("  machine.unit", rest) + entry + kernel + larger)
    assert penstock("simulate", "two.mlir", "--kernel", "kernel", "--map", "spad=-").out.count("bound 64<") == 1
    done = penstock("simulate", "two.mlir", "--map", "rest=-")
    assert (done.status, done.out, done.err) == (2, "", 'error: nothing of this run lies in "rest"\n')


@pytest.mark.parametrize(
    ("text", "words", "parts"),
    [
        (
            MACHINE + COMMANDS,
            [],
            [
                "bad.mlir:7:1: error: the program has no function @main, one run of which is simulated",
                "note: it has @kernel: write a function @main that calls what is to be simulated",
            ],
        ),
        (MACHINE + COMMANDS, ["--kernel", "kernel"], ["bad.mlir:7:1: error: the program has no function @main"]),
        (
            MACHINE + ENTRY + COPIES,
            ["-p", "cse"],
            [
                "bad.mlir:13:3: error: mem.copy is nothing that a kernel of the machine does",
                "note: `loop-to-accel`",
            ],
        ),
        (
            MACHINE + ENTRY + COMMANDS.replace(" at 0", ""),
            [],
            ['bad.mlir:12:3: error: this buffer in "spad" has no offset', "note: run `mem-plan` first, or write it"],
        ),
        (
            MACHINE + ENTRY + COMMANDS.replace(" at 0", " at 224"),
            [],
            ['bad.mlir:12:3: error: @kernel, scope "spad": buffer %a ends at 288 of 256 bytes'],
        ),
        (
            MACHINE + ENTRY + COMMANDS.replace(" after(%s)", "").replace('on "drain"', 'on "fill"'),
            [],
            ["bad.mlir:14:3: error: ", 'the engine "fill" does not go from "spad" to "dram"'],
        ),
        (
            MACHINE + ENTRY + COMMANDS,
            ["--machine", "gemmini"],
            ['bad.mlir:1:1: error: the module is made for the machine "small", not for "gemmini"'],
        ),
        (
            MACHINE + ENTRY + COMMANDS,
            ["--map", "spad"],
            ['error: "spad" is no map of a scope', "note: write --map spad=spad.svg"],
        ),
        (
            MACHINE + ENTRY + COMMANDS,
            ["--map", "spat=map.svg"],
            ['error: no buffer is in "spat"', 'did you mean "spad"?'],
        ),
    ],
)
def test_a_program_that_cannot_be_simulated_says_where(
    penstock: Command, text: str, words: list[str], parts: list[str]
) -> None:
    Path("bad.mlir").write_text(text)
    done = penstock("simulate", "bad.mlir", *words)
    assert done.status in (1, 2)
    assert done.out == ""
    assert "Traceback" not in done.err
    for part in parts:
        assert part in done.err
