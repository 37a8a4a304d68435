# SPDX-License-Identifier: Apache-2.0
"""Operator kernels: locals in scopes, explicit copies, and what becomes of the lines of their text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from penstock import kernel
from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.mem import BufferOp
from penstock.passes.accel.accel_check_hazards import check_hazards
from penstock.passes.schedule.ordering.tokens import set_dependencies
from penstock.runtime.compiler import compile_module, load_input

if TYPE_CHECKING:
    from tests.conftest import Command

MACHINE = ("--machine", "neural-accelerator")

REUSE = """kernel reuse(f32 x[N], f32 z[N]) -> (f32 y[N], f32 w[N]) {
    neural f32 a[N] = load(x)
    neural f32 b[N] = load(z)
    b = a + b
    store(y, b)
    neural f32 c[N] = exp(a)
    store(w, c)
}
"""
"""Two of three locals of 243 KiB are alive at a time, in a scope of 512 KiB: one lies where another was."""

ROWS = """kernel rows(f32 x[R, N], f32 z[R, N]) -> (f32 y[R, N]) {
    for r in 0:R {
        for i in 0:N:64 {
            neural f32 row[64] = load(x[r, i:+64 else 0])
            f32 other[64] = load(z[r, i:+64 else 0])
            row = exp(row) * other
            store(y[r, i:+64], row)
        }
    }
}
"""

TABLE = """kernel mirror(f32 x[R, N], f32 s[N]) -> (f32 y[R, N]) {
    f32 table[R, N]
    f32 scale[N] = load(s)
    for r in 0:R {
        table[r, :] = exp(x[r, :])
    }
    for r in 0:R {
        y[R - 1 - r, :] = table[r, :] * scale
    }
}
"""


def arrays(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(shape).astype(np.float32) for _ in range(2))  # pyright: ignore[reportReturnType]


@pytest.fixture
def reuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reuse.pk").write_text(REUSE)
    return Path("reuse.pk")


def compiled(path: Path, machine: str | None, **sizes: int) -> ModuleOp:
    program = load_input(path, dims=sizes)
    compile_module(program.module, program.ctx, machine)
    return program.module


# scopes


def test_two_live_ranges_share_a_scope_and_leave_26_kib(penstock: Command, reuse: Path) -> None:
    sizes = ("--dim", f"N={243 * 256}")
    done = penstock("plan", reuse, *MACHINE, *sizes, "-v")
    assert done.status == 0, done.err
    title, *picture = done.out.splitlines()[3:]
    left = 26 * 1024
    assert title == f'@reuse, scope "neural": {2 * 243 * 1024:,} of {512 * 1024:,} bytes by portfolio, {left:,} left'
    assert picture[0].split("|")[1].replace(" ", "").strip("b").strip("c") == ""
    assert set(picture[11].split("|")[1].strip()) == {"a"}
    places = [line.split("bytes, ")[1] for line in picture if "memref" in line]
    assert places == ["reuse.pk:2:5, at 0", "reuse.pk:3:5, at 248,832", "reuse.pk:6:5, at 248,832"]
    done = penstock("plan", reuse, *MACHINE, *sizes, "--map", "reuse.svg")
    assert done.status == 0, done.err
    drawn = Path("reuse.svg").read_text()
    assert "26,624 left" in drawn
    assert "%c: 248,832 bytes at 248,832, alive at [10, 14), from reuse.pk:6:5" in drawn


def test_a_declared_scope_is_part_of_the_schedule_of_the_kernel(penstock: Command, reuse: Path) -> None:
    sizes = (*MACHINE, "--dim", "N=256")
    assert penstock("compile", reuse, *sizes, "--emit=schedule", "-o", "own.mlir").status == 0
    text = Path("own.mlir").read_text()
    assert [name for name in "abc" if f'schedule.set_scope %{name} "neural"' in text] == ["a", "b", "c"]
    for name, flags in (("first", ()), ("again", ("--schedule", "own.mlir"))):
        done = penstock("compile", reuse, *sizes, *flags, "--emit=accel", "-o", f"{name}.mlir")
        assert done.status == 0, done.err
    assert Path("first.mlir").read_bytes() == Path("again.mlir").read_bytes()


PRODUCT = """kernel product[B = 16](f32 a[N, K], f32 b[K, M]) -> (f32 c[N, M]) {
    grid i in 0:N:B, j in 0:M:B {
        acc f32 sum[B, B] = 0
        for k in 0:K:B {
            spad f32 left[B, B] = load(a[i:+B, k:+B else 0])
            spad f32 right[B, B] = load(b[k:+B, j:+B else 0])
            sum += dot(left, right)
        }
        store(c[i:+B, j:+B], sum)
    }
}
"""


def test_slots_and_tokens_are_found_for_locals_in_scopes(penstock: Command) -> None:
    plain = PRODUCT.replace("acc ", "").replace("spad ", "").replace("store(c[i:+B, j:+B], sum)", "c[i:+B, j:+B] = sum")
    cycles: list[str] = []
    for name, text in (("scopes", PRODUCT), ("plain", re.sub(r"load\((.*)\)", r"\1", plain))):
        Path(f"{name}.pk").write_text(text)
        sizes = ("--dim", "N=60", "--dim", "K=48", "--dim", "M=64", "--machine", "gemmini-fp32")
        done = penstock("simulate", f"{name}.pk", *sizes)
        assert done.status == 0, done.err
        cycles.append(done.out.splitlines()[0])
    assert cycles[0] == cycles[1]


def test_a_scope_that_is_declared_is_kept_in_the_text_of_the_tensor_level(penstock: Command, reuse: Path) -> None:
    sizes = ("--dim", "N=256")
    assert penstock("compile", reuse, *sizes, "--emit=tensor", "-o", "tensor.mlir").status == 0
    assert Path("tensor.mlir").read_text().count('{mem.scope = "neural"}') == 4
    for given in ((reuse, *sizes), ("tensor.mlir",)):
        assert penstock("simulate", *given, *MACHINE, "--json", "out.json", "-q").status == 0
        kernels = json.loads(Path("out.json").read_text())["kernels"]
        assert [each["kernel"] for each in kernels] == ["reuse"]


def test_the_host_has_no_scopes_and_says_so(penstock: Command, reuse: Path) -> None:
    x = np.arange(8, dtype=np.float32)
    np.save("x.npy", x)
    done = penstock("run", reuse, "--input", "x.npy", "--input", "x.npy", "--output-dir", "out")
    assert done.status == 0, done.err
    np.testing.assert_array_equal(np.load("out/output_0.npy"), x + x)
    assert f'{reuse.name}:2:5: remark: "a" is off chip: the host has no scope "neural"' in done.err


@pytest.mark.parametrize("declared", ["neural f32 t[N] = load(x)", "t = load(x)", "f32 t[N] = x"])
def test_a_local_that_fits_goes_on_chip_without_being_asked(declared: str) -> None:
    text = f"kernel f(f32 x[N]) -> (f32 y[N]) {{\n for i in 0:2 {{\n {declared}\n y = exp(t)\n}}\n}}\n"
    module = kernel(text).on("neural-accelerator").mlir("loop", N=64)
    assert "mem.copy %x to %t" in module
    (made,) = [line for line in module.splitlines() if "%t = mem.buffer" in line]
    assert made.endswith('memref<64xf32, "neural">')


def test_a_local_that_only_copies_use_goes_on_chip_too() -> None:
    text = "kernel f(f32 x[N]) -> (f32 y[N]) {\n t = load(x)\n store(y, t)\n}\n"
    (x, _), f = arrays(100), kernel(text)
    np.testing.assert_array_equal(f(x), x)
    np.testing.assert_array_equal(f.on("neural-accelerator", "interpreter")(x), x)


def test_a_local_that_does_not_fit_stays_off_chip_and_says_why(penstock: Command, tmp_path: Path) -> None:
    (tmp_path / "mirror.pk").write_text(TABLE)
    done = penstock("simulate", "mirror.pk", *MACHINE, "--dim", "R=64", "--dim", "N=4096")
    assert done.status == 0, done.err
    reason = 'it takes 1,048,576 bytes, and the rest leaves 475,136 of "neural"'
    assert f'mirror.pk:2:5: remark: "table" is off chip: {reason}' in done.err
    x, _ = arrays(9, 64)
    scale = np.full(64, 2, np.float32)
    on_machine = kernel("mirror.pk").on("neural-accelerator", "interpreter")
    np.testing.assert_allclose(on_machine(x, scale), 2 * np.exp(x[::-1]), rtol=1e-6)


def test_an_element_of_a_local_of_one_is_stored() -> None:
    text = "kernel f(f32 x[N]) -> (f32 y[1]) {\n f32 t[1]\n t[0] = sum(x)\n store(y, t)\n}\n"
    np.testing.assert_array_equal(kernel(text)(np.ones(5, np.float32)), [5])


# explicit copies


def test_tiles_that_are_loaded_and_stored_compute_what_slices_do() -> None:
    (x, z), f = arrays(3, 100), kernel(ROWS)
    expected = np.exp(x) * z
    np.testing.assert_allclose(f(x, z), expected, rtol=1e-6)
    np.testing.assert_allclose(f.on("neural-accelerator", "interpreter")(x, z), expected, rtol=1e-6)


def test_a_part_of_a_local_is_loaded_and_stored() -> None:
    text = """kernel f(f32 x[N], f32 z[N]) -> (f32 y[N], f32 s[2]) {
    f32 both[2, N]
    both[0, :] = load(x)
    store(both[1, :], 2 * z)
    t = load(both[1, :])
    y = t + both[0, :]
    store(s[0], x[0])
    f32 two = 2
    store(s[1], two)
}
"""
    (x, z), f = arrays(10), kernel(text)
    y, s = f(x, z)
    np.testing.assert_array_equal(y, 2 * z + x)
    np.testing.assert_array_equal(s, [x[0], 2])


def test_a_copy_in_a_branch_chooses_elements() -> None:
    text = "kernel f(f32 x[N], f32 z[N]) -> (f32 y[N]) {\n t = x\n if x[0] > 0 {\n t = load(z)\n}\n store(y, t)\n}\n"
    (x, z), f = arrays(5), kernel(text)
    for first in (1, -1):
        x[0] = first
        np.testing.assert_array_equal(f(x, z), z if first > 0 else x)


COPIES = """kernel f(f32 x[N]) -> (f32 y[N], f32 w[N]) {
    a = load(x)
    b = load(x)
    unread = load(x)
    for i in 0:2 {
        c = load(x)
        y = a + c
    }
    w = b + 1
}
"""


@pytest.mark.parametrize(("machine", "op"), [(None, "mem.copy"), ("neural-accelerator", "accel.dma")])
def test_no_pass_drops_a_copy_or_moves_one_out_of_a_loop(machine: str | None, op: str) -> None:
    text = kernel(COPIES).on(machine).mlir("accel", N=64)
    loads = [line for line in text.splitlines() if op in line and " %x to" in line]
    assert len(loads) == 4
    assert sum(line.startswith("      ") for line in loads) == 1


def test_the_host_copies_what_it_is_asked_to(tmp_path: Path) -> None:
    text = "kernel f(f32 x[N]) -> (f32 y[N]) {\n t = load(x)\n u = t + 1\n store(y, u)\n}\n"
    assert kernel(text).mlir("loop", N=64).count("mem.copy") == 2


def test_an_argument_that_is_copied_is_not_kept_on_chip(tmp_path: Path) -> None:
    text = """builtin.module {
  func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
    %0 = graph.kernel @first(%x) : (tensor<64xf32>) -> tensor<64xf32>
    %1 = graph.kernel @second(%0) : (tensor<64xf32>) -> tensor<64xf32>
    func.return %1 : tensor<64xf32>
  }
"""
    dmas: list[int] = []
    for body in ("t = load(x)\n store(y, exp(t))", "y = exp(x)"):
        one = f"kernel first(f32 x[N]) -> (f32 y[N]) {{\n {body}\n}}\n"
        parts = [kernel(one.replace("first", name)).mlir(N=64) for name in ("first", "second")]
        functions = [part[part.index("  func.func private") : part.rindex("}")] for part in parts]
        (tmp_path / "two.mlir").write_text(text + "".join(functions) + "}\n")
        module = compiled(tmp_path / "two.mlir", "neural-accelerator")
        dmas.append(sum(isinstance(op, DmaOp) for op in module.walk()))
    assert dmas == [4, 2]


# locations


def test_every_command_and_buffer_points_at_its_line(reuse: Path) -> None:
    module = compiled(reuse, "neural-accelerator", N=256)
    (function,) = [op for op in module.ops if op.attributes.get("device") is not None]
    places = [location_of(op) for op in function.walk() if isinstance(op, DmaOp | ExecOp | BufferOp)]
    assert {place.rpartition(":")[0].rpartition("/")[2] for place in places} == {f"reuse.pk:{n}" for n in range(2, 8)}


def test_a_remark_points_at_its_line(penstock: Command) -> None:
    Path("erf.pk").write_text("kernel f(f32 x[N]) -> (f32 y[N]) {\n    for i in 0:1 {\n        y = erf(x)\n    }\n}\n")
    done = penstock("compile", "erf.pk", *MACHINE, "--dim", "N=64", "--emit=loop", "-o", "out.mlir", "-v")
    assert done.status == 0, done.err
    assert "on the host: @f erf.pk:1:1: erf.pk:3:13: no intrinsic computes math.erf" in done.err


def test_a_simulated_command_points_at_its_line(penstock: Command, reuse: Path) -> None:
    done = penstock("simulate", reuse, *MACHINE, "--dim", "N=256", "--trace", "trace.json", "-q")
    assert done.status == 0, done.err
    text = Path("trace.json").read_text()
    assert all(f"reuse.pk:{line}:" in text for line in range(2, 8))


def test_a_hazard_points_at_its_line(reuse: Path) -> None:
    module = compiled(reuse, "neural-accelerator", N=256)
    first = next(op for op in module.walk() if isinstance(op, ExecOp))
    set_dependencies(first, ())
    with pytest.raises(UserError) as caught:
        check_hazards(module)
    assert caught.value.loc is not None
    assert caught.value.loc.startswith("reuse.pk:4:")
    assert any("reuse.pk:3:" in note or "reuse.pk:2:" in note for note in (caught.value.message, *caught.value.notes))


CARRIED = {
    "mirrored": """kernel f(f32 x[N, N], f32 z[N, N]) -> (f32 y[N, N]) {
        f32 a[N, N] = x
        for t in 0:3 {
            a[i, j] = a[N - 1 - i, j] + z[i, j]
        }
        y = a
    }""",
    "exchanged": """kernel f(f32 x[N, N], f32 z[N, N]) -> (f32 y[N, N]) {
        neural f32 a[N, N] = load(x)
        neural f32 b[N, N] = load(z)
        for t in 0:3 {
            c = a
            a = b + 1
            b = c
        }
        y = a * b
    }""",
    "two back": """kernel f(f32 x[N, N], f32 z[N, N]) -> (f32 y[N, N]) {
        f32 a[N, N] = x
        f32 b[N, N] = z
        for t in 0:3 {
            f32 c[N, N] = a + b
            a = b
            b = c
        }
        y = a * b
    }""",
}


@pytest.mark.parametrize("name", CARRIED)
def test_what_an_iteration_hands_on_from_another_place_is_copied_on_chip(name: str) -> None:
    x, z = arrays(8, 8)
    function = kernel(CARRIED[name])
    np.testing.assert_allclose(function.on("neural-accelerator")(x, z), function(x, z), rtol=1e-6)
