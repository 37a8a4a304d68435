# SPDX-License-Identifier: Apache-2.0
"""The static count of DMA bytes equals what the accel interpreter counts while it runs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import sweep
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_machine_toml import load_machine
from penstock.passes.analysis.commands import loop_domain
from penstock.passes.analysis.commands.traffic import Traffic, compulsory_bytes, executions, traffic
from penstock.runtime.compiler import LoadedProgram, compile_module, import_program, load_input
from penstock.runtime.interpreter import Counters, run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline
from penstock.runtime.signature import signature_of

ROOT = Path(__file__).parents[2]
CONTEXT = make_context()
MACHINE = str(load_machine("gemmini-fp32"))


def light_networks() -> Any:
    """examples/networks/light.py, which is no package."""
    path = ROOT / "examples" / "networks" / "light.py"
    spec = importlib.util.spec_from_file_location("light_networks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def counted(program: LoadedProgram) -> Counters:
    counters = Counters()
    inputs = [np.zeros(spec.shape, spec.dtype) for spec in signature_of(program.module).inputs]
    run_module(program.module, inputs, program.ctx.weights, counters=counters)
    return counters


def assert_equal(static: Traffic, counters: Counters) -> None:
    """Commands and bytes of every engine."""
    assert static.commands == {name: count.commands for name, count in counters.dma.items()}
    for name, count in counters.dma.items():
        between: dict[tuple[str, str], int] = {}
        for flow in static.flows:
            if flow.engine == name and flow.bytes:
                between[flow.source, flow.dest] = between.get((flow.source, flow.dest), 0) + flow.bytes
        assert between == {ends: size for ends, size in count.between.items() if size}
    assert (static.bytes_in, static.bytes_out) == (counters.bytes_in, counters.bytes_out)
    assert static.bytes_on_chip == sum(count.bytes_on_chip for count in counters.dma.values())


def lowered(text: str, machine: str = "gemmini-fp32", **options: str) -> LoadedProgram:
    """A graph at accel level, with options for some of the passes."""
    ctx = make_context()
    module = Parser(ctx, text).parse_module()
    attach_machine(module, machine)
    specs = [options.get(spec, spec) for spec in pipeline("accel", machine)]
    run_passes(ctx, module, read_pipeline(",".join(specs)))
    return LoadedProgram(module, ctx, Path("text.mlir"))


# against the interpreter


def test_the_digits_network_is_counted_to_the_byte() -> None:
    program = load_input(ROOT / "examples" / "digits" / "digits.onnx")
    compile_module(program.module, program.ctx, "gemmini-fp32")
    static = traffic(program.module)
    assert_equal(static, counted(program))
    assert static.between() == {("dram", "spad"): 43_984, ("dram", "acc"): 424, ("acc", "dram"): 6_184}
    assert compulsory_bytes(program.module) == (43_048, 6_184)


@pytest.mark.parametrize("size", sweep([32, 64], []))
def test_squeezenet_is_counted_to_the_byte(size: int) -> None:
    program = import_program(light_networks().light_model("squeezenet", 0, size), {})
    compile_module(program.module, program.ctx, "gemmini-fp32")
    static = traffic(program.module)
    assert_equal(static, counted(program))
    into, out = compulsory_bytes(program.module)
    assert static.bytes_in >= into
    # Tiles that overlap at the end of a dim store what they share twice.
    assert out <= static.bytes_out < 1.02 * out


CONV = """
func.func @main(%x: tensor<1x6x{size}x{size}xf32>, %w: tensor<8x6x{window}x{window}xf32>) -> {result} {{
  %y = graph.conv %x, %w strides [{stride}, {stride}] pads [{pad}, {pad}, {pad}, {pad}] dilations [1, 1]
    : (tensor<1x6x{size}x{size}xf32>, tensor<8x6x{window}x{window}xf32>) -> {result}
  %z = graph.relu %y : {result}
  func.return %z : {result}
}}
"""


@pytest.mark.parametrize(
    ("size", "window", "stride", "pad", "tile"),
    [(9, 3, 1, 1, "1,4,4,8,3,3,6"), (9, 3, 2, 1, "1,3,5,8,3,3,6"), (8, 5, 1, 2, "1,3,8,5,5,5,6"), (7, 3, 1, 2, "")],
)
def test_a_padded_convolution_in_tiles_is_counted_to_the_byte(
    size: int, window: int, stride: int, pad: int, tile: str
) -> None:
    """Tiles that do not divide overlap or are cut; windows of the input are padded at the borders."""
    out = (size + 2 * pad - window) // stride + 1
    text = CONV.format(size=size, window=window, stride=stride, pad=pad, result=f"tensor<1x8x{out}x{out}xf32>")
    program = lowered(text, tile=f"tile{{sizes={tile}}}" if tile else "tile")
    assert_equal(traffic(program.module), counted(program))


@pytest.mark.parametrize("machine", ["h100-sm", "neural-cluster", "smaug-smv"])
def test_scopes_of_every_machine_are_counted_to_the_byte(machine: str) -> None:
    text = """
      func.func @main(%x: tensor<40x96xf32>, %w: tensor<96x72xf32>) -> tensor<40x72xf32> {
        %y = graph.matmul %x, %w : (tensor<40x96xf32>, tensor<96x72xf32>) -> tensor<40x72xf32>
        %z = graph.relu %y : tensor<40x72xf32>
        func.return %z : tensor<40x72xf32>
      }"""
    program = lowered(text, machine)
    static = traffic(program.module)
    assert_equal(static, counted(program))
    assert static.bytes_in > 0


@pytest.mark.parametrize("tile", ["7,5,24", "3,16,24", "5,6,7"])
def test_a_matrix_product_in_tiles_that_do_not_divide_is_counted_to_the_byte(tile: str) -> None:
    text = """
      func.func @main(%x: tensor<11x24xf32>, %w: tensor<24x17xf32>) -> tensor<11x17xf32> {
        %y = graph.matmul %x, %w : (tensor<11x24xf32>, tensor<24x17xf32>) -> tensor<11x17xf32>
        func.return %y : tensor<11x17xf32>
      }"""
    program = lowered(text, tile=f"tile{{sizes={tile}}}")
    assert_equal(traffic(program.module), counted(program))


# kernels by hand


def by_hand(
    body: str, calls: str = "func.call @k(%x, %y) : (memref<10x12xf32>, memref<10x12xf32>) -> ()"
) -> LoadedProgram:
    text = f"""
      {MACHINE}
      func.func private @k(%x: memref<10x12xf32>, %y: memref<10x12xf32>) attributes {{device = @gemmini_fp32}} {{
        %m2 = arith.constant -2 : index
        %0 = arith.constant 0 : index
        %1 = arith.constant 1 : index
        %2 = arith.constant 2 : index
        %3 = arith.constant 3 : index
        %7 = arith.constant 7 : index
        %10 = arith.constant 10 : index
        %a = mem.buffer at 0 : memref<4x4xf32, "spad">
        %c = mem.buffer at 0 : memref<4x4xf32, "acc">
        %z = accel.exec @zero_spad extents [4, 4] maps [affine_map<(i, j) -> (i, j)>] (%a) : memref<4x4xf32, "spad">
        {body}
        accel.barrier
        func.return
      }}
      func.func @main(%x: memref<10x12xf32>, %y: memref<10x12xf32> {{graph.output = "y"}}) {{
        %0 = arith.constant 0 : index
        %1 = arith.constant 1 : index
        %10 = arith.constant 10 : index
        {calls}
        func.return
      }}
    """
    return LoadedProgram(Parser(CONTEXT, text).parse_module(), CONTEXT, Path("by_hand.mlir"))


def loops(*bounds: str, inside: str) -> str:
    """A nest with the counters %i0, %i1, ..., whose body issues one command after the other."""
    text, before = "", "%z"
    for depth, each in enumerate(bounds):
        text += f"%r{depth} = scf.for %i{depth} = {each} iter_args(%b{depth} = {before}) -> (!accel.token) {{\n"
        before = f"%b{depth}"
    text += inside.replace("BEFORE", before)
    text += "\nscf.yield %t : !accel.token }\n"
    for depth in reversed(range(len(bounds) - 1)):
        text += f"scf.yield %r{depth + 1} : !accel.token }}\n"
    return text


LOAD = """%t = accel.dma %x[{at}] to %a clipped on "mvin" after (BEFORE)
  : memref<10x12xf32> to memref<4x4xf32, "spad">"""
IN_10 = "%m2 to %10 step %3"


@pytest.mark.parametrize(
    ("bounds", "inside"),
    [
        ((IN_10, IN_10), LOAD.format(at="%i0, %i1")),
        # one counter moves both dims
        ((IN_10, "%0 to %3 step %1"), LOAD.format(at="%i0, %i0")),
        # two counters meet in one dim, and one of them in the other
        ((IN_10, IN_10), "%s = arith.addi %i0, %i1 : index\n" + LOAD.format(at="%s, %i1")),
        # the last tile overlaps
        ((IN_10, IN_10), "%s = arith.minsi %i0, %7 : index\n" + LOAD.format(at="%s, %i1")),
        # inner bounds depend on the outer counter: a triangle
        (("%0 to %10 step %1", "%0 to %i0 step %2"), LOAD.format(at="%i1, %m2")),
        (("%0 to %10 step %1", "%i0 to %7 step %2"), LOAD.format(at="0, 9")),
        # nothing runs
        (("%7 to %3 step %1", IN_10), LOAD.format(at="%i0, %i1")),
        # quotients and remainders
        (
            (IN_10, IN_10),
            "%s = arith.divsi %i0, %2 : index\n%u = arith.remsi %i1, %3 : index\n" + LOAD.format(at="%s, %u"),
        ),
        ((IN_10, IN_10), "%s = arith.floordivsi %i0, %2 : index\n" + LOAD.format(at="%s, -1")),
    ],
)
def test_windows_in_loops_are_counted_as_they_are_moved(
    bounds: tuple[str, str], inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = by_hand(loops(*bounds, inside=inside))
    static = traffic(program.module)
    assert_equal(static, counted(program))
    monkeypatch.setattr(loop_domain, "MAX_ITERATIONS_AT_ONCE", 3)
    assert traffic(program.module) == static, "the pieces that the iterations are looked at in do not matter"


def test_what_an_engine_does_on_the_way_is_counted_by_what_it_touches_off_chip() -> None:
    body = """
      %zc = accel.exec @zero_acc extents [4, 4] maps [affine_map<(i, j) -> (i, j)>] (%c) : memref<4x4xf32, "acc">
      %row = memref.subview %x[0, 0] [1, 4] [1, 1]
        : memref<10x12xf32> to memref<1x4xf32, strided<[12, 1]>>
      %t = accel.exec @mvin_add extents [4, 4] maps [affine_map<(i, j) -> (0, j)>, affine_map<(i, j) -> (i, j)>]
        (%row, %c) after (%zc) : memref<1x4xf32, strided<[12, 1]>>, memref<4x4xf32, "acc">
      %out = memref.subview %y[2, 4] [4, 4] [1, 1]
        : memref<10x12xf32> to memref<4x4xf32, strided<[12, 1], offset: 28>>
      %u = accel.exec @mvout_relu extents [4, 4] maps [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>]
        (%c, %out) after (%t) : memref<4x4xf32, "acc">, memref<4x4xf32, strided<[12, 1], offset: 28>>
    """
    program = by_hand(body)
    static = traffic(program.module)
    assert_equal(static, counted(program))
    assert static.between() == {("dram", "acc"): 16, ("acc", "dram"): 64}
    assert compulsory_bytes(program.module) == (480, 480)


def test_a_kernel_counts_as_often_as_it_is_called() -> None:
    call = "func.call @k(%x, %y) : (memref<10x12xf32>, memref<10x12xf32>) -> ()"
    calls = f"{call}\n scf.for %i = %0 to %10 step %1 {{ {call} }}"
    program = by_hand(loops(IN_10, IN_10, inside=LOAD.format(at="%i0, %i1")), calls)
    once = by_hand(loops(IN_10, IN_10, inside=LOAD.format(at="%i0, %i1")))
    assert {function.sym_name.data: times for function, times in executions(program.module)} == {"k": 11, "main": 1}
    assert_equal(traffic(program.module), counted(program))
    assert traffic(program.module).bytes_in == 11 * traffic(once.module).bytes_in
    assert compulsory_bytes(program.module) == (11 * 480, 0)


def test_the_cost_does_not_grow_with_the_trips_of_independent_loops() -> None:
    """A million million iterations, which nobody walks."""
    many = "%0 to %many step %1"
    nest = loops(many, many, IN_10, inside=LOAD.format(at="%i2, 10"))
    program = by_hand("%many = arith.constant 1000000 : index\n" + nest)
    # rows -2, 1, 4 and 7 have 2, 4, 4 and 3 inside, columns 2
    assert traffic(program.module).bytes_in == 10**12 * (2 + 4 + 4 + 3) * 2 * 4


def test_a_window_that_loops_do_not_decide_is_refused_and_located() -> None:
    body = "%v = arith.select %flag, %0, %1 : index\n" + LOAD.format(at="%v, 0").replace("BEFORE", "%z")
    program = by_hand("%flag = arith.cmpi slt, %0, %1 : index\n" + body)
    with pytest.raises(UserError, match=r"neither a loop counter nor computed from some: arith.select yields it"):
        traffic(program.module)


@given(st.lists(st.tuples(*[st.integers(-9, 9)] * 2, st.integers(1, 5), st.integers(0, 9)), min_size=1, max_size=3))
def test_spans_over_random_nests_sum_as_a_walk_does(dims: list[tuple[int, int, int, int]]) -> None:
    """Each dim is lower, upper, size and bound; its offset is the sum of its own counter and the one before."""
    total = 0
    ranges = [range(lower, upper, 2) for lower, upper, _, _ in dims]
    for counters in product(*ranges):
        inside = 1
        for place, (_, _, size, bound) in enumerate(dims):
            at = counters[place] + (counters[place - 1] if place else 0)
            inside *= max(0, min(at + size, bound) - max(at, 0))
        total += inside
    module, spans = _nest(dims)
    last = [op for op in module.walk() if isinstance(op, scf.ForOp)][-1]
    around = (*loop_domain.iteration_domain(last), last)
    assert loop_domain.sum_over_loops(around, spans(around)) == total


def _nest(
    dims: list[tuple[int, int, int, int]],
) -> tuple[ModuleOp, Callable[[Sequence[scf.ForOp]], list[loop_domain.ClippedSpan]]]:
    lines = ["func.func @f() {", "%two = arith.constant 2 : index"]
    for place, (lower, upper, _, _) in enumerate(dims):
        lines.append(f"%l{place} = arith.constant {lower} : index\n%u{place} = arith.constant {upper} : index")
    for place in range(len(dims)):
        lines.append(f"scf.for %i{place} = %l{place} to %u{place} step %two {{")
        if place:
            lines.append(f"%s{place} = arith.addi %i{place}, %i{place - 1} : index")
    lines += ["}" * len(dims), "func.return }"]
    module = Parser(CONTEXT, "\n".join(lines)).parse_module()

    def spans(around: Sequence[scf.ForOp]) -> list[loop_domain.ClippedSpan]:
        found: list[loop_domain.ClippedSpan] = []
        for place, (loop, (_, _, size, bound)) in enumerate(zip(around, dims, strict=True)):
            first = loop.body.block.first_op
            assert first is not None
            offset = first.results[0] if place else loop.body.block.args[0]
            found.append(loop_domain.ClippedSpan(offset, size, bound))
        return found

    return module, spans
