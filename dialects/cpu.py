"""
What a CPU executes: the features that code was compiled for, which the macros of C compilers tell, and those of the CPU
that this process runs on. Features are called as `/proc/cpuinfo` of Linux calls them.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from functools import cache
from pathlib import Path

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

_CPUINFO = Path("/proc/cpuinfo")
_FIRST_CPU_BYTES = 1 << 14


def features_of_macros(macros: Iterable[str]) -> tuple[str, ...]:
    """The features that code may use which is compiled where these macros are defined."""
    defined = set(macros)
    return tuple(feature for macro, feature in FEATURES.items() if macro in defined)


def architecture() -> str:
    """The system and the instruction set, such as `linux x86_64`."""
    return f"{platform.system()} {platform.machine()}".lower()


@cache
def cpu_features() -> frozenset[str] | None:
    """The features of this CPU; None where the system does not tell."""
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
