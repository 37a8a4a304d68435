# SPDX-License-Identifier: Apache-2.0
"""The runs of a plan, each with the key of its result, and the passes that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from penstock.dialects.diagnostics import UserError
from penstock.tools.sweep.digests import code_digest, digest_of, file_digest
from penstock.tools.sweep.plan import Point, SweepPlan
from penstock.tools.sweep.steps import REFUSED, Source
from penstock.tools.sweep.store import Result


@dataclass(frozen=True)
class Run:
    """A run of a plan."""

    point: Point
    labels: Mapping[str, str]
    source: Source
    key: str
    """Of its result: a digest of all that it depends on."""

    @property
    def refused(self) -> Result | None:
        """Why it cannot begin: each number of its machine is good by itself, and they do not fit together."""
        return _refusal(self.point.machine, self.source.options)

    @property
    def schedule(self) -> tuple[str, str] | None:
        """The file of the schedules that are given, and the digest of its contents."""
        path = self.point.schedule
        return None if path is None else (path, file_digest(Path(path)))


def runs_of(plan: SweepPlan) -> list[Run]:
    """The runs of a plan, in the order of its table. Raises UserError for an input that cannot be read."""
    return list(_runs(plan))


def _runs(plan: SweepPlan) -> Iterator[Run]:
    programs: dict[str, str] = {}
    for point in plan.points():
        path = point.input.path
        if path not in programs:
            programs[path] = digest_of([point.input.label, *(file_digest(each) for each in _files(path, plan.kernels))])
        options = tuple(sorted(point.options.items()))
        machine = _machine_text(point.machine)
        key = digest_of([programs[path], Path(path).suffix, plan.dims, plan.kernel, machine, options])
        source = Source(path, point.machine, options, plan.dims, plan.kernel, plan.kernels, key)
        schedule = point.schedule and file_digest(Path(point.schedule))
        run_key = digest_of([code_digest(), key, point.pipeline, schedule])
        yield Run(point, plan.labels(point), source, run_key)


def _files(path: str, kernels: tuple[str, ...]) -> list[Path]:
    """All files that an input consists of."""
    from penstock.dialects.context import WEIGHTS_ATTRIBUTE

    found = [Path(path), *map(Path, kernels)]
    if path.endswith(".onnx"):
        from penstock.lowering.from_onnx.model import load_model
        from penstock.lowering.from_onnx.tensor_data import data_files

        found += [each for each in data_files(load_model(Path(path))) if each != Path(path).absolute()]
    elif path.endswith(".mlir"):
        import re

        text = Path(path).read_text(encoding="utf-8", errors="replace")
        named = re.search(rf'{re.escape(WEIGHTS_ATTRIBUTE)} = "([^"]*)"', text)
        beside = Path(path).resolve().parent / named[1] if named else None
        found += [beside] if beside is not None and beside.is_file() else []
    return found


@cache
def _machine_text(name: str | None) -> str:
    """A machine before its numbers are changed: a sweep that is finished needs no more of it."""
    from penstock.lowering.from_machine_toml import load_machine

    return "" if name is None else str(load_machine(name))


@cache
def _refusal(name: str | None, options: tuple[tuple[str, str], ...]) -> Result | None:
    from penstock.lowering.from_machine_toml import load_machine

    try:
        if name is not None:
            load_machine(name, dict(options))
    except UserError as error:
        return Result(REFUSED, f"{error.loc}: {error.message}", {})
    return None
