# SPDX-License-Identifier: Apache-2.0
"""
Planning problems by family, for judging planners: extracted from programs, drawn at random, and published ones.

Everything is deterministic: a generator is seeded with the name of the instance. `python -m benchmarks.instances
FOLDER` writes the drawn families as minimalloc's CSV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.instances import packings, synthetic
from benchmarks.instances.instance import Instance

Family = Callable[[bool], Iterator[Instance]]
"""Makes the instances of a family; with True, a few small ones."""

DRAWN: dict[str, Family] = {
    family.__name__: family
    for family in (
        packings.guillotine,
        packings.pinwheel,
        packings.slack,
        packings.fixed,
        packings.gaps,
        packings.windows,
        synthetic.rectangles,
        synthetic.alignments,
        synthetic.banks,
        synthetic.chains,
        synthetic.training,
        synthetic.pipelines,
    )
}
"""The families that are drawn at random, by name."""

__all__ = ["DRAWN", "Family", "Instance"]
