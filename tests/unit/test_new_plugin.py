# SPDX-License-Identifier: Apache-2.0
"""The skeleton of a package: installed, its own tests pass; it is what stands in examples/plugin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.tools.new_plugin_command import skeleton

if TYPE_CHECKING:
    from tests.conftest import Command


def test_the_skeleton_is_small() -> None:
    lines = [line for _, text in skeleton("research") for line in text.splitlines() if line.strip()]
    assert len(lines) < 150


def test_a_new_package_installs_and_its_tests_pass(penstock: Command) -> None:
    assert penstock("new-plugin", "lab_one").status == 0
    assert not [path for path in Path("lab_one").rglob("*") if "research" in path.name]
    words = ["install", "-q", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--target", "there"]
    installed = subprocess.run(
        [sys.executable, "-m", "pip", *words, "./lab_one"], capture_output=True, text=True, check=False
    )
    assert installed.returncode == 0, installed.stderr
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "lab_one/tests"],
        env={**os.environ, "PYTHONPATH": str(Path("there").resolve())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("name", ["my-lab", "1lab", "Lab", "class", "a.b"])
def test_what_is_no_name_of_a_module_is_refused(penstock: Command, name: str) -> None:
    finished = penstock("new-plugin", name)
    assert finished.status == 2
    assert f'error: "{name}" is no name of a package' in finished.err
    assert not Path(name).exists()


def test_a_folder_that_is_there_is_left_alone(penstock: Command) -> None:
    Path("lab").mkdir()
    finished = penstock("new-plugin", "lab")
    assert finished.status == 1
    assert finished.err.startswith("lab: error: the folder is there already")
    assert list(Path("lab").iterdir()) == []
