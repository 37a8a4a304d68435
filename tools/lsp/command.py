# SPDX-License-Identifier: Apache-2.0
"""`penstock-lsp`: a language server on stdin and stdout, for editors; see docs/lsp.md."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from penstock.dialects.diagnostics import UserError, pip_install
from penstock.tools.arguments import Parser
from penstock.tools.errors import guarded


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command on a command line without its name; returns the exit status."""
    parser = Parser("penstock-lsp", description=__doc__)
    # What editors say of the way to speak by default.
    parser.add_argument("--stdio", action="store_true", help="speak on stdin and stdout, which is the default")
    parser.parse_args(argv)
    return guarded(_serve)


def _serve() -> int:
    try:
        from penstock.tools.lsp.server import serve
    except ModuleNotFoundError as error:
        if error.name not in ("pygls", "lsprotocol"):
            raise
        notes = [pip_install("lsp")]
        raise UserError("the language server needs pygls, which is not installed", notes=notes) from None
    serve()
    return 0


def main() -> None:
    sys.exit(run())
