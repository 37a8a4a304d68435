# SPDX-License-Identifier: Apache-2.0
"""
ONNX's own backend cases, what becomes of each in Penstock, and what is on record about it.

The cases are the node cases, plain and with functions spelled out (`_expanded`), which are sorted into tiers, and the
operators and converted models of PyTorch. Each is run through `penstock.runtime.onnx_backend`:

- at graph level: as it is imported, in the interpreter;
- at loop level: lowered for the host, in the interpreter;
- in C.

A case passes, or it is unsupported, which the compiler must have said (status 3) and which is no pass; everything
else is a failure. The comparison is ONNX's own, and so are the tolerances: 1e-3, two units in the last place for
bfloat16, and, which is ours, for float16 too, whose last place is about as wide as 1e-3.
"""

from __future__ import annotations

import functools
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.runtime import onnx_backend

Array = NDArray[Any]

RECORD = Path(__file__).with_name("onnx_backend.json")
TIERS = Path(__file__).with_name("onnx_tiers.json")
KINDS = ("node", "pytorch-converted", "pytorch-operator")
LEVELS: Mapping[str, Mapping[str, str]] = {
    "graph": {"backend": "interpreter", "level": "graph"},
    "loop": {"backend": "interpreter", "level": "loop"},
    "c": {"backend": "native"},
}
"""How the backend is called for each level."""
BY_LLVM = "llvm"
"""What is on record of C holds of LLVM."""

HALF_TOLERANCE = 2.0**-9
"""Two units in the last place of a float16."""


@dataclass(frozen=True)
class Outcome:
    """What became of a case: `passed`, `unsupported`, or one of `wrong`, `refused` and `crashed`; and the details."""

    word: str
    detail: str = ""
    missing: tuple[str, ...] = ()
    """Of one that is unsupported: what is, in few words."""

    @property
    def failed(self) -> bool:
        return self.word not in ("passed", "unsupported")


PASSED = Outcome("passed")


@dataclass(frozen=True)
class Kept:
    """What is on record about a case that does not pass everywhere: a word for each level, and what is missing."""

    words: dict[str, str]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Record:
    """The version of onnx, the cases that pass at every level, the others, and the reasons of known failures."""

    onnx: str
    passes: frozenset[str]
    rest: dict[str, Kept]
    reasons: dict[str, str] = field(default_factory=dict[str, str])

    def word(self, name: str, level: str) -> str:
        """What is on record about a case at a level."""
        if name in self.passes:
            return "passed"
        return self.rest[name].words[level] if name in self.rest else "unknown"

    @property
    def names(self) -> frozenset[str]:
        return self.passes | self.rest.keys()

    def text(self) -> str:
        data = {
            "onnx": self.onnx,
            "reasons": dict(sorted(self.reasons.items())),
            "rest": {name: {**kept.words, "missing": kept.missing} for name, kept in sorted(self.rest.items())},
            "passes": sorted(self.passes),
        }
        return json.dumps(data, indent=1) + "\n"


def read_record() -> Record:
    """The record beside this file."""
    data = json.loads(RECORD.read_text(encoding="utf-8"))
    rest = {
        name: Kept({level: kept[level] for level in LEVELS}, tuple(kept["missing"]))
        for name, kept in data["rest"].items()
    }
    return Record(data["onnx"], frozenset(data["passes"]), rest, data["reasons"])


@functools.cache
def tiers() -> dict[str, dict[str, list[str]]]:
    """Tier -> operator -> the names of its cases."""
    return json.loads(TIERS.read_text(encoding="utf-8"))


@functools.cache
def cases() -> tuple[Any, ...]:
    """All cases, always in the same order."""
    with warnings.catch_warnings():
        # Some cases divide by zero while they are built.
        warnings.simplefilter("ignore")
        found: list[Any] = [case for kind in KINDS for case in load_model_tests(kind=kind)]
    return tuple(sorted(found, key=lambda case: (KINDS.index(case.kind), case.name)))


def outcome(case: Any, level: str) -> Outcome:
    """What becomes of a case at a level, of `LEVELS`, or by LLVM."""
    try:
        prepared = onnx_backend.prepare(
            model_of(case), "CPU", **({"backend": BY_LLVM} if level == BY_LLVM else LEVELS[level])
        )
        for inputs, expected in data_of(case):
            found = prepared.run(values_of(inputs))
            compare(case, found, values_of(expected))
    except Exception as error:
        return _outcome_of(error)
    return PASSED


def model_of(case: Any) -> ModelProto:
    if case.model is not None:
        return case.model
    return ModelProto.FromString((Path(case.model_dir) / "model.onnx").read_bytes())


def data_of(case: Any) -> Iterator[tuple[Sequence[Any], Sequence[Any]]]:
    """The inputs and outputs of every data set of a case."""
    if case.data_sets is not None:
        yield from case.data_sets
        return
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        yield _protos(folder, "input"), _protos(folder, "output")


def _protos(folder: Path, kind: str) -> list[TensorProto]:
    count = len(list(folder.glob(f"{kind}_*.pb")))
    return [TensorProto.FromString((folder / f"{kind}_{index}.pb").read_bytes()) for index in range(count)]


def values_of(values: Iterable[Any]) -> list[Any]:
    """Tensors as arrays; sequences and what else there is as they are."""
    return [numpy_helper.to_array(value) if isinstance(value, TensorProto) else value for value in values]


def compare(case: Any, found: Sequence[Array], expected: Sequence[Any]) -> None:
    """Raise AssertionError unless the arrays have the shapes, element types and, about, the values expected."""
    for value in expected:
        assert not isinstance(value, list | dict | type(None)), "ran, though it yields what is no tensor"
    references = [np.asarray(value) for value in expected]
    for ours, theirs in zip(found, references, strict=False):
        # Before the comparison below, which takes a type of another package for equal to a plain one.
        assert ours.dtype == theirs.dtype, f"the type is {ours.dtype}, not {theirs.dtype}"
    assert len(found) == len(references), f"{len(found)} outputs, not {len(references)}"
    for ours, theirs in zip(found, references, strict=True):
        relative = max(case.rtol, HALF_TOLERANCE) if ours.dtype == np.float16 else case.rtol
        Runner.assert_similar_outputs([theirs], [ours], relative, case.atol)


def _outcome_of(error: Exception) -> Outcome:
    match error:
        case UserError(status=status) if status == UNSUPPORTED:
            return Outcome("unsupported", str(error), _missing(error))
        case UserError():
            return Outcome("refused", str(error), (error.message,))
        case AssertionError():
            return Outcome("wrong", str(error))
        case _:
            return Outcome("crashed", f"{type(error).__name__}: {error}", (type(error).__name__,))


def _missing(error: UserError) -> tuple[str, ...]:
    """What an error says is not supported, without the places."""
    notes = [note for note in error.notes if re.search(r", in \d+ nodes?: ", note)]
    if error.message.startswith("input ") or not notes:
        return (
            re.sub(r'^input "[^"]*":? ?', "", error.message)
            .removeprefix("is no tensor but ")
            .removesuffix(" are not supported"),
        )
    return tuple(dict.fromkeys(re.split(r", in \d+ nodes?: ", note)[0] for note in notes))
