# SPDX-License-Identifier: Apache-2.0
"""`mem-verify` against programs that were changed after they were planned: each change that breaks a plan is found."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.mem import BufferOp
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.to_text import module_text
from penstock.runtime.compiler import compile_module
from penstock.runtime.interpreter import run_module
from penstock.runtime.levels import LEVELS
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline

SPAD = 'memref<16xf32, "spad">'

KERNEL = f"""
machine.target @small frequency 100 {{
  machine.scope @spad size 256 granule 16 dtypes [f32]
}}
func.func @main(%x: memref<16xf32>, %y: memref<16xf32> {{graph.output = "y"}}) {{
  %a = mem.buffer at 0 : {SPAD}
  mem.copy %x to %a : memref<16xf32> to {SPAD}
  %b = mem.buffer at 64 : {SPAD}
  mem.copy %a to %b : {SPAD} to {SPAD}
  %c = mem.buffer at 0 : {SPAD}
  mem.copy %b to %c : {SPAD} to {SPAD}
  %d = mem.buffer at 64 : memref<16xf32>
  mem.copy %c to %d : {SPAD} to memref<16xf32>
  %e = mem.buffer at 0 : memref<16xf32>
  mem.copy %d to %e : memref<16xf32> to memref<16xf32>
  mem.copy %e to %y : memref<16xf32> to memref<16xf32>
  func.return
}}
"""

LAYER = """
func.func @main(%x: tensor<64x128xf32>, %w: tensor<128x64xf32>, %b: tensor<64xf32>) -> tensor<64x64xf32> {
  %p = graph.matmul %x, %w : (tensor<64x128xf32>, tensor<128x64xf32>) -> tensor<64x64xf32>
  %q = graph.add %p, %b : (tensor<64x64xf32>, tensor<64xf32>) -> tensor<64x64xf32>
  %y = graph.relu %q : tensor<64x64xf32>
  func.return %y : tensor<64x64xf32>
}
"""


def read(text: str) -> ModuleOp:
    return parse_text(make_context(), SourceText("test.mlir", text)).module


def verified(text: str) -> None:
    run_passes(make_context(), read(text), read_pipeline("mem-verify"))


def refusal(text: str) -> UserError:
    with pytest.raises(UserError) as caught:
        verified(text)
    return caught.value


def compiled(until: str, machine: str | None = "gemmini-fp32") -> str:
    ctx = make_context()
    module = parse_text(ctx, SourceText("layer.mlir", LAYER)).module
    compile_module(module, ctx, machine, until)
    return module_text(ctx, module)


def test_a_plan_that_holds_passes_and_the_program_stays_as_it_is() -> None:
    module = read(KERNEL)
    before = str(module)
    run_passes(make_context(), module, read_pipeline("mem-verify"))
    assert str(module) == before


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("machine", ["gemmini-fp32", None])
def test_it_ends_every_pipeline_that_places_buffers(level: str, machine: str | None) -> None:
    # What comes after it checks the order of commands, and changes nothing.
    *_, last = (spec for spec in pipeline(level, machine) if spec != "accel-check-hazards")
    assert (last == "mem-verify") == (level in ("loop", "accel"))
    verified(compiled(level, machine))


def test_an_offset_that_is_shifted_is_found_with_both_buffers_the_bytes_and_the_step() -> None:
    error = refusal(KERNEL.replace(f"%b = mem.buffer at 64 : {SPAD}", f"%b = mem.buffer at 48 : {SPAD}"))
    assert error.loc == "test.mlir:8:3"
    assert error.message == (
        '@main, scope "spad": %a [0, 64) and %b [48, 112) share bytes [48, 64) while both are alive, in steps [4, 5)'
    )
    assert error.notes == (
        f"%a : {SPAD}, 64 bytes, test.mlir:6:3: alive in steps [2, 5)",
        f"%b : {SPAD}, 64 bytes, test.mlir:8:3: alive in steps [4, 7)",
        "in these steps runs mem.copy, test.mlir:9:3",
    )


def test_an_offset_in_the_arena_that_is_shifted_is_found() -> None:
    error = refusal(KERNEL.replace("%d = mem.buffer at 64", "%d = mem.buffer at 32"))
    assert error.message.startswith("the arena: %d of @main [32, 96) and %e of @main [0, 64) share bytes [32, 64)")


def test_a_buffer_that_has_grown_is_found() -> None:
    grown = KERNEL.replace(
        f"%a = mem.buffer at 0 : {SPAD}",
        '%g = mem.buffer at 0 : memref<17xf32, "spad">\n'
        + (f'%a = memref.subview %g[0] [16] [1] : memref<17xf32, "spad"> to {SPAD}'),
    )
    error = refusal(grown)
    # a granule more
    assert "%g [0, 80) and %b [64, 128) share bytes [64, 80)" in error.message


def test_an_op_that_has_moved_is_found() -> None:
    lines = KERNEL.splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if "mem.copy %b to %c" in line)
    # %a is read once more, after %c has been written to its bytes
    lines.insert(first + 1, f"  mem.copy %a to %b : {SPAD} to {SPAD}\n")
    error = refusal("".join(lines))
    assert "%a [0, 64) and %c [0, 64) share bytes [0, 64)" in error.message
    assert error.notes[-1] == "in these steps runs mem.copy, test.mlir:11:3"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("%b = mem.buffer at 64", "%b = mem.buffer at 72", "%b at 72 is not aligned to 16"),
        ("%b = mem.buffer at 64", "%b = mem.buffer at 208", "%b ends at 272 of 256 bytes"),
        ("size 256", "size 112", "%b ends at 128 of 112 bytes"),
        ("%b = mem.buffer at 64", "%b = mem.buffer", '%b has no offset in @main, scope "spad" yet'),
        ("%d = mem.buffer at 64", "%d = mem.buffer", "%d of @main has no offset in the arena yet"),
        ("%d = mem.buffer at 64", "%d = memref.alloc()", "%d of @main has no offset in the arena yet"),
        ("@spad size", "@spat size", 'there is no scope "spad"'),
    ],
)
def test_a_place_that_is_none_is_found(old: str, new: str, message: str) -> None:
    assert old in KERNEL
    error = refusal(KERNEL.replace(old, new))
    assert message in error.message
    assert error.loc is not None
    assert error.loc.startswith("test.mlir:")


def other_offsets(text: str) -> Iterator[tuple[str, int, str]]:
    """The text with each of its buffers in a scope at every other granule, one at a time."""
    for match in re.finditer(r"(%\w+) = mem\.buffer at (\d+) : memref<[^>]*\"spad\">", text):
        for offset in range(0, 256 - 64 + 16, 16):
            if offset != int(match[2]):
                yield match[1], offset, text[: match.start(2)] + str(offset) + text[match.end(2) :]


def test_whatever_it_accepts_computes_the_same() -> None:
    # The interpreter knows of every byte who wrote it, and of no liveness.
    x = np.arange(16, dtype=np.float32)
    accepted = refused = 0
    for _, _, text in other_offsets(KERNEL):
        try:
            verified(text)
        except UserError:
            refused += 1
            with pytest.raises(UserError):
                run_module(read(text), [x], WeightStore())
            continue
        accepted += 1
        [y] = run_module(read(text), [x], WeightStore())
        np.testing.assert_array_equal(y, x)
    assert accepted
    assert refused


# commands in flight


def test_each_buffer_of_a_compiled_kernel_that_is_put_on_another_is_found() -> None:
    text = compiled("accel")
    places = list(re.finditer(r'mem\.(?:buffer|ring \d+) at (\d+) : [^\n]*"spad">', text))
    assert len(places) > 1
    for match in places:
        for other in places:
            if other is not match:
                moved = text[: match.start(1)] + other[1] + text[match.end(1) :]
                error = refusal(moved)
                assert re.search(r'scope "spad": %\w+ .* and %\w+ .* share bytes', error.message)


def test_two_buffers_on_the_same_bytes_need_a_token_between_their_commands() -> None:
    text = f"""
    func.func private @k(%x: memref<16xf32>, %y: memref<16xf32>, %z: memref<16xf32>)
        attributes {{device = @gemmini_fp32}} {{
      %a = mem.buffer at 0 : {SPAD}
      %b = mem.buffer at 0 : {SPAD}
      %0 = accel.dma %x to %a on "mvin" : memref<16xf32> to {SPAD}
      %1 = accel.dma %a to %y on "mvout" after(%0) : {SPAD} to memref<16xf32>
      %2 = accel.dma %x to %b on "mvin" after(%1) : memref<16xf32> to {SPAD}
      %3 = accel.dma %b to %z on "mvout" after(%2) : {SPAD} to memref<16xf32>
      accel.barrier
      func.return
    }}
    """
    machine = "machine.target @gemmini_fp32 frequency 100 { machine.scope @spad size 256 granule 16 dtypes [f32] \n"
    machine += "machine.scope @acc size 256 granule 16 dtypes [f32] \n machine.unit @load \n machine.unit @store \n"
    for name, start, end in (("mvin", "dram", "spad"), ("mvout", "spad", "dram")):
        unit = "load" if name == "mvin" else "store"
        machine += (
            f"machine.dma @{name} unit @{unit} from [@{start}] to [@{end}] dims 2 latency 10 row_overhead 1"
            " outstanding 1\n"
        )
    machine += "}"
    verified(machine + text)
    error = refusal(machine + text.replace('%b on "mvin" after(%1)', '%b on "mvin" after(%0)'))
    assert "%a [0, 64) and %b [0, 64) share bytes [0, 64)" in error.message


def test_what_is_alive_at_the_call_of_a_kernel_keeps_off_the_buffers_of_the_kernel() -> None:
    text = """
    func.func private @k(%x: memref<16xf32>, %y: memref<16xf32>) {
      %t = mem.buffer at 64 : memref<16xf32>
      mem.copy %x to %t : memref<16xf32> to memref<16xf32>
      mem.copy %t to %y : memref<16xf32> to memref<16xf32>
      func.return
    }
    func.func @main(%x: memref<16xf32>, %y: memref<16xf32> {graph.output = "y"}) {
      %a = mem.buffer at 0 : memref<16xf32>
      func.call @k(%x, %a) : (memref<16xf32>, memref<16xf32>) -> ()
      func.call @k(%a, %y) : (memref<16xf32>, memref<16xf32>) -> ()
      func.return
    }
    """
    verified(text)
    error = refusal(text.replace("at 64", "at 0"))
    assert "%t of @k [0, 64) and %a of @main [0, 64) share" in error.message
    assert error.notes[-1] == "in these steps runs mem.copy, test.mlir:4:7"


def test_programs_above_the_loop_level_have_nothing_to_prove() -> None:
    module = read(LAYER)
    run_passes(make_context(), module, read_pipeline("mem-verify"))
    assert not any(isinstance(op, BufferOp) for op in module.walk())
