# SPDX-License-Identifier: Apache-2.0
"""
What installed packages offer by entry points; in particular the dialects and passes of the group `xdsl.universe`.

A factory imports what it makes when it is called, and an entry point of another group, such as `penstock.planners`,
the module that it is in. The other registries of Penstock (importers of ONNX operators, interpreters, lowerings,
emitters) are filled by imports as well. So the first use of a dialect, a pass or an operator of another package calls
all of its factories and loads all of its entry points, and those of the others: what a module of them registers is
there for all that use it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from penstock.dialects.diagnostics import warn_of

if TYPE_CHECKING:
    from xdsl.universe import Universe

GROUP = "xdsl.universe"
OWN_GROUPS = "penstock."
"""How the groups of entry points begin that are Penstock's own, of planners and so on."""
OWN = ("penstock", "xdsl")
"""The top-level modules of the packages that are loaded piece by piece: they register nothing elsewhere."""

T = TypeVar("T")
Factories = dict[str, Callable[[], T]]
_loaded: set[tuple[str, str]] = set()


def installed(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, by name."""
    return _all_on(tuple(sys.path)).get(group, ())


@lru_cache(maxsize=4)
def _all_on(path: tuple[str, ...]) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return those of packages along `path` by group, looked up once, since the files of all of them are read."""
    found = entry_points()
    return {
        group: tuple(sorted(found.select(group=group), key=lambda entry: (entry.name, entry.value)))
        for group in found.groups
    }


def groups() -> list[str]:
    """The groups in which installed packages offer something to Penstock."""
    return sorted(name for name in _all_on(tuple(sys.path)) if name == GROUP or name.startswith(OWN_GROUPS))


@lru_cache(maxsize=4)
def _universe_on(path: tuple[str, ...]) -> Universe:
    # Names of planners and machines are looked up without the IR.
    from xdsl.universe import Universe

    return Universe.get_multiverse()


def factories(kind: Literal["all_dialects", "all_passes", "all_targets"]) -> Factories[Any]:
    """What makes each dialect, or the class of each pass or target, of every installed package, by its name."""
    found: Factories[Any] = dict(getattr(_universe_on(tuple(sys.path)), kind))
    for entry in _plugins():
        foreign: Mapping[str, Callable[[], Any]] = getattr(entry.load(), kind)
        found.update({name: _with_all_plugins(factory) for name, factory in foreign.items()})
    return found


def load_plugins() -> None:
    """
    Call every factory of the installed packages other than xDSL and Penstock, and load their entry points of Penstock's
    groups, once, so that what their modules register is there. Issues an InputWarning for those that fail.
    """
    failures: list[str] = []
    for entry in _plugins():
        if not _is_new(entry):
            continue
        universe: Universe = entry.load()
        for kind in (universe.all_dialects, universe.all_passes):
            for name, factory in kind.items():
                try:
                    factory()
                except Exception as error:
                    failures.append(_failure(entry, f'"{name}"', error))
    for entry in _others_on(tuple(sys.path)):
        if _is_new(entry):
            try:
                entry.load()
            except Exception as error:
                failures.append(_failure(entry, entry.value, error))
    warn_of(failures)


def _is_new(entry: EntryPoint) -> bool:
    """Whether an entry point has not been loaded before; from then on it has."""
    key = (f"{entry.group}:{entry.name}", entry.value)
    is_new = key not in _loaded
    _loaded.add(key)
    return is_new


def _failure(entry: EntryPoint, what: str, error: Exception) -> str:
    return f'the plug-in "{entry.name}" does not load {what}: {type(error).__name__}: {error}'


def _plugins() -> list[EntryPoint]:
    return [entry for entry in installed(GROUP) if entry.module.partition(".")[0] not in OWN]


@lru_cache(maxsize=4)
def _others_on(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """The entry points of packages along `path` in Penstock's own groups, but its own."""
    found = (entry for group in groups() if group != GROUP for entry in _all_on(path)[group])
    return tuple(entry for entry in found if entry.module.partition(".")[0] not in OWN)


def _with_all_plugins(factory: Callable[[], T]) -> Callable[[], T]:
    def make() -> T:
        load_plugins()
        return factory()

    return make
