# SPDX-License-Identifier: Apache-2.0
"""What conformance suites have in common: a broken rule with the problem that shows it, made as small as it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from penstock.dialects.diagnostics import UserError

T = TypeVar("T")

MAX_ATTEMPTS = 400
"""Smaller problems that are tried."""


@dataclass(frozen=True)
class Violation:
    """A rule that a part breaks, and where."""

    rule: str
    """In one word, the same for the same kind of fault."""
    message: str
    """For people."""
    problem: str = ""
    """The smallest problem found that shows it, as text."""

    def error(self, part: str, rules: Mapping[str, str], seed: int) -> UserError:
        """What a command says of it: of which part it is, and what the rule demands."""
        notes = [f"the rule: {rules[self.rule]}"]
        if self.problem:
            notes.append(f"the smallest problem found that shows it, with seed {seed}:\n{self.problem}".rstrip())
        return UserError(f'{part} breaks the rule "{self.rule}": {self.message}', notes=notes)


def smallest(
    failing: T,
    broken: Violation,
    smaller: Callable[[T], Iterable[T]],
    examine: Callable[[T], object],
    text: Callable[[T], str],
) -> Violation:
    """The rule that `failing` breaks as `examine` reports it of the smallest problem found that breaks the same."""

    def broken_by(problem: T) -> Violation | None:
        found = examine(problem)
        return found if isinstance(found, Violation) and found.rule == broken.rule else None

    failing = shrink(failing, smaller, lambda problem: broken_by(problem) is not None)
    return replace(broken_by(failing) or broken, problem=text(failing))


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
