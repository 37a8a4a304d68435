# SPDX-License-Identifier: Apache-2.0
"""
Into the IR: programs in dialects of others, as text of MLIR. The dialect that is there decides how.

StableHLO (which JAX prints) and TOSA become a module at graph level: functions that are called are written where they
are called, and loops whose number of iterations is known are unrolled. Linalg on tensors (which torch-mlir and others
print) is the tensor level, and is put into the form that it has here. See https://openxla.org/stablehlo/spec,
https://www.mlplatform.org/tosa/tosa_spec.html and https://mlir.llvm.org/docs/Dialects/Linalg/.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.lowering.from_text import SourceText, parse_text

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from penstock.dialects.weights import WeightStore

__all__ = ["import_graph_text", "is_graph_text"]

_OPERATION = re.compile(r'[\s"](?:stablehlo|chlo|tosa)\.[a-z]')


def is_graph_text(source: SourceText) -> bool:
    """Whether a text has operations of StableHLO or of TOSA."""
    return _OPERATION.search(source.text) is not None


def import_graph_text(source: SourceText) -> tuple[ModuleOp, WeightStore]:
    """
    The module of a text of StableHLO or TOSA, with one function `@main`, and its weights, which are constants of the
    text. A function that is alone is `@main`, whatever its name.

    Raises UserError, located in the text: for faults of it, and with status 3 for the first operation that is not
    supported.
    """
    from penstock.dialects.verification import verify_module
    from penstock.lowering.from_mlir.importer import GraphImporter
    from penstock.lowering.from_mlir.syntax import foreign_context

    importer = GraphImporter(parse_text(foreign_context(), source).module, source.name)
    module = importer.run()
    verify_module(module)
    return module, importer.store
