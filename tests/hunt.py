"""
Run the random searches from one seed until a time is over; each failure is one line that reruns it alone.

    python -m tests.hunt --seed 1 --minutes 10

The searches are the property tests with fresh examples, the tests that are marked slow, mutants among them, and
`penstock fuzz` of every level. They are cut into pieces of one process each, in an order that is drawn from the seed.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path
from random import Random

from tests.known_faults import KNOWN_FAULTS

from penstock.tools.fuzz_command import LEVELS

ROOT = Path(__file__).parent.parent
PROGRAMS = Path(os.path.relpath(sys.executable, ROOT)).parent
PYTEST = (str(PROGRAMS / "python"), "-m", "pytest")
SELECTED = ("-m", "slow or hypothesis")
TESTS_OF_A_PIECE = 6
INPUTS_OF_A_PIECE = 10
LAST_INPUT = 1_000_000
POLL = 0.05
"""Seconds between two looks at what runs."""


@dataclass
class Found:
    """What the output of a piece says."""

    failures: dict[str, str] = field(default_factory=dict[str, str])
    """By the line that reruns each alone, what it said."""
    tests: int = 0
    examples: int = 0
    inputs: int = 0

    def add(self, other: Found) -> None:
        self.failures |= other.failures
        self.tests += other.tests
        self.examples += other.examples
        self.inputs += other.inputs


@dataclass(frozen=True)
class Tests:
    """Tests of one file, with examples that are drawn from a seed."""

    ids: tuple[str, ...]
    seed: int

    options = ("-vv", "-p", "no:cacheprovider", "--hypothesis-show-statistics")
    """What `found` needs beside the line: it changes nothing of what is run."""

    @property
    def words(self) -> tuple[str, ...]:
        return (*PYTEST, *self.ids, "--hypothesis-profile=exhaustive", f"--hypothesis-seed={self.seed}")

    def singles(self) -> list[Piece]:
        return [Tests((each,), self.seed) for each in self.ids]

    def found(self, text: str) -> Found:
        """What the tests that have finished did; to `text` more may come."""
        said = re.findall(r"^(.+::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b", text, re.MULTILINE)
        # A test that passes and whose fixture then fails has two lines.
        outcomes = {name: outcome for name, outcome in said if name in self.ids}
        summary = text.rpartition("short test summary info")[2]
        failures = dict[str, str]()
        for name, outcome in outcomes.items():
            if outcome in ("FAILED", "ERROR"):
                message = re.search(rf"^{outcome} {re.escape(name)} - (.*)$", summary, re.MULTILINE)
                failures[shlex.join(Tests((name,), self.seed).words)] = message[1] if message else outcome.lower()
        examples = re.findall(r"^    - (\d+) passing, (\d+) failing", text, re.MULTILINE)
        return Found(failures, len(outcomes), sum(int(number) for pair in examples for number in pair))


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
        command = (str(PROGRAMS / "penstock"), "fuzz", "--level", self.level)
        return (*command, "--seed", str(self.first), "--count", str(self.count), "-o", str(self.folder))

    def singles(self) -> list[Piece]:
        return [Fuzz(self.level, each, 1, self.folder) for each in range(self.first, self.first + self.count)]

    def found(self, text: str) -> Found:
        """What the inputs that have finished did; to `text` more may come."""
        failures = dict[str, str]()
        for number, message in re.findall(rf"^error: {self.level} (\d+)\W *(.*)$", text, re.MULTILINE):
            failures[shlex.join(Fuzz(self.level, int(number), 1, self.folder).words)] = message
        inputs = re.findall(rf"^{self.level}: (\d+) inputs", text, re.MULTILINE)
        return Found(failures, inputs=sum(map(int, inputs)))


Piece = Tests | Fuzz


def plan(ids: Sequence[str], seed: int, folder: Path) -> Iterator[Piece]:
    """
    Yield the tests, a few of a file at a time, and in turn with each a few inputs of a level, which never end.
    A file has its second turn when each has had its first.
    """
    random = Random(seed)
    files = dict[str, list[str]]()
    for each in ids:
        files.setdefault(each.partition("::")[0], []).append(each)
    turns = list[tuple[int, float, Tests]]()
    for tests in files.values():
        random.shuffle(tests)
        for turn, at in enumerate(range(0, len(tests), TESTS_OF_A_PIECE)):
            turns.append((turn, random.random(), Tests(tuple(tests[at : at + TESTS_OF_A_PIECE]), seed)))
    firsts = {level: count(random.randrange(LAST_INPUT), INPUTS_OF_A_PIECE) for level in LEVELS}
    inputs = (
        Fuzz(level, next(firsts[level]), INPUTS_OF_A_PIECE, folder)
        for level in cycle(random.sample(LEVELS, len(LEVELS)))
    )
    for _, _, tests in sorted(turns, key=lambda each: each[:2]):
        yield tests
        yield next(inputs)
    yield from inputs


@dataclass
class Running:
    """A piece whose process has begun, with a file for what it says."""

    piece: Piece
    process: subprocess.Popen[bytes]
    output: Path

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Hunt:
    """Runs pieces in a folder, as many at once as there are cores, and writes a line for each failure."""

    root: Path
    folder: Path
    """For the output of pieces that failed."""
    until: float
    """When to stop, by `time.monotonic`."""
    found: Found

    def run(self, pieces: Iterator[Piece]) -> None:
        """Run the pieces until they or the time are over."""
        self.folder.mkdir(parents=True, exist_ok=True)
        again = list[Piece]()
        running = list[Running]()
        with tempfile.TemporaryDirectory(prefix="penstock-hunt-") as temporary:
            environment = {**os.environ, "TMPDIR": temporary, "OPENBLAS_NUM_THREADS": "1"}
            numbers = count()
            try:
                while time.monotonic() < self.until:
                    while len(running) < (os.cpu_count() or 1):
                        piece = again.pop() if again else next(pieces, None)
                        if piece is None:
                            break
                        running.append(self._begin(piece, self.folder / f"{next(numbers)}.txt", environment))
                    if not running:
                        break
                    for each in running[:]:
                        if each.process.poll() is not None:
                            running.remove(each)
                            again += self._finish(each)
                    time.sleep(POLL)
            finally:
                for each in running:
                    # What stopping it makes it say is no failure.
                    text = each.output.read_text(encoding="utf-8", errors="replace")
                    each.stop()
                    self._count(each, each.piece.found(text))
                    print(f"stopped, which is no failure: {shlex.join(each.piece.words)}", flush=True)

    def _begin(self, piece: Piece, output: Path, environment: dict[str, str]) -> Running:
        with output.open("wb") as stream:
            # A session of its own is stopped whole.
            process = subprocess.Popen(
                [*piece.words, *piece.options],
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Running(piece, process, output)

    def _finish(self, ended: Running) -> list[Piece]:
        """Count what a piece found, and return what is to be run again: all by itself if its process broke."""
        found = ended.piece.found(ended.output.read_text(encoding="utf-8", errors="replace"))
        status = ended.process.returncode
        if status != (1 if found.failures else 0):
            singles = ended.piece.singles()
            if len(singles) > 1:
                ended.output.unlink()
                return singles
            found.failures = {shlex.join(ended.piece.words): f"ended with status {status}"}
        self._count(ended, found)
        return []

    def _count(self, ended: Running, found: Found) -> None:
        for line, message in found.failures.items():
            print(f"{line}  # {message[:160]}; see {ended.output}", flush=True)
        if not found.failures:
            ended.output.unlink()
        self.found.add(found)


def collect(root: Path, until: float) -> tuple[list[str], Found]:
    """Return the ids of the tests that a hunt runs, and a failure if a file of tests cannot be imported."""
    words = (*PYTEST, "--collect-only", "-q", *SELECTED)
    try:
        done = subprocess.run(
            words, cwd=root, capture_output=True, text=True, check=False, timeout=until - time.monotonic()
        )
    except subprocess.TimeoutExpired:
        return [], Found()
    failures = {} if done.returncode == 0 else {shlex.join(words): f"ended with status {done.returncode}"}
    return re.findall(r"^\S+\.py::.*$", done.stdout, re.MULTILINE), Found(failures)


def hunt(root: Path, seed: int, minutes: float) -> int:
    """Hunt in the tests of a root and the inputs of all levels, say what was found, and return the exit status."""
    print(f"seed {seed}, {minutes:g} minutes, {len(KNOWN_FAULTS)} known faults that are not hunted", flush=True)
    if minutes <= 0:
        print("nothing was run: there is no time for it")
        return 0
    until = time.monotonic() + 60 * minutes
    folder = root / "build" / "hunt" / f"seed-{seed}"
    ids, broken = collect(root, until)
    search = Hunt(root, folder, until, broken)
    search.run(plan(ids, seed, folder.relative_to(root)))
    found, used = search.found, resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"seed {seed}: {found.tests} of {len(ids)} tests with {found.examples} examples, {found.inputs} inputs of "
        f"fuzz, in {used.ru_utime + used.ru_stime:.0f} CPU seconds; {len(found.failures)} failures"
    )
    return 1 if found.failures else 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.hunt", description=__doc__, allow_abbrev=False)
    parser.add_argument("--seed", type=int, required=True, help="another seed tries other things in another order")
    parser.add_argument("--minutes", type=float, required=True, help="when to stop what still runs")
    args = parser.parse_args(argv)
    return hunt(ROOT, args.seed, args.minutes)


if __name__ == "__main__":
    sys.exit(main())
