# SPDX-License-Identifier: Apache-2.0
"""`penstock check` of programs whose sizes only a run knows, and what is said of attention there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from xdsl.dialects import arith

from penstock.tools import check_sizes

if TYPE_CHECKING:
    from tests.conftest import Command


def layer(folder: Path) -> str:
    weight = numpy_helper.from_array(np.eye(4, 3, dtype=np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Relu", ["xw"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])
    graph = helper.make_graph(nodes, "layer", [x], [y], [weight])
    path = folder / "layer.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return str(path)


def test_each_pass_is_checked_at_several_sizes(tmp_path: Path, penstock: Command) -> None:
    finished = penstock("check", layer(tmp_path), "--dim", "N<=5")
    assert (finished.status, finished.err) == (0, "")
    assert [line for line in finished.out.splitlines() if line.startswith("N = ")] == ["N = 1:", "N = 3:", "N = 5:"]
    assert finished.out.count("one program for all sizes: equal, bit for bit\nmem-plan: equal, bit for bit") == 3


def test_what_one_program_for_all_computes_otherwise_is_found(
    tmp_path: Path, penstock: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower = check_sizes.lower_at_points

    def broken(module: Any, *others: Any) -> None:
        lower(module, *others)
        for op in list(module.walk()):
            if isinstance(op, arith.MaximumfOp):
                op.result.replace_all_uses_with(op.lhs)

    monkeypatch.setattr(check_sizes, "lower_at_points", broken)
    finished = penstock("check", layer(tmp_path), "--dim", "N<=5", "--seed", "1")
    assert finished.status == 1
    assert 'the pass "one program for all sizes" changed a value' in finished.err


def test_what_is_for_programs_of_numbers_is_refused(tmp_path: Path, penstock: Command) -> None:
    path = layer(tmp_path)
    finished = penstock("check", path, "--dim", "N<=5", "--backend", "native")
    assert finished.status == 1
    assert "--backend is not for a program whose sizes only a run knows" in finished.err
    finished = penstock("check", path, "--dim", "N<=5", "--machine", "gemmini-fp32")
    assert 'is not for the machine "gemmini-fp32"' in finished.err
