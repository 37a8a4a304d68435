# SPDX-License-Identifier: Apache-2.0
"""Products that a library of the host computes: when, what is written, that the plan says so, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from blas_machine import HEADERS, blas_machine
from in_c import needs_compiler
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.rewriter import InsertPoint, Rewriter

import penstock
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_machine_toml import load_machine
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.to_c import emit_c
from penstock.passes.toolchain import complaint, find_compiler, load
from penstock.runtime import measure
from penstock.runtime.compiler import compile_module, load_input
from penstock.runtime.device_check import require_code
from penstock.runtime.engine import Engine
from penstock.runtime.native import NativeModule, build, load_native
from penstock.runtime.schedules import read_schedules, schedules_text

if TYPE_CHECKING:
    from tests.conftest import Command

PROGRAM = """func.func @main(%x: tensor<128x160xf32> {graph.name = "x"}, %w: tensor<160x200xf32> {graph.name = "w"},
    %r: tensor<128x200xf32> {graph.name = "r"}) -> (tensor<128x200xf32> {graph.name = "y"}) {
  %p = graph.matmul %x, %w : (tensor<128x160xf32>, tensor<160x200xf32>) -> tensor<128x200xf32>
  %s = graph.add %p, %r : (tensor<128x200xf32>, tensor<128x200xf32>) -> tensor<128x200xf32>
  %y = graph.relu %s : tensor<128x200xf32>
  func.return %y : tensor<128x200xf32>
}"""
SHAPES = ((128, 160), (160, 200), (128, 200))
CALLED = "default, tile{rank=-1}"
CHEAP = {f"intrinsic.{name}.{key}": value for name in ("sgemm", "sgemm_nt") for key, value in (("depth", 1),)}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.mlir"
    path.write_text(PROGRAM)
    return path


def test_a_product_is_a_call_and_zeros_before_it_are_not_written(program: Path, tmp_path: Path) -> None:
    needs_compiler()
    rng = np.random.default_rng(5)
    x, w, r = (rng.integers(-8, 9, shape).astype(np.float32) for shape in SHAPES)
    options = {f"intrinsic.{name}.efficiency": "[1000, 1]" for name in ("sgemm", "sgemm_nt")}
    engine = penstock.compile(program, blas_machine(tmp_path), machine_options=CHEAP | options)
    assert isinstance(engine, Engine)
    (output,) = engine(x, w, r)
    np.testing.assert_array_equal(output, np.maximum(x @ w + r, 0))
    named = [op for op in engine.module.walk() if isinstance(op, GenericOp) and op.library_call is not None]
    source = emit_c(engine.module).source
    assert [op.library_call.data for op in named if op.library_call is not None] == ["sgemm"]
    assert "(int)128, (int)200, (int)160," in source
    assert "0 ? 1.0f : 0.0f" in source
    assert load_native(engine.module).run([x, w, r])[0].tolist() == output.tolist()
    assert "counters.macs += (int64_t)1 * 128 * 200 * 160;" in source
    assert source.index("openblas_set_num_threads(1);") > source.index("_run(")
    # The sum and the bound are left.
    assert source.count("linalg.generic over") == 2


def test_the_cheaper_one_is_chosen_by_the_numbers_of_the_machine(program: Path, tmp_path: Path) -> None:
    machine, found = blas_machine(tmp_path), list[bool]()
    for part in (1, 1000):
        options = {f"intrinsic.{name}.efficiency": f"[{part}, 100]" for name in ("sgemm", "sgemm_nt")}
        loaded = load_input(program)
        compile_module(loaded.module, loaded.ctx, machine, machine_options=CHEAP | options)
        found.append("schedule.tensorize" in schedules_text(loaded.ctx, loaded.ctx.schedules.applied))
    assert found == [False, True]


def test_what_is_measured_may_be_a_call_and_is_replayed(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_compiler()
    machine = blas_machine(tmp_path)

    def schedules(given: str | None, *, is_measured: bool = False) -> str:
        loaded = load_input(program)
        if given is not None:
            file = tmp_path / "given.mlir"
            file.write_text(given)
            loaded.ctx.schedules.given = read_schedules(file)
        compile_module(loaded.module, loaded.ctx, machine, measure=is_measured)
        return schedules_text(loaded.ctx, loaded.ctx.schedules.applied)

    monkeypatch.setattr(measure, "choose", lambda seconds: (len(seconds) - 1, "measured"))  # pyright: ignore
    text = schedules(None, is_measured=True)
    remark = '{remark = "reassociates: the library sums in an order of its own; measured"}'
    assert f"@sgemm {remark}" in text
    assert schedules(text) == text


def test_each_thread_calls_the_library_for_its_part(program: Path, tmp_path: Path) -> None:
    needs_compiler()
    program.write_text(PROGRAM.replace("128x", "1024x"))
    engine = penstock.compile(program, blas_machine(tmp_path), pipeline=CALLED, threads=2)
    assert isinstance(engine, Engine)
    rng = np.random.default_rng(7)
    x, w, r = (rng.integers(-8, 9, shape).astype(np.float32) for shape in ((1024, 160), (160, 200), (1024, 200)))
    np.testing.assert_array_equal(engine(x, w, r)[0], np.maximum(x @ w + r, 0))
    source = emit_c(engine.module).source
    part = source[: source.index("cblas_sgemm(")].rpartition("static void ")[2]
    assert "_part(" in part


def test_rows_that_overlap_are_taken_one_by_one(tmp_path: Path) -> None:
    text = """
    #mk = affine_map<(m, n, k) -> (m, k)>
    #kn = affine_map<(m, n, k) -> (k, n)>
    #mn = affine_map<(m, n, k) -> (m, n)>
    func.func @main(%x: memref<11xf32>, %b: memref<4x5xf32>, %y: memref<8x5xf32> {graph.output = "y"}) {
      %a = memref.reinterpret_cast %x to offset: [0], sizes: [8, 4], strides: [1, 1]
        : memref<11xf32> to memref<8x4xf32, strided<[1, 1]>>
      %zero = arith.constant 0.0 : f32
      linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
          outs(%y : memref<8x5xf32>) {
      ^bb0(%old: f32):
        linalg.yield %zero : f32
      }
      linalg.generic {
        indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"], library_call = "sgemm"
      } ins(%a, %b : memref<8x4xf32, strided<[1, 1]>>, memref<4x5xf32>) outs(%y : memref<8x5xf32>) {
      ^bb0(%p: f32, %q: f32, %s: f32):
        %m = arith.mulf %p, %q : f32
        %t = arith.addf %s, %m : f32
        linalg.yield %t : f32
      }
      func.return
    }"""
    needs_compiler()
    module = parse_text(make_context(), SourceText("overlap.mlir", text)).module
    machine = load_machine(blas_machine(tmp_path))
    Rewriter.insert_op(machine, InsertPoint.at_start(module.body.block))
    x, b = np.arange(11, dtype=np.float32), np.arange(20, dtype=np.float32).reshape(4, 5)
    source = emit_c(module)
    (output,) = NativeModule(source, load(build(source))).run([x, b])
    rows = np.lib.stride_tricks.sliding_window_view(x, 4)
    np.testing.assert_array_equal(output, rows @ b)


# plans, and what is missing


def test_a_plan_without_its_library_is_refused_in_a_line(program: Path, tmp_path: Path) -> None:
    needs_compiler()
    compiler, library = find_compiler(), tmp_path / "libpenblas.so"
    (tmp_path / "cblas.h").write_text((HEADERS / "cblas.h").read_text().partition("static inline void cblas")[0])
    own = (HEADERS / "cblas.h").read_text().replace("static inline void cblas", "void cblas")
    (tmp_path / "own.c").write_text(own)
    declared = own[own.index("void cblas") : own.index(") {", own.index("void cblas"))] + ");\n#endif\n"
    (tmp_path / "cblas.h").write_text((tmp_path / "cblas.h").read_text() + declared)
    assert compiler.run(("-shared", "-fPIC", "-o", str(library), "own.c"), tmp_path).returncode == 0
    flags = f"-I{tmp_path} -L{tmp_path} -Wl,-rpath,{tmp_path} -lpenblas"
    engine = penstock.compile(program, blas_machine(tmp_path, flags=flags), pipeline=CALLED)
    assert isinstance(engine, Engine)
    arrays = [np.ones(shape, np.float32) for shape in SHAPES]
    plan = tmp_path / "program.plan"
    engine.save(plan)
    loaded = Engine.load(plan)
    np.testing.assert_array_equal(loaded.run(arrays)[0], engine.run(arrays)[0])
    assert "-lpenblas" in plan.read_bytes()[4096:8192].decode("latin-1")


def test_a_library_that_is_not_there_is_named_by_a_plan(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.passes import toolchain

    def missing(path: str) -> None:
        raise OSError("libpenblas.so: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(toolchain.ctypes, "CDLL", missing)
    with pytest.raises(UserError, match=r"the code needs the library libpenblas\.so, which is not found here"):
        toolchain.load_code("plan", b"no code")
    with pytest.raises(UserError, match=r"needs the library libpenblas\.so"):
        toolchain.load(tmp_path / "code.so")


MISUSES = {
    "a library that is not there": ("", "", " -lno_such_library", ":5:1: error: programs for the machine"),
    "a header that is not there": ('headers = ["no_such.h"]', "", "", ":5:1: error: the C compiler refuses it: "),
    "a header that is no C": ('headers = ["broken.h"]', "", "", ":5:1: error: the C compiler refuses it: "),
    "a function that no header declares": (
        "",
        '[[intrinsic]]\nname = "sgemm"\nemit = "sgem({a}, {b}, {c}, {m}, {n}, {k});"\nsource = "cblas"\n'
        '[sources]\ncblas = "none"',
        "",
        ":8:1: error: the C compiler refuses it: implicit declaration of function",
    ),
    "a package that is not installed": ('package = "no_such_package"', "", "", ':5:1: error: the Python package "no_'),
}


@pytest.mark.parametrize(("code", "parts", "flags", "message"), MISUSES.values(), ids=list(MISUSES))
def test_what_the_compiler_refuses_of_a_machine_has_a_place_in_its_file(
    penstock: Command, program: Path, tmp_path: Path, code: str, parts: str, flags: str, message: str
) -> None:
    needs_compiler()
    (tmp_path / "broken.h").write_text("int broken(;\n")
    machine = blas_machine(tmp_path, code, parts, flags=f"-I{HEADERS} -I{tmp_path}{flags}")
    out = tmp_path / "program.plan"
    finished = penstock("compile", program, "--machine", machine, "-p", CALLED, "-o", out)
    assert finished.status == 1
    assert f"{machine}{message}" in finished.err, finished.err
    assert "Traceback" not in finished.err
    assert not out.exists()


@pytest.mark.parametrize("machine", ["host-blas", "host-blas-wheel"])
def test_openblas_computes_products_where_it_is_installed(program: Path, machine: str) -> None:
    needs_compiler()
    code = load_machine(machine).code()
    assert code is not None
    try:
        require_code(code)
    except UserError as error:
        pytest.skip(error.message)
    engine = penstock.compile(program, machine, pipeline=CALLED)
    rng = np.random.default_rng(9)
    x, w, r = (rng.standard_normal(shape).astype(np.float32) for shape in SHAPES)
    bound = 8 * np.sqrt(160) * np.finfo(np.float32).eps * (abs(x) @ abs(w) + abs(r))
    assert (abs(engine(x, w, r)[0] - np.maximum(x.astype(float) @ w + r, 0)) <= bound).all()


def test_a_compiler_that_takes_options_says_nothing() -> None:
    needs_compiler()
    assert complaint(find_compiler(), ["-lm"]) == ""
    assert "no_such_library" in complaint(find_compiler(), ["-lno_such_library"])
