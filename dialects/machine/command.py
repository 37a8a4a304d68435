# SPDX-License-Identifier: Apache-2.0
"""What a command of a part is over, operands and dims, and whether its spelling says all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import CompileTimeFixedBitwidthType
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.ir import Attribute
from xdsl.ir.affine import AffineDimExpr

from penstock.dialects.diagnostics import nearest_or_all
from penstock.dialects.machine.code import StateOp
from penstock.dialects.machine.intrinsic import IntrinsicOp
from penstock.dialects.machine.part import DENSE, DRAM, IMMEDIATE, PartFault
from penstock.dialects.machine.parts import DmaOp, ScopeOp
from penstock.dialects.machine.spelling import (
    ANY,
    EARLIER,
    ID,
    PLACES,
    SIDES,
    SIZE,
    STEPS,
    TRANSFER_DIMS,
    BlockLimit,
    SpelledPart,
)


@dataclass(frozen=True)
class CommandOperand:
    """An operand of a command."""

    name: str
    scopes: tuple[str, ...]
    """Where it may lie, "dram" off chip."""
    element: Attribute | None
    """The type of its elements; None for any."""
    dims: Mapping[str, bool]
    """The dims that move it: True where by one element, False where by a row."""
    is_dense: bool = False
    """Whether its rows adjoin."""

    def element_bytes(self, scope: ScopeOp) -> int:
        """The bytes of its elements, in a scope that it may lie in."""
        types = [self.element] if self.element is not None else [*scope.dtypes]
        sizes = [each.compile_time_size for each in types if isinstance(each, CompileTimeFixedBitwidthType)]
        return min(sizes, default=1)


@dataclass(frozen=True)
class CommandForm:
    """What a command is over."""

    operands: tuple[CommandOperand, ...]
    """In the order of its memrefs."""
    dims: Mapping[str, tuple[int, int] | None]
    """The least and the most of each that its behaviour permits; None where it says nothing."""
    reductions: frozenset[str]
    """The dims that it sums over."""
    has_immediate: bool
    adds: bool = False
    """Whether it adds sums to what is there."""
    is_call: bool = False
    """Whether it is a call of a library, of as many applications as its `block` permits."""

    @staticmethod
    def of(part: SpelledPart) -> CommandForm | None:
        """The form of the commands of an engine or an intrinsic; None where an index is no single dim."""
        if isinstance(part, DmaOp):
            rows, columns = TRANSFER_DIMS
            moves: dict[str, bool] = {rows: False, columns: True}
            operands = [
                CommandOperand(name, scopes, None, moves)
                for name, scopes in zip(SIDES, (part.sources, part.destinations), strict=True)
            ]
            return CommandForm(tuple(operands), dict.fromkeys(moves), frozenset(), False)
        assert isinstance(part, IntrinsicOp)
        found: list[CommandOperand] = []
        names, specs = part.dims, part.operand_specs()
        for spec, attr in zip(specs, part.generic.indexing_maps, strict=True):
            if spec.role == IMMEDIATE:
                continue
            results = attr.data.results
            moved: dict[str, bool] = {}
            for place, expr in enumerate(results):
                if not isinstance(expr, AffineDimExpr):
                    return None
                moved[names[expr.position]] = place == len(results) - 1
            found.append(CommandOperand(spec.name, (spec.scope,), spec.dtype, moved, spec.strides == DENSE))
        kinds = zip(names, part.generic.iterator_types, strict=True)
        reductions = frozenset(name for name, kind in kinds if kind.data == IteratorType.REDUCTION)
        is_immediate = any(spec.role == IMMEDIATE for spec in specs)
        adds = bool(reductions) and _adds(part)
        dims = dict(zip(names, part.shape, strict=True))
        return CommandForm(tuple(found), dims, reductions, is_immediate, adds, part.is_call)

    def known_fields(self, states: Mapping[str, object]) -> list[str]:
        """The fields that a template of such a command may have."""
        found = [
            *self.dims,
            *([IMMEDIATE] if self.has_immediate else []),
            *([EARLIER] if self.adds else []),
            ID,
            *states,
        ]
        for operand in self.operands:
            places = PLACES if set(operand.scopes) != {DRAM} else ()
            steps = [each for each in STEPS if places or each != "rows"]
            found += [operand.name, *(f"{operand.name}.{each}" for each in (*places, SIZE))]
            found += [f"{operand.name}.{step}.{dim}" for step in steps for dim in operand.dims]
        return found

    def is_static(self, name: str) -> bool:
        """Whether a field is the same for all commands that one op of the program becomes."""
        operand, _, rest = name.partition(".")
        return name == IMMEDIATE or (operand not in self.dims and rest not in ("", "offset", "row"))

    def most(self, part: SpelledPart, dim: str, scopes: Mapping[str, ScopeOp]) -> int | None:
        """The most of a dim that a command covers wherever its operands lie; None where nothing is said."""
        shape = self.dims[dim]
        limit = part.block_limits.get(dim)
        sizes = [] if shape is None else [shape[1]]
        if limit is not None:
            limits = self.limit_in_elements(limit, dim, scopes, None)
            # A call is of as many applications as it says.
            sizes = limits if self.is_call else [*sizes, *limits]
        return min(sizes, default=None)

    def limit_in_elements(
        self, limit: BlockLimit, dim: str, scopes: Mapping[str, ScopeOp], found: Mapping[str, str] | None
    ) -> list[int]:
        """A limit in elements, of each operand that it measures; `found` says where operands are, if it is known."""
        if limit.unit is None:
            return [limit.count]
        sizes: list[int] = []
        for operand in self.operands:
            for scope in operand.scopes if found is None else (found[operand.name],):
                if operand.dims.get(dim) and scope in scopes:
                    of = scopes[scope]
                    sizes.append(limit.elements(operand.element_bytes(of), of.granule_bytes))
        return sizes


def _adds(intrinsic: IntrinsicOp) -> bool:
    """Whether all that it does with what it overwrites is to add to it."""
    block = intrinsic.generic.body.block
    last, before = block.last_op, block.args[-1]
    added = None if last is None or len(last.operands) != 1 else last.operands[0].owner
    return isinstance(added, arith.AddiOp | arith.AddfOp) and before in added.operands and before.has_one_use()


def spelling_faults(
    part: SpelledPart, scopes: Mapping[str, ScopeOp], states: Mapping[str, StateOp]
) -> Iterator[PartFault]:
    """What the spelling of a part lacks, or has too much; its names must be those of scopes of the machine."""
    template, form = part.template, CommandForm.of(part)
    if template is None:
        return
    if form is None:
        yield PartFault("emit", "an index of its behaviour is no single dim, which a template cannot spell")
        return
    if any(scope != DRAM and scope not in scopes for operand in form.operands for scope in operand.scopes):
        return
    needed = part.needed
    known = form.known_fields(needed)
    for field in template.fields:
        if field.name not in known:
            hint = "say in settings what the state must be" if field.name in states else None
            note = hint or nearest_or_all(field.name, known, "its fields")
            yield PartFault("emit", f'emit: unknown field "{field.name}"', (note,), (), field.column)
    yield from _setting_faults(form, needed, states)
    steps = [f"{each.name}.{step}.{dim}" for each in form.operands for step in STEPS for dim in each.dims]
    for name, least in part.required.items():
        place = next(n for n, each in enumerate(part.requires or ()) if each.data.startswith(f"{name} "))
        for each, known, what in ((name, steps, "its steps"), (least, form.dims, "its dims")):
            if isinstance(each, str) and each not in known:
                note = nearest_or_all(each, known, what)
                yield PartFault("requires", f'requires: unknown field "{each}"', (note,), (place,))
    for dim in part.block_limits:
        if dim not in form.dims:
            note = nearest_or_all(dim, form.dims, "its dims")
            yield PartFault("block", f'block: unknown dim "{dim}"', (note,), (dim,))
    yield from _omissions(part, form, scopes)
    yield from _widths(part, form, scopes)


def _setting_faults(
    form: CommandForm, needed: Mapping[str, Mapping[str, int | str]], states: Mapping[str, StateOp]
) -> Iterator[PartFault]:
    """States that nothing sets, fields that they have not, and those that are left open."""
    known = [name for name in form.known_fields({}) if form.is_static(name)]
    for name, fields in needed.items():
        if name not in states:
            note = nearest_or_all(name, states, "its states")
            yield PartFault("settings", f'no command sets the state "{name}"', (note,), (name,))
            continue
        wanted = states[name].fields
        for field, value in fields.items():
            if field not in wanted:
                note = nearest_or_all(field, wanted, "its fields")
                yield PartFault("settings", f'state "{name}" has no field "{field}"', (note,), (name, field))
            elif isinstance(value, str) and value not in (ANY, *known):
                note = nearest_or_all(value, known, "what is known of all commands")
                message = f'"{value}" is not known of all commands that an op becomes'
                yield PartFault("settings", message, (note,), (name, field))
        if missing := [field for field in wanted if field not in fields]:
            yield PartFault("settings", f'nothing says {", ".join(missing)} of the state "{name}"', (), (name,))


def _omissions(part: SpelledPart, form: CommandForm, scopes: Mapping[str, ScopeOp]) -> Iterator[PartFault]:
    """Operands, extents and strides that may vary, and that nothing in the spelling depends on."""
    used = part.fields_used
    for operand in form.operands:
        if not {operand.name, f"{operand.name}.offset", f"{operand.name}.row"} & used:
            yield PartFault("emit", f'emit does not say where "{operand.name}" is')
    for dim, shape in form.dims.items():
        most = form.most(part, dim, scopes)
        is_fixed = most == 1 or (shape is not None and shape[0] == shape[1])
        if dim not in used and not is_fixed:
            note = f"name {{{dim}}}, or fix it by block = {{ {dim} = 1 }}"
            yield PartFault("emit", f'emit does not say how many of "{dim}" a command covers', (note,))
        for operand in form.operands:
            is_unit = operand.dims.get(dim)
            if is_unit is None or most == 1:
                continue
            steps = {f"{operand.name}.{step}.{dim}" for step in STEPS}
            if not is_unit and not operand.is_dense and not steps & used:
                way = f'requires = ["{operand.name}.rows.{dim} = 1"]'
                note = f"name one of {', '.join(sorted(steps))}, or say what it is, by {way}"
                message = f'nothing depends on the stride of "{operand.name}" along "{dim}", which may vary'
                yield PartFault("emit", message, (note,))
            if is_unit and f"{operand.name}.column" not in used:
                for scope in operand.scopes:
                    if scope not in scopes or not scopes[scope].lies_by_columns:
                        continue
                    row = scopes[scope].granule_bytes // operand.element_bytes(scopes[scope])
                    here = form.most(part, dim, {scope: scopes[scope]})
                    if here is None or here > row:
                        note = f"name {operand.name}.column, or give {dim} a block of at most {row}"
                        message = f'a command takes more of "{operand.name}" than a granule of "{scope}"'
                        yield PartFault("emit", f"{message}, and nothing says where the next one is", (note,))


def _widths(part: SpelledPart, form: CommandForm, scopes: Mapping[str, ScopeOp]) -> Iterator[PartFault]:
    """Fields whose bits are too few for what the machine says of them."""
    assert part.template is not None
    for field in part.template.fields:
        if field.bits is None:
            continue
        operand, _, rest = field.name.partition(".")
        largest: int | None = None
        if field.name in form.dims:
            largest = form.most(part, field.name, scopes)
        elif rest in ("row", "offset"):
            places = [each.scopes for each in form.operands if each.name == operand]
            found = [scopes[scope] for each in places for scope in each if scope in scopes]
            sizes = [each.size_bytes // (each.granule_bytes if rest == "row" else 1) - 1 for each in found]
            largest = max(sizes, default=None)
        if largest is not None and largest.bit_length() > field.bits:
            message = f"emit: {field.name} has {field.bits} bits, too few for {largest:,}"
            yield PartFault("emit", message, (), (), field.column)
