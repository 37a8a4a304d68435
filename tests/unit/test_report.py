# SPDX-License-Identifier: Apache-2.0
"""The report after a compilation: at most ten lines, the same figures as JSON, and nothing of what is not decided."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock as package
from penstock.runtime.compiler import compile_module, load_input
from penstock.runtime.engine import Engine
from penstock.runtime.report import AT_MOST, SCHEMA, CompileReport, ScopeUse, Transfers, report_on

if TYPE_CHECKING:
    from tests.conftest import Command

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"


def full(scopes: int = 2) -> CompileReport:
    """A report in which everything is known."""
    return CompileReport(
        machine="toy",
        level="accel",
        operations=12,
        groups=5,
        kernels=5,
        machine_kernels=3,
        host_reasons={"@gemm: its body computes something else": 2, "the machine has no intrinsics": 1},
        macs=1000,
        machine_macs=750,
        crossing_bytes=1234,
        scopes=tuple(ScopeUse(f"s{n}", "k", 1000 * n, 8192, 10 * n) for n in range(scopes)),
        arena=ScopeUse("arena", "", 4096, None, 4096),
        transfers=Transfers(3000, 500, 2000, 0, (("dram", "s0", 3000), ("s0", "s1", 7), ("s1", "dram", 500))),
        c_bytes=10_000,
        c_lines=300,
        passes=(("a", 0.5), ("b", 2.0), ("c", 0.25), ("d", 1.0)),
    )


def test_a_report_says_every_figure_in_order() -> None:
    assert full().lines() == [
        "kernels: 12 before fusion, 5 after it",
        "toy: 75.0% of 1,000 multiply-accumulates, 3 kernels",
        "host: 2 kernels, 2 of them: @gemm: its body computes something else; 1,234 bytes cross between the two",
        "s0: peak 0 of 8,192 bytes in @k, lower bound 0",
        "s1: peak 1,000 of 8,192 bytes in @k, lower bound 10",
        "arena: peak 4,096 bytes, lower bound 4,096",
        "DMA: 3,000 bytes in, 1.50 of the compulsory 2,000; 500 bytes out, - of the compulsory 0; s0 to s1 7",
        "C: 10,000 bytes, 300 lines",
        "passes: 3.75 s; the slowest: b 2.00, d 1.00, a 0.50",
    ]


@pytest.mark.parametrize("scopes", [0, 3, 4, 9])
def test_a_report_has_at_most_ten_lines_and_leaves_no_scope_out(scopes: int) -> None:
    lines = full(scopes).lines()
    assert len(lines) == min(7 + scopes, AT_MOST)
    text = "\n".join(lines)
    assert all(f"s{n}: peak" in text for n in range(scopes))


def test_what_is_not_decided_yet_is_left_out() -> None:
    nothing = replace(
        full(), operations=None, machine_kernels=None, macs=None, scopes=None, arena=None, transfers=None, c_bytes=None
    )
    assert nothing.lines() == ["kernels: 5", "passes: 3.75 s; the slowest: b 2.00, d 1.00, a 0.50"]


def test_one_kernel_is_no_kernels() -> None:
    lines = replace(full(), kernels=2, machine_kernels=1).lines()[1:3]
    assert lines[0].endswith(", 1 kernel")
    assert lines[1].startswith("host: 1 kernel, 2 of them")


def test_bytes_that_cannot_be_counted_are_no_reason_to_fail() -> None:
    lines = replace(full(), transfers=None, transfers_unknown="an index comes from outside").lines()
    assert "DMA: not counted: an index comes from outside" in lines


def test_compile_reports_by_default_and_not_when_quiet(penstock: Command) -> None:
    loud = penstock("compile", DIGITS, "--machine", "gemmini-fp32")
    assert (loud.status, loud.out) == (0, "")
    lines = loud.err.splitlines()
    assert len(lines) <= AT_MOST + 1
    assert lines[:3] == [
        "kernels: 7 before fusion, 5 after it",
        "gemmini-fp32: 100.0% of 88,064 multiply-accumulates, 3 kernels",
        "host: 2 kernels, 1 of them: no intrinsic computes arith.maximumf in a reduction; "
        "9,216 bytes cross between the two",
    ]
    assert lines[6].startswith("DMA: 44,408 bytes in, 1.03 of the compulsory 43,048; 6,184 bytes out, 1.00 of")
    assert lines[-1].startswith("digits.plan: ")
    quiet = penstock("compile", DIGITS, "--machine", "gemmini-fp32", "-q")
    assert (quiet.status, quiet.err) == (0, "")


def test_compile_for_the_host_reports_what_there_is(penstock: Command) -> None:
    lines = penstock("compile", DIGITS).err.splitlines()
    assert lines[:3] == [
        "kernels: 7 before fusion, 5 after it",
        "host: 88,064 multiply-accumulates, all kernels",
        "arena: peak 8,592 bytes, lower bound 8,592",
    ]
    assert lines[3].startswith("C: ")


def test_verbose_adds_each_pass_and_each_kernel(penstock: Command) -> None:
    err = penstock("compile", DIGITS, "--machine", "gemmini-fp32", "-v").err
    assert " loop-to-accel\n" in err
    reason = "no intrinsic computes arith.maximumf in a reduction; 1,024 bytes cross from it"
    assert f'on the host: @fused_1: "pool1": {reason}\n' in err
    assert "kernels: 7 before fusion, 5 after it\n" in err


@pytest.mark.parametrize("level", ["graph", "tensor", "loop", "accel"])
def test_every_level_has_a_report_of_what_it_decides(penstock: Command, tmp_path: Path, level: str) -> None:
    words = ("compile", DIGITS, "--machine", "gemmini-fp32", "--emit", level, "-q", "--report", "r.json")
    assert penstock(*words).status == 0
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["schema"], report["level"], report["machine"]) == (SCHEMA, level, "gemmini-fp32")
    assert (report["operations"], report["kernels"]) == (7, 5)
    assert (report["macs"] == 88_064) == (level != "graph")
    assert (report["scopes"] is not None) == (level in ("loop", "accel"))
    assert (report["transfers"] is not None) == (level == "accel")
    assert report["c_bytes"] is None
    assert [name for name, _ in report["passes"]][:2] == ["topological-sort", "integer-arithmetic"]


def test_a_report_that_cannot_be_written_is_the_users_fault(penstock: Command) -> None:
    finished = penstock("compile", DIGITS, "--emit", "graph", "-q", "--report", "nowhere/r.json")
    assert finished.status == 1
    assert "nowhere/r.json: error: cannot write the file: the folder " in finished.err


def test_an_engine_has_the_report_of_its_compilation() -> None:
    engine = package.compile(DIGITS, machine="gemmini-fp32", backend="interpreter")
    assert isinstance(engine, Engine)
    report = engine.report
    assert (report.operations, report.kernels, report.machine_kernels) == (7, 5, 3)
    assert report.transfers is not None
    assert (report.transfers.bytes_in, report.transfers.compulsory_in) == (44_408, 43_048)
    assert report.passes
    assert report.c_bytes is None
    assert json.loads(report.to_json())["kernels"] == 5


LOOP = """
func.func @main(%h: tensor<16x64xf32>, %w: tensor<64x64xf32>) -> tensor<16x64xf32> {
  %last = graph.loop trips 7 carry(%h : tensor<16x64xf32>) reads(%w : tensor<64x64xf32>) {
  ^bb0(%i: tensor<i64>, %a: tensor<16x64xf32>, %b: tensor<64x64xf32>):
    %s = graph.matmul %a, %b : (tensor<16x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
    graph.yield %s : tensor<16x64xf32>
  } -> tensor<16x64xf32>
  func.return %last : tensor<16x64xf32>
}
"""


@pytest.mark.parametrize("machine", [None, "gemmini-fp32"])
@pytest.mark.parametrize("level", ["tensor", "loop"])
def test_what_a_loop_calls_counts_in_each_iteration(machine: str | None, level: str, tmp_path: Path) -> None:
    path = tmp_path / "loop.mlir"
    path.write_text(LOOP)
    program = load_input(path)
    compile_module(program.module, program.ctx, machine, level)
    report = report_on(program.module)
    assert report.macs == 7 * 16 * 64 * 64
    assert report.machine_macs == (None if machine is None else report.macs)
