# SPDX-License-Identifier: Apache-2.0
"""
The plan of a sweep: what is compiled, for which machines, and what is varied. A TOML file, or flags, or both.

```toml
inputs = ["digits.onnx"]
machines = ["gemmini-fp32"]
planner = ["portfolio", "first-fit-by-size"]
depth = ["auto", 1]
[set]
scope.spad.size = ["64K", "256K"]
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, TypeVar, cast

from penstock.dialects.diagnostics import UserError, did_you_mean, nearest_or_all
from penstock.lowering.toml_positions import Path as Keys
from penstock.lowering.toml_positions import Position, Positions, locate, read_toml

DEFAULT = "default"
"""The value of every axis that leaves it to the compiler; and the name of the pipeline that is edited."""
ON, OFF = "on", "off"

Document = dict[str, object]
T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """A value of an axis: what it is called in tables, and what it changes."""

    label: str
    edit: str = ""
    """Of the pipeline; see `runtime/pipeline_edits`."""
    option: tuple[str, str] | None = None
    """A number of the machine, by its path."""
    schedule: str | None = None
    """The file of the schedules that are given."""


@dataclass(frozen=True)
class Axis:
    """What is varied, by the name of its column, and its values in the order of the plan."""

    name: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class Input:
    """A program, as it is called in tables, and its file."""

    label: str
    path: str


@dataclass(frozen=True)
class Point:
    """One run: a value of every axis."""

    input: Input
    machine: str | None
    choices: tuple[Choice, ...]

    @property
    def options(self) -> dict[str, str]:
        """The numbers of the machine that are set, by their paths."""
        return dict(choice.option for choice in self.choices if choice.option is not None)

    @property
    def pipeline(self) -> str:
        """The pipeline and its edits."""
        return ", ".join([DEFAULT, *(choice.edit for choice in self.choices if choice.edit)])

    @property
    def schedule(self) -> str | None:
        return next((choice.schedule for choice in self.choices if choice.schedule is not None), None)


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep runs: every input on every machine with every combination of the values of the axes."""

    inputs: tuple[Input, ...]
    machines: tuple[str | None, ...]
    axes: tuple[Axis, ...]
    dims: tuple[tuple[str, int], ...] = ()
    kernel: str | None = None
    kernels: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of what a run is identified by."""
        return ("input", "machine", *(axis.name for axis in self.axes))

    def points(self) -> Iterator[Point]:
        """All runs, the last axis varying fastest."""
        for one, machine, *choices in product(self.inputs, self.machines, *(axis.choices for axis in self.axes)):
            assert isinstance(one, Input)
            assert machine is None or isinstance(machine, str)
            yield Point(one, machine, tuple(choice for choice in choices if isinstance(choice, Choice)))

    def labels(self, point: Point) -> dict[str, str]:
        """The values of a run by the names of `columns`."""
        values = (point.input.label, point.machine or "-", *(choice.label for choice in point.choices))
        return dict(zip(self.columns, values, strict=True))


@dataclass
class PlanText:
    """The document of a plan, and the places in it; flags are brought in as if they stood there."""

    document: Document = field(default_factory=Document)
    positions: Positions = field(default_factory=lambda: Positions({(): Position(0, "plan", 1, 1)}))
    folder: Path = field(default_factory=Path)
    """What the files of the plan are relative to."""
    given: set[str] = field(default_factory=set[str])
    """The keys that flags gave, whose files are relative to where the command runs."""

    @staticmethod
    def read(path: Path) -> PlanText:
        """The plan in a file; raises UserError, placed, for what cannot be read or is not TOML."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise UserError(f"cannot read the plan: {why}", loc=str(path)) from None
        return PlanText(read_toml(str(path), text), locate(text, str(path)), path.parent)

    def give(self, key: str, value: object) -> None:
        """Let a flag say `key`, whose places are in the flag."""
        self.document[key] = value
        self.given.add(key)
        for known in (self.positions.keys, self.positions.values):
            for inside in [each for each in known if each[:1] == (key,)]:
                del known[inside]
        self.place((key,), f"--{key}", 1, 1)

    def place(self, path: Keys, file: str, line: int, column: int) -> None:
        """Say where a key or a value is."""
        self.positions.keys[path] = Position(0, file, line, column)

    def table(self, key: str) -> Document:
        """A table of the document; an empty one if there is none."""
        value = self.document.get(key)
        return cast(Document, value) if isinstance(value, dict) else {}


def read_plan(text: PlanText) -> SweepPlan:
    """The plan that a document says; raises UserError, at its place, for the first fault in it."""
    return _Reader(text).plan()


class _Reader:
    def __init__(self, text: PlanText):
        self._text = text
        self._document = text.document

    def plan(self) -> SweepPlan:
        for key in self._document:
            if key not in _KEYS:
                note = nearest_or_all(key, _KEYS, "keys")
                raise self._fault(f'unknown key "{key}" in a plan', (key,), note, at_key=True)
        if "inputs" not in self._document:
            raise self._fault("the plan has no inputs", (), 'write inputs = ["model.onnx"]')
        inputs = tuple(Input(word, self._file("inputs", word, path)) for word, path in self._words("inputs"))
        machines = self._machines()
        axes = [*self._numbers(machines)]
        for key, read in _AXES.items():
            if key in self._document:
                axes.append(Axis(key, tuple(read(self, *each) for each in self._words(key))))
        axes += [*self._toggles(), *self._edits()]
        for axis in axes:
            if axis.name in ("input", "machine") or [each.name for each in axes].count(axis.name) > 1:
                raise self._fault(f'two columns of the table would be called "{axis.name}"', ())
        kernel = self._document.get("kernel")
        if kernel is not None and not isinstance(kernel, str):
            raise self._fault("kernel must be a string", ("kernel",))
        kernels = tuple(self._file("kernels", *each) for each in self._words("kernels"))
        return SweepPlan(inputs, machines, tuple(axes), tuple(self._dims()), kernel, kernels)

    # parts

    def _machines(self) -> tuple[str | None, ...]:
        from penstock.lowering.from_machine_toml import read_machine
        from penstock.lowering.machine_names import machine_text

        found: list[str] = []
        for word, path in self._words("machines"):
            name = str(self._file("machines", word, path)) if word.endswith(".toml") else word
            _, faults = self._placed(lambda name=name: read_machine(*machine_text(name)), path)
            if faults:
                raise faults[0]
            found.append(name)
        return tuple(found) or (None,)

    def _numbers(self, machines: Sequence[str | None]) -> Iterator[Axis]:
        from penstock.lowering.from_machine_toml import read_machine
        from penstock.lowering.machine_names import machine_text

        for name, path in self._leaves(self._table("set"), ("set",)):
            choices: list[Choice] = []
            for value, place in self._words_at(path, name):
                if value == DEFAULT:
                    choices.append(Choice(value))
                    continue
                for machine in machines:
                    if machine is None:
                        raise self._fault("there is no machine whose numbers could be set", path, at_key=True)
                    for fault in read_machine(*machine_text(machine), {name: value})[1]:
                        at_key = int((fault.loc or "0").rpartition(":")[2]) <= len(name) + 1
                        note = [*fault.notes, f"of the machine {machine}"]
                        raise self._fault(fault.message, path if at_key else place, *note, at_key=at_key)
                choices.append(Choice(value, option=(name, value)))
            yield Axis(name, tuple(choices))

    def _toggles(self) -> Iterator[Axis]:
        from penstock.runtime.pass_manager import load_pass

        for name, path in self._words("passes"):
            self._placed(lambda name=name: load_pass(name), path)
            yield Axis(name, (Choice(ON), Choice(OFF, f"-{name}")))

    def _edits(self) -> Iterator[Axis]:
        for axis, table in self._table("edits").items():
            choices: list[Choice] = []
            for label, edit in self._table_of(table, ("edits", axis)).items():
                if not isinstance(edit, str):
                    raise self._fault("an edit of the pipeline must be a string", ("edits", axis, label))
                self._placed(lambda edit=edit: _check_edits(edit), ("edits", axis, label))
                choices.append(Choice(label, edit))
            if not choices:
                raise self._fault(f'"{axis}" has no values', ("edits", axis), at_key=True)
            yield Axis(axis, tuple(choices))

    def _dims(self) -> Iterator[tuple[str, int]]:
        for name, size in self._table("dims").items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise self._fault(f"the size of {name} must be an integer from 1", ("dims", name))
            yield name, size

    # values of axes

    def _planner(self, name: str, path: Keys) -> Choice:
        from penstock.passes.planning.registry import planner

        return self._part(name, path, planner, f'mem-plan{{planner="{name}"}}')

    def _tiler(self, name: str, path: Keys) -> Choice:
        from penstock.passes.planning.tilers.registry import tiler

        return self._part(name, path, tiler, f'assign-devices{{tiler="{name}"}}')

    def _strategy(self, name: str, path: Keys) -> Choice:
        from penstock.passes.planning.on_chip.registry import strategy

        return self._part(name, path, strategy, f'mem-promote{{strategy="{name}"}}')

    def _part(self, name: str, path: Keys, find: Callable[[str], object], edit: str) -> Choice:
        if name == DEFAULT:
            return Choice(name)
        self._placed(lambda: find(name), path)
        return Choice(name, edit)

    def _depth(self, word: str, path: Keys) -> Choice:
        if word in (DEFAULT, "auto"):
            return Choice(word)
        if not (word.isascii() and word.isdecimal() and 1 <= int(word[:9])):
            raise self._fault(f'a depth is "auto" or a number of slots from 1, not {word}', path)
        return Choice(word, f"tile{{depth={word}}}")

    def _schedule(self, word: str, path: Keys) -> Choice:
        if word == DEFAULT:
            return Choice(word)
        from penstock.runtime.schedules import read_schedules

        file = self._file("schedule", word, path)
        read_schedules(file)
        return Choice(word, schedule=file)

    # the document

    def _words(self, key: str) -> Iterator[tuple[str, Keys]]:
        if key in self._document:
            yield from self._words_at((key,), key)

    def _words_at(self, path: Keys, name: str) -> Iterator[tuple[str, Keys]]:
        """The words of a list, each with its path; a word for itself is a list of one."""
        value: Any = self._document
        for key in path:
            value = value[key]
        items = cast(list[object], value if isinstance(value, list) else [value])
        if not items:
            raise self._fault(f'"{name}" has no values', path, at_key=True)
        seen: set[str] = set()
        for index, item in enumerate(items):
            place = (*path, index) if isinstance(value, list) else path
            if isinstance(item, bool) or not isinstance(item, str | int | float):
                raise self._fault(f'a value of "{name}" must be a string or a number', place)
            if (word := str(item)) in seen:
                raise self._fault(f'"{word}" is there twice', place)
            seen.add(word)
            yield word, place

    def _table(self, key: str) -> Document:
        return self._table_of(self._document.get(key, {}), (key,))

    def _table_of(self, value: object, path: Keys) -> Document:
        if not isinstance(value, dict):
            raise self._fault(f'"{path[-1]}" must be a table', path)
        return cast(Document, value)

    def _leaves(self, table: Document, path: Keys) -> Iterator[tuple[str, Keys]]:
        """The lists in a table of tables, by their dotted names."""
        for key, value in table.items():
            if isinstance(value, dict):
                for name, inside in self._leaves(cast(Document, value), (*path, key)):
                    yield f"{key}.{name}", inside
            else:
                yield key, (*path, key)

    def _file(self, key: str, word: str, path: Keys) -> str:
        folder = Path() if key in self._text.given else self._text.folder
        file = folder / word
        if not file.is_file():
            near = did_you_mean(file.name, [each.name for each in file.parent.glob("*")])
            raise self._fault(f'there is no file "{file}"', path, *([near] if near else []))
        return str(file)

    def _placed(self, ask: Callable[[], T], path: Keys) -> T:
        """What `ask` answers; a fault without a place of its own in a file is put at `path`."""
        try:
            return ask()
        except UserError as error:
            raise UserError(error.message, loc=self._place(path), notes=error.notes) from None

    def _place(self, path: Keys, at_key: bool = False) -> str | None:
        if path[:1] == ("inputs",) and "inputs" in self._text.given:
            return None  # they are words of the command line
        return str(self._text.positions.key(path) if at_key else self._text.positions.value(path))

    def _fault(self, message: str, path: Keys, *notes: str, at_key: bool = False) -> UserError:
        return UserError(message, loc=self._place(path, at_key), notes=notes)


def _check_edits(text: str) -> None:
    """Raise UserError for edits of which no pipeline could make sense."""
    from penstock.runtime.pass_manager import split_pipeline
    from penstock.runtime.pipeline_edits import check_edit

    for item in split_pipeline(text):
        check_edit(item, DEFAULT)


_AXES: dict[str, Callable[[_Reader, str, Keys], Choice]] = {
    "planner": _Reader._planner,  # pyright: ignore[reportPrivateUsage]
    "tiler": _Reader._tiler,  # pyright: ignore[reportPrivateUsage]
    "on-chip": _Reader._strategy,  # pyright: ignore[reportPrivateUsage]
    "depth": _Reader._depth,  # pyright: ignore[reportPrivateUsage]
    "schedule": _Reader._schedule,  # pyright: ignore[reportPrivateUsage]
}
"""The axes by their keys, and how a value of each is read."""
_KEYS = ("inputs", "machines", "dims", "kernel", "kernels", "set", *_AXES, "passes", "edits")
