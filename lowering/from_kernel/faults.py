# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a text of the kernel language where it is lowered."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.lowering.from_kernel.syntax import Node, Position


class Fault(Exception):
    """What is wrong, at which token, and notes on what would help; what knows the file makes a UserError of it."""

    def __init__(self, message: str, at: Node | Position, notes: Sequence[str] = ()):
        super().__init__(message)
        self.message = message
        self.at = at.at if isinstance(at, Node) else at
        self.notes = tuple(notes)
