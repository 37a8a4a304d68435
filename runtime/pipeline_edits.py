# SPDX-License-Identifier: Apache-2.0
"""
A pipeline by name with edits: `default, mem-plan{planner=mine}, tile=tile-largest, -fuse-attention`.

| edit | what it does |
|---|---|
| `mem-plan{planner=mine}` | sets options of the pass; its others stay |
| `tile=tile-largest{depth=2}` | another pass in its place |
| `-fuse-attention` | leaves the pass out |
| `+my-pass{x=1} after tile`, `+my-pass before tile` | one more pass |

Each edit works on what those before it made. A pass that occurs several times is meant wherever it occurs, and
`simplify#2` is its second occurrence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import ArgSpec

from penstock.dialects.diagnostics import UserError, did_you_mean
from penstock.runtime.pass_manager import (
    AvailablePasses,
    PipelineItem,
    available_passes,
    load_pass,
    make_pass,
    read_item,
    read_spec,
)

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_-]*"
_EDITED = rf"(?P<name>{_NAME})(?:#(?P<number>[0-9]{{1,9}}))?"
_FORMS = {
    "remove": re.compile(rf"-\s*{_EDITED}"),
    "insert": re.compile(rf"\+\s*(?P<spec>.*\S)\s+(?P<where>before|after)\s+{_EDITED}", re.DOTALL),
    "replace": re.compile(rf"{_EDITED}\s*=\s*(?P<spec>.+)", re.DOTALL),
    "configure": re.compile(rf"{_EDITED}\s*(?P<spec>\{{.*)", re.DOTALL),
}
_FORM_OF_EDIT = re.compile(rf"[-+]|{_NAME}\s*(=|#)")
"""What no pass of a whole pipeline looks like."""
HOW_TO_EDIT = "edits are: PASS{option=value}, PASS=OTHER, -PASS, +NEW before PASS, +NEW after PASS"


@dataclass(frozen=True)
class PipelineEdit:
    """One edit: what is done where to which pass, and the pass or the options that it brings."""

    kind: Literal["remove", "before", "after", "replace", "configure"]
    name: str
    number: int | None
    """Which of the occurrences of the pass, from 1; None for all."""
    item: PipelineItem
    given: PipelineItem | None
    """What is inserted, what comes in the place of the pass, or the pass with its new options."""


def edit_passes(
    passes: Sequence[ModulePass],
    edits: Sequence[PipelineItem],
    pipeline: str,
    left_out: Mapping[str, str],
) -> tuple[ModulePass, ...]:
    """
    The passes of the pipeline that is called `pipeline`, edited.

    `left_out` are the passes that the pipeline has otherwise and that do not run, each with why. Raises UserError,
    placed in the text, for an edit of a pass that is not there, for what is no edit, and as `read_pipeline` does.
    """
    available = available_passes()
    edited = list(passes)
    for item in edits:
        edit = _read_edit(item, pipeline, edited, available)
        for index in reversed(_occurrences(edited, edit, pipeline, left_out, available)):
            _apply(edited, index, edit, available)
    return tuple(edited)


def check_edit(item: PipelineItem, pipeline: str) -> None:
    """Raise UserError, placed in the text, for an edit that makes no sense whatever it edits."""
    available = available_passes()
    edit = _read_edit(item, pipeline, (), available)
    load_pass(edit.name, item.place)
    if edit.given is not None:
        make_pass(available, read_spec(edit.given), edit.given.place)


def refuse_edits(items: Sequence[PipelineItem], pipeline: str) -> None:
    """Raise UserError where a whole pipeline, one that does not begin with the name `pipeline`, has an edit."""
    if items and items[0].text not in available_passes() and (near := did_you_mean(items[0].text, [pipeline])):
        raise UserError(f'there is no pass or pipeline "{items[0].text}"', loc=items[0].place, notes=[near])
    for item in items:
        if _FORM_OF_EDIT.match(item.text):
            notes = [f'the name of the pipeline comes first: "{pipeline}, {item.text}"']
            raise UserError("this is an edit, and there is no pipeline that it edits", loc=item.place, notes=notes)
        if item.text == pipeline:
            raise UserError("the name of a pipeline comes first, and edits of it after it", loc=item.place)


def _read_edit(
    item: PipelineItem, pipeline: str, passes: Sequence[ModulePass], available: AvailablePasses
) -> PipelineEdit:
    for kind, form in _FORMS.items():
        if (found := form.fullmatch(item.text)) is None:
            continue
        name, number, given = found["name"], found["number"], None
        if kind == "configure":
            # The number of the occurrence is no part of what is read, but of the column.
            given = item.part(name + found["spec"], found.start("spec") - len(name))
        elif kind != "remove":
            given = item.part(found["spec"], found.start("spec"))
        kind = found["where"] if kind == "insert" else kind
        return PipelineEdit(kind, name, None if number is None else int(number), item, given)  # pyright: ignore
    notes = [HOW_TO_EDIT]
    name = item.text.removeprefix("+").strip()
    if name in available:
        last = passes[-1].name if passes else "PASS"
        notes = [f"to insert it, say where: +{name} before {last}"]
    elif item.text == pipeline:
        notes = ["its name comes first, once"]
    raise UserError(f'"{item.text}" is no edit of the pipeline "{pipeline}"', loc=item.place, notes=notes)


def _occurrences(
    passes: Sequence[ModulePass],
    edit: PipelineEdit,
    pipeline: str,
    left_out: Mapping[str, str],
    available: AvailablePasses,
) -> list[int]:
    """Where the pass of an edit is; raises UserError if it is nowhere."""
    found = [index for index, each in enumerate(passes) if each.name == edit.name]
    if not found:
        names = [each.name for each in passes]
        if edit.name in left_out:
            message = f'the pass "{edit.name}" is not in what runs of the pipeline "{pipeline}"'
            raise UserError(message, loc=edit.item.place, notes=[left_out[edit.name]])
        note = did_you_mean(edit.name, (*names, *left_out))
        if edit.name in available:
            note = f"to insert it: +{edit.name} after PASS"
        message = f'the pipeline "{pipeline}" has no pass "{edit.name}"'
        raise UserError(message, loc=edit.item.place, notes=[note or f"its passes: {', '.join(dict.fromkeys(names))}"])
    if edit.number is None:
        return found
    if not 1 <= edit.number <= len(found):
        times = "once" if len(found) == 1 else f"{len(found)} times"
        message = f'there is no "{edit.name}#{edit.number}": the pass occurs {times}'
        raise UserError(message, loc=edit.item.place)
    return [found[edit.number - 1]]


def _apply(passes: list[ModulePass], index: int, edit: PipelineEdit, available: AvailablePasses) -> None:
    if edit.given is None:
        del passes[index]
        return
    if edit.kind == "configure":
        kept = passes[index].pipeline_pass_spec().parameters
        spec = ArgSpec(edit.name, {**kept, **read_spec(edit.given).normalize_parameter_names().parameters})
        passes[index] = make_pass(available, spec, edit.item.place)
        return
    given = read_item(available, edit.given)
    match edit.kind:
        case "before":
            passes[index:index] = given
        case "after":
            passes[index + 1 : index + 1] = given
        case _:
            passes[index : index + 1] = given
