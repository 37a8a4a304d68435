# SPDX-License-Identifier: Apache-2.0
"""What penstock-opt says of passes: the list of all, and one with its options and its documentation."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping

from xdsl.passes import ModulePass
from xdsl.utils.arg_spec import parse_spec
from xdsl.utils.exceptions import ArgSpecParseError
from xdsl.utils.target import Target

from penstock.dialects.diagnostics import USAGE, UserError, nearest_or_all
from penstock.dialects.plugins import factories
from penstock.lowering.machine_names import shipped_machines
from penstock.runtime.levels import LEVELS, level_of_class
from penstock.runtime.named_pipelines import DEFAULT, OPTIONS, SUFFIX, named_pipelines
from penstock.runtime.pass_manager import available_passes, load_pass
from penstock.runtime.pass_options import options_of
from penstock.tools.listed import WIDTH, Listed, failure, first_sentence

_OWN, _UPSTREAM = "penstock", "xdsl"
_TARGETS = tuple("riscv x86 csl snitch arm stencil dmp mpi hls gpu fpga wasm snrt".split())
"""What is in the names of passes of xDSL that are for one target or one kind of program."""


def listed_passes() -> list[Listed]:
    """Every pass, by what they are for."""
    groups: dict[str, list[Listed]] = {}
    for name, load in available_passes().items():
        try:
            pass_type = load()
            group, purpose = _group(pass_type), first_sentence(_documentation(name, pass_type))
            where = f"{pass_type.__module__}:{pass_type.__qualname__}"
        except Exception as error:  # a broken plug-in must not hide the other passes
            group, purpose, where = "passes of installed packages", failure(error), ""
        groups.setdefault(group, []).append(Listed(name, purpose, where, group))
    order = [f"passes of the {level} level" for level in LEVELS] + [
        "passes of any level",
        "passes of installed packages",
        "passes of xDSL",
        "passes of xDSL for targets",
    ]
    return [each for group in order for each in groups.get(group, ())]


def listed_pipelines() -> list[Listed]:
    """The pipelines that have names."""
    return [Listed(name, _purpose_of_pipeline(name), group="pipelines") for name in named_pipelines()]


def help_pass(name: str) -> str:
    """Name, options and documentation of a pass or a pipeline; raises UserError if there is none."""
    if name not in available_passes() and name in named_pipelines():
        return _help_pipeline(name)
    pass_type = load_pass(name)
    lines = [name, ""]
    for option in options_of(pass_type):
        default = " (required)" if option.required else f" = {option.default}" if option.default else ""
        lines.append(f"  {option.name}{default}: {option.takes}")
        lines += textwrap.wrap(option.documentation, WIDTH, initial_indent="      ", subsequent_indent="      ")
    if len(lines) > 2:
        lines.append("")
    return "\n".join([*lines, _documentation(name, pass_type) or "(it has no documentation)"])


def _help_pipeline(name: str) -> str:
    lines = [name, ""]
    if name == DEFAULT or name.removesuffix(SUFFIX) in shipped_machines():
        about = {
            "start": f"the level that the program is at: {', '.join(LEVELS)}",
            "until": "the level at whose end it stops",
            "threads": "an integer: how many threads run loops of the host",
        }
        lines += [f"  {option} = {default}: {about[option]}" for option, default in OPTIONS.items()] + [""]
    return "\n".join([*lines, _purpose_of_pipeline(name)])


def _purpose_of_pipeline(name: str) -> str:
    if name == DEFAULT:
        return "The compiler's own passes, for the host without a machine file."
    if name.removesuffix(SUFFIX) in shipped_machines():
        return f"The compiler's own passes for {name.removesuffix(SUFFIX)}, which comes first: attach-machine."
    return "A pipeline of an installed package."


def _group(pass_type: type[ModulePass]) -> str:
    package = pass_type.__module__.partition(".")[0]
    if package == _UPSTREAM:
        words = f"{pass_type.__module__}.{pass_type.name}"
        return "passes of xDSL for targets" if any(each in words for each in _TARGETS) else "passes of xDSL"
    if package != _OWN:
        return "passes of installed packages"
    level = level_of_class(pass_type)
    return "passes of any level" if level is None else f"passes of the {level} level"


def _documentation(name: str, pass_type: type[ModulePass]) -> str:
    # A dataclass without a docstring is given its signature as one, and a class inherits that of its base.
    written = pass_type.__dict__.get("__doc__") or ""
    if written.startswith(f"{pass_type.__name__}("):
        written = ""
    if not written:
        from penstock.tools.upstream_passes import DOCUMENTATION

        written = DOCUMENTATION.get(name, "")
    return inspect.cleandoc(written or inspect.getmodule(pass_type).__doc__ or "")  # pyright: ignore


def load_target(text: str) -> Target:
    """The target that a text such as `riscv-asm` names, with its options; raises UserError for what is none."""
    try:
        spec = parse_spec(text)
    except ArgSpecParseError:
        raise UserError(f'"{text}" names no target', notes=["write: -t llvm-ir"], status=USAGE) from None
    available: Mapping[str, Callable[[], type[Target]]] = factories("all_targets")
    if spec.name not in available:
        note = nearest_or_all(spec.name, available, "the targets")
        raise UserError(f'there is no target "{spec.name}"', notes=[note], status=USAGE)
    try:
        return available[spec.name]().from_spec(spec)
    except ValueError as error:
        raise UserError(f'the options of the target "{spec.name}" do not fit: {error}', status=USAGE) from None
