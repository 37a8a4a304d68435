# SPDX-License-Identifier: Apache-2.0
"""The machines that ship: every file loads, every number in it says where it comes from, and the peaks are right."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from fractions import Fraction
from io import StringIO
from typing import Any, cast

import pytest
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.printer import Printer

from penstock.dialects.context import make_context
from penstock.dialects.machine import DRAM, REGISTERS, IntrinsicOp, TargetOp, find_target
from penstock.lowering.from_machine_toml import load_machine, validate
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.machine_names import machine_text, shipped_machines

PEAKS = {
    "cortex-m55-like": 0,
    "cortex-m7-like": 0,
    "cortex-m7-nn": 2,
    "epiphany-iii": 0,
    "eyeriss-like": 12 * 14,
    "fe310-like": 0,
    "gap8-like": 16,  # of the 32 that eight cores could start
    "gemmini": 16 * 16,
    "gemmini-fp32": 4 * 4,
    "h100-sm": 4 * 512,  # four tensor cores
    "host": 0,
    "host-avx2": 0,
    "host-avx512": 0,
    "host-avx512-vnni": 16 * 4,
    "host-neon": 0,
    "neural-accelerator": 1024,
    "neural-cluster": 1024,
    "onsram-study": 1024,
    "rapid-core-like": 2 * 8 * 8 * 8,  # two corelets of 8x8 elements that are 8 deep
    "smaug-smv": 8 * 32,
    "snax-opengemm": 8 * 8 * 8,
    "snitch-cluster": 8 * 2,  # eight cores, two of f32 each
    "tpu-v1-like": 256 * 256,
    "vta-fsim": 1 * 16 * 16,
    "vta-hls": 1 * 16 * 16,
    "vta-pynq": 1 * 16 * 16,
    "vta-rtl": 1 * 16 * 16,
}
"""Multiply-accumulates a cycle."""

PUBLISHED = {
    "eyeriss-like": (67.2e9, 1),
    "h100-sm": (989.4e12, 132),
    "onsram-study": (3e12, 1),
    "rapid-core-like": (3e12, 1),
    "snax-opengemm": (204.8e9, 1),
    "tpu-v1-like": (92e12, 1),
}
"""Operations a second of the whole chip, and the parts it has of which one is modelled."""


@pytest.fixture(params=shipped_machines())
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def target(name: str) -> TargetOp:
    return load_machine(name)


def document(name: str) -> dict[str, Any]:
    return tomllib.loads(machine_text(name)[1])


def numbers(value: object, path: str, *, covered: bool) -> Iterator[tuple[str, bool]]:
    """Every number of a value of a machine file, with whether something says where it comes from."""
    match value:
        case bool() | str():
            return
        case int() | float():
            yield path, covered
        case list():
            for each in cast(list[object], value):
                yield from numbers(each, path, covered=covered)
        case dict():
            entries = cast(dict[str, object], value)
            inside = covered or "source" in entries or entries.get("assumed") is True
            for key, each in entries.items():
                yield from numbers(each, f"{path}.{key}", covered=inside)
        case _:
            raise AssertionError(f"{path} is {value!r}")


def test_it_is_valid_and_its_name_is_that_of_its_file(name: str, target: TargetOp) -> None:
    assert validate(name) == ()
    assert target.machine_name == name


@pytest.mark.parametrize("generic", [False, True])
def test_its_text_reads_back_the_same(target: TargetOp, generic: bool) -> None:
    stream = StringIO()
    Printer(stream, print_generic_format=generic).print_op(target)
    module = parse_text(make_context(), SourceText("machine.mlir", stream.getvalue())).module
    module.verify()
    again = find_target(module)
    assert again is not None
    assert again.is_structurally_equivalent(target)
    assert str(again) == str(target)


def test_every_number_has_a_source_or_is_assumed(name: str) -> None:
    found = [entry for key, value in document(name).items() for entry in numbers(value, key, covered=False)]
    assert found or "extends" in document(name)["machine"]
    assert [path for path, covered in found if not covered] == []


def test_every_source_is_named_by_a_number(name: str) -> None:
    text = machine_text(name)[1]
    for key in document(name).get("sources", {}):
        assert f'source = "{key}"' in text, f"nothing is from {key}"


def test_its_peak_is_that_of_its_array(name: str, target: TargetOp) -> None:
    # A host with a library is one with AVX-512 otherwise; what the library reaches is no peak of its own.
    assert target.peak_macs_per_cycle() == PEAKS["host-avx512" if name.startswith("host-blas") else name]


@pytest.mark.parametrize("machine", PUBLISHED)
def test_its_peak_agrees_with_the_published_rate(machine: str) -> None:
    target = load_machine(machine)
    rate, parts = PUBLISHED[machine]
    ours = float(target.peak_macs_per_cycle()) * 2 * target.frequency_mhz * 1e6 * parts
    assert ours == pytest.approx(rate, rel=0.03)


def test_the_bandwidths_are_exact_fractions_of_the_published_ones() -> None:
    expected = {
        "eyeriss-like": Fraction(64 // 8 * 60_000_000, 200_000_000),
        "h100-sm": Fraction(3_350_000_000_000, 132 * 1_830_000_000),
        "onsram-study": Fraction(32_000_000_000, 1_500_000_000),
        "rapid-core-like": Fraction(32_000_000_000, 1_500_000_000),
        "smaug-smv": Fraction(25_600_000_000, 1_000_000_000),
    }
    for machine, rate in expected.items():
        (bus,) = load_machine(machine).buses().values()
        assert Fraction(*bus.bytes_per_cycle) == rate


def matrix_intrinsics(target: TargetOp) -> list[IntrinsicOp]:
    return [op for op in target.intrinsics().values() if op.macs_per_issue()]


def test_what_multiplies_can_be_fed_started_and_drained(name: str, target: TargetOp) -> None:
    """There are engines into every scope that is read and out of that of the sums, and something zeroes those."""
    if target.is_host:
        # What its processor loads and stores are its registers, which it fills as everything; a library does it itself.
        own = [op for op in matrix_intrinsics(target) if not op.is_call]
        assert {op.operand_specs()[-1].scope for op in own} <= {REGISTERS}
        return
    if not PEAKS[name]:
        assert not target.intrinsics()
        return
    edges = {(start, end) for dma in target.dmas().values() for start in dma.sources for end in dma.destinations}
    into, out = reachable(edges, DRAM), reachable({(end, start) for start, end in edges}, DRAM)
    assert matrix_intrinsics(target)
    for intrinsic in matrix_intrinsics(target):
        *factors, total = intrinsic.operand_specs()
        assert {spec.scope for spec in factors} <= into
        assert total.scope in out
        assert any(zeroes(op, total.scope) for op in target.intrinsics().values())


def reachable(edges: set[tuple[str, str]], start: str) -> set[str]:
    found = {start}
    while more := {end for begin, end in edges if begin in found} - found:
        found |= more
    return found


def zeroes(intrinsic: IntrinsicOp, scope: str) -> bool:
    (spec, *more) = intrinsic.operand_specs()
    doc = intrinsic.generic.doc
    return not more and spec.scope == scope and spec.role == "out" and doc is not None and doc.data.endswith("= 0")


def test_sizes_in_a_scope_are_whole_granules_and_elements(target: TargetOp) -> None:
    for scope in target.scopes().values():
        assert scope.size_bytes % (scope.granule_bytes * scope.bank_count) == 0


def test_contractions_sum_in_what_holds_their_products(target: TargetOp) -> None:
    for intrinsic in matrix_intrinsics(target):
        *factors, total = intrinsic.operand_specs()
        kinds = [kind.data for kind in intrinsic.generic.iterator_types]
        assert kinds.count(IteratorType.REDUCTION) == 1
        assert all(spec.dtype.compile_time_size <= total.dtype.compile_time_size for spec in factors)  # pyright: ignore
