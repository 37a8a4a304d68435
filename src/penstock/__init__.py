# SPDX-License-Identifier: Apache-2.0
"""Penstock: a compiler framework for machines whose on-chip memories are managed by software."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.dialects.graph.dims import AtMost
    from penstock.runtime.dynamic_engine import DynamicEngine, compile
    from penstock.runtime.engine import Engine
    from penstock.runtime.kernel_function import KernelFunction, kernel
    from penstock.runtime.kernel_schedule import KernelSchedule, schedule
    from penstock.runtime.quantization import QuantizedModel, quantize

__version__ = "0.1.0"
__all__ = [
    "AtMost",
    "DynamicEngine",
    "Engine",
    "KernelFunction",
    "KernelSchedule",
    "QuantizedModel",
    "__version__",
    "compile",
    "get_include",
    "kernel",
    "quantize",
    "schedule",
]


def get_include() -> str:
    """The folder of `penstock.h` and `penstock.c`, by which programs in C run plans."""
    from pathlib import Path

    return str(Path(__file__).parent / "runtime" / "c")


def __getattr__(name: str) -> Any:
    # The compiler is imported when it is first used: `import penstock` alone must cost nothing.
    if name == "Engine":
        from penstock.runtime.engine import Engine

        return Engine
    if name == "AtMost":
        from penstock.dialects.graph.dims import AtMost

        return AtMost
    if name in ("DynamicEngine", "compile"):
        from penstock.runtime import dynamic_engine

        return getattr(dynamic_engine, name)
    if name in ("QuantizedModel", "quantize"):
        from penstock.runtime import quantization

        return getattr(quantization, name)
    if name in ("KernelFunction", "kernel"):
        from penstock.runtime import kernel_function

        return getattr(kernel_function, name)
    if name in ("KernelSchedule", "schedule"):
        from penstock.runtime import kernel_schedule

        return getattr(kernel_schedule, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
