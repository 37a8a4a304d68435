# SPDX-License-Identifier: Apache-2.0
"""LinearAttention against its recurrence, written down again, for every update rule."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from one_node import LEVELS, model_of, run_at

from penstock.dialects.diagnostics import UserError
from penstock.dialects.weights import Array
from penstock.runtime.compiler import import_program

BATCHES, STEPS, KEY, VALUE = 2, 3, 4, 5


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def recurrence(
    q: Array, k: Array, v: Array, past: Array | None, decay: Array | None, beta: Array | None, heads: int, kv: int
) -> tuple[Array, Array]:
    """Head by head and step by step, in float64."""
    output = np.zeros((BATCHES, STEPS, heads * VALUE))
    state = np.zeros((BATCHES, kv, KEY, VALUE)) if past is None else past.astype(np.float64)
    for batch in range(BATCHES):
        for step in range(STEPS):
            for head in range(kv):
                key = k[batch, step, head * KEY : (head + 1) * KEY]
                value = v[batch, step, head * VALUE : (head + 1) * VALUE].astype(np.float64)
                now = state[batch, head]
                if decay is not None:
                    width = decay.shape[2] // kv
                    now *= np.exp(decay[batch, step, head * width : (head + 1) * width, None].astype(np.float64))
                if beta is not None:
                    value = beta[batch, step, head if beta.shape[2] > 1 else 0] * (value - key @ now)
                now += np.outer(key, value)
            for head in range(heads):
                query = q[batch, step, head * KEY : (head + 1) * KEY]
                read = query @ state[batch, head // (heads // kv)]
                output[batch, step, head * VALUE : (head + 1) * VALUE] = read / math.sqrt(KEY)
    return output, state


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize(("heads", "kv"), [(2, 2), (6, 2), (3, 1)])
@pytest.mark.parametrize("continued", [False, True])
def test_every_rule_computes_its_recurrence(rule: str, heads: int, kv: int, continued: bool) -> None:
    q, k, v = (
        floats(BATCHES, STEPS, heads * KEY),
        floats(BATCHES, STEPS, kv * KEY, seed=1),
        floats(BATCHES, STEPS, kv * VALUE, seed=2),
    )
    past = floats(BATCHES, kv, KEY, VALUE, seed=3) if continued else None
    # One decay for each row of the state or for each head, one beta for each head or for all.
    decay = floats(BATCHES, STEPS, kv * (KEY if continued else 1), seed=4) if "gated" in rule else None
    beta = floats(BATCHES, STEPS, kv if continued else 1, seed=5) if "delta" in rule else None
    operands = [q, k, v, past, decay, beta]
    model = model_of(
        "LinearAttention", operands, outputs=2, opset=27, update_rule=rule, q_num_heads=heads, kv_num_heads=kv
    )
    expected = recurrence(q, k, v, past, decay, beta, heads, kv)
    full = rule == "gated_delta" and heads == 6
    given = [each for each in operands if each is not None]
    for level, found in run_at(model, given, LEVELS if full else ("graph",)):
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5, err_msg=level)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"update_rule": "gated"}, "update_rule gated needs decay"),
        ({"update_rule": "delta"}, "update_rule delta needs beta"),
        ({"update_rule": "other"}, 'update_rule is one of linear, gated, delta, gated_delta, not "other"'),
        ({"update_rule": "linear", "kv_num_heads": 3}, "q_num_heads 2 is no positive multiple of kv_num_heads 3"),
    ],
)
def test_what_does_not_fit_is_an_error_at_the_node(attributes: dict[str, Any], message: str) -> None:
    operands = [floats(1, 2, 8), floats(1, 2, 8), floats(1, 2, 8)]
    given: dict[str, Any] = {"q_num_heads": 2, "kv_num_heads": 2, **attributes}
    model = model_of("LinearAttention", operands, outputs=2, opset=27, **given)
    with pytest.raises(UserError) as caught:
        import_program(model, {}, name="test")
    assert caught.value.message == f'node "node" (LinearAttention): {message}'
