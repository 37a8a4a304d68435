"""
Reference semantics of the graph level on NumPy.

`run_graph` runs a function of graph ops, `evaluate_op` one op. Each op computes in its own element type,
vectorised; the ops' documentation in `penstock.dialects.graph` is what it follows. An elementwise op has a formula; a
package adds other ops with `implements`.
"""

from __future__ import annotations

# Imported for their registrations.
from penstock.runtime.interpreter.graph import (
    conversions,
    indexing,
    nn,
    reduction,
    shape,
    window,
)
from penstock.runtime.interpreter.graph.engine import Listener, evaluate_op, run_graph
from penstock.runtime.interpreter.graph.registry import IMPLEMENTATIONS, implementation_of, implements

__all__ = [
    "IMPLEMENTATIONS",
    "Listener",
    "conversions",
    "evaluate_op",
    "implementation_of",
    "implements",
    "indexing",
    "nn",
    "reduction",
    "run_graph",
    "shape",
    "window",
]
