# SPDX-License-Identifier: Apache-2.0
"""
Say where a byte, a cycle or a node of a program comes from and goes to: the buffer, the kernel, the command and its
operation, the node of the model and the line of the source. What is above the accelerator level is compiled first.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.dialects.diagnostics import USAGE, UserError, nearest_or_all
from penstock.tools.arguments import add_common, add_machine, add_model, add_pipeline, add_schedule

if TYPE_CHECKING:
    from xdsl.ir import Operation

    from penstock.runtime.provenance import CallSpan, PlacedLife, Provenance
    from penstock.tools.observed import ObservedProgram

EPILOG = """\
examples:
  penstock explain model.onnx --machine gemmini --byte spad:0x1a40@12000
  penstock explain model.plan --cycle 12000
  penstock explain model.onnx --machine gemmini --node conv1
"""

_NUMBER = r"0[xX][0-9a-fA-F]{1,16}|[0-9][0-9_,]{0,19}"
_BYTE = re.compile(rf"(?P<scope>[\w.-]+):(?P<byte>{_NUMBER})@(?P<cycle>{_NUMBER})")
_MOST = 5
"""Lines of one kind; how many more there are is said."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    group = parser.add_argument_group("what is asked about").add_mutually_exclusive_group(required=True)
    group.add_argument("--byte", metavar="SCOPE:BYTE@CYCLE", help="what a byte holds in a cycle, as spad:0x1a40@12000")
    group.add_argument("--cycle", metavar="N", help="what runs in a cycle, and what is alive")
    group.add_argument("--node", metavar="NAME", help="what a node of the model, or a line FILE:LINE:COLUMN, became")
    add_machine(parser)
    add_pipeline(parser)
    add_schedule(parser)
    parser.add_argument("--kernel", metavar="NAME", help="which kernel of a .pk file that has several")
    add_common(parser)


def execute(args: argparse.Namespace) -> int:
    from penstock.tools.observed import observed_program

    place = None if args.byte is None else _BYTE.fullmatch(args.byte)
    if args.byte is not None and place is None:
        notes = ["write --byte spad:0x1a40@12000, or --byte arena:64@0"]
        raise UserError(f'"{args.byte}" is no byte of a scope in a cycle', notes=notes, status=USAGE)
    cycle = None if args.cycle is None else _number(args.cycle, "--cycle")
    found = observed_program(args)
    if found is None:
        return 0
    if place is not None:
        byte, at = _number(place["byte"], "--byte"), _number(place["cycle"], "--byte")
        lines = byte_lines(found, place["scope"], byte, at)
    elif cycle is not None:
        lines = cycle_lines(found, cycle)
    else:
        lines = node_lines(found, args.node)
    print("\n".join(f"{title:<8} {text}" for title, text in lines))
    return 0


def _number(word: str, option: str) -> int:
    if not re.fullmatch(_NUMBER, word):
        raise UserError(f'"{word}" is no number for {option}', status=USAGE)
    digits = word.replace("_", "").replace(",", "")
    return int(digits, 16) if digits[:2].lower() == "0x" else int(digits)


Lines = Iterator[tuple[str, str]]
"""What a line is about, and what it says."""


def byte_lines(found: ObservedProgram, scope: str, byte: int, cycle: int) -> Lines:
    """What a byte of a scope holds in a cycle, who wrote it, who reads it, and where they come from."""
    provenance, texts = found.provenance, _Texts(found)
    use = provenance.at_byte(scope, byte, cycle)
    yield "byte", f"0x{byte:x} ({byte:,}) of {scope} in cycle {cycle:,}"
    yield "kernel", _call(use.call)
    for life in use.lives:
        yield "buffer", _buffer(provenance, life, use.call)
    if not use.lives:
        yield "buffer", "none: nothing is alive there"
    for title, number in (("written", use.written), ("read", use.read)):
        if number is not None:
            yield title, texts.command(use.call, number)
    ops = [op for number in (use.written, use.read) for op in _ops(use.call, number)]
    yield from _nodes(found, (*(name for life in use.lives for name in life.nodes), *_names(ops)))


def cycle_lines(found: ObservedProgram, cycle: int) -> Lines:
    """What runs in a cycle, unit by unit, and the buffers that are alive."""
    provenance, texts = found.provenance, _Texts(found)
    call, states = provenance.at_cycle(cycle)
    yield "cycle", f"{cycle:,}"
    yield "kernel", _call(call)
    for state in states:
        does = {"busy": "works", "done": "has no command left"}.get(state.does, f"waits: {state.does}")
        command = "" if state.command is None else f"; {texts.command(call, state.command)}"
        yield "unit", f"{state.unit} {does}{command}"
    for life in provenance.alive_at(cycle):
        yield "buffer", _buffer(provenance, life, call)
    yield from _nodes(found, _names(op for state in states for op in _ops(call, state.command)))


def node_lines(found: ObservedProgram, name: str) -> Lines:
    """What a node became at each level, the kernels and commands that do its work, and its buffers."""
    provenance = found.provenance
    known = {each for snapshot in found.levels.found for origins in snapshot.origins for each in origins}
    if name not in known:
        notes = [nearest_or_all(name, sorted(known)[:20] if len(known) > 20 else sorted(known), "some of the nodes")]
        raise UserError(f'nothing of the program comes from "{name}"', loc=found.path, notes=notes, status=USAGE)
    for snapshot in found.levels.found:
        pairs = zip(snapshot.lines, snapshot.origins, strict=True)
        texts = [f"@{line.function}: {_short(line.text)}" for line, origins in pairs if name in origins]
        yield from _some(snapshot.title if len(snapshot.title) <= 8 else "source", texts)
    groups = {name, *(group for each in found.levels.found for group, inside in each.groups.items() if name in inside)}
    ops = provenance.names.get(name, ())
    for call in provenance.calls:
        if not groups.isdisjoint(call.nodes):
            yield "kernel", _call(call)
    for run in () if provenance.run is None else provenance.run.kernels:
        if numbers := provenance.commands_of(run, ops):
            simulation = run.simulation
            moved = sum(size for each in numbers for _, _, size in simulation.commands[each].moved)
            first, last = (
                min(simulation.starts[each] for each in numbers),
                max(simulation.ends[each] for each in numbers),
            )
            what = f"{len(numbers):,} of {len(simulation.commands):,} of @{run.kernel}, {moved:,} bytes"
            yield "commands", f"{what}, cycles {first:,} to {last:,} of the kernel"
    for life in provenance.lives:
        if name in life.nodes:
            yield "buffer", _buffer(provenance, life, None)


class _Texts:
    """The operations of a program as they stand in its text."""

    def __init__(self, found: ObservedProgram):
        self._lines = {line.op: line.text for line in found.levels.found[-1].lines if line.op is not None}

    def command(self, call: CallSpan | None, number: int) -> str:
        """A command with its times and what it waited for."""
        assert call is not None
        assert call.run is not None
        simulation, begin = call.run.simulation, call.cycles[0]
        command = simulation.commands[number]
        start, end = begin + simulation.starts[number], begin + simulation.ends[number]
        waited = f", after waiting for {cause}" if (cause := str(simulation.causes[number])) else ""
        line = "" if command.op is None else self._lines.get(command.op, "")
        text = f": {_short(line)}" if line else ""
        return f"command {number}, {command.name or command.kind.value}, cycles {start:,} to {end:,}{waited}{text}"


def _call(call: CallSpan | None) -> str:
    if call is None:
        return "none"
    if call.run is None:
        return f"@{call.kernel}, on the host"
    begin, end = call.cycles
    return f"@{call.kernel}, cycles {begin:,} to {end:,}, called for {_quoted(call.nodes)}"


def _buffer(provenance: Provenance, life: PlacedLife, call: CallSpan | None) -> str:
    type = life.op.results[0].type
    text = f"{life.name} of @{life.function} : {type}, {life.buffer.size:,} bytes at {life.offset:,} of {life.scope}"
    calls = [call] if call is not None else [each for each in provenance.calls if each.kernel == life.function][:1]
    own = [each for each in calls if each.kernel == life.function]
    spans = provenance.cycles_of(life, own[0] if own else None) if own or life.memory.scope is None else ()
    if spans:
        text += f", alive in cycles {' and '.join(f'{lower:,} to {upper:,}' for lower, upper in spans)}"
    return text


def _ops(call: CallSpan | None, number: int | None) -> list[Operation]:
    if call is None or call.run is None or number is None:
        return []
    op = call.run.simulation.commands[number].op
    return [] if op is None else [op]


def _names(ops: Iterable[Operation]) -> tuple[str, ...]:
    from penstock.lowering.line_map import origins_of

    return tuple(name for op in ops for name in origins_of(op))


def _nodes(found: ObservedProgram, names: Iterable[str]) -> Lines:
    """What the names stand for in the program as it came in."""
    source = found.levels.found[0]
    for name in dict.fromkeys(names):
        pairs = zip(source.lines, source.origins, strict=True)
        text = next((line.text for line, origins in pairs if name in origins), "")
        yield "node", f"{_quoted([name])}{': ' + _short(text) if text else ''}"


def _some(title: str, texts: list[str]) -> Lines:
    yield from ((title, text) for text in texts[:_MOST])
    if len(texts) > _MOST:
        yield title, f"and {len(texts) - _MOST:,} more lines"


def _short(text: str) -> str:
    words = text.strip()
    return words if len(words) <= 160 else f"{words[:157]}..."


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names) or "nothing that has a name"
