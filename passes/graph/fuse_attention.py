# SPDX-License-Identifier: Apache-2.0
"""Form attentions: a product, a softmax and a product become one op whose scores are never stored."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from penstock.dialects import graph
from penstock.dialects.context import store_of
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import is_float
from penstock.dialects.machine import DRAM, IntrinsicOp, TargetOp
from penstock.dialects.weights import WeightStore
from penstock.passes.analysis.kernels import has_reduction, is_contraction, machine_of
from penstock.passes.analysis.scope_paths import scope_path
from penstock.passes.graph.values import NodeBuilder, graph_blocks, number_of, only_user
from penstock.passes.index_builder import erase_unused
from penstock.passes.planning.attention_blocks import BlockScope, Widths, blocks_in


@dataclass(frozen=True)
class Factor:
    """A factor of a product, as it is stored: the permutation that makes it the factor, and a number."""

    value: SSAValue
    perm: tuple[int, ...]
    scale: float


@dataclass(frozen=True)
class Attention:
    """The parts of an attention: softmax(q k^T * scale + mask) v, whose last op is `product`."""

    product: Operation
    q: Factor
    k: Factor
    v: Factor
    mask: SSAValue | None
    scale: float
    zero_masked: bool


@dataclass
class _Scores:
    """What is between the first product and the softmax."""

    product: graph.MatmulOp
    scale: float = 1.0
    mask: SSAValue | None = None


def match_attention(op: Operation, store: WeightStore) -> Attention | None:
    """The attention that `op`, its last product, computes; None if it is none."""
    if not isinstance(op, graph.MatmulOp) or op.accumulator is not None:
        return None
    weights = _plain(op.a)
    masked = _zero_where_masked(weights, store)
    softmax = _plain(masked[0] if masked is not None else weights).owner
    if not isinstance(softmax, graph.SoftmaxOp) or not _used_once(op.a, softmax.result):
        return None
    rank = tensor_of(softmax.x).get_num_dims()
    scores = _scores(softmax.x, store)
    if scores is None or softmax.axis.value.data != rank - 1:
        return None
    if masked is not None and (scores.mask is None or _plain(scores.mask) is not masked[1]):
        return None
    first = scores.product
    q, k, v = (factor_of(value, store) for value in (first.a, first.b, op.b))
    identity = tuple(range(rank))
    if rank < 2 or any(len(each.perm) != rank for each in (q, k, v)):
        return None
    shapes = [tensor_of(value).get_shape()[:-2] for value in (first.a, first.b, op.a, op.b)]
    scale = scores.scale * q.scale * k.scale
    if any(shape != shapes[0] for shape in shapes) or not math.isfinite(scale):
        return None
    if v.scale != 1:
        v = Factor(op.b, identity, 1)
    # The second factor of the first product is k^T.
    k = Factor(k.value, (*k.perm[:-2], k.perm[-1], k.perm[-2]), 1)
    return Attention(op, q, k, v, scores.mask, scale, masked is not None)


def _scores(value: SSAValue, store: WeightStore, *, may_add: bool = True) -> _Scores | None:
    """The scores that `value` is, through ops, an addition among them if it may, whose results nothing else uses."""
    scale, mask = 1.0, None
    while True:
        value = _plain(value)
        op = value.owner
        if not isinstance(op, Operation) or only_user(value) is None:
            return None
        if isinstance(op, graph.MatmulOp):
            return _Scores(op, scale, mask) if op.accumulator is None else None
        if (scaled := _scaled(op, store)) is not None:
            value, number = scaled
            scale *= number
        elif isinstance(op, graph.AddOp) and may_add and mask is None and scale == 1:
            # The mask is added to what has been scaled.
            found = [
                side
                for side in (0, 1)
                if only_user(op.operands[side]) is not None
                and _scores(op.operands[side], store, may_add=False) is not None
            ]
            shape = tensor_of(value).get_shape()
            if not found or tensor_of(op.operands[found[0]]).get_shape() != shape:
                return None
            value, mask = op.operands[found[0]], op.operands[1 - found[0]]
        else:
            return None


def factor_of(value: SSAValue, store: WeightStore) -> Factor:
    """A value before transposes and multiplications with numbers."""
    perm, scale = tuple(range(tensor_of(value).get_num_dims())), 1.0
    while True:
        value = _plain(value)
        op = value.owner
        if isinstance(op, graph.TransposeOp):
            stored = op.perm.get_values()
            value, perm = op.x, tuple(stored[dim] for dim in perm)
        elif isinstance(op, Operation) and (scaled := _scaled(op, store)) is not None:
            value, scale = scaled[0], scale * scaled[1]
        else:
            return Factor(value, perm, scale)


def _scaled(op: Operation, store: WeightStore) -> tuple[SSAValue, float] | None:
    """What a multiplication with a number, or a division by one, multiplies, and with what."""
    if isinstance(op, graph.MulOp):
        for x, other in ((op.a, op.b), (op.b, op.a)):
            number = _number(other, store)
            if number is not None and math.isfinite(number) and tensor_of(x).get_shape() == op.result_type.get_shape():
                return x, number
    elif isinstance(op, graph.DivOp) and (number := _number(op.b, store)):
        if math.isfinite(number) and tensor_of(op.a).get_shape() == op.result_type.get_shape():
            return op.a, 1 / number
    return None


def _number(value: SSAValue, store: WeightStore) -> float | None:
    """The float that a constant repeats, for one in the text, or of few elements."""
    found = number_of(_plain(value), store) if is_float(tensor_of(value).element_type) else None
    return None if found is None else float(found)  # pyright: ignore[reportArgumentType]


def _plain(value: SSAValue) -> SSAValue:
    """A value before ops that leave it as it is, and before reshapes that take each other back."""
    while isinstance(value.owner, graph.IdentityOp | graph.CastOp | graph.ExpandOp | graph.ReshapeOp):
        source = value.owner.x
        if source.type != value.type and isinstance(value.owner, graph.ReshapeOp):
            inner = _plain(source).owner
            source = inner.x if isinstance(inner, graph.ReshapeOp) else source
        if source.type != value.type:
            break
        value = source
    return value


def _used_once(value: SSAValue, source: SSAValue) -> bool:
    """Whether `value` and all that it is made from, back to `source`, are each used by one op, or by a test of it."""
    while value is not source:
        op = value.owner
        if only_user(value) is None or not isinstance(op, Operation):
            return False
        value = op.operands[2] if isinstance(op, graph.WhereOp) else op.operands[0]
    return only_user(source) is not None


def _zero_where_masked(value: SSAValue, store: WeightStore) -> tuple[SSAValue, SSAValue] | None:
    """The weights and the mask of `where(max(mask) == -inf, 0, weights)`, as ONNX's Attention keeps rows from NaN."""
    op = value.owner
    if not isinstance(op, graph.WhereOp) or _number(op.a, store) != 0:
        return None
    test = _plain(op.cond).owner
    if not isinstance(test, graph.EqualOp):
        return None
    for side, other in ((test.a, test.b), (test.b, test.a)):
        reduced = _plain(side).owner
        if not isinstance(reduced, graph.ReduceMaxOp) or _number(other, store) != -math.inf:
            continue
        rank = tensor_of(reduced.x).get_num_dims()
        if list(reduced.axes.get_values()) == [rank - 1] and bool(reduced.keepdims):
            return op.b, _plain(reduced.x)
    return None


BLOCK_SIZES = (512, 256, 128, 64, 32, 16, 8)
"""The most queries, and the most keys, of a block, best first."""

_NEEDED = ("math.exp", "arith.maximumf", "arith.subf", "arith.mulf", "arith.addf", "arith.divf")
"""The operations on lanes that an attention consists of, besides products."""


def can_compute(target: TargetOp) -> bool:
    """Whether a machine multiplies matrices, has the operations on lanes, and an engine between the two."""
    intrinsics = [each for each in target.intrinsics().values() if each.dma_name is None]
    vectors = [each for each in intrinsics if not has_reduction(each.generic)]
    computed = {op.name: each for each in vectors for op in each.generic.body.block.ops}
    if not all(name in computed for name in _NEEDED):
        return False
    lanes = computed["math.exp"].operand_specs()[-1].scope
    return any(is_contraction(each.generic) and _takes_powers(each, lanes, target) for each in intrinsics)


def _takes_powers(product: IntrinsicOp, lanes: str, target: TargetOp) -> bool:
    """Whether a product multiplies what vectors have computed, and leaves its sums for them."""
    _, factor, result = product.operand_specs()
    return result.scope == lanes and (factor.scope == lanes or scope_path(target, lanes, factor.scope) is not None)


def blocks_on(target: TargetOp, found: Attention) -> tuple[int, int] | None:
    """The queries and keys of a block that the scopes of a machine hold; None if none fits."""
    product = next(each for each in target.intrinsics().values() if is_contraction(each.generic))
    specs = product.operand_specs()
    scopes = [target.scope(spec.scope) for spec in specs if spec.scope != DRAM]
    smallest = min(scopes, key=lambda scope: scope.size_bytes)
    queries, width = _sizes(found.q)
    keys, values = _sizes(found.v)
    if min(queries, keys, values) < 1:
        return None
    stored, summed = (numpy_dtype(spec.dtype).itemsize for spec in (specs[0], specs[-1]))
    widths = Widths(width + (found.mask is not None), values, stored, summed)
    granule = max(scope.granule_bytes for scope in scopes)
    return blocks_in(queries, keys, widths, BlockScope(smallest.size_bytes, granule), BLOCK_SIZES)


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


def _form(found: Attention, blocks: tuple[int, int] | None, build: NodeBuilder | None) -> None:
    """Replace what was found by one op, with `build` on operands that it arranges for a machine."""
    last, result_perm = found.product, tuple(range(len(found.q.perm)))
    user = only_user(last.results[0])
    if isinstance(user, graph.TransposeOp):
        last, result_perm = user, tuple(user.perm.get_values())
    identity = tuple(range(len(result_perm)))
    swapped = (*identity[:-2], identity[-1], identity[-2])
    parts = found if build is None else arranged(found, build)
    stored = result_perm if build is None else swapped
    perms = [None if perm == identity else perm for perm in (parts.q.perm, parts.k.perm, parts.v.perm, stored)]
    new = graph.AttentionOp(
        parts.q.value,
        parts.k.value,
        parts.v.value,
        parts.mask,
        scale=parts.scale,
        q_perm=perms[0],
        k_perm=perms[1],
        v_perm=perms[2],
        result_perm=perms[3],
        zero_masked=parts.zero_masked,
        blocks=blocks,
    )
    new.location = last.location
    ops: list[Operation] = [new]
    if build is not None:
        build.location = last.location
        build.add(new, "attention")
        build.add(graph.TransposeOp(new, perm=[swapped[dim] for dim in result_perm]))
        ops = build.ops
    Rewriter.insert_op(ops, InsertPoint.before(last))
    ops[-1].results[0].name_hint = last.results[0].name_hint
    last.results[0].replace_all_uses_with(ops[-1].results[0])
    erase_unused(last.results[0])


@dataclass(frozen=True)
class FuseAttentionPass(ModulePass):
    """
    Form a `graph.attention` out of a matrix product, a softmax along its rows, and the product with that.

    Between the two products there may be, in this order, multiplications with and divisions by a number, one
    addition of a mask, and ONNX's replacement of wholly masked rows by zeros; nothing of it may be used elsewhere.
    Transposes and multiplications with a number before the factors, and a transpose of the result, become part of
    the op, which reads and writes in the order that is stored. Batches do not broadcast.

    Requires and guarantees the graph level. The scores then exist a tile at a time, in the kernel that
    `graph-to-tensor` makes. Maxima and sums are updated from block to block, so that results differ by rounding.
    See Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", NeurIPS 2022.

    Before:
    ```mlir
    func.func @main(%q: tensor<2x128x4x64xf32>, %k: tensor<2x128x4x64xf32>, %v: tensor<2x4x128x64xf32>,
        %mask: tensor<2x1x1x128xf32>) -> tensor<2x128x4x64xf32> {
      %eight = graph.constant dense<8.000000e+00> : tensor<f32>
      %a = graph.transpose %q perm [0, 2, 1, 3] : tensor<2x128x4x64xf32> -> tensor<2x4x128x64xf32>
      %b = graph.transpose %k perm [0, 2, 3, 1] : tensor<2x128x4x64xf32> -> tensor<2x4x64x128xf32>
      %s = graph.matmul %a, %b : (tensor<2x4x128x64xf32>, tensor<2x4x64x128xf32>) -> tensor<2x4x128x128xf32>
      %t = graph.div %s, %eight : (tensor<2x4x128x128xf32>, tensor<f32>) -> tensor<2x4x128x128xf32>
      %u = graph.add %t, %mask : (tensor<2x4x128x128xf32>, tensor<2x1x1x128xf32>) -> tensor<2x4x128x128xf32>
      %p = graph.softmax %u axis 3 : tensor<2x4x128x128xf32> -> tensor<2x4x128x128xf32>
      %c = graph.matmul %p, %v : (tensor<2x4x128x128xf32>, tensor<2x4x128x64xf32>) -> tensor<2x4x128x64xf32>
      %y = graph.transpose %c perm [0, 2, 1, 3] : tensor<2x4x128x64xf32> -> tensor<2x128x4x64xf32>
      func.return %y : tensor<2x128x4x64xf32>
    }
    ```
    After (`fuse-attention`):
    ```mlir
    func.func @main(%q: tensor<2x128x4x64xf32>, %k: tensor<2x128x4x64xf32>, %v: tensor<2x4x128x64xf32>,
        %mask: tensor<2x1x1x128xf32>) -> tensor<2x128x4x64xf32> {
      %y = graph.attention %q, %k, %v, %mask scale 0.125 q_perm [0, 2, 1, 3] k_perm [0, 2, 1, 3]
          result_perm [0, 2, 1, 3]
          : (tensor<2x128x4x64xf32>, tensor<2x128x4x64xf32>, tensor<2x4x128x64xf32>, tensor<2x1x1x128xf32>)
          -> tensor<2x128x4x64xf32>
      func.return %y : tensor<2x128x4x64xf32>
    }
    ```
    """

    name = "fuse-attention"
    reassociates: ClassVar[bool] = True
    """Sums are rescaled from block to block, and divided at the end."""

    blocks: tuple[int, int] | None = None
    """How many queries and how many keys are on chip at once; chosen for the machine, or when it is lowered."""
    device: Literal["auto", "host"] = "auto"
    """
    Where attentions shall run. With "auto" and a machine in the module, they are formed for it, and those that it
    cannot compute as a whole are left as they are; "host" forms all of them for the host.
    """

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target = machine_of(op) if self.device == "auto" else None
        if target is not None and not can_compute(target):
            return
        store = store_of(ctx)
        for block in graph_blocks(op):
            for candidate in list(block.ops):
                found = match_attention(candidate, store) if candidate.parent is block else None
                if found is None:
                    continue
                if target is None:
                    _form(found, self.blocks, None)
                    continue
                blocks = self.blocks or blocks_on(target, found)
                if not has_query_in_mask(found) and blocks is not None:
                    _form(found, blocks, NodeBuilder(candidate.location, store))
