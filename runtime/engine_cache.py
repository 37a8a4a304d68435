# SPDX-License-Identifier: Apache-2.0
"""The engines of one program that were used last: one for each set of sizes, made when it is first asked for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

CACHED_ENGINES = 8
"""How many engines are kept unless told otherwise: that of the key that was not used for longest goes."""

Key = TypeVar("Key", bound=Hashable)
Cached = TypeVar("Cached")


class EngineCache(Generic[Key, Cached]):
    """
    Engines, contexts of engines, or what runs them, by their keys. May be asked from several threads: those that ask
    for one new engine wait for one compilation.
    """

    def __init__(self, cached: int = CACHED_ENGINES):
        self.cached = cached
        self._engines: OrderedDict[Key, Cached] = OrderedDict()
        self._lock = threading.Lock()
        self._compiling = threading.Lock()

    @property
    def keys(self) -> list[Key]:
        """Of what is kept, from the one that was not used for longest."""
        with self._lock:
            return list(self._engines)

    def get(self, key: Key, make: Callable[[], Cached]) -> Cached:
        """The engine of a key, which `make` makes if it is not kept."""
        if (engine := self._kept(key)) is not None:
            return engine
        with self._compiling:
            # Another thread may have made it while this one waited.
            if (engine := self._kept(key)) is not None:
                return engine
            engine = make()
            with self._lock:
                self._engines[key] = engine
                while len(self._engines) > self.cached:
                    self._engines.popitem(last=False)
        return engine

    def _kept(self, key: Key) -> Cached | None:
        with self._lock:
            if (engine := self._engines.get(key)) is not None:
                self._engines.move_to_end(key)
            return engine
