# SPDX-License-Identifier: Apache-2.0
"""
A report as one HTML page that needs no network: the data, our styles and script, and the plotting library, all inside.

The library is plotly.js, from the wheel `plotly` (the extra `report`).
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from penstock.dialects.diagnostics import UserError, pip_install

_HOME = "penstock.tools.report"


def plotting_library() -> str:
    """The text of plotly.js. Raises UserError where the wheel that brings it is not installed."""
    try:
        return files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    except (ModuleNotFoundError, FileNotFoundError):
        notes = [pip_install("report")]
        raise UserError("a report is drawn with plotly, which is not installed", notes=notes) from None


def report_page(data: dict[str, Any], title: str, library: str) -> str:
    """The page that shows `data` (see `penstock.tools.report.data`)."""
    home = files(_HOME)
    parts = {
        "TITLE": title.replace("&", "&amp;").replace("<", "&lt;"),
        "STYLE": home.joinpath("page.css").read_text(encoding="utf-8"),
        "LIBRARY": library.replace("</script", r"<\/script"),
        # A script ends where its text says so, whatever that is inside of.
        "DATA": json.dumps(data, separators=(",", ":")).replace("<", r"\u003c"),
        "PICTURES": home.joinpath("pictures.js").read_text(encoding="utf-8"),
        "SCRIPT": home.joinpath("page.js").read_text(encoding="utf-8"),
    }
    pieces = home.joinpath("page.html").read_text(encoding="utf-8").split("{{")
    return pieces[0] + "".join(parts[name] + rest for name, _, rest in (each.partition("}}") for each in pieces[1:]))
