# SPDX-License-Identifier: Apache-2.0
"""Folders of files that belong together: written as a whole or not at all, and nothing of others is touched in them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from penstock.dialects.diagnostics import UserError
from penstock.dialects.files import follow, put, remove, require_writable, temporary_folder, uninterrupted

FILES = "files"
"""The key under which the marker of a folder lists the names of its files."""


def write_folder(
    path: str | Path,
    kind: str,
    fill: Callable[[Path], None],
    *,
    marker: str | None = None,
    is_ours: Callable[[Path], bool] = lambda _: True,
) -> None:
    """
    Let `fill` write files into a folder without any, which then become files of the folder `path`, made if need be.

    `marker` is a JSON file that says of a folder that it is a `kind`, and lists its files: those of an earlier one are
    replaced or removed, and a folder that holds other files alone is left as it is. Without a marker, files of the
    same names are replaced if they satisfy `is_ours`. All other files stay.

    Raises UserError, and changes nothing, for a file that is not replaced and where the folder cannot be written.
    """
    try:
        place = follow(path)
        if isinstance(place, int) or (place.exists() and not place.is_dir()):
            raise UserError(f"exists and is no {kind}, so it is not replaced", loc=str(path))
        if not place.exists():
            _write_new(place, fill, path)
            return
        earlier: Collection[str] | None = None
        if marker is not None and any(place.iterdir()):
            earlier = _listed(place / marker)
            if earlier is None:
                raise UserError(f"exists and is no {kind}, so it is not replaced", loc=str(path))
        with temporary_folder(place) as fresh:
            _fill(fresh, fill, path)
            _check(place, kind, os.listdir(fresh), earlier, is_ours)
            with uninterrupted():
                _exchange(fresh, place, earlier or ())
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"cannot write the {kind}: {error.strerror or error}", loc=str(path)) from None


def _fill(fresh: Path, fill: Callable[[Path], None], path: str | Path) -> None:
    try:
        fill(fresh)
    except UserError as error:
        # What will be a file of `path` has another name by now.
        loc = error.loc.replace(str(fresh), str(path), 1) if error.loc else None
        raise UserError(error.message, loc=loc, notes=error.notes, status=error.status) from None


def _write_new(place: Path, fill: Callable[[Path], None], path: str | Path) -> None:
    above = next(parent for parent in place.parents if parent.exists())
    require_writable(above / place.name)
    with temporary_folder(above) as scratch:
        fresh = scratch / "fresh"
        fresh.mkdir()
        _fill(fresh, fill, path)
        with uninterrupted():
            place.parent.mkdir(parents=True, exist_ok=True)
            fresh.rename(place)


def _listed(marker: Path) -> Collection[str] | None:
    """The names of the files that belong to the folder of `marker`; None if it is not there, or not written by us."""
    try:
        description: Any = json.loads(marker.read_text(encoding="utf-8"))
        return frozenset(map(str, description[FILES])) if "penstock" in description else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _check(
    place: Path, kind: str, names: Collection[str], earlier: Collection[str] | None, is_ours: Callable[[Path], bool]
) -> None:
    """Raise for a file that must not be replaced, before the first one is."""
    for name in sorted(names):
        target = follow(place / name)
        require_writable(target)
        if not isinstance(target, Path) or not target.is_file():
            continue
        if name not in earlier if earlier is not None else not is_ours(target):
            message = f"exists and is no file of a {kind}, so it is not replaced"
            raise UserError(message, loc=str(place / name), notes=["move it away, or write to another folder"])


def _exchange(fresh: Path, place: Path, earlier: Collection[str]) -> None:
    names = sorted(os.listdir(fresh))
    for name in names:
        put(fresh / name, follow(place / name))
    for name in sorted(set(earlier) - set(names)):
        stale = place / name
        if os.path.basename(name) == name and (stale.is_symlink() or stale.is_file()):
            remove(stale)
