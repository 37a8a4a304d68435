# SPDX-License-Identifier: Apache-2.0
"""Write docs/reference anew."""

from __future__ import annotations

import shutil

from docs.generator.pages import FOLDER, pages
from docs.generator.source import ROOT

if __name__ == "__main__":
    folder, found = ROOT / FOLDER, pages()
    shutil.rmtree(folder, ignore_errors=True)
    for path, text in found.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    print(f"{FOLDER}: {len(found)} pages")
