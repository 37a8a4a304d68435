# SPDX-License-Identifier: Apache-2.0
"""Buffers that are alive by parts: which bytes, at which marks."""

from __future__ import annotations

import pytest
from programs import checked
from xdsl.dialects import func
from xdsl.dialects.builtin import StringAttr

from penstock.passes.analysis.memory.liveness import ProgramTime
from penstock.passes.analysis.memory.memory_problems import memory_problems
from penstock.passes.planning.problem import Limits

WHOLE = "memref<8x16xf32>"
TOP = "memref<4x16xf32, strided<[16, 1]>>"
BOTTOM = "memref<4x16xf32, strided<[16, 1], offset: 64>>"
HALF = "memref<4x16xf32>"
VIEWS = f"""
  %top = memref.subview %a[0, 0] [4, 16] [1, 1] : {WHOLE} to {TOP}
  %bottom = memref.subview %a[4, 0] [4, 16] [1, 1] : {WHOLE} to {BOTTOM}
"""


def alive(body: str, extra: str = "") -> dict[str, tuple[int, int] | None]:
    """For each marked op the bytes of %a that are alive at it; None for all."""
    module = checked(
        f"""func.func @main(%x: {WHOLE}, %h: {HALF}, %g: {HALF}, %y: {WHOLE}, %n: index) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %a = memref.alloc() : {WHOLE}
  {body}
  func.return
}}
{extra}"""
    )
    main = next(op for op in module.ops if isinstance(op, func.FuncOp) and op.sym_name.data == "main")
    time = ProgramTime(module).of(main)
    (buffer,) = (each for each in time.buffers if each.name_hint == "a")
    found: dict[str, tuple[int, int] | None] = {}
    for op in main.walk():
        mark = op.attributes.get("mark")
        for (lower, upper), window in time.live_parts(buffer) if isinstance(mark, StringAttr) else ():
            if lower <= time.span(op)[0] < upper:
                assert isinstance(mark, StringAttr)
                found[mark.data] = window
    return found


def fill(view: str, type: str, mark: str, source: str = "%h") -> str:
    return f'mem.copy {source} to {view} {{mark = "{mark}"}} : {HALF} to {type}\n'


def read(view: str, type: str, mark: str) -> str:
    return f'mem.copy {view} to %g {{mark = "{mark}"}} : {type} to {HALF}\n'


def other(mark: str) -> str:
    return f'mem.copy %h to %g {{mark = "{mark}"}} : {HALF} to {HALF}\n'


ALL = f'mem.copy %a to %y {{mark = "all"}} : {WHOLE} to {WHOLE}\n'
FIRST, LAST = (0, 256), (256, 512)


def test_a_part_is_free_before_it_is_written_and_after_it_is_read() -> None:
    body = VIEWS + fill("%top", TOP, "1") + other("2") + fill("%bottom", BOTTOM, "3") + read("%top", TOP, "4")
    body += other("5") + read("%bottom", BOTTOM, "6") + other("7")
    assert alive(body) == {"1": FIRST, "2": FIRST, "3": None, "4": None, "5": LAST, "6": LAST}


def test_all_between_the_first_and_the_last_part_that_is_alive_stays() -> None:
    quarter = "memref<2x16xf32, strided<[16, 1], offset: {}>>"
    views = "".join(
        f"%q{n} = memref.subview %a[{2 * n}, 0] [2, 16] [1, 1] : {WHOLE} to {quarter.format(32 * n)}\n"
        for n in range(4)
    )
    small = "memref<2x16xf32>"
    body = f"%s = memref.alloc() : {small}\n" + views
    body += "".join(f'mem.copy %s to %q{n} {{mark = "{n}"}} : {small} to {quarter.format(32 * n)}\n' for n in (0, 2, 1))
    assert alive(body + ALL) == {"0": (0, 128), "2": (0, 384), "1": (0, 384), "all": None}


def test_columns_are_no_runs_of_bytes() -> None:
    column = "memref<8x8xf32, strided<[16, 1]>>"
    body = f"%v = memref.subview %a[0, 0] [8, 8] [1, 1] : {WHOLE} to {column}\n%s = memref.alloc() : memref<8x8xf32>\n"
    body += f'mem.copy %s to %v {{mark = "1"}} : memref<8x8xf32> to {column}\n' + ALL
    assert alive(body) == {"1": None, "all": None}


def test_windows_of_copies_are_parts_too() -> None:
    """Of the source only what lies inside it is read."""
    body = f'mem.copy %h to %a[0, 0] {{mark = "1"}} : {HALF} to {WHOLE}\n'
    body += f'mem.copy %h to %a[4, 0] {{mark = "2"}} : {HALF} to {WHOLE}\n'
    body += f'%z = arith.constant 0.0 : f32\nmem.copy %a[6, 0] to %g else %z {{mark = "3"}} : {WHOLE} to {HALF}\n'
    assert alive(body) == {"1": FIRST, "2": LAST, "3": (384, 512)}


@pytest.mark.parametrize("upper", ["%c2", "%n"])
def test_a_part_that_every_round_reads_is_alive_throughout_the_loop(upper: str) -> None:
    body = VIEWS + fill("%top", TOP, "1")
    body += f"scf.for %i = %c0 to {upper} step %c1 {{\n"
    body += read("%top", TOP, "2") + fill("%bottom", BOTTOM, "3") + read("%bottom", BOTTOM, "4") + "}\n" + other("5")
    assert alive(body) == {"1": FIRST, "2": FIRST, "3": None, "4": None}


def test_a_part_that_moves_with_a_loop_is_all_of_the_buffer() -> None:
    row = "memref<1x16xf32, strided<[16, 1], offset: ?>>"
    body = VIEWS + fill("%top", TOP, "1") + other("2")
    body += f"scf.for %i = %c0 to %c2 step %c1 {{\n%v = memref.subview %a[%i, 0] [1, 16] [1, 1] : {WHOLE} to {row}\n"
    body += f'%f = arith.constant 1.0 : f32\nmemref.store %f, %v[%c0, %c0] {{mark = "3"}} : {row}\n}}\n'
    body += read("%bottom", BOTTOM, "4")
    assert alive(body)["3"] is None


CALLEE = "func.func private @use(%v: {}) {{\n{}\nfunc.return\n}}\n"


def test_a_call_accesses_the_part_that_it_is_given() -> None:
    inside = f"%s = memref.alloc() : {HALF}\nmem.copy %s to %v : {HALF} to {TOP}"
    body = VIEWS + f'func.call @use(%top) {{mark = "1"}} : ({TOP}) -> ()\n' + other("2")
    body += fill("%bottom", BOTTOM, "3") + ALL
    assert alive(body, CALLEE.format(TOP, inside)) == {"1": FIRST, "2": FIRST, "3": None, "all": None}


@pytest.mark.parametrize(
    "callee",
    [
        f"func.func private @use({TOP})",
        CALLEE.format(
            TOP,
            f"%r = memref.reinterpret_cast %v to offset: [0], sizes: [8, 16], strides: [16, 1] : {TOP} to {WHOLE}\n"
            f"%s = memref.alloc() : {WHOLE}\nmem.copy %r to %s : {WHOLE} to {WHOLE}",
        ),
        CALLEE.format(TOP, f"func.call @more(%v) : ({TOP}) -> ()") + f"func.func private @more({TOP})",
    ],
)
def test_who_may_reach_beyond_a_part_is_given_all_of_the_buffer(callee: str) -> None:
    body = VIEWS + f'func.call @use(%top) {{mark = "1"}} : ({TOP}) -> ()\n' + read("%top", TOP, "2")
    body += fill("%bottom", BOTTOM, "3") + ALL
    assert set(alive(body, callee).values()) == {None}


def test_a_buffer_in_a_scope_is_whole() -> None:
    module = checked(
        f"""
        machine.target @small frequency 100 {{ machine.scope @spad size 4096 granule 16 dtypes [f32] }}
        func.func @kernel(%h: {HALF}, %y: memref<8x16xf32>) {{
          %a = mem.buffer : memref<8x16xf32, "spad">
          %t = memref.subview %a[0, 0] [4, 16] [1, 1]
            : memref<8x16xf32, "spad"> to memref<4x16xf32, strided<[16, 1]>, "spad">
          mem.copy %h to %t : {HALF} to memref<4x16xf32, strided<[16, 1]>, "spad">
          mem.copy %a to %y : memref<8x16xf32, "spad"> to memref<8x16xf32>
          func.return
        }}"""
    )
    (memory,) = memory_problems(module)
    assert memory.problem.buffers[0].windows == ()


def test_what_is_alive_by_parts_takes_less() -> None:
    """The other buffers lie on the part that is not written yet."""
    body = f"""
      %t = memref.alloc() : {HALF}
      %u = memref.alloc() : {HALF}
      {VIEWS}
      mem.copy %h to %top : {HALF} to {TOP}
      mem.copy %h to %t : {HALF} to {HALF}
      mem.copy %t to %u : {HALF} to {HALF}
      mem.copy %u to %bottom : {HALF} to {BOTTOM}
      mem.copy %a to %y : {WHOLE} to {WHOLE}"""
    module = checked(
        f"func.func @main(%h: {HALF}, %y: {WHOLE}) {{\n%a = memref.alloc() : {WHOLE}\n{body}\nfunc.return\n}}"
    )
    (memory,) = memory_problems(module)
    assert memory.height_by("exact", Limits()) == 768
