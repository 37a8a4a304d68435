# SPDX-License-Identifier: Apache-2.0
"""Tiles and early fetches leave a share of a scope free, for what stays there between kernels."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.machine import find_target
from penstock.dialects.mem import BufferOp
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline

LAYER = """
func.func @main(%x: tensor<256x96xf32>, %w: tensor<96x48xf32>) -> tensor<256x48xf32> {
  %a = graph.matmul %x, %w : (tensor<256x96xf32>, tensor<96x48xf32>) -> tensor<256x48xf32>
  %b = graph.relu %a : tensor<256x48xf32>
  func.return %b : tensor<256x48xf32>
}
"""


def highest_byte(machine: str, scope: str, size: int, **options: str) -> int:
    """The end of the highest buffer in a scope of `size` bytes if nothing stays there, with options for some passes."""
    ctx = make_context()
    module = Parser(ctx, LAYER).parse_module()
    attach_machine(module, machine)
    target = find_target(module)
    assert target is not None
    target.scope(scope).size = IntegerAttr(size, i64)
    specs = [options.get(spec.replace("-", "_"), spec) for spec in pipeline("loop", machine) if spec != "mem-promote"]
    run_passes(ctx, module, read_pipeline(",".join(specs)))
    buffers = [op for op in module.walk() if isinstance(op, BufferOp) and op.scope == scope]
    return max((op.byte_offset or 0) + op.size_in_bytes for op in buffers)


def test_tiles_leave_the_share_that_is_reserved() -> None:
    assert 10240 < highest_byte("rapid-core-like", "spm", 20480) <= 20480
    assert highest_byte("rapid-core-like", "spm", 20480, tile="tile{reserve=0.5}") <= 10240


def test_what_is_fetched_early_leaves_the_share_that_is_reserved() -> None:
    half, levels = "tile{reserve=0.5}", "promote-levels{reserve=0.5}"
    assert 12288 < highest_byte("neural-cluster", "sram", 24576, tile=half)
    assert highest_byte("neural-cluster", "sram", 24576, tile=half, promote_levels=levels) <= 12288


def test_a_share_that_no_tile_leaves_is_no_fault() -> None:
    assert highest_byte("rapid-core-like", "spm", 20480, tile="tile{reserve=0.999}") <= 20480


@pytest.mark.parametrize("spec", ["tile{reserve=1.0}", "promote-levels{reserve=-0.5}"])
def test_a_share_is_from_nothing_to_below_all(spec: str) -> None:
    name = spec.split("{", 1)[0].replace("-", "_")
    with pytest.raises(UserError, match="share"):
        highest_byte("neural-cluster", "sram", 12288, **{name: spec})
