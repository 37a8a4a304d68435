# SPDX-License-Identifier: Apache-2.0
"""
A machine as a picture in SVG: a column for each memory, and for each unit its engines and what it computes.

A row begins with an open circle where it reads, and ends in a full one where it writes; beside it are rates, and the
behaviour as index notation. The text is the same for the same machine. A row says more when it is pointed at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from penstock.dialects.machine import DmaOp, IntrinsicOp, ScopeOp, TargetOp
from penstock.dialects.machine.part import DRAM
from penstock.passes.planning.map_svg import xml_text
from penstock.tools.machine_tables import behaviour_text, extents_text, operands_text, size_text

_LEFT, _TOP, _COLUMN, _HEAD, _ROW, _GAP = 150, 36, 120, 62, 22, 14
_LETTER = 5.6
"""The width of a letter of the text beside a row."""
_ENGINE, _COMPUTE, _LINE = "#e08b2d", "#3b7dd8", "#c8c8c8"


@dataclass(frozen=True)
class _Row:
    """An engine or an intrinsic: the memories that it reads and writes, and what is said of it."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    text: str
    about: str
    colour: str


def machine_svg(target: TargetOp) -> str:
    """The picture of a machine."""
    return "\n".join(_lines(target)) + "\n"


def _lines(target: TargetOp) -> Iterator[str]:
    memories = [DRAM, *target.scopes()]
    x = {name: _LEFT + _COLUMN * number + _COLUMN // 2 for number, name in enumerate(memories)}
    sections = [(unit, [*_rows(target, unit)]) for unit in target.units()]
    longest = max((len(row.text) for _, rows in sections for row in rows), default=0)
    right = _LEFT + _COLUMN * len(memories)
    width = int(right + max(_LETTER * longest, 200) + 20)
    count = sum(len(rows) for _, rows in sections)
    bottom = _TOP + _HEAD + sum(_ROW + _GAP for _ in sections) + count * _ROW + 2 * _GAP
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom}" viewBox="0 0 {width} {bottom}" '
        'font-family="sans-serif" font-size="10">'
    )
    yield f'<rect width="{width}" height="{bottom}" fill="white"/>'
    title = f"{target.machine_name}, {target.frequency_mhz} MHz, {rate_text(target.peak_macs_per_cycle())} MAC/cycle"
    yield f'<text x="12" y="20" font-size="14">{xml_text(title)}</text>'
    for name in memories:
        yield from _memory(x[name], name, target.scopes().get(name), bottom)
    y = _TOP + _HEAD
    for unit, rows in sections:
        y += _GAP + _ROW
        yield f'<path d="M12 {y - _ROW + 4}H{width - 12}" stroke="{_LINE}"/>'
        yield f'<text x="12" y="{y}" font-size="11" font-weight="bold">{xml_text(f"unit {unit}")}</text>'
        for row in rows:
            y += _ROW
            yield from _row(row, x, y - 4, right)
    yield "</svg>"


def _memory(x: int, name: str, scope: ScopeOp | None, bottom: int) -> Iterator[str]:
    """The head of the column of a memory, and the line below it."""
    facts = ["off chip"]
    if scope is not None:
        banks = f", {scope.bank_count} banks" if scope.bank_count > 1 else ""
        parent = f"below {scope.parent_name}" if scope.parent_name != DRAM else ""
        types = ", ".join(map(str, scope.dtypes))
        facts = [size_text(scope.size_bytes), f"{scope.granule_bytes} B granule{banks}", types, parent]
    wide = _COLUMN - 10
    yield f'<path d="M{x} {_TOP + _HEAD}V{bottom - _GAP}" stroke="{_LINE}"/>'
    yield f'<rect x="{x - wide // 2}" y="{_TOP}" width="{wide}" height="{_HEAD}" fill="#eef3fa" stroke="#505050"/>'
    yield f'<text x="{x}" y="{_TOP + 14}" text-anchor="middle" font-weight="bold">{xml_text(name)}</text>'
    for number, fact in enumerate(fact for fact in facts if fact):
        place = f'x="{x}" y="{_TOP + 26 + 11 * number}" text-anchor="middle" font-size="9"'
        yield f"<text {place}>{xml_text(fact)}</text>"


def _row(row: _Row, x: dict[str, int], y: int, right: int) -> Iterator[str]:
    yield f'<g stroke="{row.colour}" fill="{row.colour}"><title>{xml_text(row.about)}</title>'
    yield f'<text x="24" y="{y + 3.5}" fill="black" stroke="none">{xml_text(row.name)}</text>'
    touched = [x[name] for name in (*row.reads, *row.writes)]
    if touched:
        yield f'<path d="M{min(touched)} {y}H{max(touched)}" stroke-width="2"/>'
    for name in dict.fromkeys(row.reads):
        yield f'<circle cx="{x[name]}" cy="{y}" r="5" fill="white" stroke-width="2"/>'
    for name in dict.fromkeys(row.writes):
        yield f'<circle cx="{x[name]}" cy="{y}" r="{3 if name in row.reads else 5}"/>'
    yield f'<text x="{right}" y="{y + 3.5}" fill="black" stroke="none">{xml_text(row.text)}</text>'
    yield "</g>"


def _rows(target: TargetOp, unit: str) -> Iterator[_Row]:
    """Yield each engine of a unit with what that computes on the way, and then its own intrinsics."""
    intrinsics = target.intrinsics().values()
    for name, engine in target.dmas().items():
        if engine.unit_name == unit:
            facts = ", ".join(_engine_facts(target, engine))
            about = f"{engine.title}: from {', '.join(engine.sources)} to {', '.join(engine.destinations)}, {facts}"
            yield _Row(name, engine.sources, engine.destinations, facts, about, _ENGINE)
            yield from (_intrinsic(each) for each in intrinsics if each.dma_name == name)
    yield from (_intrinsic(each) for each in intrinsics if each.unit_name == unit)


def _engine_facts(target: TargetOp, engine: DmaOp) -> Iterator[str]:
    if engine.own_rate is not None:
        yield f"{rate_text(Fraction(*engine.own_rate))} B/cycle"
    if engine.bus_name is not None:
        rate = Fraction(*target.buses()[engine.bus_name].bytes_per_cycle)
        yield f"{rate_text(rate)} B/cycle of bus {engine.bus_name}"
    yield f"latency {engine.latency_cycles}"
    if (converts := engine.converts) is not None:
        yield f"{converts[0]} to {converts[1]}"


def _intrinsic(part: IntrinsicOp) -> _Row:
    specs = [spec for spec in part.operand_specs() if spec.scope]
    reads = tuple(spec.scope for spec in specs if spec.role != "out")
    writes = tuple(spec.scope for spec in specs if spec.role in ("out", "inout"))
    macs, interval = part.macs_per_issue(), part.initiation_interval
    rate = f", {rate_text(Fraction(macs, interval))} MAC/cycle" if macs and interval else ""
    about = ", ".join(each for each in (f"{part.title}: {extents_text(part)}", operands_text(part)) if each)
    return _Row(part.sym_name.data, reads, writes, f"{behaviour_text(part)}{rate}", about, _COMPUTE)


def rate_text(rate: Fraction) -> str:
    """A rate as a whole number, or with two digits behind the point, and below 1 with three significant ones."""
    return str(rate) if rate.denominator == 1 else format(float(rate), "#.3g" if rate < 1 else ".2f")
