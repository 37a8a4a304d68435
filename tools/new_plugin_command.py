# SPDX-License-Identifier: Apache-2.0
"""
Write the skeleton of a package that extends Penstock: an op with what it computes, a pass, a planner, a tiler, a
machine, and tests that pass once it is installed.
"""

from __future__ import annotations

import argparse
import keyword
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.tools.arguments import add_common, say

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

MODEL = "research"
"""What the skeleton calls itself."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="of the package and of its module: letters, digits and _")
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="a new folder; default: NAME")
    add_common(parser)


def execute(args: argparse.Namespace) -> int:
    from penstock.dialects.diagnostics import USAGE, UserError
    from penstock.dialects.files import write_whole

    name: str = args.name
    if not name.isidentifier() or not name.isascii() or not name.islower() or keyword.iskeyword(name):
        notes = ["lower-case letters, digits and _, beginning with a letter: it is the name of a module, too"]
        raise UserError(f'"{name}" is no name of a package', notes=notes, status=USAGE)
    folder: Path = args.output or Path(name)
    if folder.exists():
        raise UserError("the folder is there already", loc=str(folder))
    for path, text in skeleton(name):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_whole(folder / path, text)
    say(args, f"{folder}: a package of an op, a pass, a planner, a tiler and a machine")
    say(args, f"  python -m pip install ./{folder}")
    say(args, f"  python -m pytest {folder}/tests")
    return 0


def skeleton(name: str) -> Iterator[tuple[str, str]]:
    """The files of the skeleton, by their paths in it, for a package of this name."""

    def files(folder: Traversable, path: str) -> Iterator[tuple[str, str]]:
        for each in sorted(folder.iterdir(), key=lambda each: each.name):
            if each.is_dir():
                if each.name != "__pycache__":
                    yield from files(each, f"{path}{each.name}/")
            elif not each.name.endswith(".pyc"):
                text = each.read_text(encoding="utf-8")
                yield f"{path}{each.name}".replace(MODEL, name), text.replace(MODEL, name)

    yield from files(resources.files("penstock.tools") / "skeleton", "")
