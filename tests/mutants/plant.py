# SPDX-License-Identifier: Apache-2.0
"""
A plug-in of pytest that plants the mutant whose number is in PENSTOCK_MUTANT: when the file of the mutant is imported,
its text is changed in memory, and its cached bytecode is passed over.
"""

from __future__ import annotations

import os
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

from mutant_table import MUTANTS

ROOT = Path(__file__).parents[2]
MUTANT = MUTANTS[int(os.environ["PENSTOCK_MUTANT"])]
FILE = ROOT / MUTANT.file
unchanged = SourceFileLoader.get_code


def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
    if Path(self.path).resolve() != FILE:
        return unchanged(self, fullname)
    return self.source_to_code(MUTANT.changed(FILE.read_text(encoding="utf-8")).encode("utf-8"), self.path)


SourceFileLoader.get_code = get_code
