# SPDX-License-Identifier: Apache-2.0
"""
Programs whose sizes are known when they run, up to a bound: what programs compiled at several sizes have in common.

`points` chooses the sizes and finds what a number is as a function of them, `comparison` does so for every number of
several modules that are otherwise alike, and `opening` writes the one program: `?` in types, sizes as values.
"""

from penstock.lowering.bounded.comparison import compare, refusal, size_words
from penstock.lowering.bounded.opening import open_sizes
from penstock.lowering.bounded.points import Points, size_at

__all__ = ["Points", "compare", "open_sizes", "refusal", "size_at", "size_words"]
