# SPDX-License-Identifier: Apache-2.0
"""
Every pair of IR in a docstring runs; `docs/generator/pairs.py` says what they are. In ops of a schedule `%kernel` is
the handle of the one kernel, and other names that are not results are those of loops, by their counters, and of ops,
by their first results, or, without any, by the op's name.
"""

from __future__ import annotations

import re

import pytest
from docs.generator.pairs import FOLDERS, Pair, all_pairs, docstrings
from docs.generator.source import ROOT
from schedules import apply_schedule
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.context import make_context
from penstock.dialects.machine import TargetOp
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.to_text import module_text
from penstock.runtime.machines import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes, verify
from penstock.tools.universe import PASSES

SCHEDULED = re.compile(r"(schedule|transform)\.")
PAIRS = all_pairs()


def printed(text: str, pair: Pair, *, run: bool) -> str:
    ctx = make_context()
    module = parse_text(ctx, SourceText(pair.label, text)).module
    if run:
        if pair.machine is not None:
            attach_machine(module, pair.machine)
        if SCHEDULED.search(pair.pipeline):
            apply_schedule(ctx, module, pair.pipeline)
        else:
            run_passes(ctx, module, read_pipeline(pair.pipeline))
        without_machine(module, pair)
    else:
        verify(module)
    return module_text(ctx, module)


def without_machine(module: ModuleOp, pair: Pair) -> None:
    if pair.machine is None:
        return
    for op in list(module.body.block.ops):
        if isinstance(op, TargetOp):
            op.detach()


@pytest.mark.parametrize("pair", PAIRS, ids=[pair.label for pair in PAIRS])
def test_the_pipeline_turns_before_into_after(pair: Pair) -> None:
    assert printed(pair.before, pair, run=True) == printed(pair.after, pair, run=False)


@pytest.mark.parametrize("name", sorted(PASSES))
def test_the_docstring_of_every_pass_has_a_pair_that_runs_it(name: str) -> None:
    assert any(pair.shows(name) for pair in PAIRS), f'no docstring shows what "{name}" does'


def test_every_before_and_after_is_recognised_as_part_of_a_pair() -> None:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = "\n".join(text for _, text in docstrings(path))
            written = [len(re.findall(title, text, re.MULTILINE)) for title in (r"^\s*Before:\s*$", r"^\s*After \(")]
            pairs = [pair for pair in PAIRS if pair.path == path]
            recognised = [{(p.line, p.before) for p in pairs}, {(p.line, p.before, p.after) for p in pairs}]
            assert written == list(map(len, recognised)), f"{path}: a pair is not written as the others"
