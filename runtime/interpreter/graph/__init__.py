"""
Reference semantics of the graph level on NumPy.

`run_graph` runs a function of graph ops, `evaluate_op` one op. Each op computes in its own element type,
vectorised; the ops' documentation in `penstock.dialects.graph` is what it follows. An elementwise op has a formula; a
package adds other ops with `implements`.
"""

from __future__ import annotations

# Imported for their registrations.
from penstock.runtime.interpreter.graph import (
    elementwise,
    indexing,
    nn,
    quantization,
    reduction,
    shape,
    window,
)
from penstock.runtime.interpreter.graph.engine import Listener, evaluate_op, run_graph
from penstock.runtime.interpreter.graph.registry import IMPLEMENTATIONS, implementation_of, implements
from penstock.runtime.interpreter.graph.tensor_types import dtype_of, tensor_type_of

__all__ = [
    "IMPLEMENTATIONS",
    "Listener",
    "dtype_of",
    "elementwise",
    "evaluate_op",
    "implementation_of",
    "implements",
    "indexing",
    "nn",
    "quantization",
    "reduction",
    "run_graph",
    "shape",
    "tensor_type_of",
    "window",
]
