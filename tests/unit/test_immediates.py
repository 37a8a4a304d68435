# SPDX-License-Identifier: Apache-2.0
"""Scalars that travel in a command: which constants they may be, how they are written, and what executes them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from programs import verified
from sampling import sweep
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

from penstock.dialects.accel import ExecOp
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import TargetOp, find_target
from penstock.dialects.weights import WeightStore
from penstock.lowering.from_machine_toml import load_machine, read_machine
from penstock.passes.analysis.access import access_of
from penstock.passes.analysis.intrinsics import candidates, match_intrinsic
from penstock.passes.analysis.kernels import partition
from penstock.passes.toolchain import find_compiler
from penstock.runtime.engine import Engine
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline

Array = NDArray[Any]
BLOCKS = Path(__file__).parents[1] / "machines" / "blocks.toml"


@pytest.fixture(scope="module")
def target() -> TargetOp:
    return load_machine(str(BLOCKS))


def program(op: str, constant: str, element: str, *, captured: bool, swapped: bool = False) -> str:
    """@main(x) of 3x20 elements calls one kernel that combines each with a constant, in the body or from outside."""
    type = f"tensor<3x20x{element}>"
    line = f"%k = arith.constant {constant} : {element}"
    operands = "%k, %in" if swapped else "%in, %k"
    return f"""
    #id = affine_map<(i, j) -> (i, j)>
    func.func private @kernel(%x: {type}) -> {type} {{
      {line if captured else ""}
      %e = tensor.empty() : {type}
      %y = linalg.generic {{indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}}
          ins(%x : {type}) outs(%e : {type}) {{
      ^bb0(%in: {element}, %out: {element}):
        {"" if captured else line}
        %r = arith.{op} {operands} : {element}
        linalg.yield %r : {element}
      }} -> {type}
      func.return %y : {type}
    }}
    func.func @main(%x: {type}) -> {type} {{
      %y = func.call @kernel(%x) : ({type}) -> {type}
      func.return %y : {type}
    }}"""


def lowered(text: str) -> ModuleOp:
    module = verified(text)
    attach_machine(module, str(BLOCKS))
    run_passes(make_context(), module, read_pipeline(",".join(pipeline("accel", "blocks", start="tensor"))))
    return module


def reason(text: str, name: str, target: TargetOp) -> str:
    generic = next(op for op in verified(text).walk() if isinstance(op, GenericOp))
    access = access_of(generic)
    assert access is not None
    return getattr(match_intrinsic(access, target.intrinsics()[name], target), "reason", "matches")


CASES: list[tuple[str, str, str, Any, Callable[[Array], Array]]] = [
    ("maximumf", "0.000000e+00", "f32", np.float32, lambda x: np.maximum(x, 0)),
    ("addf", "-2.500000e+00", "f32", np.float32, lambda x: x - np.float32(2.5)),
    ("maxsi", "-3", "i32", np.int32, lambda x: np.maximum(x, -3)),
    ("addi", "127", "i32", np.int32, lambda x: x + 127),
]


@pytest.mark.parametrize(
    ("case", "captured", "swapped"),
    sweep(
        product(range(len(CASES)), [False, True], [False, True]),
        quick=[(number, number % 2 == 0, number // 2 % 2 == 0) for number in range(len(CASES))],
    ),
)
def test_a_constant_operand_runs_as_an_immediate_at_every_level(case: int, captured: bool, swapped: bool) -> None:
    op, constant, element, dtype, expected = CASES[case]
    module = lowered(program(op, constant, element, captured=captured, swapped=swapped))
    execs = [inner for inner in module.walk() if isinstance(inner, ExecOp)]
    assert [len(inner.immediate_values) for inner in execs] == [1]
    x = np.random.default_rng(0).integers(-8, 9, (3, 20)).astype(dtype)
    for seed in (None, 0, 1):
        np.testing.assert_array_equal(run_module(module, [x], WeightStore(), seed=seed)[0], expected(x))


def test_generated_c_binds_the_immediate_too() -> None:
    try:
        find_compiler()
    except UserError:
        pytest.skip("no C compiler")
    for op, constant, element, dtype, expected in CASES:
        module = lowered(program(op, constant, element, captured=True))
        x = np.random.default_rng(1).integers(-8, 9, (3, 20)).astype(dtype)
        np.testing.assert_array_equal(Engine(module, make_context())(x)[0], expected(x))


def test_an_integer_that_its_bits_do_not_hold_is_refused_with_the_number(target: TargetOp) -> None:
    for constant, expected in (("127", "matches"), ("-128", "matches"), ("128", "too few for 128")):
        assert expected in reason(program("addi", constant, "i32", captured=False), "add_imm_i32", target)


def test_a_float_that_its_bits_do_not_hold_exactly_is_refused(target: TargetOp) -> None:
    for constant, expected in (("0.5", "matches"), ("65504.0", "matches"), ("0.1", "too few"), ("1.0e6", "too few")):
        assert expected in reason(program("addf", constant, "f32", captured=False), "add_imm", target)


def test_what_is_not_constant_or_of_another_type_is_no_immediate(target: TargetOp) -> None:
    text = program("maximumf", "0.0", "f32", captured=False).replace("%in, %k :", "%in, %in :")
    assert reason(text, "max_imm", target) == "its body computes something else"
    assert reason(program("maxsi", "0", "i32", captured=False), "max_imm", target) != "matches"


def test_the_reason_of_a_number_that_does_not_fit_is_the_remark_of_the_kernel() -> None:
    module = verified(program("addi", "4000", "i32", captured=False))
    attach_machine(module, str(BLOCKS))
    run_passes(make_context(), module, read_pipeline("assign-devices"))
    assert partition(module)[0].remark == "@add_imm_i32: its immediate has 8 bits, too few for 4000"


def test_the_cheapest_of_several_intrinsics_is_chosen(target: TargetOp) -> None:
    text = BLOCKS.read_text().replace('name = "max_imm"', 'name = "slow"')
    start = text.index('[[intrinsic]]\nname = "slow"')
    table = text[start : text.index("[[intrinsic]]", start + 1)]
    names = [("first", 2), ("fast", 1), ("last", 1)]
    copies = [table.replace('"slow"', f'"{name}"').replace("ii = 1", f"ii = {ii}") for name, ii in names]
    generic = next(
        op for op in verified(program("maximumf", "0.0", "f32", captured=False)).walk() if isinstance(op, GenericOp)
    )
    access = access_of(generic)
    assert access is not None
    several, faults = read_machine("several.toml", text[:start] + "".join(copies) + text[start + len(table) :])
    assert (faults, several is not None) == ((), True)
    assert several is not None
    found = [match.intrinsic.sym_name.data for match in candidates(access, several)[0]]
    assert found == ["fast", "last", "first"]


EXEC = """accel.exec @max_imm IMM extents [4] maps [affine_map<(n) -> (n)>, affine_map<(n) -> (n)>] (%x, %y)
    : memref<4xf32, "spm">, memref<4xf32, "spm">"""


@pytest.mark.parametrize(
    ("immediates", "message"),
    [
        ("", "takes 1 immediates, not 0"),
        ("imm [0.0 : f32, 1.0 : f32]", "takes 1 immediates, not 2"),
        ("imm [0 : i32]", "is f32, not i32"),
        ("imm [0.1 : f32]", "too few for 0.1"),
        ("imm [0.5 : f32]", ""),
    ],
)
def test_a_command_carries_what_its_intrinsic_takes(immediates: str, message: str, target: TargetOp) -> None:
    text = f"""func.func @f(%x: memref<4xf32, "spm">, %y: memref<4xf32, "spm">) {{
      %t = {EXEC.replace("IMM", immediates)}
      func.return
    }}"""
    module = Parser(make_context(), text).parse_module()
    attach_machine(module, str(BLOCKS))
    assert find_target(module) is not None
    if message:
        with pytest.raises(VerifyException, match=message):
            module.verify()
    else:
        module.verify()
