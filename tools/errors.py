# SPDX-License-Identifier: Apache-2.0
"""The outermost handler of every command: what a fault looks like on stderr, and the exit status it has.

A fault of the user is `place: error: message`, the line it speaks of with a caret, and notes. A fault of ours
is a traceback and a reproducer, a file that repeats it with one command.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from penstock.dialects.diagnostics import INTERNAL, USER_FAULT, InputWarning, UserError, heading

INTERRUPTED = 130
"""Exit status after Ctrl-C, as a shell reports it."""
BROKEN_PIPE = 141
"""Exit status when the reader of stdout has gone away, as a shell reports it."""

_PLACE = re.compile(r"(?P<file>[^\n]+?):(?P<line>\d+):(?P<column>\d+)")


def split_place(place: str) -> tuple[str, int, int] | None:
    """File, line and column of a place `file:line:col`, the first if there are several; None for other places."""
    if (match := _PLACE.match(place)) is None:
        return None
    return match["file"], int(match["line"]), int(match["column"])


def snippet(place: str, texts: Mapping[str, str] | None = None) -> str:
    """
    The line that `place` speaks of and a caret under its column, or nothing when the line cannot be had.

    `texts` holds what is no file: stdin, a pipeline.
    """
    if (found := split_place(place)) is None:
        return ""
    name, line, column = found
    text = (texts or {}).get(name)
    if text is None:
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return ""
    lines = text.splitlines()
    if not 1 <= line <= len(lines):
        return ""
    shown = lines[line - 1]
    # A tab before the caret must stay a tab, or the caret is elsewhere.
    indent = "".join("\t" if letter == "\t" else " " for letter in shown[: column - 1])
    return f"{shown}\n{indent}^"


def render(error: UserError | InputWarning, texts: Mapping[str, str] | None = None) -> str:
    """The text of a fault of the user, or of a warning: place and message, the line with a caret, notes."""
    parts = [heading(error.loc, "error" if isinstance(error, UserError) else "warning") + error.message]
    if error.loc and (shown := snippet(error.loc, texts)):
        parts.append(shown)
    parts += [f"note: {note}" for note in error.notes]
    return "\n".join(parts)


_COLOURS = tuple(
    (re.compile(rf"^(?P<place>(?:.*?: )?)(?P<word>{word}:) ", re.MULTILINE), code)
    for word, code in (("error", "1;31"), ("warning", "1;35"), ("remark", "1;34"), ("note", "1;36"))
)
"""What begins a message, and the code of its colour on a terminal."""


def wants_colour(stream: TextIO, when: str = "auto") -> bool:
    """Whether to write in colours: `always`, `never`, or `auto`, on a terminal unless NO_COLOR is set; no-color.org."""
    if when != "auto":
        return when == "always"
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def paint(text: str, *, colour: bool) -> str:
    """A message in the colours that compilers use, or as it is."""
    if not colour:
        return text
    for pattern, code in _COLOURS:
        text = pattern.sub(f"\\g<place>\033[{code}m\\g<word>\033[0m ", text)
    return re.sub(r"^([ \t]*\^)$", "\033[1;32m\\1\033[0m", text, flags=re.MULTILINE)


def guarded(
    body: Callable[[], int],
    *,
    texts: Mapping[str, str] | None = None,
    reproduce: Callable[[Exception], str | None] | None = None,
    colour: str = "auto",
) -> int:
    """
    Run the body of a command and return its exit status, whatever happens in it.

    `reproduce` turns a fault of ours into the command line that repeats it, writing a file if it needs one; `colour`
    is when messages have colours.
    """
    _open_streams()

    def say(text: str) -> None:
        print(paint(text, colour=wants_colour(sys.stderr, colour)), file=sys.stderr)

    try:
        with _printed_warnings():
            status = body()
        sys.stdout.flush()
        return status
    except UserError as error:
        for each in (error, *error.others):
            say(render(each, texts))
        return error.status
    except MemoryError as error:
        say(render(_out_of_memory(error)))
        return USER_FAULT
    except BrokenPipeError:
        _leave_stdout()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        # A name that is too long, a loop of links, a disk that is full: of the system, and not of this program. What
        # has no name is a stream.
        if error.filename is None:
            _leave_stdout()
        say(render(UserError(error.strerror or str(error), loc=error.filename or "<stdout>")))
        return USER_FAULT
    except Exception as error:
        return _internal_fault(error, reproduce)


@contextmanager
def _printed_warnings() -> Generator[None, None, None]:
    """Print each InputWarning as a message of its own; what else warns, Python prints."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", InputWarning)
        otherwise = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if isinstance(message, InputWarning):
                print(render(message), file=sys.stderr)
            else:
                otherwise(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


def _out_of_memory(error: MemoryError) -> UserError:
    """What no estimate foresaw: the compiler's own arrays, or memory that other programs have."""
    from penstock.runtime.memory import in_words, machine_bytes

    have = machine_bytes()
    notes = [] if have is None else [f"this machine has {in_words(have)}"]
    return UserError(f"out of memory{f': {error}' if str(error) else ''}", notes=notes)


class _Closed(io.TextIOBase):
    """A stream that the caller has closed: writing to it is an error, as it is for other programs."""

    def write(self, s: str, /) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def _open_streams() -> None:
    """Make the standard streams what Python takes them for, where the caller has closed some."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The next file would have the number of a stream, and get what is written to it.
            os.open(os.devnull, os.O_RDWR)
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stdin = io.TextIOWrapper(io.BytesIO())
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stdout = _Closed()
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = io.StringIO()


def _leave_stdout() -> None:
    """Python flushes stdout once more when it leaves; without this it complains there."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _internal_fault(error: Exception, reproduce: Callable[[Exception], str | None] | None) -> int:
    # The whole module hangs on an exception as a note: it belongs into the reproducer, not on the terminal.
    cause: BaseException | None = error
    while cause is not None:
        cause.__notes__ = []
        cause = cause.__cause__ or cause.__context__
    traceback.print_exception(error, file=sys.stderr)
    print(f"error: this is a fault of Penstock or of a plug-in, not of the input: {error}", file=sys.stderr)
    command: str | None = None
    if reproduce is not None:
        try:
            command = reproduce(error)
        except Exception as failure:  # the first fault matters more than that it cannot be repeated
            print(f"note: no reproducer could be written: {failure}", file=sys.stderr)
    if command:
        print(f"note: repeat it with: {command}", file=sys.stderr)
    return INTERNAL
