# SPDX-License-Identifier: Apache-2.0
"""A text of kernels in an editor: what is wrong with it, what its names stand for, and their types."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from xdsl.dialects.func import FuncOp

from penstock.dialects.diagnostics import UserError
from penstock.lowering.from_kernel import read_source
from penstock.lowering.from_kernel.lower import BUILT_IN, KernelFile
from penstock.lowering.from_kernel.names import NamedThing, names_of
from penstock.lowering.from_kernel.parser import KEYWORDS
from penstock.lowering.from_kernel.scalars import SCALAR_NAMES
from penstock.lowering.from_kernel.sizes import sizes_of
from penstock.lowering.from_kernel.syntax import Kernel, Source
from penstock.lowering.from_text import SourceText
from penstock.lowering.text_places import Extent
from penstock.tools.lsp.documents import (
    Completion,
    Faults,
    Hover,
    Kind,
    Lines,
    Location,
    Problem,
    Symbol,
    word_around,
)
from penstock.tools.markdown import block, page

_DEFINITION = re.compile(r"^[ \t]*(?:kernel|function|reducer)\b", re.MULTILINE)
_SAMPLES: tuple[Callable[[int], int], ...] = (
    lambda _: 64,
    lambda number: 48 + 16 * number,
    lambda number: max(64 >> number, 3),
)
"""Sets of sizes that a kernel is checked with which has open ones, by their numbers: equal, rising and falling."""
_ELEMENTS = "f16 bf16 f32 f64 i8 i16 i32 i64 ui8 ui16 ui32 ui64 bool".split()
_DEFINING = ("kernel", "function", "reducer")
_OTHER_KINDS = {"size": Kind.CONSTANT, "constant": Kind.CONSTANT}


class KernelText:
    """A text of kernels, of which each definition is read by itself where the whole cannot be."""

    def __init__(self, path: str, text: str):
        self.text = text
        self._lines = Lines(text)
        self._faults = Faults(path, self._lines)
        self._path = path
        self._types: dict[str, tuple[str, dict[str, str]]] = {}
        """By the names of kernels: the sizes that were taken, and the types that names have with them."""
        self.problems: Sequence[Problem] = []
        source, kept = self._read()
        self._things = names_of(source, kept)
        if not self.problems:
            self.problems = list(self._check())
        # What is defined comes before what is in it.
        self._definitions = list(zip(self._things, self._bounds(source), strict=False))
        """The definitions, with their extents."""

    def _read(self) -> tuple[Source, str]:
        """
        The definitions that can be read, and the text without the others, which are blank; what is wrong with those is
        noted.
        """
        kept, problems = self.text, list[Problem]()
        while True:
            try:
                source = read_source(SourceText(self._path, kept))
                break
            except UserError as fault:
                problem = self._faults.problem(fault)
                problems.append(problem)
                starts = [found.start() for found in _DEFINITION.finditer(kept)]
                # A definition that ends too early is noticed where the next one begins.
                start = max((at for at in starts if at < problem.extent.start), default=0)
                end = min((at for at in starts if at > start), default=len(kept))
                blank = re.sub(r"[^\n]", " ", kept[start:end])
                if blank == kept[start:end]:
                    source, kept = Source(()), ""
                    break
                kept = kept[:start] + blank + kept[end:]
        self.problems = problems
        return source, kept

    def _bounds(self, source: Source) -> Iterator[Extent]:
        starts = [self._lines.offset(each.at.line, each.at.column) for each in source.definitions]
        for start, end in pairwise([*starts, len(self.text)]):
            yield Extent(start, start + len(self.text[start:end].rstrip()))

    def _check(self) -> Iterator[Problem]:
        """What lowering refuses, of each kernel the first."""
        if not _DEFINITION.search(self.text):
            return
        try:
            file = KernelFile(SourceText(self._path, self.text))
        except UserError as fault:
            yield self._faults.problem(fault)
            return
        for kernel in file.kernels.values():
            yield from self._check_kernel(file, kernel)

    def _check_kernel(self, file: KernelFile, kernel: Kernel) -> Iterator[Problem]:
        """
        What is wrong with a kernel. Where sizes are open, it is checked with several sets of them, and what is wrong
        with all of these, at one place, is a warning.
        """
        needed = [*sizes_of(kernel), *(each.name for each in kernel.constants if each.default is None)]
        faults: list[UserError] = []
        samples: list[str] = []
        for size in _SAMPLES if needed else _SAMPLES[:1]:
            sizes = {name: size(number) for number, name in enumerate(needed)}
            samples.append(", ".join(f"{name} = {each}" for name, each in sizes.items()))
            try:
                function = file.function(kernel, sizes)
            except UserError as fault:
                faults.append(fault)
                continue
            self._types[kernel.name] = samples[-1], dict(_types(function))
            return
        kinds = {(fault.loc, re.sub(r"\d+", "", fault.message)) for fault in faults}
        if len(kinds) != 1:
            return
        fault = faults[0]
        notes = [*fault.notes, *([f"with {samples[0]}, and with other sizes too"] if needed else [])]
        told = UserError(fault.message, loc=fault.loc, notes=notes)
        yield self._faults.problem(told, is_warning=bool(needed))

    # names

    def _at(self, position: int) -> tuple[NamedThing, Extent] | None:
        for thing in self._things:
            for place in thing.places:
                if (extent := Extent(place, place + len(thing.name))).holds(position):
                    return thing, extent
        return None

    def hover(self, position: int) -> Hover | None:
        found = self._at(position)
        if found is None:
            word = word_around(self.text, position)
            name = "" if word is None else self.text[word.start : word.end]
            if word is None or name not in BUILT_IN:
                return None
            kind = "A function of scalars" if name in SCALAR_NAMES else "A name"
            return Hover(word, page(block(name, "text"), [f"{kind} of the language."]))
        thing, extent = found
        lines = [f"- {thing.kind}" + (f" of `{thing.owner.name}`" if thing.owner is not None else "")]
        sizes, types = self._types.get("" if thing.owner is None else thing.owner.name, ("", {}))
        if thing.kind in ("parameter", "result", "local") and thing.name in types:
            lines.append(f"- `{types[thing.name]}`" + (f" for {sizes}" if sizes else ""))
        if thing.kind not in _DEFINING:
            uses = len(thing.places) - 1
            lines.append(f"- used {uses} time{'' if uses == 1 else 's'}" if uses else "- not used")
        return Hover(extent, page(block(thing.text, "text"), lines))

    def definitions(self, position: int) -> Sequence[Location]:
        found = self._at(position)
        if found is None:
            return []
        return [Location(_named(found[0]))]

    def occurrences(self, position: int) -> Sequence[tuple[Extent, bool]]:
        found = self._at(position)
        places = [] if found is None else found[0].places
        return [
            (Extent(place, place + len(found[0].name)), number == 0) for number, place in enumerate(places) if found
        ]

    def symbols(self) -> Sequence[Symbol]:
        return [
            Symbol(thing.name, Kind.FUNCTION, extent, _named(thing), thing.text) for thing, extent in self._definitions
        ]

    def names_before(self, position: int) -> Iterator[Completion]:
        """The definitions of the text, and what is named before a position in the definition that is there."""
        around = [thing for thing, extent in self._definitions if extent.start <= position]
        for thing in self._things:
            if thing.kind in _DEFINING:
                yield Completion(thing.name, Kind.FUNCTION, thing.text)
            elif thing.owner is not None and around[-1:] == [thing.owner] and thing.places[0] < position:
                yield Completion(thing.name, _OTHER_KINDS.get(thing.kind, Kind.VARIABLE), thing.text)


def _named(thing: NamedThing) -> Extent:
    """Where something is named first."""
    return Extent(thing.places[0], thing.places[0] + len(thing.name))


def _types(function: FuncOp) -> Iterator[tuple[str, str]]:
    """The types of the values of a kernel that have names, the first of each name."""
    found: Mapping[str, str] = {}
    values = [*function.body.block.args, *(result for op in function.walk() for result in op.results)]
    for value in reversed(values):
        if value.name_hint is not None:
            found = {**found, value.name_hint: str(value.type)}
    yield from found.items()


def complete_kernel(text: str, position: int, latest: KernelText | None) -> Sequence[Completion]:
    """What may stand where a word ends: names of the text as it was read last, and those of the language."""
    word = word_around(text, position)
    start = position if word is None else word.start
    if "#" in text[text.rfind("\n", 0, start) + 1 : start]:
        return []
    found = [] if latest is None else list(latest.names_before(start))
    named = {each.text for each in found}
    found += [Completion(each, Kind.KEYWORD) for each in KEYWORDS]
    found += [Completion(each, Kind.TYPE, "element type") for each in _ELEMENTS]
    found += [Completion(each, Kind.FUNCTION, "of the language") for each in sorted(BUILT_IN) if each not in named]
    return found
