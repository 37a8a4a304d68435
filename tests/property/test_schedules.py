# SPDX-License-Identifier: Apache-2.0
"""Random kernels under random schedules through all levels: nothing else is computed, and what is refused is whole."""

from __future__ import annotations

import pytest
from in_c import needs_compiler

from penstock.tools.fuzz.scheduled_cases import KINDS, SCHEDULES, Tally, run_case


def test_legal_schedules_keep_every_bit_and_what_is_refused_changes_nothing() -> None:
    needs_compiler()
    tally = Tally()
    for number in range(65):
        # Of each kernel one schedule: the kernels differ more.
        run_case(SCHEDULES * number, tally, backend="native" if number % 16 == 0 else None)
    assert KINDS.keys() <= tally.cases.keys()
    assert tally.applied.total() > 75, f"{tally}: the schedules are not what they should be"
    assert tally.refused.total() > 40
    assert tally.cases["commands simulated"] > 1
    assert tally.cases["also by native"] > 2


@pytest.mark.slow
def test_thousands_of_schedules_keep_every_bit() -> None:
    needs_compiler()
    for seed in range(100_000, 102_000):
        run_case(seed, Tally(), backend="native" if seed % 50 == 0 else None)
