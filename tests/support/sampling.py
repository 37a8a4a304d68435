# SPDX-License-Identifier: Apache-2.0
"""
How much of a large sweep the quick suite takes. What it leaves out is marked slow or drawn in `make exhaustive`.

- `@examples(60)` on a hypothesis test: the quick suite draws an eighth, the same in every run; the profile `exhaustive`
  draws twice as many, others in every run.
- `sweep(values, quick)` as the values of a `parametrize`: all but those in `quick` are marked slow.
- `every_other(values)` likewise: the first of them is quick, and every other one after it.
- `combinations(*lists)` likewise, for parameters that vary by themselves: half are quick.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import product
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

EXHAUSTIVE = "exhaustive"
MIN_EXAMPLES = 3


def register_profiles() -> None:
    """The profiles `suite`, which is loaded, and `exhaustive`; to be called before any test module is imported."""
    common = {"deadline": None, "database": None}
    settings.register_profile("suite", derandomize=True, print_blob=False, max_examples=_quick(100), **common)
    settings.register_profile(EXHAUSTIVE, derandomize=False, print_blob=True, max_examples=200, **common)
    settings.load_profile("suite")


def _quick(count: int) -> int:
    return max(min(count, MIN_EXAMPLES), count // 8)


def examples(count: int, **options: Any) -> settings:
    """Hypothesis' settings for a test that `count` examples are enough for; `options` are those of `settings`."""
    exhaustive = settings.get_current_profile_name() == EXHAUSTIVE
    return settings(max_examples=2 * count if exhaustive else _quick(count), **options)


def sweep(values: Iterable[Any], quick: Collection[Any] | Callable[[Any], bool]) -> list[ParameterSet]:
    """The values of a `parametrize`; a tuple is one value for each name. Those not in `quick` are marked slow."""
    is_quick = quick if callable(quick) else quick.__contains__
    return [_param(value, is_quick(value)) for value in values]


def every_other(values: Iterable[Any]) -> list[ParameterSet]:
    """The values of a `parametrize`, of which the second, the fourth and so on are marked slow."""
    return [_param(value, number % 2 == 0) for number, value in enumerate(values)]


def _param(value: Any, is_quick: bool) -> ParameterSet:
    marks = () if is_quick else (pytest.mark.slow,)
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=marks)  # pyright: ignore[reportUnknownArgumentType]


def combinations(*lists: Sequence[Any]) -> list[ParameterSet]:
    """
    The values of a `parametrize` of three or more names: one value of each list, in all combinations. Every other one
    is marked slow; the quick suite still has each value together with each of any other list.
    """
    assert len(lists) > 2, "of two lists half of the pairs would never be quick"
    assert all(len(values) > 1 for values in lists)
    found: list[ParameterSet] = []
    for places in product(*(range(len(values)) for values in lists)):
        found.append(_param(tuple(values[at] for values, at in zip(lists, places, strict=True)), sum(places) % 2 == 0))
    return found
