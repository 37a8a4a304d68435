# SPDX-License-Identifier: Apache-2.0
"""Networks at loop level by MLIR's own tools, mlir-opt and llc: a witness that is not ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from network import Network
from sampling import sweep
from upstream_tools import needs_tools, run_by_mlir

from penstock.runtime.compiler import import_program
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline

CASES = [(name, machine) for name in ("digits", "squeezenet", "bert_layer") for machine in (None, "gemmini-fp32")]


@pytest.mark.parametrize(("name", "machine"), sweep(CASES, [("digits", None), ("digits", "gemmini-fp32")]))
def test_mlir_computes_what_the_interpreter_does(name: str, machine: str | None, tmp_path: Path) -> None:
    needs_tools()
    network = Network(name, small=True)
    program = import_program(network.model, {}, name=name)
    if machine is not None:
        attach_machine(program.module, machine)
    run_passes(program.ctx, program.module, read_pipeline(",".join(pipeline("loop", machine))))
    expected = run_module(program.module, network.inputs, program.ctx.weights, ordered=True)
    found = run_by_mlir(program.module, program.ctx, network.inputs, tmp_path)
    for ours, theirs in zip(expected, found, strict=True):
        assert np.ptp(ours) > 0
        np.testing.assert_array_equal(theirs, ours)
