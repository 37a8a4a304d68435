# SPDX-License-Identifier: Apache-2.0
"""
What a CPU executes: the features that code was compiled for, which the macros of C compilers tell, and those of the CPU
that code is made for, which is the one that this process runs on, or a narrower one that `$PENSTOCK_CPU` names.
Features are called as `/proc/cpuinfo` of Linux calls them.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from penstock.dialects.diagnostics import UserError, did_you_mean

FEATURES = {
    # x86: psABI, https://gitlab.com/x86-psABIs/x86-64-ABI, and GCC's manual, "x86 Options"
    "__SSE3__": "pni", "__SSSE3__": "ssse3", "__SSE4_1__": "sse4_1", "__SSE4_2__": "sse4_2", "__SSE4A__": "sse4a",
    "__POPCNT__": "popcnt", "__LZCNT__": "abm", "__MOVBE__": "movbe", "__BMI__": "bmi1", "__BMI2__": "bmi2",
    "__ADX__": "adx", "__F16C__": "f16c", "__FMA__": "fma", "__FMA4__": "fma4", "__XOP__": "xop", "__TBM__": "tbm",
    "__AVX__": "avx", "__AVX2__": "avx2", "__AVXVNNI__": "avx_vnni", "__GFNI__": "gfni",
    "__AVX512F__": "avx512f", "__AVX512VL__": "avx512vl", "__AVX512BW__": "avx512bw", "__AVX512DQ__": "avx512dq",
    "__AVX512CD__": "avx512cd", "__AVX512VNNI__": "avx512_vnni", "__AVX512BF16__": "avx512_bf16",
    "__AVX512FP16__": "avx512_fp16", "__AVX512VBMI__": "avx512vbmi", "__AVX512VBMI2__": "avx512_vbmi2",
    "__AVX512BITALG__": "avx512_bitalg", "__AVX512VPOPCNTDQ__": "avx512_vpopcntdq", "__AVX512IFMA__": "avx512ifma",
    # Arm: Arm C Language Extensions, "Feature test macros"
    "__ARM_NEON": "asimd", "__ARM_FEATURE_CRC32": "crc32", "__ARM_FEATURE_ATOMICS": "atomics",
    "__ARM_FEATURE_DOTPROD": "asimddp", "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC": "asimdhp",
    "__ARM_FEATURE_BF16": "bf16", "__ARM_FEATURE_MATMUL_INT8": "i8mm", "__ARM_FEATURE_SVE": "sve",
    "__ARM_FEATURE_SVE2": "sve2",
}  # fmt: skip
"""The features that compilers use unasked, by the macro that is defined where they may."""

VARIABLE = "PENSTOCK_CPU"
"""The environment variable that names the CPU that code is made for; without it that is the CPU at hand."""
NATIVE_FLAGS = ("-march=native",)
"""What says to GCC and Clang that code is for the CPU at hand."""

_CPUINFO = Path("/proc/cpuinfo")
_FIRST_CPU_BYTES = 1 << 14


@dataclass(frozen=True)
class Cpu:
    """A CPU that code is made for."""

    name: str | None
    """None is the CPU at hand."""
    features: frozenset[str]
    """Of the CPU at hand, where the system does not tell, all that there are."""
    machine: str
    """The shipped machine that describes it."""
    needs: frozenset[str]
    """The features that this machine stands for: a CPU at hand that has them is described by it."""
    flags: tuple[str, ...]
    """What says to GCC and Clang that code is for it."""
    llvm: tuple[str, str] | None
    """Its name, and features beside those of that name, to LLVM; None where LLVM finds out."""
    processors: tuple[str, ...]
    """How systems call its instruction set."""

    @property
    def title(self) -> str:
        """What messages call it."""
        return f'the CPU "{self.name}" of {VARIABLE}' if self.name else "this CPU"


_X86 = "x86_64", "amd64"
_ARM = "aarch64", "arm64"
# psABI, "Micro-Architecture Levels": 3 and 4, of which `FEATURES` has what compilers use unasked.
_LEVEL_3 = frozenset("sse2 pni ssse3 sse4_1 sse4_2 popcnt abm movbe bmi1 bmi2 f16c fma avx avx2".split())
_LEVEL_4 = _LEVEL_3 | frozenset("avx512f avx512bw avx512cd avx512dq avx512vl".split())
_AVX512, _AVX2, _SSE2, _NEON = map(frozenset, ({"avx512f"}, {"avx2", "fma"}, {"sse2"}, {"asimd"}))

CPUS = (
    Cpu(
        "avx512-vnni",
        _LEVEL_4 | {"avx512_vnni"},
        "host-avx512-vnni",
        frozenset({"avx512f", "avx512bw", "avx512vl", "avx512_vnni"}),
        ("-march=x86-64-v4", "-mavx512vnni"),
        ("x86-64-v4", "+avx512vnni"),
        _X86,
    ),
    Cpu("avx512", _LEVEL_4, "host-avx512", _AVX512, ("-march=x86-64-v4",), ("x86-64-v4", ""), _X86),
    Cpu("avx2", _LEVEL_3, "host-avx2", _AVX2, ("-march=x86-64-v3",), ("x86-64-v3", ""), _X86),
    Cpu("sse2", _SSE2, "host", _SSE2, ("-march=x86-64",), ("x86-64", ""), _X86),
    Cpu("neon", _NEON, "host-neon", _NEON, ("-march=armv8-a",), ("generic", "+neon"), _ARM),
)
"""The CPUs that have names; of those of one instruction set the best first."""


def features_of_macros(macros: Iterable[str]) -> tuple[str, ...]:
    """The features that code may use which is compiled where these macros are defined."""
    defined = set(macros)
    return tuple(feature for macro, feature in FEATURES.items() if macro in defined)


def architecture() -> str:
    """The system and the instruction set, such as `linux x86_64`."""
    return f"{platform.system()} {platform.machine()}".lower()


def chosen_cpu() -> Cpu:
    """
    The CPU that code is made for: the one that `$PENSTOCK_CPU` names, else the one at hand.

    Raises UserError for a name that is not known, and for a CPU whose code could not run on the one at hand.
    """
    name = os.environ.get(VARIABLE)
    have = _features_at_hand()
    if not name:
        best = next((each for each in CPUS if have is not None and each.needs <= have), None)
        features = frozenset(FEATURES.values()) if have is None else have
        machine, needs = (best.machine, best.needs) if best else ("host", frozenset[str]())
        return Cpu(None, features, machine, needs, NATIVE_FLAGS, None, (platform.machine().lower(),))
    found = next((each for each in CPUS if each.name == name), None)
    if found is None:
        near = did_you_mean(name, _names(CPUS))
        listed = f"the CPUs are {', '.join(_names(CPUS))}; {_WITHOUT}"
        message = f'{VARIABLE} names the CPU "{name}", which is not known'
        raise UserError(message, notes=[near, listed] if near else [listed])
    able = runnable_cpus()
    if (processor := platform.machine().lower()) not in found.processors:
        message = f"{VARIABLE}={name} is a CPU of {found.processors[0]}, and this is {architecture()}"
        raise UserError(message, notes=[f"those of {processor} are {', '.join(_names(able))}" if able else _WITHOUT])
    if have is not None and (missing := [each for each in found.features if each not in have]):
        message = f"{VARIABLE}={name} needs features that this CPU does not have: {', '.join(sorted(missing))}"
        raise UserError(message, notes=[f"what runs here is {', '.join(_names(able))}" if able else _WITHOUT])
    return found


def runnable_cpus() -> tuple[Cpu, ...]:
    """Return the named CPUs, the best first, whose code runs here, or may run where the system does not tell."""
    processor, have = platform.machine().lower(), _features_at_hand()
    return tuple(each for each in CPUS if processor in each.processors and (have is None or each.features <= have))


_WITHOUT = f"without {VARIABLE} it is the CPU at hand"


def _names(cpus: Iterable[Cpu]) -> list[str]:
    return [str(each.name) for each in cpus]


@cache
def _features_at_hand() -> frozenset[str] | None:
    """The features of the CPU of this process; None where the system does not tell."""
    try:
        # Of a machine with hundreds of them the first is enough.
        with _CPUINFO.open("rb", buffering=0) as file:
            text = file.read(_FIRST_CPU_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return None
