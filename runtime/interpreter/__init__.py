"""
The reference semantics of every level, on NumPy: a second opinion that imports `dialects` and no pass.

`run_module` runs a module at any level, `run_function` one function below graph level. A plug-in says what its ops
do with `interprets` (and on the graph level with `penstock.runtime.interpreter.graph.implements`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.runtime.interpreter.counters import Counters, DmaCount, ExecCount, issues_of
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
    "array_of",
    "interprets",
    "issues_of",
    "main_arguments",
    "read_order",
    "readable",
    "run_function",
    "run_module",
    "written",
]

_MODULES = {
    "Counters": "counters",
    "DmaCount": "counters",
    "ExecCount": "counters",
    "issues_of": "counters",
    "Execution": "execution",
    "Evaluator": "generic",
    "ORDERS": "interleaving",
    "Order": "interleaving",
    "read_order": "interleaving",
    "main_arguments": "module",
    "run_function": "module",
    "run_module": "module",
    "interprets": "registry",
    "array_of": "scopes",
    "readable": "scopes",
    "written": "scopes",
    "Listener": "source",
}


def __getattr__(name: str) -> Any:
    # What folds constants, or asks which elements an op reaches, needs a small part of it.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module(f"{__name__}.module")  # which registers the ops of all levels
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
