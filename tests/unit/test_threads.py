# SPDX-License-Identifier: Apache-2.0
"""Programs of several threads: which loops run at once, and that results do not depend on how many there are."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
from in_c import agree, needs_compiler, needs_llvm
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper
from programs import verified
from sampling import sweep
from xdsl.dialects.builtin import ModuleOp

import penstock
from penstock.dialects.context import make_context
from penstock.dialects.diagnostics import InputWarning, UserError
from penstock.lowering.from_text import SourceText, parse_text
from penstock.passes.analysis.thread_safety import prove_threads
from penstock.passes.planning.thread_shares import Strips, largest_share, strips
from penstock.passes.toolchain import find_compiler
from penstock.runtime.engine import Backend, Engine
from penstock.runtime.interpreter import read_order
from penstock.runtime.native import load_native
from penstock.runtime.pass_manager import read_pipeline, run_passes

if TYPE_CHECKING:
    from tests.conftest import Command

Array = NDArray[Any]

ALWAYS = "default, parallelize{{threads={0} fork_cycles=0}}"
"""Loops in threads however little they do."""


def network() -> ModelProto:
    """Convolutions whose last tiles overlap, a pool, a softmax and a product."""
    generator = np.random.default_rng(5)

    def weight(name: str, *shape: int) -> Any:
        return numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32), name)

    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w1"], ["a"], "first", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["a"], ["b"], "relu"),
            helper.make_node("MaxPool", ["b"], ["c"], "pool", kernel_shape=[3, 3], strides=[2, 2]),
            helper.make_node("Conv", ["c", "w2"], ["d"], "second", kernel_shape=[1, 1]),
            helper.make_node("Softmax", ["d"], ["e"], "softmax", axis=1),
            helper.make_node("Flatten", ["e"], ["f"], "flat"),
            helper.make_node("MatMul", ["f", "w3"], ["y"], "product"),
        ],
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 23, 23])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [weight("w1", 32, 8, 3, 3), weight("w2", 24, 32, 1, 1), weight("w3", 24 * 121, 10)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


X = np.random.default_rng(6).standard_normal((1, 8, 23, 23)).astype(np.float32)


def compiled(
    threads: int,
    machine: str | None = "host-avx2",
    model: ModelProto | None = None,
    backend: Literal["native", "llvm"] = "native",
) -> Engine:
    needs_compiler() if backend == "native" else needs_llvm()
    text = ALWAYS.format(threads) if threads > 1 else None
    engine = penstock.compile(model or network(), machine, threads=threads, pipeline=text, backend=backend)
    assert isinstance(engine, Engine)
    return engine


@pytest.fixture(scope="module")
def engine() -> Engine:
    return compiled(2)


@pytest.fixture(scope="module", params=["native", "llvm"])
def of_either(request: pytest.FixtureRequest, engine: Engine) -> Engine:
    """In C, and in LLVM IR."""
    return engine if request.param == "native" else compiled(2, backend="llvm")


@cache
def of_one_thread(machine: str | None) -> bytes:
    return compiled(1, machine)(X)[0].tobytes()


@pytest.mark.parametrize(
    ("machine", "backend", "threads"),
    sweep(
        [
            (machine, backend, threads)
            for machine, backend in (("host-avx2", "native"), (None, "native"), ("host-avx2", "llvm"))
            for threads in (2, 3, 7)
        ],
        [("host-avx2", "native", 2), ("host-avx2", "native", 7), (None, "native", 3), ("host-avx2", "llvm", 3)],
    ),
)
def test_the_result_does_not_depend_on_the_number_of_threads(
    machine: str | None, backend: Literal["native", "llvm"], threads: int
) -> None:
    engine = compiled(threads, machine, backend=backend)
    assert f"threads = {threads} : i64" in str(engine.module)
    assert engine.threads == threads
    contexts = [engine.context(threads=each) for each in (1, 2, threads)]
    for context in contexts * 2:
        assert context(X)[0].tobytes() == of_one_thread(machine)


def test_the_interpreter_finds_no_race(engine: Engine) -> None:
    interpreted = Engine(engine.module.clone(), engine.ctx, engine.signature, "interpreter")
    for order in ("asap", "7"):
        interpreted.interleaving = read_order(order)
        np.testing.assert_allclose(interpreted(X)[0], engine(X)[0], 1e-4)


def test_contexts_run_at_once(of_either: Engine) -> None:
    inputs = [X * scale for scale in (1, 2, 3, 4)]
    expected = [of_either(x)[0].tobytes() for x in inputs]
    contexts = [of_either.context() for _ in inputs]

    def run(number: int) -> bytes:
        return contexts[number](inputs[number])[0].tobytes()

    with ThreadPoolExecutor(len(inputs)) as pool:
        for _ in range(5):
            assert list(pool.map(run, range(len(inputs)))) == expected


def test_threads_end_with_their_context(of_either: Engine) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/task"))

    if not Path("/proc/self/task").is_dir():
        pytest.skip("the system does not list threads")

    def becomes(expected: int) -> bool:
        # A thread that has been joined may be listed a little longer.
        return any(count() == expected or time.sleep(0.01) for _ in range(1000))

    before = 0
    while before != count():
        before = count()
        time.sleep(0.05)
    context = of_either.context()
    assert becomes(before + 1)
    del context
    assert becomes(before)


def test_a_child_of_fork_runs_on_alone(of_either: Engine) -> None:
    context = of_either.context()
    (expected,) = context(X)
    if (child := os.fork()) == 0:
        os._exit(0 if context(X)[0].tobytes() == expected.tobytes() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert context(X)[0].tobytes() == expected.tobytes()


def test_plans_keep_the_number_of_threads(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "network.plan"
    engine.save(path)
    loaded = Engine.load(path)
    assert loaded.threads == 2
    assert repr(loaded).endswith("; 2 threads>")
    one = Engine.load(path, threads=1)
    assert one.threads == pickle.loads(pickle.dumps(one)).threads == copy.copy(one).threads == 1
    assert loaded(X)[0].tobytes() == one(X)[0].tobytes() == engine(X)[0].tobytes()
    with pytest.raises(UserError, match="the program was compiled for 2 threads, not for 3"):
        Engine.load(path, threads=3)
    assert Engine.load(path, "interpreter").threads == 1


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_generated_c_is_clean(
    sanitizer: str, penstock: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("network.onnx").write_bytes(network().SerializeToString())
    X.tofile("x.bin")
    given = ("--machine", "host-avx2", "--threads", "2", "-p", ALWAYS.format(2), "--emit=c", "-o", "c", "-q")
    assert penstock("compile", "network.onnx", *given).status == 0
    monkeypatch.chdir(tmp_path / "c")
    text = Path("network.c").read_text()
    assert "-lm -pthread -o network\n" in text
    words = (*find_compiler().command, "-std=c11", "-O1", "-g", "-ffp-contract=off", "-w")
    files = ("network.c", "network_main.c", "-lm", "-pthread", "-o", "network")
    flags = (f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    built = subprocess.run([*words, *flags, *files], capture_output=True, text=True, check=False)
    if built.returncode and "error: " not in built.stderr:
        pytest.skip(f"no sanitizer: {built.stderr[-200:]}")
    assert built.returncode == 0, built.stderr
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    found = subprocess.run(["./network", "../x.bin"], capture_output=True, text=True, check=False, env=environment)
    assert (found.returncode, found.stderr) == (0, "")
    assert Path("output_0.bin").read_bytes() == engine(X)[0].tobytes()


# the decision


def parsed(text: str) -> ModuleOp:
    return parse_text(make_context(), SourceText("k.mlir", text)).module


def passed(text: str, pipeline: str) -> str:
    module = parsed(text)
    run_passes(make_context(), module, read_pipeline(pipeline))
    return str(module)


LOOP = """func.func private @k(%x: memref<{size}xf32>, %y: memref<{size}xf32>) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = arith.constant {size} : index
  scf.for %i = %c0 to %n step %c1 {{
    {body}
  }}
  func.return
}}
"""
COPY = "%v = memref.load %x[%i] : memref<{size}xf32>\n    memref.store %v, %y[{at}] : memref<{size}xf32>"


def loop(at: str, size: int = 100_000) -> str:
    return passed(LOOP.format(size=size, body=COPY.format(size=size, at=at)), "parallelize{threads=2}")


def test_iterations_that_write_different_elements_run_at_once() -> None:
    assert "scf.forall (%i) in (100000) {" in loop("%i")
    assert "} {threads = 2 : i64}" in loop("%i")


def test_iterations_that_write_one_element_do_not() -> None:
    assert "scf.forall" not in loop("%c0")


def test_a_loop_that_does_little_does_not() -> None:
    assert "scf.forall" not in loop("%i", 100)


OVERLAPPING = """func.func private @k(%x: memref<{size}xf32>, %y: memref<{size}xf32>) {{
  %c0 = arith.constant 0 : index
  %c8 = arith.constant 8 : index
  %n = arith.constant {size} : index
  %last = arith.constant {last} : index
  scf.for %i = %c0 to %n step %c8 {{
    %at = arith.minsi %i, %last : index
    %b = memref.alloc() : memref<8xf32>
    %xs = memref.subview %x[%at] [8] [1] : memref<{size}xf32> to memref<8xf32, strided<[1], offset: ?>>
    mem.copy %xs to %b : memref<8xf32, strided<[1], offset: ?>> to memref<8xf32>
    %ys = memref.subview %y[%at] [8] [1] : memref<{size}xf32> to memref<8xf32, strided<[1], offset: ?>>
    mem.copy %b to %ys : memref<8xf32> to memref<8xf32, strided<[1], offset: ?>>
  }}
  func.return
}}
"""


@pytest.mark.parametrize(("size", "threads", "strip"), [(101, 2, 6), (101, 3, 4), (60, 3, 4)])
def test_tiles_that_overlap_are_in_one_thread(size: int, threads: int, strip: int) -> None:
    text = passed(
        OVERLAPPING.format(size=size, last=size - 8),
        f"parallelize{{threads={threads} fork_cycles=0}}, mem-plan, mem-verify",
    )
    tiles = -(-size // 8)
    (end, step) = re.findall(r"scf.forall \(%i\) = \(0\) to \((\d+)\) step \((\d+)\)", text)[0]
    assert int(step) == 8 * strip
    slots = -(-int(end) // int(step))
    assert slots == tiles // strip
    # Each iteration has a buffer of its own.
    assert re.search(rf"mem.ring {slots} at 0 : !mem.ring<memref<8xf32>>", text)
    prove_threads(parsed(text))
    for fault in (("%1] : !mem.ring", "%c0] : !mem.ring"), (f"step ({step})", "step (8)")):
        with pytest.raises(UserError, match=r"iterations of scf\.forall cannot run in several threads"):
            prove_threads(parsed(text.replace(*fault)))


@pytest.mark.parametrize("size", [101, 60])
def test_iterations_have_buffers_of_their_own(size: int) -> None:
    needs_compiler()
    kernel = OVERLAPPING.format(size=size, last=size - 8)
    main = f"""func.func @main(
      %x: memref<{size}xf32> {{graph.name = "x"}}, %y: memref<{size}xf32> {{graph.output = "y"}}
    ) {{
      func.call @k(%x, %y) : (memref<{size}xf32>, memref<{size}xf32>) -> ()
      func.return
    }}"""
    module = parsed(passed(kernel + main, "parallelize{threads=3 fork_cycles=0}, mem-plan, mem-verify"))
    x = np.arange(size, dtype=np.float32)
    native = load_native(module)
    assert native.threads == 3
    for _ in range(50):
        np.testing.assert_array_equal(native.run([x])[0], x)


GIVEN = """func.func @main(%x: memref<64x5xf32> {{graph.name = "x"}}, %y: memref<64x5xf32> {{graph.output = "y"}}) {{
  {loop} {{
    %b = memref.alloc() : memref<5xf32>
    %xs = memref.subview %x[%i, 0] [1, 5] [1, 1] : memref<64x5xf32> to memref<5xf32, strided<[1], offset: ?>>
    %ys = memref.subview %y[%i, 0] [1, 5] [1, 1] : memref<64x5xf32> to memref<5xf32, strided<[1], offset: ?>>
    mem.copy %xs to %b : memref<5xf32, strided<[1], offset: ?>> to memref<5xf32>
    {barrier}
    mem.copy %b to %ys : memref<5xf32> to memref<5xf32, strided<[1], offset: ?>>
    memref.dealloc %b : memref<5xf32>
  }} {attributes}
  func.return
}}"""
"""Rows that are copied through a buffer of each iteration."""


def test_the_interpreter_has_one_thread() -> None:
    with pytest.warns(InputWarning, match="the interpreter has one thread, not 2"):
        engine = penstock.compile(network(), backend="interpreter", threads=2)
    assert isinstance(engine, Engine)
    with pytest.raises(UserError, match="the interpreter has one thread, not 2"):
        engine.context(threads=2)


@pytest.mark.parametrize("machine", [None, "host-avx2"])
def test_loops_of_text_that_is_given_keep_their_threads(tmp_path: Path, machine: str | None) -> None:
    needs_compiler()
    text = GIVEN.format(loop="scf.forall (%i) in (64)", barrier="", attributes="{threads = 3 : i64}")
    (tmp_path / "given.mlir").write_text(text)
    engine = penstock.compile(tmp_path / "given.mlir", machine)
    assert isinstance(engine, Engine)
    assert engine.threads == 3
    x = np.random.default_rng(0).random((64, 5), np.float32)
    for _ in range(50):
        np.testing.assert_array_equal(engine.run([x])[0], x)
    # What the compiler wrote is such a text.
    (tmp_path / "again.mlir").write_text(str(engine.module))
    again = penstock.compile(tmp_path / "again.mlir")
    assert isinstance(again, Engine)
    assert again.threads == 3
    np.testing.assert_array_equal(again.run([x])[0], x)


def test_what_keeps_a_loop_from_its_threads_is_said() -> None:
    text = GIVEN.format(loop="scf.forall (%i) in (64)", barrier="gpu.barrier", attributes="{threads = 3 : i64}")
    with pytest.warns(InputWarning, match=r"one after the other, without threads: gpu\.barrier is in it"):
        assert "scf.forall" not in passed(text, "forall-to-for")


def test_a_loop_with_calls_runs_in_order(tmp_path: Path) -> None:
    """What is not known of them is not refused: nothing of such a loop runs in threads."""
    kernel = GIVEN.format(
        loop="scf.forall (%i) in (64)", barrier="func.call @g() : () -> ()", attributes="{threads = 3}"
    )
    (tmp_path / "given.mlir").write_text(kernel + "\nfunc.func private @g() { func.return }")
    with pytest.warns(InputWarning, match=r"without threads: func\.call is in it"):
        engine = penstock.compile(tmp_path / "given.mlir", backend="llvm")
    assert isinstance(engine, Engine)
    x = np.random.default_rng(0).random((64, 5), np.float32)
    np.testing.assert_array_equal(engine.run([x])[0], x)


def test_a_buffer_that_an_iteration_frees_is_its_own() -> None:
    loop = "%c0 = arith.constant 0 : index %c1 = arith.constant 1 : index %n = arith.constant 64 : index"
    text = GIVEN.format(loop=f"{loop} scf.for %i = %c0 to %n step %c1", barrier="", attributes="")
    parallel = passed(text, "parallelize{threads=2 fork_cycles=0}")
    assert "mem.ring 2" in parallel
    assert "memref.dealloc" not in parallel
    assert "threads = 2" in parallel
    # One that all of them free is not.
    alloc = "    %b = memref.alloc() : memref<5xf32>\n"
    hoisted = text.replace(alloc, "").replace(loop, alloc + loop)
    assert "threads" not in passed(hoisted, "parallelize{threads=2 fork_cycles=0}")


@pytest.mark.parametrize("backend", ["native", "llvm", "interpreter"])
def test_a_loop_without_dims_has_one_iteration(backend: Backend) -> None:
    text = """func.func @main(%x: memref<4xf32> {graph.name = "x"}, %y: memref<4xf32> {graph.output = "y"}) {
      scf.forall () in () {
        mem.copy %x to %y : memref<4xf32> to memref<4xf32>
      } {threads = 2 : i64}
      func.return
    }"""
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(Engine(parsed(text), make_context(), None, backend).run([x])[0], x)


def test_strips() -> None:
    assert strips(38, 2) == Strips(2, 19, 0)
    assert strips(7, 2, least=2) == Strips(2, 3, 1)
    assert strips(5, 8) == Strips(5, 1, 0)
    for iterations in range(1, 60):
        for threads in (1, 2, 3, 7, 16):
            found = strips(iterations, threads)
            assert found.count * found.size + found.rest == iterations
            assert found.longest(threads) <= max(largest_share(iterations, threads) * 1.04, 1)


def test_names_of_parallel_loops_are_taken_by_nothing_else() -> None:
    """A kernel and a value are called as what belongs to the loop of another kernel would be."""

    def kernel(name: str, op: str) -> str:
        return f"""func.func private @{name}(%given: memref<8x4xf32>, %own: memref<8x4xf32>) {{
          %zero = arith.constant 0 : index
          %s = memref.load %given[%zero, %zero] : memref<8x4xf32>
          scf.forall (%n, %first) in (8, 4) {{
            %a = memref.load %given[%n, %first] : memref<8x4xf32>
            %b = arith.{op} %a, %s : f32
            memref.store %b, %own[%n, %first] : memref<8x4xf32>
          }} {{threads = 2 : i64}}
          func.return
        }}"""

    type = "memref<8x4xf32>"
    calls = [f"func.call @{name}(%x, %{out}) : ({type}, {type}) -> ()" for name, out in (("k", "y"), ("k_loop0", "z"))]
    text = "\n".join([kernel("k", "addf"), kernel("k_loop0", "mulf"), kernel("k_loop0_part", "subf")])
    calls.append(f"func.call @k_loop0_part(%x, %w) : ({type}, {type}) -> ()")
    outputs = ", ".join(f'%{name}: {type} {{graph.output = "{name}"}}' for name in "yzw")
    body = "\n".join(calls)
    text += f'\nfunc.func @main(%x: {type} {{graph.name = "x"}}, {outputs}) {{{body} func.return }}'
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    y, z, w = agree(verified(text), [x])
    np.testing.assert_array_equal([y, z, w], [x + x[0, 0], x * x[0, 0], x - x[0, 0]])
