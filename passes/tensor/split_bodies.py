"""
Splitting a pointwise op whose body no intrinsic computes into ops that each are one: `min(max(x, 0), 6)` becomes a
maximum and a minimum, with a tensor between them that a tile holds on chip.
"""

from __future__ import annotations

from xdsl.dialects import arith, tensor
from xdsl.dialects.builtin import AffineMapAttr, TensorType
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp, YieldOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.hints import isa

from penstock.dialects.machine import TargetOp
from penstock.passes.analysis.kernels import WIDENING
from penstock.passes.tensor.segments import Choice, choose, runs_on_a_unit


def split_bodies(generics: list[GenericOp], target: TargetOp) -> list[GenericOp]:
    """
    The generics, each that the machine does not cover replaced by several where it covers all of these.

    An op is split if it is pointwise: all loops parallel, one result that every loop indexes, its initial value unread.
    Of what follows another op, operands from outside may be widened by ops that the machine does not cover.
    """
    found: list[GenericOp] = []
    for generic in generics:
        pieces = [] if isinstance(choose(generic, target), Choice) else _pieces(generic)
        rest = [piece for piece in pieces if not _widens_an_operand(piece, generic)]
        rest = rest if _is_epilogue(generic) else pieces
        covered = all(isinstance(choose(piece, target), Choice) for piece in rest)
        if len(pieces) > 1 and rest and covered and runs_on_a_unit(rest, target):
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


def _pieces(generic: GenericOp) -> list[GenericOp]:
    """A generic for each op of the body that is no constant, not yet inserted; none if it is not pointwise."""
    block = generic.body.block
    output_map = list(generic.indexing_maps)[-1]
    pointwise = all(kind.data == IteratorType.PARALLEL for kind in generic.iterator_types)
    covers = output_map.data.is_projected_permutation() and len(output_map.data.results) == generic.get_num_loops()
    if len(generic.results) != 1 or not pointwise or not covers or block.args[-1].uses:
        return []
    type, last = generic.results[0].type, block.last_op
    assert isa(type, TensorType)
    assert last is not None
    steps = [op for op in block.ops if op is not last and not isinstance(op, arith.ConstantOp)]
    if any(len(op.results) != 1 or op.name == "linalg.index" for op in steps):
        return []
    if not steps or last.operands[0] is not steps[-1].results[0]:
        return []
    # What stands for each scalar of the body: a tensor, and how the loops index it.
    tensors: dict[SSAValue, tuple[SSAValue, AffineMapAttr]] = {
        arg: (value, map_attr)
        for arg, value, map_attr in zip(block.args, generic.operands, generic.indexing_maps, strict=True)
    }
    pieces: list[GenericOp] = []
    for step in steps:
        pieces.append(_piece(generic, step, type, tensors, output_map))
        tensors[step.results[0]] = (pieces[-1].results[0], output_map)
    return pieces


def _piece(
    generic: GenericOp,
    step: Operation,
    type: TensorType[Attribute],
    tensors: dict[SSAValue, tuple[SSAValue, AffineMapAttr]],
    output_map: AffineMapAttr,
) -> GenericOp:
    """One op of a body as a generic of its own; constants of the body come with it."""
    result = TensorType(step.results[0].type, type.get_shape())
    inputs = [tensors[value] for value in dict.fromkeys(step.operands) if value in tensors]
    scalars = [value for value in dict.fromkeys(step.operands) if value in tensors]
    block = Block(arg_types=[*(value.type for value in scalars), result.element_type])
    mapping: dict[SSAValue, SSAValue] = dict(zip(scalars, block.args, strict=False))
    for value in dict.fromkeys(step.operands):
        if isinstance(value.owner, arith.ConstantOp) and value.owner.parent is generic.body.block:
            constant = value.owner.clone()
            block.add_op(constant)
            mapping[value] = constant.result
    computed = step.clone(mapping)
    block.add_ops([computed, YieldOp(computed.results[0])])
    empty = tensor.EmptyOp([], result)
    piece = GenericOp(
        [value for value, _ in inputs],
        [empty.tensor],
        Region(block),
        [*(map_attr for _, map_attr in inputs), output_map],
        generic.iterator_types,
        [result],
    )
    piece.location = generic.location
    return piece


def _replace(generic: GenericOp, pieces: list[GenericOp]) -> None:
    """Put the pieces where the generic was."""
    for piece in pieces:
        empty = piece.outputs[0].owner
        assert isinstance(empty, tensor.EmptyOp)
        Rewriter.insert_op([empty, piece], InsertPoint.before(generic))
    pieces[-1].results[0].name_hint = generic.results[0].name_hint
    generic.results[0].replace_all_uses_with(pieces[-1].results[0])
    Rewriter.erase_op(generic)
