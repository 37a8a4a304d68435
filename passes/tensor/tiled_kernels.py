# SPDX-License-Identifier: Apache-2.0
"""
Kernels that are written as tiles, with loops of their own (an attention), on a machine: every op becomes an intrinsic.

A body of several operations is split, a reduction that no intrinsic accumulates is done by halves, numbers that no
intrinsic fills with are added to zero, and so is what is copied on chip; what is copied from off chip is a transfer.
Where an intrinsic updates its output, an op starts from an operand that is not read any more, or from a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith, func, scf, tensor
from xdsl.dialects.builtin import AnyFloat, FloatAttr, StringAttr, TensorType, UnitAttr
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.machine import DRAM, TargetOp
from penstock.dialects.mem import EXPLICIT, SCOPE
from penstock.dialects.upstream.tensor import EmptyOp
from penstock.passes.analysis.access import access_of, in_place_variants
from penstock.passes.analysis.intrinsics import candidates
from penstock.passes.analysis.memory.stated_scopes import is_explicit, is_explicit_copy, stated, stated_scope
from penstock.passes.generics import accumulate_in_place, first_of, structured
from penstock.passes.scalar_body import Body
from penstock.passes.shapes import Dims, loops
from penstock.passes.tensor.bufferization.assignment import origin_of, window_of
from penstock.passes.tensor.by_halves import by_halves
from penstock.passes.tensor.partition import Coverage, choose, is_fill, remark_on
from penstock.passes.tensor.split_bodies import split_bodies
from penstock.passes.tensor.tile_scopes import generics_of, is_off_chip, misplaced, ops_of

_OPS = (
    arith.AddiOp,
    arith.ConstantOp,
    arith.MinSIOp,
    arith.MuliOp,
    func.FuncOp,
    func.ReturnOp,
    scf.ForOp,
    scf.YieldOp,
    tensor.EmptyOp,
    tensor.ExtractSliceOp,
    tensor.InsertSliceOp,
    # A slice of a pad is a copy of what it has of the source.
    tensor.PadOp,
    tensor.YieldOp,
    GenericOp,
)
"""What such a kernel consists of, besides the bodies of its generics."""


def cover_tiled(kernel: func.FuncOp, target: TargetOp) -> func.FuncOp | str:
    """
    A copy of `kernel`, whose loops are there already, of which every generic is an intrinsic of the machine; or the
    reason why there is none.
    """
    if not all(isinstance(op, _OPS) for op in ops_of(kernel)):
        # Loops of indices in memory, which no machine follows.
        return "it computes nothing, and only moves elements"
    trial = kernel.clone()
    for loop in [op for op in ops_of(trial) if isinstance(op, scf.ForOp)]:
        _carry_by_copies(loop)
    for copy in [op for op in ops_of(trial) if isinstance(op, GenericOp) and is_explicit_copy(op)]:
        if not is_off_chip(copy.inputs[0]) and not is_off_chip(copy.outputs[0]):
            for op in _on_chip(copy, target):
                if (reason := _settle(op, target)) is not None:
                    return remark_on(op, reason, placed=True)
    for generic in [op for op in generics_of(trial) if not is_explicit(op)]:
        for op in _as_intrinsics(generic, target):
            if (reason := _settle(op, target)) is not None:
                return remark_on(op, reason, placed=True)
    for generic in generics_of(trial):
        _reuse_what_dies(generic, target)
    if (reason := misplaced(trial, target)) is not None:
        return reason
    for op in list(ops_of(trial)):
        if is_explicit_copy(op) or isinstance(op, tensor.InsertSliceOp):
            _lead_through_a_tile(op)
    return trial


# copies


def _carry_by_copies(loop: scf.ForOp) -> None:
    """Copy what an iteration hands on to where the next one reads it, if it is not made in that place."""
    block, terminator = loop.body.block, loop.body.block.last_op
    assert terminator is not None
    for number, (carried, value) in enumerate(zip(block.args[1:], terminator.operands, strict=True)):
        if not isa(value.type, TensorType) or origin_of(value) is origin_of(carried):
            continue
        place = loops(value.type.get_num_dims())
        copy = structured([(value, place)], (carried, place), first_of, loop.location)
        copy.attributes[EXPLICIT] = UnitAttr()
        copy.results[0].name_hint = carried.name_hint
        Rewriter.insert_op(copy, InsertPoint.before(terminator))
        terminator.operands[number] = copy.results[0]


def _on_chip(copy: GenericOp, target: TargetOp) -> list[GenericOp]:
    """What takes the place of a copy from one tile on chip to another: no engine need lead there, so a unit copies."""
    parts = None if isinstance(choose(copy, target), Coverage) else _from_zero(copy)
    for part in parts or ():
        part.attributes[EXPLICIT] = UnitAttr()
    return parts or []


def _lead_through_a_tile(op: Operation) -> None:
    """Let what is copied from off chip to off chip go by way of a tile, as engines do."""
    source, dest = op.operands[0], op.operands[1]
    if origin_of(source) is not origin_of(dest) and is_off_chip(source) and is_off_chip(dest):
        empty, first = _copied(source, op)
        Rewriter.insert_op([empty, first], InsertPoint.before(op))
        first.attributes[EXPLICIT] = UnitAttr()
        op.operands[0] = first.results[0]


def _copied(value: SSAValue, like: Operation) -> tuple[EmptyOp, GenericOp]:
    """A copy of a tensor to a new one, for an op; not inserted yet."""
    assert isa(value.type, TensorType)
    empty, place = EmptyOp([], value.type), loops(value.type.get_num_dims())
    empty.tensor.name_hint = like.results[0].name_hint
    empty.location = like.location
    return empty, structured([(value, place)], (empty.tensor, place), first_of, like.location)


# one op as several


def _as_intrinsics(generic: GenericOp, target: TargetOp) -> list[GenericOp]:
    """What takes the place of `generic`, in order; each of it may become an intrinsic, as far as its body goes."""
    if isinstance(choose(generic, target), Coverage):
        return [generic]
    if _copies_a_tile(generic):
        (value,) = generic.inputs
        if is_off_chip(value) or (_is_own_window(value) and is_off_chip(generic.outputs[0])):
            generic.attributes[EXPLICIT] = UnitAttr()
            return []
        if _is_own_window(value):
            assert isinstance(value.owner, Operation)
            value.owner.attributes.update(stated(origin_of(generic.outputs[0])))
            Rewriter.replace_op(generic, [], [value])
            return []
    if (halves := by_halves(generic)) is not None:
        return halves
    if (parts := _from_zero(generic)) is not None:
        return parts
    own = generic.outputs[0]
    pieces = split_bodies([generic], target, apart=True)
    if pieces == [generic]:
        return pieces
    if own not in pieces[0].inputs:
        _write_to(pieces[-1], own)
        return pieces
    for piece in pieces:
        # What was to be overwritten is overwritten by each in turn.
        if own in piece.inputs and piece.results[0].type == own.type:
            _write_to(piece, own)
            own = piece.results[0]
    return pieces


def _write_to(generic: GenericOp, dest: SSAValue) -> None:
    """Let the result of `generic` take the place of `dest`."""
    empty = generic.outputs[0].owner
    if dest.type == generic.results[0].type:
        generic.operands[len(generic.inputs)] = dest
        if isinstance(empty, tensor.EmptyOp) and not empty.tensor.uses:
            Rewriter.erase_op(empty)


def _from_zero(generic: GenericOp) -> list[GenericOp] | None:
    """A fill with a number that is not 0, or a copy, as zeros to which the number or the source is added."""
    yielded, type, dest = generic.body.block.last_op, generic.results[0].type, generic.outputs[0]
    assert yielded is not None
    assert isa(type, TensorType)
    element = type.element_type
    if not isinstance(element, AnyFloat):
        return None
    written = list(generic.indexing_maps)[-1].data.results
    value = yielded.operands[0]
    is_copy = len(generic.inputs) == 1 and value is generic.body.block.args[0]
    number = _number(value) if is_fill(generic) else None
    if not is_copy and not number:
        return None

    def plus(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        return body.add(elements[0], elements[1] if number is None else body.constant(number, element))

    zero = structured([], (dest, written), lambda body, _: body.constant(0, element), generic.location)
    inputs: list[tuple[SSAValue, Dims]] = [(zero.results[0], written)]
    if is_copy:
        inputs.append((generic.inputs[0], next(iter(generic.indexing_maps)).data.results))
    total = structured(inputs, (zero.results[0], written), plus, generic.location)
    Rewriter.replace_op(generic, [zero, total], [total.results[0]])
    return [zero, total]


def _number(value: SSAValue) -> float | None:
    """The float that a constant is."""
    attr = value.owner.value if isinstance(value.owner, arith.ConstantOp) else None
    return attr.value.data if isinstance(attr, FloatAttr) else None


# the intrinsics


def _settle(generic: GenericOp, target: TargetOp) -> str | None:
    """Bring `generic` into the form of an intrinsic; the reason if there is none."""
    choice = choose(generic, target)
    if isinstance(choice, str):
        return choice
    access = access_of(generic)
    assert access is not None
    matches, _ = candidates(access, target)
    if matches:
        return None
    # Only intrinsics that update their output: they overwrite what is written here anyway, or what is read last here.
    numbers = [number for number, variant in in_place_variants(access) if candidates(variant, target)[0]]
    numbers.sort(key=lambda number: generic.inputs[number] is not generic.outputs[0])
    for number in numbers:
        value = generic.inputs[number]
        if value is generic.outputs[0] or (_is_read_last(value, generic) and not is_off_chip(value)):
            _start_from(generic, number)
            return None
    # What is read again, or comes from off chip, is copied to where it is overwritten.
    for number in sorted(numbers, key=lambda number: not is_off_chip(generic.inputs[number])):
        for piece in _copy_of_operand(generic, number, target):
            if (reason := _settle(piece, target)) is not None:
                return reason
        _start_from(generic, number)
        return None
    return f"@{choice.match.intrinsic.sym_name.data} overwrites an operand that is read again"


def _start_from(generic: GenericOp, number: int) -> None:
    """Let an op overwrite an operand, and have its result where that is said to live."""
    output, value = generic.outputs[0], origin_of(generic.inputs[number])
    scope = None if value is origin_of(output) else stated_scope(origin_of(output))
    made = accumulate_in_place(generic, number)
    if scope == DRAM:
        place = loops(len(list(made.indexing_maps)[-1].data.results))
        copy = structured([(made.results[0], place)], (output, place), first_of, made.location)
        copy.attributes[EXPLICIT] = UnitAttr()
        Rewriter.insert_op(copy, InsertPoint.after(made))
        made.results[0].replace_uses_with_if(copy.results[0], lambda use: use.operation is not copy)
    elif scope is not None and isinstance(value.owner, tensor.EmptyOp):
        value.owner.attributes.setdefault(SCOPE, StringAttr(scope))


def _copy_of_operand(generic: GenericOp, number: int, target: TargetOp) -> list[GenericOp]:
    """Give an op a copy of an operand of its own: a transfer of what is off chip, or else the ops that are returned."""
    value = generic.inputs[number]
    empty, copy = _copied(value, generic)
    Rewriter.insert_op([empty, copy], InsertPoint.before(generic))
    generic.operands[number] = copy.results[0]
    if is_off_chip(value):
        copy.attributes[EXPLICIT] = UnitAttr()
        return []
    return [copy] if isinstance(choose(copy, target), Coverage) else _from_zero(copy) or [copy]


def _copies_a_tile(generic: GenericOp) -> bool:
    """Whether a generic copies its operand, as it lies, to a tile of its own, which is not returned."""
    yielded = generic.body.block.last_op
    maps = {attribute.data for attribute in generic.indexing_maps}
    return (
        len(generic.inputs) == 1
        and yielded is not None
        and yielded.operands[0] is generic.body.block.args[0]
        and generic.inputs[0].type == generic.outputs[0].type
        and maps == {AffineMap.identity(generic.get_num_loops())}
        and isinstance(generic.outputs[0].owner, tensor.EmptyOp)
        and not any(isinstance(use.operation, func.ReturnOp) for use in generic.results[0].uses)
    )


def _is_own_window(value: SSAValue) -> bool:
    """Whether a value is a box of a pad, which is a tile of its own, and used once."""
    return window_of(value) is not None and len(list(value.uses)) == 1


def _reuse_what_dies(generic: GenericOp, target: TargetOp) -> None:
    """Let the result of `generic` take the place of an operand that it reads last, element for element."""
    number, maps = len(generic.inputs), [attr.data for attr in generic.indexing_maps]
    output = generic.outputs[0]
    is_fresh = isinstance(output.owner, tensor.EmptyOp) and stated_scope(output) is None
    if generic.body.block.args[-1].uses or not is_fresh:
        return
    access = access_of(generic)
    assert access is not None
    match = candidates(access, target)[0][0]
    for each, value in enumerate(generic.inputs):
        same = value.type == generic.results[0].type and maps[each] == maps[number]
        alike = same and match.scope_of_operand(each) == match.scope_of_operand(number)
        if alike and _is_read_last(value, generic) and not is_off_chip(value):
            generic.operands[number] = value
            return


def _is_read_last(value: SSAValue, op: Operation) -> bool:
    """Whether `value` is computed in the block of `op`, and nothing reads it after `op`."""
    owner = value.owner
    is_computed = isinstance(owner, GenericOp | scf.ForOp) or _is_own_window(value)
    if not is_computed or not isinstance(owner, Operation) or owner.parent is not op.parent:
        return False
    users = {use.operation for use in value.uses}
    return all(user is op or (user.parent is op.parent and user.is_before_in_block(op)) for user in users)
