"""
ONNX's own backend cases: the node cases as they stand, the operators and the converted models of PyTorch.

Every case is fitted to its inputs as `penstock run` does it, imported, run in the interpreter at graph level, lowered
to loop level for the host and run there; a sample is compiled to C. A model with an operator set that is too old is
brought up to date first, as the compiler's message advises. The cases of functions spelled out (`_expanded`) are
left out: the importer spells functions out itself.

A case passes, or it is unsupported, which the compiler must have said (status 3) and which is no pass; everything
else is a failure. Beside this file is the list of the cases that pass, so that one which passes no more is noticed,
and of failures that are known, with their reasons. To count, which compiles all cases to C and so takes some
minutes, and to write the list anew:

    python tests/conformance/test_onnx_backend.py
    python tests/conformance/test_onnx_backend.py --record

Tolerances are ONNX's: rtol 1e-3 and atol 1e-7; two units in the last place for bfloat16, and here for float16 too,
whose last place is about as wide as rtol.
"""

from __future__ import annotations

import functools
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, numpy_helper, version_converter
from onnx.backend.test.loader import load_model_tests

from penstock.dialects.diagnostics import UNSUPPORTED, UserError
from penstock.lowering.from_onnx.model import OLDEST_OPSET, load_model
from penstock.runtime.compiler import compile_module, import_program
from penstock.runtime.engine import Engine
from penstock.runtime.native import find_compiler
from penstock.runtime.signature import signature_of
from penstock.runtime.specialize import fit_to_inputs

Array = NDArray[Any]

RECORD = Path(__file__).with_name("onnx_backend.json")
KINDS = ("node", "pytorch-converted", "pytorch-operator")
CHUNKS = 16
COMPILED_CHUNKS = 4
SAMPLE = 10
"""One case in so many is compiled to C."""
MODERN_OPSET = 13
RELATIVE = {"bfloat16": 2.0**-6, "float16": 2.0**-9}
"""Two units in the last place, where that is more than the tolerance of a case."""


class _NotATensor(Exception):
    """A case that takes or yields a sequence, an optional or a map."""


@dataclass(frozen=True)
class Outcome:
    """What became of a case: `passed`, `unsupported`, or one of `wrong`, `refused` and `crashed`; and the details."""

    word: str
    detail: str = ""

    @property
    def failed(self) -> bool:
        return self.word not in ("passed", "unsupported")


@dataclass(frozen=True)
class Record:
    """What is on record: the version of onnx, the cases that pass, and the known failures with their reasons."""

    onnx: str
    passes: frozenset[str]
    unsupported_in_c: frozenset[str]
    """Cases that pass in the interpreter, of element types that C does not have."""
    known_failures: dict[str, str]

    def must_pass(self, name: str, level: str) -> bool:
        return name in self.passes and not (level == "c" and name in self.unsupported_in_c)


@functools.cache
def record() -> Record:
    """The record beside this file."""
    data = json.loads(RECORD.read_text(encoding="utf-8"))
    return Record(data["onnx"], frozenset(data["passes"]), frozenset(data["unsupported_in_c"]), data["known_failures"])


# the cases


@functools.cache
def cases() -> tuple[Any, ...]:
    """All cases, always in the same order."""
    with warnings.catch_warnings():
        # Some cases divide by zero while they are built.
        warnings.simplefilter("ignore")
        found: list[Any] = [case for kind in KINDS for case in load_model_tests(kind=kind)]
    plain = [case for case in found if "_expanded" not in case.name]
    return tuple(sorted(plain, key=lambda case: (KINDS.index(case.kind), case.name)))


def _model_of(case: Any) -> ModelProto:
    model: ModelProto = case.model if case.model is not None else load_model(Path(case.model_dir) / "model.onnx")
    if any(entry.domain in ("", "ai.onnx") and entry.version < OLDEST_OPSET for entry in model.opset_import):
        return version_converter.convert_version(model, MODERN_OPSET)
    return model


def _data_of(case: Any) -> Iterator[tuple[Sequence[Any], Sequence[Any]]]:
    """The inputs and outputs of every data set of a case."""
    if case.data_sets is not None:
        yield from case.data_sets
        return
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        yield _protos(folder, "input"), _protos(folder, "output")


def _protos(folder: Path, kind: str) -> list[TensorProto]:
    count = len(list(folder.glob(f"{kind}_*.pb")))
    return [TensorProto.FromString((folder / f"{kind}_{index}.pb").read_bytes()) for index in range(count)]


def _arrays(values: Iterable[Any]) -> list[Array]:
    """The values as arrays; raises _NotATensor if one is none."""
    arrays: list[Array] = []
    for value in values:
        if isinstance(value, TensorProto):
            arrays.append(numpy_helper.to_array(value))
        elif isinstance(value, np.ndarray | np.generic | int | float):
            arrays.append(np.asarray(value))
        else:
            raise _NotATensor
    return arrays


# running one


def outcomes(case: Any, levels: Sequence[str]) -> dict[str, Outcome]:
    """What becomes of a case at each of `levels`, of `graph`, `loop` and `c`, in this order."""
    found: dict[str, Outcome] = {}
    for inputs, outputs in _data_of(case):
        for level, outcome in _outcomes_of_set(case, inputs, outputs, levels):
            # The first data set that does not pass decides.
            if level not in found or found[level].word == "passed":
                found[level] = outcome
    return found


def _outcomes_of_set(
    case: Any, inputs: Sequence[Any], outputs: Sequence[Any], levels: Sequence[str]
) -> Iterator[tuple[str, Outcome]]:
    try:
        model = _model_of(case)
        try:
            given, expected = _arrays(inputs), _arrays(outputs)
        except _NotATensor:
            import_program(model, {}, name=case.name)
            outcome = Outcome("wrong", "imported, though it takes or yields what is no tensor")
            yield from ((level, outcome) for level in levels)
            return
        fitted = fit_to_inputs(model, given, {}, {})
        program = import_program(fitted.model, fitted.dims, name=case.name)
    except Exception as error:
        yield from ((level, _outcome_of(error)) for level in levels)
        return
    signature = signature_of(program.module)
    for level in levels:
        try:
            if level != "graph" and program.level == "graph":
                compile_module(program.module, program.ctx, None, "loop")
            backend = "native" if level == "c" else "interpreter"
            engine = Engine(program.module, program.ctx, signature, backend)
            _compare(case, engine.run(fitted.ordered, fitted.named), expected)
        except Exception as error:
            yield level, _outcome_of(error)
        else:
            yield level, Outcome("passed")


def _outcome_of(error: Exception) -> Outcome:
    match error:
        case UserError(status=status) if status == UNSUPPORTED:
            return Outcome("unsupported", str(error))
        case UserError():
            return Outcome("refused", str(error))
        case AssertionError():
            return Outcome("wrong", str(error))
        case _:
            return Outcome("crashed", f"{type(error).__name__}: {error}")


def _compare(case: Any, found: Sequence[Array], expected: Sequence[Array]) -> None:
    """Raise AssertionError unless the arrays have the shapes, element types and, about, the values expected."""
    assert len(found) == len(expected), f"{len(found)} outputs, not {len(expected)}"
    for index, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours.shape == theirs.shape, f"output {index} has the shape {ours.shape}, not {theirs.shape}"
        assert ours.dtype == theirs.dtype, f"output {index} has the type {ours.dtype}, not {theirs.dtype}"
        relative = max(case.rtol, RELATIVE.get(ours.dtype.name, 0.0))
        np.testing.assert_allclose(_comparable(ours), _comparable(theirs), rtol=relative, atol=case.atol)


def _comparable(array: Array) -> Array:
    # NumPy does not compute with the element types of other packages, bfloat16 and the 8-bit floats.
    return array if array.dtype.kind in "fiub" else array.astype(np.float32)


# the tests


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_cases_that_pass_still_pass_and_no_other_fails(chunk: int, record_property: Any) -> None:
    _check(cases()[chunk::CHUNKS], ("graph", "loop"), record_property)


@pytest.mark.parametrize("chunk", range(COMPILED_CHUNKS))
def test_a_sample_of_the_cases_passes_in_c(chunk: int, record_property: Any) -> None:
    try:
        find_compiler()
    except UserError:
        pytest.skip("there is no C compiler")
    _check(cases()[::SAMPLE][chunk::COMPILED_CHUNKS], ("c",), record_property)


def _check(chunk: Sequence[Any], levels: Sequence[str], record_property: Any) -> None:
    known = record()
    counts: Counter[str] = Counter()
    faults: list[str] = []
    for case in chunk:
        for level, outcome in outcomes(case, levels).items():
            counts[f"{level}: {outcome.word}"] += 1
            new = outcome.failed and case.name not in known.known_failures
            if new or (outcome.word != "passed" and known.must_pass(case.name, level)):
                faults.append(f"{case.name} at {level} level: {outcome.word}: {outcome.detail}")
    for word, count in sorted(counts.items()):
        record_property(word, count)
    assert not faults, "\n\n".join(faults)


def test_the_record_is_of_cases_that_exist() -> None:
    known = record()
    assert not known.passes & known.known_failures.keys()
    if known.onnx != onnx.__version__:
        pytest.skip(f"the record is of the cases of onnx {known.onnx}")
    names = {case.name for case in cases()}
    assert len(names) == len(cases())
    assert known.passes | known.known_failures.keys() <= names


# counting and recording


def main(arguments: Sequence[str]) -> int:
    """Run every case at every level, print what fails and the counts, and with `--record` write the record."""
    levels = ("graph", "loop", "c")
    counts: dict[str, Counter[str]] = {}
    passes: list[str] = []
    unsupported_in_c: list[str] = []
    reasons = record().known_failures if RECORD.exists() else {}
    failures: dict[str, str] = {}
    for case in cases():
        found = outcomes(case, levels)
        for level, outcome in found.items():
            counts.setdefault(f"{case.kind} at {level} level", Counter())[outcome.word] += 1
            if outcome.failed:
                print(f"{case.name} at {level} level: {outcome.word}: {outcome.detail.strip()}\n")
                failures[case.name] = reasons.get(case.name, outcome.word)
        if found["graph"].word == found["loop"].word == "passed" and case.name not in failures:
            passes.append(case.name)
            if found["c"].word == "unsupported":
                unsupported_in_c.append(case.name)
    for group, words in counts.items():
        print(f"{group}: " + ", ".join(f"{count} {word}" for word, count in sorted(words.items())))
    if "--record" in arguments:
        data = {
            "onnx": onnx.__version__,
            "known_failures": failures,
            "unsupported_in_c": unsupported_in_c,
            "passes": sorted(passes),
        }
        RECORD.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    find_compiler()
    sys.exit(main(sys.argv[1:]))
