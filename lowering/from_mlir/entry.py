# SPDX-License-Identifier: Apache-2.0
"""Which function of a module is the program."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from penstock.dialects.diagnostics import UserError, location_of
from penstock.passes.analysis.kernels import ENTRY


def entry_of(module: ModuleOp, place: str) -> FuncOp:
    """`@main`, or the only public function; raises UserError where there is neither."""
    functions = [op for op in module.ops if isinstance(op, FuncOp)]
    public = [op for op in functions if op.sym_visibility is None or op.sym_visibility.data != "private"]
    if (main := next((op for op in functions if op.sym_name.data == ENTRY), None)) is not None:
        return main
    if len(public) == 1:
        return public[0]
    notes = [f"its functions are {', '.join('@' + op.sym_name.data for op in public)}"] if public else []
    raise UserError(f"the text has no function @{ENTRY}", loc=location_of(public[0]) if public else place, notes=notes)
