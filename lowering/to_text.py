# SPDX-License-Identifier: Apache-2.0
"""The way out of the IR as text."""

from __future__ import annotations

from io import StringIO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.targets.mlir import MLIRTarget

from penstock.lowering.printing import TextStyle


def module_text(ctx: Context, module: ModuleOp, style: MLIRTarget | None = None) -> str:
    """The text of a module, in custom form unless `style` says otherwise, with one newline at its end."""
    stream = StringIO()
    (style or TextStyle()).emit(ctx, module, stream)
    return stream.getvalue().rstrip("\n") + "\n"


def located_text(ctx: Context, module: ModuleOp) -> str:
    """The text of a module with the locations that are known: the names of a model's nodes survive in it."""
    return module_text(ctx, module, TextStyle(print_debuginfo=True)).replace(" loc(unknown)", "")
