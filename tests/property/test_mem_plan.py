# SPDX-License-Identifier: Apache-2.0
"""Random programs: placed by any planner they pass `mem-verify`, and compute what they compute without a plan."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sampling import examples
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.context import make_context
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.analysis.memory.memory_problems import plan_report
from penstock.runtime.interpreter import run_module
from penstock.runtime.pass_manager import read_pipeline, run_passes

INPUTS = ("x", "v", "w")
SIZES = {"a": 4, "b": 12, "c": 8, "d": 16, "e": 4}
"""Elements of the buffers; it is the first four that are copied, which overwrites some of the buffers whole."""

MACHINE = """
machine.target @small frequency 100 {
  machine.scope @spad size 65536 granule 16 dtypes [f32]
}
"""
PLANNERS = ("first-fit-by-size", "best-fit-by-start", "color-by-size")


@dataclass
class Program:
    """The text of a program that is being drawn, and what holds defined values at its end."""

    lines: list[str] = field(default_factory=list[str])
    defined: list[str] = field(default_factory=list[str])
    loops: int = 0


def type_of(name: str, scope: str) -> str:
    return "memref<4xf32>" if name in (*INPUTS, "y") else f"memref<{SIZES[name]}xf32{scope}>"


@st.composite
def programs(draw: st.DrawFn) -> Program:
    program = Program()

    def copies(depth: int) -> None:
        for _ in range(draw(st.integers(1, 5))):
            if depth < 2 and draw(st.booleans()):
                number = program.loops
                program.loops += 1
                program.lines.append(f"scf.for %i{number} = %zero to %two step %one {{")
                # what the last round of a loop defines, it has defined in every round
                copies(depth + 1)
                program.lines.append("}")
                continue
            source = draw(st.sampled_from([*INPUTS, *program.defined]))
            dest = draw(st.sampled_from([name for name in SIZES if name != source]))
            program.lines.append(f"COPY {source} {dest}")
            if dest not in program.defined:
                program.defined.append(dest)

    copies(0)
    program.lines.append(f"COPY {draw(st.sampled_from([*INPUTS, *program.defined]))} y")
    return program


def text_of(program: Program, scope: str) -> str:
    """The program with its buffers in a scope, as ops of the loop level."""
    lines: list[str] = []
    for name, size in SIZES.items():
        lines.append(f"%{name} = memref.alloc() : memref<{size}xf32{scope}>")
    for line in program.lines:
        if not line.startswith("COPY"):
            lines.append(line)
            continue
        _, source, dest = line.split()
        part = f"memref<4xf32{scope}>"
        ends: list[tuple[str, str]] = []
        for name in (source, dest):
            if SIZES.get(name, 4) == 4:
                ends.append((name, type_of(name, scope)))
                continue
            view = f"v{len(lines)}"
            lines.append(f"%{view} = memref.subview %{name}[0] [4] [1] : {type_of(name, scope)} to {part}")
            ends.append((view, part))
        lines.append(f"mem.copy %{ends[0][0]} to %{ends[1][0]} : {ends[0][1]} to {ends[1][1]}")
    body = "\n  ".join(lines)
    arguments = ", ".join([*(f"%{name}: memref<4xf32>" for name in INPUTS), '%y: memref<4xf32> {graph.output = "y"}'])
    return f"""{MACHINE}
func.func @main({arguments}) {{
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %two = arith.constant 2 : index
  {body}
  func.return
}}
"""


def read(text: str, passes: str) -> ModuleOp:
    ctx = make_context()
    module = parse_text(ctx, SourceText("drawn.mlir", text)).module
    run_passes(ctx, module, read_pipeline(passes))
    return module


def result(module: ModuleOp) -> list[float]:
    inputs = [np.arange(4, dtype=np.float32) + 10 * number for number in range(len(INPUTS))]
    [y] = run_module(module, inputs, WeightStore())
    return y.tolist()


@examples(60, suppress_health_check=[HealthCheck.too_slow])
@given(programs(), st.sampled_from(PLANNERS), st.sampled_from(["", ', "spad"']))
def test_a_planned_program_is_verified_and_computes_the_same(program: Program, planner: str, scope: str) -> None:
    wanted = result(read(text_of(program, ""), "canonicalize"))
    planned = read(text_of(program, scope), f"mem-plan{{planner={planner}}},mem-verify")
    assert result(planned) == wanted
    for plan in plan_report(planned):
        assert plan.peak >= plan.lower_bound
