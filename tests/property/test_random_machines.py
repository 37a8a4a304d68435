# SPDX-License-Identifier: Apache-2.0
"""Machine files with parts left out or changed: what is valid compiles small programs, on the host if need be."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_machine_toml import read_machine
from penstock.lowering.machine_names import machine_text
from penstock.runtime.compiler import compile_module
from penstock.tools.fuzz.machine_files import MACHINES, changed, program

TPU = str(Path(__file__).parents[1] / "machines" / "tpu1_like.toml")
FILES = (TPU, *MACHINES)


def check(seed: int, folder: Path) -> str:
    """What became of one machine: invalid, compiled, or refused at a place."""
    random = Random(seed)
    text = changed(random, FILES[seed % len(FILES)])
    return outcome(text, program(random, text), folder / f"machine_{seed}.toml")


def outcome(text: str, program: str, path: Path) -> str:
    if read_machine(str(path), text)[1]:
        return "invalid"
    path.write_text(text, encoding="utf-8")
    ctx = make_context()
    module = Parser(ctx, program).parse_module()
    refusal: UserError | None = None
    try:
        compile_module(module, ctx, str(path))
    except UserError as error:
        refusal = error
    assert refusal is None or refusal.loc, f"{path.stem}: {refusal}"
    return "compiled" if refusal is None else f"refused: {refusal.message}"


@pytest.mark.parametrize("seed", range(4, 49, 12))
def test_a_valid_machine_compiles_small_programs(seed: int, tmp_path: Path) -> None:
    assert not check(seed, tmp_path).startswith("refused")


@pytest.mark.parametrize("columns", [8, 16])
def test_a_dense_operand_may_have_any_number_of_columns(columns: int, tmp_path: Path) -> None:
    text = machine_text("gemmini")[1].replace(', strides = "row"', "", 1)
    product = f"""func.func @main(%x: tensor<6x{columns}xi8>, %w: tensor<{columns}x8xi8>) -> tensor<6x8xi32> {{
      %p = graph.matmul %x, %w accumulate i32 : (tensor<6x{columns}xi8>, tensor<{columns}x8xi8>) -> tensor<6x8xi32>
      func.return %p : tensor<6x8xi32>
    }}"""
    assert outcome(text, product, tmp_path / "dense.toml") == "compiled"


@pytest.mark.slow
def test_every_valid_machine_compiles_small_programs(tmp_path: Path) -> None:
    outcomes = [check(seed, tmp_path) for seed in range(600)]
    assert not [each for each in outcomes if each.startswith("refused")]
    assert outcomes.count("compiled") > 150
