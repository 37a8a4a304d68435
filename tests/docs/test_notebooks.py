# SPDX-License-Identifier: Apache-2.0
"""The notebooks of docs/notebooks are run as they stand, each in this process, as `python NOTEBOOK` would."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("marimo")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.py"))


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 4


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_something(notebook: Path) -> None:
    app: Any = runpy.run_path(str(notebook))["app"]
    outputs, _ = app.run()
    shown = [text for text in map(_shown, outputs) if text]
    assert any("<svg" in text for text in shown)
    assert any("<table" in text or "<pre" in text or "<p" in text or "markdown" in text for text in shown)


def _shown(output: Any) -> str:
    """What a notebook displays of a value."""
    for name in ("_repr_html_", "_repr_svg_", "_mime_"):
        if (method := getattr(output, name, None)) is not None:
            found = method()
            return found if isinstance(found, str) else str(found[1])
    return ""
