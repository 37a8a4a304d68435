# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site: its navigation, and a strict build that asks nothing of the network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("material")

from docs.site import hook

ROOT = Path(__file__).parents[2]
REMOTE = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")
"""What a browser loads from another place, and not when a reader follows a link."""


def test_a_folder_of_the_navigation_is_the_pages_that_no_entry_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for page in ("index.md", "steps/2.md", "steps/1.md", "steps/index.md", "steps/deep/3.md", "steps/picture.svg"):
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).touch()
    monkeypatch.setattr(hook, "DOCS", tmp_path)
    config = {"nav": ["index.md", {"Steps": "steps/"}, {"Last": ["steps/2.md"]}, {"None": "absent/"}]}
    hook.on_config(config)
    assert config["nav"] == ["index.md", {"Steps": ["steps/index.md", "steps/1.md"]}, {"Last": ["steps/2.md"]}]


def built(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_the_site_is_built_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = built(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr.replace("NO_MKDOCS_2_WARNING", "")
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > 60
    remote = {page.name: found for page in pages if (found := REMOTE.findall(page.read_text()))}
    assert remote == {}
    assert REMOTE.search('<script async src="https://example.com/x.js">')
    assert (tmp_path / "search" / "search_index.js").is_file()
