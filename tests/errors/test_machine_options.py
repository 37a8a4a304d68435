# SPDX-License-Identifier: Apache-2.0
"""Options of a machine that make no sense: each message has its place in the option, and what would help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_machine_toml import load_machine

if TYPE_CHECKING:
    from tests.conftest import Command

PROGRAM = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n  func.return %x : tensor<4xf32>\n}\n"

MISUSES = {
    "an unknown table": ("scop.inp.size=3", 1, 'there is no table "scop"', 'did you mean "scope"?'),
    "an unknown part": ("scope.ipn.size=3", 7, 'there is no scope "ipn"', 'did you mean "inp"?'),
    "an unknown key": ("scope.inp.sze=3", 11, 'unknown key "sze" in [[scope]]', 'did you mean "size"?'),
    "an unknown key of the machine": ("machine.freq=3", 9, 'unknown key "freq" in [machine]', '"freq_mhz"?'),
    "an unknown queue": ("queue.load.comput.capacity=3", 7, 'no queue "load.comput"', 'mean "load.compute"?'),
    "half a queue": ("queue.load=3", 7, 'there is no queue "load"', "there are: load.compute, compute.load"),
    "an unknown operand": ("intrinsic.gemm.operands.ac.dtype=i8", 25, 'there is no "ac" in operands', '"acc"?'),
    "an unknown dim": ("intrinsic.gemm.shape.q=3", 22, 'the behaviour has no dim "q"', "its dims are m, n, k"),
    "a part without a key": ("scope.inp=3", 10, 'which key of the scope "inp"', "keys: size, granule, banks, dtypes"),
    "a whole table": ("scope=3", 7, "a whole scope cannot be set", "write scope.NAME.KEY=VALUE"),
    "a key of a number": ("scope.inp.size.x=3", 16, '"size" is no table', None),
    "an index of a list": ("scope.inp.dtypes.0=i8", 18, '"dtypes" is no table', None),
    "a missing name": ("scope..size=3", 7, "a name is missing here", "as scope.spad.size=64K"),
    "the name of a part": ("scope.inp.name=spad", 11, '"name" cannot be set', None),
    "a source": ("scope.inp.source=cfg", 11, '"source" cannot be set', None),
    "a word for a number": ("scope.inp.size=big", 16, "size must be an integer, but is a string", None),
    "a number for a list": ("bus.axi_rd.rate=3", 17, "rate must be a list, but is an integer", None),
    "a value of nothing known": ("scope.inp.size=[", 16, '"[" is no value', "a value is a number"),
    "a number that is too small": ("scope.inp.granule=0", 19, "granule must be at least 1, but is 0", None),
    "a number that is too large": ("scope.inp.size=" + "9" * 20, 16, "size must fit into 64 bits", None),
    "numbers that do not fit together": ("scope.inp.size=100", 16, "not a multiple of the granule, 16", None),
    "a list with a bad number": ("bus.axi_rd.rate=[0, 1]", 17, "rate must be at least 1, but is 0", None),
    "a part that is not there": ("dma.load_inp.bus=axi", 18, 'unknown bus "axi"', 'did you mean "axi_wr"?'),
    "another role": ("intrinsic.gemm.operands.acc.role=in", 34, 'operand "acc" has role "in"', 'its role is "inout"'),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_an_option_is_refused_at_its_place(misuse: str, penstock: Command) -> None:
    option, column, message, note = MISUSES[misuse]
    done = penstock("machines", "show", "vta-pynq", "--set", option)
    assert (done.status, done.out) == (1, "")
    first, excerpt, caret, *notes = done.err.splitlines()
    assert first.startswith(f"--set:1:{column}: error: ")
    assert message in first
    assert (excerpt, caret) == (option, " " * (column - 1) + "^")
    assert (note is None) == (not notes)
    assert note is None or note in notes[0]


def test_the_line_is_the_number_of_the_option(penstock: Command) -> None:
    done = penstock("machines", "show", "vta-pynq", "--set", "scope.inp.size=64K", "--set", "scope.wgt.sise=64K")
    assert done.err.startswith('--set:2:11: error: unknown key "sise" in [[scope]]\nscope.wgt.sise=64K\n')


def test_a_mapping_is_placed_as_the_option_would_be() -> None:
    with pytest.raises(UserError, match=r'^--set:2:7: error: there is no scope "wgd"\nnote: did you mean "wgt"\?$'):
        load_machine("vta-pynq", {"scope.inp.size": 65536, "scope.wgd.size": 65536})


USAGE = {
    "no value": (["--set", "scope.inp.size"], "--set:1:15: error: there is no value"),
    "set twice": (["--set", "machine.freq_mhz=1"] * 2, "--set:2:1: error: machine.freq_mhz is set twice"),
}


@pytest.mark.parametrize("misuse", USAGE)
def test_an_option_that_is_none_is_a_usage_error(misuse: str, penstock: Command) -> None:
    words, message = USAGE[misuse]
    done = penstock("machines", "show", "vta-pynq", *words)
    assert done.status == 2
    assert done.err.startswith(message)


INPUT = {"run": ("--input", "x.npy")}


@pytest.mark.parametrize("command", ["compile", "run", "check", "simulate", "plan", "opt"])
def test_a_module_that_holds_a_machine_keeps_it(command: str, penstock: Command, penstock_opt: Command) -> None:
    Path("in.mlir").write_text(str(load_machine("gemmini")) + "\n" + PROGRAM)
    np.save("x.npy", np.zeros(4, np.float32))
    words = ("in.mlir", "--machine", "gemmini", "--set", "scope.spad.size=64K", *INPUT.get(command, ()))
    done = penstock_opt(*words) if command == "opt" else penstock(command, *words)
    assert done.status == 1, done.err
    assert 'error: the module holds the machine "gemmini" already, whose numbers cannot be set' in done.err


@pytest.mark.parametrize("command", ["compile", "run", "check", "plan", "opt"])
def test_there_must_be_a_machine(command: str, penstock: Command, penstock_opt: Command) -> None:
    Path("in.mlir").write_text(PROGRAM)
    np.save("x.npy", np.zeros(4, np.float32))
    words = ("in.mlir", "--set", "scope.spad.size=64K", *INPUT.get(command, ()))
    done = penstock_opt(*words) if command == "opt" else penstock(command, *words)
    assert done.status == (1 if command == "opt" else 2), done.err
    assert "error: there is no machine whose numbers could be set\nnote: say which: --machine NAME" in done.err
