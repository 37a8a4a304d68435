# SPDX-License-Identifier: Apache-2.0
"""Words of a command line that mean nothing: the usage of the command, the nearest word that does, and status 2."""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from penstock.passes.planning.on_chip.registry import strategy_names
from penstock.passes.planning.registry import planner_names
from penstock.passes.planning.tilers.registry import tiler_names
from penstock.tools.arguments import Parser
from penstock.tools.main import COMMANDS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Command

_NAMED = re.compile(r"\b(planner|tiler|strategy)=([\w-]+)|--(planner|tiler) ([a-z][\w,-]+)")
"""A part that a help names, by its kind."""


@pytest.mark.parametrize(
    ("words", "usage", "message", "note"),
    [
        (("compile", "m.onnx", "--machin", "gemmini"), "compile", 'there is no flag "--machin"', "--machine"),
        (("compile", "--machin=gemmini"), "compile", 'there is no flag "--machin"', "--machine"),
        (("machines", "show", "gemmini", "--tabel"), "machines show", 'there is no flag "--tabel"', "--table"),
        (("machines", "lst"), "machines", 'ACTION: "lst" is none of list, show, validate', "list"),
        (("fuzz", "--level", "grph"), "fuzz", '--level: "grph" is none of graph, kernel,', "graph"),
        (("--verson",), "", 'there is no flag "--verson"', "--version"),
    ],
)
def test_a_wrong_word_is_told_the_nearest(
    penstock: Command, words: tuple[str, ...], usage: str, message: str, note: str
) -> None:
    finished = penstock(*words)
    assert finished.status == 2
    assert finished.err.startswith(f"usage: penstock {usage}".rstrip() + " ")
    assert f"\nerror: {message}" in finished.err
    assert finished.err.endswith(f'\nnote: did you mean "{note}"?\n')


def test_a_word_too_many_and_one_too_few_are_refused(penstock: Command) -> None:
    assert '\nerror: there is no place for "b"\n' in penstock("list", "ops", "b").err
    missing = penstock("compile").err
    assert "\nerror: the following arguments are required: MODEL\n" in missing
    assert missing.endswith("note: penstock compile --help says what each is\n")
    assert missing.startswith("usage: penstock compile [-h] ... MODEL\nerror: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("compile", "m.mlir", "-p", "--cse"), "the value of -p/--pipeline is missing"),
        (("run", "m.mlir", "--dim", "--x"), "the value of --dim is missing"),
        (("compile", "m.mlir", "-5"), 'there is no place for "-5"'),
        (("--", "list", "ops"), 'there is no place for "--"'),
        (("machines", "--tabel", "show", "x"), 'there is no flag "--tabel"\nnote: penstock machines --help'),
    ],
)
def test_a_word_is_a_flag_only_where_one_can_stand(penstock: Command, words: tuple[str, ...], message: str) -> None:
    assert f"\nerror: {message}" in penstock(*words).err


def test_a_value_may_begin_as_a_flag_does() -> None:
    parser = Parser(prog="p")
    parser.add_argument("-p", "--pipeline")
    assert parser.parse_args(["-p", "--cse --dce"]).pipeline == "--cse --dce"
    assert parser.parse_args(["--pipeline=--cse"]).pipeline == "--cse"


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_help_names_is_there(command: str) -> None:
    module = import_module(f"penstock.tools.{command.replace('-', '_')}_command")
    parser = Parser(prog=f"penstock {command}", description=module.__doc__, epilog=getattr(module, "EPILOG", None))
    module.add_arguments(parser)
    known = {"planner": planner_names(), "tiler": tiler_names(), "strategy": strategy_names()}
    text = " ".join(parser.format_help().split())
    for match in _NAMED.finditer(text):
        kind, names = match[1] or match[3], (match[2] or match[4]).split(",")
        assert not set(names) - set(known[kind]), match[0]


def test_remarks_of_passes_are_printed(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text(
        "func.func @main(%x: tensor<8x24xf32>, %w: tensor<24x16xf32>) -> tensor<8x16xf32> {\n"
        "  %y = graph.matmul %x, %w : (tensor<8x24xf32>, tensor<24x16xf32>) -> tensor<8x16xf32>\n"
        "  func.return %y : tensor<8x16xf32>\n}\n"
    )
    said = penstock("plan", "m.mlir", "--machine", "gemmini-fp32", "--remarks", "-q").err
    assert "m.mlir:2:3: remark: [passed assign-devices] runs on @gemmini_fp32\n" in said
    some = penstock("plan", "--remarks=assign-devices", "m.mlir", "--machine", "gemmini-fp32", "-q").err
    assert some == "".join(line for line in said.splitlines(keepends=True) if "assign-devices" in line) != said
    assert penstock("plan", "--remarks=no such", "m.mlir", "--machine", "gemmini-fp32", "-q").err == ""
    assert "--remarks: not a regular expression" in penstock("plan", "--remarks=(", "m.mlir").err
    assert penstock("plan", "m.mlir", "--machine", "gemmini-fp32", "-q").err == ""
    assert "--remarks is for a model or a file of IR" in penstock("plan", "--remarks", "p.csv").err
