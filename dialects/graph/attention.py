"""Attention: softmax(q k^T * scale + mask) v as one operator."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import BoolAttr, Float32Type, FloatAttr
from xdsl.ir import Attribute
from xdsl.irdl import irdl_op_definition, operand_def, opt_operand_def, opt_prop_def, prop_def, traits_def

from penstock.dialects.graph.accumulator import accumulated
from penstock.dialects.graph.base import (
    FLOATS,
    INTS,
    TENSOR,
    GraphOp,
    HasPatternKind,
    PatternKind,
    Tensor,
    boolean,
    require,
    single,
    tensor_of,
    tensor_type,
)
from penstock.dialects.graph.number import Number
from penstock.dialects.graph.sizes import may_broadcast_to, may_equal


@irdl_op_definition
class AttentionOp(GraphOp):
    """
    softmax(q k^T * scale + mask) v for every index of the dimensions before the last two.

    With batch... the same in all of them, q is [batch..., m, d], k is [batch..., n, d], v is [batch..., n, e], the
    scores are [batch..., m, n], to which `mask` broadcasts, and the result is [batch..., m, e]. Each operand may be
    stored in another order: `q_perm`, `k_perm` and `v_perm` are the permutations of a `graph.transpose` that makes
    it what is written here, and `result_perm` is that of one which makes the result out of [batch..., m, e].

    It is computed in the type of the operands, narrow floats in f32, or in the wider `accumulator`, to which the mask
    then belongs; the result has the type of v. The powers are rounded to it too before they are multiplied with v, and
    their sum divides the product. A row of which every score is -inf is NaN, as a softmax is, or zero with
    `zero_masked`.

    `blocks` says how many queries and how many keys are on chip at once; it has no bearing on what is computed, but
    for rounding. See Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness",
    NeurIPS 2022, and ONNX's Attention.
    """

    name = "graph.attention"

    q = operand_def(TENSOR)
    k = operand_def(TENSOR)
    v = operand_def(TENSOR)
    mask = opt_operand_def(TENSOR)
    scale = prop_def(FloatAttr[Float32Type], default_value=single(1.0))
    q_perm = opt_prop_def(INTS)
    k_perm = opt_prop_def(INTS)
    v_perm = opt_prop_def(INTS)
    result_perm = opt_prop_def(INTS)
    zero_masked = prop_def(BoolAttr, default_value=boolean(False))
    blocks = opt_prop_def(INTS)
    accumulator = opt_prop_def(Attribute)

    traits = traits_def(HasPatternKind(PatternKind.COMPLEX_OUT_FUSABLE))
    custom_directives = (Number,)
    assembly_format = (
        "operands (`scale` custom<Number>($scale)^)? (`q_perm` $q_perm^)? (`k_perm` $k_perm^)? (`v_perm` $v_perm^)?"
        " (`result_perm` $result_perm^)? (`zero_masked` $zero_masked^)? (`blocks` $blocks^)?"
        " (`accumulate` $accumulator^)? attr-dict `:` functional-type(operands, results)"
    )

    @property
    def perms(self) -> tuple[tuple[int, ...], ...]:
        """The permutations of q, k, v and the result, written out."""
        identity = tuple(range(tensor_of(self.q).get_num_dims()))
        found = (self.q_perm, self.k_perm, self.v_perm, self.result_perm)
        return tuple(identity if each is None else tuple(each.get_values()) for each in found)

    @classmethod
    def infer(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        q_perm: Sequence[int] | None = None,
        k_perm: Sequence[int] | None = None,
        v_perm: Sequence[int] | None = None,
        result_perm: Sequence[int] | None = None,
        accumulator: Attribute | None = None,
    ) -> Tensor:
        """The shape [batch..., m, e], permuted by `result_perm`."""
        FLOATS.check(q, cls.name)
        accumulated((q, k, v), mask, accumulator, cls.name)
        rank = q.get_num_dims()
        require(rank >= 2, f"{cls.name} needs matrices, found {q}")
        for each in (k, v):
            require(each.get_num_dims() == rank, f"{cls.name} needs operands of one rank, found {q} and {each}")
        perms = {"q_perm": q_perm, "k_perm": k_perm, "v_perm": v_perm, "result_perm": result_perm}
        for name, perm in perms.items():
            require(
                perm is None or sorted(perm) == list(range(rank)),
                f"{name} {perm and list(perm)} is no permutation of {rank} dimensions",
            )
        (*batch, m, d), (*of_keys, n, width), (*of_values, count, e) = (
            _permuted(each.get_shape(), perm) for each, perm in zip((q, k, v), (q_perm, k_perm, v_perm), strict=True)
        )
        for other, what in ((of_keys, "keys"), (of_values, "values")):
            require(
                all(may_equal(mine, theirs) for mine, theirs in zip(batch, other, strict=True)),
                f"the queries have the batch {batch}, the {what} {other}",
            )
        require(may_equal(d, width), f"queries have {d} elements, keys {width}")
        require(may_equal(n, count), f"there are {n} keys and {count} values")
        if mask is not None:
            scores = (*batch, m, n)
            require(may_broadcast_to(mask.get_shape(), scores), f"the mask {mask} does not broadcast to {scores}")
        return tensor_type(v.element_type, _permuted((*batch, m, e), result_perm))

    def verify_(self) -> None:
        super().verify_()
        blocks = None if self.blocks is None else self.blocks.get_values()
        require(
            blocks is None or (len(blocks) == 2 and min(blocks) >= 1),
            f"blocks {blocks and list(blocks)} must be a number of queries and one of keys",
        )


def _permuted(shape: Sequence[int], perm: Sequence[int] | None) -> list[int]:
    return list(shape) if perm is None else [shape[dim] for dim in perm]
