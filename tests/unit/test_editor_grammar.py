# SPDX-License-Identifier: Apache-2.0
"""The grammar for editors knows the words that the parser knows."""

from __future__ import annotations

import json
import re
from pathlib import Path

from penstock.lowering.from_kernel.parser import KEYWORDS

EDITORS = Path(__file__).parents[2] / "docs/kernels.tmLanguage.json"


def test_every_keyword_is_highlighted_and_no_name_is() -> None:
    patterns = [re.compile(each["match"]) for each in json.loads(EDITORS.read_text())["patterns"]]
    for word in KEYWORDS:
        assert any(pattern.match(f"{word} name") for pattern in patterns), word
    for name in ("row", "forth", "inner", "N", "f31", "x1"):
        assert not any(pattern.match(f"{name} = 1") for pattern in patterns), name
