# SPDX-License-Identifier: Apache-2.0
"""Programs as folders of instructions: the executor gets what the tensor level computes, bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from sampling import every_other
from tests.support.vta import micro_op_bytes
from vta_programs import Kernel, convolution, matmul, residual_add
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

import penstock
from penstock.dialects.context import PenstockContext, make_context
from penstock.dialects.diagnostics import UserError
from penstock.lowering.to_vta.disassembler import assemble, disassemble
from penstock.lowering.to_vta.encoder import MicroOpCache, MicroOpStore
from penstock.lowering.to_vta.isa import Load, MemoryType, decode, encode
from penstock.lowering.to_vta.module import encode_module
from penstock.lowering.to_vta.stream import program_of
from penstock.passes.analysis.commands.trace import trace_calls
from penstock.runtime.compiler import compile_module
from penstock.runtime.interpreter import run_module
from penstock.runtime.signature import signature_of
from penstock.runtime.simulator import simulate
from penstock.runtime.vta import Emission, emit, expected_outputs, launch_cycles, replay
from penstock.tools.main import run as penstock_command

EXAMPLES = Path(__file__).parents[3] / "examples" / "digits"

KERNELS = {
    "convolution": convolution((8, 6), 2, 3),
    "strided convolution": convolution((9, 9), 2, 1, stride=2),
    "pointwise, batched": convolution((5, 5), 3, 2, kernel=1, pad=0, batch=2),
    "convolution larger than the scopes": convolution((28, 28), 4, 8),
    "a prime number of blocks, deep": convolution((7, 7), 37, 5),
    "matmul": matmul(20, 3, 5),
    "one row": matmul(1, 2, 4),
    "residual add": residual_add((1, 8, 8, 3)),
}


@cache
def compiled(kernel: Kernel) -> tuple[PenstockContext, ModuleOp, ModuleOp]:
    """
    The context, the module at the accelerator level, and the module it was, which are only read; one machine adds
    images.
    """
    ctx = make_context()
    module = Parser(ctx, kernel.text).parse_module()
    reference = module.clone()
    compile_module(module, ctx, "vta-fsim" if kernel is KERNELS["residual add"] else "vta-pynq", "accel")
    return ctx, module, reference


def emitted(kernel: Kernel, folder: Path) -> Emission:
    ctx, module, reference = compiled(kernel)
    return emit(folder, module, reference, ctx.weights, signature_of(reference), kernel.draw(0))


@pytest.mark.parametrize("name", every_other(KERNELS))
def test_the_executor_computes_what_the_tensor_level_does(name: str, tmp_path: Path) -> None:
    kernel = KERNELS[name]
    emitted(kernel, tmp_path / "out")
    expected = kernel.expected(kernel.draw(0))
    assert 0 < np.count_nonzero(expected) < expected.size
    np.testing.assert_array_equal(expected_outputs(tmp_path / "out")["y"], expected)
    for seed in (None, 0, 1):
        np.testing.assert_array_equal(replay(tmp_path / "out", seed=seed).outputs["y"], expected)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_streams_survive_bits_and_are_timed_with_all_that_they_do(kernel: Kernel) -> None:
    _, module, _ = compiled(kernel)
    encoded = encode_module(module)
    launches = [list(step.instructions) for step in encoded.steps if step.instructions is not None]
    cycles, loading = launch_cycles(encoded), 0
    assert len(cycles) == len(launches) > 0
    for launch, time in zip(launches, cycles, strict=True):
        stream = encode(launch)
        assert decode(stream) == launch
        assert encode(decode(stream)) == stream
        assert assemble(disassemble(launch)) == launch
        # What compute has to do, one after the other, and loads of micro-operations are among it.
        program = program_of(launch, encoded.target)
        assert time >= sum(each.cycles for each in program.commands if each.unit == "compute")
        loading += sum(each.cycles + 8 for each in program.commands if each.name == "load_uop")
    traced = sum(simulate(call.program).cycles for call in trace_calls(module) if call.program is not None)
    assert traced <= sum(cycles) <= traced + 2 * loading + 20 * len(launches)


def test_a_hazard_in_the_bits_is_refused() -> None:
    _, module, _ = compiled(KERNELS["convolution"])
    encoded = encode_module(module)
    (step,) = encoded.steps
    assert step.instructions is not None
    broken = [replace(each, pop_prev=False, push_next=False) for each in step.instructions]
    with pytest.raises(UserError) as error:
        launch_cycles(replace(encoded, steps=(replace(step, instructions=broken),)))
    assert error.value.message.startswith("@kernel: ")


def test_micro_operations_that_have_no_room_together_are_loaded_as_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small(store: MicroOpStore, depth: int) -> MicroOpCache:
        return MicroOpCache(store, min(depth, 24))

    kernel = KERNELS["convolution"]
    monkeypatch.setattr("penstock.lowering.to_vta.encoder.MicroOpCache", small)
    emitted(kernel, tmp_path / "out")
    run = replay(tmp_path / "out", seed=0)
    np.testing.assert_array_equal(run.outputs["y"], kernel.expected(kernel.draw(0)))
    # Lists take turns, and are loaded more than once.
    assert run.counts.moved["UOP"] > (tmp_path / "out" / "uop.bin").stat().st_size


def test_digits_with_what_the_host_does_in_between(tmp_path: Path) -> None:
    with np.load(EXAMPLES / "calibration_images.npz") as file:
        model = penstock.quantize(EXAMPLES / "digits.onnx", file["image"], scheme="power-of-two")
    with np.load(EXAMPLES / "test_images.npz") as file:
        image = file["images"][:1]
    program = model.integer().program
    reference = program.module.clone()
    signature = signature_of(reference)
    compile_module(program.module, program.ctx, "vta-pynq")
    emit(tmp_path / "digits", program.module, reference, program.ctx.weights, signature, [image])
    manifest = json.loads((tmp_path / "digits" / "manifest.json").read_text())
    kinds = [step["kind"] for step in manifest["steps"]]
    assert kinds[0] == kinds[-1] == "host"
    assert kinds.count("launch") >= 3
    for seed in (None, 0):
        run = replay(tmp_path / "digits", seed=seed)
        np.testing.assert_array_equal(run.outputs["scores"], model(image)[0])
        assert run.launches == kinds.count("launch")


def odd_loads(folder: Path) -> int:
    """The loads of several micro-operations that begin at an even entry on one side and at an odd one on the other."""
    loads = [each for each in decode((folder / "insn.bin").read_bytes()) if isinstance(each, Load) and each.x_size > 1]
    return sum((load.sram_base - load.dram_base) % 2 for load in loads if load.memory is MemoryType.UOP)


@pytest.mark.parametrize("machine", [pytest.param("vta-fsim", marks=pytest.mark.slow), "vta-rtl"])
def test_a_network_with_residual_blocks(machine: str, tmp_path: Path) -> None:
    """Convolutions, sums of 8-bit images and what the host does, 19 launches that leave their results to each other."""
    from resnet18_int8 import resnet18_int8

    path, folder = tmp_path / "network.onnx", tmp_path / "n"
    path.write_bytes(resnet18_int8(0, 32, 16, 10).SerializeToString())
    assert penstock_command(["compile", str(path), f"--machine={machine}", "--emit=vta", "-o", str(folder), "-q"]) == 0
    run = replay(folder, seed=5)
    assert run.launches >= 17
    assert ("ACC_8BIT" in run.counts.moved) == (machine == "vta-fsim")
    # What loads in pairs would take the wrong ones.
    assert (odd_loads(folder) == 0) == (machine == "vta-rtl")
    ((name, found),) = run.outputs.items()
    np.testing.assert_allclose(found, expected_outputs(folder)[name], rtol=1e-5, atol=1e-5)


# the folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vta") / "conv"
    emitted(KERNELS["convolution"], path)
    return path


def test_the_manifest_says_where_every_buffer_is_and_how_it_is_blocked(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    buffers = {buffer["name"]: buffer for buffer in manifest["buffers"]}
    described = {name: (each["role"], each["shape"], each["dtype"], each["memory"]) for name, each in buffers.items()}
    assert described == {
        "x": ("input", [1, 8, 6, 2, 16], "int8", "INP"),
        "w": ("input", [3, 3, 3, 2, 16, 16], "int8", "WGT"),
        "b": ("input", [3, 16], "int32", "ACC"),
        "y": ("output", [1, 8, 6, 3, 16], "int8", "OUT"),
    }
    assert {name: each["entry"] for name, each in buffers.items()} == {"x": [16], "w": [16, 16], "b": [16], "y": [16]}
    dram = (folder / "dram.bin").read_bytes()
    for name, array in zip("xwb", KERNELS["convolution"].draw(0), strict=True):
        offset = buffers[name]["offset"]
        assert offset % 256 == 0
        assert dram[offset : offset + array.nbytes] == array.tobytes()
    (output,) = manifest["outputs"]
    assert (output["name"], output["shape"], output["dtype"]) == ("y", [1, 8, 6, 3, 16], "int8")
    assert [manifest["buffers"][number]["name"] for number in output["buffers"]] == ["y"]
    assert manifest["dram"]["contents"][1]["offset"] == len(dram)


def test_the_text_beside_the_bits_is_the_same_program(folder: Path) -> None:
    text, bits = (folder / "insn.txt").read_text(), (folder / "insn.bin").read_bytes()
    assert encode(assemble(text)) == bits
    listed = [line.partition(": ") for line in (folder / "uop.txt").read_text().splitlines()]
    micro_ops = [[*map(int, fields.split())] for _, _, fields in listed]
    assert micro_op_bytes(*micro_ops) == (folder / "uop.bin").read_bytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert int(listed[0][0]) * 4 == manifest["dram"]["contents"][1]["offset"]


@pytest.mark.parametrize("file", ["insn.bin", "uop.bin", "dram.bin", "expected.bin"])
def test_a_flipped_bit_is_noticed(folder: Path, tmp_path: Path, file: str) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for each in folder.iterdir():
        data = bytearray(each.read_bytes())
        if each.name == file:
            # In the instructions: an accumulator of the first GEMM; in the others the first byte.
            data[0 if file != "insn.bin" else 16 * 3 + 3] ^= 1
        (copy / each.name).write_bytes(data)
    with pytest.raises(UserError):
        replay(copy)


def test_another_schema_and_no_folder_are_refused(folder: Path, tmp_path: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"schema": 2}))
    with pytest.raises(UserError, match="with schema 2, and this version reads penstock-vta with schema 1"):
        replay(tmp_path)
    with pytest.raises(UserError, match="cannot read the manifest"):
        replay(tmp_path / "nowhere")


# the command


def test_the_command_writes_a_folder_and_takes_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = matmul(4, 1, 2)
    (tmp_path / "matmul.mlir").write_text(kernel.text)
    inputs = kernel.draw(7)
    for name, array in zip("xwb", inputs, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    words = ["compile", str(tmp_path / "matmul.mlir"), "--machine", "vta-pynq", "--emit=vta", "-q"]
    given = [f"{name}={tmp_path / name}.npy" for name in "xwb"]
    for arguments, drawn in (([], None), (["--input", *given], inputs)):
        assert penstock_command([*words, "-o", str(tmp_path / "out"), *arguments]) == 0
        outputs = replay(tmp_path / "out").outputs
        if drawn is not None:
            np.testing.assert_array_equal(outputs["y"], kernel.expected(drawn))
    assert penstock_command([*words[:-2], "--emit=loop", "-o", str(tmp_path / "x.mlir"), "--input", given[0]]) == 2
    assert "--input is for --emit=vta" in capsys.readouterr().err


def test_what_is_not_a_folder_of_instructions_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("words")
    with pytest.raises(UserError, match="exists and is no folder of instructions, so it is not replaced"):
        emitted(KERNELS["one row"], tmp_path / "mine")
    assert [each.name for each in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_another_machine_has_no_instructions_of_vta(tmp_path: Path) -> None:
    text = """
func.func @main(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %y = graph.matmul %x, %w : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  func.return %y : tensor<8x8xf32>
}
"""
    ctx = make_context()
    module = Parser(ctx, text).parse_module()
    compile_module(module, ctx, "gemmini-fp32", "accel")
    with pytest.raises(UserError, match="gemmini-fp32 has no instructions of VTA"):
        encode_module(module)


def test_the_host_alone_has_no_instructions() -> None:
    ctx = make_context()
    module = Parser(ctx, KERNELS["one row"].text).parse_module()
    compile_module(module, ctx, None, "accel")
    with pytest.raises(UserError, match="the program is for no machine"):
        encode_module(module)


def test_the_interpreter_agrees_with_the_kernels_of_this_file() -> None:
    for kernel in KERNELS.values():
        ctx = make_context()
        module = Parser(ctx, kernel.text).parse_module()
        inputs = kernel.draw(3)
        np.testing.assert_array_equal(run_module(module, inputs, ctx.weights)[0], kernel.expected(inputs))


WEIGHTS_GIVEN = """
func.func @main(%x: tensor<1x16x13x17xi8>, %w: tensor<32x16x3x3xi8>, %b: tensor<1x32x1x1xi32>)
    -> tensor<1x32x13x17xi8> {
  %0 = graph.conv %x, %w strides [1, 1] pads [1, 1, 1, 1] dilations [1, 1] accumulate i32
      : (tensor<1x16x13x17xi8>, tensor<32x16x3x3xi8>) -> tensor<1x32x13x17xi32>
  %1 = graph.add %0, %b : (tensor<1x32x13x17xi32>, tensor<1x32x1x1xi32>) -> tensor<1x32x13x17xi32>
  %s = graph.constant dense<7> : tensor<i32>
  %2 = graph.shift_right %1, %s : (tensor<1x32x13x17xi32>, tensor<i32>) -> tensor<1x32x13x17xi32>
  %3 = graph.clip %2 min 0 max 127 : tensor<1x32x13x17xi32>
  %y = graph.cast %3 : tensor<1x32x13x17xi32> -> tensor<1x32x13x17xi8>
  func.return %y : tensor<1x32x13x17xi8>
}
"""


def test_weights_that_are_inputs_begin_at_whole_entries(tmp_path: Path) -> None:
    path = tmp_path / "given.mlir"
    path.write_text(WEIGHTS_GIVEN, encoding="utf-8")
    words = ["compile", str(path), "--machine", "vta-pynq", "--emit", "vta", "-o", str(tmp_path / "out"), "-q"]
    assert penstock_command(words) == 0
