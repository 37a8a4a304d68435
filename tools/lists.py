# SPDX-License-Identifier: Apache-2.0
"""
What there is to name on a command line: the one list of each kind, which `penstock list KIND` prints.

An entry says what it is in the first sentence of its docstring, and a machine in that of the comment its file begins
with. What installed packages offer is listed as our own; what of it cannot be loaded says so, and hides nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.tools.listed import Listed, failure, first_sentence

if TYPE_CHECKING:
    from xdsl.ir import Operation


def planners() -> Iterator[Listed]:
    from penstock.passes.planning.registry import DEFAULT_PLANNER, GROUP

    yield from _entry_points(GROUP, DEFAULT_PLANNER)


def tilers() -> Iterator[Listed]:
    from penstock.passes.planning.tilers.registry import DEFAULT_TILER, GROUP

    yield from _entry_points(GROUP, DEFAULT_TILER)


def strategies() -> Iterator[Listed]:
    from penstock.passes.planning.on_chip.registry import DEFAULT_STRATEGY, GROUP

    yield from _entry_points(GROUP, DEFAULT_STRATEGY)


def machines() -> Iterator[Listed]:
    """Yield the shipped machines and those of installed packages; of a file only the first comment is read."""
    from penstock.lowering.machine_names import known_machines, machine_text

    for name in known_machines():
        yield _loaded(name, lambda name=name: machine_text(name), lambda found: (_comment(found[1]), found[0]))


def passes() -> Iterator[Listed]:
    """Yield them by what they are for, and then the pipelines that have names, which stand for passes."""
    from penstock.tools.pass_help import listed_passes, listed_pipelines

    yield from listed_passes()
    yield from listed_pipelines()


def ops() -> Iterator[Listed]:
    """The ops that Penstock and installed packages define, by dialect; not those that xDSL has."""
    from xdsl.dialects import get_all_dialects

    from penstock.dialects.plugins import factories
    from penstock.dialects.upstream import AMENDED

    upstream = get_all_dialects()
    for name, factory in sorted((factories("all_dialects") | AMENDED).items()):
        if name in AMENDED or name not in upstream:
            try:
                own = [op for op in factory().operations if op.__module__.partition(".")[0] != "xdsl"]
            except Exception as error:
                yield Listed(name, failure(error), group=name)
                continue
            yield from (_op(op, name) for op in sorted(own, key=lambda op: op.name))


def emitters() -> Iterator[Listed]:
    """The values of `penstock compile --emit`."""
    from penstock.tools.compile_command import DEFAULT_EMITTER, EMITTERS

    for name, each in EMITTERS.items():
        yield Listed(name, each.about, _place(each.write), is_default=name == DEFAULT_EMITTER)


@dataclass(frozen=True)
class Kind:
    """A list, and where a name of it is given."""

    about: str
    entries: Callable[[], Iterator[Listed]]


KINDS = {
    "planners": Kind("give buffers their offsets: mem-plan{planner=NAME}, penstock plan --planner NAME", planners),
    "tilers": Kind("choose tiles: tile{tiler=NAME}", tilers),
    "strategies": Kind("choose what stays on chip between kernels: mem-promote{strategy=NAME}", strategies),
    "machines": Kind("what programs are compiled for: --machine NAME", machines),
    "passes": Kind("change a program: -p NAME,NAME, penstock-opt --NAME", passes),
    "ops": Kind("what programs are made of at each level", ops),
    "emitters": Kind("what compiling writes: penstock compile --emit NAME", emitters),
}


def _entry_points(group: str, default: str) -> Iterator[Listed]:
    from penstock.dialects.plugins import installed

    for entry in installed(group):
        yield _loaded(
            entry.name,
            entry.load,
            lambda found, where=entry.value: (getattr(found, "__doc__", None) or "", where),
            is_default=entry.name == default,
        )


def _loaded(
    name: str, load: Callable[[], Any], read: Callable[[Any], tuple[str, str]], *, is_default: bool = False
) -> Listed:
    """The entry whose text and place are read from what is loaded; a plug-in that is broken must not hide others."""
    try:
        text, where = read(load())
    except Exception as error:
        return Listed(name, failure(error))
    return Listed(name, first_sentence(text), where, is_default=is_default)


def _comment(text: str) -> str:
    """The comment that a file begins with, without the line of its licence."""
    found: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if "SPDX-" not in line:
            found.append(line.removeprefix("#").strip())
    return "\n".join(found)


def _op(op: type[Operation], dialect: str) -> Listed:
    what = first_sentence(vars(op).get("__doc__") or "")
    # The docstring of an op that is made from its definition upstream may say no more than the name.
    return Listed(op.name, "" if what.strip("`.") == op.name else what, _place(op), dialect)


def _place(of: Any) -> str:
    return f"{of.__module__}:{of.__qualname__}"
