# SPDX-License-Identifier: Apache-2.0
"""`merge-kernels`: the commands of several kernels in one: no timing shows, and they take no more cycles."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import zoo
from hypothesis import given
from hypothesis import strategies as st
from programs import parsed_in_context
from sampling import examples
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.context import PenstockContext
from penstock.dialects.diagnostics import UserError
from penstock.dialects.mem import ScopedAllocation
from penstock.passes.analysis.commands.program import Program
from penstock.passes.analysis.commands.trace import trace_calls
from penstock.passes.analysis.kernels import machine_kernels
from penstock.runtime.compiler import compile_module, import_program
from penstock.runtime.interpreter import run_module
from penstock.runtime.interpreter.interleaving import Order
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.simulator import longest_path, simulate
from penstock.runtime.simulator.run import run_program

MERGED = "default, +merge-kernels after accel-pipeline"


def chain(sizes: list[int], rows: int, adds: list[bool]) -> str:
    """Products one after the other; of some, with the product before added, so that its result is used twice."""
    arguments = [f"%x: tensor<{rows}x{sizes[0]}xf32>"]
    lines: list[str] = []
    last, before = "%x", ""
    for number, (inner, outer) in enumerate(pairwise(sizes)):
        arguments.append(f"%w{number}: tensor<{inner}x{outer}xf32>")
        type = f"tensor<{rows}x{outer}xf32>"
        types = f"tensor<{rows}x{inner}xf32>, tensor<{inner}x{outer}xf32>"
        lines.append(f"%p{number} = graph.matmul {last}, %w{number} : ({types}) -> {type}")
        last, before = f"%p{number}", last
        if adds[number] and inner == outer:
            lines.append(f"%s{number} = graph.add {last}, {before} : ({type}, {type}) -> {type}")
            last = f"%s{number}"
    result = f"tensor<{rows}x{sizes[-1]}xf32>"
    return (
        f"func.func @main({', '.join(arguments)}) -> {result} {{\n"
        + "\n".join([*lines, f"return {last} : {result}"])
        + "\n}"
    )


def compiled(text: str, pipeline: str | None, machine: str = "gemmini-fp32") -> tuple[ModuleOp, PenstockContext]:
    ctx, module = parsed_in_context(text)
    compile_module(module, ctx, machine, pipeline=pipeline)
    return module, ctx


def names(module: ModuleOp) -> list[str]:
    return [kernel.sym_name.data for kernel in machine_kernels(module)[1]]


def same_with_own_buses(program: Program) -> None:
    """Counted twice, where each engine has a bus to itself."""
    engines = {name: replace(each, bus=None) for name, each in program.machine.engines.items()}
    apart = replace(program, machine=replace(program.machine, engines=engines))
    times = longest_path(apart)
    assert times is not None
    assert not times.in_order or times.cycles == simulate(apart).cycles


@examples(8)
@given(
    st.lists(st.sampled_from([16, 20, 64]), min_size=3, max_size=5),
    st.sampled_from([4, 24, 50]),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.integers(0, 1000),
)
def test_merged_products_are_the_same_in_every_order_and_no_slower(
    sizes: list[int], rows: int, adds: list[bool], seed: int
) -> None:
    text = chain(sizes, rows, adds)
    (separate, ctx), (merged, _) = compiled(text, None), compiled(text, MERGED)
    assert len(list(trace_calls(separate))) > len(list(trace_calls(merged))) == 1
    # Every kernel is proved free of hazards before it is simulated.
    assert run_program(merged).cycles <= run_program(separate).cycles
    draw = np.random.default_rng(seed)
    shapes = [(rows, sizes[0]), *pairwise(sizes)]
    inputs = [draw.integers(-3, 4, shape).astype(np.float32) for shape in shapes]
    (expected,) = run_module(separate, inputs, ctx.weights)
    orders: tuple[Order, ...] = ("asap", "alap", seed)
    for order in orders:
        (found,) = run_module(merged, inputs, ctx.weights, interleaving=order)
        assert np.array_equal(expected, found)
    for call in trace_calls(merged):
        assert call.program is not None
        same_with_own_buses(call.program)


def test_weights_of_the_next_part_are_loaded_while_the_one_before_computes() -> None:
    text = chain([64, 64, 64], 64, [False] * 2)
    merged, _ = compiled(text, MERGED.replace(",", ", -mem-promote,", 1))
    (kernel,) = run_program(merged).kernels
    simulation, target = kernel.simulation, kernel.simulation.program
    weight = next(number for number, name in enumerate(target.storages) if name == "%w1")
    loads = [n for n, each in enumerate(target.commands) if any(region.storage == weight for region in each.reads)]
    products = [n for n, each in enumerate(target.commands) if each.macs]
    assert loads
    assert simulation.ends[loads[0]] < simulation.ends[products[len(products) // 2 - 1]]


VIEWS = """
func.func @main(%x: memref<8x8xf32>, %y: memref<64xf32>) {
  %a = memref.alloc() : memref<8x8xf32>
  %flat = memref.collapse_shape %a [[0, 1]] : memref<8x8xf32> into memref<64xf32>
  func.call @square(%x, %a) : (memref<8x8xf32>, memref<8x8xf32>) -> ()
  func.call @line(%flat, %y) : (memref<64xf32>, memref<64xf32>) -> ()
  func.return
}
func.func private @square(%x: memref<8x8xf32>, %y: memref<8x8xf32>) attributes {device = @gemmini_fp32} {
  %s = mem.buffer at 0 : memref<8x8xf32, "spad">
  mem.copy %x to %s : memref<8x8xf32> to memref<8x8xf32, "spad">
  mem.copy %s to %y : memref<8x8xf32, "spad"> to memref<8x8xf32>
  func.return
}
func.func private @line(%x: memref<64xf32>, %y: memref<64xf32>) attributes {device = @gemmini_fp32} {
  %s = mem.buffer at 1024 : memref<64xf32, "spad">
  mem.copy %x to %s : memref<64xf32> to memref<64xf32, "spad">
  mem.copy %s to %y : memref<64xf32, "spad"> to memref<64xf32>
  func.return
}
"""


def test_parts_that_see_a_storage_as_different_views_are_ordered() -> None:
    module, _ = compiled(VIEWS, MERGED)
    assert names(module) == ["square_to_line"]
    (call,) = trace_calls(module)
    assert call.program is not None
    # The load of the second part waits for the store of the first.
    load, _, again, _ = call.program.commands
    assert load.writes[0].start != again.writes[0].start
    assert 1 in again.after


def test_what_stays_on_chip_between_kernels_keeps_its_bytes() -> None:
    program = import_program(zoo.NETWORKS["bert_layer"](0, small=True), {})
    inputs = list(zoo.inputs(zoo.NETWORKS["bert_layer"](0, small=True), 1).values())
    separate = program.module.clone()
    compile_module(separate, program.ctx, "rapid-core-like")
    merged = program.module
    compile_module(merged, program.ctx, "rapid-core-like", pipeline=MERGED)
    assert len(names(merged)) < len(names(separate))
    assert run_program(merged).cycles < run_program(separate).cycles
    outputs = [
        run_module(separate, inputs, program.ctx.weights),
        run_module(merged, inputs, program.ctx.weights, interleaving="alap"),
    ]
    assert all(np.array_equal(one, other) for one, other in zip(*outputs, strict=True))


HOST_BETWEEN = """
func.func @main(%x: memref<8x8xf32>, %y: memref<8x8xf32>, %z: memref<8x8xf32>) {
  %a = memref.alloc() : memref<8x8xf32>
  %b = memref.alloc() : memref<8x8xf32>
  func.call @move(%x, %a) : (memref<8x8xf32>, memref<8x8xf32>) -> ()
  func.call @host(%SOURCE, %b) : (memref<8x8xf32>, memref<8x8xf32>) -> ()
  func.call @move(%a, %y) : (memref<8x8xf32>, memref<8x8xf32>) -> ()
  func.call @move(%b, %z) : (memref<8x8xf32>, memref<8x8xf32>) -> ()
  func.return
}
func.func private @host(%x: memref<8x8xf32>, %y: memref<8x8xf32>) attributes {device = @host} {
  mem.copy %x to %y : memref<8x8xf32> to memref<8x8xf32>
  func.return
}
func.func private @move(%x: memref<8x8xf32>, %y: memref<8x8xf32>) attributes {device = @gemmini_fp32} {
  %s = mem.buffer : memref<8x8xf32, "spad">
  mem.copy %x to %s : memref<8x8xf32> to memref<8x8xf32, "spad">
  mem.copy %s to %y : memref<8x8xf32, "spad"> to memref<8x8xf32>
  func.return
}
"""


@pytest.mark.parametrize(("source", "calls"), [("x", ["host", "merged"]), ("a", ["merged", "host", "move"])])
def test_all_that_is_ready_on_one_side_goes_before_the_other(source: str, calls: list[str]) -> None:
    module, _ = compiled(HOST_BETWEEN.replace("SOURCE", source), MERGED.replace(",", ", -mem-promote,", 1))
    called = [call.function.sym_name.data for call in trace_calls(module)]
    assert [name if name in ("host", "move") else "merged" for name in called] == calls


BETWEEN_HOSTS = """
func.func @main(
    %x: memref<8x8xf32>, %y: memref<8x8xf32> {graph.output = "y"}, %z: memref<8x8xf32> {graph.output = "z"}
) {
  %a = mem.buffer at 0 : memref<8x8xf32>
  mem.copy %x to %a : memref<8x8xf32> to memref<8x8xf32>
  func.call @move(%a, %y) : (memref<8x8xf32>, memref<8x8xf32>) -> ()
  %b = mem.buffer at 0 : memref<8x8xf32>
  mem.copy %x to %b : memref<8x8xf32> to memref<8x8xf32>
  mem.copy %b to %z : memref<8x8xf32> to memref<8x8xf32>
  func.return
}
func.func private @move(%x: memref<8x8xf32>, %y: memref<8x8xf32>) attributes {device = @gemmini_fp32} {
  %s = mem.buffer at 0 : memref<8x8xf32, "spad">
  %in = accel.dma %x to %s on "mvin" : memref<8x8xf32> to memref<8x8xf32, "spad">
  %out = accel.dma %s to %y on "mvout" after(%in) : memref<8x8xf32, "spad"> to memref<8x8xf32>
  accel.barrier
  func.return
}
"""


def test_the_arena_is_planned_anew_where_calls_get_another_order() -> None:
    ctx, module = parsed_in_context(BETWEEN_HOSTS)
    run_passes(ctx, module, read_pipeline('attach-machine{machine="gemmini-fp32"},mem-verify'))
    run_passes(ctx, module, read_pipeline("merge-kernels,mem-verify"))
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    for y in run_module(module, [x], ctx.weights):
        assert np.array_equal(y, x)


def test_a_kernel_of_several_blocks_stays_one_of_its_own() -> None:
    jump = "  cf.br ^end\n^end:\n"
    head, last = HOST_BETWEEN.replace("SOURCE", "x").rsplit("  func.return\n", 1)
    ctx, module = parsed_in_context(head + jump + "  func.return\n" + last)
    run_passes(ctx, module, read_pipeline('attach-machine{machine="gemmini-fp32"}'))
    before = names(module)
    run_passes(ctx, module, read_pipeline("merge-kernels"))
    assert names(module) == before == ["move"]


def test_a_limit_of_calls() -> None:
    text = chain([16] * 5, 16, [False] * 4)
    module, _ = compiled(text, "default, +merge-kernels{calls=2} after accel-pipeline")
    assert len(list(trace_calls(module))) == 2
    with pytest.raises(UserError, match="negative"):
        compiled(text, "default, +merge-kernels{calls=-1} after accel-pipeline")


def test_kernels_that_are_no_commands_yet_are_refused() -> None:
    with pytest.raises(UserError, match=r"@square does not end in accel\.barrier") as error:
        compiled(VIEWS, "default, +merge-kernels before mem-plan")
    assert list(error.value.notes) == ["merge-kernels comes after accel-pipeline"]


def test_parts_that_follow_each_other_share_no_bytes_where_there_is_room() -> None:
    text = chain([64, 64, 64], 64, [False] * 2)
    merged, _ = compiled(text, MERGED.replace(",", ", -mem-promote,", 1))
    (kernel,) = machine_kernels(merged)[1]
    placed = [op for op in kernel.walk() if isinstance(op, ScopedAllocation) and op.scope == "spad"]
    spans = sorted((op.byte_offset or 0, (op.byte_offset or 0) + op.size_in_bytes) for op in placed)
    assert len(spans) > 2
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
