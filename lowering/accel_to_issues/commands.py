# SPDX-License-Identifier: Apache-2.0
"""Commands of the program as loops around commands of the machine."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.builder import Builder
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import FloatAttr, IntegerAttr
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.utils.hints import isa

from penstock.dialects.accel import DmaOp, ExecOp
from penstock.dialects.accel_issue import IssueOp
from penstock.dialects.diagnostics import UNSUPPORTED, UserError, location_of
from penstock.dialects.machine import DRAM, IMMEDIATE, CommandForm, IntrinsicOp, SpelledPart, TargetOp, Template
from penstock.dialects.machine.spelling import ANY, EARLIER, NO_ID, SIZE
from penstock.dialects.mem import element_bytes, memref_of, scope_of, static_strides
from penstock.lowering.accel_to_issues.domain import Assignment, Dim, Operand, assign, merged, step_of
from penstock.lowering.accel_to_issues.places import Move, Place, product
from penstock.passes.analysis.access import linear_form
from penstock.passes.analysis.index import AffineIndex
from penstock.passes.analysis.intrinsics import Match
from penstock.passes.index_builder import Index, add, for_loop, materialize, scale

Places = Mapping[SSAValue, Place]


def issue_transfer(builder: Builder, op: DmaOp, target: TargetOp, places: Places) -> SSAValue | None:
    """
    The commands that do an `accel.dma`, and the number of the last one if they run on.

    Raises UserError, located, for what its engine does not spell.
    """
    part = target.dmas()[op.engine.data]
    form = _form(part, op)
    side = op.window_side
    at = op.mixed_source_offsets() if side == "source" else op.mixed_dest_offsets()
    operands: list[Operand] = []
    moves: list[list[Move]] = []
    for own, value, spec in zip(("source", "dest"), (op.source, op.dest), form.operands, strict=True):
        offsets: Sequence[Index] = at if own == side else [0] * len(op.box)
        operands.append(_operand(builder, op, spec, value, places, offsets))
        moves.append(_moves(value, places))
    bounds = (op.source_type if side == "source" else op.dest_type).get_shape()
    dims: list[Dim] = []
    for number, size in enumerate(op.box):
        low, high = (0, size) if side is None else _inside(builder, at[number], size, bounds[number])
        dims.append(Dim(size, low, high, False, tuple(each[number] for each in moves)))
    if op.padding is not None and not all(dim.is_whole for dim in dims):
        message = f"{part.title} does not spell the padding of a transfer"
        raise UserError(message, loc=location_of(op), notes=["give it pad_max = 0"], status=UNSUPPORTED)
    return _issue(builder, op, part, form, target, operands, dims)


def issue_exec(
    builder: Builder, op: ExecOp, target: TargetOp, places: Places, *, begins: bool = False
) -> SSAValue | None:
    """
    The commands that do an `accel.exec`, and the number of the last one if they run on; `begins` says that they
    overwrite the sums that they would add to zeros.

    Raises UserError, located, for what the intrinsic does not spell.
    """
    part = target.intrinsics()[op.intrinsic_name]
    maps = [attr.data for attr in op.maps]
    return _issue_intrinsic(
        builder, op, part, op.buffers, maps, op.extents.get_values(), op.immediate_values, target, places, begins=begins
    )


def issue_call(builder: Builder, op: GenericOp, match: Match, target: TargetOp, *, begins: bool = False) -> None:
    """The calls of a library that do a structured op; raises UserError, located, for strides that it does not take."""
    maps = [attr.data for attr in op.indexing_maps]
    buffers, own = [op.operands[number] for number in match.buffers], [maps[number] for number in match.buffers]
    extents = op.get_static_loop_ranges()
    _issue_intrinsic(builder, op, match.intrinsic, buffers, own, extents, match.immediates, target, {}, begins=begins)


def _issue_intrinsic(
    builder: Builder,
    op: ExecOp | GenericOp,
    part: IntrinsicOp,
    buffers: Sequence[SSAValue],
    maps: Sequence[AffineMap],
    extents: Sequence[int],
    immediates: Sequence[Attribute],
    target: TargetOp,
    places: Places,
    *,
    begins: bool,
) -> SSAValue | None:
    form = _form(part, op)
    operands: list[Operand] = []
    moves: list[list[Move]] = []
    for value, index_map, spec in zip(buffers, maps, form.operands, strict=True):
        constants, rows = linear_form(index_map)
        operands.append(_operand(builder, op, spec, value, places, constants))
        steps = _moves(value, places)
        moves.append(
            [
                Move(
                    sum(row[dim] * step.distance for row, step in zip(rows, steps, strict=True)),
                    sum(row[dim] * step.elements for row, step in zip(rows, steps, strict=True)),
                )
                for dim in range(len(extents))
            ]
        )
    dims = [
        Dim(extent, 0, extent, moves[-1][dim] == Move(), tuple(each[dim] for each in moves))
        for dim, extent in enumerate(extents)
    ]
    return _issue(builder, op, part, form, target, operands, dims, immediates, begins=begins)


def _form(part: SpelledPart, op: Operation) -> CommandForm:
    form = CommandForm.of(part) if part.emit is not None else None
    if form is None:
        notes = ["give it an emit in the machine file"]
        raise UserError(f"{part.title} is not spelled", loc=location_of(op), notes=notes, status=UNSUPPORTED)
    return form


def _operand(
    builder: Builder, op: Operation, form: object, value: SSAValue, places: Places, offsets: Sequence[Index]
) -> Operand:
    type = memref_of(value)
    size = element_bytes(type)
    if scope_of(type) is not None:
        place = places[value].moved(builder, list(zip(offsets, places[value].steps, strict=True)), op)
        return Operand(form, value, size, place)  # pyright: ignore[reportArgumentType]
    start: Index = 0
    for offset, stride in zip(offsets, static_strides(type), strict=True):
        start = add(builder, start, scale(builder, offset, stride))
    return Operand(form, value, size, None, start)  # pyright: ignore[reportArgumentType]


def _moves(value: SSAValue, places: Places) -> list[Move]:
    """How far a step of each dim of a memref moves."""
    type = memref_of(value)
    if scope_of(type) is None:
        return [Move(stride * element_bytes(type)) for stride in static_strides(type)]
    return list(places[value].steps)


def _inside(builder: Builder, offset: Index, size: int, bound: int) -> tuple[Index, Index]:
    """The part of `size` indices at `offset` that lies in `bound`."""
    reach = AffineIndex.of(offset).bounds
    if isinstance(offset, int):
        low, high = max(0, -offset), min(size, bound - offset)
        return (low, high) if low < high else (0, 0)
    low: Index = 0
    high: Index = size
    if reach is None or reach[0] < 0:
        negative = materialize(builder, subtract(builder, 0, offset))
        low = builder.insert(arith.MaxSIOp(negative, materialize(builder, 0))).result
    if reach is None or reach[1] + size > bound:
        left = materialize(builder, subtract(builder, bound, offset))
        high = builder.insert(arith.MinSIOp(left, materialize(builder, size))).result
    return low, high


def _issue(
    builder: Builder,
    op: DmaOp | ExecOp | GenericOp,
    part: SpelledPart,
    form: CommandForm,
    target: TargetOp,
    operands: Sequence[Operand],
    dims: Sequence[Dim],
    immediates: Sequence[Attribute] = (),
    *,
    begins: bool = False,
) -> SSAValue | None:
    """Loops over blocks, and in them the command of a block; the number of the last one if they run on."""
    carried = [materialize(builder, NO_ID)] if part.runs_on else []
    if any(dim.is_static and dim.low == dim.high for dim in dims):
        return next(iter(carried), None)
    dims = merged(dims, sums=not any(isinstance(each, str) for each in part.required.values()))
    assigned = assign(part, form, operands, dims, target)
    for name, shape in form.dims.items():
        if shape is not None and shape[0] > 1 and name not in assigned:
            message = f'no dim of {[each.extent for each in dims]} can play "{name}"'
            raise UserError(f"{part.title}: {message}", loc=location_of(op), status=UNSUPPORTED)
    most = {each.dim: each.most for each in assigned.values()}
    indices: list[Index] = []
    sizes: list[Index] = []
    loops: list[tuple[scf.ForOp, Builder]] = []
    for number, dim in enumerate(dims):
        step = most.get(number, 1)
        if number in most and dim.extent <= step and dim.is_never_empty:
            indices.append(dim.low)
            sizes.append(subtract(builder, dim.high, dim.low))
            continue
        loop, builder = for_loop(builder, (dim.low, dim.high, step), carried, like=op)
        loops.append((loop, builder))
        index, *carried = loop.body.block.args
        indices.append(index)
        if step == 1 or (dim.is_whole and dim.extent % step == 0):
            sizes.append(step)
        else:
            left = materialize(builder, subtract(builder, dim.high, index))
            sizes.append(builder.insert(arith.MinSIOp(left, materialize(builder, step))).result)
    block = _Block(builder, op, part, operands, dims, assigned, indices, sizes, begins)
    issued = block.issue(immediates)
    found = [issued.id] if issued.id is not None else []
    for loop, inner in reversed(loops):
        inner.insert(scf.YieldOp(*found))
        found = list(loop.results)
    return next(iter(found), None)


def subtract(builder: Builder, left: Index, right: Index) -> Index:
    """The difference of two indices."""
    if right == 0 or (isinstance(left, int) and isinstance(right, int)):
        return left if right == 0 else left - right  # pyright: ignore[reportOperatorIssue, reportUnknownVariableType]
    return builder.insert(arith.SubiOp(materialize(builder, left), materialize(builder, right))).result


@dataclass(frozen=True)
class _Block:
    """One command: a block of the domain."""

    builder: Builder
    op: DmaOp | ExecOp | GenericOp
    part: SpelledPart
    operands: Sequence[Operand]
    dims: Sequence[Dim]
    assigned: Mapping[str, Assignment]
    indices: Sequence[Index]
    sizes: Sequence[Index]
    begins: bool

    def issue(self, immediates: Sequence[Attribute]) -> IssueOp:
        template = self.part.template
        assert template is not None
        found: dict[str, Index] = {}
        bits = {field.name: field.bits for field in template.fields if field.bits is not None}
        states = self.part.needed
        pointers: dict[str, SSAValue] = {}
        scopes: dict[str, str] = {}
        for operand in self.operands:
            name = operand.form.name
            used = {each for each in template.names if each.partition(".")[0] == name}
            if name in used:
                scopes[name] = operand.scope
                if operand.place is None:
                    pointers[name] = operand.memref
                    used |= {f"{name}.offset"}
                else:
                    address = operand.place.scope.address
                    spelled = Template.of(address.data).names if address is not None else {"offset"}
                    used |= {f"{name}.{field}" for field in spelled}
            place, begin = self._begin(operand)
            for field in sorted(used - {name}):
                found[field] = self._of_operand(operand, field, place, begin)
        for name in self._dim_fields(template.names):
            found[name] = self.sizes[self.assigned[name].dim] if name in self.assigned else 1
        if EARLIER in template.names:
            found[EARLIER] = self._earlier() if self.begins else 1
        if IMMEDIATE in template.names:
            found[IMMEDIATE] = _immediate(immediates[0])
        for state, fields in states.items():
            for field, value in fields.items():
                if (number := self._setting(value, immediates)) is not None:
                    found[f"{state}.{field}"] = number
        for name, index in found.items():
            self._check_bits(name, index, bits.get(name))
        values = {name: materialize(self.builder, index) for name, index in found.items()}
        issue = IssueOp(self.part.sym_name.data, pointers | values, scopes, self._says(), runs_on=self.part.runs_on)
        issue.location = self.op.location
        return self.builder.insert(issue)

    def _earlier(self) -> Index:
        """0 in the first block of the dims that are summed over, as the loops around it go up from 0."""
        found: Index = 0
        for dim, index in zip(self.dims, self.indices, strict=True):
            found = add(self.builder, found, index) if dim.is_reduction else found
        return found

    def _dim_fields(self, names: frozenset[str]) -> list[str]:
        form = CommandForm.of(self.part)
        assert form is not None
        return [name for name in form.dims if name in names]

    def _begin(self, operand: Operand) -> tuple[Place | None, Index]:
        """Where the block begins in its scope, or the elements off chip to there."""
        number = self.operands.index(operand)
        moves = [(index, dim.moves[number]) for dim, index in zip(self.dims, self.indices, strict=True)]
        if operand.place is not None:
            return operand.place.moved(self.builder, moves, self.op), 0
        start = operand.start
        for index, move in moves:
            start = add(self.builder, start, product(self.builder, index, move.distance // operand.element))
        return None, start

    def _of_operand(self, operand: Operand, field: str, begin: Place | None, start: Index) -> Index:
        _, place, *dim = field.split(".")
        if place == SIZE:
            return operand.element
        if place == "offset":
            return start if begin is None else begin.offset(self.builder)
        if place in ("row", "column"):
            assert begin is not None
            return begin.column if place == "column" else begin.row(self.builder, self.op)
        found, least = self._step(operand, place, dim[0]), self.part.required.get(field)
        if found is not None or not isinstance(least, str):
            return 0 if found is None else found
        return self.sizes[self.assigned[least].dim] if least in self.assigned else 1

    def _step(self, operand: Operand, measure: str, dim: str) -> int | None:
        """A step of the operand along a dim of the command; None where the command covers one index of it."""
        if dim not in self.assigned or self.sizes[self.assigned[dim].dim] == 1:
            return None
        move = self.dims[self.assigned[dim].dim].moves[self.operands.index(operand)]
        found = step_of(operand, move, measure)
        if found is None:
            message = f"a step of {operand.form.name} along {dim} is no whole number of {measure}"
            raise UserError(message, loc=location_of(self.op))
        return found

    def _setting(self, value: int | str, immediates: Sequence[Attribute]) -> int | None:
        """What the field of a state must be; None where any number does."""
        if isinstance(value, int):
            return value
        if value == ANY:
            return None
        if value == IMMEDIATE:
            return _immediate(immediates[0])
        name, place, *dim = value.split(".")
        operand = next(each for each in self.operands if each.form.name == name)
        if place == SIZE:
            return operand.element
        if place == "column":
            # Where all of a row lies in one granule there is no next one.
            units = [each for each, is_unit in operand.form.dims.items() if is_unit and each in self.assigned]
            assert operand.place is not None
            per = operand.place.per_granule
            if not any(self.assigned[each].most > per for each in units):
                return None
            return operand.place.column
        return self._step(operand, place, dim[0])

    def _check_bits(self, name: str, index: Index, bits: int | None) -> None:
        reach = (index, index) if isinstance(index, int) else AffineIndex.of(index).bounds
        if bits is None or reach is None:
            return
        # A block of a part that may be empty is issued in a loop only, in which it is not.
        if reach[1] >= 1 << bits:
            raise UserError(
                f"{self.part.title}: {name} has {bits} bits, too few for {reach[1]:,}",
                loc=location_of(self.op),
                notes=["a block in the machine file says the most that a command covers of a dim"],
            )

    def _says(self) -> str:
        """The command with the names of its operands and where they are, the written one last."""
        names = [f"{each.memref.name_hint or each.form.name} in {each.scope}" for each in self.operands]
        names = [name.replace(f" in {DRAM}", "") for name in names]
        read = ", ".join(names[:-1])
        return f"{self.part.sym_name.data} {read} to {names[-1]}" if read else f"{self.part.sym_name.data} {names[-1]}"


def _immediate(value: Attribute) -> int:
    """An immediate as a number: of a float its bits."""
    if isinstance(value, IntegerAttr):
        return value.value.data
    assert isa(value, FloatAttr)
    packed = struct.pack({2: "<e", 4: "<f", 8: "<d"}[value.type.compile_time_size], value.value.data)
    return int.from_bytes(packed, "little")
