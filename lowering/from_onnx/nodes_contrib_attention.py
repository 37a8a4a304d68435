# SPDX-License-Identifier: Apache-2.0
"""
Importers of onnxruntime's attention, with histories of keys and values as inputs and outputs, and of rotary embedding.

They become products and a softmax, which `fuse-attention` makes one op of where that is right. Narrow floats are
computed in f32. A history has the length that its type says; how much of it counts may be data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph.base import require
from penstock.lowering.from_onnx.accumulation import in_accumulator
from penstock.lowering.from_onnx.forms import formed
from penstock.lowering.from_onnx.node import NodeCode, OnnxNode, Unsupported
from penstock.passes.graph.terms import Term

HIDDEN = -math.inf
"""What is added to the score of a key that a query must not see."""


def _refuse_inputs(node: OnnxNode, **numbers: int) -> None:
    for what, number in numbers.items():
        if node.has(number):
            raise Unsupported(f"with {what}")


def _refuse_output(node: OnnxNode, number: int) -> None:
    if any(node.used_outputs[number:]):
        raise Unsupported(f'its output "{node.proto.output[number]}"')


def _split(x: Term, heads: int) -> Term:
    """(batch, length, heads * size) as (batch, heads, length, size)."""
    batch, length, width = x.shape
    require(width % heads == 0, f"{width} numbers for {heads} heads")
    return x.reshape([batch, length, heads, width // heads]).transpose([0, 2, 1, 3])


def _joined(x: Term) -> Term:
    """The inverse of `_split`."""
    batch, heads, length, size = x.shape
    return x.transpose([0, 2, 1, 3]).reshape([batch, length, heads * size])


@dataclass
class Scores:
    """What becomes of the product of queries and keys before it weighs the values."""

    scale: float
    added: Sequence[Term] = ()
    """Biases and masks, which broadcast to (batch, heads, queries, keys)."""
    visible: Term | None = None
    """Which keys a query may see at all."""
    softcap: float = 0.0
    """Bounds the scores, smoothly, where it is not 0."""
    sinks: Term | None = None
    """For each head the score of a key without a value."""

    def weigh(self, q: Term, k: Term, v: Term) -> Term:
        """softmax(q k^T * scale + ...) v, for (batch, heads..., length, size), where all but the last two broadcast."""
        rank = len(k.shape)
        scores = (q @ k.transpose([*range(rank - 2), rank - 1, rank - 2])) * self.scale
        if self.softcap:
            scores = (scores / self.softcap).apply("tanh") * self.softcap
        for each in self.added:
            scores = scores + each
        if self.visible is not None:
            scores = self.visible.where(scores, HIDDEN)
        *lead, keys = scores.shape
        if self.sinks is not None:
            column = self.sinks.expand([*lead, 1])
            scores = scores.emit(graph.ConcatOp([scores.value, column.value], axis=rank - 1))
        weights = scores.emit(graph.SoftmaxOp(scores.value, axis=rank - 1)).cut(rank - 1, 0, keys)
        return weights @ v


def _scale(node: OnnxNode, size: int) -> float:
    return node.float("scale", 0.0) or 1 / math.sqrt(size)


def _causal(code: NodeCode, queries: int, keys: int) -> Term:
    """Whether a key is not after a query, the last of which stand at the end of the keys."""
    return code.constant(np.tri(queries, keys, keys - queries, dtype=np.bool_), "causal")


def _padding(node: OnnxNode, index: int, batch: int, queries: int, keys: int, element: Term) -> Term:
    """
    A mask of keys as a bias, `mask_filter_value` where there is none: their number in each batch, perhaps with where
    they begin, or for each key, perhaps for each query too, whether it is one.
    """
    code, shape = node.code, node.shape(index)
    mask = code.input(index, i64)
    if shape == (batch,) or (shape == (2 * batch,) and batch > 0):
        at = code.positions(keys, 3, 4)
        seen = at < mask.cut(0, 0, batch).reshape([batch, 1, 1, 1])
        if len(mask.shape) and mask.shape[0] == 2 * batch and shape != (batch,):
            begins = mask.cut(0, batch, batch).reshape([batch, 1, 1, 1])
            seen = seen.apply("and", (at < begins).apply("not"))
    elif shape == (batch, keys):
        seen = (mask > 0).reshape([batch, 1, 1, keys])
    elif shape == (batch, queries, keys):
        seen = (mask > 0).reshape([batch, 1, queries, keys])
    else:
        raise Unsupported(f"a mask of shape {list(shape)} for {batch} batches of {queries} queries and {keys} keys")
    kind = element.element_type
    return seen.where(code.number(0.0, kind), node.float("mask_filter_value", -10000.0))


# Rotary embedding.


def _rotated(x: Term, cos: Term, sin: Term, interleaved: bool) -> Term:
    """
    The first numbers of each head turned, pair by pair, twice as many as there are in a row of `cos`: pairs are
    neighbours, or as far apart as half of them. x is (batch, length, heads, size), the tables broadcast to it.

    Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", Neurocomputing 568, 2024.
    """
    half, size = cos.shape[-1], x.shape[-1]
    require(2 * half <= size, f"tables for {2 * half} numbers, and heads of {size}")
    if interleaved:
        first, second = x.cut(3, 0, half, 2), x.cut(3, 1, half, 2)
    else:
        first, second = x.cut(3, 0, half), x.cut(3, half, half)
    turned = [first * cos - second * sin, second * cos + first * sin]
    *lead, _ = x.shape
    if interleaved:
        pairs = [each.reshape([*lead, half, 1]).value for each in turned]
        whole = x.emit(graph.ConcatOp(pairs, axis=4)).reshape([*lead, 2 * half])
    else:
        whole = x.emit(graph.ConcatOp([each.value for each in turned], axis=3))
    if 2 * half == size:
        return whole
    return x.emit(graph.ConcatOp([whole.value, x.cut(3, 2 * half, size - 2 * half).value], axis=3))


def _table(node: OnnxNode, index: int, positions: Term) -> Term:
    """The rows of a table at positions, (batch or 1, length), for all heads."""
    table = node.code.input(index)
    rows = table.emit(graph.GatherOp(table.value, positions.value, axis=0))
    batch, length, half = rows.shape
    return rows.reshape([batch, length, 1, half])


@formed(
    "RotaryEmbedding",
    "input position_ids cos_cache sin_cache",
    attributes="interleaved is_packed_batching num_heads rotary_embedding_dim scale",
)
@in_accumulator
def rotary_embedding(node: OnnxNode) -> SSAValue:
    """Of (batch, heads, length, size), or (batch, length, heads * size); one position may be where all begin."""
    code, x, part = node.code, node.code.input(0), node.int("rotary_embedding_dim", 0)
    if node.flag("is_packed_batching", False) or node.float("scale", 1.0) not in (0.0, 1.0):
        raise Unsupported("is_packed_batching, or a scale")
    flat = len(x.shape) == 3
    if flat:
        heads = node.int("num_heads", 0) if part else x.shape[2] // (2 * node.shape(2)[1])
        require(heads > 0 and x.shape[2] % heads == 0, f"{heads} heads for {x.shape[2]} numbers")
        lined = x.reshape([*x.shape[:2], heads, x.shape[2] // heads])
    else:
        require(len(x.shape) == 4, f"a tensor of {len(x.shape)} dimensions")
        lined = x.transpose([0, 2, 1, 3])
    batch, length = lined.shape[:2]
    given = code.input(1, i64)
    if given.shape != (batch, length) or len(given.shape) == 1:
        require(math.prod(given.shape) == 1, f"positions of shape {list(given.shape)}")
        given = given.reshape([1, 1]) + code.positions(length, 1, 2)
    y = _rotated(lined, _table(node, 2, given), _table(node, 3, given), node.flag("interleaved", False))
    return (y.reshape(x.shape) if flat else y.transpose([0, 2, 1, 3])).value


# Attention of several heads.


def _extended(node: OnnxNode, new: Term, past: Term | None) -> Term:
    """A history, and what is new after it."""
    return new if past is None else node.code.concat([past, new], 2)


def _biased(x: Term, bias: Term | None, start: int) -> Term:
    return x if bias is None else x + bias.cut(0, start, x.shape[-1])


@formed(
    "MultiHeadAttention",
    "query key? value? bias? key_padding_mask? attention_bias? past_key? past_value? past_sequence_length? "
    "cache_indirection?",
    "output present_key present_value qk",
    "mask_filter_value num_heads scale unidirectional",
)
@in_accumulator
def multi_head_attention(node: OnnxNode) -> list[SSAValue]:
    """
    Queries, keys and values (batch, length, heads * size), with a bias for the three, one after the other; or keys and
    values as they are in a history, (batch, heads, length, size).
    """
    _refuse_inputs(node, past_sequence_length=8, cache_indirection=9)
    _refuse_output(node, 3)
    if not (node.has(1) and node.has(2)) or len(node.shape(0)) != 3:
        raise Unsupported("queries, keys and values in one tensor")
    if len(node.shape(1)) not in (3, 4) or len(node.shape(1)) != len(node.shape(2)):
        raise Unsupported(f"keys and values of {len(node.shape(1))} dimensions")
    code, heads = node.code, node.int("num_heads", 0)
    require(heads > 0, f"num_heads {heads}")
    bias = code.input(3) if node.has(3) else None
    width = node.shape(0)[2]
    q = _split(_biased(code.input(0), bias, 0), heads)
    if len(node.shape(1)) == 4:
        k, v = code.input(1), code.input(2)
    else:
        k = _split(_biased(code.input(1), bias, width), heads)
        v = _split(_biased(code.input(2), bias, 2 * width), heads)
    k, v = (_extended(node, new, code.input(index) if node.has(index) else None) for new, index in ((k, 6), (v, 7)))
    batch, _, queries, size = q.shape
    keys = k.shape[2]
    added = [code.input(5)] if node.has(5) else []
    if node.has(4):
        added.append(_padding(node, 4, batch, queries, keys, q))
    visible = _causal(code, queries, keys) if node.flag("unidirectional", False) else None
    y = Scores(_scale(node, size), added, visible).weigh(q, k, v)
    return [_joined(y).value, k.value, v.value]


@formed(
    "Attention",
    "input weights bias? mask_index? past? attention_bias? past_sequence_length?",
    "output present",
    "do_rotary mask_filter_value num_heads past_present_share_buffer qkv_hidden_sizes rotary_embedding_dim scale "
    "unidirectional",
)
@in_accumulator
def attention(node: OnnxNode) -> list[SSAValue | None]:
    """The same with the projections: queries, keys and values are one product; a history holds keys, then values."""
    _refuse_inputs(node, past_sequence_length=6)
    for name in ("do_rotary", "past_present_share_buffer"):
        if node.flag(name, False):
            raise Unsupported(name)
    code, heads = node.code, node.int("num_heads", 0)
    whole = code.input(0) @ code.input(1)
    if node.has(2):
        whole = whole + code.input(2)
    widths = node.ints("qkv_hidden_sizes") or [whole.shape[2] // 3] * 3
    require(heads > 0 and len(widths) == 3 and sum(widths) == whole.shape[2], f"widths {widths} of {whole.shape[2]}")
    starts = np.cumsum([0, *widths[:2]]).tolist()
    q, k, v = (_split(whole.cut(2, start, width), heads) for start, width in zip(starts, widths, strict=True))
    if node.has(4):
        past = code.input(4)
        k, v = (_extended(node, new, past.cut(0, index, 1).reshape(past.shape[1:])) for index, new in enumerate((k, v)))
    batch, _, queries, size = q.shape
    keys = k.shape[2]
    added = [code.input(5)] if node.has(5) else []
    if node.has(3):
        added.append(_padding(node, 3, batch, queries, keys, q))
    visible = _causal(code, queries, keys) if node.flag("unidirectional", False) else None
    y = Scores(_scale(node, size), added, visible).weigh(q, k, v)
    present = None
    if any(node.used_outputs[1:]):
        present = code.concat([each.reshape([1, *each.shape]) for each in (k, v)], 0).value
    return [_joined(y).value, present]


# Attention whose heads share keys.


@formed(
    "GroupQueryAttention",
    "query key? value? past_key? past_value? seqlens_k total_sequence_length cos_cache? sin_cache? position_ids? "
    "attention_bias? head_sink? k_scale? v_scale? q_norm_weight? k_norm_weight?",
    "output present_key present_value output_qk",
    "causal do_rotary k_quant_type kv_cache_bit_width kv_num_heads local_window_size num_heads qk_norm_epsilon "
    "qk_output rotary_interleaved scale sliding_window_cache smooth_softmax softcap v_quant_type",
)
@in_accumulator
def group_query_attention(node: OnnxNode) -> list[SSAValue]:
    """
    Several heads of queries for each of keys and values. Histories have room for all keys, of which each batch has
    `seqlens_k` + 1, the new ones last: those are written behind what it had.

    The total length must be known. Ainslie et al., "GQA: Training Generalized Multi-Query Transformer Models from
    Multi-Head Checkpoints", EMNLP 2023.
    """
    _refuse_inputs(node, k_scale=12, v_scale=13, q_norm_weight=14, k_norm_weight=15)
    _refuse_output(node, 3)
    for name in ("kv_cache_bit_width", "qk_output", "sliding_window_cache"):
        if node.flag(name, False):
            raise Unsupported(name)
    for name in ("k_quant_type", "v_quant_type"):
        if node.string(name, "NONE") != "NONE":
            raise Unsupported(name)
    code, heads, groups = node.code, node.int("num_heads", 0), node.int("kv_num_heads", 0)
    require(heads > 0 and groups > 0 and heads % groups == 0, f"{heads} heads of queries for {groups} of keys")
    q, k, v = _queries_keys_values(node, heads, groups)
    batch, queries, _, size = q.shape
    total = node.int_of(6, "total_sequence_length")
    before = _lengths_before(node, batch, queries, total)
    at = before.reshape([-1, 1]) + code.positions(queries, 1, 2)
    if node.flag("do_rotary", False):
        place = code.input(9, i64).reshape([batch, queries]) if node.has(9) else at
        cos, sin = (_table(node, index, place) for index in (7, 8))
        q, k = (_rotated(each, cos, sin, node.flag("rotary_interleaved", False)) for each in (q, k))
    keys, values = (_cached(node, each, index, at, total) for each, index in ((k, 3), (v, 4)))
    length, at = keys.shape[2], at.reshape([-1, 1, 1, queries, 1])
    key = code.positions(length, 4, 5)
    seen = (key > at).apply("not")
    if not node.flag("causal", True):
        seen = key < before.reshape([-1, 1, 1, 1, 1]) + queries
    if (window := node.int("local_window_size", -1)) > 0:
        seen = seen.apply("and", key > at - window)
    each = heads // groups
    added: list[Term] = []
    if node.has(10):
        bias = code.input(10)
        # Keys for which there is no room yet have no bias.
        require(bias.shape[3] <= length, f"a bias for {bias.shape[3]} keys of {length}")
        bias = bias.padded([0] * 4, [0, 0, 0, length - bias.shape[3]])
        shared = [groups, each] if bias.shape[1] > 1 else [1, 1]
        added.append(bias.reshape([bias.shape[0], *shared, *bias.shape[2:]]))
    sinks = None
    if node.has(11):
        sinks = code.input(11).reshape([1, groups, each, 1, 1])
    elif node.int("smooth_softmax", -1) > 0:
        sinks = code.number(0.0, q.element_type)
    scores = Scores(_scale(node, size), added, seen, node.float("softcap", 0.0), sinks)
    grouped = q.reshape([batch, queries, groups, each, size]).transpose([0, 2, 3, 1, 4])
    wide = [x.reshape([batch, groups, 1, length, x.shape[3]]) for x in (keys, values)]
    y = scores.weigh(grouped, *wide).transpose([0, 3, 1, 2, 4])
    return [y.reshape([batch, queries, -1]).value, keys.value, values.value]


def _queries_keys_values(node: OnnxNode, heads: int, groups: int) -> list[Term]:
    """The three as (batch, length, heads, size), out of one tensor or of three."""
    code, whole = node.code, node.code.input(0)
    require(len(whole.shape) == 3, f"queries of {len(whole.shape)} dimensions")
    batch, length, width = whole.shape
    parts = [whole]
    if node.has(1):
        parts += [code.input(1), code.input(2)]
    else:
        size = width // (heads + 2 * groups)
        starts = [0, heads * size, (heads + groups) * size]
        parts = [
            whole.cut(2, start, count * size) for start, count in zip(starts, (heads, groups, groups), strict=True)
        ]
    counts = (heads, groups, groups)
    for part, count in zip(parts, counts, strict=True):
        require(part.shape[2] % count == 0, f"{part.shape[2]} numbers for {count} heads")
    return [
        part.reshape([batch, length, count, part.shape[2] // count]) for part, count in zip(parts, counts, strict=True)
    ]


def _lengths_before(node: OnnxNode, batch: int, queries: int, total: int) -> Term:
    """How many keys each batch has before the new ones; (batch), or (1) where all have as many."""
    code, held = node.code, node.held(5)
    if queries == total:
        return code.constant(np.zeros(1, np.int64), "before")
    if isinstance(held, SSAValue):
        return code.input(5, i64).reshape([batch]) + (1 - queries)
    before = np.asarray(held, np.int64).reshape(batch) + 1 - queries
    require(0 <= before.min() and before.max() + queries <= total, f"seqlens_k {held.tolist()} for {total} keys in all")
    return code.constant(before[:1] if (before == before[0]).all() else before, "before")


def _cached(node: OnnxNode, new: Term, index: int, at: Term, total: int) -> Term:
    """A history, (batch, heads, length, size), with what is new written to the positions `at` of each batch."""
    new = new.transpose([0, 2, 1, 3])
    batch, heads, count, size = new.shape
    if count == total and not node.has(index):
        return new
    past = node.code.input(index) if node.has(index) else None
    length = max(total, 0 if past is None else past.shape[2])
    if past is None:
        whole = node.code.number(0.0, new.element_type).expand([batch, heads, length, size])
    else:
        whole = past.padded([0] * 4, [0, 0, length - past.shape[2], 0])
    where = at.reshape([-1, 1, count, 1]).expand(new.shape)
    return new.emit(graph.ScatterElementsOp(whole.value, where.value, new.value, axis=2))
