# SPDX-License-Identifier: Apache-2.0
"""The CPU that code is made for: the one at hand, or a narrower one that `$PENSTOCK_CPU` names."""

from __future__ import annotations

import platform
import re
import shlex
from pathlib import Path

import pytest
from in_c import needs_compiler

import penstock
from penstock.dialects import cpu
from penstock.dialects.cpu import CPUS, FEATURES, VARIABLE, Cpu, chosen_cpu
from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_machine_toml import load_machine
from penstock.lowering.to_c.prelude import prelude
from penstock.lowering.to_c.vectors import VECTOR
from penstock.passes.toolchain import build_library, find_compiler
from penstock.runtime.engine import Engine

HERE = [each for each in CPUS if platform.machine().lower() in each.processors]


def name_of(each: Cpu) -> str:
    return str(each.name)


def at_hand(monkeypatch: pytest.MonkeyPatch, features: frozenset[str] | None) -> None:
    monkeypatch.setattr(cpu, "_features_at_hand", lambda: features)


def refused(monkeypatch: pytest.MonkeyPatch, name: str) -> UserError:
    monkeypatch.setenv(VARIABLE, name)
    with pytest.raises(UserError) as error:
        chosen_cpu()
    return error.value


@pytest.mark.parametrize("each", CPUS, ids=name_of)
def test_native_is_the_machine_of_the_best_cpu_whose_features_there_are(
    each: Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    at_hand(monkeypatch, each.needs | {"fpu", "rtm"})
    assert chosen_cpu().machine == each.machine
    assert load_machine("native").machine_name == each.machine
    assert load_machine("native").is_host


def test_native_is_any_host_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    at_hand(monkeypatch, None)
    assert load_machine("native").machine_name == "host"


@pytest.mark.parametrize("each", HERE, ids=name_of)
def test_machine_flags_and_cache_follow_the_name(each: Cpu, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_compiler()
    monkeypatch.delenv(VARIABLE, raising=False)
    before = find_compiler().identity
    # Nothing is executed, so the CPU at hand need not have the features.
    at_hand(monkeypatch, None)
    monkeypatch.setenv(VARIABLE, str(each.name))
    assert chosen_cpu() == each
    assert load_machine("native").machine_name == each.machine
    assert find_compiler().identity != before
    try:
        find_compiler().flags()
    except UserError:
        pytest.skip("an old compiler, which does not know the CPU")
    assert set(find_compiler().features()) == each.features & set(FEATURES.values())


def test_a_compiler_that_does_not_know_a_named_cpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_compiler()
    if not HERE:
        pytest.skip("no CPU of this instruction set has a name")
    (cc := tmp_path / "cc").write_text(
        '#!/bin/sh\ncase "$*" in *-march=[xa]*) echo "bad value" >&2; exit 1;; esac\n'
        f'exec {shlex.join(find_compiler().command)} "$@"\n'
    )
    cc.chmod(0o755)
    at_hand(monkeypatch, None)
    monkeypatch.setenv("CC", str(cc))
    monkeypatch.setenv(VARIABLE, name_of(HERE[-1]))
    with pytest.raises(
        UserError, match=rf'does not compile for the CPU "{HERE[-1].name}" of PENSTOCK_CPU: it refuses -march='
    ):
        find_compiler().flags()
    monkeypatch.delenv(VARIABLE)
    assert "-O3" in find_compiler().flags()


def used(lanes: int, element: str) -> str:
    """A function that calls every helper of a vector."""
    name = f"{element}x{lanes}"
    calls = f"pen_held_{name}(pen_splat_{name}(1)) + (pen_{name})pen_unsigned_{name}(a[1])"
    if element.startswith("f"):
        calls = (
            f"pen_maximum_{name}(pen_minimum_{name}(pen_splat_{name}(1), a[1]), pen_round_even_{name}("
            f"pen_fma_{name}(a[0], a[1], pen_every_second_{name}((const void *)a))))"
        )
    return f"void use_{name}(pen_{name} *a);\nvoid use_{name}(pen_{name} *a) {{ a[0] = {calls}; }}\n"


@pytest.mark.parametrize("each", HERE, ids=name_of)
def test_the_compiler_takes_vectors_of_every_machine_for_every_cpu(each: Cpu, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_compiler()
    at_hand(monkeypatch, None)
    monkeypatch.setenv(VARIABLE, str(each.name))
    sizes = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "f32": 4, "f64": 8}
    vectors = [(width // size, element) for element, size in sizes.items() for width in (16, 32, 64)]
    helpers = prelude([f"{VECTOR}{element}x{lanes}" for lanes, element in vectors], {})
    # It is not loaded, so the CPU at hand need not execute it.
    includes = "#include <math.h>\n#include <stdint.h>\n"
    build_library("vectors", {"vectors.c": "\n".join([includes, helpers, *(used(*vector) for vector in vectors)])})


def test_the_documentation_lists_them(repository: Path) -> None:
    text = (repository / "docs" / "commands.md").read_text()
    lines = re.findall(r"\| `([a-z0-9-]+)` \| `(host[a-z0-9-]*)` \| `(-march[^`]*)` \|", text)
    assert lines == [(each.name, each.machine, " ".join(each.flags)) for each in CPUS]


def test_the_features_that_code_needs_are_those_of_the_cpu() -> None:
    needs_compiler()
    assert set(find_compiler().features()) <= chosen_cpu().features
    assert cpu.features_of_macros(["__AVX2__", "__FMA__", "__OTHER__"]) == ("fma", "avx2")


def test_a_name_that_is_not_known_is_answered_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = refused(monkeypatch, "avx-2")
    assert fault.message == 'PENSTOCK_CPU names the CPU "avx-2", which is not known'
    assert fault.notes == (
        'did you mean "avx2"?',
        "the CPUs are avx512-vnni, avx512, avx2, sse2, neon; without PENSTOCK_CPU it is the CPU at hand",
    )


def test_a_cpu_of_another_instruction_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    at_hand(monkeypatch, None)
    fault = refused(monkeypatch, "neon")
    assert fault.message == "PENSTOCK_CPU=neon is a CPU of aarch64, and this is linux x86_64"
    assert fault.notes == ("those of x86_64 are avx512-vnni, avx512, avx2, sse2",)
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    fault = refused(monkeypatch, "sse2")
    assert fault.message == "PENSTOCK_CPU=sse2 is a CPU of x86_64, and this is linux riscv64"
    assert fault.notes == ("without PENSTOCK_CPU it is the CPU at hand",)


def test_a_cpu_whose_code_could_not_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    features = next(each.features for each in CPUS if each.name == "avx512")
    at_hand(monkeypatch, features - {"avx512vl", "avx512cd"})
    fault = refused(monkeypatch, "avx512")
    assert fault.message == ("PENSTOCK_CPU=avx512 needs features that this CPU does not have: avx512cd, avx512vl")
    assert fault.notes == ("what runs here is avx2, sse2",)


def test_a_plan_for_a_better_cpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_compiler()
    monkeypatch.delenv(VARIABLE, raising=False)
    narrow = next((each for each in HERE if each.name in ("sse2", "neon")), None)
    lacking = [each for each in find_compiler().features() if narrow is not None and each not in narrow.features]
    if narrow is None or not lacking:
        pytest.skip("every CPU executes its code")
    type = "tensor<4xf32>"
    (tmp_path / "m.mlir").write_text(f"func.func @main(%x: {type}) -> {type} {{ func.return %x : {type} }}")
    engine = penstock.compile(tmp_path / "m.mlir")
    assert isinstance(engine, Engine)
    engine.save(tmp_path / "p.plan")
    monkeypatch.setenv(VARIABLE, name_of(narrow))
    with pytest.raises(UserError, match=r"needs features that the CPU \".*\" of PENSTOCK_CPU does not have: ") as fault:
        Engine.load(tmp_path / "p.plan")
    assert fault.value.message.endswith(f": {', '.join(lacking)}")
