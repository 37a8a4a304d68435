# SPDX-License-Identifier: Apache-2.0
"""Programs by LLVM: what the text says, engines and plans of it, and what takes the place of a C compiler."""

from __future__ import annotations

import ctypes
import pickle
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from in_c import FILL, agree, floats, generic, main, memref, needs_compiler, needs_llvm
from numpy.typing import NDArray
from programs import verified

import penstock
from penstock.dialects.context import make_context
from penstock.dialects.cpu import CPUS, VARIABLE
from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.to_c import emit_c
from penstock.lowering.to_llvm import emit_llvm
from penstock.passes import toolchain
from penstock.runtime import llvm
from penstock.runtime.engine import Engine
from penstock.runtime.llvm import F16_FUNCTIONS, Jit

if TYPE_CHECKING:
    from tests.conftest import Command

Array = NDArray[Any]
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")

TEXT = """func.func @main(%x: tensor<4x64xf32> {graph.name = "x"}) -> (tensor<4x48xf32> {graph.name = "y"}) {
  %w = graph.constant dense<0.5> : tensor<64x48xf32>
  %p = graph.matmul %x, %w : (tensor<4x64xf32>, tensor<64x48xf32>) -> tensor<4x48xf32>
  %y = graph.relu %p : tensor<4x48xf32>
  func.return %y : tensor<4x48xf32>
}"""
X = np.linspace(-1, 1, 4 * 64, dtype=np.float32).reshape(4, 64)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.mlir"
    path.write_text(TEXT)
    return path


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "")
    monkeypatch.setattr(toolchain, "CANDIDATES", ())
    monkeypatch.setattr(toolchain, "find_spec", lambda name: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]


def compiled(path: Path, **options: Any) -> Engine:
    return cast(Engine, penstock.compile(path, **options))


PRODUCT = main(
    operands := [("x", memref((6, 40))), ("w", memref((40, 32))), ("y", memref((6, 32)))],
    generic("i, j", ["i, j"], "pp", [operands[2]], FILL)
    + "\n"
    + generic(
        "i, j, k",
        ["i, k", "k, j", "i, j"],
        "ppr",
        operands,
        "^bb0(%a: f32, %b: f32, %c: f32):\n%r = math.fma %a, %b, %c : f32\nlinalg.yield %r : f32",
    ),
)


def test_a_block_of_sums_is_vectors_of_multiply_adds_and_the_text_is_the_same_every_time() -> None:
    text = emit_llvm(verified(PRODUCT)).text
    assert "call <8 x float> @llvm.fma.v8f32(<8 x float>" in text
    assert "fast" not in text.split("attributes")[0]
    assert text == emit_llvm(verified(PRODUCT)).text


def test_a_product_has_the_bits_of_c() -> None:
    needs_llvm()
    agree(verified(PRODUCT), [floats(6, 40), floats(40, 32)])


def test_a_context_is_laid_out_as_that_of_c() -> None:
    needs_llvm()
    needs_compiler()
    from penstock.runtime.native import load_native

    text = main(
        [("x", memref((8,))), ("y", memref((8,)))],
        "%b = mem.buffer at 128 : memref<8xf32>\n%c = mem.buffer at 64 : memref<8xi64>\n"
        "mem.copy %x[0] to %b : memref<8xf32> to memref<8xf32>\nmem.copy %b to %y[0] : memref<8xf32> to memref<8xf32>",
    )
    ours, theirs = llvm.load_llvm(verified(text)), load_native(verified(text))
    assert ours.context_bytes == theirs.context_bytes
    np.testing.assert_array_equal(ours.run([np.arange(8, dtype=np.float32)])[0], np.arange(8))


def test_the_sums_of_a_block_are_in_registers() -> None:
    needs_llvm()
    if not IS_X86:
        pytest.skip("reads the assembly of x86")
    # Assembly is not executed, so the CPU at hand need not have them.
    assembly = Jit(next(each for each in CPUS if each.name == "avx2")).assembly(emit_llvm(verified(PRODUCT)).text)
    loop = max((part for part in assembly.split("\n.LBB")), key=lambda part: part.count("vfmadd"))
    assert loop.count("vfmadd") >= 8
    assert "%ymm" in loop
    assert "(%rsp)" not in loop, "nothing is spilled"
    assembly = Jit(next(each for each in CPUS if each.name == "sse2")).assembly(emit_llvm(verified(PRODUCT)).text)
    assert "vfmadd" not in assembly
    assert "%ymm" not in assembly


def test_halves_are_converted_where_the_cpu_has_no_instructions_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_llvm()
    if not IS_X86:
        pytest.skip("other CPUs have them")
    try:
        ctypes.CDLL(F16_FUNCTIONS)["__extendhfsf2"]
    except (OSError, AttributeError):
        pytest.skip("there is no libgcc of GCC 12")
    monkeypatch.setenv(VARIABLE, "sse2")
    operands = [("x", memref((24,), "f16")), ("y", memref((24,), "f16"))]
    body = "^bb0(%a: f16, %b: f16):\n%r = arith.addf %a, %a : f16\nlinalg.yield %r : f16"
    module = verified(main(operands, generic("i", ["i", "i"], "p", operands, body)))
    x = np.array([0.0, -0.0, 1.5, 65504, -6e-8, np.inf, 1e-5, 333] * 3, np.float16)
    agree(module, [x])


def test_an_op_that_is_not_known_is_refused_where_it_stands() -> None:
    text = SourceText("some.mlir", "func.func @main() {\n  %x = tensor.empty() : tensor<2xf32>\n  func.return\n}")
    with pytest.raises(UserError, match=r"tensor\.empty cannot be lowered to LLVM IR") as raised:
        emit_llvm(parse_text(make_context(), text).module)
    assert raised.value.loc == "some.mlir:2:3"


def test_an_engine_of_llvm_is_saved_loaded_and_pickled_without_a_c_compiler(
    program: Path, no_compiler: None, tmp_path: Path
) -> None:
    needs_llvm()
    engine = compiled(program, backend="llvm")
    (expected,) = engine(X)
    assert repr(engine).endswith("backend llvm>")
    engine.save(tmp_path / "p.plan")
    for other in (Engine.load(tmp_path / "p.plan"), pickle.loads(pickle.dumps(engine))):
        assert other.backend == "llvm"
        np.testing.assert_array_equal(other(X)[0], expected)
        assert repr(other) == repr(engine)


def test_a_plan_with_machine_code_is_compiled_anew_by_llvm(program: Path, tmp_path: Path) -> None:
    needs_llvm()
    needs_compiler()
    engine = compiled(program)
    engine.save(tmp_path / "p.plan")
    found = Engine.load(tmp_path / "p.plan", "llvm")
    assert (engine.backend, found.backend) == ("native", "llvm")
    np.testing.assert_array_equal(found(X)[0], engine(X)[0])


def test_where_there_is_no_c_compiler_llvm_takes_its_place(
    penstock: Command, program: Path, no_compiler: None, tmp_path: Path
) -> None:
    needs_llvm()
    engine = compiled(program)
    assert engine.backend == "llvm"
    np.save("x.npy", X)
    finished = penstock("run", str(program), "--input", "x.npy", "-v", "-p", "default")
    assert finished.status == 0, finished.err
    assert finished.err.endswith(" s (llvm)\n")
    np.testing.assert_array_equal(np.load("output_0.npy"), engine(X)[0])
    finished = penstock("compile", str(program), "-o", "p.plan")
    assert finished.err.endswith("; there is no C compiler, so LLVM compiles it when it is run\n")
    assert penstock("run", "p.plan", "--input", "x.npy").status == 0
    finished = penstock("run", str(program), "--input", "x.npy", "--level", "c")
    assert finished.err.startswith("error: no C compiler is found"), "C is asked for by name"


def test_llvm_is_chosen_by_name_and_written_as_text(penstock: Command, program: Path, tmp_path: Path) -> None:
    finished = penstock("compile", str(program), "--emit=llvm", "-o", "-", "-q")
    assert finished.status == 0
    assert finished.out.startswith('; Generated by Penstock.\nsource_filename = "program"\n')
    assert "define i32 @program_run(ptr %ctx, ptr %weights, ptr %inputs, ptr %outputs)" in finished.out
    needs_llvm()
    needs_compiler()
    np.save("x.npy", X)
    for words in ((), ("--machine", "gemmini-fp32")):
        assert penstock("run", str(program), "--input", "x.npy", "--level", "llvm", "-q", *words).status == 0
        found = np.load("output_0.npy")
        assert penstock("run", str(program), "--input", "x.npy", "--level", "c", "-q", *words).status == 0
        np.testing.assert_array_equal(found, np.load("output_0.npy"))


def test_without_llvmlite_the_way_to_install_it_is_told(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "jit", Jit)
    monkeypatch.setattr(llvm, "WHEEL", "no_such_package")
    with pytest.raises(UserError, match="the backend llvm needs llvmlite") as raised:
        compiled(program, backend="llvm")
    assert raised.value.notes == ("pip install 'penstock-compiler[llvm]'",)


def test_libraries_are_freed_with_their_engines_in_any_order(program: Path) -> None:
    needs_llvm()
    engines = [compiled(program, backend="llvm") for _ in range(3)]
    context = engines[1].context()
    (expected,) = engines[0](X)
    del engines
    np.testing.assert_array_equal(context(X)[0], expected)


def test_headers_of_c_describe_the_entry_of_llvm_too() -> None:
    c, ours = emit_c(verified(PRODUCT)), emit_llvm(verified(PRODUCT))
    assert (c.inputs, c.weights, c.outputs) == (ours.inputs, ours.weights, ours.outputs)
    assert (c.run_symbol, c.size_symbol) == (ours.run_symbol, ours.size_symbol)
