"""The CPU that code is made for: the one at hand, or a narrower one that `$PENSTOCK_CPU` names."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from in_c import needs_compiler

import penstock
from penstock.dialects import cpu
from penstock.dialects.cpu import CPUS, FEATURES, VARIABLE, Cpu, chosen_cpu
from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_machine_toml import load_machine
from penstock.passes.toolchain import find_compiler
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
    at_hand(monkeypatch, each.features | {"fpu", "rtm"})
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
    if each.flags[0] not in find_compiler().flags():
        pytest.skip("an old compiler, which does not know the CPU")
    assert set(find_compiler().features()) == each.features & set(FEATURES.values())


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
    type = "tensor<4xf32>"
    (tmp_path / "m.mlir").write_text(f"func.func @main(%x: {type}) -> {type} {{ func.return %x : {type} }}")
    needs = find_compiler().features()
    if not HERE or not needs:
        pytest.skip("every CPU executes its code")
    engine = penstock.compile(tmp_path / "m.mlir")
    assert isinstance(engine, Engine)
    engine.save(tmp_path / "p.plan")
    monkeypatch.setenv(VARIABLE, "sse2" if "sse2" in map(name_of, HERE) else "neon")
    with pytest.raises(UserError, match=r"needs features that the CPU \".*\" of PENSTOCK_CPU does not have: ") as fault:
        Engine.load(tmp_path / "p.plan")
    assert fault.value.message.endswith(", ".join(needs))
