# SPDX-License-Identifier: Apache-2.0
"""
The results of sweeps, in an SQLite file: a row for each run that has ended, which is never changed.

A run is called by a digest of all that it depends on, so the file serves any number of plans, and a sweep that was
killed goes on where it was. Each row is written as a whole when its run ends.

    SELECT json_extract(labels, '$.planner'), json_extract(figures, '$.cycles') FROM runs WHERE status = 'ok'
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.dialects.diagnostics import UserError
from penstock.tools.sweep.steps import OK

if TYPE_CHECKING:
    from penstock.tools.sweep.figures import Figure

VERSION = 1
"""Of the layout of the file."""
_BUSY_SECONDS = 60.0
"""For which a process waits that finds the file being written by another."""


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    status: str
    reason: str
    figures: Mapping[str, Figure]

    @property
    def is_ok(self) -> bool:
        return self.status == OK


class Store:
    """The file of results, open."""

    def __init__(self, path: Path, connection: sqlite3.Connection):
        self._path = path
        self._connection = connection

    def results(self, keys: Iterable[str]) -> dict[str, Result]:
        """The results of those of the runs that have ended."""
        wanted = set(keys)
        rows = self._connection.execute("SELECT key, status, reason, figures FROM runs")
        return {
            key: Result(status, reason, json.loads(figures)) for key, status, reason, figures in rows if key in wanted
        }

    def add(self, rows: Iterable[tuple[str, Mapping[str, str], Result]]) -> None:
        """Add runs that have ended, each with its key and its labels; one that is there stays as it is."""
        values = [
            (key, each.status, each.reason, json.dumps(dict(each.figures)), json.dumps(dict(labels)))
            for key, labels, each in rows
        ]
        with self._connection:
            self._connection.executemany("INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?)", values)

    def forget(self, keys: Iterable[str]) -> None:
        """Remove runs, so that they are run again."""
        with self._connection:
            self._connection.executemany("DELETE FROM runs WHERE key = ?", [(key,) for key in keys])


@contextmanager
def open_store(path: Path) -> Generator[Store]:
    """The file at `path`, made if need be; raises UserError for one that is no store, or cannot be read or written."""
    connection: sqlite3.Connection | None = None
    try:
        connection = sqlite3.connect(path, timeout=_BUSY_SECONDS)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        if version != VERSION and (version or tables):
            note = "--store FILE names another file"
            raise UserError("the file is no store of sweeps of this version", loc=str(path), notes=[note])
        with connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS runs (key TEXT PRIMARY KEY, status TEXT NOT NULL, reason TEXT NOT NULL,"
                " figures TEXT NOT NULL, labels TEXT NOT NULL) WITHOUT ROWID"
            )
            connection.execute(f"PRAGMA user_version = {VERSION}")
        yield Store(path, connection)
    except sqlite3.Error as error:
        raise UserError(f"the store of results cannot be used: {error}", loc=str(path)) from None
    finally:
        if connection is not None:
            connection.close()
