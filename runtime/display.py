# SPDX-License-Identifier: Apache-2.0
"""What notebooks show of compiled programs: their figures, the memory of each scope, and what the units do."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.passes.analysis.memory.memory_problems import ScopePlan
from penstock.passes.planning.map_svg import xml_text
from penstock.runtime.report import CompileReport
from penstock.runtime.simulator.run import ProgramRun


def program_html(title: str, report: CompileReport, plans: Sequence[ScopePlan], run: ProgramRun | None) -> str:
    """The report of a program, the plan that fills each scope most, and the timeline of the run, if it has one."""
    fullest: dict[str, ScopePlan] = {}
    for plan in plans:
        if plan.scope not in fullest or plan.peak > fullest[plan.scope].peak:
            fullest[plan.scope] = plan
    maps = [plan._repr_svg_() for plan in fullest.values()]  # pyright: ignore[reportPrivateUsage]
    pictures = [*([run.svg()] if run is not None else []), *maps]
    boxes = [f'<div style="overflow-x: auto">{picture}</div>' for picture in pictures]
    return "\n".join([f"<b>{xml_text(title)}</b>", text_html("\n".join(report.lines())), *boxes])


def text_html(text: str) -> str:
    """A text as it stands."""
    lines = "\n".join(xml_text(line) for line in text.split("\n"))
    return f'<pre style="white-space: pre-wrap">{lines}</pre>'
