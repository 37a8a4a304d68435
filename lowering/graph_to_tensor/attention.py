# SPDX-License-Identifier: Apache-2.0
"""
Attention, a block of queries against a block of keys at a time, so that no score leaves the tile it is computed in.

Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", NeurIPS 2022, algorithm 1,
with the running sum divided out at the end, and Milakov and Gimelshein, "Online normalizer calculation for softmax",
2018.

The tile of scores is transposed, [keys, queries], and so are the tiles of queries and of the result: what belongs to
one query is a lane, so that the largest score, the sums and the rescaling are elementwise from row to row, and both
products read rows of k and v as they lie. Queries and results are transposed at the edges of a tile, unless they
are stored with the queries innermost.

Running maxima start from the lowest number that is finite, and not from minus infinity: an all but masked row then has
no infinity minus infinity on the way, and one that is wholly masked a sum of 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import ml_dtypes
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineExpr

from penstock.dialects import graph
from penstock.dialects.element_bits import DType
from penstock.dialects.element_types import numpy_dtype
from penstock.dialects.graph.base import summed_in
from penstock.lowering.graph_to_tensor.contraction import multiply_add
from penstock.lowering.graph_to_tensor.kernel import KernelBuilder, lowers
from penstock.passes.index_builder import Index
from penstock.passes.planning.attention_blocks import MAX_BLOCK, even_blocks
from penstock.passes.scalar_body import Body, Compute
from penstock.passes.schedule.tile_nest import DimRange
from penstock.passes.shapes import Dims, element_of, loops, shape_of

_ZERO = AffineExpr.constant(0)


class _Carried(NamedTuple):
    """What the loop over keys carries for a block of queries: the largest score, the sum of powers, and sums."""

    largest: SSAValue
    total: SSAValue
    sums: SSAValue


@dataclass(frozen=True)
class _Stored:
    """A tensor of the kernel, with the place in it of each dim of what the formula names: batch..., rows, columns."""

    tensor: SSAValue
    places: tuple[int, ...]

    def dims(self, row: AffineExpr, column: AffineExpr) -> list[AffineExpr]:
        """How a generic over a tile reads it; dims of the batch have one element there."""
        found = [_ZERO] * len(self.places)
        found[self.places[-2]], found[self.places[-1]] = row, column
        return found

    def spans(self, batch: Sequence[Index], row: DimRange, column: DimRange) -> list[DimRange]:
        """Where a tile lies."""
        of_batch = [DimRange(index, 1) for index in batch]
        placed = dict(zip(self.places, [*of_batch, row, column], strict=True))
        return [placed[dim] for dim in range(len(placed))]


@lowers(graph.AttentionOp)
def attention(kernel: KernelBuilder, op: graph.AttentionOp) -> SSAValue:
    """Loops over the batch and blocks of queries; in them one over blocks of keys."""
    return _Attention(kernel, op).build()


class _Attention:
    """The kernel of one attention."""

    def __init__(self, kernel: KernelBuilder, op: graph.AttentionOp):
        self._kernel, self._op = kernel, op
        self._element = summed_in(op)
        self._stored_element = element_of(op.v)
        # Dim i of what the formula names is dim perm[i] of an operand, but of the result it is the other way round.
        self._q, self._k, self._v = (
            _Stored(kernel.value(operand), perm) for operand, perm in zip((op.q, op.k, op.v), op.perms, strict=False)
        )
        self._mask = None if op.mask is None else kernel.value(op.mask)
        self._result_places = tuple(op.perms[3].index(dim) for dim in range(len(op.perms[3])))
        shape = shape_of(op.q)
        *self._batch, self._queries, self._width = (shape[dim] for dim in self._q.places)
        self._keys, self._values = (shape_of(op.v)[dim] for dim in self._v.places[-2:])
        given = None if op.blocks is None else op.blocks.get_values()
        most = (MAX_BLOCK, MAX_BLOCK) if given is None else given
        self._rows = min(most[0], self._queries) if given else even_blocks(self._queries, MAX_BLOCK)
        self._columns = min(most[1], self._keys) if given else even_blocks(self._keys, MAX_BLOCK)

    # loops

    def build(self) -> SSAValue:
        """All of it; the result as it is stored."""
        result = self._kernel.empty(shape_of(self._op.result), self._stored_element)
        if 0 in (*self._batch, self._queries, self._values):
            return result
        return self._over_batch(list(self._batch), [], result)

    def _over_batch(self, extents: list[int], batch: list[Index], result: SSAValue) -> SSAValue:
        if not extents:
            return self._kernel.loop(
                self._queries,
                self._rows,
                [result],
                lambda row, carried: [self._queries_block(batch, row, carried[0])],
                always=True,
            )[0]
        extent, *rest = extents
        return self._kernel.loop(
            extent, 1, [result], lambda index, carried: [self._over_batch(rest, [*batch, index], carried[0])]
        )[0]

    # a block of queries

    def _queries_block(self, batch: Sequence[Index], row: Index, result: SSAValue) -> SSAValue:
        """`result` with the rows from `row` on."""
        rows = DimRange(row, self._rows)
        queries, scaled = self._queries_tile(batch, rows)
        running = _Carried(
            self._fill([self._rows], self._lowest, "largest"),
            self._fill([self._rows], 0, "total"),
            self._fill([self._values, self._rows], 0, "sums"),
        )
        step = self._columns
        whole = self._keys - self._keys % step if step else 0

        def block(start: Index, size: int, before: Sequence[SSAValue]) -> _Carried:
            return self._step(batch, rows, DimRange(start, size), (queries, scaled), _Carried(*before))

        if whole:
            running = _Carried(
                *self._kernel.loop(whole, step, running, lambda start, before: block(start, step, before))
            )
        if self._keys > whole:
            # What the blocks leave over is a smaller block of its own.
            running = block(whole, self._keys - whole, running)
        return self._finish(batch, rows, running, result)

    def _queries_tile(self, batch: Sequence[Index], rows: DimRange) -> tuple[_Stored, bool]:
        """A tile of q, whose rows are queries, and whether it is scaled: with the queries innermost."""
        tile = self._slice(self._q, batch, rows, DimRange(0, self._width))
        if self._q.places[-2] == len(self._q.places) - 1:
            return tile, False
        # Turned over, and scaled on the way.
        element, m = loops(2)
        packed = self._kernel.generic(
            [(tile.tensor, tile.dims(m, element))],
            (self._kernel.empty([self._width, self._rows], self._stored_element), [element, m]),
            0,
            lambda body, xs: self._scaled(body, xs[0]),
        )
        return _Stored(packed, (1, 0)), True

    def _scaled(self, body: Body, x: SSAValue) -> SSAValue:
        scale = self._op.scale.value.data
        return x if scale == 1 else body.mul(x, body.like(scale, x))

    def _slice(self, of: _Stored, batch: Sequence[Index], row: DimRange, column: DimRange) -> _Stored:
        return _Stored(self._kernel.slice(of.tensor, of.spans(batch, row, column)), of.places)

    def _step(
        self, batch: Sequence[Index], rows: DimRange, columns: DimRange, q: tuple[_Stored, bool], before: _Carried
    ) -> _Carried:
        """What a block of keys makes of what was computed before."""
        kernel, (queries, scaled) = self._kernel, q
        keys = self._slice(self._k, batch, columns, DimRange(0, self._width))
        n, m, inner = loops(3)
        scores = kernel.generic(
            [(keys.tensor, keys.dims(n, inner)), (queries.tensor, queries.dims(m, inner))],
            (self._fill([columns.size, self._rows], 0, "scores"), [n, m]),
            1,
            multiply_add((False, False)),
        )
        scores = self._masked(batch, rows, columns, scores, scaled)
        # Each of these overwrites what is not needed any more, so that nothing has to be copied on chip.
        highest = self._along_keys(scores, self._fill([self._rows], self._lowest, "highest"), Body.max)
        at, by_query = loops(1), loops(1, 1)
        highest = self._update(highest, [(before.largest, at)], lambda body, xs: body.max(xs[0], xs[1]))
        change = self._update(before.largest, [(highest, at)], lambda body, xs: body.sub(xs[0], xs[1]))
        factor = self._new("factor", change, lambda body, xs: body.exp(xs[0]))
        largest = self._named("largest", kernel.generic([(highest, at)], (change, at), 0, lambda body, xs: xs[0]))
        powers = self._update(scores, [(highest, by_query)], lambda body, xs: body.exp(body.sub(xs[0], xs[1])))
        total = self._update(before.total, [(factor, at)], lambda body, xs: body.mul(xs[0], xs[1]))
        total = self._along_keys(powers, total, Body.add)
        sums = self._update(before.sums, [(factor, by_query)], lambda body, xs: body.mul(xs[0], xs[1]))
        if self._stored_element != self._element:
            narrow = self._stored_element
            powers = self._new("powers", powers, lambda body, xs: body.cast(xs[0], narrow, False), narrow)
        values = self._slice(self._v, batch, columns, DimRange(0, self._values))
        feature, m, n = loops(3)
        sums = kernel.generic(
            [(values.tensor, values.dims(n, feature)), (powers, [n, m])],
            (sums, [feature, m]),
            1,
            multiply_add((False, False)),
        )
        return _Carried(largest, total, sums)

    @property
    def _lowest(self) -> float:
        """The lowest number that is finite."""
        finfo = cast(Callable[[DType], Any], ml_dtypes.finfo)  # has no types
        return float(finfo(numpy_dtype(self._element)).min)

    def _masked(
        self, batch: Sequence[Index], rows: DimRange, columns: DimRange, scores: SSAValue, scaled: bool
    ) -> SSAValue:
        """The scores times the scale, if they are not scaled, plus the mask."""

        def compute(body: Body, xs: Sequence[SSAValue]) -> SSAValue:
            score = xs[0] if scaled else self._scaled(body, xs[0])
            return score if self._mask is None else body.add(score, body.widen(xs[1], score.type))

        if self._mask is None:
            is_same = scaled or self._op.scale.value.data == 1
            return scores if is_same else self._update(scores, [], compute)
        shape = shape_of(self._mask)
        n, m = loops(2)
        skipped = len(batch) + 2 - len(shape)
        whole = [*(DimRange(index, 1) for index in batch), rows, columns][skipped:]
        places = [*[_ZERO] * len(batch), m, n][skipped:]
        repeated = [size == 1 for size in shape]
        spans = [DimRange(0, 1) if one else span for one, span in zip(repeated, whole, strict=True)]
        dims = [_ZERO if one else place for one, place in zip(repeated, places, strict=True)]
        return self._update(scores, [(self._kernel.slice(self._mask, spans), dims)], compute)

    def _along_keys(
        self, tile: SSAValue, start: SSAValue, combine: Callable[[Body, SSAValue, SSAValue], SSAValue]
    ) -> SSAValue:
        """The rows of a tile [keys, queries] combined with each other and with `start`."""
        m, n = loops(2)
        return self._kernel.generic([(tile, [n, m])], (start, [m]), 1, lambda body, xs: combine(body, xs[1], xs[0]))

    def _new(self, name: str, tile: SSAValue, compute: Compute, element: Attribute | None = None) -> SSAValue:
        """A tile computed from another one, element by element."""
        at = loops(len(shape_of(tile)))
        output = self._kernel.empty(shape_of(tile), element or self._element, name=name)
        return self._named(name, self._kernel.generic([(tile, at)], (output, at), 0, compute))

    def _update(self, tile: SSAValue, others: Sequence[tuple[SSAValue, Dims]], compute: Compute) -> SSAValue:
        """A tile computed from itself and others, in its place."""
        at = loops(len(shape_of(tile)))
        updated = self._kernel.generic([(tile, at), *others], (tile, at), 0, compute)
        return self._named(self._kernel.names.get(tile, "attention"), updated)

    def _fill(self, shape: Sequence[int], number: float, name: str) -> SSAValue:
        """A tile of one number."""
        return self._kernel.fill(shape, self._element, number, name=name)

    def _named(self, name: str, value: SSAValue) -> SSAValue:
        self._kernel.names[value] = name
        return value

    def _finish(self, batch: Sequence[Index], rows: DimRange, running: _Carried, result: SSAValue) -> SSAValue:
        """The sums divided by the sum of powers, where the result wants them."""
        spans = _Stored(result, self._result_places).spans(batch, rows, DimRange(0, self._values))
        at = loops(len(spans))
        m, feature = at[self._result_places[-2]], at[self._result_places[-1]]

        def inverse(body: Body, xs: Sequence[SSAValue]) -> SSAValue:
            # A sum contains the power 1 of the largest score, unless all scores are minus infinity.
            total = body.max(xs[0], body.like(1, xs[0])) if bool(self._op.zero_masked) else xs[0]
            return body.div(body.like(1, total), total)

        sums, shares = running.sums, self._new("share", running.total, inverse)
        dest, narrow = self._kernel.slice(result, spans), self._stored_element
        if narrow == self._element:
            written = self._kernel.generic(
                [(sums, [feature, m]), (shares, [m])], (dest, at), 0, lambda body, xs: body.mul(xs[0], xs[1])
            )
        else:
            sums = self._update(sums, [(shares, loops(1, 1))], lambda body, xs: body.mul(xs[0], xs[1]))
            written = self._kernel.generic(
                [(sums, [feature, m])], (dest, at), 0, lambda body, xs: body.cast(xs[0], narrow, False)
            )
        return self._kernel.insert(written, result, spans)
