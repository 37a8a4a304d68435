# SPDX-License-Identifier: Apache-2.0
"""Dialects from IRDL files: their ops parse, verify and print; what is wrong is told at its place, in either file."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from xdsl.ir import Operation
from xdsl.universe import Universe

from penstock.dialects import plugins
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_irdl import BUILTIN, load_irdl, register_irdl
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime.interpreter import interprets, run_module

if TYPE_CHECKING:
    from tests.conftest import Command, Finished

DIALECT = """\
irdl.dialect @lab {
  irdl.type @number {
    %0 = irdl.is f32
    %1 = irdl.is f64
    %2 = irdl.any_of(%0, %1)
    irdl.parameters(elem: %2)
  }
  irdl.attribute @mode {
    %0 = irdl.is i32
    irdl.parameters(type: %0)
  }
  irdl.operation @norm {
    %0 = irdl.any
    %1 = irdl.parametric @lab::@number<%0>
    irdl.operands(in: %1)
    irdl.results(res: %0)
  }
  irdl.operation @many {
    %0 = irdl.is i32
    %1 = irdl.is i64
    %2 = irdl.any_of(%0, %1)
    %3 = irdl.base "!builtin.tensor"
    %4 = irdl.any
    %5 = irdl.base @lab::@mode
    %6 = irdl.all_of(%0, %2)
    irdl.operands(counts: variadic %2, operands: optional %3)
    irdl.results(results: variadic %4)
    irdl.attributes {"mode" = %5}
    %region = irdl.region(%6) with size 1
    irdl.regions(body: %region)
  }
}
"""
PROGRAM = """\
builtin.module {
  func.func @f(%x: !lab.number<f32>, %n: i32, %m: tensor<2xf32>, %k: i64) -> f32 {
    %y = "lab.norm"(%x) : (!lab.number<f32>) -> f32
    %z = "lab.many"(%n, %n, %m) ({
    ^bb0(%i: i32):
      llvm.unreachable
    }) {mode = #lab.mode<i32>, operand_segment_sizes = array<i32: 2, 1>} : (i32, i32, tensor<2xf32>) -> f32
    func.return %y : f32
  }
}
"""


@pytest.fixture
def lab(penstock_opt: Command) -> Command:
    """penstock-opt with the dialect."""
    Path("lab.irdl").write_text(DIALECT)

    def run(*argv: str | Path, stdin: str = "") -> Finished:
        return penstock_opt("--irdl-file", "lab.irdl", *argv, stdin=stdin)

    return run


def test_a_program_of_the_dialect_comes_back_as_it_was(lab: Command) -> None:
    finished = lab("--verify-roundtrip", stdin=PROGRAM)
    assert (finished.status, finished.out, finished.err) == (0, PROGRAM, "")
    generic = lab("--print-op-generic", stdin=PROGRAM).out
    assert '"lab.norm"(%x)' in generic
    assert lab(stdin=generic).out == PROGRAM
    assert lab("--cse", "--dce", stdin=PROGRAM).out == PROGRAM


@pytest.mark.parametrize(
    ("before", "after", "place", "message"),
    [
        ("lab.number<f32>) -> f32", "lab.number<f32>) -> f64", "3:5", "f64 is not f32, which the same constraint"),
        ("%x: !lab.number<f32>", "%x: !lab.number<i8>", "2:3", "i8 is none of f32, f64"),
        ("!lab.number<f32>)", "!lab.numbr<f32>)", "3:38", "'lab.numbr' is not registered"),
        ("%i: i32", "%i: f32", "4:5", "Region 'body' at position 0 entry arguments do not verify"),
        ("(%n, %n, %m)", "(%n, %k, %m)", "4:5", "i64 is not i32, which the same constraint stands for elsewhere"),
        ("%i: i32", "%i: i32, %j: i32", "4:5", "1 block arguments expected, but got 2"),
        ("llvm.unreachable", "llvm.unreachable\n    ^bb1:\n      llvm.unreachable", "4:5", "has 2 blocks, not 1"),
        ("#lab.mode<i32>", "1 : i32", "4:5", "1 : i32 should be of base attribute lab.mode"),
        ("mode = #lab.mode<i32>, ", "", "4:5", "attribute 'mode' expected"),
        ("array<i32: 2, 1>", "array<i32: 1, 1>", "4:5", "operand count (3) does not match"),
        ("(%n, %n, %m)", "(%n, %x, %m)", "4:5", "operand 'counts' at positions 0 to 1 does not verify"),
        ("lab.norm", "lab.nrom", "3:5", 'the operation "lab.nrom" is not registered'),
    ],
)
def test_what_breaks_a_constraint_is_told_at_its_place(
    lab: Command, before: str, after: str, place: str, message: str
) -> None:
    text = PROGRAM.replace(before, after, 1)
    assert text != PROGRAM
    if "f64" in after:
        text = text.replace("return %y : f32", "return %y : f64").replace("-> f32 {", "-> f64 {")
    for name, type in (("x", "!lab.number<f32>"), ("k", "i64")):
        text = text.replace("i32, i32, tensor", f"i32, {type}, tensor") if f"%{name}, %m" in after else text
    finished = lab("-", stdin=text)
    assert finished.status == 1
    assert finished.err.startswith(f"<stdin>:{place}: error: "), finished.err
    assert message in finished.err


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("@lab {", "@arith {", '1:1: error: there is a dialect "arith" already'),
        ("irdl.is f64", 'irdl.c_pred "isa($_self)"', "4:5: error: a predicate in C++ cannot be checked here"),
        ("@lab::@number<%0>", "@lab::@nmber<%0>", '14:5: error: there is no type or attribute "lab.nmber"'),
        ("@lab::@number<%0>", "@lab::@number<%0, %0>", '14:5: error: "lab.number" has 1 parameters, and 2 are'),
        ("!builtin.tensor", "!builtin.tensr", '22:5: error: there is no type or attribute "!builtin.tensr"'),
        ("!builtin.tensor", "#builtin.tensor", '22:5: error: there is no type or attribute "#builtin.tensor"'),
        ("@mode {", "@number {", "1:1: error: 'irdl.dialect' does not verify: Redefinition of symbol \"number\""),
        ("counts:", "res-ults:", "26:22: error: Expected ':'"),
        ("operands: optional", "counts: optional", '26:5: error: there are two of the name "counts"'),
        ("results: variadic", "counts: variadic", '18:3: error: "counts" is the name of two parts of "lab.many"'),
        ("irdl.results(res: %0)", "irdl.operands(b: %1)", "16:5: error: 'irdl.operands' is given twice"),
        ("irdl.results(res: %0)", "irdl.parameters(b: %1)", "16:5: error: 'irdl.parameters' "),
        ("  irdl.operation @norm {", "  irdl.dialect @inner\n  irdl.operation @norm {", "12:3: error: a dialect holds"),
        ("}\n", "}\nfunc.func private @f()\n", "1:1: error: "),
    ],
)
def test_a_faulty_definition_is_told_at_its_place(tmp_path: Path, before: str, after: str, message: str) -> None:
    file = tmp_path / "lab.irdl"
    text = DIALECT.replace(before, after, 1) if before != "}\n" else "func.func private @f()\n"
    assert text != DIALECT
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        register_irdl(make_context(), file)
    assert str(caught.value).startswith(f"{file}:{message}"), str(caught.value)


@pytest.mark.parametrize("text", ["", "// nothing\n", "builtin.module {\n}\n"])
def test_a_file_without_dialects_is_refused(penstock_opt: Command, text: str) -> None:
    Path("empty.irdl").write_text(text)
    finished = penstock_opt("--irdl-file=empty.irdl", stdin="builtin.module {}")
    assert finished.status == 1
    assert finished.err.startswith("empty.irdl:")


WITNESS = "mlir-opt-19"


@pytest.mark.skipif(shutil.which(WITNESS) is None, reason="mlir-opt-19 is not installed")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("lab.number<f32>) -> f32", "lab.number<f32>) -> i32"),
        ("%x: !lab.number<f32>", "%x: !lab.number<i8>"),
        ("(%n, %n, %m)", "(%n, %n, %n)"),
        ("2, 1>", "1, 1>"),
        ("2, 1>", "1, 2>"),
        ("%i: i32", "%i: f32"),
        ("#lab.mode<i32>", "1 : i32"),
        ("mode = #lab.mode<i32>, ", ""),
    ],
)
def test_mlir_opt_agrees_on_what_is_valid(lab: Command, before: str, after: str) -> None:
    # MLIR 19 has no names yet in definitions, and no end of a block that xDSL has, too.
    Path("mlir.irdl").write_text(re.sub(r"\b\w+: (variadic |optional )?%", r"\1%", DIALECT))
    text = PROGRAM.replace(before, after, 1).replace("llvm.unreachable", '"llvm.unreachable"() : () -> ()')
    words = [WITNESS, "--irdl-file=mlir.irdl", "--allow-unregistered-dialect"]
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (not before), done.stderr
    assert lab("-", stdin=text).status == done.returncode


def test_a_file_that_is_not_there_is_refused(penstock_opt: Command) -> None:
    finished = penstock_opt("--irdl-file=none.irdl", stdin="builtin.module {}")
    assert (finished.status, finished.err.splitlines()[0]) == (
        1,
        "none.irdl: error: cannot read the file: No such file or directory",
    )


def _reversed(execution: object, op: Operation, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (args[0][::-1].copy(),)


def test_a_package_has_a_dialect_in_a_file_and_says_what_its_ops_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.irdl"
    file.write_text(
        "irdl.dialect @rows { irdl.operation @reverse { %0 = irdl.any irdl.operands(x: %0) irdl.results(y: %0) } }"
    )
    (dialect,) = load_irdl(file)
    (reverse,) = dialect.operations
    interprets(reverse)(_reversed)
    universe = Universe(all_dialects={"rows": lambda: dialect})
    every = {**plugins.factories("all_dialects"), **universe.all_dialects}
    monkeypatch.setattr("penstock.dialects.context.factories", {"all_dialects": every}.get)
    ctx = make_context()
    text = 'func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {\n  %y = "rows.reverse"(%x) : (tensor<3xf32>) -> '
    module = parse_text(ctx, SourceText("in.mlir", text + "tensor<3xf32>\n  func.return %y : tensor<3xf32>\n}")).module
    (y,) = run_module(module, [np.arange(3, dtype=np.float32)], ctx.weights)
    assert y.tolist() == [2, 1, 0]


def test_mlirs_names_of_builtin_types_are_known() -> None:
    assert {"!builtin.integer", "!builtin.f32", "!builtin.memref", "#builtin.string"} <= BUILTIN.keys()
    assert not [name for name in BUILTIN if name.split(".")[1] in ("fun", "integer_type", "none_type")]


def test_a_reproducer_names_the_file(lab: Command) -> None:
    finished = lab("--cse", "--generate-reproducer=again.mlir", "-o", "out.mlir", stdin=PROGRAM)
    assert finished.status == 0, finished.err
    assert "--irdl-file=" in Path("again.mlir").read_text()
