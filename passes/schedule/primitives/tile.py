# SPDX-License-Identifier: Apache-2.0
"""Tiling an op, and computing producers and consumers in its tile."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from xdsl.dialects.builtin import DYNAMIC_INDEX, DictionaryAttr, IntegerAttr, TensorType
from xdsl.dialects.linalg.attrs import IteratorType
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.dialects.transform import AnyOpType, OperationType
from xdsl.dialects.transform import TileOp as TileUsingForOp
from xdsl.dialects.utils import get_dynamic_index_list
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr
from xdsl.utils.hints import isa

from penstock.dialects.diagnostics import UserError, location_of
from penstock.dialects.schedule import TileAndFuseOp
from penstock.dialects.upstream.transform import sizes_of
from penstock.dialects.upstream.transform_structured import FuseOp
from penstock.passes.analysis.kernels import DEPTHS, TILING, add_remark
from penstock.passes.analysis.loops import constant_of
from penstock.passes.planning.tile_problem import NoTile, TileDim
from penstock.passes.planning.tilers.largest import largest_within
from penstock.passes.planning.tiling import DoesNotFit, cut_text, footprint
from penstock.passes.schedule.state import PRIMITIVES, Payload, TransformState
from penstock.passes.schedule.tile_nest import TileNest, with_producers
from penstock.passes.schedule.tiled_ops import TiledOps
from penstock.passes.schedule.zero_pads import may_run_past_its_end, require_defined_on_padding


@PRIMITIVES.register(TileAndFuseOp)
def tile(state: TransformState, op: TileAndFuseOp) -> Sequence[Payload]:
    """
    Tile and fuse; raises UserError for sizes, edges and ops of which no tile can be computed.

    Before:
    ```mlir
    #id = affine_map<(d0) -> (d0)>
    func.func private @add(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
      %e = tensor.empty() : tensor<8xf32>
      %z = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel"]}
          ins(%x, %y : tensor<8xf32>, tensor<8xf32>) outs(%e : tensor<8xf32>) {
      ^bb0(%a: f32, %b: f32, %out: f32):
        %s = arith.addf %a, %b : f32
        linalg.yield %s : f32
      } -> tensor<8xf32>
      func.return %z : tensor<8xf32>
    }
    ```
    After (`%tile, %loop = schedule.tile %z sizes [3] edges ["overlap"]` or `tile{sizes=3}`):
    ```mlir
    #id = affine_map<(d0) -> (d0)>
    func.func private @add(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32>
        attributes {tiling = "d0 parallel, 3 tiles of 3 in 8, the last overlaps, 12.5% is done twice"} {
      %e = tensor.empty() : tensor<8xf32>
      %0 = arith.constant 0 : index
      %1 = arith.constant 8 : index
      %2 = arith.constant 3 : index
      %z = scf.for %3 = %0 to %1 step %2 iter_args(%4 = %e) -> (tensor<8xf32>) {
        %5 = arith.constant 5 : index
        %6 = arith.minsi %3, %5 : index
        %7 = tensor.extract_slice %4[%6] [3] [1] : tensor<8xf32> to tensor<3xf32>
        %x_1 = tensor.extract_slice %x[%6] [3] [1] : tensor<8xf32> to tensor<3xf32>
        %y_1 = tensor.extract_slice %y[%6] [3] [1] : tensor<8xf32> to tensor<3xf32>
        %8 = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel"]}
            ins(%x_1, %y_1 : tensor<3xf32>, tensor<3xf32>) outs(%7 : tensor<3xf32>) {
        ^bb0(%a: f32, %b: f32, %out: f32):
          %s = arith.addf %a, %b : f32
          linalg.yield %s : f32
        } -> tensor<3xf32>
        %9 = tensor.insert_slice %8 into %4[%6] [3] [1] : tensor<3xf32> into tensor<8xf32>
        scf.yield %9 : tensor<8xf32>
      }
      func.return %z : tensor<8xf32>
    }
    ```
    """
    target = state.one(op.target, GenericOp)
    fused = [state.one(handle, GenericOp) for handle in op.fused]
    members = [target, *fused]
    if len(set(members)) < len(members):
        raise UserError("an op is listed twice: the target, and each op that is fused, is another one")
    _require_slots(state, op.slots)
    root = _root_of(members)
    dims = dims_of(target)
    edges = [edge.data for edge in op.edges] if op.edges is not None else [""] * len(dims)
    given = given_sizes(state, op.sizes, op.dynamic_sizes)
    sizes, edges = checked_sizes(target, dims, given, edges)
    order = _order_of(dims, given, edges, sizes_of(op.interchange))
    require_parallel_outside(dims, order)
    unpadded = [fused[number] for number in sizes_of(op.unpadded)]
    _require_aligned(target, with_producers(root, set(members)), padded=[*fused] if "padded" in edges else [])
    if {"zeros", "padded"} & {*edges}:
        _require_paddable(members, unpadded)
        _require_read_unpadded(members, unpadded)
    for member in members if "padded" in edges else ():
        if member not in unpadded:
            require_defined_on_padding(member)
    given_slots: Mapping[str, Attribute] = op.slots.data if op.slots is not None else {}
    slots = {scope: count.value.data for scope, count in given_slots.items() if isa(count, IntegerAttr)}
    require_room(state, target, root, members, sizes, order, slots)
    nest = TileNest(root, target, frozenset(members), sizes, order, frozenset(unpadded))
    nest.rewrite()
    _remark(state, dims, sizes, order, edges, op)
    return [(nest.tiled[member],) for member in members] + [(nest.loops[dim],) for dim in order]


@PRIMITIVES.register(TileUsingForOp)
def tile_using_for(state: TransformState, op: TileUsingForOp) -> Sequence[Payload]:
    """
    Tile an op alone, as upstream does; sizes have to divide.

    See https://mlir.llvm.org/docs/Dialects/Transform/#transformstructuredtile_using_for
    """
    target = state.one(op.target, GenericOp)
    given = given_sizes(state, op.static_sizes, op.dynamic_sizes)
    if op.scalable_sizes is not None and any(op.scalable_sizes.get_values()):
        raise UserError("the machine has no scalable vectors: a size is a number")
    dims = dims_of(target)
    sizes, order = _divided(state, target, [target], given, sizes_of(op.interchange), len(op.loops))
    loops: list[Payload] = []
    while order:
        # A nest has the loops of its reductions inside: those of parallel dims that follow are another one in it.
        count = next((n for n in range(1, len(order)) if dims[order[n]].parallel > dims[order[n - 1]].parallel), None)
        stage, order = order[:count], order[count:] if count is not None else []
        now = [
            size if dim in stage else extent
            for dim, (size, extent) in enumerate(zip(sizes, target.get_static_loop_ranges(), strict=True))
        ]
        nest = TileNest(target, target, frozenset([target]), now, stage)
        nest.rewrite()
        target = nest.tiled[target]
        loops += [(nest.loops[dim],) for dim in stage]
    return [(target,), *loops]


@PRIMITIVES.register(FuseOp)
def fuse(state: TransformState, op: FuseOp) -> Sequence[Payload]:
    """
    Tile an op, and compute all that it is computed from in the tile, as upstream does; sizes have to divide.

    See https://mlir.llvm.org/docs/Dialects/Transform/#transformstructuredfuse
    """
    target = state.one(op.target, GenericOp)
    given, members = given_sizes(state, op.tile_sizes, ()), with_producers(target)
    if "use_forall" in op.attributes:
        raise UserError(
            "transform.structured.fuse makes scf.for, as mlir-opt 19 does: it has no use_forall",
            notes=["transform.structured.tile_using_forall, and fuse_into_containing_op for the producers"],
        )
    sizes, order = _divided(state, target, members, given, sizes_of(op.tile_interchange), len(op.loops))
    require_parallel_outside(dims_of(target), order)
    nest = TileNest(target, target, frozenset(members), sizes, order)
    nest.rewrite()
    return [(nest.tiled[target],), *([(nest.loops[dim],) for dim in order])]


def _require_slots(state: TransformState, slots: DictionaryAttr | None) -> None:
    """Raise UserError for slots of a scope that the machine lacks."""
    if slots is None or state.target is None:
        return
    for scope in slots.data:
        state.target.scope(scope)


def given_sizes(state: TransformState, static: Attribute | None, dynamic: Sequence[SSAValue]) -> list[int]:
    """
    Sizes, some of which are parameters, or handles of constants of the kernel; raises UserError for what is no size.
    """
    sizes: list[int] = []
    for size in get_dynamic_index_list(sizes_of(static), dynamic, DYNAMIC_INDEX):
        number = size if isinstance(size, int) else _number(state, size)
        if number < 0:
            raise UserError(f"a size is 0 or more, not {number}", notes=["0 leaves a dim whole"])
        if not isinstance(size, int) and number < 1:
            raise UserError(f"a parameter that is a size is 1 or more, not {number}")
        sizes.append(number)
    return sizes


def _number(state: TransformState, value: SSAValue) -> int:
    """The number of a parameter, or that of the constant that a handle stands for."""
    if isinstance(value.type, AnyOpType | OperationType):
        found = [constant_of(result) for each in state.payload(value) for result in each.results]
        if len(found) == 1 and found[0] is not None:
            return found[0]
    return state.parameter(value)


def _divided(
    state: TransformState,
    target: GenericOp,
    members: Sequence[GenericOp],
    given: list[int],
    interchange: Sequence[int],
    handles: int,
) -> tuple[list[int], list[int]]:
    """
    The size of the tile in every dim, which divides it, and the dims that become loops, as many as there are `handles`.

    Raises UserError for what cannot be tiled so.
    """
    dims = dims_of(target)
    if len(given) > len(dims):
        raise UserError(f"{len(given)} sizes for an op of {len(dims)} dims")
    given += [0] * (len(dims) - len(given))
    sizes, edges = checked_sizes(target, dims, given, [""] * len(dims))
    order = _order_of(dims, given, edges, interchange)
    if len(order) != handles:
        raise UserError(
            f"the sizes make {len(order)} loops, and there are handles for {handles}",
            notes=["0 leaves a dim whole, and makes no loop"],
        )
    require_room(state, target, target, members, sizes, order, {})
    return sizes, order


def require_room(
    state: TransformState,
    target: GenericOp,
    root: GenericOp,
    members: Collection[GenericOp],
    sizes: Sequence[int],
    order: Sequence[int],
    slots: Mapping[str, int],
) -> None:
    """
    Raise UserError, with the largest tile that fits, where a scope of the machine has no room for this one.

    What a tile of a part of the kernel holds is not known before the rest is placed: `mem-plan` finds out.
    """
    if state.target is None or root.parent is not state.kernel.body.block:
        return
    ops = state.tiled if state.tiled is not None and state.tiled.root is root else TiledOps(root, state.target)
    if ops.anchor is not target or {*ops.members} != {*members}:
        return
    problem = ops.problem
    for scope, used in footprint(problem, sizes, order, slots).items():
        if used <= (capacity := problem.capacity[scope]):
            continue
        single = footprint(problem, sizes, order, {})[scope]
        if single <= capacity:
            notes = [f"it fits with one slot of what the loops refill: {single:,} bytes"]
        else:
            try:
                notes = [f"the largest that fits within these sizes is {list(largest_within(problem, sizes).tile)}"]
            except (DoesNotFit, NoTile):
                notes = []
        raise UserError(
            f'the tile {list(sizes)} does not fit scope "{scope}": it needs {used:,} bytes of its {capacity:,}',
            notes=notes,
        )


def dims_of(target: GenericOp) -> list[TileDim]:
    """The dims of an op; raises UserError unless it is one that is tiled: on tensors, static, with one result."""
    if len(target.results) != 1 or any(not isa(value.type, TensorType) for value in target.outputs):
        raise UserError(
            "an op is tiled where it has one result, a tensor: at the tensor level", loc=location_of(target)
        )
    ranges = target.get_static_loop_ranges()
    output = list(target.indexing_maps)[len(target.inputs)].data
    if DYNAMIC_INDEX in ranges or not all(isinstance(expr, AffineDimExpr) for expr in output.results):
        raise UserError("an op is tiled where its sizes are static and its result is indexed by dims")
    kinds = [kind.data == IteratorType.PARALLEL for kind in target.iterator_types]
    return [TileDim(extent, parallel) for extent, parallel in zip(ranges, kinds, strict=True)]


def checked_sizes(
    target: GenericOp, dims: Sequence[TileDim], given: Sequence[int], edges: Sequence[str]
) -> tuple[list[int], list[str]]:
    """The size of the tile in every dim, and its edge; raises UserError for a size that is no tile."""
    if len(given) != len(dims):
        raise UserError(f"{len(given)} sizes for an op of {len(dims)} dims")
    sizes: list[int] = []
    found: list[str] = []
    for number, (dim, size, edge) in enumerate(zip(dims, given, edges, strict=True)):
        name = f"dim {number} of {dim.extent}"
        size = size or dim.extent
        fills = not dim.parallel and may_run_past_its_end(target, number)
        if edge in ("zeros", "padded") and not dim.parallel and not fills:
            raise UserError(
                f"{name} cannot read zeros past its end",
                notes=["only a reduction can that sums products of what comes from outside the kernel"],
            )
        if (edge == "overlap" and not dim.parallel) or (edge == "zeros" and dim.parallel):
            kind = "parallel" if dim.parallel else "a reduction"
            raise UserError(f'{name} is {kind}, and "{edge}" is for the other kind of dim')
        if (size > dim.extent) != (edge == "padded"):
            relation = "is larger than" if size > dim.extent else "is not larger than"
            raise UserError(
                f'size {size} {relation} {name}, and its edge is {"not " * (edge != "padded")}"padded"',
                notes=["0 leaves a dim whole"],
            )
        if dim.extent % size and edge not in ("overlap", "zeros", "padded"):
            choice = '"zeros"' if fills else '"overlap"' if dim.parallel else ""
            near = max(divisor for divisor in range(1, size + 1) if dim.extent % divisor == 0)
            raise UserError(
                f"size {size} does not divide {name}",
                notes=[f"{near} does"] + [f"schedule.tile can say what happens at the end: {choice}"] * bool(choice),
            )
        sizes.append(size)
        found.append(edge if dim.extent % size else "divides" if size < dim.extent else "whole")
    return sizes, found


def _order_of(
    dims: Sequence[TileDim], given: Sequence[int], edges: Sequence[str], interchange: Sequence[int]
) -> list[int]:
    """The dims that become loops, outermost first."""
    if interchange and sorted(interchange) != list(range(len(interchange))):
        raise UserError(f"the interchange {list(interchange)} is no permutation")
    listed = [*interchange, *range(len(interchange), len(dims))]
    return [number for number in listed if given[number] and edges[number] != "padded"]


def require_parallel_outside(dims: Sequence[TileDim], order: Sequence[int]) -> None:
    """Raise UserError for a parallel loop inside one of a reduction."""
    kinds = [dims[number].parallel for number in order]
    if kinds != sorted(kinds, reverse=True):
        listed = [*order, *(number for number in range(len(dims)) if number not in order)]
        last = sorted(listed, key=lambda number: not dims[number].parallel)
        raise UserError(
            "the loop of a reduction is around that of a parallel dim, which would carry partial results of all",
            notes=[f"reductions last: interchange {last}"],
        )


def _root_of(members: Sequence[GenericOp]) -> GenericOp:
    """The member whose result is used outside; raises UserError where several are, or some lead to none."""
    inside = set[Operation](members)
    used = [m for m in members if any(use.operation not in inside for use in m.results[0].uses)]
    if len({member.parent for member in members}) > 1:
        raise UserError("ops of several blocks cannot share a tile")
    if len(used) != 1:
        raise UserError(
            f"the results of {len(used) or 'none'} of the ops of the tile are used outside, and one has to be",
            notes=[f"{location_of(op)} is one" for op in used],
        )
    (root,) = used
    reached = set(with_producers(root, inside))
    if stray := [member for member in members if member not in reached]:
        raise UserError("an op of the tile does not lead to its result", loc=location_of(stray[0]))
    return root


def _require_aligned(target: GenericOp, members: Sequence[GenericOp], padded: Collection[GenericOp]) -> None:
    """
    Raise UserError where a box of the target's result is not the same box of what is computed from it in the tile.

    Where tiles are padded, `padded` are the fused ops, which have to be aligned with the target, too.
    """
    for member, number in _misaligned(target, members, padded):
        raise UserError(
            f"operand {number} is computed in the tile, and indexed otherwise than the result",
            loc=location_of(member),
            notes=["only an op that reads it as it writes its result can follow it into the tile"],
        )


def _misaligned(
    target: GenericOp, members: Sequence[GenericOp], padded: Collection[GenericOp] = ()
) -> Iterator[tuple[GenericOp, int]]:
    """The operands that are computed in the tile, and of which an op reads another box than it writes."""
    aligned = {target, *padded}
    for member in members:
        maps = [map_attr.data for map_attr in member.indexing_maps]
        for number, value in enumerate(member.operands):
            if value.owner in aligned:
                aligned.add(member)
                if maps[number] != maps[len(member.inputs)]:
                    yield member, number


def tiled_with(target: GenericOp, among: Collection[GenericOp]) -> list[GenericOp]:
    """
    Those of some ops that can share the tiles of `target`, as far beyond it as they go.

    What only the others of them read is computed in the tile; what follows the target reads it as it writes its result.
    """
    block = target.parent
    assert block is not None
    after = [op for op in block.ops if isinstance(op, GenericOp) and op in among and target.is_before_in_block(op)]
    for root in (*reversed(after), target):
        members = led_to(root, {target, *among})
        if target in members and not any(_misaligned(target, members)):
            return [member for member in members if member is not target]
    return []


def led_to(root: GenericOp, among: Collection[Operation] | None = None) -> list[GenericOp]:
    """An op, and the generics of its block that it, and nothing else, is computed from; the op last."""
    inside = among
    while True:
        members = with_producers(root, inside)
        read = [
            op for op in members if op is not root and any(use.operation not in members for use in op.results[0].uses)
        ]
        if not read:
            return members
        inside = {*members} - {*read}


def _require_read_unpadded(members: Sequence[GenericOp], unpadded: Sequence[GenericOp]) -> None:
    """Raise UserError where an op that sees no padding is read by one that does: it computes too little for that."""
    for member in members:
        for number, value in enumerate(member.operands):
            if value.owner in unpadded and member not in unpadded:
                raise UserError(
                    f"operand {number} is computed without padding, and this op is padded", loc=location_of(member)
                )


def _require_paddable(members: Sequence[GenericOp], unpadded: Sequence[GenericOp]) -> None:
    """Raise UserError where what is read past an end comes from an op outside of the tile."""
    for member in members:
        for number, value in enumerate(member.operands):
            owner = value.owner
            if member not in unpadded and isinstance(owner, GenericOp) and owner not in members:
                raise UserError(
                    f"operand {number} is computed outside of the tile, and there is nothing past its end",
                    loc=location_of(member),
                    notes=["fuse what computes it, or choose a size that divides"],
                )


def _remark(
    state: TransformState,
    dims: Sequence[TileDim],
    sizes: Sequence[int],
    order: Sequence[int],
    edges: Sequence[str],
    op: TileAndFuseOp,
) -> None:
    """Say in the kernel's attributes how it is cut, and how many slots there are."""
    said = [op.remark.data] if op.remark is not None else []
    add_remark(state.kernel, TILING, [*cut_text(dims, sizes, order, edges), *said])
    if op.slots is not None:
        state.kernel.attributes[DEPTHS] = DictionaryAttr(op.slots.data)
