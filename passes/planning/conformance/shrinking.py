"""What conformance suites have in common: a fault with the problem that shows it, made as small as it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

MAX_ATTEMPTS = 400
"""Smaller problems that are tried."""


@dataclass(frozen=True)
class Fault:
    """A rule that a part breaks, and where."""

    rule: str
    """In one word, the same for the same kind of fault."""
    message: str
    """For people."""
    problem: str = ""
    """The smallest problem found that shows it, as text."""


def shrink(failing: T, smaller: Callable[[T], Iterable[T]], fails: Callable[[T], bool]) -> T:
    """The last of a row of problems that fail, in which each is the first `smaller` than the last that does."""
    attempts = 0
    while True:
        for candidate in smaller(failing):
            attempts += 1
            if attempts > MAX_ATTEMPTS:
                return failing
            if fails(candidate):
                failing = candidate
                break
        else:
            return failing
