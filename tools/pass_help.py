"""What the tools say about passes: the list of them, and the help of one."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from xdsl.passes import ModulePass, get_pass_option_infos

from penstock.runtime.pass_manager import available_passes, load_pass


def list_passes() -> str:
    """Name and first sentence of every pass, one a line, those of xDSL included."""
    available = available_passes()
    width = max(len(name) for name in available)
    return "\n".join(f"{name:{width}}  {_purpose(load)}" for name, load in available.items())


def help_pass(name: str) -> str:
    """Name, options with type and default, and documentation of a pass; raises UserError if there is none."""
    pass_type = load_pass(name)
    lines = [name, ""]
    for option in get_pass_option_infos(pass_type):
        default = f" = {option.default_value}" if option.default_value is not None else ""
        lines.append(f"  {option.name.replace('_', '-')}: {option.expected_type}{default}")
    if len(lines) > 2:
        lines.append("")
    return "\n".join([*lines, _documentation(pass_type) or "(it has no documentation)"])


def _purpose(load: Callable[[], type[ModulePass]]) -> str:
    try:
        documentation = _documentation(load())
    except Exception as error:  # a broken plug-in must not hide the other passes
        return f"(cannot be loaded: {error})"
    first = documentation.split("\n\n")[0]
    return " ".join(first.split())


def _documentation(pass_type: type[ModulePass]) -> str:
    # A dataclass without a docstring is given its signature as one, and a class inherits that of its base.
    written = pass_type.__dict__.get("__doc__") or ""
    if written.startswith(f"{pass_type.__name__}("):
        written = ""
    return inspect.cleandoc(written or inspect.getmodule(pass_type).__doc__ or "")  # pyright: ignore
