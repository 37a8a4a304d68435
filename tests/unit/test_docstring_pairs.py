"""
Every pair of IR in a docstring runs: the text under `Before:`, after the pipeline that `After (...)` names, is the
text under it. Several, ``After (`this` or `that`):``, all give that text, and several `After` may follow one `Before`.
``After (`pass` on `machine`):`` runs it with that machine in front of the module. Where `After` says ops of a schedule,
such as ``After (`schedule.split %i by 4`):``, they are applied to the one kernel: `%kernel` is its handle, and other
names that are not results are those of loops, by their counters, and of ops, by their first results, or, without any,
by the op's name. A pass that decides only where to apply a primitive has its pair at the primitive.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from schedules import apply_schedule
from xdsl.dialects.builtin import ModuleOp

from penstock.dialects.context import make_context
from penstock.dialects.machine import TargetOp
from penstock.lowering.from_text import SourceText, parse_text
from penstock.lowering.to_text import module_text
from penstock.runtime.compiler import attach_machine
from penstock.runtime.pass_manager import read_pipeline, run_passes, verify
from penstock.tools.universe import PASSES

SCHEDULED = re.compile(r"(schedule|transform)\.")
REPOSITORY = Path(__file__).parent.parent.parent
BEFORE = re.compile(r"^ *Before:\s*\n\s*```mlir\n(?P<before>.*?)\n\s*```\s*\n", re.DOTALL | re.MULTILINE)
AFTER = re.compile(
    r"\s*After \((?P<pipelines>`[^`]+`(?:\s+or\s+`[^`]+`)*)(?:\s+on `(?P<machine>[^`]+)`)?\):\s*\n"
    r"\s*```mlir\n(?P<after>.*?)\n\s*```",
    re.DOTALL,
)


@dataclass(frozen=True)
class Pair:
    path: Path
    line: int
    before: str
    after: str
    pipeline: str
    machine: str | None

    @property
    def label(self) -> str:
        return f"{self.path.relative_to(REPOSITORY)}:{self.line} {re.split('[{ ]', self.pipeline)[0]}"


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Those of a file with a `Before:`, each with its line."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)) if "Before:" in source else ():
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        text = ast.get_docstring(node, clean=False)
        if text is not None:
            yield node.body[0].lineno, inspect.cleandoc(text)


def pairs_in(path: Path) -> Iterator[Pair]:
    for line, text in docstrings(path):
        for before in BEFORE.finditer(text):
            at = before.end()
            while (after := AFTER.match(text, at)) is not None:
                at, number = after.end(), line + text.count("\n", 0, before.start())
                for pipeline in re.findall("`([^`]+)`", after["pipelines"]):
                    yield Pair(path, number, before["before"], after["after"], pipeline, after["machine"])


FOLDERS = ("passes", "lowering", "runtime")

PAIRS = [pair for folder in FOLDERS for path in sorted((REPOSITORY / folder).rglob("*.py")) for pair in pairs_in(path)]


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
    pipelines = [re.split(r"[,{]", pair.pipeline) for pair in PAIRS]
    assert any(name in words for words in pipelines), f'no docstring shows what "{name}" does'


def test_every_before_and_after_is_recognised_as_part_of_a_pair() -> None:
    for folder in FOLDERS:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            text = "\n".join(text for _, text in docstrings(path))
            written = [len(re.findall(title, text, re.MULTILINE)) for title in (r"^\s*Before:\s*$", r"^\s*After \(")]
            pairs = [pair for pair in PAIRS if pair.path == path]
            recognised = [{(p.line, p.before) for p in pairs}, {(p.line, p.before, p.after) for p in pairs}]
            assert written == list(map(len, recognised)), f"{path}: a pair is not written as the others"
