# SPDX-License-Identifier: Apache-2.0
"""Control flow that a command cannot follow is refused at its place; what it can is run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from control_flow import TARGET
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes

if TYPE_CHECKING:
    from tests.conftest import Command

ON_CHIP = 'memref<16xf32, "sram">'
KERNEL = f"""func.func @kernel(%x: memref<16xf32>, %y: memref<16xf32>) attributes {{device = @small}} {{
  %b = mem.buffer at 0 : {ON_CHIP}
  %t = accel.dma %x to %b on "mvin" : memref<16xf32> to {ON_CHIP}
  %u = accel.dma %b to %y on "mvout" after (%t) : {ON_CHIP} to memref<16xf32>
  accel.barrier
  func.return
}}
"""
BLOCKS = f"""func.func @main(%x: memref<16xf32>, %c: i1, %y: memref<16xf32>) {{
  %b = mem.buffer : {ON_CHIP}
  mem.copy %x to %b : memref<16xf32> to {ON_CHIP}
  cf.cond_br %c, ^one, ^end
^one:
  mem.copy %b to %y : {ON_CHIP} to memref<16xf32>
  cf.br ^end
^end:
  func.return
}}
"""
GRAPH = """func.func @main(%x: tensor<4xf32>, %c: i1) -> tensor<4xf32> {
  %y = scf.if %c -> (tensor<4xf32>) {
    %n = graph.neg %x : tensor<4xf32>
    scf.yield %n : tensor<4xf32>
  } else {
    scf.yield %x : tensor<4xf32>
  }
  func.return %y : tensor<4xf32>
}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "program.mlir"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_function_of_several_blocks_without_kernels_has_no_hazards(tmp_path: Path, penstock: Command) -> None:
    path = written(tmp_path, TARGET + BLOCKS)
    finished = penstock("compile", path, "--emit", "accel", "-o", tmp_path / "out.mlir", "-q")
    assert (finished.status, finished.err) == (0, "")


def test_what_emits_c_names_the_branch_of_a_function_of_several_blocks(tmp_path: Path, penstock_opt: Command) -> None:
    path = written(tmp_path, TARGET + BLOCKS)
    finished = penstock_opt(path, "-t", "c")
    assert finished.status == 1
    line = (TARGET + BLOCKS)[: (TARGET + BLOCKS).index("cf.cond_br")].count("\n") + 1
    assert f"{path}:{line}:3: error: @main has several blocks and cannot be written as C" in finished.err
    assert "note: the pass lift-cf-to-scf makes ops of scf of its control flow" in finished.err


def test_a_function_of_several_blocks_is_compiled_and_runs(tmp_path: Path, penstock: Command) -> None:
    text = BLOCKS.replace("%c: i1, %y: memref<16xf32>", '%f: memref<i1>, %y: memref<16xf32> {graph.output = "y"}')
    text = text.replace("  %b =", "  %c = memref.load %f[] : memref<i1>\n  %b =")
    path = written(tmp_path, TARGET + text)
    np.save(tmp_path / "x.npy", np.arange(16, dtype=np.float32))
    np.save(tmp_path / "f.npy", np.array(True))
    finished = penstock("check", path)
    assert (finished.status, finished.err) == (0, "")
    assert finished.out.startswith("lift-cf-to-scf: equal, bit for bit\n")
    given = [f"x={tmp_path / 'x.npy'}", f"f={tmp_path / 'f.npy'}"]
    for level in ("loop", "c"):
        folder = tmp_path / level
        finished = penstock("run", path, "--level", level, "--output-dir", folder, "-q", "--input", *given)
        assert (finished.status, finished.err) == (0, "")
        np.testing.assert_array_equal(np.load(folder / "output_0.npy"), np.arange(16, dtype=np.float32))


def test_a_scalar_argument_of_a_graph_is_refused(tmp_path: Path, penstock: Command) -> None:
    finished = penstock("check", written(tmp_path, GRAPH), "-q")
    assert finished.status == 3
    assert ":1:1: error: input 1 of @main is an i1, and a graph takes tensors" in finished.err


def test_functions_on_tensors_take_scalars(tmp_path: Path, penstock: Command) -> None:
    text = GRAPH.replace("%n = graph.neg %x : tensor<4xf32>", "%n = tensor.empty() : tensor<4xf32>")
    finished = penstock("check", written(tmp_path, text.replace("scf.yield %n", "scf.yield %x")), "-p", "value-dce")
    assert (finished.status, finished.err) == (0, "")


CALLS = {
    "scf.if %c {": "depends here on a value that only a run knows",
    "scf.index_switch %i\ncase 0 {": "the calls inside scf.index_switch cannot be followed",
    "scf.for %j = %i to %i step %i {": "depends here on a value that only a run knows",
}


@pytest.mark.parametrize("around", CALLS)
def test_calls_that_depend_on_a_run_are_refused_and_not_left_out(
    around: str, tmp_path: Path, penstock_opt: Command
) -> None:
    last, default = ("scf.yield\n", "default {\nscf.yield\n}\n") if "switch" in around else ("", "")
    main = f"""func.func @main(%x: memref<16xf32>, %c: i1, %i: index) {{
  {around}
    func.call @kernel(%x, %x) : (memref<16xf32>, memref<16xf32>) -> ()
  {last}}}
  {default}func.return
}}
"""
    finished = penstock_opt("-p", "accel-check-hazards", written(tmp_path, TARGET + KERNEL + main))
    assert finished.status == 1
    assert CALLS[around] in finished.err


def test_control_flow_of_the_host_between_the_calls_is_no_hindrance(tmp_path: Path, penstock_opt: Command) -> None:
    main = """func.func @main(%x: memref<16xf32>, %y: memref<16xf32>, %c: i1, %i: index) {
  %v = memref.load %x[%i] : memref<16xf32>
  scf.if %c {
    memref.store %v, %x[%i] : memref<16xf32>
  }
  func.call @kernel(%x, %y) : (memref<16xf32>, memref<16xf32>) -> ()
  func.return
}
"""
    finished = penstock_opt("-p", "accel-check-hazards", written(tmp_path, TARGET + KERNEL + main))
    assert (finished.status, finished.err) == (0, "")


@pytest.mark.parametrize("around", ["scf.if %c {", "scf.for %j = %i to %i step %i {"])
def test_calls_of_the_host_may_depend_on_a_run(around: str, tmp_path: Path, penstock_opt: Command) -> None:
    main = f"""func.func @main(%x: memref<16xf32>, %y: memref<16xf32>, %c: i1, %i: index) {{
  {around}
    func.call @other(%x) : (memref<16xf32>) -> ()
  }}
  func.call @kernel(%x, %y) : (memref<16xf32>, memref<16xf32>) -> ()
  func.return
}}
func.func private @other(%x: memref<16xf32>) attributes {{device = @host}} {{
  func.return
}}
"""
    finished = penstock_opt("-p", "accel-check-hazards", written(tmp_path, TARGET + KERNEL + main))
    assert (finished.status, finished.err) == (0, "")


def test_a_loop_of_the_host_that_calls_nothing_may_carry_what_only_a_run_knows() -> None:
    text = """func.func @main(%a: memref<4xf32>, %y: memref<1xf32>) {
  %0 = arith.constant 0 : index
  %1 = arith.constant 1 : index
  %4 = arith.constant 4 : index
  %zero = arith.constant 0.0 : f32
  %sum = scf.for %i = %0 to %4 step %1 iter_args(%s = %zero) -> (f32) {
    %x = memref.load %a[%i] : memref<4xf32>
    %t = arith.addf %s, %x : f32
    scf.yield %t : f32
  }
  memref.store %sum, %y[%0] : memref<1xf32>
  func.return
}"""
    ctx = make_context()
    module = Parser(ctx, text).parse_module()
    attach_machine(module, "gemmini-fp32")
    run_passes(ctx, module, read_pipeline("accel-check-hazards"))
