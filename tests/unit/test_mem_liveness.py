# SPDX-License-Identifier: Apache-2.0
"""The pass mem-liveness: its attribute, its remarks, and the interference graphs it writes."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given
from sampling import examples
from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, IntegerType, ModuleOp
from xdsl.utils.hints import isa

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.to_text import module_text
from penstock.passes.analysis.memory.interference import MOST_NODES, folded, interfering
from penstock.passes.analysis.memory.liveness import Allocation, Liveness
from penstock.passes.analysis.memory.memory_problems import memory_problems
from penstock.passes.loop.mem_liveness import MemLivenessPass
from penstock.passes.planning.problem import Buffer, Problem
from penstock.runtime.pass_manager import read_pipeline, run_passes, verify

ON, OFF = 'memref<16xf32, "spad">', "memref<16xf32>"
TEXT = f"""
machine.target @small frequency 100 {{
  machine.scope @spad size 4096 granule 128 dtypes [f32]
}}
func.func @kernel(%x: {OFF}, %y: {OFF}) {{
  %c0 = arith.constant 0 : index
  %a = mem.buffer : {ON} loc("model.py":3:5)
  %b = mem.buffer at 512 : {ON}
  %r = mem.ring 2 : !mem.ring<{ON}>
  mem.copy %x to %a : {OFF} to {ON}
  mem.copy %a to %b : {ON} to {ON}
  %s = mem.slot %r[%c0] : !mem.ring<{ON}>
  mem.copy %b to %s : {ON} to {ON}
  %t = memref.alloc() : {OFF}
  mem.copy %s to %t : {ON} to {OFF}
  mem.copy %t to %y : {OFF} to {OFF}
  func.return
}}
"""


def after(text: str, pipeline: str) -> ModuleOp:
    ctx = make_context()
    module = parse_text(ctx, SourceText("test.mlir", text)).module
    verify(module)
    run_passes(ctx, module, read_pipeline(pipeline))
    return module


def noted(module: ModuleOp) -> dict[str, list[tuple[int, ...]]]:
    found: dict[str, list[tuple[int, ...]]] = {}
    for op in module.walk():
        if isinstance(op, Allocation):
            live = op.attributes["mem.live"]
            assert isa(live, ArrayAttr[DenseArrayBase[IntegerType]])
            found[op.results[0].name_hint or "?"] = [tuple(each.get_values()) for each in live]
    return found


def test_every_buffer_says_when_it_is_alive() -> None:
    assert noted(after(TEXT, "mem-liveness")) == {"a": [(5, 7)], "b": [(6, 9)], "r": [(8, 11)], "t": [(10, 12)]}


def test_the_attribute_can_be_parsed_and_is_brought_up_to_date() -> None:
    once = module_text(make_context(), after(TEXT, "mem-liveness"))
    assert "{mem.live = [array<i64: 5, 7>]}" in once
    stale = once.replace("array<i64: 5, 7>", "array<i64: 0, 99>")
    assert module_text(make_context(), after(stale, "mem-liveness")) == once


def test_an_attribute_changes_no_plan() -> None:
    def places(pipeline: str) -> list[str]:
        text = module_text(make_context(), after(TEXT, pipeline))
        return [line.split("{mem.live")[0].split(":")[0].strip() for line in text.splitlines() if " at " in line]

    assert places("mem-liveness,mem-plan") == places("mem-plan")


def test_remarks_go_to_stderr_a_line_a_buffer(capsys: pytest.CaptureFixture[str]) -> None:
    module = after(TEXT, "mem-liveness")
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 4
    assert lines[0] == f"model.py:3:5: remark: %a : {ON} is alive in steps [5, 7)"
    assert lines == MemLivenessPass().explain(module)


def test_nothing_is_printed_where_that_is_not_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    after(TEXT, "mem-liveness{remarks=false}")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_the_graph_as_json_has_every_scope_with_its_buffers_and_edges(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    after(TEXT, f'mem-liveness{{graph="{path}"}}')
    on_chip, arena = json.loads(path.read_text())["graphs"]
    assert (on_chip["function"], on_chip["scope"]) == ("kernel", "spad")
    assert on_chip["edges"] == [[0, 1], [1, 2]]
    assert [buffer["bytes"] for buffer in on_chip["buffers"]] == [128, 128, 128]
    assert [buffer["offset"] for buffer in on_chip["buffers"]] == [None, 512, None]
    assert on_chip["buffers"][0]["place"] == "model.py:3:5"
    assert on_chip["buffers"][0]["alive"] == [[5, 7]]
    assert arena["scope"] == "arena"
    assert [buffer["bytes"] for buffer in arena["buffers"]] == [64]


def test_the_file_for_graphviz_has_a_graph_a_scope(tmp_path: Path) -> None:
    path = tmp_path / "graph.dot"
    after(TEXT, f'mem-liveness{{graph="{path}"}}')
    text = path.read_text()
    assert text.startswith('graph "@kernel spad" {\n')
    assert text.endswith("}\n")
    assert text.count("graph ") == 2
    assert '  n0 [label="%a\\n128 bytes\\nmodel.py:3:5"];\n' in text
    assert "  n0 -- n1;\n  n1 -- n2;\n" in text
    assert text.count("{") == text.count("}")


def test_the_graphs_are_those_of_a_kernel_and_a_scope(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    after(TEXT, f'mem-liveness{{graph="{path}" kernel="kernel" scope="spad"}}')
    assert [each["scope"] for each in json.loads(path.read_text())["graphs"]] == ["spad"]
    with pytest.raises(UserError, match='no scope "spat" has buffers') as caught:
        after(TEXT, f'mem-liveness{{graph="{path}" scope="spat"}}')
    assert caught.value.notes == ('did you mean "spad"?',)


def test_many_buffers_are_a_picture_of_few_nodes(tmp_path: Path) -> None:
    lines = [f"  %b{n} = memref.alloc() : {OFF}" for n in range(80)]
    lines += [f"  mem.copy %x to %b{n} : {OFF} to {OFF}" for n in range(80)]
    lines += [f"  mem.copy %b{n} to %y : {OFF} to {OFF}" for n in range(80)]
    text = "\n".join([f"func.func @many(%x: {OFF}, %y: {OFF}) {{", *lines, "  func.return", "}"])
    after(text, f'mem-liveness{{remarks=false graph="{tmp_path / "many.dot"}"}}')
    dot = (tmp_path / "many.dot").read_text()
    assert dot.count(" [label=") == 1
    assert '"80 buffers, all alive at once\\n5120 bytes\\n%b0 of @many, ' in dot
    assert 'label="arena: 80 buffers in 1 node";' in dot


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40), st.integers(1, 99)), min_size=1, max_size=90))
@examples(40)
def test_what_is_folded_says_exactly_who_interferes(lives: list[tuple[int, int, int]]) -> None:
    """Up to the node of the smallest, each edge between nodes is one of all their members, and each within says all."""
    buffers = [Buffer(f"b{n}", ((low, low + span),), size) for n, (low, span, size) in enumerate(lives)]
    problem = Problem(tuple(buffers))
    nodes, edges = folded(problem)
    pairs = set(interfering(problem))
    assert len(nodes) <= MOST_NODES
    assert sorted(member for node in nodes for member in node.members) == list(range(len(lives)))
    for number, node in enumerate(nodes):
        if node.how == "the smallest":
            continue
        inside = {(one, other) for one in node.members for other in node.members if one < other}
        assert inside & pairs == (inside if node.how == "all alive at once" else set())
        for place, other in enumerate(nodes[:number]):
            if other.how != "the smallest":
                between = {tuple(sorted((one, two))) for one in node.members for two in other.members}
                assert between & pairs == (between if (place, number) in edges else set())


@pytest.mark.parametrize("suffix", ["dot", "json"])
def test_the_same_module_gives_the_same_graph(tmp_path: Path, suffix: str) -> None:
    paths = [tmp_path / f"{number}.{suffix}" for number in range(2)]
    for path in paths:
        after(TEXT, f'mem-liveness{{graph="{path}"}}')
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_graph_needs_a_name_that_says_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"graph\.svg") as caught:
        after(TEXT, f'mem-liveness{{graph="{tmp_path / "graph.svg"}"}}')
    assert caught.value.notes == ("end it in .dot or .json",)
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_cannot_be_written_is_an_error_that_leaves_no_part(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file or directory"):
        after(TEXT, f'mem-liveness{{graph="{tmp_path / "missing" / "graph.dot"}"}}')


def test_a_fault_leaves_the_old_graph_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_text("old")
    returning = f"func.func @kernel() -> {OFF} {{\n  %a = memref.alloc() : {OFF}\n  func.return %a : {OFF}\n}}"
    with pytest.raises(UserError, match="returns cannot be planned"):
        after(returning, f'mem-liveness{{graph="{path}"}}')
    assert path.read_text() == "old"


def test_the_edges_are_the_pairs_that_meet() -> None:
    spans = [((0, 4), (8, 9)), ((3, 5),), ((4, 8),), ((8, 10),), ((5, 6), (9, 12)), ((20, 21),), ((0, 30),)]
    buffers = tuple(Buffer(str(number), intervals, 1) for number, intervals in enumerate(spans))
    expected = [
        (left, right) for left, right in combinations(range(len(spans)), 2) if buffers[left].meets(buffers[right])
    ]
    assert list(interfering(Problem(buffers))) == expected


def test_a_graph_agrees_with_the_lifetimes_of_its_function() -> None:
    module = after(TEXT, "mem-liveness")
    memory = memory_problems(module)[0]
    kernel = next(op for op in module.ops if op.name == "func.func")
    liveness = Liveness(kernel)  # pyright: ignore[reportArgumentType]
    assert [buffer.intervals for buffer in memory.problem.buffers] == [
        liveness.lifetime(buffer) for buffer in liveness.buffers[:3]
    ]
