# SPDX-License-Identifier: Apache-2.0
"""From bytes and cycles back to the nodes of a model, and `penstock explain`, which prints it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sampling import sweep
from xdsl.dialects.linalg.ops import GenericOp

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import DRAM
from penstock.dialects.mem import CopyOp
from penstock.lowering.line_map import function_lines, origins_of
from penstock.passes.planning.problem import height, validate
from penstock.runtime.compiler import compile_module, load_input
from penstock.runtime.occupancy import occupancy
from penstock.runtime.provenance import Provenance
from penstock.runtime.simulator.run import run_program
from penstock.tools import main

if TYPE_CHECKING:
    from tests.conftest import Command

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
MACHINES = ("gemmini-fp32", "smaug-smv", "vta-pynq", "neural-cluster", "snax-opengemm")


@pytest.fixture(scope="module")
def digits() -> Provenance:
    return lowered("gemmini-fp32")


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text of its accel level, which needs no compiling."""
    path = tmp_path_factory.mktemp("digits") / "digits.accel.mlir"
    words = ["compile", str(DIGITS), "--machine", "gemmini-fp32", "--emit", "accel", "-o", str(path), "-q"]
    assert main.run(words) == 0
    return path


def lowered(machine: str) -> Provenance:
    program = load_input(DIGITS)
    compile_module(program.module, program.ctx, machine)
    run = run_program(program.module)
    return Provenance(program.module, run if run.kernels else None)


@pytest.mark.parametrize("machine", sweep(MACHINES, quick=("gemmini-fp32", "neural-cluster")))
def test_all_that_moves_or_computes_comes_from_a_node(machine: str) -> None:
    provenance = lowered(machine)
    found = [line.op for line in function_lines(provenance.module)]
    ops = [op for op in found if isinstance(op, DmaOp | ExecOp | CopyOp | GenericOp)]
    assert ops
    assert [str(op) for op in ops if not origins_of(op)] == []


@pytest.mark.parametrize("machine", sweep(("gemmini-fp32", "neural-cluster"), quick=("gemmini-fp32",)))
def test_what_a_command_touches_is_a_buffer_that_is_alive_then(machine: str) -> None:
    provenance = lowered(machine)
    count = 0
    for call in provenance.calls:
        if call.run is None:
            continue
        simulation, begin = call.run.simulation, call.cycles[0]
        for number, command in enumerate(simulation.commands):
            start, end = begin + simulation.starts[number], begin + simulation.ends[number]
            for region in (*command.reads, *command.writes):
                if region.space == DRAM or start == end:
                    continue
                holders = [
                    life
                    for life in provenance.lives
                    if life.scope == region.space and life.function in (call.kernel, "main")
                    for first, last in provenance.cycles_of(life, call if life.function == call.kernel else None)
                    if first <= start and end <= last and life.offset <= region.start and region.end <= life.end
                ]
                assert len(holders) == 1
                count += 1
    assert count > 100


def test_slots_of_a_ring_take_turns_and_no_byte_has_two_values_in_a_cycle(digits: Provenance) -> None:
    for scope, most in (("spad", 5760), ("acc", 2048)):
        problem, plan = occupancy(digits, scope)
        validate(problem, plan)
        assert height(problem, plan) == most
    problem, _ = occupancy(digits, "spad")
    first, second = (each for each in problem.buffers if each.id.startswith("%w_ring") and "fused_2" in each.id)
    assert len(first.intervals) == len(second.intervals) == 4, "eight tiles of weights"
    changes = sorted((*first.intervals, *second.intervals))
    assert changes[::2] == list(first.intervals), "they come in turn"
    with pytest.raises(UserError, match='no buffer is in "spud"') as caught:
        occupancy(digits, "spud")
    assert 'did you mean "spad"?' in caught.value.notes[0]


CONV = """
func.func @main(%x: tensor<1x28x28x128xf32>, %w: tensor<3x3x128x128xf32>, %b: tensor<128xf32>)
    -> tensor<1x28x28x128xf32> {
  %c = graph.conv %x, %w, %b strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] layout "NHWC"
    : (tensor<1x28x28x128xf32>, tensor<3x3x128x128xf32>, tensor<128xf32>) -> tensor<1x28x28x128xf32>
  %y = graph.relu %c {graph.layout = "NHWC"} : tensor<1x28x28x128xf32>
  func.return %y : tensor<1x28x28x128xf32>
}
"""
"""Its kernel has two buffers in the same bytes, which take turns in each iteration of a loop."""


def test_buffers_that_share_bytes_are_never_alive_in_the_same_cycle(tmp_path: Path) -> None:
    (tmp_path / "conv.mlir").write_text(CONV)
    program = load_input(tmp_path / "conv.mlir")
    compile_module(program.module, program.ctx, "gemmini-fp32")
    provenance = Provenance(program.module, run_program(program.module))
    (call,) = [call for call in provenance.calls if call.run is not None]
    spans = [(life, *span) for life in provenance.lives_of(call.kernel) for span in provenance.cycles_of(life, call)]
    shared = 0
    for one, first, last in spans:
        for other, begin, end in spans:
            low, high = max(one.offset, other.offset), min(one.end, other.end)
            if one is not other and one.scope == other.scope and low < high:
                assert last <= begin or end <= first
                shared += 1
    assert shared


def test_a_byte_is_written_before_it_is_read(digits: Provenance) -> None:
    assert digits.run is not None
    for cycle in range(0, digits.run.cycles, 97):
        use = digits.at_byte("spad", 16, cycle)
        assert use.call is not None
        assert use.call.run is not None
        simulation, now = use.call.run.simulation, cycle - use.call.cycles[0]
        if use.written is not None:
            assert simulation.starts[use.written] <= now
        if use.read is not None:
            assert simulation.ends[use.read] > now
        if use.read is not None and simulation.starts[use.read] <= now:
            assert use.lives


def test_the_units_do_in_a_cycle_what_the_timeline_says(digits: Provenance) -> None:
    call, states = digits.at_cycle(2500)
    assert call.kernel == "fused_0"
    assert {state.unit: state.does for state in states}["execute"] == "busy"
    execute = next(state for state in states if state.unit == "execute")
    assert call.run is not None
    assert execute.command is not None
    assert call.run.simulation.commands[execute.command].name == "gemm"


# the command


def test_a_byte_is_explained_up_to_its_node(penstock: Command) -> None:
    done = penstock("explain", str(DIGITS), "--machine", "gemmini-fp32", "--byte", "spad:0x400@2000", "-q")
    assert done.status == 0
    assert "byte     0x400 (1,024) of spad in cycle 2,000\n" in done.out
    assert "kernel   @fused_0, cycles 0 to 3,071" in done.out
    assert "buffer   %x_padded_ring of @fused_0" in done.out
    assert "written  command 38, mvin, cycles 1,985 to 2,135" in done.out
    assert "read     command 40, gemm" in done.out
    assert 'node     "conv1": %conv1 = graph.conv %image' in done.out


def test_a_node_is_followed_through_the_levels(penstock: Command) -> None:
    done = penstock("explain", str(DIGITS), "--machine", "gemmini-fp32", "--node", "conv2", "-q")
    assert done.status == 0
    titles = [line.split()[0] for line in done.out.splitlines()]
    assert list(dict.fromkeys(titles)) == ["source", "graph", "tensor", "loop", "accel", "kernel", "commands", "buffer"]


def test_a_line_of_a_text_is_a_node_too(penstock: Command, tmp_path: Path) -> None:
    text = """func.func @main(%x: tensor<48x48xf32>, %w: tensor<48x48xf32>) -> tensor<48x48xf32> {
  %y = graph.matmul %x, %w : (tensor<48x48xf32>, tensor<48x48xf32>) -> tensor<48x48xf32>
  func.return %y : tensor<48x48xf32>
}
"""
    (tmp_path / "product.mlir").write_text(text)
    done = penstock("explain", "product.mlir", "--machine", "gemmini-fp32", "--cycle", "5000", "-q")
    assert done.status == 0, done.err
    assert "unit     execute works" in done.out
    assert 'node     "product.mlir:2:3": %y = graph.matmul %x, %w' in done.out


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--byte", "spad:12"], 2, '"spad:12" is no byte of a scope in a cycle'),
        (["--byte", "spat:0x10@5"], 2, 'there is no scope "spat"\nnote: did you mean "spad"?'),
        (["--byte", "spad:0x100000@5"], 2, '"spad" has no byte 1,048,576: it has 262,144'),
        (["--cycle", "99999"], 2, "there is no cycle 99,999: the run has 11,126"),
        (["--cycle", "now"], 2, '"now" is no number for --cycle'),
    ],
)
def test_what_is_not_there_is_refused(
    penstock: Command, commands: Path, arguments: list[str], status: int, says: str
) -> None:
    done = penstock("explain", commands, *arguments, "-q")
    assert (done.status, done.out) == (status, "")
    assert says in done.err


def test_a_node_that_is_not_there_is_refused(penstock: Command) -> None:
    done = penstock("explain", str(DIGITS), "--machine", "gemmini-fp32", "--node", "conv9", "-q")
    assert (done.status, done.out) == (2, "")
    assert 'nothing of the program comes from "conv9"\nnote: did you mean "conv' in done.err


def test_the_host_has_no_cycles(penstock: Command) -> None:
    done = penstock("explain", str(DIGITS), "--cycle", "1", "-q")
    assert done.status == 2
    assert "error: the program is for the host: it has no cycles" in done.err
