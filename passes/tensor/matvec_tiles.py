# SPDX-License-Identifier: Apache-2.0
"""
The tiles of a product of a matrix and a vector on the host, or of the sum of a matrix's rows.

Nothing of the matrix is there a second time, so what counts is that it is read as it lies: a few of its rows at once,
each from its beginning to its end. Where the result lies along the rows, a part of it that the first cache holds is
added to for some rows at a time, whose factors stay in registers. Where a row is summed, the sums are vectors of the
registers, of a few rows, which share what is loaded of the vector.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.linalg.ops import GenericOp

from penstock.passes.planning.register_blocks import Domain, VectorUnit, parallel_dims
from penstock.passes.schedule.schedule import Schedule
from penstock.passes.tensor.row_tiles import dividing, edges_of, split_into_vectors


def tile_matvec(
    target: GenericOp,
    fused: Sequence[GenericOp],
    domain: Domain,
    unit: VectorUnit,
    schedule: Schedule,
    rank: int = 0,
) -> bool:
    """
    Cut such a product or sum, with what is computed before and after it; False for another op.

    `rank` halves the rows that are read at once so often; it is False where too few are left.
    """
    found = matvec_of(domain)
    if found is None:
        return False
    along, summed, matrix = found
    is_sum_of_rows = domain.strides[matrix][along] == 1
    rows, held = unit.registers // 4 >> rank, unit.caches[0] // 2 // unit.element_bytes
    sizes = [1 if dim in (parallel_dims(domain) or ()) else 0 for dim in range(len(domain.extents))]
    if is_sum_of_rows:
        sizes[along] = dividing(domain.extents[along], held, unit.lanes)
        fitting = [size for size in range(rows, 1, -1) if domain.extents[summed] % size == 0]
        if not fitting:
            return False
        sizes[summed] = fitting[0]
    elif rows < 2:
        return False
    else:
        sizes[along] = min(rows, domain.extents[along])
    order = [dim for dim, size in enumerate(sizes) if size and size < domain.extents[dim]]
    sizes = [size if dim in order else 0 for dim, size in enumerate(sizes)]
    anchor, *handles = schedule.handles([target, *fused])
    if order:
        others = [dim for dim in range(len(sizes)) if dim not in order]
        order.sort(key=lambda dim: dim == summed)
        edges = edges_of(domain.extents, sizes)
        tile = schedule.tile(anchor, sizes, fusing=handles, interchange=[*order, *others], edges=edges)
        anchor = tile.handles[0]
    if not is_sum_of_rows:
        split_into_vectors(schedule, anchor, summed, unit.lanes, 2)
    return True


def matvec_of(domain: Domain) -> tuple[int, int, int] | None:
    """The dim of the result, the one that is summed, and which input is the matrix; None for another op."""
    parallel = parallel_dims(domain)
    moving = [dim for dim, extent in enumerate(domain.extents) if extent > 1]
    summed = [dim for dim in moving if parallel is None or dim not in parallel]
    if parallel is None or len(summed) != 1 or 0 in domain.extents or domain.outputs != 1 or domain.inputs > 2:
        return None
    for matrix, whole in enumerate(domain.strides[: domain.inputs]):
        vectors = [each for number, each in enumerate(domain.strides[: domain.inputs]) if number != matrix]
        if not all(whole[dim] for dim in moving):
            continue
        free = [dim for dim in moving if dim in parallel and not any(vector[dim] for vector in vectors)]
        along = next((dim for dim in free if domain.strides[-1][dim] == 1), None)
        if along is None or (vectors and len(free) > 1):
            continue
        if whole[along] == 1 or (vectors and whole[summed[0]] == vectors[0][summed[0]] == 1):
            return along, summed[0], matrix
    return None
