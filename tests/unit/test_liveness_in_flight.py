# SPDX-License-Identifier: Apache-2.0
"""What commands in flight keep alive: until they are waited for, or until what comes later comes after them."""

from __future__ import annotations

from xdsl.dialects import func
from xdsl.dialects.builtin import StringAttr

from penstock.dialects.context import make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.analysis.memory.liveness import Liveness
from penstock.runtime.pass_manager import verify

OFF, ON = "memref<4x4xf32>", 'memref<4x4xf32, "spad">'
ROWS = 'memref<?x?xf32, strided<[?, 1]>, "spad">'
MACHINE = f"""
machine.target @toy frequency 1000 {{
  machine.scope @spad size 4096 granule 16 dtypes [f32] parent @dram
  machine.unit @load
  machine.unit @execute
  machine.dma @mvin unit @load from [@dram] to [@spad] dims 2 latency 10 row_overhead 1 outstanding 4
  machine.dma @mvout unit @load from [@spad] to [@dram] dims 2 latency 10 row_overhead 1 outstanding 4
  machine.intrinsic @add unit @execute operands [a row, c row] shape {{m = [1, 4], n = [1, 4]}} ii 4 depth 12 {{
  ^bb0(%a: {ROWS}, %c: {ROWS}):
    linalg.generic {{indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>],
        iterator_types = ["parallel", "parallel"]}} ins(%a : {ROWS}) outs(%c : {ROWS}) {{
    ^bb1(%x: f32, %y: f32):
      %s = arith.addf %x, %y : f32
      linalg.yield %s : f32
    }}
  }}
  machine.intrinsic @copy unit @execute operands [a row, c row] shape {{m = [1, 4], n = [1, 4]}} ii 4 depth 12 {{
  ^bb0(%a: {ROWS}, %c: {ROWS}):
    linalg.generic {{indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>],
        iterator_types = ["parallel", "parallel"]}} ins(%a : {ROWS}) outs(%c : {ROWS}) {{
    ^bb1(%x: f32, %y: f32):
      linalg.yield %x : f32
    }}
  }}
}}
"""


def dma(source: str, dest: str, mark: str, *after: str) -> str:
    """A transfer whose token is %t and its mark."""
    types = [OFF if name in "xy" else ON for name in (source, dest)]
    engine = "mvin" if source == "x" else "mvout"
    return (
        f'%t{mark} = accel.dma %{source} to %{dest} on "{engine}" {_after(after)} {{mark = "{mark}"}} : '
        f"{types[0]} to {types[1]}\n"
    )


def run(name: str, source: str, dest: str, mark: str, *after: str) -> str:
    maps = "[affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>]"
    return (
        f"%t{mark} = accel.exec @{name} extents [4, 4] maps {maps} (%{source}, %{dest}) {_after(after)} "
        f'{{mark = "{mark}"}} : {ON}, {ON}\n'
    )


def _after(tokens: tuple[str, ...]) -> str:
    return f"after ({', '.join(f'%{token}' for token in tokens)})" if tokens else ""


def wait(token: str, mark: str) -> str:
    return f'accel.wait %{token} {{mark = "{mark}"}}\n'


BARRIER = 'accel.barrier {mark = "end"}\n'


def alive(body: str, name: str, places: tuple[str, str, str] = ("", "", "")) -> str:
    """The marks of the ops at which a buffer is alive; %a, %b and %c have `places` in the scope."""
    text = f"""{MACHINE}
func.func private @kernel(%x: {OFF}, %y: {OFF}, %p: i1) attributes {{device = @toy}} {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %a = mem.buffer {places[0]} : {ON}
  %b = mem.buffer {places[1]} : {ON}
  %c = mem.buffer {places[2]} : {ON}
  {body}
  func.return
}}"""
    module = parse_text(make_context(), SourceText("test.mlir", text)).module
    verify(module)
    (kernel,) = (op for op in module.ops if isinstance(op, func.FuncOp))
    liveness = Liveness(kernel)
    (buffer,) = (each for each in liveness.buffers if each.name_hint == name)
    intervals = liveness.lifetime(buffer)
    marks: list[str] = []
    for op in kernel.walk():
        mark = op.attributes.get("mark")
        if isinstance(mark, StringAttr):
            begin, _ = liveness.span(op)
            marks += [mark.data] if any(lower <= begin < upper for lower, upper in intervals) else []
    return " ".join(marks)


def test_what_a_transfer_reads_is_alive_until_it_is_waited_for() -> None:
    body = dma("x", "a", "1") + wait("t1", "2") + dma("a", "y", "3") + dma("x", "b", "4") + wait("t3", "5")
    assert alive(body + dma("x", "c", "6") + BARRIER, "a") == "1 2 3 4"


def test_a_wait_for_another_token_says_nothing() -> None:
    body = dma("x", "a", "1") + wait("t1", "2") + dma("a", "y", "3") + dma("x", "b", "4") + wait("t4", "5")
    assert alive(body + dma("x", "c", "6") + BARRIER, "a") == "1 2 3 4 5 6"


def test_what_comes_after_the_last_command_of_a_buffer_may_have_its_bytes() -> None:
    body = dma("x", "a", "1") + dma("a", "y", "2", "t1") + dma("x", "b", "3", "t2") + dma("b", "y", "4", "t3")
    assert alive(body + BARRIER, "a") == "1 2"
    assert alive(body + BARRIER, "b") == "3 4"


def test_what_comes_after_it_by_way_of_other_commands_may_too() -> None:
    body = dma("x", "a", "1") + run("add", "a", "b", "2", "t1") + "%j = accel.ready after (%t2, %t1)\n"
    assert alive(body + dma("x", "c", "3", "j") + BARRIER, "a") == "1 2"


def test_a_command_that_nothing_orders_keeps_a_buffer_alive_though_another_comes_after_it() -> None:
    body = dma("x", "a", "1") + dma("a", "y", "2", "t1") + run("copy", "c", "b", "3", "t2") + dma("x", "c", "4")
    assert alive(body + BARRIER, "a") == "1 2 3 4"


def test_what_starts_later_on_a_unit_comes_after_what_an_earlier_command_of_it_comes_after() -> None:
    body = dma("x", "a", "1") + dma("a", "y", "2", "t1") + dma("x", "b", "3", "t2") + dma("x", "c", "4")
    assert alive(body + BARRIER, "a") == "1 2"
    # It starts beside the one before it, which is not complete then.
    assert alive(body + BARRIER, "b") == "3 4"


def test_commands_that_execute_are_complete_in_the_order_of_their_unit() -> None:
    fill = dma("x", "a", "1") + dma("x", "b", "2", "t1")
    body = fill + run("add", "a", "b", "3", "t2") + run("copy", "b", "c", "4") + run("copy", "c", "a", "5")
    assert alive(body + dma("c", "y", "6", "t5") + BARRIER, "b") == "2 3 4"


def test_places_that_do_not_overlap_need_no_order() -> None:
    body = dma("x", "a", "1") + dma("a", "y", "2", "t1") + dma("x", "b", "3") + dma("x", "c", "4", "t2") + BARRIER
    assert alive(body, "a", ("at 0", "at 64", "at 0")) == "1 2"
    assert alive(body, "a", ("at 0", "at 0", "at 64")) == "1 2 3"
    assert alive(body, "a", ("at 0", "at 32", "at 64")) == "1 2 3"


def test_two_that_only_read_need_no_order() -> None:
    body = dma("x", "a", "1") + dma("x", "b", "2") + wait("t1, %t2", "3")
    assert alive(body + dma("a", "y", "4") + dma("b", "y", "5") + BARRIER, "a") == "1 2 3 4"


def test_the_host_comes_after_what_it_has_waited_for_only() -> None:
    host = f'mem.copy %b to %y {{mark = "3"}} : {ON} to {OFF}\n' + f'mem.copy %x to %b {{mark = "4"}} : {OFF} to {ON}\n'
    assert alive(dma("x", "a", "1") + host + BARRIER, "a") == "1 3 4"
    assert alive(dma("x", "a", "1") + wait("t1", "2") + host, "a") == "1"
    assert alive(dma("x", "a", "1") + BARRIER + host, "a") == "1"


def test_a_loop_carries_the_order_of_its_rounds_in_its_token() -> None:
    def body(carried: str) -> str:
        return f"""%free = accel.ready
  %done = scf.for %i = %c0 to %c8 step %c1 iter_args(%before = %free) -> (!accel.token) {{
    {dma("x", "a", "1", "before")} {dma("a", "y", "2", "t1")}
    {dma("x", "b", "3", "t2")} {dma("b", "y", "4", "t3")}
    %j = accel.ready after (%t2, %t4)
    scf.yield %{carried} : !accel.token
  }}
  {BARRIER}"""

    assert alive(body("j"), "a") == "1 2"
    assert alive(body("j"), "b") == "3 4"
    # The next round's transfer to %a may run beside this round's from %b.
    assert alive(body("t2"), "b") == "1 2 3 4"
    # What fills %b in a round came after the last use of %a, and what fills %a in the next starts later on that unit.
    assert alive(body("free"), "a") == "1 2"


def test_a_loop_of_transfers_that_joins_their_tokens_is_complete_as_one() -> None:
    def body(joined: str) -> str:
        return f"""{dma("x", "a", "0")}
  %done = scf.for %i = %c0 to %c8 step %c1 iter_args(%before = %t0) -> (!accel.token) {{
    {dma("a", "y", "1", "t0")}
    %j = accel.ready after ({joined})
    scf.yield %j : !accel.token
  }}
  {dma("x", "b", "2", "done")} {BARRIER}"""

    assert alive(body("%before, %t1"), "a") == "0 1"
    assert alive(body("%t1"), "a") == "0 1 2"


def test_a_loop_of_transfers_that_begins_again_is_complete_as_one_each_time() -> None:
    def body(token: str) -> str:
        return f"""%free = accel.ready
  %end = scf.for %i = %c0 to %c8 step %c1 iter_args(%last = %free) -> (!accel.token) {{
    %done = scf.for %k = %c0 to %c8 step %c1 iter_args(%before = %free) -> (!accel.token) {{
      {dma("x", "a", "1", "last")}
      %j = accel.ready after (%before, %t1)
      scf.yield %j : !accel.token
    }}
    {dma("x", "b", "2", token)}
    scf.yield %t2 : !accel.token
  }}
  {BARRIER}"""

    assert alive(body("done"), "a") == "1"
    assert alive(body("last"), "a") == "1 2"


def test_a_branch_must_order_whichever_way_it_goes() -> None:
    def body(otherwise: str) -> str:
        return f"""{dma("x", "a", "1")}
  %j = scf.if %p -> (!accel.token) {{
    {dma("a", "y", "2", "t1")}
    scf.yield %t2 : !accel.token
  }} else {{
    scf.yield %{otherwise} : !accel.token
  }}
  {dma("x", "b", "3", "j")} {BARRIER}"""

    assert alive("%r = accel.ready\n" + body("t1"), "a") == "1 2"
    assert alive("%r = accel.ready\n" + body("r"), "a") == "1 2 3"


def test_a_command_that_reads_what_it_writes_does_not_kill_it() -> None:
    def body(name: str) -> str:
        head = dma("x", "a", "1") + dma("x", "b", "2") + wait("t1, %t2", "3") + dma("b", "y", "4") + wait("t4", "5")
        return head + wait("t4", "6") + run(name, "a", "b", "7") + wait("t7", "8") + dma("b", "y", "9") + BARRIER

    assert alive(body("add"), "b") == "2 3 4 5 6 7 8 9"
    assert alive(body("copy"), "b") == "2 3 4 7 8 9"
