"""
The importer of LinearAttention: attention whose state is a matrix and not a history.

Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", ICLR 2025. Every step becomes ops of its own.
"""

from __future__ import annotations

import math

from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import require
from penstock.dialects.graph.sizes import Dim, UnknownSize
from penstock.lowering.from_onnx.arithmetic import Arithmetic
from penstock.lowering.from_onnx.node import Node, imports
from penstock.lowering.from_onnx.nodes_shape import sliced

RULES = ("linear", "gated", "delta", "gated_delta")


@imports("LinearAttention")
def linear_attention(node: Node) -> list[SSAValue]:
    """
    The state S, one of `key size` by `value size` for each head, decays, forgets what the key k retrieves (`delta`),
    takes up k v', and is read by the query; all in f32.
    """
    sums = Arithmetic(node)
    rule = node.string("update_rule", "gated_delta")
    require(rule in RULES, f'update_rule is one of {", ".join(RULES)}, not "{rule}"')
    heads, kv_heads = node.int("q_num_heads", 0), node.int("kv_num_heads", 0)
    require(
        heads > 0 and kv_heads > 0 and heads % kv_heads == 0,
        f"q_num_heads {heads} is no positive multiple of kv_num_heads {kv_heads}",
    )
    is_gated, is_delta = rule.startswith("gated"), rule.endswith("delta")
    require(node.has(4) == is_gated, f"update_rule {rule} {'needs' if is_gated else 'takes no'} decay")
    require(node.has(5) == is_delta, f"update_rule {rule} {'needs' if is_delta else 'takes no'} beta")
    batches, steps, width = node.shape(0)
    if isinstance(steps, Dim):
        raise UnknownSize(steps, "is the length of a sequence and must be known: every step becomes ops of its own")
    key_size, value_size = width // heads, node.shape(2)[2] // kv_heads
    require(
        tuple(node.shape(1)) == (batches, steps, kv_heads * key_size) and width == heads * key_size,
        f"keys of shape {list(node.shape(1))} for queries of {list(node.shape(0))}",
    )
    require(steps > 0, "a sequence without steps")
    element = tensor_of(node.value(0)).element_type
    kept = tensor_of(node.value(3)).element_type if node.has(3) else element
    scale = node.float("scale", 0.0) or 1 / math.sqrt(key_size)
    queries, keys, values = (
        _of_heads(sums, node.value(index), count) for index, count in enumerate((heads, kv_heads, kv_heads))
    )
    decays = betas = None
    if is_gated:
        decays = sums.unary(graph.ExpOp, _of_heads(sums, node.value(4), kv_heads))
    if is_delta:
        # One number for each head, or for all of them.
        betas = _of_heads(sums, node.value(5), node.shape(5)[2])
    state_shape = [batches, kv_heads, key_size, value_size]
    if node.has(3):
        require(list(node.shape(3)) == state_shape, f"a state of shape {list(node.shape(3))}, not {state_shape}")
        state = sums.cast(node.value(3), f32)
    else:
        state = sums.expand(sums.number(0.0, queries), state_shape)
    results: list[SSAValue] = []
    for step in range(steps):
        query, key, value = (sliced(node, each, 2, step, 1) for each in (queries, keys, values))
        upright = sums.transpose(key, 0, 1, 3, 2)
        if decays is not None:
            # Over the rows of the state: one number, or one for each row.
            state = sums.mul(state, sums.transpose(sliced(node, decays, 2, step, 1), 0, 1, 3, 2))
        if betas is not None:
            value = sums.mul(sliced(node, betas, 2, step, 1), sums.sub(value, sums.matmul(key, state)))
        state = sums.add(state, sums.mul(upright, value))
        # The queries of a group share the state of their head.
        grouped = sums.reshape(query, [batches, kv_heads, heads // kv_heads, key_size])
        results.append(sums.reshape(sums.matmul(grouped, state), [batches, 1, heads * value_size]))
    output = sums.mul(sums.concat(results, axis=1), scale)
    return [sums.cast(output, element), sums.cast(state, kept)]


def _of_heads(sums: Arithmetic, x: SSAValue, heads: int) -> SSAValue:
    """(batches, steps, heads * size) as (batches, heads, steps, size), in f32."""
    batches, steps, width = tensor_of(x).get_shape()
    require(width % heads == 0, f"{width} numbers for {heads} heads")
    split = sums.reshape(sums.cast(x, f32), [batches, steps, heads, width // heads])
    return sums.transpose(split, 0, 2, 1, 3)
