# SPDX-License-Identifier: Apache-2.0
"""
Reference semantics of the graph level on NumPy.

`run_graph` runs a function of graph ops, `evaluate_op` one op. Each op computes in its own element type,
vectorised; the ops' documentation in `penstock.dialects.graph` is what it follows. An elementwise op has a formula; a
package adds other ops with `implements`.
"""

from __future__ import annotations

# Imported for their registrations.
from penstock.runtime.interpreter.graph import (  # noqa: F401
    conversions,  # pyright: ignore[reportUnusedImport]
    indexing,  # pyright: ignore[reportUnusedImport]
    kernel,  # pyright: ignore[reportUnusedImport]
    nn,  # pyright: ignore[reportUnusedImport]
    reduction,  # pyright: ignore[reportUnusedImport]
    shape,  # pyright: ignore[reportUnusedImport]
    window,  # pyright: ignore[reportUnusedImport]
)
from penstock.runtime.interpreter.graph.engine import Listener, evaluate_op, run_graph
from penstock.runtime.interpreter.graph.registry import IMPLEMENTATIONS, implementation_of, implements

__all__ = ["IMPLEMENTATIONS", "Listener", "evaluate_op", "implementation_of", "implements", "run_graph"]
