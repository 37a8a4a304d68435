# SPDX-License-Identifier: Apache-2.0
"""When buffers are alive: each construct by hand, as the ops at which a buffer is alive, by their marks."""

from __future__ import annotations

import pytest
from programs import checked
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation

from penstock.dialects.diagnostics import UserError
from penstock.passes.analysis.memory.liveness import Liveness

M = "memref<16xf32>"
HALF = "memref<8xf32, strided<[1], offset: ?>>"


def kernel(body: str, extra: str = "") -> ModuleOp:
    """A module whose @kernel copies between %x, %y and the buffers %a, %b and %c of 16 elements each."""
    return checked(
        f"""func.func @kernel(%x: {M}, %y: {M}, %h: memref<8xf32>, %n: index, %p: i1) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c8 = arith.constant 8 : index
  %c16 = arith.constant 16 : index
  %f = arith.constant 0.0 : f32
  %a = memref.alloc() : {M}
  %b = memref.alloc() : {M}
  %c = memref.alloc() : {M}
  {body}
  func.return
}}
{extra}"""
    )


def copy(source: str, dest: str, mark: str) -> str:
    return f'mem.copy %{source} to %{dest} {{mark = "{mark}"}} : {M} to {M}\n'


def half(dest: str, at: str, mark: str) -> str:
    """Overwrite 8 elements."""
    return f'mem.copy %h to %{dest}[{at}] {{mark = "{mark}"}} : memref<8xf32> to {M}\n'


def loop(body: str, upper: str = "c8", step: str = "c1") -> str:
    return f"scf.for %i = %c0 to %{upper} step %{step} {{\n{body}\n}}\n"


def the_kernel(module: ModuleOp) -> func.FuncOp:
    return next(op for op in module.ops if isinstance(op, func.FuncOp) and op.sym_name.data == "kernel")


def mark_of(op: Operation) -> str | None:
    mark = op.attributes.get("mark")
    return mark.data if isinstance(mark, StringAttr) else None


def alive(module: ModuleOp, name: str) -> str:
    """The marks of the ops at which the buffer `name` is alive, in the order of the text."""
    function = the_kernel(module)
    liveness = Liveness(function)
    (buffer,) = (each for each in liveness.buffers if each.name_hint == name)
    intervals = liveness.lifetime(buffer)
    marks: list[str] = []
    for op in function.walk():
        if (mark := mark_of(op)) is not None:
            begin, _ = liveness.span(op)
            if any(lower <= begin < upper for lower, upper in intervals):
                marks.append(mark)
    return " ".join(marks)


# within a block


def test_a_buffer_is_alive_from_its_write_to_its_last_read() -> None:
    module = kernel(copy("x", "b", "1") + copy("x", "a", "2") + copy("b", "y", "3") + copy("a", "y", "4"))
    assert alive(module, "a") == "2 3 4"
    assert alive(module, "b") == "1 2 3"


def test_a_result_interferes_with_an_operand_that_is_read_for_the_last_time() -> None:
    module = kernel(copy("x", "a", "1") + copy("a", "b", "2") + copy("b", "y", "3"))
    assert (alive(module, "a"), alive(module, "b")) == ("1 2", "2 3")


def test_a_write_that_nobody_reads_still_takes_its_bytes() -> None:
    module = kernel(copy("x", "b", "1") + copy("x", "a", "2") + copy("b", "y", "3"))
    assert alive(module, "a") == "2"


def test_a_buffer_is_dead_from_its_last_read_to_its_next_complete_write() -> None:
    module = kernel("".join(copy(*each) for each in (("x", "a", "1"), ("a", "y", "2"), ("x", "b", "3"),
                                                     ("b", "y", "4"), ("x", "a", "5"), ("a", "y", "6"))))  # fmt: skip
    assert alive(module, "a") == "1 2 5 6"


def test_a_partial_write_is_no_kill() -> None:
    module = kernel(copy("x", "a", "1") + copy("a", "y", "2") + copy("x", "y", "3") + half("a", "0", "4")
                    + copy("a", "y", "5"))  # fmt: skip
    assert alive(module, "a") == "1 2 3 4 5"


def test_bytes_that_nobody_has_written_need_no_keeping() -> None:
    module = kernel(copy("x", "y", "1") + half("a", "0", "2") + copy("a", "y", "3"))
    assert alive(module, "a") == "2 3"


def test_two_halves_are_a_complete_write() -> None:
    body = copy("x", "a", "1") + copy("a", "y", "2") + copy("x", "y", "3")
    module = kernel(body + half("a", "8", "4") + copy("x", "y", "5") + half("a", "0", "6") + copy("a", "y", "7"))
    assert alive(module, "a") == "1 2 4 5 6 7"


def test_two_halves_with_a_read_between_them_are_none() -> None:
    body = copy("x", "a", "1") + copy("a", "y", "2") + copy("x", "y", "3")
    module = kernel(body + half("a", "8", "4") + copy("a", "y", "5") + half("a", "0", "6") + copy("a", "y", "7"))
    assert alive(module, "a") == "1 2 3 4 5 6 7"


def test_a_half_at_an_unknown_place_is_none() -> None:
    body = copy("x", "a", "1") + copy("a", "y", "2") + copy("x", "y", "3")
    module = kernel(body + half("a", "%n", "4") + half("a", "0", "5") + copy("a", "y", "6"))
    assert alive(module, "a") == "1 2 3 4 5 6"


def test_a_buffer_that_is_not_used_is_alive_for_one_step() -> None:
    module = kernel(copy("x", "y", "1"))
    liveness = Liveness(the_kernel(module))
    for buffer in liveness.buffers:
        assert isinstance(buffer.owner, Operation)
        assert liveness.lifetime(buffer) == (liveness.span(buffer.owner),)


def test_every_op_takes_a_step_and_a_call_as_many_as_its_caller_is_told() -> None:
    module = kernel(f"func.call @other(%a) : ({M}) -> ()\n" + loop(copy("x", "y", "1")),
                    f"func.func private @other({M})")  # fmt: skip
    function = the_kernel(module)
    ops = list(function.walk())
    short, long = Liveness(function), Liveness(function, lambda call: 10)
    assert short.length == len(ops)
    assert long.length == len(ops) + 10
    (call,) = (op for op in ops if isinstance(op, func.CallOp))
    begin, end = long.span(call)
    assert end - begin == 11
    assert long.span(function) == (0, long.length)


# loops


def test_what_every_round_overwrites_before_it_reads_it_is_dead_between_rounds() -> None:
    module = kernel(loop(copy("x", "y", "1") + copy("x", "a", "2") + copy("a", "y", "3") + copy("x", "y", "4")))
    assert alive(module, "a") == "2 3"


def test_what_a_round_reads_of_an_earlier_one_is_alive_throughout_the_loop() -> None:
    module = kernel(copy("x", "a", "0") + loop(copy("x", "y", "1") + copy("a", "y", "2") + copy("x", "a", "3")
                                               + copy("x", "y", "4")) + copy("x", "y", "5"))  # fmt: skip
    assert alive(module, "a") == "0 1 2 3 4"


def test_what_a_round_reads_and_no_round_writes_is_alive_throughout_the_loop() -> None:
    module = kernel(copy("x", "a", "0") + loop(copy("a", "y", "1") + copy("x", "y", "2")) + copy("x", "y", "3"))
    assert alive(module, "a") == "0 1 2"


def test_a_loop_that_may_not_run_kills_nothing() -> None:
    def body(upper: str) -> str:
        return (copy("x", "a", "1") + copy("a", "y", "2") + copy("x", "y", "3") + loop(copy("x", "a", "4"), upper)
                + copy("a", "y", "5"))  # fmt: skip

    assert alive(kernel(body("n")), "a") == "1 2 3 4 5"
    assert alive(kernel(body("c8")), "a") == "1 2 4 5"


def test_a_loop_that_runs_once_does_not_go_back() -> None:
    module = kernel(copy("x", "a", "0") + loop(copy("a", "y", "1") + copy("x", "y", "2"), "c1"))
    assert alive(module, "a") == "0 1"


def test_a_loop_that_writes_tile_by_tile_writes_completely() -> None:
    def body(step: str, at: str) -> str:
        return (copy("x", "a", "1") + copy("a", "y", "2") + copy("x", "y", "3")
                + loop(at + half("a", "%k", "4") + copy("x", "y", "5"), "c16", step) + copy("a", "y", "6"))  # fmt: skip

    plain = "%k = arith.addi %i, %c0 : index\n"
    shifted = "%k = arith.minsi %i, %c8 : index\n"
    assert alive(kernel(body("c8", plain)), "a") == "1 2 4 5 6"
    assert alive(kernel(body("c4", shifted)), "a") == "1 2 4 5 6"
    assert alive(kernel(body("c16", plain)), "a") == "1 2 3 4 5 6"


def test_nested_loops_that_write_all_rows_and_columns_write_completely() -> None:
    tile = "memref<2x4xf32>"
    body = f"""%d = memref.alloc() : memref<4x8xf32>
  %t = memref.alloc() : {tile}
  %w = memref.alloc() : memref<4x8xf32>
  %c2 = arith.constant 2 : index
  mem.copy %w to %d {{mark = "1"}} : memref<4x8xf32> to memref<4x8xf32>
  mem.copy %d to %w {{mark = "2"}} : memref<4x8xf32> to memref<4x8xf32>
  {copy("x", "y", "3")}
  scf.for %i = %c0 to %c4 step %c2 {{
    scf.for %j = %c0 to %c8 step %c4 {{
      %v = memref.subview %d[%i, %j] [2, 4] [1, 1] : memref<4x8xf32> to memref<2x4xf32, strided<[8, 1], offset: ?>>
      "memref.copy"(%t, %v) {{mark = "4"}} : ({tile}, memref<2x4xf32, strided<[8, 1], offset: ?>>) -> ()
    }}
  }}
  mem.copy %d to %w {{mark = "5"}} : memref<4x8xf32> to memref<4x8xf32>"""
    assert alive(kernel(body), "d") == "1 2 4 5"


def test_a_while_loop_kills_in_its_first_region_only() -> None:
    def body(first: str, second: str) -> str:
        return f"""{copy("x", "a", "1")} {copy("a", "y", "2")} {copy("x", "y", "3")}
  %r = scf.while (%s = %p) : (i1) -> (i1) {{
    {first}
    scf.condition(%s) %s : i1
  }} do {{
  ^bb0(%t: i1):
    {second}
    scf.yield %t : i1
  }}
  {copy("a", "y", "6")}"""

    write, nothing = copy("x", "a", "4"), copy("x", "y", "5")
    assert alive(kernel(body(write, nothing)), "a") == "1 2 4 6"
    assert alive(kernel(body(nothing, write)), "a") == "1 2 3 5 4 6"


def test_what_rounds_that_run_at_once_touch_is_alive_throughout() -> None:
    inner = f"%e = memref.alloc() : {M}\n" + copy("x", "a", "1") + copy("a", "y", "2")
    inner += copy("x", "e", "3") + copy("e", "y", "4") + copy("x", "y", "5")
    body = f"""{copy("x", "y", "0")}
  "scf.parallel"(%c0, %c8, %c1) <{{operandSegmentSizes = array<i32: 1, 1, 1, 0>}}> ({{
  ^bb0(%i: index):
    {inner}
    scf.reduce
  }}) : (index, index, index) -> ()"""
    module = kernel(body + copy("x", "y", "6"))
    assert alive(module, "a") == "1 2 3 4 5"
    assert alive(module, "e") == "1 2 3 4 5"


def forall(inner: str, count: int = 8) -> str:
    return f"scf.forall (%i) in ({count}) {{ {inner} }}"


def test_what_iterations_of_a_forall_touch_is_alive_throughout() -> None:
    inner = copy("x", "a", "1") + copy("a", "y", "2") + "gpu.barrier\n" + copy("x", "y", "3")
    body = copy("x", "y", "0") + forall(inner) + copy("x", "y", "4")
    assert alive(kernel(body), "a") == "1 2 3"
    # One iteration is not alone in what it kills where others run beside it.
    outer = copy("x", "a", "0") + forall(copy("x", "a", "1") + copy("a", "y", "2"))
    assert alive(kernel(outer), "a") == "0 1 2"


def test_a_buffer_that_iterations_of_a_forall_make_has_no_place() -> None:
    inner = f"%e = memref.alloc() : {M}\n" + copy("x", "e", "1") + copy("e", "y", "2")
    with pytest.raises(UserError, match="which run at once cannot have one place"):
        alive(kernel(forall(inner)), "e")
    assert alive(kernel(forall(inner, 1)), "e") == "1 2"


# branches


def test_a_write_in_one_branch_is_no_kill_and_in_both_it_is() -> None:
    def body(first: str, second: str) -> str:
        return (copy("x", "a", "1") + copy("a", "y", "2") + copy("x", "y", "3")
                + f"scf.if %p {{ {first} }} else {{ {second} }}" + copy("a", "y", "6"))  # fmt: skip

    assert alive(kernel(body(copy("x", "a", "4"), copy("x", "y", "5"))), "a") == "1 2 3 4 5 6"
    assert alive(kernel(body(copy("x", "a", "4"), copy("x", "a", "5"))), "a") == "1 2 4 5 6"


def test_a_branch_without_an_else_may_be_passed_by() -> None:
    module = kernel(copy("x", "a", "1") + copy("a", "y", "2") + copy("x", "y", "3")
                    + f"scf.if %p {{ {copy('x', 'a', '4')} }}" + copy("a", "y", "5"))  # fmt: skip
    assert alive(module, "a") == "1 2 3 4 5"


def test_buffers_of_different_branches_are_not_alive_at_once() -> None:
    module = kernel(f"scf.if %p {{ {copy('x', 'a', '1')} {copy('a', 'y', '2')} }} else "
                    f"{{ {copy('x', 'b', '3')} {copy('b', 'y', '4')} }}")  # fmt: skip
    assert (alive(module, "a"), alive(module, "b")) == ("1 2", "3 4")


def test_every_case_of_a_switch_counts() -> None:
    def body(last: str) -> str:
        return f"""{copy("x", "a", "1")} {copy("a", "y", "2")} {copy("x", "y", "3")}
  scf.index_switch %n case 1 {{ {copy("x", "a", "4")} scf.yield }} default {{ {last} scf.yield }}
  {copy("a", "y", "6")}"""

    assert alive(kernel(body(copy("x", "a", "5"))), "a") == "1 2 5 4 6"
    assert alive(kernel(body(copy("x", "y", "5"))), "a") == "1 2 3 5 4 6"


# several blocks


def blocks(text: str) -> ModuleOp:
    return checked(
        f"func.func @kernel(%x: {M}, %y: {M}, %p: i1, %n: i32) {{\n  %a = memref.alloc() : {M}\n"
        f"  %b = memref.alloc() : {M}\n{text}}}"
    )


def test_a_back_edge_of_blocks_keeps_what_the_next_round_reads() -> None:
    def body(first: str, second: str) -> str:
        return f"""{copy("x", "a", "0")} cf.br ^head
^head:
  {first} {copy("x", "y", "3")} {second}
  cf.cond_br %p, ^head, ^out
^out:
  {copy("x", "y", "4")}
  func.return
"""

    read, write = copy("a", "y", "1"), copy("x", "a", "2")
    assert alive(blocks(body(read, write)), "a") == "0 1 2"
    assert alive(blocks(body(write, read)), "a") == "0 2 3 1"
    assert alive(blocks(body(read, copy("x", "y", "2"))), "a") == "0 1 3 2"


def test_blocks_that_are_written_out_of_order_leave_holes() -> None:
    module = blocks(f"""{copy("x", "a", "0")} cf.br ^second
^first:
  {copy("x", "y", "1")}
  func.return
^second:
  {copy("a", "y", "2")}
  cf.br ^first
""")
    assert alive(module, "a") == "0 2"
    liveness = Liveness(the_kernel(module))
    assert len(liveness.lifetime(liveness.buffers[0])) == 2


def test_a_switch_on_blocks_hands_its_operands_to_its_cases() -> None:
    module = blocks(f"""{copy("x", "a", "0")} {copy("x", "b", "1")}
  cf.switch %n : i32, [
    default: ^one(%a : {M}),
    7: ^two(%b : {M})
  ]
^one(%q: {M}):
  {copy("x", "y", "2")} {copy("q", "y", "3")}
  func.return
^two(%r: {M}):
  {copy("x", "y", "4")} {copy("r", "y", "5")}
  func.return
""")
    assert alive(module, "a") == "0 1 2 3"
    assert alive(module, "b") == "1 4 5"


def test_a_region_of_blocks_is_executed_where_it_stands() -> None:
    module = kernel(f"""{copy("x", "a", "1")}
  scf.execute_region {{
    cf.cond_br %p, ^one, ^two
  ^one:
    {copy("a", "y", "2")}
    scf.yield
  ^two:
    {copy("x", "y", "3")}
    scf.yield
  }}
  {copy("x", "y", "4")}""")
    assert alive(module, "a") == "1 2"


# other names


@pytest.mark.parametrize(
    "view",
    [
        f"%v = memref.subview %a[8] [8] [1] : {M} to memref<8xf32, strided<[1], offset: 8>>\n"
        "%e = memref.load %v[%c0] {mark = \"3\"} : memref<8xf32, strided<[1], offset: 8>>",
        f'%v = "memref.cast"(%a) : ({M}) -> memref<?xf32>\n%e = memref.load %v[%c0] {{mark = "3"}} : memref<?xf32>',
        f"%v = memref.expand_shape %a [[0, 1]] output_shape [4, 4] : {M} into memref<4x4xf32>\n"
        f"%w = memref.collapse_shape %v [[0, 1]] : memref<4x4xf32> into {M}\n"
        f"%e = memref.load %w[%c0] {{mark = \"3\"}} : {M}",
        f"%v = memref.reinterpret_cast %a to offset: [0], sizes: [4], strides: [2] : {M} to "
        "memref<4xf32, strided<[2]>>\n%e = memref.load %v[%c0] {mark = \"3\"} : memref<4xf32, strided<[2]>>",
        f"%v = arith.select %p, %a, %y : {M}\n%e = memref.load %v[%c0] {{mark = \"3\"}} : {M}",
        f"%v = scf.if %p -> ({M}) {{ scf.yield %a : {M} }} else {{ scf.yield %y : {M} }}\n"
        f"%e = memref.load %v[%c0] {{mark = \"3\"}} : {M}",
        f"%v = scf.for %i = %c0 to %n step %c1 iter_args(%u = %a) -> ({M}) {{ scf.yield %u : {M} }}\n"
        f"%e = memref.load %v[%c0] {{mark = \"3\"}} : {M}",
        f"%v = scf.while (%s = %a) : ({M}) -> ({M}) {{ scf.condition(%p) %s : {M} }} do {{\n^bb0(%u: {M}):\n"
        f"scf.yield %u : {M} }}\n%e = memref.load %v[%c0] {{mark = \"3\"}} : {M}",
        f"%v = scf.execute_region -> {M} {{ scf.yield %a : {M} }}\n%e = memref.load %v[%c0] {{mark = \"3\"}} : {M}",
    ],
    ids=["subview", "cast", "reshape", "reinterpret", "select", "if", "for", "while", "region"],
)  # fmt: skip
def test_a_view_is_its_base(view: str) -> None:
    module = kernel(f"{copy('x', 'a', '1')} {copy('x', 'y', '2')} {view}\n {copy('x', 'y', '4')}")
    assert alive(module, "a") == "1 2 3"
    liveness = Liveness(the_kernel(module))
    assert [mark_of(op) for op in liveness.accesses(liveness.buffers[0])] == ["1", "3"]


def test_a_write_through_a_view_of_all_of_it_is_complete() -> None:
    body = copy("x", "a", "1") + copy("a", "y", "2") + copy("x", "y", "3")
    body += f"""%v = memref.expand_shape %a [[0, 1]] output_shape [4, 4] : {M} into memref<4x4xf32>
  %w = "memref.cast"(%v) : (memref<4x4xf32>) -> memref<4x4xf32>
  linalg.fill {{mark = "4"}} ins(%f : f32) outs(%w : memref<4x4xf32>)
  {copy("a", "y", "5")}"""
    assert alive(kernel(body), "a") == "1 2 4 5"


def test_a_write_to_one_of_two_buffers_completes_neither() -> None:
    body = copy("x", "a", "1") + copy("x", "b", "2") + copy("x", "y", "3") + f"%v = arith.select %p, %a, %b : {M}\n"
    module = kernel(body + copy("x", "v", "4") + copy("a", "y", "5") + copy("b", "y", "6"))
    assert alive(module, "a") == "1 2 3 4 5"
    assert alive(module, "b") == "2 3 4 5 6"


def test_a_loop_that_swaps_two_buffers_keeps_both() -> None:
    module = kernel(f"""{copy("x", "a", "1")}
  %q, %r = scf.for %i = %c0 to %n step %c1 iter_args(%s = %a, %t = %b) -> ({M}, {M}) {{
    {copy("s", "t", "2")} {copy("x", "y", "3")}
    scf.yield %t, %s : {M}, {M}
  }}
  {copy("q", "y", "4")} {copy("x", "y", "5")}""")
    assert alive(module, "a") == "1 2 3 4"
    assert alive(module, "b") == "2 3 4"


def test_a_buffer_that_a_loop_hands_on_unchanged_is_overwritten_through_its_name_there() -> None:
    module = kernel(f"""{copy("x", "a", "1")} {copy("a", "y", "2")} {copy("x", "y", "3")}
  %q = scf.for %i = %c0 to %c8 step %c1 iter_args(%s = %a) -> ({M}) {{
    {copy("x", "s", "4")} {copy("s", "y", "5")} {copy("x", "y", "6")}
    scf.yield %s : {M}
  }}""")
    assert alive(module, "a") == "1 2 4 5"


def test_a_buffer_made_in_a_round_and_read_in_the_next_is_alive_until_it_is_made_anew() -> None:
    module = kernel(f"""{copy("x", "a", "1")}
  %q = scf.for %i = %c0 to %c8 step %c1 iter_args(%s = %a) -> ({M}) {{
    {copy("s", "y", "2")} {copy("x", "y", "3")}
    %e = memref.alloc() : {M}
    {copy("x", "y", "4")} {copy("x", "e", "5")} {copy("x", "y", "6")}
    scf.yield %e : {M}
  }}""")
    assert alive(module, "e") == "2 5 6"


@pytest.mark.parametrize("view", ["", f"%z = memref.subview %s[0] [16] [1] : {M} to memref<16xf32, strided<[1]>>"])
def test_a_buffer_made_while_the_last_rounds_is_in_use_is_refused(view: str) -> None:
    use = "memref.load %z[%c0] : memref<16xf32, strided<[1]>>" if view else f"memref.load %s[%c0] : {M}"
    module = kernel(f"""{copy("x", "a", "1")}
  %q = scf.for %i = %c0 to %c8 step %c1 iter_args(%s = %a) -> ({M}) {{
    {view}
    %e = memref.alloc() : {M}
    {copy("x", "e", "2")}
    %r = {use}
    scf.yield %e : {M}
  }}""")
    liveness = Liveness(the_kernel(module))
    (made,) = (each for each in liveness.buffers if each.name_hint == "e")
    with pytest.raises(UserError, match="a buffer that is made again while it is in use cannot be planned"):
        liveness.lifetime(made)
    assert alive(module, "a") != ""


def test_gaps_between_rows_are_bytes_for_who_sees_the_memory_otherwise() -> None:
    rows = "memref<2x3xf32, strided<[4, 1]>>"

    def body(other: str) -> str:
        return f"""%d = memref.alloc() : {rows}
  %s = memref.alloc() : memref<2x3xf32>
  {other}
  mem.copy %s to %d {{mark = "1"}} : memref<2x3xf32> to {rows}
  mem.copy %d to %s {{mark = "2"}} : {rows} to memref<2x3xf32>
  {copy("x", "y", "3")}
  mem.copy %s to %d {{mark = "4"}} : memref<2x3xf32> to {rows}
  mem.copy %d to %s {{mark = "5"}} : {rows} to memref<2x3xf32>"""

    flat = f"%v = memref.reinterpret_cast %d to offset: [0], sizes: [7], strides: [1] : {rows} to memref<7xf32>"
    assert alive(kernel(body("")), "d") == "1 2 4 5"
    assert alive(kernel(body(flat)), "d") == "1 2 3 4 5"


def test_a_buffer_whose_address_is_taken_is_alive_to_the_end() -> None:
    module = kernel(f"""{copy("x", "y", "1")} {copy("x", "a", "2")} {copy("a", "y", "3")}
  %v = "memref.extract_aligned_pointer_as_index"(%a) : ({M}) -> index
  {copy("x", "a", "4")} {copy("x", "y", "5")}""")
    assert alive(module, "a") == "1 2 3 4 5"


def test_a_buffer_that_a_function_returns_is_refused() -> None:
    module = checked(f"func.func @kernel() -> {M} {{\n  %a = memref.alloc() : {M}\n  func.return %a : {M}\n}}")
    liveness = Liveness(the_kernel(module))
    with pytest.raises(UserError, match="a buffer that a function returns cannot be planned"):
        liveness.lifetime(liveness.buffers[0])


def test_a_ring_is_alive_for_all_its_slots_over_the_loop() -> None:
    ring = f"!mem.ring<{M}>"
    module = kernel(f"""%g = mem.ring 2 : {ring}
  {copy("x", "y", "0")}
  scf.for %i = %c0 to %c8 step %c1 {{
    {copy("x", "y", "1")}
    %s = mem.slot %g[%i] : {ring}
    {copy("x", "s", "2")} {copy("s", "y", "3")} {copy("x", "y", "4")}
  }}
  {copy("x", "y", "5")}""")
    assert alive(module, "g") == "1 2 3 4"


def test_a_ring_of_one_slot_is_a_buffer() -> None:
    ring = f"!mem.ring<{M}>"
    module = kernel(f"""%g = mem.ring 1 : {ring}
  scf.for %i = %c0 to %c8 step %c1 {{
    {copy("x", "y", "1")}
    %s = mem.slot %g[%i] : {ring}
    {copy("x", "s", "2")} {copy("s", "y", "3")} {copy("x", "y", "4")}
  }}""")
    assert alive(module, "g") == "2 3"


# structured ops and calls


def generic(inputs: str, body: str, mark: str) -> str:
    """%b of %a, elementwise; %p and %o are their elements."""
    return f"""linalg.generic {{indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
    iterator_types = ["parallel"]}} ins(%{inputs} : {M}) outs(%b : {M}) attrs = {{mark = "{mark}"}} {{
  ^bb0(%e: f32, %o: f32):
    {body}
  }}
"""


def test_an_op_that_reads_its_output_does_not_kill_it() -> None:
    head = copy("x", "a", "0") + copy("x", "b", "1") + copy("b", "y", "2") + copy("x", "y", "3")
    updating = generic("a", "%s = arith.addf %e, %o : f32\n linalg.yield %s : f32", "4")
    writing = generic("a", "linalg.yield %e : f32", "4")
    assert alive(kernel(head + updating + copy("b", "y", "5")), "b") == "1 2 3 4 5"
    assert alive(kernel(head + writing + copy("b", "y", "5")), "b") == "1 2 4 5"


def test_an_operand_that_only_lends_its_shape_is_not_read() -> None:
    module = kernel(copy("x", "a", "1") + copy("a", "y", "2") + generic("a", "linalg.yield %f : f32", "3"))
    assert alive(module, "a") == "1 2"


def test_a_body_that_reads_an_element_keeps_its_buffer_alive_at_the_op() -> None:
    gather = generic("x", f"%g = memref.load %a[%c0] : {M}\n linalg.yield %g : f32", "3")
    module = kernel(copy("x", "a", "1") + copy("x", "y", "2") + gather + copy("x", "y", "4"))
    assert alive(module, "a") == "1 2 3"


def call(argument: str, mark: str) -> str:
    return f'func.call @other(%{argument}) {{mark = "{mark}"}} : ({M}) -> ()\n'


@pytest.mark.parametrize(
    ("callee", "expected"),
    [
        ("linalg.fill ins(%f : f32) outs(%q : memref<16xf32>)", "1 2 4 5"),
        ("memref.store %f, %q[%z] : memref<16xf32>", "1 2 3 4 5"),
        ("%e = memref.load %q[%z] : memref<16xf32>\n linalg.fill ins(%e : f32) outs(%q : memref<16xf32>)", "1 2 3 4 5"),
        (None, "1 2 3 4 5"),
    ],
    ids=["fills", "stores", "reads", "unknown"],
)
def test_a_call_does_what_its_callee_does(callee: str | None, expected: str) -> None:
    other = f"func.func private @other({M})" if callee is None else (
        f"func.func private @other(%q: {M}) {{ %f = arith.constant 1.0 : f32\n %z = arith.constant 0 : index\n"
        f"{callee}\n func.return }}"
    )  # fmt: skip
    body = copy("x", "a", "1") + copy("a", "y", "2") + copy("x", "y", "3") + call("a", "4") + copy("a", "y", "5")
    assert alive(kernel(body, other), "a") == expected
