# SPDX-License-Identifier: Apache-2.0
"""Building, caching, loading and running generated C."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.parser import Parser

from penstock.dialects.context import make_context
from penstock.dialects.cpu import chosen_cpu
from penstock.dialects.diagnostics import UserError
from penstock.lowering.to_c import CSource, emit_c
from penstock.passes import toolchain as compilers
from penstock.passes.code_cache import cache_directory
from penstock.passes.toolchain import Compiler, CompilerFault, find_compiler, load
from penstock.runtime.native import NativeModule, build, load_native

Array = NDArray[Any]


@pytest.fixture
def compiler() -> Compiler:
    try:
        return find_compiler()
    except UserError:
        pytest.skip("no C compiler")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("PENSTOCK_CACHE", str(folder))
    return folder


def scaling(factor: str = "2.0", size: int = 1000) -> CSource:
    """o = (x + w) * factor, by way of the arena, so that a context that is shared would show."""
    type = f"memref<{size}xf32>"

    def generic(body: str, ins: str, out: str, count: int) -> str:
        maps = ", ".join(["affine_map<(i) -> (i)>"] * (count + 1))
        ins = f"ins({ins} : {', '.join([type] * count)})"
        args = ", ".join(f"%e{number}: f32" for number in range(count + 1))
        return f"""linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}
            {ins} outs({out} : {type}) {{
        ^bb0({args}):
          {body}
          linalg.yield %r : f32
        }}"""

    text = f"""
    func.func @main(%x: {type} {{graph.name = "x"}}, %w: {type} {{graph.weight = "w"}},
                    %o: {type} {{graph.output = "o"}}) {{
      %b = mem.buffer at 64 : {type}
      {generic("%r = arith.addf %e0, %e1 : f32", "%x, %w", "%b", 2)}
      {generic(f"%f = arith.constant {factor} : f32 %r = arith.mulf %e0, %f : f32", "%b", "%o", 1)}
      func.return
    }}"""
    return emit_c(Parser(make_context(), text).parse_module())


def loaded(source: CSource) -> NativeModule:
    return NativeModule(source, load(build(source)))


# the cache


def test_the_same_program_is_built_once(compiler: Compiler, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(scaling())
    assert first.parent == cache == cache_directory()

    def refuse(*_: Any) -> Any:
        raise AssertionError("the compiler was called again")

    monkeypatch.setattr(Compiler, "run", refuse)
    assert build(scaling()) == first
    with pytest.raises(AssertionError, match="called again"):
        build(scaling("3.0"))


def test_another_program_another_compiler_and_other_flags_are_built_anew(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(scaling())
    assert build(scaling("3.0")) != first
    monkeypatch.setenv("CC", f"{compiler.command[0]} -DOTHER")
    assert build(scaling()) != first


def test_only_finished_libraries_are_in_the_cache(compiler: Compiler, cache: Path) -> None:
    library = build(scaling())
    assert [path.name for path in cache.iterdir()] == [library.name]


def test_the_cache_is_in_the_users_cache_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PENSTOCK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "penstock"


# the compiler


def test_without_a_compiler_the_message_says_what_helps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compilers, "find_spec", lambda name: None)  # pyright: ignore
    with pytest.raises(UserError, match="no C compiler is found") as refusal:
        build(scaling())
    assert "interpreter backend" in refusal.value.notes[1]
    assert refusal.value.status == 1


def test_a_compiler_that_is_named_and_missing_is_an_error_even_if_another_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O1")
    with pytest.raises(UserError, match='CC names the C compiler "no-such-compiler"'):
        find_compiler()


def test_a_compiler_that_compiles_nothing_is_the_users_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho 'cannot find crt1.o' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(UserError, match=r"does not compile an empty function: cannot find crt1\.o"):
        build(scaling())


def test_flags_that_a_compiler_does_not_know_are_left_out(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tmp_path / "plain-cc"
    wishes = (chosen_cpu().flags, *compilers.WISHED_FLAGS)
    refused = "\n".join(f'    {wish[0]}) echo "unknown option" >&2; exit 1;;' for wish in wishes)
    plain.write_text(
        f'#!/bin/sh\nfor word in "$@"; do\n  case "$word" in\n{refused}\n  esac\ndone\n'
        f'exec {compiler.command[0]} "$@"\n'
    )
    plain.chmod(0o755)
    monkeypatch.setenv("CC", str(plain))
    assert find_compiler().flags() == compilers.NEEDED_FLAGS
    assert loaded(scaling(size=4)).run([np.ones(4, np.float32)], [np.ones(4, np.float32)])[0].tolist() == [4.0] * 4


def test_code_that_the_compiler_refuses_is_kept_and_named(compiler: Compiler) -> None:
    source = scaling()
    broken = replace(source, entry=source.entry.replace("return ctx->fault;", "return nothing;"))
    with pytest.raises(CompilerFault, match="refused generated code") as fault:
        build(broken)
    kept = fault.value.kept / "main.c"
    assert kept.parent.parent == cache_directory()
    assert str(kept) in str(fault.value)
    assert "return nothing;" in kept.read_text()


# running


def test_contexts_run_at_the_same_time(compiler: Compiler) -> None:
    size = 200_000
    module = loaded(scaling(size=size))
    weight = np.ones(size, np.float32)
    wrong: list[int] = []

    def work(number: int) -> None:
        context = module.new_context()
        for _ in range(50):
            (out,) = context([np.full(size, number, np.float32)], [weight])
            if not np.all(out == 2 * (number + 1)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_threads_that_share_a_context_take_turns(compiler: Compiler) -> None:
    size = 200_000
    module = loaded(scaling(size=size))
    weight = np.ones(size, np.float32)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(50):
            (out,) = module.run([np.full(size, number, np.float32)], [weight])
            if not np.all(out == 2 * (number + 1)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_outputs_of_two_runs_are_different_arrays(compiler: Compiler) -> None:
    module = loaded(scaling(size=4))
    weight = np.zeros(4, np.float32)
    (first,) = module.run([np.ones(4, np.float32)], [weight])
    (second,) = module.run([np.zeros(4, np.float32)], [weight])
    assert first.tolist() == [2.0] * 4
    assert second.tolist() == [0.0] * 4


def test_arrays_that_are_not_contiguous_are_taken(compiler: Compiler) -> None:
    module = loaded(scaling(size=4))
    x = np.arange(8, dtype=np.float32)[::2]
    np.testing.assert_array_equal(module.run([x], [np.zeros(4, np.float32)])[0], 2 * x)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "takes 1 inputs, and 0 were given"),
        ([np.zeros(5, np.float32)], r'the input "x" has the shape \(5,\)'),
        ([np.zeros(4, np.float64)], "elements of type float64"),
        ([np.zeros(4, np.int32)], "elements of type int32"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(compiler: Compiler, inputs: list[Array], message: str) -> None:
    module = loaded(scaling(size=4))
    with pytest.raises(UserError, match=message):
        module.run(inputs, [np.zeros(4, np.float32)])


def test_unsigned_integers_are_taken_as_the_signless_ones_of_their_width(compiler: Compiler) -> None:
    text = """func.func @main(%x: memref<3xi8> {graph.name = "x"}, %o: memref<3xi8> {graph.output = "o"}) {
      mem.copy %x to %o : memref<3xi8> to memref<3xi8>
      func.return
    }"""
    module = load_native(Parser(make_context(), text).parse_module())
    assert module.run([np.array([1, 200, 255], np.uint8)])[0].tolist() == [1, -56, -1]
    with pytest.raises(UserError, match="elements of type bool"):
        module.run([np.array([True, False, True])])


def test_the_context_is_as_large_as_the_plan_says(compiler: Compiler) -> None:
    source = scaling(size=1000)
    assert source.arena_bytes == 64 + 4000
    assert [spec.name for spec in (*source.inputs, *source.weights, *source.outputs)] == ["x", "w", "o"]
    size = loaded(source).context_bytes
    assert 64 + 4000 <= size < 64 + 4000 + 256
