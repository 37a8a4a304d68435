# SPDX-License-Identifier: Apache-2.0
"""Where on a machine the tiles of a kernel are that is written as tiles: where intrinsics want them, if they fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from math import prod

from xdsl.dialects import func, scf, tensor
from xdsl.dialects.builtin import StringAttr, TensorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.utils.hints import isa

from penstock.dialects.machine import DRAM, ScopeOp, TargetOp
from penstock.dialects.mem import OFF_CHIP, SCOPE, element_bytes
from penstock.passes.analysis.access import access_of
from penstock.passes.analysis.intrinsics import Match, candidates
from penstock.passes.analysis.memory.stated_scopes import is_explicit_copy, stated_scope, stating
from penstock.passes.analysis.scope_paths import scope_path
from penstock.passes.tensor.bufferization.assignment import origin_of, result_number
from penstock.passes.tensor.partition import remark_on
from penstock.passes.tensor.tile_plan import engine_into, is_filled, sliced_of


def ops_of(kernel: func.FuncOp) -> Iterator[Operation]:
    """The ops of a kernel but for the bodies of its generics."""
    return (op for op in kernel.walk() if not isinstance(op.parent_op(), GenericOp))


def generics_of(kernel: func.FuncOp) -> list[GenericOp]:
    """What is computed: an explicit copy is a transfer."""
    return [op for op in ops_of(kernel) if isinstance(op, GenericOp) and not is_explicit_copy(op)]


def misplaced(kernel: func.FuncOp, target: TargetOp) -> str | None:
    """Why the tiles of a kernel cannot be where its intrinsics want them, if that is so."""
    generics = generics_of(kernel)
    matches: dict[GenericOp, Match] = {}
    for generic in generics:
        access = access_of(generic)
        assert access is not None
        matches[generic] = candidates(access, target)[0][0]
    held: dict[str, dict[SSAValue, set[SSAValue]]] = {}
    for generic in generics:
        for number, value in enumerate(generic.operands):
            scope = matches[generic].scope_of_operand(number)
            producer = _made_by(value)
            here = DRAM if producer is None else matches[producer].scope_of_operand(len(producer.inputs))
            if (reason := unpadded(value, matches[generic], number, target)) is not None:
                return remark_on(generic, reason)
            if producer is not None and here != scope and scope_path(target, here, scope) is None:
                return remark_on(
                    generic,
                    f'@{matches[generic].intrinsic.sym_name.data} needs in "{scope}" what '
                    f'@{matches[producer].intrinsic.sym_name.data} leaves in "{here}", and no engine leads there',
                )
            if scope != DRAM:
                held.setdefault(scope, {}).setdefault(_storage(value), set()).add(value)
    # A kernel that says where its locals are is one for the machine: `mem-plan` says what does not fit, if tensors that
    # are not alive together do not make room for each other.
    is_asked = next(stating(kernel), None) is not None
    for name, scope in target.scopes().items():
        needed = _made_to_fit(held.get(name, {}), scope)
        if needed > scope.size_bytes and not is_asked:
            return f'its tiles need {needed:,} bytes of scope "{name}", which has {scope.size_bytes:,}'
    return None


def _made_to_fit(held: Mapping[SSAValue, AbstractSet[SSAValue]], scope: ScopeOp) -> int:
    """
    The bytes of a scope that tensors take, of each of which some operands are there. As long as they do not fit, the
    largest of which only parts are used stays off chip, and says so: then its parts are there while they are used.
    """
    sizes = {storage: _bytes_in(storage, scope.granule_bytes) for storage in held}
    needed = sum(sizes.values())
    for storage in sorted(held, key=lambda each: -sizes[each]):
        parts = sum(_bytes_in(value, scope.granule_bytes) for value in held[storage])
        owner = storage.owner
        if needed <= scope.size_bytes or parts >= sizes[storage]:
            continue
        if isinstance(owner, tensor.EmptyOp) and SCOPE not in owner.attributes:
            room = scope.size_bytes - (needed - sizes[storage])
            owner.attributes[SCOPE] = StringAttr(DRAM)
            owner.attributes[OFF_CHIP] = StringAttr(
                f'it takes {sizes[storage]:,} bytes, and the rest leaves {max(room, 0):,} of "{scope.sym_name.data}"'
            )
            needed -= sizes[storage] - parts
    return needed


def unpadded(value: SSAValue, match: Match, number: int, target: TargetOp) -> str | None:
    """Why a window of a padded tensor cannot be copied to where an operand is read; None if it can, and for others."""
    padded, scope = sliced_of(_root(value)), match.scope_of_operand(number)
    if not isinstance(pad := padded.owner, tensor.PadOp):
        return None
    if scope == DRAM:
        return f"no engine pads a window of %{pad.source.name_hint or 'a tensor'} off chip"
    engine = engine_into(scope, target)
    limit = 0 if engine is None else engine.pad_limit
    widths = [*pad.static_low.get_values(), *pad.static_high.get_values()]
    assert isa(value.type, TensorType)
    tile = list(value.type.get_shape())
    if max(widths) <= limit or is_filled(padded, value.type, tile, target, scope, match.adjoining(number)):
        return None
    return f'no DMA pads by {max(widths)}, and no intrinsic fills "{scope}" with the padding'


def _made_by(value: SSAValue) -> GenericOp | None:
    """The op that computed a tile, through loops; None for what is copied or off chip, and for an empty tensor."""
    root = _root(value)
    return root.owner if isinstance(root.owner, GenericOp) and not is_explicit_copy(root.owner) else None


def _root(value: SSAValue) -> SSAValue:
    """What computed a tile, or the slice of what is off chip that it is."""
    while True:
        owner = value.owner
        if isinstance(value, BlockArgument):
            loop = value.block.parent_op()
            if not isinstance(loop, scf.ForOp) or value.index == 0:
                return value
            value = loop.iter_args[value.index - 1]
        elif isinstance(owner, scf.ForOp):
            value = owner.iter_args[result_number(value)]
        elif isinstance(owner, tensor.InsertSliceOp):
            value = owner.dest
        elif isinstance(owner, tensor.ExtractSliceOp):
            source = _root(owner.source)
            if not isinstance(source.owner, GenericOp):
                return value
            value = source
        else:
            return value


def _storage(value: SSAValue) -> SSAValue:
    """The tensor whose bytes a tile has: an op writes where its output operand is."""
    if _is_local(origin := origin_of(value)):
        return origin
    while isinstance((root := _root(value)).owner, GenericOp):
        value = root.owner.outputs[0]
    return root


def is_off_chip(value: SSAValue) -> bool:
    """Whether a tensor is a part of an argument, of a result, or of what is said to live off chip."""
    origin = origin_of(value)
    if isinstance(origin, BlockArgument):
        return True
    return isinstance(origin.owner, tensor.EmptyOp) and (stated_scope(origin) == DRAM or not _is_local(origin))


def _is_local(value: SSAValue) -> bool:
    """Whether a fresh tensor, at the place of what it is made into, is returned by no one."""
    owner = value.owner
    kernel = owner.get_toplevel_object() if isinstance(owner, tensor.EmptyOp) else None
    if not isinstance(kernel, func.FuncOp):
        return False
    returned = kernel.get_return_op()
    return returned is None or all(origin_of(each) is not value for each in returned.arguments)


def _bytes_in(value: SSAValue, granule: int) -> int:
    """The bytes of a buffer for a tensor, its rows rounded up to the granule."""
    assert isa(value.type, TensorType)
    *outer, row = value.type.get_shape() or (1,)
    return prod(outer) * -(-row * element_bytes(value.type) // granule) * granule
