# SPDX-License-Identifier: Apache-2.0
"""Numbers of bytes as a person writes them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_BYTES = re.compile(r"([0-9]{1,20})([kmg]?)(?:i?b)?", re.IGNORECASE)


def read_byte_size(word: str) -> int | None:
    """The number in `4096`, `4K`, `4KiB` or `1M`, whose units are powers of 1024; None for what is none."""
    found = _BYTES.fullmatch(word)
    return None if found is None else int(found[1]) * _UNITS[found[2].lower()]
