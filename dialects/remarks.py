# SPDX-License-Identifier: Apache-2.0
"""
What passes tell people about their decisions: one remark each, at an operation, for whoever listens.

A remark changes nothing, and without a listener it costs a look. The kinds are LLVM's: a transformation that was
applied (`passed`), one that was not, with the reason (`missed`), and what was found out (`analysis`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.dialects.diagnostics import location_of

if TYPE_CHECKING:
    from xdsl.ir import Operation

Kind = Literal["passed", "missed", "analysis"]


@dataclass(frozen=True)
class Remark:
    """What a pass says at an operation."""

    kind: Kind
    message: str
    location: str
    """As text, `file:line:col` or the name of a node."""
    function: str
    """The name of the function that the operation is or is in; empty outside of any."""


_LISTENER: ContextVar[Callable[[Remark], None] | None] = ContextVar("remarks", default=None)


def is_listened() -> bool:
    """Whether anybody wants remarks: those that take time to find out are for them alone."""
    return _LISTENER.get() is not None


def remark(op: Operation, kind: Kind, message: str) -> None:
    """Tell those who listen what was decided at an operation."""
    listener = _LISTENER.get()
    if listener is not None and message:
        listener(Remark(kind, message, location_of(op), _function_of(op)))


@contextmanager
def listening(listener: Callable[[Remark], None]) -> Generator[None]:
    """Call `listener` with every remark, instead of who listened before."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def _function_of(op: Operation | None) -> str:
    while op is not None:
        if op.name == "func.func":
            return op.get_attr_or_prop("sym_name").data  # pyright: ignore
        op = op.parent_op()
    return ""
