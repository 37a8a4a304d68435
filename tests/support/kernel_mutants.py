# SPDX-License-Identifier: Apache-2.0
"""Texts of kernels with a few tokens changed: those of the example operators, each by itself at small sizes."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from reference import OPERATORS

from penstock.lowering.from_kernel.parser import parse_source
from penstock.lowering.from_kernel.printer import print_source
from penstock.lowering.from_kernel.syntax import Kernel, Source

FOLDER = Path(__file__).parents[2] / "examples/operators"
LARGEST = 7
"""Of the sizes: what is lowered can be run."""
_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_NUMBERS = ("0", "1", "2", "3", "7", "16", "100", "1000000", "1000000000000", "0.5", "1e30")
_SIGNS = ("+", "-", "*", "/", "//", "%", "**", "<", "==", "and")


@dataclass(frozen=True)
class KernelText:
    """A text with one kernel, and sizes for it."""

    name: str
    text: str
    sizes: Mapping[str, int]


@cache
def operator_texts() -> tuple[KernelText, ...]:
    """The operators of the examples, each with the functions and reducers of its file."""
    found: list[KernelText] = []
    for operator in OPERATORS:
        source = parse_source((FOLDER / f"{operator.file}.pk").read_text())
        kept = (each for each in source.definitions if not isinstance(each, Kernel) or each.name == operator.name)
        sizes = {name: min(size, LARGEST) for name, size in operator.sizes[0].items()}
        found.append(KernelText(operator.name, print_source(Source(tuple(kept))), sizes))
    return tuple(found)


def mutant(seed: int) -> KernelText:
    """
    An operator with one to three changes: a token gone, doubled, swapped with another one or renamed to another name of
    the text, another number or sign, a line in another place or there twice.
    """
    rng = random.Random(seed)
    operator = rng.choice(operator_texts())
    tokens = _TOKEN.findall(operator.text)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
        tokens = _changed(tokens, rng) or [" "]
    return KernelText(operator.name, "".join(tokens), operator.sizes)


def _changed(tokens: list[str], rng: random.Random) -> list[str]:
    tokens, at, other = list(tokens), rng.randrange(len(tokens)), rng.randrange(len(tokens))
    names = [place for place, token in enumerate(tokens) if re.match(r"[A-Za-z_]", token)]
    numbers = [place for place, token in enumerate(tokens) if token[0].isdigit()]
    signs = [place for place, token in enumerate(tokens) if token in "+-*/%<>="]
    match rng.randrange(7):
        case 0:
            del tokens[at]
        case 1:
            tokens.insert(at, tokens[at])
        case 2:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        case 3 if names:
            tokens[rng.choice(names)] = tokens[rng.choice(names)]
        case 4 if numbers:
            tokens[rng.choice(numbers)] = rng.choice(_NUMBERS)
        case 5 if signs:
            tokens[rng.choice(signs)] = rng.choice(_SIGNS)
        case _:
            return _TOKEN.findall("\n".join(_moved("".join(tokens).split("\n"), rng)))
    return tokens


def _moved(lines: list[str], rng: random.Random) -> list[str]:
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    if rng.random() < 0.5:
        lines[first], lines[second] = lines[second], lines[first]
    else:
        lines.insert(first, lines[second])
    return lines
