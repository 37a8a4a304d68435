# SPDX-License-Identifier: Apache-2.0
"""Texts of IR that went wrong."""

from __future__ import annotations

import random
import re

TOKEN = re.compile(
    r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|[%#!@^]?[A-Za-z_][\w$.]*|[%^#]\d+|0x[0-9a-fA-F]+|\d+(?:\.\d*(?:e[-+]?\d+)?)?|->|\S|\s+'
)
NUMBERS = ("0", "1", "-1", "4294967296", "9223372036854775807", "99999999999999999999", "-99999999999999999999", "0xFF",
           "1.0e999", "1.5", "?", "true")  # fmt: skip


def mutant(rng: random.Random, text: str) -> str:
    """The text with one or two tokens deleted, doubled, exchanged, replaced, or turned into another number."""
    tokens = TOKEN.findall(text)
    solid = [at for at, token in enumerate(tokens) if not token.isspace()]
    for _ in range(rng.choice((1, 1, 2))):
        at, other = rng.choice(solid), rng.choice(solid)
        numbers = [place for place in solid if tokens[place][:1].isdigit()]
        match rng.randrange(6):
            case 0:
                tokens[at] = ""
            case 1:
                tokens[at] += " " + tokens[at]
            case 2:
                tokens[at], tokens[other] = tokens[other], tokens[at]
            case 3:
                tokens[at] = tokens[other]
            case 4 if numbers:
                tokens[rng.choice(numbers)] = rng.choice(NUMBERS)
            case _:
                # An integer type has its number in its name.
                tokens[at] = re.sub(r"\d+", lambda _: rng.choice(NUMBERS).lstrip("-"), tokens[at])
        if not any(token.strip() for token in tokens):
            return ""
    return "".join(tokens)
