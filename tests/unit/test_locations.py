# SPDX-License-Identifier: Apache-2.0
"""Where things come from: read and printed as MLIR does, and kept by every pass, of arguments and terminators too."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sampling import sweep
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import (
    UNKNOWN_LOC,
    FileLineColLoc,
    LocationAttr,
    ModuleOp,
    NameLoc,
    UnknownLoc,
    i64,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter
from xdsl.rewriter import Rewriter
from xdsl.targets.mlir import MLIRTarget

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError, location_of, render_location
from penstock.dialects.graph import ConstantOp
from penstock.dialects.locations import inherit_locations, located_in, named
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.line_map import origins
from penstock.lowering.to_text import located_text, module_text
from penstock.runtime.compiler import LoadedProgram, compile_module, load_input, load_kernel
from penstock.tools.errors import render
from penstock.tools.fuzz.samples import LEVELS

if TYPE_CHECKING:
    from tests.conftest import Command

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
MLIR_OPT = shutil.which("mlir-opt-19")
MACHINES = ("host", "gemmini-fp32", "vta-pynq", "host-avx2", "rapid-core-like", "neural-cluster")
HOST = "host"
"""No machine."""

LAYER = """func.func @main(%x: tensor<8x24xf32>, %w: tensor<24x16xf32>) -> tensor<8x16xf32> {
  %xw = graph.matmul %x, %w : (tensor<8x24xf32>, tensor<24x16xf32>) -> tensor<8x16xf32>
  %y = graph.relu %xw : tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}
"""
ATTENTION = """
func.func @main(%q: tensor<2x8x16xf32>, %k: tensor<2x16x8xf32>, %v: tensor<2x8x16xf32>, %w: tensor<16x16xf32>)
    -> tensor<2x8x16xf32> {
  %s = graph.matmul %q, %k : (tensor<2x8x16xf32>, tensor<2x16x8xf32>) -> tensor<2x8x8xf32> loc("scores")
  %p = graph.softmax %s axis 2 : tensor<2x8x8xf32> -> tensor<2x8x8xf32> loc("weights")
  %a = graph.matmul %p, %v : (tensor<2x8x8xf32>, tensor<2x8x16xf32>) -> tensor<2x8x16xf32> loc("mix")
  %o = graph.matmul %a, %w : (tensor<2x8x16xf32>, tensor<16x16xf32>) -> tensor<2x8x16xf32> loc("project")
  %y = graph.add %o, %q : (tensor<2x8x16xf32>, tensor<2x8x16xf32>) -> tensor<2x8x16xf32> loc("residual")
  func.return %y : tensor<2x8x16xf32>
}
"""


def parsed(text: str, name: str = "in.mlir") -> ModuleOp:
    return parse_text(make_context(allow_unregistered=True), SourceText(name, text)).module


def load(network: str, folder: Path) -> LoadedProgram:
    if network == "digits":
        return load_input(DIGITS)
    path = folder / f"{network}.mlir"
    path.write_text({"layer": LAYER, "attention": ATTENTION}[network])
    return load_input(path)


def without_location(module: ModuleOp) -> list[str]:
    return [str(each) for each in located_in(module) if isinstance(each.location, UnknownLoc)]


class Witness:
    """Looks for what has no location after each pass, and where the arguments of @main come from."""

    def __init__(self) -> None:
        self.passes: list[str] = []
        self.lost: dict[str, list[str]] = {}
        self.arguments: list[dict[str, str]] = []

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        pass

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self.passes.append(module_pass.name)
        if found := without_location(module):
            self.lost[module_pass.name] = found
        arguments = next(op for op in module.ops if isinstance(op, FuncOp)).body.block.args
        self.arguments.append({arg.name_hint or "": render_location(arg.location) for arg in arguments})


@pytest.mark.parametrize(
    ("network", "machine"),
    sweep(
        [(network, machine) for network in ("layer", "digits", "attention") for machine in MACHINES],
        quick=lambda pair: pair[1] in MACHINES[:3],
    ),
)
def test_nothing_is_without_a_location_after_any_pass(network: str, machine: str, tmp_path: Path) -> None:
    program, witness = load(network, tmp_path), Witness()
    assert without_location(program.module) == []
    own = {arg.name_hint: render_location(arg.location) for arg in main(program.module).body.block.args}
    compile_module(program.module, program.ctx, None if machine == HOST else machine, observers=[witness])
    assert len(witness.passes) > 20
    assert witness.lost == {}
    # What was an argument stays one until the end, whatever comes after it.
    assert all(found.items() >= own.items() for found in witness.arguments)


def main(module: ModuleOp) -> FuncOp:
    return next(op for op in module.ops if isinstance(op, FuncOp) and op.sym_name.data == "main")


def test_what_a_layer_becomes_comes_from_its_lines(tmp_path: Path) -> None:
    program = load("layer", tmp_path)
    compile_module(program.module, program.ctx, "gemmini-fp32")
    functions = [op for op in program.module.ops if isinstance(op, FuncOp)]
    found = {name for each in functions for part in located_in(each) for name in origins(part.location)}
    places = {name.removeprefix(f"{tmp_path}/layer.mlir:") for name in found}
    assert places == {"1:1", "1:17", "1:39", "2:3", "3:3", "4:3"}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 20))
@pytest.mark.parametrize("level", LEVELS)
def test_random_programs_lose_no_location(level: str, first: int, tmp_path: Path) -> None:
    count = 0
    for seed in range(first, first + 20):
        try:
            sample = LEVELS[level](seed, tmp_path)
        except UserError:
            continue
        for machine in sample.machines if sample is not None else ():
            assert sample is not None
            program, witness = sample.program, Witness()
            module = program.module.clone()
            assert without_location(module) == []
            try:
                compile_module(module, program.ctx, machine, observers=[witness])
            except UserError:
                pass
            assert witness.lost == {}, f"{level} {seed} {machine}"
            count += 1
    assert count > 5


# the rule


def unlocated(text: str) -> ModuleOp:
    """The module of a text, of which only what the text says has a location."""
    module = parsed(text)
    for each in located_in(module):
        if isinstance(each.location, FileLineColLoc):
            each.location = UNKNOWN_LOC
    return module


def names(ops: Iterable[Operation]) -> dict[str, LocationAttr]:
    return {op.name: op.location for op in ops}


def test_what_serves_an_operation_has_its_location_and_what_is_in_one_too() -> None:
    module = unlocated("""
    func.func @f(%n: index, %m: memref<8xf32>, %z: f32) {
      %from = arith.constant 0 : index
      %step = arith.constant 2 : index
      scf.for %i = %from to %n step %step {
        %two = arith.muli %i, %step : index
        memref.store %z, %m[%two] : memref<8xf32> loc("fill")
      }
      %size = memref.dim %m, %from : memref<8xf32> loc("ask")
      func.return
    } loc("kernel")""")
    inherit_locations(module)
    function = main_of(module)
    assert {render_location(arg.location) for arg in function.body.block.args} == {'in.mlir:2:5 ("kernel")'}
    loop = next(op for op in function.walk() if isinstance(op, scf.ForOp))
    assert location_of(loop) == location_of(loop.body.block.args[0].owner.last_op or loop)
    places = {op.name: render_location(op.location).partition(" ")[2] for op in function.walk()}
    assert places["scf.for"] == places["scf.yield"] == places["arith.muli"] == '("fill")'
    assert places["func.return"] == '("kernel")'
    assert places["arith.constant"] == '("fill")', "the loop uses it before what is behind it"
    assert render_location(loop.body.block.args[0].location) == 'in.mlir:7:9 ("fill")'


def main_of(module: ModuleOp) -> FuncOp:
    return next(op for op in module.ops if isinstance(op, FuncOp))


def test_a_location_that_is_declared_unknown_stays_so(penstock_opt: Command) -> None:
    text = """func.func @f(%x: i32 loc(unknown)) -> i32 {
  %y = arith.addi %x, %x : i32 loc(unknown)
  func.return %y : i32 loc("end")
} loc(unknown)
"""
    module = parsed(text)
    unknown = [each for each in located_in(module) if isinstance(each.location, UnknownLoc)]
    assert len(unknown) == 3
    inherit_locations(module)
    assert [each for each in located_in(module) if isinstance(each.location, UnknownLoc)] == unknown


def test_what_replaces_an_operation_in_a_pattern_has_its_location() -> None:
    module = parsed('%a = arith.constant 1 : i32 loc("one")\n%b = arith.addi %a, %a : i32 loc("two")')
    old = next(op for op in module.ops if isinstance(op, arith.AddiOp))
    new = arith.MuliOp(old.lhs, old.rhs)
    PatternRewriter(old).replace(old, new)
    assert render_location(new.location) == 'in.mlir:2:1 ("two")'


def test_an_argument_of_another_type_keeps_its_location() -> None:
    (argument,) = main_of(parsed("func.func @f(%x: i32) {\n  func.return\n}")).body.block.args
    changed = Rewriter.replace_value_with_new_type(argument, i64)
    assert isinstance(changed, BlockArgument)
    assert render_location(changed.location) == "in.mlir:1:14"


def test_what_a_text_implies_has_the_location_of_what_implies_it() -> None:
    module = parsed("""func.func @f(%n: index, %a: memref<4x4xf32>) {
  scf.for %i = %n to %n step %n {
  }
  linalg.matmul ins(%a, %a : memref<4x4xf32>, memref<4x4xf32>) outs(%a : memref<4x4xf32>)
  func.return
}""")
    assert render_location(module.location) == "in.mlir"
    assert without_location(module) == []
    places = [(op.name, location_of(op)) for op in module.walk()]
    assert ("scf.yield", "in.mlir:2:3") in places
    assert {place for name, place in places if name in ("arith.mulf", "linalg.yield")} == {"in.mlir:4:3"}


# the forms

FORMS = (
    'loc("a.py":3:5)',
    'loc("conv1"("a.py":3:5))',
    'loc("outer"("inner"("a.py":3:5)))',
    'loc(fused["conv1"("a.py":3:5), "relu1"("a.py":4:5)])',
    'loc(fused<"grouped">["a.py":3:5, "b.py":4:5])',
    'loc(callsite("callee"("a.py":3:5) at "b.py":9:1))',
    'loc(callsite("a.py":3:5 at callsite("b.py":9:1 at "c.py":2:2)))',
    "loc(unknown)",
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("generic", [False, True])
def test_every_form_of_a_location_comes_back(form: str, generic: bool) -> None:
    text = f"func.func @f(%x: i32 {form}) -> i32 {{\n  func.return %x : i32 {form}\n}} {form}\n"
    style = MLIRTarget(print_generic_format=generic, print_debuginfo=True)
    printed = module_text(make_context(), parsed(text), style)
    assert printed.count(form) == 3
    assert module_text(make_context(), parsed(printed), style).count(form) == 3
    if MLIR_OPT is not None:
        flags = ["--mlir-print-debuginfo", "--mlir-print-local-scope", "--mlir-print-op-generic"]
        theirs = subprocess.run([MLIR_OPT, *flags], input=printed, capture_output=True, text=True, check=True).stdout
        assert theirs.count(form) == 3


def test_a_name_without_a_place_has_that_of_the_text(penstock_opt: Command) -> None:
    Path("in.mlir").write_text(LAYER.replace("xf32>\n  func", 'xf32> loc("clamp")\n  func'))
    printed = penstock_opt("in.mlir", "--print-debuginfo").out
    assert 'loc("clamp"("in.mlir":3:3))' in printed
    assert '%x: tensor<8x24xf32> loc("in.mlir":1:17)' in printed
    Path("again.mlir").write_text(printed)
    assert penstock_opt("again.mlir", "--print-debuginfo").out == printed


@pytest.mark.parametrize("level", ["graph", "tensor", "loop", "accel"])
def test_what_a_model_says_of_its_nodes_survives_the_text_of_every_level(level: str) -> None:
    program = load_input(DIGITS)
    compile_module(program.module, program.ctx, "gemmini-fp32", level)
    text = located_text(program.ctx, program.module)
    again = parse_text(program.ctx, SourceText("again.mlir", text), positions=False).module
    assert located_text(program.ctx, again) == text
    assert without_location(again) == []


def test_nodes_inputs_and_weights_of_a_model_have_their_names() -> None:
    function = main_of(load_input(DIGITS).module)
    assert function.location == named("digits")
    assert function.body.block.args[0].location == named("image")
    ops = [op for op in function.body.block.ops if op.results]
    assert all(isinstance(op.location, NameLoc) for op in ops)
    assert {op.results[0].name_hint for op in ops if isinstance(op, ConstantOp)}


def test_kernels_have_the_places_of_their_text(tmp_path: Path) -> None:
    path = tmp_path / "scale.pk"
    path.write_text("kernel scale(f32 x[8]) -> (f32 y[8]) {\n  y[i] = x[i] * 2.0\n}\n")
    module = load_kernel(path, {}).module
    assert without_location(module) == []
    places = {origin.removeprefix(f"{path}:") for each in located_in(module) for origin in origins(each.location)}
    assert {place.split(":")[0] for place in places} == {"1", "2"}


# messages


@pytest.mark.parametrize(
    ("form", "place", "message"),
    [
        ('loc("conv1")', 'in.mlir:1:1 ("conv1")', 'in.mlir:1:1: error: "conv1": no'),
        ('loc("conv1"("a.py":3:5))', 'a.py:3:5 ("conv1")', 'a.py:3:5: error: "conv1": no'),
        ('loc(fused["a.py":3:5, "b.py":4:5])', "a.py:3:5, b.py:4:5", "a.py:3:5, b.py:4:5: error: no"),
        ('loc(callsite("a.py":3:5 at "b.py":9:1))', "a.py:3:5, called at b.py:9:1", None),
        ('loc("a.py":0:0)', "a.py", "a.py: error: no"),
    ],
)
def test_a_message_says_the_name_and_the_place(form: str, place: str, message: str | None) -> None:
    (op,) = parsed(f"%a = arith.constant 1 : i32 {form}").ops
    assert location_of(op) == place
    error = UserError("no", loc=op.location)
    assert str(error) == render(error) == (message or f"{place}: error: no")
