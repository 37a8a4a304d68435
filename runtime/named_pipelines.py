# SPDX-License-Identifier: Apache-2.0
"""
Pipelines that have a name: the compiler's own, one for every machine and one without, and those of installed packages.

A name stands for passes wherever a pipeline is written: `gemmini-fp32-pipeline{until=loop}`. A package registers
`NAME = "module:object"` as an entry point of the group `penstock.pipelines`: the text of a pipeline, or a function that
makes it of the options that are given and their place, as `without_machine` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from xdsl.utils.arg_spec import ArgSpec

from penstock.dialects.diagnostics import UserError, nearest_or_all
from penstock.dialects.plugins import installed

GROUP = "penstock.pipelines"
SUFFIX = "-pipeline"
DEFAULT = f"default{SUFFIX}"
"""The compiler's own without a machine."""
OPTIONS = {"start": "graph", "until": "accel", "threads": 1}
"""
The options of the compiler's own pipelines: the level that the program is at, the one at whose end it stops, and the
threads that run loops of the host.
"""


def named_pipelines() -> Mapping[str, Callable[[ArgSpec, str], str]]:
    """Every pipeline that has a name, and what makes its text of the options that are given at a place."""
    # Few command lines name a pipeline, and reading the machines takes a while.
    from penstock.lowering.machine_names import shipped_machines

    found: dict[str, Callable[[ArgSpec, str], str]] = {entry.name: _loaded(entry.load) for entry in installed(GROUP)}
    return found | {f"{name}{SUFFIX}": _for_machine(name) for name in shipped_machines()}


def _for_machine(machine: str | None) -> Callable[[ArgSpec, str], str]:
    def text(spec: ArgSpec, place: str) -> str:
        from penstock.lowering.from_machine_toml import load_machine
        from penstock.runtime.pipeline import pipeline

        options: dict[str, Any] = dict(OPTIONS)
        for name, values in spec.parameters.items():
            if name not in options:
                note = nearest_or_all(name, options, "its options")
                raise UserError(f'the pipeline "{spec.name}" has no option "{name}"', loc=place, notes=[note])
            if len(values) != 1 or type(values[0]) is not type(options[name]):
                kind = "an integer" if isinstance(options[name], int) else "the name of a level"
                raise UserError(f'the option "{name}" of the pipeline "{spec.name}" takes {kind}', loc=place)
            options[name] = values[0]
        is_host = machine is not None and load_machine(machine).is_host
        try:
            passes = pipeline(
                options["until"], machine, start=options["start"], is_host=is_host, threads=options["threads"]
            )
        except UserError as error:
            raise UserError(error.message, loc=place, notes=error.notes) from None
        first = [] if machine is None else [f'attach-machine{{machine="{machine}"}}']
        return ",".join([*first, *passes])

    return text


without_machine = _for_machine(None)
"""What makes the text of `default-pipeline`."""


def _loaded(load: Callable[[], str | Callable[[ArgSpec, str], str]]) -> Callable[[ArgSpec, str], str]:
    def text(spec: ArgSpec, place: str) -> str:
        if callable(found := load()):
            return found(spec, place)
        if spec.parameters:
            raise UserError(f'the pipeline "{spec.name}" has no options', loc=place)
        return found

    return text
