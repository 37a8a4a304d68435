# SPDX-License-Identifier: Apache-2.0
"""Packages that register with xDSL: what the modules that their factories import register is found."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import penstock
from penstock.dialects import plugins
from penstock.lowering.from_onnx.table import IMPORTERS

if TYPE_CHECKING:
    from tests.conftest import Command

UNIVERSE = """
from xdsl.universe import Universe

def get_pass():
    import lab_of_a_test.operators
    return lab_of_a_test.operators.NothingPass

def get_broken():
    import a_module_that_is_not_installed

LAB = Universe(all_passes={"lab-nothing": get_pass})
BROKEN = Universe(all_dialects={"lab-broken": get_broken})
"""

OPERATORS = """
from dataclasses import dataclass
from xdsl.passes import ModulePass
from penstock.dialects import graph
from penstock.lowering.from_onnx.table import IMPORTERS

class NothingPass(ModulePass):
    name = "lab-nothing"
    def apply(self, ctx, op):
        pass

def rms_norm(node):
    x, scale = node.value(0), node.value(1)
    mean = node.emit(graph.ReduceMeanOp(node.emit(graph.MulOp(x, x)), axes=[len(node.shape(0)) - 1]))
    root = node.emit(graph.SqrtOp(node.emit(graph.AddOp(mean, node.scalar(node.float("epsilon", 1e-5), x)))))
    return node.emit(graph.MulOp(node.emit(graph.DivOp(x, root)), scale))

IMPORTERS["com.lab.RMSNorm"] = rms_norm
"""

PLANNER = """
import lab_of_a_test.operators
from penstock.passes.planning.one_pass import first_fit_by_size as plan
"""

ENTRY_POINTS = {
    "a factory of a pass": "[xdsl.universe]\nlab = lab_of_a_test:LAB\n",
    "a planner": "[penstock.planners]\nlab-planner = lab_of_a_test.planner:plan\n",
    "what stays on chip": "[penstock.on_chip_strategies]\nlab-strategy = lab_of_a_test.planner:plan\n",
    "a group that is not known yet": "[penstock.anything]\nlab-part = lab_of_a_test.planner:plan\n",
    "a planner beside a broken one": (
        "[penstock.planners]\nbroken = lab_of_a_test.missing:plan\nlab-planner = lab_of_a_test.planner:plan\n"
    ),
}
"""What the package says of itself: each leads to the module that registers the importer, and nothing else does."""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Installs a package with the entry points that are given; it is gone again with all that it registered."""

    def write(entries: str) -> None:
        about, code = tmp_path / "lab_of_a_test-1.0.dist-info", tmp_path / "lab_of_a_test"
        about.mkdir()
        code.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-of-a-test\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(entries)
        (code / "__init__.py").write_text(UNIVERSE)
        (code / "operators.py").write_text(OPERATORS)
        (code / "planner.py").write_text(PLANNER)
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        monkeypatch.setattr(plugins, "_loaded", set[tuple[str, str]]())
        importlib.invalidate_caches()

    yield write
    IMPORTERS.pop("com.lab.RMSNorm", None)
    for name in [name for name in sys.modules if name.startswith("lab_of_a_test")]:
        del sys.modules[name]


@pytest.fixture(params=["", "broken = lab_of_a_test:BROKEN\n"], ids=["alone", "beside a broken one"])
def package(request: pytest.FixtureRequest, install: Callable[[str], None]) -> str:
    """An installed package of a pass, maybe with one that does not load."""
    install(f"[xdsl.universe]\n{request.param}lab = lab_of_a_test:LAB\n")
    return request.param


def model() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("RMSNorm", ["x", "scale"], ["y"], "norm", domain="com.lab", epsilon=1e-3)],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8]),
            helper.make_tensor_value_info("scale", TensorProto.FLOAT, [8]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.lab", 1)])


@pytest.mark.filterwarnings("ignore::penstock.dialects.diagnostics.InputWarning")
@pytest.mark.usefixtures("package")
def test_an_importer_in_a_module_that_a_factory_imports_is_found() -> None:
    x, scale = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)[:4], np.arange(8, dtype=np.float32)
    (y,) = penstock.compile(model(), backend="interpreter")(x, scale)
    wanted = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-3) * scale
    np.testing.assert_allclose(y, wanted, rtol=1e-5)


def test_a_package_that_does_not_load_is_a_warning(penstock: Command, tmp_path: Path, package: str) -> None:
    (tmp_path / "m.onnx").write_bytes(model().SerializeToString())
    finished = penstock("import", tmp_path / "m.onnx", "-q")
    assert finished.status == 0
    words = 'warning: the plug-in "broken" does not load "lab-broken": ModuleNotFoundError: '
    assert finished.err.startswith(words) if package else not finished.err


@pytest.mark.parametrize("door", ENTRY_POINTS)
def test_an_importer_is_found_whatever_entry_point_leads_to_its_module(
    door: str, install: Callable[[str], None], penstock: Command, tmp_path: Path
) -> None:
    install(ENTRY_POINTS[door])
    (tmp_path / "m.onnx").write_bytes(model().SerializeToString())
    finished = penstock("import", tmp_path / "m.onnx", "-q")
    assert finished.status == 0, finished.err
    warning = 'warning: the plug-in "broken" does not load lab_of_a_test.missing:plan: ModuleNotFoundError: '
    assert finished.err.startswith(warning) if "broken" in door else not finished.err


def test_without_it_the_operator_is_not_supported(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(model().SerializeToString())
    finished = penstock("import", tmp_path / "m.onnx")
    assert (finished.status, "com.lab.RMSNorm" in finished.err) == (3, True)


@pytest.mark.filterwarnings("ignore::penstock.dialects.diagnostics.InputWarning")
@pytest.mark.usefixtures("package")
def test_a_pass_of_a_package_brings_what_its_other_modules_register() -> None:
    assert "com.lab.RMSNorm" not in IMPORTERS
    assert plugins.factories("all_passes")["lab-nothing"]().name == "lab-nothing"
    assert "com.lab.RMSNorm" in IMPORTERS
