# SPDX-License-Identifier: Apache-2.0
"""Pages opened in a real browser without a window: Chromium, where it is installed."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

_BEFORE = """<head><script>
window.faults = [];
window.addEventListener("error", (event) => window.faults.push(event.message));
for (const kind of ["error", "warn"]) console[kind] = (...words) => window.faults.push(words.join(" "));
</script>"""
_AFTER = """<script>
setTimeout(async () => {
  const found = document.createElement("pre");
  found.id = "found";
  let value = null;
  try { value = await (async () => { %s })(); } catch (error) { window.faults.push(String(error)); }
  found.textContent = JSON.stringify({ faults: window.faults, value });
  document.body.append(found);
}, 300);
</script></body>"""


def evaluate(page: Path, script: str) -> Any:
    """
    What a script returns at the end of a page that is opened without a network, as JSON has it. Fails where the page
    or the script raises an error or says one on the console; skips where there is no browser.
    """
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no Chromium")
    text = page.read_text(encoding="utf-8").replace("<head>", _BEFORE, 1)
    # The last one: a script inside may hold such text, too.
    body, _, rest = text.rpartition("</body>")
    copy = page.with_name(f"{page.stem}.evaluated.html")
    copy.write_text(body + _AFTER % script + rest, encoding="utf-8")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"]
    options += [f"--user-data-dir={page.parent / 'profile'}", "--virtual-time-budget=20000", "--window-size=1500,1200"]
    done = subprocess.run(
        [browser, *options, "--dump-dom", copy.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "HOME": str(page.parent)},
    )
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr[-2000:]
    answer = json.loads(html.unescape(found[1]))
    assert answer["faults"] == []
    return answer["value"]
