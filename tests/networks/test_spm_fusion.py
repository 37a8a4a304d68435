# SPDX-License-Identifier: Apache-2.0
"""
Networks fused with `strategy=spm`: the machine moves no more bytes than with TVM's groups, and does as much.

Small graphs of which it saves bytes are in tests/unit/graph/test_spm_fusion.py.
"""

from __future__ import annotations

import pytest
from network import Network
from sampling import sweep
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.context import PenstockContext
from penstock.passes.analysis.commands.traffic import traffic
from penstock.passes.analysis.kernels import partition, share_on_machine
from penstock.runtime.compiler import import_program
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline

FLOATS, HALVES, CONVERTS_ON_THE_WAY, LEVELS = "gemmini-fp32", "smaug-smv", "neural-accelerator", "rapid-core-like"


def fused(name: str, machine: str) -> tuple[PenstockContext, ModuleOp, ModuleOp]:
    """A network in TVM's groups, and in those for scratchpads."""
    program = import_program(Network(name, small=True).model, {}, name=name)
    attach_machine(program.module, machine)
    specs = pipeline("graph", machine)
    run_passes(program.ctx, program.module, read_pipeline(",".join(specs[: specs.index("graph-fuse")])))
    tvm, spm = program.module, program.module.clone()
    run_passes(program.ctx, tvm, read_pipeline("graph-fuse"))
    run_passes(program.ctx, spm, read_pipeline("graph-fuse{strategy=spm}"))
    return program.ctx, tvm, spm


def figures(ctx: PenstockContext, module: ModuleOp, machine: str) -> tuple[int, float]:
    """The bytes to and from the machine if nothing stays there between kernels, and its share of the products."""
    specs = ",".join(pipeline("accel", machine)).split("graph-fuse,")[1]
    run_passes(ctx, module, read_pipeline(specs.replace("mem-promote", "mem-promote{strategy=none}")))
    moved = traffic(module)
    return moved.bytes_in + moved.bytes_out, share_on_machine(partition(module))


@pytest.mark.parametrize(
    ("name", "machine", "saves"),
    sweep(
        [
            ("bert_layer", FLOATS, False),
            ("bert_layer", HALVES, True),
            ("bert_layer", CONVERTS_ON_THE_WAY, True),
            ("bert_layer", LEVELS, True),
            ("lstm", FLOATS, False),
            ("lstm", HALVES, False),
            ("lstm", CONVERTS_ON_THE_WAY, False),
            ("squeezenet", FLOATS, False),
            ("squeezenet", HALVES, False),
            ("mobilenet_v2", HALVES, False),
        ],
        quick=[("lstm", FLOATS, False)],
    ),
)
def test_the_strategy_for_scratchpads_moves_no_more_bytes(name: str, machine: str, saves: bool) -> None:
    ctx, tvm, spm = fused(name, machine)
    if str(spm) == str(tvm):
        # Nor fewer: what follows is the same.
        assert not saves
        return
    before, share = figures(ctx, tvm, machine)
    after, kept = figures(ctx, spm, machine)
    assert after < before if saves else after <= before
    assert kept >= share
