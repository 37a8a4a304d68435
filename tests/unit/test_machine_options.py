# SPDX-License-Identifier: Apache-2.0
"""Numbers of a machine that are set for one run: the same as if they stood in its file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

import penstock as package
from penstock.dialects.machine import TargetOp
from penstock.lowering.from_machine_toml import load_machine, machine_document
from penstock.lowering.machine_keys import PART_KINDS, SINGLE_KINDS, is_number
from penstock.lowering.machine_names import machine_text, shipped_machines

if TYPE_CHECKING:
    from tests.conftest import Command

PRODUCT = """
func.func @main(%x: tensor<16x16xf32> {graph.name = "x"}) -> (tensor<16x16xf32> {graph.name = "y"}) {
  %y = graph.matmul %x, %x : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  func.return %y : tensor<16x16xf32>
}
"""


def numbers_of_file(name: str) -> Iterator[tuple[str, object]]:
    """Each number of a machine file, with its path."""
    document: dict[str, Any] = machine_document(*machine_text(name))[0]
    if (frequency := document["machine"].get("freq_mhz")) is not None:
        yield "machine.freq_mhz", frequency["value"] if isinstance(frequency, Mapping) else frequency
    for kind in PART_KINDS:
        for part in cast(list[Mapping[str, Any] | None], document.get(kind, []) if kind not in SINGLE_KINDS else []):
            if part is None:  # of the base, and removed
                continue
            owner = f"{kind}.{part['name']}" if "name" in part else f"{kind}.{part['from']}.{part['to']}"
            for key, value in part.items():
                if key == "shape":
                    yield from ((f"{owner}.shape.{dim}", extent) for dim, extent in value.items())
                elif is_number(kind, [key]):
                    plain = cast(object, value["value"] if isinstance(value, Mapping) else value)
                    yield f"{owner}.{key}", f'"{plain}"' if isinstance(plain, str) else plain


def without_origins(target: TargetOp) -> str:
    for op in target.walk():
        op.properties.pop("origin", None)
    return str(target)


@pytest.mark.parametrize("name", shipped_machines())
def test_each_number_can_be_set_to_what_it_is(name: str) -> None:
    options = dict(numbers_of_file(name))
    assert options
    assert without_origins(load_machine(name, options)) == without_origins(load_machine(name))


def test_a_value_is_what_the_file_would_say(tmp_path: Path) -> None:
    options = {
        "scope.inp.size": "64K",
        "machine.freq_mhz": "200",
        "bus.axi_rd.rate": "[16, 1]",
        "dma.load_inp.latency": 20,
        "intrinsic.gemm.shape.m": "2",
        "queue.load.compute.capacity": 4,
        "queue.load.compute.on_full": "block",
        "dma.store_out.convert.rule": "saturate",
        "intrinsic.gemm.operands.acc.strides": "granule",
    }
    own = 'assumed = true, derived = "--set"'
    base = machine_text("vta-pynq")[1]
    for old, new in (
        ("size = 32768\ngranule = 16 ", f"size = {{ value = 65536, {own} }}\ngranule = 16 "),
        ("freq_mhz = 100", f"freq_mhz = {{ value = 200, {own} }}"),
        ('"axi_rd"\nrate = [8, 1]', f'"axi_rd"\nrate = {{ value = [16, 1], {own} }}'),
        ("latency = { value = 8, assumed = true }", f"latency = {{ value = 20, {own} }}"),
        ("shape = { m = 1, n = 16, k = 16 }", f"shape = {{ m = {{ value = 2, {own} }}, n = 16, k = 16 }}"),
        (
            '{ from = "load", to = "compute" }',
            f'{{ from = "load", to = "compute", capacity = {{ value = 4, {own} }}, on_full = "block" }}',
        ),
        ('rule = "truncate"', 'rule = "saturate"'),
        (
            '{ name = "acc", scope = "acc", dtype = "i32", role = "inout", strides = "row" }',
            '{ name = "acc", scope = "acc", dtype = "i32", role = "inout", strides = "granule" }',
        ),
    ):
        assert old in base, old
        base = base.replace(old, new, 1)
    (tmp_path / "edited.toml").write_text(base)
    assert str(load_machine("vta-pynq", options)) == str(load_machine(str(tmp_path / "edited.toml")))


def test_what_a_machine_takes_from_its_base_can_be_set() -> None:
    target = load_machine("vta-fsim", {"scope.inp.size": 65536, "dma.load_inp.latency": 20})
    base = load_machine("vta-fsim")
    assert target.scopes()["inp"].size_bytes == 2 * base.scopes()["inp"].size_bytes
    other = target.scopes()["wgt"]
    assert (str(other), target.dmas()["load_inp"].latency_cycles) == (str(base.scopes()["wgt"]), 20)


def test_a_number_that_is_set_is_shown_as_such(penstock: Command) -> None:
    done = penstock("machines", "show", "gemmini", "--table", "--set", "scope.spad.size=64KiB")
    assert done.status == 0
    (line,) = [line for line in done.out.splitlines() if "--set" in line]
    assert line.split(maxsplit=2) == ["size", "65536", "assumed, --set"]


def test_each_command_compiles_for_the_changed_machine(
    penstock: Command, penstock_opt: Command, tmp_path: Path
) -> None:
    (tmp_path / "in.mlir").write_text(PRODUCT)
    np.save(tmp_path / "x.npy", np.eye(16, dtype=np.float32))
    words = ("--machine", "gemmini-fp32", "--set", "dma.mvin.latency=300")
    assert penstock("compile", "in.mlir", *words, "--emit=accel", "-o", "accel.mlir", "-q").status == 0
    text = (tmp_path / "accel.mlir").read_text()
    assert "latency 300" in text
    passes = penstock("compile", "in.mlir", *words, "--print-pipeline").out.strip()
    assert penstock_opt("in.mlir", *words, "-p", passes).out == text
    simulated, slower, usual = (
        penstock("simulate", *line).out
        for line in (("accel.mlir",), ("in.mlir", *words), ("in.mlir", "--machine", "gemmini-fp32"))
    )
    assert simulated.splitlines()[0] == slower.splitlines()[0] != usual.splitlines()[0]
    assert penstock("run", "in.mlir", *words, "--input", "x.npy", "--level", "accel").status == 0
    small = penstock("plan", "in.mlir", "--machine", "gemmini-fp32", "--set", "scope.spad.size=32K").out
    assert "32,768" in small
    assert "32,768" not in penstock("plan", "in.mlir", "--machine", "gemmini-fp32").out


def test_from_python(tmp_path: Path) -> None:
    (tmp_path / "in.mlir").write_text(PRODUCT)
    options = {"scope.spad.size": "32K", "dma.mvin.latency": 300}
    engine = package.compile(tmp_path / "in.mlir", "gemmini-fp32", "interpreter", machine_options=options)
    target = next(op for op in engine.module.ops if isinstance(op, TargetOp))  # pyright: ignore
    assert (target.scopes()["spad"].size_bytes, target.dmas()["mvin"].latency_cycles) == (32768, 300)
    x = np.arange(256, dtype=np.float32).reshape(16, 16) % 7
    assert np.array_equal(engine(x)[0], x @ x)
