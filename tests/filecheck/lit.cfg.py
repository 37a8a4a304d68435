# SPDX-License-Identifier: Apache-2.0
"""
Configuration of lit: `lit tests/filecheck` runs every RUN line with the installed commands.

What the lines write goes to `build/lit`, or to the folder of `--param exec_root=FOLDER`.
"""

# pyright: reportUndefinedVariable=false, reportUnknownMemberType=false
from pathlib import Path

import lit.formats

HERE = Path(__file__).parent

config.name = "penstock"  # noqa: F821
config.test_format = lit.formats.ShTest(execute_external=False)  # noqa: F821
config.suffixes = [".mlir"]  # noqa: F821
config.excludes = ["Inputs", "Output"]  # noqa: F821
config.test_source_root = str(HERE)  # noqa: F821
config.test_exec_root = lit_config.params.get("exec_root", str(HERE.parent.parent / "build" / "lit"))  # noqa: F821
