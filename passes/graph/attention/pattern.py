"""The pattern of an attention: product, scale, mask, softmax, product, as exporters and ONNX's function write it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from penstock.dialects import graph
from penstock.dialects.graph import tensor_of
from penstock.dialects.graph.base import is_float
from penstock.dialects.weights import WeightStore
from penstock.passes.graph.values import number_of, only_user


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
    """What stands between the first product and the softmax."""

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


def _scores(value: SSAValue, store: WeightStore) -> _Scores | None:
    """The scores that `value` is, through ops that nothing else uses the results of."""
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
        elif isinstance(op, graph.AddOp) and mask is None and scale == 1:
            # The mask is added to what has been scaled.
            found = [side for side in (0, 1) if _leads_to_product(op.operands[side], store)]
            shape = tensor_of(value).get_shape()
            if not found or tensor_of(op.operands[found[0]]).get_shape() != shape:
                return None
            value, mask = op.operands[found[0]], op.operands[1 - found[0]]
        else:
            return None


def _leads_to_product(value: SSAValue, store: WeightStore) -> bool:
    """Whether a product, scaled perhaps, and used nowhere else, is behind a value."""
    while only_user(value) is not None:
        op = _plain(value).owner
        if isinstance(op, graph.MatmulOp):
            return True
        if not isinstance(op, Operation) or (scaled := _scaled(op, store)) is None:
            return False
        value = scaled[0]
    return False


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
