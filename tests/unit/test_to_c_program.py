# SPDX-License-Identifier: Apache-2.0
"""Whole programs in C: commands and counters, what is refused, and what the text promises."""

from __future__ import annotations

import re
import subprocess
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_c import floats, main, memref, needs_compiler
from numpy.typing import NDArray
from programs import verified
from xdsl.dialects.builtin import NameLoc, NoneAttr, StringAttr
from xdsl.parser import Parser

from penstock.dialects.accel import ExecOp
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import WeightStore
from penstock.lowering.codegen.text import identifier
from penstock.lowering.to_c import CTarget, emit_c
from penstock.passes.toolchain import find_compiler, load
from penstock.runtime.interpreter import Counters, run_module
from penstock.runtime.native import NativeModule, build, load_native

Array = NDArray[Any]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


# commands

SPAD, ACC = 'memref<{}xf32, "spad">', 'memref<{}xf32, "acc">'
COMMANDS = f"""
func.func private @kernel(%x: {memref((6, 8))}, %w: {memref((8, 4))}, %y: {memref((6, 4))})
    attributes {{device = @gemmini_fp32}} {{
  %pad = arith.constant 0.0 : f32
  %xs = mem.buffer at 0 : {SPAD.format("8x8")}
  %ws = mem.buffer at 256 : {SPAD.format("8x4")}
  %acc = mem.buffer at 0 : {ACC.format("8x4")}
  %r = accel.ready
  %z = accel.exec @zero_acc extents [8, 4] maps [affine_map<(i, j) -> (i, j)>] (%acc) after (%r) : {ACC.format("8x4")}
  %f = accel.exec @zero_spad extents [8, 8] maps [affine_map<(i, j) -> (i, j)>] (%xs) : {SPAD.format("8x8")}
  %a = accel.dma %x[-1, 0] to %xs clipped on "mvin" after (%f) : {memref((6, 8))} to {SPAD.format("8x8")}
  %b = accel.dma %w to %ws on "mvin" : {memref((8, 4))} to {SPAD.format("8x4")}
  %g = accel.exec @gemm extents [8, 4, 8]
    maps [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> (m, n)>]
    (%xs, %ws, %acc) after (%z, %a, %b) : {SPAD.format("8x8")}, {SPAD.format("8x4")}, {ACC.format("8x4")}
  %part = memref.subview %acc[1, 0] [6, 4] [1, 1]
    : {ACC.format("8x4")} to memref<6x4xf32, strided<[4, 1], offset: 4>, "acc">
  %s = accel.exec @mvout_relu extents [6, 4] maps [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>]
    (%part, %y) after (%g) : memref<6x4xf32, strided<[4, 1], offset: 4>, "acc">, {memref((6, 4))}
  accel.wait %s
  accel.barrier
  func.return
}}
""" + main(
    [("x", memref((6, 8))), ("w", memref((8, 4))), ("y", memref((6, 4)))],
    f"func.call @kernel(%x, %w, %y) : ({memref((6, 8))}, {memref((8, 4))}, {memref((6, 4))}) -> ()",
)


def test_commands_run_when_they_are_issued_and_are_counted_as_in_the_interpreter() -> None:
    needs_compiler()
    module = verified(COMMANDS, "gemmini-fp32")
    x, w = floats(6, 8), floats(8, 4)
    context = load_native(module).new_context()
    (ours,) = context([x, w])
    counters = Counters()
    (theirs,) = run_module(module, [x, w], WeightStore(), counters=counters, ordered=True)
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(ours, np.maximum(x @ w, 0), rtol=1e-5)
    counted = context.counters
    assert (counted.bytes_in, counted.bytes_out, counted.macs) == (
        counters.bytes_in, counters.bytes_out, counters.macs,
    )  # fmt: skip
    assert counted.macs == 8 * 4 * 8
    assert counted.commands == sum(each.commands for each in counters.intrinsics.values())
    assert counted.transfers == sum(each.commands for each in counters.dma.values())
    assert counted.host_macs == 0


def test_comments_name_the_intrinsic_and_the_place_of_an_op() -> None:
    module = verified(COMMANDS, "gemmini-fp32")
    for op in module.walk():
        if isinstance(op, ExecOp) and op.intrinsic_name == "gemm":
            op.location = NameLoc(StringAttr("layer1/conv */ x"), NoneAttr())
    source = emit_c(module).source
    assert '/* "layer1/conv * / x": accel.exec @gemm over 8 x 4 x 8 */' in source
    outline = source.partition("/* @kernel on gemmini_fp32\n     ")[2].partition(" */")[0].splitlines()
    assert [line.partition("accel.")[2][:8] for line in outline[:5]] == [
        "exec @ze", "exec @ze", "dma on m", "dma on m", "exec @ge"
    ]  # fmt: skip
    assert "main_layer1_conv_x(ctx, x, w, y);" in source, "kernels are called after the nodes of the model"


# refusals


@pytest.mark.parametrize(
    ("body", "message", "note"),
    [
        ("%b = memref.alloc() : memref<4xf32>", "there is no allocation inside", "mem-plan"),
        ("%b = mem.buffer : memref<4xf32>", 'this buffer in "dram" has no offset', "mem-plan"),
        ('%b = mem.buffer : memref<4xf32, "spad">', 'this buffer in "spad" has no offset', "mem-plan"),
        ("%b = mem.buffer at 6 : memref<4xf32>", "byte 6 is no offset for f32", ""),
        ('%b = mem.buffer at 262140 : memref<4xf32, "spad">', "ends at byte 262156", "mem-plan"),
        ("%b = tensor.empty() : tensor<4xf32>", "tensor.empty cannot be lowered to C", "lower the module first"),
    ],
)
def test_what_c_cannot_hold_is_refused_with_a_remedy(body: str, message: str, note: str) -> None:
    module = verified(main([("o", memref((4,)))], body), "gemmini-fp32")
    with pytest.raises(UserError, match=re.escape(message)) as refusal:
        emit_c(module)
    assert refusal.value.loc
    assert note in " ".join(refusal.value.notes)


def test_an_argument_of_unknown_shape_is_refused() -> None:
    with pytest.raises(UserError, match="not known here"):
        emit_c(verified("func.func @main(%x: memref<?xf32>) { %c = arith.constant 0 : index\n"
                      "%v = memref.load %x[%c] : memref<?xf32>\nfunc.return }"))  # fmt: skip


def test_writing_to_an_input_is_refused() -> None:
    text = main([("x", memref((4,))), ("o", memref((4,)))], f"mem.copy %o to %x : {memref((4,))} to {memref((4,))}")
    with pytest.raises(UserError, match="writes to its argument 0, which is no output") as refusal:
        emit_c(verified(text))
    assert "graph.output" in refusal.value.notes[0]


def test_a_module_without_main_is_refused() -> None:
    with pytest.raises(UserError, match="no function @main"):
        emit_c(verified("func.func @other() { func.return }"))


def test_a_missing_function_is_refused_with_a_near_name() -> None:
    module = Parser(make_context(), """func.func private @kernel() { func.return }
    func.func @main() { func.call @kernle() : () -> () func.return }""").parse_module()  # fmt: skip
    with pytest.raises(UserError, match=r"no func\.func @kernle") as refusal:
        emit_c(module)
    assert 'did you mean "kernel"' in refusal.value.notes[0]


# the text


def calling(calls: str, buffers: str = "") -> str:
    t = memref((8,))
    copy = f"mem.copy %a to %b : {t} to {t}"
    return f"func.func private @k(%a: {t}, %b: {t}) {{ {copy}\n func.return }}\n" + main(
        [("x", t), ("o", t)], f"{buffers}\n{calls}"
    )


def call(a: str, b: str) -> str:
    return f"func.call @k(%{a}, %{b}) : ({memref((8,))}, {memref((8,))}) -> ()"


def signature(text: str) -> str:
    return emit_c(verified(text)).kernels[0].prototype


def test_restrict_stands_where_every_call_proves_it() -> None:
    two = f"%p = mem.buffer at 0 : {memref((8,))}\n%q = mem.buffer at 32 : {memref((8,))}"
    overlapping = two.replace("at 32", "at 28")
    assert signature(calling(call("x", "o"))).count("restrict") == 2
    assert signature(calling(call("p", "q"), two)).count("restrict") == 2
    assert "restrict" not in signature(calling(call("p", "q"), overlapping))
    assert "restrict" not in signature(calling(call("p", "p"), two))
    # One call that does not prove it is enough.
    assert "restrict" not in signature(calling(call("x", "o") + "\n" + call("q", "q"), two))


def test_parameters_that_are_only_read_are_const() -> None:
    assert re.search(r"const float \*restrict a, float \*restrict b", signature(calling(call("x", "o"))))


def test_the_program_is_the_same_every_time_and_keeps_no_state_of_its_own() -> None:
    sources = [emit_c(verified(COMMANDS, "gemmini-fp32")) for _ in range(2)]
    assert sources[0] == sources[1]
    static = [line for line in sources[0].source.splitlines() if line.startswith("static ")]
    assert all(line.startswith("static inline ") for line in static)
    assert sources[0].scope_bytes == {"acc": 128, "spad": 384}


def test_any_c11_compiler_takes_the_program_without_a_warning(tmp_path: Path) -> None:
    needs_compiler()
    source = emit_c(verified(COMMANDS, "gemmini-fp32"))
    (tmp_path / source.header_name).write_text(source.header)
    (tmp_path / "program.c").write_text(source.source)
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wno-unknown-pragmas"]
    command = [*find_compiler().command, *flags, "-c", "program.c", "-o", "program.o"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def test_a_program_in_several_files_is_the_same_program(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_compiler()
    source = emit_c(verified(COMMANDS, "gemmini-fp32"))
    assert len(source.units(2)) == 2
    assert source.units(1) == (source.source,)
    x, w = floats(6, 8), floats(8, 4)
    whole = NativeModule(source, load(build(source))).run([x, w])
    monkeypatch.setenv("PENSTOCK_CACHE", f"{build(source).parent}-split")
    monkeypatch.setattr("penstock.runtime.native.SPLIT_LENGTH", 0)
    np.testing.assert_array_equal(NativeModule(source, load(build(source))).run([x, w])[0], whole[0])


def test_names_of_arguments_and_functions_become_identifiers() -> None:
    assert identifier("conv1/relu.2") == "conv1_relu_2"
    assert identifier("0") == "x_0"
    assert identifier("int") == "int_"
    assert identifier("d0") == "d0_"
    assert identifier("exp") == "exp_"
    assert identifier("expf") == "expf_"
    assert identifier("expose") == "expose"


def test_the_target_writes_header_and_program() -> None:
    output = StringIO()
    CTarget().emit(make_context(), verified(COMMANDS, "gemmini-fp32"), output)
    assert "/* main.h */" in output.getvalue()
    assert "int main_run(" in output.getvalue()
