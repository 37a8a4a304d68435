# SPDX-License-Identifier: Apache-2.0
"""
The reference semantics of every level, on NumPy: a second opinion that imports `dialects` and no pass.

`run_module` runs a module at any level, `run_function` one function below graph level. A plug-in says what its ops
do with `interprets` (and on the graph level with `penstock.runtime.interpreter.graph.implements`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.runtime.interpreter.counters import Counters, DmaCount, ExecCount, applications_of
    from penstock.runtime.interpreter.execution import Execution
    from penstock.runtime.interpreter.generic import Evaluator
    from penstock.runtime.interpreter.interleaving import ORDERS, Order, read_order
    from penstock.runtime.interpreter.module import main_arguments, run_function, run_module
    from penstock.runtime.interpreter.registry import interprets
    from penstock.runtime.interpreter.scopes import array_of, readable, written
    from penstock.runtime.interpreter.source import Listener

__all__ = [
    "ORDERS",
    "Counters",
    "DmaCount",
    "Evaluator",
    "ExecCount",
    "Execution",
    "Listener",
    "Order",
    "applications_of",
    "array_of",
    "interprets",
    "main_arguments",
    "read_order",
    "readable",
    "run_function",
    "run_module",
    "written",
]

_PARTS = ("module", "counters", "execution", "generic", "interleaving", "registry", "scopes", "source")
"""The modules that define these names; the first one registers the ops of all levels."""


def __getattr__(name: str) -> Any:
    # What folds constants, or asks which elements an op reaches, needs a small part of it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    parts = [import_module(f"{__name__}.{part}") for part in _PARTS]
    return next(getattr(part, name) for part in parts if hasattr(part, name))
