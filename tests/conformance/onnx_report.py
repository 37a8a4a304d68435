# SPDX-License-Identifier: Apache-2.0
"""
Run all of ONNX's backend cases at every level, count, and write the record and the tables of docs/onnx.md:

    python tests/conformance/onnx_report.py
    python tests/conformance/onnx_report.py --record

It takes a few minutes, most of them for compiling C, which the cache saves the next time. Reasons of known failures
are written into the record by hand, and kept; `--tables` writes the tables anew from the record and runs nothing.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import onnx
from onnx_cases import KINDS, LEVELS, RECORD, Kept, Outcome, Record, cases, outcome, read_record, tiers

from penstock.passes.toolchain import find_compiler

PAGE = Path(__file__).parents[2] / "docs" / "onnx.md"
BEGIN, END = "<!-- counted -->", "<!-- end of what is counted -->"
CHUNK = 8
"""Cases that a worker takes at a time."""

MEANINGS = {
    "T1": "float, int64, int32 and bool: what networks of convolutions and transformers are made of",
    "T2": "other element types, quantisation, recurrent layers, the rest of the operators on floats",
    "T3": "sequences, optionals, strings, shapes that depend on data, training, `ai.onnx.ml`",
}


def outcomes_of(index: int) -> dict[str, Outcome]:
    """What becomes of a case, by its index, at every level."""
    return {level: outcome(cases()[index], level) for level in LEVELS}


def run_all() -> dict[str, dict[str, Outcome]]:
    """The outcomes of all cases, by name and level, computed on all cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    everything = cases()
    with ProcessPoolExecutor(cores) as pool:
        found = pool.map(outcomes_of, range(len(everything)), chunksize=CHUNK)
        return {case.name: each for case, each in zip(everything, found, strict=True)}


def record_of(outcomes: Mapping[str, Mapping[str, Outcome]], reasons: Mapping[str, str]) -> Record:
    """The record of what was found; of `reasons`, those of cases that fail are kept."""
    passes: set[str] = set()
    rest: dict[str, Kept] = {}
    for name, levels in outcomes.items():
        if all(each.word == "passed" for each in levels.values()):
            passes.add(name)
            continue
        missing = dict.fromkeys(words for each in levels.values() for words in each.missing)
        rest[name] = Kept({level: each.word for level, each in levels.items()}, tuple(missing))
    kept = {name: reason for name, reason in reasons.items() if any(each.failed for each in outcomes[name].values())}
    return Record(onnx.__version__, frozenset(passes), rest, kept)


# the tables


def tables(record: Record) -> str:
    """The tables of docs/onnx.md."""
    rows = [
        "| cases | number | interpreter | C | unsupported | wrong |",
        "|---|---|---|---|---|---|",
    ]
    for tier, operators in tiers().items():
        names = [name for cases in operators.values() for name in cases]
        rows.append(_total(f"tier {tier[1:]}: {MEANINGS[tier]}", names, record))
    for kind in KINDS[1:]:
        names = [case for case in record.names if _kind(case) == kind]
        rows.append(_total(f"{kind}: models that PyTorch exported", names, record))
    for tier, operators in tiers().items():
        rows += [
            "",
            f"### Tier {tier[1:]}",
            "",
            "| operator | cases | interpreter | C | missing |",
            "|---|---|---|---|---|",
        ]
        rows += [_row(operator, names, record) for operator, names in operators.items()]
    if record.reasons:
        rows += ["", "### Known failures", ""]
        rows += [f"- `{name}`: {reason}" for name, reason in record.reasons.items()]
    return "\n".join(rows) + "\n"


def _kind(name: str) -> str:
    return next((case.kind for case in cases() if case.name == name), "")


def _total(title: str, names: Sequence[str], record: Record) -> str:
    interpreted, compiled = _passed(names, record)
    words = Counter(_worst(name, record) for name in names)
    failed = sum(count for word, count in words.items() if word not in ("passed", "unsupported"))
    return f"| {title} | {len(names)} | {interpreted} | {compiled} | {words['unsupported']} | {failed} |"


def _row(operator: str, names: Sequence[str], record: Record) -> str:
    interpreted, compiled = _passed(names, record)
    rest = [name for name in names if name in record.rest]
    missing = dict.fromkeys(_in_few_words(operator, words) for name in rest for words in record.rest[name].missing)
    words = Counter(_worst(name, record) for name in rest)
    notes = [*missing, *(f"{count} {word}" for word, count in words.items() if word != "unsupported")]
    return f"| {operator} | {len(names)} | {interpreted} | {compiled} | {'; '.join(notes)} |"


def _passed(names: Iterable[str], record: Record) -> tuple[int, int]:
    """How many pass in the interpreter, at both levels, and how many in C."""
    interpreted = compiled = 0
    for name in names:
        interpreted += record.word(name, "graph") == record.word(name, "loop") == "passed"
        compiled += record.word(name, "c") == "passed"
    return interpreted, compiled


def _worst(name: str, record: Record) -> str:
    order = ("crashed", "wrong", "refused", "unknown", "unsupported", "passed")
    return min((record.word(name, level) for level in LEVELS), key=order.index)


def _in_few_words(operator: str, missing: str) -> str:
    """What is missing, without the name of the operator that the row is about."""
    short = re.sub(rf"^(?:[\w.]+\.)?{re.escape(operator)}(?:: |$)", "", missing)
    return short.replace("|", "\\|") or "the operator"


def write_tables(record: Record) -> None:
    """Put the tables into the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{tables(record)}{END}{after}", encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Run every case at every level and print the counts; with `--record` write the record and the tables."""
    if "--tables" in arguments:
        write_tables(read_record())
        return 0
    find_compiler()
    outcomes = run_all()
    record = record_of(outcomes, read_record().reasons if RECORD.exists() else {})
    for name, levels in outcomes.items():
        for level, each in levels.items():
            if each.failed:
                print(f"{name} at {level} level: {each.word}: {each.detail.strip()}\n")
    print(tables(record).split("\n\n")[0])
    if "--record" in arguments:
        RECORD.write_text(record.text(), encoding="utf-8")
        write_tables(record)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
