# SPDX-License-Identifier: Apache-2.0
"""What a user's fault looks like: one exception that carries a message, a place, notes and an exit status.

A fault of the user is never a traceback. It is raised as a `UserError`; the tools print it as
`place: error: message`, one `note: ...` a line, and leave with its status.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from xdsl.utils.exceptions import VerifyException

if TYPE_CHECKING:
    from xdsl.ir import Attribute, Operation

USER_FAULT = 1
"""Exit status: the user's fault."""
USAGE = 2
"""Exit status: the command line makes no sense."""
UNSUPPORTED = 3
"""Exit status: an operator or a type that is not supported."""
TIME_LIMIT = 4
"""Exit status: not found within the time limit."""
INTERNAL = 70
"""Exit status: a fault of ours."""


class UserError(Exception):
    """
    A fault of the user.

    `loc` is the place as text (`model.onnx`, `in.mlir:3:4`) or a location attribute; `notes` say what
    would help; `status` is the exit status of the tool; `others` are further faults that were found with it.
    """

    def __init__(
        self,
        message: str,
        *,
        loc: str | Attribute | None = None,
        notes: Sequence[str] = (),
        status: int = USER_FAULT,
        others: Sequence[UserError] = (),
    ):
        super().__init__(message)
        self.message = message
        self.loc = loc if loc is None or isinstance(loc, str) else render_location(loc)
        self.notes = tuple(notes)
        self.status = status
        self.others = tuple(others)

    def __str__(self) -> str:
        notes = "".join(f"\nnote: {note}" for note in self.notes)
        return f"{heading(self.loc, 'error')}{self.message}{notes}"


def heading(loc: str | None, kind: str) -> str:
    """What a message at a place begins with, `file:line:col: error: `, and then the name of what is there."""
    if not loc:
        return f"{kind}: "
    if (found := _NAMED_PLACE.fullmatch(loc)) is not None:
        return f"{found['place']}: {kind}: {found['name']}: "
    return f"{loc}: {kind}: "


_NAMED_PLACE = re.compile(r'(?P<place>[^"]*:\d+:\d+) \((?P<name>"[^"]*")\)')
"""What `render_location` makes of a name with a place."""


class InputWarning(UserWarning):
    """
    Something in the input that is not as its format documents it and yet has one meaning, which is taken.

    The tools print it as `place: warning: message`, one `note: ...` a line; a program gets it as Python's warnings.
    """

    def __init__(self, message: str, *, loc: str | None = None, notes: Sequence[str] = ()):
        super().__init__(message)
        self.message = message
        self.loc = loc
        self.notes = tuple(notes)

    def __str__(self) -> str:
        place = f"{self.loc}: " if self.loc else ""
        return f"{place}{self.message}" + "".join(f"\nnote: {note}" for note in self.notes)


DISTRIBUTION = "penstock-compiler"
"""The name of this package for pip; `penstock` is another one there."""


def pip_install(extra: str) -> str:
    """The command that installs an extra of this package."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


MOST_NOTES = 5
"""Notes of one message about many places; how many more there are is the last one."""


def some_of(notes: Sequence[str]) -> list[str]:
    """The first of many notes, and how many more there are."""
    more = len(notes) - MOST_NOTES
    return [*notes[:MOST_NOTES], f"and {more} more"] if more > 1 else list(notes)


def warn_of(messages: Sequence[str], place: str | None = None) -> None:
    """Issue one InputWarning for all `messages`, which are of one kind; none if there are none."""
    if messages:
        warnings.warn(InputWarning(messages[0], loc=place, notes=some_of(messages[1:])), stacklevel=2)


def render_location(loc: Attribute) -> str:
    """
    The text of a location: `file:line:col`, `file` for all of it, a quoted name, `file:line:col ("name")` for one that
    is there, the parts of a fused one, or who called; empty if unknown.
    """
    # A command line is read, and refused, without the IR: importing it takes longer.
    from xdsl.dialects.builtin import ArrayAttr, CallSiteLoc, FileLineColLoc, FusedLoc, NameLoc, NoneAttr, UnknownLoc
    from xdsl.utils.hints import isa

    match loc:
        case FileLineColLoc():
            place = f":{loc.line.data}:{loc.column.data}" if loc.line.data else ""
            return f"{loc.filename.data}{place}"
        case NameLoc():
            place = render_location(loc.location)
            return f'{place} ("{loc.desc.data}")' if place else f'"{loc.desc.data}"'
        case CallSiteLoc():
            return f"{render_location(loc.callee)}, called at {render_location(loc.caller)}"
        case FusedLoc():
            assert isa(loc.locations, ArrayAttr)
            parts = (render_location(part) for part in loc.locations)
            return ", ".join(dict.fromkeys(part for part in parts if part))
        case UnknownLoc() | NoneAttr():
            return ""
        case _:
            return str(loc)


def location_of(op: Operation) -> str:
    """The place of `op` for a message: its location, else the nearest known one around it, else its name."""
    current: Operation | None = op
    while current is not None:
        if text := render_location(current.location):
            return text
        current = current.parent_op()
    return op.name


def calls_itself(name: str, site: Operation) -> UserError:
    """The fault of a function that calls itself, at the op where it does or where it is called."""
    return UserError(f"@{name} calls itself: its buffers cannot be planned", loc=location_of(site))


class UnknownName(VerifyException):
    """A verification fault: the name of something that is not there; `note` says what the nearest name, or all, are."""

    def __init__(self, message: str, name: str, known: Iterable[str], title: str):
        super().__init__(message)
        self.note = nearest_or_all(name, known, title)


def nearest_or_all(name: str, known: Iterable[str], title: str) -> str:
    """A note for a `name` that is unknown: the nearest of the `known` ones, or `title` and all of them."""
    known = list(known)
    return did_you_mean(name, known) or f"{title}: {', '.join(known) or 'none'}"


def did_you_mean(name: str, candidates: Iterable[str]) -> str | None:
    """A note that names the candidate nearest to a misspelt `name`, or None if none is near."""
    near = difflib.get_close_matches(name, sorted(candidates), n=1, cutoff=0.6)
    return f'did you mean "{near[0]}"?' if near else None


class ExpressionFault(Exception):
    """What is wrong with an expression in a file, and at which column of its text, counted from 0."""

    def __init__(self, message: str, column: int, notes: tuple[str, ...] = ()):
        super().__init__(message)
        self.message = message
        self.column = column
        self.notes = notes
