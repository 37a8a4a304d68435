# SPDX-License-Identifier: Apache-2.0
"""The verifiers of `mem` and `accel`: each refuses one thing, and says what."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import IntegerType, MemRefType, ModuleOp, StridedLayoutAttr, StringAttr, f32
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.context import make_context
from penstock.dialects.mem import BufferOp, CopyOp, scope_of, span_in_bytes

MACHINE = """
machine.target @toy frequency 1000 {
  machine.scope @spad size 4096 granule 16 banks 1 dtypes [f32] parent @dram
}
"""


def parse(body: str, arguments: str = "%x: memref<64x128xf32>, %i: index, %c: f32") -> ModuleOp:
    return Parser(make_context(), f"func.func @f({arguments}) {{ {body} \n func.return }}").parse_module()


REFUSED = {
    'mem.buffer at -4 : memref<4xf32, "spad">': "cannot lie at byte -4",
    'mem.buffer : memref<?xf32, "spad">': "a buffer is static",
    "mem.buffer : memref<4xf32, 3 : i32>": "a scope is a string",
    'mem.ring 0 : !mem.ring<memref<4xf32, "spad">>': "at least one slot",
    'mem.ring 2 pitch 12 : !mem.ring<memref<4xf32, "spad">>': "slots of 16 bytes overlap at a pitch of 12",
    'mem.ring 2 pitch 18 : !mem.ring<memref<4xf32, "spad">>': "no whole number of 4",
    "%b = mem.buffer : memref<4x4xf32> mem.copy %x to %b : memref<64x128xf32> to memref<4x4xf32>": (
        "without a window they must agree"
    ),
    "%b = mem.buffer : memref<4x4xf32> mem.copy %x[-1, 0] to %b : memref<64x128xf32> to memref<4x4xf32>": (
        "leaves the source"
    ),
    "%b = mem.buffer : memref<4x4xf32> mem.copy %x[0] to %b : memref<64x128xf32> to memref<4x4xf32>": (
        "1 offsets for 2 dims"
    ),
    "%b = mem.buffer : memref<4x4xf32> mem.copy %x[0, 0] to %b[0, 0] : memref<64x128xf32> to memref<4x4xf32>": (
        "only one side"
    ),
    "%b = mem.buffer : memref<4x4xf32> mem.copy %b to %x[0, 0] else %c : memref<4x4xf32> to memref<64x128xf32>": (
        "`else` needs a window of the source"
    ),
    "%b = mem.buffer : memref<4xf32> mem.copy %x[0, 0] to %b : memref<64x128xf32> to memref<4xf32>": (
        "source has 2 dims, destination 1"
    ),
    '%b = mem.buffer : memref<4x4xf32> %t = accel.dma %x[0, -1] to %b else %c clipped on "mvin" : '
    "memref<64x128xf32> to memref<4x4xf32>": "give one of the two",
    "%t = accel.exec @gemm extents [65, 128] maps [affine_map<(a, b) -> (a, b)>](%x) : memref<64x128xf32>": (
        "indexed from 0 to 64 in a dim of size 64"
    ),
    "%t = accel.exec @gemm extents [0] maps [affine_map<(a) -> (a, a)>](%x) : memref<64x128xf32>": "positive",
    "%t = accel.exec @gemm extents [4] maps [affine_map<(a, b) -> (a, b)>](%x) : memref<64x128xf32>": (
        "2 dims for 1 extents"
    ),
    "%t = accel.exec @gemm extents [4] maps [affine_map<(a) -> (a)>](%x) : memref<64x128xf32>": "yields 1 indices",
    "%t = accel.exec @gemm extents [4] maps [](%x) : memref<64x128xf32>": "0 maps for 1 operands",
}


@pytest.mark.parametrize(("body", "message"), REFUSED.items())
def test_a_misuse_is_refused_with_its_reason(body: str, message: str) -> None:
    module = parse(body)
    with pytest.raises(VerifyException, match=message):
        module.verify()


def test_a_copy_that_differs_in_element_type_is_refused() -> None:
    source, dest = BufferOp(MemRefType(f32, [4])), BufferOp(MemRefType(IntegerType(8), [4]))
    with pytest.raises(VerifyException):
        CopyOp(source.memref, dest.memref).verify()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ('%t = accel.dma %x to %b on "mvin"', 'no DMA engine "mvin"'),
        ('accel.push "load" to "execute"\n %t = accel.dma %x to %b on "mvin"', 'no unit "load"'),
    ],
)
def test_commands_are_checked_against_the_machine_in_the_module(command: str, message: str) -> None:
    text = f"""{MACHINE}
    func.func @f(%x: memref<4xf32>) {{
      %b = mem.buffer at 0 : memref<4xf32, "spad">
      {command} : memref<4xf32> to memref<4xf32, "spad">
      func.return
    }}"""
    with pytest.raises(VerifyException, match=message):
        Parser(make_context(), text).parse_module().verify()


def test_a_window_tells_whether_it_lies_inside() -> None:
    whole, box = BufferOp(MemRefType(f32, [8, 8])), BufferOp(MemRefType(f32, [3, 8]))
    for offset, inside in ((5, True), (6, False), (-1, False)):
        copy = CopyOp(whole.memref, box.memref, source_offsets=[offset, 0])
        assert copy.window_lies_inside(copy.mixed_source_offsets(), [8, 8]) is inside


def test_constructors_and_text_agree() -> None:
    module = parse(
        '%b = mem.buffer : memref<4x4xf32, "spad"> '
        '%t = accel.dma %x[0, 2] to %b on "mvin" : memref<64x128xf32> to memref<4x4xf32, "spad">'
    )
    parsed = next(op for op in module.walk() if isinstance(op, DmaOp))
    built = DmaOp(parsed.source, parsed.dest, "mvin", source_offsets=[0, 2])
    assert built.properties == parsed.properties
    built.verify()
    assert [len(built.source_offsets), len(built.dest_offsets), len(built.dependencies)] == [0, 0, 0]


def test_the_span_of_a_buffer_counts_its_row_pitch_once_less() -> None:
    padded = MemRefType(f32, [3, 10], StridedLayoutAttr([12, 1]), StringAttr("spad"))
    assert span_in_bytes(padded) == (2 * 12 + 10) * 4
    assert scope_of(padded) == "spad"
    assert scope_of(MemRefType(f32, [1])) is None


def test_an_exec_names_its_intrinsic() -> None:
    assert ExecOp("gemm", [1], [], []).intrinsic_name == "gemm"
