# SPDX-License-Identifier: Apache-2.0
"""
Run all random searches from one seed until a time is over; each failure is one line that reruns it alone.

    python -m tests.hunt --seed 1 --minutes 10

The searches are the property tests with fresh examples, the tests that are marked slow, mutants among them, and
`penstock fuzz` of every level. They are cut into pieces of one process each, in an order that is drawn from the seed.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, cycle, islice
from pathlib import Path
from random import Random
from subprocess import DEVNULL, STDOUT, Popen

from tests.known_faults import KNOWN_FAULTS

from penstock.tools.fuzz_command import LEVELS

PROGRAMS = Path(os.path.relpath(sys.executable)).parent
PYTEST = (str(PROGRAMS / "python"), "-m", "pytest")
TESTS_OF_A_PIECE = 3
INPUTS_OF_A_PIECE = 10
LAST_INPUT = 1_000_000


@dataclass
class Found:
    """What the output of a piece says; it may have been stopped."""

    failures: dict[str, str] = field(default_factory=dict[str, str])
    """By the line that reruns each alone, what it said."""
    counts: Counter[str] = field(default_factory=Counter[str])
    """How many tests, examples of them and inputs of fuzz have been run."""
    ids: tuple[str, ...] = ()
    """Of tests that were collected."""


@dataclass(frozen=True)
class Collection:
    """Says which tests there are."""

    options = ("-p", "no:cacheprovider")

    @property
    def words(self) -> tuple[str, ...]:
        return (*PYTEST, "--collect-only", "-q", "-m", "slow or hypothesis")

    def singles(self) -> list[Piece]:
        return [self]

    def found(self, text: str) -> Found:
        return Found(ids=tuple(re.findall(r"^\S+\.py::.*$", text, re.MULTILINE)))


@dataclass(frozen=True)
class Tests:
    """Tests of one file, with examples that are drawn from a seed."""

    ids: tuple[str, ...]
    seed: int

    options = ("-vv", "-p", "no:cacheprovider", "--hypothesis-show-statistics")

    @property
    def words(self) -> tuple[str, ...]:
        return (*PYTEST, *self.ids, "--hypothesis-profile=exhaustive", f"--hypothesis-seed={self.seed}")

    def singles(self) -> list[Piece]:
        return [Tests((each,), self.seed) for each in self.ids]

    def found(self, text: str) -> Found:
        said = re.findall(r"^(.+::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b", text, re.MULTILINE)
        # A test that passes and whose fixture then fails has two lines.
        outcomes = {name: outcome for name, outcome in said if name in self.ids}
        summary = text.rpartition("short test summary info")[2]
        failures = dict[str, str]()
        for name, outcome in outcomes.items():
            if outcome in ("FAILED", "ERROR"):
                message = re.search(rf"^{outcome} {re.escape(name)} - (.*)$", summary, re.MULTILINE)
                failures[shlex.join(Tests((name,), self.seed).words)] = message[1] if message else outcome.lower()
        examples = re.findall(r"^    - (\d+) passing", text, re.MULTILINE)
        return Found(failures, Counter(tests=len(outcomes), examples=sum(map(int, examples))))


@dataclass(frozen=True)
class Fuzz:
    """Inputs of a level of `penstock fuzz`, which saves what it reduces in a folder."""

    level: str
    first: int
    count: int
    folder: Path

    options = ()

    @property
    def words(self) -> tuple[str, ...]:
        given = {"level": self.level, "seed": self.first, "count": self.count, "output": self.folder}
        return (str(PROGRAMS / "penstock"), "fuzz", *(f"--{name}={value}" for name, value in given.items()))

    def singles(self) -> list[Piece]:
        return [Fuzz(self.level, each, 1, self.folder) for each in range(self.first, self.first + self.count)]

    def found(self, text: str) -> Found:
        failures = dict[str, str]()
        for number, message in re.findall(rf"^error: {self.level} (\d+)\W *(.*)$", text, re.MULTILINE):
            failures[shlex.join(Fuzz(self.level, int(number), 1, self.folder).words)] = message
        inputs = re.findall(rf"^{self.level}: (\d+) inputs", text, re.MULTILINE)
        return Found(failures, Counter(inputs=sum(map(int, inputs))))


Piece = Collection | Tests | Fuzz


def plan(
    known: Callable[[], Sequence[str] | None], seed: int, folder: Path, levels: Sequence[str] = LEVELS
) -> Iterator[Piece | None]:
    """
    Yield what finds the ids of tests, and a few inputs at a time until the ids are known; then a few tests of a file,
    and in turn with each a few inputs, which never end. None is nothing for now. No file has a second turn before all
    have had their first.
    """
    random = Random(seed)
    firsts = {level: count(random.randrange(LAST_INPUT), INPUTS_OF_A_PIECE) for level in levels}
    order = cycle(random.sample(levels, len(levels)))
    inputs = (Fuzz(level, next(firsts[level]), INPUTS_OF_A_PIECE, folder) for level in order)
    yield Collection()
    while (ids := known()) is None:
        yield next(inputs, None)
    files = dict[str, list[str]]()
    for each in ids:
        files.setdefault(each.partition("::")[0], []).append(each)
    turns = list[tuple[int, float, Tests]]()
    for tests in files.values():
        random.shuffle(tests)
        for turn, at in enumerate(range(0, len(tests), TESTS_OF_A_PIECE)):
            turns.append((turn, random.random(), Tests(tuple(tests[at : at + TESTS_OF_A_PIECE]), seed)))
    for _, _, tests in sorted(turns, key=lambda each: each[:2]):
        yield tests
        yield from islice(inputs, 1)
    yield from inputs


@dataclass
class Hunt:
    """Runs pieces in a folder, as many at once as there are cores, and writes a line for each failure."""

    root: Path
    output: Path
    """The folder for what pieces that fail say."""
    until: float
    """When to stop, by `time.monotonic`."""
    found: Found = field(default_factory=Found)
    ids: tuple[str, ...] | None = None
    """Of the tests, as soon as they are known."""

    def run(self, pieces: Iterator[Piece | None]) -> None:
        """Run the pieces until they or the time are over, or somebody interrupts it."""
        self.output.mkdir(parents=True, exist_ok=True)
        again, running = list[Piece](), dict[Path, tuple[Piece, Popen[bytes]]]()
        paths = (self.output / f"{number}.txt" for number in count())
        with tempfile.TemporaryDirectory(prefix="penstock-hunt-") as temporary, suppress(KeyboardInterrupt):
            try:
                while time.monotonic() < self.until:
                    while len(running) < (os.cpu_count() or 1):
                        if (piece := again.pop() if again else next(pieces, None)) is None:
                            break
                        path = next(paths)
                        running[path] = piece, self._begin(piece, path, temporary)
                    if not running:
                        break
                    for path, (piece, process) in list(running.items()):
                        if (status := process.poll()) is not None:
                            del running[path]
                            again += self._ended(piece, path, status)
                    time.sleep(0.05)
            finally:
                for path, (piece, process) in running.items():
                    # What stopping it makes it say is no failure.
                    found = piece.found(path.read_text(encoding="utf-8", errors="replace"))
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    print(f"stopped, which is no failure: {shlex.join(piece.words)}", flush=True)
                    self._add(found, path)

    def _begin(self, piece: Piece, path: Path, temporary: str) -> Popen[bytes]:
        words, env = (*piece.words, *piece.options), {**os.environ, "TMPDIR": temporary, "OPENBLAS_NUM_THREADS": "1"}
        with path.open("wb") as out:
            # A session of its own can be stopped whole.
            return Popen(
                words, cwd=self.root, env=env, stdin=DEVNULL, stdout=out, stderr=STDOUT, start_new_session=True
            )

    def _ended(self, piece: Piece, path: Path, status: int) -> list[Piece]:
        """Add what a piece found, and return what is to be run again: all by itself if the process broke."""
        found = piece.found(path.read_text(encoding="utf-8", errors="replace"))
        if status != (1 if found.failures else 0):
            if len(singles := piece.singles()) > 1:
                path.unlink()
                return singles
            found.failures = {shlex.join(piece.words): f"ended with status {status}"}
        self._add(found, path)
        if isinstance(piece, Collection):
            self.ids = found.ids
        return []

    def _add(self, found: Found, path: Path) -> None:
        for line, message in found.failures.items():
            print(f"{line}  # {message[:160]}; see {path}", flush=True)
        if not found.failures:
            path.unlink()
        self.found.failures |= found.failures
        self.found.counts += found.counts


def hunt(root: Path, seed: int, minutes: float, levels: Sequence[str] = LEVELS) -> int:
    """Hunt in the tests of a root and the inputs of the levels, say what was found, and return the exit status."""
    print(f"seed {seed}, {minutes:g} minutes; known faults: {len(KNOWN_FAULTS)}", flush=True)
    folder = Path("build") / "hunt" / f"seed-{seed}"
    search = Hunt(root, root / folder, time.monotonic() + 60 * minutes)
    search.run(plan(lambda: search.ids, seed, folder, levels))
    counts = search.found.counts
    done = ", ".join(f"{counts[name]} {name}" for name in ("tests", "examples", "inputs")) if minutes > 0 else "nothing"
    failures = len(search.found.failures)
    print(f"seed {seed}: ran {done} in {sum(os.times()[2:4]):.0f} CPU seconds, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="tests.hunt", description=__doc__, allow_abbrev=False)
    parser.add_argument("--seed", type=int, required=True, help="another seed tries other things in another order")
    parser.add_argument("--minutes", type=float, required=True, help="when what still runs is stopped")
    args = parser.parse_args()
    sys.exit(hunt(Path.cwd(), args.seed, args.minutes))
