# SPDX-License-Identifier: Apache-2.0
"""Whether what a machine file says of its commands is C: each template, once, through a compiler of the host."""

from __future__ import annotations

import re
from collections.abc import Iterator

from xdsl.dialects.builtin import FileLineColLoc, StringAttr

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.files import temporary_folder, write_whole
from penstock.dialects.machine import (
    DRAM,
    CodeOp,
    CommandForm,
    MachinePart,
    QueueOp,
    ScopeOp,
    SpelledPart,
    StateOp,
    TargetOp,
    Template,
)
from penstock.dialects.machine.spelling import ID
from penstock.lowering.to_c.module import options_of, sources_of
from penstock.passes.toolchain import complaint, find_compiler
from penstock.runtime.device import machine_files

_MESSAGE = re.compile(r"(?P<file>[^:\n]+):(?P<line>\d+):(?:(?P<column>\d+):)? (?:fatal )?error: (?P<text>.*)")
FLAGS = ("-std=c11", "-fsyntax-only", "-DPENSTOCK_MODEL")


def code_faults(target: TargetOp) -> tuple[UserError, ...]:
    """
    What the C compiler of the host refuses of the templates of a machine: at the table that has it, or at `[code]`.

    Raises UserError where there is no compiler, for a file that cannot be read, and for a machine that spells nothing.
    """
    code = target.code()
    if code is None and not any(part.emit is not None for part in target.parts(SpelledPart)):
        raise UserError(f'machine "{target.machine_name}" spells no commands', notes=["each has an emit"])
    compiler = find_compiler()
    with temporary_folder() as folder:
        for file, text in machine_files(target).items():
            write_whole(folder / file, text)
        write_whole(folder / "check.c", _program(target))
        flags = [*FLAGS, "-I.", *(options_of(code) if code is not None else ())]
        said = compiler.run((*flags, "check.c"), folder).stderr
    found: dict[str, UserError] = {}
    around = code or target
    for match in _MESSAGE.finditer(said):
        here = any(match["file"] == _place(part)[0] for part in target.parts(MachinePart))
        loc = f"{match['file']}:{match['line']}:1" if here else location_of(around)
        where = "" if here else f"{match['file']}:{match['line']}: "
        found.setdefault(f"{loc}{where}", UserError(f"the C compiler refuses it: {where}{match['text']}", loc=loc))
    return tuple(found.values())


def require_code(code: CodeOp) -> None:
    """Raise UserError for what the C compiler of the host refuses of a machine: the first of it."""
    target = code.parent_op()
    assert isinstance(target, TargetOp)
    for fault in code_faults(target):
        raise UserError(fault.message, loc=fault.loc, notes=[*fault.notes, *sources_of(code)])
    if said := complaint(find_compiler(), options_of(code)):
        message = f'programs for the machine "{target.machine_name}" cannot be linked: {said}'
        raise UserError(message, loc=location_of(code), notes=sources_of(code))


def _place(part: MachinePart) -> tuple[str, int]:
    location = part.location
    if isinstance(location, FileLineColLoc):
        return location.filename.data, location.line.data
    return part.title, 1


def _program(target: TargetOp) -> str:
    """A function of all templates, each at the line of its table."""
    code = target.code()
    includes = "".join(f'#include "{name.data}"\n' for name in (code and code.headers) or ())
    lines = [f"#include <stddef.h>\n#include <stdint.h>\n#include <string.h>\n{includes}"]
    lines.append("void check(int8_t *pointer, int64_t number) {\n")
    for part, text in _texts(target):
        file, line = _place(part)
        body = " ".join(text.split())
        lines.append(f'#line {line} "{file}"\n{{ {body} }}\n')
    return "".join([*lines, "(void)pointer, (void)number;\n}\n"])


def _texts(target: TargetOp) -> Iterator[tuple[MachinePart, str]]:
    """What each part writes, of a command that stands for all."""
    scopes = target.scopes()
    for part in target.parts(MachinePart):
        match part:
            case SpelledPart() if part.template is not None:
                for places in _places(part):
                    yield part, part.template.fill(_values(part, places, scopes))
            case StateOp():
                yield (
                    part,
                    part.template.fill({name: "0" if name == "copy" else "number" for name in part.template.names}),
                )
            case QueueOp():
                yield from (
                    (part, Template.of(each.data).fill({})) for each in (part.push, part.pop) if each is not None
                )
            case _:
                pass
    code = target.code()
    for key in ("barrier", "wait", "begin"):
        text = None if code is None else code.properties.get(key)
        if code is not None and isinstance(text, StringAttr):
            yield code, Template.of(text.data).fill({ID: "number"})


def _places(part: SpelledPart) -> Iterator[dict[str, str]]:
    """Where the operands may be: each scope of each once."""
    form = CommandForm.of(part)
    assert form is not None
    for number in range(max(len(operand.scopes) for operand in form.operands)):
        yield {each.name: each.scopes[min(number, len(each.scopes) - 1)] for each in form.operands}


def _values(part: SpelledPart, places: dict[str, str], scopes: dict[str, ScopeOp]) -> dict[str, str]:
    assert part.template is not None
    found = dict.fromkeys(part.template.names, "number")
    found |= dict.fromkeys(part.needed, "0")
    for operand, scope in places.items():
        address = scopes[scope].address if scope != DRAM else None
        if scope == DRAM:
            found[operand] = "pointer"
        elif address is not None:
            spelled = Template.of(address.data)
            found[operand] = f"({spelled.fill(dict.fromkeys(spelled.names, 'number'))})"
    return found
