"""
What an attention becomes on a machine: the order in which its operands are stored, its mask as a feature, its blocks.

A tile of scores is [keys, queries] there, so that what belongs to a query is a lane. Engines move rows, and no
intrinsic turns a tile over; so queries and results are stored with the queries innermost, keys with their elements, and
values with the keys. Nothing adds a number a row to lanes either: a mask that says the same of a key to every query is
one more element of each key, and every query has the number there that the scale takes back to 1.
"""

from __future__ import annotations

from dataclasses import replace

from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import tensor_of
from penstock.dialects.machine import DRAM, IntrinsicOp, TargetOp
from penstock.passes.analysis.kernels import has_reduction, is_contraction
from penstock.passes.analysis.scope_paths import scope_path
from penstock.passes.graph.attention.pattern import Attention, Factor
from penstock.passes.graph.values import NodeBuilder
from penstock.passes.planning.attention_blocks import Scope, Widths, blocks_in

CHOICES = (512, 256, 128, 64, 32, 16, 8)
"""The most queries, and the most keys, of a block, best first."""

_NEEDED = ("math.exp", "arith.maximumf", "arith.subf", "arith.mulf", "arith.addf", "arith.divf")
"""The operations on lanes that an attention consists of, besides products."""


def why_not(target: TargetOp) -> str | None:
    """What a machine lacks for attentions; None if nothing."""
    intrinsics = [each for each in target.intrinsics().values() if each.dma_name is None]
    products = [each for each in intrinsics if is_contraction(each.generic)]
    if not products:
        return "no intrinsic multiplies matrices"
    vectors = [each for each in intrinsics if not has_reduction(each.generic)]
    computed = {op.name: each for each in vectors for op in each.generic.body.block.ops}
    for name in _NEEDED:
        if name not in computed:
            return f"no intrinsic computes {name}"
    lanes = computed["math.exp"].operand_specs()[-1].scope
    if not any(_takes_powers(each, lanes, target) for each in products):
        first = products[0]
        wanted = first.operand_specs()[1].scope
        return f'@{first.sym_name.data} wants in "{wanted}" what is computed in "{lanes}", and no engine leads there'
    return None


def _takes_powers(product: IntrinsicOp, lanes: str, target: TargetOp) -> bool:
    """Whether a product multiplies what vectors have computed, and leaves its sums for them."""
    _, factor, result = product.operand_specs()
    return result.scope == lanes and (factor.scope == lanes or scope_path(target, lanes, factor.scope) is not None)


def blocks_on(target: TargetOp, found: Attention) -> tuple[int, int] | str:
    """The queries and keys of a block that the scopes of a machine hold; the reason if none fits."""
    product = next(each for each in target.intrinsics().values() if is_contraction(each.generic))
    specs = product.operand_specs()
    scopes = [target.scope(spec.scope) for spec in specs if spec.scope != DRAM]
    smallest = min(scopes, key=lambda scope: scope.size_bytes)
    queries, width = _sizes(found.q)
    keys, values = _sizes(found.v)
    if (most := min(queries, keys, values)) < 1:
        return f"a size of {most} leaves nothing to compute"
    stored, summed = (numpy_dtype(spec.dtype).itemsize for spec in (specs[0], specs[-1]))
    widths = Widths(width + (found.mask is not None), values, stored, summed)
    granule = max(scope.granule_bytes for scope in scopes)
    blocks = blocks_in(queries, keys, widths, Scope(smallest.size_bytes, granule), CHOICES)
    return blocks or f'no block of it fits scope "{smallest.sym_name.data}"'


def _sizes(factor: Factor) -> tuple[int, int]:
    """The last two sizes of a factor."""
    shape = tensor_of(factor.value).get_shape()
    rows, columns = (shape[dim] for dim in factor.perm[-2:])
    return rows, columns


def has_query_in_mask(found: Attention) -> bool:
    """Whether the mask differs from query to query."""
    shape = () if found.mask is None else tensor_of(found.mask).get_shape()
    return len(shape) > 1 and shape[-2] != 1


def arranged(found: Attention, build: NodeBuilder) -> Attention:
    """The attention with its operands stored as a machine reads them, and its mask among the features."""
    rank = len(found.q.perm)
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    q = Factor(_transposed(found.q, swapped, build, "queries"), swapped, 1)
    v = Factor(_transposed(found.v, swapped, build, "values"), swapped, 1)
    k = found.k
    if k.perm[-1] != rank - 1:
        k = Factor(_transposed(k, tuple(range(rank)), build, "keys"), tuple(range(rank)), 1)
    if found.mask is not None:
        q, k = _with_mask(found, q, k, build)
    return replace(found, q=q, k=k, v=v, mask=None)


def _transposed(factor: Factor, order: tuple[int, ...], build: NodeBuilder, part: str) -> SSAValue:
    """What is stored when the dims of a factor are, in this order."""
    perm = [factor.perm[dim] for dim in order]
    if perm == list(range(len(perm))):
        return factor.value
    return build.add(graph.TransposeOp(factor.value, perm=perm), f"{part}_transposed")


def _with_mask(found: Attention, q: Factor, k: Factor, build: NodeBuilder) -> tuple[Factor, Factor]:
    """The queries and the keys with one more element, whose product, scaled, is the mask."""
    assert found.mask is not None
    *batch, _, queries = tensor_of(q.value).get_shape()
    scale = build.number(1 / found.scale, q.value, "one")
    ones = build.add(graph.ExpandOp(scale, [*batch, 1, queries]), "ones")
    longer = build.add(graph.ConcatOp([q.value, ones], axis=len(batch)), "queries")
    shape = tensor_of(found.mask).get_shape()
    leading = [1] * (len(batch) + 2 - len(shape)) + list(shape[:-2])
    column = build.add(graph.ReshapeOp(found.mask, [*leading[: len(batch)], shape[-1], 1]), "mask_column")
    stored = [0] * len(k.perm)
    for dim, at in enumerate(k.perm):
        stored[at] = dim
    keys = _sizes(k)[0]
    column = build.add(graph.ExpandOp(column, [*batch, keys, 1]), "mask_expanded")
    if stored != list(range(len(stored))):
        column = build.add(graph.TransposeOp(column, perm=stored), "mask_transposed")
    wider = build.add(graph.ConcatOp([k.value, column], axis=len(stored) - 1), "keys")
    return Factor(longer, q.perm, 1), Factor(wider, k.perm, 1)
