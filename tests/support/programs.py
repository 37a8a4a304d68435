# SPDX-License-Identifier: Apache-2.0
"""Programs that tests write as text."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from penstock.dialects.context import PenstockContext, make_context
from penstock.lowering.from_text import SourceText, parse_text
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import verify


def parsed(text: str) -> ModuleOp:
    """The module, as it is written."""
    return Parser(make_context(), text).parse_module()


def parsed_in_context(text: str) -> tuple[PenstockContext, ModuleOp]:
    """The module and its context, whose weights it uses, with locations in `test.mlir`."""
    ctx = make_context()
    return ctx, parse_text(ctx, SourceText("test.mlir", text)).module


def verified(text: str, machine: str | None = None) -> ModuleOp:
    """The module, on a machine if one is named, after the verifiers of its operations."""
    module = parsed(text)
    if machine is not None:
        attach_machine(module, machine)
    module.verify()
    return module


def checked(text: str) -> ModuleOp:
    """The module, with locations in `test.mlir`, after all that is verified between two passes."""
    _, module = parsed_in_context(text)
    verify(module)
    return module
