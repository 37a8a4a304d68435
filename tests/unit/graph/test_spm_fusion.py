# SPDX-License-Identifier: Apache-2.0
"""`graph-fuse{strategy=spm}`: what the model says of a group, and what the transfers of the lowered program say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.analysis.commands.traffic import traffic
from penstock.passes.analysis.kernels import HOST, machine_of, partition
from penstock.passes.graph.fusion.nodes import FusionGraph
from penstock.passes.graph.fusion.spm_model import PARTLY, SpmModel
from penstock.passes.graph.storage_type import multiplies_halves_only
from penstock.passes.planning.tilers.registry import DEFAULT_TILER
from penstock.runtime.interpreter import run_module
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes
from penstock.runtime.pipeline import pipeline

Array = NDArray[Any]
Shape = tuple[int, int, int]


def program(shape: Shape, machine: str, op: str = "add") -> tuple[PenstockContext, ModuleOp]:
    """A matrix product, and what follows it with another operand."""
    m, k, n = shape
    x, w, y = (f"tensor<{rows}x{columns}xf32>" for rows, columns in ((m, k), (k, n), (m, n)))
    text = f"""func.func @main(%x: {x}, %w: {w}, %r: {y}) -> {y} {{
      %p = graph.matmul %x, %w : ({x}, {w}) -> {y}
      %y = graph.{op} %p, %r : ({y}, {y}) -> {y}
      func.return %y : {y}
    }}"""
    ctx = make_context()
    module = parse_text(ctx, SourceText("product.mlir", text)).module
    attach_machine(module, machine)
    return ctx, module


def model_of(module: ModuleOp, tiler: str = DEFAULT_TILER) -> SpmModel:
    target = machine_of(module)
    assert target is not None
    (main,) = (op for op in module.ops if isinstance(op, FuncOp))
    return SpmModel(FusionGraph.of(main.body.block, set()), target, multiplies_halves_only(target), tiler)


def lowered(
    shape: Shape, machine: str, fuse: str, op: str = "add", tiler: str = DEFAULT_TILER
) -> tuple[PenstockContext, ModuleOp]:
    ctx, module = program(shape, machine, op)
    # What stays on chip between kernels, or is held there because it is read again, is another model's.
    instead = {"graph-fuse": fuse, "mem-promote": "mem-promote{strategy=none}"}
    if tiler != DEFAULT_TILER:
        instead["assign-devices"] = f"assign-devices{{tiler={tiler}}}"
    specs = [instead.get(spec, spec) for spec in pipeline("accel", machine)]
    assert fuse in specs
    run_passes(ctx, module, read_pipeline(",".join(specs)))
    return ctx, module


def moved(module: ModuleOp) -> int:
    """The bytes of the transfers that the machine makes."""
    found = traffic(module)
    return found.bytes_in + found.bytes_out


TVM, APART, SPM = "graph-fuse", "graph-fuse{max-ops=1}", "graph-fuse{strategy=spm}"


@pytest.mark.parametrize("shape", [(64, 64, 64), (128, 1024, 256)])
def test_the_model_knows_the_transfers_of_a_kernel_to_the_byte(shape: Shape) -> None:
    model = model_of(program(shape, "gemmini-fp32")[1])
    alone, together = model.estimate([0]), model.estimate([0, 1])
    assert alone.on_machine
    assert together.on_machine
    assert moved(lowered(shape, "gemmini-fp32", APART)[1]) == alone.bytes
    assert moved(lowered(shape, "gemmini-fp32", TVM)[1]) == together.bytes


def test_the_model_asks_the_tiler_that_the_machine_is_tiled_by() -> None:
    shape, machine = (128, 1024, 256), "gemmini-fp32"
    model, usual = (model_of(program(shape, machine)[1], tiler) for tiler in ("smaug-n", DEFAULT_TILER))
    own = "graph-fuse{strategy=spm tiler=smaug-n}"
    for fuse, nodes in ((APART, [0]), (own, [0, 1])):
        estimate = model.estimate(nodes).bytes
        assert moved(lowered(shape, machine, fuse, tiler="smaug-n")[1]) == estimate != usual.estimate(nodes).bytes


def test_a_tiler_that_there_is_not_is_refused() -> None:
    ctx, module = program((8, 8, 8), "gemmini-fp32")
    with pytest.raises(UserError, match='no tiler is called "smaug-m"'):
        run_passes(ctx, module, read_pipeline("graph-fuse{strategy=spm tiler=smaug-m}"))


@pytest.mark.parametrize(
    ("shape", "pays"),
    [((64, 64, 64), True), ((128, 2048, 128), False)],
)
def test_a_group_is_formed_where_its_transfers_are_fewer(shape: Shape, pays: bool) -> None:
    # The second operand takes room from the tiles of the product: smaller ones read its factors more often.
    model = model_of(program(shape, "smaug-smv")[1])
    refused = model.veto([0, 1], [[0], [1]])
    assert (refused is None) == pays
    assert refused is None or refused.startswith("together they move")
    apart, tvm, spm = (moved(lowered(shape, "smaug-smv", fuse)[1]) for fuse in (APART, TVM, SPM))
    assert (tvm < apart) == pays
    assert spm == min(tvm, apart)


def test_what_the_machine_computes_in_part_is_not_fused() -> None:
    _, module = program((64, 64, 64), "gemmini-fp32", "mul")
    assert model_of(module).veto([0, 1], [[0], [1]]) == PARTLY
    _, split = lowered((64, 64, 64), "gemmini-fp32", SPM, "mul")
    assert [each.device == HOST for each in partition(split)] == [False, True]


@pytest.mark.parametrize("machine", ["gemmini-fp32", "smaug-smv"])
def test_values_stay(machine: str) -> None:
    rng = np.random.default_rng(0)
    x, w, r = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((64, 32), (32, 48), (64, 48)))
    ctx, module = lowered((64, 32, 48), machine, SPM)
    (found,) = run_module(module, [x, w, r], ctx.weights)
    np.testing.assert_array_equal(found, x @ w + r)


def test_without_a_machine_the_strategy_is_that_of_tvm() -> None:
    texts: list[str] = []
    for spec in (TVM, SPM):
        ctx, module = program((8, 8, 8), "host")
        run_passes(ctx, module, read_pipeline(spec))
        texts.append(str(module))
    assert texts[0] == texts[1]
