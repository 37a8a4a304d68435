# SPDX-License-Identifier: Apache-2.0
"""Results that programs which are alike share, such as those of a sweep: by the contents of all that they depend on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

MOST = 2000
"""Results that are kept; those whose last use is longest ago go first."""


class Remembered:
    """What was computed, by what it was computed of."""

    def __init__(self) -> None:
        self._found: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable) -> Any | None:
        """The result that was kept for a key; None for one that was not, or is not kept any more."""
        if (found := self._found.get(key)) is not None:
            self._found.move_to_end(key)
        return found

    def keep(self, key: Hashable, result: object) -> None:
        """Keep a result, which nothing changes any more."""
        self._found[key] = result
        if len(self._found) > MOST:
            self._found.popitem(last=False)
