"""
Into the IR: StableHLO, which JAX prints with `jax.jit(f).lower(x).as_text()`, becomes a module at graph level.

Functions that are called are written where they are called, and loops whose number of iterations is known are unrolled.
See https://openxla.org/stablehlo/spec.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.lowering.from_text import SourceText, parse_text

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from penstock.dialects.weights import WeightStore

__all__ = ["import_stablehlo", "is_stablehlo"]

_OPERATION = re.compile(r'[\s"](?:stablehlo|chlo)\.[a-z]')


def is_stablehlo(source: SourceText) -> bool:
    """Whether a text has operations of StableHLO."""
    return _OPERATION.search(source.text) is not None


def import_stablehlo(source: SourceText) -> tuple[ModuleOp, WeightStore]:
    """
    The module of a text of StableHLO, with one function `@main`, and its weights, which are constants of the text.

    Raises UserError, located in the text: for faults of it, and with status 3 for the first operation that is not
    supported.
    """
    from penstock.dialects.verification import verify_module
    from penstock.lowering.from_stablehlo.importer import HloImporter
    from penstock.lowering.from_stablehlo.syntax import hlo_context

    importer = HloImporter(parse_text(hlo_context(), source).module, source.name)
    module = importer.run()
    verify_module(module)
    return module, importer.store
