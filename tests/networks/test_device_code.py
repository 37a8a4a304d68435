# SPDX-License-Identifier: Apache-2.0
"""Networks as C that issues Gemmini's instructions: what the model computes is what the graph level computes."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
import zoo
from device_code import run_on_model, run_twice
from network import DIGITS
from sampling import sweep

from penstock.dialects.diagnostics import UserError
from penstock.runtime.gemmini import Instruction, Log, read_log, replay
from penstock.runtime.gemmini.isa import decode

if TYPE_CHECKING:
    from tests.conftest import Command

INTEGERS, FLOATS = "gemmini", "gemmini-fp32"
CALIBRATION = DIGITS.with_name("calibration_images.npz")


def emit(penstock: Command, source: Path, machine: str, folder: Path) -> Path:
    """Compile to a folder."""
    finished = penstock("compile", source, "--machine", machine, "--emit", "device-c", "-o", folder, "-q")
    assert finished.status == 0, finished.err
    return folder


def network(name: str, folder: Path, *, small: bool = False) -> Path:
    """A network of examples/networks as a file."""
    path = folder / f"{name}.onnx"
    path.write_bytes(zoo.NETWORKS[name](seed=0, small=small).SerializeToString())
    return path


def quantize(penstock: Command, source: Path, path: Path, calibration: Path) -> Path:
    """The network in integers alone, which are the same at every level, as the file `path`."""
    options = ("--calibration", calibration, "--scheme", "power-of-two", "--integer", "-q")
    finished = penstock("quantize", source, *options, "-o", path)
    assert finished.status == 0, finished.err
    return path


def test_digits_in_floats(penstock: Command, tmp_path: Path) -> None:
    run_twice(emit(penstock, DIGITS, FLOATS, tmp_path / "out"))


def test_digits_in_integers(penstock: Command, tmp_path: Path) -> None:
    path = quantize(penstock, DIGITS, tmp_path / "digits.graph.mlir", CALIBRATION)
    counts = run_twice(emit(penstock, path, INTEGERS, tmp_path / "out"))
    assert counts.commands["preload"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int8_cnn", "resnet18_int8"])
def test_networks_in_integers(name: str, penstock: Command, tmp_path: Path) -> None:
    orders = 0 if name == "resnet18_int8" else 2
    counts = run_twice(emit(penstock, network(name, tmp_path), INTEGERS, tmp_path / "out"), orders=orders)
    assert counts.configurations < counts.total / 100


@pytest.mark.slow
def test_a_layer_of_bert_in_floats(penstock: Command, tmp_path: Path) -> None:
    """Whole on the model alone: it is 30 million instructions."""
    run_on_model(emit(penstock, network("bert_layer", tmp_path), FLOATS, tmp_path / "whole"), logged=False)
    run_twice(emit(penstock, network("bert_layer", tmp_path, small=True), FLOATS, tmp_path / "small"), orders=0)


@pytest.mark.slow
def test_mobilenet_in_integers(penstock: Command, tmp_path: Path) -> None:
    source = network("mobilenet_v2", tmp_path)
    ((_, image),) = zoo.inputs(onnx.ModelProto.FromString(source.read_bytes()), seed=1).items()
    np.save(tmp_path / "image.npy", image)
    path = quantize(penstock, source, tmp_path / "int8.graph.mlir", tmp_path / "image.npy")
    run_twice(emit(penstock, path, INTEGERS, tmp_path / "out"), orders=0)


def random_program(seed: int, element: str) -> str:
    """A product or a convolution of a random shape, often no multiple of the mesh, and what may follow."""
    random = Random(f"{seed} {element}")
    sums = "i32" if element == "i8" else element
    if random.random() < 0.5:
        m, n, k = (random.choice((1, 3, 15, 16, 17, 33, 48, 65)) for _ in range(3))
        operands = f"tensor<{m}x{k}x{element}>", f"tensor<{k}x{n}x{element}>"
        result, bias = f"tensor<{m}x{n}x{sums}>", f"tensor<{n}x{sums}>"
        accumulate = " accumulate i32" if element == "i8" else ""
        op = f"graph.matmul %a, %b{accumulate} : ({', '.join(operands)}) -> {result}"
    else:
        size, kernel, stride = random.randint(3, 14), random.choice((1, 3)), random.randint(1, 2)
        channels, outputs = random.choice((1, 3, 16, 20, 70)), random.choice((1, 8, 16, 33))
        pad = random.randint(0, kernel // 2)
        out = (size + 2 * pad - kernel) // stride + 1
        operands = (
            f"tensor<1x{channels}x{size}x{size}x{element}>",
            f"tensor<{outputs}x{channels}x{kernel}x{kernel}x{element}>",
        )
        result, bias = f"tensor<1x{outputs}x{out}x{out}x{sums}>", f"tensor<{outputs}x1x1x{sums}>"
        accumulate = " accumulate i32" if element == "i8" else ""
        op = (
            f"graph.conv %a, %b strides [{stride}, {stride}] pads [{pad}, {pad}, {pad}, {pad}] dilations [1, 1]"
            f" group 1{accumulate} : ({', '.join(operands)}) -> {result}"
        )
    lines, last = [f"%0 = {op}"], "%0"
    if random.random() < 0.5:
        lines.append(f"%1 = graph.add {last}, %c : ({result}, {bias}) -> {result}")
        last = "%1"
    if random.random() < 0.5:
        lines.append(f"%2 = graph.relu {last} : {result}")
        last = "%2"
    body = "\n  ".join(lines)
    return (
        f"func.func @main(%a: {operands[0]}, %b: {operands[1]}, %c: {bias}) -> {result} {{\n"
        f"  {body}\n  func.return {last} : {result}\n}}\n"
    )


@pytest.mark.parametrize("element", ["i8", "f32"])
@pytest.mark.parametrize("seed", sweep(range(15), (0,)))
def test_random_shapes(seed: int, element: str, penstock: Command, tmp_path: Path) -> None:
    path = tmp_path / "random.mlir"
    path.write_text(random_program(seed, element))
    run_twice(emit(penstock, path, INTEGERS if element == "i8" else FLOATS, tmp_path / "out"), orders=2)


@pytest.mark.slow
def test_whatever_instruction_is_dropped_is_noticed(penstock: Command, tmp_path: Path) -> None:
    path = tmp_path / "random.mlir"
    path.write_text(random_program(1, "i8"))
    run_on_model(emit(penstock, path, INTEGERS, tmp_path / "out"))
    log = read_log(tmp_path / "out" / "log")
    missed = [
        decode(record)
        for number, record in enumerate(log.records)
        if isinstance(record, Instruction) and record.funct != 7 and not is_noticed(log, number)
    ]
    assert missed == []


def is_noticed(log: Log, number: int) -> bool:
    """Whether the executor objects to the log without this record."""
    records = (*log.records[:number], *log.records[number + 1 :])
    try:
        replay(Log(log.dim, log.floating, log.spad_rows, log.acc_rows, records))
    except UserError:
        return True
    return False
