# SPDX-License-Identifier: Apache-2.0
"""
Splitting a pointwise op whose body no intrinsic computes into ops that each are one: `min(max(x, 0), 6)` becomes a
maximum and a minimum, with a tensor between them that a tile holds on chip.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import TensorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.machine import TargetOp
from penstock.passes.analysis.access import places_each
from penstock.passes.analysis.kernels import WIDENING, has_reduction
from penstock.passes.generics import structured
from penstock.passes.scalar_body import Body
from penstock.passes.shapes import Dims
from penstock.passes.tensor.partition import Coverage, choose, runs_on_a_unit


def split_bodies(generics: list[GenericOp], target: TargetOp, *, apart: bool = False) -> list[GenericOp]:
    """
    The generics, each that the machine does not cover replaced by several where it covers all of these.

    An op is split if it is pointwise: all loops parallel, one result that every loop indexes, its initial value unread.
    Of what follows another op, operands from outside may be widened by ops that the machine does not cover. With
    `apart` an op of one value with itself that is not covered reads it as two operands: one may be overwritten then.
    """
    found: list[GenericOp] = []
    for generic in generics:
        pieces = [] if isinstance(choose(generic, target), Coverage) else _pieces(generic, target if apart else None)
        rest = [piece for piece in pieces if not _widens_an_operand(piece, generic)]
        rest = rest if _is_epilogue(generic) else pieces
        covered = all(isinstance(choose(piece, target), Coverage) for piece in rest)
        is_new = len(pieces) > 1 or any(len(piece.inputs) > len(set(piece.inputs)) for piece in pieces)
        if is_new and rest and covered and runs_on_a_unit(rest, target):
            _replace(generic, pieces)
            found += pieces
            continue
        found.append(generic)
        for piece in reversed(pieces):
            empty = piece.outputs[0].owner
            assert isinstance(empty, tensor.EmptyOp)
            piece.erase()
            empty.erase()
    return found


def _is_epilogue(generic: GenericOp) -> bool:
    """Whether a generic reads what another one computes: it may be what keeps that one on the machine."""
    return any(isinstance(value.owner, GenericOp) for value in generic.inputs)


def _widens_an_operand(piece: GenericOp, generic: GenericOp) -> bool:
    """Whether a piece only widens what comes from outside the kernel, as the host can do before."""
    first = piece.body.block.first_op
    source = piece.inputs[0] if piece.inputs else None
    outside = source in generic.inputs and not isinstance(source.owner, GenericOp) if source is not None else False
    return outside and isinstance(first, WIDENING)


def _pieces(generic: GenericOp, apart: TargetOp | None) -> list[GenericOp]:
    """
    A generic for each op of the body that is no constant, not yet inserted; none if it is not pointwise. With a machine
    `apart` that does not cover it, one of a value with itself reads it twice.
    """
    block, output = generic.body.block, list(generic.indexing_maps)[-1].data
    type = generic.results[0].type if generic.results else None
    covers = isa(type, TensorType) and places_each(output, type.get_shape())
    covers &= len(output.used_dims()) == generic.get_num_loops()
    if len(generic.results) != 1 or has_reduction(generic) or not covers or block.args[-1].uses:
        return []
    last = block.last_op
    assert last is not None
    steps = [op for op in block.ops if op is not last and not isinstance(op, arith.ConstantOp)]
    if any(len(op.results) != 1 or op.name == "linalg.index" for op in steps):
        return []
    if not steps or last.operands[0] is not steps[-1].results[0]:
        return []
    # What computes each scalar of the body: a tensor, and how the loops index it.
    tensors: dict[SSAValue, tuple[SSAValue, Dims]] = {
        arg: (value, map_attr.data.results)
        for arg, value, map_attr in zip(block.args, generic.operands, generic.indexing_maps, strict=True)
    }
    pieces: list[GenericOp] = []
    for step in steps:
        piece = _piece(generic, step, tensors, output.results)
        if apart is not None and _is_of_itself(step) and not isinstance(choose(piece, apart), Coverage):
            empty = piece.outputs[0].owner
            assert isinstance(empty, tensor.EmptyOp)
            piece.erase()
            empty.erase()
            piece = _piece(generic, step, tensors, output.results, twice=True)
        pieces.append(piece)
        tensors[step.results[0]] = (pieces[-1].results[0], output.results)
    return pieces


def _is_of_itself(step: Operation) -> bool:
    return len(step.operands) == 2 and step.operands[0] is step.operands[1]


def _piece(
    generic: GenericOp,
    step: Operation,
    tensors: dict[SSAValue, tuple[SSAValue, Dims]],
    output: Dims,
    *,
    twice: bool = False,
) -> GenericOp:
    """One op of a body as a generic of its own; constants of the body come with it."""
    read = [value for value in (step.operands if twice else dict.fromkeys(step.operands)) if value in tensors]
    type = generic.results[0].type
    assert isa(type, TensorType)
    empty = tensor.EmptyOp([], TensorType(step.results[0].type, type.get_shape()))

    def compute(body: Body, elements: Sequence[SSAValue]) -> SSAValue:
        mapping: dict[SSAValue, SSAValue] = dict(zip(read, elements, strict=False))
        for value in dict.fromkeys(step.operands):
            if isinstance(value.owner, arith.ConstantOp) and value.owner.parent is generic.body.block:
                mapping[value] = body.emit(value.owner.clone())
        computed = step.clone(mapping)
        if twice:
            computed.operands = list(elements)[:2]
        return body.emit(computed)

    return structured([tensors[value] for value in read], (empty.tensor, output), compute, generic.location)


def _replace(generic: GenericOp, pieces: list[GenericOp]) -> None:
    """Put the pieces where the generic was."""
    for piece in pieces:
        empty = piece.outputs[0].owner
        assert isinstance(empty, tensor.EmptyOp)
        Rewriter.insert_op([empty, piece], InsertPoint.before(generic))
    pieces[-1].results[0].name_hint = generic.results[0].name_hint
    generic.results[0].replace_all_uses_with(pieces[-1].results[0])
    Rewriter.erase_op(generic)
